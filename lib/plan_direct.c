/* plan_direct.c - algorithms of one or two hand-overs in which every rank speaks to every other,
 * and those of a single rank or pair.  The fewest rounds there are, and n - 1 messages per rank:
 * for few ranks on one machine or switch.  Each chunk is reduced in one move, in rank order, so
 * results do not depend on timing, and on few other things.
 *
 * The peers of a rank are taken from r + 1 on, so that no rank is the first of all others. */
#include "plan_gen.h"

/* ---- one rank, one pair ---------------------------------------------------------------------- */

/* Any collective of one rank: the input is the result. */
enum kolo_status plan_gen_copy(const struct plan_shape *s, struct plan **out)
{
    const int nchunks = s->coll == KOLO_COLL_BARRIER ? 0 : 1;
    struct plan_builder *b;
    TRY(plan_builder_create(s, "copy", nchunks, nchunks, 0, &b));
    plan_lane_begin(b);
    if (nchunks > 0) {
        plan_move(b, PLAN_OUT, plan_chunk(0), plan_is_reducing(s->coll) ? PLAN_FINAL : 0);
        plan_to(b, PLAN_OUT, -1, 0, 0);
        plan_from(b, PLAN_IN, -1, 0, 0);
    }
    return plan_finish(b, out);
}

enum kolo_status plan_gen_send(const struct plan_shape *s, struct plan **out)
{
    struct plan_builder *b;
    TRY(plan_builder_create(s, "direct", 1, 0, 0, &b));
    plan_lane_begin(b);
    plan_send(b, PLAN_IN, plan_chunk(0), s->root, 0);
    return plan_finish(b, out);
}

enum kolo_status plan_gen_recv(const struct plan_shape *s, struct plan **out)
{
    struct plan_builder *b;
    TRY(plan_builder_create(s, "direct", 0, 1, 0, &b));
    plan_lane_begin(b);
    plan_receive(b, plan_chunk(0), s->root, 0);
    return plan_finish(b, out);
}

/* ---- all_reduce ------------------------------------------------------------------------------ */

/* One-shot: everybody gets every vector and reduces for itself.
 * Rounds 1, bytes sent (n-1) S.  One lane: in place, the sum may overwrite the vector only after it
 * was sent. */
enum kolo_status plan_gen_oneshot(const struct plan_shape *s, struct plan **out)
{
    struct plan_builder *b;
    TRY(plan_builder_create(s, "oneshot", 1, 1, 0, &b));
    plan_lane_begin(b);
    plan_move(b, PLAN_IN, plan_chunk(0), 0);
    plan_to_others(b, s, 0);
    plan_from(b, PLAN_IN, -1, 0, 0);
    plan_move(b, PLAN_OUT, plan_chunk(0), PLAN_FINAL);
    plan_to(b, PLAN_OUT, -1, 0, 0);
    plan_from_all(b, s, PLAN_LINK, 0);
    return plan_finish(b, out);
}

void plan_cost_oneshot(const struct plan_shape *s, struct plan_cost *cost)
{
    const double n = s->nranks;
    *cost = (struct plan_cost){.hops = 1, .messages = 2 * (n - 1), .sent = n - 1, .touched = n + 3};
}

/* Two-shot: rank k reduces chunk k of all vectors and gives it to all.
 * Rounds 2, bytes sent 2 S (n-1)/n.  Rounds overlap in three lanes: scatter, reduce, gather.  In
 * place: chunk k is overwritten by the gather after k has reduced it, so after it was sent. */
enum kolo_status plan_gen_twoshot(const struct plan_shape *s, struct plan **out)
{
    const int n = s->nranks;
    const int r = s->rank;
    struct plan_builder *b;
    TRY(plan_builder_create(s, "twoshot", n, n, 0, &b));
    plan_lane_begin(b);
    for (int i = 1; i < n; i++)
        plan_send(b, PLAN_IN, plan_chunk(plan_wrap(r, i, n)), plan_wrap(r, i, n), 0);
    plan_lane_begin(b);
    plan_move(b, PLAN_OUT, plan_chunk(r), PLAN_FINAL);
    plan_to(b, PLAN_OUT, -1, 0, r);
    plan_to_others(b, s, 1);
    plan_from_all(b, s, PLAN_LINK, r);
    plan_lane_begin(b);
    for (int i = 1; i < n; i++)
        plan_receive(b, plan_chunk(plan_wrap(r, -i, n)), plan_wrap(r, -i, n), 1);
    return plan_finish(b, out);
}

void plan_cost_twoshot(const struct plan_shape *s, struct plan_cost *cost)
{
    const double n = s->nranks;
    *cost = (struct plan_cost){.hops = 2,
                               .messages = 4 * (n - 1),
                               .sent = 2 * (n - 1) / n,
                               .touched = 1 + 2 / n + 4 * (n - 1) / n};
}

/* ---- reduce_scatter, all_gather -------------------------------------------------------------- */

/* Everybody sends chunk k to rank k, which reduces.  Rounds 1, bytes sent S (n-1)/n. */
enum kolo_status plan_gen_reduce_scatter_direct(const struct plan_shape *s, struct plan **out)
{
    const int n = s->nranks;
    const int r = s->rank;
    struct plan_builder *b;
    TRY(plan_builder_create(s, "direct", n, 1, 0, &b));
    plan_lane_begin(b);
    for (int i = 1; i < n; i++)
        plan_send(b, PLAN_IN, plan_chunk(plan_wrap(r, i, n)), plan_wrap(r, i, n), 0);
    plan_lane_begin(b);
    plan_move(b, PLAN_IN, plan_chunk(r), PLAN_FINAL);
    plan_to(b, PLAN_OUT, -1, 0, 0);
    plan_from_all(b, s, PLAN_LINK, r);
    return plan_finish(b, out);
}

/* Everybody sends its chunk to all others, in one pass over it.  Rounds 1, bytes sent S (n-1)/n. */
enum kolo_status plan_gen_all_gather_direct(const struct plan_shape *s, struct plan **out)
{
    const int n = s->nranks;
    const int r = s->rank;
    struct plan_builder *b;
    TRY(plan_builder_create(s, "direct", 1, n, 0, &b));
    plan_lane_begin(b);
    plan_move(b, PLAN_OUT, plan_chunk(r), 0);
    plan_to(b, PLAN_OUT, -1, 0, r);
    plan_to_others(b, s, 0);
    plan_from(b, PLAN_IN, -1, 0, 0);
    plan_lane_begin(b);
    for (int i = 1; i < n; i++)
        plan_receive(b, plan_chunk(plan_wrap(r, -i, n)), plan_wrap(r, -i, n), 0);
    return plan_finish(b, out);
}

/* Of both. */
void plan_cost_scatter_direct(const struct plan_shape *s, struct plan_cost *cost)
{
    const double n = s->nranks;
    const bool reduces = plan_is_reducing(s->coll); /* else the vector is written once for all */
    *cost = (struct plan_cost){.hops = 1,
                               .messages = 2 * (n - 1),
                               .sent = (n - 1) / n,
                               .touched = reduces ? 3 - 1 / n : 2 + 1 / n};
}

/* ---- broadcast, reduce ----------------------------------------------------------------------- */

/* The root gives the whole vector to each.  Rounds 1, bytes sent (n-1) S at the root. */
enum kolo_status plan_gen_broadcast_flat(const struct plan_shape *s, struct plan **out)
{
    struct plan_builder *b;
    TRY(plan_builder_create(s, "flat", plan_is_root(s), 1, 0, &b));
    plan_lane_begin(b);
    if (plan_is_root(s)) {
        plan_move(b, PLAN_OUT, plan_chunk(0), 0);
        plan_to(b, PLAN_OUT, -1, 0, 0);
        plan_to_others(b, s, 0);
        plan_from(b, PLAN_IN, -1, 0, 0);
    } else {
        plan_receive(b, plan_chunk(0), s->root, 0);
    }
    return plan_finish(b, out);
}

/* The reverse: the root reduces all vectors in one move.  Rounds 1, bytes received (n-1) S. */
enum kolo_status plan_gen_reduce_flat(const struct plan_shape *s, struct plan **out)
{
    struct plan_builder *b;
    TRY(plan_builder_create(s, "flat", 1, plan_is_root(s), 0, &b));
    plan_lane_begin(b);
    if (plan_is_root(s)) {
        plan_move(b, PLAN_OUT, plan_chunk(0), PLAN_FINAL);
        plan_to(b, PLAN_OUT, -1, 0, 0);
        plan_from_all(b, s, PLAN_LINK, 0);
    } else {
        plan_send(b, PLAN_IN, plan_chunk(0), s->root, 0);
    }
    return plan_finish(b, out);
}

/* Of both. */
void plan_cost_flat(const struct plan_shape *s, struct plan_cost *cost)
{
    const double n = s->nranks;
    const bool reduces = plan_is_reducing(s->coll); /* else the vector is written once for all */
    *cost = (struct plan_cost){.hops = 1,
                               .messages = n - 1,
                               .sent = n - 1,
                               .touched = reduces ? n + 1 : 3,
                               .total = reduces ? 3 * n - 1 : 2 * n + 1,
                               .link = 1};
}

static void scatter_gather_root(struct plan_builder *b, const struct plan_shape *s)
{
    for (int i = 1; i < s->nranks; i++) {
        plan_move(b, PLAN_OUT, plan_chunk(i - 1), 0);
        plan_to(b, PLAN_OUT, -1, 0, i - 1);
        plan_to(b, PLAN_LINK, plan_wrap(s->root, i, s->nranks), 0, 0);
        plan_from(b, PLAN_IN, -1, 0, i - 1);
    }
}

/* The i-th rank after the root passes chunk i-1 on to all but the root, and gets theirs. */
static void scatter_gather_other(struct plan_builder *b, const struct plan_shape *s)
{
    const int n = s->nranks;
    const int me = plan_wrap(s->rank, -s->root, n);
    plan_move(b, PLAN_OUT, plan_chunk(me - 1), 0);
    plan_to(b, PLAN_OUT, -1, 0, me - 1);
    for (int i = 1; i < n - 1; i++) {
        const int other = (me - 1 + i) % (n - 1) + 1;
        plan_to(b, PLAN_LINK, plan_wrap(s->root, other, n), 1, 0);
    }
    plan_from(b, PLAN_LINK, s->root, 0, 0);
    plan_lane_begin(b);
    for (int i = 1; i < n - 1; i++) {
        const int other = (me - 1 + (n - 1) - i) % (n - 1) + 1;
        plan_receive(b, plan_chunk(other - 1), plan_wrap(s->root, other, n), 1);
    }
}

/* Scatter over the n-1 others, which then gather directly: every rank sends and receives at most S.
 * Rounds 2, bytes sent S at the root, S (n-2)/(n-1) elsewhere.
 * After van de Geijn's broadcast, with n-1 parts since the root needs none. */
enum kolo_status plan_gen_scatter_gather(const struct plan_shape *s, struct plan **out)
{
    const int nchunks = s->nranks - 1;
    struct plan_builder *b;
    TRY(plan_builder_create(s, "scatter_gather", plan_is_root(s) ? nchunks : 0, nchunks, 0, &b));
    plan_lane_begin(b);
    if (plan_is_root(s))
        scatter_gather_root(b, s);
    else
        scatter_gather_other(b, s);
    return plan_finish(b, out);
}

void plan_cost_scatter_gather(const struct plan_shape *s, struct plan_cost *cost)
{
    const double n = s->nranks;
    *cost = (struct plan_cost){
        .hops = n > 2 ? 2 : 1, .messages = 2 * n - 3, .sent = 1, .touched = 3, .total = 3 * n - 1};
}

/* Rank k reduces chunk k of all vectors and gives it to the root: the work of the reduction is
 * shared.  Rounds 2, bytes received 2 S (n-1)/n at the root, S (n-1)/n elsewhere.  In place at the
 * root: chunk k is overwritten after rank k has reduced it, so after it was sent. */
enum kolo_status plan_gen_reduce_twoshot(const struct plan_shape *s, struct plan **out)
{
    const int n = s->nranks;
    const int r = s->rank;
    struct plan_builder *b;
    TRY(plan_builder_create(s, "twoshot", n, plan_is_root(s) ? n : 0, 0, &b));
    plan_lane_begin(b);
    for (int i = 1; i < n; i++)
        plan_send(b, PLAN_IN, plan_chunk(plan_wrap(r, i, n)), plan_wrap(r, i, n), 0);
    plan_lane_begin(b);
    plan_move(b, PLAN_IN, plan_chunk(r), PLAN_FINAL);
    if (plan_is_root(s))
        plan_to(b, PLAN_OUT, -1, 0, r);
    else
        plan_to(b, PLAN_LINK, s->root, 1, 0);
    plan_from_all(b, s, PLAN_LINK, r);
    if (plan_is_root(s)) {
        plan_lane_begin(b);
        for (int i = 1; i < n; i++)
            plan_receive(b, plan_chunk(plan_wrap(r, -i, n)), plan_wrap(r, -i, n), 1);
    }
    return plan_finish(b, out);
}

void plan_cost_reduce_twoshot(const struct plan_shape *s, struct plan_cost *cost)
{
    const double n = s->nranks;
    *cost = (struct plan_cost){.hops = 2,
                               .messages = 3 * (n - 1),
                               .sent = 2 * (n - 1) / n,
                               .touched = 1 + 1 / n + 4 * (n - 1) / n,
                               .total = 3 * n - 1 + 2 * (n - 1) / n};
}

/* ---- gather, scatter, barrier ---------------------------------------------------------------- */

/* Each to the root.  Rounds 1, bytes received S (n-1)/n. */
enum kolo_status plan_gen_gather_direct(const struct plan_shape *s, struct plan **out)
{
    const int n = s->nranks;
    struct plan_builder *b;
    TRY(plan_builder_create(s, "direct", 1, plan_is_root(s) ? n : 0, 0, &b));
    plan_lane_begin(b);
    if (plan_is_root(s)) {
        plan_copy(b, s->root, 0);
        for (int i = 1; i < n; i++)
            plan_receive(b, plan_chunk(plan_wrap(s->root, i, n)), plan_wrap(s->root, i, n), 0);
    } else {
        plan_send(b, PLAN_IN, plan_chunk(0), s->root, 0);
    }
    return plan_finish(b, out);
}

/* The root to each.  Rounds 1, bytes sent S (n-1)/n. */
enum kolo_status plan_gen_scatter_direct(const struct plan_shape *s, struct plan **out)
{
    const int n = s->nranks;
    struct plan_builder *b;
    TRY(plan_builder_create(s, "direct", plan_is_root(s) ? n : 0, 1, 0, &b));
    plan_lane_begin(b);
    if (plan_is_root(s)) {
        for (int i = 1; i < n; i++)
            plan_send(b, PLAN_IN, plan_chunk(plan_wrap(s->root, i, n)), plan_wrap(s->root, i, n),
                      0);
        plan_copy(b, 0, s->root);
    } else {
        plan_receive(b, plan_chunk(0), s->root, 0);
    }
    return plan_finish(b, out);
}

/* Of both. */
void plan_cost_gather_direct(const struct plan_shape *s, struct plan_cost *cost)
{
    const double n = s->nranks;
    *cost = (struct plan_cost){.hops = 1,
                               .messages = n - 1,
                               .sent = (n - 1) / n,
                               .touched = 2,
                               .total = 4 - 2 / n,
                               .link = 1 / n};
}

/* A signal to each, then a wait for each: one hand-over, which is what counts when there are more
 * ranks than cores.  Rounds 1. */
enum kolo_status plan_gen_barrier_flat(const struct plan_shape *s, struct plan **out)
{
    struct plan_builder *b;
    TRY(plan_builder_create(s, "flat", 0, 0, 0, &b));
    plan_lane_begin(b);
    plan_signal_others(b, s);
    plan_wait_others(b, s);
    return plan_finish(b, out);
}

void plan_cost_barrier_flat(const struct plan_shape *s, struct plan_cost *cost)
{
    *cost = (struct plan_cost){.hops = 1, .messages = 2.0 * (s->nranks - 1)};
}
