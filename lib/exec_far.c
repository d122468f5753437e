/* exec_far.c - from which peers cache lines take long to come here.
 *
 * Between cores without a common L3 a line that is dirty in the writer's cache comes slowly, and
 * few of them at a time: then the writer does better to send payloads past its caches to memory
 * (2 ranks in two L3s exchange 512 KiB in 44 instead of 240 us, in one L3 in 60 instead of 30).
 * Virtual CPUs are moved between L3s without notice, so the consumer of a link keeps timing the
 * load of a line that the producer has just written, and tells the producer. */
#include "cfg.h"
#include "engine.h"

enum {
    FAR_NS = 100, /* Zen 4: 50 in one L3, 140 from another, each within 10 */
    /* In a row until the verdict changes: of ranks that share a CPU one in 30 comes late, when the
     * line has left the caches in between. */
    PROBES = 3,
    RATE_NS = 100000, /* least time over which the rate of ticks is taken */
};

#if defined(__x86_64__)
static inline void loads_done(void)
{
    __builtin_ia32_lfence();
}
#else
static inline void loads_done(void)
{
    atomic_thread_fence(memory_order_seq_cst);
}
#endif

void far_init(struct engine *e)
{
    e->streaming = (enum streaming)cfg_int(CFG_STREAM);
    e->began_ns = now_ns();
    e->began_ticks = record_ticks();
}

static uint64_t ticks_to_load(const _Atomic uint64_t *line)
{
    loads_done();
    const uint64_t began = record_ticks();
    loads_done();
    (void)atomic_load_explicit(line, memory_order_relaxed); /* only its time matters */
    loads_done();
    return record_ticks() - began;
}

/* FAR_NS in ticks; 0: the engine is too young to tell. */
static uint64_t far_ticks(struct engine *e)
{
    if (LIKELY(e->far_ticks > 0))
        return e->far_ticks;
    const uint64_t ns = now_ns() - e->began_ns;
    if (ns >= RATE_NS)
        e->far_ticks = (record_ticks() - e->began_ticks) * FAR_NS / ns + 1;
    return e->far_ticks;
}

void far_judge(struct link *l, bool is_late)
{
    l->odd_probes = is_late == l->is_far ? 0 : (uint8_t)(l->odd_probes + 1);
    if (l->odd_probes < PROBES)
        return;
    l->odd_probes = 0;
    l->is_far = is_late;
    /* Relaxed: a hint, and it comes with the next credit. */
    atomic_store_explicit(&l->back->is_far, is_late, memory_order_relaxed);
}

void far_learn(struct engine *e, struct link *l)
{
    if (e->streaming == STREAM_NEVER)
        return;
    const uint64_t limit = far_ticks(e);
    if (e->streaming == STREAM_ALWAYS)
        far_judge(l, true);
    else if (limit > 0)
        far_judge(l, ticks_to_load(l->probe) > limit);
}

bool far_are_most(struct link *const *links, int n)
{
    int nlinks = 0, nfar = 0;
    for (int k = 0; k < n; k++) {
        nlinks += links[k] != NULL;
        nfar += links[k] && links[k]->is_far;
    }
    return 2 * nfar > nlinks;
}
