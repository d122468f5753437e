/* comm.h - the communicator: glue that knows engine, plans, bootstrap and worker at once.
 *
 *   operation = a checked call on its way: api.c fills it, comm_run / the worker binds and runs it
 */
#ifndef COMM_H
#define COMM_H

#include "engine.h"
#include "stream.h"
#include "tune.h"

#include <pthread.h>
#include <sys/types.h>

/* A checked call; lives in its communicator and is recycled. */
struct operation {
    struct work work; /* first: the worker hands this back */
    struct job job;
    struct kolo_comm *comm;
    const void *send;
    void *recv;
    size_t *counts;          /* of a v-variant: send counts, send displs, receive ...; 4 * nranks */
    unsigned char scalar[8]; /* of a pre-multiplied sum */
    bool has_scalar;
    /* What was bound last: an equal call on other buffers needs no new binding. */
    bool is_bound;
    struct call bound;
    struct program *bound_program;
    struct program *bound_fallback;
    bool bound_refuses_in_place;
    /* Buffers that need no check when the call is repeated: extents in bytes on this rank, whether
     * there was a recv, and recv - send when in place. */
    bool may_repeat;
    bool has_recv;
    size_t send_extent, recv_extent;
    uintptr_t in_place;
    struct bucket *bucket; /* of the run of operations that starts with this one; or NULL */
    bool is_fused;         /* it runs as part of a bucket */
    struct kolo_stream *stream;
    struct operation *next; /* of one communicator's batch; or in the free list */
};

struct custom_op {
    bool is_used;
    int type;
    unsigned char scalar[8];
};

struct program_entry {
    uint32_t key; /* 0: empty */
    struct program *program;
};

struct registration {
    void *ptr;
    size_t bytes;
    struct registration *next;
};

struct kolo_comm {
    struct engine *engine;
    struct worker *_Atomic worker; /* made with the first operation on a stream; read by status */
    pid_t owner;                   /* process that made it: a forked child may only free it */
    int rank;
    int nranks;
    bool deterministic;
    uint64_t timeout_ns;
    uint64_t poll_ns; /* of the worker, see poll_ns_choose */
    int64_t setup_timeout_ms;
    char name[32];
    char *plan_file;
    struct tune tune;
    /* Compiled plans by collective, algorithm and root: open addressing, a power of two.
     * Touched by the thread that drives the engine. */
    struct program_entry *programs;
    size_t programs_room;
    size_t nprograms;
    struct program **loaded; /* of the user's plan file */
    size_t nloaded;
    struct group_room *group_room; /* api_group.c; or NULL */
    struct bucket **buckets;       /* fuse.c; touched by the thread that drives the engine */
    size_t nbuckets;
    uint64_t bucket_age; /* batches so far */
    struct custom_op *custom;
    int ncustom;
    struct registration *registered;
    struct operation
        *blocking[KOLO_NCOLLS]; /* for blocking calls, without a lock; made on demand */
    pthread_mutex_t lock;       /* guards spare */
    struct operation *spare;    /* free list for operations on streams and in groups */
};

/* Take an operation for a call that is not blocking; give it back. */
enum kolo_status operation_take(struct kolo_comm *comm, struct operation **out);
void operation_give(struct operation *op);
void operations_give(struct operation *batch); /* linked by `next`; takes NULL */

/* Whether a blocking call is the one that was bound last, on buffers as good as those. */
static inline bool operation_repeats(const struct operation *op, const struct call *c,
                                     const void *send, const void *recv)
{
    const uintptr_t s = (uintptr_t)send, r = (uintptr_t)recv;
    return op && op->may_repeat && op->bound.count == c->count && op->bound.type == c->type &&
           op->bound.op == c->op && op->bound.root == c->root && (s || op->send_extent == 0) &&
           (r != 0) == op->has_recv &&
           (r - s == op->in_place || s + op->send_extent <= r || r + op->recv_extent <= s);
}
/* Run it again. */
enum kolo_status operation_repeat(struct operation *op, const void *send, void *recv);

/* Bind (program, job) in the thread that drives the engine. */
enum kolo_status operation_bind(struct operation *op);
/* The same for root 0 and an algorithm of the caller's choice, whatever the options say. */
enum kolo_status operation_bind_to(struct operation *op, const struct plan_algo *algo);
/* On the worker: the batch is linked by `next`; operations are given back when done. */
enum kolo_status comm_submit(struct operation *batch);
/* Bind a batch of one communicator.  Other ranks may have started theirs, and nothing short of
 * breaking ends it for them: so an error breaks the engine. */
enum kolo_status comm_bind_batch(struct operation *batch);
/* fuse.c: find the runs of small all_reduces of a batch, and bind them as buckets. */
enum kolo_status fuse_batch(struct kolo_comm *comm, struct operation *batch);
struct job *fuse_job(struct bucket *b);
void fuse_destroy(struct kolo_comm *comm);
/* Split a batch into the lists of an engine run. */
void comm_fill_run(struct engine_run *run, struct operation *batch);
void comm_quiet(struct kolo_comm *comm);
enum kolo_status worker_get(struct kolo_comm *comm, struct worker **out);

/* api_group.c: whether this thread collects a group; forget what it holds of a communicator. */
bool group_is_open(void);
void group_forget(struct kolo_comm *comm);
void group_room_destroy(struct group_room *room); /* takes NULL */

/* The largest buffer of a rank in bytes, as tables and the tuner count. */
size_t operation_bytes(enum kolo_coll coll, size_t count, size_t type_bytes, int nranks);

/* comm_warm.c: prepare for the first operations, as far as that is cheap. */
void comm_warm(struct kolo_comm *comm);

/* comm_plan.c */
enum kolo_status comm_program(struct kolo_comm *comm, const struct plan_algo *algo,
                              enum kolo_coll coll, int root, struct program **out);
enum kolo_status comm_load_plans(struct kolo_comm *comm, const char *path);
/* Destroy the generated ones: nothing may be bound to them. */
void comm_programs_forget(struct kolo_comm *comm);
void comm_programs_destroy(struct kolo_comm *comm);
/* The loaded plan that serves a collective and root, or NULL. */
struct program *comm_loaded_program(struct kolo_comm *comm, enum kolo_coll coll, int root);

/* comm_tune.c: algorithms by times that are measured when a communicator is made, once. */
enum tune_source { TUNE_FROM_MODEL, TUNE_FROM_TABLE, TUNE_FROM_MEASURING };
/* On rank 0: what all will do, and for TUNE_FROM_TABLE the table. */
enum tune_source comm_tune_source(const struct kolo_comm *comm, struct tune_table *table);
/* Everything that measuring needs, so that nothing can fail locally once it has begun. */
struct measuring;
enum kolo_status measuring_create(struct kolo_comm *comm, struct measuring **out);
void measuring_destroy(struct measuring *m); /* takes NULL */
/* Collective.  Applies what was found, which is the same on all ranks, and keeps it. */
enum kolo_status measuring_run(struct measuring *m);
/* All ranks of one process, which has no other threads for them. */
enum kolo_status comm_tune_local(struct kolo_comm *const *comms, int n);

#endif
