/* compare_run.c - the coordinator of `make compare` (see compare.h for the picture).
 *
 * Starts every contender for one number of ranks and gives them the points of the sweep in turn,
 * A B C A B C ..., one burst at a time, so that whatever the host does meanwhile hits all alike.
 * When the host moved the CPUs in between, contenders without enough bursts in the placement class
 * that most bursts of the point saw get extra turns; hopelessly slow ones get one turn a point.
 * One that dies is started again for the next point, a few times.
 * Appends one CSV line per burst, and notes as # lines.
 *
 * usage: compare_run -n RANKS -s BYTES,... -c COLL,... -o FILE [-r ROUNDS] [-x EXTRA] [-t SECONDS]
 *                    [-m SECONDS] [-F] NAME=COMMAND ...
 * A NAME that starts with ~ takes part in every second size only.
 * Exit status: 0; 1 when a contender died, did not answer, or gave a wrong value; 2 usage.
 */
#include "compare.h"

#include <errno.h>
#include <stdarg.h>

enum { MAX_CONTENDERS = 16, MAX_ROUNDS = 32, MAX_SIZES = 64, MAX_RESTARTS = 3 };

static const double start_limit_s = 60, burst_limit_s = 60, quit_limit_s = 10;
static const double hopeless = 20; /* times slower than the fastest peer: no more turns */

struct contender {
    char name[32];
    const char *command;
    int is_sparse;
    int is_ours;
    char path[256]; /* of the control block */
    struct cmp_ctl *ctl;
    pid_t pid;   /* its launcher; 0: not running */
    int is_able; /* it came up once */
    int nrestarts;
    long nwrong;
    /* of the current point */
    long batch;
    double us; /* last burst */
    char classes[MAX_ROUNDS + 1];
    int nbursts;
};

struct run {
    struct contender contenders[MAX_CONTENDERS];
    int ncontenders, np;
    size_t sizes[MAX_SIZES];
    int nsizes;
    size_t max_bytes;
    int colls[CMP_NCOLLS];
    int ncolls;
    int rounds, extra, is_fresh;
    double burst_s, limit_s, start;
    const char *out_path;
    FILE *out;
    int ncpus, cpus[CMP_MAX_CPUS];
    int failed;                   /* exit status */
    double foreign_s, measured_s; /* CPU time of others, wall time, in bursts */
};

/* A line for the CSV and for whoever watches. */
__attribute__((format(printf, 2, 3))) static void note(struct run *run, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(run->out, "# %s\n", text);
    fflush(run->out);
    fprintf(stderr, "%s\n", text);
}

/* ---- contenders: start, stop ---------------------------------------------------------------- */

static void retire(struct run *run, struct contender *c, const char *why)
{
    const char *text = c->ctl->text[0] ? c->ctl->text : "no message";
    note(run, "died: %s np=%d: %s (%s)", c->name, run->np, why, text);
    run->failed = 1;
    if (c->pid <= 0)
        return;
    kill(c->pid, SIGTERM); /* a launcher ends its ranks; they also die with their parent */
    for (double until = cmp_now() + 3; cmp_now() < until;) {
        if (waitpid(c->pid, NULL, WNOHANG) == c->pid) {
            c->pid = 0;
            return;
        }
        usleep(20000);
    }
    kill(c->pid, SIGKILL);
    waitpid(c->pid, NULL, 0);
    c->pid = 0;
}

/* Wait until *word is `want`; NULL, or why it is not. */
static const char *await(struct contender *c, uint32_t *word, uint32_t want, double limit_s)
{
    static char why[64];
    const double until = cmp_now() + limit_s;
    for (;;) {
        int status = 0;
        uint32_t seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
        if (seen == want)
            return NULL;
        if (waitpid(c->pid, &status, WNOHANG) != 0) {
            const int is_killed = WIFSIGNALED(status);
            c->pid = 0;
            snprintf(why, sizeof why, "ended by itself, %s %d", is_killed ? "signal" : "status",
                     is_killed ? WTERMSIG(status) : WEXITSTATUS(status));
            return why;
        }
        if (cmp_now() > until)
            return "no answer in time";
        cmp_futex_wait(word, seen, 0.02);
    }
}

static int launch(struct run *run, struct contender *c)
{
    if (c->ctl)
        munmap(c->ctl, sizeof *c->ctl);
    snprintf(c->path, sizeof c->path, "%s.ctl-%s-%d", run->out_path, c->name, run->np);
    unlink(c->path);
    c->ctl = cmp_map(c->path, 1);
    if (!c->ctl) {
        fprintf(stderr, "cannot create %s: %s\n", c->path, strerror(errno));
        return 1;
    }
    c->ctl->np = run->np;
    c->ctl->ncpus = run->ncpus;
    memcpy(c->ctl->cpus, run->cpus, sizeof run->cpus);
    c->ctl->max_bytes = run->max_bytes;
    fflush(NULL);
    c->pid = fork();
    if (c->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        setenv(CMP_ENV, c->path, 1);
        execl("/bin/sh", "sh", "-c", c->command, (char *)NULL);
        _exit(127);
    }
    const char *why = "cannot fork";
    if (c->pid > 0)
        why = await(c, &c->ctl->ready, (uint32_t)run->np, start_limit_s);
    if (why)
        retire(run, c, why);
    else
        c->is_able = 1;
    return 0;
}

static void dismiss(struct run *run, struct contender *c)
{
    if (c->pid > 0) {
        c->ctl->quit = 1;
        __atomic_add_fetch(&c->ctl->turn, 1, __ATOMIC_RELEASE);
        cmp_futex_wake(&c->ctl->turn);
        int status = 0;
        pid_t gone = 0;
        for (double until = cmp_now() + quit_limit_s; gone == 0 && cmp_now() < until;) {
            gone = waitpid(c->pid, &status, WNOHANG);
            if (gone == 0)
                usleep(10000);
        }
        if (gone == 0) {
            retire(run, c, "did not quit in time");
        } else {
            c->pid = 0;
            if (status != 0)
                retire(run, c, "failed while it quit");
        }
    }
    if (c->ctl)
        munmap(c->ctl, sizeof *c->ctl);
    unlink(c->path);
}

/* ---- one burst ------------------------------------------------------------------------------ */

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

static void burst(struct run *run, struct contender *c, int coll, size_t bytes)
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
    const char *why = await(c, &ctl->finished, turn * (uint32_t)run->np, burst_limit_s);
    if (why) {
        char text[128];
        snprintf(text, sizeof text, "%s in %s of %zu bytes", why, cmp_coll_name(coll), bytes);
        retire(run, c, text);
        return;
    }
    record(run, c, busy_seconds() - busy, cmp_now() - begin);
}

/* ---- the sweep ------------------------------------------------------------------------------ */

static int count_class(const struct contender *c, char cls)
{
    int n = 0;
    for (int i = 0; i < c->nbursts; i++)
        n += c->classes[i] == cls;
    return n;
}

/* The class that most bursts of all contenders saw; '-' when there was none. */
static char major_class(const struct run *run)
{
    const char all[] = "SLX";
    char best = '-';
    int most = 0;
    for (int k = 0; all[k]; k++) {
        int n = 0;
        for (int i = 0; i < run->ncontenders; i++)
            n += count_class(&run->contenders[i], all[k]);
        if (n > most) {
            most = n;
            best = all[k];
        }
    }
    return best;
}

/* The last burst of the fastest other library, in us; 0 before the first. */
static double fastest_peer(const struct run *run)
{
    double best = 0;
    for (int i = 0; i < run->ncontenders; i++) {
        const struct contender *c = &run->contenders[i];
        if (!c->is_ours && c->nbursts > 0 && (best == 0 || c->us < best))
            best = c->us;
    }
    return best;
}

/* A library that waits without yielding can be 1000 times slower: one burst tells enough. */
static int takes_part(const struct run *run, const struct contender *c, int size_index)
{
    if (c->pid <= 0 || (c->is_sparse && size_index % 2))
        return 0;
    return c->is_ours || c->nbursts == 0 || c->us <= hopeless * fastest_peer(run);
}

static void run_point(struct run *run, int coll, size_t bytes, int size_index)
{
    for (int i = 0; i < run->ncontenders; i++) {
        struct contender *c = &run->contenders[i];
        c->batch = 0;
        c->nbursts = 0;
        if (c->pid <= 0 && c->is_able && c->nrestarts++ < MAX_RESTARTS)
            launch(run, c);
    }
    for (int round = 0; round < run->rounds + run->extra; round++) {
        const int is_extra = round >= run->rounds;
        const char major = is_extra ? major_class(run) : '-';
        if (is_extra && major == '-')
            break;
        for (int i = 0; i < run->ncontenders; i++) {
            struct contender *c = &run->contenders[i];
            if (!takes_part(run, c, size_index))
                continue;
            if (is_extra && count_class(c, major) * 2 >= run->rounds)
                continue;
            burst(run, c, coll, bytes);
        }
    }
    fflush(run->out);
}

/* Parts of the partitioned collectives are whole floats. */
static size_t round_size(int coll, size_t bytes, int np)
{
    const size_t unit = sizeof(float) * (size_t)np;
    if (coll != CMP_REDUCE_SCATTER && coll != CMP_ALL_GATHER && coll != CMP_ALL_TO_ALL)
        return bytes;
    return (bytes + unit - 1) / unit * unit;
}

static void sweep(struct run *run)
{
    int nleft = 0;
    char first[64];
    for (int s = 0; s < run->nsizes; s++) {
        for (int k = 0; k < run->ncolls; k++) {
            const int coll = run->colls[k];
            if (coll == CMP_BARRIER && s > 0)
                continue;
            size_t bytes = coll == CMP_BARRIER ? 0 : round_size(coll, run->sizes[s], run->np);
            if (s > 0 && bytes == round_size(coll, run->sizes[s - 1], run->np))
                continue;
            if (cmp_now() - run->start <= run->limit_s) {
                run_point(run, coll, bytes, s);
                continue;
            }
            nleft++;
            if (nleft == 1)
                snprintf(first, sizeof first, "%s of %zu bytes", cmp_coll_name(coll), bytes);
        }
    }
    if (nleft > 0)
        note(run, "time: np=%d: %.0f s are over, %d points are left out, from %s on", run->np,
             run->limit_s, nleft, first);
}

static int compete(struct run *run)
{
    for (int s = 0; s < run->nsizes; s++) {
        if (run->sizes[s] > run->max_bytes)
            run->max_bytes = run->sizes[s];
    }
    run->max_bytes = round_size(CMP_ALL_GATHER, run->max_bytes, run->np);
    for (int i = 0; i < run->ncontenders; i++) {
        if (launch(run, &run->contenders[i]))
            return 1;
    }
    sweep(run);
    for (int i = 0; i < run->ncontenders; i++)
        dismiss(run, &run->contenders[i]);
    double all_s = run->measured_s * run->ncpus;
    const double foreign_pct = all_s > 0 ? 100 * run->foreign_s / all_s : 0;
    note(run, "load: np=%d others took %.1f %% of the CPUs while bursts ran%s", run->np,
         foreign_pct, foreign_pct > 8 ? ": the machine was busy, do not trust these times" : "");
    return run->failed;
}

/* ---- the command line ------------------------------------------------------------------------ */

static int parse_sizes(struct run *run, char *list)
{
    for (char *at = strtok(list, ","); at; at = strtok(NULL, ",")) {
        if (run->nsizes == MAX_SIZES)
            return 1;
        run->sizes[run->nsizes] = strtoull(at, NULL, 10) / sizeof(float) * sizeof(float);
        if (run->sizes[run->nsizes++] == 0)
            return 1;
    }
    return 0;
}

static int parse_colls(struct run *run, char *list)
{
    for (char *at = strtok(list, ","); at; at = strtok(NULL, ",")) {
        int coll = 0;
        while (coll < CMP_NCOLLS && strcmp(cmp_coll_name(coll), at) != 0)
            coll++;
        if (coll == CMP_NCOLLS || run->ncolls == CMP_NCOLLS)
            return 1;
        run->colls[run->ncolls++] = coll;
    }
    return 0;
}

static int parse_contender(struct run *run, const char *spec)
{
    const char *equal = strchr(spec, '=');
    if (!equal || run->ncontenders == MAX_CONTENDERS)
        return 1;
    struct contender *c = &run->contenders[run->ncontenders++];
    c->is_sparse = spec[0] == '~';
    if (c->is_sparse)
        spec++;
    snprintf(c->name, sizeof c->name, "%.*s", (int)(equal - spec), spec);
    c->is_ours = strncmp(c->name, "kolo", 4) == 0;
    c->command = equal + 1;
    return 0;
}

static int parse(struct run *run, int argc, char **argv)
{
    int option, bad = 0;
    while ((option = getopt(argc, argv, "n:s:c:o:r:x:t:m:F")) != -1) {
        switch (option) {
        case 'n':
            run->np = atoi(optarg);
            break;
        case 's':
            bad |= parse_sizes(run, optarg);
            break;
        case 'c':
            bad |= parse_colls(run, optarg);
            break;
        case 'o':
            run->out_path = optarg;
            break;
        case 'r':
            run->rounds = atoi(optarg);
            break;
        case 'x':
            run->extra = atoi(optarg);
            break;
        case 't':
            run->burst_s = atof(optarg);
            break;
        case 'm':
            run->limit_s = atof(optarg);
            break;
        case 'F':
            run->is_fresh = 1;
            break;
        default:
            bad = 1;
        }
    }
    for (int i = optind; i < argc; i++)
        bad |= parse_contender(run, argv[i]);
    bad |= run->np < 1 || run->np > CMP_MAX_RANKS || run->nsizes == 0 || run->ncolls == 0;
    bad |= run->rounds < 1 || run->extra < 0 || run->rounds + run->extra > MAX_ROUNDS;
    return bad || !run->out_path || run->ncontenders == 0;
}

static void find_cpus(struct run *run)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        CPU_SET(0, &set);
    for (int i = 0; i < CMP_MAX_CPUS && i < CPU_SETSIZE; i++) {
        if (CPU_ISSET((size_t)i, &set))
            run->cpus[run->ncpus++] = i;
    }
}

int main(int argc, char **argv)
{
    static struct run run = {.rounds = 3, .extra = 2, .burst_s = 0.015, .limit_s = 1e9};
    if (parse(&run, argc, argv)) {
        fprintf(stderr, "usage: compare_run -n RANKS -s BYTES,... -c COLL,... -o FILE [-r ROUNDS] "
                        "[-x EXTRA] [-t SECONDS] [-m SECONDS] [-F] NAME=COMMAND ...\n");
        return 2;
    }
    run.out = fopen(run.out_path, "a");
    if (!run.out) {
        fprintf(stderr, "cannot open %s: %s\n", run.out_path, strerror(errno));
        return 2;
    }
    run.start = cmp_now();
    find_cpus(&run);
    int status = compete(&run);
    fclose(run.out);
    return status;
}
