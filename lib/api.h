/* api.h - what the files of the door share: checking and launching a call. */
#ifndef API_H
#define API_H

#include "comm.h"

/* A call as it came in. */
struct request {
    struct call call;
    const void *send;
    void *recv;
    const size_t *send_counts, *send_displs, *recv_counts, *recv_displs;
    struct kolo_comm *comm;
    void *stream;
};

/* Check everything that can be checked here; a status of the call group with its text. */
enum kolo_status request_check(struct request *q);
/* The call is right: run it, queue it, or add it to the thread's open group. */
enum kolo_status request_launch(const struct request *q);

/* api_group.c */
/* Adopt an operation into the thread's group; or note that a call of the group failed. */
void group_add(struct operation *op);
enum kolo_status group_fail(enum kolo_status status);

static inline bool coll_has_root(enum kolo_coll c)
{
    return c == KOLO_COLL_BROADCAST || c == KOLO_COLL_REDUCE || c == KOLO_COLL_GATHER ||
           c == KOLO_COLL_SCATTER;
}

static inline bool coll_reduces(enum kolo_coll c)
{
    return c == KOLO_COLL_ALL_REDUCE || c == KOLO_COLL_REDUCE_SCATTER || c == KOLO_COLL_REDUCE ||
           c == KOLO_COLL_REDUCE_SCATTER_V;
}

static inline bool coll_is_v(enum kolo_coll c)
{
    return c >= KOLO_COLL_REDUCE_SCATTER_V && c <= KOLO_COLL_ALL_TO_ALL_V;
}

static inline bool coll_is_p2p(enum kolo_coll c)
{
    return c == KOLO_COLL_SEND || c == KOLO_COLL_RECV;
}

#endif
