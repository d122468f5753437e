/* plan_ring.c - rings and chains: each rank hears only the one before it and speaks only to the one
 * after it.  Least bytes and most rounds: for long vectors, where the pieces of many rounds are on
 * their way at the same time.  The position in the ring is the rank.
 *
 *   chunk k starts at rank k+1, is summed on its way round, complete at rank k, then carried round
 *   once more
 *
 * Every link holds at least two messages: with one each, a ring of full links stands still. */
#include "plan_gen.h"

static int before(const struct plan_shape *s, int distance)
{
    return plan_wrap(s->rank, -distance, s->nranks);
}

static int next(const struct plan_shape *s)
{
    return plan_wrap(s->rank, 1, s->nranks);
}

/* All but the last step of the summing way round: send chunk r-1, then add to r-2 ... r+1. */
static void sum_around(struct plan_builder *b, const struct plan_shape *s)
{
    plan_send(b, PLAN_IN, plan_chunk(before(s, 1)), next(s), 0);
    for (int j = 2; j < s->nranks; j++) {
        plan_move(b, PLAN_IN, plan_chunk(before(s, j)), 0);
        plan_to(b, PLAN_LINK, next(s), 0, 0);
        plan_from(b, PLAN_LINK, before(s, 1), 0, 0);
        plan_from(b, PLAN_IN, -1, 0, before(s, j));
    }
}

/* Store the chunk of rank r-j, which arrives on channel `in`, and pass it on on channel `on`. */
static void pass_on(struct plan_builder *b, const struct plan_shape *s, int j, int in, int on)
{
    plan_move(b, PLAN_OUT, plan_chunk(before(s, j)), 0);
    plan_to(b, PLAN_OUT, -1, 0, before(s, j));
    plan_to(b, PLAN_LINK, next(s), on, 0);
    plan_from(b, PLAN_LINK, before(s, 1), in, 0);
}

/* Rounds 2 (n-1), bytes sent 2 S (n-1)/n (Patarasuk and Yuan 2009).  Two lanes: the sums of the
 * next pieces go round while the results of the last ones do.  Channel 0 carries sums, 1 the
 * fresh results, 2 the results that are passed on, since each belongs to one lane at either end.
 * In place: a result arrives after this rank's part of it has left. */
enum kolo_status plan_gen_all_reduce_ring(const struct plan_shape *s, struct plan **out)
{
    const int n = s->nranks;
    const int r = s->rank;
    struct plan_builder *b;
    TRY(plan_builder_create(s, "ring", n, n, 0, &b));
    plan_lane_begin(b);
    sum_around(b, s);
    plan_move(b, PLAN_OUT, plan_chunk(r), PLAN_FINAL);
    plan_to(b, PLAN_OUT, -1, 0, r);
    plan_to(b, PLAN_LINK, next(s), 1, 0);
    plan_from(b, PLAN_LINK, before(s, 1), 0, 0);
    plan_from(b, PLAN_IN, -1, 0, r);
    plan_lane_begin(b);
    for (int j = 1; j < n - 1; j++)
        pass_on(b, s, j, j == 1 ? 1 : 2, 2);
    plan_receive(b, plan_chunk(next(s)), before(s, 1), n == 2 ? 1 : 2);
    return plan_finish(b, out);
}

void plan_cost_all_reduce_ring(const struct plan_shape *s, struct plan_cost *cost)
{
    const double n = s->nranks;
    *cost = (struct plan_cost){.hops = 2 * (n - 1),
                               .messages = 4 * (n - 1),
                               .sent = 2 * (n - 1) / n,
                               .touched = (6 * n - 4) / n};
}

/* Rounds n-1, bytes sent S (n-1)/n. */
enum kolo_status plan_gen_reduce_scatter_ring(const struct plan_shape *s, struct plan **out)
{
    struct plan_builder *b;
    TRY(plan_builder_create(s, "ring", s->nranks, 1, 0, &b));
    plan_lane_begin(b);
    sum_around(b, s);
    plan_move(b, PLAN_IN, plan_chunk(s->rank), PLAN_FINAL);
    plan_to(b, PLAN_OUT, -1, 0, 0);
    plan_from(b, PLAN_LINK, before(s, 1), 0, 0);
    plan_from(b, PLAN_IN, -1, 0, s->rank);
    return plan_finish(b, out);
}

/* Rounds n-1, bytes sent S (n-1)/n. */
enum kolo_status plan_gen_all_gather_ring(const struct plan_shape *s, struct plan **out)
{
    struct plan_builder *b;
    TRY(plan_builder_create(s, "ring", 1, s->nranks, 0, &b));
    plan_lane_begin(b);
    plan_move(b, PLAN_OUT, plan_chunk(s->rank), 0);
    plan_to(b, PLAN_OUT, -1, 0, s->rank);
    plan_to(b, PLAN_LINK, next(s), 0, 0);
    plan_from(b, PLAN_IN, -1, 0, 0);
    for (int j = 1; j < s->nranks - 1; j++)
        pass_on(b, s, j, 0, 0);
    plan_receive(b, plan_chunk(next(s)), before(s, 1), 0);
    return plan_finish(b, out);
}

/* Of both. */
void plan_cost_half_ring(const struct plan_shape *s, struct plan_cost *cost)
{
    const double n = s->nranks;
    *cost = (struct plan_cost){
        .hops = n - 1, .messages = 2 * (n - 1), .sent = (n - 1) / n, .touched = (3 * n - 1) / n};
}

/* From the root through all ranks.  Rounds n-1 for the first piece and one for each that follows;
 * bytes sent S. */
enum kolo_status plan_gen_broadcast_chain(const struct plan_shape *s, struct plan **out)
{
    const bool is_last = next(s) == s->root;
    struct plan_builder *b;
    TRY(plan_builder_create(s, "chain", plan_is_root(s), 1, 0, &b));
    plan_lane_begin(b);
    plan_move(b, PLAN_OUT, plan_chunk(0), 0);
    plan_to(b, PLAN_OUT, -1, 0, 0);
    if (!is_last)
        plan_to(b, PLAN_LINK, next(s), 0, 0);
    if (plan_is_root(s))
        plan_from(b, PLAN_IN, -1, 0, 0);
    else
        plan_from(b, PLAN_LINK, before(s, 1), 0, 0);
    return plan_finish(b, out);
}

/* The reverse: sums go against the ranks' order to the root.  Rounds n-1, bytes sent S. */
enum kolo_status plan_gen_reduce_chain(const struct plan_shape *s, struct plan **out)
{
    const bool is_first = next(s) == s->root;
    struct plan_builder *b;
    TRY(plan_builder_create(s, "chain", 1, plan_is_root(s), 0, &b));
    plan_lane_begin(b);
    plan_move(b, PLAN_IN, plan_chunk(0), plan_is_root(s) ? PLAN_FINAL : 0);
    if (plan_is_root(s))
        plan_to(b, PLAN_OUT, -1, 0, 0);
    else
        plan_to(b, PLAN_LINK, before(s, 1), 0, 0);
    plan_from(b, PLAN_IN, -1, 0, 0);
    if (!is_first)
        plan_from(b, PLAN_LINK, next(s), 0, 0);
    return plan_finish(b, out);
}

/* Of both. */
void plan_cost_chain(const struct plan_shape *s, struct plan_cost *cost)
{
    const double n = s->nranks;
    *cost = (struct plan_cost){.hops = n - 1,
                               .messages = n > 2 ? 2 : 1,
                               .sent = 1,
                               .touched = 3,
                               .total = 3 * n - 1,
                               .link = 1};
}
