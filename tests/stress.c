/* stress.c - hunts races: worlds of 1 to 8 ranks, as processes, threads or both, run random calls
 * against a reference until time or operations are used up.  This file draws the worlds, starts
 * their processes, watches them, and says what went wrong.
 *
 *     stress [-s SECONDS] [-n OPERATIONS] [-r SEED] [-w FIRST_WORLD]
 *            [-m all|threads|processes|local]
 *
 * Local ranks are threads that did not meet by id: then all memory has one address, as
 * ThreadSanitizer needs it.  Equal seeds give equal worlds and calls, at other times. */
#include "stress.h"

#include "plan.h"

#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { NSETTINGS = 8, HANG_S = 150, GRACE_MS = 1500, TICK_MS = 100 };

struct options {
    double seconds;      /* 0: no limit */
    uint64_t operations; /* 0: no limit */
    uint64_t seed;
    uint64_t first;
    const char *mode;
};

struct setting {
    const char *name;
    char value[64];
};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- worlds ---- */

static void draw_world(const struct options *o, uint64_t number, struct world *w)
{
    struct rng r = rng_fork(o->seed, number, 1, 1);
    const bool is_local = strcmp(o->mode, "local") == 0;
    const bool is_threads = strcmp(o->mode, "threads") == 0;
    const uint64_t first = strcmp(o->mode, "processes") == 0 ? 4 : 0;
    const uint64_t kind = first + rng_below(&r, is_local ? 3 : is_threads || first ? 4 : 8);
    *w = (struct world){.seed = o->seed, .number = number, .nprocesses = 1};
    w->n = 1 + (int)rng_below(&r, MOST_RANKS);
    if (w->n == 1 || rng_chance(&r, 3)) /* few ranks are what the CPUs run at the same time */
        w->n = 2 + (int)rng_below(&r, 2);
    if (rng_chance(&r, 32))
        w->n = 1;
    w->is_local = kind < 3;
    w->is_solo = kind == 0;
    w->is_parted = (kind == 1 || kind == 2) && (is_local || rng_chance(&r, 2));
    if (kind >= 4)
        w->nprocesses = kind < 7 ? w->n : 1 + (int)rng_below(&r, (uint64_t)w->n);
    w->nepochs = 2 + (int)rng_below(&r, 12);
}

static void set(struct setting *settings, int *n, const char *name, const char *value)
{
    settings[*n].name = name;
    snprintf(settings[*n].value, sizeof settings[*n].value, "%s", value);
    ++*n;
}

/* An algorithm that serves 1 to n ranks; NULL if the drawn one does not. */
static const struct plan_algo *draw_algo(struct rng *r, int n)
{
    size_t count;
    const struct plan_algo *a = plan_algos(&count);
    a += rng_below(r, count);
    for (int k = 2; k <= n; k++)
        if (!plan_algo_can(a, &(struct plan_shape){a->coll, k, 0, 0, 0}))
            return NULL;
    return a;
}

/* Options of the library that this world runs with. */
static int draw_settings(const struct world *w, struct setting *settings)
{
    static const char *const waits[] = {"yield", "sleep", "spin"};
    static const char *const slots[] = {"4096", "8192", "16384"};
    static const char *const cma[] = {"always", "never"};
    static const char *const stream[] = {"always", "never"};
    struct rng r = rng_fork(w->seed, w->number, 2, 2);
    int n = 0;
    if (rng_chance(&r, 4))
        set(settings, &n, "KOLO_WAIT", waits[rng_below(&r, w->n <= 2 ? 3 : 2)]);
    if (rng_chance(&r, 4))
        set(settings, &n, "KOLO_SLOT_BYTES", slots[rng_below(&r, 3)]);
    if (rng_chance(&r, 2))
        set(settings, &n, "KOLO_CMA", cma[rng_below(&r, 2)]);
    if (rng_chance(&r, 3))
        set(settings, &n, "KOLO_STREAM", stream[rng_below(&r, 2)]);
    if (rng_chance(&r, 8))
        set(settings, &n, "KOLO_WINDOWS", "0");
    if (rng_chance(&r, 8))
        set(settings, &n, "KOLO_CPU", "c");
    if (rng_chance(&r, 6)) {
        set(settings, &n, "KOLO_DETERMINISTIC", "1");
        return n;
    }
    const struct plan_algo *a = rng_chance(&r, 3) ? draw_algo(&r, w->n) : NULL;
    if (a) {
        char text[64];
        snprintf(text, sizeof text, "%s:%s", kolo_coll_name((int)a->coll), a->name);
        set(settings, &n, "KOLO_ALGO", text);
    }
    return n;
}

static void print_world(const struct world *w, const struct setting *settings, int nsettings)
{
    printf("world %" PRIu64 ": %d rank%s, ", w->number, w->n, w->n == 1 ? "" : "s");
    if (w->is_solo)
        printf("all driven by one thread");
    else if (w->nprocesses == 1)
        printf("threads of one process%s", w->is_local ? "" : " that met by id");
    else
        printf("in %d processes", w->nprocesses);
    for (int i = 0; i < nsettings; i++)
        printf(" %s=%s", settings[i].name, settings[i].value);
    printf("\n");
}

/* ---- processes ---- */

struct team {
    pid_t pids[MOST_RANKS]; /* 0: has ended */
    int n;
    bool has_died;
    char death[128];
};

static void start(const struct world *w, const struct setting *settings, int nsettings,
                  struct shared *shared, struct team *team)
{
    *team = (struct team){.n = w->nprocesses};
    fflush(stdout);
    for (int p = 0; p < team->n; p++) {
        team->pids[p] = fork();
        if (team->pids[p] < 0) {
            perror("stress: fork");
            exit(2);
        }
        if (team->pids[p] > 0)
            continue;
        for (int i = 0; i < nsettings; i++)
            setenv(settings[i].name, settings[i].value, 0);
        rank_process(w, p, shared);
        exit(0); /* not _exit: sanitizers look for leaks now */
    }
}

/* Collect who has ended; true while some run. */
static bool reap(struct team *team)
{
    bool some = false;
    for (int p = 0; p < team->n; p++) {
        int status;
        if (team->pids[p] == 0)
            continue;
        if (waitpid(team->pids[p], &status, WNOHANG) == 0) {
            some = true;
            continue;
        }
        team->pids[p] = 0;
        if (status == 0 || team->has_died)
            continue;
        team->has_died = true;
        snprintf(team->death, sizeof team->death, "process %d ended with %s %d", p,
                 WIFSIGNALED(status) ? "signal" : "status",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    }
    return some;
}

static void end(struct team *team)
{
    for (int p = 0; p < team->n; p++)
        if (team->pids[p] > 0) {
            kill(team->pids[p], SIGKILL);
            waitpid(team->pids[p], NULL, 0);
        }
}

/* Sleep until a process ends, or a tick has passed. */
static void tick(void)
{
    const struct timespec t = {0, TICK_MS * 1000000L};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigtimedwait(&set, NULL, &t);
}

static uint64_t steps(const struct shared *shared, int n)
{
    uint64_t all = 0;
    for (int r = 0; r < n; r++)
        all += shared->shown[r].steps;
    return all;
}

/* Until the world has ended by itself or something is wrong; true when all was right. */
static bool watch(const struct options *o, const struct world *w, struct shared *shared,
                  struct team *team, double end_s)
{
    uint64_t last = 0;
    double moved_s = now_s();
    while (reap(team)) {
        if (shared->failures || team->has_died) {
            usleep(GRACE_MS * 1000); /* others may have something to say */
            return false;
        }
        const uint64_t now = steps(shared, w->n);
        if (now != last)
            moved_s = now_s();
        else if (now_s() - moved_s > HANG_S) {
            snprintf(team->death, sizeof team->death,
                     "nothing has moved for %d s, and no deadline has ended it", HANG_S);
            return false;
        }
        last = now;
        if ((end_s > 0 && now_s() >= end_s) ||
            (o->operations > 0 && shared->operations >= o->operations))
            shared->is_over = 1;
        tick();
    }
    return !shared->failures && !team->has_died;
}

/* ---- saying what was wrong ---- */

static void print_rank(const struct shown *s, int rank)
{
    char text[CALL_TEXT];
    draw_text(&s->shape, text, sizeof text);
    printf("  rank %d, epoch %d batch %d call %d: %s\n", rank, s->epoch, s->batch, s->call, text);
    if (s->order)
        printf("    %s\n", s->text);
}

static void print_failure(const struct options *o, const struct world *w,
                          const struct shared *shared, const struct team *team)
{
    printf("\nFAILED in operation %" PRIu64 ": %s\n", shared->operations, team->death);
    for (int order = 1; order <= MOST_RANKS; order++)
        for (int r = 0; r < w->n; r++)
            if (shared->shown[r].order == order)
                print_rank(&shared->shown[r], r);
    printf("the other ranks are at:\n");
    for (int r = 0; r < w->n; r++)
        if (!shared->shown[r].order)
            print_rank(&shared->shown[r], r);
    printf("repeat: make stress SEED=%" PRIu64 " WORLD=%" PRIu64 " MODE=%s\n", o->seed, w->number,
           o->mode);
}

/* ---- main ---- */

static uint64_t number(const char *text)
{
    char *end_at;
    const uint64_t v = strtoull(text, &end_at, 0);
    if (*end_at || end_at == text) {
        fprintf(stderr, "stress: '%s' is not a number\n", text);
        exit(2);
    }
    return v;
}

static void parse(int argc, char **argv, struct options *o)
{
    int c;
    *o = (struct options){.mode = "all"};
    if (getrandom(&o->seed, 4, 0) != 4)
        o->seed = (uint64_t)time(NULL);
    while ((c = getopt(argc, argv, "s:n:r:w:m:")) != -1) {
        switch (c) {
        case 's':
            o->seconds = (double)number(optarg);
            break;
        case 'n':
            o->operations = number(optarg);
            break;
        case 'r':
            o->seed = number(optarg);
            break;
        case 'w':
            o->first = number(optarg);
            break;
        case 'm':
            o->mode = optarg;
            break;
        default:
            exit(2);
        }
    }
    static const char *const modes[] = {"all", "threads", "processes", "local"};
    bool is_known = false;
    for (size_t i = 0; i < ARRAY_LEN(modes); i++)
        is_known |= strcmp(o->mode, modes[i]) == 0;
    if (!is_known) {
        fprintf(stderr, "stress: the mode is all, threads, processes or local, not '%s'\n",
                o->mode);
        exit(2);
    }
    if (o->seconds == 0 && o->operations == 0)
        o->seconds = 60;
}

int main(int argc, char **argv)
{
    struct options o;
    sigset_t set;
    parse(argc, argv, &o);
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, NULL);
    struct shared *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 2;
    printf("seed %" PRIu64 "\n", o.seed);
    const double began_s = now_s(), end_s = o.seconds > 0 ? began_s + o.seconds : 0;
    uint64_t done = 0;
    for (uint64_t k = o.first; !shared->is_over; k++) {
        struct world w;
        struct setting settings[NSETTINGS];
        struct team team;
        draw_world(&o, k, &w);
        const int nsettings = draw_settings(&w, settings);
        print_world(&w, settings, nsettings);
        memset(shared->shown, 0, sizeof shared->shown);
        shared->has_id = 0;
        start(&w, settings, nsettings, shared, &team);
        const bool is_right = watch(&o, &w, shared, &team, end_s);
        end(&team);
        if (!is_right) {
            print_failure(&o, &w, shared, &team);
            return 1;
        }
        done++;
    }
    printf("%" PRIu64 " operations in %" PRIu64 " worlds, %.1f s, seed %" PRIu64 ": all right\n",
           shared->operations, done, now_s() - began_s, o.seed);
    return 0;
}
