/* bench_ranks.c - how this program becomes ranks.
 *
 *     -g N         N processes, forked here; the parent only watches them
 *     -t N         N threads of each process
 *     neither      the launcher's processes; alone: the program starts itself again with -g 2
 *
 * A rank that fails ends its process with BENCH_EXIT_ERROR; the parent then ends the others.
 */
#include "bench.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

volatile sig_atomic_t bench_interrupted;

enum { GRACE_MS = 300 }; /* for the other ranks to say their part after one has failed */

void bench_fail(int rank, const char *what, enum kolo_status status, const struct kolo_comm *comm)
{
    const char *text = kolo_last_error(comm);
    if (rank >= 0)
        fprintf(stderr, "kolo_bench: rank %d: ", rank);
    else
        fputs("kolo_bench: ", stderr);
    fprintf(stderr, "%s failed (%s): %s\n", what, kolo_status_string((int)status), text);
    fflush(NULL);
    _exit(BENCH_EXIT_ERROR);
}

/* ---- signals ------------------------------------------------------------------------------ */

/* Ask for an end after the current sample; the second time, leave. */
static void on_interrupt_alone(int signal_number)
{
    (void)signal_number;
    if (bench_interrupted)
        _exit(BENCH_EXIT_STOPPED);
    bench_interrupted = 1;
}

/* A rank with a parent only takes note: it may hear of Ctrl-C twice, from terminal and parent. */
static void on_interrupt_watched(int signal_number)
{
    (void)signal_number;
    bench_interrupted = 1;
}

static void on_interrupt_parent(int signal_number)
{
    (void)signal_number;
    bench_interrupted++;
}

/* Without restart, so that the parent's wait returns. */
static void catch_interrupt(void (*handler)(int signal_number), int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigaction(SIGINT, &action, NULL);
}

/* ---- CPUs --------------------------------------------------------------------------------- */

/* The CPU of rank i: the (i mod n)-th of the n that this program may use; -1 if unknown. */
static int cpu_of_rank(const cpu_set_t *allowed, int rank)
{
    const int n = CPU_COUNT(allowed);
    int left = n ? rank % n : 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, allowed) && left-- == 0)
            return cpu;
    }
    return -1;
}

static int pin(const cpu_set_t *allowed, int rank)
{
    const int cpu = cpu_of_rank(allowed, rank);
    if (cpu < 0)
        return -1;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    return sched_setaffinity(0, sizeof one, &one) ? -1 : cpu;
}

/* ---- ranks of this machine ---------------------------------------------------------------- */

struct crew {
    const struct bench_options *options;
    struct bench_shared *shared;
    cpu_set_t allowed;
    int nprocs;
    int nthreads; /* of each process */
    int nranks;
};

struct worker {
    const struct crew *crew;
    int rank;
    struct kolo_comm *comm; /* made by kolo_comm_create_local; else NULL */
    int code;
};

static bool is_root_legal(const struct bench_options *options, int nranks)
{
    if (options->root < nranks)
        return true;
    fprintf(stderr, "kolo_bench: root %d (-r) is not one of the %d ranks\n", options->root, nranks);
    return false;
}

static struct kolo_config make_config(const struct bench_options *options)
{
    struct kolo_config config = KOLO_CONFIG_INIT;
    config.name = "kolo_bench";
    config.timeout_ms = (int64_t)options->timeout_s * 1000;
    return config;
}

static struct kolo_comm *join(struct bench_team *team, const struct bench_options *options)
{
    struct kolo_unique_id id;
    struct kolo_comm *comm;
    enum kolo_status status = bench_team_share_id(team, &id);
    if (status != KOLO_OK)
        bench_fail(team->rank, "making an id", status, NULL);
    const struct kolo_config config = make_config(options);
    status = kolo_comm_create(&id, team->rank, team->nranks, &config, &comm);
    if (status != KOLO_OK)
        bench_fail(team->rank, "joining the communicator", status, NULL);
    return comm;
}

static void run_worker(struct worker *worker)
{
    const struct crew *crew = worker->crew;
    struct bench_rank rank = {
        .options = crew->options,
        .team = {.shared = crew->shared,
                 .rank = worker->rank,
                 .nranks = crew->nranks,
                 .is_crowded = crew->nranks > CPU_COUNT(&crew->allowed)},
        .mode = crew->nprocs > 1 ? BENCH_MODE_PROCESSES : BENCH_MODE_THREADS,
        .rank = worker->rank,
        .nranks = crew->nranks,
        .cpu = crew->options->is_pinned ? pin(&crew->allowed, worker->rank) : -1,
        .comm = worker->comm,
    };
    if (!rank.comm)
        rank.comm = join(&rank.team, crew->options);
    rank.team.comm = rank.comm;
    worker->code = bench_rank_main(&rank);
    kolo_comm_destroy(rank.comm);
}

static void *run_worker_thread(void *arg)
{
    run_worker(arg);
    return NULL;
}

/* Run the ranks first .. first + nthreads of this process; the code of the first one. */
static int run_threads(const struct crew *crew, int first, struct kolo_comm **comms)
{
    const int n = crew->nthreads;
    struct worker *workers = calloc((size_t)n, sizeof *workers);
    pthread_t *threads = calloc((size_t)n, sizeof *threads);
    if (!workers || !threads) {
        fprintf(stderr, "kolo_bench: no memory for %d ranks\n", n);
        exit(BENCH_EXIT_ERROR);
    }
    for (int i = 0; i < n; i++)
        workers[i] = (struct worker){crew, first + i, comms ? comms[i] : NULL, 0};
    for (int i = 1; i < n; i++) {
        const int error = pthread_create(&threads[i], NULL, run_worker_thread, &workers[i]);
        if (error) {
            fprintf(stderr, "kolo_bench: thread %d of %d: %s\n", i, n, strerror(error));
            exit(BENCH_EXIT_ERROR);
        }
    }
    run_worker(&workers[0]);
    for (int i = 1; i < n; i++)
        pthread_join(threads[i], NULL);
    const int code = workers[0].code;
    free(workers);
    free(threads);
    return code;
}

static int run_one_process(const struct crew *crew)
{
    struct kolo_comm **comms = calloc((size_t)crew->nranks, sizeof *comms);
    const struct kolo_config config = make_config(crew->options);
    if (!comms) {
        fputs("kolo_bench: no memory\n", stderr);
        return BENCH_EXIT_ERROR;
    }
    catch_interrupt(on_interrupt_alone, SA_RESTART);
    const enum kolo_status status = kolo_comm_create_local(crew->nranks, &config, comms);
    if (status != KOLO_OK)
        bench_fail(-1, "making local communicators", status, NULL);
    const int code = run_threads(crew, 0, comms);
    free(comms);
    return code;
}

/* ---- processes ---------------------------------------------------------------------------- */

__attribute__((noreturn)) static void run_child(const struct crew *crew, int process, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(BENCH_EXIT_ERROR);
    catch_interrupt(on_interrupt_watched, SA_RESTART);
    const int code = run_threads(crew, process * crew->nthreads, NULL);
    exit(process == 0 ? code : BENCH_EXIT_OK); /* rank 0 speaks for all */
}

static void signal_all(const pid_t *pids, int n, int signal_number)
{
    for (int i = 0; i < n; i++) {
        if (pids[i] > 0)
            kill(pids[i], signal_number);
    }
}

static bool is_verdict(int wait_status)
{
    if (!WIFEXITED(wait_status))
        return false;
    const int code = WEXITSTATUS(wait_status);
    return code == BENCH_EXIT_OK || code == BENCH_EXIT_WRONG || code == BENCH_EXIT_SLOW ||
           code == BENCH_EXIT_STOPPED;
}

static int exit_code(int wait_status)
{
    return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

static void report_death(const struct crew *crew, int process, pid_t pid, int wait_status)
{
    const int first = process * crew->nthreads;
    fflush(stdout);
    if (crew->nthreads > 1)
        fprintf(stderr, "kolo_bench: ranks %d to %d (pid %d) ", first, first + crew->nthreads - 1,
                (int)pid);
    else
        fprintf(stderr, "kolo_bench: rank %d (pid %d) ", first, (int)pid);
    if (WIFSIGNALED(wait_status))
        fprintf(stderr, "died of signal %d (%s)\n", WTERMSIG(wait_status),
                strsignal(WTERMSIG(wait_status)));
    else
        fprintf(stderr, "ended with exit code %d\n", WEXITSTATUS(wait_status));
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Wait for the next child to end: its index, or -1 when a signal or the deadline (ms, 0: none)
 * came first. */
static int wait_child(pid_t *pids, int n, int64_t deadline, int *wait_status)
{
    for (;;) {
        const pid_t pid = waitpid(-1, wait_status, deadline ? WNOHANG : 0);
        for (int i = 0; pid > 0 && i < n; i++) {
            if (pids[i] == pid)
                return i;
        }
        if (pid < 0 || (deadline && now_ms() >= deadline))
            return -1;
        if (deadline)
            nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
}

/* Until all children have ended; when one fails, the others get a moment, then SIGKILL. */
static int supervise(const struct crew *crew, pid_t *pids)
{
    const int n = crew->nprocs;
    int code = 0, forwarded = 0;
    int64_t deadline = 0;
    for (int left = n; left > 0;) {
        int status;
        const int i = wait_child(pids, n, deadline, &status);
        if (i < 0) {
            if (bench_interrupted > forwarded)
                signal_all(pids, n, forwarded++ ? SIGKILL : SIGINT);
            if (deadline && now_ms() >= deadline) {
                signal_all(pids, n, SIGKILL);
                deadline = INT64_MAX;
            }
            continue;
        }
        const pid_t pid = pids[i];
        pids[i] = 0;
        left--;
        if (!code)
            code = exit_code(status);
        if (!is_verdict(status) && !deadline) {
            report_death(crew, i, pid, status);
            deadline = now_ms() + (WIFSIGNALED(status) ? 0 : GRACE_MS);
        }
    }
    return bench_interrupted > 1 ? BENCH_EXIT_STOPPED : code;
}

static int run_processes(const struct crew *crew)
{
    const pid_t parent = getpid();
    pid_t *pids = calloc((size_t)crew->nprocs, sizeof *pids);
    if (!pids) {
        fputs("kolo_bench: no memory\n", stderr);
        return BENCH_EXIT_ERROR;
    }
    catch_interrupt(on_interrupt_parent, 0);
    fflush(NULL);
    for (int i = 0; i < crew->nprocs; i++) {
        pids[i] = fork();
        if (pids[i] == 0)
            run_child(crew, i, parent);
        if (pids[i] < 0) {
            fprintf(stderr, "kolo_bench: fork of rank %d: %s\n", i, strerror(errno));
            signal_all(pids, i, SIGKILL);
            free(pids);
            return BENCH_EXIT_ERROR;
        }
    }
    const int code = supervise(crew, pids);
    free(pids);
    return code;
}

/* ---- launcher ----------------------------------------------------------------------------- */

/* Start this program again with -g 2: a fresh process, whatever the library did so far. */
static int run_again(char **argv)
{
    int n = 0;
    while (argv[n])
        n++;
    char **more = calloc((size_t)n + 3, sizeof *more);
    if (more) {
        memcpy(more, argv, (size_t)n * sizeof *more);
        more[n] = "-g";
        more[n + 1] = "2";
        execv("/proc/self/exe", more);
    }
    fprintf(stderr, "kolo_bench: cannot start two processes (%s); try -g 2\n", strerror(errno));
    free(more);
    return BENCH_EXIT_ERROR;
}

static int run_launched(const struct bench_options *options, char **argv)
{
    struct bench_rank rank = {.options = options, .mode = BENCH_MODE_LAUNCHER, .cpu = -1};
    const struct kolo_config config = make_config(options);
    const enum kolo_status status = kolo_comm_create_env(&config, &rank.comm);
    if (status != KOLO_OK)
        bench_fail(-1, "joining the ranks of the launcher", status, NULL);
    rank.rank = kolo_comm_rank(rank.comm);
    rank.nranks = kolo_comm_size(rank.comm);
    if (rank.nranks == 1) {
        kolo_comm_destroy(rank.comm);
        return run_again(argv);
    }
    if (!is_root_legal(options, rank.nranks)) {
        kolo_comm_destroy(rank.comm);
        return BENCH_EXIT_ERROR;
    }
    rank.team = (struct bench_team){.comm = rank.comm, .rank = rank.rank, .nranks = rank.nranks};
    catch_interrupt(on_interrupt_alone, SA_RESTART);
    const int code = bench_rank_main(&rank);
    kolo_comm_destroy(rank.comm);
    return code;
}

int bench_ranks_run(const struct bench_options *options, char **argv)
{
    if (options->nprocs == 0 && options->nthreads == 0)
        return run_launched(options, argv);
    struct crew crew = {.options = options,
                        .nprocs = options->nprocs ? (int)options->nprocs : 1,
                        .nthreads = options->nthreads ? (int)options->nthreads : 1};
    crew.nranks = crew.nprocs * crew.nthreads;
    if (!is_root_legal(options, crew.nranks))
        return BENCH_EXIT_ERROR;
    crew.shared = bench_shared_create(crew.nranks);
    if (!crew.shared) {
        fprintf(stderr, "kolo_bench: no memory for the times of %d ranks\n", crew.nranks);
        return BENCH_EXIT_ERROR;
    }
    if (sched_getaffinity(0, sizeof crew.allowed, &crew.allowed))
        CPU_ZERO(&crew.allowed);
    return crew.nprocs > 1 ? run_processes(&crew) : run_one_process(&crew);
}
