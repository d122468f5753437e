/* test_fault.c - never hang, never wrong data: ranks that die, never come, leave, abort, or call
 * something else, seen from all other ranks. */
#include "cfg.h"
#include "support/check.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct kolo_config quick(int64_t timeout_ms)
{
    struct kolo_config c = KOLO_CONFIG_INIT;
    c.timeout_ms = timeout_ms;
    return c;
}

/* A call by number, so that ranks can make different ones. */
static float in_buffer[64][4096], out_buffer[64][4096];

static enum kolo_status all_reduce(struct kolo_comm *comm, size_t count, int type, int op)
{
    const int r = kolo_comm_rank(comm);
    return kolo_all_reduce(in_buffer[r], out_buffer[r], count, type, op, comm, NULL);
}

/* ---- death ---- */

struct death {
    int who;
    int after; /* operations */
};

static const char *die(struct kolo_comm *comm, void *arg)
{
    const struct death *d = arg;
    for (int i = 0; i < d->after + 3; i++) {
        if (kolo_comm_rank(comm) == d->who && i == d->after)
            kill(getpid(), SIGKILL);
        const enum kolo_status status = all_reduce(comm, 1000, KOLO_F32, KOLO_SUM);
        if (status == KOLO_OK && i < d->after)
            continue;
        char name[32];
        snprintf(name, sizeof name, "rank %d (pid", d->who);
        if (status != KOLO_ERR_PEER_LOST)
            return ranks_text("status %d, not PEER_LOST, in operation %d: %s", status, i,
                              kolo_last_error(comm));
        if (!strstr(kolo_last_error(comm), name))
            return ranks_text("the text does not name the dead: %s", kolo_last_error(comm));
        if (all_reduce(comm, 1, KOLO_F32, KOLO_SUM) != KOLO_ERR_PEER_LOST ||
            kolo_comm_status(comm) != KOLO_ERR_PEER_LOST)
            return "the error did not stick";
        return NULL;
    }
    return "nobody noticed";
}

Test(fault, dead_rank)
{
    static const int ranks[] = {2, 3, 8};
    for (size_t i = 0; i < 3; i++)
        for (int who = 0; who<ranks[i]; who += ranks[i]> 3 ? 3 : 1) {
            struct death d = {who, (int)i * 5};
            check(ranks_processes(ranks[i], NULL, die, &d, who));
        }
}

/* Shared by the processes of a test: made before they are forked. */
static _Atomic int *shared_flag(void)
{
    void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(p != MAP_FAILED, "mmap failed");
    return p;
}

/* Rank 2 dies outside any call, rank 1 lives but makes none: rank 0 must not wait for rank 1. */
static const char *die_outside(struct kolo_comm *comm, void *arg)
{
    _Atomic int *const is_over = arg;
    if (kolo_barrier(comm, NULL) != KOLO_OK)
        return kolo_last_error(comm);
    if (kolo_comm_rank(comm) == 2)
        kill(getpid(), SIGKILL);
    if (kolo_comm_rank(comm) == 1) {
        while (!*is_over)
            usleep(1000);
        return NULL;
    }
    const enum kolo_status status = all_reduce(comm, 1000, KOLO_F32, KOLO_SUM);
    *is_over = 1;
    const char *const text = kolo_last_error(comm);
    return status == KOLO_ERR_PEER_LOST && strstr(text, "rank 2 (pid")
               ? NULL
               : ranks_text("status %d: %s", status, text);
}

Test(fault, dead_outside_a_call)
{
    const struct kolo_config config = quick(20000);
    _Atomic int *const flag = shared_flag();
    check(ranks_processes(3, &config, die_outside, flag, 2));
    munmap((void *)(uintptr_t)flag, 4096);
}

/* ---- private memory after a failure ---- */

static void *abort_soon(void *comm)
{
    usleep(
        3000); /* usually inside the copy, which takes some 10 ms; any other moment is right too */
    kolo_comm_abort(comm);
    return NULL;
}

/* Rank 1 gives up in the middle, and its buffer is its own again: rank 0 must not write into it. */
static const char *buffer_is_ours_again(struct kolo_comm *comm, void *arg)
{
    enum { COUNT = 16 << 20 };
    _Atomic int *const is_over = arg;
    const int r = kolo_comm_rank(comm);
    float *const in = calloc(COUNT, sizeof *in), *const out = calloc(COUNT, sizeof *out);
    const char *wrong = in && out ? NULL : "out of memory";
    memset(in, 0, COUNT * sizeof *in);
    memset(out, 0, COUNT * sizeof *out);
    if (kolo_barrier(comm, NULL) != KOLO_OK)
        return kolo_last_error(comm);
    pthread_t thread;
    if (r == 1)
        pthread_create(&thread, NULL, abort_soon, comm);
    const enum kolo_status status = kolo_all_reduce(in, out, COUNT, KOLO_F32, KOLO_SUM, comm, NULL);
    if (r == 0) {
        *is_over = 1;
    } else {
        memset(out, 0xab, COUNT * sizeof *out);
        pthread_join(thread, NULL);
        while (!*is_over)
            usleep(1000);
        const unsigned char *const bytes = (const unsigned char *)out;
        for (size_t i = 0; !wrong && i < COUNT * sizeof *out; i++)
            if (bytes[i] != 0xab)
                wrong = ranks_text("byte %zu was written after the call had returned", i);
    }
    if (!wrong && status != KOLO_OK && status != KOLO_ERR_ABORTED)
        wrong = ranks_text("status %d: %s", status, kolo_last_error(comm));
    free(in);
    free(out);
    return wrong;
}

Test(fault, private_memory_after_an_abort)
{
    _Atomic int *const flag = shared_flag();
    setenv("KOLO_CMA", "always", 1);
    cfg_reset();
    for (int i = 0; i < 5; i++) {
        *flag = 0;
        check(ranks_processes(2, NULL, buffer_is_ours_again, flag, -1));
    }
    unsetenv("KOLO_CMA");
    cfg_reset();
    munmap((void *)(uintptr_t)flag, 4096);
}

/* ---- never comes ---- */

static const char *stay_away(struct kolo_comm *comm, void *arg)
{
    (void)arg;
    if (kolo_comm_rank(comm) == 1)
        return NULL;
    const enum kolo_status status = all_reduce(comm, 8, KOLO_F32, KOLO_SUM);
    const char *text = kolo_last_error(comm);
    if (status != KOLO_ERR_TIMEOUT && status != KOLO_ERR_PEER_LOST)
        return ranks_text("status %d: %s", status, text);
    return strstr(text, "rank 1 (") ? NULL : ranks_text("does not name rank 1: %s", text);
}

/* Threads: the communicator of rank 1 lives on, but makes no call. */
Test(fault, rank_that_never_comes)
{
    const struct kolo_config config = quick(200);
    check(ranks_threads(2, &config, stay_away, NULL));
    check(ranks_threads(5, &config, stay_away, NULL));
}

/* Processes: rank 1 destroys its communicator and ends in order; those who wait for it must
 * know. */
Test(fault, rank_that_leaves)
{
    check(ranks_processes(2, NULL, stay_away, NULL, -1));
    check(ranks_processes(4, NULL, stay_away, NULL, -1));
}

/* ---- abort ---- */

static void *abort_it(void *comm)
{
    usleep(20000); /* usually inside the wait; right before or after it must work too */
    kolo_comm_abort(comm);
    return NULL;
}

static const char *abort_from_thread(struct kolo_comm *comm, void *arg)
{
    (void)arg;
    pthread_t thread;
    if (kolo_comm_rank(comm) == 1) {
        abort_it(comm);
        return all_reduce(comm, 8, KOLO_F32, KOLO_SUM) == KOLO_ERR_ABORTED ? NULL
                                                                           : "not aborted here";
    }
    if (kolo_comm_rank(comm) == 0) {
        pthread_create(&thread, NULL, abort_it, comm);
        const enum kolo_status status = all_reduce(comm, 8, KOLO_F32, KOLO_SUM);
        pthread_join(thread, NULL);
        return status == KOLO_ERR_ABORTED ? NULL : ranks_text("status %d", status);
    }
    const enum kolo_status status = all_reduce(comm, 8, KOLO_F32, KOLO_SUM);
    const char *text = kolo_last_error(comm);
    return status == KOLO_ERR_ABORTED && strstr(text, "kolo_comm_abort was called on rank")
               ? NULL
               : ranks_text("status %d: %s", status, text);
}

Test(fault, abort_reaches_all)
{
    check(ranks_threads(3, NULL, abort_from_thread, NULL));
    check(ranks_processes(4, NULL, abort_from_thread, NULL, -1));
}

/* ---- mismatches ---- */

enum variant { SAME, COUNT, TYPE, OP, KIND, ROOT, ORDER, BARRIER, SCATTER, GATHER_V, NVARIANTS };

static enum kolo_status call(struct kolo_comm *comm, enum variant v)
{
    const int r = kolo_comm_rank(comm), n = kolo_comm_size(comm);
    float *in = in_buffer[r], *out = out_buffer[r];
    size_t counts[64];
    for (int i = 0; i < n; i++)
        counts[i] = (size_t)i;
    switch (v) {
    case SAME:
        return all_reduce(comm, 64, KOLO_F32, KOLO_SUM);
    case COUNT:
        return all_reduce(comm, 65, KOLO_F32, KOLO_SUM);
    case TYPE:
        return all_reduce(comm, 64, KOLO_I32, KOLO_SUM);
    case OP:
        return all_reduce(comm, 64, KOLO_F32, KOLO_MAX);
    case KIND:
        return kolo_all_gather(in, out, 64, KOLO_F32, comm, NULL);
    case ROOT:
        return kolo_reduce(in, out, 64, KOLO_F32, KOLO_SUM, n - 1, comm, NULL);
    case BARRIER:
        return kolo_barrier(comm, NULL);
    case SCATTER: /* each waits for another root: nobody sends */
        return kolo_scatter(in, out, 4, KOLO_F32, (r + 1) % n, comm, NULL);
    case GATHER_V:
        return kolo_all_gather_v(in, out, counts, NULL, KOLO_F32, comm, NULL);
    default:
        return kolo_broadcast(in, out, 64, KOLO_F32, 0, comm, NULL);
    }
}

struct mismatch {
    enum variant odd; /* what the odd rank calls */
    enum variant others;
    int who;
};

static const char *call_differently(struct kolo_comm *comm, void *arg)
{
    const struct mismatch *m = arg;
    const bool is_odd = kolo_comm_rank(comm) == m->who;
    for (int i = 0; i < 3; i++)
        if (call(comm, SAME) != KOLO_OK)
            return ranks_text("before: %s", kolo_last_error(comm));
    enum kolo_status status = call(comm, is_odd ? m->odd : m->others);
    /* Who only sends may not have noticed; its next call does. */
    for (int i = 0; i < 3 && status == KOLO_OK; i++)
        status = call(comm, SAME);
    const char *text = kolo_last_error(comm);
    if (status != KOLO_ERR_MISMATCH)
        return ranks_text("variant %d against %d: status %d: %s", m->odd, m->others, status, text);
    const char *first = strstr(text, "calls ");
    if (!first || !strstr(first + 1, "calls "))
        return ranks_text("variant %d against %d: both calls should be named: %s", m->odd,
                          m->others, text);
    return NULL;
}

Test(fault, mismatch)
{
    const struct kolo_config config = quick(20000);
    static const int ranks[] = {2, 3, 5};
    for (size_t i = 0; i < 3; i++)
        for (enum variant v = COUNT; v < NVARIANTS; v++) {
            if (v == SCATTER || v == ORDER)
                continue;
            struct mismatch m = {v, SAME, ranks[i] - 1};
            check(ranks_threads(ranks[i], &config, call_differently, &m));
        }
    for (enum variant v = COUNT; v <= GATHER_V; v++) {
        if (v == SCATTER || v == ORDER)
            continue;
        struct mismatch m = {v, SAME, 0};
        check(ranks_processes(3, &config, call_differently, &m, -1));
    }
}

Test(fault, all_wait_for_another_root)
{
    const struct kolo_config config = quick(20000);
    struct mismatch m = {SCATTER, SCATTER, 0};
    check(ranks_threads(2, &config, call_differently, &m));
    check(ranks_threads(3, &config, call_differently, &m));
}

/* The same two calls in another order. */
static const char *swap_order(struct kolo_comm *comm, void *arg)
{
    (void)arg;
    const bool is_odd = kolo_comm_rank(comm) == 0;
    enum kolo_status status = call(comm, is_odd ? KIND : SAME);
    if (status == KOLO_OK)
        status = call(comm, is_odd ? SAME : KIND);
    return status == KOLO_ERR_MISMATCH ? NULL : ranks_text("status %d", status);
}

Test(fault, another_order)
{
    const struct kolo_config config = quick(20000);
    check(ranks_threads(2, &config, swap_order, NULL));
    check(ranks_processes(3, &config, swap_order, NULL, -1));
}

/* Counts of all_to_all_v that do not fit together, and of send and receive. */
static const char *uneven(struct kolo_comm *comm, void *arg)
{
    const int r = kolo_comm_rank(comm), n = kolo_comm_size(comm);
    size_t counts[64];
    (void)arg;
    for (int i = 0; i < n; i++)
        counts[i] = 5;
    if (r == 0)
        counts[1] = 6;
    const enum kolo_status status = kolo_all_to_all_v(in_buffer[r], counts, NULL, out_buffer[r],
                                                      counts, NULL, KOLO_F32, comm, NULL);
    if (status == KOLO_OK && r > 1)
        return NULL; /* its own exchanges were all right */
    return status == KOLO_ERR_MISMATCH ? NULL
                                       : ranks_text("status %d: %s", status, kolo_last_error(comm));
}

Test(fault, uneven_all_to_all_v)
{
    const struct kolo_config config = quick(20000);
    check(ranks_threads(2, &config, uneven, NULL));
    check(ranks_threads(4, &config, uneven, NULL));
}

static const char *uneven_send(struct kolo_comm *comm, void *arg)
{
    const int r = kolo_comm_rank(comm);
    const size_t extra = (size_t)(arg != NULL) * 3000;
    enum kolo_status status = r == 0 ? kolo_send(in_buffer[0], 100 + extra, KOLO_F32, 1, comm, NULL)
                                     : kolo_recv(out_buffer[1], 101, KOLO_F32, 0, comm, NULL);
    if (status == KOLO_OK)
        status = kolo_barrier(comm, NULL);
    return status == KOLO_ERR_MISMATCH ? NULL
                                       : ranks_text("status %d: %s", status, kolo_last_error(comm));
}

Test(fault, uneven_send_and_receive)
{
    static char big;
    const struct kolo_config config = quick(20000);
    check(ranks_threads(2, &config, uneven_send, NULL));
    check(ranks_processes(2, &config, uneven_send, &big, -1));
}
