/* comm_plan.c - a communicator's plans: generated on first use, compiled, kept; and those of the
 * user's file, which are proven before they are taken. */
#include "comm.h"
#include "mem.h"

#include <string.h>

/* Rooted collectives and peers need a plan per root. */
static uint32_t program_key(enum kolo_coll coll, const struct plan_algo *algo, int root)
{
    size_t n;
    const uint32_t number = algo ? (uint32_t)(algo - plan_algos(&n)) + 1 : 0;
    return 1u + (uint32_t)coll + (uint32_t)KOLO_NCOLLS * (number + 64u * (uint32_t)root);
}

static struct program_entry *find(struct program_entry *entries, size_t room, uint32_t key)
{
    size_t at = (key * 0x9e3779b1u >> 7) & (room - 1);
    while (entries[at].key != 0 && entries[at].key != key)
        at = (at + 1) & (room - 1);
    return &entries[at];
}

static enum kolo_status grow(struct kolo_comm *comm)
{
    const size_t room = comm->programs_room ? comm->programs_room * 2 : 32;
    struct program_entry *entries = mem_calloc(room, sizeof *entries);
    if (!entries)
        return fail(KOLO_ERR_NOMEM, "out of memory for the table of plans");
    for (size_t i = 0; i < comm->programs_room; i++)
        if (comm->programs[i].key)
            *find(entries, room, comm->programs[i].key) = comm->programs[i];
    mem_free(comm->programs);
    comm->programs = entries;
    comm->programs_room = room;
    return KOLO_OK;
}

/* What all ranks must know of each other's plans. */
struct survey {
    unsigned needs; /* what any rank does to its peers' buffers: all must announce the same ones */
    int max_span;   /* of any rank: all must cut their chunks alike */
};

static enum kolo_status survey_ranks(const struct plan_algo *algo, struct plan_shape shape,
                                     struct survey *out)
{
    *out = (struct survey){0, 1};
    for (int r = 0; algo && (algo->flags & (ALGO_WINDOW | ALGO_UNEVEN)) && r < shape.nranks; r++) {
        struct plan *plan;
        shape.rank = r;
        TRY(plan_generate(algo, &shape, &plan));
        out->needs |= plan->flags & (PLAN_READS_PEERS | PLAN_WRITES_PEERS);
        out->max_span = max_int(out->max_span, plan->max_span);
        plan_destroy(plan);
    }
    return KOLO_OK;
}

enum kolo_status comm_program(struct kolo_comm *comm, const struct plan_algo *algo,
                              enum kolo_coll coll, int root, struct program **out)
{
    const uint32_t key = program_key(coll, algo, root);
    if (comm->programs_room) {
        const struct program_entry *entry = find(comm->programs, comm->programs_room, key);
        if (LIKELY(entry->key == key)) {
            *out = entry->program;
            return KOLO_OK;
        }
    }
    if (comm->nprograms * 2 >= comm->programs_room)
        TRY(grow(comm));
    struct plan *plan;
    const struct plan_shape shape = {coll, comm->nranks, comm->rank, root, 0};
    struct survey all;
    TRY(survey_ranks(algo, shape, &all));
    TRY(plan_generate(algo, &shape, &plan));
    struct program *program;
    const enum kolo_status status = program_compile(comm->engine, plan, &program);
    if (status != KOLO_OK) {
        plan_destroy(plan);
        return status;
    }
    program->window_needs = all.needs;
    program->is_cut &= all.needs == 0;
    program->max_span = max_int(program->max_span, all.max_span);
    *find(comm->programs, comm->programs_room, key) = (struct program_entry){key, program};
    comm->nprograms++;
    *out = program;
    return KOLO_OK;
}

void comm_programs_forget(struct kolo_comm *comm)
{
    for (int c = 0; c < KOLO_NCOLLS; c++)
        if (comm->blocking[c])
            comm->blocking[c]->is_bound = comm->blocking[c]->may_repeat = false;
    for (struct operation *op = comm->spare; op; op = op->next)
        op->is_bound = op->may_repeat = false;
    for (size_t i = 0; i < comm->programs_room; i++)
        program_destroy(comm->programs[i].program);
    mem_free(comm->programs);
    comm->programs = NULL;
    comm->programs_room = comm->nprograms = 0;
}

void comm_programs_destroy(struct kolo_comm *comm)
{
    comm_programs_forget(comm);
    for (size_t i = 0; i < comm->nloaded; i++)
        program_destroy(comm->loaded[i]);
    mem_free(comm->loaded);
}

/* ---- the user's plans ---- */

/* plans[0..n) are the plans of all ranks of one collective, in rank order. */
static enum kolo_status check_set(struct kolo_comm *comm, struct plan **plans, const char *path)
{
    const struct plan_limits limits = {.slots = LINK_SLOTS};
    for (int r = 0; r < comm->nranks; r++) {
        const struct plan *p = plans[r];
        if (p->rank != r || p->coll != plans[0]->coll || p->root != plans[0]->root ||
            p->nranks != comm->nranks)
            return fail(KOLO_ERR_ARG,
                        "%s: the plans of %s for %d ranks must stand together, one for each rank "
                        "in order",
                        path, kolo_coll_name((int)plans[0]->coll), comm->nranks);
        if (p->flags & (PLAN_READS_PEERS | PLAN_WRITES_PEERS))
            return fail(KOLO_ERR_UNSUPPORTED, "%s: plans over windows cannot be loaded", path);
        if (comm->deterministic && coll_reduces(p->coll) && !(p->flags & PLAN_RANK_ORDER))
            return fail(KOLO_ERR_ARG,
                        "%s: the plan of rank %d for %s does not reduce in rank order, as a "
                        "deterministic communicator needs",
                        path, r, kolo_coll_name((int)p->coll));
    }
    return plan_verify(plans, comm->nranks, &limits);
}

static enum kolo_status adopt(struct kolo_comm *comm, struct plan **mine, int max_span)
{
    struct program **loaded = mem_resize(comm->loaded, comm->nloaded + 1, sizeof *loaded);
    if (!loaded)
        return fail(KOLO_ERR_NOMEM, "out of memory for loaded plans");
    comm->loaded = loaded;
    TRY(program_compile(comm->engine, *mine, &loaded[comm->nloaded]));
    loaded[comm->nloaded]->max_span = max_span;
    comm->nloaded++;
    *mine = NULL; /* the program owns it */
    return KOLO_OK;
}

enum kolo_status comm_load_plans(struct kolo_comm *comm, const char *path)
{
    struct plan **plans;
    size_t n;
    TRY(plan_load(path, &plans, &n));
    const size_t nranks = (size_t)comm->nranks;
    enum kolo_status status = KOLO_OK;
    for (size_t i = 0; i < n && status == KOLO_OK; i++) {
        if (plans[i]->nranks != comm->nranks)
            continue; /* for communicators of another size */
        if (n - i < nranks) {
            status = fail(KOLO_ERR_ARG, "%s: plans of some ranks are missing at the end", path);
            break;
        }
        status = check_set(comm, &plans[i], path);
        int max_span = 1;
        for (size_t r = 0; r < nranks; r++)
            max_span = max_int(max_span, plans[i + r]->max_span);
        if (status == KOLO_OK)
            status = adopt(comm, &plans[i + (size_t)comm->rank], max_span);
        i += nranks - 1;
    }
    plan_set_destroy(plans, n);
    return status;
}

struct program *comm_loaded_program(struct kolo_comm *comm, enum kolo_coll coll, int root)
{
    for (size_t i = 0; i < comm->nloaded; i++)
        if (comm->loaded[i]->plan->coll == coll && comm->loaded[i]->plan->root == root)
            return comm->loaded[i];
    return NULL;
}
