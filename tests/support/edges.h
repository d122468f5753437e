/* edges.h - what the tests of corners share: threads and communicators that end the test when they
 * fail, and a way to report from a rank. */
#ifndef EDGES_H
#define EDGES_H

#include "check.h"

#include <pthread.h>
#include <unistd.h>

/* For rank functions and threads, which must not end the test themselves. */
#define EXPECT_OK(call, comm)                                                                      \
    do {                                                                                           \
        const enum kolo_status status_ = (call);                                                   \
        if (status_ != KOLO_OK)                                                                    \
            return (void *)ranks_text("line %d: status %d: %s", __LINE__, status_,                 \
                                      kolo_last_error(comm));                                      \
    } while (0)

/* Longer than a waiting rank goes between looks at its peers (20 ms).  It makes the dangerous order
 * of events likely; no result depends on it. */
static inline void linger(void)
{
    usleep(60000);
}

static inline void create(int n, const struct kolo_config *config, struct kolo_comm **comms)
{
    cr_assert_eq(kolo_comm_create_local(n, config, comms), KOLO_OK, "%s", kolo_last_error(NULL));
}

static inline void destroy(int n, struct kolo_comm **comms)
{
    for (int r = 0; r < n; r++)
        kolo_comm_destroy(comms[r]);
}

static inline void begin(void)
{
    cr_assert_eq(kolo_group_begin(), KOLO_OK);
}

static inline void end(void)
{
    cr_assert_eq(kolo_group_end(), KOLO_OK, "%s", kolo_last_error(NULL));
}

static inline pthread_t start(void *(*fn)(void *), void *arg)
{
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, fn, arg), 0);
    return thread;
}

/* What a thread of start() returned. */
static inline void join(pthread_t thread)
{
    void *wrong;
    pthread_join(thread, &wrong);
    check(wrong);
}

#endif
