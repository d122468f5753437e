/* plan_window.c - algorithms that load from and store to peers' buffers, so that data is copied
 * once and never staged; links carry bare signals only.
 *
 * Nobody may touch a window before its owner has entered the operation: the engine sees to that.
 * At the end every rank waits until those that touch its buffers have said that they are done.
 * Signals follow the moves in one lane and are awaited in another, so that the pieces of the
 * next rounds, which are disjoint from this one's, need not wait. */
#include "plan_gen.h"

/* All to all: I am done with everybody's buffers. */
static void part_from_all(struct plan_builder *b, const struct plan_shape *s)
{
    plan_signal_others(b, s);
    plan_lane_begin(b);
    plan_wait_others(b, s);
}

/* Rank k reduces chunk k of all inputs in rank order and stores it to all outputs.
 * Hand-overs 1, and 2 S bytes of memory traffic per rank, which is the least.  In place: nobody but
 * rank k touches chunk k. */
enum kolo_status plan_gen_all_reduce_window(const struct plan_shape *s, struct plan **out)
{
    const int n = s->nranks;
    const int r = s->rank;
    struct plan_builder *b;
    TRY(plan_builder_create(s, "window", n, n, 0, &b));
    plan_lane_begin(b);
    plan_move(b, PLAN_OUT, plan_chunk(r), PLAN_FINAL);
    plan_to(b, PLAN_OUT, -1, 0, r);
    for (int i = 1; i < n; i++)
        plan_to(b, PLAN_PEER_OUT, plan_wrap(r, i, n), 0, r);
    plan_from_all(b, s, PLAN_PEER_IN, r);
    part_from_all(b, s);
    return plan_finish(b, out);
}

void plan_cost_all_reduce_window(const struct plan_shape *s, struct plan_cost *cost)
{
    *cost = (struct plan_cost){.hops = 1, .messages = 2.0 * (s->nranks - 1), .touched = 2};
}

/* Each reduces its chunk of all inputs.  Hand-overs 1, memory traffic S (n+1)/n. */
enum kolo_status plan_gen_reduce_scatter_window(const struct plan_shape *s, struct plan **out)
{
    struct plan_builder *b;
    TRY(plan_builder_create(s, "window", s->nranks, 1, 0, &b));
    plan_lane_begin(b);
    plan_move(b, PLAN_IN, plan_chunk(s->rank), PLAN_FINAL);
    plan_to(b, PLAN_OUT, -1, 0, 0);
    plan_from_all(b, s, PLAN_PEER_IN, s->rank);
    part_from_all(b, s);
    return plan_finish(b, out);
}

/* Each stores its chunk to all outputs.  Hand-overs 1, memory traffic S (n+1)/n. */
enum kolo_status plan_gen_all_gather_window(const struct plan_shape *s, struct plan **out)
{
    const int n = s->nranks;
    const int r = s->rank;
    struct plan_builder *b;
    TRY(plan_builder_create(s, "window", 1, n, 0, &b));
    plan_lane_begin(b);
    plan_move(b, PLAN_OUT, plan_chunk(r), 0);
    plan_to(b, PLAN_OUT, -1, 0, r);
    for (int i = 1; i < n; i++)
        plan_to(b, PLAN_PEER_OUT, plan_wrap(r, i, n), 0, r);
    plan_from(b, PLAN_IN, -1, 0, 0);
    part_from_all(b, s);
    return plan_finish(b, out);
}

/* Each reduces its share of all inputs into the root's output.  Hand-overs 1, memory traffic
 * S (n+1)/n. */
enum kolo_status plan_gen_reduce_window(const struct plan_shape *s, struct plan **out)
{
    const int n = s->nranks;
    const int r = s->rank;
    struct plan_builder *b;
    TRY(plan_builder_create(s, "window", n, plan_is_root(s) ? n : 0, 0, &b));
    plan_lane_begin(b);
    plan_move(b, PLAN_IN, plan_chunk(r), PLAN_FINAL);
    if (plan_is_root(s))
        plan_to(b, PLAN_OUT, -1, 0, r);
    else
        plan_to(b, PLAN_PEER_OUT, s->root, 0, r);
    plan_from_all(b, s, PLAN_PEER_IN, r);
    part_from_all(b, s);
    return plan_finish(b, out);
}

/* Of the three above. */
void plan_cost_share_window(const struct plan_shape *s, struct plan_cost *cost)
{
    const double n = s->nranks;
    *cost = (struct plan_cost){.hops = 1, .messages = 2 * (n - 1), .touched = (n + 1) / n};
}

/* Each fetches its chunk from every input.  Hand-overs 1, memory traffic 2 S.
 * Not in place: a rank would overwrite chunks that others have yet to read, and only a copy of the
 * input or another hand-over would help. */
enum kolo_status plan_gen_all_to_all_window(const struct plan_shape *s, struct plan **out)
{
    const int n = s->nranks;
    const int r = s->rank;
    struct plan_builder *b;
    TRY(plan_builder_create(s, "window", n, n, 0, &b));
    plan_lane_begin(b);
    plan_copy(b, r, r);
    for (int i = 1; i < n; i++) {
        const int k = plan_wrap(r, i, n);
        plan_move(b, PLAN_OUT, plan_chunk(k), 0);
        plan_to(b, PLAN_OUT, -1, 0, k);
        plan_from(b, PLAN_PEER_IN, k, 0, r);
    }
    part_from_all(b, s);
    return plan_finish(b, out);
}

void plan_cost_all_to_all_window(const struct plan_shape *s, struct plan_cost *cost)
{
    *cost = (struct plan_cost){.hops = 1, .messages = 2.0 * (s->nranks - 1), .touched = 2};
}

/* Rank k copies chunk k of the root's input to all outputs but the root's, so that all share the
 * work.  Hand-overs 1, memory traffic S per rank.  The root copies for itself after the others are
 * done: in place, its output is what they read. */
enum kolo_status plan_gen_broadcast_window(const struct plan_shape *s, struct plan **out)
{
    const int n = s->nranks;
    const int r = s->rank;
    struct plan_builder *b;
    TRY(plan_builder_create(s, "window", plan_is_root(s) ? n : 0, n, 0, &b));
    plan_lane_begin(b);
    plan_move(b, PLAN_OUT, plan_chunk(r), 0);
    if (!plan_is_root(s))
        plan_to(b, PLAN_OUT, -1, 0, r);
    for (int i = 1; i < n; i++)
        if (plan_wrap(r, i, n) != s->root)
            plan_to(b, PLAN_PEER_OUT, plan_wrap(r, i, n), 0, r);
    if (plan_is_root(s))
        plan_from(b, PLAN_IN, -1, 0, r);
    else
        plan_from(b, PLAN_PEER_IN, s->root, 0, r);
    if (!plan_is_root(s)) {
        part_from_all(b, s);
        return plan_finish(b, out);
    }
    plan_signal_others(b, s);
    plan_wait_others(b, s);
    plan_move(b, PLAN_OUT, plan_chunks(0, n), 0);
    plan_to(b, PLAN_OUT, -1, 0, 0);
    plan_from(b, PLAN_IN, -1, 0, 0);
    return plan_finish(b, out);
}

void plan_cost_broadcast_window(const struct plan_shape *s, struct plan_cost *cost)
{
    *cost = (struct plan_cost){.hops = 1, .messages = 2.0 * (s->nranks - 1), .touched = 3};
}
