/* works.h - works that tests submit to workers: each counts in a plain variable that only the order
 * of streams protects, so that ThreadSanitizer proves the order too. */
#ifndef WORKS_H
#define WORKS_H

#include "support/test.h"

#include "stream.h"

#include <semaphore.h>

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

static inline enum kolo_status count_run(struct work *w)
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

static inline void count_finish(struct work *w, enum kolo_status status)
{
    struct count *const c = (struct count *)w;
    c->nfinished++;
    c->finished_with = status;
}

static inline void count_init(struct count *c, int *counter, int expected)
{
    *c = (struct count){.work = {.run = count_run, .finish = count_finish},
                        .counter = counter,
                        .expected = expected};
}

static inline struct worker *new_worker(void)
{
    /* Some poll for a while, some sleep at once. */
    static const uint64_t polls[] = {0, 20000, 0, 1000000};
    static unsigned n;
    struct worker *w = NULL;
    cr_assert_eq(worker_create("test", polls[n++ % 4], &w), KOLO_OK);
    return w;
}

static inline struct kolo_stream *new_stream(void)
{
    struct kolo_stream *s = NULL;
    cr_assert_eq(kolo_stream_create(&s), KOLO_OK);
    return s;
}

static inline struct kolo_event *new_event(void)
{
    struct kolo_event *e = NULL;
    cr_assert_eq(kolo_event_create(&e), KOLO_OK);
    return e;
}

static inline void submit(struct worker *w, struct count *c, struct kolo_stream *s)
{
    cr_assert_eq(worker_submit(w, &c->work, s), KOLO_OK);
}

#endif
