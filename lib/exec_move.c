/* exec_move.c - the data of a step: where its chunks lie, how long they are, and the arithmetic.
 *
 *   step_move -> pointers -> move_local, or move_remote for memory of other processes
 *
 * Most steps are about one stretch of memory per operand.  Where it starts and how long it is
 * depends on the shape of the job alone: job_make_ready writes it down once.  The others, which
 * gather several chunks into a message, are resolved chunk by chunk. */
#include "engine.h"

#include <errno.h>
#include <string.h>

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

size_t step_len(const struct job *j, const struct plan_step *s, size_t from)
{
    const struct layout *l = step_layout(j, s);
    const int n = j->program->plan->nchunks[s->of_space];
    size_t len = 0;
    for (int i = 0; i < s->of.count; i++)
        len += piece_len(j, l, plan_span_at(&s->of, s->of.chunk, i, n), from);
    return len;
}

/* Where the address of the buffer is kept that an operand lies in, unless it is a link. */
static inline unsigned char **operand_base(struct engine *e, struct job *j,
                                           const struct plan_operand *o)
{
    switch (o->space) {
    case PLAN_IN:
    case PLAN_OUT:
        return &j->base[o->space];
    case PLAN_TMP:
        return &e->tmp;
    case PLAN_PEER_IN:
        return &e->peer_in[o->peer];
    default:
        return &e->peer_out[o->peer];
    }
}

/* Bytes from there to `chunk`, in the round that starts at element `from` of each chunk. */
static inline size_t operand_offset(const struct job *j, const struct plan_operand *o, int chunk,
                                    size_t from)
{
    if (o->space == PLAN_TMP)
        return (size_t)chunk * j->tmp_stride;
    const bool is_out = o->space == PLAN_OUT || o->space == PLAN_PEER_OUT;
    return (chunk_at(&j->layout[is_out], chunk) + from) * j->type_bytes;
}

/* Address of `chunk` of an operand, in that round.  Buffers of a fused job lie anywhere, and
 * differently on each rank. */
static inline unsigned char *operand_at(struct engine *e, struct job *j,
                                        const struct plan_operand *o, int chunk, size_t from)
{
    const struct fused *f = j->fused;
    if (LIKELY(!f) || o->space < PLAN_PEER_IN)
        return *operand_base(e, j, o) + operand_offset(j, o, chunk, from);
    void *const *row = f->peer_at[o->space == PLAN_PEER_OUT];
    return (unsigned char *)row[fused_index(f, o->peer, f->chunk_op[chunk])] + f->chunk_from[chunk];
}

/* Number of chunks in the row that an operand indexes (peers have the same rows). */
static inline int operand_row(const struct plan *p, const struct plan_operand *o)
{
    const int n = p->nchunks[o->space == PLAN_PEER_IN    ? PLAN_IN
                             : o->space == PLAN_PEER_OUT ? PLAN_OUT
                                                         : o->space];
    return n > 0 ? n : INT32_MAX;
}

/* A span that is one stretch of memory for every operand: all of the chunks, in one round, without
 * wrapping around. */
static bool is_contiguous(const struct plan *p, const struct job *j, const struct plan_step *s)
{
    if (s->of.count <= 1)
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

static void operand_make_ready(struct engine *e, struct job *j, const struct plan_operand *o,
                               struct ready_operand *out)
{
    if (o->space == PLAN_LINK)
        return;
    out->base = operand_base(e, j, o);
    out->offset = operand_offset(j, o, o->chunk, 0);
    out->per_element = o->space == PLAN_TMP ? 0 : j->type_bytes;
}

void job_make_ready(struct engine *e, struct job *j)
{
    const struct plan *p = j->program->plan;
    for (int i = 0; i < p->nsteps; i++) {
        const struct plan_step *s = &p->steps[i];
        const struct plan_operand *o = &p->operands[s->first];
        struct ready_step *r = &j->ready[i];
        *r = (struct ready_step){.is_simple = is_contiguous(p, j, s), .move.from_in = -1};
        if (!r->is_simple || s->of.count == 0)
            continue;
        r->most = s->of.count == 1 ? j->piece : SIZE_MAX;
        r->len = s->of.count == 1 ? chunk_len(step_layout(j, s), s->of.chunk) : step_len(j, s, 0);
        r->move.ndst = s->ndst;
        r->move.nsrc = s->nsrc;
        r->move.is_final = s->flags & PLAN_FINAL;
        r->move.may_stream = true;
        for (int k = 0; k < s->ndst + s->nsrc; k++) {
            operand_make_ready(e, j, &o[k], &j->ready_operands[s->first + (uint32_t)k]);
            if (k < s->ndst)
                r->move.may_stream &= o[k].space != PLAN_LINK && o[k].space != PLAN_TMP;
            else if (o[k].space == PLAN_IN)
                r->move.from_in = k - s->ndst;
        }
    }
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

enum { FEW_BYTES = 64 };

/* n <= FEW_BYTES: pieces that overlap, whose sources are all read before anything is written. */
static inline void copy_few(unsigned char *to, const unsigned char *from, size_t n)
{
    if (n >= 16) {
        unsigned char a[16], b[16], c[16], d[16];
        const size_t half = n > 32 ? 16 : 0;
        memcpy(a, from, 16);
        memcpy(b, from + half, 16);
        memcpy(c, from + n - 16 - half, 16);
        memcpy(d, from + n - 16, 16);
        memcpy(to, a, 16);
        memcpy(to + half, b, 16);
        memcpy(to + n - 16 - half, c, 16);
        memcpy(to + n - 16, d, 16);
    } else if (n >= 8) {
        uint64_t a, b;
        memcpy(&a, from, 8);
        memcpy(&b, from + n - 8, 8);
        memcpy(to, &a, 8);
        memcpy(to + n - 8, &b, 8);
    } else if (n >= 4) {
        uint32_t a, b;
        memcpy(&a, from, 4);
        memcpy(&b, from + n - 4, 4);
        memcpy(to, &a, 4);
        memcpy(to + n - 4, &b, 4);
    } else {
        for (size_t i = 0; i < n; i++)
            to[i] = from[i];
    }
}

/* The copies of a move that computes nothing. */
static void copy_local(struct engine *e, const struct move *m, size_t bytes, uint64_t stream)
{
    if (bytes <= FEW_BYTES) {
        for (int k = 0; k < m->ndst; k++)
            if (e->dst[k] != e->src[0])
                copy_few(e->dst[k], e->src[0], bytes);
    } else if (m->ndst > 1 || e->dst[0] != e->src[0]) { /* in place there is nothing to copy */
        const struct reduce_args args = {.dst = e->dst,
                                         .src = e->src,
                                         .ndst = m->ndst,
                                         .nsrc = 1,
                                         .count = bytes,
                                         .stream = stream};
        e->reduce->copy(&args);
    }
}

void move_local(struct engine *e, const struct job *j, const struct move *m, size_t len)
{
    const bool is_avg = m->is_final && j->post_div > 0;
    const bool scales = j->pre && m->from_in >= 0;
    const uint64_t stream = j->stream && m->may_stream ? REDUCE_STREAM_ALL : m->stream;
    if (m->nsrc == 1 && !is_avg && !scales) {
        copy_local(e, m, len * j->type_bytes, stream);
        return;
    }
    struct reduce_args args = {
        .dst = e->dst,
        .src = e->src,
        .ndst = m->ndst,
        .nsrc = m->nsrc,
        .count = len,
        .stream = stream,
    };
    if (UNLIKELY(scales)) {
        move_scaled(e, j, &args, m->from_in);
        return;
    }
    args.post_div = is_avg ? j->post_div : 0;
    j->reduce(&args);
}

/* For reduce_args.stream: destination `dst` of the move is the payload of a message of `bytes` on
 * link k, or is shared by all links of the step. */
static inline uint64_t stream_bit(const struct plan_step *s, struct link *const *links, int k,
                                  bool is_shared, size_t bytes, int dst)
{
    const bool streams =
        is_shared ? far_are_most(links, s->ndst) : links[k]->is_far && bytes > FAR_BYTES;
    return (uint64_t)streams << (dst % REDUCE_STREAMS);
}

/* A step that is one stretch for every operand, in the round that starts at element `from`;
 * `shared` is where its message is written once for all link destinations. */
static void find_simple(struct engine *e, const struct job *j, const struct plan_step *s,
                        size_t from, size_t bytes, unsigned char *shared, struct move *m)
{
    struct link *const *links = &j->program->links[s->first];
    const struct ready_operand *o = &j->ready_operands[s->first];
    bool told = false;
    int n = 0;
    for (int k = 0; k < s->ndst; k++) {
        if (!links[k]) {
            e->dst[n++] = *o[k].base + o[k].offset + from * o[k].per_element;
        } else if (!shared) {
            m->stream |= stream_bit(s, links, k, false, bytes, n);
            e->dst[n++] = link_payload(links[k], bytes);
        } else if (!told) {
            m->stream |= stream_bit(s, links, k, true, bytes, n);
            e->dst[n++] = shared;
        }
        told |= links[k] != NULL;
    }
    m->ndst = n;
    links += s->ndst;
    o += s->ndst;
    for (int k = 0; k < s->nsrc; k++)
        e->src[k] = links[k] ? link_arrival(links[k], bytes)
                             : *o[k].base + o[k].offset + from * o[k].per_element;
}

/* The i-th chunk of a step's span; it stands `packed` bytes into its message of `bytes`. */
static void find_chunk(struct engine *e, struct job *j, const struct plan_step *s, int i,
                       size_t from, size_t packed, size_t bytes, unsigned char *shared,
                       struct move *m)
{
    const struct plan *p = j->program->plan;
    const struct plan_operand *o = &p->operands[s->first];
    struct link *const *links = &j->program->links[s->first];
    bool told = false;
    *m = (struct move){.from_in = -1, .may_stream = true, .is_final = s->flags & PLAN_FINAL};
    for (int k = 0; k < s->ndst + s->nsrc; k++) {
        const bool is_dst = k < s->ndst;
        const unsigned char *at;
        if (links[k] && is_dst) {
            if (shared && told)
                continue;
            at = (shared ? shared : link_payload(links[k], bytes)) + packed;
            m->stream |= stream_bit(s, links, k, shared != NULL, bytes, m->ndst);
            told = true;
        } else if (links[k]) {
            at = link_arrival(links[k], bytes) + packed;
        } else {
            const int c =
                i == 0 ? o[k].chunk : plan_span_at(&s->of, o[k].chunk, i, operand_row(p, &o[k]));
            at = operand_at(e, j, &o[k], c, from);
        }
        if (is_dst) {
            m->may_stream &= !links[k] && o[k].space != PLAN_TMP;
            e->dst[m->ndst++] = (unsigned char *)(uintptr_t)at;
        } else {
            if (o[k].space == PLAN_IN)
                m->from_in = m->nsrc;
            e->src[m->nsrc++] = at;
        }
    }
}

/* false: a peer's memory could not be reached; *status says so. */
static bool run(struct engine *e, const struct job *j, const struct plan_step *s,
                const struct move *m, size_t len, enum kolo_status *status)
{
    if (LIKELY(!j->has_remote)) {
        move_local(e, j, m, len);
        return true;
    }
    int peer;
    const int error = move_remote(e, j, s, m, len, &peer);
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

bool step_move(struct engine *e, struct job *j, const struct plan_step *s,
               const struct ready_step *r, size_t from, size_t len, unsigned char *shared,
               enum kolo_status *status)
{
    const size_t bytes = len * j->type_bytes;
    struct move m = r->move;
    if (LIKELY(r->is_simple)) {
        find_simple(e, j, s, from, bytes, shared, &m);
        return run(e, j, s, &m, len, status);
    }
    const struct layout *l = step_layout(j, s);
    const int n = j->program->plan->nchunks[s->of_space];
    size_t packed = 0;
    for (int i = 0; i < s->of.count; i++) {
        const size_t part = piece_len(j, l, plan_span_at(&s->of, s->of.chunk, i, n), from);
        if (part == 0)
            continue;
        find_chunk(e, j, s, i, from, packed, bytes, shared, &m);
        if (!run(e, j, s, &m, part, status))
            return false;
        packed += part * j->type_bytes;
    }
    return true;
}
