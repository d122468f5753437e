/* ticket.h - a ticket stands for one piece of asynchronous work until it is done: others wait for
 * it, in any number, however long after.  References are counted; the last one gives it back. */
#ifndef TICKET_H
#define TICKET_H

#include "base.h"

#include <stdatomic.h>

struct kolo_stream;

enum ticket_state {
    TICKET_PENDING,
    TICKET_WATCHED, /* pending, and somebody sleeps on it */
    TICKET_DONE,
};

/* A list of tickets; each entry is a reference that the list owns.  One thread at a time. */
struct tickets {
    struct ticket **at;
    size_t n;
    size_t capacity;
};

struct ticket {
    atomic_uint state; /* enum ticket_state; a futex */
    atomic_uint refs;  /* the worker's until done, and one per list that holds it */
    uint64_t done_ns;  /* when it became done */
    uint64_t spin_ns;  /* who waits for it polls so long before sleeping */
    struct tickets deps;
    struct kolo_stream **streams; /* that learn of an error; they outlive the state "not done" */
    size_t nstreams;
    size_t streams_capacity;
    struct ticket *next_free;
};

/* Polling for a bounded time. */
struct polling {
    uint64_t most_ns;
    uint64_t since_ns; /* 0: not looked at the clock yet */
    unsigned passes;
};

/* Pause; false when the time is over. */
static inline bool poll_again(struct polling *p)
{
    enum { PASSES_PER_CLOCK = 64 };
    if (p->most_ns == 0)
        return false;
    cpu_relax();
    if (++p->passes % PASSES_PER_CLOCK != 0)
        return true;
    const uint64_t now = now_ns();
    if (p->since_ns == 0)
        p->since_ns = now;
    return now - p->since_ns < p->most_ns;
}

/* Whoever uses tickets enters first; unused tickets are freed when the last user has left, so that
 * a process that is done with Kolo holds no memory of it. */
void ticket_pool_enter(void);
void ticket_pool_leave(void);

/* A pending ticket with one reference; NULL (with an error text) when memory runs out. */
struct ticket *ticket_take(void);
struct ticket *ticket_keep(struct ticket *t); /* one reference more */
void ticket_release(struct ticket *t);
bool ticket_is_done(const struct ticket *t);
void ticket_wait(struct ticket *t);
/* By its worker, once.  All that the worker did before is seen by who finds the ticket done. */
void ticket_complete(struct ticket *t);
/* Room for n entries in t->streams. */
enum kolo_status ticket_reserve_streams(struct ticket *t, size_t n);

/* Room for `need` tickets in all. */
enum kolo_status tickets_reserve(struct tickets *list, size_t need);
void tickets_clear(struct tickets *list);
void tickets_drop_done(struct tickets *list);
bool tickets_has(const struct tickets *list, const struct ticket *t);
/* Add those of `from` that the list has not; there must be room for all of `from`. */
void tickets_add(struct tickets *list, const struct tickets *from);
bool tickets_are_done(const struct tickets *list);
void tickets_wait(const struct tickets *list);

#endif
