/* stress.h - the pieces of the stress program: random calls that all ranks draw alike (draw), the
 * data that they must move (data), the life of a rank (rank), and who starts and watches the ranks
 * (stress.c).
 *
 *   seed -> worlds -> epochs -> batches -> calls
 *
 * A world is a set of 1 to 8 ranks with settings of its own; between epochs it splits into random
 * groups; a batch is what is issued before its results are looked at. */
#ifndef STRESS_H
#define STRESS_H

#include "kolo.h"

#include <stdbool.h>

enum {
    MOST_RANKS = 8,
    MOST_CALLS = 48, /* of one batch */
    MOST_SEGMENTS = MOST_RANKS,
    CALL_TEXT = 512,
    PREMUL = -1, /* as an op: a sum pre-multiplied by a scalar of each rank */
    REDUCED = -1,
};

/* ---- random numbers ---- */

struct rng {
    uint64_t state;
};

uint64_t rng_mix(uint64_t x);
uint64_t rng_next(struct rng *r);
uint64_t rng_below(struct rng *r, uint64_t n); /* 0 <= result < n; n > 0 */
bool rng_chance(struct rng *r, int of);        /* true once in `of` */
struct rng rng_fork(uint64_t seed, uint64_t a, uint64_t b, uint64_t c);

/* ---- calls ---- */

enum buffers { BUFFERS_PRIVATE, BUFFERS_SHARED, BUFFERS_MIXED };
enum in_place { IN_PLACE_NONE, IN_PLACE_ALL, IN_PLACE_MIXED };

/* What all ranks know alike about a call. */
struct shape {
    int coll; /* KOLO_COLL_SEND stands for a send and its receive */
    int type;
    int op; /* enum kolo_op or PREMUL */
    int root;
    int dst;                                /* of a send; its source is the root */
    size_t count;                           /* plain variants and sends */
    size_t counts[MOST_RANKS * MOST_RANKS]; /* of v-variants: [k], or [src * n + dst] */
    enum buffers buffers;
    enum in_place in_place;
    bool is_on_sub; /* not on the world's communicator */
    uint64_t key;   /* of its data */
};

/* p2p: sends are allowed.  small: nothing above a few KiB. */
void draw_call(struct rng *r, int n, bool p2p, bool small, struct shape *out);
/* A run of small all-reduces, as gradients make them. */
size_t draw_bucket(struct rng *r, int n, struct shape *out);
void draw_text(const struct shape *s, char *out, size_t size);
bool draw_is_v(int coll);

/* ---- data ---- */

/* A run of elements in a buffer: the elements first, first + 1, ... that rank src has sent, or
 * their reduction over all ranks. */
struct segment {
    size_t at;
    size_t len;
    int src; /* or REDUCED */
    uint64_t first;
};

/* One side of a call at one rank. */
struct side {
    struct segment segments[MOST_SEGMENTS];
    int nsegments;
    size_t extent; /* elements from the first to the last */
};

/* What rank r of n sends and receives; displs of v-variants are the rank's own (n each). */
void data_send_side(const struct shape *s, int n, int r, const size_t *displs, struct side *out);
void data_recv_side(const struct shape *s, int n, int r, const size_t *displs, struct side *out);
/* Of the buffers when in place: where send and receive begin. */
void data_in_place(const struct shape *s, int n, int r, size_t *send_at, size_t *recv_at);
void data_fill(const struct shape *s, int n, const struct side *side, unsigned char *at);
/* Index of the first wrong element, or -1; *want and *seen are its bits. */
int64_t data_check(const struct shape *s, int n, const struct side *side, const unsigned char *at,
                   uint64_t *want, uint64_t *seen);
/* The scalar of a rank in a pre-multiplied sum, as one element of the type. */
void data_scalar(const struct shape *s, int r, void *out);

/* ---- buffers ---- */

struct pool;

/* A piece of memory for one side of a call, with guard bytes around it. */
struct region {
    unsigned char *at;
    size_t bytes;
    struct block *block;  /* of the pool; NULL: malloc of just these bytes, without guards */
    unsigned char *exact; /* that malloc */
};

struct pool *pool_create(void);
void pool_destroy(struct pool *p);
/* Filled with a pattern.  Ends the program when memory runs out. */
struct region pool_take(struct pool *p, struct rng *r, size_t bytes, bool is_shared);
void pool_give(struct pool *p, struct rng *r, struct region *g);
bool pool_guards_hold(const struct region *g);

/* ---- ranks ---- */

/* How one world is made. */
struct world {
    uint64_t seed;
    uint64_t number;
    int n;
    int nprocesses; /* rank r lives in process r % nprocesses */
    bool is_local;  /* by kolo_comm_create_local */
    bool is_solo;   /* one thread drives all ranks */
    bool is_parted; /* groups are local communicators too, made before the ranks start */
    int nepochs;
};

/* What each rank shows of itself. */
struct shown {
    _Atomic uint64_t steps; /* grows: a rank that stands still hangs */
    _Atomic int order;      /* of its failure among all; 0: none */
    int epoch, batch, call;
    struct shape shape;
    char text[1024];
};

/* Shared by all processes. */
struct shared {
    _Atomic uint64_t operations; /* done; counted once, not per rank */
    _Atomic int is_over;         /* set by the parent: time or operations are used up */
    _Atomic int failures;
    _Atomic int has_id; /* 1: id is valid; -1: it could not be made */
    struct kolo_unique_id id;
    struct shown shown[MOST_RANKS];
};

enum { STREAMS = 4, OLD_GROUPS = 3, PARTITIONS = 4 };

struct call {
    struct shape shape;
    size_t send_displs[MOST_RANKS], recv_displs[MOST_RANKS];
    bool is_packed; /* displacements are not passed */
    bool is_in_place;
    struct side send_side, recv_side;
    struct region send_region, recv_region;
    unsigned char *send, *recv; /* NULL: this rank has none */
    struct kolo_stream *stream;
    int op;
};

struct place {
    struct kolo_comm *comm;
    int rank;
    int n;
};

/* One rank. */
struct seat {
    struct place world, group;
    struct rng rng; /* its own */
    struct pool *pool;
    struct kolo_stream *streams[STREAMS]; /* two for each communicator */
    struct call *calls;
    struct place old[OLD_GROUPS]; /* groups of past epochs that still stand */
    struct shown *shown;
};

/* Which group each rank belongs to. */
struct partition {
    int colors[MOST_RANKS];
    int keys[MOST_RANKS];
    struct kolo_comm *made[MOST_RANKS]; /* of a parted world, by rank */
};

/* A thread and the ranks that it drives: one, or all of a solo world. */
struct driver {
    const struct world *world;
    struct shared *shared;
    const struct partition *partitions; /* of a parted world, else NULL */
    struct seat *seats;
    int nseats;
};

/* Say what is wrong, and stand still until the parent ends the process. */
__attribute__((format(printf, 3, 4), noreturn)) void wrong(const struct driver *d, struct seat *s,
                                                           const char *format, ...);
void expect_ok(const struct driver *d, struct seat *s, struct kolo_comm *comm,
               enum kolo_status status, const char *what);

/* Run the first ncalls of the seats' calls, whose shapes are filled in, and inspect the results. */
void batch_run(const struct driver *d, int batch, size_t ncalls, bool is_grouped);

/* Live the life of the ranks of one process of a world.  Returns when all has been right; a rank
 * that sees something wrong says so in `shared` and stands still until the parent ends it. */
void rank_process(const struct world *w, int process, struct shared *shared);

#endif
