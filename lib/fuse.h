/* fuse.h - what fuse.c and fuse_bucket.c share. */
#ifndef FUSE_H
#define FUSE_H

#include "comm.h"

/* A stretch of memory that an operation reads or writes. */
struct stretch {
    uintptr_t begin;
    uintptr_t end;
    bool is_write;
};

struct bucket {
    struct fused fused; /* first: the engine hands it back */
    struct job job;
    uint64_t hash;  /* of the counts */
    uint64_t used;  /* age of the last use; 0: never */
    bool is_busy;   /* part of the batch that is bound just now */
    size_t *counts; /* per operation */
    const void **send;
    void **recv;
    struct operation **ops;
    size_t *chunk_counts, *displs[2]; /* elements per chunk; the job's layouts */
    struct stretch *stretches;        /* twice 2 * nops: sorted, and room to sort */
};

/* Consecutive operations of a batch. */
struct op_run {
    struct operation *first;
    int n;
    uint64_t hash;
    size_t bytes;
};

enum kolo_status bucket_create(struct kolo_comm *comm, const struct op_run *run,
                               struct bucket **out);
void bucket_destroy(struct bucket *b); /* takes NULL */
/* Take over the operations of a run that fits. */
void bucket_bind(struct kolo_comm *comm, struct bucket *b, struct operation *first);

/* Sends and receives stand beside the collectives of a group, not between them. */
static inline struct operation *next_collective(struct operation *op)
{
    while (op && coll_is_p2p(op->job.call.coll))
        op = op->next;
    return op;
}

static inline size_t op_bytes(const struct operation *op)
{
    return op->job.call.count * kolo_type_size(op->job.call.type);
}

#endif
