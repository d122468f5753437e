/* test_plan_verify.c - the verifier on plans made by hand: right ones pass, exactly and hashed, and
 * each planted fault is refused with the text that names it. */
#include "support/test.h"

#include "mem.h"
#include "plan.h"

#include <string.h>

enum { MOST = 4 };

/* The plans of all ranks, and the builder of the one that is being written. */
struct set {
    enum kolo_coll coll;
    int n;
    int root;
    struct plan *plans[MOST];
};

/* ---- short words for the builder ----------------------------------------------------------- */

static struct plan_builder *begin(const struct set *s, int rank, int in, int out, int tmp)
{
    const struct plan_shape shape = {
        .coll = s->coll, .nranks = s->n, .rank = rank, .root = s->root};
    struct plan_builder *b = NULL;
    cr_assert_eq(plan_builder_create(&shape, "hand", in, out, tmp, &b), KOLO_OK, "%s", fail_text());
    plan_lane_begin(b);
    return b;
}

static void finish(struct set *s, int rank, struct plan_builder *b)
{
    cr_assert_eq(plan_build(b, &s->plans[rank]), KOLO_OK, "%s", fail_text());
    plan_builder_destroy(b);
}

struct end {
    enum plan_space space;
    int at; /* chunk, or the peer of a link or window */
    int on; /* channel of a link, chunk of a window */
};

static struct end in(int chunk)
{
    return (struct end){PLAN_IN, chunk, 0};
}

static struct end out(int chunk)
{
    return (struct end){PLAN_OUT, chunk, 0};
}

static struct end tmp(int chunk)
{
    return (struct end){PLAN_TMP, chunk, 0};
}

static struct end to_link(int peer, int channel)
{
    return (struct end){PLAN_LINK, peer, channel};
}

static void add(struct plan_builder *b, struct end e, bool is_dst)
{
    const bool is_local = e.space <= PLAN_TMP, is_link = e.space == PLAN_LINK;
    (is_dst ? plan_to : plan_from)(b, e.space, is_local ? -1 : e.at, is_link ? e.on : 0,
                                   is_local  ? e.at
                                   : is_link ? 0
                                             : e.on);
}

static void copy(struct plan_builder *b, enum plan_space space, int chunk, struct end to,
                 struct end from)
{
    plan_move(b, space, plan_chunk(chunk), 0);
    add(b, to, true);
    add(b, from, false);
}

static void signal_to(struct plan_builder *b, int peer, int channel)
{
    plan_move(b, PLAN_IN, plan_chunks(0, 0), 0);
    add(b, to_link(peer, channel), true);
}

static void wait_for(struct plan_builder *b, int peer, int channel)
{
    plan_move(b, PLAN_IN, plan_chunks(0, 0), 0);
    add(b, to_link(peer, channel), false);
}

/* A plan is immutable for all but these tests. */
static struct plan_step *step_of(struct set *s, int rank, int lane, int step)
{
    return (struct plan_step *)&s->plans[rank]->steps[s->plans[rank]->lanes[lane].first + step];
}

static struct plan_operand *operand_of(struct set *s, int rank, int lane, int step, int i)
{
    return (struct plan_operand *)&s->plans[rank]
        ->operands[step_of(s, rank, lane, step)->first + i];
}

static void swap_steps(struct set *s, int rank, int lane, int a, int b)
{
    const struct plan_step kept = *step_of(s, rank, lane, a);
    *step_of(s, rank, lane, a) = *step_of(s, rank, lane, b);
    *step_of(s, rank, lane, b) = kept;
}

/* ---- verdicts ------------------------------------------------------------------------------ */

static enum kolo_status prove(const struct set *s, int slots)
{
    const struct plan_limits limits = {.slots = slots};
    return plan_verify(s->plans, s->n, &limits);
}

static void destroy(struct set *s)
{
    for (int r = 0; r < s->n; r++)
        plan_destroy(s->plans[r]);
}

static void check_right(struct set *s, int slots)
{
    const struct plan_limits limits = {.slots = slots};
    cr_assert_eq(prove(s, slots), KOLO_OK, "%s", fail_text());
    cr_assert_eq(plan_verify_hashed(s->plans, s->n, &limits, 7), KOLO_OK, "%s", fail_text());
    destroy(s);
}

static void check_text(enum kolo_status status, const char *text)
{
    cr_assert_eq(status, KOLO_ERR_ARG, "no error, wanted: %s", text);
    cr_assert_not_null(strstr(fail_text(), text), "wanted '%s', got: %s", text, fail_text());
}

/* Refused with `text`; the hashed proof must refuse it as well, in its own words. */
static void check_wrong(struct set *s, int slots, const char *text)
{
    const struct plan_limits limits = {.slots = slots};
    check_text(prove(s, slots), text);
    cr_assert_eq(plan_verify_hashed(s->plans, s->n, &limits, 7), KOLO_ERR_ARG,
                 "the hashed proof passes: %s", text);
    destroy(s);
}

/* ---- plans that are right ------------------------------------------------------------------ */

/* Every vector to every rank, reduced in rank order; `cut` chunks, sent before any is received. */
static struct set oneshot(int n, int cut)
{
    struct set s = {.coll = KOLO_COLL_ALL_REDUCE, .n = n};
    for (int r = 0; r < n; r++) {
        struct plan_builder *b = begin(&s, r, cut, cut, 0);
        for (int c = 0; n > 1 && c < cut; c++) {
            plan_move(b, PLAN_IN, plan_chunk(c), 0);
            for (int k = 1; k < n; k++)
                add(b, to_link((r + k) % n, 0), true);
            add(b, in(c), false);
        }
        for (int c = 0; c < cut; c++) {
            plan_move(b, PLAN_OUT, plan_chunk(c), PLAN_FINAL);
            add(b, out(c), true);
            for (int k = 0; k < n; k++)
                add(b, k == r ? in(c) : to_link(k, 0), false);
        }
        finish(&s, r, b);
    }
    return s;
}

/* step 0: own chunk; then 1 + 2k: send, 2 + 2k: receive */
static struct set ring_all_gather(enum kolo_coll coll, int n)
{
    struct set s = {.coll = coll, .n = n};
    for (int r = 0; r < n; r++) {
        struct plan_builder *b = begin(&s, r, 1, n, 0);
        copy(b, PLAN_OUT, r, out(r), in(0));
        for (int k = 0; k < n - 1; k++) {
            const int sent = (r - k + n) % n, received = (r - k - 1 + n) % n;
            copy(b, PLAN_OUT, sent, to_link((r + 1) % n, 0), out(sent));
            copy(b, PLAN_OUT, received, out(received), to_link((r + n - 1) % n, 0));
        }
        finish(&s, r, b);
    }
    return s;
}

/* step 0: own chunk; then 1 .. n-1: sends, n .. 2n-2: receives */
static struct set exchange(enum kolo_coll coll, int n)
{
    struct set s = {.coll = coll, .n = n};
    for (int r = 0; r < n; r++) {
        struct plan_builder *b = begin(&s, r, n, n, 0);
        copy(b, PLAN_OUT, r, out(r), in(r));
        for (int k = 1; k < n; k++)
            copy(b, PLAN_IN, (r + k) % n, to_link((r + k) % n, 0), in((r + k) % n));
        for (int k = 1; k < n; k++)
            copy(b, PLAN_OUT, (r + k) % n, out((r + k) % n), to_link((r + k) % n, 0));
        finish(&s, r, b);
    }
    return s;
}

/* Rank 0 reduces and sends the result back: step 0, step 1 */
static struct set there_and_back(void)
{
    struct set s = {.coll = KOLO_COLL_ALL_REDUCE, .n = 2};
    struct plan_builder *b = begin(&s, 0, 1, 1, 0);
    plan_move(b, PLAN_OUT, plan_chunk(0), PLAN_FINAL);
    add(b, out(0), true);
    add(b, to_link(1, 0), true);
    add(b, in(0), false);
    add(b, to_link(1, 0), false);
    finish(&s, 0, b);
    b = begin(&s, 1, 1, 1, 0);
    copy(b, PLAN_IN, 0, to_link(0, 0), in(0));
    copy(b, PLAN_OUT, 0, out(0), to_link(0, 0));
    finish(&s, 1, b);
    return s;
}

static struct set dissemination(int n)
{
    struct set s = {.coll = KOLO_COLL_BARRIER, .n = n};
    for (int r = 0; r < n; r++) {
        struct plan_builder *b = begin(&s, r, 0, 0, 0);
        for (int k = 1; k < n; k *= 2) {
            signal_to(b, (r + k) % n, 0);
            wait_for(b, (r + n - k) % n, 0);
        }
        finish(&s, r, b);
    }
    return s;
}

/* Two ranks read each other's input and, unless `leaves`, wait until the other has.  Their own
 * chunk comes last: in place, it is what the other reads. */
static struct set window_all_gather(bool leaves)
{
    struct set s = {.coll = KOLO_COLL_ALL_GATHER, .n = 2};
    for (int r = 0; r < 2; r++) {
        struct plan_builder *b = begin(&s, r, 1, 2, 0);
        copy(b, PLAN_OUT, 1 - r, out(1 - r), (struct end){PLAN_PEER_IN, 1 - r, 0});
        if (!leaves) {
            signal_to(b, 1 - r, 0);
            wait_for(b, 1 - r, 0);
        }
        copy(b, PLAN_OUT, r, out(r), in(0));
        finish(&s, r, b);
    }
    return s;
}

Test(plan_verify, right_plans_pass)
{
    for (int n = 1; n <= 3; n++) {
        for (int slots = 1; slots <= 4; slots++) {
            struct set s = oneshot(n, 1);
            check_right(&s, slots);
            s = ring_all_gather(KOLO_COLL_ALL_GATHER, n);
            check_right(&s, slots);
            s = ring_all_gather(KOLO_COLL_ALL_GATHER_V, n);
            check_right(&s, slots);
            s = exchange(KOLO_COLL_ALL_TO_ALL, n);
            check_right(&s, slots);
            s = exchange(KOLO_COLL_ALL_TO_ALL_V, n);
            check_right(&s, slots);
            s = dissemination(n);
            check_right(&s, slots);
        }
    }
    struct set s = there_and_back();
    check_right(&s, 1);
    s = window_all_gather(false);
    check_right(&s, 1);
}

Test(plan_verify, send_and_recv_are_a_pair)
{
    struct set s = {.coll = KOLO_COLL_SEND, .n = 2, .root = 1};
    struct plan_builder *b = begin(&s, 0, 1, 0, 0);
    copy(b, PLAN_IN, 0, to_link(1, 0), in(0));
    finish(&s, 0, b);
    s.coll = KOLO_COLL_RECV;
    s.root = 0;
    b = begin(&s, 1, 0, 1, 0);
    copy(b, PLAN_OUT, 0, out(0), to_link(0, 0));
    finish(&s, 1, b);
    struct set two = s;
    cr_assert_eq(prove(&s, 1), KOLO_OK, "%s", fail_text());
    two.plans[1] = s.plans[0];
    check_text(prove(&two, 1), "as a pair of two ranks");
    two.n = 1;
    check_text(prove(&two, 1), "as a pair of two ranks");
    destroy(&s);
}

/* ---- links --------------------------------------------------------------------------------- */

Test(plan_verify, wrong_peer)
{
    struct set s = ring_all_gather(KOLO_COLL_ALL_GATHER, 3);
    operand_of(&s, 0, 0, 3, 0)->peer = 2;
    check_wrong(&s, 4,
                "rank 0 sends 1 messages to rank 1 on channel 0 per round, which receives 2");
}

Test(plan_verify, link_to_itself)
{
    struct set s = ring_all_gather(KOLO_COLL_ALL_GATHER, 3);
    operand_of(&s, 2, 0, 3, 0)->peer = 2;
    check_wrong(&s, 4, "rank 2 lane 0 step 3: a link to rank 2");
}

Test(plan_verify, lanes_that_share_a_link)
{
    struct set s = {.coll = KOLO_COLL_BROADCAST, .n = 2};
    for (int r = 0; r < 2; r++) {
        struct plan_builder *b = begin(&s, r, r == 0 ? 2 : 0, 2, 0);
        for (int c = 0; c < 2; c++) {
            if (c == 1)
                plan_lane_begin(b);
            if (r == 0)
                copy(b, PLAN_OUT, c, out(c), in(c));
            copy(b, PLAN_OUT, c, r == 0 ? to_link(1, c) : out(c), r == 0 ? in(c) : to_link(0, c));
        }
        finish(&s, r, b);
    }
    cr_assert_eq(prove(&s, 1), KOLO_OK, "%s", fail_text());
    operand_of(&s, 0, 1, 1, 0)->channel = 0;
    check_wrong(&s, 2, "rank 0 lane 1 step 1: sends to rank 1 on channel 0, as lane 0 does");
}

Test(plan_verify, one_link_twice_in_a_move)
{
    struct set s = oneshot(3, 1);
    operand_of(&s, 1, 0, 0, 0)->peer = 0;
    check_wrong(&s, 2, "rank 1 lane 0 step 0: sends to rank 0 on channel 0 twice in one move");
}

static struct set gather_of(int sent, int received)
{
    struct set s = {.coll = KOLO_COLL_SCATTER, .n = 4};
    for (int r = 0; r < s.n; r++) {
        struct plan_builder *b = begin(&s, r, r == 0 ? 4 : 0, 1, r == 1 ? 3 : 0);
        if (r == 0) {
            copy(b, PLAN_IN, 0, out(0), in(0));
            plan_move(b, PLAN_IN, plan_chunks(1, sent), 0);
            add(b, to_link(1, 0), true);
            add(b, in(1), false);
        } else if (r == 1) {
            plan_move(b, PLAN_OUT, plan_chunks(0, received), 0);
            add(b, tmp(0), true);
            add(b, to_link(0, 0), false);
            copy(b, PLAN_OUT, 0, out(0), tmp(0));
            copy(b, PLAN_OUT, 0, to_link(2, 0), tmp(1));
            copy(b, PLAN_OUT, 0, to_link(3, 0), tmp(2));
        } else {
            copy(b, PLAN_OUT, 0, out(0), to_link(1, 0));
        }
        finish(&s, r, b);
    }
    return s;
}

Test(plan_verify, messages_of_other_length)
{
    struct set s = gather_of(3, 3);
    check_right(&s, 1);
    s = gather_of(2, 3);
    check_wrong(&s, 1,
                "rank 1 lane 0 step 0: receives a message of 2 chunks from rank 0, expects 3");
    s = ring_all_gather(KOLO_COLL_ALL_GATHER_V, 3);
    step_of(&s, 0, 0, 1)->of.chunk = 1;
    check_wrong(&s, 1, "chunk 0 of OUT of rank 0 has not the length of chunk 1 of OUT");
    s = ring_all_gather(KOLO_COLL_ALL_GATHER_V, 3);
    step_of(&s, 0, 0, 3)->of.chunk = 0;
    operand_of(&s, 0, 0, 3, 1)->chunk = 0;
    check_wrong(&s, 1,
                "receives a message with the length of chunk 0 from rank 0, expects chunk 2");
}

/* ---- deadlock ------------------------------------------------------------------------------ */

Test(plan_verify, missing_credit)
{
    struct set s = oneshot(2, 3);
    check_text(prove(&s, 1), "deadlock: waits for a credit (free slot) to rank ");
    cr_assert_eq(prove(&s, 3), KOLO_OK, "%s", fail_text());
    check_wrong(&s, 2, "lane 0 step 2: deadlock: waits for a credit");
}

Test(plan_verify, swapped_order)
{
    struct set s = ring_all_gather(KOLO_COLL_ALL_GATHER, 3);
    for (int r = 0; r < 2; r++)
        swap_steps(&s, r, 0, 1, 2);
    cr_assert_eq(prove(&s, 1), KOLO_OK, "rank 2 still sends first: %s", fail_text());
    swap_steps(&s, 2, 0, 1, 2);
    check_wrong(&s, 4, "lane 0 step 1: deadlock: waits for a message from rank ");
}

/* ---- values -------------------------------------------------------------------------------- */

Test(plan_verify, reduced_twice)
{
    struct set s = there_and_back();
    struct plan_operand *o = operand_of(&s, 0, 0, 0, 3);
    *o = *operand_of(&s, 0, 0, 0, 2);
    plan_destroy(s.plans[1]);
    struct plan_builder *b = begin(&s, 1, 1, 1, 0);
    copy(b, PLAN_OUT, 0, out(0), to_link(0, 0));
    finish(&s, 1, b);
    check_wrong(&s, 2, "rank 0 lane 0 step 0: reduces the contribution of rank 0 to chunk 0 twice");
}

Test(plan_verify, contribution_missing)
{
    struct set s = there_and_back();
    *operand_of(&s, 0, 0, 0, 2) = *operand_of(&s, 0, 0, 0, 3);
    step_of(&s, 0, 0, 0)->nsrc = 1;
    struct set open = s;
    check_text(prove(&open, 2), "FINAL on an incomplete reduction of chunk 0");
    step_of(&s, 0, 0, 0)->flags = 0;
    check_wrong(&s, 2, "rank 0 ends without the contribution of rank 0 to chunk 0 of OUT");
}

Test(plan_verify, chunk_missing)
{
    struct set s = ring_all_gather(KOLO_COLL_ALL_GATHER, 3);
    operand_of(&s, 1, 0, 4, 0)->chunk = 1;
    step_of(&s, 1, 0, 4)->of.chunk = 1;
    check_wrong(&s, 2, "rank 1 ends with chunk 2 in chunk 1 of OUT, which should be chunk 1");
    s = ring_all_gather(KOLO_COLL_ALL_GATHER, 1);
    ((struct plan_lane *)s.plans[0]->lanes)->nsteps = 0;
    check_wrong(&s, 2, "rank 0 never gets chunk 0 of OUT");
}

Test(plan_verify, read_before_written)
{
    struct set s = ring_all_gather(KOLO_COLL_ALL_GATHER, 3);
    swap_steps(&s, 1, 0, 0, 1);
    check_wrong(&s, 2, "rank 1 lane 0 step 0: reads chunk 1 of OUT before it is written");
}

Test(plan_verify, chunks_of_different_positions)
{
    struct set s = {.coll = KOLO_COLL_REDUCE_SCATTER, .n = 2};
    for (int r = 0; r < 2; r++) {
        struct plan_builder *b = begin(&s, r, 2, 1, 0);
        copy(b, PLAN_IN, 1 - r, to_link(1 - r, 0), in(1 - r));
        plan_move(b, PLAN_OUT, plan_chunk(0), PLAN_FINAL);
        add(b, out(0), true);
        add(b, to_link(1 - r, 0), false);
        add(b, in(r), false);
        finish(&s, r, b);
    }
    cr_assert_eq(prove(&s, 1), KOLO_OK, "%s", fail_text());
    operand_of(&s, 1, 0, 1, 2)->chunk = 0;
    check_wrong(&s, 1, "rank 1 lane 0 step 1: reduces chunk 1 with chunk 0");
}

Test(plan_verify, reduction_without_a_reducing_collective)
{
    struct set s = exchange(KOLO_COLL_ALL_TO_ALL, 2);
    step_of(&s, 0, 0, 1)->first--;
    step_of(&s, 0, 0, 1)->nsrc++;
    check_wrong(&s, 1, "2 sources in a collective that does not reduce");
}

Test(plan_verify, final_missing)
{
    struct set s = there_and_back();
    step_of(&s, 0, 0, 0)->flags = 0;
    check_wrong(&s, 1, "rank 0 lane 0 step 0: completes the reduction of chunk 0 without FINAL");
    s = oneshot(1, 1);
    step_of(&s, 0, 0, 0)->flags = 0;
    check_wrong(&s, 1, "rank 0 lane 0 step 0: completes the reduction of chunk 0 without FINAL");
}

Test(plan_verify, final_on_a_copy)
{
    struct set s = there_and_back();
    step_of(&s, 1, 0, 1)->flags = PLAN_FINAL;
    check_wrong(&s, 1, "rank 1 lane 0 step 1: FINAL again on the complete reduction of chunk 0");
    s = there_and_back();
    step_of(&s, 1, 0, 0)->flags = PLAN_FINAL;
    check_wrong(&s, 1, "rank 1 lane 0 step 0: FINAL on an incomplete reduction of chunk 0");
    s = exchange(KOLO_COLL_ALL_TO_ALL, 2);
    step_of(&s, 0, 0, 0)->flags = PLAN_FINAL;
    check_wrong(&s, 1, "rank 0 lane 0 step 0: FINAL on a move that reduces nothing");
}

Test(plan_verify, false_claim_of_rank_order)
{
    struct set s = oneshot(3, 1);
    cr_assert(s.plans[0]->flags & PLAN_RANK_ORDER);
    const struct plan_operand kept = *operand_of(&s, 0, 0, 1, 2);
    *operand_of(&s, 0, 0, 1, 2) = *operand_of(&s, 0, 0, 1, 3);
    *operand_of(&s, 0, 0, 1, 3) = kept;
    struct set same = s;
    check_text(prove(&s, 1), "source 1 of 3 is not the contribution of rank 1");
    s.plans[0]->flags = 0;
    check_right(&same, 1);
}

Test(plan_verify, move_that_overlaps_itself)
{
    struct set s = {.coll = KOLO_COLL_ALL_TO_ALL, .n = 1};
    struct plan_builder *b = begin(&s, 0, 1, 1, 3);
    copy(b, PLAN_IN, 0, tmp(0), in(0));
    copy(b, PLAN_IN, 0, tmp(1), in(0));
    copy(b, PLAN_IN, 0, tmp(2), tmp(0));
    copy(b, PLAN_IN, 0, out(0), tmp(2));
    finish(&s, 0, b);
    cr_assert_eq(prove(&s, 1), KOLO_OK, "%s", fail_text());
    struct plan_step *third = step_of(&s, 0, 0, 2);
    third->of = plan_chunks(0, 2);
    operand_of(&s, 0, 0, 2, 0)->chunk = 1;
    check_text(prove(&s, 1), "step 2: reads chunk 1 of TMP, which it also overwrites");
    third->of.count = 4;
    third->of.run = 4;
    check_wrong(&s, 1, "step 2: writes chunk 1 of TMP twice");
}

/* ---- in place ------------------------------------------------------------------------------ */

Test(plan_verify, overwritten_in_place_before_it_is_sent)
{
    struct set s = exchange(KOLO_COLL_ALL_TO_ALL, 2);
    swap_steps(&s, 0, 0, 1, 2);
    const struct plan_limits limits = {.slots = 1, .not_in_place = true};
    cr_assert_eq(plan_verify(s.plans, 2, &limits), KOLO_OK, "%s", fail_text());
    check_wrong(&s, 1,
                "in place: rank 1 ends with the chunk from rank 1 to rank 0 in chunk 0 of OUT");
}

/* A lane sends what another overwrites. */
Test(plan_verify, overwritten_in_place_by_another_lane)
{
    struct set s = {.coll = KOLO_COLL_ALL_TO_ALL, .n = 2};
    for (int r = 0; r < 2; r++) {
        struct plan_builder *b = begin(&s, r, 2, 2, 0);
        copy(b, PLAN_OUT, r, out(r), in(r));
        copy(b, PLAN_IN, 1 - r, to_link(1 - r, 0), in(1 - r));
        plan_lane_begin(b);
        copy(b, PLAN_OUT, 1 - r, out(1 - r), to_link(1 - r, 0));
        finish(&s, r, b);
    }
    const struct plan_limits limits = {.slots = 1, .not_in_place = true};
    cr_assert_eq(plan_verify(s.plans, 2, &limits), KOLO_OK, "%s", fail_text());
    check_wrong(&s, 1,
                "in place: rank 1 lane 1 step 0: race: writes chunk 0 of OUT of rank 1, which "
                "rank 1 lane 0 step 1 reads in the same round");
}

/* ---- races --------------------------------------------------------------------------------- */

Test(plan_verify, scratch_of_two_lanes)
{
    struct set s = {.coll = KOLO_COLL_BROADCAST, .n = 2};
    struct plan_builder *b = begin(&s, 0, 2, 2, 0);
    for (int c = 0; c < 2; c++) {
        copy(b, PLAN_OUT, c, out(c), in(c));
        copy(b, PLAN_OUT, c, to_link(1, c), in(c));
    }
    finish(&s, 0, b);
    b = begin(&s, 1, 0, 2, 2);
    for (int c = 0; c < 2; c++) {
        if (c == 1)
            plan_lane_begin(b);
        copy(b, PLAN_OUT, c, tmp(c), to_link(0, c));
        copy(b, PLAN_OUT, c, out(c), tmp(c));
    }
    finish(&s, 1, b);
    cr_assert_eq(prove(&s, 1), KOLO_OK, "%s", fail_text());
    operand_of(&s, 1, 1, 0, 0)->chunk = 0;
    operand_of(&s, 1, 1, 1, 1)->chunk = 0;
    check_wrong(&s, 1, "race: writes chunk 0 of TMP of rank 1, which rank 1 lane ");
}

/* Rank 0 puts its input aside in one lane and takes it up in another, which it wakes by way of rank
 * 1.  Lane 0 comes back to the scratch in the next round: `last` tells what it knows by then of the
 * reader: that rank 1 has heard of it by message, by a credit of one slot, or nothing. */
enum reuse { BY_MESSAGE, BY_CREDIT, BLINDLY };

static struct set reuse_of_scratch(enum reuse how)
{
    struct set s = {.coll = KOLO_COLL_BROADCAST, .n = 2};
    struct plan_builder *b = begin(&s, 0, 1, 1, 1);
    plan_move(b, PLAN_IN, plan_chunk(0), 0);
    add(b, tmp(0), true);
    add(b, to_link(1, 0), true);
    add(b, in(0), false);
    if (how == BY_CREDIT)
        signal_to(b, 1, 0);
    if (how == BY_MESSAGE)
        wait_for(b, 1, 0);
    plan_lane_begin(b);
    wait_for(b, 1, 1);
    copy(b, PLAN_OUT, 0, out(0), tmp(0));
    signal_to(b, 1, 2);
    finish(&s, 0, b);

    b = begin(&s, 1, 0, 1, 0);
    copy(b, PLAN_OUT, 0, out(0), to_link(0, 0));
    signal_to(b, 0, 1);
    wait_for(b, 0, 2);
    if (how == BY_CREDIT)
        wait_for(b, 0, 0);
    if (how == BY_MESSAGE)
        signal_to(b, 0, 0);
    finish(&s, 1, b);
    return s;
}

Test(plan_verify, scratch_reused_too_early)
{
    struct set s = reuse_of_scratch(BY_MESSAGE);
    check_right(&s, 4);
    s = reuse_of_scratch(BLINDLY);
    check_wrong(&s, 4,
                "rank 0 lane 0 step 0: race: writes chunk 0 of TMP of rank 0, which rank 0 lane "
                "1 step 1 reads in the round before");
}

Test(plan_verify, a_credit_orders_no_more_than_its_slots)
{
    struct set s = reuse_of_scratch(BY_CREDIT);
    cr_assert_eq(prove(&s, 1), KOLO_OK, "%s", fail_text());
    check_wrong(&s, 2, "which rank 0 lane 1 step 1 reads in the round before");
}

Test(plan_verify, window_read_after_the_peer_left)
{
    struct set s = window_all_gather(true);
    check_wrong(&s, 1, "rank 0 lane 0 step 0: touches buffers of rank 1, which may have left");
}

/* Rank 0 stores into the output of rank 1, which sends it on, after it was told or too early. */
static struct set store(bool is_early)
{
    struct set s = {.coll = KOLO_COLL_BROADCAST, .n = 3};
    struct plan_builder *b = begin(&s, 0, 1, 1, 0);
    plan_move(b, PLAN_IN, plan_chunk(0), 0);
    add(b, out(0), true);
    add(b, (struct end){PLAN_PEER_OUT, 1, 0}, true);
    add(b, in(0), false);
    signal_to(b, 1, 0);
    finish(&s, 0, b);
    b = begin(&s, 1, 0, 1, 0);
    if (!is_early)
        wait_for(b, 0, 0);
    copy(b, PLAN_OUT, 0, to_link(2, 0), out(0));
    if (is_early)
        wait_for(b, 0, 0);
    finish(&s, 1, b);
    b = begin(&s, 2, 0, 1, 0);
    copy(b, PLAN_OUT, 0, out(0), to_link(1, 0));
    finish(&s, 2, b);
    return s;
}

Test(plan_verify, window_written_while_the_owner_reads)
{
    struct set s = store(false);
    check_right(&s, 1);
    s = store(true);
    check_wrong(&s, 1,
                "rank 1 lane 0 step 0: race: reads chunk 0 of OUT of rank 1, which rank 0 lane 0 "
                "step 0 writes in the same round");
}

Test(plan_verify, barrier_that_is_none)
{
    struct set s = dissemination(3);
    for (int r = 0; r < 3; r++)
        ((struct plan_lane *)s.plans[r]->lanes)->nsteps = 2;
    check_wrong(&s, 1, "rank 0 may leave the barrier before rank 1 has entered");
    s = dissemination(2);
    for (int r = 0; r < 2; r++)
        ((struct plan_lane *)s.plans[r]->lanes)->nsteps = 0;
    check_wrong(&s, 1, "may leave the barrier before rank 1 has entered");
}

/* ---- arguments and memory ------------------------------------------------------------------ */

Test(plan_verify, plans_that_do_not_belong_together)
{
    struct set a = oneshot(2, 1), b = oneshot(3, 1), c = oneshot(2, 2);
    struct set g = ring_all_gather(KOLO_COLL_ALL_GATHER, 2);
    struct set mixed = a;
    mixed.plans[1] = b.plans[1];
    check_text(prove(&mixed, 1), "plan 1 is of rank 1 of 3");
    mixed.plans[1] = a.plans[0];
    check_text(prove(&mixed, 1), "plan 1 is of rank 0 of 2");
    mixed.plans[1] = c.plans[1];
    check_text(prove(&mixed, 1), "rank 1 has 2 chunks in IN, the collective demands 1");
    mixed.plans[1] = g.plans[1];
    check_text(prove(&mixed, 1), "rank 1 has a plan of all_gather");
    mixed.plans[1] = NULL;
    check_text(prove(&mixed, 1), "no plan of rank 1");
    check_text(prove(&a, 0), "links of 0 slots");
    check_text(plan_verify(a.plans, 2, NULL), "at least 1 is needed");
    check_text(plan_verify(a.plans, 0, &(struct plan_limits){.slots = 1}), "plans of 0 ranks");
    check_text(plan_verify(NULL, 1, &(struct plan_limits){.slots = 1}), "to verify");
    destroy(&a);
    destroy(&b);
    destroy(&c);
    destroy(&g);
}

/* Fail the first allocation, the second, ... until the proof comes through. */
static void fail_each_allocation(struct set *s)
{
    const struct plan_limits limits = {.slots = 2};
    const int64_t live = mem_live();
    uint64_t nth = 1;
    for (;; nth++) {
        mem_fail_at(nth);
        const enum kolo_status status = plan_verify(s->plans, s->n, &limits);
        mem_fail_at(0);
        cr_assert_eq(mem_live(), live, "allocation %d leaks", (int)nth);
        if (status == KOLO_OK)
            break;
        cr_assert_eq(status, KOLO_ERR_NOMEM, "allocation %d: %s", (int)nth, fail_text());
    }
    cr_assert_gt(nth, 10);
    destroy(s);
}

Test(plan_verify, every_allocation_may_fail)
{
    struct set s = window_all_gather(false);
    fail_each_allocation(&s);
    s = reuse_of_scratch(BY_MESSAGE);
    fail_each_allocation(&s);
}
