/* comm_warm.c - what the first operations of a communicator would pay for, paid for while it is
 * made: the programs of small and middle-sized calls, the scratch that they need, and the pages of
 * the links that carry them.  With many ranks this would cost more time and memory than it saves,
 * and there only what the calls touch comes to be. */
#include "comm.h"
#include "mem.h"

#include <sys/mman.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

enum {
    FEW_RANKS = 2,  /* rings too: 0.7 MiB per rank */
    SOME_RANKS = 8, /* cells only: 280 KiB per peer */
    PAGE = 4096,
    TINY_BYTES = 8,
    MIDDLE_BYTES = 65536,
    WARM_BYTES = 4 * MIDDLE_BYTES, /* of rings */
};

/* Make the pages of [p, p + bytes) present in this process; where the kernel is too old (before
 * 5.14) they come one by one. */
static void populate(const void *p, size_t bytes, int how)
{
    const uintptr_t from = (uintptr_t)p / PAGE * PAGE;
    const uintptr_t to = ((uintptr_t)p + bytes + PAGE - 1) / PAGE * PAGE;
    (void)madvise((void *)from, to - from, how);
}

static void populate_link(const struct link *l, bool with_rings)
{
    populate(l->back, sizeof *l->back, MADV_POPULATE_WRITE);
    populate(l->cells, CELLS_BYTES, MADV_POPULATE_WRITE);
    populate(l->smalls, (size_t)LINK_SMALLS * SMALL_STRIDE, MADV_POPULATE_WRITE);
    populate((const void *)l->bell, sizeof *l->bell, MADV_POPULATE_WRITE);
    if (with_rings)
        populate(l->ring, WARM_BYTES < l->ring_bytes ? (size_t)WARM_BYTES : l->ring_bytes,
                 MADV_POPULATE_WRITE);
}

/* Both ends of the links of the first channel, which nearly all plans use alone. */
static void populate_links(struct engine *e, bool with_rings)
{
    populate(e->board, BOARD_BYTES, MADV_POPULATE_WRITE);
    for (int peer = 0; peer < e->nranks; peer++) {
        if (peer == e->rank)
            continue;
        populate(e->boards[peer], BOARD_BYTES, MADV_POPULATE_READ);
        populate_link(engine_link(e, true, peer, 0), with_rings);
        populate_link(engine_link(e, false, peer, 0), with_rings);
    }
}

/* Bind calls of this size that nobody makes: what a binding needs is kept. */
static enum kolo_status bind_all(struct kolo_comm *comm, size_t bytes)
{
    const size_t count = bytes / kolo_type_size(KOLO_F32);
    for (int coll = 0; coll < KOLO_NCOLLS; coll++) {
        if (coll_is_v((enum kolo_coll)coll) || coll_is_p2p((enum kolo_coll)coll))
            continue;
        struct operation *op = comm->blocking[coll];
        if (!op && !(op = comm->blocking[coll] = mem_calloc(1, sizeof *op)))
            return fail(KOLO_ERR_NOMEM, "out of memory for an operation");
        op->comm = comm;
        const size_t shares =
            operation_bytes((enum kolo_coll)coll, 1, 1, comm->nranks); /* in the largest buffer */
        op->job.call = (struct call){(enum kolo_coll)coll, KOLO_F32, KOLO_SUM, 0,
                                     coll == KOLO_COLL_BARRIER ? 0 : (count + shares - 1) / shares};
        op->has_scalar = false;
        op->send = op->recv = NULL;
        TRY(operation_bind(op));
    }
    return KOLO_OK;
}

void comm_warm(struct kolo_comm *comm)
{
    if (comm->nranks == 1 || comm->nranks > SOME_RANKS || comm->nloaded > 0)
        return;
    const bool is_few = comm->nranks <= FEW_RANKS;
    populate_links(comm->engine, is_few);
    /* What fails here for lack of memory is tried again by the call that needs it. */
    if (bind_all(comm, TINY_BYTES) == KOLO_OK && is_few)
        (void)bind_all(comm, MIDDLE_BYTES);
}
