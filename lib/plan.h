/* plan.h - THE file: what a plan is.  A collective is data: generators (plan_*.c) write it, the
 * verifier (plan_verify.c) proves it, the engine (exec.c) runs it, transports move the bytes.
 *
 *   plan of one rank
 *     lane 0:  step step step ...       each step is one *move*: every destination receives the
 *     lane 1:  step step ...            reduction, in order, of all sources
 *
 * A plan describes one ROUND.  The engine cuts every chunk into pieces of q elements and runs the
 * lanes once per piece: round t works on elements [t*q, (t+1)*q) of each chunk.  All lanes run
 * concurrently, each strictly in order (step by step, round by round), and meet only through links.
 *
 * LINKS.  A link is one direction between two ranks on one channel: a ring of messages, first in
 * first out.  A link as destination sends one message, as source receives one.  A step runs when
 * every source link has a message and every destination link has a free slot (credit), and is then
 * atomic.  Each (peer, channel, direction) is used by one lane of a plan only.  A rank never links
 * to itself.
 *
 * CHUNKS.  Each space is a row of chunks; a chunk index means, for count elements per the API:
 *   all_reduce, broadcast, reduce   IN and OUT: the same C >= 1 chunks of the count elements
 *   reduce_scatter                  IN: chunk k is what rank k gets, OUT: 1 chunk
 *   all_gather                      IN: 1 chunk, OUT: chunk k comes from rank k
 *   all_to_all                      IN: chunk k goes to rank k, OUT: chunk k comes from rank k
 *   gather                          IN: 1, OUT (root only): n;   scatter: IN (root only): n, OUT: 1
 *   barrier                         no chunks
 *   send / recv                     IN: 1 / OUT: 1, the peer is `root`
 * the v-variants as their plain form, each chunk with its own length (so a link message of a v-plan
 * carries one chunk).  TMP: plan->nchunks[PLAN_TMP] chunks of scratch, each as large as a piece of
 * any chunk; its content does not outlive the round in which it was written.
 * C chunks of an all_reduce are equal but for the last ones, which may be shorter or empty.
 *
 * IN PLACE.  Every plan must also be right when IN and OUT are the same memory as the API allows:
 *   all_reduce, broadcast, reduce, all_to_all: IN chunk c is OUT chunk c;   all_gather: IN 0 is
 *   OUT rank;   reduce_scatter: OUT 0 is IN rank;   gather (root): IN 0 is OUT root;
 *   scatter (root): OUT 0 is IN root.
 * A move may read and write the same chunk (it is elementwise).
 *
 * WINDOWS.  PLAN_PEER_IN and PLAN_PEER_OUT name a peer's IN or OUT chunk in memory that this rank
 * can load or store (plan flags say which).  They carry no synchronisation: bare messages before
 * and after do.  Before the first step the engine has made sure that every rank has entered the
 * operation and that all windows are mapped: that is an all-to-all happens-before edge from each
 * rank's entry.  There is no such edge at the end: the plan must see to it that no rank leaves
 * while another may still touch its buffers.  (A window plan must be right for the first round AND
 * across rounds: signals are per round.)
 *
 * ORDER.  Sources are reduced in the order in which they stand.  PLAN_FINAL marks the moves whose
 * result is the complete reduction (the engine then divides for AVG, and rounds); a move from IN
 * alone multiplies by the scalar of a pre-multiplied sum.  In a reducing collective every IN source
 * of this rank enters exactly once per chunk into what leaves the rank.
 */
#ifndef PLAN_H
#define PLAN_H

#include "base.h"

/* ---- kinds of collectives ---- */

static inline bool coll_has_root(enum kolo_coll c)
{
    return c == KOLO_COLL_BROADCAST || c == KOLO_COLL_REDUCE || c == KOLO_COLL_GATHER ||
           c == KOLO_COLL_SCATTER;
}

static inline bool coll_reduces(enum kolo_coll c)
{
    return c == KOLO_COLL_ALL_REDUCE || c == KOLO_COLL_REDUCE_SCATTER || c == KOLO_COLL_REDUCE ||
           c == KOLO_COLL_REDUCE_SCATTER_V;
}

static inline bool coll_is_v(enum kolo_coll c)
{
    return c >= KOLO_COLL_REDUCE_SCATTER_V && c <= KOLO_COLL_ALL_TO_ALL_V;
}

static inline bool coll_is_p2p(enum kolo_coll c)
{
    return c == KOLO_COLL_SEND || c == KOLO_COLL_RECV;
}

/* ---- the plan ---- */

enum plan_space {
    PLAN_IN,       /* this rank's send buffer */
    PLAN_OUT,      /* this rank's receive buffer */
    PLAN_TMP,      /* scratch */
    PLAN_LINK,     /* the next message from (source) or to (destination) `peer` on `channel` */
    PLAN_PEER_IN,  /* `peer`'s send buffer (source only) */
    PLAN_PEER_OUT, /* `peer`'s receive buffer */
};

enum { PLAN_MAX_CHANNELS = 4, PLAN_MAX_RANKS = 1 << 20 };

/* `count` chunks: `run` consecutive ones, then a jump to the next run `stride` after the start of
 * the previous one: index i is (chunk + i / run * stride + i % run) mod nchunks(space).
 * A contiguous span has run == count.  Packed in this order in a message.  count 0: a bare move. */
struct plan_span {
    int32_t chunk;
    int32_t run;
    int32_t stride;
    int32_t count;
};

struct plan_operand {
    uint8_t space;   /* enum plan_space */
    uint8_t channel; /* PLAN_LINK: 0 .. PLAN_MAX_CHANNELS - 1 */
    uint16_t unused;
    int32_t peer;  /* PLAN_LINK, PLAN_PEER_*: rank; else -1 */
    int32_t chunk; /* not PLAN_LINK: first chunk; run, stride and count are the step's */
};

enum plan_step_flags {
    PLAN_FINAL = 1, /* the result is the complete reduction */
};

/* One move.  The operands are plan->operands[first .. first + ndst) for destinations, then nsrc
 * sources.  `of` names the chunks that the move is about, in `of_space` (PLAN_IN or PLAN_OUT):
 * it fixes the number of chunks and their lengths.  Both ends of a link name spans of equal
 * lengths.
 *   nsrc == 0: a bare signal (destinations are links)     ndst == 0: a bare wait (sources are
 *   links)
 * and then of.count == 0.  A move without data may have both. */
struct plan_step {
    uint32_t first;
    uint16_t ndst;
    uint16_t nsrc;
    uint8_t of_space;
    uint8_t flags;
    uint16_t unused;
    struct plan_span of;
};

struct plan_lane {
    uint32_t first; /* into steps */
    uint32_t nsteps;
};

enum plan_flags {
    PLAN_READS_PEERS = 1,  /* has PLAN_PEER_* sources */
    PLAN_WRITES_PEERS = 2, /* has PLAN_PEER_OUT destinations */
    PLAN_RANK_ORDER = 4, /* reduces every chunk in rank order 0..n-1 in one move (deterministic) */
};

/* Immutable once built.  One allocation; free with plan_destroy. */
struct plan {
    enum kolo_coll coll;
    int nranks;
    int rank;
    int root;       /* rooted collectives, send and recv (the peer); else 0 */
    int nchunks[3]; /* of PLAN_IN, PLAN_OUT, PLAN_TMP (0 where a rank has no such buffer) */
    int nlanes;
    int nsteps;
    int noperands;
    int nchannels;  /* 1 + largest channel used; 0 without links */
    int max_span;   /* most chunks in one link message of this rank; at least 1 */
    unsigned flags; /* enum plan_flags */
    char algo[24];
    const struct plan_lane *lanes;
    const struct plan_step *steps;
    const struct plan_operand *operands;
};

/* ---- building ------------------------------------------------------------------------------
 * Errors are sticky: any failure (memory, a limit) shows at plan_build. */
struct plan_builder;
struct plan_shape {
    enum kolo_coll coll;
    int nranks;
    int rank;
    int root;
    int blocks; /* pipeline blocks wanted by generators that cut the vector freely (tree, circulant
                   broadcast); 0: their default */
};

enum kolo_status plan_builder_create(const struct plan_shape *shape, const char *algo,
                                     int in_chunks, int out_chunks, int tmp_chunks,
                                     struct plan_builder **out);
void plan_builder_destroy(struct plan_builder *b); /* takes NULL; also after plan_build */
void plan_lane_begin(struct plan_builder *b);      /* at least once, before the first step */
/* Begin a move about `of` in `of_space`; then add destinations and sources, in any order between
 * the two kinds; the order of sources is the order of reduction. */
void plan_move(struct plan_builder *b, enum plan_space of_space, struct plan_span of,
               unsigned flags);
void plan_to(struct plan_builder *b, enum plan_space space, int peer, int channel, int chunk);
void plan_from(struct plan_builder *b, enum plan_space space, int peer, int channel, int chunk);
/* Checks limits and indices, computes nchannels, max_span, flags; *out is owned by the caller. */
enum kolo_status plan_build(struct plan_builder *b, struct plan **out);
void plan_destroy(struct plan *p);

static inline struct plan_span plan_chunk(int chunk)
{
    return (struct plan_span){chunk, 1, 0, 1};
}

static inline struct plan_span plan_chunks(int chunk, int count)
{
    return (struct plan_span){chunk, count, 0, count};
}

/* Index of the i-th chunk of a span that starts at `chunk`, shaped like `of`, in a row of n. */
static inline int plan_span_at(const struct plan_span *of, int chunk, int i, int n)
{
    const int64_t at = (int64_t)chunk + (int64_t)(i / of->run) * of->stride + i % of->run;
    return (int)(at % n);
}

/* ---- text ----------------------------------------------------------------------------------
 * plan_print writes what plan_parse reads (the grammar is at the head of plan_text.c); parse of a
 * print gives an equal plan.  A file holds the plans of all ranks, one after the other. */
void plan_print(const struct plan *p, struct text *out);
/* One plan from *text (not necessarily terminated at its end: *end bounds it); on success *text is
 * moved behind it.  Errors: ARG with line and column, NOMEM. */
enum kolo_status plan_parse(const char **text, const char *end, struct plan **out);
/* All plans of a file: *n plans in *out (array and plans owned by the caller, plan_set_destroy). */
enum kolo_status plan_load(const char *path, struct plan ***out, size_t *n);
void plan_set_destroy(struct plan **plans, size_t n);
bool plan_equal(const struct plan *a, const struct plan *b);

/* ---- algorithms ----------------------------------------------------------------------------- */

/* Closed form of a plan's cost on n ranks, for full vector S bytes (the largest buffer of a
 * rank, as nccl-tests counts): time = hops * alpha + messages * o + S * (sent * beta + touched *
 * gamma). */
struct plan_cost {
    double hops;     /* dependent hand-overs on the critical path, per round */
    double messages; /* link messages sent and received by the busiest rank, per round */
    double sent;     /* bytes through links at the busiest rank (the larger of in and out), per S */
    double
        touched; /* bytes read and written in memory by the busiest rank, links included, per S */
    /* For ranks that share CPUs; 0: as if all ranks did what the busiest one does. */
    double total; /* bytes touched by all ranks together, per S */
    double link;  /* bytes through the busiest link, per S */
};

enum plan_algo_flags {
    ALGO_WINDOW = 1,        /* reads or writes peers' buffers */
    ALGO_V = 2,             /* also for the v-variant of its collective */
    ALGO_RANK_ORDER = 4,    /* reduces in rank order: allowed with `deterministic` */
    ALGO_POW2 = 8,          /* only for powers of two */
    ALGO_NOT_IN_PLACE = 16, /* wrong when IN and OUT are the same memory */
    ALGO_UNEVEN = 32,       /* max_span differs between ranks */
};

struct plan_algo {
    const char *name; /* "ring", unique within the collective */
    enum kolo_coll coll;
    unsigned flags;
    /* Pure: depends on *shape only.  Shape coll may be the v-variant for ALGO_V.  nranks >= 2. */
    enum kolo_status (*generate)(const struct plan_shape *shape, struct plan **out);
    void (*cost)(const struct plan_shape *shape, struct plan_cost *cost);
    const char *what;   /* one line: rounds and bytes */
    const char *source; /* where the algorithm comes from */
};

/* All of them, in order of collective; *n how many. */
const struct plan_algo *plan_algos(size_t *n);
/* By collective (v-variants map to their plain form) and name; NULL if there is none. */
const struct plan_algo *plan_algo_find(enum kolo_coll coll, const char *name);
/* Whether the algorithm can serve the shape. */
bool plan_algo_can(const struct plan_algo *a, const struct plan_shape *shape);
/* The plan for one rank, also for nranks == 1 and send/recv, which need no algorithm (NULL). */
enum kolo_status plan_generate(const struct plan_algo *a, const struct plan_shape *shape,
                               struct plan **out);

/* ---- buckets: many small all_reduces as one (plan_bucket.c) ---------------------------------- */

enum bucket_kind { BUCKET_ONESHOT, BUCKET_TWOSHOT, BUCKET_WINDOW };

/* Chunk k is bytes[k] long; a message holds neighbours of together at most most_bytes, or one. */
struct plan_bucket {
    enum bucket_kind kind;
    const size_t *bytes;
    int n;
    size_t most_bytes;
};

/* A plan of an all_reduce with bucket->n >= 1 chunks, whose lengths and places the job tells.
 * Pure; nranks >= 2.  Errors: NOMEM, ARG. */
enum kolo_status plan_gen_bucket(const struct plan_shape *shape, const struct plan_bucket *bucket,
                                 struct plan **out);

/* ---- proof ---------------------------------------------------------------------------------- */

struct plan_limits {
    int slots;         /* messages that fit into a link before its consumer must have taken one */
    bool not_in_place; /* do not prove for IN and OUT in the same memory: ALGO_NOT_IN_PLACE */
};

/* Prove the plans of all ranks (plans[r] is rank r's) together: each output chunk holds exactly
 * the contributions that the collective defines, each once; no deadlock under limits->slots for
 * any interleaving; every access to shared windows and, in place, to aliased chunks is ordered.
 * Exact (sets of contributions).  KOLO_ERR_ARG with a text that names rank, lane, step and
 * fault. */
enum kolo_status plan_verify(struct plan *const *plans, int nranks,
                             const struct plan_limits *limits);
/* The same with 64-bit sums instead of sets: linear memory, misses a fault with probability about
 * 2^-64 per chunk.  For large n. */
enum kolo_status plan_verify_hashed(struct plan *const *plans, int nranks,
                                    const struct plan_limits *limits, uint64_t seed);

#endif
