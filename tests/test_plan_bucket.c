/* test_plan_bucket.c - buckets are proven for many lists of lengths, numbers of ranks and sizes of
 * messages; and what their generators promise beyond that. */
#include "support/test.h"

#include "plan.h"

#include <stdlib.h>

enum { MOST_CHUNKS = 300, ENDLESS = 1 << 20 };

static uint64_t random_next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static struct plan **generate_all(const struct plan_bucket *bucket, int n)
{
    struct plan **plans = calloc((size_t)n, sizeof(struct plan *));
    cr_assert_not_null(plans);
    for (int r = 0; r < n; r++) {
        const struct plan_shape shape = {KOLO_COLL_ALL_REDUCE, n, r, 0, 0};
        cr_assert_eq(plan_gen_bucket(&shape, bucket, &plans[r]), KOLO_OK, "%s", fail_text());
    }
    return plans;
}

static void destroy_all(struct plan **plans, int n)
{
    for (int r = 0; r < n; r++)
        plan_destroy(plans[r]);
    free(plans);
}

/* Lengths are no part of a plan: who sends what in one message is. */
static void check_messages(const struct plan_bucket *bucket, const struct plan *p)
{
    for (int i = 0; i < p->nsteps; i++) {
        const struct plan_span *of = &p->steps[i].of;
        size_t bytes = 0;
        for (int k = 0; k < of->count; k++)
            bytes += bucket->bytes[of->chunk + k];
        cr_assert(of->count <= 1 || bytes <= bucket->most_bytes,
                  "%s rank %d step %d: %zu bytes in a message of at most %zu", p->algo, p->rank, i,
                  bytes, bucket->most_bytes);
    }
}

static void prove(struct plan_bucket bucket, int n, uint64_t seed)
{
    static const int slots[] = {2, 4, ENDLESS};
    for (int kind = BUCKET_ONESHOT; kind <= BUCKET_WINDOW; kind++) {
        bucket.kind = (enum bucket_kind)kind;
        struct plan **plans = generate_all(&bucket, n);
        for (size_t i = 0; i < ARRAY_LEN(slots); i++) {
            const struct plan_limits limits = {.slots = slots[i]};
            cr_assert_eq(plan_verify(plans, n, &limits), KOLO_OK,
                         "%s (%d chunks, messages of %zu, %d slots, seed %llu)", fail_text(),
                         bucket.n, bucket.most_bytes, slots[i], (unsigned long long)seed);
        }
        for (int r = 0; r < n; r++) {
            cr_assert(plans[r]->flags & PLAN_RANK_ORDER, "kind %d is not in rank order", kind);
            cr_assert_eq(plans[r]->nchunks[PLAN_IN], bucket.n);
            check_messages(&bucket, plans[r]);
        }
        destroy_all(plans, n);
    }
}

Test(plan_bucket, corners)
{
    static const size_t lists[][6] = {
        {1}, {0, 0, 0}, {8, 8}, {65536, 1, 65536}, {0, 4096, 0, 4096}, {1, 2, 3, 4, 5, 6}};
    static const int lengths[] = {1, 3, 2, 3, 4, 6};
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++)
        for (int n = 2; n <= 9; n++)
            for (size_t most = 1; most <= 65536; most *= 256)
                prove((struct plan_bucket){BUCKET_ONESHOT, lists[i], lengths[i], most}, n, 0);
}

Test(plan_bucket, random_lists)
{
    static size_t bytes[MOST_CHUNKS];
    uint64_t seed = 20261201;
    for (int round = 0; round < 120; round++) {
        const uint64_t started = seed;
        const int n = round % 10 == 9 ? 17 + round % 20 : 2 + round % 8;
        const int count = 1 + (int)(random_next(&seed) % (n > 9 ? 60 : MOST_CHUNKS));
        const size_t largest = (size_t)1 << random_next(&seed) % 17;
        for (int k = 0; k < count; k++)
            bytes[k] = random_next(&seed) % 8 == 0 ? 0 : random_next(&seed) % largest;
        const size_t most = (size_t)1 << (6 + random_next(&seed) % 11);
        prove((struct plan_bucket){BUCKET_ONESHOT, bytes, count, most}, n, started);
    }
}

/* Shares of the window plan: all chunks once, none much larger than its part of the bytes. */
Test(plan_bucket, shares_are_even)
{
    enum { CHUNKS = 200, BYTES = 4096 };
    size_t bytes[CHUNKS];
    for (int k = 0; k < CHUNKS; k++)
        bytes[k] = BYTES;
    for (int n = 2; n <= 16; n++) {
        const struct plan_bucket bucket = {BUCKET_WINDOW, bytes, CHUNKS, 16384};
        struct plan **plans = generate_all(&bucket, n);
        int all = 0;
        for (int r = 0; r < n; r++) {
            int mine = 0;
            for (int i = 0; i < plans[r]->nsteps; i++)
                mine += plans[r]->steps[i].of.count;
            cr_assert(mine >= CHUNKS / n && mine <= CHUNKS / n + 1, "rank %d of %d has %d chunks",
                      r, n, mine);
            all += mine;
        }
        cr_assert_eq(all, CHUNKS, "%d ranks reduce %d chunks", n, all);
        destroy_all(plans, n);
    }
}
