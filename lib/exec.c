/* exec.c - runs plans: checks that the links of a step are ready and that the peers mean the same
 * operation, has its data moved, publishes.
 *
 *   job_progress -> lane by lane, one round each -> step_run -> step_move (exec_move.c)
 *                                                           -> link_commit, link_consume
 *
 * Everything here is resumable: a step that cannot run yet leaves no trace. */
#include "engine.h"

#include <sched.h>

enum step_result { STEP_BLOCKED, STEP_DONE, STEP_FAILED };

/* ---- checking what the peer means ---- */

static uint32_t length_signature(size_t len)
{
    const uint64_t h = ((uint64_t)len + 1) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> 32);
}

__attribute__((cold, noinline)) enum kolo_status job_differs(struct engine *e, const struct job *j,
                                                             int peer, const struct call *other)
{
    char mine[160], theirs[160];
    call_text(&j->call, j->seq, mine, sizeof mine);
    call_text(other, j->seq, theirs, sizeof theirs);
    fail(KOLO_ERR_MISMATCH,
         "rank %d calls %s, but rank %d (%s) calls %s: all ranks must make the same calls "
         "in the same order",
         e->rank, mine, peer, e->transport->ops->peer_name(e->transport, peer), theirs);
    return engine_break(e, KOLO_ERR_MISMATCH);
}

/* A rank shows a call just after its first messages. */
static bool board_await(const struct engine *e, int peer, uint64_t seq, struct call *out)
{
    enum { PATIENCE_NS = 10000000 };
    const uint64_t end = now_ns() + PATIENCE_NS;
    while (!board_find(e->boards[peer], seq, out)) {
        if (now_ns() > end)
            return false;
        sched_yield();
    }
    return true;
}

__attribute__((cold, noinline)) enum kolo_status job_mismatch(struct engine *e, struct job *j,
                                                              const struct link *l, size_t bytes)
{
    struct call other;
    if (l->channel != LINK_CHANNEL_P2P && board_await(e, l->peer, j->seq, &other) &&
        !call_matches(&other, &j->call))
        return job_differs(e, j, l->peer, &other);
    char mine[160];
    call_text(&j->call, j->seq, mine, sizeof mine);
    fail(KOLO_ERR_MISMATCH,
         "rank %d calls %s, but the message from rank %d (%s) belongs to another call, or its "
         "count differs (%u bytes arrived, %zu expected): all ranks must make the same calls in "
         "the same order",
         e->rank, mine, l->peer, e->transport->ops->peer_name(e->transport, l->peer),
         link_cell_at(l)->bytes, bytes);
    return engine_break(e, KOLO_ERR_MISMATCH);
}

/* ---- one step ---- */

static bool sources_arrived(struct lane_state *lane, struct link *const *links, int first, int n)
{
    for (int k = first; k < n; k++) {
        if (links[k] && !link_arrived(links[k])) {
            lane->blocked = links[k];
            lane->wanted = 0;
            return false;
        }
    }
    return true;
}

static bool destinations_have_room(struct lane_state *lane, struct link *const *links, int n,
                                   size_t bytes, bool is_shout, struct ring_use use)
{
    const uint64_t depth = is_shout ? outbox_entries(outbox_kind(bytes)) : LINK_CELLS;
    for (int k = 0; k < n; k++) {
        if (links[k] && !link_has_room(links[k], depth, is_shout ? 0 : bytes, use)) {
            lane->blocked = links[k];
            lane->wanted = links[k]->hold;
            return false;
        }
    }
    return true;
}

static bool messages_match(const struct plan_step *s, struct link *const *links, uint32_t signature,
                           size_t bytes, struct link **odd)
{
    for (int k = s->ndst; k < s->ndst + s->nsrc; k++) {
        if (!links[k])
            continue;
        const struct link_cell *cell = link_cell_at(links[k]);
        if (UNLIKELY(cell->signature != signature || cell->bytes != bytes ||
                     (cell->detail & CELL_KIND) == CELL_ANNOUNCE)) {
            *odd = links[k];
            return false;
        }
    }
    return true;
}

static enum step_result step_run(struct engine *e, struct job *j, struct lane_state *lane,
                                 enum kolo_status *status)
{
    const struct plan_step *s = lane->at;
    const int64_t number = s - j->program->plan->steps;
    const struct ready_step *r = &j->ready[number];
    struct link *const *links = &j->program->links[s->first];
    const size_t from = (size_t)lane->round * j->piece;
    const int n = s->ndst + s->nsrc;
    uint32_t signature = j->signature;
    size_t len;

    if (LIKELY(r->is_simple)) {
        len = r->len <= from ? 0 : r->len - from < r->most ? r->len - from : r->most;
        if (UNLIKELY(j->is_v && s->of.count == 1)) {
            if (lane->round > 0 && len == 0)
                return STEP_DONE; /* this chunk has fewer rounds: neither side sends or receives */
            if (j->signs_length)
                signature += length_signature(r->len);
        }
    } else {
        len = j->fused ? r->len : step_len(j, s, from);
    }
    const size_t bytes = len * j->type_bytes;
    const uint8_t shout = bytes > CELL_INLINE ? j->program->shouts[number] : 0;
    struct link *odd;

    /* Sources first: they are what is usually waited for. */
    if (!sources_arrived(lane, links, s->ndst, n) ||
        !destinations_have_room(lane, links, s->ndst, bytes, shout != 0, j->ring))
        return STEP_BLOCKED;
    if (UNLIKELY(!messages_match(s, links, signature, bytes, &odd))) {
        *status = job_mismatch(e, j, odd, bytes);
        return STEP_FAILED;
    }
    unsigned char *shared = NULL;
    uint32_t detail = CELL_DATA;
    if (shout) {
        /* The entry is free when every link has fewer messages in flight than there are entries:
         * each message to all is one on each of them. */
        struct outbox *box = &e->outboxes[shout - 1];
        const enum outbox_kind kind = outbox_kind(bytes);
        const uint64_t index = box->used[kind]++ & (outbox_entries(kind) - 1);
        shared = box->at + outbox_at(index, kind, e->slot_bytes);
        detail = CELL_SHARED | (uint32_t)index << CELL_INDEX_BIT;
    }
    if (len > 0 && s->ndst > 0 && !step_move(e, j, s, r, from, len, shared, status))
        return STEP_FAILED;
    for (int k = 0; k < s->ndst; k++)
        if (links[k])
            link_commit(links[k], signature, bytes, detail);
    for (int k = s->ndst; k < n; k++) {
        if (!links[k])
            continue;
        if (UNLIKELY(link_is_probed(links[k], bytes)))
            far_learn(e, links[k]);
        link_consume(links[k]);
    }
    return STEP_DONE;
}

/* ---- lanes and jobs ---- */

static void lanes_start(struct job *j)
{
    const struct plan *p = j->program->plan;
    j->nlanes = j->lanes_left = p->nlanes;
    for (int i = 0; i < p->nlanes; i++) {
        struct lane_state *lane = &j->lanes[i];
        lane->begin = lane->at = p->steps + p->lanes[i].first;
        lane->end = lane->begin + p->lanes[i].nsteps;
        lane->round = 0;
        lane->blocked = NULL;
        lane->is_done = lane->begin == lane->end;
        j->lanes_left -= lane->is_done;
    }
}

/* At most one round of a lane, so that lanes interleave and pieces stay in cache. */
static bool lane_advance(struct engine *e, struct job *j, struct lane_state *lane,
                         enum kolo_status *status)
{
    bool moved = false;
    while (lane->at < lane->end) {
        const enum step_result r = step_run(e, j, lane, status);
        if (r != STEP_DONE)
            return moved;
        moved = true;
        lane->at++;
    }
    if (++lane->round == j->rounds) {
        lane->is_done = true;
        j->lanes_left--;
    } else {
        lane->at = lane->begin;
    }
    return true;
}

bool job_progress(struct engine *e, struct job *j, enum kolo_status *status)
{
    bool moved = false;
    if (UNLIKELY(j->phase != JOB_RUN)) {
        if (j->phase == JOB_ANNOUNCE_SEND)
            moved |= j->fused ? fused_send(e, j) : announce_send(e, j);
        if (j->phase == JOB_ANNOUNCE_RECEIVE)
            moved |= j->fused ? fused_receive(e, j, status) : announce_receive(e, j, status);
        if (j->phase != JOB_RUN || *status != KOLO_OK)
            return moved;
        job_shape(e, j);
        lanes_start(j);
    }
    for (int i = 0; i < j->nlanes; i++) {
        if (j->lanes[i].is_done)
            continue;
        moved |= lane_advance(e, j, &j->lanes[i], status);
        if (UNLIKELY(*status != KOLO_OK))
            return moved;
    }
    if (j->lanes_left == 0) {
        j->phase = JOB_DONE;
        if (j->way_taken != WAY_NONE)
            way_learn(j->way, j->way_taken, now_ns() - j->way_began_ns);
    }
    return moved;
}

void job_show(struct engine *e, struct job *j)
{
    if (!coll_is_p2p(j->call.coll))
        board_publish(e->board, j->seq, &j->call);
    j->recorded = e->record.next;
    const uint64_t ticks = record_ticks();
    const int nops = UNLIKELY(j->fused != NULL) ? j->fused->nops : 1;
    for (int i = 0; i < nops; i++)
        *record_add(&e->record) = (struct record_event){
            .ticks = ticks,
            .bytes = j->fused ? j->fused->op_bytes[i] : job_bytes(j),
            .seq = (uint32_t)(j->seq + (uint64_t)i),
            .root = j->fused ? 0 : j->call.root,
            .kind = RECORD_RUNNING,
            .coll = (uint8_t)j->call.coll,
            .type = (uint8_t)j->call.type,
            .op = (uint8_t)j->call.op,
        };
    if (j->fused)
        return; /* counted once it is sure that they run */
    e->counters.operations[j->call.coll]++;
    e->counters.bytes[j->call.coll] += job_bytes(j);
}

/* Which of its two programs a job takes.  What is skipped was decided by all ranks alike, and is
 * counted alike. */
static void choose_program(struct engine *e, struct job *j)
{
    j->way = way_find(e, j);
    if (e->window_skip > 0) {
        e->window_skip--;
        j->program = j->fallback;
    } else if (j->way && way_skips(j->way)) {
        j->program = j->fallback;
    }
}

void job_start(struct engine *e, struct job *j)
{
    if (coll_is_p2p(j->call.coll)) {
        j->seq = 0;
    } else {
        j->seq = e->seq;
        e->seq += j->fused ? (uint64_t)j->fused->nops : 1;
    }
    j->began_ns = 0;
    j->signature = call_signature(j->hash, j->seq);
    j->way_taken = WAY_NONE;
    j->way = NULL;
    if (j->fallback)
        choose_program(e, j);
    if (j->program->window_needs || j->fused) {
        j->phase = JOB_ANNOUNCE_SEND;
        j->announced = 0;
        return;
    }
    j->phase = JOB_RUN;
    j->has_remote = false;
    job_shape(e, j);
    lanes_start(j);
    if (j->lanes_left == 0)
        j->phase = JOB_DONE;
}
