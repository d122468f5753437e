/* plan_verify.h - what the parts of the verifier share.
 *
 *   plan_verify.c       entries, consistency of the plans with each other, initial and final state
 *   plan_verify_run.c   an order in which all steps can run, or a deadlock
 *   plan_verify_value.c the plans run in that order on symbols: is the result right
 *   plan_verify_race.c  whether that order mattered: vector clocks over every shared cell
 *
 * Why one round of values and two rounds of clocks are a proof for any number of rounds is said at
 * the head of plan_verify_run.c. */
#ifndef PLAN_VERIFY_H
#define PLAN_VERIFY_H

#include "plan.h"

/* One direction between two ranks on one channel. */
struct pv_link {
    int src;
    int dst;
    int channel;
    int from;           /* lane that sends, index into pv->lanes; -1: none */
    int to;             /* lane that receives; -1: none */
    uint32_t nsent;     /* messages per round at the sending end */
    uint32_t nreceived; /* the same at the receiving end */
    uint32_t last_send; /* 1 + the last step seen that sends, to find it twice in one move */
    uint32_t last_receive;
    int span;      /* most chunks in one message */
    uint32_t sent; /* messages so far, in whichever run is going on */
    uint32_t taken;
    size_t first_slot; /* of this link in the run's arrays, and how many it needs there */
    uint32_t nslots;
    size_t first_value; /* of the values in its slots, `span` a slot */
};

struct pv_lane {
    int rank;
    int index; /* within its plan */
    const struct plan_step *steps;
    uint32_t nsteps;
    uint32_t first_step; /* number of steps of all lanes before it */
};

/* A stretch of the order of execution: the next `nsteps` steps of `lane`. */
struct pv_stretch {
    int lane;
    uint32_t nsteps;
};

/* Cells of one rank: chunk c of a space is cell space[c].  In place, IN and OUT share cells. */
struct pv_place {
    size_t space[3]; /* of PLAN_IN, PLAN_OUT, PLAN_TMP */
};

struct pv {
    struct plan *const *plans;
    int n;
    int slots;
    enum kolo_coll coll; /* send and recv: SEND */
    int root;            /* send and recv: the sender */
    bool is_reducing;
    bool has_lengths; /* chunks of different positions may differ in length */
    bool is_hashed;
    uint64_t seed;

    struct pv_lane *lanes; /* of all ranks */
    int nlanes;
    int *first_lane; /* n + 1: lanes of rank r are first_lane[r] .. first_lane[r + 1] - 1 */
    uint32_t nsteps; /* of all lanes */

    struct pv_link *links;
    int nlinks;
    int links_room;
    int *link_of;          /* of every operand of every plan; -1: not a link */
    size_t *first_operand; /* n: where a plan's operands start in link_of */

    struct pv_stretch *order;
    size_t norder;

    bool is_in_place; /* the layout that `place` describes */
    struct pv_place *place;
    size_t ncells;
};

/* The location in front of a text: collective, algorithm, layout, rank, lane, step; lane -1: none.
 * Always KOLO_ERR_ARG. */
__attribute__((format(printf, 4, 5), cold)) enum kolo_status pv_fail(const struct pv *v, int lane,
                                                                     uint32_t step,
                                                                     const char *format, ...);

/* Pair the links and fill v->order. */
enum kolo_status pv_schedule(struct pv *v);
/* Under the layout of v->place: are the values right, is every shared access ordered. */
enum kolo_status pv_run(struct pv *v);
enum kolo_status pv_race(struct pv *v);

enum kolo_status pv_no_memory(const struct pv *v);
/* "IN", ... for messages. */
const char *pv_space_name(int space);
/* What `chunk` of `space` at `rank` must hold after (OUT) or holds before (IN) a round: its logical
 * position, the same number for the same data on all ranks; -1: nothing. */
int64_t pv_position(const struct pv *v, int rank, int space, int chunk);

/* Whose memory an operand of `rank` is in, and where there: PLAN_IN, PLAN_OUT or PLAN_TMP. */
static inline int pv_owner(const struct plan_operand *o, int rank)
{
    return o->space == PLAN_PEER_IN || o->space == PLAN_PEER_OUT ? o->peer : rank;
}

static inline int pv_local_space(const struct plan_operand *o)
{
    if (o->space == PLAN_PEER_IN)
        return PLAN_IN;
    return o->space == PLAN_PEER_OUT ? PLAN_OUT : o->space;
}

/* plan_span_at, quick for the usual shapes. */
static inline int pv_index(const struct plan_span *of, int chunk, int i, int n)
{
    if (of->count == 1)
        return chunk;
    if (of->run == of->count) {
        const int64_t at = (int64_t)chunk + i;
        return (int)(at < n ? at : at % n);
    }
    return plan_span_at(of, chunk, i, n);
}

static inline const struct plan_operand *pv_operands(const struct pv *v, int rank,
                                                     const struct plan_step *s)
{
    return v->plans[rank]->operands + s->first;
}

static inline const int *pv_links_of(const struct pv *v, int rank, const struct plan_step *s)
{
    return v->link_of + v->first_operand[rank] + s->first;
}

#endif
