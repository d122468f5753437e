/* exec_fuse.c - a run of small all_reduces of one group as one job (fuse.c makes it).
 *
 *   card to every peer -> cards of all peers -> decide: one by one, straight between the buffers,
 *                                               or packed into messages
 *
 * A card says whether the sender's buffers allow it: an operation that reads what an earlier one of
 * the run writes must wait for it.  All see the same cards, and decide alike.  The list of counts
 * needs no card: it is in the signature. */
#include "engine.h"

#include <string.h>

struct card {
    uint32_t may_fuse;
    uint32_t is_shared; /* then the places of all operations follow */
};

static size_t card_bytes(const struct fused *f, bool is_shared)
{
    return sizeof(struct card) + (is_shared ? (size_t)f->nops * sizeof *f->places : 0);
}

bool fused_send(struct engine *e, struct job *j)
{
    struct fused *f = j->fused;
    const struct card card = {f->may_fuse, f->is_shared};
    const size_t bytes = card_bytes(f, f->is_shared);
    const struct ring_use slots = job_ring(e, j, e->slot_bytes);
    bool moved = false;
    for (; j->announced < e->nranks; j->announced++) {
        const int peer = (e->rank + j->announced) % e->nranks;
        if (peer == e->rank)
            continue;
        struct link *l = engine_link(e, true, peer, 0);
        if (!link_has_room(l, LINK_CELLS, bytes, slots))
            return moved;
        unsigned char *at = link_payload(l, bytes);
        memcpy(at, &card, sizeof card);
        memcpy(at + sizeof card, f->places, bytes - sizeof card);
        link_commit(l, j->signature, bytes, CELL_ANNOUNCE);
        moved = true;
    }
    j->announced = 0;
    f->all_may = f->may_fuse;
    f->all_shared = f->is_shared && f->direct;
    j->phase = JOB_ANNOUNCE_RECEIVE;
    return true;
}

/* Where a peer's buffers of this rank's share are; false when a place makes no sense. */
static bool map_places(struct engine *e, struct fused *f, int peer, const unsigned char *places)
{
    for (int i = f->share_first; i < f->share_end; i++) {
        struct fused_place p;
        memcpy(&p, places + (size_t)i * sizeof p, sizeof p);
        const uint64_t at[2] = {p.in, p.out};
        for (int k = 0; k < 2; k++) {
            const struct window_ref ref = {at[k] >> PLACE_KIND_BIT,
                                           at[k] & (((uint64_t)1 << PLACE_KIND_BIT) - 1)};
            void *const here =
                f->op_bytes[i] > 0
                    ? e->transport->ops->window_map(e->transport, peer, ref, f->op_bytes[i])
                    : NULL;
            if (!here && f->op_bytes[i] > 0)
                return false;
            f->peer_at[k][fused_index(f, peer, i)] = here;
        }
    }
    return true;
}

/* The program that all have agreed on; its lengths are known, nothing is cut. */
static void decide(struct engine *e, struct job *j)
{
    struct fused *f = j->fused;
    if (!f->all_may) {
        j->phase = JOB_DECLINED;
        return;
    }
    e->counters.operations[KOLO_COLL_ALL_REDUCE] += (uint64_t)f->nops;
    e->counters.bytes[KOLO_COLL_ALL_REDUCE] += j->in_bytes;
    e->counters.fused_operations += (uint64_t)f->nops;
    if (f->all_shared)
        e->counters.window_operations += (uint64_t)f->nops;
    j->program = f->all_shared ? f->direct : f->staged;
    j->ready = f->ready[f->all_shared];
    j->shaped = j->program;
    j->ring = job_ring(e, j, e->slot_bytes);
    j->phase = JOB_RUN;
}

static bool is_card(const struct fused *f, const struct link *l, const struct job *j,
                    struct card *out)
{
    const struct link_cell *cell = link_cell_at(l);
    if (cell->signature != j->signature || (cell->detail & CELL_KIND) != CELL_ANNOUNCE ||
        (cell->bytes != card_bytes(f, false) && cell->bytes != card_bytes(f, true)))
        return false;
    memcpy(out, link_arrival(l, cell->bytes), sizeof *out);
    return cell->bytes == card_bytes(f, out->is_shared != 0);
}

bool fused_receive(struct engine *e, struct job *j, enum kolo_status *status)
{
    struct fused *f = j->fused;
    bool moved = false;
    for (; j->announced < e->nranks; j->announced++) {
        const int peer = (e->rank + j->announced) % e->nranks;
        if (peer == e->rank)
            continue;
        struct link *l = engine_link(e, false, peer, 0);
        if (!link_arrived(l))
            return moved;
        struct card card;
        if (!is_card(f, l, j, &card)) {
            *status = job_mismatch(e, j, l, card_bytes(f, false));
            return moved;
        }
        f->all_may &= card.may_fuse != 0;
        f->all_shared &= card.is_shared != 0;
        const unsigned char *places = link_arrival(l, link_cell_at(l)->bytes) + sizeof card;
        if (f->all_shared && !map_places(e, f, peer, places)) {
            fail(KOLO_ERR_PEER_LOST, "rank %d cannot reach the buffers of rank %d (%s)", e->rank,
                 peer, e->transport->ops->peer_name(e->transport, peer));
            *status = engine_break(e, KOLO_ERR_PEER_LOST);
            return moved;
        }
        link_consume(l);
        moved = true;
    }
    decide(e, j);
    return true;
}
