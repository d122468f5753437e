/* test_stream.c - workers, streams and events: order within a stream over several workers, events,
 * errors that stick, destruction with work pending, allocations.  Works write plain variables that
 * only the order protects, so that ThreadSanitizer proves the order too. */
#include "support/test.h"

#include "mem.h"
#include "stream.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { MANY = 2000 };

/* A work that counts in *counter, which must stand at `expected` (-1: at anything) then. */
struct count {
    struct work work;
    int *counter;
    int expected;
    bool is_wrong;
    enum kolo_status result;
    const char *text;
    int nfinished;
    enum kolo_status finished_with;
    sem_t *wait_for; /* before counting, NULL: nothing */
};

static enum kolo_status count_run(struct work *w)
{
    struct count *const c = (struct count *)w;
    if (c->wait_for) {
        while (sem_wait(c->wait_for) != 0)
            ;
    }
    c->is_wrong = c->expected >= 0 && *c->counter != c->expected;
    ++*c->counter;
    return c->result == KOLO_OK ? KOLO_OK : fail(c->result, "%s", c->text);
}

static void count_finish(struct work *w, enum kolo_status status)
{
    struct count *const c = (struct count *)w;
    c->nfinished++;
    c->finished_with = status;
}

static void count_init(struct count *c, int *counter, int expected)
{
    *c = (struct count){.work = {.run = count_run, .finish = count_finish},
                        .counter = counter,
                        .expected = expected};
}

static struct worker *new_worker(void)
{
    struct worker *w = NULL;
    cr_assert_eq(worker_create("test", &w), KOLO_OK);
    return w;
}

static struct kolo_stream *new_stream(void)
{
    struct kolo_stream *s = NULL;
    cr_assert_eq(kolo_stream_create(&s), KOLO_OK);
    return s;
}

static struct kolo_event *new_event(void)
{
    struct kolo_event *e = NULL;
    cr_assert_eq(kolo_event_create(&e), KOLO_OK);
    return e;
}

static void submit(struct worker *w, struct count *c, struct kolo_stream *s)
{
    cr_assert_eq(worker_submit(w, &c->work, s), KOLO_OK);
}

/* ---- order ---------------------------------------------------------------------------------- */

Test(stream, one_stream_over_two_workers_runs_in_order)
{
    struct worker *const workers[2] = {new_worker(), new_worker()};
    struct kolo_stream *const s = new_stream();
    struct count *const works = calloc(MANY, sizeof(*works));
    int counter = 0;
    for (int i = 0; i < MANY; i++) {
        count_init(&works[i], &counter, i);
        submit(workers[i * 7 / 3 % 2], &works[i], s);
    }
    cr_assert_eq(kolo_stream_synchronize(s), KOLO_OK);
    cr_assert_eq(counter, MANY);
    for (int i = 0; i < MANY; i++) {
        cr_assert(!works[i].is_wrong, "work %d", i);
        cr_assert_eq(works[i].nfinished, 1, "work %d", i);
        cr_assert_eq(works[i].finished_with, KOLO_OK, "work %d", i);
    }
    kolo_stream_destroy(s);
    worker_destroy(workers[0]);
    worker_destroy(workers[1]);
    free(works);
}

Test(stream, one_worker_runs_all_its_streams_in_order_of_submission)
{
    struct worker *const w = new_worker();
    struct kolo_stream *const streams[3] = {new_stream(), new_stream(), NULL};
    struct count *const works = calloc(MANY, sizeof(*works));
    int counter = 0;
    for (int i = 0; i < MANY; i++) {
        count_init(&works[i], &counter, i);
        submit(w, &works[i], streams[i % 3]);
    }
    worker_drain(w);
    cr_assert_eq(counter, MANY);
    for (int i = 0; i < MANY; i++)
        cr_assert(!works[i].is_wrong, "work %d", i);
    kolo_stream_destroy(streams[0]);
    kolo_stream_destroy(streams[1]);
    worker_destroy(w);
    free(works);
}

Test(stream, a_work_of_several_streams_is_the_next_of_each)
{
    struct worker *const workers[3] = {new_worker(), new_worker(), new_worker()};
    struct kolo_stream *const a = new_stream();
    struct kolo_stream *const b = new_stream();
    struct kolo_stream *const both[] = {a, NULL, b, a}; /* NULL and a repeat do no harm */
    for (int round = 0; round < 200; round++) {
        struct count first[2], joint, last[2];
        int on_a = 0, on_b = 0, on_both = 0;
        count_init(&first[0], &on_a, 0);
        count_init(&first[1], &on_b, 0);
        count_init(&joint, &on_both, 0);
        count_init(&last[0], &on_a, 1);
        count_init(&last[1], &on_b, 1);
        submit(workers[0], &first[0], a);
        submit(workers[1], &first[1], b);
        cr_assert_eq(worker_submit_many(workers[2], &joint.work, both, 4), KOLO_OK);
        submit(workers[0], &last[0], a);
        submit(workers[1], &last[1], b);
        cr_assert_eq(kolo_stream_synchronize(a), KOLO_OK);
        cr_assert_eq(on_a, 2);
        cr_assert_eq(on_both, 1);
        cr_assert_eq(first[1].nfinished, 1); /* before joint, so before the last of a */
        cr_assert_eq(kolo_stream_synchronize(b), KOLO_OK);
        cr_assert_eq(on_b, 2);
        cr_assert(!first[0].is_wrong && !first[1].is_wrong && !joint.is_wrong, "round %d", round);
        cr_assert(!last[0].is_wrong && !last[1].is_wrong, "round %d", round);
    }
    kolo_stream_destroy(a);
    kolo_stream_destroy(b);
    for (int i = 0; i < 3; i++)
        worker_destroy(workers[i]);
}

Test(stream, a_joint_work_holds_back_each_of_its_streams)
{
    struct worker *const workers[2] = {new_worker(), new_worker()};
    struct kolo_stream *const a = new_stream();
    struct kolo_stream *const b = new_stream();
    struct kolo_stream *const both[] = {a, b};
    struct count joint, after;
    sem_t gate;
    int counter = 0;
    sem_init(&gate, 0, 0);
    count_init(&joint, &counter, 0);
    joint.wait_for = &gate;
    count_init(&after, &counter, 1);
    cr_assert_eq(worker_submit_many(workers[0], &joint.work, both, 2), KOLO_OK);
    submit(workers[1], &after, b);
    cr_assert_eq(kolo_stream_query(a), KOLO_IN_PROGRESS);
    cr_assert_eq(kolo_stream_query(b), KOLO_IN_PROGRESS);
    cr_assert(!worker_is_idle(workers[1]));
    sem_post(&gate);
    cr_assert_eq(kolo_stream_synchronize(b), KOLO_OK);
    cr_assert_eq(kolo_stream_query(a), KOLO_OK);
    cr_assert(!after.is_wrong);
    cr_assert_eq(counter, 2);
    kolo_stream_destroy(a);
    kolo_stream_destroy(b);
    worker_destroy(workers[0]);
    worker_destroy(workers[1]);
    sem_destroy(&gate);
}

Test(stream, events_order_streams_of_different_workers)
{
    struct worker *const workers[2] = {new_worker(), new_worker()};
    struct kolo_stream *const a = new_stream();
    struct kolo_stream *const b = new_stream();
    struct kolo_event *const there = new_event();
    struct kolo_event *const back = new_event();
    struct count *const works = calloc(2 * MANY, sizeof(*works));
    int counter = 0;
    for (int i = 0; i < MANY; i++) {
        count_init(&works[2 * i], &counter, 2 * i);
        count_init(&works[2 * i + 1], &counter, 2 * i + 1);
        submit(workers[0], &works[2 * i], a);
        cr_assert_eq(kolo_event_record(there, a), KOLO_OK);
        cr_assert_eq(kolo_stream_wait_event(b, there), KOLO_OK);
        submit(workers[1], &works[2 * i + 1], b);
        cr_assert_eq(kolo_event_record(back, b), KOLO_OK);
        cr_assert_eq(kolo_stream_wait_event(a, back), KOLO_OK);
    }
    cr_assert_eq(kolo_stream_synchronize(a), KOLO_OK); /* its frontier holds b's last work too */
    cr_assert_eq(counter, 2 * MANY);
    for (int i = 0; i < 2 * MANY; i++)
        cr_assert(!works[i].is_wrong, "work %d", i);
    kolo_event_destroy(there);
    kolo_event_destroy(back);
    kolo_stream_destroy(a);
    kolo_stream_destroy(b);
    worker_destroy(workers[0]);
    worker_destroy(workers[1]);
    free(works);
}

Test(stream, an_event_passes_on_what_its_stream_waits_for)
{
    struct worker *const workers[2] = {new_worker(), new_worker()};
    struct kolo_stream *const streams[3] = {new_stream(), new_stream(), new_stream()};
    struct kolo_event *const first = new_event();
    struct kolo_event *const second = new_event();
    struct count slow, after;
    sem_t gate;
    int counter = 0;
    sem_init(&gate, 0, 0);
    count_init(&slow, &counter, 0);
    slow.wait_for = &gate;
    count_init(&after, &counter, 1);
    submit(workers[0], &slow, streams[0]);
    cr_assert_eq(kolo_event_record(first, streams[0]), KOLO_OK);
    cr_assert_eq(kolo_stream_wait_event(streams[1], first), KOLO_OK);
    cr_assert_eq(kolo_event_record(second, streams[1]), KOLO_OK); /* no work in between */
    cr_assert_eq(kolo_stream_wait_event(streams[2], second), KOLO_OK);
    kolo_event_destroy(first); /* the waits stay */
    submit(workers[1], &after, streams[2]);
    cr_assert_eq(kolo_event_query(second), KOLO_IN_PROGRESS);
    cr_assert_eq(kolo_stream_query(streams[1]), KOLO_IN_PROGRESS);
    cr_assert_eq(kolo_stream_query(streams[2]), KOLO_IN_PROGRESS);
    sem_post(&gate);
    cr_assert_eq(kolo_event_synchronize(second), KOLO_OK);
    cr_assert_eq(kolo_event_query(second), KOLO_OK);
    cr_assert_eq(kolo_stream_query(streams[1]), KOLO_OK);
    cr_assert_eq(kolo_stream_synchronize(streams[2]), KOLO_OK);
    cr_assert(!after.is_wrong);
    kolo_event_destroy(second);
    for (int i = 0; i < 3; i++)
        kolo_stream_destroy(streams[i]);
    worker_destroy(workers[0]);
    worker_destroy(workers[1]);
    sem_destroy(&gate);
}

/* A wait takes what was recorded at that time, not what is recorded later. */
Test(stream, a_wait_is_for_the_record_of_its_time)
{
    struct worker *const workers[2] = {new_worker(), new_worker()};
    struct kolo_stream *const a = new_stream();
    struct kolo_stream *const b = new_stream();
    struct kolo_event *const e = new_event();
    struct count slow, free_to_go;
    sem_t gate;
    int of_a = 0, of_b = 0;
    sem_init(&gate, 0, 0);
    count_init(&slow, &of_a, 0);
    slow.wait_for = &gate;
    count_init(&free_to_go, &of_b, 0);
    cr_assert_eq(kolo_stream_wait_event(b, e), KOLO_OK); /* never recorded: no wait */
    cr_assert_eq(kolo_event_record(e, a), KOLO_OK);      /* nothing there: done */
    cr_assert_eq(kolo_stream_wait_event(b, e), KOLO_OK);
    submit(workers[0], &slow, a);
    cr_assert_eq(kolo_event_record(e, a), KOLO_OK);
    submit(workers[1], &free_to_go, b);
    cr_assert_eq(kolo_stream_synchronize(b), KOLO_OK); /* while a is stuck */
    cr_assert_eq(of_b, 1);
    cr_assert_eq(kolo_event_query(e), KOLO_IN_PROGRESS);
    sem_post(&gate);
    kolo_stream_destroy(a);
    kolo_stream_destroy(b);
    cr_assert_eq(kolo_event_query(e), KOLO_OK); /* outlives its stream */
    kolo_event_destroy(e);
    worker_destroy(workers[0]);
    worker_destroy(workers[1]);
    sem_destroy(&gate);
}

/* ---- random programs ------------------------------------------------------------------------ */

enum { STREAMS = 4, WORKERS = 3, EVENTS = 3, WORKS = 4000 };

static unsigned next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(*state >> 33);
}

/* Works of all streams on all workers with events between; each stream's counter is protected by
 * the stream's order alone. */
static void random_program(uint64_t seed)
{
    struct worker *workers[WORKERS];
    struct kolo_stream *streams[STREAMS];
    struct kolo_event *events[EVENTS];
    struct count *const works = calloc(WORKS, sizeof(*works));
    int counters[STREAMS] = {0};
    int submitted[STREAMS] = {0};
    uint64_t state = seed;
    for (int i = 0; i < WORKERS; i++)
        workers[i] = new_worker();
    for (int i = 0; i < STREAMS; i++)
        streams[i] = new_stream();
    for (int i = 0; i < EVENTS; i++)
        events[i] = new_event();
    for (int i = 0; i < WORKS; i++) {
        const unsigned s = next_random(&state) % STREAMS;
        struct kolo_event *const e = events[next_random(&state) % EVENTS];
        count_init(&works[i], &counters[s], submitted[s]++);
        submit(workers[next_random(&state) % WORKERS], &works[i], streams[s]);
        switch (next_random(&state) % 8) {
        case 0:
            cr_assert_eq(kolo_event_record(e, streams[s]), KOLO_OK);
            break;
        case 1:
            cr_assert_eq(kolo_stream_wait_event(streams[next_random(&state) % STREAMS], e),
                         KOLO_OK);
            break;
        case 2:
            (void)kolo_event_query(e);
            break;
        case 3:
            (void)kolo_stream_query(streams[s]);
            break;
        default:
            break;
        }
    }
    for (int i = 0; i < STREAMS; i++) {
        cr_assert_eq(kolo_stream_synchronize(streams[i]), KOLO_OK);
        cr_assert_eq(counters[i], submitted[i], "seed %llu stream %d", (unsigned long long)seed, i);
        kolo_stream_destroy(streams[i]);
    }
    for (int i = 0; i < EVENTS; i++)
        kolo_event_destroy(events[i]);
    for (int i = 0; i < WORKERS; i++)
        worker_destroy(workers[i]);
    for (int i = 0; i < WORKS; i++)
        cr_assert(!works[i].is_wrong && works[i].nfinished == 1, "seed %llu work %d",
                  (unsigned long long)seed, i);
    free(works);
}

Test(stream, random_programs)
{
    const int64_t live = mem_live();
    const uint64_t base = now_ns();
    for (uint64_t i = 0; i < 5; i++)
        random_program(base + i);
    cr_assert_eq(mem_live(), live, "seed %llu", (unsigned long long)base);
}

/* ---- threads -------------------------------------------------------------------------------- */

enum { THREADS = 4, PER_THREAD = 500 };

struct program {
    struct worker **workers;
    bool is_right;
};

static void *submit_from_thread(void *arg)
{
    struct program *const p = arg;
    struct kolo_stream *s;
    struct kolo_event *e;
    struct count *const works = calloc(PER_THREAD, sizeof(*works));
    int counter = 0;
    if (kolo_stream_create(&s) != KOLO_OK || kolo_event_create(&e) != KOLO_OK)
        return NULL;
    bool is_right = true;
    for (int i = 0; i < PER_THREAD; i++) {
        count_init(&works[i], &counter, i);
        is_right = worker_submit(p->workers[i % 2], &works[i].work, s) == KOLO_OK && is_right;
        if (i % 50 == 0) {
            is_right = kolo_event_record(e, s) == KOLO_OK && is_right;
            is_right = kolo_event_synchronize(e) == KOLO_OK && is_right;
            is_right = counter == i + 1 && is_right;
        }
    }
    is_right = kolo_stream_synchronize(s) == KOLO_OK && is_right;
    for (int i = 0; i < PER_THREAD; i++)
        is_right = !works[i].is_wrong && is_right;
    p->is_right = is_right && counter == PER_THREAD;
    kolo_event_destroy(e);
    kolo_stream_destroy(s);
    free(works);
    return NULL;
}

Test(stream, threads_with_their_own_streams_share_workers)
{
    struct worker *workers[2] = {new_worker(), new_worker()};
    pthread_t threads[THREADS];
    struct program programs[THREADS];
    for (int i = 0; i < THREADS; i++) {
        programs[i] = (struct program){workers, false};
        cr_assert_eq(pthread_create(&threads[i], NULL, submit_from_thread, &programs[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        cr_assert(programs[i].is_right, "thread %d", i);
    }
    worker_destroy(workers[0]);
    worker_destroy(workers[1]);
}

struct waiter {
    struct kolo_event *event;
    const int *counter;
    int seen;
};

static void *wait_for_event(void *arg)
{
    struct waiter *const w = arg;
    w->seen = kolo_event_synchronize(w->event) == KOLO_OK ? *w->counter : -1;
    return NULL;
}

Test(stream, many_threads_wait_for_one_work)
{
    struct worker *const w = new_worker();
    struct kolo_stream *const s = new_stream();
    for (int round = 0; round < 50; round++) {
        struct count slow;
        struct waiter waiters[THREADS];
        pthread_t threads[THREADS];
        sem_t gate;
        int counter = 0;
        sem_init(&gate, 0, 0);
        count_init(&slow, &counter, 0);
        slow.wait_for = &gate;
        submit(w, &slow, s);
        for (int i = 0; i < THREADS; i++) {
            waiters[i] = (struct waiter){new_event(), &counter, 0};
            cr_assert_eq(kolo_event_record(waiters[i].event, s), KOLO_OK);
            cr_assert_eq(pthread_create(&threads[i], NULL, wait_for_event, &waiters[i]), 0);
        }
        sem_post(&gate);
        for (int i = 0; i < THREADS; i++) {
            pthread_join(threads[i], NULL);
            cr_assert_eq(waiters[i].seen, 1, "round %d thread %d", round, i);
            kolo_event_destroy(waiters[i].event);
        }
        cr_assert_eq(kolo_stream_synchronize(s), KOLO_OK);
        sem_destroy(&gate);
    }
    kolo_stream_destroy(s);
    worker_destroy(w);
}

/* ---- errors --------------------------------------------------------------------------------- */

Test(stream, the_first_error_sticks_until_synchronize)
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

Test(stream, an_error_belongs_to_the_streams_of_its_work_only)
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

Test(stream, the_text_of_an_earlier_work_does_not_stand_for_a_later_one)
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

Test(stream, elapsed_time)
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

Test(stream, events_never_recorded_are_done)
{
    struct kolo_event *const e = new_event();
    cr_assert_eq(kolo_event_query(e), KOLO_OK);
    cr_assert_eq(kolo_event_synchronize(e), KOLO_OK);
    kolo_event_destroy(e);
}

Test(stream, null_handles_are_refused_with_a_text)
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

Test(stream, destroying_a_stream_waits_for_its_work)
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

Test(stream, destroying_a_worker_runs_what_is_queued)
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

Test(stream, a_worker_without_work_is_idle)
{
    struct worker *const w = new_worker();
    cr_assert(worker_is_idle(w));
    worker_drain(w);
    worker_destroy(w);
}

Test(stream, synchronize_means_that_the_worker_is_idle)
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

static void free_work(struct work *w, enum kolo_status status)
{
    (void)status;
    free(w);
}

Test(stream, finish_may_free_the_work)
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

Test(stream, the_worker_blocks_signals_and_the_caller_does_not)
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
Test(stream, nothing_is_allocated_in_the_steady_state)
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
    enum kolo_status status = worker_create("test", &w);
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

Test(stream, every_allocation_may_fail)
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
Test(stream, a_failed_submit_changes_nothing)
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

Test(stream, all_memory_is_given_back)
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
