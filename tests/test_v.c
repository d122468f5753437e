/* test_v.c - collectives with counts per rank: uneven, zero, displaced, in place, all ranks but one
 * empty; expected values by naive loops. */
#include "support/check.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 16 };

/* Counts by pattern; the largest need several rounds. */
static size_t count_of(int pattern, int from, int to, int n)
{
    switch (pattern) {
    case 0:
        return 0;
    case 1:
        return (size_t)(from + 2 * to) % 5;
    case 2:
        return from == n - 1 ? 1000 : 0;
    case 3:
        return (size_t)(from * 3777 + to * 611) % 30011;
    default:
        return (size_t)(from == 0 && to == n - 1) * 100003 + 1;
    }
}
enum { PATTERNS = 5 };

static int64_t word(int from, int to, size_t i)
{
    return (int64_t)from * 1000000007 + (int64_t)to * 1000003 + (int64_t)i;
}

static size_t sum(const size_t *counts, int n)
{
    size_t s = 0;
    for (int i = 0; i < n; i++)
        s += counts[i];
    return s;
}

/* Blocks in reverse order with gaps of 3, or packed. */
static size_t place(const size_t *counts, size_t *displs, int n, bool spread)
{
    size_t at = 0;
    for (int k = 0; k < n; k++) {
        const int i = spread ? n - 1 - k : k;
        displs[i] = at;
        at += counts[i] + (spread ? 3 : 0);
    }
    return at;
}

struct setting {
    int pattern;
    bool spread;
};

static const char *all_to_all_v(struct kolo_comm *comm, void *arg)
{
    const struct setting *s = arg;
    const int n = kolo_comm_size(comm), r = kolo_comm_rank(comm);
    size_t sc[MOST], sd[MOST], rc[MOST], rd[MOST];
    for (int k = 0; k < n; k++) {
        sc[k] = count_of(s->pattern, r, k, n);
        rc[k] = count_of(s->pattern, k, r, n);
    }
    int64_t *send = calloc(place(sc, sd, n, s->spread) + 1, sizeof *send);
    int64_t *recv = calloc(place(rc, rd, n, s->spread) + 1, sizeof *recv);
    for (int k = 0; k < n; k++)
        for (size_t i = 0; i < sc[k]; i++)
            send[sd[k] + i] = word(r, k, i);
    const enum kolo_status status = kolo_all_to_all_v(send, sc, s->spread ? sd : NULL, recv, rc,
                                                      s->spread ? rd : NULL, KOLO_I64, comm, NULL);
    if (status != KOLO_OK)
        return ranks_text("status %d: %s", status, kolo_last_error(comm));
    for (int k = 0; k < n; k++)
        for (size_t i = 0; i < rc[k]; i++)
            if (recv[rd[k] + i] != word(k, r, i))
                return ranks_text("pattern %d: from %d word %zu is wrong", s->pattern, k, i);
    free(send);
    free(recv);
    return NULL;
}

/* Equal counts both ways, one buffer. */
static const char *all_to_all_v_in_place(struct kolo_comm *comm, void *arg)
{
    const int n = kolo_comm_size(comm), r = kolo_comm_rank(comm);
    size_t counts[MOST], displs[MOST];
    (void)arg;
    for (int k = 0; k < n; k++)
        counts[k] = (size_t)((r + k) * 5003 + r * k) % 9001;
    int64_t *buf = calloc(place(counts, displs, n, false) + 1, sizeof *buf);
    for (int k = 0; k < n; k++)
        for (size_t i = 0; i < counts[k]; i++)
            buf[displs[k] + i] = word(r, k, i);
    const enum kolo_status status =
        kolo_all_to_all_v(buf, counts, NULL, buf, counts, NULL, KOLO_I64, comm, NULL);
    if (status != KOLO_OK)
        return ranks_text("status %d: %s", status, kolo_last_error(comm));
    for (int k = 0; k < n; k++)
        for (size_t i = 0; i < counts[k]; i++)
            if (buf[displs[k] + i] != word(k, r, i))
                return ranks_text("in place: from %d word %zu is wrong", k, i);
    free(buf);
    return NULL;
}

static const char *all_gather_v(struct kolo_comm *comm, void *arg)
{
    const struct setting *s = arg;
    const int n = kolo_comm_size(comm), r = kolo_comm_rank(comm);
    size_t counts[MOST], displs[MOST];
    for (int k = 0; k < n; k++)
        counts[k] = count_of(s->pattern, k, k / 2, n);
    const size_t all = place(counts, displs, n, s->spread);
    for (int in_place = 0; in_place < 2; in_place++) {
        int64_t *recv = calloc(all + 1, sizeof *recv), *own = calloc(counts[r] + 1, sizeof *own);
        int64_t *send = in_place ? recv + displs[r] : own;
        for (size_t i = 0; i < counts[r]; i++)
            send[i] = word(r, 0, i);
        const enum kolo_status status =
            kolo_all_gather_v(send, recv, counts, s->spread ? displs : NULL, KOLO_I64, comm, NULL);
        if (status != KOLO_OK)
            return ranks_text("status %d: %s", status, kolo_last_error(comm));
        for (int k = 0; k < n; k++)
            for (size_t i = 0; i < counts[k]; i++)
                if (recv[displs[k] + i] != word(k, 0, i))
                    return ranks_text("pattern %d: from %d word %zu is wrong", s->pattern, k, i);
        free(recv);
        free(own);
    }
    return NULL;
}

static const char *reduce_scatter_v(struct kolo_comm *comm, void *arg)
{
    const struct setting *s = arg;
    const int n = kolo_comm_size(comm), r = kolo_comm_rank(comm);
    size_t counts[MOST], displs[MOST];
    for (int k = 0; k < n; k++)
        counts[k] = count_of(s->pattern, k, k / 2, n);
    const size_t all = place(counts, displs, n, false);
    for (int in_place = 0; in_place < 2; in_place++) {
        int64_t *send = calloc(all + 1, sizeof *send), *own = calloc(counts[r] + 1, sizeof *own);
        int64_t *recv = in_place ? send + displs[r] : own;
        for (size_t i = 0; i < sum(counts, n); i++)
            send[i] = word(r, 0, i);
        const enum kolo_status status =
            kolo_reduce_scatter_v(send, recv, counts, KOLO_I64, KOLO_SUM, comm, NULL);
        if (status != KOLO_OK)
            return ranks_text("status %d: %s", status, kolo_last_error(comm));
        for (size_t i = 0; i < counts[r]; i++) {
            int64_t want = 0;
            for (int k = 0; k < n; k++)
                want += word(k, 0, displs[r] + i);
            if (recv[i] != want)
                return ranks_text("pattern %d in place %d: word %zu is wrong", s->pattern, in_place,
                                  i);
        }
        free(send);
        free(own);
    }
    return NULL;
}

static void everywhere(rank_fn fn)
{
    static const int ranks[] = {1, 2, 3, 5, 8};
    for (int pattern = 0; pattern < PATTERNS; pattern++)
        for (int spread = 0; spread < 2; spread++) {
            struct setting s = {pattern, spread};
            for (size_t i = 0; i < 5; i++)
                check(ranks_threads(ranks[i], NULL, fn, &s));
        }
    struct setting s = {3, true};
    check(ranks_processes(3, NULL, fn, &s, -1));
}

Test(v, all_to_all)
{
    everywhere(all_to_all_v);
}

Test(v, all_to_all_in_place)
{
    for (int n = 1; n <= 7; n++)
        check(ranks_threads(n, NULL, all_to_all_v_in_place, NULL));
    check(ranks_processes(3, NULL, all_to_all_v_in_place, NULL, -1));
}

Test(v, all_gather)
{
    everywhere(all_gather_v);
}

Test(v, reduce_scatter)
{
    everywhere(reduce_scatter_v);
}
