/* wait.c - what an engine does when nothing moves: spin, then yield, then sleep on its bell; and
 * in between look for reasons to give up: an abort, a peer that failed, died, left or called
 * something else, a deadline.
 *
 * Sleeping without a fence on the waker's side: the sleeper stores its bell, makes every CPU
 * execute a barrier (membarrier), polls its links once more, and only then sleeps.  A waker
 * stores the message, then loads the bell.  Either its store was visible to that last poll, or
 * its load comes after the barrier and sees the bell.  Where membarrier is missing, sleeps are
 * kept short instead. */
#include "cfg.h"
#include "engine.h"

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    PASSES_PER_CLOCK = 64, /* polls between looks at the clock while spinning */
    YIELDS_PER_CLOCK = 8,
    CHECK_NS = 1000000,      /* looks at the boards: a cache line per peer */
    ALIVE_NS = 20000000,     /* looks at sockets: a system call per peer */
    SLEEP_NS = 20000000,     /* longest sleep between checks */
    SLEEP_SHORT_NS = 500000, /* without membarrier, or with several engines on one thread */
    SPIN_NS = 50000,         /* default spin: the longest usual hand-over is 20 us */
    YIELD_NS = 1000000,
    POLL_NS = 1000000, /* of an idle worker: from one gradient to the next */
};

static _Atomic int has_membarrier;

void wait_init(void)
{
    const long rc = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0);
    atomic_store_explicit(&has_membarrier, rc == 0, memory_order_relaxed);
}

struct wait_policy wait_policy_choose(int nranks_here, int ncpus, bool shares_cpu)
{
    const bool is_crowded = nranks_here > ncpus || shares_cpu;
    const int64_t spin_us = cfg_int(CFG_SPIN_US);
    struct wait_policy p = {is_crowded ? 0 : SPIN_NS, YIELD_NS, true};
    if (spin_us >= 0)
        p.spin_ns = (uint64_t)spin_us * 1000u;
    switch ((enum wait_mode)cfg_int(CFG_WAIT)) {
    case WAIT_SPIN:
        p = (struct wait_policy){UINT64_MAX, 0, false};
        break;
    case WAIT_YIELD:
        p = (struct wait_policy){0, UINT64_MAX, false};
        break;
    case WAIT_SLEEP:
        p = (struct wait_policy){0, 0, true};
        break;
    case WAIT_AUTO:
        break;
    }
    return p;
}

uint64_t poll_ns_choose(int nranks_here, int ncpus, bool shares_cpu)
{
    const int64_t poll_us = cfg_int(CFG_POLL_US);
    const enum wait_mode mode = (enum wait_mode)cfg_int(CFG_WAIT);
    if (poll_us >= 0)
        return (uint64_t)poll_us * 1000u;
    const bool has_spare = ncpus >= 2 * nranks_here && !shares_cpu;
    return has_spare && (mode == WAIT_AUTO || mode == WAIT_SPIN) ? POLL_NS : 0;
}

/* ---- reasons to end ---- */

/* Ranks that started something else under the number of the running collective. */
static enum kolo_status check_calls(struct engine *e, const struct job *j)
{
    for (int r = 0; r < e->nranks; r++) {
        struct call other;
        if (r != e->rank && board_find(e->boards[r], j->seq, &other) &&
            !call_matches(&other, &j->call))
            return job_differs(e, j, r, &other);
    }
    return KOLO_OK;
}

static enum kolo_status check_boards(struct engine *e)
{
    for (int r = 0; r < e->nranks; r++) {
        const struct board *b = e->boards[r];
        /* Acquire: pairs with the release in engine_break, so status and text are whole. */
        if (r == e->rank || atomic_load_explicit(&b->state, memory_order_acquire) != BOARD_FAILED)
            continue;
        const bool is_hearsay = strncmp(b->text, "reported by ", 12) == 0;
        if (is_hearsay)
            fail((enum kolo_status)b->status, "%.*s", BOARD_TEXT - 1, b->text);
        else
            fail((enum kolo_status)b->status, "reported by rank %d: %.*s", r, BOARD_TEXT - 64,
                 b->text);
        return engine_break(e, (enum kolo_status)b->status);
    }
    return KOLO_OK;
}

/* On a copy: the engine's own cursors stay as they are. */
static bool is_stuck(const struct lane_state *lane)
{
    struct link copy = *lane->blocked;
    return lane->wanted > 0 ? !link_has_consumed(&copy, lane->wanted) : !link_arrived(&copy);
}

/* Whether a job can only go on when `peer` does something. */
static bool job_needs(struct engine *e, struct job *j, int peer)
{
    if (j->phase == JOB_ANNOUNCE_SEND || j->phase == JOB_ANNOUNCE_RECEIVE) {
        const int waited = (e->rank + j->announced) % e->nranks;
        return waited == peer && !link_arrived(engine_link(e, false, peer, 0));
    }
    for (int i = 0; j->phase == JOB_RUN && i < j->nlanes; i++) {
        const struct lane_state *lane = &j->lanes[i];
        if (!lane->is_done && lane->blocked && lane->blocked->peer == peer && is_stuck(lane))
            return true;
    }
    return false;
}

static bool run_needs(struct engine_run *run, int peer)
{
    if (run->collectives && job_needs(run->engine, run->collectives, peer))
        return true;
    for (struct job *j = run->p2p; j; j = j->next)
        if (job_needs(run->engine, j, peer))
            return true;
    return false;
}

static enum kolo_status lost(struct engine *e, int peer, const char *how)
{
    fail(KOLO_ERR_PEER_LOST, "rank %d (%s) %s", peer,
         e->transport->ops->peer_name(e->transport, peer), how);
    return engine_break(e, KOLO_ERR_PEER_LOST);
}

/* Whether a rank has started the collective of this number, or a later one. */
static bool has_reached(const struct board *b, uint64_t seq)
{
    for (int i = 0; i < BOARD_CALLS; i++)
        if (atomic_load_explicit(&b->calls[i].seq, memory_order_acquire) > seq)
            return true;
    return false;
}

/* A collective without a root, or over windows, cannot end without a rank that never entered it,
 * whoever is waited for first. */
static bool run_lacks(const struct engine_run *run, int peer)
{
    const struct job *j = run->collectives;
    return j && j->phase != JOB_DONE &&
           (!coll_has_root(j->call.coll) || j->program->window_needs) &&
           !has_reached(run->engine->boards[peer], j->seq);
}

/* A rank that is gone is missed only by those who still wait for it; who does not need it goes on:
 * all that it has sent is here. */
static enum kolo_status check_alive(struct engine_run *run)
{
    struct engine *e = run->engine;
    for (int r = 0; r < e->nranks; r++) {
        if (r == e->rank)
            continue;
        const bool alive = e->transport->ops->is_alive(e->transport, r);
        const uint32_t state = atomic_load_explicit(&e->boards[r]->state, memory_order_acquire);
        const bool is_gone = state == BOARD_LEFT || (!alive && state == BOARD_LIVE);
        if (is_gone && (run_needs(run, r) || run_lacks(run, r)))
            return lost(e, r,
                        state == BOARD_LEFT
                            ? "has destroyed its communicator while this rank waits for it"
                            : "died or closed its connection");
    }
    return KOLO_OK;
}

static void name_blockers(struct engine *e, const struct job *j, struct text *t)
{
    if (j->phase == JOB_ANNOUNCE_SEND || j->phase == JOB_ANNOUNCE_RECEIVE) {
        const int peer = (e->rank + j->announced) % e->nranks;
        text_add(t, "; rank %d (%s) has not entered it", peer,
                 e->transport->ops->peer_name(e->transport, peer));
        return;
    }
    for (int i = 0; j->phase == JOB_RUN && i < j->nlanes; i++) {
        const struct lane_state *lane = &j->lanes[i];
        if (lane->is_done || !lane->blocked)
            continue;
        text_add(t, "; lane %d step %d round %llu waits for rank %d (%s) to %s", i,
                 (int)(lane->at - lane->begin), (unsigned long long)lane->round,
                 lane->blocked->peer,
                 e->transport->ops->peer_name(e->transport, lane->blocked->peer),
                 lane->wanted > 0 ? "take data" : "send");
    }
}

static enum kolo_status timed_out(struct engine_run *run, const struct job *j, uint64_t waited_ns)
{
    char what[160], list[640];
    struct text t;
    text_init(&t, list, sizeof list);
    name_blockers(run->engine, j, &t);
    call_text(&j->call, j->seq, what, sizeof what);
    fail(KOLO_ERR_TIMEOUT, "rank %d: %s did not end in %.1f s%s", run->engine->rank, what,
         (double)waited_ns * 1e-9, list);
    return engine_break(run->engine, KOLO_ERR_TIMEOUT);
}

static enum kolo_status check_job(struct engine_run *run, struct job *j, uint64_t now)
{
    if (j->phase == JOB_DONE)
        return KOLO_OK;
    if (j->began_ns == 0)
        j->began_ns = now;
    return now - j->began_ns > j->timeout_ns ? timed_out(run, j, now - j->began_ns) : KOLO_OK;
}

static enum kolo_status check_deadline(struct engine_run *run, uint64_t now)
{
    if (run->collectives)
        TRY(check_job(run, run->collectives, now));
    for (struct job *j = run->p2p; j; j = j->next)
        TRY(check_job(run, j, now));
    return KOLO_OK;
}

enum kolo_status check_failed(struct engine *e)
{
    TRY(engine_status(e));
    return check_boards(e);
}

static enum kolo_status check(struct engine_run *run, uint64_t now, bool look_alive)
{
    struct engine *e = run->engine;
    TRY(engine_status(e));
    const struct job *j = run->collectives;
    if (j && j->phase != JOB_DONE)
        TRY(check_calls(e, j));
    TRY(check_boards(e));
    if (look_alive)
        TRY(check_alive(run));
    return check_deadline(run, now);
}

static void check_all(struct wait *w, struct engine_run *runs, size_t n, uint64_t now)
{
    if (now < w->next_check_ns)
        return;
    w->next_check_ns = now + CHECK_NS;
    const bool look_alive = now >= w->next_alive_ns;
    if (look_alive)
        w->next_alive_ns = now + ALIVE_NS;
    for (size_t i = 0; i < n; i++)
        if (runs[i].status == KOLO_OK && (runs[i].collectives || runs[i].p2p))
            runs[i].status = check(&runs[i], now, look_alive);
}

/* ---- waiting ---- */

/* First look at the clock of a stall, and of the run. */
static uint64_t note_time(struct wait *w)
{
    const uint64_t now = now_ns();
    if (w->next_check_ns == 0) {
        w->next_check_ns = now + CHECK_NS;
        w->next_alive_ns = now + ALIVE_NS;
    }
    if (w->stalled_ns == 0)
        w->stalled_ns = now;
    return now;
}

void wait_disarm(struct wait *w, struct engine *e)
{
    atomic_store_explicit(e->bell, 0, memory_order_relaxed);
    w->is_armed = false;
}

static void arm(struct wait *w, struct engine *e)
{
    atomic_store_explicit(e->bell, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&has_membarrier, memory_order_relaxed))
        syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
    w->is_armed = true;
}

static void doze(struct wait *w, struct engine *e, bool is_alone)
{
    const bool is_safe = is_alone && atomic_load_explicit(&has_membarrier, memory_order_relaxed);
    const struct timespec t = {0, is_safe ? SLEEP_NS : SLEEP_SHORT_NS};
    e->counters.sleeps++;
    syscall(SYS_futex, e->bell, FUTEX_WAIT, 1, &t, NULL, 0);
    wait_disarm(w, e);
}

void wait_step(struct wait *w, struct engine_run *runs, size_t n)
{
    struct engine *e = runs[0].engine;
    if (w->passes++ == 0)
        w->phase = e->wait.spin_ns > 0    ? PHASE_SPIN
                   : e->wait.yield_ns > 0 ? PHASE_YIELD
                                          : PHASE_SLEEP;
    switch (w->phase) {
    case PHASE_SPIN:
        cpu_relax();
        if (w->passes % PASSES_PER_CLOCK != 0)
            return;
        break;
    case PHASE_YIELD:
        sched_yield();
        e->counters.yields++;
        if (w->passes % YIELDS_PER_CLOCK != 0)
            return;
        break;
    case PHASE_SLEEP:
        if (!w->is_armed) {
            arm(w, e);
            return;
        }
        doze(w, e, n == 1);
        break;
    }
    const uint64_t now = note_time(w), stalled = now - w->stalled_ns;
    if (w->phase == PHASE_SPIN && stalled > e->wait.spin_ns)
        w->phase = PHASE_YIELD;
    else if (w->phase == PHASE_YIELD && e->wait.may_sleep &&
             stalled > e->wait.spin_ns + e->wait.yield_ns)
        w->phase = PHASE_SLEEP;
    check_all(w, runs, n, now);
}
