/* fuse.c - consecutive small all_reduces of a group, of one type and reduction, become one job: a
 * bucket.  Which operations that are depends on what all ranks know: calls, options, number of
 * ranks.  Whether their buffers allow it, each rank looks for itself (fuse_bucket.c), and the ranks
 * agree (exec_fuse.c).
 *
 * A bucket is made for a list of counts and kept: training repeats its lists every step. */
#include "cfg.h"
#include "fuse.h"
#include "mem.h"

#include <string.h>

enum {
    MOST_OP_BYTES = 65536, /* beyond, an operation's bytes cost much more than its hand-overs */
    LEAST_OPS = 4,         /* 3 of 64 bytes, 2 ranks: 0.7 us one by one, 0.9 fused */
    MOST_BUCKETS = 64,     /* the one unused for longest makes room for another list */
};

/* ---- which operations ---- */

static bool may_fuse(const struct kolo_comm *comm)
{
    return comm->nranks > 1 && comm->nloaded == 0 && cfg_int(CFG_FUSE) != 0 &&
           !strstr(cfg_str(CFG_ALGO), "all_reduce");
}

static bool is_small(const struct kolo_comm *comm, const struct operation *op)
{
    const struct call *c = &op->job.call;
    return c->coll == KOLO_COLL_ALL_REDUCE && c->op < KOLO_OP_FIRST_CUSTOM &&
           c->count <= MOST_OP_BYTES && op_bytes(op) <= MOST_OP_BYTES &&
           op_bytes(op) <= comm->engine->slot_bytes;
}

/* As many as the places of their buffers fit into a message. */
static int most_ops(const struct kolo_comm *comm)
{
    return (int)(comm->engine->slot_bytes / sizeof(struct fused_place)) - 1;
}

static struct op_run take_run(const struct kolo_comm *comm, struct operation *first)
{
    struct op_run run = {first, 0, 0, 0};
    const struct call *c = &first->job.call;
    const int most = most_ops(comm);
    for (struct operation *op = first; op && run.n < most; op = next_collective(op->next)) {
        if (!is_small(comm, op) || op->job.call.type != c->type || op->job.call.op != c->op)
            break;
        run.n++;
        run.bytes += op_bytes(op);
        run.hash = (run.hash ^ op->job.call.count ^ (run.hash >> 29)) * 0xbf58476d1ce4e5b9u + 1;
    }
    run.hash ^= run.hash >> 32;
    return run;
}

/* ---- the buckets of a communicator ---- */

static bool bucket_fits(const struct bucket *b, const struct op_run *run)
{
    const struct call *c = &run->first->job.call;
    if (b->is_busy || b->hash != run->hash || b->fused.nops != run->n ||
        b->job.call.type != c->type || b->job.call.op != c->op)
        return false;
    int i = 0;
    for (struct operation *op = run->first; i < run->n; op = next_collective(op->next))
        if (b->counts[i++] != op->job.call.count)
            return false;
    return true;
}

/* Room for one more in the table; the bucket that was unused for longest may have to go. */
static enum kolo_status make_room(struct kolo_comm *comm)
{
    size_t oldest = comm->nbuckets;
    for (size_t i = 0; i < comm->nbuckets && comm->nbuckets >= MOST_BUCKETS; i++)
        if (!comm->buckets[i]->is_busy &&
            (oldest == comm->nbuckets || comm->buckets[i]->used < comm->buckets[oldest]->used))
            oldest = i;
    if (oldest < comm->nbuckets) {
        bucket_destroy(comm->buckets[oldest]);
        comm->buckets[oldest] = comm->buckets[--comm->nbuckets];
    }
    struct bucket **buckets =
        mem_resize(comm->buckets, comm->nbuckets + 1, sizeof(struct bucket *));
    if (!buckets)
        return fail(KOLO_ERR_NOMEM, "out of memory for the table of buckets");
    comm->buckets = buckets;
    return KOLO_OK;
}

static enum kolo_status bucket_find(struct kolo_comm *comm, const struct op_run *run,
                                    struct bucket **out)
{
    for (size_t i = 0; i < comm->nbuckets; i++) {
        if (bucket_fits(comm->buckets[i], run)) {
            *out = comm->buckets[i];
            return KOLO_OK;
        }
    }
    TRY(make_room(comm));
    TRY(bucket_create(comm, run, out));
    comm->buckets[comm->nbuckets++] = *out;
    return KOLO_OK;
}

void fuse_destroy(struct kolo_comm *comm)
{
    for (size_t i = 0; i < comm->nbuckets; i++)
        bucket_destroy(comm->buckets[i]);
    mem_free(comm->buckets);
}

struct job *fuse_job(struct bucket *b)
{
    return &b->job;
}

enum kolo_status fuse_batch(struct kolo_comm *comm, struct operation *batch)
{
    const bool may = batch->next && may_fuse(comm);
    for (struct operation *op = batch; op; op = op->next) {
        op->bucket = NULL;
        op->is_fused = false;
    }
    for (size_t i = 0; i < comm->nbuckets; i++)
        comm->buckets[i]->is_busy = false;
    comm->bucket_age++;
    for (struct operation *op = next_collective(may ? batch : NULL); op;) {
        const struct op_run run = take_run(comm, op);
        if (run.n >= LEAST_OPS && run.bytes > 0) {
            struct bucket *b = NULL;
            TRY(bucket_find(comm, &run, &b));
            bucket_bind(comm, b, op);
            b->is_busy = true;
            b->used = comm->bucket_age;
            op->bucket = b;
        }
        const int n = run.n > 0 ? run.n : 1;
        for (int i = 0; i < n; i++, op = next_collective(op->next))
            op->is_fused = run.n >= LEAST_OPS && run.bytes > 0;
    }
    return KOLO_OK;
}
