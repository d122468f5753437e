/* compare_floor.c - bare algorithms without a library in `make compare`, as a yardstick for Kolo.
 *
 * usage: compare_floor -d | -s
 *     -d  direct: every rank may load and store the buffers of all ranks
 *     -s  staged: buffers are private, data goes through shared memory that stays in the caches,
 *         or is fetched by process_vm_readv
 * Both take small messages through slots that carry the number of the operation beside the data.
 * At the first operation of a burst each way that fits is tried, and the fastest is used: not what
 * a library can know, but what this machine can do.  There is no matching, no check, no error.
 */
#include "compare_floor.h"

static void arrive(struct floor_rank *f)
{
    floor_publish(&f->g->ready[f->r.rank], f->step);
}

static void await_ready(const struct floor_rank *f, int k)
{
    floor_await(f, &f->g->ready[k], f->step);
}

/* After this the buffers are this rank's own again. */
static void leave(struct floor_rank *f)
{
    floor_publish(&f->g->done[f->r.rank], f->step);
    for (int k = 0; k < f->r.np; k++)
        floor_await(f, &f->g->done[k], f->step);
}

static void await_all_ready(struct floor_rank *f)
{
    for (int k = 0; k < f->r.np; k++)
        await_ready(f, k);
}

/* ---- direct --------------------------------------------------------------------------------- */

/* Floats [lo, hi) of the sum of all inputs, into nout outputs. */
static void sum_range(struct floor_rank *f, float **outs, int nout, size_t lo, size_t hi, int nt)
{
    float *in[CMP_MAX_RANKS], *out[CMP_MAX_RANKS];
    for (int k = 0; k < f->r.np; k++)
        in[k] = f->g->in[(f->r.rank + k) % f->r.np] + lo;
    for (int k = 0; k < nout; k++)
        out[k] = outs[k] + lo;
    floor_sum(out, nout, in, f->r.np, hi - lo, nt);
}

/* The parts that others hold for this rank: of all_gather, and of all_to_all with from = rank. */
static void pull_parts(struct floor_rank *f, size_t part, size_t from, int nt)
{
    for (int q = 0; q < f->r.np; q++) {
        const int k = (f->r.rank + q) % f->r.np;
        await_ready(f, k);
        floor_copy(f->r.out + part * (size_t)k, f->g->in[k] + part * from, part, nt);
    }
}

static void direct_broadcast(struct floor_rank *f, size_t n, int way)
{
    const int np = f->r.np, me = f->r.rank, nt = way & WAY_NT;
    float *in = f->g->in[0], *out[CMP_MAX_RANKS];
    if (!(way & WAY_SPLIT)) {
        await_ready(f, 0);
        if (me > 0)
            floor_copy(f->r.out, in, n, nt);
        return;
    }
    const size_t lo = floor_cut(n, np, me), hi = floor_cut(n, np, me + 1);
    await_all_ready(f);
    in += lo;
    for (int k = 1; k < np; k++)
        out[k - 1] = f->g->out[k] + lo;
    floor_sum(out, np - 1, &in, 1, hi - lo, nt);
}

static void direct(struct floor_rank *f, int coll, size_t bytes, int way)
{
    const int np = f->r.np, me = f->r.rank, nt = way & WAY_NT;
    const size_t n = bytes / sizeof(float), part = n / (size_t)np;
    const size_t lo = floor_cut(n, np, me), hi = floor_cut(n, np, me + 1);
    arrive(f);
    if (coll == CMP_ALL_GATHER) {
        pull_parts(f, part, 0, nt);
    } else if (coll == CMP_ALL_TO_ALL) {
        pull_parts(f, part, (size_t)me, nt);
    } else if (coll == CMP_BROADCAST) {
        direct_broadcast(f, n, way);
    } else {
        float *out = f->r.out - part * (size_t)me;
        await_all_ready(f);
        if (coll == CMP_REDUCE_SCATTER)
            sum_range(f, &out, 1, part * (size_t)me, part * (size_t)(me + 1), nt);
        else if (coll == CMP_ALL_REDUCE && way & WAY_SPLIT)
            sum_range(f, f->g->out, np, lo, hi, nt);
        else if (coll == CMP_REDUCE && way & WAY_SPLIT)
            sum_range(f, f->g->out, 1, lo, hi, nt);
        else if (coll == CMP_ALL_REDUCE || (coll == CMP_REDUCE && me == 0))
            sum_range(f, &f->r.out, 1, 0, n, nt);
    }
    leave(f);
}

/* ---- small ---------------------------------------------------------------------------------- */

static void fill_slot(struct floor_slot *slot, const float *in, size_t bytes, uint64_t step)
{
    memcpy(slot->data, in, bytes);
    __atomic_store_n(&slot->step, step, __ATOMIC_RELEASE);
}

static float *read_slot(const struct floor_rank *f, struct floor_slot *slot)
{
    for (long turns = 0; __atomic_load_n(&slot->step, __ATOMIC_ACQUIRE) != f->step; turns++)
        floor_relax(f, turns);
    return (float *)(void *)slot->data;
}

/* Ring slots are as small as the message allows, so that the writer may run far ahead. */
static struct floor_slot *ring_slot(const struct floor_rank *f, int k, size_t bytes,
                                    uint64_t *depth)
{
    const size_t stride = (sizeof(uint64_t) + bytes + 127) / 128 * 128;
    *depth = FLOOR_RING / stride < 64 ? FLOOR_RING / stride : 64;
    return (struct floor_slot *)(void *)(f->g->ring[k] + f->step % *depth * stride);
}

/* Wait until no partner of the ring still needs the slot that this step takes. */
static void await_room(struct floor_rank *f, int first, int end, uint64_t depth)
{
    if (f->seen + depth >= f->step)
        return;
    for (int k = first; k < end; k++)
        floor_await(f, &f->g->done[k], f->step - depth);
    f->seen = f->step - depth;
    for (uint64_t more = depth / 2; more > 0; more /= 2) {
        int has_all = 1;
        for (int k = first; k < end; k++)
            has_all &= floor_has(&f->g->done[k], f->seen + more);
        if (has_all)
            f->seen += more;
    }
}

/* The writer of a rooted operation leaves at once. */
static void small_rooted(struct floor_rank *f, int coll, size_t bytes)
{
    const int np = f->r.np, me = f->r.rank;
    uint64_t depth;
    if (coll == CMP_BROADCAST) {
        struct floor_slot *slot = ring_slot(f, 0, bytes, &depth);
        if (me > 0) {
            memcpy(f->r.out, read_slot(f, slot), bytes);
            floor_publish(&f->g->done[me], f->step);
            return;
        }
        await_room(f, 1, np, depth);
        fill_slot(slot, f->r.in, bytes, f->step);
        return;
    }
    if (me > 0) {
        struct floor_slot *slot = ring_slot(f, me, bytes, &depth);
        await_room(f, 0, 1, depth);
        fill_slot(slot, f->r.in, bytes, f->step);
        return;
    }
    float *in[CMP_MAX_RANKS] = {f->r.in};
    for (int k = 1; k < np; k++)
        in[k] = read_slot(f, ring_slot(f, k, bytes, &depth));
    floor_sum(&f->r.out, 1, in, np, bytes / sizeof(float), 0);
    floor_publish(&f->g->done[0], f->step);
}

/* Two sets suffice: who starts an operation has seen all others in the one before. */
static void small(struct floor_rank *f, int coll, size_t bytes)
{
    const int np = f->r.np, me = f->r.rank;
    const size_t n = bytes / sizeof(float), part = n / (size_t)np;
    struct floor_slot *slots = f->g->slots[f->step % 2];
    float *in[CMP_MAX_RANKS];
    if (coll == CMP_BROADCAST || coll == CMP_REDUCE) {
        small_rooted(f, coll, bytes);
        return;
    }
    fill_slot(&slots[me], f->r.in, coll == CMP_ALL_GATHER ? part * sizeof(float) : bytes, f->step);
    in[0] = f->r.in;
    for (int q = 0; q < np; q++) {
        const int k = (me + q) % np;
        const size_t from =
            coll == CMP_ALL_GATHER || coll == CMP_ALL_REDUCE ? 0 : part * (size_t)me;
        in[q] = (q ? read_slot(f, &slots[k]) : f->r.in) + from;
        if (coll == CMP_ALL_GATHER || coll == CMP_ALL_TO_ALL)
            memcpy(f->r.out + part * (size_t)k, in[q], part * sizeof(float));
    }
    if (coll == CMP_ALL_REDUCE || coll == CMP_REDUCE_SCATTER)
        floor_sum(&f->r.out, 1, in, np, coll == CMP_ALL_REDUCE ? n : part, 0);
}

/* ---- which way ------------------------------------------------------------------------------ */

static void run_way(struct floor_rank *f, int coll, size_t bytes, int way)
{
    f->step++;
    if (coll == CMP_BARRIER) {
        arrive(f);
        await_all_ready(f);
    } else if (way & WAY_SLOT) {
        small(f, coll, bytes);
    } else if (way & WAY_CMA) {
        arrive(f);
        await_all_ready(f);
        floor_cma(f, coll, bytes, way);
        leave(f);
    } else if (f->is_staged) {
        floor_staged(f, coll, bytes, way);
    } else {
        direct(f, coll, bytes, way);
    }
}

/* Pieces much smaller than the message, or larger than it, are never best. */
static int is_piece(size_t piece, size_t smaller, size_t bytes)
{
    return smaller < bytes && (piece == FLOOR_PIECE || piece * 128 >= bytes);
}

/* The ways that make sense here; returns how many. */
static int list_ways(const struct floor_rank *f, int coll, size_t bytes, int *ways)
{
    const int can_split =
        coll == CMP_ALL_REDUCE || coll == CMP_REDUCE || (coll == CMP_BROADCAST && !f->is_staged);
    int n = 0;
    if (bytes <= FLOOR_SLOT)
        ways[n++] = WAY_SLOT;
    for (int flags = 0; flags < 4 && bytes >= 1024; flags++) {
        if ((flags & WAY_SPLIT && !can_split) || (flags & WAY_NT && bytes < 512 << 10))
            continue;
        if (f->is_staged && bytes >= 8 << 10)
            ways[n++] = flags | WAY_CMA;
        if (!f->is_staged)
            ways[n++] = flags;
        for (int p = 0; f->is_staged && floor_pieces[p]; p++) {
            if (is_piece(floor_pieces[p], p ? floor_pieces[p - 1] : 0, bytes))
                ways[n++] = flags | p * WAY_PIECE;
        }
    }
    return n;
}

/* All counters level, and all ranks here. */
static void settle(struct floor_rank *f)
{
    const int me = f->r.rank;
    cmp_barrier(&f->r);
    floor_publish(&f->g->ready[me], f->step);
    floor_publish(&f->g->done[me], f->step);
    floor_publish(&f->g->put[me], f->pieces);
    floor_publish(&f->g->red[me], f->pieces);
    floor_publish(&f->g->got[me], f->pieces);
    f->seen = f->step;
    cmp_barrier(&f->r);
}

/* Seconds of rank 0 for `count` operations. */
static double try_way(struct floor_rank *f, int coll, size_t bytes, int way, long count)
{
    settle(f);
    for (long i = 0; i < count / 2 + 1; i++)
        run_way(f, coll, bytes, way);
    cmp_barrier(&f->r);
    double t = cmp_now();
    for (long i = 0; i < count; i++)
        run_way(f, coll, bytes, way);
    cmp_barrier(&f->r);
    return cmp_now() - t;
}

/* Each way is tried twice where that is cheap: one try may have been disturbed. */
static void choose_way(struct floor_rank *f, int coll, size_t bytes)
{
    int ways[64], nways = list_ways(f, coll, bytes, ways);
    const long most = f->r.np > f->r.ctl->ncpus ? 16 : 60;
    const long count = bytes <= 32 << 10 ? most : bytes <= 1 << 20 ? 8 : 2;
    double best = 1e9;
    for (int turn = 0; turn < (bytes > 4 << 20 ? 1 : 2); turn++) {
        for (int w = 0; w < nways; w++) {
            double t = try_way(f, coll, bytes, ways[w], count);
            if (f->r.rank != 0 || t >= best)
                continue;
            best = t;
            f->g->way = ways[w];
        }
    }
    settle(f);
    f->way = f->g->way;
}

static int floor_op(void *ctx, struct cmp_rank *r, int coll, size_t bytes)
{
    struct floor_rank *f = ctx;
    (void)r;
    const int is_new = coll != f->coll || bytes != f->bytes;
    if (is_new || (f->turn != f->r.ctl->turn && bytes <= 4 << 20)) {
        f->coll = coll;
        f->bytes = bytes;
        f->turn = f->r.ctl->turn;
        if (coll != CMP_BARRIER)
            choose_way(f, coll, bytes);
        else
            settle(f);
    }
    run_way(f, coll, bytes, f->way);
    return 0;
}

/* ---- the ranks ------------------------------------------------------------------------------ */

static struct floor_shared *shared;
static int is_staged;

static int rank_main(struct cmp_ctl *ctl, int rank)
{
    struct floor_rank f = {.g = shared, .is_staged = is_staged, .coll = -1};
    f.r = (struct cmp_rank){.ctl = ctl, .rank = rank, .np = ctl->np, .wait = CMP_WAIT_CPU};
    cmp_pin(ctl, rank);
    f.r.in = is_staged ? cmp_malloc(ctl) : shared->in[rank];
    f.r.out = is_staged ? cmp_malloc(ctl) : shared->out[rank];
    shared->in[rank] = f.r.in;
    shared->out[rank] = f.r.out;
    shared->pid[rank] = getpid();
    if (posix_memalign((void **)&f.part, 4096, FLOOR_PIECE) != 0)
        return 1;
    memset(f.part, 0, FLOOR_PIECE);
    cmp_fill(&f.r);
    return cmp_serve(&f.r, floor_op, &f);
}

static void *map_shared(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return p;
}

int main(int argc, char **argv)
{
    struct cmp_ctl *ctl = cmp_attach();
    is_staged = argc > 1 && strcmp(argv[1], "-s") == 0;
    shared = map_shared(sizeof *shared);
    for (int k = 0; k < ctl->np && !is_staged; k++) {
        shared->in[k] = map_shared(ctl->max_bytes);
        shared->out[k] = map_shared(ctl->max_bytes);
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    return cmp_fork_ranks(ctl, rank_main);
}
