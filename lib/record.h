/* record.h - the flight recorder: a ring of the last operations, always on.  Written by the thread
 * that drives the engine; read by kolo_record_dump.  An operation that never had to wait is over
 * at once: its end is not timed, which would cost more than it tells. */
#ifndef RECORD_H
#define RECORD_H

#include "base.h"

enum record_kind {
    RECORD_RUNNING,
    RECORD_DONE,
    RECORD_FAILED,
    RECORD_SPLIT, /* not run as part of a group after all: it starts again, under a new number */
};

struct record_event {
    uint64_t ticks; /* CPU time stamp counter at the start */
    uint64_t bytes;
    uint32_t seq; /* low bits of the sequence number */
    int32_t root;
    uint8_t kind;
    uint8_t coll;
    uint8_t type;
    uint8_t op;
    int32_t result; /* done: ticks that it took, 0 when it never waited; failed: the status */
};
_Static_assert(sizeof(struct record_event) == 32, "two events a cache line");

enum { RECORD_EVENTS = 512 };

struct record {
    uint64_t next; /* events written */
    struct record_event events[RECORD_EVENTS];
};

#if defined(__x86_64__)
static inline uint64_t record_ticks(void)
{
    return __builtin_ia32_rdtsc();
}
#else
static inline uint64_t record_ticks(void)
{
    return now_ns();
}
#endif

static inline struct record_event *record_add(struct record *r)
{
    return &r->events[r->next++ % RECORD_EVENTS];
}

/* The operation that was added as number `at` (r->next before record_add) is over; unless its
 * event has been overwritten since. */
void record_end(struct record *r, uint64_t at, enum record_kind kind, int32_t result);

void record_print(const struct record *r, struct text *out);

#endif
