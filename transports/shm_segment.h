/* shm_segment.h - what shm.c (layout, links) and shm_meet.c (meeting over Unix sockets) share. */
#ifndef SHM_SEGMENT_H
#define SHM_SEGMENT_H

#include "shm.h"

struct heap_view;

/* Memory of ranks that were created together in one process; freed with the last of them. */
struct shm_group {
    _Atomic int users;
    unsigned char *memory;
    size_t bytes;
};

struct shm_peer {
    unsigned char *segment; /* mapped; of the own rank too */
    struct heap_view *heap; /* NULL for ranks of this process */
    int socket;             /* kept open: its end tells of the peer's death; -1 for own process */
    int pidfd;              /* -1 where process ids do not reach */
    int pid;                /* as this process sees it; 0: not at all */
    char name[96];
};

struct shm {
    struct transport base;
    int rank;
    int n;
    struct link_shape shape;
    size_t segment_bytes;
    bool has_windows;
    bool has_remote;
    uint64_t probe; /* peers read it to see whether they can */
    bool is_one_process;
    struct shm_group *group; /* NULL: each segment is mapped by itself */
    struct shm_peer *peers;  /* n */
};

extern const struct transport_ops shm_ops;

bool shm_segment_bytes(int n, const struct link_shape *shape, size_t *bytes);
/* A transport without memory yet; peers' descriptors are -1. */
enum kolo_status shm_create(int rank, int n, const struct link_shape *shape, struct shm **out);

#endif
