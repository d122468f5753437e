/* kolo.h - the one public header of Kolo, a collective communication library.
 *
 * Reading order: version, status, types, communicators, collectives, groups, memory, streams,
 * looking in.  A program needs four calls:
 *
 *     struct kolo_comm *comm;
 *     kolo_comm_create_env(NULL, &comm);                // under mpirun, srun, torchrun, or alone
 *     kolo_all_reduce(in, out, 1024, KOLO_F32, KOLO_SUM, comm, NULL);
 *     kolo_comm_destroy(comm);
 *
 * Conventions that hold for every function below and are not repeated there:
 *  - It returns KOLO_OK (0) or a negative status; outputs are written only on KOLO_OK.
 *  - A failure has a text: kolo_last_error(comm), or kolo_last_error(NULL) on the same thread
 *    when there is no communicator (yet).
 *  - Counts are elements, sizes are bytes, both size_t from end to end; ranks are int.
 *  - A count of 0 is legal everywhere, and then the buffer may be NULL.
 *  - A communicator is used by one thread at a time, except kolo_comm_abort, kolo_comm_status
 *    and kolo_last_error: any thread, any time, they never block.
 *  - The caller owns every buffer that it passes; Kolo keeps no reference to it after the
 *    operation is done.  "Done" is the return of the call, or for an operation on a stream the
 *    moment when the stream has reached it.
 *  - The library never aborts, exits, prints (unless KOLO_LOG asks) or changes the environment.
 */
#ifndef KOLO_H
#define KOLO_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- version ------------------------------------------------------------------------------ */

#define KOLO_VERSION_MAJOR 0
#define KOLO_VERSION_MINOR 1
#define KOLO_VERSION_PATCH 0
#define KOLO_VERSION (KOLO_VERSION_MAJOR * 10000 + KOLO_VERSION_MINOR * 100 + KOLO_VERSION_PATCH)

#define KOLO_API __attribute__((visibility("default")))
#define KOLO_MUST_CHECK __attribute__((warn_unused_result))

/* The version of the library that is loaded, to compare with KOLO_VERSION of the header. */
KOLO_API int kolo_version(void);

/* ---- status ------------------------------------------------------------------------------- */

/* Grouped by what is damaged. */
enum kolo_status {
    KOLO_OK = 0,
    KOLO_IN_PROGRESS = 1, /* not an error: the stream, event or communicator is still busy */

    /* the call: nothing was started, nothing has changed */
    KOLO_ERR_ARG = -1,   /* an argument is wrong; the text says which and why */
    KOLO_ERR_USAGE = -2, /* legal arguments at the wrong time (group_end without begin, ...) */
    KOLO_ERR_NOMEM = -3, /* memory, descriptors or another resource ran out */
    KOLO_ERR_UNSUPPORTED = -4, /* not in this build, on this machine, or in this version */

    /* the operation: set-up that did not come about, an operation that did not end */
    KOLO_ERR_TIMEOUT = -20, /* a deadline passed; the text names the ranks waited for.  An operation
                               that timed out leaves the communicator unusable: abort, destroy */
    KOLO_ERR_SETUP = -21,   /* ranks could not agree to form a communicator; none was made */

    /* the communicator: every later operation on it returns the same */
    KOLO_ERR_MISMATCH = -40,  /* ranks called different things; the text names both calls */
    KOLO_ERR_PEER_LOST = -41, /* a rank died or disconnected; the text names it */
    KOLO_ERR_ABORTED = -42,   /* kolo_comm_abort, here or at the rank in the text */

    /* the library or the system under it */
    KOLO_ERR_SYSTEM = -60,   /* a system call failed in a way that has no better name */
    KOLO_ERR_INTERNAL = -61, /* a defect of Kolo */
};

/* One fixed English sentence, for any int.  Never NULL. */
KOLO_API const char *kolo_status_string(int status);

struct kolo_comm;

/* What the last failed call on this communicator said: what failed, on which rank and host, at
 * which peer, and what to do.  With comm NULL: the last failure on the calling thread of a call
 * that had no communicator.  Empty text when nothing has failed.  The text is the calling thread's
 * copy; it lives until the thread calls kolo_last_error again. */
KOLO_API const char *kolo_last_error(const struct kolo_comm *comm);

/* ---- types and reductions ----------------------------------------------------------------- */

/* Numbers up to KOLO_F8E5M2 equal NCCL's. */
enum kolo_type {
    KOLO_I8 = 0,
    KOLO_U8 = 1,
    KOLO_I32 = 2,
    KOLO_U32 = 3,
    KOLO_I64 = 4,
    KOLO_U64 = 5,
    KOLO_F16 = 6,
    KOLO_F32 = 7,
    KOLO_F64 = 8,
    KOLO_BF16 = 9,
    KOLO_F8E4M3 = 10, /* OCP "fn" variant: no infinity, largest 448; results saturate */
    KOLO_F8E5M2 = 11, /* has infinities; finite results that are too large saturate to 57344 */
    KOLO_I16 = 12,
    KOLO_U16 = 13,
    KOLO_NTYPES = 14,
};

/* Sums and products of integers wrap modulo 2^bits.  Min and max of floats: a NaN in any
 * contribution makes the result NaN.  f16, bf16 and f8 are accumulated in f32 wherever a step has
 * more than two sources, and rounded once, to nearest even. */
enum kolo_op {
    KOLO_SUM = 0,
    KOLO_PROD = 1,
    KOLO_MAX = 2,
    KOLO_MIN = 3,
    KOLO_AVG = 4,  /* sum divided by the number of ranks; integers truncate toward zero */
    KOLO_BAND = 5, /* bitwise: integers only */
    KOLO_BOR = 6,
    KOLO_BXOR = 7,
    KOLO_NOPS = 8,
    KOLO_OP_FIRST_CUSTOM = 64, /* handles of kolo_op_create_premul_sum start here */
};

/* Bytes of one element; 0 for a number that is not a type. */
KOLO_API size_t kolo_type_size(int type);

/* ---- communicators ------------------------------------------------------------------------ */

/* What the ranks of a new communicator must share: addresses of the process that made it, and a
 * 128-bit secret that each rank proves before it is heard.  Give it only to the ranks. */
struct kolo_unique_id {
    unsigned char bytes[128];
};

enum kolo_place {
    KOLO_PLACE_HOST = -1, /* buffers are host memory */
    /* 0, 1, ... : buffers are memory of that CUDA device */
};

/* Start from KOLO_CONFIG_INIT and change fields by name.  Zero means the default everywhere but
 * in `place`.  Options of the environment (KOLO_*, see `kolo_info --options`) win over it. */
struct kolo_config {
    size_t size;        /* sizeof(struct kolo_config) of the caller's header */
    int place;          /* enum kolo_place or a device number */
    int deterministic;  /* 1: equal inputs give equal bits whatever the algorithm and topology */
    int64_t timeout_ms; /* of each operation; default 600,000 */
    int64_t setup_timeout_ms; /* of create and split; default 120,000 */
    const char *name;         /* for messages and metrics; copied, at most 31 bytes are kept */
    const char *plan_file;    /* plans to add to the built-in ones (see lib/README.md); or NULL */
};
/* clang-format off */
#define KOLO_CONFIG_INIT {sizeof(struct kolo_config), KOLO_PLACE_HOST, 0, 0, 0, NULL, NULL}
/* clang-format on */

/* Make an id and start to listen for ranks in the calling process, which must live until the
 * communicator stands.  Each id serves one kolo_comm_create.  Errors: NOMEM, SYSTEM. */
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_unique_id_create(struct kolo_unique_id *id);

/* Join the communicator of `id` as `rank` of `nranks`; returns when all have joined.  Collective
 * over the ranks, in any number of processes and threads.  config may be NULL.
 * Errors: ARG, NOMEM, UNSUPPORTED (device memory without GPU support), TIMEOUT (names the ranks
 * that did not come), SETUP (duplicate rank, ranks that disagree about nranks), SYSTEM. */
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_comm_create(const struct kolo_unique_id *id,
                                                           int rank, int nranks,
                                                           const struct kolo_config *config,
                                                           struct kolo_comm **comm);

/* The communicator of all processes that the launcher started: KOLO_RANK and KOLO_SIZE, torchrun,
 * PMIx, Open MPI, MPICH (Hydra), Slurm steps, RANK and WORLD_SIZE with MASTER_ADDR, Kubernetes
 * indexed jobs, or one rank alone.  Two launchers that disagree about rank or size are an error
 * (SETUP).  Otherwise as kolo_comm_create. */
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_comm_create_env(const struct kolo_config *config,
                                                               struct kolo_comm **comm);

/* nranks communicators in this process, comms[i] being rank i: for a thread each, or for one thread
 * that drives them all inside groups.  `comms` has room for nranks pointers. */
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_comm_create_local(int nranks,
                                                                 const struct kolo_config *config,
                                                                 struct kolo_comm **comms);

#define KOLO_SPLIT_NONE (-1)

/* Partition `comm`: ranks with equal color >= 0 form a new communicator, ordered by key, then by
 * rank in comm.  With color KOLO_SPLIT_NONE, *out becomes NULL.  Collective over comm, blocking.
 * config NULL inherits comm's.  comm itself is not changed and may be destroyed first. */
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_comm_split(struct kolo_comm *comm, int color,
                                                          int key, const struct kolo_config *config,
                                                          struct kolo_comm **out);

/* A new communicator of the ranks of comm without the `n` ranks listed in `exclude`.
 * UNSUPPORTED in this version. */
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_comm_shrink(struct kolo_comm *comm,
                                                           const int *exclude, int n,
                                                           const struct kolo_config *config,
                                                           struct kolo_comm **out);

/* Make every pending and later operation of comm return KOLO_ERR_ABORTED, here and, through their
 * own waits, on all other ranks.  Local, bounded, any thread, any time.  Destroy is still owed. */
KOLO_API void kolo_comm_abort(struct kolo_comm *comm);

/* Finish what is queued (at most for the operations' own deadlines), then free comm.  Local: it
 * does not wait for other ranks to destroy theirs.  Takes NULL. */
KOLO_API void kolo_comm_destroy(struct kolo_comm *comm);

/* KOLO_OK, KOLO_IN_PROGRESS (asynchronous operations are pending), or the error that damaged comm.
 * Any thread, never blocks. */
KOLO_API enum kolo_status kolo_comm_status(const struct kolo_comm *comm);

KOLO_API int kolo_comm_rank(const struct kolo_comm *comm); /* -1 for NULL */
KOLO_API int kolo_comm_size(const struct kolo_comm *comm); /* -1 for NULL */

/* A reduction that multiplies each contribution of this rank by *scalar, then sums.  `scalar` is
 * one element of `type` (host memory, copied).  *op is used with this type and comm on every
 * rank that also made one; ranks may have different scalars.  Free with kolo_op_destroy, or by
 * destroying comm.  Errors: ARG, NOMEM. */
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_op_create_premul_sum(const void *scalar, int type,
                                                                    struct kolo_comm *comm,
                                                                    int *op);
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_op_destroy(int op, struct kolo_comm *comm);

/* ---- collectives --------------------------------------------------------------------------
 *
 * Every rank of comm calls the same collectives in the same order with the same count, type, op and
 * root; if not, each rank involved gets KOLO_ERR_MISMATCH with both calls in its text.
 * n is the number of ranks, r the caller's rank.
 * `stream` is NULL: return when done (the caller's thread does the work).  Else a struct
 * kolo_stream *: return at once, done when the stream has reached it.
 * In place is allowed for each as its comment says; other overlap of send and recv is an error.
 *
 * After an error that makes the communicator unusable, peers may for a moment still read and write
 * buffers from kolo_mem_alloc that were passed; leave those alone until it is destroyed everywhere.
 *
 * Errors of all: ARG (nothing was started), USAGE, NOMEM; TIMEOUT, MISMATCH, PEER_LOST, ABORTED,
 * SYSTEM (communicator unusable).  On a stream the latter are reported by kolo_stream_synchronize
 * and kolo_comm_status.
 */

/* recv[i] = op over ranks of send[i], i < count.  In place: send == recv. */
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_all_reduce(const void *send, void *recv,
                                                          size_t count, int type, int op,
                                                          struct kolo_comm *comm, void *stream);

/* send holds n * count elements, recv count: recv[i] = op over ranks of send[r * count + i].
 * In place: recv == send + r * count elements. */
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_reduce_scatter(const void *send, void *recv,
                                                              size_t count, int type, int op,
                                                              struct kolo_comm *comm, void *stream);

/* The same with counts[k] elements for rank k, packed in rank order in send.  All ranks pass
 * equal counts (n of them, read before the call returns).  In place: recv == send + sum of
 * counts[< r]. */
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_reduce_scatter_v(const void *send, void *recv,
                                                                const size_t *counts, int type,
                                                                int op, struct kolo_comm *comm,
                                                                void *stream);

/* recv holds n * count elements: recv[k * count + i] = send[i] of rank k.
 * In place: send == recv + r * count elements. */
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_all_gather(const void *send, void *recv,
                                                          size_t count, int type,
                                                          struct kolo_comm *comm, void *stream);

/* The same with counts[k] elements from rank k, placed displs[k] elements into recv (NULL: packed).
 * send holds counts[r].  Equal counts on all ranks; displs may differ.  Blocks must not overlap.
 * In place: send == recv + displs[r]. */
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_all_gather_v(const void *send, void *recv,
                                                            const size_t *counts,
                                                            const size_t *displs, int type,
                                                            struct kolo_comm *comm, void *stream);

/* send and recv hold n * count elements: recv[k * count + i] = send[r * count + i] of rank k.
 * In place: send == recv. */
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_all_to_all(const void *send, void *recv,
                                                          size_t count, int type,
                                                          struct kolo_comm *comm, void *stream);

/* send_counts[k] elements at send_displs[k] go to rank k, recv_counts[k] from rank k arrive at
 * recv_displs[k]; displs NULL: packed.  What k sends to r must be what r expects from k, else
 * MISMATCH (ARG for the own block).  In place (send == recv) needs equal counts and displs for
 * send and receive. */
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_all_to_all_v(const void *send,
                                                            const size_t *send_counts,
                                                            const size_t *send_displs, void *recv,
                                                            const size_t *recv_counts,
                                                            const size_t *recv_displs, int type,
                                                            struct kolo_comm *comm, void *stream);

/* recv[i] = send[i] of rank root.  send is read at the root only, recv at the root may be NULL or
 * equal send.  Elsewhere send is ignored. */
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_broadcast(const void *send, void *recv, size_t count,
                                                         int type, int root, struct kolo_comm *comm,
                                                         void *stream);

/* At the root recv[i] = op over ranks of send[i]; elsewhere recv is ignored.  In place: send ==
 * recv. */
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_reduce(const void *send, void *recv, size_t count,
                                                      int type, int op, int root,
                                                      struct kolo_comm *comm, void *stream);

/* At the root recv[k * count + i] = send[i] of rank k; elsewhere recv is ignored.
 * In place at the root: send == recv + root * count elements. */
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_gather(const void *send, void *recv, size_t count,
                                                      int type, int root, struct kolo_comm *comm,
                                                      void *stream);

/* recv[i] = send[r * count + i] of the root; send is ignored elsewhere.
 * In place at the root: recv == send + root * count elements. */
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_scatter(const void *send, void *recv, size_t count,
                                                       int type, int root, struct kolo_comm *comm,
                                                       void *stream);

/* No rank leaves before all have entered. */
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_barrier(struct kolo_comm *comm, void *stream);

/* Point to point, matched per pair in the order of issue; count and type must agree (MISMATCH).
 * A receive whose peer calls a collective instead ends with the deadline (TIMEOUT).
 * A send may return before the receiver has taken the data.  Sending to oneself needs the matching
 * receive in the same group.  Exchanges (both ranks send first) belong into a group. */
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_send(const void *buf, size_t count, int type,
                                                    int peer, struct kolo_comm *comm, void *stream);
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_recv(void *buf, size_t count, int type, int peer,
                                                    struct kolo_comm *comm, void *stream);

/* ---- groups -------------------------------------------------------------------------------
 * Calls between begin and the outermost end of a thread are checked at once but run together at
 * the end: sends and receives all progress at the same time, collectives of one communicator in
 * order, different communicators (also several ranks of one, driven by one thread) at the same
 * time; each communicator of a group needs a stream of its own, or NULL (USAGE). kolo_group_end
 * returns the first error; a call of the group that had failed makes it return that error
 * without having started anything.  Nothing else but collectives, send and recv belongs into a
 * group.
 * All ranks group their collectives alike (MISMATCH).  Consecutive all_reduces of one type and
 * reduction, of at most 64 KiB each, run as one where the buffers allow it: no operation writes
 * what another one reads or writes.  The results are the same, and many small ones take much less
 * time than one by one. */
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_group_begin(void);
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_group_end(void);

/* ---- memory -------------------------------------------------------------------------------
 * Memory that all ranks of this machine reach: collectives on it copy once, without staging.  It
 * is page aligned, zeroed, and ordinary memory otherwise, except that a forked child does not
 * have it.  Free it after the operations that use it are done.  It may be allocated before or
 * after communicators.  mem_free takes NULL; ARG for a pointer that kolo_mem_alloc did not
 * return. */
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_mem_alloc(void **ptr, size_t bytes);
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_mem_free(void *ptr);

/* Announce a buffer that will be used often.  Local.  In this version it is checked and remembered,
 * but speeds up nothing on host memory: use kolo_mem_alloc. */
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_comm_register(struct kolo_comm *comm, void *ptr,
                                                             size_t bytes, void **handle);
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_comm_deregister(struct kolo_comm *comm,
                                                               void *handle);

/* ---- streams ------------------------------------------------------------------------------
 * Host streams with CUDA's meaning: operations of one stream run in order, an event marks a
 * point in it.  Streams and events may be used from any thread, one at a time each; events also
 * while the stream runs.  A stream may carry operations of several communicators; operations of
 * one communicator run in the order of issue whatever their streams. */
struct kolo_stream;
struct kolo_event;

KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_stream_create(struct kolo_stream **stream);
/* Waits for what is queued, then frees.  Takes NULL. */
KOLO_API void kolo_stream_destroy(struct kolo_stream *stream);
/* Wait until all work queued so far is done; the first error among it since the last
 * synchronize. */
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_stream_synchronize(struct kolo_stream *stream);
/* KOLO_OK, KOLO_IN_PROGRESS, or the error that synchronize would return. */
KOLO_API enum kolo_status kolo_stream_query(struct kolo_stream *stream);
/* Later work on stream waits for what `event` had recorded when this is called. */
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_stream_wait_event(struct kolo_stream *stream,
                                                                 struct kolo_event *event);

KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_event_create(struct kolo_event **event);
KOLO_API void kolo_event_destroy(struct kolo_event *event); /* takes NULL */
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_event_record(struct kolo_event *event,
                                                            struct kolo_stream *stream);
/* An event that was never recorded is done. */
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_event_synchronize(struct kolo_event *event);
KOLO_API enum kolo_status kolo_event_query(struct kolo_event *event);
/* Time between two events that are done, in milliseconds.  USAGE if one is not. */
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_event_elapsed_time(double *ms,
                                                                  struct kolo_event *start,
                                                                  struct kolo_event *end);

/* ---- looking in --------------------------------------------------------------------------- */

enum kolo_coll {
    KOLO_COLL_ALL_REDUCE,
    KOLO_COLL_REDUCE_SCATTER,
    KOLO_COLL_ALL_GATHER,
    KOLO_COLL_ALL_TO_ALL,
    KOLO_COLL_BROADCAST,
    KOLO_COLL_REDUCE,
    KOLO_COLL_GATHER,
    KOLO_COLL_SCATTER,
    KOLO_COLL_BARRIER,
    KOLO_COLL_REDUCE_SCATTER_V,
    KOLO_COLL_ALL_GATHER_V,
    KOLO_COLL_ALL_TO_ALL_V,
    KOLO_COLL_SEND,
    KOLO_COLL_RECV,
    KOLO_NCOLLS,
};

/* "all_reduce", ...; NULL for a number that is none. */
KOLO_API const char *kolo_coll_name(int coll);
/* The reverse; -1 for an unknown name. */
KOLO_API int kolo_coll_find(const char *name);

/* The following write a text of at most size bytes (always terminated if size > 0) and the bytes
 * that the whole text needs, with its terminator, into *needed (may be NULL). */

struct kolo_query {
    size_t size; /* sizeof(struct kolo_query) */
    int coll;    /* enum kolo_coll */
    int nranks;  /* used when there is no communicator */
    int rank;    /* whose plan to print; -1: of all ranks */
    int root;
    size_t count; /* as the collective's own argument */
    int type;
    int op;
    const char *algo; /* plan of this name instead of the choice; or NULL */
};
/* The plan that a call would use, the candidates with their time, how it is known, and why the plan
 * is chosen; for comm NULL the plan on a machine like this one with query->nranks ranks. */
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_explain(const struct kolo_comm *comm,
                                                       const struct kolo_query *query, char *text,
                                                       size_t size, size_t *needed);

enum kolo_topic {
    KOLO_TOPIC_BUILD,    /* version, compiler, what was compiled in, CPU features in use */
    KOLO_TOPIC_OPTIONS,  /* every option: name, value, origin, default, meaning */
    KOLO_TOPIC_TOPOLOGY, /* CPUs, caches, memory, as far as known */
    KOLO_TOPIC_LAUNCHER, /* which launcher is seen, with rank and size */
    KOLO_TOPIC_ALGOS,    /* every algorithm with rounds, bytes and source */
    KOLO_TOPIC_TUNE,     /* times of algorithms that were measured on this machine, and are kept */
};
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_describe(enum kolo_topic topic, char *text,
                                                        size_t size, size_t *needed);

/* Counters of comm in Prometheus' text format. */
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_metrics(const struct kolo_comm *comm, char *text,
                                                       size_t size, size_t *needed);

/* The last operations of comm (the flight recorder), oldest first, one line each. */
KOLO_API KOLO_MUST_CHECK enum kolo_status kolo_record_dump(const struct kolo_comm *comm, char *text,
                                                           size_t size, size_t *needed);

#ifdef __cplusplus
}
#endif
#endif /* KOLO_H */
