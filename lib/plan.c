/* plan.c - the builder: it collects moves, refuses what no plan may contain, and packs the
 * result into one block of memory.
 *
 *   struct plan | steps ... | operands ... | lanes ...
 *
 * Checked here is what one rank can see alone: kinds and ranges of operands, the rows of chunks
 * that the collective prescribes, one lane per link direction.  Whether the plans of all ranks
 * fit together is the verifier's business. */
#include "plan_gen.h"

#include "mem.h"

#include <stdio.h>
#include <string.h>

enum {
    MAX_CHUNKS = 1 << 24,
    MAX_LANES = 1 << 12,
    MAX_STEPS = 1 << 28,
};

/* A growing array of elements of one kind. */
struct row {
    void *at;
    size_t n;
    size_t room;
};

struct plan_builder {
    struct plan head; /* all but the arrays and what plan_build computes */
    struct row lanes;
    struct row steps;
    struct row operands;
    struct row dst; /* operands of the move that is being built */
    struct row src;
    bool has_move;
    struct plan_step move;
    enum kolo_status status; /* sticky */
};

/* Who uses one direction of one link. */
struct use {
    uint32_t key; /* 1 + (peer, channel, direction); 0: a free entry */
    uint32_t lane;
    uint32_t step; /* 1 + the last one; 0: none yet */
};

/* A hash table of them, by linear probing; never more than half full. */
struct uses {
    struct use *at;
    size_t mask; /* a power of two - 1 */
};

/* ---- create and destroy ---------------------------------------------------------------------- */

static enum kolo_status check_shape(const struct plan_shape *s, const char *algo)
{
    const size_t length = strlen(algo);
    const char *const coll = kolo_coll_name((int)s->coll);
    if (!coll)
        return fail(KOLO_ERR_ARG, "plan %s: there is no collective number %d", algo, (int)s->coll);
    if (s->nranks < 1 || s->nranks > PLAN_MAX_RANKS)
        return fail(KOLO_ERR_ARG, "plan %s %s: %d ranks; 1 to %d are possible", coll, algo,
                    s->nranks, PLAN_MAX_RANKS);
    if (s->rank < 0 || s->rank >= s->nranks || s->root < 0 || s->root >= s->nranks)
        return fail(KOLO_ERR_ARG, "plan %s %s: rank %d or root %d is outside 0 to %d", coll, algo,
                    s->rank, s->root, s->nranks - 1);
    if (length == 0 || length >= sizeof(((struct plan *)NULL)->algo) ||
        strspn(algo, "abcdefghijklmnopqrstuvwxyz0123456789_") != length)
        return fail(KOLO_ERR_ARG,
                    "plan %s: the algorithm's name '%.40s' is not 1 to 23 of a-z, 0-9 and _", coll,
                    algo);
    return KOLO_OK;
}

/* The number of chunks of IN and OUT that a collective prescribes; -1: any, but equal and >= 1. */
static void wanted_chunks(const struct plan_shape *s, int *in, int *out)
{
    const bool is_root = s->rank == s->root;
    const int n = s->nranks;
    switch (s->coll) {
    case KOLO_COLL_ALL_REDUCE:
        *in = *out = -1;
        break;
    case KOLO_COLL_BROADCAST:
        *in = is_root ? -1 : 0;
        *out = -1;
        break;
    case KOLO_COLL_REDUCE:
        *in = -1;
        *out = is_root ? -1 : 0;
        break;
    case KOLO_COLL_REDUCE_SCATTER:
    case KOLO_COLL_REDUCE_SCATTER_V:
        *in = n;
        *out = 1;
        break;
    case KOLO_COLL_ALL_GATHER:
    case KOLO_COLL_ALL_GATHER_V:
        *in = 1;
        *out = n;
        break;
    case KOLO_COLL_ALL_TO_ALL:
    case KOLO_COLL_ALL_TO_ALL_V:
        *in = *out = n;
        break;
    case KOLO_COLL_GATHER:
        *in = 1;
        *out = is_root ? n : 0;
        break;
    case KOLO_COLL_SCATTER:
        *in = is_root ? n : 0;
        *out = 1;
        break;
    case KOLO_COLL_SEND:
        *in = 1;
        *out = 0;
        break;
    case KOLO_COLL_RECV:
        *in = 0;
        *out = 1;
        break;
    default:
        *in = *out = 0;
    }
}

static enum kolo_status check_chunks(const struct plan_shape *s, const char *algo, const int n[3])
{
    int in;
    int out;
    wanted_chunks(s, &in, &out);
    bool is_right = (in < 0 ? n[PLAN_IN] >= 1 : n[PLAN_IN] == in) &&
                    (out < 0 ? n[PLAN_OUT] >= 1 : n[PLAN_OUT] == out);
    if (in < 0 && out < 0)
        is_right = is_right && n[PLAN_IN] == n[PLAN_OUT];
    for (int i = 0; i < 3; i++)
        is_right = is_right && n[i] >= 0 && n[i] <= MAX_CHUNKS;
    if (!is_right)
        return fail(
            KOLO_ERR_ARG,
            "plan %s %s rank %d of %d: %d chunks of input, %d of output and %d of scratch do "
            "not suit the collective",
            kolo_coll_name((int)s->coll), algo, s->rank, s->nranks, n[0], n[1], n[2]);
    return KOLO_OK;
}

enum kolo_status plan_builder_create(const struct plan_shape *shape, const char *algo,
                                     int in_chunks, int out_chunks, int tmp_chunks,
                                     struct plan_builder **out)
{
    const int nchunks[3] = {in_chunks, out_chunks, tmp_chunks};
    TRY(check_shape(shape, algo));
    TRY(check_chunks(shape, algo, nchunks));
    struct plan_builder *const b = mem_calloc(1, sizeof(*b));
    if (!b)
        return fail(KOLO_ERR_NOMEM, "plan %s %s: no memory for the builder",
                    kolo_coll_name((int)shape->coll), algo);
    b->head.coll = shape->coll;
    b->head.nranks = shape->nranks;
    b->head.rank = shape->rank;
    b->head.root = shape->root;
    memcpy(b->head.nchunks, nchunks, sizeof(nchunks));
    memcpy(b->head.algo, algo, strlen(algo) + 1);
    *out = b;
    return KOLO_OK;
}

void plan_builder_destroy(struct plan_builder *b)
{
    if (!b)
        return;
    mem_free(b->lanes.at);
    mem_free(b->steps.at);
    mem_free(b->operands.at);
    mem_free(b->dst.at);
    mem_free(b->src.at);
    mem_free(b);
}

void plan_destroy(struct plan *p)
{
    mem_free(p);
}

/* ---- collecting ------------------------------------------------------------------------------ */

static __attribute__((format(printf, 2, 3), cold)) void refuse(struct plan_builder *b,
                                                               const char *format, ...)
{
    char why[256];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(why, sizeof(why), format, args);
    va_end(args);
    b->status = fail(KOLO_ERR_ARG, "plan %s %s rank %d of %d, lane %d, step %d: %s",
                     kolo_coll_name((int)b->head.coll), b->head.algo, b->head.rank, b->head.nranks,
                     (int)b->lanes.n - 1, (int)b->steps.n, why);
}

/* Room for n more elements behind the last one; NULL with the status set when there is none. */
static void *grow(struct plan_builder *b, struct row *row, size_t n, size_t size)
{
    if (row->n + n > row->room) {
        size_t room = row->room < 16 ? 16 : row->room * 2;
        if (room < row->n + n)
            room = row->n + n;
        void *const at = mem_resize(row->at, room, size);
        if (!at) {
            b->status = fail(KOLO_ERR_NOMEM, "plan %s %s rank %d: no memory for %zu entries",
                             kolo_coll_name((int)b->head.coll), b->head.algo, b->head.rank, room);
            return NULL;
        }
        row->at = at;
        row->room = room;
    }
    void *const fresh = (char *)row->at + row->n * size;
    row->n += n;
    return fresh;
}

/* Runs that touch are one run; a run of all needs no stride: one text for one set of chunks. */
static struct plan_span normal_span(struct plan_span of)
{
    if (of.run == of.stride || of.run >= of.count)
        return plan_chunks(of.chunk, of.count);
    return of;
}

static bool check_span(struct plan_builder *b)
{
    const struct plan_step *const m = &b->move;
    const int n = b->head.nchunks[m->of_space];
    if (m->of.chunk < 0 || m->of.chunk >= n || m->of.count < 0 || m->of.count > MAX_CHUNKS)
        refuse(b, "%d chunks from %d on are not in the row of %d that the move is about",
               m->of.count, m->of.chunk, n);
    else if (m->of.run < 1 || (m->of.run < m->of.count && m->of.stride < m->of.run))
        refuse(b, "a span of runs of %d chunks every %d makes no sense", m->of.run, m->of.stride);
    return b->status == KOLO_OK;
}

/* Close the move that is being built: check it as a whole and append it. */
static void finish_move(struct plan_builder *b)
{
    if (!b->has_move || b->status != KOLO_OK)
        return;
    b->has_move = false;
    struct plan_step *const m = &b->move;
    const size_t ndst = b->dst.n;
    const size_t nsrc = b->src.n;
    const bool is_bare = m->of.count == 0;
    if (ndst > UINT16_MAX || nsrc > UINT16_MAX)
        return refuse(b, "%zu destinations and %zu sources; %d of each are possible", ndst, nsrc,
                      UINT16_MAX);
    if (ndst + nsrc == 0 || (!is_bare && (ndst == 0 || nsrc == 0)))
        return refuse(b, "%zu destinations and %zu sources for %d chunks: something is missing",
                      ndst, nsrc, m->of.count);
    if (b->steps.n >= MAX_STEPS || b->operands.n > INT32_MAX - 2 * UINT16_MAX)
        return refuse(b, "the plan is too long");
    m->first = (uint32_t)b->operands.n;
    m->ndst = (uint16_t)ndst;
    m->nsrc = (uint16_t)nsrc;
    struct plan_operand *const o = grow(b, &b->operands, ndst + nsrc, sizeof(*o));
    struct plan_step *const step = o ? grow(b, &b->steps, 1, sizeof(*step)) : NULL;
    if (!step)
        return;
    if (ndst > 0)
        memcpy(o, b->dst.at, ndst * sizeof(*o));
    if (nsrc > 0)
        memcpy(o + ndst, b->src.at, nsrc * sizeof(*o));
    *step = *m;
    ((struct plan_lane *)b->lanes.at)[b->lanes.n - 1].nsteps++;
}

void plan_lane_begin(struct plan_builder *b)
{
    finish_move(b);
    if (b->status != KOLO_OK)
        return;
    if (b->lanes.n >= MAX_LANES)
        return refuse(b, "more than %d lanes", MAX_LANES);
    struct plan_lane *const lane = grow(b, &b->lanes, 1, sizeof(*lane));
    if (lane)
        *lane = (struct plan_lane){(uint32_t)b->steps.n, 0};
}

void plan_move(struct plan_builder *b, enum plan_space of_space, struct plan_span of,
               unsigned flags)
{
    finish_move(b);
    if (b->status != KOLO_OK)
        return;
    if (b->lanes.n == 0)
        return refuse(b, "a move before the first lane");
    if ((of_space != PLAN_IN && of_space != PLAN_OUT) || (flags & ~(unsigned)PLAN_FINAL) != 0)
        return refuse(b, "a move is about chunks of IN or OUT, with known flags only");
    const bool is_bare = of.count == 0;
    b->dst.n = 0;
    b->src.n = 0;
    b->move = (struct plan_step){.of_space = (uint8_t)of_space, .flags = (uint8_t)flags, .of = of};
    if (is_bare && flags != 0)
        return refuse(b, "a bare move has no flags");
    if (is_bare)
        b->move = (struct plan_step){.of_space = PLAN_IN};
    else if (check_span(b))
        b->move.of = normal_span(of);
    b->has_move = b->status == KOLO_OK;
}

/* Chunks in `space` of another rank, as far as this rank can know: rooted collectives have buffers
 * that only some ranks own.  The verifier knows all. */
static int peer_chunks(const struct plan *p, enum plan_space space)
{
    const int mine = p->nchunks[space == PLAN_PEER_IN ? PLAN_IN : PLAN_OUT];
    switch (p->coll) {
    case KOLO_COLL_BROADCAST:
    case KOLO_COLL_REDUCE:
        return max_int(p->nchunks[PLAN_IN], p->nchunks[PLAN_OUT]);
    case KOLO_COLL_GATHER:
        return space == PLAN_PEER_IN ? 1 : p->nranks;
    case KOLO_COLL_SCATTER:
        return space == PLAN_PEER_IN ? p->nranks : 1;
    default:
        return mine;
    }
}

static void add_operand(struct plan_builder *b, struct row *row, bool is_dst, enum plan_space space,
                        int peer, int channel, int chunk)
{
    if (b->status != KOLO_OK)
        return;
    if (!b->has_move)
        return refuse(b, "an operand before the first move");
    const struct plan *const p = &b->head;
    const bool has_peer = space == PLAN_LINK || space == PLAN_PEER_IN || space == PLAN_PEER_OUT;
    if ((unsigned)space > PLAN_PEER_OUT || (is_dst && (space == PLAN_IN || space == PLAN_PEER_IN)))
        return refuse(b, "space %d cannot be a %s", (int)space, is_dst ? "destination" : "source");
    if (has_peer && (peer < 0 || peer >= p->nranks || peer == p->rank))
        return refuse(b, "peer %d is not another rank", peer);
    struct plan_operand made = {.space = (uint8_t)space, .peer = has_peer ? peer : -1};
    if (space == PLAN_LINK) {
        if (channel < 0 || channel >= PLAN_MAX_CHANNELS)
            return refuse(b, "channel %d is not 0 to %d", channel, PLAN_MAX_CHANNELS - 1);
        made.channel = (uint8_t)channel;
    } else {
        const int n = has_peer ? peer_chunks(p, space) : p->nchunks[space];
        if (b->move.of.count == 0)
            return refuse(b, "a bare move with an operand that is no link");
        if (chunk < 0 || chunk >= n || b->move.of.count > n)
            return refuse(b, "%d chunks from %d on are not in a row of %d", b->move.of.count, chunk,
                          n);
        made.chunk = chunk;
    }
    struct plan_operand *const o = grow(b, row, 1, sizeof(*o));
    if (o)
        *o = made;
}

void plan_to(struct plan_builder *b, enum plan_space space, int peer, int channel, int chunk)
{
    add_operand(b, &b->dst, true, space, peer, channel, chunk);
}

void plan_from(struct plan_builder *b, enum plan_space space, int peer, int channel, int chunk)
{
    add_operand(b, &b->src, false, space, peer, channel, chunk);
}

/* ---- building -------------------------------------------------------------------------------- */

/* Whether the sources are the contributions of ranks 0 .. n-1 in this order, as far as one rank can
 * see, or there is nothing to reduce. */
static bool is_in_rank_order(const struct plan *p, const struct plan_step *s,
                             const struct plan_operand *src)
{
    if (!(s->flags & PLAN_FINAL))
        return s->nsrc <= 1;
    if (s->nsrc != p->nranks)
        return false;
    for (int i = 0; i < s->nsrc; i++) {
        const bool is_peers = src[i].space == PLAN_LINK || src[i].space == PLAN_PEER_IN;
        if (i == p->rank ? src[i].space != PLAN_IN : !is_peers || src[i].peer != i)
            return false;
    }
    return true;
}

static struct use *use_of(const struct uses *uses, const struct plan_operand *o, bool is_dst)
{
    const uint32_t key = ((uint32_t)o->peer * PLAN_MAX_CHANNELS + o->channel) * 2 + is_dst + 1;
    size_t i = key * UINT64_C(0x9e3779b97f4a7c15) >> 32;
    while (uses->at[i & uses->mask].key != key && uses->at[i & uses->mask].key != 0)
        i++;
    uses->at[i & uses->mask].key = key;
    return &uses->at[i & uses->mask];
}

/* One link direction belongs to one lane, and a move takes at most one message from it. */
static void check_use(struct plan_builder *b, const struct uses *uses, const struct plan_operand *o,
                      bool is_dst, uint32_t lane, uint32_t step)
{
    const struct plan *const p = &b->head;
    struct use *const u = use_of(uses, o, is_dst);
    const bool is_new = u->step == 0;
    if (!is_new && u->lane != lane)
        b->status = fail(KOLO_ERR_ARG,
                         "plan %s %s rank %d of %d: lanes %u and %u both %s rank %d on channel %d",
                         kolo_coll_name((int)p->coll), p->algo, p->rank, p->nranks, u->lane, lane,
                         is_dst ? "send to" : "receive from", o->peer, o->channel);
    else if (u->step == step + 1)
        b->status = fail(KOLO_ERR_ARG,
                         "plan %s %s rank %d of %d, lane %u: a move uses the link %s rank %d on "
                         "channel %d twice",
                         kolo_coll_name((int)p->coll), p->algo, p->rank, p->nranks, lane,
                         is_dst ? "to" : "from", o->peer, o->channel);
    u->lane = lane;
    u->step = step + 1;
}

/* Everything that plan_build computes from the operands of one step. */
static void account_step(struct plan_builder *b, const struct uses *uses, uint32_t lane,
                         uint32_t step)
{
    struct plan *const p = &b->head;
    const struct plan_step *const s = (const struct plan_step *)b->steps.at + step;
    const struct plan_operand *const o = (const struct plan_operand *)b->operands.at + s->first;
    for (int i = 0; i < s->ndst + s->nsrc && b->status == KOLO_OK; i++) {
        const bool is_dst = i < s->ndst;
        if (o[i].space == PLAN_LINK) {
            p->nchannels = max_int(p->nchannels, o[i].channel + 1);
            p->max_span = max_int(p->max_span, s->of.count);
            check_use(b, uses, &o[i], is_dst, lane, step);
        } else if (o[i].space == PLAN_PEER_IN || o[i].space == PLAN_PEER_OUT) {
            p->flags |= is_dst ? PLAN_WRITES_PEERS : PLAN_READS_PEERS;
        }
    }
    if (s->of.count > 0 && !is_in_rank_order(p, s, o + s->ndst))
        p->flags &= ~(unsigned)PLAN_RANK_ORDER;
}

static enum kolo_status account(struct plan_builder *b)
{
    struct plan *const p = &b->head;
    const struct plan_lane *const lanes = b->lanes.at;
    struct uses uses = {.mask = 15};
    while (uses.mask < 2 * b->operands.n)
        uses.mask = 2 * uses.mask + 1;
    uses.at = mem_calloc(uses.mask + 1, sizeof(*uses.at));
    if (!uses.at)
        return fail(KOLO_ERR_NOMEM, "plan %s %s rank %d: no memory to check its links",
                    kolo_coll_name((int)p->coll), p->algo, p->rank);
    p->nchannels = 0;
    p->max_span = 1;
    p->flags = plan_is_reducing(p->coll) ? PLAN_RANK_ORDER : 0;
    for (size_t l = 0; l < b->lanes.n; l++) {
        for (uint32_t i = 0; i < lanes[l].nsteps && b->status == KOLO_OK; i++)
            account_step(b, &uses, (uint32_t)l, lanes[l].first + i);
    }
    mem_free(uses.at);
    if (b->status == KOLO_OK && coll_is_v(p->coll) && p->max_span > 1)
        b->status =
            fail(KOLO_ERR_ARG,
                 "plan %s %s rank %d of %d: a message of a v-variant carries one chunk, not %d",
                 kolo_coll_name((int)p->coll), p->algo, p->rank, p->nranks, p->max_span);
    return b->status;
}

static void *copy_row(char **at, const struct row *row, size_t size)
{
    void *const start = *at;
    if (row->n > 0)
        memcpy(start, row->at, row->n * size);
    *at += row->n * size;
    return start;
}

enum kolo_status plan_build(struct plan_builder *b, struct plan **out)
{
    finish_move(b);
    if (b->status == KOLO_OK && b->lanes.n == 0)
        refuse(b, "a plan without lanes");
    TRY(b->status);
    TRY(account(b));
    struct plan *const p = mem_calloc(1, sizeof(*p) + b->steps.n * sizeof(struct plan_step) +
                                             b->operands.n * sizeof(struct plan_operand) +
                                             b->lanes.n * sizeof(struct plan_lane));
    if (!p)
        return fail(KOLO_ERR_NOMEM, "plan %s %s rank %d: no memory for %zu steps",
                    kolo_coll_name((int)b->head.coll), b->head.algo, b->head.rank, b->steps.n);
    *p = b->head;
    p->nlanes = (int)b->lanes.n;
    p->nsteps = (int)b->steps.n;
    p->noperands = (int)b->operands.n;
    char *at = (char *)(p + 1);
    p->steps = copy_row(&at, &b->steps, sizeof(struct plan_step));
    p->operands = copy_row(&at, &b->operands, sizeof(struct plan_operand));
    p->lanes = copy_row(&at, &b->lanes, sizeof(struct plan_lane));
    *out = p;
    return KOLO_OK;
}

bool plan_equal(const struct plan *a, const struct plan *b)
{
    return a->coll == b->coll && a->nranks == b->nranks && a->rank == b->rank &&
           a->root == b->root && memcmp(a->nchunks, b->nchunks, sizeof(a->nchunks)) == 0 &&
           a->nlanes == b->nlanes && a->nsteps == b->nsteps && a->noperands == b->noperands &&
           a->nchannels == b->nchannels && a->max_span == b->max_span && a->flags == b->flags &&
           strcmp(a->algo, b->algo) == 0 &&
           memcmp(a->lanes, b->lanes, (size_t)a->nlanes * sizeof(*a->lanes)) == 0 &&
           memcmp(a->steps, b->steps, (size_t)a->nsteps * sizeof(*a->steps)) == 0 &&
           memcmp(a->operands, b->operands, (size_t)a->noperands * sizeof(*a->operands)) == 0;
}
