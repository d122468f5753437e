/* test_plan_proof.c - every algorithm is proven for every number of ranks to 64, and sampled to
 * 1,024.  More slots never block, and fewer never race: 2 slots and more slots than messages
 * together prove any number of slots from 2 on. */
#include "support/test.h"
#include "support/variant.h"

#include "mem.h"
#include "plan.h"

#include <stdlib.h>
#include <string.h>

enum {
    EXACT_RANKS = 64,
    ALL_ROOTS = 9, /* to so many ranks, every root is tried */
    ENDLESS = 1 << 20,
    /* A sample must not take long: operands of all ranks, and chunks that they move. */
    MOST_OPERANDS = 100000,
    MOST_CHUNKS = 12000000,
};

static struct plan **generate_all(const struct plan_algo *a, struct plan_shape shape)
{
    struct plan **plans = calloc((size_t)shape.nranks, sizeof(struct plan *));
    cr_assert_not_null(plans);
    for (shape.rank = 0; shape.rank < shape.nranks; shape.rank++)
        cr_assert_eq(plan_generate(a, &shape, &plans[shape.rank]), KOLO_OK, "%s", fail_text());
    return plans;
}

static void destroy_all(struct plan **plans, int n)
{
    for (int r = 0; r < n; r++)
        plan_destroy(plans[r]);
    free(plans);
}

static void prove(const struct plan_algo *a, const struct plan_shape *shape)
{
    const int slots[] = {2, ENDLESS, 4};
    if (shape->nranks > 1 && !plan_algo_can(a, shape))
        return;
    struct plan **plans = generate_all(shape->nranks > 1 ? a : NULL, *shape);
    for (int i = 0; i < (shape->nranks <= 16 ? 3 : 2); i++) {
        const struct plan_limits limits = {.slots = slots[i],
                                           .not_in_place = (a->flags & ALGO_NOT_IN_PLACE) != 0};
        cr_assert_eq(plan_verify(plans, shape->nranks, &limits), KOLO_OK,
                     "%s (root %d, %d blocks, %d slots)", fail_text(), shape->root, shape->blocks,
                     slots[i]);
    }
    destroy_all(plans, shape->nranks);
}

static void prove_roots(const struct plan_algo *a, enum kolo_coll coll, int n, int blocks)
{
    for (int root = 0; root < (coll_has_root(coll) ? n : 1); root++) {
        const struct plan_shape shape = {.coll = coll, .nranks = n, .root = root, .blocks = blocks};
        if (n <= ALL_ROOTS || root <= 1 || root == n / 2 || root == n - 1)
            prove(a, &shape);
    }
}

/* All algorithms of one collective and of its v-variant. */
static void prove_collective(enum kolo_coll coll)
{
    size_t count;
    const struct plan_algo *algos = plan_algos(&count);
    int found = 0;
    for (size_t i = 0; i < count; i++) {
        if (algos[i].coll != coll)
            continue;
        found++;
        for (int n = 1; n <= EXACT_RANKS; n++) {
            prove_roots(&algos[i], coll, n, 0);
            if (algos[i].flags & ALGO_V)
                prove_roots(&algos[i], variant(coll), n, 0);
        }
    }
    cr_assert_gt(found, 0, "no algorithm for %s", kolo_coll_name((int)coll));
}

Test(plan_proof, all_reduce)
{
    prove_collective(KOLO_COLL_ALL_REDUCE);
}

Test(plan_proof, reduce_scatter)
{
    prove_collective(KOLO_COLL_REDUCE_SCATTER);
}

Test(plan_proof, all_gather)
{
    prove_collective(KOLO_COLL_ALL_GATHER);
}

Test(plan_proof, all_to_all)
{
    prove_collective(KOLO_COLL_ALL_TO_ALL);
}

Test(plan_proof, broadcast)
{
    prove_collective(KOLO_COLL_BROADCAST);
}

Test(plan_proof, reduce)
{
    prove_collective(KOLO_COLL_REDUCE);
}

Test(plan_proof, gather)
{
    prove_collective(KOLO_COLL_GATHER);
}

Test(plan_proof, scatter)
{
    prove_collective(KOLO_COLL_SCATTER);
}

Test(plan_proof, barrier)
{
    prove_collective(KOLO_COLL_BARRIER);
}

Test(plan_proof, every_number_of_blocks)
{
    size_t count;
    const struct plan_algo *algos = plan_algos(&count);
    for (size_t i = 0; i < count; i++)
        for (int n = 2; n <= 17; n++)
            for (int blocks = 1; blocks <= 9; blocks++)
                prove_roots(&algos[i], algos[i].coll, n, blocks);
}

Test(plan_proof, send_and_recv)
{
    for (int sender = 0; sender < 2; sender++) {
        struct plan *plans[2];
        for (int r = 0; r < 2; r++) {
            const struct plan_shape shape = {.coll = r == sender ? KOLO_COLL_SEND : KOLO_COLL_RECV,
                                             .nranks = 2,
                                             .rank = r,
                                             .root = 1 - r};
            cr_assert_eq(plan_generate(NULL, &shape, &plans[r]), KOLO_OK, "%s", fail_text());
        }
        const struct plan_limits limits = {.slots = 1};
        cr_assert_eq(plan_verify(plans, 2, &limits), KOLO_OK, "%s", fail_text());
        plan_destroy(plans[0]);
        plan_destroy(plans[1]);
    }
}

static bool is_affordable(const struct plan_algo *a, const struct plan_shape *shape)
{
    struct plan *p;
    cr_assert_eq(plan_generate(a, shape, &p), KOLO_OK, "%s", fail_text());
    int64_t chunks = 0;
    for (int i = 0; i < p->nsteps; i++)
        chunks += (int64_t)p->steps[i].of.count * (p->steps[i].ndst + p->steps[i].nsrc);
    const int64_t n = shape->nranks;
    const bool is_small = p->noperands * n <= MOST_OPERANDS && chunks * n <= MOST_CHUNKS;
    plan_destroy(p);
    return is_small;
}

static int prove_sample(const struct plan_algo *a, enum kolo_coll coll, int n)
{
    struct plan_shape shape = {.coll = coll, .nranks = n, .root = coll_has_root(coll) ? n / 3 : 0};
    shape.rank = shape.root;
    if (!plan_algo_can(a, &shape) || !is_affordable(a, &shape))
        return 0;
    struct plan **plans = generate_all(a, shape);
    const struct plan_limits limits = {.slots = 2,
                                       .not_in_place = (a->flags & ALGO_NOT_IN_PLACE) != 0};
    cr_assert_eq(plan_verify_hashed(plans, n, &limits, (uint64_t)n * 12345), KOLO_OK, "%s",
                 fail_text());
    destroy_all(plans, n);
    return 1;
}

Test(plan_proof, samples_to_1024)
{
    static const int ranks[] = {96, 100, 127, 128, 255, 256, 511, 777, 1000, 1024};
    size_t count;
    const struct plan_algo *algos = plan_algos(&count);
    for (size_t k = 0; k < ARRAY_LEN(ranks); k++) {
        int proven = 0;
        for (size_t i = 0; i < count; i++) {
            proven += prove_sample(&algos[i], algos[i].coll, ranks[k]);
            if (algos[i].flags & ALGO_V)
                proven += prove_sample(&algos[i], variant(algos[i].coll), ranks[k]);
        }
        cr_assert_gt(proven, 10, "of %d ranks only %d plans are small enough", ranks[k], proven);
    }
    cr_assert_eq(mem_live(), 0);
}
