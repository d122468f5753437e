/* comm.c - a communicator's life: create (by id, by launcher, local), split, destroy. */
#include "comm.h"
#include "boot.h"
#include "cfg.h"
#include "log.h"
#include "mem.h"
#include "shm.h"

#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { CARD_VERSION = 2, CPU_WORDS = 16 };

/* What each rank tells all others when a communicator is made. */
struct comm_card {
    uint32_t version;
    uint32_t is_able; /* 0: this rank failed locally and only says so */
    struct shm_card shm;
    unsigned char secret[16]; /* rank 0's is used */
    uint64_t cpus[CPU_WORDS]; /* affinity mask, 1,024 CPUs */
    uint32_t deterministic;
    uint32_t windows;
    uint64_t plans_hash; /* of what decides about plans */
};

/* ---- facts that ranks share ---- */

static void own_cpus(uint64_t words[CPU_WORDS])
{
    cpu_set_t set;
    memset(words, 0, CPU_WORDS * sizeof *words);
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        CPU_SET(0, &set);
    for (int i = 0; i < CPU_WORDS * 64 && i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &set))
            words[i / 64] |= (uint64_t)1 << (i % 64);
}

static int count_bits(const uint64_t words[CPU_WORDS])
{
    int n = 0;
    for (int i = 0; i < CPU_WORDS; i++)
        n += __builtin_popcountll(words[i]);
    return n;
}

/* The CPUs that the ranks may use together, and whether some are bound to one and the same. */
static void count_cpus(const struct comm_card *cards, int n, struct tune_facts *facts)
{
    uint64_t all[CPU_WORDS] = {0}, bound[CPU_WORDS] = {0};
    facts->shares_cpu = false;
    for (int r = 0; r < n; r++) {
        const bool is_bound = count_bits(cards[r].cpus) == 1;
        for (int i = 0; i < CPU_WORDS; i++) {
            all[i] |= cards[r].cpus[i];
            if (is_bound && (bound[i] & cards[r].cpus[i]))
                facts->shares_cpu = true;
            if (is_bound)
                bound[i] |= cards[r].cpus[i];
        }
    }
    facts->ncpus = max_int(count_bits(all), 1);
}

/* Of the content of a file; 0 when it cannot be read (loading it will say so). */
static uint64_t file_hash(const char *path)
{
    static const unsigned char key[16] = "kolo plan file";
    unsigned char block[4096];
    uint64_t state[2] = {0, 0};
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n;
    while (fd >= 0 && (n = read(fd, block, sizeof block)) > 0) {
        state[1] = siphash(key, block, (size_t)n);
        state[0] = siphash(key, state, sizeof state);
    }
    if (fd >= 0)
        close(fd);
    return state[0];
}

static uint64_t plan_options_hash(const struct kolo_comm *comm)
{
    static const unsigned char key[16] = "kolo options  ";
    const char *algo = cfg_str(CFG_ALGO);
    const uint64_t facts[4] = {siphash(key, algo, strlen(algo)),
                               comm->plan_file ? file_hash(comm->plan_file) : 1,
                               (uint64_t)cfg_int(CFG_CMA), (uint64_t)cfg_int(CFG_FUSE)};
    return siphash(key, facts, sizeof facts);
}

static enum kolo_status fill_card(const struct kolo_comm *comm, struct comm_card *card)
{
    card->version = CARD_VERSION;
    card->is_able = 1;
    if (getrandom(card->secret, sizeof card->secret, 0) != (ssize_t)sizeof card->secret)
        return fail(KOLO_ERR_SYSTEM, "getrandom failed");
    own_cpus(card->cpus);
    card->deterministic = comm->deterministic;
    card->windows = cfg_int(CFG_WINDOWS) != 0;
    card->plans_hash = plan_options_hash(comm);
    return KOLO_OK;
}

/* All ranks see the same cards, so all come to the same answer. */
static enum kolo_status check_cards(const struct comm_card *cards, int n)
{
    for (int r = 0; r < n; r++) {
        const struct comm_card *c = &cards[r];
        if (c->version != CARD_VERSION)
            return fail(KOLO_ERR_SETUP, "rank %d runs another version of Kolo", r);
        if (!c->is_able)
            return fail(KOLO_ERR_SETUP,
                        "rank %d failed while the communicator was made; see its own "
                        "error",
                        r);
        if (memcmp(c->shm.host, cards[0].shm.host, sizeof c->shm.host) != 0)
            return fail(KOLO_ERR_UNSUPPORTED,
                        "ranks 0 (host %.60s) and %d (host %.60s) are on different machines or "
                        "network namespaces; this version connects ranks of one machine",
                        cards[0].shm.hostname, r, c->shm.hostname);
        if (c->deterministic != cards[0].deterministic || c->plans_hash != cards[0].plans_hash ||
            c->windows != cards[0].windows || c->shm.slot_bytes != cards[0].shm.slot_bytes)
            return fail(
                KOLO_ERR_SETUP,
                "ranks 0 and %d have different settings of deterministic, KOLO_ALGO, "
                "KOLO_WINDOWS, KOLO_CMA, KOLO_FUSE, KOLO_SLOT_BYTES or the plan file: set them "
                "alike on all ranks",
                r);
    }
    return KOLO_OK;
}

/* ---- building ---- */

static enum kolo_status check_config(const struct kolo_config *config)
{
    TRY(cfg_check());
    if (!config)
        return KOLO_OK;
    if (config->size != sizeof *config)
        return fail(
            KOLO_ERR_ARG,
            "config: size is %zu, this library expects %zu: start from KOLO_CONFIG_INIT and "
            "compile against the header of the library in use",
            config->size, sizeof *config);
    if (config->place != KOLO_PLACE_HOST)
        return fail(KOLO_ERR_UNSUPPORTED,
                    "config: place %d is a device, and this version serves host "
                    "memory (KOLO_PLACE_HOST) only",
                    config->place);
    if (config->timeout_ms < 0 || config->setup_timeout_ms < 0)
        return fail(KOLO_ERR_ARG, "config: a timeout is negative");
    if (config->deterministic != 0 && config->deterministic != 1)
        return fail(KOLO_ERR_ARG, "config: deterministic is %d, not 0 or 1", config->deterministic);
    return KOLO_OK;
}

static int64_t pick_ms(int64_t from_config, enum cfg_key key)
{
    return from_config > 0 && !cfg_is_set(key) ? from_config : cfg_int(key);
}

static bool pick_deterministic(const struct kolo_config *config)
{
    return cfg_is_set(CFG_DETERMINISTIC) ? cfg_int(CFG_DETERMINISTIC) != 0
                                         : config && config->deterministic != 0;
}

/* The part that needs no peers. */
static enum kolo_status comm_begin(const struct kolo_config *config, int rank, int nranks,
                                   struct kolo_comm **out)
{
    static const struct kolo_config defaults = KOLO_CONFIG_INIT;
    const struct kolo_config *c = config ? config : &defaults;
    struct kolo_comm *comm = mem_calloc(1, sizeof *comm);
    if (!comm)
        return fail(KOLO_ERR_NOMEM, "out of memory for a communicator");
    pthread_mutex_init(&comm->lock, NULL);
    comm->owner = getpid();
    comm->rank = rank;
    comm->nranks = nranks;
    comm->deterministic = pick_deterministic(config);
    const int64_t timeout_ms = pick_ms(c->timeout_ms, CFG_TIMEOUT);
    comm->timeout_ns =
        timeout_ms > INT64_MAX / 1000000 ? INT64_MAX : (uint64_t)timeout_ms * 1000000u;
    comm->setup_timeout_ms = pick_ms(c->setup_timeout_ms, CFG_SETUP_TIMEOUT);
    const char *file = cfg_is_set(CFG_PLAN_FILE) ? cfg_str(CFG_PLAN_FILE) : c->plan_file;
    strncpy(comm->name, c->name ? c->name : "world", sizeof comm->name - 1);
    for (char *at = comm->name; *at; at++)
        if (*at == '"' || *at == '\\' || (unsigned char)*at < ' ')
            *at = '_'; /* a label in metrics */
    if (file && *file && !(comm->plan_file = mem_strdup(file))) {
        kolo_comm_destroy(comm);
        return fail(KOLO_ERR_NOMEM, "out of memory for a communicator");
    }
    *out = comm;
    return KOLO_OK;
}

/* How much comes to one CPU before lines are written again, see link_ring_has: twice the L2 of a
 * core, and less than its part of an L3; and how much when a single CPU is the aim of all. */
enum { RING_CPU_BYTES = 2 << 20, RING_ROOT_BYTES = 3 << 20 };

static int ranks_per_cpu(const struct tune_facts *f)
{
    const int least = f->shares_cpu ? 2 : 1;
    return max_int((f->nranks_here + f->ncpus - 1) / max_int(f->ncpus, 1), least);
}

static size_t ring_share(const struct tune_facts *f)
{
    return RING_CPU_BYTES / (size_t)ranks_per_cpu(f);
}

static size_t ring_to_root(const struct tune_facts *f)
{
    const size_t share = RING_ROOT_BYTES / (size_t)max_int(f->nranks_here - 1, 1);
    return share < RING_CPU_BYTES ? share : RING_CPU_BYTES;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* A ring holds what any job may want of it.  Ranks that share CPUs change places less often the
 * more may be in flight; others are fastest a few messages apart (8 bytes: broadcast of 4 ranks on
 * 2 CPUs 0.16 us with 128 cells, 0.24 with 32; of 2 ranks 0.082 and 0.067). */
static struct link_shape choose_shape(const struct tune_facts *f, size_t slot_bytes)
{
    const size_t least = LINK_SLOTS * slot_bytes;
    return (struct link_shape){
        .slot_bytes = slot_bytes,
        .ring_bytes = round_up(larger(least, larger(ring_share(f), ring_to_root(f))), 4096),
        .ncells = tune_is_crowded(f) ? LINK_CELLS : LINK_SMALLS,
    };
}

/* The part after the transport stands. */
static enum kolo_status comm_finish(struct kolo_comm *comm, struct transport *t, size_t slot_bytes,
                                    const struct tune_facts *facts)
{
    const enum kolo_status status =
        engine_create(t, comm->rank, comm->nranks, slot_bytes, &comm->engine);
    if (status != KOLO_OK) {
        t->ops->close(t);
        return status;
    }
    comm->engine->has_remote = facts->has_remote;
    comm->engine->per_cpu = ranks_per_cpu(facts);
    comm->engine->ring_share = ring_share(facts);
    comm->engine->ring_to_root = ring_to_root(facts);
    comm->engine->always_remote = cfg_int(CFG_CMA) == CMA_ALWAYS;
    comm->engine->wait = wait_policy_choose(facts->nranks_here, facts->ncpus, facts->shares_cpu);
    comm->poll_ns = poll_ns_choose(facts->nranks_here, facts->ncpus, facts->shares_cpu);
    TRY(tune_init(&comm->tune, facts));
    if (comm->plan_file)
        TRY(comm_load_plans(comm, comm->plan_file));
    LOG(LOG_INFO, "comm", "%s: rank %d of %d, %d cpus, windows %s, kernels %s", comm->name,
        comm->rank, comm->nranks, facts->ncpus, facts->has_windows ? "yes" : "no",
        comm->engine->reduce->name);
    return KOLO_OK;
}

/* What each rank found while meeting; all see all. */
struct vote {
    int32_t status;
    int32_t has_windows;
    int32_t has_remote;
    int32_t tune; /* enum tune_source; rank 0's counts */
    int32_t can_measure;
    int32_t unused;
};

static enum kolo_status agree(struct boot *boot, enum kolo_status mine, struct vote vote,
                              int64_t timeout_ms, struct vote *all)
{
    const int n = boot_size(boot);
    struct vote *votes = mem_calloc((size_t)n, sizeof *votes);
    vote.status = mine;
    char text[ERROR_TEXT_BYTES];
    memcpy(text, fail_text(), strnlen(fail_text(), sizeof text - 1) + 1);
    if (!votes)
        return fail(KOLO_ERR_NOMEM, "out of memory for %d ranks", n);
    enum kolo_status status = boot_all_gather(boot, &vote, sizeof vote, votes, timeout_ms);
    *all = (struct vote){0, true, true, votes[0].tune, true, 0};

    if (mine != KOLO_OK)
        status = fail(mine, "%s", text);
    for (int r = 0; status == KOLO_OK && r < n; r++) {
        all->has_windows &= votes[r].has_windows != 0;
        all->has_remote &= votes[r].has_remote != 0;
        all->can_measure &= votes[r].can_measure != 0;
        if (votes[r].status != KOLO_OK)
            status = fail(KOLO_ERR_SETUP, "rank %d could not join (%s); see its own error", r,
                          kolo_status_string(votes[r].status));
    }
    mem_free(votes);
    return status;
}

/* Rank 0 has the table: the others take it. */
static enum kolo_status share_table(struct kolo_comm *comm, struct boot *boot,
                                    const struct tune_table *mine)
{
    struct tune_table *tables = mem_calloc((size_t)comm->nranks, sizeof *tables);
    if (!tables)
        return fail(KOLO_ERR_NOMEM, "out of memory for %d ranks", comm->nranks);
    enum kolo_status status =
        boot_all_gather(boot, mine, sizeof *mine, tables, comm->setup_timeout_ms);
    if (status == KOLO_OK)
        status = tune_apply(&comm->tune, &tables[0]);
    mem_free(tables);
    return status;
}

/* All measure, or none: who cannot is not waited for. */
static enum kolo_status measure(struct kolo_comm *comm, struct boot *boot)
{
    const int64_t ms = comm->setup_timeout_ms;
    struct measuring *m = NULL;
    struct vote vote = {0}, all;
    vote.can_measure = measuring_create(comm, &m) == KOLO_OK;
    enum kolo_status status = agree(boot, KOLO_OK, vote, ms, &all);
    if (status == KOLO_OK && all.can_measure) {
        status = measuring_run(m);
        status = agree(boot, status, vote, ms, &all);
    }
    measuring_destroy(m);
    return status;
}

/* Cards, shared memory, agreement. */
static enum kolo_status comm_connect(struct kolo_comm *comm, struct boot *boot)
{
    const int n = comm->nranks;
    const int64_t ms = comm->setup_timeout_ms;
    const size_t slot_bytes = round_up((size_t)cfg_int(CFG_SLOT_BYTES), 4096);
    struct shm_listener *listener = NULL;
    struct transport *t = NULL;
    struct comm_card mine = {0}, *cards = mem_calloc((size_t)n, sizeof *cards);
    struct shm_card *shm = mem_calloc((size_t)n, sizeof *shm);
    enum kolo_status status = cards && shm ? KOLO_OK : fail(KOLO_ERR_NOMEM, "out of memory");
    if (status != KOLO_OK)
        goto done;
    status = fill_card(comm, &mine);
    if (status == KOLO_OK)
        status = shm_listen(slot_bytes, &listener, &mine.shm);
    if (status != KOLO_OK)
        mine.is_able = 0; /* still tell the others */
    const enum kolo_status heard = boot_all_gather(boot, &mine, sizeof mine, cards, ms);
    if (status == KOLO_OK)
        status = heard != KOLO_OK ? heard : check_cards(cards, n);
    if (status != KOLO_OK)
        goto done;
    for (int r = 0; r < n; r++)
        shm[r] = cards[r].shm;
    struct tune_facts facts = {.nranks = n, .nranks_here = n, .deterministic = comm->deterministic};
    count_cpus(cards, n, &facts);
    const struct link_shape shape = choose_shape(&facts, slot_bytes);
    status = shm_meet(listener, shm, comm->rank, n, &shape, cards[0].secret, ms, &t);
    listener = NULL;
    struct vote vote = {0};
    if (status == KOLO_OK) {
        vote.has_windows = t->ops->has_windows(t) && mine.windows;
        vote.has_remote = t->ops->has_remote(t) && mine.windows && cfg_int(CFG_CMA) != CMA_NEVER;
    }
    struct vote all;
    status = agree(boot, status, vote, ms, &all);
    if (status != KOLO_OK)
        goto done;
    facts.has_windows = all.has_windows;
    facts.has_remote = all.has_remote;
    status = comm_finish(comm, t, slot_bytes, &facts);
    t = NULL;
    struct tune_table table = {0};
    if (status == KOLO_OK && comm->rank == 0)
        vote.tune = comm_tune_source(comm, &table);
    /* All or none: a rank whose plans do not load must not be missed later. */
    status = agree(boot, status, vote, ms, &all);
    if (status == KOLO_OK && all.tune == TUNE_FROM_TABLE)
        status = share_table(comm, boot, &table);
    if (status == KOLO_OK && all.tune == TUNE_FROM_MEASURING)
        status = measure(comm, boot);
    if (status == KOLO_OK)
        comm_warm(comm);

done:
    if (t)
        t->ops->close(t);
    shm_listener_close(listener);
    mem_free(cards);
    mem_free(shm);
    return status;
}

static enum kolo_status comm_from_boot(const struct kolo_config *config, struct boot *boot,
                                       struct kolo_comm **out)
{
    struct kolo_comm *comm = NULL;
    enum kolo_status status = comm_begin(config, boot_rank(boot), boot_size(boot), &comm);
    if (status == KOLO_OK)
        status = comm_connect(comm, boot);
    boot_destroy(boot);
    if (status != KOLO_OK) {
        kolo_comm_destroy(comm);
        return status;
    }
    *out = comm;
    return KOLO_OK;
}

static int64_t setup_ms(const struct kolo_config *config)
{
    return pick_ms(config ? config->setup_timeout_ms : 0, CFG_SETUP_TIMEOUT);
}

enum kolo_status kolo_unique_id_create(struct kolo_unique_id *id)
{
    if (!id)
        return fail(KOLO_ERR_ARG, "unique_id_create: id is NULL");
    TRY(cfg_check());
    return boot_id_create(id, cfg_int(CFG_SETUP_TIMEOUT));
}

enum kolo_status kolo_comm_create(const struct kolo_unique_id *id, int rank, int nranks,
                                  const struct kolo_config *config, struct kolo_comm **comm)
{
    if (!id || !comm)
        return fail(KOLO_ERR_ARG, "comm_create: %s is NULL", id ? "comm" : "id");
    if (nranks < 1 || nranks > PLAN_MAX_RANKS)
        return fail(KOLO_ERR_ARG, "comm_create: nranks is %d, not 1 to %d", nranks, PLAN_MAX_RANKS);
    if (rank < 0 || rank >= nranks)
        return fail(KOLO_ERR_ARG, "comm_create: rank is %d, not 0 to %d", rank, nranks - 1);
    TRY(check_config(config));
    struct boot *boot;
    TRY(boot_create(id, rank, nranks, setup_ms(config), &boot));
    return comm_from_boot(config, boot, comm);
}

enum kolo_status kolo_comm_create_env(const struct kolo_config *config, struct kolo_comm **comm)
{
    if (!comm)
        return fail(KOLO_ERR_ARG, "comm_create_env: comm is NULL");
    TRY(check_config(config));
    struct boot *boot;
    struct boot_env env;
    TRY(boot_create_env(setup_ms(config), &env, &boot));
    return comm_from_boot(config, boot, comm);
}

enum kolo_status kolo_comm_create_local(int nranks, const struct kolo_config *config,
                                        struct kolo_comm **comms)
{
    if (!comms)
        return fail(KOLO_ERR_ARG, "comm_create_local: comms is NULL");
    if (nranks < 1 || nranks > 1024)
        return fail(KOLO_ERR_ARG, "comm_create_local: nranks is %d, not 1 to 1024", nranks);
    TRY(check_config(config));
    const size_t slot_bytes = round_up((size_t)cfg_int(CFG_SLOT_BYTES), 4096);
    const size_t n = (size_t)nranks;
    struct transport **transports = mem_calloc(n, sizeof(struct transport *));
    struct kolo_comm **made = mem_calloc(n, sizeof(struct kolo_comm *));
    enum kolo_status status =
        transports && made ? KOLO_OK : fail(KOLO_ERR_NOMEM, "out of memory for %d ranks", nranks);
    struct comm_card card;
    own_cpus(card.cpus);
    const struct tune_facts facts = {
        .nranks = nranks,
        .nranks_here = nranks,
        .ncpus = max_int(count_bits(card.cpus), 1),
        .has_windows = cfg_int(CFG_WINDOWS) != 0,
        .deterministic = pick_deterministic(config),
    };
    const struct link_shape shape = choose_shape(&facts, slot_bytes);
    if (status == KOLO_OK)
        status = shm_create_local(nranks, &shape, transports);
    const bool has_transports = status == KOLO_OK;
    for (int r = 0; r < nranks && status == KOLO_OK; r++) {
        status = comm_begin(config, r, nranks, &made[r]);
        if (status != KOLO_OK)
            break;
        struct transport *t = transports[r];
        transports[r] = NULL; /* comm_finish owns it now */
        status = comm_finish(made[r], t, slot_bytes, &facts);
    }
    if (status == KOLO_OK)
        status = comm_tune_local(made, nranks);
    for (int r = 0; r < nranks && status == KOLO_OK; r++)
        comm_warm(made[r]);
    for (int r = 0; r < nranks && status != KOLO_OK; r++) {
        if (made)
            kolo_comm_destroy(made[r]);
        if (has_transports && transports[r])
            transports[r]->ops->close(transports[r]);
    }
    if (status == KOLO_OK)
        memcpy(comms, made, n * sizeof(struct kolo_comm *));
    mem_free(transports);
    mem_free(made);
    return status;
}

void kolo_comm_destroy(struct kolo_comm *comm)
{
    if (!comm)
        return;
    group_forget(comm);
    const bool is_child = comm->owner != getpid();
    if (!is_child)
        worker_destroy(comm->worker); /* a child has no such thread */
    comm_programs_destroy(comm);
    fuse_destroy(comm);
    group_room_destroy(comm->group_room);
    engine_destroy(comm->engine, is_child);
    for (int c = 0; c < KOLO_NCOLLS; c++)
        if (comm->blocking[c])
            operation_give(comm->blocking[c]);
    while (comm->spare) {
        struct operation *op = comm->spare;
        comm->spare = op->next;
        job_release(&op->job);
        mem_free(op->counts);
        mem_free(op);
    }
    while (comm->registered) {
        struct registration *r = comm->registered;
        comm->registered = r->next;
        mem_free(r);
    }
    mem_free(comm->custom);
    mem_free(comm->plan_file);
    pthread_mutex_destroy(&comm->lock);
    mem_free(comm);
}

void kolo_comm_abort(struct kolo_comm *comm)
{
    if (comm)
        engine_abort(comm->engine);
}

enum kolo_status kolo_comm_status(const struct kolo_comm *comm)
{
    if (!comm)
        return fail(KOLO_ERR_ARG, "comm_status: comm is NULL");
    const enum kolo_status status = engine_status(comm->engine);
    if (status != KOLO_OK)
        return status;
    /* Acquire: pairs with the release in worker_get. */
    const struct worker *w = atomic_load_explicit(&comm->worker, memory_order_acquire);
    return w && !worker_is_idle(w) ? KOLO_IN_PROGRESS : KOLO_OK;
}

int kolo_comm_rank(const struct kolo_comm *comm)
{
    return comm ? comm->rank : -1;
}

int kolo_comm_size(const struct kolo_comm *comm)
{
    return comm ? comm->nranks : -1;
}

const char *kolo_last_error(const struct kolo_comm *comm)
{
    static _Thread_local char text[ERROR_TEXT_BYTES];
    if (!comm || !comm->engine)
        return fail_text();
    engine_text(comm->engine, text, sizeof text);
    return text;
}
