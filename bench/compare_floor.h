/* compare_floor.h - what the files of compare_floor share: the area of all ranks, the kernels.
 *
 * All counters only grow.  A rank writes its own and reads those of the others: the release of
 * floor_publish pairs with the acquire of floor_await.
 */
#ifndef KOLO_BENCH_COMPARE_FLOOR_H
#define KOLO_BENCH_COMPARE_FLOOR_H

#include "compare_rank.h"

enum {
    FLOOR_SLOT = 32 << 10,   /* largest message of a slot */
    FLOOR_RING = 256 << 10,  /* bytes of one rank's ring towards or from the root */
    FLOOR_DEPTH = 4,         /* pieces in flight */
    FLOOR_PIECE = 512 << 10, /* largest piece */
};

/* The ways of doing one operation; the best of those that fit is found by trying. */
enum floor_way {
    WAY_SPLIT = 1, /* each rank does its share of the work, else each all that it needs */
    WAY_NT = 2,    /* results are stored past the caches */
    WAY_SLOT = 4,  /* through one slot a rank, no barrier at the end */
    WAY_CMA = 8,   /* staged: process_vm_readv instead of staging */
    WAY_PIECE = 16 /* staged: times the index of the piece size */
};

struct floor_line {
    uint64_t n CMP_OWN_LINE;
};

/* The number of the operation and the first 56 bytes share a cache line. */
struct floor_slot {
    uint64_t step CMP_OWN_LINE;
    char data[FLOOR_SLOT];
};

struct floor_shared {
    struct floor_line ready[CMP_MAX_RANKS], done[CMP_MAX_RANKS];                  /* operations */
    struct floor_line put[CMP_MAX_RANKS], red[CMP_MAX_RANKS], got[CMP_MAX_RANKS]; /* pieces */
    int way CMP_OWN_LINE;
    pid_t pid[CMP_MAX_RANKS];
    float *in[CMP_MAX_RANKS], *out[CMP_MAX_RANKS];
    struct floor_slot slots[2][CMP_MAX_RANKS];
    char ring[CMP_MAX_RANKS][FLOOR_RING] CMP_OWN_LINE;
    char stage[CMP_MAX_RANKS][FLOOR_DEPTH][FLOOR_PIECE] __attribute__((aligned(4096)));
    char result[CMP_MAX_RANKS][FLOOR_DEPTH][FLOOR_PIECE] __attribute__((aligned(4096)));
};

struct floor_rank {
    struct cmp_rank r;
    struct floor_shared *g;
    int is_staged;
    uint64_t step;   /* operations begun */
    uint64_t pieces; /* of all operations so far */
    uint64_t seen;   /* what the slowest partner of the ring had done when last looked at */
    float *part;     /* one piece, private */
    /* the choice that holds for this point */
    uint32_t turn;
    int coll, way;
    size_t bytes;
};

static inline void floor_publish(struct floor_line *line, uint64_t n)
{
    __atomic_store_n(&line->n, n, __ATOMIC_RELEASE);
}

static inline int floor_has(const struct floor_line *line, uint64_t n)
{
    return __atomic_load_n(&line->n, __ATOMIC_ACQUIRE) >= n;
}

static inline void floor_relax(const struct floor_rank *f, long turns)
{
    if (f->r.np > f->r.ctl->ncpus || turns > 50000)
        sched_yield();
    else
        cmp_relax();
}

static inline void floor_await(const struct floor_rank *f, const struct floor_line *line,
                               uint64_t n)
{
    for (long turns = 0; !floor_has(line, n); turns++)
        floor_relax(f, turns);
}

/* The share of rank k of n floats starts here; shares are whole cache lines. */
static inline size_t floor_cut(size_t n, int np, int k)
{
    return k == np ? n : n * (size_t)k / (size_t)np / 16 * 16;
}

/* compare_floor_kernels.c */
void floor_sum(float **out, int nout, float **in, int nin, size_t n, int is_nt);
void floor_copy(float *to, const float *from, size_t n, int is_nt);

/* compare_floor_staged.c */
void floor_staged(struct floor_rank *f, int coll, size_t bytes, int way);
void floor_cma(struct floor_rank *f, int coll, size_t bytes, int way);
extern const size_t floor_pieces[]; /* bytes; ends with 0 */

#endif /* KOLO_BENCH_COMPARE_FLOOR_H */
