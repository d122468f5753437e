/* test_plan_algos.c - every generator: its costs in closed form are those that counting its moves
 * gives, and the table tells what it can do.  That the plans are right is proven in
 * test_plan_proof.c. */
#include "support/test.h"
#include "support/variant.h"

#include "mem.h"
#include "plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_COUNTED = 33 };

static bool has_blocks(const struct plan_algo *a)
{
    return strcmp(a->name, "tree") == 0 ||
           (strcmp(a->name, "circulant") == 0 && coll_has_root(a->coll));
}

/* The plans of all ranks; NULL when the algorithm cannot serve the shape. */
static struct plan **generate(const struct plan_algo *a, const struct plan_shape *shape)
{
    struct plan_shape s = *shape;
    if (s.nranks > 1 && !plan_algo_can(a, &s))
        return NULL;
    struct plan **const plans = mem_calloc((size_t)s.nranks, sizeof(struct plan *));
    for (s.rank = 0; s.rank < s.nranks; s.rank++)
        cr_assert_eq(plan_generate(a, &s, &plans[s.rank]), KOLO_OK, "%s/%s n %d: %s",
                     kolo_coll_name((int)s.coll), a->name, s.nranks, fail_text());
    return plans;
}

/* ---- counting -------------------------------------------------------------------------------- */

/* Messages of one link direction that were sent and not taken: the hand-overs behind each. */
struct queue {
    int *hops;
    int n;
    int taken;
    int room;
};

static void queue_put(struct queue *q, int hops)
{
    if (q->n == q->room) {
        q->room = 2 * q->room + 4;
        q->hops = realloc(q->hops, (size_t)q->room * sizeof(*q->hops));
    }
    q->hops[q->n++] = hops;
}

struct run {
    struct plan **plans;
    int n;
    struct queue *queues; /* [from][to][channel] */
    int **done;           /* [rank][lane] steps */
    int **hops;           /* [rank][lane] so far */
};

static struct queue *queue_of(const struct run *r, int from, int to, int channel)
{
    return &r->queues[((size_t)from * (size_t)r->n + (size_t)to) * PLAN_MAX_CHANNELS +
                      (size_t)channel];
}

/* Whether the next step of a lane can run; if so it has. */
static bool run_step(struct run *r, int rank, int lane)
{
    const struct plan *const p = r->plans[rank];
    if (r->done[rank][lane] == (int)p->lanes[lane].nsteps)
        return false;
    const struct plan_step *const s =
        &p->steps[p->lanes[lane].first + (uint32_t)r->done[rank][lane]];
    const struct plan_operand *const o = p->operands + s->first;
    int hops = r->hops[rank][lane];
    for (int i = s->ndst; i < s->ndst + s->nsrc; i++) {
        if (o[i].space != PLAN_LINK)
            continue;
        const struct queue *const q = queue_of(r, o[i].peer, rank, o[i].channel);
        if (q->taken == q->n)
            return false;
        hops = q->hops[q->taken] > hops ? q->hops[q->taken] : hops;
    }
    for (int i = 0; i < s->ndst + s->nsrc; i++) {
        if (o[i].space == PLAN_LINK && i < s->ndst)
            queue_put(queue_of(r, rank, o[i].peer, o[i].channel), hops + 1);
        else if (o[i].space == PLAN_LINK)
            queue_of(r, o[i].peer, rank, o[i].channel)->taken++;
    }
    r->hops[rank][lane] = hops;
    r->done[rank][lane]++;
    return true;
}

/* The longest chain of hand-overs of one round. */
static int count_hops(struct plan **plans, int n)
{
    struct run r = {.plans = plans, .n = n};
    int longest = 0;
    r.queues = calloc((size_t)n * (size_t)n * PLAN_MAX_CHANNELS, sizeof(*r.queues));
    r.done = calloc((size_t)n, sizeof(*r.done));
    r.hops = calloc((size_t)n, sizeof(*r.hops));
    for (int k = 0; k < n; k++) {
        r.done[k] = calloc((size_t)plans[k]->nlanes, sizeof(int));
        r.hops[k] = calloc((size_t)plans[k]->nlanes, sizeof(int));
    }
    for (bool is_moving = true; is_moving;) {
        is_moving = false;
        for (int k = 0; k < n; k++) {
            for (int l = 0; l < plans[k]->nlanes; l++) {
                while (run_step(&r, k, l))
                    is_moving = true;
            }
        }
    }
    for (int k = 0; k < n; k++) {
        for (int l = 0; l < plans[k]->nlanes; l++) {
            cr_assert_eq(r.done[k][l], (int)plans[k]->lanes[l].nsteps, "rank %d is stuck", k);
            longest = r.hops[k][l] > longest ? r.hops[k][l] : longest;
        }
        free(r.done[k]);
        free(r.hops[k]);
    }
    for (size_t i = 0; i < (size_t)n * (size_t)n * PLAN_MAX_CHANNELS; i++)
        free(r.queues[i].hops);
    free(r.queues);
    free(r.done);
    free(r.hops);
    return longest;
}

/* Chunks that make up S, the largest buffer of a rank. */
static int chunks_of_all(struct plan **plans, int n)
{
    int most = 1;
    for (int r = 0; r < n; r++) {
        for (int i = 0; i < 2; i++)
            most = plans[r]->nchunks[i] > most ? plans[r]->nchunks[i] : most;
    }
    return most;
}

/* What a step tells all peers, if there are several, is written once. */
static int count_copies_saved(const struct plan *p, const struct plan_step *s)
{
    int links = 0;
    for (int k = 0; k < s->ndst; k++)
        links += p->operands[s->first + (uint32_t)k].space == PLAN_LINK;
    return links == p->nranks - 1 && links > 1 ? links - 1 : 0;
}

/* Bytes that this rank sends on its busiest link. */
static double count_link(const struct plan *p, double chunks)
{
    double most = 0;
    for (int peer = 0; peer < p->nranks; peer++) {
        for (int channel = 0; channel < p->nchannels; channel++) {
            double sent = 0;
            for (int i = 0; i < p->nsteps; i++) {
                const struct plan_step *const s = &p->steps[i];
                for (int k = 0; k < s->ndst; k++) {
                    const struct plan_operand *const o = &p->operands[s->first + (uint32_t)k];
                    if (o->space == PLAN_LINK && o->peer == peer && o->channel == channel)
                        sent += s->of.count / chunks;
                }
            }
            most = fmax(most, sent);
        }
    }
    return most;
}

static void count_rank(const struct plan *p, double chunks, struct plan_cost *busiest)
{
    double messages = 0;
    double out = 0;
    double in = 0;
    double touched = 0;
    for (int i = 0; i < p->nsteps; i++) {
        const struct plan_step *const s = &p->steps[i];
        touched -= count_copies_saved(p, s) * (s->of.count / chunks);
        for (int k = 0; k < s->ndst + s->nsrc; k++) {
            const double part = s->of.count / chunks;
            touched += part;
            if (p->operands[s->first + (uint32_t)k].space != PLAN_LINK)
                continue;
            messages++;
            *(k < s->ndst ? &out : &in) += part;
        }
    }
    busiest->messages = fmax(busiest->messages, messages);
    busiest->sent = fmax(busiest->sent, fmax(in, out));
    busiest->touched = fmax(busiest->touched, touched);
    busiest->total += touched;
    busiest->link = fmax(busiest->link, count_link(p, chunks));
}

static struct plan_cost count(struct plan **plans, int n)
{
    struct plan_cost busiest = {.hops = count_hops(plans, n)};
    for (int r = 0; r < n; r++)
        count_rank(plans[r], chunks_of_all(plans, n), &busiest);
    return busiest;
}

/* Exact, or for is_bound not below and not far above what was counted. */
static void compare(const char *what, double formula, double counted, bool is_bound,
                    const char *where, int n)
{
    if (is_bound)
        cr_assert(formula >= counted - 1e-9 && formula <= 1.7 * counted + 1e-9,
                  "%s n %d: %s is bounded by %g, counted %g", where, n, what, formula, counted);
    else
        cr_assert(fabs(formula - counted) < 1e-9, "%s n %d: %s is %g, counted %g", where, n, what,
                  formula, counted);
}

static void compare_costs(const struct plan_algo *a, const struct plan_shape *s)
{
    struct plan_cost cost;
    char where[64];
    struct text text;
    struct plan **const plans = generate(a, s);
    if (!plans)
        return;
    const struct plan_cost counted = count(plans, s->nranks);
    /* which ranks of the circulant broadcast are the busiest has no closed form */
    const bool is_bound = strcmp(a->name, "circulant") == 0 && coll_has_root(a->coll);
    a->cost(s, &cost);
    text_init(&text, where, sizeof(where));
    text_add(&text, "%s/%s blocks %d", kolo_coll_name((int)s->coll), a->name, s->blocks);
    compare("hops", cost.hops, counted.hops, is_bound, where, s->nranks);
    compare("messages", cost.messages, counted.messages, is_bound, where, s->nranks);
    compare("sent", cost.sent, counted.sent, false, where, s->nranks);
    compare("touched", cost.touched, counted.touched, is_bound, where, s->nranks);
    if (cost.total > 0)
        compare("total", cost.total, counted.total, false, where, s->nranks);
    if (cost.link > 0)
        compare("link", cost.link, counted.link, false, where, s->nranks);
    plan_set_destroy(plans, (size_t)s->nranks);
}

Test(plan_algos, costs_are_what_counting_gives)
{
    size_t nalgos;
    const struct plan_algo *const algos = plan_algos(&nalgos);
    for (size_t i = 0; i < nalgos; i++) {
        for (int n = 2; n <= MAX_COUNTED; n++) {
            for (int blocks = 0; blocks <= (has_blocks(&algos[i]) ? 12 : 0); blocks += 4)
                compare_costs(&algos[i], &(struct plan_shape){algos[i].coll, n, 0, n / 2, blocks});
            if (algos[i].flags & ALGO_V)
                compare_costs(&algos[i], &(struct plan_shape){variant(algos[i].coll), n, 0, 0, 0});
        }
    }
}

/* ---- the table ------------------------------------------------------------------------------- */

Test(plan_algos, names_are_unique_and_in_order)
{
    size_t n;
    const struct plan_algo *const algos = plan_algos(&n);
    bool has_coll[KOLO_NCOLLS] = {false};
    for (size_t i = 0; i < n; i++) {
        has_coll[algos[i].coll] = true;
        cr_assert(algos[i].name && algos[i].what[0] && algos[i].source[0] && algos[i].generate &&
                  algos[i].cost);
        cr_assert_eq(plan_algo_find(algos[i].coll, algos[i].name), &algos[i], "%s", algos[i].name);
        cr_assert_eq(plan_algo_find(variant(algos[i].coll), algos[i].name), &algos[i]);
        cr_assert(i == 0 || algos[i].coll >= algos[i - 1].coll, "%s", algos[i].name);
    }
    for (int c = KOLO_COLL_ALL_REDUCE; c <= KOLO_COLL_BARRIER; c++)
        cr_assert(has_coll[c], "%s has no algorithm", kolo_coll_name(c));
    cr_assert_null(plan_algo_find(KOLO_COLL_ALL_REDUCE, "pairwise"));
    cr_assert_null(plan_algo_find(KOLO_COLL_SEND, "direct"));
}

static unsigned flags_of_all(const struct plan_algo *a, int n)
{
    struct plan **const plans = generate(a, &(struct plan_shape){a->coll, n, 0, 1, 0});
    unsigned any = 0;
    unsigned all = PLAN_RANK_ORDER;
    if (!plans)
        return 0;
    for (int r = 0; r < n; r++) {
        cr_assert_str_eq(plans[r]->algo, a->name);
        cr_assert_leq(plans[r]->nchannels, PLAN_MAX_CHANNELS);
        any |= plans[r]->flags & (PLAN_READS_PEERS | PLAN_WRITES_PEERS);
        all &= plans[r]->flags;
    }
    plan_set_destroy(plans, (size_t)n);
    return any | all;
}

Test(plan_algos, flags_of_algorithms_are_those_of_their_plans)
{
    size_t n;
    const struct plan_algo *const algos = plan_algos(&n);
    for (size_t i = 0; i < n; i++) {
        for (int nranks = 3; nranks <= 8; nranks++) {
            const unsigned flags = flags_of_all(&algos[i], nranks);
            if ((algos[i].flags & ALGO_POW2) && nranks != 4 && nranks != 8)
                continue;
            cr_assert_eq((algos[i].flags & ALGO_RANK_ORDER) != 0, (flags & PLAN_RANK_ORDER) != 0,
                         "%s/%s", kolo_coll_name((int)algos[i].coll), algos[i].name);
            cr_assert_eq((algos[i].flags & ALGO_WINDOW) != 0,
                         (flags & (PLAN_READS_PEERS | PLAN_WRITES_PEERS)) != 0, "%s/%s",
                         kolo_coll_name((int)algos[i].coll), algos[i].name);
        }
    }
}

/* Both ends of a link cut their pieces by the largest span: it is the same on all ranks, or
 * told. */
Test(plan_algos, spans_are_even_unless_told)
{
    size_t nalgos;
    const struct plan_algo *const algos = plan_algos(&nalgos);
    for (size_t i = 0; i < nalgos; i++) {
        bool is_even = true;
        for (int n = 2; n <= MAX_COUNTED; n++) {
            struct plan **const plans =
                generate(&algos[i], &(struct plan_shape){algos[i].coll, n, 0, n / 2, 0});
            for (int r = 0; plans && r < n; r++)
                is_even = is_even && plans[r]->max_span == plans[0]->max_span;
            plan_set_destroy(plans, plans ? (size_t)n : 0);
        }
        cr_assert_eq(is_even, !(algos[i].flags & ALGO_UNEVEN), "%s/%s",
                     kolo_coll_name((int)algos[i].coll), algos[i].name);
    }
}

Test(plan_algos, powers_of_two_and_v_variants_are_told)
{
    const struct plan_algo *const recdbl = plan_algo_find(KOLO_COLL_ALL_REDUCE, "recdbl");
    const struct plan_algo *const bruck = plan_algo_find(KOLO_COLL_ALL_TO_ALL, "bruck");
    struct plan_shape s = {.coll = KOLO_COLL_ALL_REDUCE, .nranks = 6};
    struct plan *p = NULL;
    cr_assert_not(plan_algo_can(recdbl, &s));
    cr_assert_eq(plan_generate(recdbl, &s, &p), KOLO_ERR_ARG);
    s.nranks = 8;
    cr_assert(plan_algo_can(recdbl, &s));
    s.nranks = 1;
    cr_assert_not(plan_algo_can(recdbl, &s), "one rank needs no algorithm");
    s = (struct plan_shape){.coll = KOLO_COLL_ALL_TO_ALL, .nranks = 6};
    cr_assert(plan_algo_can(bruck, &s));
    cr_assert_not(plan_algo_can(recdbl, &s), "another collective");
    s.coll = KOLO_COLL_ALL_TO_ALL_V;
    cr_assert_not(plan_algo_can(bruck, &s));
    cr_assert_eq(plan_generate(bruck, &s, &p), KOLO_ERR_ARG);
    cr_assert_eq(plan_generate(NULL, &s, &p), KOLO_ERR_ARG);
    cr_assert_null(p);
}

Test(plan_algos, one_rank_copies)
{
    for (int c = 0; c < KOLO_COLL_SEND; c++) {
        const struct plan_shape s = {.coll = (enum kolo_coll)c, .nranks = 1};
        const bool is_reducing = c == KOLO_COLL_ALL_REDUCE || c == KOLO_COLL_REDUCE ||
                                 c == KOLO_COLL_REDUCE_SCATTER || c == KOLO_COLL_REDUCE_SCATTER_V;
        struct plan *p;
        cr_assert_eq(plan_generate(NULL, &s, &p), KOLO_OK, "%s: %s", kolo_coll_name(c),
                     fail_text());
        cr_assert_eq(p->nsteps, c == KOLO_COLL_BARRIER ? 0 : 1, "%s", kolo_coll_name(c));
        cr_assert_eq(p->nchannels, 0, "%s", kolo_coll_name(c));
        if (p->nsteps > 0)
            cr_assert_eq(p->steps[0].flags, is_reducing ? PLAN_FINAL : 0, "%s", kolo_coll_name(c));
        plan_destroy(p);
    }
}

Test(plan_algos, nobody_sends_to_itself)
{
    struct plan *p = NULL;
    struct plan_shape s = {.coll = KOLO_COLL_SEND, .nranks = 2, .rank = 1, .root = 1};
    cr_assert_eq(plan_generate(NULL, &s, &p), KOLO_ERR_ARG);
    s.coll = KOLO_COLL_RECV;
    cr_assert_eq(plan_generate(NULL, &s, &p), KOLO_ERR_ARG);
    cr_assert_null(p);
}

/* A ring of full links stands still; everything else does with one message per link. */
Test(plan_algos, one_slot_is_enough_but_for_rings)
{
    size_t nalgos;
    const struct plan_algo *const algos = plan_algos(&nalgos);
    for (size_t i = 0; i < nalgos; i++) {
        const struct plan_limits limits = {
            .slots = 1, .not_in_place = (algos[i].flags & ALGO_NOT_IN_PLACE) != 0};
        for (int n = 3; n <= 9; n++) {
            struct plan **const plans =
                generate(&algos[i], &(struct plan_shape){algos[i].coll, n, 0, n / 2, 0});
            if (!plans)
                continue;
            const bool is_ring = strcmp(algos[i].name, "ring") == 0;
            cr_assert_eq(plan_verify(plans, n, &limits), is_ring ? KOLO_ERR_ARG : KOLO_OK,
                         "%s/%s n %d: %s", kolo_coll_name((int)algos[i].coll), algos[i].name, n,
                         fail_text());
            plan_set_destroy(plans, (size_t)n);
        }
    }
}

Test(plan_algos, bad_shapes_are_refused)
{
    static const struct plan_shape bad[] = {
        {KOLO_NCOLLS, 2, 0, 0, 0},
        {(enum kolo_coll) - 1, 2, 0, 0, 0},
        {KOLO_COLL_ALL_REDUCE, 0, 0, 0, 0},
        {KOLO_COLL_ALL_REDUCE, -1, 0, 0, 0},
        {KOLO_COLL_ALL_REDUCE, PLAN_MAX_RANKS + 1, 0, 0, 0},
        {KOLO_COLL_ALL_REDUCE, 2, 2, 0, 0},
        {KOLO_COLL_ALL_REDUCE, 2, 0, -1, 0},
        {KOLO_COLL_ALL_REDUCE, 2, 0, 2, 0},
        {KOLO_COLL_ALL_REDUCE, 2, 0, 0, -1},
        {KOLO_COLL_ALL_REDUCE, 2, 0, 0, INT32_MAX},
    };
    const struct plan_algo *const tree = plan_algo_find(KOLO_COLL_ALL_REDUCE, "tree");
    struct plan *p = NULL;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        cr_assert_eq(plan_generate(tree, &bad[i], &p), KOLO_ERR_ARG, "case %zu", i);
    cr_assert_null(p);
}

/* The largest machine there may be: short plans are made; long ones too, or refused with the reason
 * that a move has too many operands. */
Test(plan_algos, many_ranks_are_made_or_refused)
{
    static const char *const is_short[] = {"circulant", "tree", "binomial", "recdbl",
                                           "dissemination"};
    size_t nalgos;
    const struct plan_algo *const algos = plan_algos(&nalgos);
    for (size_t i = 0; i < nalgos; i++) {
        int n = 1 << 17;
        for (size_t k = 0; k < sizeof(is_short) / sizeof(is_short[0]); k++)
            n = strcmp(algos[i].name, is_short[k]) == 0 ? PLAN_MAX_RANKS : n;
        const struct plan_shape s = {algos[i].coll, n, n - 1, 5, 0};
        struct plan *p = NULL;
        const enum kolo_status status = plan_generate(&algos[i], &s, &p);
        if (status != KOLO_OK)
            cr_assert(n < PLAN_MAX_RANKS && strstr(fail_text(), "65535 of each are possible"),
                      "%s/%s: %s", kolo_coll_name((int)algos[i].coll), algos[i].name, fail_text());
        plan_destroy(p);
    }
}

Test(plan_algos, every_allocation_may_fail)
{
    size_t n;
    const struct plan_algo *const algos = plan_algos(&n);
    const int64_t live = mem_live();
    for (size_t i = 0; i < n; i++) {
        const struct plan_shape s = {algos[i].coll, 8, 3, 3, 0};
        enum kolo_status status = KOLO_ERR_NOMEM;
        for (int nth = 1; status != KOLO_OK; nth++) {
            struct plan *p = NULL;
            mem_fail_at((uint64_t)nth);
            status = plan_generate(&algos[i], &s, &p);
            mem_fail_at(0);
            cr_assert(status == KOLO_OK || status == KOLO_ERR_NOMEM, "%s: %s", algos[i].name,
                      fail_text());
            cr_assert_lt(nth, 100, "%s", algos[i].name);
            plan_destroy(p);
            cr_assert_eq(mem_live(), live, "%s leaks at allocation %d", algos[i].name, nth);
        }
    }
}
