/* test_wait.c - the ways to wait, forced by KOLO_WAIT: results are right in each, and the counters
 * show that the way was taken.  Sleeping has the race that matters: a message that comes between
 * the last look and the sleep. */
#include "board.h"
#include "cfg.h"
#include "engine.h"
#include "support/ranks.h"
#include "support/test.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void force(const char *mode)
{
    if (mode)
        setenv("KOLO_WAIT", mode, 1);
    else
        unsetenv("KOLO_WAIT");
    cfg_reset();
}

/* Value of a counter in the metrics text; -1 when it is not there. */
static double counter(const struct kolo_comm *comm, const char *name)
{
    static _Thread_local char text[8192];
    char start[96];
    if (kolo_metrics(comm, text, sizeof text, NULL) != KOLO_OK)
        return -1;
    snprintf(start, sizeof start, "\n%s{", name);
    const char *at = strstr(text, start);
    at = at ? strchr(at, '}') : NULL;
    return at ? atof(at + 1) : -1;
}

enum { TURNS = 1000 };

/* A token goes round: all ranks but one wait at any time.  Then sums of a few sizes. */
static const char *pass_token(struct kolo_comm *comm, void *arg)
{
    const int n = kolo_comm_size(comm), r = kolo_comm_rank(comm);
    const char *const expected_counter = arg;
    int32_t token = 0;
    for (int i = 0; i < TURNS; i++) {
        if (r != 0 || i > 0) {
            if (kolo_recv(&token, 1, KOLO_I32, (r + n - 1) % n, comm, NULL) != KOLO_OK)
                return kolo_last_error(comm);
            token++;
        }
        if ((r != n - 1 || i < TURNS - 1) &&
            kolo_send(&token, 1, KOLO_I32, (r + 1) % n, comm, NULL) != KOLO_OK)
            return kolo_last_error(comm);
    }
    if (token != (TURNS - 1) * n + r)
        return ranks_text("token is %d", token);
    static float in[64][20000], out[64][20000];
    for (size_t count = 1; count < 20000; count *= 19) {
        for (size_t i = 0; i < count; i++)
            in[r][i] = (float)(r + 1);
        if (kolo_all_reduce(in[r], out[r], count, KOLO_F32, KOLO_SUM, comm, NULL) != KOLO_OK)
            return kolo_last_error(comm);
        for (size_t i = 0; i < count; i++)
            if (out[r][i] != (float)(n * (n + 1) / 2))
                return ranks_text("sum is %g", (double)out[r][i]);
    }
    if (expected_counter && counter(comm, expected_counter) <= 0)
        return ranks_text("%s did not move: the way was not taken", expected_counter);
    return kolo_barrier(comm, NULL) == KOLO_OK ? NULL : kolo_last_error(comm);
}

static void run(const char *mode, int nthreads, int nprocesses, const char *counter_name)
{
    char name[64];
    snprintf(name, sizeof name, "%s", counter_name ? counter_name : "");
    void *arg = counter_name ? name : NULL;
    force(mode);
    const char *wrong = ranks_threads(nthreads, NULL, pass_token, arg);
    if (!wrong)
        wrong = ranks_processes(nprocesses, NULL, pass_token, arg, -1);
    force(NULL);
    cr_assert(wrong == NULL, "%s: %s", mode, wrong);
}

Test(wait, sleep)
{
    run("sleep", 3, 2, "kolo_wait_sleeps_total");
    run("sleep", 5, 4, "kolo_wait_sleeps_total");
}

Test(wait, yield)
{
    run("yield", 4, 3, "kolo_wait_yields_total");
}

Test(wait, automatic_with_more_ranks_than_cpus)
{
    run("auto", 12, 8, NULL);
}

/* An idle worker may poll where it has a CPU beside its caller's, and nowhere else. */
Test(wait, who_may_poll)
{
    force(NULL);
    cr_assert_gt(poll_ns_choose(1, 2, false), 0, "a CPU is to spare");
    cr_assert_gt(poll_ns_choose(4, 9, false), 0, "one for each");
    cr_assert_eq(poll_ns_choose(1, 1, false), 0, "one CPU for both");
    cr_assert_eq(poll_ns_choose(2, 3, false), 0, "three for four");
    cr_assert_eq(poll_ns_choose(1, 8, true), 0, "bound to the same CPU");
    force("sleep");
    cr_assert_eq(poll_ns_choose(1, 8, false), 0, "told to sleep");
    setenv("KOLO_POLL_US", "7", 1);
    force(NULL);
    cr_assert_eq(poll_ns_choose(2, 2, true), 7000, "told how long");
    unsetenv("KOLO_POLL_US");
    force(NULL);
}

/* A waiting rank reads a call while its owner writes the next one over it: whole, or not at all. */
enum { PUBLISHED = 200000 };

static struct call call_number(uint64_t seq)
{
    return (struct call){.coll = seq % KOLO_COLL_BARRIER,
                         .type = (int)(seq % KOLO_NTYPES),
                         .op = (int)(seq % KOLO_NOPS),
                         .root = (int)(seq % 1000003),
                         .count = (size_t)seq * 0x9e3779b97f4a7c15u};
}

static void *publish_all(void *board)
{
    for (uint64_t seq = 0; seq < PUBLISHED; seq++) {
        const struct call c = call_number(seq);
        board_publish(board, seq, &c);
    }
    return NULL;
}

Test(wait, calls_are_read_whole_or_not_at_all)
{
    static struct board board;
    pthread_t owner;
    cr_assert_eq(pthread_create(&owner, NULL, publish_all, &board), 0);
    for (uint64_t seq = 0; seq < PUBLISHED;) {
        const struct call expected = call_number(seq);
        struct call found;
        if (board_find(&board, seq, &found))
            cr_assert(call_matches(&found, &expected), "call %llu is torn",
                      (unsigned long long)seq);
        /* A reader that was overtaken goes on with the number that the place shows. */
        const uint64_t shown = atomic_load(&board.calls[seq % BOARD_CALLS].seq);
        seq = shown > seq + 1 ? shown - 1 : seq + (shown == seq + 1);
    }
    pthread_join(owner, NULL);
}
