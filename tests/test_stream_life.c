/* test_stream_life.c - errors that stick to streams, times of events, refused handles, destruction
 * with work pending, and allocations: none in the steady state, each failing in turn. */
#include "support/test.h"
#include "support/works.h"

#include "mem.h"
#include "stream.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { MANY = 2000 };

/* ---- errors --------------------------------------------------------------------------------- */

Test(stream_life, the_first_error_sticks_until_synchronize)
{
    struct worker *const w = new_worker();
    struct kolo_stream *const s = new_stream();
    struct count works[5];
    int counter = 0;
    for (int i = 0; i < 5; i++)
        count_init(&works[i], &counter, i);
    works[1].result = KOLO_ERR_TIMEOUT;
    works[1].text = "rank 7 did not come";
    works[3].result = KOLO_ERR_PEER_LOST;
    works[3].text = "rank 8 died";
    for (int i = 0; i < 5; i++)
        submit(w, &works[i], s);
    worker_drain(w);
    (void)fail_again(KOLO_OK, NULL);
    while (kolo_stream_query(s) == KOLO_IN_PROGRESS) /* idle comes shortly before done */
        ;
    for (int i = 0; i < 2; i++) { /* asking does not clear it */
        cr_assert_eq(kolo_stream_query(s), KOLO_ERR_TIMEOUT);
        cr_assert_str_eq(fail_text(), "rank 7 did not come");
    }
    (void)fail_again(KOLO_OK, NULL);
    cr_assert_eq(kolo_stream_synchronize(s), KOLO_ERR_TIMEOUT);
    cr_assert_str_eq(fail_text(), "rank 7 did not come");
    cr_assert_eq(kolo_stream_synchronize(s), KOLO_OK);
    cr_assert_eq(kolo_stream_query(s), KOLO_OK);
    cr_assert_eq(counter, 5); /* all ran */
    cr_assert_eq(works[1].finished_with, KOLO_ERR_TIMEOUT);
    cr_assert_eq(works[2].finished_with, KOLO_OK);
    cr_assert_eq(works[3].finished_with, KOLO_ERR_PEER_LOST);

    count_init(&works[0], &counter, 5);
    works[0].result = KOLO_ERR_ABORTED;
    works[0].text = "aborted";
    submit(w, &works[0], s);
    cr_assert_eq(kolo_stream_synchronize(s), KOLO_ERR_ABORTED); /* a new first error */
    cr_assert_str_eq(fail_text(), "aborted");
    kolo_stream_destroy(s);
    worker_destroy(w);
}

Test(stream_life, an_error_belongs_to_the_streams_of_its_work_only)
{
    struct worker *const w = new_worker();
    struct kolo_stream *const streams[3] = {new_stream(), new_stream(), new_stream()};
    struct kolo_event *const e = new_event();
    struct count bad, good;
    int counter = 0;
    count_init(&bad, &counter, 0);
    bad.result = KOLO_ERR_MISMATCH;
    bad.text = "not the same";
    count_init(&good, &counter, 1);
    cr_assert_eq(worker_submit_many(w, &bad.work, streams, 2), KOLO_OK);
    cr_assert_eq(kolo_event_record(e, streams[0]), KOLO_OK);
    cr_assert_eq(kolo_stream_wait_event(streams[2], e), KOLO_OK);
    submit(w, &good, streams[2]);
    cr_assert_eq(kolo_stream_synchronize(streams[2]), KOLO_OK);
    cr_assert_eq(kolo_event_synchronize(e), KOLO_OK);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(kolo_stream_synchronize(streams[i]), KOLO_ERR_MISMATCH, "stream %d", i);
        cr_assert_str_eq(fail_text(), "not the same", "stream %d", i);
        cr_assert_eq(kolo_stream_synchronize(streams[i]), KOLO_OK, "stream %d", i);
    }
    for (int i = 0; i < 3; i++)
        kolo_stream_destroy(streams[i]);
    kolo_event_destroy(e);
    worker_destroy(w);
}

static enum kolo_status fail_without_text(struct work *w)
{
    (void)w;
    return KOLO_ERR_INTERNAL;
}

Test(stream_life, the_text_of_an_earlier_work_does_not_stand_for_a_later_one)
{
    struct worker *const w = new_worker();
    struct kolo_stream *const a = new_stream();
    struct kolo_stream *const b = new_stream();
    struct count bad;
    int counter = 0;
    struct work silent = {.run = fail_without_text};
    count_init(&bad, &counter, 0);
    bad.result = KOLO_ERR_TIMEOUT;
    bad.text = "too late";
    submit(w, &bad, a);
    cr_assert_eq(worker_submit(w, &silent, b), KOLO_OK); /* finish may be NULL */
    cr_assert_eq(kolo_stream_synchronize(b), KOLO_ERR_INTERNAL);
    cr_assert_str_eq(fail_text(), "");
    cr_assert_eq(kolo_stream_synchronize(a), KOLO_ERR_TIMEOUT);
    kolo_stream_destroy(a);
    kolo_stream_destroy(b);
    worker_destroy(w);
}

/* ---- events --------------------------------------------------------------------------------- */

Test(stream_life, elapsed_time)
{
    struct worker *const w = new_worker();
    struct kolo_stream *const s = new_stream();
    struct kolo_event *const start = new_event();
    struct kolo_event *const end = new_event();
    struct kolo_event *const never = new_event();
    struct count slow;
    sem_t gate;
    int counter = 0;
    double ms = -77;
    sem_init(&gate, 0, 0);
    count_init(&slow, &counter, 0);
    slow.wait_for = &gate;
    const uint64_t before = now_ns();
    cr_assert_eq(kolo_event_record(start, s), KOLO_OK);
    submit(w, &slow, s);
    cr_assert_eq(kolo_event_record(end, s), KOLO_OK);
    cr_assert_eq(kolo_event_elapsed_time(&ms, start, end), KOLO_ERR_USAGE);
    cr_assert_not_null(strstr(fail_text(), "the end event is not done"), "%s", fail_text());
    cr_assert_eq(kolo_event_elapsed_time(&ms, end, start), KOLO_ERR_USAGE);
    const uint64_t opened = now_ns();
    sem_post(&gate);
    cr_assert_eq(kolo_event_synchronize(end), KOLO_OK);
    const uint64_t after = now_ns();
    cr_assert_eq(kolo_event_elapsed_time(&ms, start, never), KOLO_ERR_USAGE);
    cr_assert_eq(kolo_event_elapsed_time(&ms, never, start), KOLO_ERR_USAGE);
    cr_assert_not_null(strstr(fail_text(), "never recorded"), "%s", fail_text());
    cr_assert_eq(ms, -77); /* untouched by errors */
    cr_assert_eq(kolo_event_elapsed_time(&ms, start, end), KOLO_OK);
    /* start was reached between `before` and `opened`, end between `opened` and `after` */
    cr_assert(ms > 0 && ms <= (double)(after - before) / 1e6, "%f ms", ms);
    const double forward = ms;
    cr_assert_eq(kolo_event_elapsed_time(&ms, end, start), KOLO_OK);
    cr_assert_eq(ms, -forward);
    cr_assert_eq(kolo_event_elapsed_time(&ms, end, end), KOLO_OK);
    cr_assert_eq(ms, 0);
    cr_assert_eq(kolo_event_record(start, s), KOLO_OK); /* again: later than the work now */
    cr_assert_eq(kolo_event_elapsed_time(&ms, end, start), KOLO_OK);
    cr_assert(ms >= 0 && ms <= (double)(now_ns() - opened) / 1e6, "%f ms", ms);
    kolo_event_destroy(start);
    kolo_event_destroy(end);
    kolo_event_destroy(never);
    kolo_stream_destroy(s);
    worker_destroy(w);
    sem_destroy(&gate);
}

Test(stream_life, events_never_recorded_are_done)
{
    struct kolo_event *const e = new_event();
    cr_assert_eq(kolo_event_query(e), KOLO_OK);
    cr_assert_eq(kolo_event_synchronize(e), KOLO_OK);
    kolo_event_destroy(e);
}

Test(stream_life, null_handles_are_refused_with_a_text)
{
    struct kolo_stream *const s = new_stream();
    struct kolo_event *const e = new_event();
    double ms = 0;
    const enum kolo_status got[] = {
        kolo_stream_create(NULL),
        kolo_stream_synchronize(NULL),
        kolo_stream_query(NULL),
        kolo_stream_wait_event(NULL, e),
        kolo_stream_wait_event(s, NULL),
        kolo_event_create(NULL),
        kolo_event_record(NULL, s),
        kolo_event_record(e, NULL),
        kolo_event_synchronize(NULL),
        kolo_event_query(NULL),
        kolo_event_elapsed_time(NULL, e, e),
        kolo_event_elapsed_time(&ms, NULL, e),
    };
    for (size_t i = 0; i < ARRAY_LEN(got); i++)
        cr_assert_eq(got[i], KOLO_ERR_ARG, "call %zu", i);
    cr_assert_eq(kolo_stream_wait_event(s, NULL), KOLO_ERR_ARG);
    cr_assert_str_eq(fail_text(), "kolo_stream_wait_event: the event is NULL");
    kolo_stream_destroy(NULL);
    kolo_event_destroy(NULL);
    worker_destroy(NULL);
    kolo_stream_destroy(s);
    kolo_event_destroy(e);
}

/* ---- lives ---------------------------------------------------------------------------------- */

static enum kolo_status open_gate(struct work *w)
{
    struct count *const c = (struct count *)w;
    sem_post(c->wait_for);
    return KOLO_OK;
}

Test(stream_life, destroying_a_stream_waits_for_its_work)
{
    struct worker *const workers[2] = {new_worker(), new_worker()};
    for (int round = 0; round < 50; round++) {
        struct kolo_stream *const s = new_stream();
        struct count works[20];
        struct count opener;
        sem_t gate;
        int counter = 0;
        sem_init(&gate, 0, 0);
        for (int i = 0; i < 20; i++) {
            count_init(&works[i], &counter, i);
            if (i == 0)
                works[i].wait_for = &gate;
            submit(workers[0], &works[i], s);
        }
        works[19].result = KOLO_ERR_SYSTEM; /* nobody will ask for it */
        works[19].text = "lost";
        count_init(&opener, NULL, 0);
        opener.work.run = open_gate;
        opener.wait_for = &gate;
        submit(workers[1], &opener, NULL);
        kolo_stream_destroy(s);
        cr_assert_eq(counter, 20, "round %d", round);
        cr_assert_eq(works[19].nfinished, 1, "round %d", round);
        worker_drain(workers[1]);
        sem_destroy(&gate);
    }
    worker_destroy(workers[0]);
    worker_destroy(workers[1]);
}

Test(stream_life, destroying_a_worker_runs_what_is_queued)
{
    for (int round = 0; round < 50; round++) {
        struct worker *const w = new_worker();
        struct kolo_stream *const s = new_stream();
        struct count works[20];
        int counter = 0;
        for (int i = 0; i < 20; i++) {
            count_init(&works[i], &counter, i);
            submit(w, &works[i], i % 2 ? s : NULL);
        }
        worker_destroy(w);
        cr_assert_eq(counter, 20, "round %d", round);
        cr_assert_eq(kolo_stream_query(s), KOLO_OK); /* the stream outlives the worker */
        cr_assert_eq(kolo_stream_synchronize(s), KOLO_OK);
        kolo_stream_destroy(s);
    }
}

Test(stream_life, a_worker_without_work_is_idle)
{
    struct worker *const w = new_worker();
    cr_assert(worker_is_idle(w));
    worker_drain(w);
    worker_destroy(w);
}

Test(stream_life, synchronize_means_that_the_worker_is_idle)
{
    struct worker *const w = new_worker();
    struct kolo_stream *const s = new_stream();
    struct count c;
    int counter = 0;
    for (int i = 0; i < MANY; i++) {
        count_init(&c, &counter, i);
        submit(w, &c, s);
        cr_assert_eq(kolo_stream_synchronize(s), KOLO_OK);
        cr_assert(worker_is_idle(w), "work %d", i);
        cr_assert_eq(c.nfinished, 1, "work %d", i);
    }
    kolo_stream_destroy(s);
    worker_destroy(w);
}

/* Submits fall into every moment of a worker's way to sleep: one that it misses hangs the test. */
Test(stream_life, no_submit_is_missed_on_the_way_to_sleep)
{
    static const uint64_t polls[] = {0, 300, 2000};
    struct kolo_stream *const s = new_stream();
    int counter = 0;
    for (size_t p = 0; p < 3; p++) {
        struct worker *w = NULL;
        cr_assert_eq(worker_create("test", polls[p], &w), KOLO_OK);
        for (int i = 0; i < 3 * MANY; i++) {
            struct count c;
            count_init(&c, &counter, -1);
            submit(w, &c, s);
            if (i % 2)
                worker_drain(w);
            cr_assert_eq(kolo_stream_synchronize(s), KOLO_OK);
            for (volatile int k = 0; k < i % 1000; k++)
                ;
        }
        worker_destroy(w);
    }
    cr_assert_eq(counter, 9 * MANY);
    kolo_stream_destroy(s);
}

static void free_work(struct work *w, enum kolo_status status)
{
    (void)status;
    free(w);
}

Test(stream_life, finish_may_free_the_work)
{
    struct worker *const w = new_worker();
    struct kolo_stream *const s = new_stream();
    int counter = 0;
    for (int i = 0; i < MANY; i++) {
        struct count *const c = malloc(sizeof(*c));
        count_init(c, &counter, i);
        c->work.finish = free_work;
        submit(w, c, s);
    }
    cr_assert_eq(kolo_stream_synchronize(s), KOLO_OK);
    cr_assert_eq(counter, MANY);
    kolo_stream_destroy(s);
    worker_destroy(w);
}

enum { FIRST_OF_LIBC = 32 }; /* two signals that the C library keeps for itself */

static enum kolo_status check_signals(struct work *w)
{
    sigset_t blocked;
    (void)w;
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    for (int i = 1; i < FIRST_OF_LIBC; i++) {
        if (i != SIGKILL && i != SIGSTOP && sigismember(&blocked, i) == 0)
            return fail(KOLO_ERR_INTERNAL, "signal %d is not blocked", i);
    }
    return KOLO_OK;
}

Test(stream_life, the_worker_blocks_signals_and_the_caller_does_not)
{
    struct worker *const w = new_worker();
    struct kolo_stream *const s = new_stream();
    struct work check = {.run = check_signals};
    sigset_t none, after;
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
    cr_assert_eq(worker_submit(w, &check, s), KOLO_OK);
    pthread_sigmask(SIG_BLOCK, NULL, &after);
    cr_assert_eq(kolo_stream_synchronize(s), KOLO_OK, "%s", fail_text());
    for (int i = 1; i < FIRST_OF_LIBC; i++)
        cr_assert_eq(sigismember(&after, i), 0, "signal %d", i);
    kolo_stream_destroy(s);
    worker_destroy(w);
}

/* ---- allocations ---------------------------------------------------------------------------- */

enum { QUEUED = 16 };

/* One step of a typical program: works of two streams on two workers, tied by an event. */
static void typical_step(struct worker *const *workers, struct kolo_stream *const *streams,
                         struct kolo_event *e)
{
    struct count works[QUEUED];
    int counters[2] = {0};
    for (int i = 0; i < QUEUED; i++) {
        count_init(&works[i], &counters[i % 2], i / 2);
        submit(workers[i % 2], &works[i], streams[i % 2]);
        cr_assert_eq(kolo_event_record(e, streams[i % 2]), KOLO_OK);
        cr_assert_eq(kolo_stream_wait_event(streams[(i + 1) % 2], e), KOLO_OK);
    }
    struct count joint;
    count_init(&joint, &counters[0], QUEUED / 2);
    cr_assert_eq(worker_submit_many(workers[0], &joint.work, streams, 2), KOLO_OK);
    cr_assert_eq(kolo_stream_synchronize(streams[0]), KOLO_OK);
    cr_assert_eq(kolo_stream_synchronize(streams[1]), KOLO_OK);
    cr_assert_eq(kolo_event_synchronize(e), KOLO_OK);
    cr_assert_eq(counters[0] + counters[1], QUEUED + 1);
}

/* What is taken at the first steps is enough for ever.  How many tickets are out at once depends on
 * the workers' pace, so all that there can be are made first: behind a closed gate. */
Test(stream_life, nothing_is_allocated_in_the_steady_state)
{
    struct worker *const workers[2] = {new_worker(), new_worker()};
    struct kolo_stream *const streams[2] = {new_stream(), new_stream()};
    struct kolo_event *const e = new_event();
    struct count held[4 * QUEUED];
    sem_t gate;
    int counter = 0;
    sem_init(&gate, 0, 0);
    for (int i = 0; i < 4 * QUEUED; i++) {
        count_init(&held[i], &counter, i);
        if (i == 0)
            held[i].wait_for = &gate;
        cr_assert_eq(worker_submit_many(workers[0], &held[i].work, streams, 2), KOLO_OK);
        cr_assert_eq(kolo_event_record(e, streams[0]), KOLO_OK);
        cr_assert_eq(kolo_stream_wait_event(streams[1], e), KOLO_OK);
    }
    sem_post(&gate);
    cr_assert_eq(kolo_stream_synchronize(streams[0]), KOLO_OK);
    cr_assert_eq(counter, 4 * QUEUED);
    for (int i = 0; i < 20; i++)
        typical_step(workers, streams, e);
    const uint64_t count = mem_count();
    for (int i = 0; i < 200; i++)
        typical_step(workers, streams, e);
    cr_assert_eq(mem_count(), count);
    for (int i = 0; i < 2; i++)
        kolo_stream_destroy(streams[i]);
    kolo_event_destroy(e);
    worker_destroy(workers[0]);
    worker_destroy(workers[1]);
    sem_destroy(&gate);
}

/* Everything that can fail, with six streams so that lists grow.  Returns the first error;
 * *nqueued says how many works were queued. */
static enum kolo_status fragile_program(struct count *works, int *nqueued)
{
    struct worker *w = NULL;
    struct kolo_stream *streams[6] = {NULL};
    struct kolo_event *e = NULL;
    enum kolo_status status = worker_create("test", 0, &w);
    for (int i = 0; status == KOLO_OK && i < 6; i++)
        status = kolo_stream_create(&streams[i]);
    if (status == KOLO_OK)
        status = kolo_event_create(&e);
    for (int i = 0; status == KOLO_OK && i < 6; i++) {
        status = worker_submit(w, &works[i].work, streams[i]);
        *nqueued += status == KOLO_OK;
    }
    if (status == KOLO_OK)
        status = worker_submit_many(w, &works[6].work, streams, 6);
    if (status == KOLO_OK)
        status = (++*nqueued, kolo_event_record(e, streams[0]));
    if (status == KOLO_OK)
        status = kolo_stream_wait_event(streams[5], e);
    kolo_event_destroy(e);
    for (int i = 0; i < 6; i++)
        kolo_stream_destroy(streams[i]);
    worker_destroy(w);
    return status;
}

Test(stream_life, every_allocation_may_fail)
{
    const int64_t live = mem_live();
    enum kolo_status status = KOLO_ERR_NOMEM;
    int nfailed = 0;
    for (uint64_t nth = 1; status != KOLO_OK; nth++) {
        struct count works[7];
        int counter = 0;
        int nqueued = 0;
        for (int i = 0; i < 7; i++)
            count_init(&works[i], &counter, i);
        (void)fail_again(KOLO_OK, NULL);
        mem_fail_at(nth);
        status = fragile_program(works, &nqueued);
        mem_fail_at(0);
        nfailed += status != KOLO_OK;
        cr_assert(status == KOLO_OK || status == KOLO_ERR_NOMEM, "allocation %d", (int)nth);
        cr_assert_eq(fail_text()[0] != '\0', status != KOLO_OK, "allocation %d", (int)nth);
        cr_assert_eq(counter, nqueued, "allocation %d", (int)nth); /* queued means run, once */
        for (int i = 0; i < 7; i++)
            cr_assert_eq(works[i].nfinished, i < nqueued, "allocation %d work %d", (int)nth, i);
        cr_assert_eq(mem_live(), live, "allocation %d", (int)nth);
    }
    cr_assert_gt(nfailed, 15); /* the worker, streams, tickets and lists all had their turn */
}

/* A failed call changes nothing: the stream still waits for what it waited for. */
Test(stream_life, a_failed_submit_changes_nothing)
{
    struct worker *const w = new_worker();
    struct kolo_stream *const streams[2] = {new_stream(), new_stream()};
    struct count first, refused, second;
    int counter = 0;
    count_init(&first, &counter, 0);
    count_init(&refused, &counter, -1);
    count_init(&second, &counter, 1);
    sem_t gate;
    sem_init(&gate, 0, 0);
    first.wait_for = &gate;
    submit(w, &first, streams[0]);
    /* The ticket; its dependencies, after which it is kept for reuse; its list of streams. */
    static const uint64_t nth[] = {1, 2, 2};
    for (size_t i = 0; i < ARRAY_LEN(nth); i++) {
        mem_fail_at(nth[i]);
        cr_assert_eq(worker_submit_many(w, &refused.work, streams, 2), KOLO_ERR_NOMEM, "%zu", i);
        cr_assert_eq(kolo_stream_query(streams[0]), KOLO_IN_PROGRESS, "%zu", i);
        cr_assert_eq(kolo_stream_query(streams[1]), KOLO_OK, "%zu", i);
    }
    mem_fail_at(0);
    submit(w, &second, streams[0]);
    sem_post(&gate);
    cr_assert_eq(kolo_stream_synchronize(streams[0]), KOLO_OK);
    cr_assert_eq(counter, 2);
    cr_assert(!second.is_wrong);
    cr_assert_eq(refused.nfinished, 0);
    kolo_stream_destroy(streams[0]);
    kolo_stream_destroy(streams[1]);
    worker_destroy(w);
    sem_destroy(&gate);
}

Test(stream_life, all_memory_is_given_back)
{
    const int64_t live = mem_live();
    struct worker *const w = new_worker();
    struct kolo_stream *const s = new_stream();
    struct kolo_event *const e = new_event();
    struct count c;
    int counter = 0;
    count_init(&c, &counter, 0);
    submit(w, &c, s);
    cr_assert_eq(kolo_event_record(e, s), KOLO_OK);
    worker_destroy(w);
    kolo_stream_destroy(s);
    cr_assert_gt(mem_live(), live);
    kolo_event_destroy(e); /* the last that knew of tickets */
    cr_assert_eq(mem_live(), live);
}
