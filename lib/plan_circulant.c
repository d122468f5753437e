/* plan_circulant.c - reduce-scatter and all-gather in ceil(log2 n) rounds for every n, by Traff
 * (repositum TU Wien 219280); the all-gather is also Bruck's, with blocks counted from the own
 * rank.
 *
 * Halve with rounding up: skip[0] = n, skip[i+1] = ceil(skip[i] / 2), down to skip[L] = 1.
 * Block j of a rank is chunk r + j, and partial sums of it move towards j = 0:
 *
 *   round i of the reduce-scatter   blocks skip[i+1] .. skip[i]-1 go to rank r + skip[i+1]; those
 *                                   that come from r - skip[i+1] are added to blocks 0, 1, ...
 *   all-gather                      the same list backwards, other direction
 *
 * Every block is sent once: n-1 of n blocks in L rounds each way.  Reduces in no special order. */
#include "plan_gen.h"

enum { MAX_ROUNDS = 21 }; /* of PLAN_MAX_RANKS = 2^20, and one */

struct skips {
    int nrounds;
    int at[MAX_ROUNDS + 1];
};

static struct skips skips_of(int n)
{
    struct skips k = {.at[0] = n};
    while (k.at[k.nrounds] > 1) {
        k.at[k.nrounds + 1] = (k.at[k.nrounds] + 1) / 2;
        k.nrounds++;
    }
    return k;
}

/* Where partial sums are kept: block j is chunk (base + j) mod row of `space`. */
struct partial {
    enum plan_space space;
    int base;
    int row;
};

static int partial_at(const struct partial *p, int j)
{
    return (p->base + j) % p->row;
}

/* For odd n the middle block is sent on in the second round without having been added to in the
 * first, along with others that have: put it where they are. */
static bool has_middle(int n)
{
    return n > 2 && n % 2 == 1;
}

static void copy_middle(struct plan_builder *b, const struct plan_shape *s, const struct partial *p)
{
    const int middle = s->nranks / 2;
    const int chunk = plan_wrap(s->rank, middle, s->nranks);
    plan_move(b, PLAN_IN, plan_chunk(chunk), 0);
    plan_to(b, p->space, -1, 0, partial_at(p, middle));
    plan_from(b, PLAN_IN, -1, 0, chunk);
}

static void send_blocks(struct plan_builder *b, const struct plan_shape *s, const struct skips *k,
                        int i, const struct partial *p)
{
    const int first = k->at[i + 1];
    const int chunk = plan_wrap(s->rank, first, s->nranks);
    plan_move(b, PLAN_IN, plan_chunks(chunk, k->at[i] - first), 0);
    plan_to(b, PLAN_LINK, chunk, 0, 0);
    if (i == 0)
        plan_from(b, PLAN_IN, -1, 0, chunk);
    else
        plan_from(b, p->space, -1, 0, partial_at(p, first));
}

/* The sources of round i: the message, and what this rank has of the same blocks. */
static void add_sources(struct plan_builder *b, const struct plan_shape *s, const struct skips *k,
                        int i, const struct partial *p)
{
    plan_from(b, PLAN_LINK, plan_wrap(s->rank, -k->at[i + 1], s->nranks), 0, 0);
    if (i == 0)
        plan_from(b, PLAN_IN, -1, 0, s->rank);
    else
        plan_from(b, p->space, -1, 0, partial_at(p, 0));
}

/* All of the reduce-scatter but the addition of the last round, which the caller places. */
static void reduce_scatter(struct plan_builder *b, const struct plan_shape *s,
                           const struct skips *k, const struct partial *p)
{
    if (has_middle(s->nranks))
        copy_middle(b, s, p);
    for (int i = 0; i < k->nrounds; i++) {
        send_blocks(b, s, k, i, p);
        if (i == k->nrounds - 1)
            break;
        plan_move(b, PLAN_IN, plan_chunks(s->rank, k->at[i] - k->at[i + 1]), 0);
        plan_to(b, p->space, -1, 0, partial_at(p, 0));
        add_sources(b, s, k, i, p);
    }
}

/* All of the all-gather but its first send, in `channel`; block 0 is there. */
static void all_gather(struct plan_builder *b, const struct plan_shape *s, const struct skips *k,
                       int channel)
{
    const int n = s->nranks;
    for (int i = k->nrounds - 1; i >= 0; i--) {
        const int skip = k->at[i + 1];
        const int count = k->at[i] - skip;
        if (i < k->nrounds - 1)
            plan_send(b, PLAN_OUT, plan_chunks(s->rank, count), plan_wrap(s->rank, -skip, n),
                      channel);
        plan_receive(b, plan_chunks(plan_wrap(s->rank, skip, n), count),
                     plan_wrap(s->rank, skip, n), channel);
    }
}

/* Rounds L, bytes sent S (n-1)/n.  Partial sums of the nearer half live in scratch. */
enum kolo_status plan_gen_reduce_scatter_circulant(const struct plan_shape *s, struct plan **out)
{
    const struct skips k = skips_of(s->nranks);
    const int scratch = s->nranks > 2 ? k.at[1] : 0;
    const struct partial p = {PLAN_TMP, 0, max_int(scratch, 1)};
    struct plan_builder *b;
    TRY(plan_builder_create(s, "circulant", s->nranks, 1, scratch, &b));
    plan_lane_begin(b);
    reduce_scatter(b, s, &k, &p);
    plan_move(b, PLAN_IN, plan_chunk(s->rank), PLAN_FINAL);
    plan_to(b, PLAN_OUT, -1, 0, 0);
    add_sources(b, s, &k, k.nrounds - 1, &p);
    return plan_finish(b, out);
}

void plan_cost_reduce_scatter_circulant(const struct plan_shape *s, struct plan_cost *cost)
{
    const double n = s->nranks;
    *cost = (struct plan_cost){.hops = plan_log2_up(s->nranks),
                               .messages = 2 * plan_log2_up(s->nranks),
                               .sent = (n - 1) / n,
                               .touched = (5 * (n - 1) + 2 * has_middle(s->nranks)) / n};
}

/* Rounds L, bytes sent S (n-1)/n. */
enum kolo_status plan_gen_all_gather_circulant(const struct plan_shape *s, struct plan **out)
{
    const struct skips k = skips_of(s->nranks);
    struct plan_builder *b;
    TRY(plan_builder_create(s, "circulant", 1, s->nranks, 0, &b));
    plan_lane_begin(b);
    plan_move(b, PLAN_OUT, plan_chunk(s->rank), 0);
    plan_to(b, PLAN_OUT, -1, 0, s->rank);
    plan_to(b, PLAN_LINK, plan_wrap(s->rank, -1, s->nranks), 0, 0);
    plan_from(b, PLAN_IN, -1, 0, 0);
    all_gather(b, s, &k, 0);
    return plan_finish(b, out);
}

void plan_cost_all_gather_circulant(const struct plan_shape *s, struct plan_cost *cost)
{
    const double n = s->nranks;
    *cost = (struct plan_cost){.hops = plan_log2_up(s->nranks),
                               .messages = 2 * plan_log2_up(s->nranks),
                               .sent = (n - 1) / n,
                               .touched = (4 * n - 3) / n};
}

/* Both, with partial sums in the output.  Rounds 2 L, bytes sent 2 S (n-1)/n.  One lane, because
 * the all-gather sends what the reduce-scatter stores. */
enum kolo_status plan_gen_all_reduce_circulant(const struct plan_shape *s, struct plan **out)
{
    const int n = s->nranks;
    const struct skips k = skips_of(n);
    const struct partial p = {PLAN_OUT, s->rank, n};
    struct plan_builder *b;
    TRY(plan_builder_create(s, "circulant", n, n, 0, &b));
    plan_lane_begin(b);
    reduce_scatter(b, s, &k, &p);
    plan_move(b, PLAN_OUT, plan_chunk(s->rank), PLAN_FINAL);
    plan_to(b, PLAN_OUT, -1, 0, s->rank);
    plan_to(b, PLAN_LINK, plan_wrap(s->rank, -1, n), 1, 0);
    add_sources(b, s, &k, k.nrounds - 1, &p);
    all_gather(b, s, &k, 1);
    return plan_finish(b, out);
}

void plan_cost_all_reduce_circulant(const struct plan_shape *s, struct plan_cost *cost)
{
    const double n = s->nranks;
    *cost = (struct plan_cost){.hops = 2 * plan_log2_up(s->nranks),
                               .messages = 4 * plan_log2_up(s->nranks),
                               .sent = 2 * (n - 1) / n,
                               .touched = (9 * n - 10 + 2 * has_middle(s->nranks)) / n};
}
