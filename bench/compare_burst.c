/* compare_burst.c - one turn of a contender: ask for it, judge where its CPUs were, write it
 * down. */
#include "compare_run.h"

static const double burst_limit_s = 120;

/* Busy and stolen time of all CPUs so far, in seconds. */
static double busy_seconds(void)
{
    unsigned long long v[8] = {0};
    FILE *f = fopen("/proc/stat", "r");
    if (!f)
        return 0;
    int n = fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", v, v + 1, v + 2, v + 3, v + 4,
                   v + 5, v + 6, v + 7);
    fclose(f);
    if (n != 8)
        return 0;
    return (double)(v[0] + v[1] + v[2] + v[5] + v[6] + v[7]) / (double)sysconf(_SC_CLK_TCK);
}

/* S: two threads of one core, L: one last-level cache, X: two of them. */
static char class_of(double ns)
{
    if (ns <= 0)
        return '-';
    return ns < 40 ? 'S' : ns <= 120 ? 'L' : 'X';
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Median and minimum over the samples of the slowest rank, in us. */
static void summarize(const struct cmp_ctl *ctl, double *median_us, double *min_us)
{
    static double worst[CMP_MAX_SAMPLES];
    long n = ctl->nsamples;
    for (long s = 0; s < n; s++) {
        worst[s] = 0;
        for (int k = 0; k < ctl->np; k++) {
            if (ctl->seconds[k][s] > worst[s])
                worst[s] = ctl->seconds[k][s];
        }
    }
    qsort(worst, (size_t)n, sizeof worst[0], by_value);
    *median_us = 1e6 * (n % 2 ? worst[n / 2] : (worst[n / 2 - 1] + worst[n / 2]) / 2);
    *min_us = 1e6 * worst[0];
}

/* foreign_s: CPU time that all have used meanwhile, in the kernel's ticks of 10 ms. */
static void record(struct run *run, struct contender *c, double foreign_s, double wall_s)
{
    const struct cmp_ctl *ctl = c->ctl;
    double min_us;
    summarize(ctl, &c->us, &min_us);
    char before = class_of(ctl->probe_ns[0]), after = class_of(ctl->probe_ns[1]);
    char cls = ctl->nwrong ? 'w' : before == after ? before : 'm';
    for (int k = 0; k < ctl->np; k++)
        foreign_s -= ctl->cpu_s[k];
    const double foreign_pct = 100 * foreign_s / wall_s / run->ncpus;
    run->foreign_s += foreign_s;
    run->measured_s += wall_s;
    fprintf(run->out, "%d,%s,%zu,%s,%d,%.3f,%.3f,%ld,%ld,%.0f,%.0f,%c,%.0f\n", run->np,
            cmp_coll_name(ctl->point.coll), ctl->point.bytes, c->name, c->nbursts, c->us, min_us,
            ctl->nsamples, ctl->chosen, ctl->probe_ns[0], ctl->probe_ns[1], cls, foreign_pct);
    c->batch = ctl->chosen;
    if (c->nbursts < MAX_ROUNDS)
        c->classes[c->nbursts++] = cls;
    if (ctl->nwrong == 0)
        return;
    note(run, "wrong: %s np=%d: %ld values, first: %s", c->name, run->np, ctl->nwrong, ctl->text);
    run->failed = 1;
    c->nwrong += ctl->nwrong;
    c->ctl->nwrong = 0;
    c->ctl->text[0] = '\0';
}

void burst_run(struct run *run, struct contender *c, int coll, size_t bytes)
{
    struct cmp_ctl *ctl = c->ctl;
    const int is_slow = c->nbursts > 0 && c->us > 20e3;
    ctl->point = (struct cmp_point){
        .coll = coll,
        .bytes = bytes,
        .batch = run->is_fresh ? 1 : c->batch,
        .warmups = is_slow ? 1 : 2,
        .min_samples = is_slow ? 3 : 5,
        .is_fresh = run->is_fresh,
        .min_seconds = run->burst_s,
    };
    double busy = busy_seconds(), begin = cmp_now();
    uint32_t turn = __atomic_add_fetch(&ctl->turn, 1, __ATOMIC_RELEASE);
    cmp_futex_wake(&ctl->turn);
    const char *why = contender_await(c, &ctl->finished, turn * (uint32_t)run->np, burst_limit_s);
    if (why) {
        char text[128];
        snprintf(text, sizeof text, "%s in %s of %zu bytes", why, cmp_coll_name(coll), bytes);
        contender_retire(run, c, text);
        return;
    }
    record(run, c, busy_seconds() - busy, cmp_now() - begin);
}

int burst_count(const struct contender *c, char cls)
{
    int n = 0;
    for (int i = 0; i < c->nbursts; i++)
        n += c->classes[i] == cls;
    return n;
}

/* The class that most bursts of all contenders saw. */
char burst_major_class(const struct run *run)
{
    const char all[] = "SLX";
    char best = '-';
    int most = 0;
    for (int k = 0; all[k]; k++) {
        int n = 0;
        for (int i = 0; i < run->ncontenders; i++)
            n += burst_count(&run->contenders[i], all[k]);
        if (n > most) {
            most = n;
            best = all[k];
        }
    }
    return best;
}
