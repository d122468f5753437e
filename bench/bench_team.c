/* bench_team.c - barrier and agreement among the ranks, outside of what is measured.
 *
 * On one machine the ranks share a mapping: a sense-reversing barrier (spin, yield, sleep) and one
 * row of numbers for each rank.  Under a launcher they may be anywhere: the library itself is used.
 */
#include "bench.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define OWN_LINE __attribute__((aligned(128)))

struct bench_shared {
    OWN_LINE atomic_int arrived;
    OWN_LINE atomic_int sense; /* a futex */
    atomic_int nsleepers;
    OWN_LINE enum kolo_status id_status;
    struct kolo_unique_id id;
    OWN_LINE double values[]; /* BENCH_MAX_SAMPLES for each rank */
};

struct bench_shared *bench_shared_create(int nranks)
{
    const size_t bytes =
        sizeof(struct bench_shared) + (size_t)nranks * BENCH_MAX_SAMPLES * sizeof(double);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void sleep_until(struct bench_shared *shared, int sense)
{
    atomic_fetch_add(&shared->nsleepers, 1);
    while (atomic_load(&shared->sense) != sense)
        syscall(SYS_futex, &shared->sense, FUTEX_WAIT, sense ^ 1, NULL, NULL, 0);
    atomic_fetch_sub(&shared->nsleepers, 1);
}

static void shared_barrier(struct bench_team *team)
{
    enum { SPINS = 20000, YIELDS = 2000 };
    struct bench_shared *shared = team->shared;
    const int sense = team->sense ^= 1;
    if (atomic_fetch_add_explicit(&shared->arrived, 1, memory_order_acq_rel) + 1 == team->nranks) {
        atomic_store_explicit(&shared->arrived, 0, memory_order_relaxed);
        /* pairs with the loads of `sense` below: what was written before the barrier is seen after
         * it; sequentially consistent, so that either nsleepers or `sense` is seen in time */
        atomic_store(&shared->sense, sense);
        if (atomic_load(&shared->nsleepers) > 0)
            syscall(SYS_futex, &shared->sense, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
        return;
    }
    const int spins = team->is_crowded ? 0 : SPINS;
    for (int i = 0; i < spins + YIELDS; i++) {
        if (atomic_load_explicit(&shared->sense, memory_order_acquire) == sense)
            return;
        if (i >= spins)
            sched_yield();
    }
    sleep_until(shared, sense);
}

void bench_team_barrier(struct bench_team *team)
{
    if (team->shared) {
        shared_barrier(team);
        return;
    }
    const enum kolo_status status = kolo_barrier(team->comm, NULL);
    if (status != KOLO_OK)
        bench_fail(team->rank, "barrier between measurements", status, team->comm);
}

enum kolo_status bench_team_share_id(struct bench_team *team, struct kolo_unique_id *id)
{
    struct bench_shared *shared = team->shared;
    if (team->rank == 0)
        shared->id_status = kolo_unique_id_create(&shared->id);
    shared_barrier(team);
    *id = shared->id;
    return shared->id_status;
}

static double combine(double a, double b, enum bench_average how)
{
    switch (how) {
    case BENCH_RANK0:
        return a;
    case BENCH_MIN:
        return b < a ? b : a;
    case BENCH_MAX:
        return b > a ? b : a;
    default:
        return a + b;
    }
}

static void shared_reduce(struct bench_team *team, double *values, int n, enum bench_average how)
{
    double *all = team->shared->values;
    memcpy(all + (size_t)team->rank * BENCH_MAX_SAMPLES, values, (size_t)n * sizeof *values);
    shared_barrier(team);
    memcpy(values, all, (size_t)n * sizeof *values);
    for (int r = 1; r < team->nranks; r++) {
        for (int i = 0; i < n; i++)
            values[i] = combine(values[i], all[(size_t)r * BENCH_MAX_SAMPLES + (size_t)i], how);
    }
    shared_barrier(team); /* the rows are free again */
}

static void comm_reduce(struct bench_team *team, double *values, int n, enum bench_average how)
{
    static const int ops[] = {[BENCH_AVG] = KOLO_SUM,
                              [BENCH_MIN] = KOLO_MIN,
                              [BENCH_MAX] = KOLO_MAX,
                              [BENCH_SUM] = KOLO_SUM};
    enum kolo_status status;
    if (how == BENCH_RANK0)
        status = kolo_broadcast(values, values, (size_t)n, KOLO_F64, 0, team->comm, NULL);
    else
        status = kolo_all_reduce(values, values, (size_t)n, KOLO_F64, ops[how], team->comm, NULL);
    if (status != KOLO_OK)
        bench_fail(team->rank, "exchange of the times", status, team->comm);
}

void bench_team_reduce(struct bench_team *team, double *values, int n, enum bench_average how)
{
    if (n == 0)
        return;
    if (team->shared)
        shared_reduce(team, values, n, how);
    else
        comm_reduce(team, values, n, how);
    for (int i = 0; how == BENCH_AVG && i < n; i++)
        values[i] /= team->nranks;
}

double bench_team_agree(struct bench_team *team, double value, enum bench_average how)
{
    bench_team_reduce(team, &value, 1, how);
    return value;
}
