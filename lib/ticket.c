/* ticket.c - tickets: one work's completion, counted references, waiting on a futex, and reuse
 * through one list of the process, so that submitting allocates nothing in the steady state. */
#include "ticket.h"

#include "mem.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FIRST_CAPACITY = 4 };

/* Tickets that nobody refers to, for reuse.  Freed with the last worker, stream or event, so that a
 * process that is done with Kolo holds no memory of it. */
static struct {
    pthread_mutex_t lock; /* guards the rest */
    struct ticket *free;
    size_t users;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

void ticket_pool_enter(void)
{
    pthread_mutex_lock(&pool.lock);
    pool.users++;
    pthread_mutex_unlock(&pool.lock);
}

void ticket_pool_leave(void)
{
    struct ticket *unused = NULL;
    pthread_mutex_lock(&pool.lock);
    if (--pool.users == 0) {
        unused = pool.free;
        pool.free = NULL;
    }
    pthread_mutex_unlock(&pool.lock);
    while (unused) {
        struct ticket *const t = unused;
        unused = t->next_free;
        mem_free(t->deps.at);
        mem_free(t->streams);
        mem_free(t);
    }
}

struct ticket *ticket_take(void)
{
    pthread_mutex_lock(&pool.lock);
    struct ticket *t = pool.free;
    if (t)
        pool.free = t->next_free;
    pthread_mutex_unlock(&pool.lock);
    if (!t)
        t = mem_calloc(1, sizeof(*t));
    if (!t) {
        (void)fail(KOLO_ERR_NOMEM, "no memory for a work of a stream");
        return NULL;
    }
    /* Nobody else knows the ticket yet. */
    atomic_store_explicit(&t->state, TICKET_PENDING, memory_order_relaxed);
    atomic_store_explicit(&t->refs, 1, memory_order_relaxed);
    t->nstreams = 0;
    t->spin_ns = 0;
    return t;
}

struct ticket *ticket_keep(struct ticket *t)
{
    /* Relaxed: the caller holds a reference already. */
    atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    return t;
}

void ticket_release(struct ticket *t)
{
    /* Pairs with itself: the last holder must come after all that the others did. */
    if (atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) != 1)
        return;
    pthread_mutex_lock(&pool.lock); /* may be inside a worker's lock; nothing is inside this one */
    t->next_free = pool.free;
    pool.free = t;
    pthread_mutex_unlock(&pool.lock);
}

bool ticket_is_done(const struct ticket *t)
{
    /* Pairs with the exchange in ticket_complete(): the work's effects and done_ns come before. */
    return atomic_load_explicit(&t->state, memory_order_acquire) == TICKET_DONE;
}

void ticket_wait(struct ticket *t)
{
    struct polling poll = {.most_ns = t->spin_ns};
    while (!ticket_is_done(t)) {
        if (poll_again(&poll))
            continue;
        unsigned expected = TICKET_PENDING;
        /* Pairs with the exchange in ticket_complete(), which sees WATCHED and wakes; data are
         * acquired by ticket_is_done(), so that relaxed is enough here. */
        atomic_compare_exchange_strong_explicit(&t->state, &expected, TICKET_WATCHED,
                                                memory_order_relaxed, memory_order_relaxed);
        if (expected != TICKET_DONE)
            syscall(SYS_futex, &t->state, FUTEX_WAIT_PRIVATE, TICKET_WATCHED, NULL, NULL, 0);
    }
}

void ticket_complete(struct ticket *t)
{
    t->done_ns = now_ns();
    /* Pairs with the load in ticket_is_done(), and with the exchange in ticket_wait(). */
    if (atomic_exchange_explicit(&t->state, TICKET_DONE, memory_order_release) == TICKET_WATCHED)
        syscall(SYS_futex, &t->state, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* ---- lists of tickets ----------------------------------------------------------------------- */

/* `at` with room for `need` elements, or NULL, and then `at` stands as it was. */
static void *grow(void *at, size_t *capacity, size_t need, size_t size)
{
    if (need <= *capacity)
        return at;
    size_t wanted = *capacity > 0 ? *capacity : FIRST_CAPACITY;
    while (wanted < need && size_mul(wanted, 2, &wanted))
        ;
    void *const grown = mem_resize(at, wanted, size);
    if (grown)
        *capacity = wanted;
    return grown;
}

enum kolo_status tickets_reserve(struct tickets *list, size_t need)
{
    struct ticket **const at = grow(list->at, &list->capacity, need, sizeof(struct ticket *));
    if (need > 0 && !at)
        return fail(KOLO_ERR_NOMEM, "no memory for %zu dependencies of a stream", need);
    list->at = at;
    return KOLO_OK;
}

enum kolo_status ticket_reserve_streams(struct ticket *t, size_t n)
{
    struct kolo_stream **const streams =
        grow(t->streams, &t->streams_capacity, n, sizeof(struct kolo_stream *));
    if (n > 0 && !streams)
        return fail(KOLO_ERR_NOMEM, "no memory for a work of %zu streams", n);
    t->streams = streams;
    return KOLO_OK;
}

void tickets_clear(struct tickets *list)
{
    for (size_t i = 0; i < list->n; i++)
        ticket_release(list->at[i]);
    list->n = 0;
}

void tickets_drop_done(struct tickets *list)
{
    size_t kept = 0;
    for (size_t i = 0; i < list->n; i++) {
        if (ticket_is_done(list->at[i]))
            ticket_release(list->at[i]);
        else
            list->at[kept++] = list->at[i];
    }
    list->n = kept;
}

bool tickets_has(const struct tickets *list, const struct ticket *t)
{
    for (size_t i = 0; i < list->n; i++) {
        if (list->at[i] == t)
            return true;
    }
    return false;
}

/* Needs room for the tickets of `from`; takes own references. */
void tickets_add(struct tickets *list, const struct tickets *from)
{
    for (size_t i = 0; i < from->n; i++) {
        if (!tickets_has(list, from->at[i]))
            list->at[list->n++] = ticket_keep(from->at[i]);
    }
}

bool tickets_are_done(const struct tickets *list)
{
    for (size_t i = 0; i < list->n; i++) {
        if (!ticket_is_done(list->at[i]))
            return false;
    }
    return true;
}

void tickets_wait(const struct tickets *list)
{
    for (size_t i = 0; i < list->n; i++)
        ticket_wait(list->at[i]);
}
