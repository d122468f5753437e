/* stress_rank.c - the life of a rank: epochs of batches on the world's communicator and on the
 * group that the rank was split into.  What must be alike on all ranks comes from generators that
 * all have. */
#include "stress.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

enum { DEADLINE_MS = 60000 };

/* ---- batches ---- */

/* Append `n` calls of one communicator, drawn from what its ranks share. */
static size_t draw_calls(const struct driver *d, struct rng *common, bool is_on_sub, size_t at,
                         size_t n, bool is_grouped)
{
    for (size_t i = at; i < at + n; i++) {
        struct shape shape;
        const int size = (is_on_sub ? &d->seats->group : &d->seats->world)->n;
        draw_call(common, size, is_grouped || size > 1, false, &shape);
        if (!is_grouped && shape.dst == shape.root)
            shape.dst = (shape.root + 1) % size;
        shape.is_on_sub = is_on_sub;
        for (int k = 0; k < d->nseats; k++)
            d->seats[k].calls[i].shape = shape;
    }
    return at + n;
}

static size_t draw_bucket_calls(const struct driver *d, struct rng *common, bool is_on_sub)
{
    struct shape shapes[MOST_CALLS];
    const size_t n =
        draw_bucket(common, (is_on_sub ? &d->seats->group : &d->seats->world)->n, shapes);
    for (size_t i = 0; i < n; i++) {
        shapes[i].is_on_sub = is_on_sub;
        for (int k = 0; k < d->nseats; k++)
            d->seats[k].calls[i].shape = shapes[i];
    }
    return n;
}

/* Batches on one communicator. */
static void run_batches(const struct driver *d, struct rng *common, bool is_on_sub, int n)
{
    for (int b = 0; b < n; b++) {
        const bool is_bucket = rng_chance(common, 24), is_single = rng_chance(common, 2);
        const bool is_grouped =
            rng_chance(common, 2) ? !is_single : d->nseats > 1 && rng_chance(common, 2);
        const size_t ncalls =
            is_bucket ? draw_bucket_calls(d, common, is_on_sub)
                      : draw_calls(d, common, is_on_sub, 0,
                                   is_single ? 1 : 2 + rng_below(common, 5), is_grouped);
        batch_run(d, is_on_sub ? b + 1000 : b, ncalls, is_grouped);
    }
}

/* Batches that have calls on the world's communicator and on the group's. */
static void run_joint(const struct driver *d, struct rng *world, struct rng *group)
{
    const int n = (int)rng_below(world, 3);
    for (int b = 0; b < n; b++) {
        const bool is_grouped = rng_chance(world, 2);
        size_t at = draw_calls(d, world, false, 0, 1 + rng_below(world, 3), is_grouped);
        if (group)
            at = draw_calls(d, group, true, at, 1 + rng_below(group, 3), is_grouped);
        batch_run(d, b + 2000, at, is_grouped);
    }
}

/* ---- groups ---- */

static void draw_partition(struct rng *common, int n, struct partition *out)
{
    const uint64_t ncolors = 1 + rng_below(common, 3);
    for (int r = 0; r < n; r++) {
        out->colors[r] = rng_chance(common, 8) ? KOLO_SPLIT_NONE : (int)rng_below(common, ncolors);
        out->keys[r] = (int)rng_below(common, 5) - 2;
    }
}

/* Where `rank` must come among those of its color. */
static struct place expect_place(const struct partition *p, int n, int rank)
{
    struct place place = {NULL, 0, 0};
    for (int r = 0; r < n; r++) {
        if (p->colors[r] != p->colors[rank])
            continue;
        place.n++;
        if (p->keys[r] < p->keys[rank] || (p->keys[r] == p->keys[rank] && r < rank))
            place.rank++;
    }
    return place;
}

/* The group of a past epoch goes now, or at some time later. */
static void retire(const struct driver *d, struct seat *s)
{
    struct place *slot = &s->old[rng_below(&s->rng, OLD_GROUPS)];
    if (!d->partitions) {
        kolo_comm_destroy(slot->comm);
        *slot = s->group;
    }
    s->group = (struct place){NULL, 0, 0};
    if (rng_chance(&s->rng, 2)) {
        kolo_comm_destroy(slot->comm);
        slot->comm = NULL;
    }
}

/* Split the world; returns the rank's color. */
static int split(const struct driver *d, struct seat *s, struct rng *common)
{
    struct partition drawn = {.colors = {0}};
    const int n = s->world.n, rank = s->world.rank;
    if (d->partitions)
        drawn = d->partitions[rng_below(common, PARTITIONS)];
    else
        draw_partition(common, n, &drawn);
    const int color = drawn.colors[rank];
    struct kolo_comm *comm = drawn.made[rank];
    if (!d->partitions)
        expect_ok(d, s, s->world.comm,
                  kolo_comm_split(s->world.comm, color, drawn.keys[rank], NULL, &comm), "split");
    if (color == KOLO_SPLIT_NONE) {
        if (comm)
            wrong(d, s, "a rank without a color has got a communicator");
        return color;
    }
    s->group = expect_place(&drawn, n, rank);
    s->group.comm = comm;
    if (kolo_comm_rank(comm) != s->group.rank || kolo_comm_size(comm) != s->group.n)
        wrong(d, s, "split made rank %d of %d, expected %d of %d", kolo_comm_rank(comm),
              kolo_comm_size(comm), s->group.rank, s->group.n);
    return color;
}

/* What splits would make, by kolo_comm_create_local. */
static void make_partitions(const struct driver *d, const struct kolo_config *config,
                            struct partition *out)
{
    const int n = d->world->n;
    struct rng r = rng_fork(d->world->seed, d->world->number, 3, 3);
    for (int i = 0; i < PARTITIONS; i++) {
        struct partition *p = &out[i];
        *p = (struct partition){.colors = {0}};
        draw_partition(&r, n, p);
        for (int k = 0; k < n; k++) {
            struct kolo_comm *comms[MOST_RANKS];
            const struct place first = expect_place(p, n, k);
            if (p->colors[k] == KOLO_SPLIT_NONE || first.rank != 0)
                continue;
            expect_ok(d, d->seats, NULL, kolo_comm_create_local(first.n, config, comms),
                      "create_local of a group");
            for (int m = 0; m < n; m++)
                if (p->colors[m] == p->colors[k])
                    p->made[m] = comms[expect_place(p, n, m).rank];
        }
    }
}

/* ---- life ---- */

/* All ranks end in the same epoch: as rank 0 has seen it. */
static bool is_over(const struct driver *d)
{
    int over = d->shared->is_over;
    struct seat *s = d->seats;
    if (d->nseats == 1)
        expect_ok(d, s, s->world.comm,
                  kolo_broadcast(&over, &over, 1, KOLO_I32, 0, s->world.comm, NULL), "is it over");
    return over;
}

static void live(const struct driver *d)
{
    const struct world *w = d->world;
    struct rng common = rng_fork(w->seed, w->number, 0, 0);
    for (int epoch = 0; epoch < w->nepochs && !is_over(d); epoch++) {
        for (int k = 0; k < d->nseats; k++)
            d->seats[k].shown->epoch = epoch;
        run_batches(d, &common, false, 1 + (int)rng_below(&common, 40));
        if (w->is_solo || !rng_chance(&common, 2))
            continue;
        struct seat *s = d->seats;
        const int color = split(d, s, &common);
        struct rng group = rng_fork(w->seed, w->number, (uint64_t)epoch + 1, (uint64_t)color + 1);
        if (s->group.comm)
            run_batches(d, &group, true, (int)rng_below(&group, 30));
        run_joint(d, &common, s->group.comm ? &group : NULL);
        retire(d, s);
    }
}

static void seat_open(const struct driver *d, struct seat *s, struct kolo_comm *comm, int rank)
{
    const struct world *w = d->world;
    s->world = (struct place){comm, rank, w->n};
    s->rng = rng_fork(w->seed, w->number, 0x77, (uint64_t)rank);
    s->pool = pool_create();
    s->calls = calloc(MOST_CALLS, sizeof *s->calls);
    if (!s->calls)
        wrong(d, s, "out of memory");
    for (int i = 0; i < STREAMS; i++)
        expect_ok(d, s, NULL, kolo_stream_create(&s->streams[i]), "stream_create");
}

static void seat_close(struct seat *s)
{
    for (int i = 0; i < OLD_GROUPS; i++)
        kolo_comm_destroy(s->old[i].comm);
    kolo_comm_destroy(s->world.comm);
    for (int i = 0; i < STREAMS; i++)
        kolo_stream_destroy(s->streams[i]);
    pool_destroy(s->pool);
    free(s->calls);
}

/* ---- processes and threads ---- */

static void config_fill(struct kolo_config *config)
{
    *config = (struct kolo_config)KOLO_CONFIG_INIT;
    config->timeout_ms = config->setup_timeout_ms = DEADLINE_MS;
}

/* By id: rank 0 makes it. */
static struct kolo_comm *join_world(const struct driver *d, int rank)
{
    struct shared *shared = d->shared;
    struct kolo_config config;
    struct kolo_comm *comm = NULL;
    config_fill(&config);
    if (rank == 0)
        shared->has_id = kolo_unique_id_create(&shared->id) == KOLO_OK ? 1 : -1;
    while (shared->has_id == 0)
        usleep(100); /* until rank 0 has run */
    expect_ok(d, d->seats, NULL,
              shared->has_id < 0 ? KOLO_ERR_SYSTEM
                                 : kolo_comm_create(&shared->id, rank, d->world->n, &config, &comm),
              "create");
    return comm;
}

struct thread {
    pthread_t id;
    struct driver driver;
    struct kolo_comm **made; /* of a local world, by rank; else NULL */
    int first;               /* rank of the first seat */
};

static void *thread_main(void *arg)
{
    struct thread *t = arg;
    struct driver *d = &t->driver;
    struct seat seats[MOST_RANKS] = {0};
    d->seats = seats;
    for (int i = 0; i < d->nseats; i++)
        seats[i].shown = &d->shared->shown[t->first + i];
    for (int i = 0; i < d->nseats; i++)
        seat_open(d, &seats[i], t->made ? t->made[t->first + i] : join_world(d, t->first),
                  t->first + i);
    live(d);
    for (int i = 0; i < d->nseats; i++)
        seat_close(&seats[i]);
    return NULL;
}

void rank_process(const struct world *w, int process, struct shared *shared)
{
    struct thread threads[MOST_RANKS];
    struct kolo_comm *made[MOST_RANKS];
    struct partition partitions[PARTITIONS];
    struct kolo_config config;
    struct seat first = {.shown = &shared->shown[process]};
    const struct driver d = {w, shared, w->is_parted ? partitions : NULL, &first, 1};
    config_fill(&config);
    if (w->is_local)
        expect_ok(&d, &first, NULL, kolo_comm_create_local(w->n, &config, made), "create_local");
    if (w->is_parted)
        make_partitions(&d, &config, partitions);
    const int step = w->is_solo ? w->n : w->nprocesses;
    int n = 0;
    for (int r = process; r < w->n; r += step) {
        struct thread *t = &threads[n++];
        *t = (struct thread){
            .driver = {w, shared, d.partitions, NULL, w->is_solo ? w->n : 1},
            .made = w->is_local ? made : NULL,
            .first = r,
        };
        if (pthread_create(&t->id, NULL, thread_main, t) != 0)
            wrong(&d, &first, "pthread_create failed");
    }
    for (int i = 0; i < n; i++)
        pthread_join(threads[i].id, NULL);
    for (int i = 0; w->is_parted && i < PARTITIONS; i++)
        for (int r = 0; r < w->n; r++)
            kolo_comm_destroy(partitions[i].made[r]);
}
