/* stream.c - host streams, events and workers.
 *
 * A stream is its *frontier*: the tickets that its next work must wait for (its last work, and
 * events it was told to wait for); an event is a copy of a frontier.  Submitting moves the frontier
 * into the dependencies of a new ticket, which becomes the frontier.  Dependencies were always
 * queued earlier, on whatever worker, so that waits cannot form a circle.
 *
 * Submitting takes no lock of the worker: it pushes, and wakes the worker if that sleeps. */
#include "stream.h"

#include "mem.h"
#include "ticket.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { THREAD_NAME_BYTES = 16 };

struct kolo_stream {
    struct tickets frontier; /* of the thread that uses the stream */
    pthread_mutex_t lock;    /* guards error and error_text */
    enum kolo_status error;  /* the first since the last synchronize */
    char error_text[ERROR_TEXT_BYTES];
};

struct kolo_event {
    struct tickets points;
    uint64_t recorded_ns; /* 0: never recorded */
};

struct worker {
    /* Newest first: submitters push, the worker takes all. */
    _Atomic(struct work *) queued;
    atomic_uint
        is_asleep; /* a futex: the worker sets it before it sleeps, who wakes it clears it */
    atomic_size_t pending; /* queued or running */
    atomic_bool is_stopping;
    atomic_bool is_started;
    uint64_t poll_ns;      /* how long to poll for more before sleeping */
    pthread_mutex_t lock;  /* guards starting the thread, and waiting for idle */
    pthread_cond_t idle;   /* pending became 0 */
    atomic_uint ndraining; /* that wait for it */
    struct work *ready;    /* taken from the queue, oldest first; the worker's own */
    pthread_t thread;
    char name[THREAD_NAME_BYTES];
};

/* ---- the worker's thread -------------------------------------------------------------------- */

static void stream_set_error(struct kolo_stream *stream, enum kolo_status status, const char *text)
{
    pthread_mutex_lock(&stream->lock);
    if (stream->error == KOLO_OK) {
        stream->error = status;
        snprintf(stream->error_text, sizeof(stream->error_text), "%s", text);
    }
    pthread_mutex_unlock(&stream->lock);
}

/* `pending` falls before the ticket is done: who has synchronized a stream sees an idle worker. */
static void run_work(struct worker *worker, struct work *w)
{
    struct ticket *const t = w->ticket; /* finish may free w */
    tickets_wait(&t->deps);
    tickets_clear(&t->deps);
    (void)fail_again(KOLO_OK, NULL); /* no text of an earlier work may stand for this one */
    const enum kolo_status status = w->run(w);
    for (size_t i = 0; status != KOLO_OK && i < t->nstreams; i++)
        stream_set_error(t->streams[i], status, fail_text());
    if (w->finish)
        w->finish(w, status);
    /* Pairs with the acquire load in worker_is_idle().  Sequentially consistent, as in
     * worker_drain(): either it sees that nothing is pending, or it is seen here. */
    if (atomic_fetch_sub(&worker->pending, 1) == 1 && atomic_load(&worker->ndraining) > 0) {
        pthread_mutex_lock(&worker->lock);
        pthread_cond_broadcast(&worker->idle);
        pthread_mutex_unlock(&worker->lock);
    }
    ticket_complete(t);
    ticket_release(t);
}

/* What was queued since, oldest first. */
static struct work *take_queued(struct worker *worker)
{
    struct work *oldest = NULL;
    if (!atomic_load_explicit(&worker->queued, memory_order_relaxed))
        return NULL;
    /* Acquire: pairs with the push in enqueue(). */
    struct work *w = atomic_exchange_explicit(&worker->queued, NULL, memory_order_acquire);
    while (w) {
        struct work *const next = w->next;
        w->next = oldest;
        oldest = w;
        w = next;
    }
    return oldest;
}

/* Sequentially consistent on both sides: either the worker sees what was queued (or that it is to
 * stop), or the other side sees that it is asleep. */
static void sleep_until_more(struct worker *worker)
{
    atomic_store(&worker->is_asleep, 1);
    if (!atomic_load(&worker->queued) && !atomic_load(&worker->is_stopping))
        syscall(SYS_futex, &worker->is_asleep, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
    atomic_store(&worker->is_asleep, 0);
}

static void wake(struct worker *worker)
{
    if (atomic_load(&worker->is_asleep) != 0 && atomic_exchange(&worker->is_asleep, 0) != 0)
        syscall(SYS_futex, &worker->is_asleep, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* The next work, waiting for it; NULL when the worker is to stop. */
static struct work *next_work(struct worker *worker)
{
    struct polling poll = {.most_ns = worker->poll_ns};
    for (;;) {
        /* Before looking: what was submitted before the stop is in the queue. */
        const bool is_stopping = atomic_load_explicit(&worker->is_stopping, memory_order_acquire);
        if (!worker->ready)
            worker->ready = take_queued(worker);
        struct work *const w = worker->ready;
        if (w) {
            worker->ready = w->next;
            return w;
        }
        if (is_stopping)
            return NULL;
        if (!poll_again(&poll))
            sleep_until_more(worker);
    }
}

/* A worker that shares its only CPU with the caller must not poll: it would keep that from work. */
static bool has_one_cpu(void)
{
    cpu_set_t cpus;
    return sched_getaffinity(0, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) == 1;
}

static void *worker_main(void *arg)
{
    struct worker *const worker = arg;
    pthread_setname_np(pthread_self(), worker->name);
    if (has_one_cpu())
        worker->poll_ns = 0;
    for (;;) {
        struct work *const w = next_work(worker);
        if (!w)
            return NULL;
        run_work(worker, w);
    }
}

/* With the worker's lock held. */
static enum kolo_status start_thread(struct worker *worker)
{
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* inherited: the program's signals are not ours */
    const int error = pthread_create(&worker->thread, NULL, worker_main, worker);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return fail(KOLO_ERR_NOMEM,
                    "cannot start the thread of the worker %s: raise the limit of "
                    "processes (ulimit -u) or use fewer communicators",
                    worker->name);
    atomic_store_explicit(&worker->is_started, true, memory_order_relaxed);
    return KOLO_OK;
}

/* Once, with the first submit. */
static enum kolo_status ensure_thread(struct worker *worker)
{
    if (LIKELY(atomic_load_explicit(&worker->is_started, memory_order_relaxed)))
        return KOLO_OK;
    pthread_mutex_lock(&worker->lock);
    const enum kolo_status status = worker->is_started ? KOLO_OK : start_thread(worker);
    pthread_mutex_unlock(&worker->lock);
    return status;
}

/* ---- workers -------------------------------------------------------------------------------- */

enum kolo_status worker_create(const char *name, uint64_t poll_ns, struct worker **out)
{
    struct worker *const worker = mem_calloc(1, sizeof(*worker));
    if (!worker)
        return fail(KOLO_ERR_NOMEM, "no memory for the worker %s", name);
    pthread_mutex_init(&worker->lock, NULL);
    pthread_cond_init(&worker->idle, NULL);
    worker->poll_ns = poll_ns;
    snprintf(worker->name, sizeof(worker->name), "%s", name);
    ticket_pool_enter();
    *out = worker;
    return KOLO_OK;
}

/* A ticket with room for all that submitting will put into it. */
static enum kolo_status ticket_prepare(struct kolo_stream *const *streams, size_t n,
                                       struct ticket **out)
{
    struct ticket *const t = ticket_take();
    if (!t)
        return KOLO_ERR_NOMEM;
    size_t ndeps = 0;
    for (size_t i = 0; i < n; i++)
        ndeps += streams[i] ? streams[i]->frontier.n : 0;
    if (tickets_reserve(&t->deps, ndeps) != KOLO_OK)
        goto undo_take;
    if (ticket_reserve_streams(t, n) != KOLO_OK)
        goto undo_take;
    *out = t;
    return KOLO_OK;

undo_take:
    ticket_release(t);
    return KOLO_ERR_NOMEM;
}

/* Make `t` the frontier of the stream and what it was before a dependency of t.  Cannot fail. */
static void ticket_join(struct ticket *t, struct kolo_stream *stream)
{
    struct tickets *const frontier = &stream->frontier;
    if (tickets_has(frontier, t))
        return; /* named twice */
    tickets_add(&t->deps, frontier);
    tickets_clear(frontier);
    frontier->at[frontier->n++] = ticket_keep(t);
    t->streams[t->nstreams++] = stream;
}

static void enqueue(struct worker *worker, struct work *w)
{
    /* Relaxed: the queue orders the work; the count only has to include it. */
    atomic_fetch_add_explicit(&worker->pending, 1, memory_order_relaxed);
    w->next = atomic_load_explicit(&worker->queued, memory_order_relaxed);
    while (!atomic_compare_exchange_weak(&worker->queued, &w->next, w))
        ;
    wake(worker);
}

enum kolo_status worker_submit_many(struct worker *worker, struct work *w,
                                    struct kolo_stream *const *streams, size_t n)
{
    struct ticket *t;
    for (size_t i = 0; i < n; i++) {
        if (streams[i])
            tickets_drop_done(&streams[i]->frontier);
    }
    TRY(ticket_prepare(streams, n, &t));
    const enum kolo_status status = ensure_thread(worker);
    if (status != KOLO_OK) {
        ticket_release(t);
        return status;
    }
    t->spin_ns = worker->poll_ns;
    for (size_t i = 0; i < n; i++) {
        if (streams[i])
            ticket_join(t, streams[i]);
    }
    w->ticket = t;
    enqueue(worker, w);
    return KOLO_OK;
}

enum kolo_status worker_submit(struct worker *worker, struct work *w, struct kolo_stream *stream)
{
    return worker_submit_many(worker, w, &stream, stream ? 1 : 0);
}

bool worker_is_idle(const struct worker *worker)
{
    /* Pairs with the release in run_work(): what the works did comes before. */
    return atomic_load_explicit(&worker->pending, memory_order_acquire) == 0;
}

void worker_drain(struct worker *worker)
{
    if (worker_is_idle(worker))
        return;
    pthread_mutex_lock(&worker->lock);
    atomic_fetch_add(&worker->ndraining, 1);
    while (atomic_load(&worker->pending) > 0)
        pthread_cond_wait(&worker->idle, &worker->lock);
    atomic_fetch_sub(&worker->ndraining, 1);
    pthread_mutex_unlock(&worker->lock);
}

void worker_destroy(struct worker *worker)
{
    if (!worker)
        return;
    atomic_store(&worker->is_stopping, true); /* the thread ends when the queue is empty */
    wake(worker);
    if (worker->is_started)
        pthread_join(worker->thread, NULL);
    pthread_cond_destroy(&worker->idle);
    pthread_mutex_destroy(&worker->lock);
    mem_free(worker);
    ticket_pool_leave();
}

/* ---- streams -------------------------------------------------------------------------------- */

static enum kolo_status check_handle(const void *handle, const char *function, const char *what)
{
    if (handle)
        return KOLO_OK;
    return fail(KOLO_ERR_ARG, "%s: %s is NULL", function, what);
}

enum kolo_status kolo_stream_create(struct kolo_stream **stream)
{
    TRY(check_handle(stream, "kolo_stream_create", "the place for the result"));
    struct kolo_stream *const s = mem_calloc(1, sizeof(*s));
    if (!s)
        return fail(KOLO_ERR_NOMEM, "no memory for a stream");
    if (tickets_reserve(&s->frontier, 1) != KOLO_OK) { /* so that ticket_join() cannot fail */
        mem_free(s);
        return KOLO_ERR_NOMEM;
    }
    pthread_mutex_init(&s->lock, NULL);
    ticket_pool_enter();
    *stream = s;
    return KOLO_OK;
}

void kolo_stream_destroy(struct kolo_stream *stream)
{
    if (!stream)
        return;
    tickets_wait(&stream->frontier);
    tickets_clear(&stream->frontier);
    mem_free(stream->frontier.at);
    pthread_mutex_destroy(&stream->lock);
    mem_free(stream);
    ticket_pool_leave();
}

/* The sticky error, with its text for the calling thread. */
static enum kolo_status stream_error(struct kolo_stream *stream, bool clear)
{
    pthread_mutex_lock(&stream->lock);
    const enum kolo_status status = stream->error;
    if (status != KOLO_OK)
        (void)fail_again(status, stream->error_text);
    if (clear)
        stream->error = KOLO_OK;
    pthread_mutex_unlock(&stream->lock);
    return status;
}

enum kolo_status kolo_stream_synchronize(struct kolo_stream *stream)
{
    TRY(check_handle(stream, "kolo_stream_synchronize", "the stream"));
    tickets_wait(&stream->frontier);
    tickets_clear(&stream->frontier);
    return stream_error(stream, true);
}

enum kolo_status kolo_stream_query(struct kolo_stream *stream)
{
    TRY(check_handle(stream, "kolo_stream_query", "the stream"));
    if (!tickets_are_done(&stream->frontier))
        return KOLO_IN_PROGRESS;
    return stream_error(stream, false);
}

enum kolo_status kolo_stream_wait_event(struct kolo_stream *stream, struct kolo_event *event)
{
    TRY(check_handle(stream, "kolo_stream_wait_event", "the stream"));
    TRY(check_handle(event, "kolo_stream_wait_event", "the event"));
    tickets_drop_done(&stream->frontier);
    TRY(tickets_reserve(&stream->frontier, stream->frontier.n + event->points.n));
    tickets_add(&stream->frontier, &event->points);
    return KOLO_OK;
}

/* ---- events --------------------------------------------------------------------------------- */

enum kolo_status kolo_event_create(struct kolo_event **event)
{
    TRY(check_handle(event, "kolo_event_create", "the place for the result"));
    struct kolo_event *const e = mem_calloc(1, sizeof(*e));
    if (!e)
        return fail(KOLO_ERR_NOMEM, "no memory for an event");
    ticket_pool_enter();
    *event = e;
    return KOLO_OK;
}

void kolo_event_destroy(struct kolo_event *event)
{
    if (!event)
        return;
    tickets_clear(&event->points);
    mem_free(event->points.at);
    mem_free(event);
    ticket_pool_leave();
}

enum kolo_status kolo_event_record(struct kolo_event *event, struct kolo_stream *stream)
{
    TRY(check_handle(event, "kolo_event_record", "the event"));
    TRY(check_handle(stream, "kolo_event_record", "the stream"));
    tickets_drop_done(&stream->frontier);
    TRY(tickets_reserve(&event->points, stream->frontier.n));
    tickets_clear(&event->points);
    tickets_add(&event->points, &stream->frontier);
    event->recorded_ns = now_ns();
    return KOLO_OK;
}

enum kolo_status kolo_event_synchronize(struct kolo_event *event)
{
    TRY(check_handle(event, "kolo_event_synchronize", "the event"));
    tickets_wait(&event->points);
    return KOLO_OK;
}

enum kolo_status kolo_event_query(struct kolo_event *event)
{
    TRY(check_handle(event, "kolo_event_query", "the event"));
    return tickets_are_done(&event->points) ? KOLO_OK : KOLO_IN_PROGRESS;
}

/* When the recorded point was reached; the event must be done. */
static uint64_t reached_ns(const struct kolo_event *event)
{
    uint64_t latest = event->recorded_ns;
    for (size_t i = 0; i < event->points.n; i++) {
        if (event->points.at[i]->done_ns > latest)
            latest = event->points.at[i]->done_ns;
    }
    return latest;
}

static enum kolo_status check_reached(const struct kolo_event *event, const char *which)
{
    TRY(check_handle(event, "kolo_event_elapsed_time", which));
    if (event->recorded_ns == 0)
        return fail(KOLO_ERR_USAGE, "kolo_event_elapsed_time: %s was never recorded", which);
    if (!tickets_are_done(&event->points))
        return fail(KOLO_ERR_USAGE, "kolo_event_elapsed_time: %s is not done; synchronize it first",
                    which);
    return KOLO_OK;
}

enum kolo_status kolo_event_elapsed_time(double *ms, struct kolo_event *start,
                                         struct kolo_event *end)
{
    TRY(check_handle(ms, "kolo_event_elapsed_time", "the place for the result"));
    TRY(check_reached(start, "the start event"));
    TRY(check_reached(end, "the end event"));
    *ms = (double)(int64_t)(reached_ns(end) - reached_ns(start)) / 1e6;
    return KOLO_OK;
}
