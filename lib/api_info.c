/* api_info.c - looking in: plans and predictions, options, machine, counters, the flight
 * recorder. */
#include "api.h"
#include "boot.h"
#include "cfg.h"
#include "topo.h"

#include <inttypes.h>
#include <string.h>

static enum kolo_status finish(const struct text *t, size_t *needed)
{
    if (needed)
        *needed = t->used + 1;
    return KOLO_OK;
}

/* ---- explain ---- */

static enum kolo_status check_query(const struct kolo_comm *comm, const struct kolo_query *q)
{
    if (!q || q->size != sizeof *q)
        return fail(KOLO_ERR_ARG, "explain: query is NULL or has a wrong size field");
    const int nranks = comm ? comm->nranks : q->nranks;
    if (!kolo_coll_name(q->coll))
        return fail(KOLO_ERR_ARG, "explain: coll is %d, not an enum kolo_coll", q->coll);
    if (nranks < 1 || nranks > 4096)
        return fail(KOLO_ERR_ARG, "explain: nranks is %d, not 1 to 4096", nranks);
    if (q->rank < -1 || q->rank >= nranks)
        return fail(KOLO_ERR_ARG, "explain: rank is %d, not -1 to %d", q->rank, nranks - 1);
    if (q->root < 0 || q->root >= nranks)
        return fail(KOLO_ERR_ARG, "explain: root is %d, not 0 to %d", q->root, nranks - 1);
    if (kolo_type_size(q->type) == 0)
        return fail(KOLO_ERR_ARG, "explain: type is %d, not an enum kolo_type", q->type);
    if (q->algo && !plan_algo_find((enum kolo_coll)q->coll, q->algo))
        return fail(KOLO_ERR_ARG, "explain: %s has no algorithm '%s'", kolo_coll_name(q->coll),
                    q->algo);
    return KOLO_OK;
}

/* Of ranks on a machine like this one. */
static struct tune_facts facts_here(int nranks)
{
    return (struct tune_facts){
        .nranks = nranks,
        .nranks_here = nranks,
        .ncpus = topo_ncpus(),
        .has_windows = cfg_int(CFG_WINDOWS) != 0,
        .deterministic = cfg_int(CFG_DETERMINISTIC) != 0,
    };
}

static enum kolo_status tune_of(const struct kolo_comm *comm, const struct kolo_query *q,
                                struct tune *scratch, const struct tune **out)
{
    *out = comm ? &comm->tune : scratch;
    if (comm)
        return KOLO_OK;
    const struct tune_facts facts = facts_here(q->nranks);
    TRY(tune_init(scratch, &facts));
    struct tune_table table;
    const bool is_measured = cfg_int(CFG_TUNE) != TUNE_MODEL && q->nranks > 1 &&
                             tune_store_find(tune_key(&facts), true, &table) && table.date > 0;
    return is_measured ? tune_apply(scratch, &table) : KOLO_OK;
}

enum kolo_status kolo_explain(const struct kolo_comm *comm, const struct kolo_query *query,
                              char *text, size_t size, size_t *needed)
{
    TRY(check_query(comm, query));
    static _Thread_local struct tune scratch;
    const struct tune *tune;
    TRY(tune_of(comm, query, &scratch, &tune));
    const enum kolo_coll coll = (enum kolo_coll)query->coll;
    const int n = tune->facts.nranks;
    const size_t bytes = operation_bytes(coll, query->count, kolo_type_size(query->type), n);
    const struct plan_algo *chosen = tune_choose(tune, coll, bytes, bytes > 0);
    if (query->algo && n > 1)
        chosen = plan_algo_find(coll, query->algo);

    struct text t;
    text_init(&t, text, size);
    text_add(&t, "# %s of %zu elements (largest buffer %zu bytes) on %d ranks, %d cpus\n",
             kolo_coll_name(query->coll), query->count, bytes, n, tune->facts.ncpus);
    if (n > 1 && !coll_is_p2p(coll))
        tune_explain(tune, coll, bytes, &t);
    if (chosen)
        text_add(&t, "# %s: %s\n# source: %s\n", chosen->name, chosen->what, chosen->source);
    const int first = query->rank < 0 ? 0 : query->rank,
              last = query->rank < 0 ? n - 1 : query->rank;
    for (int r = first; r <= last; r++) {
        const bool is_p2p = coll_is_p2p(coll);
        const int root = is_p2p && query->root == r ? (r + 1) % n : query->root;
        const struct plan_shape shape = {coll, n, r, coll_has_root(coll) || is_p2p ? root : 0, 0};
        struct plan *plan;
        TRY(plan_generate(chosen, &shape, &plan));
        text_add(&t, "\n");
        plan_print(plan, &t);
        plan_destroy(plan);
    }
    return finish(&t, needed);
}

/* ---- describe ---- */

static void print_build(struct text *t)
{
    text_add(t, "kolo %d.%d.%d, compiled by %s\n", KOLO_VERSION_MAJOR, KOLO_VERSION_MINOR,
             KOLO_VERSION_PATCH, __VERSION__);
    text_add(t, "kernels usable here: %s; in use: %s\n", reduce_table_names(),
             reduce_table_get()->name);
    text_add(t, "transports: shm (ranks of one machine)\n");
}

static void print_algos(struct text *t)
{
    size_t n;
    const struct plan_algo *algos = plan_algos(&n);
    for (size_t i = 0; i < n; i++)
        text_add(t, "%-16s %-15s %s%s\n%33ssource: %s\n", kolo_coll_name((int)algos[i].coll),
                 algos[i].name, algos[i].what,
                 algos[i].flags & ALGO_V ? "; also the v-variant" : "", "", algos[i].source);
}

static void print_tune(struct text *t)
{
    char path[1024];
    struct tune_table table;
    bool is_any = false;
    for (int n = 2; n <= TUNE_MOST_RANKS; n++) {
        const struct tune_facts facts = facts_here(n);
        const uint64_t key = tune_key(&facts);
        if (!tune_store_find(key, true, &table) || table.date == 0)
            continue;
        text_add(t, "%s", is_any ? "\n" : "");
        tune_table_show(&table, n, t);
        if (tune_store_path(key, path, sizeof path))
            text_add(t, "kept in %s\n", path);
        is_any = true;
    }
    if (!is_any)
        text_add(t, "nothing has been measured yet, or it was not kept\n");
}

enum kolo_status kolo_describe(enum kolo_topic topic, char *text, size_t size, size_t *needed)
{
    struct text t;
    text_init(&t, text, size);
    switch (topic) {
    case KOLO_TOPIC_BUILD:
        print_build(&t);
        break;
    case KOLO_TOPIC_OPTIONS:
        cfg_print(&t);
        break;
    case KOLO_TOPIC_TOPOLOGY:
        topo_print(&t);
        break;
    case KOLO_TOPIC_LAUNCHER:
        boot_env_print(&t);
        break;
    case KOLO_TOPIC_ALGOS:
        print_algos(&t);
        break;
    case KOLO_TOPIC_TUNE:
        print_tune(&t);
        break;
    default:
        return fail(KOLO_ERR_ARG, "describe: topic is %d, not an enum kolo_topic", (int)topic);
    }
    return finish(&t, needed);
}

/* ---- metrics and records ---- */

static void print_counter(struct text *t, const char *name, const char *help, uint64_t value,
                          const struct kolo_comm *comm)
{
    text_add(t,
             "# HELP %s %s\n# TYPE %s counter\n%s{communicator=\"%s\",rank=\"%d\"} %" PRIu64 "\n",
             name, help, name, name, comm->name, comm->rank, value);
}

static void print_per_coll(struct text *t, const char *name, const char *help,
                           const uint64_t *values, const struct kolo_comm *comm)
{
    text_add(t, "# HELP %s %s\n# TYPE %s counter\n", name, help, name);
    for (int c = 0; c < KOLO_NCOLLS; c++)
        if (values[c] > 0)
            text_add(t, "%s{communicator=\"%s\",rank=\"%d\",op=\"%s\"} %" PRIu64 "\n", name,
                     comm->name, comm->rank, kolo_coll_name(c), values[c]);
}

enum kolo_status kolo_metrics(const struct kolo_comm *comm, char *text, size_t size, size_t *needed)
{
    if (!comm)
        return fail(KOLO_ERR_ARG, "metrics: comm is NULL");
    const struct engine_counters *c = &comm->engine->counters;
    struct text t;
    text_init(&t, text, size);
    print_per_coll(&t, "kolo_collectives_total", "Operations started.", c->operations, comm);
    print_per_coll(&t, "kolo_collective_bytes_total",
                   "Bytes of the larger buffer of the operations started.", c->bytes, comm);
    print_counter(&t, "kolo_wait_yields_total", "Times the rank gave its CPU away while waiting.",
                  c->yields, comm);
    print_counter(&t, "kolo_wait_sleeps_total", "Times the rank slept while waiting.", c->sleeps,
                  comm);
    print_counter(&t, "kolo_window_operations_total",
                  "Operations that copied between buffers directly.", c->window_operations, comm);
    print_counter(&t, "kolo_window_misses_total",
                  "Operations that fell back to staging because a buffer was private memory.",
                  c->window_misses, comm);
    print_counter(&t, "kolo_fused_operations_total",
                  "Operations of groups that ran as part of a bucket.", c->fused_operations, comm);
    return finish(&t, needed);
}

enum kolo_status kolo_record_dump(const struct kolo_comm *comm, char *text, size_t size,
                                  size_t *needed)
{
    if (!comm)
        return fail(KOLO_ERR_ARG, "record_dump: comm is NULL");
    struct text t;
    text_init(&t, text, size);
    record_print(&comm->engine->record, &t);
    return finish(&t, needed);
}
