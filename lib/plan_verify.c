/* plan_verify.c - the proof of the plans of all ranks: entries, and whether the plans fit together
 * before anything runs.
 *
 *   consistent? -> links paired? -> for each layout: order or deadlock, values, races
 *
 * The two layouts are separate buffers, and IN and OUT in the same memory where the API allows it;
 * in place is nothing but another table of where a rank's cells are (struct pv_place). */
#include "plan_verify.h"

#include "mem.h"

#include <stdio.h>
#include <string.h>

/* ---- what a collective means --------------------------------------------------------------- */

int64_t pv_position(const struct pv *v, int rank, int space, int chunk)
{
    const bool is_in = space == PLAN_IN;
    const bool is_root = rank == v->root;
    switch (v->coll) {
    case KOLO_COLL_ALL_REDUCE:
        return chunk;
    case KOLO_COLL_REDUCE:
        return is_in || is_root ? chunk : -1;
    case KOLO_COLL_BROADCAST:
        return !is_in || is_root ? chunk : -1;
    case KOLO_COLL_REDUCE_SCATTER:
    case KOLO_COLL_REDUCE_SCATTER_V:
        return is_in ? chunk : rank;
    case KOLO_COLL_ALL_GATHER:
    case KOLO_COLL_ALL_GATHER_V:
        return is_in ? rank : chunk;
    case KOLO_COLL_ALL_TO_ALL:
    case KOLO_COLL_ALL_TO_ALL_V:
        return is_in ? (int64_t)rank * v->n + chunk : (int64_t)chunk * v->n + rank;
    case KOLO_COLL_GATHER:
        return is_in ? rank : is_root ? chunk : -1;
    case KOLO_COLL_SCATTER:
        return !is_in ? rank : is_root ? chunk : -1;
    case KOLO_COLL_SEND:
        return 0;
    default:
        return -1;
    }
}

/* Whether chunks of different positions may differ in length. */
static bool has_lengths(enum kolo_coll coll)
{
    return coll == KOLO_COLL_ALL_REDUCE || coll == KOLO_COLL_REDUCE ||
           coll == KOLO_COLL_BROADCAST || coll == KOLO_COLL_REDUCE_SCATTER_V ||
           coll == KOLO_COLL_ALL_GATHER_V || coll == KOLO_COLL_ALL_TO_ALL_V;
}

static bool is_v(enum kolo_coll coll)
{
    return coll == KOLO_COLL_REDUCE_SCATTER_V || coll == KOLO_COLL_ALL_GATHER_V ||
           coll == KOLO_COLL_ALL_TO_ALL_V;
}

/* Chunks of IN and OUT at `rank`, where the vector is cut into `cut` where that is free. */
static void expected_chunks(const struct pv *v, int rank, int cut, int chunks[2])
{
    const bool is_root = rank == v->root;
    int in = 0, out = 0;
    switch (v->coll) {
    case KOLO_COLL_ALL_REDUCE:
        in = out = cut;
        break;
    case KOLO_COLL_REDUCE:
        in = cut;
        out = is_root ? cut : 0;
        break;
    case KOLO_COLL_BROADCAST:
        in = is_root ? cut : 0;
        out = cut;
        break;
    case KOLO_COLL_REDUCE_SCATTER:
    case KOLO_COLL_REDUCE_SCATTER_V:
        in = v->n;
        out = 1;
        break;
    case KOLO_COLL_ALL_GATHER:
    case KOLO_COLL_ALL_GATHER_V:
        in = 1;
        out = v->n;
        break;
    case KOLO_COLL_ALL_TO_ALL:
    case KOLO_COLL_ALL_TO_ALL_V:
        in = out = v->n;
        break;
    case KOLO_COLL_GATHER:
        in = 1;
        out = is_root ? v->n : 0;
        break;
    case KOLO_COLL_SCATTER:
        in = is_root ? v->n : 0;
        out = 1;
        break;
    case KOLO_COLL_SEND:
        in = is_root;
        out = !is_root;
        break;
    default:
        break;
    }
    chunks[PLAN_IN] = in;
    chunks[PLAN_OUT] = out;
}

const char *pv_space_name(int space)
{
    static const char *const names[] = {"IN", "OUT", "TMP", "LINK", "PEER_IN", "PEER_OUT"};
    return space >= 0 && space < (int)ARRAY_LEN(names) ? names[space] : "?";
}

enum kolo_status pv_fail(const struct pv *v, int lane, uint32_t step, const char *format, ...)
{
    char what[512], where[64] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    if (lane >= 0)
        snprintf(where, sizeof(where), "rank %d lane %d step %u: ", v->lanes[lane].rank,
                 v->lanes[lane].index, step);
    return fail(KOLO_ERR_ARG, "plan %s/%s of %d ranks%s: %s%s", kolo_coll_name((int)v->coll),
                v->plans[0]->algo, v->n, v->is_in_place ? ", in place" : "", where, what);
}

enum kolo_status pv_no_memory(const struct pv *v)
{
    return fail(KOLO_ERR_NOMEM, "no memory to verify plans of %d ranks", v->n);
}

/* ---- do the plans belong together ---------------------------------------------------------- */

static enum kolo_status check_point_to_point(struct pv *v)
{
    const struct plan *a = v->plans[0], *b = v->n == 2 ? v->plans[1] : NULL;
    if (b == NULL || a->coll == b->coll || (b->coll != KOLO_COLL_SEND && b->coll != KOLO_COLL_RECV))
        return pv_fail(v, -1, 0, "send and recv are proven as a pair of two ranks, one of each");
    v->coll = KOLO_COLL_SEND;
    v->root = a->coll == KOLO_COLL_SEND ? 0 : 1;
    for (int r = 0; r < 2; r++)
        if (v->plans[r]->root != 1 - r)
            return pv_fail(v, -1, 0, "rank %d names %d as its peer", r, v->plans[r]->root);
    return KOLO_OK;
}

static enum kolo_status check_headers(struct pv *v)
{
    const struct plan *first = v->plans[0];
    const bool is_pair = first->coll == KOLO_COLL_SEND || first->coll == KOLO_COLL_RECV;
    if (is_pair)
        TRY(check_point_to_point(v));
    if (v->root < 0 || v->root >= v->n)
        return pv_fail(v, -1, 0, "root %d is not a rank", v->root);
    const int cut =
        v->coll == KOLO_COLL_BROADCAST ? first->nchunks[PLAN_OUT] : first->nchunks[PLAN_IN];
    if (v->coll != KOLO_COLL_BARRIER && v->coll != KOLO_COLL_SCATTER && v->coll != KOLO_COLL_SEND &&
        cut < 1)
        return pv_fail(v, -1, 0, "the vector of rank 0 has no chunks");
    for (int r = 0; r < v->n; r++) {
        const struct plan *p = v->plans[r];
        if (p->nranks != v->n || p->rank != r)
            return pv_fail(v, -1, 0, "plan %d is of rank %d of %d", r, p->rank, p->nranks);
        if (!is_pair && (p->coll != first->coll || p->root != first->root))
            return pv_fail(v, -1, 0, "rank %d has a plan of %s with root %d, rank 0 has root %d", r,
                           kolo_coll_name((int)p->coll), p->root, first->root);
        int chunks[2];
        expected_chunks(v, r, cut, chunks);
        for (int s = PLAN_IN; s <= PLAN_OUT; s++)
            if (p->nchunks[s] != chunks[s])
                return pv_fail(v, -1, 0, "rank %d has %d chunks in %s, the collective demands %d",
                               r, p->nchunks[s], pv_space_name(s), chunks[s]);
    }
    return KOLO_OK;
}

/* The table of all lanes, with the plans' own tables checked on the way. */
static enum kolo_status collect_lanes(struct pv *v)
{
    size_t nlanes = 0, noperands = 0;
    for (int r = 0; r < v->n; r++) {
        nlanes += (size_t)v->plans[r]->nlanes;
        noperands += (size_t)v->plans[r]->noperands;
    }
    v->lanes = mem_calloc(nlanes + 1, sizeof(*v->lanes));
    v->first_lane = mem_calloc((size_t)v->n + 1, sizeof(*v->first_lane));
    v->first_operand = mem_calloc((size_t)v->n, sizeof(*v->first_operand));
    v->link_of = mem_calloc(noperands + 1, sizeof(*v->link_of));
    if (v->lanes == NULL || v->first_lane == NULL || v->first_operand == NULL ||
        v->link_of == NULL || nlanes > INT32_MAX)
        return pv_no_memory(v);
    noperands = 0;
    for (int r = 0; r < v->n; r++) {
        const struct plan *p = v->plans[r];
        v->first_lane[r] = v->nlanes;
        v->first_operand[r] = noperands;
        noperands += (size_t)p->noperands;
        for (int l = 0; l < p->nlanes; l++) {
            const struct plan_lane *lane = &p->lanes[l];
            if ((uint64_t)lane->first + lane->nsteps > (uint64_t)p->nsteps)
                return pv_fail(v, -1, 0, "rank %d lane %d ends behind the plan's steps", r, l);
            v->lanes[v->nlanes++] =
                (struct pv_lane){r, l, p->steps + lane->first, lane->nsteps, v->nsteps};
            if (__builtin_add_overflow(v->nsteps, lane->nsteps, &v->nsteps) ||
                v->nsteps > UINT32_MAX / 4)
                return pv_fail(v, -1, 0, "the plans have too many steps to verify");
        }
    }
    v->first_lane[v->n] = v->nlanes;
    return KOLO_OK;
}

/* ---- is a move well formed ----------------------------------------------------------------- */

static enum kolo_status check_span(const struct pv *v, int lane, uint32_t step,
                                   const struct plan_step *s)
{
    const struct plan *p = v->plans[v->lanes[lane].rank];
    if ((uint64_t)s->first + s->ndst + s->nsrc > (uint64_t)p->noperands)
        return pv_fail(v, lane, step, "its operands end behind the plan's");
    if (s->ndst + s->nsrc == 0)
        return pv_fail(v, lane, step, "has no operands");
    if (s->of.count < 0)
        return pv_fail(v, lane, step, "a span of %d chunks", s->of.count);
    if ((s->flags & PLAN_FINAL) != 0 && (!v->is_reducing || s->of.count == 0))
        return pv_fail(v, lane, step, "FINAL on a move that reduces nothing");
    if (s->of.count == 0)
        return KOLO_OK;
    if (s->ndst == 0 || s->nsrc == 0)
        return pv_fail(v, lane, step, "data without %s", s->ndst == 0 ? "destination" : "source");
    if (s->nsrc > 1 && !v->is_reducing)
        return pv_fail(v, lane, step, "%d sources in a collective that does not reduce", s->nsrc);
    if (s->of_space > PLAN_OUT || s->of.run < 1 || s->of.chunk < 0 ||
        s->of.chunk >= p->nchunks[s->of_space])
        return pv_fail(v, lane, step, "is about chunk %d of %s, which has %d", s->of.chunk,
                       pv_space_name(s->of_space),
                       s->of_space > PLAN_OUT ? 0 : p->nchunks[s->of_space]);
    return KOLO_OK;
}

static enum kolo_status check_link_operand(const struct pv *v, int lane, uint32_t step,
                                           const struct plan_step *s, const struct plan_operand *o)
{
    const int rank = v->lanes[lane].rank;
    if (o->peer < 0 || o->peer >= v->n || o->peer == rank)
        return pv_fail(v, lane, step, "a link to rank %d", o->peer);
    if (o->channel >= v->plans[rank]->nchannels || o->channel >= PLAN_MAX_CHANNELS)
        return pv_fail(v, lane, step, "channel %d of %d", o->channel, v->plans[rank]->nchannels);
    if (s->of.count > v->plans[rank]->max_span)
        return pv_fail(v, lane, step, "a message of %d chunks, the plan's max_span is %d",
                       s->of.count, v->plans[rank]->max_span);
    if (is_v(v->coll) && s->of.count > 1)
        return pv_fail(v, lane, step, "a message of %d chunks of different lengths", s->of.count);
    return KOLO_OK;
}

static enum kolo_status check_memory_operand(const struct pv *v, int lane, uint32_t step,
                                             const struct plan_step *s,
                                             const struct plan_operand *o, bool is_dst)
{
    const int rank = v->lanes[lane].rank;
    const bool is_peer = o->space == PLAN_PEER_IN || o->space == PLAN_PEER_OUT;
    if (o->space > PLAN_PEER_OUT)
        return pv_fail(v, lane, step, "an operand in space %d", o->space);
    if (is_dst && (o->space == PLAN_IN || o->space == PLAN_PEER_IN))
        return pv_fail(v, lane, step, "writes %s, which is read only", pv_space_name(o->space));
    if (s->of.count == 0)
        return pv_fail(v, lane, step, "a move without data names %s", pv_space_name(o->space));
    if (is_peer && (o->peer < 0 || o->peer >= v->n || o->peer == rank))
        return pv_fail(v, lane, step, "a window of rank %d", o->peer);
    const unsigned need = is_dst ? PLAN_WRITES_PEERS : PLAN_READS_PEERS;
    if (is_peer && (v->plans[rank]->flags & need) == 0)
        return pv_fail(v, lane, step, "%s a peer, but the plan's flags do not say so",
                       is_dst ? "writes" : "reads");
    const int owner = pv_owner(o, rank), space = pv_local_space(o);
    const int n = v->plans[owner]->nchunks[space];
    const int64_t last = o->chunk + (int64_t)((s->of.count - 1) / s->of.run) * s->of.stride;
    if (o->chunk < 0 || o->chunk >= n || last < 0)
        return pv_fail(v, lane, step, "chunk %d of %s of rank %d, which has %d", o->chunk,
                       pv_space_name(space), owner, n);
    if (space == PLAN_TMP || !v->has_lengths)
        return KOLO_OK;
    for (int i = 0; i < s->of.count; i++) {
        const int of = pv_index(&s->of, s->of.chunk, i, v->plans[rank]->nchunks[s->of_space]);
        const int at = pv_index(&s->of, o->chunk, i, n);
        if (pv_position(v, rank, s->of_space, of) != pv_position(v, owner, space, at))
            return pv_fail(v, lane, step,
                           "chunk %d of %s of rank %d has not the length of chunk %d of %s", at,
                           pv_space_name(space), owner, of, pv_space_name(s->of_space));
    }
    return KOLO_OK;
}

static enum kolo_status check_moves(const struct pv *v)
{
    for (int lane = 0; lane < v->nlanes; lane++) {
        const struct pv_lane *l = &v->lanes[lane];
        for (uint32_t step = 0; step < l->nsteps; step++) {
            const struct plan_step *s = &l->steps[step];
            TRY(check_span(v, lane, step, s));
            const struct plan_operand *o = pv_operands(v, l->rank, s);
            for (int i = 0; i < s->ndst + s->nsrc; i++) {
                if (o[i].space == PLAN_LINK)
                    TRY(check_link_operand(v, lane, step, s, &o[i]));
                else
                    TRY(check_memory_operand(v, lane, step, s, &o[i], i < s->ndst));
            }
        }
    }
    return KOLO_OK;
}

/* ---- layouts ------------------------------------------------------------------------------- */

/* In place, the API gives OUT of a rank that starts at IN chunk `*shift`, or IN at OUT chunk
 * -`*shift`; false where the rank has no alias. */
static bool alias(const struct pv *v, int rank, int *shift)
{
    *shift = 0;
    switch (v->coll) {
    case KOLO_COLL_ALL_REDUCE:
    case KOLO_COLL_ALL_TO_ALL:
    case KOLO_COLL_ALL_TO_ALL_V:
        return true;
    case KOLO_COLL_BROADCAST:
    case KOLO_COLL_REDUCE:
        return rank == v->root;
    case KOLO_COLL_ALL_GATHER:
    case KOLO_COLL_ALL_GATHER_V:
        *shift = -rank;
        return true;
    case KOLO_COLL_REDUCE_SCATTER:
    case KOLO_COLL_REDUCE_SCATTER_V:
        *shift = rank;
        return true;
    case KOLO_COLL_GATHER:
        *shift = -rank;
        return rank == v->root;
    case KOLO_COLL_SCATTER:
        *shift = rank;
        return rank == v->root;
    default:
        return false;
    }
}

static void lay_out(struct pv *v, bool is_in_place)
{
    v->is_in_place = is_in_place;
    size_t at = 0;
    for (int r = 0; r < v->n; r++) {
        const int *nchunks = v->plans[r]->nchunks;
        const size_t in = (size_t)nchunks[PLAN_IN], out = (size_t)nchunks[PLAN_OUT];
        struct pv_place *place = &v->place[r];
        int shift;
        if (is_in_place && alias(v, r, &shift)) {
            place->space[PLAN_IN] = at + (shift < 0 ? (size_t)-shift : 0);
            place->space[PLAN_OUT] = at + (shift > 0 ? (size_t)shift : 0);
            at += in > out ? in : out;
        } else {
            place->space[PLAN_IN] = at;
            place->space[PLAN_OUT] = at + in;
            at += in + out;
        }
        place->space[PLAN_TMP] = at;
        at += (size_t)nchunks[PLAN_TMP];
    }
    v->ncells = at;
}

/* Whether the API knows an in-place form at all. */
static bool has_alias(const struct pv *v)
{
    int shift;
    return alias(v, v->root, &shift);
}

/* ---- entries ------------------------------------------------------------------------------- */

static void pv_fini(struct pv *v)
{
    mem_free(v->lanes);
    mem_free(v->first_lane);
    mem_free(v->links);
    mem_free(v->link_of);
    mem_free(v->first_operand);
    mem_free(v->order);
    mem_free(v->place);
}

static enum kolo_status prove(struct pv *v, bool not_in_place)
{
    TRY(check_headers(v));
    TRY(collect_lanes(v));
    TRY(check_moves(v));
    TRY(pv_schedule(v));
    v->place = mem_calloc((size_t)v->n, sizeof(*v->place));
    if (v->place == NULL)
        return pv_no_memory(v);
    const int nlayouts = not_in_place || !has_alias(v) ? 1 : 2;
    for (int i = 0; i < nlayouts; i++) {
        lay_out(v, i > 0);
        TRY(pv_run(v));
        TRY(pv_race(v));
    }
    return KOLO_OK;
}

static enum kolo_status verify(struct plan *const *plans, int nranks,
                               const struct plan_limits *limits, bool is_hashed, uint64_t seed)
{
    if (plans == NULL || nranks < 1 || nranks > PLAN_MAX_RANKS)
        return fail(KOLO_ERR_ARG, "plans of %d ranks to verify: 1 to %d are possible", nranks,
                    (int)PLAN_MAX_RANKS);
    if (limits == NULL || limits->slots < 1)
        return fail(KOLO_ERR_ARG, "links of %d slots to verify plans for: at least 1 is needed",
                    limits == NULL ? 0 : limits->slots);
    for (int r = 0; r < nranks; r++)
        if (plans[r] == NULL)
            return fail(KOLO_ERR_ARG, "no plan of rank %d of %d to verify", r, nranks);
    struct pv v = {
        .plans = plans,
        .n = nranks,
        .slots = limits->slots,
        .coll = plans[0]->coll,
        .root = plans[0]->root,
        .is_hashed = is_hashed,
        .seed = seed,
    };
    v.is_reducing = v.coll == KOLO_COLL_ALL_REDUCE || v.coll == KOLO_COLL_REDUCE ||
                    v.coll == KOLO_COLL_REDUCE_SCATTER || v.coll == KOLO_COLL_REDUCE_SCATTER_V;
    v.has_lengths = has_lengths(v.coll);
    const enum kolo_status status = prove(&v, limits->not_in_place);
    pv_fini(&v);
    return status;
}

enum kolo_status plan_verify(struct plan *const *plans, int nranks,
                             const struct plan_limits *limits)
{
    return verify(plans, nranks, limits, false, 0);
}

enum kolo_status plan_verify_hashed(struct plan *const *plans, int nranks,
                                    const struct plan_limits *limits, uint64_t seed)
{
    return verify(plans, nranks, limits, true, seed);
}
