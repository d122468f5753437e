/* plan_verify_run.c - pairs the links and runs all lanes as far as they get: an order in which all
 * steps can run, or a deadlock.
 *
 * One order decides for all interleavings: a link has one producing and one consuming lane, so a
 * step that can run stays able to until its lane runs it; all maximal runs do the same steps.
 * One round decides for all rounds: a link carries equally many messages per round at both ends, so
 * no edge (lane order, message, credit) leads from a later round to an earlier one; a cycle lies
 * within one round, and rounds are translations of each other.  By the same argument accesses of
 * rounds t and t + 1 are ordered as those of rounds 0 and 1 are, and that orders t and t + 2:
 * plan_verify_race.c looks at two rounds, and plan_verify_value.c, right if there is no race, at
 * one. */
#include "plan_verify.h"

#include "mem.h"

#include <string.h>

/* ---- pairing the links --------------------------------------------------------------------- */

struct link_index {
    int *at; /* 1 + index into pv->links, 0: free; open addressing */
    size_t mask;
};

static size_t hash_link(int src, int dst, int channel)
{
    uint64_t h = ((uint64_t)(uint32_t)src << 32 | (uint32_t)dst) * 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 29 ^ (uint64_t)(unsigned)channel) * 0xbf58476d1ce4e5b9u;
    return (size_t)(h ^ h >> 32);
}

static enum kolo_status find_link(struct pv *v, struct link_index *index, int src, int dst,
                                  int channel, int *out)
{
    size_t i = hash_link(src, dst, channel) & index->mask;
    for (; index->at[i] != 0; i = (i + 1) & index->mask) {
        const struct pv_link *l = &v->links[index->at[i] - 1];
        if (l->src == src && l->dst == dst && l->channel == channel) {
            *out = index->at[i] - 1;
            return KOLO_OK;
        }
    }
    if (v->nlinks == v->links_room) {
        const int room = v->links_room < 64 ? 64 : v->links_room * 2;
        struct pv_link *links = mem_resize(v->links, (size_t)room, sizeof(*links));
        if (links == NULL)
            return pv_no_memory(v);
        v->links = links;
        v->links_room = room;
    }
    v->links[v->nlinks] =
        (struct pv_link){.src = src, .dst = dst, .channel = channel, .from = -1, .to = -1};
    *out = v->nlinks++;
    index->at[i] = v->nlinks;
    return KOLO_OK;
}

static enum kolo_status note_use(struct pv *v, struct pv_link *l, int lane, uint32_t step,
                                 bool is_send)
{
    int *const end = is_send ? &l->from : &l->to;
    const int peer = is_send ? l->dst : l->src;
    uint32_t *const last = is_send ? &l->last_send : &l->last_receive;
    const uint32_t id = v->lanes[lane].first_step + step + 1;
    const char *const verb = is_send ? "sends to" : "receives from";
    if (*end >= 0 && *end != lane)
        return pv_fail(v, lane, step, "%s rank %d on channel %d, as lane %d does", verb, peer,
                       l->channel, v->lanes[*end].index);
    if (*last == id)
        return pv_fail(v, lane, step, "%s rank %d on channel %d twice in one move", verb, peer,
                       l->channel);
    *end = lane;
    *last = id;
    if (is_send)
        l->nsent++;
    else
        l->nreceived++;
    const int count = v->lanes[lane].steps[step].of.count;
    if (is_send && count > l->span)
        l->span = count;
    return KOLO_OK;
}

static enum kolo_status note_links(struct pv *v, struct link_index *index)
{
    for (int lane = 0; lane < v->nlanes; lane++) {
        const struct pv_lane *l = &v->lanes[lane];
        for (uint32_t step = 0; step < l->nsteps; step++) {
            const struct plan_step *s = &l->steps[step];
            const struct plan_operand *o = pv_operands(v, l->rank, s);
            int *const link_of = v->link_of + v->first_operand[l->rank] + s->first;
            for (int i = 0; i < s->ndst + s->nsrc; i++) {
                const bool is_send = i < s->ndst;
                link_of[i] = -1;
                if (o[i].space != PLAN_LINK)
                    continue;
                TRY(find_link(v, index, is_send ? l->rank : o[i].peer,
                              is_send ? o[i].peer : l->rank, o[i].channel, &link_of[i]));
                TRY(note_use(v, &v->links[link_of[i]], lane, step, is_send));
            }
        }
    }
    return KOLO_OK;
}

static enum kolo_status pair_links(struct pv *v)
{
    size_t nuses = 0, room = 64;
    for (int r = 0; r < v->n; r++)
        for (int i = 0; i < v->plans[r]->noperands; i++)
            nuses += v->plans[r]->operands[i].space == PLAN_LINK;
    while (room < nuses * 2)
        room *= 2;
    struct link_index index = {mem_calloc(room, sizeof(int)), room - 1};
    if (index.at == NULL || nuses > INT32_MAX / 2) {
        mem_free(index.at);
        return pv_no_memory(v);
    }
    const enum kolo_status status = note_links(v, &index);
    mem_free(index.at);
    TRY(status);
    for (int i = 0; i < v->nlinks; i++) {
        const struct pv_link *l = &v->links[i];
        if (l->nsent != l->nreceived)
            return pv_fail(v, -1, 0,
                           "rank %d sends %u messages to rank %d on channel %d per round, which "
                           "receives %u",
                           l->src, l->nsent, l->dst, l->channel, l->nreceived);
    }
    return KOLO_OK;
}

/* ---- the order of steps, or the deadlock --------------------------------------------------- */

struct scheduler {
    uint32_t *at;   /* next step of each lane */
    int *waits_for; /* the link that each lane waits for; -1: none */
    int *queue;     /* ring of nlanes + 1: lanes that may be able to run, each at most once */
    size_t head;
    size_t tail;
    size_t room; /* of v->order */
};

static void enqueue(const struct pv *v, struct scheduler *s, int lane)
{
    s->waits_for[lane] = -1;
    s->queue[s->tail] = lane;
    s->tail = s->tail == (size_t)v->nlanes ? 0 : s->tail + 1;
}

/* The first link that keeps the step from running; -1: none. */
static int blocking_link(const struct pv *v, int lane, const struct plan_step *s)
{
    const int *links = pv_links_of(v, v->lanes[lane].rank, s);
    for (int i = 0; i < s->ndst + s->nsrc; i++) {
        if (links[i] < 0)
            continue;
        const struct pv_link *l = &v->links[links[i]];
        const bool is_ready =
            i < s->ndst ? l->sent - l->taken < (uint32_t)v->slots : l->sent != l->taken;
        if (!is_ready)
            return links[i];
    }
    return -1;
}

/* Count the messages of a step that runs, and wake who waits for them. */
static void pass_messages(struct pv *v, struct scheduler *sched, int lane,
                          const struct plan_step *s)
{
    const int *links = pv_links_of(v, v->lanes[lane].rank, s);
    for (int i = 0; i < s->ndst + s->nsrc; i++) {
        if (links[i] < 0)
            continue;
        struct pv_link *l = &v->links[links[i]];
        if (i < s->ndst)
            l->sent++;
        else
            l->taken++;
        const int other = i < s->ndst ? l->to : l->from;
        if (sched->waits_for[other] == links[i])
            enqueue(v, sched, other);
    }
}

static enum kolo_status note_stretch(struct pv *v, struct scheduler *s, int lane, uint32_t nsteps)
{
    if (nsteps == 0)
        return KOLO_OK;
    if (v->norder == s->room) {
        const size_t room = s->room < 64 ? 64 : s->room * 2;
        struct pv_stretch *order = mem_resize(v->order, room, sizeof(*order));
        if (order == NULL)
            return pv_no_memory(v);
        v->order = order;
        s->room = room;
    }
    v->order[v->norder++] = (struct pv_stretch){lane, nsteps};
    return KOLO_OK;
}

/* Each blocked lane waits for a link whose other end is blocked too: follow them into the cycle. */
static enum kolo_status report_deadlock(const struct pv *v, const struct scheduler *s, int lane)
{
    for (int i = 0; i < v->nlanes; i++) {
        const struct pv_link *l = &v->links[s->waits_for[lane]];
        lane = lane == l->to ? l->from : l->to;
    }
    const struct pv_link *l = &v->links[s->waits_for[lane]];
    const bool is_receiver = lane == l->to;
    const int other = is_receiver ? l->from : l->to;
    const int peer = is_receiver ? l->src : l->dst;
    return pv_fail(v, lane, s->at[lane],
                   "deadlock: waits for %s rank %d on channel %d, whose lane %d is stuck at step "
                   "%u (links of %d slots)",
                   is_receiver ? "a message from" : "a credit (free slot) to", peer, l->channel,
                   v->lanes[other].index, s->at[other], v->slots);
}

static enum kolo_status run_lanes(struct pv *v, struct scheduler *s)
{
    for (int lane = 0; lane < v->nlanes; lane++)
        enqueue(v, s, lane);
    while (s->head != s->tail) {
        const int lane = s->queue[s->head];
        s->head = s->head == (size_t)v->nlanes ? 0 : s->head + 1;
        const struct pv_lane *l = &v->lanes[lane];
        const uint32_t start = s->at[lane];
        for (; s->at[lane] < l->nsteps; s->at[lane]++) {
            const struct plan_step *step = &l->steps[s->at[lane]];
            s->waits_for[lane] = blocking_link(v, lane, step);
            if (s->waits_for[lane] >= 0)
                break;
            pass_messages(v, s, lane, step);
        }
        TRY(note_stretch(v, s, lane, s->at[lane] - start));
    }
    for (int lane = 0; lane < v->nlanes; lane++)
        if (s->at[lane] < v->lanes[lane].nsteps)
            return report_deadlock(v, s, lane);
    return KOLO_OK;
}

enum kolo_status pv_schedule(struct pv *v)
{
    TRY(pair_links(v));
    const size_t n = (size_t)v->nlanes;
    struct scheduler s = {
        .at = mem_calloc(n + 1, sizeof(*s.at)),
        .waits_for = mem_calloc(n + 1, sizeof(*s.waits_for)),
        .queue = mem_calloc(n + 1, sizeof(*s.queue)),
    };
    enum kolo_status status = KOLO_OK;
    if (s.at == NULL || s.waits_for == NULL || s.queue == NULL)
        status = pv_no_memory(v);
    else
        status = run_lanes(v, &s);
    mem_free(s.at);
    mem_free(s.waits_for);
    mem_free(s.queue);
    return status;
}
