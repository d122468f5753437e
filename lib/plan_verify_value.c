/* plan_verify_value.c - one round of the plans on symbols, in the order that plan_verify_run.c
 * found.
 *
 * A value is 1 + nset words.  The first is 0 when undefined, else 1 + the logical position (the
 * chunk of the vector, or the pair of ranks) that the value belongs to, with VALUE_FINAL once a
 * FINAL move has made it.  Then, where the collective reduces, whose contributions are in it: a
 * set of ranks (exact), or the sum of one random number per rank (hashed).  Values of one position
 * may be reduced together, and only once per rank. */
#include "plan_verify.h"

#include "mem.h"

#include <stdio.h>
#include <string.h>

#define VALUE_FINAL ((uint64_t)1 << 63)

/* Where an operand's values are. */
struct view {
    uint64_t *values;
    size_t cell; /* of chunk 0; unused for a link */
    int chunk;
    int nchunks; /* 0: a link, whose values follow each other */
};

struct symbols {
    struct pv *v;
    size_t nset;  /* words of a set */
    size_t words; /* of a value */
    uint64_t *cells;
    uint64_t *messages;              /* values in the slots of all links */
    const struct plan_step **sender; /* of the message in each slot */
    uint64_t *contribution;          /* n sets: of one rank each */
    uint64_t *all;                   /* the set of all ranks */
    uint64_t *result;                /* of the element that is being moved */
    struct view *views;
    uint32_t *writer; /* of each cell: the last move with several chunks that writes it ... */
    int *written_at;  /* ... and at which index of its span */
    uint32_t moves;
};

static uint64_t *cell(const struct symbols *y, int rank, int space, int chunk)
{
    return y->cells + (y->v->place[rank].space[space] + (size_t)chunk) * y->words;
}

static uint64_t *view_at(const struct symbols *y, const struct view *view,
                         const struct plan_span *of, int i)
{
    const int at = view->nchunks == 0 ? i : pv_index(of, view->chunk, i, view->nchunks);
    return view->values + (size_t)at * y->words;
}

/* "chunk 3" */
struct position_text {
    char at[64];
};

static struct position_text position_text(const struct pv *v, int64_t position)
{
    struct position_text t;
    if (v->coll == KOLO_COLL_ALL_TO_ALL || v->coll == KOLO_COLL_ALL_TO_ALL_V)
        snprintf(t.at, sizeof(t.at), "the chunk from rank %d to rank %d", (int)(position / v->n),
                 (int)(position % v->n));
    else
        snprintf(t.at, sizeof(t.at), "chunk %lld", (long long)position);
    return t;
}

static int64_t position_of(const uint64_t *value)
{
    return (int64_t)(value[0] & ~VALUE_FINAL) - 1;
}

/* ---- set-up -------------------------------------------------------------------------------- */

static void symbols_fini(struct symbols *y)
{
    mem_free(y->cells);
    mem_free(y->messages);
    mem_free(y->sender);
    mem_free(y->contribution);
    mem_free(y->all);
    mem_free(y->result);
    mem_free(y->views);
    mem_free(y->writer);
    mem_free(y->written_at);
}

/* Slots and values of every link; false on overflow. */
static bool place_messages(struct pv *v, size_t *nslots, size_t *nvalues)
{
    *nslots = *nvalues = 0;
    for (int i = 0; i < v->nlinks; i++) {
        struct pv_link *l = &v->links[i];
        size_t values;
        l->sent = l->taken = 0;
        l->nslots = l->nsent < (uint32_t)v->slots ? l->nsent : (uint32_t)v->slots;
        l->first_slot = *nslots;
        l->first_value = *nvalues;
        if (!size_mul(l->nslots, (size_t)l->span, &values) || !size_add(*nvalues, values, nvalues))
            return false;
        *nslots += l->nslots;
    }
    return true;
}

static int most_operands(const struct pv *v)
{
    int most = 0;
    for (int lane = 0; lane < v->nlanes; lane++)
        for (uint32_t i = 0; i < v->lanes[lane].nsteps; i++) {
            const struct plan_step *s = &v->lanes[lane].steps[i];
            most = max_int(most, s->ndst + s->nsrc);
        }
    return most;
}

/* splitmix64 */
static uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void fill_contributions(struct symbols *y)
{
    uint64_t state = y->v->seed;
    for (int r = 0; y->nset > 0 && r < y->v->n; r++) {
        uint64_t *set = y->contribution + (size_t)r * y->nset;
        if (y->v->is_hashed)
            set[0] = random_next(&state);
        else
            set[r / 64] = (uint64_t)1 << r % 64;
        for (size_t w = 0; w < y->nset; w++)
            y->all[w] += set[w];
    }
}

static void fill_inputs(struct symbols *y)
{
    for (int r = 0; r < y->v->n; r++)
        for (int c = 0; c < y->v->plans[r]->nchunks[PLAN_IN]; c++) {
            uint64_t *value = cell(y, r, PLAN_IN, c);
            value[0] = (uint64_t)pv_position(y->v, r, PLAN_IN, c) + 1;
            if (y->nset > 0)
                memcpy(value + 1, y->contribution + (size_t)r * y->nset, y->nset * sizeof(*value));
        }
}

static enum kolo_status symbols_init(struct symbols *y, struct pv *v)
{
    size_t nslots, nvalues;
    *y = (struct symbols){.v = v};
    y->nset = !v->is_reducing ? 0 : v->is_hashed ? 1 : ((size_t)v->n + 63) / 64;
    y->words = 1 + y->nset;
    if (!place_messages(v, &nslots, &nvalues))
        return pv_no_memory(v);
    y->cells = mem_calloc(v->ncells + 1, y->words * sizeof(*y->cells));
    y->messages = mem_calloc(nvalues + 1, y->words * sizeof(*y->messages));
    y->sender = mem_calloc(nslots + 1, sizeof(const struct plan_step *));
    y->contribution = mem_calloc((size_t)v->n, y->words * sizeof(*y->contribution));
    y->all = mem_calloc(y->words, sizeof(*y->all));
    y->result = mem_calloc(y->words, sizeof(*y->result));
    y->views = mem_calloc((size_t)most_operands(v) + 1, sizeof(*y->views));
    y->writer = mem_calloc(v->ncells + 1, sizeof(*y->writer));
    y->written_at = mem_calloc(v->ncells + 1, sizeof(*y->written_at));
    if (y->cells == NULL || y->messages == NULL || y->sender == NULL || y->contribution == NULL ||
        y->all == NULL || y->result == NULL || y->views == NULL || y->writer == NULL ||
        y->written_at == NULL) {
        symbols_fini(y);
        return pv_no_memory(v);
    }
    fill_contributions(y);
    fill_inputs(y);
    return KOLO_OK;
}

/* ---- one move ------------------------------------------------------------------------------ */

/* A message that `s` is about to take: as long as expected, chunk by chunk? */
static enum kolo_status check_message(const struct symbols *y, int lane, uint32_t step,
                                      const struct plan_step *s, const struct pv_link *l)
{
    const struct pv *v = y->v;
    const struct plan_step *sender = y->sender[l->first_slot + l->taken % l->nslots];
    if (sender->of.count != s->of.count)
        return pv_fail(v, lane, step, "receives a message of %d chunks from rank %d, expects %d",
                       sender->of.count, l->src, s->of.count);
    for (int i = 0; v->has_lengths && i < s->of.count; i++) {
        const int there = v->plans[l->src]->nchunks[sender->of_space];
        const int here = v->plans[l->dst]->nchunks[s->of_space];
        const int64_t sent = pv_position(v, l->src, sender->of_space,
                                         pv_index(&sender->of, sender->of.chunk, i, there));
        const int64_t expected =
            pv_position(v, l->dst, s->of_space, pv_index(&s->of, s->of.chunk, i, here));
        if (sent != expected)
            return pv_fail(v, lane, step,
                           "receives a message with the length of %s from rank %d, expects %s",
                           position_text(v, sent).at, l->src, position_text(v, expected).at);
    }
    return KOLO_OK;
}

static enum kolo_status open_views(struct symbols *y, int lane, uint32_t step,
                                   const struct plan_step *s)
{
    struct pv *v = y->v;
    const int rank = v->lanes[lane].rank;
    const struct plan_operand *o = pv_operands(v, rank, s);
    const int *links = pv_links_of(v, rank, s);
    for (int i = 0; i < s->ndst + s->nsrc; i++) {
        struct view *view = &y->views[i];
        if (links[i] < 0) {
            const int owner = pv_owner(&o[i], rank), space = pv_local_space(&o[i]);
            const size_t first = v->place[owner].space[space];
            *view = (struct view){y->cells + first * y->words, first, o[i].chunk,
                                  v->plans[owner]->nchunks[space]};
            continue;
        }
        struct pv_link *l = &v->links[links[i]];
        uint32_t slot;
        if (i < s->ndst) {
            slot = l->sent % l->nslots;
            y->sender[l->first_slot + slot] = s;
        } else {
            TRY(check_message(y, lane, step, s, l));
            slot = l->taken % l->nslots;
        }
        const size_t value = l->first_value + (size_t)slot * (size_t)l->span;
        *view = (struct view){.values = y->messages + value * y->words};
    }
    return KOLO_OK;
}

static void pass_messages(struct pv *v, int lane, const struct plan_step *s)
{
    const int *links = pv_links_of(v, v->lanes[lane].rank, s);
    for (int i = 0; i < s->ndst + s->nsrc; i++) {
        if (links[i] < 0)
            continue;
        if (i < s->ndst)
            v->links[links[i]].sent++;
        else
            v->links[links[i]].taken++;
    }
}

/* A move is elementwise and its elements come in no order: no cell may be written twice, or written
 * at one index of the span and read at another. */
static enum kolo_status check_overlap(struct symbols *y, int lane, uint32_t step,
                                      const struct plan_step *s)
{
    const uint32_t id = ++y->moves;
    const struct plan_operand *o = pv_operands(y->v, y->v->lanes[lane].rank, s);
    for (int j = 0; j < s->ndst + s->nsrc; j++) {
        const struct view *view = &y->views[j];
        for (int i = 0; view->nchunks != 0 && i < s->of.count; i++) {
            const int chunk = pv_index(&s->of, view->chunk, i, view->nchunks);
            const size_t at = view->cell + (size_t)chunk;
            if (j < s->ndst && y->writer[at] == id)
                return pv_fail(y->v, lane, step, "writes chunk %d of %s twice", chunk,
                               pv_space_name(o[j].space));
            if (j >= s->ndst && y->writer[at] == id && y->written_at[at] != i)
                return pv_fail(y->v, lane, step, "reads chunk %d of %s, which it also overwrites",
                               chunk, pv_space_name(o[j].space));
            if (j < s->ndst) {
                y->writer[at] = id;
                y->written_at[at] = i;
            }
        }
    }
    return KOLO_OK;
}

static enum kolo_status undefined_source(const struct symbols *y, int lane, uint32_t step,
                                         const struct plan_step *s, int j, int i)
{
    const struct plan_operand *o = &pv_operands(y->v, y->v->lanes[lane].rank, s)[s->ndst + j];
    const struct view *view = &y->views[s->ndst + j];
    return pv_fail(y->v, lane, step, "reads chunk %d of %s before it is written",
                   pv_index(&s->of, view->chunk, i, view->nchunks), pv_space_name(o->space));
}

static int first_rank(const uint64_t *set, size_t nset)
{
    for (size_t w = 0; w < nset; w++)
        if (set[w] != 0)
            return (int)(w * 64) + __builtin_ctzll(set[w]);
    return -1;
}

/* Add a source to the result. */
static enum kolo_status reduce(struct symbols *y, int lane, uint32_t step, const uint64_t *source)
{
    const struct pv *v = y->v;
    const int64_t a = position_of(y->result), b = position_of(source);
    if (a != b)
        return pv_fail(v, lane, step, "reduces %s with %s", position_text(v, a).at,
                       position_text(v, b).at);
    y->result[0] |= source[0] & VALUE_FINAL;
    for (size_t w = 1; w < y->words; w++) {
        const uint64_t both = y->result[w] & source[w];
        if (!v->is_hashed && both != 0)
            return pv_fail(v, lane, step, "reduces the contribution of rank %d to %s twice",
                           (int)(w - 1) * 64 + first_rank(&both, 1), position_text(v, a).at);
        y->result[w] += source[w];
    }
    return KOLO_OK;
}

static bool is_set(const struct symbols *y, const uint64_t *value, const uint64_t *set)
{
    return memcmp(value + 1, set, y->nset * sizeof(*set)) == 0;
}

/* The plan promises to reduce in rank order: source j is the contribution of rank j. */
static enum kolo_status check_rank_order(const struct symbols *y, int lane, uint32_t step,
                                         const struct plan_step *s, int j, const uint64_t *source)
{
    const struct pv *v = y->v;
    const unsigned flags = v->plans[v->lanes[lane].rank]->flags;
    if (s->nsrc == 1 || (flags & PLAN_RANK_ORDER) == 0 ||
        (s->nsrc == v->n && is_set(y, source, y->contribution + (size_t)j * y->nset)))
        return KOLO_OK;
    return pv_fail(v, lane, step,
                   "source %d of %d is not the contribution of rank %d, in a plan "
                   "that says it reduces in rank order",
                   j, s->nsrc, j);
}

/* FINAL must stand where a reduction becomes complete, and nowhere else. */
static enum kolo_status check_final(struct symbols *y, int lane, uint32_t step,
                                    const struct plan_step *s)
{
    const struct pv *v = y->v;
    const bool was_final = (y->result[0] & VALUE_FINAL) != 0;
    const bool is_complete = is_set(y, y->result, y->all);
    const struct position_text at = position_text(v, position_of(y->result));
    if ((s->flags & PLAN_FINAL) == 0) {
        if (is_complete && !was_final)
            return pv_fail(v, lane, step, "completes the reduction of %s without FINAL", at.at);
        return KOLO_OK;
    }
    if (was_final)
        return pv_fail(v, lane, step, "FINAL again on the complete reduction of %s", at.at);
    if (!is_complete)
        return pv_fail(v, lane, step, "FINAL on an incomplete reduction of %s", at.at);
    y->result[0] |= VALUE_FINAL;
    return KOLO_OK;
}

static enum kolo_status move_element(struct symbols *y, int lane, uint32_t step,
                                     const struct plan_step *s, int i)
{
    const size_t bytes = y->words * sizeof(*y->result);
    for (int j = 0; j < s->nsrc; j++) {
        const uint64_t *source = view_at(y, &y->views[s->ndst + j], &s->of, i);
        if (source[0] == 0)
            return undefined_source(y, lane, step, s, j, i);
        if (j == 0)
            memcpy(y->result, source, bytes);
        else
            TRY(reduce(y, lane, step, source));
        if (y->nset > 0)
            TRY(check_rank_order(y, lane, step, s, j, source));
    }
    if (y->nset > 0)
        TRY(check_final(y, lane, step, s));
    for (int j = 0; j < s->ndst; j++)
        memcpy(view_at(y, &y->views[j], &s->of, i), y->result, bytes);
    return KOLO_OK;
}

static enum kolo_status run_step(struct symbols *y, int lane, uint32_t step)
{
    const struct plan_step *s = &y->v->lanes[lane].steps[step];
    TRY(open_views(y, lane, step, s));
    if (s->of.count > 1 || s->ndst > 1)
        TRY(check_overlap(y, lane, step, s));
    for (int i = 0; i < s->of.count; i++)
        TRY(move_element(y, lane, step, s, i));
    pass_messages(y->v, lane, s);
    return KOLO_OK;
}

/* ---- what must be there at the end --------------------------------------------------------- */

static enum kolo_status check_output(const struct symbols *y, int rank, int chunk)
{
    const struct pv *v = y->v;
    const uint64_t *value = cell(y, rank, PLAN_OUT, chunk);
    const int64_t expected = pv_position(v, rank, PLAN_OUT, chunk);
    if (value[0] == 0)
        return pv_fail(v, -1, 0, "rank %d never gets chunk %d of OUT", rank, chunk);
    if (position_of(value) != expected)
        return pv_fail(v, -1, 0, "rank %d ends with %s in chunk %d of OUT, which should be %s",
                       rank, position_text(v, position_of(value)).at, chunk,
                       position_text(v, expected).at);
    if (y->nset == 0 || (value[0] & VALUE_FINAL) != 0)
        return KOLO_OK;
    uint64_t missing = 0;
    size_t w = 0;
    for (; w < y->nset && missing == 0; w++)
        missing = y->all[w] & ~value[w + 1];
    if (v->is_hashed || missing == 0)
        return pv_fail(v, -1, 0, "rank %d ends with a wrong reduction in chunk %d of OUT", rank,
                       chunk);
    return pv_fail(v, -1, 0, "rank %d ends without the contribution of rank %d to chunk %d of OUT",
                   rank, (int)(w - 1) * 64 + first_rank(&missing, 1), chunk);
}

static enum kolo_status run_all(struct symbols *y, uint32_t *at)
{
    const struct pv *v = y->v;
    for (size_t i = 0; i < v->norder; i++) {
        const int lane = v->order[i].lane;
        for (uint32_t k = 0; k < v->order[i].nsteps; k++)
            TRY(run_step(y, lane, at[lane]++));
    }
    for (int r = 0; r < v->n; r++)
        for (int c = 0; c < v->plans[r]->nchunks[PLAN_OUT]; c++)
            TRY(check_output(y, r, c));
    return KOLO_OK;
}

enum kolo_status pv_run(struct pv *v)
{
    struct symbols y;
    TRY(symbols_init(&y, v));
    uint32_t *at = mem_calloc((size_t)v->nlanes + 1, sizeof(*at));
    const enum kolo_status status = at == NULL ? pv_no_memory(v) : run_all(&y, at);
    mem_free(at);
    symbols_fini(&y);
    return status;
}
