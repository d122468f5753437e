/* compare_rank.h - the ranks' part of `make compare`: buffers whose sums are known, and bursts.
 *
 * A contender is one file: it makes its communicator, sets in and out of its struct cmp_rank, and
 * calls cmp_serve with the function that runs one operation.
 */
#ifndef KOLO_BENCH_COMPARE_RANK_H
#define KOLO_BENCH_COMPARE_RANK_H

#include "compare.h"

/* ---- values -------------------------------------------------------------------------------- */

/* Element i of a rank's input: an integer in [-512, 511], so that sums of floats are exact. */
static inline float cmp_value(int rank, size_t i)
{
    uint32_t x = ((uint32_t)i + 1) * 0x9e3779b1u ^ ((uint32_t)rank + 1) * 0x85ebca77u;
    x ^= x >> 16;
    x *= 0xc2b2ae3du;
    return (float)((int)(x >> 22) - 512);
}

static inline float cmp_sum(int np, size_t i)
{
    float sum = 0;
    for (int k = 0; k < np; k++)
        sum += cmp_value(k, i);
    return sum;
}

/* Element i of this rank's output. */
static inline float cmp_expected(const struct cmp_rank *r, int coll, size_t n, size_t i)
{
    size_t part = n / (size_t)r->np;
    switch (coll) {
    case CMP_REDUCE_SCATTER:
        return cmp_sum(r->np, part * (size_t)r->rank + i);
    case CMP_ALL_GATHER:
        return cmp_value((int)(i / part), i % part);
    case CMP_ALL_TO_ALL:
        return cmp_value((int)(i / part), part * (size_t)r->rank + i % part);
    case CMP_BROADCAST:
        return cmp_value(0, i);
    default:
        return cmp_sum(r->np, i);
    }
}

/* Floats of this rank's output that the operation defines. */
static inline size_t cmp_out_count(const struct cmp_rank *r, int coll, size_t bytes)
{
    size_t n = bytes / sizeof(float);
    if (coll == CMP_BARRIER || (coll == CMP_BROADCAST && r->rank == 0))
        return 0;
    if (coll == CMP_REDUCE && r->rank != 0)
        return 0;
    return coll == CMP_REDUCE_SCATTER ? n / (size_t)r->np : n;
}

/* The next position to check: all of a short output, of a long one both ends and a sieve. */
static inline size_t cmp_next(size_t i, size_t n)
{
    const size_t end = 2048, stride = 1021;
    if (n <= 16384 || i + 1 < end || i + 1 >= n - end)
        return i + 1;
    size_t next = (i / stride + 1) * stride;
    return next < n - end ? next : n - end;
}

static inline void cmp_poison(struct cmp_rank *r, const struct cmp_point *point)
{
    size_t n = cmp_out_count(r, point->coll, point->bytes);
    for (size_t i = 0; i < n; i = cmp_next(i, n))
        r->out[i] = -1e30f;
}

static inline void cmp_check(struct cmp_rank *r, const struct cmp_point *point)
{
    size_t n = cmp_out_count(r, point->coll, point->bytes);
    long nwrong = 0;
    for (size_t i = 0; i < n; i = cmp_next(i, n)) {
        float want = cmp_expected(r, point->coll, point->bytes / sizeof(float), i);
        if (r->out[i] == want)
            continue;
        if (nwrong++ == 0) {
            char what[128];
            snprintf(what, sizeof what, "%s of %zu bytes: element %zu is %g, not %g",
                     cmp_coll_name(point->coll), point->bytes, i, (double)r->out[i], (double)want);
            cmp_complain(r->ctl, r->rank, what);
        }
    }
    if (nwrong)
        __atomic_add_fetch(&r->ctl->nwrong, nwrong, __ATOMIC_RELAXED);
}

/* The rank's input with its values; the output is touched, so that no page fault is timed. */
static inline void cmp_fill(struct cmp_rank *r)
{
    size_t n = r->ctl->max_bytes / sizeof(float);
    for (size_t i = 0; i < n; i++)
        r->in[i] = cmp_value(r->rank, i);
    memset(r->out, 0xff, n * sizeof(float));
}

/* Page aligned memory as any program gets it; ends the process when there is none. */
static inline float *cmp_malloc(const struct cmp_ctl *ctl)
{
    void *p;
    if (posix_memalign(&p, 4096, ctl->max_bytes) != 0) {
        fprintf(stderr, "no memory for a buffer of %zu bytes\n", ctl->max_bytes);
        exit(1);
    }
    return (float *)p;
}

/* ---- a burst ------------------------------------------------------------------------------- */

static inline int cmp_run_ops(struct cmp_rank *r, cmp_op_fn *op, void *ctx, long count)
{
    const int coll = r->ctl->point.coll;
    const size_t bytes = r->ctl->point.bytes;
    int failed = 0;
    for (long i = 0; i < count; i++)
        failed |= op(ctx, r, coll, bytes);
    return failed;
}

/* Double the batch until it lasts long enough, twice in a row, for the clock and the barrier not to
 * matter. */
static inline int cmp_choose_batch(struct cmp_rank *r, cmp_op_fn *op, void *ctx)
{
    struct cmp_ctl *ctl = r->ctl;
    int nlong = 0;
    for (long batch = 1;;) {
        cmp_barrier(r);
        double t = cmp_now();
        if (cmp_run_ops(r, op, ctx, batch))
            return 1;
        t = cmp_now() - t;
        if (r->rank == 0) {
            nlong = t >= 60e-6 ? nlong + 1 : 0;
            ctl->chosen = nlong == 2 || t >= 1e-3 || batch >= 2048 ? batch : nlong ? -batch : 0;
        }
        cmp_barrier(r);
        if (ctl->chosen > 0)
            return 0;
        batch = ctl->chosen < 0 ? batch : 2 * batch;
    }
}

static inline double cmp_cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* Rank 0 ends the burst by lowering limit to the sample that it is about to enter; the barrier
 * that follows carries it to the others, which cannot be past that sample. */
static inline int cmp_sample(struct cmp_rank *r, cmp_op_fn *op, void *ctx, long batch)
{
    struct cmp_ctl *ctl = r->ctl;
    const struct cmp_point *point = &ctl->point;
    const double start = cmp_now();
    int failed = 0;
    long s = 0;
    for (; !failed; s++) {
        const int is_enough = s >= point->min_samples && cmp_now() - start >= point->min_seconds;
        if (r->rank == 0 && (is_enough || s == CMP_MAX_SAMPLES))
            ctl->limit = s;
        if (point->is_fresh) {
            size_t n = point->bytes / sizeof(float); /* one store takes a whole cache line */
            for (size_t i = 0; i < n; i += 16)
                ((volatile float *)r->in)[i] = r->in[i];
        }
        cmp_barrier(r);
        if (s >= *(volatile long *)&ctl->limit)
            break;
        double t = cmp_now();
        failed = cmp_run_ops(r, op, ctx, batch);
        ctl->seconds[r->rank][s] = (cmp_now() - t) / (double)batch;
    }
    if (r->rank == 0)
        ctl->nsamples = s;
    return failed;
}

static inline int cmp_burst(struct cmp_rank *r, cmp_op_fn *op, void *ctx)
{
    struct cmp_ctl *ctl = r->ctl;
    const struct cmp_point *point = &ctl->point;
    if (r->rank == 0)
        ctl->limit = LONG_MAX;
    cmp_poison(r, point);
    cmp_barrier(r);
    if (cmp_run_ops(r, op, ctx, point->warmups))
        return 1;
    long batch = point->batch;
    if (batch == 0) {
        if (cmp_choose_batch(r, op, ctx))
            return 1;
        batch = ctl->chosen;
    }
    cmp_probe(r, 0);
    if (cmp_sample(r, op, ctx, batch))
        return 1;
    cmp_probe(r, 1);
    if (r->rank == 0)
        ctl->chosen = batch;
    cmp_check(r, point);
    return 0;
}

/* Stand by and run bursts until the coordinator says quit (0) or an operation fails (1). */
static inline int cmp_serve(struct cmp_rank *r, cmp_op_fn *op, void *ctx)
{
    struct cmp_ctl *ctl = r->ctl;
    uint32_t done = 0;
    __atomic_add_fetch(&ctl->ready, 1, __ATOMIC_RELEASE);
    for (;; done++) {
        while (__atomic_load_n(&ctl->turn, __ATOMIC_ACQUIRE) == done)
            cmp_futex_wait(&ctl->turn, done, 0);
        if (ctl->quit)
            return 0;
        const double cpu = cmp_cpu_seconds();
        if (cmp_burst(r, op, ctx))
            return 1;
        ctl->cpu_s[r->rank] = cmp_cpu_seconds() - cpu;
        uint32_t n = __atomic_add_fetch(&ctl->finished, 1, __ATOMIC_ACQ_REL);
        if (n == (done + 1) * (uint32_t)r->np)
            cmp_futex_wake(&ctl->finished);
    }
}

#endif /* KOLO_BENCH_COMPARE_RANK_H */
