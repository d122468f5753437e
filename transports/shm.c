/* shm.c - the shared-memory transport: where links, boards and doorbells lie.
 *
 * Each rank owns one segment (a memfd, or anonymous memory for ranks of one process) with what it
 * receives; peers map it and write into it:
 *
 *   board | bell | per source rank and channel: [ link_back | cells | smalls | probe | ring ]
 *                | per channel: outbox [ notes | bodies | slots ], which the owner writes
 *
 * Pages that are never used are never touched, so a segment costs what its links carry. */
#include "shm_segment.h"
#include "heap.h"
#include "mem.h"

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    SEGMENT_BELL = BOARD_BYTES,
    SEGMENT_LINKS = BOARD_BYTES + 4096,
    AREA_CELLS = 128, /* behind the line of struct link_back */
    AREA_SMALLS = AREA_CELLS + CELLS_BYTES,
    AREA_PROBE = (AREA_SMALLS + LINK_SMALLS * SMALL_STRIDE + 4095) / 4096 * 4096, /* see probe_of */
    AREA_RING = AREA_PROBE + 4096,
};

static size_t area_bytes(size_t ring_bytes)
{
    return AREA_RING + round_up(ring_bytes, 4096);
}

static size_t outbox_bytes(size_t slot_bytes)
{
    return OUTBOX_SLOTS_AT + round_up(LINK_SLOTS * slot_bytes, 4096);
}

bool shm_segment_bytes(int n, const struct link_shape *shape, size_t *bytes)
{
    size_t links;
    return size_mul((size_t)n * LINK_CHANNELS, area_bytes(shape->ring_bytes), &links) &&
           size_add(links, SEGMENT_LINKS + LINK_CHANNELS * outbox_bytes(shape->slot_bytes), bytes);
}

/* The outbox of a rank, behind its areas. */
static unsigned char *outbox_of(const struct shm *s, int rank, int channel)
{
    return s->peers[rank].segment + SEGMENT_LINKS +
           (size_t)s->n * LINK_CHANNELS * area_bytes(s->shape.ring_bytes) +
           (size_t)channel * outbox_bytes(s->shape.slot_bytes);
}

static unsigned char *shm_outbox(struct transport *t, int channel)
{
    const struct shm *s = (const struct shm *)t;
    return outbox_of(s, s->rank, channel);
}

void link_ring(_Atomic uint32_t *bell)
{
    /* Whoever clears the bell wakes; relaxed: the futex call orders itself. */
    if (atomic_exchange_explicit(bell, 0, memory_order_relaxed) != 0)
        syscall(SYS_futex, bell, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* A probe that a prefetcher has fetched comes early.  They learn what else is touched around a
 * line: so it has a page of its own; and by what distance one load follows the other: so from
 * source to source that changes. */
static _Atomic uint64_t *probe_of(unsigned char *area, int source)
{
    const unsigned line = (unsigned)source * ((unsigned)source + 13) / 2 * 11 % 64;
    return (_Atomic uint64_t *)(void *)(area + AREA_PROBE + (size_t)line * 64);
}

/* An odd number of lines: over all sets of a cache. */
static uint32_t cell_stride(unsigned ncells)
{
    return ((CELLS_BYTES / 64 / ncells - 1) | 1) * 64;
}

static void shm_link(struct transport *t, int peer, int channel, bool is_producer, struct link *out)
{
    struct shm *s = (struct shm *)t;
    unsigned char *segment = s->peers[is_producer ? peer : s->rank].segment;
    const int source = is_producer ? s->rank : peer;
    unsigned char *area =
        segment + SEGMENT_LINKS +
        ((size_t)source * LINK_CHANNELS + (size_t)channel) * area_bytes(s->shape.ring_bytes);
    *out = (struct link){
        .cells = area + AREA_CELLS,
        .smalls = area + AREA_SMALLS,
        .ring = area + AREA_RING,
        .outbox = is_producer ? NULL : outbox_of(s, peer, channel),
        .back = (struct link_back *)(void *)area,
        .probe = probe_of(area, source),
        .bell = t->ops->bell(t, peer),
        .slot_bytes = s->shape.slot_bytes,
        .ring_bytes = s->shape.ring_bytes,
        .ncells = s->shape.ncells,
        .cell_stride = cell_stride(s->shape.ncells),
        .peer = peer,
        .channel = (int16_t)channel,
    };
}

static void *shm_board(struct transport *t, int rank)
{
    return ((struct shm *)t)->peers[rank].segment;
}

static _Atomic uint32_t *shm_bell(struct transport *t, int rank)
{
    return (_Atomic uint32_t *)(void *)(((struct shm *)t)->peers[rank].segment + SEGMENT_BELL);
}

/* The peer's process is gone when its socket is closed or its pidfd is readable. */
static bool shm_is_alive(struct transport *t, int peer)
{
    const struct shm_peer *p = &((struct shm *)t)->peers[peer];
    struct pollfd fds[2] = {{.fd = p->socket, .events = POLLRDHUP},
                            {.fd = p->pidfd, .events = POLLIN}};
    if (p->socket < 0)
        return true;
    return poll(fds, 2, 0) <= 0;
}

static bool shm_has_windows(struct transport *t)
{
    return ((struct shm *)t)->has_windows;
}

static struct window_ref shm_window_ref(struct transport *t, const void *p, size_t bytes)
{
    const struct shm *s = (const struct shm *)t;
    uint64_t offset;
    if (s->is_one_process)
        return (struct window_ref){WINDOW_ADDRESS, (uint64_t)(uintptr_t)p};
    if (heap_offset(p, bytes, &offset))
        return (struct window_ref){WINDOW_HEAP, offset};
    return (struct window_ref){WINDOW_REMOTE, (uint64_t)(uintptr_t)p};
}

static bool shm_has_remote(struct transport *t)
{
    return ((struct shm *)t)->has_remote;
}

enum direction { FROM_PEER, TO_PEER };

/* The kernel moves at most about 2 GiB a call, and stops early at the end of a mapping. */
static int remote_copy(const struct shm *s, int peer, uint64_t at, void *own, size_t bytes,
                       enum direction direction)
{
    while (bytes > 0) {
        const struct iovec here = {own, bytes}, there = {(void *)(uintptr_t)at, bytes};
        const ssize_t n = direction == FROM_PEER
                              ? process_vm_readv(s->peers[peer].pid, &here, 1, &there, 1, 0)
                              : process_vm_writev(s->peers[peer].pid, &here, 1, &there, 1, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? errno : EFAULT;
        own = (char *)own + n;
        at += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return 0;
}

static int shm_remote_read(struct transport *t, int peer, uint64_t at, void *to, size_t bytes)
{
    return remote_copy((struct shm *)t, peer, at, to, bytes, FROM_PEER);
}

static int shm_remote_write(struct transport *t, int peer, uint64_t at, const void *from,
                            size_t bytes)
{
    return remote_copy((struct shm *)t, peer, at, (void *)(uintptr_t)from, bytes, TO_PEER);
}

static void *shm_window_map(struct transport *t, int peer, struct window_ref ref, size_t bytes)
{
    const struct shm *s = (const struct shm *)t;
    const struct shm_peer *p = &s->peers[peer];
    if (ref.kind == WINDOW_ADDRESS && s->is_one_process)
        return (void *)(uintptr_t)ref.at;
    if (ref.kind != WINDOW_HEAP || !p->heap || ref.at > p->heap->bytes ||
        p->heap->bytes - ref.at < bytes)
        return NULL;
    return p->heap->base + ref.at;
}

static const char *shm_peer_name(struct transport *t, int peer)
{
    return ((struct shm *)t)->peers[peer].name;
}

static void shm_close(struct transport *t)
{
    struct shm *s = (struct shm *)t;
    for (int i = 0; s->peers && i < s->n; i++) {
        struct shm_peer *p = &s->peers[i];
        if (p->socket >= 0)
            close(p->socket);
        if (p->pidfd >= 0)
            close(p->pidfd);
        heap_view_close(p->heap);
        if (p->segment && !s->group)
            munmap(p->segment, s->segment_bytes);
    }
    /* Acquire-release: the last one must see that the others have stopped using the memory. */
    if (s->group && atomic_fetch_sub_explicit(&s->group->users, 1, memory_order_acq_rel) == 1) {
        munmap(s->group->memory, s->group->bytes);
        mem_free(s->group);
    }
    mem_free(s->peers);
    mem_free(s);
}

const struct transport_ops shm_ops = {
    .size = sizeof(struct transport_ops),
    .name = "shm",
    .link = shm_link,
    .outbox = shm_outbox,
    .board = shm_board,
    .bell = shm_bell,
    .is_alive = shm_is_alive,
    .has_windows = shm_has_windows,
    .window_ref = shm_window_ref,
    .window_map = shm_window_map,
    .has_remote = shm_has_remote,
    .remote_read = shm_remote_read,
    .remote_write = shm_remote_write,
    .peer_name = shm_peer_name,
    .close = shm_close,
};

enum kolo_status shm_create(int rank, int n, const struct link_shape *shape, struct shm **out)
{
    size_t bytes;
    if (!shm_segment_bytes(n, shape, &bytes))
        return fail(KOLO_ERR_ARG,
                    "shm: a segment for %d ranks with slots of %zu bytes is too large", n,
                    shape->slot_bytes);
    struct shm *s = mem_calloc(1, sizeof *s);
    struct shm_peer *peers = s ? mem_calloc((size_t)n, sizeof *peers) : NULL;
    if (!peers) {
        mem_free(s);
        return fail(KOLO_ERR_NOMEM, "shm: out of memory for %d peers", n);
    }
    s->base.ops = &shm_ops;
    s->rank = rank;
    s->n = n;
    s->shape = *shape;
    s->segment_bytes = bytes;
    s->peers = peers;
    for (int i = 0; i < n; i++)
        peers[i].socket = peers[i].pidfd = -1;
    *out = s;
    return KOLO_OK;
}

/* One mapping holds the segments of all n ranks. */
static enum kolo_status group_create(int n, size_t segment_bytes, struct shm_group **out)
{
    size_t bytes;
    struct shm_group *g = mem_calloc(1, sizeof *g);
    if (!g)
        return fail(KOLO_ERR_NOMEM, "shm: out of memory");
    if (!size_mul((size_t)n, segment_bytes, &bytes)) {
        mem_free(g);
        return fail(KOLO_ERR_ARG, "shm: segments for %d ranks are too large", n);
    }
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        mem_free(g);
        return fail(KOLO_ERR_NOMEM, "shm: cannot map %zu bytes for %d local ranks: %s", bytes, n,
                    strerror(errno));
    }
    madvise(memory, bytes, MADV_DONTDUMP);
    g->memory = memory;
    g->bytes = bytes;
    *out = g;
    return KOLO_OK;
}

enum kolo_status shm_create_local(int n, const struct link_shape *shape, struct transport **out)
{
    struct shm_group *g = NULL;
    int made = 0;
    enum kolo_status status = KOLO_OK;
    for (; made < n && status == KOLO_OK; made++) {
        struct shm *s;
        status = shm_create(made, n, shape, &s);
        if (status == KOLO_OK && !g) {
            status = group_create(n, s->segment_bytes, &g);
            if (status != KOLO_OK)
                shm_close(&s->base);
        }
        if (status != KOLO_OK)
            break;
        s->group = g;
        s->has_windows = s->is_one_process = true;
        for (int i = 0; i < n; i++) {
            s->peers[i].segment = g->memory + (size_t)i * s->segment_bytes;
            snprintf(s->peers[i].name, sizeof s->peers[i].name, "this process");
        }
        atomic_fetch_add_explicit(&g->users, 1, memory_order_relaxed);
        out[made] = &s->base;
    }
    if (status == KOLO_OK)
        return KOLO_OK;
    while (made-- > 0)
        shm_close(out[made]);
    return status;
}
