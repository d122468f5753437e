/* comm_tune.c - measures the algorithms of a new communicator, on the engine that will run them:
 *
 *   for each size, for each collective, for each algorithm that is not hopeless:
 *       a barrier, then a run of calls; some runs in turn with the rivals; the shortest counts
 *   merge: the largest over the ranks, by an all_reduce, which also tells the time spent
 *
 * Whatever steers the course is computed from what has been merged, so all ranks take the same one
 * and end with the same table.  Nothing is allocated on the way. */
#include "cfg.h"
#include "comm.h"
#include "heap.h"
#include "log.h"
#include "mem.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    MOST_RUNS = 6,
    LEAST_RUNS = 2,
    RUN_NS = 40000, /* aim of a run of calls: long against clock and barrier */
    MOST_CALLS = 100,
    PROBE_CALLS = 4,      /* where nothing is known yet */
    BUDGET_NS = 80000000, /* what would not fit any more is left out */
    LEAST_GROUPS = 27,    /* of collective and size; with less measured, the model knows better */
    CROWD = 3,            /* ranks per CPU: with more, too little fits into the budget */
    ELAPSED = TUNE_ALGOS, /* in struct measuring, behind the algorithms */
    NTIMES = TUNE_ALGOS + 1,
};

/* Of the CPUs: with less, others have disturbed too much. */
#define LEAST_SHARE 0.9

/* Calls of a run, at least: where ranks share CPUs, they leave a barrier one after the other, and
 * what calls in a row overlap is much of what they cost. */
static const int least_calls[TUNE_SIZES] = {6, 6, 5, 5, 5};

/* Calls before the first run: they touch cells and slots for the first time. */
static const int warm_calls[TUNE_SIZES] = {1, 8, 4, LINK_SLOTS, 1};

/* Share of the budget that is to be spent when a size is done. */
static const double spent[TUNE_SIZES] = {0.2, 0.3, 0.4, 0.6, 1};

/* Expected to take so many times as long as the fastest, or as a barrier if that is more: not
 * measured at this size or above.  What is slow for few bytes may be fast for many. */
static const double hopeless[TUNE_SIZES] = {1e9, 20, 10, 4, 1.7};

static const enum kolo_coll order[] = {
    KOLO_COLL_ALL_REDUCE,     KOLO_COLL_BROADCAST,  KOLO_COLL_REDUCE,
    KOLO_COLL_REDUCE_SCATTER, KOLO_COLL_ALL_GATHER, KOLO_COLL_ALL_TO_ALL,
    KOLO_COLL_BARRIER,        KOLO_COLL_GATHER,     KOLO_COLL_SCATTER,
};

struct measuring {
    struct kolo_comm *comm;
    struct operation timed, barrier, merge;
    const struct plan_algo *barrier_algo, *merge_algo;
    int ngroups; /* measured so far */
    void *send, *recv;
    bool is_heap; /* the buffers: peers can reach them */
    uint64_t began_ns;
    uint64_t elapsed_ns; /* of the slowest rank, at the last merge */
    /* Nanoseconds per call by row of plan_algos, 0: not run; and the time spent so far.  `mine` are
     * this rank's, `all` the largest of any. */
    float mine[NTIMES], all[NTIMES];
    struct tune_table table;
};

/* ---- one call ---- */

static enum kolo_status bind_merge(struct measuring *m)
{
    struct operation *op = &m->merge;
    op->job.call = (struct call){KOLO_COLL_ALL_REDUCE, KOLO_F32, KOLO_MAX, 0, NTIMES};
    op->send = m->mine;
    op->recv = m->all;
    return operation_bind_to(op, m->merge_algo);
}

static size_t count_for(enum kolo_coll coll, size_t bytes, int nranks)
{
    if (coll == KOLO_COLL_BARRIER)
        return 0;
    const size_t one = operation_bytes(coll, 1, sizeof(float), nranks);
    return bytes > one ? bytes / one : 1;
}

static enum kolo_status bind_timed(struct measuring *m, int row, size_t bytes)
{
    size_t n;
    struct operation *op = &m->timed;
    const struct plan_algo *a = &plan_algos(&n)[row];
    op->job.call = (struct call){.coll = a->coll,
                                 .type = KOLO_F32,
                                 .op = KOLO_SUM,
                                 .count = count_for(a->coll, bytes, m->comm->nranks)};
    op->send = m->send;
    op->recv = m->recv;
    return operation_bind_to(op, a);
}

static enum kolo_status call(struct operation *op)
{
    op->job.program = op->bound_program; /* a window may have been missed */
    return engine_run_job(op->comm->engine, &op->job);
}

/* Nanoseconds per call of a run, that of this rank, into `mine` if it is the shortest. */
static enum kolo_status run(struct measuring *m, int row, size_t bytes, int warm, int calls)
{
    TRY(bind_timed(m, row, bytes));
    for (int i = 0; i < warm; i++)
        TRY(call(&m->timed));
    TRY(call(&m->barrier));
    const uint64_t began = now_ns();
    for (int i = 0; i < calls; i++)
        TRY(call(&m->timed));
    const float ns = (float)(now_ns() - began) / (float)calls;
    if (m->mine[row] <= 0 || ns < m->mine[row])
        m->mine[row] = ns;
    return KOLO_OK;
}

static enum kolo_status merge(struct measuring *m)
{
    m->mine[ELAPSED] = (float)(now_ns() - m->began_ns);
    TRY(call(&m->merge));
    m->elapsed_ns = (uint64_t)m->all[ELAPSED];
    memset(m->mine, 0, sizeof m->mine);
    return KOLO_OK;
}

/* ---- the course; from here on only what has been merged decides ---- */

static double left_ns(const struct measuring *m, int size)
{
    return (double)BUDGET_NS * spent[size] - (double)m->elapsed_ns;
}

/* The algorithms of a collective that are worth a look at a size, and how many calls make a run. */
struct field {
    int n;
    int rows[TUNE_ALGOS];
    double expected_ns[TUNE_ALGOS];
    int calls[TUNE_ALGOS];
};

/* Whether an algorithm was measured at the size before, if there is one. */
static bool is_in_race(const struct measuring *m, int row, int size)
{
    return size == 0 || m->table.tenths[row][size - 1] > 0;
}

static double barrier_ns(const struct measuring *m)
{
    size_t n;
    return tune_table_ns(&m->table, (int)(m->barrier_algo - plan_algos(&n)), 0);
}

static double run_ns(const struct tune_facts *f)
{
    return f->nranks_here > f->ncpus ? 2.0 * RUN_NS : RUN_NS;
}

static void choose_field(const struct measuring *m, enum kolo_coll coll, int size, struct field *f)
{
    int rows[TUNE_ALGOS];
    const struct tune_facts *facts = &m->comm->tune.facts;
    const size_t n = tune_candidates(facts, coll, facts->has_windows, rows);
    double ns[TUNE_ALGOS], least = 0;
    const double barrier = barrier_ns(m);
    size_t nalgos;
    const struct plan_algo *algos = plan_algos(&nalgos);
    for (size_t i = 0; i < n; i++) {
        ns[i] = tune_table_ns(&m->table, rows[i], tune_sizes[size]);
        /* Those over windows do not count: private buffers cannot have them. */
        if (!(algos[rows[i]].flags & ALGO_WINDOW) && (least <= 0 || ns[i] < least))
            least = ns[i];
    }
    least = least > barrier ? least : barrier;
    f->n = 0;
    for (size_t i = 0; i < n; i++) {
        if (!is_in_race(m, rows[i], size) || ns[i] > hopeless[size] * least)
            continue;
        const double calls = ns[i] > 0 ? run_ns(facts) / ns[i] : PROBE_CALLS;
        f->rows[f->n] = rows[i];
        f->expected_ns[f->n] = ns[i];
        f->calls[f->n++] = max_int(least_calls[size], calls > MOST_CALLS ? MOST_CALLS : (int)calls);
    }
}

/* In a fair share of the time for a size, which `ncolls` collectives still need; 0: even the least
 * number would not fit into what is left of all. */
static int affordable_runs(const struct measuring *m, const struct field *f, int size, int ncolls)
{
    const double around = barrier_ns(m) * 2;
    double round = 1;
    for (int i = 0; i < f->n; i++)
        round += f->expected_ns[i] * f->calls[i] + around;
    const int least = size == 0 ? 1 : LEAST_RUNS;
    if (left_ns(m, TUNE_SIZES - 1) < round * least)
        return 0;
    const double runs = left_ns(m, size) / ncolls / round;
    return runs > MOST_RUNS ? MOST_RUNS : max_int(least, (int)runs);
}

static void adopt(struct measuring *m, const struct field *f, int size)
{
    for (int i = 0; i < f->n; i++) {
        const float tenths = m->all[f->rows[i]] * 10;
        uint32_t *at = &m->table.tenths[f->rows[i]][size];
        const uint32_t now = tenths < 1 ? 1 : tenths > 4e9f ? 4000000000u : (uint32_t)tenths;
        *at = *at > 0 && *at < now ? *at : now; /* at the first size there was a probe */
    }
}

static enum kolo_status measure_field(struct measuring *m, const struct field *f, int size,
                                      int runs)
{
    for (int k = 0; k < runs; k++)
        for (int i = 0; i < f->n; i++) {
            const int warm = k == 0 ? min_int(warm_calls[size], 2 * f->calls[i]) : 0;
            TRY(run(m, f->rows[i], tune_sizes[size], warm, f->calls[i]));
        }
    TRY(merge(m));
    adopt(m, f, size);
    return KOLO_OK;
}

/* What an algorithm costs, roughly, so that runs have a length; into the table for now. */
static enum kolo_status probe(struct measuring *m, enum kolo_coll coll, bool *goes_on)
{
    struct field f;
    choose_field(m, coll, 0, &f);
    if (f.n > 1)
        TRY(measure_field(m, &f, 0, 1));
    *goes_on = left_ns(m, TUNE_SIZES - 1) > 0;
    return KOLO_OK;
}

static enum kolo_status measure_coll(struct measuring *m, enum kolo_coll coll, int size, int ncolls)
{
    struct field f;
    choose_field(m, coll, size, &f);
    const int runs = affordable_runs(m, &f, size, ncolls);
    if (runs == 0 || f.n == 0 || (coll == KOLO_COLL_BARRIER && size > 0))
        return KOLO_OK;
    m->ngroups++;
    return measure_field(m, &f, size, runs);
}

/* Ranks that have just been made often start on one CPU, and stay there for 50 ms although another
 * is idle.  Of those that share one, all but the first go to CPUs without a rank; the scheduler may
 * move them again at once. */
static void go_to_free_cpu(int cpu, const float on[TUNE_MOST_RANKS], int rank, int nranks)
{
    cpu_set_t mine, taken, one;
    int nth = 0; /* of the free ones is this rank's */
    CPU_ZERO(&taken);
    for (int r = 0; r < nranks; r++) {
        const int other = (int)on[r] - 1;
        if (other < 0 || other >= CPU_SETSIZE)
            return;
        nth += r < rank && CPU_ISSET(other, &taken);
        if (r == rank && !CPU_ISSET(cpu, &taken))
            return; /* the first one here */
        CPU_SET(other, &taken);
    }
    if (sched_getaffinity(0, sizeof mine, &mine) != 0)
        return;
    for (int c = 0; c < CPU_SETSIZE; c++) {
        if (!CPU_ISSET(c, &mine) || CPU_ISSET(c, &taken) || nth-- > 0)
            continue;
        CPU_ZERO(&one);
        CPU_SET(c, &one);
        if (sched_setaffinity(0, sizeof one, &one) == 0)
            (void)sched_setaffinity(0, sizeof mine, &mine);
        return;
    }
}

static enum kolo_status spread(struct measuring *m)
{
    struct kolo_comm *comm = m->comm;
    if (comm->tune.facts.nranks_here > comm->tune.facts.ncpus)
        return KOLO_OK;
    const int cpu = sched_getcpu();
    m->mine[comm->rank] = (float)(cpu + 1);
    TRY(merge(m));
    if (cpu >= 0)
        go_to_free_cpu(cpu, m->all, comm->rank, comm->nranks);
    return KOLO_OK;
}

static enum kolo_status measure_all(struct measuring *m)
{
    bool goes_on = true;
    m->began_ns = now_ns();
    TRY(spread(m));
    TRY(call(&m->barrier)); /* all are there: the time starts for all */
    m->began_ns = now_ns();
    /* The simple ones first: they touch the links' memory for the others. */
    for (size_t i = ARRAY_LEN(order); i > 0 && goes_on; i--)
        TRY(probe(m, order[i - 1], &goes_on));
    LOG(LOG_DEBUG, "tune", "%s: probed after %.1f ms", m->comm->name, (double)m->elapsed_ns * 1e-6);
    for (int size = 0; size < TUNE_SIZES && goes_on; size++) {
        for (size_t i = 0; i < ARRAY_LEN(order); i++)
            TRY(measure_coll(m, order[i], size, (int)(ARRAY_LEN(order) - i)));
        goes_on = left_ns(m, TUNE_SIZES - 1) > 0;
        LOG(LOG_DEBUG, "tune", "%s: size %d after %.1f ms", m->comm->name, size,
            (double)m->elapsed_ns * 1e-6);
    }
    return KOLO_OK;
}

static uint64_t cpu_ns(void)
{
    struct timespec t;
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) != 0)
        return 0;
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Ranks that wait keep their CPU busy, or give it to each other: what they did not get of it,
 * others had.  The share that they got together, of all that they could use. */
static enum kolo_status share_of_cpus(struct measuring *m, uint64_t cpu_began_ns, double *out)
{
    const struct tune_facts *f = &m->comm->tune.facts;
    m->mine[m->comm->rank] = (float)(cpu_ns() - cpu_began_ns);
    TRY(merge(m));
    double all = 0;
    for (int r = 0; r < f->nranks; r++)
        all += m->all[r];
    *out = all / m->all[ELAPSED] / min_int(f->nranks_here, f->ncpus);
    return KOLO_OK;
}

/* ---- life ---- */

/* Pages that are there: entries of an outbox would else be met one by one, and timed. */
static void touch(const volatile unsigned char *at, size_t bytes)
{
    for (size_t i = 0; at && i < bytes; i += 4096)
        (void)at[i];
}

static void touch_outboxes(struct engine *e)
{
    const size_t bytes = OUTBOX_SLOTS_AT + LINK_SLOTS * e->slot_bytes;
    for (int channel = 0; channel < PLAN_MAX_CHANNELS; channel++) {
        touch(e->outboxes[channel].at, bytes);
        for (int r = 0; r < e->nranks; r++)
            if (r != e->rank)
                touch(engine_link(e, false, r, channel)->outbox, bytes);
    }
}

/* Every plan and all scratch that will be needed, and buffers whose pages are there. */
static enum kolo_status prepare(struct measuring *m)
{
    struct kolo_comm *comm = m->comm;
    const struct tune_facts *facts = &comm->tune.facts;
    const size_t bytes = round_up(tune_sizes[TUNE_SIZES - 1], sizeof(float) * TUNE_MOST_RANKS);
    m->is_heap = facts->has_windows;
    if (m->is_heap) {
        TRY(heap_alloc(bytes, &m->send));
        TRY(heap_alloc(bytes, &m->recv));
    } else {
        m->send = mem_aligned(4096, bytes);
        m->recv = mem_aligned(4096, bytes);
    }
    if (!m->send || !m->recv)
        return fail(KOLO_ERR_NOMEM, "out of memory for measuring");
    memset(m->send, 1, bytes);
    memset(m->recv, 1, bytes);
    touch_outboxes(comm->engine);
    m->merge_algo = tune_choose(&comm->tune, KOLO_COLL_ALL_REDUCE, NTIMES * sizeof(float), false);
    m->barrier_algo = tune_choose(&comm->tune, KOLO_COLL_BARRIER, 0, false);
    m->barrier.job.call = (struct call){.coll = KOLO_COLL_BARRIER, .type = KOLO_U8};
    TRY(operation_bind_to(&m->barrier, m->barrier_algo));
    TRY(bind_merge(m));
    for (size_t i = 0; i < ARRAY_LEN(order); i++) {
        int rows[TUNE_ALGOS];
        const size_t n = tune_candidates(facts, order[i], facts->has_windows, rows);
        for (size_t k = 0; k < n; k++)
            for (int size = 0; size < TUNE_SIZES; size++)
                TRY(bind_timed(m, rows[k], tune_sizes[size]));
    }
    return KOLO_OK;
}

enum kolo_status measuring_create(struct kolo_comm *comm, struct measuring **out)
{
    struct measuring *m = mem_calloc(1, sizeof *m);
    if (!m)
        return fail(KOLO_ERR_NOMEM, "out of memory for measuring");
    m->comm = m->timed.comm = m->barrier.comm = m->merge.comm = comm;
    const enum kolo_status status = prepare(m);
    if (status != KOLO_OK) {
        measuring_destroy(m);
        return status;
    }
    *out = m;
    return KOLO_OK;
}

/* Nothing that measuring did shows in the communicator, but for the numbers of its operations. */
void measuring_destroy(struct measuring *m)
{
    if (!m)
        return;
    struct kolo_comm *comm = m->comm;
    struct engine *e = comm->engine;
    job_release(&m->timed.job);
    job_release(&m->barrier.job);
    job_release(&m->merge.job);
    comm_programs_forget(comm);
    memset(&e->counters, 0, sizeof e->counters);
    memset(&e->record, 0, sizeof e->record);
    memset(e->ways, 0, sizeof e->ways);
    e->window_skip = e->window_backoff = 0;
    if (m->is_heap) {
        (void)!(m->send && heap_free(m->send));
        (void)!(m->recv && heap_free(m->recv));
    } else {
        mem_free(m->send);
        mem_free(m->recv);
    }
    mem_free(m);
}

enum kolo_status measuring_run(struct measuring *m)
{
    struct kolo_comm *comm = m->comm;
    m->table.key = tune_key(&comm->tune.facts);
    const uint64_t cpu_began_ns = cpu_ns();
    double share;
    TRY(measure_all(m));
    TRY(share_of_cpus(m, cpu_began_ns, &share));
    const bool is_good =
        tune_table_settle(&m->table) && m->ngroups >= LEAST_GROUPS && share >= LEAST_SHARE;
    m->table.date = is_good ? (uint64_t)time(NULL) : 0;
    if (comm->rank == 0)
        LOG(LOG_INFO, "tune",
            "%s: measured %d groups of algorithms in %.1f ms on %.0f %% of the CPUs%s", comm->name,
            m->ngroups, (double)(now_ns() - m->began_ns) * 1e-6, share * 100,
            is_good ? "" : ": too few, or disturbed: the model chooses");
    tune_store_keep(&m->table, comm->nranks, comm->rank == 0);
    return is_good ? tune_apply(&comm->tune, &m->table) : KOLO_OK;
}

enum tune_source comm_tune_source(const struct kolo_comm *comm, struct tune_table *table)
{
    const struct tune_facts *f = &comm->tune.facts;
    const int64_t mode = cfg_int(CFG_TUNE);
    if (mode == TUNE_MODEL || f->nranks < 2 || f->nranks > TUNE_MOST_RANKS ||
        f->nranks_here != f->nranks || f->nranks > CROWD * f->ncpus)
        return TUNE_FROM_MODEL;
    if (!tune_store_find(tune_key(f), mode == TUNE_AUTO, table))
        return TUNE_FROM_MEASURING;
    return table->date > 0 ? TUNE_FROM_TABLE : TUNE_FROM_MODEL;
}

/* ---- ranks of one process ---- */

struct local_rank {
    struct measuring *measuring;
    pthread_t thread;
    enum kolo_status status;
    char text[ERROR_TEXT_BYTES];
    _Atomic int *gate; /* 0: wait; 1: go; -1: go home */
};

static void *local_main(void *arg)
{
    struct local_rank *r = arg;
    int gate;
    /* Acquire: pairs with the release of who opens it. */
    while ((gate = atomic_load_explicit(r->gate, memory_order_acquire)) == 0)
        sched_yield();
    r->status = gate > 0 ? measuring_run(r->measuring) : KOLO_OK;
    if (r->status != KOLO_OK)
        snprintf(r->text, sizeof r->text, "%s", fail_text());
    return NULL;
}

/* A thread for each rank but the first, for as long as it takes; all of them, or nothing is
 * measured. */
static enum kolo_status run_local(struct local_rank *ranks, int n)
{
    _Atomic int gate = 0;
    int started = 1;
    ranks[0].gate = &gate;
    for (; started < n; started++) {
        ranks[started].gate = &gate;
        if (pthread_create(&ranks[started].thread, NULL, local_main, &ranks[started]) != 0)
            break;
    }
    atomic_store_explicit(&gate, started == n ? 1 : -1, memory_order_release);
    local_main(&ranks[0]);
    for (int r = 1; r < started; r++)
        pthread_join(ranks[r].thread, NULL);
    for (int r = 0; r < n; r++)
        if (ranks[r].status != KOLO_OK)
            return fail_again(ranks[r].status, ranks[r].text);
    return KOLO_OK;
}

static enum kolo_status measure_local(struct kolo_comm *const *comms, int n)
{
    struct local_rank *ranks = mem_calloc((size_t)n, sizeof *ranks);
    bool can_measure = ranks != NULL;
    for (int r = 0; r < n && can_measure; r++)
        can_measure = measuring_create(comms[r], &ranks[r].measuring) == KOLO_OK;
    const enum kolo_status status = can_measure ? run_local(ranks, n) : KOLO_OK;
    for (int r = 0; r < n && ranks; r++)
        measuring_destroy(ranks[r].measuring);
    mem_free(ranks);
    return status;
}

enum kolo_status comm_tune_local(struct kolo_comm *const *comms, int n)
{
    struct tune_table table;
    const enum tune_source source = comm_tune_source(comms[0], &table);
    if (source == TUNE_FROM_MEASURING)
        return measure_local(comms, n);
    for (int r = 0; r < n && source == TUNE_FROM_TABLE; r++)
        TRY(tune_apply(&comms[r]->tune, &table));
    return KOLO_OK;
}
