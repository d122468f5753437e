/* plan_verify_race.c - is every pair of conflicting accesses ordered, whatever the interleaving?
 *
 * Vector clocks.  What orders: the steps of a lane; a message (its send before its receive); a
 * credit (the receive of message k before the send of message k + slots); and, in plans with
 * windows, every rank's entry before everything.  A write counts even if it changes nothing.
 * More slots give less order: a plan that passes with more slots than it sends messages passes
 * with any number.  IN and OUT are other memory in each round and TMP is not, so only conflicts in
 * TMP need a second round. */
#include "plan_verify.h"

#include "mem.h"

#include <string.h>

enum {
    NOBODY = -1,
    SEVERAL = -2,
    /* Above this many clock components the hashed proof goes without: it promises linear memory. */
    HASHED_COMPONENTS = 1 << 26,
};

/* An access: by the lane of component `who`, at its time `when` (1 + step, counted over rounds). */
struct stamp {
    int who;
    uint32_t when; /* 0: none */
};

struct read {
    struct stamp at;
    uint32_t next; /* 1 + index of an earlier read since the last write; 0: none */
};

/* What is known of a cell. */
struct cell {
    int lane; /* the one that touches it, NOBODY or SEVERAL */
    bool is_written;
    bool is_tmp;
    struct stamp write; /* the last one */
    uint32_t reads;     /* list of those since: 1 + index into `reads` */
};

struct peer_access {
    int owner;
    struct stamp at;
};

/* A clock has a component for each lane whose accesses matter: those of cells that several lanes
 * touch and one of them writes, and those of peers' memory, which must also come before the owner's
 * end.  Every step that uses links leaves its lane's clock, and a slot of a link names one of them:
 * of the step that filled it while it is full, of the step that emptied it while it is free. */
struct race {
    struct pv *v;
    struct cell *cells;
    int *component;   /* of each lane; -1: its accesses do not matter */
    int *lane_of;     /* the reverse */
    size_t n;         /* components */
    bool has_tmp;     /* a conflict in TMP */
    uint32_t *clocks; /* of each lane, n components */
    uint32_t *left;   /* by each step that uses links, in the order in which they ran */
    uint32_t nleft;
    uint32_t *slots; /* of all links: 1 + index of the clock that was left there, 0: none */
    uint32_t *at;    /* steps that each lane has done, over all rounds */
    struct read *reads;
    size_t nreads;
    size_t reads_room;
    struct peer_access *peers;
    size_t npeers;
    size_t peers_room;
};

static size_t cell_index(const struct pv *v, int owner, int space, const struct plan_step *s,
                         const struct plan_operand *o, int i, int *chunk)
{
    *chunk = pv_index(&s->of, o->chunk, i, v->plans[owner]->nchunks[space]);
    return v->place[owner].space[space] + (size_t)*chunk;
}

static bool is_conflict(const struct cell *c)
{
    return c->lane == SEVERAL && c->is_written;
}

static bool is_peers(const struct plan_operand *o)
{
    return o->space == PLAN_PEER_IN || o->space == PLAN_PEER_OUT;
}

/* ---- which lanes matter -------------------------------------------------------------------- */

typedef void visit_access(struct race *c, int lane, const struct plan_operand *o, size_t at,
                          bool is_write);

static void note_access(struct race *c, int lane, const struct plan_operand *o, size_t at,
                        bool is_write)
{
    struct cell *cell = &c->cells[at];
    if (cell->lane != lane)
        cell->lane = cell->lane == NOBODY ? lane : SEVERAL;
    cell->is_written |= is_write;
    cell->is_tmp = o->space == PLAN_TMP;
}

static void note_lane(struct race *c, int lane, const struct plan_operand *o, size_t at,
                      bool is_write)
{
    const bool matters = is_conflict(&c->cells[at]);
    c->has_tmp |= matters && c->cells[at].is_tmp;
    if ((!matters && !is_peers(o)) || c->component[lane] >= 0)
        return;
    (void)is_write;
    c->component[lane] = (int)c->n;
    c->lane_of[c->n++] = lane;
}

static void visit_all(struct race *c, visit_access *visit)
{
    const struct pv *v = c->v;
    for (int lane = 0; lane < v->nlanes; lane++) {
        const int rank = v->lanes[lane].rank;
        for (uint32_t step = 0; step < v->lanes[lane].nsteps; step++) {
            const struct plan_step *s = &v->lanes[lane].steps[step];
            const struct plan_operand *o = pv_operands(v, rank, s);
            for (int j = 0; j < s->ndst + s->nsrc; j++) {
                int chunk;
                for (int i = 0; o[j].space != PLAN_LINK && i < s->of.count; i++)
                    visit(c, lane, &o[j],
                          cell_index(v, pv_owner(&o[j], rank), pv_local_space(&o[j]), s, &o[j], i,
                                     &chunk),
                          j < s->ndst);
            }
        }
    }
}

static enum kolo_status find_conflicts(struct race *c)
{
    const struct pv *v = c->v;
    c->cells = mem_calloc(v->ncells + 1, sizeof(*c->cells));
    c->component = mem_calloc((size_t)v->nlanes + 1, sizeof(*c->component));
    c->lane_of = mem_calloc((size_t)v->nlanes + 1, sizeof(*c->lane_of));
    if (c->cells == NULL || c->component == NULL || c->lane_of == NULL)
        return pv_no_memory(v);
    for (size_t i = 0; i < v->ncells; i++)
        c->cells[i].lane = NOBODY;
    visit_all(c, note_access);
    for (int lane = 0; lane < v->nlanes; lane++)
        c->component[lane] = -1;
    visit_all(c, note_lane);
    /* A barrier is proven by which ranks' entries a rank knows of: every lane counts. */
    for (int lane = 0; v->coll == KOLO_COLL_BARRIER && lane < v->nlanes; lane++) {
        c->component[lane] = lane;
        c->lane_of[lane] = lane;
        c->n = (size_t)v->nlanes;
    }
    return KOLO_OK;
}

/* ---- accesses ------------------------------------------------------------------------------ */

static bool is_before(const uint32_t *clock, struct stamp s)
{
    return s.when == 0 || clock[s.who] >= s.when;
}

struct access {
    int lane;
    uint32_t step;
    int owner;
    int space;
    int chunk;
    bool is_write;
};

static enum kolo_status report_race(const struct race *c, const struct access *a,
                                    struct stamp other, bool other_writes)
{
    const struct pv *v = c->v;
    const struct pv_lane *l = &v->lanes[c->lane_of[other.who]];
    const uint32_t time = other.when - 1;
    return pv_fail(
        v, a->lane, a->step % v->lanes[a->lane].nsteps,
        "race: %s chunk %d of %s of rank %d, which rank %d lane %d step %u %s %s; nothing "
        "orders the two",
        a->is_write ? "writes" : "reads", a->chunk, pv_space_name(a->space), a->owner, l->rank,
        l->index, time % l->nsteps, other_writes ? "writes" : "reads",
        a->step / v->lanes[a->lane].nsteps == time / l->nsteps ? "in the same round"
                                                               : "in the round before");
}

static bool grow(void **at, size_t n, size_t *room, size_t size)
{
    if (n < *room)
        return true;
    const size_t wanted = *room < 64 ? 64 : *room * 2;
    void *grown = mem_resize(*at, wanted, size);
    if (grown == NULL)
        return false;
    *at = grown;
    *room = wanted;
    return true;
}

static enum kolo_status note_read(struct race *c, struct cell *cell, struct stamp now)
{
    if (cell->reads != 0 && c->reads[cell->reads - 1].at.who == now.who) {
        c->reads[cell->reads - 1].at = now;
        return KOLO_OK;
    }
    void *reads = c->reads;
    if (c->nreads == UINT32_MAX || !grow(&reads, c->nreads, &c->reads_room, sizeof(*c->reads)))
        return pv_no_memory(c->v);
    c->reads = reads;
    c->reads[c->nreads] = (struct read){now, cell->reads};
    cell->reads = (uint32_t)++c->nreads;
    return KOLO_OK;
}

static enum kolo_status access_cell(struct race *c, const struct access *a, size_t at)
{
    struct cell *cell = &c->cells[at];
    const uint32_t *clock = c->clocks + (size_t)a->lane * c->n;
    const struct stamp now = {c->component[a->lane], a->step + 1};
    if (!is_conflict(cell))
        return KOLO_OK;
    if (!is_before(clock, cell->write))
        return report_race(c, a, cell->write, true);
    if (!a->is_write)
        return note_read(c, cell, now);
    for (uint32_t i = cell->reads; i != 0; i = c->reads[i - 1].next)
        if (!is_before(clock, c->reads[i - 1].at))
            return report_race(c, a, c->reads[i - 1].at, false);
    cell->reads = 0;
    cell->write = now;
    return KOLO_OK;
}

/* All accesses of one kind of a step; in later rounds only those of memory that is reused. */
static enum kolo_status access_all(struct race *c, int lane, const struct plan_step *s,
                                   bool is_write, bool is_later)
{
    const struct pv *v = c->v;
    const int rank = v->lanes[lane].rank;
    const struct plan_operand *o = pv_operands(v, rank, s) + (is_write ? 0 : s->ndst);
    const int n = is_write ? s->ndst : s->nsrc;
    for (int j = 0; j < n; j++) {
        if (o[j].space == PLAN_LINK || (is_later && o[j].space != PLAN_TMP))
            continue;
        struct access a = {lane, c->at[lane], pv_owner(&o[j], rank), pv_local_space(&o[j]),
                           0,    is_write};
        if (is_peers(&o[j])) {
            void *peers = c->peers;
            if (!grow(&peers, c->npeers, &c->peers_room, sizeof(*c->peers)))
                return pv_no_memory(v);
            c->peers = peers;
            c->peers[c->npeers++] = (struct peer_access){a.owner, {c->component[lane], a.step + 1}};
        }
        for (int i = 0; i < s->of.count; i++) {
            const size_t at = cell_index(v, a.owner, a.space, s, &o[j], i, &a.chunk);
            TRY(access_cell(c, &a, at));
        }
    }
    return KOLO_OK;
}

/* ---- the run ------------------------------------------------------------------------------- */

static void join(uint32_t *restrict to, const uint32_t *restrict from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = to[i] > from[i] ? to[i] : from[i];
}

static uint32_t *slot_of(const struct race *c, const struct pv_link *l, uint32_t message)
{
    return &c->slots[l->first_slot + message % l->nslots];
}

static enum kolo_status run_step(struct race *c, int lane, const struct plan_step *s, bool is_later)
{
    struct pv *v = c->v;
    uint32_t *clock = c->clocks + (size_t)lane * c->n;
    const int *links = pv_links_of(v, v->lanes[lane].rank, s);
    bool has_links = false;
    for (int i = 0; i < s->ndst + s->nsrc; i++) {
        if (links[i] < 0)
            continue;
        const struct pv_link *l = &v->links[links[i]];
        const uint32_t left = *slot_of(c, l, i < s->ndst ? l->sent : l->taken);
        if (left > 0)
            join(clock, c->left + (size_t)(left - 1) * c->n, c->n);
        has_links = true;
    }
    if (c->component[lane] >= 0)
        clock[c->component[lane]] = c->at[lane] + 1;
    TRY(access_all(c, lane, s, false, is_later));
    TRY(access_all(c, lane, s, true, is_later));
    c->at[lane]++;
    if (!has_links)
        return KOLO_OK;
    memcpy(c->left + (size_t)c->nleft++ * c->n, clock, c->n * sizeof(*clock));
    for (int i = 0; i < s->ndst + s->nsrc; i++) {
        if (links[i] < 0)
            continue;
        struct pv_link *l = &v->links[links[i]];
        *slot_of(c, l, i < s->ndst ? l->sent++ : l->taken++) = c->nleft;
    }
    return KOLO_OK;
}

static bool knows(const struct race *c, int rank, struct stamp s)
{
    for (int lane = c->v->first_lane[rank]; lane < c->v->first_lane[rank + 1]; lane++)
        if (is_before(c->clocks + (size_t)lane * c->n, s))
            return true;
    return false;
}

/* After its last step a rank leaves, and its buffers are the caller's again. */
static enum kolo_status check_leaving(const struct race *c)
{
    for (size_t i = 0; i < c->npeers; i++) {
        const struct peer_access *p = &c->peers[i];
        const int lane = c->lane_of[p->at.who];
        if (!knows(c, p->owner, p->at))
            return pv_fail(c->v, lane, p->at.when - 1,
                           "touches buffers of rank %d, which may have left: nothing makes it wait",
                           p->owner);
    }
    return KOLO_OK;
}

static bool has_met(const struct race *c, int rank, int other)
{
    const struct pv *v = c->v;
    for (int lane = v->first_lane[other]; lane < v->first_lane[other + 1]; lane++)
        if (knows(c, rank, (struct stamp){c->component[lane], 1}))
            return true;
    return false;
}

static enum kolo_status check_barrier(const struct race *c)
{
    const struct pv *v = c->v;
    for (int r = 0; v->coll == KOLO_COLL_BARRIER && r < v->n; r++)
        for (int k = 0; k < v->n; k++)
            if (k != r && !has_met(c, r, k))
                return pv_fail(v, -1, 0, "rank %d may leave the barrier before rank %d has entered",
                               r, k);
    return KOLO_OK;
}

static enum kolo_status run_rounds(struct race *c)
{
    const struct pv *v = c->v;
    for (int round = 0; round < (c->has_tmp ? 2 : 1); round++) {
        for (size_t i = 0; i < v->norder; i++) {
            const struct pv_lane *l = &v->lanes[v->order[i].lane];
            for (uint32_t k = 0; k < v->order[i].nsteps; k++) {
                const uint32_t step = c->at[v->order[i].lane] % l->nsteps;
                TRY(run_step(c, v->order[i].lane, &l->steps[step], round > 0));
            }
        }
        if (round == 0) {
            TRY(check_leaving(c));
            TRY(check_barrier(c));
        }
    }
    return KOLO_OK;
}

/* Slots of all links; over two rounds a link never needs more than it sends in them. */
static size_t place_slots(struct pv *v)
{
    size_t nslots = 0;
    for (int i = 0; i < v->nlinks; i++) {
        struct pv_link *l = &v->links[i];
        const uint64_t most = 2 * (uint64_t)l->nsent;
        l->sent = l->taken = 0;
        l->nslots = most < (uint64_t)v->slots ? (uint32_t)most : (uint32_t)v->slots;
        l->first_slot = nslots;
        nslots += l->nslots;
    }
    return nslots;
}

/* Clocks that are left in all rounds. */
static size_t count_left(const struct race *c)
{
    const struct pv *v = c->v;
    size_t n = 0;
    for (int lane = 0; lane < v->nlanes; lane++)
        for (uint32_t step = 0; step < v->lanes[lane].nsteps; step++) {
            const struct plan_step *s = &v->lanes[lane].steps[step];
            const int *links = pv_links_of(v, v->lanes[lane].rank, s);
            int i = 0;
            while (i < s->ndst + s->nsrc && links[i] < 0)
                i++;
            n += i < s->ndst + s->nsrc;
        }
    return c->has_tmp ? 2 * n : n;
}

static enum kolo_status run(struct race *c)
{
    struct pv *v = c->v;
    TRY(find_conflicts(c));
    if (c->n == 0)
        return check_barrier(c);
    const size_t nslots = place_slots(v), nleft = count_left(c);
    if (v->is_hashed && v->coll != KOLO_COLL_BARRIER &&
        c->n > HASHED_COMPONENTS / (nleft + (size_t)v->nlanes))
        return KOLO_OK;
    c->clocks = mem_calloc((size_t)v->nlanes, c->n * sizeof(*c->clocks));
    c->left = mem_calloc(nleft + 1, c->n * sizeof(*c->left));
    c->slots = mem_calloc(nslots + 1, sizeof(*c->slots));
    c->at = mem_calloc((size_t)v->nlanes, sizeof(*c->at));
    if (c->clocks == NULL || c->left == NULL || c->slots == NULL || c->at == NULL)
        return pv_no_memory(v);
    return run_rounds(c);
}

enum kolo_status pv_race(struct pv *v)
{
    struct race c = {.v = v};
    const enum kolo_status status = run(&c);
    mem_free(c.cells);
    mem_free(c.component);
    mem_free(c.lane_of);
    mem_free(c.clocks);
    mem_free(c.left);
    mem_free(c.slots);
    mem_free(c.at);
    mem_free(c.reads);
    mem_free(c.peers);
    return status;
}
