/* plan_exchange.c - algorithms in which ranks exchange with one partner at a time: all-to-all in
 * its three forms, recursive doubling, and the dissemination barrier.  A rank always sends
 * before it receives, in one lane, so that nobody waits for somebody who waits. */
#include "plan_gen.h"

/* ---- all_to_all ------------------------------------------------------------------------------ */

/* All sends, then all receives.  Rounds 1, bytes sent S (n-1)/n.
 * In place: within a round nothing is overwritten before everything was sent. */
enum kolo_status plan_gen_all_to_all_direct(const struct plan_shape *s, struct plan **out)
{
    const int n = s->nranks;
    const int r = s->rank;
    struct plan_builder *b;
    TRY(plan_builder_create(s, "direct", n, n, 0, &b));
    plan_lane_begin(b);
    for (int i = 1; i < n; i++)
        plan_send(b, PLAN_IN, plan_chunk(plan_wrap(r, i, n)), plan_wrap(r, i, n), 0);
    plan_copy(b, r, r);
    for (int i = 1; i < n; i++)
        plan_receive(b, plan_chunk(plan_wrap(r, -i, n)), plan_wrap(r, -i, n), 0);
    return plan_finish(b, out);
}

void plan_cost_all_to_all_direct(const struct plan_shape *s, struct plan_cost *cost)
{
    const double n = s->nranks;
    *cost = (struct plan_cost){
        .hops = 1, .messages = 2 * (n - 1), .sent = (n - 1) / n, .touched = (4 * n - 2) / n};
}

/* In round t = 0 .. n-1 rank r exchanges with rank (t - r) mod n, which exchanges with r; so
 * chunk k is sent just before it is overwritten, in place, for any n.  Rounds n (one each for
 * itself), bytes sent S (n-1)/n, at most one message under way per pair. */
enum kolo_status plan_gen_all_to_all_pairwise(const struct plan_shape *s, struct plan **out)
{
    const int n = s->nranks;
    struct plan_builder *b;
    TRY(plan_builder_create(s, "pairwise", n, n, 0, &b));
    plan_lane_begin(b);
    for (int t = 0; t < n; t++) {
        const int peer = plan_wrap(t, -s->rank, n);
        if (peer == s->rank) {
            plan_copy(b, peer, peer);
        } else {
            plan_send(b, PLAN_IN, plan_chunk(peer), peer, 0);
            plan_receive(b, plan_chunk(peer), peer, 0);
        }
    }
    return plan_finish(b, out);
}

void plan_cost_all_to_all_pairwise(const struct plan_shape *s, struct plan_cost *cost)
{
    plan_cost_all_to_all_direct(s, cost);
    cost->hops = s->nranks > 2 ? s->nranks : 1;
}

/* The indices i < n that have bit k set: runs of 2^k, every 2^(k+1), from 2^k on. */
static struct plan_span bit_span(int k, int n)
{
    const int run = 1 << k;
    const int whole = n / (2 * run) * run;
    const int rest = max_int(n % (2 * run) - run, 0);
    return (struct plan_span){run, run, 2 * run, whole + rest};
}

/* Exchange the scratch blocks of bit k of their distance: out to r + 2^k, in from r - 2^k. */
static void bruck_round(struct plan_builder *b, const struct plan_shape *s, int k)
{
    const struct plan_span of = bit_span(k, s->nranks);
    plan_move(b, PLAN_IN, of, 0);
    plan_to(b, PLAN_LINK, plan_wrap(s->rank, 1 << k, s->nranks), 0, 0);
    plan_from(b, PLAN_TMP, -1, 0, of.chunk);
    plan_move(b, PLAN_IN, of, 0);
    plan_to(b, PLAN_TMP, -1, 0, of.chunk);
    plan_from(b, PLAN_LINK, plan_wrap(s->rank, -(1 << k), s->nranks), 0, 0);
}

/* Bruck: block i of the scratch has i ranks to go; each round carries the blocks with bit k of i
 * set 2^k ranks on.  Rounds L, bytes sent about S L/2: for short messages.  In place: the input
 * is copied to scratch first. */
enum kolo_status plan_gen_all_to_all_bruck(const struct plan_shape *s, struct plan **out)
{
    const int n = s->nranks;
    const int r = s->rank;
    struct plan_builder *b;
    TRY(plan_builder_create(s, "bruck", n, n, n, &b));
    plan_lane_begin(b);
    plan_copy(b, r, r);
    plan_move(b, PLAN_IN, plan_chunks(plan_wrap(r, 1, n), n - 1), 0);
    plan_to(b, PLAN_TMP, -1, 0, 1);
    plan_from(b, PLAN_IN, -1, 0, plan_wrap(r, 1, n));
    for (int k = 0; k < plan_log2_up(n); k++)
        bruck_round(b, s, k);
    for (int i = 1; i < n; i++) {
        plan_move(b, PLAN_OUT, plan_chunk(plan_wrap(r, -i, n)), 0);
        plan_to(b, PLAN_OUT, -1, 0, plan_wrap(r, -i, n));
        plan_from(b, PLAN_TMP, -1, 0, i);
    }
    return plan_finish(b, out);
}

void plan_cost_all_to_all_bruck(const struct plan_shape *s, struct plan_cost *cost)
{
    const double n = s->nranks;
    const int rounds = plan_log2_up(s->nranks);
    double blocks = 0;
    for (int k = 0; k < rounds; k++)
        blocks += bit_span(k, s->nranks).count;
    *cost = (struct plan_cost){.hops = rounds,
                               .messages = 2 * rounds,
                               .sent = blocks / n,
                               .touched = (4 * n - 2 + 4 * blocks) / n};
}

/* ---- all_reduce ------------------------------------------------------------------------------ */

/* Recursive doubling: in round i exchange the sum so far with rank r xor 2^i.  Rounds L, bytes sent
 * S L, for powers of two.  The lower half of a pair is always the first source, so that all ranks
 * compute the same bits.  One move adds and sends on. */
enum kolo_status plan_gen_recdbl(const struct plan_shape *s, struct plan **out)
{
    const int r = s->rank;
    struct plan_builder *b;
    TRY(plan_builder_create(s, "recdbl", 1, 1, 0, &b));
    plan_lane_begin(b);
    plan_send(b, PLAN_IN, plan_chunk(0), r ^ 1, 0);
    for (int bit = 1; bit < s->nranks; bit *= 2) {
        const bool is_last = 2 * bit == s->nranks;
        plan_move(b, PLAN_OUT, plan_chunk(0), is_last ? PLAN_FINAL : 0);
        plan_to(b, PLAN_OUT, -1, 0, 0);
        if (!is_last)
            plan_to(b, PLAN_LINK, r ^ (2 * bit), 0, 0);
        if (r & bit)
            plan_from(b, PLAN_LINK, r ^ bit, 0, 0);
        plan_from(b, bit == 1 ? PLAN_IN : PLAN_OUT, -1, 0, 0);
        if (!(r & bit))
            plan_from(b, PLAN_LINK, r ^ bit, 0, 0);
    }
    return plan_finish(b, out);
}

void plan_cost_recdbl(const struct plan_shape *s, struct plan_cost *cost)
{
    const double rounds = plan_log2_up(s->nranks);
    *cost = (struct plan_cost){
        .hops = rounds, .messages = 2 * rounds, .sent = rounds, .touched = 4 * rounds + 1};
}

/* ---- barrier --------------------------------------------------------------------------------- */

/* In round k signal rank r + 2^k and wait for rank r - 2^k: after L rounds everybody has heard,
 * directly or not, from everybody (Hensgen, Finkel, Manber 1988). */
enum kolo_status plan_gen_dissemination(const struct plan_shape *s, struct plan **out)
{
    const int n = s->nranks;
    struct plan_builder *b;
    TRY(plan_builder_create(s, "dissemination", 0, 0, 0, &b));
    plan_lane_begin(b);
    for (int64_t step = 1; step / 2 < n; step *= 2) {
        plan_move(b, PLAN_IN, plan_chunks(0, 0), 0);
        if (step < n)
            plan_to(b, PLAN_LINK, plan_wrap(s->rank, (int)step, n), 0, 0);
        if (step > 1)
            plan_from(b, PLAN_LINK, plan_wrap(s->rank, -(int)(step / 2), n), 0, 0);
    }
    return plan_finish(b, out);
}

void plan_cost_dissemination(const struct plan_shape *s, struct plan_cost *cost)
{
    const double rounds = plan_log2_up(s->nranks);
    *cost = (struct plan_cost){.hops = rounds, .messages = 2 * rounds};
}
