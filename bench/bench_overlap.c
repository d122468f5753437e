/* bench_overlap.c - how much of an operation on a stream hides behind computation (--overlap).
 *
 *     call | compute, as long as the operation takes alone | synchronize
 *
 *     hidden = (operation alone + computation alone - both together) / the shorter of the two
 *
 * And what the call itself costs: right after another operation was done (where CPUs are to
 * spare, the worker is still looking for more), long after, and behind one that runs.
 *
 * All times are the medians of the slowest rank.  Hiding needs a CPU for the worker of each rank
 * beside that of its caller.
 */
#include "bench.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { SAMPLES = 25, IDLE_US = 20000 };

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* Work in registers: it needs a CPU, and nothing that the operation uses. */
static void compute(long rounds)
{
    volatile double seed = 1.5, sink; /* so that the compiler cannot tell the result */
    double x = seed;
    for (long i = 0; i < rounds; i++)
        x = x * 0.999999 + 1e-6;
    sink = x;
    (void)sink;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of the slowest rank. */
static double median(struct bench_job *job, double *samples)
{
    bench_team_reduce(&job->rank->team, samples, SAMPLES, BENCH_MAX);
    qsort(samples, SAMPLES, sizeof *samples, compare_doubles);
    return samples[SAMPLES / 2];
}

/* Rounds of compute() that take `us` when nothing else runs. */
static long calibrate(struct bench_job *job, double us)
{
    enum { ROUNDS = 200000 };
    double samples[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) {
        const double start = now_us();
        compute(ROUNDS);
        samples[i] = now_us() - start;
    }
    const double each = median(job, samples) / ROUNDS;
    return (long)(us / each) + 1;
}

static double time_both(struct bench_job *job, const struct bench_place *place, long rounds)
{
    double samples[SAMPLES];
    for (int i = -2; i < SAMPLES; i++) {
        bench_team_barrier(&job->rank->team);
        const double start = now_us();
        bench_issue(job, place, false);
        compute(rounds);
        bench_wait(job);
        if (i >= 0)
            samples[i] = now_us() - start;
    }
    return median(job, samples);
}

static double time_compute(struct bench_job *job, long rounds)
{
    double samples[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) {
        bench_team_barrier(&job->rank->team);
        const double start = now_us();
        compute(rounds);
        samples[i] = now_us() - start;
    }
    return median(job, samples);
}

enum state { NEXT, IDLE, BUSY };

/* Of the call alone. */
static double time_call(struct bench_job *job, const struct bench_place *place, enum state state)
{
    double samples[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) {
        bench_team_barrier(&job->rank->team);
        if (state != IDLE)
            bench_issue(job, place, false);
        if (state == NEXT)
            bench_wait(job);
        if (state == IDLE)
            usleep(IDLE_US);
        const double start = now_us();
        bench_issue(job, place, false);
        samples[i] = now_us() - start;
        bench_wait(job);
    }
    return median(job, samples);
}

void bench_overlap(struct bench_job *job, bool is_first)
{
    const struct bench_place place = bench_place_data(job, false);
    bench_fill(job, &place, false);
    const double alone = time_both(job, &place, 0);
    const long rounds = calibrate(job, alone);
    const double computation = time_compute(job, rounds);
    const double both = time_both(job, &place, rounds);
    const double shorter = alone < computation ? alone : computation;
    const double hidden = (alone + computation - both) / shorter * 100;
    const double calls[] = {time_call(job, &place, NEXT), time_call(job, &place, IDLE),
                            time_call(job, &place, BUSY)};
    if (job->rank->rank != 0)
        return;
    if (is_first)
        printf("# times in us, medians of the slowest rank; the call: right after another one "
               "was\n# done, after %d ms, behind a running one\n"
               "#%11s %10s %10s %10s %9s %9s %9s %9s\n",
               IDLE_US / 1000, "size (B)", "alone", "compute", "both", "hidden %", "next", "idle",
               "busy");
    printf("%12zu %10.1f %10.1f %10.1f %9.1f %9.2f %9.2f %9.2f\n", bench_bytes(job, false), alone,
           computation, both,
           hidden < 0     ? 0
           : hidden > 100 ? 100
                          : hidden,
           calls[0], calls[1], calls[2]);
    fflush(stdout);
}
