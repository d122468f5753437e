/* compare_kolo.c - Kolo in `make compare`: float sums, out of place, blocking calls.
 *
 * usage: compare_kolo [-w]     -w: buffers from kolo_mem_alloc instead of malloc
 * The ranks are forked here; rank 0 hands the unique id over in the control block.
 */
#include "compare_rank.h"

#include "kolo.h"

static int use_windows;

static void complain(struct cmp_ctl *ctl, int rank, const char *call, enum kolo_status status,
                     const struct kolo_comm *comm)
{
    char what[600];
    snprintf(what, sizeof what, "%s: %s: %s", call, kolo_status_string(status),
             kolo_last_error(comm));
    cmp_complain(ctl, rank, what);
}

static int kolo_op(void *ctx, struct cmp_rank *r, int coll, size_t bytes)
{
    struct kolo_comm *comm = ctx;
    const size_t n = bytes / sizeof(float), part = n / (size_t)r->np;
    enum kolo_status status;
    switch (coll) {
    case CMP_ALL_REDUCE:
        status = kolo_all_reduce(r->in, r->out, n, KOLO_F32, KOLO_SUM, comm, NULL);
        break;
    case CMP_REDUCE_SCATTER:
        status = kolo_reduce_scatter(r->in, r->out, part, KOLO_F32, KOLO_SUM, comm, NULL);
        break;
    case CMP_ALL_GATHER:
        status = kolo_all_gather(r->in, r->out, part, KOLO_F32, comm, NULL);
        break;
    case CMP_ALL_TO_ALL:
        status = kolo_all_to_all(r->in, r->out, part, KOLO_F32, comm, NULL);
        break;
    case CMP_BROADCAST:
        status = kolo_broadcast(r->in, r->rank ? r->out : r->in, n, KOLO_F32, 0, comm, NULL);
        break;
    case CMP_REDUCE:
        status = kolo_reduce(r->in, r->out, n, KOLO_F32, KOLO_SUM, 0, comm, NULL);
        break;
    default:
        status = kolo_barrier(comm, NULL);
    }
    if (status != KOLO_OK)
        complain(r->ctl, r->rank, cmp_coll_name(coll), status, comm);
    return status != KOLO_OK;
}

static int share_id(struct cmp_ctl *ctl, int rank, struct kolo_unique_id *id)
{
    _Static_assert(sizeof *id <= sizeof ctl->blob, "an id fits into the control block");
    if (rank == 0) {
        enum kolo_status status = kolo_unique_id_create(id);
        if (status != KOLO_OK) {
            complain(ctl, rank, "kolo_unique_id_create", status, NULL);
            return 1;
        }
        memcpy(ctl->blob, id, sizeof *id);
        __atomic_store_n(&ctl->blob_ready, 1, __ATOMIC_RELEASE);
        cmp_futex_wake(&ctl->blob_ready);
        return 0;
    }
    while (!__atomic_load_n(&ctl->blob_ready, __ATOMIC_ACQUIRE))
        cmp_futex_wait(&ctl->blob_ready, 0, 0);
    memcpy(id, ctl->blob, sizeof *id);
    return 0;
}

static int get_buffers(struct cmp_rank *r)
{
    if (!use_windows) {
        r->in = cmp_malloc(r->ctl);
        r->out = cmp_malloc(r->ctl);
        return 0;
    }
    void *in, *out;
    enum kolo_status status = kolo_mem_alloc(&in, r->ctl->max_bytes);
    if (status == KOLO_OK)
        status = kolo_mem_alloc(&out, r->ctl->max_bytes);
    if (status != KOLO_OK) {
        complain(r->ctl, r->rank, "kolo_mem_alloc", status, NULL);
        return 1;
    }
    r->in = in;
    r->out = out;
    return 0;
}

static int put_buffers(struct cmp_rank *r)
{
    if (use_windows) {
        int failed = kolo_mem_free(r->in) != KOLO_OK;
        return kolo_mem_free(r->out) != KOLO_OK || failed;
    }
    free(r->in);
    free(r->out);
    return 0;
}

/* Pinned before the communicator is made, as a launcher that binds would have it. */
static int rank_main(struct cmp_ctl *ctl, int rank)
{
    struct cmp_rank r = {.ctl = ctl, .rank = rank, .np = ctl->np, .wait = CMP_WAIT_CPU};
    struct kolo_unique_id id;
    struct kolo_comm *comm;
    cmp_pin(ctl, rank);
    if (share_id(ctl, rank, &id))
        return 1;
    enum kolo_status status = kolo_comm_create(&id, rank, ctl->np, NULL, &comm);
    if (status != KOLO_OK) {
        complain(ctl, rank, "kolo_comm_create", status, NULL);
        return 1;
    }
    if (get_buffers(&r))
        return 1;
    cmp_fill(&r);
    if (cmp_serve(&r, kolo_op, comm))
        return 1;
    kolo_comm_destroy(comm);
    return put_buffers(&r);
}

int main(int argc, char **argv)
{
    use_windows = argc > 1 && strcmp(argv[1], "-w") == 0;
    return cmp_fork_ranks(cmp_attach(), rank_main);
}
