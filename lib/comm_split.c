/* comm_split.c - new communicators out of old ones: the members of each color agree over the
 * parent (one all-gather of color and key), its first rank makes an id, a second all-gather
 * carries the ids, and each color meets as if it were new. */
#include "comm.h"
#include "mem.h"

#include <stdlib.h>
#include <string.h>

struct member {
    int32_t color;
    int32_t key;
    int32_t rank; /* in the parent */
};

/* By key, then by rank in the parent. */
static int compare(const void *a, const void *b)
{
    const struct member *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* Keep the members of `color`, in order. */
static int select_color(struct member *all, int n, int color)
{
    int kept = 0;
    for (int i = 0; i < n; i++)
        if (all[i].color == color)
            all[kept++] = all[i];
    qsort(all, (size_t)kept, sizeof *all, compare);
    return kept;
}

static int position(const struct member *members, int n, int rank)
{
    for (int i = 0; i < n; i++)
        if (members[i].rank == rank)
            return i;
    return -1;
}

static enum kolo_status gather(struct kolo_comm *comm, const void *mine, void *all, size_t bytes)
{
    return kolo_all_gather(mine, all, bytes, KOLO_U8, comm, NULL);
}

static enum kolo_status split(struct kolo_comm *comm, int color, int key,
                              const struct kolo_config *config, struct kolo_comm **out)
{
    const size_t n = (size_t)comm->nranks;
    const struct member mine = {color, key, comm->rank};
    struct kolo_unique_id id = {{0}};
    struct member *members = mem_calloc(n, sizeof *members);
    struct kolo_unique_id *ids = mem_calloc(n, sizeof *ids);
    enum kolo_status status =
        members && ids ? KOLO_OK : fail(KOLO_ERR_NOMEM, "comm_split: out of memory");
    if (status == KOLO_OK)
        status = gather(comm, &mine, members, sizeof mine);
    int count = 0, first = 0;
    enum kolo_status made = KOLO_OK;
    if (status == KOLO_OK && color >= 0) {
        count = select_color(members, comm->nranks, color);
        first = members[0].rank;
        if (first == comm->rank)
            made = kolo_unique_id_create(&id); /* zeros on failure: garbage to the others */
    }
    if (status == KOLO_OK)
        status = gather(comm, &id, ids, sizeof id);
    if (status == KOLO_OK)
        status = made;
    *out = NULL;
    if (status == KOLO_OK && color >= 0)
        status =
            kolo_comm_create(&ids[first], position(members, count, comm->rank), count, config, out);
    mem_free(members);
    mem_free(ids);
    return status;
}

enum kolo_status kolo_comm_split(struct kolo_comm *comm, int color, int key,
                                 const struct kolo_config *config, struct kolo_comm **out)
{
    if (!comm || !out)
        return fail(KOLO_ERR_ARG, "comm_split: %s is NULL", comm ? "out" : "comm");
    if (group_is_open()) {
        fail(KOLO_ERR_USAGE, "comm_split inside a group: end the group first");
        engine_note(comm->engine);
        return KOLO_ERR_USAGE;
    }
    if (color < KOLO_SPLIT_NONE) {
        fail(KOLO_ERR_ARG, "comm_split: color is %d, not KOLO_SPLIT_NONE or 0 and above", color);
        engine_note(comm->engine);
        return KOLO_ERR_ARG;
    }
    struct kolo_config inherited = KOLO_CONFIG_INIT;
    inherited.deterministic = comm->deterministic;
    inherited.timeout_ms = (int64_t)(comm->timeout_ns / 1000000u);
    inherited.setup_timeout_ms = comm->setup_timeout_ms;
    inherited.name = comm->name;
    inherited.plan_file = comm->plan_file;
    struct kolo_comm *made;
    const enum kolo_status status = split(comm, color, key, config ? config : &inherited, &made);
    if (status != KOLO_OK) {
        engine_note(comm->engine);
        return status;
    }
    *out = made;
    return KOLO_OK;
}

enum kolo_status kolo_comm_shrink(struct kolo_comm *comm, const int *exclude, int n,
                                  const struct kolo_config *config, struct kolo_comm **out)
{
    (void)exclude, (void)n, (void)config, (void)out;
    if (!comm)
        return fail(KOLO_ERR_ARG, "comm_shrink: comm is NULL");
    fail(KOLO_ERR_UNSUPPORTED, "comm_shrink is not in this version: make a new communicator of the "
                               "surviving ranks with kolo_comm_create");
    engine_note(comm->engine);
    return KOLO_ERR_UNSUPPORTED;
}
