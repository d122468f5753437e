/* test_large.c - counts and offsets beyond 2^31 and 2^32, with real memory.  Buffers are filled and
 * looked at in few places only: around the borders and once per million bytes.  Providing the pages
 * at once instead of one by one saves most of the time. */
#include "support/ranks.h"
#include "support/test.h"

#include <stdint.h>
#include <stdio.h>
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

/* Other in each part of the test, since the parts share buffers. */
static unsigned char value(size_t at, int rank, int part)
{
    return (unsigned char)((at * 2654435761u >> 13 ^ at >> 31) + (unsigned)(rank * 31 + part * 7));
}

enum part { GATHER, REDUCE, SPREAD };

static const char *wrong_byte(enum part part, size_t at, unsigned char is, unsigned char want)
{
    static const char *const names[] = {"all_gather", "all_reduce", "broadcast"};
    return ranks_text("%s: byte %zu is %d, not %d", names[part], at, is, want);
}

/* In place: more than 2 GiB from each rank; the halves meet between 2^31 and 2^32. */
static const char *gather(struct kolo_comm *comm, unsigned char *b, size_t count)
{
    const size_t bytes = 2 * count, r = (size_t)kolo_comm_rank(comm);
    for (size_t i = next_place(0, bytes); i < bytes; i = next_place(i + 1, bytes))
        if (i / count == r)
            b[i] = value(i, (int)r, GATHER);
    if (kolo_all_gather(b + r * count, b, count, KOLO_U8, comm, NULL) != KOLO_OK)
        return ranks_text("all_gather: %s", kolo_last_error(comm));
    for (size_t i = next_place(0, bytes); i < bytes; i = next_place(i + 1, bytes)) {
        const unsigned char want = value(i, (int)(i / count), GATHER);
        if (b[i] != want)
            return wrong_byte(GATHER, i, b[i], want);
    }
    return NULL;
}

/* In place, more than 2^32 elements. */
static const char *reduce(struct kolo_comm *comm, unsigned char *b, size_t count)
{
    for (size_t i = next_place(0, count); i < count; i = next_place(i + 1, count))
        b[i] = value(i, kolo_comm_rank(comm), REDUCE);
    if (kolo_all_reduce(b, b, count, KOLO_I8, KOLO_SUM, comm, NULL) != KOLO_OK)
        return ranks_text("all_reduce: %s", kolo_last_error(comm));
    for (size_t i = next_place(0, count); i < count; i = next_place(i + 1, count)) {
        const unsigned char want = (unsigned char)(value(i, 0, REDUCE) + value(i, 1, REDUCE));
        if (b[i] != want)
            return wrong_byte(REDUCE, i, b[i], want);
    }
    return NULL;
}

/* More than 2^31 elements from rank 1. */
static const char *spread(struct kolo_comm *comm, unsigned char *b, size_t count)
{
    const int r = kolo_comm_rank(comm);
    for (size_t i = next_place(0, count); i < count; i = next_place(i + 1, count))
        b[i] = r == 1 ? value(i, 1, SPREAD) : 0;
    if (kolo_broadcast(b, b, count, KOLO_U8, 1, comm, NULL) != KOLO_OK)
        return ranks_text("broadcast: %s", kolo_last_error(comm));
    for (size_t i = next_place(0, count); i < count; i = next_place(i + 1, count))
        if (b[i] != value(i, 1, SPREAD))
            return wrong_byte(SPREAD, i, b[i], value(i, 1, SPREAD));
    return NULL;
}

static const char *all_parts(struct kolo_comm *comm, void *arg)
{
    const size_t half = 11 * GIB / 5 + 7, bytes = 2 * half;
    (void)arg;
    unsigned char *b = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_POPULATE, -1, 0);
    if (b == MAP_FAILED)
        return "mmap failed";
    const char *wrong = gather(comm, b, half);
    if (!wrong)
        wrong = reduce(comm, b, 4 * GIB + 4099);
    if (!wrong)
        wrong = spread(comm, b, 2 * GIB + 4099);
    munmap(b, bytes);
    return wrong;
}

Test(large, above_four_gib)
{
    if (IS_INSTRUMENTED)
        cr_skip_test("needs too much memory and time with sanitizers");
    if (available_bytes() < ROOM)
        cr_skip_test("needs 14 GiB of available memory, there are %zu MiB",
                     available_bytes() >> 20);
    const char *wrong = ranks_threads(2, NULL, all_parts, NULL);
    cr_assert(wrong == NULL, "%s", wrong);
}
