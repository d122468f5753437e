/* test_plan_mutant.c - the verifier against a judge that shares nothing with it: plans of all
 * algorithms with one fault each are proven, and run on numbers in random orders.  A plan that is
 * accepted must come out right in every order, in place or not, and the sound plan as well. */
#include "support/test.h"

#include "mem.h"
#include "plan.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 5, ROUNDS = 3, SLOTS = 2, ORDERS = 18 };

static uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint64_t number(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t state = a * 1000003 + b * 7919 + c;
    return random_next(&state);
}

/* ---- the judge: a machine that runs plans on numbers --------------------------------------- */

enum { AVERAGE = 12345677 }; /* FINAL multiplies by this, so that once is not twice */

struct message {
    uint64_t *values;
    const struct plan_step *sender;
};

struct machine {
    struct plan *const *plans;
    int n;
    unsigned in_place;                   /* a bit for each rank that passes one buffer */
    uint64_t *memory;                    /* of all ranks */
    size_t space[MOST_RANKS][ROUNDS][3]; /* where each begins */
    uint32_t *at[MOST_RANKS];            /* steps done per lane, over the rounds */
    bool has_entered[MOST_RANKS];
    bool has_left[MOST_RANKS];
    struct message *links; /* [src][dst][channel][slot] */
    uint32_t sent[MOST_RANKS][MOST_RANKS][PLAN_MAX_CHANNELS];
    uint32_t taken[MOST_RANKS][MOST_RANKS][PLAN_MAX_CHANNELS];
    bool is_wrong;
};

static uint64_t expected(const struct machine *m, int rank, int chunk, int round)
{
    const struct plan *p = m->plans[rank];
    uint64_t sum = 0;
    switch (p->coll) {
    case KOLO_COLL_ALL_GATHER:
    case KOLO_COLL_GATHER:
        return number((uint64_t)chunk, 0, (uint64_t)round);
    case KOLO_COLL_ALL_TO_ALL:
        return number((uint64_t)chunk, (uint64_t)rank, (uint64_t)round);
    case KOLO_COLL_BROADCAST:
        return number((uint64_t)p->root, (uint64_t)chunk, (uint64_t)round);
    case KOLO_COLL_SCATTER:
        return number((uint64_t)p->root, (uint64_t)rank, (uint64_t)round);
    default:
        for (int k = 0; k < m->n; k++)
            sum +=
                number((uint64_t)k, (uint64_t)(p->coll == KOLO_COLL_REDUCE_SCATTER ? rank : chunk),
                       (uint64_t)round);
        return sum * AVERAGE;
    }
}

static size_t shared_start(const struct plan *p, size_t in, size_t *out)
{
    size_t shift = (size_t)p->rank;
    *out = in;
    switch (p->coll) {
    case KOLO_COLL_ALL_GATHER:
    case KOLO_COLL_GATHER:
        return in + shift;
    case KOLO_COLL_REDUCE_SCATTER:
    case KOLO_COLL_SCATTER:
        *out = in + shift;
        return in;
    default:
        return in;
    }
}

static void machine_init(struct machine *m)
{
    size_t room = 0, end = 0;
    for (int r = 0; r < m->n; r++)
        for (int s = 0; s < 3; s++)
            room += (size_t)m->plans[r]->nchunks[s] * ROUNDS;
    m->memory = calloc(room + 1, sizeof(*m->memory));
    m->links = calloc((size_t)(m->n * m->n * PLAN_MAX_CHANNELS * SLOTS), sizeof(*m->links));
    for (size_t i = 0; i < room; i++)
        m->memory[i] = number(99, i, 99);
    for (int r = 0; r < m->n; r++) {
        const struct plan *p = m->plans[r];
        const size_t in = (size_t)p->nchunks[PLAN_IN], out = (size_t)p->nchunks[PLAN_OUT];
        m->at[r] = calloc((size_t)p->nlanes + 1, sizeof(*m->at[r]));
        for (int t = 0; t < ROUNDS; t++) {
            size_t *space = m->space[r][t];
            space[PLAN_IN] = end;
            space[PLAN_OUT] = end + in;
            if ((m->in_place >> r & 1) != 0 && in > 0 && out > 0)
                space[PLAN_IN] = shared_start(p, end, &space[PLAN_OUT]);
            end += in + out;
            for (size_t c = 0; c < in; c++)
                m->memory[space[PLAN_IN] + c] = number((uint64_t)r, c, (uint64_t)t);
            space[PLAN_TMP] = t == 0 ? end : m->space[r][0][PLAN_TMP];
            if (t == 0)
                end += (size_t)p->nchunks[PLAN_TMP];
        }
    }
}

static void machine_fini(struct machine *m)
{
    for (int i = 0; i < m->n * m->n * PLAN_MAX_CHANNELS * SLOTS; i++)
        free(m->links[i].values);
    for (int r = 0; r < m->n; r++)
        free(m->at[r]);
    free(m->links);
    free(m->memory);
}

static struct message *slot(struct machine *m, int src, int dst, int channel, uint32_t i)
{
    return &m->links[(((src * m->n) + dst) * PLAN_MAX_CHANNELS + channel) * SLOTS +
                     (int)(i % SLOTS)];
}

static bool can_run(const struct machine *m, int r, const struct plan_step *s)
{
    const struct plan_operand *o = m->plans[r]->operands + s->first;
    for (int i = 0; i < s->ndst + s->nsrc; i++) {
        if (o[i].space != PLAN_LINK)
            continue;
        const int src = i < s->ndst ? r : o[i].peer, dst = i < s->ndst ? o[i].peer : r;
        const uint32_t held = m->sent[src][dst][o[i].channel] - m->taken[src][dst][o[i].channel];
        if (i < s->ndst ? held >= SLOTS : held == 0)
            return false;
    }
    return true;
}

/* Where element i of an operand is. */
static uint64_t *place(struct machine *m, int r, const struct plan_step *s,
                       const struct plan_operand *o, bool is_dst, int i, int round)
{
    if (o->space == PLAN_LINK) {
        const int src = is_dst ? r : o->peer, dst = is_dst ? o->peer : r;
        const uint32_t k = is_dst ? m->sent[src][dst][o->channel] : m->taken[src][dst][o->channel];
        return slot(m, src, dst, o->channel, k)->values + i;
    }
    const bool is_peer = o->space == PLAN_PEER_IN || o->space == PLAN_PEER_OUT;
    const int owner = is_peer ? o->peer : r;
    const int space = o->space == PLAN_PEER_IN    ? PLAN_IN
                      : o->space == PLAN_PEER_OUT ? PLAN_OUT
                                                  : o->space;
    m->is_wrong |= is_peer && m->has_left[owner];
    if (m->plans[owner]->nchunks[space] == 0) {
        m->is_wrong = true;
        return m->memory;
    }
    return m->memory + m->space[owner][round][space] +
           plan_span_at(&s->of, o->chunk, i, m->plans[owner]->nchunks[space]);
}

static void open_messages(struct machine *m, int r, const struct plan_step *s)
{
    const struct plan_operand *o = m->plans[r]->operands + s->first;
    for (int i = 0; i < s->ndst + s->nsrc; i++) {
        if (o[i].space != PLAN_LINK)
            continue;
        if (i >= s->ndst) {
            const struct message *got =
                slot(m, o[i].peer, r, o[i].channel, m->taken[o[i].peer][r][o[i].channel]);
            m->is_wrong |= got->sender == NULL || got->sender->of.count != s->of.count;
            continue;
        }
        struct message *made =
            slot(m, r, o[i].peer, o[i].channel, m->sent[r][o[i].peer][o[i].channel]);
        made->sender = s;
        made->values = realloc(made->values, (size_t)(s->of.count + 1) * sizeof(uint64_t));
    }
}

static void run_step(struct machine *m, int r, const struct plan_step *s, int round)
{
    const struct plan_operand *o = m->plans[r]->operands + s->first;
    open_messages(m, r, s);
    for (int i = 0; !m->is_wrong && i < s->of.count; i++) {
        uint64_t value = 0;
        for (int j = 0; j < s->nsrc; j++)
            value += *place(m, r, s, &o[s->ndst + j], false, i, round);
        if (s->flags & PLAN_FINAL)
            value *= AVERAGE;
        for (int j = 0; j < s->ndst; j++)
            *place(m, r, s, &o[j], true, i, round) = value;
    }
    for (int i = 0; i < s->ndst + s->nsrc; i++) {
        if (o[i].space != PLAN_LINK)
            continue;
        if (i < s->ndst)
            m->sent[r][o[i].peer][o[i].channel]++;
        else
            m->taken[o[i].peer][r][o[i].channel]++;
    }
}

static bool is_done(const struct machine *m, int r, int rounds)
{
    for (int l = 0; l < m->plans[r]->nlanes; l++)
        if (m->at[r][l] < m->plans[r]->lanes[l].nsteps * (uint32_t)rounds)
            return false;
    return true;
}

static void leave(struct machine *m, int r, int rounds)
{
    const struct plan *p = m->plans[r];
    m->has_left[r] = true;
    for (int k = 0; k < m->n; k++)
        m->is_wrong |= p->coll == KOLO_COLL_BARRIER && !m->has_entered[k];
    for (int t = 0; t < rounds; t++)
        for (int c = 0; c < p->nchunks[PLAN_OUT]; c++)
            m->is_wrong |= m->memory[m->space[r][t][PLAN_OUT] + (size_t)c] != expected(m, r, c, t);
}

/* One attempt to do a step of lane l of rank r; true if something happened. */
static bool attempt(struct machine *m, int r, int l, int rounds)
{
    const struct plan *p = m->plans[r];
    const uint32_t at = m->at[r][l], nsteps = p->lanes[l].nsteps;
    if (at >= nsteps * (uint32_t)rounds)
        return false;
    const struct plan_step *s = &p->steps[p->lanes[l].first + at % nsteps];
    if (!can_run(m, r, s))
        return false;
    run_step(m, r, s, (int)(at / nsteps));
    m->at[r][l]++;
    return true;
}

/* Run in a random order, with lanes that like to run on by themselves.  Is the result right? */
static bool run(struct plan *const *plans, int n, unsigned in_place, uint64_t seed)
{
    struct machine m = {.plans = plans, .n = n, .in_place = in_place};
    const int rounds = plans[0]->coll == KOLO_COLL_BARRIER ? 1 : 1 + (int)(seed % ROUNDS);
    machine_init(&m);
    int idle = 0, nlanes = 0;
    for (int r = 0; r < n; r++) {
        nlanes += plans[r]->nlanes;
        m.has_entered[r] = plans[0]->coll != KOLO_COLL_BARRIER;
    }
    bool has_all = false;
    while (!m.is_wrong && !has_all && idle < 50 * nlanes + 200) {
        const int r = (int)(random_next(&seed) % (uint64_t)n);
        const bool is_eager = random_next(&seed) % 2 == 0;
        idle++;
        if (!m.has_entered[r]) {
            m.has_entered[r] = random_next(&seed) % 4 == 0;
            continue;
        }
        if (m.has_left[r])
            continue;
        if (plans[r]->nlanes > 0) {
            const int l = (int)(random_next(&seed) % (uint64_t)plans[r]->nlanes);
            while (!m.is_wrong && attempt(&m, r, l, rounds)) {
                idle = 0;
                if (!is_eager)
                    break;
            }
        }
        if (!m.is_wrong && is_done(&m, r, rounds)) {
            leave(&m, r, rounds);
            idle = 0;
        }
        has_all = true;
        for (int k = 0; k < n; k++)
            has_all &= m.has_left[k];
    }
    machine_fini(&m);
    return has_all && !m.is_wrong;
}

/* ---- faults -------------------------------------------------------------------------------- */

/* A plan in pieces, with room for one step more. */
struct mutant {
    struct plan plan;
    struct plan_lane *lanes;
    struct plan_step *steps;
    struct plan_operand *operands;
};

static void mutant_init(struct mutant *m, const struct plan *p)
{
    m->plan = *p;
    m->lanes = calloc((size_t)p->nlanes + 1, sizeof(*m->lanes));
    m->steps = calloc((size_t)p->nsteps + 1, sizeof(*m->steps));
    m->operands = calloc((size_t)p->noperands + 1, sizeof(*m->operands));
    memcpy(m->lanes, p->lanes, (size_t)p->nlanes * sizeof(*m->lanes));
    memcpy(m->steps, p->steps, (size_t)p->nsteps * sizeof(*m->steps));
    memcpy(m->operands, p->operands, (size_t)p->noperands * sizeof(*m->operands));
    m->plan.lanes = m->lanes;
    m->plan.steps = m->steps;
    m->plan.operands = m->operands;
    m->plan.flags &= ~(unsigned)PLAN_RANK_ORDER; /* true of the original */
}

static void mutant_fini(struct mutant *m)
{
    free(m->lanes);
    free(m->steps);
    free(m->operands);
}

static int lane_of(const struct mutant *m, int step)
{
    int lane = 0;
    while ((uint32_t)step >= m->lanes[lane].first + m->lanes[lane].nsteps)
        lane++;
    return lane;
}

static void shift_steps(struct mutant *m, int step, int by)
{
    const int lane = lane_of(m, step);
    const int from = by < 0 ? step + 1 : step;
    memmove(&m->steps[from + by], &m->steps[from],
            (size_t)(m->plan.nsteps - from) * sizeof(*m->steps));
    m->lanes[lane].nsteps += (uint32_t)by;
    for (int l = lane + 1; l < m->plan.nlanes; l++)
        m->lanes[l].first += (uint32_t)by;
    m->plan.nsteps += by;
}

/* Take an operand out of a step, and the step if nothing of use is left. */
static void drop_operand(struct mutant *m, int step, int i)
{
    struct plan_step *s = &m->steps[step];
    struct plan_operand *o = m->operands + s->first;
    memmove(&o[i], &o[i + 1], (size_t)(s->ndst + s->nsrc - i - 1) * sizeof(*o));
    if (i < s->ndst)
        s->ndst--;
    else
        s->nsrc--;
    if (s->of.count > 0 ? s->ndst == 0 || s->nsrc == 0 : s->ndst + s->nsrc == 0)
        shift_steps(m, step, -1);
}

/* Find (nth < 0: count) the operand that is the nth use of the link by this plan; false: none. */
static bool find_use(const struct mutant *m, bool is_send, int peer, int channel, int nth,
                     int *step, int *operand)
{
    for (int i = 0; i < m->plan.nsteps; i++) {
        const struct plan_step *s = &m->steps[i];
        const int from = is_send ? 0 : s->ndst, to = is_send ? s->ndst : s->ndst + s->nsrc;
        for (int j = from; j < to; j++) {
            const struct plan_operand *o = &m->operands[s->first + (uint32_t)j];
            if (o->space != PLAN_LINK || o->peer != peer || o->channel != channel || nth-- > 0)
                continue;
            *step = i;
            *operand = j;
            return true;
        }
    }
    return false;
}

enum fault {
    DROP_STEP,
    SWAP_STEPS,
    TWICE,
    OTHER_PEER,
    OTHER_CHUNK,
    OTHER_SPAN,
    FINAL_FLIPPED,
    DROP_OPERAND,
    DROP_MESSAGE,
    NFAULTS,
};

static bool change_operand(struct mutant *m, const struct mutant *all, struct plan_operand *o,
                           bool is_peer, int by)
{
    const int n = m->plan.nranks;
    if (is_peer) {
        if (o->peer < 0 || n < 3)
            return false;
        do
            o->peer = (o->peer + 1) % n;
        while (o->peer == m->plan.rank);
        return true;
    }
    if (o->space == PLAN_LINK)
        return false;
    const int owner = o->peer >= 0 ? o->peer : m->plan.rank;
    const int space = o->space == PLAN_PEER_IN    ? PLAN_IN
                      : o->space == PLAN_PEER_OUT ? PLAN_OUT
                                                  : o->space;
    const int count = all[owner].plan.nchunks[space];
    o->chunk = (o->chunk + 1 + by % (count > 1 ? count - 1 : 1)) % count;
    return count > 1;
}

/* Take the message that this operand sends out of both plans. */
static bool drop_message(struct mutant *all, int rank, int step, int i)
{
    const struct plan_step *s = &all[rank].steps[step];
    const struct plan_operand o = all[rank].operands[s->first + (uint32_t)i];
    int at_step, at_operand, nth = 0;
    if (o.space != PLAN_LINK || i >= s->ndst)
        return false;
    while (find_use(&all[rank], true, o.peer, o.channel, nth, &at_step, &at_operand) &&
           (at_step != step || at_operand != i))
        nth++;
    if (!find_use(&all[o.peer], false, rank, o.channel, nth, &at_step, &at_operand))
        return false;
    drop_operand(&all[o.peer], at_step, at_operand);
    drop_operand(&all[rank], step, i);
    return true;
}

/* Plant a fault into `step` of `rank`; false where it makes no sense. */
static bool plant(struct mutant *all, enum fault fault, int rank, int step, uint64_t *random)
{
    struct mutant *m = &all[rank];
    struct plan_step *s = &m->steps[step];
    const int i = (int)(random_next(random) % (uint64_t)(s->ndst + s->nsrc));
    const int lane = lane_of(m, step);
    const int by = (int)(random_next(random) % 8);
    switch (fault) {
    case DROP_STEP:
        shift_steps(m, step, -1);
        return true;
    case SWAP_STEPS:
        if ((uint32_t)step + 1 >= m->lanes[lane].first + m->lanes[lane].nsteps)
            return false;
        struct plan_step kept = s[0];
        s[0] = s[1];
        s[1] = kept;
        return true;
    case TWICE:
        kept = *s;
        shift_steps(m, step, 1);
        m->steps[step] = kept;
        return true;
    case OTHER_PEER:
    case OTHER_CHUNK:
        return change_operand(m, all, &m->operands[s->first + (uint32_t)i], fault == OTHER_PEER,
                              by);
    case OTHER_SPAN:
        if (s->of.count == 0 || m->plan.nchunks[s->of_space] < 2)
            return false;
        s->of.chunk = (s->of.chunk + 1) % m->plan.nchunks[s->of_space];
        return true;
    case FINAL_FLIPPED:
        s->flags ^= PLAN_FINAL;
        return s->of.count > 0;
    case DROP_OPERAND:
        drop_operand(m, step, i);
        return true;
    default:
        return drop_message(all, rank, step, i);
    }
}

/* What is accepted is equivalent: neighbouring steps that share neither a chunk nor a link have
 * changed places, a copy is done twice, or a move names other chunks of the same length.  What is
 * refused but comes out right has another length, a message left over, or a race that numbers do
 * not show. */

/* ---- the trial ----------------------------------------------------------------------------- */

struct tally {
    int planted;
    int accepted;
    int refused_but_right; /* in all orders tried */
};

static bool is_always_right(struct plan *const *plans, int n, bool not_in_place, uint64_t seed)
{
    for (int i = 0; i < ORDERS; i++) {
        /* nobody, everybody, or some ranks in place */
        const unsigned mixed = (unsigned)random_next(&seed), all = (1u << n) - 1;
        const unsigned in_place = i % 3 == 0 ? 0 : i % 3 == 1 ? all : mixed & all;
        if (!run(plans, n, not_in_place ? 0 : in_place, random_next(&seed)))
            return false;
    }
    return true;
}

static void try_mutant(struct plan *const *plans, const struct plan_algo *a, int n,
                       enum fault fault, int rank, int step, uint64_t seed, struct tally *tally)
{
    struct mutant all[MOST_RANKS];
    struct plan *mutants[MOST_RANKS];
    uint64_t random = seed;
    for (int r = 0; r < n; r++) {
        mutant_init(&all[r], plans[r]);
        mutants[r] = &all[r].plan;
    }
    if (plant(all, fault, rank, step, &random)) {
        const bool not_in_place = (a->flags & ALGO_NOT_IN_PLACE) != 0;
        const struct plan_limits limits = {.slots = SLOTS, .not_in_place = not_in_place};
        const bool is_accepted = plan_verify(mutants, n, &limits) == KOLO_OK;
        tally->planted++;
        tally->accepted += is_accepted;
        if (is_accepted)
            cr_assert(
                is_always_right(mutants, n, not_in_place, seed),
                "%s/%s of %d ranks, fault %d in rank %d step %d, seed %llu: accepted but wrong",
                kolo_coll_name((int)a->coll), a->name, n, (int)fault, rank, step,
                (unsigned long long)seed);
        else
            tally->refused_but_right += is_always_right(mutants, n, not_in_place, seed);
    }
    for (int r = 0; r < n; r++)
        mutant_fini(&all[r]);
}

static void try_algorithm(const struct plan_algo *a, int n, uint64_t *seed, struct tally *tally)
{
    struct plan_shape shape = {.coll = a->coll, .nranks = n};
    struct plan *plans[MOST_RANKS];
    shape.root = a->coll == KOLO_COLL_BROADCAST || a->coll == KOLO_COLL_REDUCE ||
                         a->coll == KOLO_COLL_GATHER || a->coll == KOLO_COLL_SCATTER
                     ? n / 2
                     : 0;
    if (!plan_algo_can(a, &shape))
        return;
    for (shape.rank = 0; shape.rank < n; shape.rank++)
        cr_assert_eq(plan_generate(a, &shape, &plans[shape.rank]), KOLO_OK, "%s", fail_text());
    cr_assert(is_always_right(plans, n, (a->flags & ALGO_NOT_IN_PLACE) != 0, *seed),
              "%s/%s of %d ranks, seed %llu: wrong as it is", kolo_coll_name((int)a->coll), a->name,
              n, (unsigned long long)*seed);
    for (int r = 0; r < n; r++)
        for (int step = 0; step < plans[r]->nsteps; step++)
            for (int fault = 0; fault < NFAULTS; fault++)
                if (n < 5 || random_next(seed) % 4 == 0)
                    try_mutant(plans, a, n, (enum fault)fault, r, step, random_next(seed), tally);
    for (int r = 0; r < n; r++)
        plan_destroy(plans[r]);
}

static struct tally try_all(enum kolo_coll from, enum kolo_coll to)
{
    size_t count;
    const struct plan_algo *algos = plan_algos(&count);
    struct tally tally = {0};
    uint64_t seed = 20;
    for (size_t i = 0; i < count; i++)
        for (int n = 2; n <= MOST_RANKS; n++)
            if (algos[i].coll >= from && algos[i].coll <= to)
                try_algorithm(&algos[i], n, &seed, &tally);
    cr_assert_gt(tally.planted, 100);
    return tally;
}

Test(plan_mutant, reducing_collectives)
{
    const struct tally t = try_all(KOLO_COLL_ALL_REDUCE, KOLO_COLL_REDUCE_SCATTER);
    cr_assert_lt(t.accepted * 5, t.planted, "%d of %d accepted", t.accepted, t.planted);
}

Test(plan_mutant, gathering_collectives)
{
    const struct tally t = try_all(KOLO_COLL_ALL_GATHER, KOLO_COLL_ALL_TO_ALL);
    cr_assert_lt(t.accepted * 3, t.planted, "%d of %d accepted", t.accepted, t.planted);
}

Test(plan_mutant, rooted_collectives_and_barrier)
{
    const struct tally t = try_all(KOLO_COLL_BROADCAST, KOLO_COLL_BARRIER);
    cr_assert_lt(t.accepted * 3, t.planted, "%d of %d accepted", t.accepted, t.planted);
}
