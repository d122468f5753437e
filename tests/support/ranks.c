/* ranks.c - see ranks.h. */
#define _GNU_SOURCE
#include "ranks.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_RANKS = 64, TEXT = 1024 };

const char *ranks_text(const char *format, ...)
{
    char *text = malloc(TEXT); /* never freed: the test ends with it */
    va_list args;
    va_start(args, format);
    if (text)
        vsnprintf(text, TEXT, format, args);
    va_end(args);
    return text ? text : "out of memory";
}

struct thread_rank {
    struct kolo_comm *comm;
    rank_fn fn;
    void *arg;
    const char *result;
};

static void *thread_main(void *p)
{
    struct thread_rank *t = p;
    t->result = t->fn(t->comm, t->arg);
    return NULL;
}

const char *ranks_threads(int n, const struct kolo_config *config, rank_fn fn, void *arg)
{
    struct kolo_comm *comms[MOST_RANKS];
    struct thread_rank ranks[MOST_RANKS];
    pthread_t threads[MOST_RANKS];
    if (kolo_comm_create_local(n, config, comms) != KOLO_OK)
        return ranks_text("create_local(%d): %s", n, kolo_last_error(NULL));
    for (int r = 0; r < n; r++) {
        ranks[r] = (struct thread_rank){comms[r], fn, arg, NULL};
        if (pthread_create(&threads[r], NULL, thread_main, &ranks[r]) != 0)
            return "pthread_create failed";
    }
    const char *first = NULL;
    for (int r = 0; r < n; r++) {
        pthread_join(threads[r], NULL);
        if (ranks[r].result && !first)
            first = ranks_text("rank %d of %d threads: %s", r, n, ranks[r].result);
    }
    for (int r = 0; r < n; r++)
        kolo_comm_destroy(comms[r]);
    return first;
}

struct shared {
    _Atomic int has_id; /* 1: id is valid; -1: it could not be made */
    struct kolo_unique_id id;
    char text[MOST_RANKS][TEXT];
};

static void child_main(int r, int n, const struct kolo_config *config, rank_fn fn, void *arg,
                       struct shared *s)
{
    if (r == 0)
        s->has_id = kolo_unique_id_create(&s->id) == KOLO_OK ? 1 : -1;
    while (s->has_id == 0)
        usleep(200); /* rank 0 needs a moment; nothing depends on how long */
    struct kolo_comm *comm = NULL;
    if (s->has_id < 0 || kolo_comm_create(&s->id, r, n, config, &comm) != KOLO_OK) {
        snprintf(s->text[r], TEXT, "create: %s", kolo_last_error(NULL));
        _exit(1);
    }
    const char *result = fn(comm, arg);
    if (result)
        snprintf(s->text[r], TEXT, "%s", result);
    kolo_comm_destroy(comm);
    _exit(result ? 1 : 0);
}

const char *ranks_processes(int n, const struct kolo_config *config, rank_fn fn, void *arg,
                            int may_die)
{
    struct shared *s =
        mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[MOST_RANKS];
    if (s == MAP_FAILED)
        return "mmap failed";
    fflush(NULL);
    for (int r = 0; r < n; r++) {
        pids[r] = fork();
        if (pids[r] == 0)
            child_main(r, n, config, fn, arg, s);
    }
    const char *first = NULL;
    for (int r = 0; r < n; r++) {
        int status = 0;
        waitpid(pids[r], &status, 0);
        const bool is_fine = WIFEXITED(status) && WEXITSTATUS(status) == 0;
        if (!is_fine && r != may_die && !first)
            first = ranks_text("rank %d of %d processes: %s (wait status %x)", r, n,
                               s->text[r][0] ? s->text[r] : "ended without a word", status);
    }
    munmap(s, sizeof *s);
    return first;
}
