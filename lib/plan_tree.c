/* plan_tree.c - trees: the double binary tree for all-reduce, binomial trees for the rooted ones.
 *
 * Binary tree over positions 0 .. n-1, n = 6:      0
 *                                                    \
 * position p hangs, by its lowest set bit b,          4
 * between p - b/2 and p + b/2                       /   \
 * (the next that exists)                           2     5
 *                                                 / \
 *                                                1   3
 * Binomial tree over v = rank - root mod n: v hangs below v without its lowest set bit. */
#include "plan_gen.h"

/* ---- double binary tree ---------------------------------------------------------------------- */

enum { UP_CHANNEL, DOWN_CHANNEL, CHANNELS_PER_TREE };

/* Ranks next to this one in tree 0 or 1. */
struct neighbours {
    int parent; /* -1: this is the root */
    int child[2];
    int nchildren;
};

/* The second tree mirrors the ranks, or shifts them by one if n is odd, so that no rank has two
 * children in both: the odd positions are leaves. */
static int position(int tree, int rank, int n)
{
    if (tree == 0)
        return rank;
    return n % 2 == 0 ? n - 1 - rank : plan_wrap(rank, -1, n);
}

static int rank_at(int tree, int at, int n)
{
    if (tree == 0)
        return at;
    return n % 2 == 0 ? n - 1 - at : plan_wrap(at, 1, n);
}

static int parent_position(int at, int n)
{
    const int bit = at & -at;
    const int64_t up = (int64_t)(at ^ bit) | (int64_t)bit * 2;
    return up < n ? (int)up : at ^ bit;
}

static struct neighbours neighbours_find(int tree, int rank, int n)
{
    const int at = position(tree, rank, n);
    struct neighbours found = {.parent = -1};
    if (at == 0) {
        found.child[found.nchildren++] = rank_at(tree, 1 << (plan_log2_up(n) - 1), n);
        return found;
    }
    int half = (at & -at) / 2;
    found.parent = rank_at(tree, parent_position(at, n), n);
    if (half > 0)
        found.child[found.nchildren++] = rank_at(tree, at - half, n);
    while (half > 0 && at + half >= n)
        half /= 2;
    if (half > 0)
        found.child[found.nchildren++] = rank_at(tree, at + half, n);
    return found;
}

/* Children's sums and the input to the parent, or at the root to the output and all the way
 * down. */
static void up_lane(struct plan_builder *b, const struct neighbours *near, int channel,
                    struct plan_span chunks)
{
    plan_lane_begin(b);
    for (int c = chunks.chunk; c < chunks.chunk + chunks.count; c++) {
        plan_move(b, PLAN_IN, plan_chunk(c), near->parent < 0 ? PLAN_FINAL : 0);
        if (near->parent >= 0) {
            plan_to(b, PLAN_LINK, near->parent, channel + UP_CHANNEL, 0);
        } else {
            plan_to(b, PLAN_OUT, -1, 0, c);
            for (int i = 0; i < near->nchildren; i++)
                plan_to(b, PLAN_LINK, near->child[i], channel + DOWN_CHANNEL, 0);
        }
        plan_from(b, PLAN_IN, -1, 0, c);
        for (int i = 0; i < near->nchildren; i++)
            plan_from(b, PLAN_LINK, near->child[i], channel + UP_CHANNEL, 0);
    }
}

static void down_lane(struct plan_builder *b, const struct neighbours *near, int channel,
                      struct plan_span chunks)
{
    if (near->parent < 0)
        return;
    plan_lane_begin(b);
    for (int c = chunks.chunk; c < chunks.chunk + chunks.count; c++) {
        plan_move(b, PLAN_OUT, plan_chunk(c), 0);
        plan_to(b, PLAN_OUT, -1, 0, c);
        for (int i = 0; i < near->nchildren; i++)
            plan_to(b, PLAN_LINK, near->child[i], channel + DOWN_CHANNEL, 0);
        plan_from(b, PLAN_LINK, near->parent, channel + DOWN_CHANNEL, 0);
    }
}

static int tree_blocks(const struct plan_shape *s)
{
    return s->blocks > 0 ? s->blocks : 1;
}

/* Two trees, each for half of the vector in `blocks` chunks (default 1); a rank is an inner node in
 * one and a leaf in the other.  Rounds 2 L, bytes sent at most 2 S.  Up and down are lanes of their
 * own, so that pieces follow each other up while earlier ones come down.  In place: a result comes
 * down after this rank's part of it went up.  (Sanders, Speck, Traff 2009; shape as NCCL's.) */
enum kolo_status plan_gen_all_reduce_tree(const struct plan_shape *s, struct plan **out)
{
    const int blocks = tree_blocks(s);
    struct neighbours near[2];
    struct plan_builder *b;
    TRY(plan_builder_create(s, "tree", 2 * blocks, 2 * blocks, 0, &b));
    for (int t = 0; t < 2; t++) {
        near[t] = neighbours_find(t, s->rank, s->nranks);
        up_lane(b, &near[t], t * CHANNELS_PER_TREE, plan_chunks(t * blocks, blocks));
    }
    for (int t = 0; t < 2; t++)
        down_lane(b, &near[t], t * CHANNELS_PER_TREE, plan_chunks(t * blocks, blocks));
    return plan_finish(b, out);
}

void plan_cost_all_reduce_tree(const struct plan_shape *s, struct plan_cost *cost)
{
    /* the busiest rank has a parent and two children in one tree and is a leaf in the other; with
     * two or three ranks nobody has two children */
    const int n = s->nranks;
    const double sent = n == 2 ? 1 : n == 3 ? 1.5 : 2;
    const double touched = n == 2 ? 4 : n == 3 ? 5 : 6;
    *cost = (struct plan_cost){.hops = 2 * plan_log2_up(n),
                               .messages = 4 * sent * tree_blocks(s),
                               .sent = sent,
                               .touched = touched};
}

/* ---- binomial tree --------------------------------------------------------------------------- */

struct binomial {
    int parent; /* rank; -1 at the root */
    int nodes;  /* of the subtree, itself included: relative ranks v .. v + nodes - 1; the children
                   are v + 1, v + 2, v + 4 ... of them */
};

static struct binomial binomial_find(const struct plan_shape *s)
{
    const int n = s->nranks;
    const int v = plan_wrap(s->rank, -s->root, n);
    const int bit = v & -v;
    if (v == 0)
        return (struct binomial){-1, n};
    const int nodes = min_int(bit, n - v);
    return (struct binomial){plan_wrap(s->root, v - bit, n), nodes};
}

/* Rank of the child `distance` below this one, and the nodes of its subtree. */
static int child_rank(const struct plan_shape *s, int distance)
{
    return plan_wrap(s->rank, distance, s->nranks);
}

static int child_nodes(const struct binomial *tree, int distance)
{
    return min_int(distance, tree->nodes - distance);
}

/* The largest power of two below n >= 2; 0 for 1. */
static int top_child(int n)
{
    return n < 2 ? 0 : 1 << (plan_log2_up(n) - 1);
}

/* One move gives the vector to all children, largest subtree first.  Rounds floor(log2 n), bytes
 * sent L S at the root: for short vectors. */
enum kolo_status plan_gen_broadcast_binomial(const struct plan_shape *s, struct plan **out)
{
    const struct binomial tree = binomial_find(s);
    struct plan_builder *b;
    TRY(plan_builder_create(s, "binomial", plan_is_root(s), 1, 0, &b));
    plan_lane_begin(b);
    plan_move(b, PLAN_OUT, plan_chunk(0), 0);
    plan_to(b, PLAN_OUT, -1, 0, 0);
    for (int d = top_child(tree.nodes); d > 0; d /= 2)
        plan_to(b, PLAN_LINK, child_rank(s, d), 0, 0);
    if (plan_is_root(s))
        plan_from(b, PLAN_IN, -1, 0, 0);
    else
        plan_from(b, PLAN_LINK, tree.parent, 0, 0);
    return plan_finish(b, out);
}

/* The reverse: one move adds up all children.  Rounds floor(log2 n), bytes received L S at the
 * root. */
enum kolo_status plan_gen_reduce_binomial(const struct plan_shape *s, struct plan **out)
{
    const struct binomial tree = binomial_find(s);
    struct plan_builder *b;
    TRY(plan_builder_create(s, "binomial", 1, plan_is_root(s), 0, &b));
    plan_lane_begin(b);
    plan_move(b, PLAN_IN, plan_chunk(0), plan_is_root(s) ? PLAN_FINAL : 0);
    if (plan_is_root(s))
        plan_to(b, PLAN_OUT, -1, 0, 0);
    else
        plan_to(b, PLAN_LINK, tree.parent, 0, 0);
    plan_from(b, PLAN_IN, -1, 0, 0);
    for (int d = 1; d < tree.nodes; d *= 2)
        plan_from(b, PLAN_LINK, child_rank(s, d), 0, 0);
    return plan_finish(b, out);
}

/* Of both. */
void plan_cost_binomial(const struct plan_shape *s, struct plan_cost *cost)
{
    const double rounds = plan_log2_up(s->nranks);
    /* The root has two children and tells both the same, once. */
    const int saved = s->nranks == 3 && !plan_is_reducing(s->coll);
    *cost = (struct plan_cost){.hops = plan_log2_down(s->nranks),
                               .messages = rounds,
                               .sent = rounds,
                               .touched = rounds + 2 - saved,
                               .total = 3 * s->nranks - 1 - saved,
                               .link = 1};
}

/* The blocks of a subtree travel as one message, collected in scratch.  Rounds floor(log2 n), bytes
 * received S (n-1)/n at the root.  All blocks are equally long, so away from the root the one chunk
 * of the input stands for each of them. */
enum kolo_status plan_gen_gather_binomial(const struct plan_shape *s, struct plan **out)
{
    const struct binomial tree = binomial_find(s);
    const bool is_root = plan_is_root(s);
    const bool is_leaf = tree.nodes == 1;
    struct plan_builder *b;
    TRY(plan_builder_create(s, "binomial", 1, is_root ? s->nranks : 0,
                            is_root || is_leaf ? 0 : tree.nodes, &b));
    const enum plan_space space = is_root ? PLAN_OUT : PLAN_TMP;
    const int base = is_root ? s->root : 0;
    plan_lane_begin(b);
    if (!is_leaf) {
        plan_move(b, PLAN_IN, plan_chunk(0), 0);
        plan_to(b, space, -1, 0, base);
        plan_from(b, PLAN_IN, -1, 0, 0);
    }
    for (int d = 1; d < tree.nodes; d *= 2) {
        const int at = is_root ? plan_wrap(base, d, s->nranks) : d;
        plan_move(b, PLAN_IN, plan_chunks(0, child_nodes(&tree, d)), 0);
        plan_to(b, space, -1, 0, at);
        plan_from(b, PLAN_LINK, child_rank(s, d), 0, 0);
    }
    if (!is_root) {
        plan_move(b, PLAN_IN, plan_chunks(0, tree.nodes), 0);
        plan_to(b, PLAN_LINK, tree.parent, 0, 0);
        plan_from(b, is_leaf ? PLAN_IN : PLAN_TMP, -1, 0, 0);
    }
    return plan_finish(b, out);
}

static void scatter_receive(struct plan_builder *b, const struct binomial *tree, bool is_leaf)
{
    plan_move(b, PLAN_OUT, plan_chunks(0, tree->nodes), 0);
    plan_to(b, is_leaf ? PLAN_OUT : PLAN_TMP, -1, 0, 0);
    plan_from(b, PLAN_LINK, tree->parent, 0, 0);
}

/* The reverse, largest subtree first.  Rounds floor(log2 n), bytes sent S (n-1)/n at the root. */
enum kolo_status plan_gen_scatter_binomial(const struct plan_shape *s, struct plan **out)
{
    const struct binomial tree = binomial_find(s);
    const bool is_root = plan_is_root(s);
    const bool is_leaf = tree.nodes == 1;
    struct plan_builder *b;
    TRY(plan_builder_create(s, "binomial", is_root ? s->nranks : 0, 1,
                            is_root || is_leaf ? 0 : tree.nodes, &b));
    const enum plan_space space = is_root ? PLAN_IN : PLAN_TMP;
    const int base = is_root ? s->root : 0;
    plan_lane_begin(b);
    if (!is_root)
        scatter_receive(b, &tree, is_leaf);
    for (int d = top_child(tree.nodes); d > 0; d /= 2) {
        plan_move(b, PLAN_OUT, plan_chunks(0, child_nodes(&tree, d)), 0);
        plan_to(b, PLAN_LINK, child_rank(s, d), 0, 0);
        plan_from(b, space, -1, 0, is_root ? plan_wrap(base, d, s->nranks) : d);
    }
    if (!is_leaf) {
        plan_move(b, PLAN_OUT, plan_chunk(0), 0);
        plan_to(b, PLAN_OUT, -1, 0, 0);
        plan_from(b, space, -1, 0, base);
    }
    return plan_finish(b, out);
}

/* Of both. */
void plan_cost_gather_binomial(const struct plan_shape *s, struct plan_cost *cost)
{
    const double n = s->nranks;
    *cost = (struct plan_cost){.hops = plan_log2_down(s->nranks),
                               .messages = plan_log2_up(s->nranks),
                               .sent = (n - 1) / n,
                               .touched = 2};
}
