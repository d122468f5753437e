/* test_large.c - counts and offsets beyond 2^31 and 2^32, with real memory.  Buffers are filled and
 * looked at in few places only: around the borders and once per million bytes. */
#include "support/ranks.h"
#include "support/test.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifdef KOLO_TEST_DRIVER
enum { IS_INSTRUMENTED = 1 }; /* with sanitizers: several times the memory and the time */
#else
enum { IS_INSTRUMENTED = 0 };
#endif

#define GIB ((size_t)1 << 30)
#define ROOM (14 * GIB)

enum { STRIDE = 1000003, EDGE = 64 };

static size_t available_bytes(void)
{
    FILE *f = fopen("/proc/meminfo", "r");
    char line[256];
    unsigned long long kib = 0;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return (size_t)kib * 1024;
}

/* The next place at or behind `at` that is filled and looked at, of a buffer of `bytes`. */
static size_t next_place(size_t at, size_t bytes)
{
    const size_t borders[] = {0, 2 * GIB, 4 * GIB, bytes};
    size_t best = (at + STRIDE - 1) / STRIDE * STRIDE;
    for (size_t i = 0; i < 4; i++) {
        const size_t from = borders[i] < EDGE ? 0 : borders[i] - EDGE, to = borders[i] + EDGE;
        if (at < to && (at > from ? at : from) < best)
            best = at > from ? at : from;
    }
    return best < bytes ? best : bytes;
}

static unsigned char value(size_t at, int rank)
{
    return (unsigned char)(at * 2654435761u >> 13 ^ at >> 31) + (unsigned char)(rank * 31) + 1;
}

static unsigned char *map(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static const char *failed(struct kolo_comm *comm)
{
    return ranks_text("%s", kolo_last_error(comm));
}

/* In place: 4.4 GiB on each rank, in which the peer's half begins or ends above 2^31. */
static const char *gather(struct kolo_comm *comm, void *arg)
{
    const size_t count = 11 * GIB / 5 + 7, bytes = 2 * count;
    const int r = kolo_comm_rank(comm);
    unsigned char *b = map(bytes), *own = b + (size_t)r * count;
    const char *wrong = NULL;
    (void)arg;
    if (!b)
        return "mmap failed";
    for (size_t i = next_place(0, bytes); i < bytes; i = next_place(i + 1, bytes))
        if (i / count == (size_t)r)
            b[i] = value(i, r);
    if (kolo_all_gather(own, b, count, KOLO_U8, comm, NULL) != KOLO_OK)
        wrong = failed(comm);
    for (size_t i = next_place(0, bytes); i < bytes && !wrong; i = next_place(i + 1, bytes))
        if (b[i] != value(i, (int)(i / count)))
            wrong = ranks_text("all_gather: byte %zu is %d, not %d", i, b[i],
                               value(i, (int)(i / count)));
    munmap(b, bytes);
    return wrong;
}

/* In place, more than 2^32 elements. */
static const char *reduce(struct kolo_comm *comm, void *arg)
{
    const size_t count = 4 * GIB + 4099;
    const int r = kolo_comm_rank(comm);
    unsigned char *b = map(count);
    const char *wrong = NULL;
    (void)arg;
    if (!b)
        return "mmap failed";
    for (size_t i = next_place(0, count); i < count; i = next_place(i + 1, count))
        b[i] = value(i, r);
    if (kolo_all_reduce(b, b, count, KOLO_I8, KOLO_SUM, comm, NULL) != KOLO_OK)
        wrong = failed(comm);
    for (size_t i = next_place(0, count); i < count && !wrong; i = next_place(i + 1, count)) {
        const unsigned char want = (unsigned char)(value(i, 0) + value(i, 1));
        if (b[i] != want)
            wrong = ranks_text("all_reduce: byte %zu is %d, not %d", i, b[i], want);
    }
    munmap(b, count);
    return wrong;
}

/* More than 2^31 elements from rank 1. */
static const char *spread(struct kolo_comm *comm, void *arg)
{
    const size_t count = 2 * GIB + 4099;
    const int r = kolo_comm_rank(comm);
    unsigned char *b = map(count);
    const char *wrong = NULL;
    (void)arg;
    if (!b)
        return "mmap failed";
    for (size_t i = next_place(0, count); r == 1 && i < count; i = next_place(i + 1, count))
        b[i] = value(i, 1);
    if (kolo_broadcast(b, b, count, KOLO_U8, 1, comm, NULL) != KOLO_OK)
        wrong = failed(comm);
    for (size_t i = next_place(0, count); i < count && !wrong; i = next_place(i + 1, count))
        if (b[i] != value(i, 1))
            wrong = ranks_text("broadcast: byte %zu is %d, not %d", i, b[i], value(i, 1));
    munmap(b, count);
    return wrong;
}

/* One test, so that its parts never run side by side. */
Test(large, above_four_gib)
{
    static const rank_fn parts[] = {gather, reduce, spread};
    if (IS_INSTRUMENTED)
        cr_skip_test("needs too much memory and time with sanitizers");
    if (available_bytes() < ROOM)
        cr_skip_test("needs 14 GiB of available memory, there are %zu MiB",
                     available_bytes() >> 20);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const char *wrong = ranks_threads(2, NULL, parts[i], NULL);
        cr_assert(wrong == NULL, "%s", wrong);
    }
}
