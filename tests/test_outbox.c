/* test_outbox.c - roots that run ahead of slow ranks: what one rank tells all others is written
 * once, and must stay until the last of them has read it, at every border between the places
 * where a message may lie. */
#include "support/ranks.h"
#include "support/check.h"
#include "support/test.h"

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS = 300, MOST_BYTES = 270000 };

static const size_t sizes[] = {0,    1,    48,    49,    1024,  1025,   2048,      2049,
                               4096, 9999, 16384, 16385, 65536, 131073, MOST_BYTES};

static unsigned char value(int call, size_t i, int root)
{
    return (unsigned char)((size_t)call * 131 + i * 7 + (size_t)root * 29 + i / 251);
}

/* Equal on all ranks: the sizes of the calls. */
static size_t next_size(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return sizes[(*state >> 16) % (sizeof sizes / sizeof *sizes)];
}

/* A rank's own pace: now and then it lets the others run far ahead. */
static void dawdle(uint32_t *state)
{
    *state = *state * 22695477u + 1u;
    if ((*state >> 20) % 8 == 0)
        for (int i = 0; i < 64; i++)
            sched_yield();
}

struct scene {
    uint32_t seed;
    bool rotates; /* the root changes from call to call */
    bool is_uniform;
};

static const char *broadcasts(struct kolo_comm *comm, void *arg)
{
    const struct scene *scene = arg;
    const int rank = kolo_comm_rank(comm), n = kolo_comm_size(comm);
    uint32_t sizes_at = scene->seed, pace = scene->seed ^ (uint32_t)(rank + 1) * 77777u;
    unsigned char *data = malloc(MOST_BYTES);
    const char *wrong = NULL;
    for (int call = 0; call < CALLS; call++) { /* to the end: the others wait for this rank */
        const int root = scene->rotates ? call % n : 0;
        const size_t bytes = scene->is_uniform ? sizes[scene->seed % 15] : next_size(&sizes_at);
        for (size_t i = 0; i < bytes; i++)
            data[i] = rank == root ? value(call, i, root) : 0xee;
        if (rank != root)
            dawdle(&pace);
        if (kolo_broadcast(data, data, bytes, KOLO_U8, root, comm, NULL) != KOLO_OK) {
            wrong = ranks_text("call %d: %s", call, kolo_last_error(comm));
            break;
        }
        for (size_t i = 0; i < bytes && !wrong; i++)
            if (data[i] != value(call, i, root))
                wrong =
                    ranks_text("seed %u call %d, %zu bytes from %d: byte %zu is %d, not %d",
                               scene->seed, call, bytes, root, i, data[i], value(call, i, root));
    }
    free(data);
    return wrong;
}

Test(outbox, one_root_runs_ahead)
{
    for (int n = 3; n <= 5; n++) {
        struct scene scene = {.seed = 20261201u + (uint32_t)n};
        check(ranks_threads(n, NULL, broadcasts, &scene));
        check(ranks_processes(n, NULL, broadcasts, &scene, -1));
    }
}

Test(outbox, every_size_by_itself)
{
    for (uint32_t k = 0; k < 15; k++) {
        struct scene scene = {.seed = k, .is_uniform = true};
        check(ranks_threads(4, NULL, broadcasts, &scene));
    }
}

Test(outbox, roots_take_turns)
{
    struct scene scene = {.seed = 7u, .rotates = true};
    check(ranks_threads(4, NULL, broadcasts, &scene));
    check(ranks_processes(6, NULL, broadcasts, &scene, -1));
}

/* Gathers and reductions tell all as well, in both directions at once and beside plain messages. */
static const char *mixed(struct kolo_comm *comm, void *arg)
{
    const struct scene *scene = arg;
    const int rank = kolo_comm_rank(comm), n = kolo_comm_size(comm);
    uint32_t sizes_at = scene->seed, pace = scene->seed ^ (uint32_t)(rank + 1) * 77777u;
    uint32_t *in = malloc(MOST_BYTES + 4), *out = malloc((size_t)n * (MOST_BYTES + 4));
    const char *wrong = NULL;
    for (int call = 0; call < CALLS / 2; call++) {
        const size_t count = next_size(&sizes_at) / 4;
        for (size_t i = 0; i < count; i++)
            in[i] = (uint32_t)call * 1000u + (uint32_t)i * 3u + (uint32_t)rank;
        dawdle(&pace);
        const bool gathers = call % 3 != 0;
        const enum kolo_status status =
            gathers ? kolo_all_gather(in, out, count, KOLO_U32, comm, NULL)
                    : kolo_all_reduce(in, out, count, KOLO_U32, KOLO_SUM, comm, NULL);
        if (status != KOLO_OK) {
            wrong = ranks_text("call %d: %s", call, kolo_last_error(comm));
            break;
        }
        const uint32_t un = (uint32_t)n;
        for (size_t i = 0; i < count * (gathers ? (size_t)n : 1) && !wrong; i++) {
            const uint32_t base = (uint32_t)call * 1000u + (uint32_t)(i % count) * 3u;
            const uint32_t want =
                gathers ? base + (uint32_t)(i / count) : un * base + un * (un - 1) / 2;
            if (out[i] != want)
                wrong = ranks_text("seed %u call %d, %zu elements: element %zu is %u, not %u",
                                   scene->seed, call, count, i, out[i], want);
        }
    }
    free(in);
    free(out);
    return wrong;
}

Test(outbox, all_tell_all)
{
    for (int n = 3; n <= 6; n += 3) {
        struct scene scene = {.seed = 11u + (uint32_t)n};
        check(ranks_threads(n, NULL, mixed, &scene));
        check(ranks_processes(n, NULL, mixed, &scene, -1));
    }
}
