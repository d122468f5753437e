/* job.c - from a plan to something that runs: programs (plans with their links resolved) and jobs
 * (programs bound to buffers, cut into pieces). */
#include "engine.h"
#include "mem.h"

#include <string.h>

enum {
    /* Bytes that a link message carries when a buffer is cut into pieces.  Large ones mean few
     * messages and, where ranks share a CPU, few changes of rank; small ones more overlap.
     * 2 to 8 ranks on 2 CPUs (Zen 4), 512 KiB to 8 MiB: 128 KiB is up to 20 % ahead of 64 KiB, and
     * that of 32 KiB and 16 KiB. */
    PIECE_BYTES = 131072,
    /* But what all ranks of a CPU send each other in a round should not fill much more than its
     * caches.  8 ranks on 2 CPUs, 8 MiB, 64 KiB instead: reduce_scatter 4.7 to 3.0 ms, all_reduce
     * 6.7 to 5.4, reduce 5.7 to 3.4. */
    EXCHANGE_BYTES = 7 << 18,
    LINE = 64,
};

/* ---- programs ---- */

/* Room in the engine's pointer arrays for the step with most operands. */
static enum kolo_status ensure_pointers(struct engine *e, size_t n)
{
    static const size_t spare = 2;
    if (n + spare <= e->pointers)
        return KOLO_OK;
    void **dst = mem_calloc(n + spare, sizeof *dst);
    const void **src = mem_calloc(n + spare, sizeof *src);
    void **both = mem_calloc(2 * (n + spare), sizeof *both);
    if (!dst || !src || !both) {
        mem_free(dst);
        mem_free(src);
        mem_free(both);
        return fail(KOLO_ERR_NOMEM, "out of memory for a move of %zu operands", n);
    }
    mem_free(e->dst);
    mem_free(e->src);
    mem_free(e->remote_at);
    e->dst = dst;
    e->src = src;
    e->remote_at = both;
    e->pointers = n + spare;
    return KOLO_OK;
}

/* 1 + the channel on which a step sends one message to every peer; 0: it does not, or there is no
 * outbox.  Nobody is left out, so entries of the outbox are as many messages as each link has in
 * flight, which is no less than plans are proven with. */
static uint8_t shout_channel(const struct engine *e, const struct plan *plan,
                             const struct plan_step *s)
{
    const struct plan_operand *o = &plan->operands[s->first];
    int n = 0, channel = 0;
    for (int k = 0; k < s->ndst; k++) {
        if (o[k].space != PLAN_LINK)
            continue;
        if (n > 0 && o[k].channel != channel)
            return 0;
        channel = o[k].channel;
        n++;
    }
    const bool is_all = n == e->nranks - 1 && n > 1;
    return is_all && e->outboxes[channel].at ? (uint8_t)(channel + 1) : 0;
}

/* Peers that this rank sends to. */
static int count_aims(const struct engine *e, const struct program *p)
{
    int n = 0;
    for (int peer = 0; peer < e->nranks; peer++) {
        bool is_aim = false;
        for (int i = 0; i < p->plan->nsteps; i++) {
            const struct plan_step *s = &p->plan->steps[i];
            for (uint32_t k = s->first; k < s->first + s->ndst; k++)
                is_aim |= p->links[k] && p->links[k]->peer == peer;
        }
        n += is_aim;
    }
    return n;
}

enum kolo_status program_compile(struct engine *e, struct plan *plan, struct program **out)
{
    const bool is_p2p = coll_is_p2p(plan->coll);
    size_t most = 0;
    for (int i = 0; i < plan->nsteps; i++) {
        const size_t n = (size_t)plan->steps[i].ndst + plan->steps[i].nsrc;
        most = n > most ? n : most;
    }
    TRY(ensure_pointers(e, most));
    struct program *p = mem_calloc(1, sizeof *p);
    struct link **links = p ? mem_calloc((size_t)plan->noperands + 1, sizeof *links) : NULL;
    uint8_t *shouts = links ? mem_calloc((size_t)plan->nsteps + 1, sizeof *shouts) : NULL;
    if (!shouts) {
        mem_free(links);
        mem_free(p);
        return fail(KOLO_ERR_NOMEM, "out of memory for a plan of %d operands", plan->noperands);
    }
    for (int i = 0; i < plan->nsteps; i++) {
        const struct plan_step *s = &plan->steps[i];
        for (uint32_t k = s->first; k < s->first + s->ndst + s->nsrc; k++) {
            const struct plan_operand *o = &plan->operands[k];
            if (o->space != PLAN_LINK)
                continue;
            links[k] = engine_link(e, k < s->first + s->ndst, o->peer,
                                   is_p2p ? LINK_CHANNEL_P2P : o->channel);
        }
        shouts[i] = shout_channel(e, plan, s);
    }
    p->is_cut = plan->nranks > 1;
    p->max_span = plan->max_span;
    p->plan = plan;
    p->links = links;
    p->shouts = shouts;
    p->naims = count_aims(e, p);
    *out = p;
    return KOLO_OK;
}

void program_destroy(struct program *p)
{
    if (!p)
        return;
    plan_destroy((struct plan *)(uintptr_t)p->plan);
    mem_free(p->links);
    mem_free(p->shouts);
    mem_free(p);
}

/* ---- jobs ---- */

/* The largest chunk, in elements; for v-variants a number that does not depend on the rank. */
static size_t block_of(const struct job *j)
{
    if (j->is_v)
        return SIZE_MAX;
    return j->layout[0].block > j->layout[1].block ? j->layout[0].block : j->layout[1].block;
}

static size_t piece_bytes(const struct engine *e, enum kolo_coll coll)
{
    const bool is_exchange =
        coll_reduces(coll) || coll == KOLO_COLL_ALL_TO_ALL || coll == KOLO_COLL_ALL_TO_ALL_V;
    const size_t senders = (size_t)(e->nranks - 1) * (size_t)e->per_cpu;
    return is_exchange && senders * PIECE_BYTES > EXCHANGE_BYTES ? PIECE_BYTES / 2 : PIECE_BYTES;
}

/* Elements per round: all ranks must come to the same number. */
static size_t choose_piece(const struct engine *e, const struct job *j, const struct program *p)
{
    const size_t block = block_of(j);
    const size_t per_chunk = (size_t)p->max_span * j->type_bytes;
    const size_t cap = e->slot_bytes / per_chunk;
    size_t want = piece_bytes(e, j->call.coll) / per_chunk;
    want = want > cap ? cap : want;
    want = want > 0 ? want : 1;
    if (block <= want)
        return block > 0 ? block : 1;
    if (j->is_v)
        return want;
    /* Equal pieces, cut at cache lines. */
    const size_t rounds = (block + want - 1) / want;
    const size_t line = LINE / j->type_bytes;
    const size_t even = round_up((block + rounds - 1) / rounds, line);
    return even <= cap ? even : want;
}

static size_t longest_chunk(const struct job *j, const struct plan *p)
{
    size_t longest = 0;
    for (int space = PLAN_IN; space <= PLAN_OUT; space++) {
        const struct layout *l = &j->layout[space];
        for (int c = 0; l->counts && c < p->nchunks[space]; c++)
            longest = l->counts[c] > longest ? l->counts[c] : longest;
        if (!l->counts && p->nchunks[space] > 0) {
            const size_t len = l->block < l->total ? l->block : l->total;
            longest = len > longest ? len : longest;
        }
    }
    return longest;
}

/* The chunks of a vector that the plan cuts by itself: equal, at cache lines. */
static void cut_vector(struct job *j, const struct plan *p)
{
    if (p->coll != KOLO_COLL_ALL_REDUCE && p->coll != KOLO_COLL_BROADCAST &&
        p->coll != KOLO_COLL_REDUCE)
        return;
    const size_t n = (size_t)(p->nchunks[PLAN_IN] > p->nchunks[PLAN_OUT] ? p->nchunks[PLAN_IN]
                                                                         : p->nchunks[PLAN_OUT]);
    const size_t count = j->call.count;
    size_t block = n > 1 ? (count + n - 1) / n : count;
    if (n > 1 && block * j->type_bytes >= LINE)
        block = round_up(block, LINE / j->type_bytes);
    for (int i = 0; i < 2; i++)
        j->layout[i] = (struct layout){block, count, NULL, NULL};
}

/* As many links come to a rank as leave it, but for those that all lead to the root. */
struct ring_use job_ring(const struct engine *e, const struct job *j, size_t most)
{
    const struct program *p = j->program;
    const bool is_to_root =
        p->naims <= 1 && (p->plan->coll == KOLO_COLL_REDUCE || p->plan->coll == KOLO_COLL_GATHER);
    const size_t share =
        is_to_root ? e->ring_to_root : e->ring_share / (size_t)max_int(p->naims, 1);
    const size_t slot = round_up(e->slot_bytes, LINE);
    if (share >= LINK_ROOM * round_up(most, LINE))
        return (struct ring_use){.window = share};
    return (struct ring_use){.window = LINK_SLOTS * slot, .stride = slot};
}

void job_shape(struct engine *e, struct job *j)
{
    const struct program *p = j->program;
    if (LIKELY(j->shaped == p))
        return;
    j->shaped = p;
    cut_vector(j, p->plan);
    const size_t longest = longest_chunk(j, p->plan);
    /* Without messages nothing needs to be cut. */
    j->piece = p->is_cut ? choose_piece(e, j, p) : longest > 0 ? longest : 1;
    j->rounds = longest > 0 ? (longest - 1) / j->piece + 1 : 1;
    j->tmp_stride = j->piece * j->type_bytes;
    j->ring = job_ring(e, j, (size_t)p->max_span * j->tmp_stride);
    job_make_ready(e, j);
}

/* A tile for each operand that may lie in another process. */
static enum kolo_status reserve_tiles(struct engine *e)
{
    if (e->bounce_tiles >= e->pointers)
        return KOLO_OK;
    /* A system call costs about 1 us, copying the largest tile about 10; all of them stay in an
     * L2. */
    enum { MOST = 131072, LEAST = 4096, ALL = 1 << 20 };
    size_t bytes = ALL / e->pointers / LEAST * LEAST;
    bytes = bytes > MOST ? MOST : bytes < LEAST ? LEAST : bytes;
    unsigned char *tiles = mem_aligned(LEAST, e->pointers * bytes);
    if (!tiles)
        return fail(KOLO_ERR_NOMEM, "out of memory for %zu tiles", e->pointers);
    e->tile_bytes = bytes;
    mem_free(e->bounce);
    e->bounce = tiles;
    e->bounce_tiles = e->pointers;
    return KOLO_OK;
}

/* Lanes and ready steps of a job that may come to run this plan. */
static enum kolo_status reserve_rows(struct job *j, const struct plan *p)
{
    if (p->nlanes > j->lanes_room) {
        struct lane_state *lanes = mem_resize(j->lanes, (size_t)p->nlanes, sizeof *lanes);
        if (!lanes)
            return fail(KOLO_ERR_NOMEM, "out of memory for %d lanes", p->nlanes);
        j->lanes = lanes;
        j->lanes_room = p->nlanes;
    }
    if (p->nsteps > j->ready_room) {
        struct ready_step *ready = mem_resize(j->ready, (size_t)p->nsteps, sizeof *ready);
        if (!ready)
            return fail(KOLO_ERR_NOMEM, "out of memory for %d steps", p->nsteps);
        j->ready = ready;
        j->ready_room = p->nsteps;
    }
    if (p->noperands > j->ready_operands_room) {
        struct ready_operand *operands =
            mem_resize(j->ready_operands, (size_t)p->noperands, sizeof *operands);
        if (!operands)
            return fail(KOLO_ERR_NOMEM, "out of memory for %d operands", p->noperands);
        j->ready_operands = operands;
        j->ready_operands_room = p->noperands;
    }
    return KOLO_OK;
}

void job_release(struct job *j)
{
    mem_free(j->lanes);
    mem_free(j->ready);
    mem_free(j->ready_operands);
}

/* Scratch and rows for one of the programs that the job may come to run. */
static enum kolo_status reserve(struct engine *e, struct job *j, struct program *p)
{
    TRY(reserve_rows(j, p->plan));
    if (p->is_cut && (size_t)p->max_span * j->type_bytes > e->slot_bytes)
        return fail(KOLO_ERR_UNSUPPORTED,
                    "plan %s sends %d chunks in a message, a slot has %zu bytes: raise "
                    "KOLO_SLOT_BYTES",
                    p->plan->algo, p->max_span, e->slot_bytes);
    if (p->window_needs && e->has_remote)
        TRY(reserve_tiles(e));
    if (p->plan->nchunks[PLAN_TMP] == 0)
        return KOLO_OK;
    struct program *kept = j->program;
    j->program = p;
    job_shape(e, j);
    j->program = kept;
    j->shaped = NULL; /* lengths of a v-variant may change while the plan stays */
    size_t bytes;
    if (!size_mul((size_t)p->plan->nchunks[PLAN_TMP], j->tmp_stride, &bytes))
        return fail(KOLO_ERR_ARG, "scratch of plan %s is too large", p->plan->algo);
    if (bytes <= e->tmp_bytes)
        return KOLO_OK;
    unsigned char *tmp = mem_aligned(4096, bytes);
    if (!tmp)
        return fail(KOLO_ERR_NOMEM, "out of memory for %zu bytes of scratch", bytes);
    mem_free(e->tmp);
    e->tmp = tmp;
    e->tmp_bytes = bytes;
    return KOLO_OK;
}

void job_set_arithmetic(struct engine *e, struct job *j)
{
    const int op = j->call.op >= KOLO_OP_FIRST_CUSTOM ? KOLO_SUM : j->call.op;
    j->hash = call_hash(&j->call);
    j->type_bytes = kolo_type_size(j->call.type);
    j->reduce = e->reduce->fn[j->call.type][op];
    j->post_div = op == KOLO_AVG ? e->nranks : 0;
    const size_t all = j->in_bytes + j->out_bytes;
    j->stream = all > e->stream_bytes / (size_t)e->nranks;
}

enum kolo_status job_prepare(struct engine *e, struct job *j)
{
    j->shaped = NULL;
    job_set_arithmetic(e, j);
    TRY(reserve(e, j, j->program));
    if (j->fallback)
        TRY(reserve(e, j, j->fallback));
    return KOLO_OK;
}
