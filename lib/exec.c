/* exec.c - runs plans: resolves the operands of one move, checks that its links are ready and that
 * the peers mean the same operation, does the arithmetic, publishes.
 *
 *   job_progress -> lane by lane, one round each -> step_run -> reduce / copy -> link_commit
 *
 * Everything here is resumable: a step that cannot run yet leaves no trace. */
#include "engine.h"

#include <errno.h>
#include <string.h>

enum step_result { STEP_BLOCKED, STEP_DONE, STEP_FAILED };

/* ---- chunks ---- */

static inline size_t chunk_len(const struct layout *l, int c)
{
    if (l->counts)
        return l->counts[c];
    const size_t at = (size_t)c * l->block;
    return at >= l->total ? 0 : l->total - at < l->block ? l->total - at : l->block;
}

static inline size_t chunk_at(const struct layout *l, int c)
{
    return l->counts ? l->displs[c] : (size_t)c * l->block;
}

/* Elements of chunk c that belong to the round that starts at element `from` of each chunk. */
static inline size_t piece_len(const struct job *j, const struct layout *l, int c, size_t from)
{
    const size_t len = chunk_len(l, c);
    return len <= from ? 0 : len - from < j->piece ? len - from : j->piece;
}

static inline const struct layout *step_layout(const struct job *j, const struct plan_step *s)
{
    return &j->layout[s->of_space == PLAN_OUT];
}

static size_t span_len(const struct job *j, const struct plan_step *s, size_t from)
{
    const struct layout *l = step_layout(j, s);
    const int n = j->program->plan->nchunks[s->of_space];
    size_t len = 0;
    for (int i = 0; i < s->of.count; i++)
        len += piece_len(j, l, plan_span_at(&s->of, s->of.chunk, i, n), from);
    return len;
}

/* Address of `chunk` of an operand that is not a link, at the round that starts at `from`. */
static inline unsigned char *operand_at(const struct engine *e, const struct job *j,
                                        const struct plan_operand *o, int chunk, size_t from)
{
    switch (o->space) {
    case PLAN_IN:
        return j->base[PLAN_IN] + (chunk_at(&j->layout[0], chunk) + from) * j->type_bytes;
    case PLAN_OUT:
        return j->base[PLAN_OUT] + (chunk_at(&j->layout[1], chunk) + from) * j->type_bytes;
    case PLAN_TMP:
        return e->tmp + (size_t)chunk * j->tmp_stride;
    case PLAN_PEER_IN:
        return (unsigned char *)e->peer_in[o->peer] +
               (chunk_at(&j->layout[0], chunk) + from) * j->type_bytes;
    default:
        return (unsigned char *)e->peer_out[o->peer] +
               (chunk_at(&j->layout[1], chunk) + from) * j->type_bytes;
    }
}

/* Number of chunks in the row that an operand indexes (peers have the same rows). */
static inline int operand_row(const struct plan *p, const struct plan_operand *o)
{
    const int n = p->nchunks[o->space == PLAN_PEER_IN    ? PLAN_IN
                             : o->space == PLAN_PEER_OUT ? PLAN_OUT
                                                         : o->space];
    return n > 0 ? n : INT32_MAX;
}

/* ---- the move ---- */

/* The scaled contribution of a pre-multiplied sum, rounded to its type as it travels to the
 * peers, so that the result does not depend on who adds it up: tile by tile, then as any other
 * source. */
static void move_scaled(struct engine *e, const struct job *j, struct reduce_args *args,
                        int from_in)
{
    enum { TILE = 4096 };
    unsigned char tile[TILE] __attribute__((aligned(64)));
    void *const to_tile[1] = {tile};
    const size_t step = TILE / j->type_bytes, count = args->count;
    for (size_t at = 0; at < count; at += step) {
        const size_t len = count - at < step ? count - at : step;
        const struct reduce_args scale = {.dst = to_tile,
                                          .src = &e->src[from_in],
                                          .ndst = 1,
                                          .nsrc = 1,
                                          .count = len,
                                          .pre = j->pre,
                                          .pre_mask = 1};
        j->reduce(&scale);
        const void *const own = e->src[from_in];
        e->src[from_in] = tile;
        args->count = len;
        j->reduce(args);
        e->src[from_in] = own;
        for (int k = 0; k < args->nsrc; k++)
            e->src[k] = (const char *)e->src[k] + len * j->type_bytes;
        for (int k = 0; k < args->ndst; k++)
            e->dst[k] = (char *)e->dst[k] + len * j->type_bytes;
    }
}

/* Pointers stand in e->dst and e->src; `len` elements each.  from_in: the source that is this
 * rank's own input; -1 none. */
void move_local(struct engine *e, const struct job *j, const struct plan_step *s, int from_in,
                bool may_stream, size_t len)
{
    const bool is_avg = (s->flags & PLAN_FINAL) && j->post_div > 0;
    struct reduce_args args = {
        .dst = e->dst,
        .src = e->src,
        .ndst = s->ndst,
        .nsrc = s->nsrc,
        .count = len,
        .stream = j->stream && may_stream,
    };
    if (UNLIKELY(j->pre && from_in >= 0)) {
        move_scaled(e, j, &args, from_in);
        return;
    }
    if (s->nsrc == 1 && !is_avg) {
        args.count = len * j->type_bytes;
        if (s->ndst > 1 || e->dst[0] != e->src[0]) /* in place there is nothing to copy */
            e->reduce->copy(&args);
        return;
    }
    args.post_div = is_avg ? j->post_div : 0;
    j->reduce(&args);
}

/* A span that is one stretch of memory for every operand: all of the chunks, in one round, without
 * wrapping around. */
static bool is_contiguous(const struct plan *p, const struct job *j, const struct plan_step *s)
{
    if (s->of.count == 1)
        return true;
    if (s->of.run != s->of.count || j->rounds != 1 || j->is_v ||
        s->of.chunk + s->of.count > p->nchunks[s->of_space])
        return false;
    const struct plan_operand *o = &p->operands[s->first];
    for (int i = 0; i < s->ndst + s->nsrc; i++)
        if (o[i].space != PLAN_LINK && o[i].chunk + s->of.count > operand_row(p, &o[i]))
            return false;
    return true;
}

/* Fill in the pointers for the i-th chunk of the step's span (or all of it); link operands stand at
 * `packed` bytes into their message of `bytes`. */
static void resolve(struct engine *e, const struct job *j, const struct plan_step *s, int i,
                    size_t from, size_t packed, size_t bytes, int *from_in, bool *all_user)
{
    const struct plan *p = j->program->plan;
    const struct plan_operand *o = &p->operands[s->first];
    struct link *const *links = &j->program->links[s->first];
    const int n = s->ndst + s->nsrc;
    int in = -1;
    bool user = true;
    for (int k = 0; k < n; k++) {
        unsigned char *at;
        if (links[k]) {
            at = link_payload(links[k], bytes) + packed;
            user &= k >= s->ndst;
        } else {
            const int c =
                i == 0 ? o[k].chunk : plan_span_at(&s->of, o[k].chunk, i, operand_row(p, &o[k]));
            at = operand_at(e, j, &o[k], c, from);
            user &= k >= s->ndst || o[k].space != PLAN_TMP;
        }
        if (k < s->ndst) {
            e->dst[k] = at;
        } else {
            e->src[k - s->ndst] = at;
            if (o[k].space == PLAN_IN)
                in = k - s->ndst;
        }
    }
    *from_in = in;
    *all_user = user;
}

/* false: a peer's memory could not be reached; *status says so. */
static bool move(struct engine *e, const struct job *j, const struct plan_step *s, int from_in,
                 bool all_user, size_t len, enum kolo_status *status)
{
    if (LIKELY(!j->has_remote)) {
        move_local(e, j, s, from_in, all_user, len);
        return true;
    }
    int peer;
    const int error = move_remote(e, j, s, from_in, len, &peer);
    if (LIKELY(error == 0))
        return true;
    if (error == ECANCELED) { /* here or at the owner the operation has failed already */
        *status = check_failed(e);
        if (*status != KOLO_OK)
            return false;
    }
    fail(KOLO_ERR_PEER_LOST, "rank %d cannot reach the memory of rank %d (%s): %s", e->rank, peer,
         e->transport->ops->peer_name(e->transport, peer), strerror(error));
    *status = engine_break(e, KOLO_ERR_PEER_LOST);
    return false;
}

static bool move_span(struct engine *e, const struct job *j, const struct plan_step *s, size_t from,
                      size_t len, size_t bytes, enum kolo_status *status)
{
    int from_in;
    bool all_user;
    if (is_contiguous(j->program->plan, j, s)) {
        resolve(e, j, s, 0, from, 0, bytes, &from_in, &all_user);
        return move(e, j, s, from_in, all_user, len, status);
    }
    const struct layout *l = step_layout(j, s);
    const int n = j->program->plan->nchunks[s->of_space];
    size_t packed = 0;
    for (int i = 0; i < s->of.count; i++) {
        const size_t part = piece_len(j, l, plan_span_at(&s->of, s->of.chunk, i, n), from);
        if (part == 0)
            continue;
        resolve(e, j, s, i, from, packed, bytes, &from_in, &all_user);
        if (!move(e, j, s, from_in, all_user, part, status))
            return false;
        packed += part * j->type_bytes;
    }
    return true;
}

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

__attribute__((cold, noinline)) enum kolo_status job_mismatch(struct engine *e, struct job *j,
                                                              const struct link *l, size_t bytes)
{
    struct call other;
    if (l->channel != LINK_CHANNEL_P2P && board_find(e->boards[l->peer], j->seq, &other) &&
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

static enum step_result step_run(struct engine *e, struct job *j, struct lane_state *lane,
                                 enum kolo_status *status)
{
    const struct plan_step *s = lane->at;
    struct link *const *links = &j->program->links[s->first];
    const size_t from = (size_t)lane->round * j->piece;
    const int n = s->ndst + s->nsrc;
    uint32_t signature = j->signature;
    size_t len = 0;

    if (s->of.count == 1) {
        const struct layout *l = step_layout(j, s);
        if (j->is_v) {
            const size_t whole = chunk_len(l, s->of.chunk);
            if (lane->round > 0 && from >= whole)
                return STEP_DONE; /* this chunk has fewer rounds: neither side sends or receives */
            if (j->signs_length)
                signature += length_signature(whole);
        }
        len = piece_len(j, l, s->of.chunk, from);
    } else if (s->of.count > 1) {
        len = span_len(j, s, from);
    }
    const size_t bytes = len * j->type_bytes;

    /* Sources first: they are what is usually waited for. */
    for (int k = s->ndst; k < n; k++) {
        if (links[k] && !link_arrived(links[k])) {
            lane->blocked = links[k];
            lane->blocked_on_credit = false;
            return STEP_BLOCKED;
        }
    }
    for (int k = 0; k < s->ndst; k++) {
        if (links[k] && !link_has_room(links[k], bytes)) {
            lane->blocked = links[k];
            lane->blocked_on_credit = true;
            return STEP_BLOCKED;
        }
    }
    for (int k = s->ndst; k < n; k++) {
        if (!links[k])
            continue;
        const struct link_cell *cell = link_cell_at(links[k]);
        if (UNLIKELY(cell->signature != signature || cell->bytes != bytes)) {
            *status = job_mismatch(e, j, links[k], bytes);
            return STEP_FAILED;
        }
    }
    if (len > 0 && s->ndst > 0 && !move_span(e, j, s, from, len, bytes, status))
        return STEP_FAILED;
    for (int k = 0; k < s->ndst; k++)
        if (links[k])
            link_commit(links[k], signature, bytes, 0);
    for (int k = s->ndst; k < n; k++)
        if (links[k])
            link_consume(links[k]);
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
            moved |= announce_send(e, j);
        if (j->phase == JOB_ANNOUNCE_RECEIVE)
            moved |= announce_receive(e, j, status);
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

void job_start(struct engine *e, struct job *j)
{
    const bool is_p2p = coll_is_p2p(j->call.coll);
    j->seq = is_p2p ? 0 : e->seq++;
    j->began_ns = 0;
    j->signature = call_signature(&j->call, j->seq);
    if (!is_p2p)
        board_publish(e->board, j->seq, &j->call);
    job_record(e, j, RECORD_START, KOLO_OK);
    e->counters.operations[j->call.coll]++;
    e->counters.bytes[j->call.coll] += job_bytes(j);

    /* What is skipped was decided by all ranks alike, and is counted alike. */
    j->way_taken = WAY_NONE;
    j->way = j->fallback ? way_find(e, j) : NULL;
    if (j->fallback && e->window_skip > 0) {
        e->window_skip--;
        j->program = j->fallback;
    } else if (j->way && way_skips(j->way)) {
        j->program = j->fallback;
    }
    if (j->program->window_needs) {
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
