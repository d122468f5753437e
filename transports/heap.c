/* heap.c - see heap.h.  The memfd is as large as the machine's memory and sparse: address space
 * costs nothing, pages are reserved when a block is allocated and given back when it is freed.
 * A forked child does not inherit the mapping; it starts a heap of its own. */
#include "heap.h"
#include "cfg.h"
#include "mem.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

enum { PAGE = 4096, HUGE_PAGE = 2 << 20 };

struct block {
    uint64_t offset;
    size_t bytes;
    struct block *next; /* ordered by offset */
};

/* The process's heap and the views of peers' heaps: process-wide because memory is.  `lock` guards
 * all of it. */
static struct {
    pthread_mutex_t lock;
    int fd;
    pid_t owner; /* process that mapped it; 0: not yet */
    unsigned char *base;
    size_t bytes;
    unsigned char id[16];
    struct block *blocks;
    struct heap_view *views;
} heap = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

static size_t wanted_bytes(void)
{
    size_t bytes = (size_t)cfg_int(CFG_HEAP_BYTES);
    if (bytes == 0)
        bytes = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    struct rlimit limit;
    /* Growing a file beyond this limit would raise SIGXFSZ. */
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        bytes > limit.rlim_cur)
        bytes = limit.rlim_cur;
    return bytes / HUGE_PAGE * HUGE_PAGE;
}

/* Forget what a parent process had: its mapping is not here (MADV_DONTFORK). */
static void forget_inherited(void)
{
    if (heap.fd >= 0)
        close(heap.fd);
    while (heap.blocks) {
        struct block *b = heap.blocks;
        heap.blocks = b->next;
        mem_free(b);
    }
    heap.fd = -1;
    heap.base = NULL;
    heap.views = NULL;
    heap.owner = 0;
}

/* Under the lock. */
static enum kolo_status ensure(void)
{
    if (heap.owner == getpid())
        return KOLO_OK;
    forget_inherited();
    const size_t bytes = wanted_bytes();
    if (bytes == 0)
        return fail(KOLO_ERR_UNSUPPORTED, "mem_alloc: no address space allowed (KOLO_HEAP_BYTES, "
                                          "or the file size limit, see ulimit -f)");
    const int fd = memfd_create("kolo-heap", MFD_CLOEXEC);
    if (fd < 0)
        return fail(KOLO_ERR_UNSUPPORTED, "mem_alloc: memfd_create: %s", strerror(errno));
    if (ftruncate(fd, (off_t)bytes) != 0) {
        fail(KOLO_ERR_UNSUPPORTED, "mem_alloc: cannot size the heap to %zu bytes: %s", bytes,
             strerror(errno));
        goto undo_fd;
    }
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (base == MAP_FAILED) {
        fail(KOLO_ERR_NOMEM,
             "mem_alloc: cannot map %zu bytes of address space: %s; set KOLO_HEAP_BYTES lower",
             bytes, strerror(errno));
        goto undo_fd;
    }
    madvise(base, bytes, MADV_DONTFORK);
    madvise(base, bytes, MADV_HUGEPAGE);
    if (getrandom(heap.id, sizeof heap.id, 0) != (ssize_t)sizeof heap.id)
        memcpy(heap.id, &(uint64_t[2]){now_ns(), (uint64_t)getpid()}, sizeof heap.id);
    heap.fd = fd;
    heap.base = base;
    heap.bytes = bytes;
    heap.owner = getpid();
    return KOLO_OK;

undo_fd:
    close(fd);
    return KOLO_ERR_UNSUPPORTED;
}

/* The link behind which `bytes` fit, and where; NULL when there is no such gap. */
static struct block **find_gap(size_t bytes, size_t align, uint64_t *offset)
{
    uint64_t from = 0;
    struct block **at = &heap.blocks;
    for (;; at = &(*at)->next) {
        const uint64_t start = round_up(from, align);
        const uint64_t end = *at ? (*at)->offset : heap.bytes;
        if (start < end && end - start >= bytes) {
            *offset = start;
            return at;
        }
        if (!*at)
            return NULL;
        from = (*at)->offset + (*at)->bytes;
    }
}

static enum kolo_status alloc_locked(size_t bytes, void **out)
{
    TRY(ensure());
    if (bytes > heap.bytes)
        return fail(KOLO_ERR_NOMEM,
                    "mem_alloc: %zu bytes wanted, the heap has %zu "
                    "(KOLO_HEAP_BYTES)",
                    bytes, heap.bytes);
    bytes = round_up(bytes ? bytes : 1, PAGE);
    struct block *b = mem_calloc(1, sizeof *b);
    if (!b)
        return fail(KOLO_ERR_NOMEM, "mem_alloc: out of memory");
    struct block **at = find_gap(bytes, bytes >= HUGE_PAGE ? HUGE_PAGE : PAGE, &b->offset);
    if (!at) {
        mem_free(b);
        return fail(KOLO_ERR_NOMEM,
                    "mem_alloc: no room for %zu bytes in the heap of %zu "
                    "(KOLO_HEAP_BYTES)",
                    bytes, heap.bytes);
    }
    /* Reserve the pages now: a shortage is an error here and not a SIGBUS later. */
    int rc;
    do {
        rc = fallocate(heap.fd, 0, (off_t)b->offset, (off_t)bytes);
    } while (rc != 0 && errno == EINTR);
    if (rc != 0) {
        mem_free(b);
        return fail(KOLO_ERR_NOMEM, "mem_alloc: %zu bytes: %s", bytes, strerror(errno));
    }
    b->bytes = bytes;
    b->next = *at;
    *at = b;
    *out = heap.base + b->offset;
    return KOLO_OK;
}

enum kolo_status heap_alloc(size_t bytes, void **out)
{
    pthread_mutex_lock(&heap.lock);
    const enum kolo_status status = alloc_locked(bytes, out);
    pthread_mutex_unlock(&heap.lock);
    return status;
}

enum kolo_status heap_free(void *p)
{
    if (!p)
        return KOLO_OK;
    enum kolo_status status = KOLO_ERR_ARG;
    pthread_mutex_lock(&heap.lock);
    if (heap.owner == getpid()) {
        for (struct block **at = &heap.blocks; *at; at = &(*at)->next) {
            struct block *b = *at;
            if (heap.base + b->offset != (unsigned char *)p)
                continue;
            fallocate(heap.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)b->offset,
                      (off_t)b->bytes);
            *at = b->next;
            mem_free(b);
            status = KOLO_OK;
            break;
        }
    }
    pthread_mutex_unlock(&heap.lock);
    if (status != KOLO_OK)
        return fail(status, "mem_free: %p was not returned by kolo_mem_alloc, or is freed already",
                    p);
    return KOLO_OK;
}

int heap_fd(size_t *bytes, unsigned char id[16])
{
    pthread_mutex_lock(&heap.lock);
    const int fd = ensure() == KOLO_OK ? heap.fd : -1;
    *bytes = fd >= 0 ? heap.bytes : 0;
    memcpy(id, heap.id, sizeof heap.id);
    pthread_mutex_unlock(&heap.lock);
    return fd;
}

/* Without the lock: base and bytes change only when a process first uses its heap. */
bool heap_offset(const void *p, size_t bytes, uint64_t *offset)
{
    const uintptr_t at = (uintptr_t)p, base = (uintptr_t)heap.base;
    if (!heap.base || at < base || at - base > heap.bytes || heap.bytes - (at - base) < bytes)
        return false;
    *offset = at - base;
    return true;
}

enum kolo_status heap_view_open(int fd, size_t bytes, const unsigned char id[16],
                                struct heap_view **out)
{
    enum kolo_status status = KOLO_OK;
    pthread_mutex_lock(&heap.lock);
    struct heap_view *v = heap.views;
    while (v && memcmp(v->id, id, sizeof v->id) != 0)
        v = v->next;
    if (!v) {
        v = mem_calloc(1, sizeof *v);
        void *base =
            v ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0)
              : MAP_FAILED;
        if (base == MAP_FAILED) {
            mem_free(v);
            v = NULL;
            status = fail(KOLO_ERR_NOMEM, "cannot map %zu bytes of a peer's heap", bytes);
        } else {
            madvise(base, bytes, MADV_DONTDUMP);
            v->base = base;
            v->bytes = bytes;
            memcpy(v->id, id, sizeof v->id);
            v->next = heap.views;
            heap.views = v;
        }
    }
    if (v) {
        v->users++;
        *out = v;
    }
    pthread_mutex_unlock(&heap.lock);
    return status;
}

void heap_view_close(struct heap_view *v)
{
    if (!v)
        return;
    pthread_mutex_lock(&heap.lock);
    if (--v->users == 0) {
        for (struct heap_view **at = &heap.views; *at; at = &(*at)->next) {
            if (*at == v) {
                *at = v->next;
                break;
            }
        }
        munmap(v->base, v->bytes);
        mem_free(v);
    }
    pthread_mutex_unlock(&heap.lock);
}
