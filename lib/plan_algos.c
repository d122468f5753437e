/* plan_algos.c - the table of all algorithms, and the one door to plans of any kind.  Rounds and
 * bytes are for n ranks, S bytes of the largest buffer of a rank, L = ceil(log2 n); `cost` has
 * the same in numbers. */
#include "plan_gen.h"

#include <string.h>

enum { MAX_BLOCKS = 1 << 20 };

static const struct plan_algo algos[] = {
    {"oneshot", KOLO_COLL_ALL_REDUCE, ALGO_RANK_ORDER, plan_gen_oneshot, plan_cost_oneshot,
     "1 round, (n-1) S sent: every vector to every rank", "folklore"},
    {"twoshot", KOLO_COLL_ALL_REDUCE, ALGO_RANK_ORDER, plan_gen_twoshot, plan_cost_twoshot,
     "2 rounds, 2 S (n-1)/n sent: direct reduce-scatter and all-gather", "folklore"},
    {"ring", KOLO_COLL_ALL_REDUCE, 0, plan_gen_all_reduce_ring, plan_cost_all_reduce_ring,
     "2 (n-1) rounds, 2 S (n-1)/n sent, neighbours only", "Patarasuk and Yuan 2009; NCCL"},
    {"tree", KOLO_COLL_ALL_REDUCE, 0, plan_gen_all_reduce_tree, plan_cost_all_reduce_tree,
     "2 L rounds, 2 S sent: two binary trees with half each, pipelined",
     "Sanders, Speck, Traff 2009; NCCL"},
    {"circulant", KOLO_COLL_ALL_REDUCE, 0, plan_gen_all_reduce_circulant,
     plan_cost_all_reduce_circulant, "2 L rounds, 2 S (n-1)/n sent, any n",
     "Traff, reduce-scatter on circulant graphs (TU Wien repositum 219280)"},
    {"recdbl", KOLO_COLL_ALL_REDUCE, ALGO_POW2, plan_gen_recdbl, plan_cost_recdbl,
     "L rounds, S L sent: recursive doubling", "Thakur, Rabenseifner, Gropp 2005"},
    {"window", KOLO_COLL_ALL_REDUCE, ALGO_WINDOW | ALGO_RANK_ORDER, plan_gen_all_reduce_window,
     plan_cost_all_reduce_window, "1 hand-over, 2 S of memory traffic, nothing sent",
     "two-shot over shared memory"},
    {"direct", KOLO_COLL_REDUCE_SCATTER, ALGO_V | ALGO_RANK_ORDER, plan_gen_reduce_scatter_direct,
     plan_cost_scatter_direct, "1 round, S (n-1)/n sent", "folklore"},
    {"ring", KOLO_COLL_REDUCE_SCATTER, ALGO_V, plan_gen_reduce_scatter_ring, plan_cost_half_ring,
     "n-1 rounds, S (n-1)/n sent, neighbours only", "NCCL"},
    {"circulant", KOLO_COLL_REDUCE_SCATTER, 0, plan_gen_reduce_scatter_circulant,
     plan_cost_reduce_scatter_circulant, "L rounds, S (n-1)/n sent, any n",
     "Traff, reduce-scatter on circulant graphs (TU Wien repositum 219280)"},
    {"window", KOLO_COLL_REDUCE_SCATTER, ALGO_WINDOW | ALGO_RANK_ORDER,
     plan_gen_reduce_scatter_window, plan_cost_share_window,
     "1 hand-over, S (n+1)/n of memory traffic, nothing sent", "shared memory"},
    {"direct", KOLO_COLL_ALL_GATHER, ALGO_V, plan_gen_all_gather_direct, plan_cost_scatter_direct,
     "1 round, S (n-1)/n sent", "folklore"},
    {"ring", KOLO_COLL_ALL_GATHER, ALGO_V, plan_gen_all_gather_ring, plan_cost_half_ring,
     "n-1 rounds, S (n-1)/n sent, neighbours only", "NCCL"},
    {"circulant", KOLO_COLL_ALL_GATHER, 0, plan_gen_all_gather_circulant,
     plan_cost_all_gather_circulant, "L rounds, S (n-1)/n sent, any n",
     "Bruck et al. 1997, without the rotation; Traff"},
    {"window", KOLO_COLL_ALL_GATHER, ALGO_WINDOW, plan_gen_all_gather_window,
     plan_cost_share_window, "1 hand-over, S (n+1)/n of memory traffic, nothing sent",
     "shared memory"},
    {"direct", KOLO_COLL_ALL_TO_ALL, ALGO_V, plan_gen_all_to_all_direct,
     plan_cost_all_to_all_direct, "1 round, S (n-1)/n sent: all sends, then all receives",
     "folklore"},
    {"pairwise", KOLO_COLL_ALL_TO_ALL, ALGO_V, plan_gen_all_to_all_pairwise,
     plan_cost_all_to_all_pairwise, "n rounds, S (n-1)/n sent: exchanges with one rank at a time",
     "folklore"},
    {"bruck", KOLO_COLL_ALL_TO_ALL, 0, plan_gen_all_to_all_bruck, plan_cost_all_to_all_bruck,
     "L rounds, about L S/2 sent: for short messages", "Bruck et al. 1997"},
    {"window", KOLO_COLL_ALL_TO_ALL, ALGO_WINDOW | ALGO_NOT_IN_PLACE, plan_gen_all_to_all_window,
     plan_cost_all_to_all_window, "1 hand-over, 2 S of memory traffic, nothing sent",
     "shared memory"},
    {"flat", KOLO_COLL_BROADCAST, 0, plan_gen_broadcast_flat, plan_cost_flat,
     "1 round, (n-1) S sent by the root", "folklore"},
    {"binomial", KOLO_COLL_BROADCAST, 0, plan_gen_broadcast_binomial, plan_cost_binomial,
     "floor(log2 n) rounds, L S sent by the root", "folklore"},
    {"chain", KOLO_COLL_BROADCAST, 0, plan_gen_broadcast_chain, plan_cost_chain,
     "n-1 rounds, S sent, pipelined", "folklore"},
    {"scatter_gather", KOLO_COLL_BROADCAST, 0, plan_gen_scatter_gather, plan_cost_scatter_gather,
     "2 rounds, S sent", "after Barnett, van de Geijn et al. 1994"},
    {"circulant", KOLO_COLL_BROADCAST, 0, plan_gen_broadcast_circulant,
     plan_cost_broadcast_circulant, "B-1+L rounds of S/B, B blocks, which is the least",
     "Traff, round-optimal n-block broadcast (arXiv 2407.18004)"},
    {"window", KOLO_COLL_BROADCAST, ALGO_WINDOW, plan_gen_broadcast_window,
     plan_cost_broadcast_window, "1 hand-over, S of memory traffic, nothing sent", "shared memory"},
    {"flat", KOLO_COLL_REDUCE, ALGO_RANK_ORDER, plan_gen_reduce_flat, plan_cost_flat,
     "1 round, (n-1) S received by the root", "folklore"},
    {"twoshot", KOLO_COLL_REDUCE, ALGO_RANK_ORDER, plan_gen_reduce_twoshot,
     plan_cost_reduce_twoshot, "2 rounds, 2 S (n-1)/n received by the root: the work is shared",
     "after Rabenseifner 2004"},
    {"binomial", KOLO_COLL_REDUCE, 0, plan_gen_reduce_binomial, plan_cost_binomial,
     "floor(log2 n) rounds, L S received by the root", "folklore"},
    {"chain", KOLO_COLL_REDUCE, 0, plan_gen_reduce_chain, plan_cost_chain,
     "n-1 rounds, S sent, pipelined", "folklore"},
    {"circulant", KOLO_COLL_REDUCE, 0, plan_gen_reduce_circulant, plan_cost_reduce_circulant,
     "B-1+L rounds of S/B, B blocks: the broadcast reversed",
     "Traff, round-optimal n-block broadcast (arXiv 2407.18004)"},
    {"window", KOLO_COLL_REDUCE, ALGO_WINDOW | ALGO_RANK_ORDER, plan_gen_reduce_window,
     plan_cost_share_window, "1 hand-over, S (n+1)/n of memory traffic, nothing sent",
     "shared memory"},
    {"direct", KOLO_COLL_GATHER, 0, plan_gen_gather_direct, plan_cost_gather_direct,
     "1 round, S (n-1)/n received by the root", "folklore"},
    {"binomial", KOLO_COLL_GATHER, ALGO_UNEVEN, plan_gen_gather_binomial, plan_cost_gather_binomial,
     "floor(log2 n) rounds, S (n-1)/n received by the root", "folklore"},
    {"direct", KOLO_COLL_SCATTER, 0, plan_gen_scatter_direct, plan_cost_gather_direct,
     "1 round, S (n-1)/n sent by the root", "folklore"},
    {"binomial", KOLO_COLL_SCATTER, ALGO_UNEVEN, plan_gen_scatter_binomial,
     plan_cost_gather_binomial, "floor(log2 n) rounds, S (n-1)/n sent by the root", "folklore"},
    {"dissemination", KOLO_COLL_BARRIER, 0, plan_gen_dissemination, plan_cost_dissemination,
     "L rounds of one signal", "Hensgen, Finkel, Manber 1988"},
    {"flat", KOLO_COLL_BARRIER, 0, plan_gen_barrier_flat, plan_cost_barrier_flat,
     "1 round of n-1 signals", "folklore"},
};

const struct plan_algo *plan_algos(size_t *n)
{
    *n = ARRAY_LEN(algos);
    return algos;
}

/* The collective of which `coll` is the v-variant, or itself. */
static enum kolo_coll plain(enum kolo_coll coll)
{
    switch (coll) {
    case KOLO_COLL_REDUCE_SCATTER_V:
        return KOLO_COLL_REDUCE_SCATTER;
    case KOLO_COLL_ALL_GATHER_V:
        return KOLO_COLL_ALL_GATHER;
    case KOLO_COLL_ALL_TO_ALL_V:
        return KOLO_COLL_ALL_TO_ALL;
    default:
        return coll;
    }
}

const struct plan_algo *plan_algo_find(enum kolo_coll coll, const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(algos); i++) {
        if (algos[i].coll == plain(coll) && strcmp(algos[i].name, name) == 0)
            return &algos[i];
    }
    return NULL;
}

bool plan_algo_can(const struct plan_algo *a, const struct plan_shape *shape)
{
    const int n = shape->nranks;
    if (a->coll != plain(shape->coll) || n < 2 || n > PLAN_MAX_RANKS)
        return false;
    if (shape->coll != a->coll && !(a->flags & ALGO_V))
        return false;
    return !(a->flags & ALGO_POW2) || (n & (n - 1)) == 0;
}

static enum kolo_status check_shape(const struct plan_shape *s)
{
    if (!kolo_coll_name((int)s->coll))
        return fail(KOLO_ERR_ARG, "plan: there is no collective number %d", (int)s->coll);
    if (s->nranks < 1 || s->nranks > PLAN_MAX_RANKS || s->rank < 0 || s->rank >= s->nranks ||
        s->root < 0 || s->root >= s->nranks || s->blocks < 0 || s->blocks > MAX_BLOCKS)
        return fail(KOLO_ERR_ARG,
                    "plan of %s: rank %d, root %d, %d ranks, %d blocks: out of range (at most %d "
                    "ranks and %d blocks)",
                    kolo_coll_name((int)s->coll), s->rank, s->root, s->nranks, s->blocks,
                    PLAN_MAX_RANKS, MAX_BLOCKS);
    return KOLO_OK;
}

enum kolo_status plan_generate(const struct plan_algo *a, const struct plan_shape *shape,
                               struct plan **out)
{
    TRY(check_shape(shape));
    if (shape->coll == KOLO_COLL_SEND || shape->coll == KOLO_COLL_RECV) {
        if (shape->root == shape->rank)
            return fail(KOLO_ERR_ARG, "plan of %s: rank %d cannot be its own peer",
                        kolo_coll_name((int)shape->coll), shape->rank);
        return shape->coll == KOLO_COLL_SEND ? plan_gen_send(shape, out)
                                             : plan_gen_recv(shape, out);
    }
    if (shape->nranks == 1)
        return plan_gen_copy(shape, out);
    if (!a || !plan_algo_can(a, shape))
        return fail(KOLO_ERR_ARG,
                    "plan of %s for %d ranks: %s cannot make it; choose another algorithm",
                    kolo_coll_name((int)shape->coll), shape->nranks, a ? a->name : "nobody");
    return a->generate(shape, out);
}
