/* mem.c - the only door to malloc: overflow is checked, every block starts zeroed, and tests can
 * make the Nth allocation fail and count what lives. */
#include "mem.h"

#include "base.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Statistics and the test hook: no other memory is published through them, so all accesses are
 * relaxed. */
static atomic_uint_fast64_t allocation_count;
static atomic_int_fast64_t live_count;
static atomic_uint_fast64_t fail_countdown;

/* Counts one allocation and says whether it is the one that must fail. */
static bool must_fail(void)
{
    atomic_fetch_add_explicit(&allocation_count, 1, memory_order_relaxed);
    uint_fast64_t n = atomic_load_explicit(&fail_countdown, memory_order_relaxed);
    while (n != 0) {
        if (atomic_compare_exchange_weak_explicit(&fail_countdown, &n, n - 1, memory_order_relaxed,
                                                  memory_order_relaxed))
            return n == 1;
    }
    return false;
}

static void *counted(void *p)
{
    if (p)
        atomic_fetch_add_explicit(&live_count, 1, memory_order_relaxed);
    return p;
}

void *mem_calloc(size_t n, size_t size)
{
    size_t bytes;
    if (must_fail() || !size_mul(n, size, &bytes))
        return NULL;
    return counted(calloc(1, bytes > 0 ? bytes : 1)); /* NULL is to mean one thing only */
}

void *mem_resize(void *p, size_t n, size_t size)
{
    size_t bytes;
    if (must_fail() || !size_mul(n, size, &bytes))
        return NULL;
    void *const moved = realloc(p, bytes > 0 ? bytes : 1);
    return p ? moved : counted(moved);
}

void *mem_aligned(size_t align, size_t bytes)
{
    size_t padded;
    if (must_fail() || !size_add(bytes > 0 ? bytes : 1, align - 1, &padded))
        return NULL;
    padded &= ~(align - 1); /* aligned_alloc wants a multiple */
    void *const p = aligned_alloc(align, padded);
    if (p)
        memset(p, 0, padded);
    return counted(p);
}

char *mem_strdup(const char *s)
{
    if (must_fail())
        return NULL;
    return counted(strdup(s));
}

void mem_free(void *p)
{
    if (p)
        atomic_fetch_sub_explicit(&live_count, 1, memory_order_relaxed);
    free(p);
}

void mem_fail_at(uint64_t nth)
{
    atomic_store_explicit(&fail_countdown, nth, memory_order_relaxed);
}

uint64_t mem_count(void)
{
    return atomic_load_explicit(&allocation_count, memory_order_relaxed);
}

int64_t mem_live(void)
{
    return atomic_load_explicit(&live_count, memory_order_relaxed);
}
