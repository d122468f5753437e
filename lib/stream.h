/* stream.h - host streams, events, and the worker that runs a communicator's asynchronous work.
 *
 *   caller -> worker_submit(worker, work, stream) -> queue of the worker -> worker's thread:
 *             waits until the stream's earlier work (maybe on another worker) is done, runs it
 *
 * A stream is only an order: each work depends on the work that was last submitted to its stream,
 * and on the events that the stream was told to wait for.  A worker runs its works in the order of
 * submission.  The public functions kolo_stream_* and kolo_event_* live in stream.c too. */
#ifndef STREAM_H
#define STREAM_H

#include "base.h"

struct kolo_stream;
struct worker;

/* One piece of asynchronous work, owned by the submitter until submitted, then by the worker, which
 * calls `finish` (may be NULL) exactly once, after `run` or when the worker is shut down first. */
struct work {
    enum kolo_status (*run)(struct work *w);
    void (*finish)(struct work *w, enum kolo_status status);
    /* private to stream.c below */
    struct work *next;
    struct ticket *ticket;
};

/* The thread starts with the first submit.  Blocks all signals in it.  poll_ns: how long it polls
 * for more before it sleeps, and who waits for its works polls for their end; more than 0 only
 * where there are CPUs for both. */
enum kolo_status worker_create(const char *name, uint64_t poll_ns, struct worker **out);
/* Queue `w`.  stream may be NULL (no order but the worker's).  Allocates nothing in the steady
 * state (tickets are recycled).  On error nothing was queued. */
enum kolo_status worker_submit(struct worker *worker, struct work *w, struct kolo_stream *stream);
/* Queue one work that counts as the next of several streams (a group over streams). */
enum kolo_status worker_submit_many(struct worker *worker, struct work *w,
                                    struct kolo_stream *const *streams, size_t n);
/* Whether nothing is queued or running: one atomic load. */
bool worker_is_idle(const struct worker *worker);
/* Wait until it is idle (a caller that wants to run a blocking operation in order). */
void worker_drain(struct worker *worker);
/* Drain, stop and join.  Takes NULL. */
void worker_destroy(struct worker *worker);

#endif
