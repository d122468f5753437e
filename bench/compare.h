/* compare.h - what the programs of `make compare` share: the control block and the clock.
 *
 * Every library under test (a contender) runs as np processes of this host.  One coordinator
 * (compare_run.c) starts them all, and all but one sleep on a futex in their own control block:
 *
 *     coordinator --turn--> ranks: poison, warm up, probe, samples, probe, check --finished-->
 *
 * A sample is `batch` operations back to back between two clock reads, after a common barrier.
 * Its value is the largest duration among the ranks; the coordinator takes the median.  The probe
 * bounces a flag between ranks 0 and 1: it tells how the host has placed their CPUs right now.
 */
#ifndef KOLO_BENCH_COMPARE_H
#define KOLO_BENCH_COMPARE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CMP_ENV "KOLO_BENCH_COMPARE" /* path of the control block, for the ranks */

enum { CMP_MAX_RANKS = 64, CMP_MAX_CPUS = 1024, CMP_MAX_SAMPLES = 1024, CMP_LINE = 128 };
#define CMP_OWN_LINE __attribute__((aligned(128)))

enum cmp_coll {
    CMP_ALL_REDUCE,
    CMP_REDUCE_SCATTER,
    CMP_ALL_GATHER,
    CMP_ALL_TO_ALL,
    CMP_BROADCAST,
    CMP_REDUCE,
    CMP_BARRIER,
    CMP_NCOLLS,
};

/* How a rank waits in the barrier of this file. */
enum cmp_wait {
    CMP_WAIT_CPU,   /* spin when each rank has a CPU, else yield */
    CMP_WAIT_SLEEP, /* futex: for libraries whose helper threads need this rank's CPU */
};

/* What the coordinator asks for.  bytes is the largest buffer of one rank. */
struct cmp_point {
    int coll;
    size_t bytes;
    long batch;      /* operations in a sample; 0: choose */
    int warmups;     /* operations before anything is timed */
    int min_samples; /* the burst ends after min_samples and min_seconds, */
    int is_fresh;    /* 1: each rank rewrites its input before each sample */
    double min_seconds;
};

/* Shared by the coordinator and the ranks of one contender.  Written by: c = coordinator before
 * `turn` moves, 0 = rank 0, r = each rank its own element, a = all, atomically. */
struct cmp_ctl {
    int np;                     /* c */
    int ncpus;                  /* c: CPUs that the run may use, ranks take cpus[rank % ncpus] */
    int cpus[CMP_MAX_CPUS];     /* c */
    size_t max_bytes;           /* c: buffers of each rank */
    int quit;                   /* c */
    struct cmp_point point;     /* c */
    unsigned char blob[256];    /* 0: an address or id for the other ranks, valid when blob_ready */
    uint32_t blob_ready;        /* 0 */
    uint32_t turn CMP_OWN_LINE; /* c: futex, counts bursts */
    uint32_t finished CMP_OWN_LINE; /* a: futex, counts ranks that ended a burst */
    uint32_t ready;                 /* a: ranks that stand by; same futex rules */
    uint32_t arrived CMP_OWN_LINE;  /* a: barrier */
    uint32_t phase CMP_OWN_LINE;    /* a: barrier, futex */
    uint32_t probed CMP_OWN_LINE;   /* 0: futex, counts probes */
    uint32_t ping CMP_OWN_LINE;     /* 0 */
    uint32_t pong CMP_OWN_LINE;     /* rank 1 */
    long limit CMP_OWN_LINE;        /* 0: samples to take */
    long chosen;                    /* 0: batch */
    long nsamples;                  /* 0 */
    double probe_ns[2];             /* 0: before and after */
    long nwrong;                    /* a */
    char text[640];                 /* a: the first complaint */
    double cpu_s[CMP_MAX_RANKS];    /* r: CPU time used for the last burst */
    double seconds[CMP_MAX_RANKS][CMP_MAX_SAMPLES] CMP_OWN_LINE; /* r */
};

/* One process of a contender. */
struct cmp_rank {
    struct cmp_ctl *ctl;
    int rank, np;
    enum cmp_wait wait;
    float *in, *out;
};

/* One operation on r->in and r->out.  Not 0: it failed, and cmp_complain has told why. */
typedef int cmp_op_fn(void *ctx, struct cmp_rank *r, int coll, size_t bytes);

static inline const char *cmp_coll_name(int coll)
{
    static const char *const names[CMP_NCOLLS] = {"all_reduce", "reduce_scatter", "all_gather",
                                                  "all_to_all", "broadcast",      "reduce",
                                                  "barrier"};
    return names[coll];
}

static inline double cmp_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#if defined(__x86_64__)
static inline void cmp_relax(void)
{
    __builtin_ia32_pause();
}
#elif defined(__aarch64__)
static inline void cmp_relax(void)
{
    __asm__ volatile("yield");
}
#else
static inline void cmp_relax(void)
{
}
#endif

/* ---- futex: words are in a shared mapping, so not the private kind ------------------------- */

static inline void cmp_futex_wait(uint32_t *word, uint32_t seen, double seconds)
{
    struct timespec t;
    t.tv_sec = (time_t)seconds;
    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    syscall(SYS_futex, word, FUTEX_WAIT, seen, seconds > 0 ? &t : NULL, NULL, 0);
}

static inline void cmp_futex_wake(uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* ---- the control block --------------------------------------------------------------------- */

/* NULL when it cannot be mapped. */
static inline struct cmp_ctl *cmp_map(const char *path, int create)
{
    int fd = open(path, create ? O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC : O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
        return NULL;
    void *p = MAP_FAILED;
    if (!create || ftruncate(fd, sizeof(struct cmp_ctl)) == 0)
        p = mmap(NULL, sizeof(struct cmp_ctl), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return p == MAP_FAILED ? NULL : (struct cmp_ctl *)p;
}

/* The block of this contender, for its ranks; ends the process when there is none. */
static inline struct cmp_ctl *cmp_attach(void)
{
    const char *path = getenv(CMP_ENV);
    struct cmp_ctl *ctl = path ? cmp_map(path, 0) : NULL;
    if (!ctl) {
        fprintf(stderr, "no control block: this program is started by bench/compare.sh\n");
        exit(2);
    }
    return ctl;
}

/* Keep the first complaint for the coordinator. */
static inline void cmp_complain(struct cmp_ctl *ctl, int rank, const char *what)
{
    if (ctl->text[0] == '\0')
        snprintf(ctl->text, sizeof ctl->text, "rank %d: %s", rank, what);
}

static inline void cmp_pin(const struct cmp_ctl *ctl, int rank)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)ctl->cpus[rank % ctl->ncpus], &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        perror("sched_setaffinity");
}

/* Run rank_main in np child processes; returns the exit status of this program.  When one fails
 * the others, which would wait for it, are ended. */
static inline int cmp_fork_ranks(struct cmp_ctl *ctl,
                                 int (*rank_main)(struct cmp_ctl *ctl, int rank))
{
    pid_t pids[CMP_MAX_RANKS];
    int failed = 0;
    for (int i = 0; i < ctl->np; i++) {
        pids[i] = fork();
        if (pids[i] < 0)
            return 1;
        if (pids[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            _exit(rank_main(ctl, i));
        }
    }
    for (int left = ctl->np; left > 0; left--) {
        int status;
        pid_t gone = wait(&status);
        for (int i = 0; i < ctl->np; i++) {
            if (pids[i] == gone)
                pids[i] = 0;
        }
        if (status == 0)
            continue;
        failed = 1;
        for (int i = 0; i < ctl->np; i++) {
            if (pids[i] > 0)
                kill(pids[i], SIGKILL);
        }
    }
    return failed;
}

/* ---- barrier, probe ------------------------------------------------------------------------ */

/* The release of phase pairs with the acquire of each waiter. */
static inline void cmp_barrier(struct cmp_rank *r)
{
    struct cmp_ctl *ctl = r->ctl;
    uint32_t phase = __atomic_load_n(&ctl->phase, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&ctl->arrived, 1, __ATOMIC_ACQ_REL) == (uint32_t)r->np) {
        __atomic_store_n(&ctl->arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&ctl->phase, phase + 1, __ATOMIC_RELEASE);
        if (r->wait == CMP_WAIT_SLEEP)
            cmp_futex_wake(&ctl->phase);
        return;
    }
    const int must_yield = r->np > ctl->ncpus;
    for (long turns = 0; __atomic_load_n(&ctl->phase, __ATOMIC_ACQUIRE) == phase; turns++) {
        if (r->wait == CMP_WAIT_SLEEP)
            cmp_futex_wait(&ctl->phase, phase, 0);
        else if (must_yield || turns > 50000)
            sched_yield();
        else
            cmp_relax();
    }
}

/* Rank 0 or 1's half of `count` round trips. */
static inline void cmp_bounce(struct cmp_ctl *ctl, int rank, uint32_t count)
{
    uint32_t *mine = rank == 0 ? &ctl->ping : &ctl->pong;
    uint32_t *theirs = rank == 0 ? &ctl->pong : &ctl->ping;
    uint32_t at = __atomic_load_n(mine, __ATOMIC_RELAXED);
    for (uint32_t i = 1; i <= count; i++) {
        if (rank == 0)
            __atomic_store_n(mine, at + i, __ATOMIC_RELEASE);
        while (__atomic_load_n(theirs, __ATOMIC_ACQUIRE) != at + i)
            cmp_relax();
        if (rank == 1)
            __atomic_store_n(mine, at + i, __ATOMIC_RELEASE);
    }
}

/* One-way latency of a flag between ranks 0 and 1, pinned for it; the others sleep meanwhile.
 * 0 when there are not two CPUs. */
static inline void cmp_probe(struct cmp_rank *r, int which)
{
    struct cmp_ctl *ctl = r->ctl;
    uint32_t seen = __atomic_load_n(&ctl->probed, __ATOMIC_ACQUIRE);
    cmp_barrier(r);
    if (r->rank < 2 && r->np > 1 && ctl->ncpus > 1) {
        const uint32_t trips = 300;
        double best = 1;
        cpu_set_t old;
        sched_getaffinity(0, sizeof old, &old);
        cmp_pin(ctl, r->rank);
        for (int k = 0; k < 4; k++) {
            double t = cmp_now();
            cmp_bounce(ctl, r->rank, trips);
            t = (cmp_now() - t) / trips / 2;
            if (t < best)
                best = t;
        }
        sched_setaffinity(0, sizeof old, &old);
        if (r->rank == 0)
            ctl->probe_ns[which] = best * 1e9;
    }
    if (r->rank == 0) {
        __atomic_store_n(&ctl->probed, seen + 1, __ATOMIC_RELEASE);
        cmp_futex_wake(&ctl->probed);
    } else if (r->rank > 1) {
        while (__atomic_load_n(&ctl->probed, __ATOMIC_ACQUIRE) == seen)
            cmp_futex_wait(&ctl->probed, seen, 0);
    }
    cmp_barrier(r);
}

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

/* Double the batch until it lasts long enough for the clock and the barrier not to matter. */
static inline int cmp_choose_batch(struct cmp_rank *r, cmp_op_fn *op, void *ctx)
{
    struct cmp_ctl *ctl = r->ctl;
    for (long batch = 1;; batch *= 2) {
        cmp_barrier(r);
        double t = cmp_now();
        if (cmp_run_ops(r, op, ctx, batch))
            return 1;
        t = cmp_now() - t;
        if (r->rank == 0)
            ctl->chosen = t >= 60e-6 || batch >= 2048 ? batch : 0;
        cmp_barrier(r);
        if (ctl->chosen)
            return 0;
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

#endif /* KOLO_BENCH_COMPARE_H */
