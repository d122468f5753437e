/* boot_env.c - who started this process, by the variables that launchers set.
 *
 * Every source that is there is read; the first in the table wins, and all must agree, because a
 * stale RANK in a container is more likely than it seems.  But a launcher below another leaks:
 * under `srun torchrun` each child still has the SLURM_PROCID of its agent.  So a source that runs
 * below daemons of others (`hides`) silences those.  KOLO_LAUNCHER chooses one and silences all
 * others. */
#include "boot_env.h"

#include "cfg.h"
#include "log.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum source_id {
    SOURCE_KOLO,
    SOURCE_TORCHRUN,
    SOURCE_PMIX,
    SOURCE_OMPI,
    SOURCE_PMI,
    SOURCE_PALS,
    SOURCE_SLURM,
    SOURCE_ENV,
    SOURCE_JAX,
    SOURCE_K8S,
    NSOURCES
};

#define BIT(source) (1u << (source))

enum source_flags {
    SOURCE_HALF_OK = 1, /* a rank without a size means that the source is not there */
};

struct source {
    const char *name;
    const char *rank, *size; /* variables; size NULL: only the process manager knows */
    const char *local_rank, *local_size;
    const char *needs; /* another variable that must be there, or NULL */
    unsigned flags;
    unsigned hides; /* bits of sources that may be leaks when this one is there */
};

#define BELOW_MPI (BIT(SOURCE_SLURM) | BIT(SOURCE_K8S) | BIT(SOURCE_PALS))

static const struct source sources[NSOURCES] = {
    [SOURCE_KOLO] = {.name = "kolo",
                     .rank = "KOLO_RANK",
                     .size = "KOLO_SIZE",
                     .local_rank = "KOLO_LOCAL_RANK"},
    [SOURCE_TORCHRUN] = {.name = "torchrun",
                         .rank = "RANK",
                         .size = "WORLD_SIZE",
                         .local_rank = "LOCAL_RANK",
                         .local_size = "LOCAL_WORLD_SIZE",
                         .needs = "TORCHELASTIC_RUN_ID",
                         .hides = BELOW_MPI | BIT(SOURCE_PMIX) | BIT(SOURCE_OMPI) |
                                  BIT(SOURCE_PMI) | BIT(SOURCE_ENV) | BIT(SOURCE_JAX)},
    [SOURCE_PMIX] = {.name = "pmix",
                     .rank = "PMIX_RANK",
                     .needs = "PMIX_NAMESPACE",
                     .hides = BELOW_MPI},
    [SOURCE_OMPI] = {.name = "ompi",
                     .rank = "OMPI_COMM_WORLD_RANK",
                     .size = "OMPI_COMM_WORLD_SIZE",
                     .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
                     .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
                     .hides = BELOW_MPI},
    [SOURCE_PMI] = {.name = "pmi",
                    .rank = "PMI_RANK",
                    .size = "PMI_SIZE",
                    .local_rank = "MPI_LOCALRANKID",
                    .local_size = "MPI_LOCALNRANKS",
                    .hides = BELOW_MPI},
    [SOURCE_PALS] = {.name = "pals",
                     .rank = "PALS_RANKID",
                     .size = "PALS_SIZE",
                     .local_rank = "PALS_LOCAL_RANKID",
                     .local_size = "PALS_LOCAL_SIZE"},
    /* A batch script has SLURM_PROCID and no step: there it means nothing. */
    [SOURCE_SLURM] = {.name = "slurm",
                      .rank = "SLURM_PROCID",
                      .size = "SLURM_STEP_NUM_TASKS",
                      .local_rank = "SLURM_LOCALID",
                      .flags = SOURCE_HALF_OK,
                      .hides = BIT(SOURCE_K8S)},
    [SOURCE_ENV] = {.name = "env",
                    .rank = "RANK",
                    .size = "WORLD_SIZE",
                    .local_rank = "LOCAL_RANK",
                    .local_size = "LOCAL_WORLD_SIZE",
                    .needs = "MASTER_ADDR",
                    .hides = BIT(SOURCE_K8S)},
    [SOURCE_JAX] = {.name = "jax",
                    .rank = "JAX_PROCESS_ID",
                    .size = "JAX_NUM_PROCESSES",
                    .needs = "JAX_COORDINATOR_ADDRESS",
                    .hides = BIT(SOURCE_K8S)},
    [SOURCE_K8S] = {.name = "k8s",
                    .rank = "JOB_COMPLETION_INDEX",
                    .size = "KOLO_SIZE",
                    .flags = SOURCE_HALF_OK},
};

/* What one source says; -1 for what it does not tell. */
struct said {
    bool is_there;
    int rank, size, local_rank, local_size;
};

const char *env_get(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

enum kolo_status env_int(const char *name, int lo, int hi, int *out)
{
    const char *value = env_get(name);
    char *end;
    if (value == NULL)
        return fail(KOLO_ERR_ARG, "%s is not set", name);
    const bool is_number = value[value[0] == '-'] >= '0' && value[value[0] == '-'] <= '9';
    const long long number = is_number ? strtoll(value, &end, 10) : 0;
    if (!is_number || *end != '\0')
        return fail(KOLO_ERR_ARG, "%s=%s is not a number", name, value);
    if (number < lo || number > hi)
        return fail(KOLO_ERR_ARG, "%s=%s is not in %d..%d", name, value, lo, hi);
    *out = (int)number;
    return KOLO_OK;
}

static bool is_there(const struct source *s)
{
    if (env_get(s->rank) == NULL || (s->needs != NULL && env_get(s->needs) == NULL))
        return false;
    return !(s->flags & SOURCE_HALF_OK) || env_get(s->size) != NULL;
}

static enum kolo_status read_local(const struct source *s, struct said *said)
{
    if (s->local_rank != NULL && env_get(s->local_rank) != NULL)
        TRY(env_int(s->local_rank, 0, INT_MAX, &said->local_rank));
    if (s->local_size != NULL && env_get(s->local_size) != NULL)
        TRY(env_int(s->local_size, 1, INT_MAX, &said->local_size));
    if (said->local_size >= 0 && said->local_rank >= said->local_size)
        return fail(KOLO_ERR_ARG, "%s=%d, but %s=%d: a local rank must be less than the local size",
                    s->local_rank, said->local_rank, s->local_size, said->local_size);
    return KOLO_OK;
}

/* Slurm tells the tasks of all nodes and the number of this one. */
static int slurm_local_size(void)
{
    const char *tasks = env_get("SLURM_STEP_TASKS_PER_NODE");
    int node;
    if (tasks == NULL || env_get("SLURM_NODEID") == NULL ||
        env_int("SLURM_NODEID", 0, INT_MAX, &node) != KOLO_OK)
        return -1;
    return nodelist_tasks(tasks, node);
}

static enum kolo_status read_source(enum source_id id, struct said *out)
{
    const struct source *s = &sources[id];
    struct said said = {.is_there = true, .size = -1, .local_rank = -1, .local_size = -1};
    if (s->size != NULL && env_get(s->size) == NULL)
        return fail(KOLO_ERR_ARG, "%s=%s is set, but not %s; set both or neither", s->rank,
                    env_get(s->rank), s->size);
    TRY(env_int(s->rank, 0, INT_MAX, &said.rank));
    if (s->size != NULL)
        TRY(env_int(s->size, 1, INT_MAX, &said.size));
    if (s->size != NULL && said.rank >= said.size)
        return fail(KOLO_ERR_ARG, "%s=%d, but %s=%d: a rank must be less than the size", s->rank,
                    said.rank, s->size, said.size);
    TRY(read_local(s, &said));
    if (id == SOURCE_SLURM)
        said.local_size = slurm_local_size();
    *out = said;
    return KOLO_OK;
}

bool env_is_slurm_pmi(void)
{
    return env_get("SLURM_STEP_NUM_TASKS") != NULL && env_get("MPI_LOCALRANKID") == NULL;
}

/* Slurm's own PMI and PMIx describe the same tasks as its variables, which then are no leak. */
static unsigned hidden_by(enum source_id id)
{
    const char *name_space = env_get("PMIX_NAMESPACE");
    const bool is_slurms =
        (id == SOURCE_PMIX && name_space != NULL && strncmp(name_space, "slurm.", 6) == 0) ||
        (id == SOURCE_PMI && env_is_slurm_pmi());
    return is_slurms ? sources[id].hides & ~BIT(SOURCE_SLURM) : sources[id].hides;
}

static unsigned find_hidden(void)
{
    unsigned hidden = 0;
    for (int i = 0; i < NSOURCES; i++) {
        if (!(hidden & BIT(i)) && is_there(&sources[i]))
            hidden |= hidden_by((enum source_id)i);
    }
    return hidden;
}

static enum kolo_status read_all(struct said said[NSOURCES])
{
    const unsigned hidden = find_hidden();
    for (int i = 0; i < NSOURCES; i++) {
        said[i] = (struct said){.size = -1, .local_rank = -1, .local_size = -1};
        /* KOLO_RANK makes KOLO_SIZE its own. */
        const bool is_taken = i == SOURCE_K8S && said[SOURCE_KOLO].is_there;
        if (!(hidden & BIT(i)) && !is_taken && is_there(&sources[i]))
            TRY(read_source((enum source_id)i, &said[i]));
    }
    return KOLO_OK;
}

static enum kolo_status fail_disagree(enum source_id a, const struct said *x, enum source_id b,
                                      const struct said *y)
{
    const bool is_rank = x->rank != y->rank;
    return fail(
        KOLO_ERR_SETUP,
        "launchers disagree about the %s: %s says %d (%s), %s says %d (%s); unset the stale "
        "one, or choose with KOLO_LAUNCHER=%s or %s",
        is_rank ? "rank" : "size", sources[a].name, is_rank ? x->rank : x->size,
        is_rank ? sources[a].rank : sources[a].size, sources[b].name, is_rank ? y->rank : y->size,
        is_rank ? sources[b].rank : sources[b].size, sources[a].name, sources[b].name);
}

/* The first source that is there, checked against and completed by the others; NSOURCES: none. */
static enum kolo_status merge(const struct said said[NSOURCES], enum source_id *first,
                              struct said *out)
{
    enum source_id who = 0;
    while (who < NSOURCES && !said[who].is_there)
        who++;
    *first = who;
    if (who == NSOURCES)
        return KOLO_OK;
    struct said all = said[who];
    enum source_id size_from = who;
    for (enum source_id i = who + 1; i < NSOURCES; i++) {
        const struct said *it = &said[i];
        if (!it->is_there)
            continue;
        if (it->rank != all.rank)
            return fail_disagree(who, &all, i, it);
        if (all.size >= 0 && it->size >= 0 && it->size != all.size)
            return fail_disagree(size_from, &all, i, it);
        size_from = all.size < 0 ? i : size_from;
        all.size = all.size < 0 ? it->size : all.size;
        all.local_rank = all.local_rank < 0 ? it->local_rank : all.local_rank;
        all.local_size = all.local_size < 0 ? it->local_size : all.local_size;
    }
    *out = all;
    return KOLO_OK;
}

/* KOLO_LAUNCHER: one source and no other. */
static enum kolo_status read_chosen(const char *name, enum source_id *who, struct said *out)
{
    char names[128];
    struct text t;
    text_init(&t, names, sizeof(names));
    for (int i = 0; i < NSOURCES; i++) {
        const struct source *s = &sources[i];
        text_add(&t, "%s, ", s->name);
        if (strcmp(name, s->name) != 0)
            continue;
        if (!is_there(s))
            return fail(KOLO_ERR_ARG,
                        "KOLO_LAUNCHER=%s, but its variables are not all set: it needs %s%s%s%s%s",
                        name, s->rank, s->size != NULL ? ", " : "", s->size != NULL ? s->size : "",
                        s->needs != NULL ? ", " : "", s->needs != NULL ? s->needs : "");
        *who = (enum source_id)i;
        return read_source(*who, out);
    }
    *who = NSOURCES;
    if (strcmp(name, "single") == 0)
        return KOLO_OK;
    return fail(KOLO_ERR_ARG, "KOLO_LAUNCHER=%s is not one of %ssingle", name, names);
}

/* Alone, unless something says that there should be others. */
static enum kolo_status check_alone(void)
{
    const char *size = env_get("KOLO_SIZE");
    const char *index = env_get("JOB_COMPLETION_INDEX");
    if (index != NULL && size == NULL)
        return fail(
            KOLO_ERR_ARG,
            "this is pod %s of an indexed job, of unknown size; add to its container  env: "
            "[{name: KOLO_SIZE, value: \"<completions of the job>\"}], or KOLO_LAUNCHER=single "
            "to run alone",
            index);
    if (size != NULL && strcmp(size, "1") != 0)
        return fail(KOLO_ERR_ARG,
                    "KOLO_SIZE=%s is set, but nothing gives this process a rank; set "
                    "KOLO_RANK, or unset KOLO_SIZE",
                    size);
    return KOLO_OK;
}

/* mpiexec -pmi-port: no variable tells the rank, but the process manager does. */
static bool is_pmi_port(void)
{
    return env_get("PMI_PORT") != NULL && env_get("PMI_ID") != NULL && env_get("PMI_RANK") == NULL;
}

static enum kolo_status find_by_pmi_port(struct boot_env *env)
{
    struct said local = {.local_rank = -1, .local_size = -1};
    int rank, size;
    TRY(read_local(&sources[SOURCE_PMI], &local));
    TRY(boot_pmi_job(&rank, &size));
    *env = (struct boot_env){"pmi", rank, size, local.local_rank, local.local_size};
    return KOLO_OK;
}

enum kolo_status boot_env_find(struct boot_env *env)
{
    struct said all = {.size = -1, .local_rank = -1, .local_size = -1};
    const char *chosen = cfg_str(CFG_LAUNCHER);
    enum source_id who = NSOURCES;
    if (chosen[0] != '\0') {
        TRY(read_chosen(chosen, &who, &all));
    } else {
        struct said said[NSOURCES];
        TRY(read_all(said));
        TRY(merge(said, &who, &all));
        if (who == NSOURCES)
            TRY(check_alone());
    }
    if (who == NSOURCES && chosen[0] == '\0' && is_pmi_port())
        return find_by_pmi_port(env);
    if (who == NSOURCES) {
        *env = (struct boot_env){"single", 0, 1, 0, 1};
        return KOLO_OK;
    }
    struct boot_env found = {sources[who].name, all.rank, all.size, all.local_rank, all.local_size};
    if (found.size < 0)
        TRY(boot_pmix_job(&found.size, &found.local_rank, &found.local_size));
    if (found.rank >= found.size)
        return fail(KOLO_ERR_ARG, "%s=%d, but the launcher says that there are %d ranks",
                    sources[who].rank, found.rank, found.size);
    LOG(LOG_INFO, "boot", "launcher %s: rank %d of %d, local rank %d of %d", found.launcher,
        found.rank, found.size, found.local_rank, found.local_size);
    *env = found;
    return KOLO_OK;
}

static void print_source(const struct source *s, bool is_hidden, struct text *out)
{
    const char *names[] = {s->rank, s->size, s->local_rank, s->local_size, s->needs};
    text_add(out, "  %-9s", s->name);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (names[i] != NULL && env_get(names[i]) != NULL)
            text_add(out, " %s=%s", names[i], env_get(names[i]));
    }
    text_add(out, "%s\n", is_hidden ? "  (not asked: may belong to a daemon above)" : "");
}

void boot_env_print(struct text *out)
{
    struct boot_env env;
    const unsigned hidden = find_hidden();
    if (boot_env_find(&env) == KOLO_OK)
        text_add(out, "launcher %s: rank %d of %d, local rank %d of %d (-1: unknown)\n",
                 env.launcher, env.rank, env.size, env.local_rank, env.local_size);
    else
        text_add(out, "launcher unknown: %s\n", fail_text());
    for (int i = 0; i < NSOURCES; i++) {
        if (is_there(&sources[i]))
            print_source(&sources[i], hidden & BIT(i), out);
    }
}
