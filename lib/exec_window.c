/* exec_window.c - before a plan that reads or writes peers' buffers, ranks tell each other where
 * they are, and all come to the same decision: the window plan, if every buffer is within reach
 * and worth it, else the fallback.
 *
 *   announce_send -> a message to every peer -> announce_receive -> announce_end: decide
 *
 * The messages are also the edge that window plans rely on: every rank has entered the
 * operation. */
#include "engine.h"

#include <string.h>

struct announcement {
    struct window_ref in;
    struct window_ref out;
    float staged_ns; /* the sender's experience, see exec_choice.c */
    float remote_ns;
    uint32_t is_unsettled;
    uint32_t unused;
};
_Static_assert(sizeof(struct announcement) <= CELL_INLINE, "travels with the counter");

static struct window_ref own_ref(struct engine *e, const struct job *j, enum plan_space space)
{
    if (j->refuses_windows)
        return (struct window_ref){WINDOW_REFUSED, 0};
    if (j->program->plan->nchunks[space] == 0)
        return (struct window_ref){WINDOW_ABSENT, 0};
    return e->transport->ops->window_ref(e->transport, j->base[space],
                                         space == PLAN_IN ? j->in_bytes : j->out_bytes);
}

static struct announcement own_announcement(struct engine *e, const struct job *j)
{
    return (struct announcement){own_ref(e, j, PLAN_IN),         own_ref(e, j, PLAN_OUT),
                                 j->way ? j->way->staged_ns : 0, j->way ? j->way->remote_ns : 0,
                                 j->way && j->way->is_unsettled, 0};
}

bool announce_send(struct engine *e, struct job *j)
{
    const struct announcement a = own_announcement(e, j);
    bool moved = false;
    while (j->announced < e->nranks) {
        const int peer = (e->rank + j->announced) % e->nranks;
        if (peer != e->rank) {
            struct link *l = engine_link(e, true, peer, 0);
            if (!link_has_room(l, LINK_CELLS, sizeof a, (struct ring_use){0}))
                return moved;
            memcpy(link_payload(l, sizeof a), &a, sizeof a);
            link_commit(l, j->signature, sizeof a, CELL_ANNOUNCE);
        }
        j->announced++;
        moved = true;
    }
    j->announced = 0;
    j->windows_ok = true;
    j->saw_private = j->has_remote = false;
    j->staged_ns = j->remote_ns = 0;
    j->is_unsettled = false;
    j->phase = JOB_ANNOUNCE_RECEIVE;
    return true;
}

/* Whether a buffer that a peer announced is within reach, and how; what is needed is the same on
 * all ranks, and so is the answer. */
static bool adopt_ref(struct engine *e, struct job *j, int peer, struct window_ref ref,
                      size_t bytes, unsigned char **out, bool *is_remote)
{
    *is_remote = false;
    if (ref.kind == WINDOW_ABSENT)
        return true;
    if (ref.kind == WINDOW_REFUSED)
        return false;
    if (ref.kind == WINDOW_REMOTE && e->has_remote) {
        *is_remote = j->has_remote = true;
        *out = (unsigned char *)(uintptr_t)ref.at;
        return true;
    }
    *out = ref.kind == WINDOW_NONE || ref.kind == WINDOW_REMOTE
               ? NULL
               : e->transport->ops->window_map(e->transport, peer, ref, bytes);
    j->saw_private |= *out == NULL;
    return *out != NULL;
}

static void adopt_times(struct job *j, const struct announcement *a)
{
    j->staged_ns = a->staged_ns > j->staged_ns ? a->staged_ns : j->staged_ns;
    j->remote_ns = a->remote_ns > j->remote_ns ? a->remote_ns : j->remote_ns;
    j->is_unsettled |= a->is_unsettled != 0;
}

static void adopt_announcement(struct engine *e, struct job *j, int peer,
                               const struct announcement *a)
{
    const unsigned needs = j->program->window_needs;
    adopt_times(j, a);
    if ((needs & PLAN_READS_PEERS) &&
        !adopt_ref(e, j, peer, a->in, j->in_bytes, &e->peer_in[peer], &e->in_is_remote[peer]))
        j->windows_ok = false;
    if ((needs & PLAN_WRITES_PEERS) &&
        !adopt_ref(e, j, peer, a->out, j->out_bytes, &e->peer_out[peer], &e->out_is_remote[peer]))
        j->windows_ok = false;
}

/* The own buffers count for the decision as the peers see them, but are reached directly. */
static void adopt_own(struct engine *e, struct job *j)
{
    const struct announcement own = own_announcement(e, j);
    const unsigned needs = j->program->window_needs;
    adopt_times(j, &own);
    const struct window_ref *refs[2] = {needs & PLAN_READS_PEERS ? &own.in : NULL,
                                        needs & PLAN_WRITES_PEERS ? &own.out : NULL};
    for (int i = 0; i < 2; i++) {
        if (!refs[i])
            continue;
        const bool is_private = refs[i]->kind == WINDOW_REMOTE;
        j->has_remote |= is_private && e->has_remote;
        j->saw_private |= is_private && !e->has_remote;
        if (refs[i]->kind == WINDOW_REFUSED || (is_private && !e->has_remote))
            j->windows_ok = false;
    }
    e->peer_in[e->rank] = j->base[PLAN_IN];
    e->peer_out[e->rank] = j->base[PLAN_OUT];
    e->in_is_remote[e->rank] = e->out_is_remote[e->rank] = false;
}

/* Buffers of which some are private, all within reach. */
static bool takes_kernel(struct engine *e, struct job *j)
{
    if (j->way) {
        j->way_taken = way_choose(j->way, j->staged_ns, j->remote_ns, j->is_unsettled);
        j->way_began_ns = now_ns();
        return j->way_taken == WAY_REMOTE;
    }
    return e->always_remote;
}

/* All ranks have seen the same announcements, so all decide alike. */
static void announce_end(struct engine *e, struct job *j)
{
    adopt_own(e, j);
    if (j->windows_ok && (!j->has_remote || takes_kernel(e, j))) {
        e->counters.window_operations++;
        e->window_backoff = 0;
    } else {
        e->counters.window_misses++;
        if (j->saw_private || (j->has_remote && !j->way)) {
            e->window_backoff =
                e->window_backoff ? (uint32_t)min_int((int)e->window_backoff * 2, 64) : 4;
            e->window_skip = e->window_backoff;
        }
        j->has_remote = false;
        j->program = j->fallback;
    }
    j->phase = JOB_RUN;
}

bool announce_receive(struct engine *e, struct job *j, enum kolo_status *status)
{
    bool moved = false;
    while (j->announced < e->nranks) {
        const int peer = (e->rank + j->announced) % e->nranks;
        if (peer != e->rank) {
            struct link *l = engine_link(e, false, peer, 0);
            if (!link_arrived(l))
                return moved;
            const struct link_cell *cell = link_cell_at(l);
            if (cell->signature != j->signature || cell->detail != CELL_ANNOUNCE) {
                *status = job_mismatch(e, j, l, sizeof(struct announcement));
                return moved;
            }
            struct announcement a;
            memcpy(&a, cell->payload, sizeof a);
            adopt_announcement(e, j, peer, &a);
            link_consume(l);
        }
        j->announced++;
        moved = true;
    }
    announce_end(e, j);
    return true;
}
