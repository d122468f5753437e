/* operation.c - from a checked request to a job on the engine: layouts, algorithm, and the three
 * ways to run: at once on the caller's thread, on the communicator's worker, or with a group. */
#include "api.h"
#include "cfg.h"
#include "log.h"
#include "mem.h"

#include <string.h>

/* ---- life ---- */

enum kolo_status operation_take(struct kolo_comm *comm, struct operation **out)
{
    pthread_mutex_lock(&comm->lock);
    struct operation *op = comm->spare;
    if (op)
        comm->spare = op->next;
    pthread_mutex_unlock(&comm->lock);
    if (!op)
        op = mem_calloc(1, sizeof *op);
    if (!op)
        return fail(KOLO_ERR_NOMEM, "out of memory for an operation");
    op->comm = comm;
    op->next = NULL;
    *out = op;
    return KOLO_OK;
}

void operation_give(struct operation *op)
{
    struct kolo_comm *comm = op->comm;
    pthread_mutex_lock(&comm->lock);
    op->next = comm->spare;
    comm->spare = op;
    pthread_mutex_unlock(&comm->lock);
}

void operations_give(struct operation *batch)
{
    while (batch) {
        struct operation *next = batch->next;
        operation_give(batch);
        batch = next;
    }
}

/* Counts and displacements are the caller's only until the call returns. */
static void copy_row(size_t *counts_out, size_t *displs_out, const size_t *counts,
                     const size_t *displs, int n)
{
    size_t at = 0;
    for (int r = 0; r < n; r++) {
        counts_out[r] = counts[r];
        displs_out[r] = displs ? displs[r] : at;
        at += counts[r];
    }
}

static enum kolo_status copy_counts(struct operation *op, const struct request *q)
{
    const size_t n = (size_t)q->comm->nranks;
    if (!op->counts)
        op->counts = mem_calloc(4 * n, sizeof *op->counts);
    if (!op->counts)
        return fail(KOLO_ERR_NOMEM, "out of memory for the counts of %zu ranks", n);
    if (q->send_counts)
        copy_row(op->counts, op->counts + n, q->send_counts, q->send_displs, (int)n);
    if (q->recv_counts)
        copy_row(op->counts + 2 * n, op->counts + 3 * n, q->recv_counts, q->recv_displs, (int)n);
    return KOLO_OK;
}

static enum kolo_status fill(struct operation *op, const struct request *q)
{
    op->job.call = q->call;
    op->send = q->send;
    op->recv = q->recv;
    op->stream = q->stream;
    op->has_scalar = coll_reduces(q->call.coll) && q->call.op >= KOLO_OP_FIRST_CUSTOM;
    if (op->has_scalar)
        memcpy(op->scalar, q->comm->custom[q->call.op - KOLO_OP_FIRST_CUSTOM].scalar,
               sizeof op->scalar);
    return coll_is_v(q->call.coll) ? copy_counts(op, q) : KOLO_OK;
}

/* ---- binding ---- */

size_t operation_bytes(enum kolo_coll coll, size_t count, size_t type_bytes, int nranks)
{
    switch (coll) {
    case KOLO_COLL_REDUCE_SCATTER:
    case KOLO_COLL_ALL_GATHER:
    case KOLO_COLL_ALL_TO_ALL:
    case KOLO_COLL_GATHER:
    case KOLO_COLL_SCATTER:
        return count * type_bytes * (size_t)nranks;
    default:
        return count * type_bytes;
    }
}

static void layout_plain(struct job *j, size_t n)
{
    const size_t count = j->call.count;
    const struct layout one = {count, count, NULL, NULL}, many = {count, count * n, NULL, NULL};
    switch (j->call.coll) {
    case KOLO_COLL_REDUCE_SCATTER:
    case KOLO_COLL_SCATTER:
        j->layout[0] = many;
        j->layout[1] = one;
        break;
    case KOLO_COLL_ALL_GATHER:
    case KOLO_COLL_GATHER:
        j->layout[0] = one;
        j->layout[1] = many;
        break;
    case KOLO_COLL_ALL_TO_ALL:
        j->layout[0] = j->layout[1] = many;
        break;
    default:
        j->layout[0] = j->layout[1] = one;
    }
}

static void layout_v(struct operation *op)
{
    struct job *j = &op->job;
    const size_t n = (size_t)op->comm->nranks, r = (size_t)op->comm->rank;
    const size_t *c = op->counts;
    j->layout[0] = (struct layout){0, 0, c, c + n};
    j->layout[1] = (struct layout){0, 0, c + 2 * n, c + 3 * n};
    if (j->call.coll == KOLO_COLL_REDUCE_SCATTER_V)
        j->layout[1] = (struct layout){c[r], c[r], NULL, NULL};
    if (j->call.coll == KOLO_COLL_ALL_GATHER_V)
        j->layout[0] = (struct layout){c[2 * n + r], c[2 * n + r], NULL, NULL};
    /* What the blocks hold together; rows with counts do not use it. */
    for (int i = 0; i < 2; i++)
        for (size_t k = 0; j->layout[i].counts && k < n; k++)
            j->layout[i].total += j->layout[i].counts[k];
}

static inline void bind_pointers(struct operation *op)
{
    struct job *j = &op->job;
    /* The plan never writes to PLAN_IN. */
    j->base[PLAN_IN] = (unsigned char *)(uintptr_t)op->send;
    j->base[PLAN_OUT] = op->recv;
    if (j->call.coll == KOLO_COLL_BROADCAST && !op->recv)
        j->base[PLAN_OUT] = j->base[PLAN_IN];
    j->refuses_windows = op->bound_refuses_in_place && op->send == op->recv;
}

static void bind_layouts(struct operation *op)
{
    struct job *j = &op->job;
    const enum kolo_coll coll = j->call.coll;
    j->is_v = coll_is_v(coll) || coll_is_p2p(coll);
    j->signs_length = coll == KOLO_COLL_ALL_TO_ALL_V || coll_is_p2p(coll);
    if (coll_is_v(coll))
        layout_v(op);
    else
        layout_plain(j, (size_t)op->comm->nranks);
    const size_t size = kolo_type_size(j->call.type);
    j->in_bytes = j->layout[0].total * size;
    j->out_bytes = j->layout[1].total * size;
    j->pre = op->has_scalar ? op->scalar : NULL;
    j->timeout_ns = op->comm->timeout_ns;
}

/* Which way is taken may change from call to call; the result may not. */
static bool gives_same_bits(enum kolo_coll coll, const struct plan_algo *a,
                            const struct plan_algo *b)
{
    return !coll_reduces(coll) || (a->flags & b->flags & ALGO_RANK_ORDER);
}

static enum kolo_status bind_program(struct operation *op)
{
    struct kolo_comm *comm = op->comm;
    struct job *j = &op->job;
    const enum kolo_coll coll = j->call.coll;
    const int root = coll_has_root(coll) || coll_is_p2p(coll) ? j->call.root : 0;
    j->fallback = NULL;
    op->bound_refuses_in_place = false;
    if (UNLIKELY(comm->nloaded > 0)) {
        j->program = comm_loaded_program(comm, coll, root);
        if (j->program)
            return KOLO_OK;
    }
    const size_t bytes =
        operation_bytes(coll, j->call.count, kolo_type_size(j->call.type), comm->nranks);
    const bool may_window = !j->pre && bytes > 0 && !j->is_v;
    const struct plan_algo *algo = tune_choose(&comm->tune, coll, bytes, may_window);
    TRY(comm_program(comm, algo, coll, root, &j->program));
    if (algo && (algo->flags & ALGO_WINDOW)) {
        const struct plan_algo *other = tune_choose(&comm->tune, coll, bytes, false);
        TRY(comm_program(comm, other, coll, root, &j->fallback));
        op->bound_refuses_in_place = algo->flags & ALGO_NOT_IN_PLACE;
        j->may_choose = cfg_int(CFG_CMA) == CMA_AUTO && gives_same_bits(coll, algo, other);
    }
    return KOLO_OK;
}

/* The binding depends on the call alone, but for counts per rank and scalars, which may change. */
static bool is_bound_alike(const struct operation *op)
{
    const struct call *a = &op->bound, *b = &op->job.call;
    return op->is_bound && a->coll == b->coll && a->type == b->type && a->op == b->op &&
           a->root == b->root && a->count == b->count;
}

enum kolo_status operation_bind(struct operation *op)
{
    struct job *j = &op->job;
    if (LIKELY(is_bound_alike(op))) {
        j->program = op->bound_program;
        j->fallback = op->bound_fallback;
        bind_pointers(op);
        return KOLO_OK;
    }
    op->is_bound = op->may_repeat = false;
    bind_layouts(op);
    TRY(bind_program(op));
    bind_pointers(op);
    TRY(job_prepare(op->comm->engine, j));
    op->bound = j->call;
    op->bound_program = j->program;
    op->bound_fallback = j->fallback;
    op->is_bound = !coll_is_v(j->call.coll) && !op->has_scalar;
    return KOLO_OK;
}

enum kolo_status operation_bind_to(struct operation *op, const struct plan_algo *algo)
{
    struct kolo_comm *comm = op->comm;
    struct job *j = &op->job;
    op->is_bound = op->may_repeat = j->may_choose = op->bound_refuses_in_place = false;
    j->fallback = NULL;
    bind_layouts(op);
    TRY(comm_program(comm, algo, j->call.coll, 0, &j->program));
    if (algo->flags & ALGO_WINDOW)
        TRY(comm_program(comm, tune_choose(&comm->tune, j->call.coll, 0, false), j->call.coll, 0,
                         &j->fallback));
    op->bound_program = j->program;
    bind_pointers(op);
    return job_prepare(comm->engine, j);
}

/* ---- running ---- */

void comm_quiet(struct kolo_comm *comm)
{
    struct worker *w = atomic_load_explicit(&comm->worker, memory_order_relaxed);
    if (UNLIKELY(w && !worker_is_idle(w)))
        worker_drain(w);
}

static enum kolo_status comm_run(struct operation *op)
{
    comm_quiet(op->comm);
    TRY(operation_bind(op));
    return engine_run_job(op->comm->engine, &op->job);
}

enum kolo_status operation_repeat(struct operation *op, const void *send, void *recv)
{
    struct engine *e = op->comm->engine;
    comm_quiet(op->comm);
    op->send = send;
    op->recv = recv;
    op->job.program = op->bound_program;
    bind_pointers(op);
    const enum kolo_status status = engine_run_job(e, &op->job);
    if (UNLIKELY(status != KOLO_OK))
        engine_note(e);
    return status;
}

/* On the calling thread. */
static enum kolo_status run_blocking(const struct request *q)
{
    struct operation **op = &q->comm->blocking[q->call.coll];
    if (!*op) {
        /* Not from the free list, whose operations are bound to what streams and groups repeat. */
        *op = mem_calloc(1, sizeof **op);
        if (!*op)
            return fail(KOLO_ERR_NOMEM, "out of memory for an operation");
        (*op)->comm = q->comm;
    }
    TRY(fill(*op, q));
    TRY(comm_run(*op));
    if ((*op)->is_bound) {
        request_extents(q, *op);
        (*op)->may_repeat = true;
    }
    return KOLO_OK;
}

void comm_fill_run(struct engine_run *run, struct operation *batch)
{
    struct job **collectives = &run->collectives, **p2p = &run->p2p;
    run->engine = batch->comm->engine;
    run->status = KOLO_OK;
    for (struct operation *op = batch; op; op = op->next) {
        if (op->is_fused && !op->bucket)
            continue;
        struct job *j = op->bucket ? fuse_job(op->bucket) : &op->job;
        struct job ***tail = coll_is_p2p(op->job.call.coll) ? &p2p : &collectives;
        **tail = j;
        *tail = &j->next;
    }
    *collectives = *p2p = NULL;
}

enum kolo_status comm_bind_batch(struct operation *batch)
{
    enum kolo_status status = fuse_batch(batch->comm, batch);
    for (struct operation *op = batch; op && status == KOLO_OK; op = op->next)
        status = op->is_fused ? KOLO_OK : operation_bind(op);
    return status == KOLO_OK ? KOLO_OK : engine_break(batch->comm->engine, status);
}

static enum kolo_status run_batch(struct operation *batch)
{
    TRY(comm_bind_batch(batch));
    struct engine_run run;
    comm_fill_run(&run, batch);
    return engine_run_all(&run, 1);
}

static enum kolo_status work_run(struct work *w)
{
    struct operation *op = (struct operation *)w;
    char text[ERROR_TEXT_BYTES];
    log_set_rank(op->comm->rank);
    const enum kolo_status status = run_batch(op);
    if (status == KOLO_OK)
        return KOLO_OK;
    /* The stream keeps the worker's text. */
    engine_text(op->comm->engine, text, sizeof text);
    return fail_again(status, text);
}

static void work_finish(struct work *w, enum kolo_status status)
{
    (void)status; /* the stream and the engine keep it */
    operations_give((struct operation *)w);
}

enum { FEW_STREAMS = 16 };

/* The different streams of a batch, as many as there is room for.  Returns a number that is larger
 * than `room` when there were more, and room enough for all. */
static size_t list_streams(struct operation *batch, struct kolo_stream **streams, size_t room)
{
    size_t n = 0, left_out = 0;
    for (struct operation *op = batch; op; op = op->next) {
        bool is_known = !op->stream;
        for (size_t i = 0; i < n && !is_known; i++)
            is_known = streams[i] == op->stream;
        if (is_known)
            continue;
        if (n < room)
            streams[n++] = op->stream;
        else
            left_out++;
    }
    return n + left_out;
}

enum kolo_status worker_get(struct kolo_comm *comm, struct worker **out)
{
    struct worker *w = atomic_load_explicit(&comm->worker, memory_order_relaxed);
    if (!w) {
        TRY(worker_create(comm->name, comm->poll_ns, &w));
        /* Release: pairs with kolo_comm_status on other threads. */
        atomic_store_explicit(&comm->worker, w, memory_order_release);
    }
    *out = w;
    return KOLO_OK;
}

enum kolo_status comm_submit(struct operation *batch)
{
    struct worker *worker;
    TRY(worker_get(batch->comm, &worker));
    batch->work.run = work_run;
    batch->work.finish = work_finish;
    if (!batch->next)
        return worker_submit(worker, &batch->work, batch->stream);
    struct kolo_stream *few[FEW_STREAMS], **streams = few;
    size_t n = list_streams(batch, few, FEW_STREAMS);
    if (n > FEW_STREAMS) {
        streams = mem_calloc(n, sizeof(struct kolo_stream *));
        if (!streams)
            return fail(KOLO_ERR_NOMEM, "out of memory for a group of %zu streams", n);
        n = list_streams(batch, streams, n);
    }
    const enum kolo_status status = worker_submit_many(worker, &batch->work, streams, n);
    if (streams != few)
        mem_free(streams);
    return status;
}

enum kolo_status request_launch(const struct request *q)
{
    struct kolo_comm *comm = q->comm;
    enum kolo_status status;
    if (!q->stream && !group_is_open()) {
        status = run_blocking(q);
        if (status != KOLO_OK)
            engine_note(comm->engine);
        return status;
    }
    struct operation *op;
    status = operation_take(comm, &op);
    if (status == KOLO_OK) {
        status = fill(op, q);
        if (status != KOLO_OK)
            operation_give(op);
    }
    if (status != KOLO_OK) {
        engine_note(comm->engine);
        return group_fail(status);
    }
    if (group_is_open()) {
        group_add(op);
        return KOLO_OK;
    }
    status = comm_submit(op);
    if (status != KOLO_OK) {
        engine_note(comm->engine);
        operation_give(op);
    }
    return status;
}
