/* test_mem.c - the door to malloc: zeroes, overflow, alignment, the failing allocation, counts. */
#include "support/test.h"

#include "base.h"
#include "mem.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>

static bool is_zero(const unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (p[i] != 0)
            return false;
    }
    return true;
}

Test(mem, blocks_start_zeroed)
{
    for (int round = 0; round < 20; round++) { /* later rounds get used memory */
        unsigned char *const p = mem_calloc(100, 7);
        unsigned char *const q = mem_aligned(64, 701);
        cr_assert_not_null(p);
        cr_assert_not_null(q);
        cr_assert(is_zero(p, 700), "round %d", round);
        cr_assert(is_zero(q, 701), "round %d", round);
        memset(p, 0xa5, 700);
        memset(q, 0xa5, 701);
        mem_free(p);
        mem_free(q);
    }
}

Test(mem, overflow_is_no_memory)
{
    const int64_t live = mem_live();
    cr_assert_null(mem_calloc(SIZE_MAX / 2 + 1, 2));
    cr_assert_null(mem_calloc((size_t)1 << 33, (size_t)1 << 33));
    cr_assert_null(mem_resize(NULL, SIZE_MAX / 2 + 1, 2));
    cr_assert_null(mem_aligned(64, SIZE_MAX));
    cr_assert_null(mem_aligned(64, SIZE_MAX - 62));
    cr_assert_eq(mem_live(), live);
}

Test(mem, empty_blocks_are_not_null)
{
    void *const p[] = {mem_calloc(0, 8), mem_calloc(8, 0), mem_resize(NULL, 0, 8),
                       mem_aligned(16, 0), mem_strdup("")};
    for (size_t i = 0; i < ARRAY_LEN(p); i++) {
        cr_assert_not_null(p[i], "block %zu", i);
        mem_free(p[i]);
    }
    void *q = mem_calloc(1, 8);
    q = mem_resize(q, 0, 8);
    cr_assert_not_null(q);
    mem_free(q);
}

Test(mem, alignment)
{
    for (size_t align = 16; align <= 1 << 16; align *= 2) {
        for (size_t bytes = 1; bytes <= 3 * align; bytes += align / 2 + 1) {
            unsigned char *const p = mem_aligned(align, bytes);
            cr_assert_not_null(p);
            cr_assert_eq((uintptr_t)p % align, 0, "align %zu bytes %zu", align, bytes);
            cr_assert(is_zero(p, bytes), "align %zu bytes %zu", align, bytes);
            mem_free(p);
        }
    }
}

Test(mem, resize_keeps_what_was_there)
{
    char *p = mem_strdup("wheel");
    cr_assert_not_null(p);
    p = mem_resize(p, 100000, 3);
    cr_assert_not_null(p);
    cr_assert_str_eq(p, "wheel");
    mem_fail_at(1);
    cr_assert_null(mem_resize(p, 200000, 3));
    cr_assert_str_eq(p, "wheel"); /* still there */
    cr_assert_null(mem_resize(p, SIZE_MAX, 3));
    cr_assert_str_eq(p, "wheel");
    p = mem_resize(p, 1, 6);
    cr_assert_str_eq(p, "wheel");
    mem_free(p);
}

static void *allocate(int how)
{
    switch (how) {
    case 0:
        return mem_calloc(3, 5);
    case 1:
        return mem_resize(NULL, 3, 5);
    case 2:
        return mem_aligned(32, 100);
    default:
        return mem_strdup("text");
    }
}

Test(mem, the_nth_allocation_fails_once)
{
    for (int how = 0; how < 4; how++) {
        for (uint64_t nth = 1; nth <= 5; nth++) {
            mem_fail_at(nth);
            for (uint64_t i = 1; i <= 8; i++) {
                void *const p = allocate(how);
                cr_assert_eq(p == NULL, i == nth, "kind %d: fail at %d, allocation %d", how,
                             (int)nth, (int)i);
                mem_free(p);
            }
        }
    }
    mem_fail_at(1);
    mem_fail_at(0); /* takes it back */
    void *const p = allocate(0);
    cr_assert_not_null(p);
    mem_free(p);
}

Test(mem, counts)
{
    const uint64_t count = mem_count();
    const int64_t live = mem_live();
    void *p = mem_calloc(1, 1);
    char *const s = mem_strdup("abc");
    cr_assert_eq(mem_live(), live + 2);
    p = mem_resize(p, 100, 1);
    cr_assert_eq(mem_live(), live + 2);
    cr_assert_eq(mem_count(), count + 3);
    mem_fail_at(1);
    cr_assert_null(mem_calloc(1, 1));
    cr_assert_eq(mem_count(), count + 4);
    cr_assert_eq(mem_live(), live + 2);
    mem_free(p);
    mem_free(s);
    mem_free(NULL);
    cr_assert_eq(mem_live(), live);
    cr_assert_eq(mem_count(), count + 4);
}

enum { THREADS = 4, PER_THREAD = 2000 };

static void *allocate_many(void *failures)
{
    for (int i = 0; i < PER_THREAD; i++) {
        void *const p = mem_calloc(1, 8);
        *(int *)failures += p == NULL;
        mem_free(p);
    }
    return NULL;
}

Test(mem, threads_share_the_counts_and_the_failure)
{
    const uint64_t count = mem_count();
    const int64_t live = mem_live();
    pthread_t threads[THREADS];
    int failures[THREADS] = {0};
    mem_fail_at(THREADS * PER_THREAD / 2);
    for (int i = 0; i < THREADS; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, allocate_many, &failures[i]), 0);
    int sum = 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        sum += failures[i];
    }
    cr_assert_eq(sum, 1);
    cr_assert_eq(mem_count(), count + THREADS * PER_THREAD);
    cr_assert_eq(mem_live(), live);
}
