/* exec_remote.c - moves with operands in the private memory of other processes: the kernel copies
 * them (cross memory attach).  A copy goes in large pieces; a reduction in tiles that stay in L2:
 *
 *   remote sources -> tiles -> reduce, with local sources -> local result or tile -> remote ones
 */
#include "engine.h"

#include <errno.h>
#include <sched.h>

enum {
    REMOTE_PIECE = 1 << 20, /* bytes in one system call: about 100 us */
    DRAIN_NS = 500000000,   /* a peer that is stopped in the middle is not waited for longer */
};

/* Operand k of a step: is its pointer an address of another process? */
static bool is_remote(const struct engine *e, const struct plan_operand *o)
{
    return (o->space == PLAN_PEER_IN && e->in_is_remote[o->peer]) ||
           (o->space == PLAN_PEER_OUT && e->out_is_remote[o->peer]);
}

/* An owner whose call has failed may free its buffers.  So each piece first shows whom it touches,
 * then looks whether that rank is still in the operation; the owner shows its failure first, then
 * looks who touches it (remote_drain).  Sequential consistency: one of both sees the other. */
static bool enter_memory(struct engine *e, int peer)
{
    atomic_store_explicit(&e->board->touches, (uint32_t)peer + 1, memory_order_seq_cst);
    return engine_status(e) == KOLO_OK &&
           atomic_load_explicit(&e->boards[peer]->state, memory_order_seq_cst) == BOARD_LIVE;
}

/* A piece at a time, so that failures and aborts are seen between them.  0 or an errno. */
static int copy_remote(struct engine *e, int peer, uint64_t at, void *own, size_t bytes,
                       bool is_read)
{
    const struct transport_ops *ops = e->transport->ops;
    int error = 0;
    for (size_t done = 0; done < bytes && error == 0;) {
        const size_t n = bytes - done < REMOTE_PIECE ? bytes - done : REMOTE_PIECE;
        char *const here = (char *)own + done;
        if (!enter_memory(e, peer))
            error = ECANCELED;
        else if (is_read)
            error = ops->remote_read(e->transport, peer, at + done, here, n);
        else
            error = ops->remote_write(e->transport, peer, at + done, here, n);
        done += n;
    }
    /* Release: the copy is over before the owner sees it. */
    atomic_store_explicit(&e->board->touches, 0, memory_order_release);
    return error;
}

static int read_remote(struct engine *e, int peer, const void *at, void *to, size_t bytes)
{
    return copy_remote(e, peer, (uint64_t)(uintptr_t)at, to, bytes, true);
}

static int write_remote(struct engine *e, int peer, void *at, const void *from, size_t bytes)
{
    return copy_remote(e, peer, (uint64_t)(uintptr_t)at, (void *)(uintptr_t)from, bytes, false);
}

void remote_drain(struct engine *e)
{
    const uint64_t end = now_ns() + DRAIN_NS;
    for (int r = 0; r < e->nranks; r++) {
        if (r == e->rank)
            continue;
        while (atomic_load_explicit(&e->boards[r]->touches, memory_order_seq_cst) ==
                   (uint32_t)e->rank + 1 &&
               now_ns() < end && e->transport->ops->is_alive(e->transport, r))
            sched_yield();
    }
}

/* Nothing to compute, and the source is here or goes to one place: large pieces, no tiles. */
static int copy_whole(struct engine *e, const struct job *j, const struct move *m,
                      const struct plan_operand *to, const struct plan_operand *from, size_t len,
                      int *peer)
{
    const size_t bytes = len * j->type_bytes;
    if (is_remote(e, from)) {
        *peer = from->peer;
        return read_remote(e, from->peer, e->src[0], e->dst[0], bytes);
    }
    struct move local = *m;
    local.ndst = 0;
    local.stream = 0;
    for (int k = 0; k < m->ndst; k++) {
        if (!is_remote(e, &to[k])) {
            e->dst[local.ndst++] = e->dst[k];
            continue;
        }
        *peer = to[k].peer;
        const int error = write_remote(e, to[k].peer, e->dst[k], e->src[0], bytes);
        if (error)
            return error;
    }
    if (local.ndst > 0)
        move_local(e, j, &local, len);
    return 0;
}

/* Fetch the tile of each remote source, and let e->src point to it. */
static int fetch_tile(struct engine *e, const struct plan_operand *from, int nsrc, size_t bytes,
                      int *peer)
{
    for (int k = 0; k < nsrc; k++) {
        unsigned char *tile = e->bounce + (size_t)(k + 1) * e->tile_bytes;
        if (!is_remote(e, &from[k]))
            continue;
        *peer = from[k].peer;
        const int error = read_remote(e, from[k].peer, e->src[k], tile, bytes);
        if (error)
            return error;
        e->src[k] = tile;
    }
    return 0;
}

/* The result stands in the first local destination, or in tile 0. */
static int store_tile(struct engine *e, const struct plan_operand *to, int ndst,
                      void *const *wanted, const void *result, size_t bytes, int *peer)
{
    for (int k = 0; k < ndst; k++) {
        if (!is_remote(e, &to[k]))
            continue;
        *peer = to[k].peer;
        const int error = write_remote(e, to[k].peer, wanted[k], result, bytes);
        if (error)
            return error;
    }
    return 0;
}

/* Destinations of the arithmetic: the local ones, else tile 0.  Returns how many. */
static int keep_local(struct engine *e, const struct plan_operand *to, int ndst)
{
    int n = 0;
    for (int k = 0; k < ndst; k++)
        if (!is_remote(e, &to[k]))
            e->dst[n++] = e->dst[k];
    if (n == 0)
        e->dst[n++] = e->bounce;
    return n;
}

int move_remote(struct engine *e, const struct job *j, const struct plan_step *s,
                const struct move *m, size_t len, int *peer)
{
    const struct plan_operand *to = &j->program->plan->operands[s->first], *from = to + s->ndst;
    const bool computes = s->nsrc > 1 || ((s->flags & PLAN_FINAL) && j->post_div > 0);
    bool any = false;
    for (int k = 0; k < s->ndst + s->nsrc; k++)
        any |= is_remote(e, &to[k]);
    if (!any) {
        move_local(e, j, m, len);
        return 0;
    }
    if (!computes && (!is_remote(e, from) || (s->ndst == 1 && !is_remote(e, to))))
        return copy_whole(e, j, m, to, from, len, peer);

    const int n = s->ndst + s->nsrc;
    void **wanted = e->remote_at; /* the operands' own pointers, tile after tile */
    for (int k = 0; k < n; k++)
        wanted[k] = k < s->ndst ? e->dst[k] : (void *)(uintptr_t)e->src[k - s->ndst];
    const size_t tile = e->tile_bytes / j->type_bytes;
    for (size_t at = 0; at < len; at += tile) {
        const size_t part = len - at < tile ? len - at : tile;
        for (int k = 0; k < s->ndst; k++)
            e->dst[k] = wanted[k];
        for (int k = 0; k < s->nsrc; k++)
            e->src[k] = wanted[s->ndst + k];
        int error = fetch_tile(e, from, s->nsrc, part * j->type_bytes, peer);
        if (error)
            return error;
        struct move local = *m;
        local.ndst = keep_local(e, to, s->ndst);
        local.may_stream = false;
        local.stream = 0;
        move_local(e, j, &local, part);
        error = store_tile(e, to, s->ndst, wanted, e->dst[0], part * j->type_bytes, peer);
        if (error)
            return error;
        for (int k = 0; k < n; k++)
            wanted[k] = (char *)wanted[k] + part * j->type_bytes;
    }
    return 0;
}
