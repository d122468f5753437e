/* plan_circulant_bcast.c - round-optimal broadcast and reduction of B blocks in B-1+L rounds,
 * for every n, by Traff (arXiv 2312.11236, 2407.18004).
 *
 * In each round every rank sends one block and receives one; in round i, with k = i mod L, it
 * sends to v + skip[k] and receives from v - skip[k], v being the distance from the root and
 * skip[L] = n, skip[k] = ceil(skip[k+1] / 2).  What it receives in L rounds is fixed by a table
 * of L numbers that each rank computes for itself and for those it sends to: block[k], and L
 * more in every L rounds after.  Negative blocks do not exist, blocks from B-1 on are block B-1;
 * a rank is sent no block twice.  The reduction is the same with time and direction reversed. */
#include "plan_gen.h"

#include "mem.h"

enum { MAX_LOG = 21 }; /* of PLAN_MAX_RANKS = 2^20, and one */

/* What all ranks know. */
struct circulant {
    int n;
    int nlog; /* L */
    int skip[MAX_LOG + 1];
    int blocks;
    int first; /* the first round, so that the last one is the end of a phase of L */
    int end;
};

/* What one rank receives. */
struct schedule {
    int block[MAX_LOG];
    int last_round; /* in which block B-1 comes, under whichever number */
};

/* Search state: a descending linked list of the skips that are still free, its head at L + 1. */
struct search {
    const struct circulant *c;
    int target; /* n + v */
    int below;  /* paths must stay below this, the last one found */
    int next[MAX_LOG + 2];
    int before[MAX_LOG + 2];
    int found[MAX_LOG];
    int nfound;
};

static void unlink_skip(struct search *s, int e)
{
    s->next[s->before[e]] = s->next[e];
    if (s->next[e] >= 0)
        s->before[s->next[e]] = s->before[e];
}

/* Depth-first over sums of skips, largest first: the k-th block of a rank is the skip by which the
 * path to the greatest admissible predecessor in [target - skip[k+1], target - skip[k]] ends. */
static void search_from(struct search *s, int path, int e)
{
    const int *const skip = s->c->skip;
    const int nlog = s->c->nlog;
    for (; e >= 0 && s->nfound < nlog; e = s->next[e]) {
        const int longer = path + skip[e];
        if (longer > s->target - skip[s->nfound] || longer >= s->below)
            continue;
        if (longer <= s->target - skip[s->nfound + 1])
            search_from(s, longer, e);
        if (s->nfound == nlog || path > s->target - skip[s->nfound + 1])
            return;
        s->below = longer;
        s->found[s->nfound++] = e;
        unlink_skip(s, e);
    }
}

/* The greatest skip on the greedy path to v: the first block that v gets; L for the root. */
static int base_block(const struct circulant *c, int v)
{
    for (int k = c->nlog - 1; k >= 0; k--) {
        if (c->skip[k] == v)
            return k;
        if (c->skip[k] < v)
            v -= c->skip[k];
    }
    return c->nlog;
}

/* Block received in round i; negative: none yet. */
static int raw_block(const struct circulant *c, const struct schedule *of, int i)
{
    return of->block[i % c->nlog] + i / c->nlog * c->nlog - c->first;
}

static struct schedule schedule_of(const struct circulant *c, int v)
{
    const int nlog = c->nlog;
    struct search s = {.c = c, .target = c->n + v, .below = 2 * c->n};
    struct schedule made;
    for (int e = 0; e <= nlog + 1; e++) {
        s.next[e] = e - 1;
        s.before[e] = e + 1;
    }
    const int base = base_block(c, v);
    unlink_skip(&s, base);
    search_from(&s, 0, s.next[nlog + 1]);
    for (int k = 0; k < nlog; k++)
        made.block[k] = s.found[k] == nlog ? base : s.found[k] - nlog;
    made.last_round = c->first;
    while (made.last_round < c->end - 1 && raw_block(c, &made, made.last_round) < c->blocks - 1)
        made.last_round++;
    return made;
}

/* Block that comes in round i; -1: none, or one that came before. */
static int block_in(const struct circulant *c, const struct schedule *of, int i)
{
    const int block = raw_block(c, of, i);
    if (block < 0 || (block >= c->blocks - 1 && i != of->last_round))
        return -1;
    return min_int(block, c->blocks - 1);
}

/* Default: twice the rounds of one block, so that a third of the time is the pipeline's filling. */
static int blocks_of(const struct plan_shape *s)
{
    return s->blocks > 0 ? s->blocks : 2 * plan_log2_up(s->nranks);
}

static struct circulant circulant_of(const struct plan_shape *s)
{
    struct circulant c = {.n = s->nranks, .nlog = plan_log2_up(s->nranks), .blocks = blocks_of(s)};
    c.skip[c.nlog] = c.n;
    for (int k = c.nlog - 1; k >= 0; k--)
        c.skip[k] = (c.skip[k + 1] + 1) / 2;
    const int rounds = c.blocks - 1 + c.nlog;
    c.first = (c.nlog - rounds % c.nlog) % c.nlog;
    c.end = c.first + rounds;
    return c;
}

/* The schedules that a rank needs: its own and those of the ranks it sends to. */
struct view {
    struct circulant c;
    const struct plan_shape *s;
    int v; /* distance from the root */
    struct schedule mine;
    struct schedule theirs[MAX_LOG]; /* of v + skip[k] */
};

static void view_init(struct view *w, const struct plan_shape *s)
{
    w->c = circulant_of(s);
    w->s = s;
    w->v = plan_wrap(s->rank, -s->root, s->nranks);
    w->mine = schedule_of(&w->c, w->v);
    for (int k = 0; k < w->c.nlog; k++)
        w->theirs[k] = schedule_of(&w->c, plan_wrap(w->v, w->c.skip[k], w->c.n));
}

/* Block that this rank sends in round i, or -1, and to whom; the root is sent nothing. */
static int block_out(const struct view *w, int i, int *peer)
{
    const int k = i % w->c.nlog;
    *peer = plan_wrap(w->s->rank, w->c.skip[k], w->c.n);
    return *peer == w->s->root ? -1 : block_in(&w->c, &w->theirs[k], i);
}

/* The same for what it receives. */
static int block_mine(const struct view *w, int i, int *peer)
{
    *peer = plan_wrap(w->s->rank, -w->c.skip[i % w->c.nlog], w->c.n);
    return w->v == 0 ? -1 : block_in(&w->c, &w->mine, i);
}

/* Rounds B-1+L of S/B bytes; bytes sent at most S + (L-1) S/B at any rank.  The root also stores a
 * block into its output when it sends it for the first time, which is round `first` + block. */
enum kolo_status plan_gen_broadcast_circulant(const struct plan_shape *s, struct plan **out)
{
    struct view w;
    view_init(&w, s);
    const int nchunks = w.c.blocks;
    struct plan_builder *b;
    TRY(plan_builder_create(s, "circulant", plan_is_root(s) ? nchunks : 0, nchunks, 0, &b));
    plan_lane_begin(b);
    for (int i = w.c.first; i < w.c.end; i++) {
        int peer;
        const int sent = block_out(&w, i, &peer);
        if (sent >= 0) {
            plan_move(b, PLAN_OUT, plan_chunk(sent), 0);
            plan_to(b, PLAN_LINK, peer, 0, 0);
            if (plan_is_root(s) && sent == i - w.c.first)
                plan_to(b, PLAN_OUT, -1, 0, sent);
            plan_from(b, plan_is_root(s) ? PLAN_IN : PLAN_OUT, -1, 0, sent);
        }
        const int got = block_mine(&w, i, &peer);
        if (got >= 0)
            plan_receive(b, plan_chunk(got), peer, 0);
    }
    return plan_finish(b, out);
}

/* Add what comes for `block` to what this rank has of it. */
static void add_block(struct plan_builder *b, const struct view *w, int block, int peer,
                      bool is_first, bool is_last)
{
    const bool is_root = w->v == 0;
    const enum plan_space sum = is_root ? PLAN_OUT : PLAN_TMP;
    plan_move(b, PLAN_IN, plan_chunk(block), is_root && is_last ? PLAN_FINAL : 0);
    plan_to(b, sum, -1, 0, block);
    plan_from(b, PLAN_LINK, peer, 0, 0);
    plan_from(b, is_first ? PLAN_IN : sum, -1, 0, block);
}

/* Backwards through the rounds of the broadcast; has_sum[k]: block k has been added to. */
static void reduce_rounds(struct plan_builder *b, const struct view *w, bool *has_sum)
{
    for (int i = w->c.end - 1; i >= w->c.first; i--) {
        int peer;
        const int sent = block_mine(w, i, &peer);
        if (sent >= 0) {
            plan_move(b, PLAN_IN, plan_chunk(sent), 0);
            plan_to(b, PLAN_LINK, peer, 0, 0);
            plan_from(b, has_sum[sent] ? PLAN_TMP : PLAN_IN, -1, 0, sent);
        }
        const int got = block_out(w, i, &peer);
        if (got >= 0) {
            add_block(b, w, got, peer, !has_sum[got], got == i - w->c.first);
            has_sum[got] = true;
        }
    }
}

/* Rounds B-1+L of S/B bytes; bytes received at most S + (L-1) S/B at any rank. */
enum kolo_status plan_gen_reduce_circulant(const struct plan_shape *s, struct plan **out)
{
    struct view w;
    view_init(&w, s);
    const int nchunks = w.c.blocks;
    struct plan_builder *b;
    bool *const has_sum = mem_calloc((size_t)nchunks, sizeof(*has_sum));
    if (!has_sum)
        return fail(KOLO_ERR_NOMEM, "plan reduce circulant rank %d: no memory for %d blocks",
                    s->rank, nchunks);
    enum kolo_status status = plan_builder_create(
        s, "circulant", nchunks, plan_is_root(s) ? nchunks : 0, plan_is_root(s) ? 0 : nchunks, &b);
    if (status == KOLO_OK) {
        plan_lane_begin(b);
        reduce_rounds(b, &w, has_sum);
        status = plan_finish(b, out);
    }
    mem_free(has_sum);
    return status;
}

/* Bounds for ranks other than the root, which send in all rounds but the first and receive each
 * block once; the root's B-1+L messages are exact.  Of two ranks the second sends nothing. */
static void circulant_cost(const struct plan_shape *s, double per_sent, double per_received,
                           double at_root, struct plan_cost *cost)
{
    const double nblocks = blocks_of(s);
    const double rounds = nblocks - 1 + plan_log2_up(s->nranks);
    const bool is_pair = s->nranks == 2;
    const double other = is_pair ? 0 : (rounds - 1) * per_sent + nblocks * per_received;
    *cost = (struct plan_cost){.hops = is_pair ? 1 : rounds,
                               .messages = is_pair ? rounds : rounds - 1 + nblocks,
                               .sent = rounds / nblocks,
                               .touched = (other > at_root ? other : at_root) / nblocks};
}

void plan_cost_broadcast_circulant(const struct plan_shape *s, struct plan_cost *cost)
{
    const double nblocks = blocks_of(s);
    circulant_cost(s, 2, 2, 3 * nblocks + 2 * (plan_log2_up(s->nranks) - 1), cost);
}

void plan_cost_reduce_circulant(const struct plan_shape *s, struct plan_cost *cost)
{
    const double nblocks = blocks_of(s);
    circulant_cost(s, 3, 2, 3 * (nblocks - 1 + plan_log2_up(s->nranks)), cost);
}
