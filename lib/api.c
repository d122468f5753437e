/* api.c - every collective of kolo.h: arguments -> request -> check -> launch.
 * From here: api_check.c (what can be wrong), operation.c (binding to a plan), exec.c (running). */
#include "api.h"

static enum kolo_status check_and_launch(struct request *q)
{
    const enum kolo_status status = request_check(q);
    if (UNLIKELY(status != KOLO_OK)) {
        if (q->comm)
            engine_note(q->comm->engine);
        return group_fail(status);
    }
    return request_launch(q);
}

/* A blocking call that equals the last one of its collective has been checked and bound. */
static inline enum kolo_status enter(struct request *q)
{
    if (q->comm && !q->stream && !group_is_open()) {
        struct operation *op = q->comm->blocking[q->call.coll];
        if (LIKELY(operation_repeats(op, &q->call, q->send, q->recv)))
            return operation_repeat(op, q->send, q->recv);
    }
    return check_and_launch(q);
}

enum kolo_status kolo_all_reduce(const void *send, void *recv, size_t count, int type, int op,
                                 struct kolo_comm *comm, void *stream)
{
    struct request q = {.call = {KOLO_COLL_ALL_REDUCE, type, op, 0, count},
                        .send = send,
                        .recv = recv,
                        .comm = comm,
                        .stream = stream};
    return enter(&q);
}

enum kolo_status kolo_reduce_scatter(const void *send, void *recv, size_t count, int type, int op,
                                     struct kolo_comm *comm, void *stream)
{
    struct request q = {.call = {KOLO_COLL_REDUCE_SCATTER, type, op, 0, count},
                        .send = send,
                        .recv = recv,
                        .comm = comm,
                        .stream = stream};
    return enter(&q);
}

enum kolo_status kolo_reduce_scatter_v(const void *send, void *recv, const size_t *counts, int type,
                                       int op, struct kolo_comm *comm, void *stream)
{
    struct request q = {.call = {KOLO_COLL_REDUCE_SCATTER_V, type, op, 0, 0},
                        .send = send,
                        .recv = recv,
                        .send_counts = counts,
                        .comm = comm,
                        .stream = stream};
    return enter(&q);
}

enum kolo_status kolo_all_gather(const void *send, void *recv, size_t count, int type,
                                 struct kolo_comm *comm, void *stream)
{
    struct request q = {.call = {KOLO_COLL_ALL_GATHER, type, 0, 0, count},
                        .send = send,
                        .recv = recv,
                        .comm = comm,
                        .stream = stream};
    return enter(&q);
}

enum kolo_status kolo_all_gather_v(const void *send, void *recv, const size_t *counts,
                                   const size_t *displs, int type, struct kolo_comm *comm,
                                   void *stream)
{
    struct request q = {.call = {KOLO_COLL_ALL_GATHER_V, type, 0, 0, 0},
                        .send = send,
                        .recv = recv,
                        .recv_counts = counts,
                        .recv_displs = displs,
                        .comm = comm,
                        .stream = stream};
    return enter(&q);
}

enum kolo_status kolo_all_to_all(const void *send, void *recv, size_t count, int type,
                                 struct kolo_comm *comm, void *stream)
{
    struct request q = {.call = {KOLO_COLL_ALL_TO_ALL, type, 0, 0, count},
                        .send = send,
                        .recv = recv,
                        .comm = comm,
                        .stream = stream};
    return enter(&q);
}

enum kolo_status kolo_all_to_all_v(const void *send, const size_t *send_counts,
                                   const size_t *send_displs, void *recv, const size_t *recv_counts,
                                   const size_t *recv_displs, int type, struct kolo_comm *comm,
                                   void *stream)
{
    struct request q = {.call = {KOLO_COLL_ALL_TO_ALL_V, type, 0, 0, 0},
                        .send = send,
                        .recv = recv,
                        .send_counts = send_counts,
                        .send_displs = send_displs,
                        .recv_counts = recv_counts,
                        .recv_displs = recv_displs,
                        .comm = comm,
                        .stream = stream};
    return enter(&q);
}

enum kolo_status kolo_broadcast(const void *send, void *recv, size_t count, int type, int root,
                                struct kolo_comm *comm, void *stream)
{
    struct request q = {.call = {KOLO_COLL_BROADCAST, type, 0, root, count},
                        .send = send,
                        .recv = recv,
                        .comm = comm,
                        .stream = stream};
    return enter(&q);
}

enum kolo_status kolo_reduce(const void *send, void *recv, size_t count, int type, int op, int root,
                             struct kolo_comm *comm, void *stream)
{
    struct request q = {.call = {KOLO_COLL_REDUCE, type, op, root, count},
                        .send = send,
                        .recv = recv,
                        .comm = comm,
                        .stream = stream};
    return enter(&q);
}

enum kolo_status kolo_gather(const void *send, void *recv, size_t count, int type, int root,
                             struct kolo_comm *comm, void *stream)
{
    struct request q = {.call = {KOLO_COLL_GATHER, type, 0, root, count},
                        .send = send,
                        .recv = recv,
                        .comm = comm,
                        .stream = stream};
    return enter(&q);
}

enum kolo_status kolo_scatter(const void *send, void *recv, size_t count, int type, int root,
                              struct kolo_comm *comm, void *stream)
{
    struct request q = {.call = {KOLO_COLL_SCATTER, type, 0, root, count},
                        .send = send,
                        .recv = recv,
                        .comm = comm,
                        .stream = stream};
    return enter(&q);
}

enum kolo_status kolo_barrier(struct kolo_comm *comm, void *stream)
{
    struct request q = {
        .call = {KOLO_COLL_BARRIER, KOLO_U8, 0, 0, 0}, .comm = comm, .stream = stream};
    return enter(&q);
}

enum kolo_status kolo_send(const void *buf, size_t count, int type, int peer,
                           struct kolo_comm *comm, void *stream)
{
    struct request q = {.call = {KOLO_COLL_SEND, type, 0, peer, count},
                        .send = buf,
                        .comm = comm,
                        .stream = stream};
    return enter(&q);
}

enum kolo_status kolo_recv(void *buf, size_t count, int type, int peer, struct kolo_comm *comm,
                           void *stream)
{
    struct request q = {.call = {KOLO_COLL_RECV, type, 0, peer, count},
                        .recv = buf,
                        .comm = comm,
                        .stream = stream};
    return enter(&q);
}
