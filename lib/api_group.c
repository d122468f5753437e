/* api_group.c - groups: calls between begin and end are collected per thread, then run together.
 * Operations of one communicator form a batch; batches with streams go to their workers, the others
 * run on this thread, all at the same time. */
#include "api.h"
#include "mem.h"

#include <string.h>

/* The thread's open group.  Operations are linked by `next` in order of issue. */
static _Thread_local struct {
    int depth;
    enum kolo_status status; /* of the first call that failed */
    struct operation *first;
    struct operation **tail;
    size_t n;
} group;

bool group_is_open(void)
{
    return group.depth > 0;
}

void group_add(struct operation *op)
{
    if (!group.first)
        group.tail = &group.first; /* the first of the group */
    op->next = NULL;
    *group.tail = op;
    group.tail = &op->next;
    group.n++;
}

void group_forget(struct kolo_comm *comm)
{
    struct operation **at = &group.first;
    while (group.depth > 0 && *at) {
        struct operation *op = *at;
        if (op->comm != comm) {
            at = &op->next;
            continue;
        }
        *at = op->next;
        group.n--;
        operation_give(op);
    }
    group.tail = at;
}

enum kolo_status group_fail(enum kolo_status status)
{
    if (group.depth > 0 && group.status == KOLO_OK)
        group.status = status;
    return status;
}

enum kolo_status kolo_group_begin(void)
{
    if (group.depth == 0) {
        group.first = NULL;
        group.n = 0;
        group.status = KOLO_OK;
    }
    group.depth++;
    return KOLO_OK;
}

/* ---- a rank's exchange with itself: copied here, no link is needed ---- */

static bool is_to_self(const struct operation *op)
{
    return coll_is_p2p(op->job.call.coll) && op->job.call.root == op->comm->rank;
}

/* The first self-receive of the same communicator behind any place in the list. */
static struct operation **find_partner(struct operation **list, const struct operation *send)
{
    for (struct operation **at = list; *at; at = &(*at)->next)
        if (is_to_self(*at) && (*at)->comm == send->comm && (*at)->job.call.coll == KOLO_COLL_RECV)
            return at;
    return NULL;
}

static enum kolo_status pair_check(const struct operation *send, const struct operation *recv)
{
    const struct call *a = &send->job.call, *b = &recv->job.call;
    if (a->count == b->count && a->type == b->type)
        return KOLO_OK;
    fail(KOLO_ERR_MISMATCH,
         "send to itself of count %zu, type %d meets a receive of count %zu, type %d", a->count,
         a->type, b->count, b->type);
    return KOLO_ERR_MISMATCH;
}

struct self_pair {
    struct operation *send;
    struct operation *recv;
};

/* Take the pairs out of the group's list. */
static enum kolo_status take_self_pairs(struct self_pair *pairs, size_t *n)
{
    for (struct operation **at = &group.first; *at;) {
        struct operation *op = *at;
        if (!is_to_self(op) || op->job.call.coll != KOLO_COLL_SEND) {
            at = &op->next;
            continue;
        }
        struct operation **partner = find_partner(&group.first, op);
        if (!partner)
            return fail(KOLO_ERR_USAGE, "a send of rank %d to itself has no receive in its group",
                        op->comm->rank);
        TRY(pair_check(op, *partner));
        pairs[(*n)++] = (struct self_pair){op, *partner};
        struct operation *recv = *partner;
        *partner = recv->next;
        for (at = &group.first; *at != op;)
            at = &(*at)->next;
        *at = op->next;
    }
    for (struct operation *op = group.first; op; op = op->next)
        if (is_to_self(op))
            return fail(KOLO_ERR_USAGE, "a receive of rank %d from itself has no send in its group",
                        op->comm->rank);
    return KOLO_OK;
}

static enum kolo_status copy_work(struct work *w)
{
    struct operation *op = (struct operation *)w;
    if (op->job.call.count > 0)
        memmove(op->recv, op->send, op->job.call.count * kolo_type_size(op->job.call.type));
    return KOLO_OK;
}

static void copy_finish(struct work *w, enum kolo_status status)
{
    (void)status;
    operation_give((struct operation *)w);
}

/* At once, behind what the communicator has queued; or as work of the streams. */
static enum kolo_status run_self_pair(const struct self_pair *p)
{
    struct operation *op = p->send;
    struct kolo_comm *comm = op->comm;
    struct kolo_stream *streams[2] = {op->stream, p->recv->stream};
    const bool must_wait = !streams[0] || !streams[1];
    op->recv = p->recv->recv;
    operation_give(p->recv);
    if (!streams[0] && !streams[1]) {
        comm_quiet(comm);
        copy_work(&op->work);
        operation_give(op);
        return KOLO_OK;
    }
    struct worker *worker;
    enum kolo_status status = worker_get(comm, &worker);
    op->work.run = copy_work;
    op->work.finish = copy_finish;
    if (status == KOLO_OK)
        status = worker_submit_many(worker, &op->work, streams, 2);
    if (status != KOLO_OK)
        operation_give(op);
    else if (must_wait)
        worker_drain(worker);
    return status;
}

/* ---- running the rest ---- */

/* Cut the list into batches, one per communicator, in order of first appearance.  tails: room for
 * as many as there are operations. */
static size_t make_batches(struct operation *list, struct operation **batches,
                           struct operation **tails)
{
    size_t n = 0;
    while (list) {
        struct operation *op = list;
        list = op->next;
        op->next = NULL;
        size_t i = 0;
        while (i < n && batches[i]->comm != op->comm)
            i++;
        if (i == n)
            batches[n++] = op;
        else
            tails[i]->next = op;
        tails[i] = op;
    }
    return n;
}

static bool has_stream(const struct operation *batch)
{
    for (; batch; batch = batch->next)
        if (batch->stream)
            return true;
    return false;
}

static bool all_have_streams(const struct operation *batch)
{
    for (; batch; batch = batch->next)
        if (!batch->stream)
            return false;
    return true;
}

/* Batches of this thread: bind all, then run them all at the same time. */
static enum kolo_status run_here(struct operation **batches, size_t n, struct engine_run *runs)
{
    enum kolo_status first = KOLO_OK;
    for (size_t i = 0; i < n; i++) {
        comm_quiet(batches[i]->comm);
        const enum kolo_status status = comm_bind_batch(batches[i]);
        first = first != KOLO_OK ? first : status;
        comm_fill_run(&runs[i], batches[i]);
    }
    const enum kolo_status status = engine_run_all(runs, n);
    return first != KOLO_OK ? first : status;
}

/* Peers may have started their part of the group: only breaking ends it for them. */
static enum kolo_status submit_batch(struct operation *batch)
{
    struct kolo_comm *comm = batch->comm;
    const enum kolo_status status = comm_submit(batch);
    if (status == KOLO_OK)
        return KOLO_OK;
    operations_give(batch);
    return engine_break(comm->engine, status);
}

/* First all that workers run, then this thread's part, then wait for operations without a stream
 * that went to a worker with others. */
static enum kolo_status run_batches(struct operation **batches, size_t n, struct engine_run *runs,
                                    struct kolo_comm **awaited)
{
    enum kolo_status first = KOLO_OK;
    size_t here = 0, nawaited = 0;
    for (size_t i = 0; i < n; i++) {
        struct operation *batch = batches[i];
        if (!has_stream(batch)) {
            batches[here++] = batch;
            continue;
        }
        if (!all_have_streams(batch))
            awaited[nawaited++] = batch->comm;
        const enum kolo_status status = submit_batch(batch);
        first = first != KOLO_OK ? first : status;
    }
    if (here > 0) {
        const enum kolo_status status = run_here(batches, here, runs);
        first = first != KOLO_OK ? first : status;
        for (size_t i = 0; i < here; i++)
            operations_give(batches[i]);
    }
    for (size_t i = 0; i < nawaited; i++) {
        comm_quiet(awaited[i]);
        first = first != KOLO_OK ? first : engine_status(awaited[i]->engine);
    }
    return first;
}

/* A stream runs its work in order, and the operations of a group that wait for each other could not
 * start.  seen: room for the first operation of each stream. */
static enum kolo_status check_streams(struct operation **seen)
{
    size_t n = 0;
    for (struct operation *op = group.first; op; op = op->next) {
        size_t i = 0;
        while (i < n && seen[i]->stream != op->stream)
            i++;
        if (!op->stream || (i < n && seen[i]->comm == op->comm))
            continue;
        if (i < n)
            return fail(KOLO_ERR_USAGE,
                        "a group has operations of two communicators on one stream: "
                        "give each communicator a stream of its own");
        seen[n++] = op;
    }
    return KOLO_OK;
}

/* What running a group needs, n of each; kept by the communicator of its first operation. */
struct group_room {
    size_t n;
    struct operation **batches;
    struct operation **tails;
    struct kolo_comm **awaited;
    struct engine_run *runs;
    struct self_pair *pairs;
};

void group_room_destroy(struct group_room *room)
{
    if (!room)
        return;
    mem_free(room->batches);
    mem_free(room->tails);
    mem_free(room->awaited);
    mem_free(room->runs);
    mem_free(room->pairs);
    mem_free(room);
}

static enum kolo_status reserve_room(struct kolo_comm *comm, size_t n, struct group_room **out)
{
    if (comm->group_room && comm->group_room->n >= n) {
        *out = comm->group_room;
        return KOLO_OK;
    }
    struct group_room *room = mem_calloc(1, sizeof *room);
    if (room) {
        room->n = n;
        room->batches = mem_calloc(n, sizeof(struct operation *));
        room->tails = mem_calloc(n, sizeof(struct operation *));
        room->awaited = mem_calloc(n, sizeof(struct kolo_comm *));
        room->runs = mem_calloc(n, sizeof *room->runs);
        room->pairs = mem_calloc(n, sizeof *room->pairs);
    }
    if (!room || !room->batches || !room->tails || !room->awaited || !room->runs || !room->pairs) {
        group_room_destroy(room);
        return fail(KOLO_ERR_NOMEM, "out of memory for a group");
    }
    group_room_destroy(comm->group_room);
    *out = comm->group_room = room;
    return KOLO_OK;
}

/* Nothing of the group has started: give its operations back. */
static enum kolo_status refuse(const struct self_pair *pairs, size_t n, enum kolo_status status)
{
    engine_note(group.first ? group.first->comm->engine : pairs[0].send->comm->engine);
    operations_give(group.first);
    for (size_t i = 0; i < n; i++) {
        operation_give(pairs[i].send);
        operation_give(pairs[i].recv);
    }
    return status;
}

static enum kolo_status run_group(void)
{
    struct group_room *room = NULL;
    size_t npairs = 0;
    enum kolo_status status = reserve_room(group.first->comm, group.n, &room);
    if (status != KOLO_OK)
        return refuse(NULL, 0, status);
    status = check_streams(room->tails);
    if (status == KOLO_OK)
        status = take_self_pairs(room->pairs, &npairs);
    if (status != KOLO_OK)
        return refuse(room->pairs, npairs, status);
    for (size_t i = 0; i < npairs; i++) {
        const enum kolo_status copied = run_self_pair(&room->pairs[i]);
        status = status != KOLO_OK ? status : copied;
    }
    const size_t n = make_batches(group.first, room->batches, room->tails);
    const enum kolo_status ran = run_batches(room->batches, n, room->runs, room->awaited);
    return status != KOLO_OK ? status : ran;
}

enum kolo_status kolo_group_end(void)
{
    if (group.depth == 0)
        return fail(KOLO_ERR_USAGE, "group_end without group_begin");
    if (--group.depth > 0)
        return KOLO_OK;
    enum kolo_status status = group.status;
    if (status != KOLO_OK)
        operations_give(group.first);
    else if (group.n > 0)
        status = run_group();
    group.first = NULL;
    group.n = 0;
    return status;
}
