/* engine.c - an engine's life, its runs, and how it breaks. */
#include "engine.h"
#include "mem.h"

#include <sched.h>
#include <string.h>

/* Two vectors per rank that together exceed this no longer fit into the caches of a few cores, and
 * streaming stores win (measured: 24 MiB for an L3 of 32 MiB). */
enum { STREAM_BYTES = 24 << 20 };

struct link *engine_link(struct engine *e, bool is_producer, int peer, int channel)
{
    return &e->links[((size_t)!is_producer * LINK_CHANNELS + (size_t)channel) * (size_t)e->nranks +
                     (size_t)peer];
}

static void wire_links(struct engine *e)
{
    for (int produces = 0; produces < 2; produces++)
        for (int channel = 0; channel < LINK_CHANNELS; channel++)
            for (int peer = 0; peer < e->nranks; peer++)
                e->transport->ops->link(e->transport, peer, channel, produces,
                                        engine_link(e, produces, peer, channel));
}

enum kolo_status engine_create(struct transport *t, int rank, int nranks, size_t slot_bytes,
                               struct engine **out)
{
    const size_t n = (size_t)nranks;
    struct engine *e = mem_aligned(64, sizeof *e);
    if (!e)
        goto no_memory;
    e->rank = rank;
    e->nranks = nranks;
    e->slot_bytes = slot_bytes;
    e->stream_bytes = STREAM_BYTES;
    e->pointers = n + 2;
    e->boards = mem_calloc(n, sizeof(struct board *));
    e->links = mem_calloc(2 * LINK_CHANNELS * n, sizeof *e->links);
    e->dst = mem_calloc(e->pointers, sizeof *e->dst);
    e->src = mem_calloc(e->pointers, sizeof *e->src);
    e->peer_in = mem_calloc(n, sizeof *e->peer_in);
    e->peer_out = mem_calloc(n, sizeof *e->peer_out);
    e->in_is_remote = mem_calloc(n, sizeof *e->in_is_remote);
    e->out_is_remote = mem_calloc(n, sizeof *e->out_is_remote);
    e->remote_at = mem_calloc(2 * e->pointers, sizeof *e->remote_at);
    if (!e->boards || !e->links || !e->dst || !e->src || !e->peer_in || !e->peer_out ||
        !e->in_is_remote || !e->out_is_remote || !e->remote_at)
        goto no_memory;
    e->transport = t;
    e->reduce = reduce_table_get();
    for (int r = 0; r < nranks; r++)
        e->boards[r] = t->ops->board(t, r);
    e->board = e->boards[rank];
    e->bell = t->ops->bell(t, rank);
    wire_links(e);
    for (int channel = 0; channel < LINK_CHANNELS; channel++)
        e->outboxes[channel].at = t->ops->outbox(t, channel);
    wait_init();
    far_init(e);
    *out = e;
    return KOLO_OK;

no_memory:
    engine_destroy(e, true);
    return fail(KOLO_ERR_NOMEM, "out of memory for the links of %d ranks", nranks);
}

void engine_destroy(struct engine *e, bool quietly)
{
    if (!e)
        return;
    if (e->transport && !quietly) {
        uint32_t live = BOARD_LIVE;
        /* Release: what this rank has sent is visible before its goodbye. */
        atomic_compare_exchange_strong_explicit(&e->board->state, &live, BOARD_LEFT,
                                                memory_order_release, memory_order_relaxed);
        for (int r = 0; r < e->nranks; r++)
            link_ring(e->transport->ops->bell(e->transport, r));
    }
    if (e->transport)
        e->transport->ops->close(e->transport);
    mem_free(e->boards);
    mem_free(e->links);
    mem_free(e->dst);
    mem_free(e->src);
    mem_free(e->peer_in);
    mem_free(e->peer_out);
    mem_free(e->in_is_remote);
    mem_free(e->out_is_remote);
    mem_free(e->remote_at);
    mem_free(e->bounce);
    mem_free(e->tmp);
    mem_free(e);
}

/* ---- failing ---- */

enum kolo_status engine_status(const struct engine *e)
{
    /* Acquire: pairs with the release in engine_break, so that the text is whole. */
    return (enum kolo_status)atomic_load_explicit(&e->status, memory_order_acquire);
}

static void text_lock(const struct engine *e)
{
    struct engine *m = (struct engine *)(uintptr_t)e;
    while (atomic_exchange_explicit(&m->text_lock, 1, memory_order_acquire) != 0)
        sched_yield();
}

static void text_unlock(const struct engine *e)
{
    struct engine *m = (struct engine *)(uintptr_t)e;
    atomic_store_explicit(&m->text_lock, 0, memory_order_release);
}

static void copy_text(char *out, size_t size, const char *from)
{
    const size_t n = strnlen(from, size - 1);
    memcpy(out, from, n);
    out[n] = 0;
}

void engine_text(const struct engine *e, char *out, size_t size)
{
    text_lock(e);
    copy_text(out, size, e->text);
    text_unlock(e);
}

void engine_note(struct engine *e)
{
    text_lock(e);
    if (engine_status(e) == KOLO_OK)
        copy_text(e->text, sizeof e->text, fail_text());
    text_unlock(e);
}

enum kolo_status engine_break(struct engine *e, enum kolo_status status)
{
    text_lock(e);
    const bool is_first = engine_status(e) == KOLO_OK;
    if (is_first) {
        copy_text(e->text, sizeof e->text, fail_text());
        copy_text(e->board->text, sizeof e->board->text, fail_text());
        e->board->status = status;
        atomic_store_explicit(&e->status, (int)status, memory_order_release);
        /* Pairs with check_boards of the peers; sequentially consistent for remote_drain. */
        atomic_store_explicit(&e->board->state, BOARD_FAILED, memory_order_seq_cst);
    }
    text_unlock(e);
    if (is_first)
        for (int r = 0; r < e->nranks; r++)
            link_ring(e->transport->ops->bell(e->transport, r));
    return engine_status(e);
}

void engine_abort(struct engine *e)
{
    fail(KOLO_ERR_ABORTED, "kolo_comm_abort was called on rank %d", e->rank);
    engine_break(e, KOLO_ERR_ABORTED);
}

/* ---- runs ---- */

void job_end(struct engine *e, const struct job *j, bool has_waited, enum kolo_status status)
{
    uint64_t took = 0;
    if (status == KOLO_OK && has_waited)
        took = record_ticks() - e->record.events[j->recorded % RECORD_EVENTS].ticks;
    const enum record_kind kind = status != KOLO_OK          ? RECORD_FAILED
                                  : j->phase == JOB_DECLINED ? RECORD_SPLIT
                                                             : RECORD_DONE;
    const int32_t result = status != KOLO_OK  ? (int32_t)status
                           : took < INT32_MAX ? (int32_t)took
                                              : INT32_MAX;
    record_end(&e->record, j->recorded, kind, result);
    for (int i = 1; UNLIKELY(j->fused != NULL) && i < j->fused->nops; i++)
        record_end(&e->record, j->recorded + (uint64_t)i, kind, result);
}

/* The rest of a job that could not run to its end at once. */
static enum kolo_status run_on(struct engine *e, struct job *j, enum kolo_status status)
{
    const bool is_p2p = coll_is_p2p(j->call.coll);
    struct engine_run run = {e, is_p2p ? NULL : j, is_p2p ? j : NULL, status};
    struct wait w = {0};
    while (j->phase != JOB_DONE && run.status == KOLO_OK) {
        if (job_progress(e, j, &run.status))
            wait_reset(&w, e);
        else
            wait_step(&w, &run, 1);
    }
    if (w.is_armed)
        wait_disarm(&w, e);
    job_end(e, j, true, run.status);
    if (UNLIKELY(run.status != KOLO_OK) && e->has_remote)
        remote_drain(e);
    return run.status;
}

enum kolo_status engine_run_job(struct engine *e, struct job *j)
{
    enum kolo_status status = engine_status(e);
    if (UNLIKELY(status != KOLO_OK))
        return status;
    j->next = NULL;
    job_start(e, j);
    if (j->phase != JOB_DONE)
        job_progress(e, j, &status);
    job_show(e, j);
    if (j->phase != JOB_DONE)
        return run_on(e, j, status);
    job_end(e, j, false, KOLO_OK);
    return KOLO_OK;
}

static struct link *p2p_link(struct engine *e, const struct job *j)
{
    return engine_link(e, j->call.coll == KOLO_COLL_SEND, j->call.root, LINK_CHANNEL_P2P);
}

/* One pass over the sends and receives; those that share a link go in order.  Done ones leave the
 * list (their owner keeps its own). */
static bool p2p_progress(struct engine *e, struct engine_run *run, uint64_t pass)
{
    bool moved = false;
    for (struct job **at = &run->p2p; *at && run->status == KOLO_OK;) {
        struct job *j = *at;
        struct link *l = p2p_link(e, j);
        if (l->pass != pass) {
            moved |= job_progress(e, j, &run->status);
            if (j->phase == JOB_DONE) {
                job_end(e, j, true, KOLO_OK);
                *at = j->next;
                moved = true;
                continue;
            }
            l->pass = pass;
        }
        at = &j->next;
    }
    return moved;
}

static void start_and_show(struct engine *e, struct job *j)
{
    job_start(e, j);
    job_show(e, j);
}

/* The job of the list is over: the next one; or its operations, when it was declined.  They take
 * new numbers: under the old ones a peer may still show the group. */
static struct job *job_after(struct engine *e, struct job *j, enum kolo_status *status)
{
    job_end(e, j, true, KOLO_OK);
    if (LIKELY(j->phase == JOB_DONE))
        return j->next;
    struct job *first, *last;
    const enum kolo_status split = j->fused->split(j->fused, &first, &last);
    if (split != KOLO_OK) {
        *status = engine_break(e, split);
        return j;
    }
    last->next = j->next;
    return first;
}

static bool collectives_progress(struct engine *e, struct engine_run *run)
{
    struct job *j = run->collectives;
    bool moved = job_progress(e, j, &run->status);
    while (run->status == KOLO_OK && j && j->phase >= JOB_DONE) {
        run->collectives = j = job_after(e, j, &run->status);
        if (j && run->status == KOLO_OK)
            start_and_show(e, j);
        moved = true;
    }
    return moved;
}

static void run_start(struct engine_run *run)
{
    run->status = engine_status(run->engine);
    if (run->status != KOLO_OK)
        return;
    if (run->collectives)
        start_and_show(run->engine, run->collectives);
    for (struct job *j = run->p2p; j; j = j->next)
        start_and_show(run->engine, j);
}

static bool run_is_over(const struct engine_run *run)
{
    return run->status != KOLO_OK || (!run->collectives && !run->p2p);
}

enum kolo_status engine_run_all(struct engine_run *runs, size_t n)
{
    struct wait w = {0};
    /* Passes are compared with what earlier runs left in the links: never repeat a number. */
    static _Atomic uint64_t passes;
    size_t left = n;
    for (size_t i = 0; i < n; i++)
        run_start(&runs[i]);
    while (left > 0) {
        const uint64_t pass = atomic_fetch_add_explicit(&passes, 1, memory_order_relaxed) + 1;
        bool moved = false;
        left = 0;
        for (size_t i = 0; i < n; i++) {
            struct engine_run *run = &runs[i];
            if (run->status == KOLO_OK && run->collectives)
                moved |= collectives_progress(run->engine, run);
            if (run->status == KOLO_OK && run->p2p)
                moved |= p2p_progress(run->engine, run, pass);
            left += !run_is_over(run);
        }
        if (moved)
            wait_reset(&w, runs[0].engine);
        else if (left > 0)
            wait_step(&w, runs, n);
    }
    if (w.is_armed)
        wait_disarm(&w, runs[0].engine);
    for (size_t i = 0; i < n; i++)
        if (runs[i].status != KOLO_OK && runs[i].engine->has_remote)
            remote_drain(runs[i].engine);
    for (size_t i = 0; i < n; i++)
        TRY(runs[i].status);
    return KOLO_OK;
}
