/* plan_gen.h - what the generators share: their prototypes for the table in plan_algos.c, and names
 * for the moves that most of them are made of.  Included by plan_*.c only.
 *
 * Symbols in their comments: n ranks, r this rank, S bytes of the largest buffer of a rank,
 * L = ceil(log2 n). */
#ifndef PLAN_GEN_H
#define PLAN_GEN_H

#include "plan.h"

typedef enum kolo_status plan_generator(const struct plan_shape *shape, struct plan **out);
typedef void plan_costing(const struct plan_shape *shape, struct plan_cost *cost);

/* plan_direct.c */
plan_generator plan_gen_copy, plan_gen_send, plan_gen_recv;
plan_generator plan_gen_oneshot, plan_gen_twoshot;
plan_generator plan_gen_reduce_scatter_direct, plan_gen_all_gather_direct;
plan_generator plan_gen_broadcast_flat, plan_gen_reduce_flat, plan_gen_scatter_gather;
plan_generator plan_gen_reduce_twoshot;
plan_generator plan_gen_gather_direct, plan_gen_scatter_direct, plan_gen_barrier_flat;
plan_costing plan_cost_oneshot, plan_cost_twoshot, plan_cost_scatter_direct, plan_cost_flat;
plan_costing plan_cost_reduce_twoshot;
plan_costing plan_cost_scatter_gather, plan_cost_gather_direct, plan_cost_barrier_flat;
/* plan_window.c */
plan_generator plan_gen_all_reduce_window, plan_gen_reduce_scatter_window;
plan_generator plan_gen_all_gather_window, plan_gen_all_to_all_window;
plan_generator plan_gen_broadcast_window, plan_gen_reduce_window;
plan_costing plan_cost_all_reduce_window, plan_cost_share_window, plan_cost_all_to_all_window;
plan_costing plan_cost_broadcast_window;
/* plan_ring.c */
plan_generator plan_gen_all_reduce_ring, plan_gen_reduce_scatter_ring, plan_gen_all_gather_ring;
plan_generator plan_gen_broadcast_chain, plan_gen_reduce_chain;
plan_costing plan_cost_all_reduce_ring, plan_cost_half_ring, plan_cost_chain;
/* plan_tree.c */
plan_generator plan_gen_all_reduce_tree, plan_gen_broadcast_binomial, plan_gen_reduce_binomial;
plan_generator plan_gen_gather_binomial, plan_gen_scatter_binomial;
plan_costing plan_cost_all_reduce_tree, plan_cost_binomial, plan_cost_gather_binomial;
/* plan_circulant.c */
plan_generator plan_gen_all_reduce_circulant, plan_gen_reduce_scatter_circulant;
plan_generator plan_gen_all_gather_circulant;
plan_costing plan_cost_all_reduce_circulant, plan_cost_reduce_scatter_circulant;
plan_costing plan_cost_all_gather_circulant;
/* plan_circulant_bcast.c */
plan_generator plan_gen_broadcast_circulant, plan_gen_reduce_circulant;
plan_costing plan_cost_broadcast_circulant, plan_cost_reduce_circulant;
/* plan_exchange.c */
plan_generator plan_gen_all_to_all_direct, plan_gen_all_to_all_pairwise, plan_gen_all_to_all_bruck;
plan_generator plan_gen_recdbl, plan_gen_dissemination;
plan_costing plan_cost_all_to_all_direct, plan_cost_all_to_all_pairwise, plan_cost_all_to_all_bruck;
plan_costing plan_cost_recdbl, plan_cost_dissemination;

static inline bool plan_is_reducing(enum kolo_coll coll)
{
    return coll == KOLO_COLL_ALL_REDUCE || coll == KOLO_COLL_REDUCE_SCATTER ||
           coll == KOLO_COLL_REDUCE_SCATTER_V || coll == KOLO_COLL_REDUCE;
}

/* (a + b) mod n for 0 <= a < n and -n <= b <= n. */
static inline int plan_wrap(int a, int b, int n)
{
    const int64_t at = (int64_t)a + b;
    return (int)(at < 0 ? at + n : at >= n ? at - n : at);
}

/* ceil(log2 n), n >= 1. */
static inline int plan_log2_up(int n)
{
    return n <= 1 ? 0 : 32 - __builtin_clz((unsigned)n - 1);
}

/* floor(log2 n), n >= 1. */
static inline int plan_log2_down(int n)
{
    return 31 - __builtin_clz((unsigned)n);
}

static inline bool plan_is_root(const struct plan_shape *s)
{
    return s->rank == s->root;
}

/* Build and give the builder back. */
static inline enum kolo_status plan_finish(struct plan_builder *b, struct plan **out)
{
    const enum kolo_status status = plan_build(b, out);
    plan_builder_destroy(b);
    return status;
}

/* The chunks `of` of IN or OUT to a peer. */
static inline void plan_send(struct plan_builder *b, enum plan_space space, struct plan_span of,
                             int peer, int channel)
{
    plan_move(b, space, of, 0);
    plan_to(b, PLAN_LINK, peer, channel, 0);
    plan_from(b, space, -1, 0, of.chunk);
}

/* The next message of a peer into the chunks `of` of OUT. */
static inline void plan_receive(struct plan_builder *b, struct plan_span of, int peer, int channel)
{
    plan_move(b, PLAN_OUT, of, 0);
    plan_to(b, PLAN_OUT, -1, 0, of.chunk);
    plan_from(b, PLAN_LINK, peer, channel, 0);
}

/* One chunk of IN to one of OUT, where the lengths are those of the chunk of OUT. */
static inline void plan_copy(struct plan_builder *b, int to, int from)
{
    plan_move(b, PLAN_OUT, plan_chunk(to), 0);
    plan_to(b, PLAN_OUT, -1, 0, to);
    plan_from(b, PLAN_IN, -1, 0, from);
}

/* Destinations or sources: a link to or from each other rank, nearest first, so that the ranks do
 * not all begin with the same one. */
static inline void plan_to_others(struct plan_builder *b, const struct plan_shape *s, int channel)
{
    for (int i = 1; i < s->nranks; i++)
        plan_to(b, PLAN_LINK, plan_wrap(s->rank, i, s->nranks), channel, 0);
}

static inline void plan_from_others(struct plan_builder *b, const struct plan_shape *s, int channel)
{
    for (int i = 1; i < s->nranks; i++)
        plan_from(b, PLAN_LINK, plan_wrap(s->rank, -i, s->nranks), channel, 0);
}

/* A bare signal to, or a bare wait for, each other rank. */
static inline void plan_signal_others(struct plan_builder *b, const struct plan_shape *s)
{
    plan_move(b, PLAN_IN, plan_chunks(0, 0), 0);
    plan_to_others(b, s, 0);
}

static inline void plan_wait_others(struct plan_builder *b, const struct plan_shape *s)
{
    plan_move(b, PLAN_IN, plan_chunks(0, 0), 0);
    plan_from_others(b, s, 0);
}

/* Sources: the contributions of ranks 0 .. n-1 in this order, this rank's from chunk `chunk` of IN,
 * the others' from their messages or, for PLAN_PEER_IN, from the same chunk of their windows. */
static inline void plan_from_all(struct plan_builder *b, const struct plan_shape *s,
                                 enum plan_space space, int chunk)
{
    for (int k = 0; k < s->nranks; k++)
        plan_from(b, k == s->rank ? PLAN_IN : space, k == s->rank ? -1 : k, 0, chunk);
}

#endif
