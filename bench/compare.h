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

#endif /* KOLO_BENCH_COMPARE_H */
