/* test_stream.c - order: within a stream over several workers, by events between streams, for works
 * of several streams, with several threads, and in random programs. */
#include "support/test.h"
#include "support/works.h"

#include "mem.h"
#include "stream.h"

#include <pthread.h>
#include <stdlib.h>

enum { MANY = 2000 };

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
