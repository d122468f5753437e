/* fuse_bucket.c - one bucket: operations cut into chunks, the plans that serve them, and where
 * their buffers lie.  What is made for a list of counts stays; of the buffers only the addresses
 * are compared when the same list comes again. */
#include "fuse.h"
#include "mem.h"

#include <string.h>

enum {
    /* A rank owns so many messages: few, so that ranks which share a CPU change places rarely, and
     * more than one, so that its stages overlap.  200 operations of 4 KiB on 2 cores of Zen 4
     * (2026-12-01), group of 4 ranks: 200 us with 2, 205 with 4, 290 with 8, 265 with 1; of 8:
     * 1100, 1210, 1300, 1070. */
    MESSAGES_PER_RANK = 2,
    LEAST_MESSAGE_BYTES = 4096,
    MOST_MESSAGE_BYTES = 65536,
    LINE = 64,
};

/* ---- making a bucket ---- */

void bucket_destroy(struct bucket *b)
{
    if (!b)
        return;
    struct fused *f = &b->fused;
    program_destroy(f->staged);
    program_destroy(f->direct);
    for (int i = 0; i < 2; i++) {
        mem_free(f->ready[i]);
        mem_free(f->peer_at[i]);
        mem_free(b->displs[i]);
    }
    mem_free(f->op_bytes);
    mem_free(f->chunk_op);
    mem_free(f->chunk_from);
    mem_free(f->places);
    mem_free(b->counts);
    mem_free(b->send);
    mem_free(b->recv);
    mem_free(b->ops);
    mem_free(b->chunk_counts);
    mem_free(b->stretches);
    mem_free(b->job.lanes);
    mem_free(b);
}

static size_t message_bytes(const struct kolo_comm *comm, size_t bytes)
{
    const size_t ranks = (size_t)comm->nranks;
    size_t each = round_up(bytes / (ranks * MESSAGES_PER_RANK), LINE);
    each = each < LEAST_MESSAGE_BYTES ? LEAST_MESSAGE_BYTES : each;
    each = each > MOST_MESSAGE_BYTES ? MOST_MESSAGE_BYTES : each;
    return each < comm->engine->slot_bytes ? each : comm->engine->slot_bytes;
}

static enum kolo_status reserve_ops(struct bucket *b, size_t n)
{
    struct fused *f = &b->fused;
    f->op_bytes = mem_calloc(n, sizeof *f->op_bytes);
    f->places = mem_calloc(n, sizeof *f->places);
    b->counts = mem_calloc(n, sizeof *b->counts);
    b->send = mem_calloc(n, sizeof *b->send);
    b->recv = mem_calloc(n, sizeof *b->recv);
    b->ops = mem_calloc(n, sizeof(struct operation *));
    b->stretches = mem_calloc(4 * n, sizeof *b->stretches);
    if (!f->op_bytes || !f->places || !b->counts || !b->send || !b->recv || !b->ops ||
        !b->stretches)
        return fail(KOLO_ERR_NOMEM, "out of memory for a group of %zu operations", n);
    return KOLO_OK;
}

/* Cut the operations into chunks of at most `most` bytes. */
static enum kolo_status cut(struct bucket *b, size_t type_bytes, size_t most)
{
    struct fused *f = &b->fused;
    const size_t piece = most / type_bytes;
    size_t n = 0;
    for (int i = 0; i < f->nops; i++)
        n += (b->counts[i] + piece - 1) / piece;
    f->chunk_op = mem_calloc(n, sizeof *f->chunk_op);
    f->chunk_from = mem_calloc(n, sizeof *f->chunk_from);
    b->chunk_counts = mem_calloc(n, sizeof *b->chunk_counts);
    b->displs[0] = mem_calloc(n, sizeof *b->displs[0]);
    b->displs[1] = mem_calloc(n, sizeof *b->displs[1]);
    if (!f->chunk_op || !f->chunk_from || !b->chunk_counts || !b->displs[0] || !b->displs[1])
        return fail(KOLO_ERR_NOMEM, "out of memory for a group of %d operations", f->nops);
    for (int i = 0; i < f->nops; i++) {
        for (size_t at = 0; at < b->counts[i]; at += piece) {
            f->chunk_op[f->nchunks] = i;
            f->chunk_from[f->nchunks] = at * type_bytes;
            b->chunk_counts[f->nchunks] = b->counts[i] - at < piece ? b->counts[i] - at : piece;
            f->nchunks++;
        }
    }
    return KOLO_OK;
}

static enum kolo_status compile(struct kolo_comm *comm, const struct plan_bucket *plan_of,
                                struct program **out)
{
    const struct plan_shape shape = {KOLO_COLL_ALL_REDUCE, comm->nranks, comm->rank, 0, 0};
    struct plan *plan;
    TRY(plan_gen_bucket(&shape, plan_of, &plan));
    const enum kolo_status status = program_compile(comm->engine, plan, out);
    if (status != KOLO_OK)
        plan_destroy(plan);
    return status;
}

static enum kolo_status measure_steps(const struct bucket *b, const struct plan *p,
                                      struct ready_step **out)
{
    struct ready_step *ready = mem_calloc((size_t)p->nsteps + 1, sizeof *ready);
    if (!ready)
        return fail(KOLO_ERR_NOMEM, "out of memory for %d steps", p->nsteps);
    for (int i = 0; i < p->nsteps; i++)
        for (int k = 0; k < p->steps[i].of.count; k++)
            ready[i].len += b->chunk_counts[p->steps[i].of.chunk + k];
    *out = ready;
    return KOLO_OK;
}

/* The operations that this rank reduces in the direct program, and room for their addresses. */
static enum kolo_status reserve_share(struct bucket *b, size_t nranks)
{
    struct fused *f = &b->fused;
    const struct plan *p = f->direct->plan;
    f->share_first = f->share_end = 0;
    for (int i = 0; i < p->nsteps; i++) {
        const struct plan_span *of = &p->steps[i].of;
        if (of->count == 0)
            continue;
        if (f->share_end == 0)
            f->share_first = f->chunk_op[of->chunk];
        f->share_end = f->chunk_op[of->chunk + of->count - 1] + 1;
    }
    const size_t n = (size_t)(f->share_end - f->share_first) * nranks;
    for (int i = 0; i < 2; i++) {
        f->peer_at[i] = mem_calloc(n + 1, sizeof(void *));
        if (!f->peer_at[i])
            return fail(KOLO_ERR_NOMEM, "out of memory for %zu addresses", n);
    }
    return KOLO_OK;
}

static enum kolo_status make_programs(struct kolo_comm *comm, struct bucket *b, size_t bytes,
                                      size_t most)
{
    struct fused *f = &b->fused;
    const struct plan_algo *algo = tune_choose(&comm->tune, KOLO_COLL_ALL_REDUCE, bytes, false);
    const bool is_oneshot = algo && strcmp(algo->name, "oneshot") == 0;
    size_t *chunk_bytes = mem_calloc((size_t)f->nchunks, sizeof *chunk_bytes);
    if (!chunk_bytes)
        return fail(KOLO_ERR_NOMEM, "out of memory for %d chunks", f->nchunks);
    for (int c = 0; c < f->nchunks; c++)
        chunk_bytes[c] = b->chunk_counts[c] * b->job.type_bytes;
    struct plan_bucket plan_of = {is_oneshot ? BUCKET_ONESHOT : BUCKET_TWOSHOT, chunk_bytes,
                                  f->nchunks, most};
    enum kolo_status status = compile(comm, &plan_of, &f->staged);
    if (status == KOLO_OK && comm->tune.facts.has_windows) {
        plan_of.kind = BUCKET_WINDOW;
        status = compile(comm, &plan_of, &f->direct);
    }
    mem_free(chunk_bytes);
    TRY(status);
    TRY(measure_steps(b, f->staged->plan, &f->ready[0]));
    if (!f->direct)
        return KOLO_OK;
    TRY(measure_steps(b, f->direct->plan, &f->ready[1]));
    return reserve_share(b, (size_t)comm->nranks);
}

static enum kolo_status split(struct fused *f, struct job **first, struct job **last)
{
    struct bucket *b = (struct bucket *)f;
    for (int i = 0; i < f->nops; i++) {
        TRY(operation_bind(b->ops[i]));
        b->ops[i]->job.next = i + 1 < f->nops ? &b->ops[i + 1]->job : NULL;
    }
    *first = &b->ops[0]->job;
    *last = &b->ops[f->nops - 1]->job;
    return KOLO_OK;
}

static enum kolo_status fill_job(struct kolo_comm *comm, struct bucket *b, const struct op_run *run)
{
    struct job *j = &b->job;
    const struct plan *plans[2] = {b->fused.staged->plan,
                                   b->fused.direct ? b->fused.direct->plan : NULL};
    for (int i = 0; i < 2; i++)
        if (plans[i])
            j->lanes_room = max_int(j->lanes_room, plans[i]->nlanes);
    j->lanes = mem_calloc((size_t)j->lanes_room, sizeof *j->lanes);
    if (!j->lanes)
        return fail(KOLO_ERR_NOMEM, "out of memory for %d lanes", j->lanes_room);
    for (int i = 0; i < 2; i++)
        j->layout[i] = (struct layout){
            .total = run->bytes / j->type_bytes, .counts = b->chunk_counts, .displs = b->displs[i]};
    j->program = b->fused.staged;
    j->in_bytes = j->out_bytes = run->bytes;
    j->is_v = true;
    j->timeout_ns = comm->timeout_ns;
    j->piece = SIZE_MAX;
    j->rounds = 1;
    j->fused = &b->fused;
    job_set_arithmetic(comm->engine, j);
    b->fused.split = split;
    return KOLO_OK;
}

enum kolo_status bucket_create(struct kolo_comm *comm, const struct op_run *run,
                               struct bucket **out)
{
    const struct call *c = &run->first->job.call;
    struct bucket *b = mem_calloc(1, sizeof *b);
    if (!b)
        return fail(KOLO_ERR_NOMEM, "out of memory for a group of %d operations", run->n);
    const size_t most = message_bytes(comm, run->bytes);
    b->fused.nops = run->n;
    b->hash = run->hash;
    b->job.call = (struct call){KOLO_COLL_ALL_REDUCE, c->type, c->op, -run->n, (size_t)run->hash};
    b->job.type_bytes = kolo_type_size(c->type);
    enum kolo_status status = reserve_ops(b, (size_t)run->n);
    if (status != KOLO_OK)
        goto undo_bucket;
    int i = 0;
    for (struct operation *op = run->first; i < run->n; op = next_collective(op->next)) {
        b->counts[i] = op->job.call.count;
        b->fused.op_bytes[i++] = op_bytes(op);
    }
    status = cut(b, b->job.type_bytes, most);
    if (status == KOLO_OK)
        status = make_programs(comm, b, run->bytes, most);
    if (status == KOLO_OK)
        status = fill_job(comm, b, run);
    if (status != KOLO_OK)
        goto undo_bucket;
    *out = b;
    return KOLO_OK;

undo_bucket:
    bucket_destroy(b);
    return status;
}

/* ---- the buffers ---- */

/* Merge two sorted neighbours, by way of `room`. */
static void merge(struct stretch *a, size_t na, size_t n, struct stretch *room)
{
    size_t i = 0, k = na;
    memcpy(room, a, na * sizeof *a);
    for (size_t at = 0; i < na; at++)
        a[at] = k < n && a[k].begin < room[i].begin ? a[k++] : room[i++];
}

/* Lists of inputs and outputs are often ascending: what is in order is left alone. */
static void sort(struct stretch *a, size_t n, struct stretch *room)
{
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t at = 0; at + width < n; at += 2 * width) {
            const size_t both = n - at < 2 * width ? n - at : 2 * width;
            if (a[at + width].begin < a[at + width - 1].begin)
                merge(a + at, width, both, room);
        }
    }
}

/* Whether some operation writes what another one reads or writes. */
static bool has_conflict(struct bucket *b)
{
    struct stretch *s = b->stretches;
    size_t n = 0;
    for (int w = 0; w < 2; w++) {
        for (int i = 0; i < b->fused.nops; i++) {
            const uintptr_t at = (uintptr_t)(w ? b->recv[i] : b->send[i]);
            const bool is_in_place = !w && b->send[i] == b->recv[i];
            if (b->counts[i] > 0 && !is_in_place)
                s[n++] = (struct stretch){at, at + b->fused.op_bytes[i], w != 0};
        }
    }
    sort(s, n, s + 2 * (size_t)b->fused.nops);
    uintptr_t read_end = 0, written_end = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i].begin < written_end || (s[i].is_write && s[i].begin < read_end))
            return true;
        uintptr_t *end = s[i].is_write ? &written_end : &read_end;
        *end = s[i].end > *end ? s[i].end : *end;
    }
    return false;
}

/* Where the chunks of inputs or outputs lie from the first of them on; false when that is no whole
 * number of elements. */
static bool place_chunks(struct bucket *b, enum plan_space space)
{
    const struct fused *f = &b->fused;
    const size_t size = b->job.type_bytes;
    const uintptr_t none = UINTPTR_MAX;
    uintptr_t base = none;
    for (int i = 0; i < f->nops; i++) {
        const uintptr_t at = (uintptr_t)(space == PLAN_IN ? b->send[i] : b->recv[i]);
        if (b->counts[i] > 0 && at < base)
            base = at;
    }
    b->job.base[space] = (unsigned char *)base;
    for (int c = 0; c < f->nchunks; c++) {
        const int op = f->chunk_op[c];
        const uintptr_t at = (uintptr_t)(space == PLAN_IN ? b->send[op] : b->recv[op]);
        if ((at - base) % size != 0)
            return false;
        b->displs[space][c] = (at - base + f->chunk_from[c]) / size;
    }
    return true;
}

static bool find_place(struct engine *e, const void *at, size_t bytes, uint64_t *out)
{
    const struct window_ref ref = e->transport->ops->window_ref(e->transport, at, bytes);
    *out = ref.at | ref.kind << PLACE_KIND_BIT;
    return (ref.kind == WINDOW_HEAP || ref.kind == WINDOW_ADDRESS) && ref.at >> PLACE_KIND_BIT == 0;
}

static bool find_places(struct engine *e, struct bucket *b)
{
    struct fused *f = &b->fused;
    for (int i = 0; i < f->nops; i++)
        if (b->counts[i] > 0 && (!find_place(e, b->send[i], f->op_bytes[i], &f->places[i].in) ||
                                 !find_place(e, b->recv[i], f->op_bytes[i], &f->places[i].out)))
            return false;
    return true;
}

/* Take over the operations; look at their buffers unless they are those of the last time. */
void bucket_bind(struct kolo_comm *comm, struct bucket *b, struct operation *first)
{
    struct fused *f = &b->fused;
    bool is_known = b->used > 0;
    struct operation *op = first;
    for (int i = 0; i < f->nops; i++, op = next_collective(op->next)) {
        is_known = is_known && b->send[i] == op->send && b->recv[i] == op->recv;
        b->ops[i] = op;
        b->send[i] = op->send;
        b->recv[i] = op->recv;
    }
    if (is_known)
        return;
    f->may_fuse = !has_conflict(b) && place_chunks(b, PLAN_IN) && place_chunks(b, PLAN_OUT);
    f->is_shared = f->may_fuse && f->direct && find_places(comm->engine, b);
}
