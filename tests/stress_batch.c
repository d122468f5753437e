/* stress_batch.c - a batch: its buffers are made and filled, its calls issued, its results looked
 * at.  How a rank takes part (late, on a stream, in place, with which memory) it draws from a
 * generator of its own. */
#include "stress.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- saying what is wrong ---- */

void wrong(const struct driver *d, struct seat *s, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(s->shown->text, sizeof s->shown->text, format, args);
    va_end(args);
    s->shown->order = ++d->shared->failures;
    for (;;)
        pause(); /* the communicator stays, so that peers do not fail for this */
}

void expect_ok(const struct driver *d, struct seat *s, struct kolo_comm *comm,
               enum kolo_status status, const char *what)
{
    if (status != KOLO_OK)
        wrong(d, s, "%s: %s: %s", what, kolo_status_string(status), kolo_last_error(comm));
}

/* ---- being late ---- */

static uint64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void jitter(struct rng *r)
{
    const uint64_t kind = rng_below(r, 1024);
    if (kind < 128) {
        const uint64_t end = clock_ns() + rng_below(r, 20000);
        while (clock_ns() < end)
            ;
    } else if (kind < 160) {
        sched_yield();
    } else if (kind < 176) {
        usleep((useconds_t)rng_below(r, 300));
    } else if (kind == 176) {
        usleep((useconds_t)(1000 + rng_below(r, 6000)));
    }
}

/* ---- one call: before ---- */

static struct place *place_of(struct seat *s, const struct call *c)
{
    return c->shape.is_on_sub ? &s->group : &s->world;
}

/* Blocks one after the other, in rank order and tight, or in another order with gaps. */
static void draw_displs(struct rng *r, int n, const size_t *counts, int stride, bool is_packed,
                        size_t *displs)
{
    const int turn = is_packed ? 0 : (int)rng_below(r, (uint64_t)n);
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        const int k = (i + turn) % n;
        at += is_packed ? 0 : rng_below(r, 3);
        displs[k] = at;
        at += counts[k * stride];
    }
}

static void place_displs(struct seat *s, struct call *c, int n, int rank)
{
    const struct shape *shape = &c->shape;
    if (shape->coll == KOLO_COLL_ALL_GATHER_V)
        draw_displs(&s->rng, n, shape->counts, 1, c->is_packed, c->recv_displs);
    if (shape->coll != KOLO_COLL_ALL_TO_ALL_V)
        return;
    draw_displs(&s->rng, n, shape->counts + rank * n, 1, c->is_packed, c->send_displs);
    draw_displs(&s->rng, n, shape->counts + rank, n, c->is_packed, c->recv_displs);
    if (c->is_in_place)
        memcpy(c->recv_displs, c->send_displs, sizeof c->recv_displs);
}

static bool draw_shared(struct seat *s, const struct call *c)
{
    return c->shape.buffers == BUFFERS_SHARED ||
           (c->shape.buffers == BUFFERS_MIXED && rng_chance(&s->rng, 2));
}

static void place_buffers(struct seat *s, struct call *c, int n, int rank)
{
    const size_t size = kolo_type_size(c->shape.type);
    size_t send_bytes = c->send_side.extent * size, recv_bytes = c->recv_side.extent * size;
    c->send_region = c->recv_region = (struct region){.bytes = 0};
    c->send = c->recv = NULL;
    if (!c->is_in_place) {
        if (c->send_side.nsegments > 0)
            c->send_region = pool_take(s->pool, &s->rng, send_bytes, draw_shared(s, c));
        if (c->recv_side.nsegments > 0)
            c->recv_region = pool_take(s->pool, &s->rng, recv_bytes, draw_shared(s, c));
        c->send = c->send_region.at;
        c->recv = c->recv_region.at;
        return;
    }
    size_t send_at, recv_at;
    data_in_place(&c->shape, n, rank, &send_at, &recv_at);
    if (c->shape.coll == KOLO_COLL_ALL_GATHER_V)
        send_at = c->recv_displs[rank];
    send_bytes += send_at * size;
    recv_bytes += recv_at * size;
    c->recv_region = pool_take(s->pool, &s->rng, send_bytes > recv_bytes ? send_bytes : recv_bytes,
                               draw_shared(s, c));
    c->send = c->recv_region.at + send_at * size;
    c->recv = c->recv_region.at + recv_at * size;
}

/* A rank that has no use for one of the buffers cannot be in place. */
static bool can_be_in_place(const struct call *c)
{
    return c->send_side.nsegments > 0 && c->recv_side.nsegments > 0 &&
           c->shape.coll != KOLO_COLL_SEND;
}

static void prepare(const struct driver *d, struct seat *s, struct call *c)
{
    const struct place *p = place_of(s, c);
    const struct shape *shape = &c->shape;
    c->is_packed = rng_chance(&s->rng, 2);
    c->is_in_place = shape->in_place == IN_PLACE_ALL ||
                     (shape->in_place == IN_PLACE_MIXED && rng_chance(&s->rng, 2));
    place_displs(s, c, p->n, p->rank);
    data_send_side(shape, p->n, p->rank, c->send_displs, &c->send_side);
    data_recv_side(shape, p->n, p->rank, c->recv_displs, &c->recv_side);
    c->is_in_place = c->is_in_place && can_be_in_place(c);
    place_buffers(s, c, p->n, p->rank);
    if (c->send)
        data_fill(shape, p->n, &c->send_side, c->send);
    c->op = shape->op;
    if (shape->op == PREMUL) {
        unsigned char scalar[8];
        data_scalar(shape, p->rank, scalar);
        expect_ok(d, s, p->comm, kolo_op_create_premul_sum(scalar, shape->type, p->comm, &c->op),
                  "premul");
    }
}

/* ---- one call: itself ---- */

static enum kolo_status launch_v(const struct call *c, const struct place *p)
{
    const struct shape *s = &c->shape;
    const int n = p->n;
    size_t send_counts[MOST_RANKS], recv_counts[MOST_RANKS]; /* the library's until it returns */
    const size_t *send_displs = c->is_packed ? NULL : c->send_displs;
    const size_t *recv_displs = c->is_packed ? NULL : c->recv_displs;
    for (int k = 0; k < n; k++) {
        send_counts[k] = s->counts[s->coll == KOLO_COLL_ALL_TO_ALL_V ? p->rank * n + k : k];
        recv_counts[k] = s->counts[k * n + p->rank];
    }
    if (s->coll == KOLO_COLL_ALL_GATHER_V)
        return kolo_all_gather_v(c->send, c->recv, send_counts, recv_displs, s->type, p->comm,
                                 c->stream);
    if (s->coll == KOLO_COLL_REDUCE_SCATTER_V)
        return kolo_reduce_scatter_v(c->send, c->recv, send_counts, s->type, c->op, p->comm,
                                     c->stream);
    return kolo_all_to_all_v(c->send, send_counts, send_displs, c->recv, recv_counts, recv_displs,
                             s->type, p->comm, c->stream);
}

static enum kolo_status launch_p2p(const struct call *c, const struct place *p)
{
    const struct shape *s = &c->shape;
    enum kolo_status status = KOLO_OK;
    if (p->rank == s->root)
        status = kolo_send(c->send, s->count, s->type, s->dst, p->comm, c->stream);
    if (status == KOLO_OK && p->rank == s->dst)
        status = kolo_recv(c->recv, s->count, s->type, s->root, p->comm, c->stream);
    return status;
}

static enum kolo_status launch(const struct call *c, const struct place *p)
{
    const struct shape *s = &c->shape;
    switch (s->coll) {
    case KOLO_COLL_ALL_REDUCE:
        return kolo_all_reduce(c->send, c->recv, s->count, s->type, c->op, p->comm, c->stream);
    case KOLO_COLL_REDUCE_SCATTER:
        return kolo_reduce_scatter(c->send, c->recv, s->count, s->type, c->op, p->comm, c->stream);
    case KOLO_COLL_ALL_GATHER:
        return kolo_all_gather(c->send, c->recv, s->count, s->type, p->comm, c->stream);
    case KOLO_COLL_ALL_TO_ALL:
        return kolo_all_to_all(c->send, c->recv, s->count, s->type, p->comm, c->stream);
    case KOLO_COLL_BROADCAST:
        return kolo_broadcast(c->send, c->recv, s->count, s->type, s->root, p->comm, c->stream);
    case KOLO_COLL_REDUCE:
        return kolo_reduce(c->send, c->recv, s->count, s->type, c->op, s->root, p->comm, c->stream);
    case KOLO_COLL_GATHER:
        return kolo_gather(c->send, c->recv, s->count, s->type, s->root, p->comm, c->stream);
    case KOLO_COLL_SCATTER:
        return kolo_scatter(c->send, c->recv, s->count, s->type, s->root, p->comm, c->stream);
    case KOLO_COLL_BARRIER:
        return kolo_barrier(p->comm, c->stream);
    case KOLO_COLL_SEND:
        return launch_p2p(c, p);
    default:
        return launch_v(c, p);
    }
}

/* ---- one call: after ---- */

static void inspect(const struct driver *d, struct seat *s, struct call *c)
{
    const struct place *p = place_of(s, c);
    uint64_t want, seen;
    int64_t at = c->recv ? data_check(&c->shape, p->n, &c->recv_side, c->recv, &want, &seen) : -1;
    if (at >= 0)
        wrong(d, s, "element %lld of %zu is wrong: expected %#llx, seen %#llx", (long long)at,
              c->recv_side.extent, (unsigned long long)want, (unsigned long long)seen);
    if (c->send && !c->is_in_place) {
        at = data_check(&c->shape, p->n, &c->send_side, c->send, &want, &seen);
        if (at >= 0)
            wrong(d, s, "element %lld of the send buffer has changed: it was %#llx, is %#llx",
                  (long long)at, (unsigned long long)want, (unsigned long long)seen);
    }
    if (!pool_guards_hold(&c->send_region) || !pool_guards_hold(&c->recv_region))
        wrong(d, s, "bytes around a buffer were overwritten");
    pool_give(s->pool, &s->rng, &c->send_region);
    pool_give(s->pool, &s->rng, &c->recv_region);
    if (c->shape.op == PREMUL)
        expect_ok(d, s, p->comm, kolo_op_destroy(c->op, p->comm), "op_destroy");
}

/* ---- batches ---- */

/* Blocking calls are not for a thread that drives several ranks, unless in groups. */
static void draw_streams(const struct driver *d, struct seat *s, size_t ncalls, bool is_grouped)
{
    const bool must = d->nseats > 1 && !is_grouped;
    const uint64_t habit = rng_below(&s->rng, 3); /* none, all, each its own */
    for (size_t i = 0; i < ncalls; i++) {
        struct call *c = &s->calls[i];
        const bool has = must || habit == 1 || (habit == 2 && rng_chance(&s->rng, 2));
        const uint64_t which = rng_below(&s->rng, 2);
        c->stream = has ? s->streams[(c->shape.is_on_sub ? 2 : 0) + which] : NULL;
    }
}

static void show(struct seat *s, int batch, size_t call)
{
    s->shown->batch = batch;
    s->shown->call = (int)call;
    s->shown->shape = s->calls[call].shape;
    s->shown->steps++;
}

static void issue(const struct driver *d, int batch, size_t ncalls)
{
    for (size_t i = 0; i < ncalls; i++)
        for (int k = 0; k < d->nseats; k++) {
            struct seat *s = &d->seats[k];
            struct place *p = place_of(s, &s->calls[i]);
            show(s, batch, i);
            jitter(&s->rng);
            expect_ok(d, s, p->comm, launch(&s->calls[i], p), "the call");
        }
}

void batch_run(const struct driver *d, int batch, size_t ncalls, bool is_grouped)
{
    for (int k = 0; k < d->nseats; k++) {
        struct seat *s = &d->seats[k];
        draw_streams(d, s, ncalls, is_grouped);
        for (size_t i = 0; i < ncalls; i++) {
            show(s, batch, i);
            prepare(d, s, &s->calls[i]);
        }
    }
    if (is_grouped)
        expect_ok(d, d->seats, NULL, kolo_group_begin(), "group_begin");
    issue(d, batch, ncalls);
    if (is_grouped)
        expect_ok(d, d->seats, d->seats->world.comm, kolo_group_end(), "group_end");
    for (int k = 0; k < d->nseats; k++) {
        struct seat *s = &d->seats[k];
        jitter(&s->rng);
        for (int i = 0; i < STREAMS; i++)
            expect_ok(d, s, (i < 2 ? &s->world : &s->group)->comm,
                      kolo_stream_synchronize(s->streams[i]), "the stream");
        for (size_t i = 0; i < ncalls; i++) {
            show(s, batch, i);
            inspect(d, s, &s->calls[i]);
            if (place_of(s, &s->calls[i])->rank == 0)
                d->shared->operations++;
        }
    }
}
