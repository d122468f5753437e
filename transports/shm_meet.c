/* shm_meet.c - ranks of one machine meet over Unix sockets and pass their segments as descriptors.
 *
 *   every rank listens -> cards are exchanged by the bootstrap -> rank i connects to each j > i and
 *   sends its hello (proof of the secret, segment, heap); j checks it and answers with its own.
 *
 * Sockets have abstract names and segments are memfds: nothing is left behind by a killed job.
 * The sockets stay open, so that the end of a process is seen. */
#include "shm_segment.h"
#include "heap.h"
#include "mem.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

struct shm_listener {
    int fd;
};

enum { HELLO_MAGIC = 0x6b6f6c31 };

/* What both sides send, with the descriptors of segment and heap attached. */
struct hello {
    uint32_t magic;
    int32_t from;
    int32_t to;
    uint32_t has_heap;
    uint64_t proof; /* keyed hash of from, to and the receiver's socket name */
    uint64_t segment_bytes;
    uint64_t heap_bytes;
    uint64_t probe_at; /* address of a word in the sender's private memory ... */
    uint64_t probe;    /* ... and its content */
    unsigned char heap_id[16];
};
_Static_assert(sizeof(struct hello) == 72, "wire struct");

/* A random id of this process, made once; a forked child makes its own. */
static void process_id(unsigned char id[16])
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static unsigned char mine[16];
    static pid_t owner;
    pthread_mutex_lock(&lock);
    if (owner != getpid()) {
        if (getrandom(mine, sizeof mine, 0) != (ssize_t)sizeof mine)
            memcpy(mine, &(uint64_t[2]){now_ns(), (uint64_t)getpid()}, sizeof mine);
        owner = getpid();
    }
    memcpy(id, mine, sizeof mine);
    pthread_mutex_unlock(&lock);
}

/* Ranks meet when they see the same kernel (boot id) and the same abstract socket names (network
 * namespace); a container's host name says neither. */
static void host_id(unsigned char id[16])
{
    char facts[128] = "";
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, facts, 64) : 0;
    if (fd >= 0)
        close(fd);
    struct stat st = {0};
    (void)stat("/proc/self/ns/net", &st);
    n = n > 0 ? n : 0;
    n += snprintf(facts + n, sizeof facts - (size_t)n, "%ju:%ju", (uintmax_t)st.st_dev,
                  (uintmax_t)st.st_ino);
    static const unsigned char keys[2][16] = {"kolo host id  0", "kolo host id  1"};
    for (int i = 0; i < 2; i++) {
        const uint64_t h = siphash(keys[i], facts, (size_t)n);
        memcpy(id + i * 8, &h, 8);
    }
}

static socklen_t abstract_address(const char *name, struct sockaddr_un *a)
{
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    const size_t n = strnlen(name, SHM_NAME_BYTES - 1);
    memcpy(a->sun_path + 1, name, n);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}

enum kolo_status shm_listen(size_t slot_bytes, struct shm_listener **out, struct shm_card *card)
{
    struct shm_listener *l = mem_calloc(1, sizeof *l);
    if (!l)
        return fail(KOLO_ERR_NOMEM, "shm: out of memory");
    memset(card, 0, sizeof *card);
    host_id(card->host);
    process_id(card->process);
    card->pid = getpid();
    card->slot_bytes = slot_bytes;
    gethostname(card->hostname, sizeof card->hostname - 1);

    uint64_t random[2];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        random[0] = now_ns(), random[1] = (uint64_t)(uintptr_t)l;
    snprintf(card->socket, sizeof card->socket, "kolo-%016jx%08jx", (uintmax_t)random[0],
             (uintmax_t)(random[1] & 0xffffffffu));
    struct sockaddr_un a;
    const socklen_t bytes = abstract_address(card->socket, &a);
    l->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (l->fd < 0 || bind(l->fd, (struct sockaddr *)&a, bytes) != 0 || listen(l->fd, 4096) != 0) {
        fail(errno == EMFILE || errno == ENFILE ? KOLO_ERR_NOMEM : KOLO_ERR_SYSTEM,
             "shm: cannot listen on a Unix socket: %s", strerror(errno));
        const enum kolo_status status = errno == EMFILE ? KOLO_ERR_NOMEM : KOLO_ERR_SYSTEM;
        shm_listener_close(l);
        return status;
    }
    *out = l;
    return KOLO_OK;
}

void shm_listener_close(struct shm_listener *l)
{
    if (!l)
        return;
    if (l->fd >= 0)
        close(l->fd);
    mem_free(l);
}

/* ---- hello messages ---- */

static uint64_t proof(const unsigned char secret[16], int from, int to, const char *socket_name)
{
    struct {
        int32_t from, to;
        char name[SHM_NAME_BYTES];
    } facts = {from, to, ""};
    memcpy(facts.name, socket_name, strnlen(socket_name, SHM_NAME_BYTES - 1));
    return siphash(secret, &facts, sizeof facts);
}

static enum kolo_status send_hello(int fd, const struct hello *h, int segment_fd, int heap)
{
    struct iovec iov = {(void *)(uintptr_t)h, sizeof *h};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(2 * sizeof(int))];
    } control = {0};
    const int fds[2] = {segment_fd, heap};
    const size_t nfds = heap >= 0 ? 2 : 1;
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = CMSG_SPACE(nfds * sizeof(int))};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(nfds * sizeof(int));
    memcpy(CMSG_DATA(c), fds, nfds * sizeof(int));
    ssize_t n;
    do {
        n = sendmsg(fd, &m, MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    if (n != (ssize_t)sizeof *h)
        return fail(KOLO_ERR_PEER_LOST, "shm: a peer on this host closed its socket: %s",
                    strerror(errno));
    return KOLO_OK;
}

/* Until `fd` is readable; TIMEOUT without a text of its own. */
static enum kolo_status wait_readable(int fd, uint64_t deadline_ns)
{
    for (;;) {
        const uint64_t now = now_ns();
        if (now >= deadline_ns)
            return KOLO_ERR_TIMEOUT;
        struct pollfd p = {.fd = fd, .events = POLLIN};
        const uint64_t ms = (deadline_ns - now) / 1000000 + 1;
        const int n = poll(&p, 1, ms > 1000 ? 1000 : (int)ms);
        if (n > 0)
            return KOLO_OK;
        if (n < 0 && errno != EINTR)
            return fail(KOLO_ERR_SYSTEM, "shm: poll: %s", strerror(errno));
    }
}

/* fds[0] segment, fds[1] heap or -1; the caller owns them.  false: not a hello. */
static bool recv_hello(int fd, struct hello *h, int fds[2])
{
    fds[0] = fds[1] = -1;
    struct iovec iov = {h, sizeof *h};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(2 * sizeof(int))];
    } control;
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof control.bytes};
    ssize_t n;
    do {
        n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
        memcpy(fds, CMSG_DATA(c), c->cmsg_len - CMSG_LEN(0));
    return n == (ssize_t)sizeof *h && h->magic == HELLO_MAGIC && fds[0] >= 0 &&
           (h->has_heap != 0) == (fds[1] >= 0);
}

/* ---- meeting ---- */

struct meeting {
    struct shm *shm;
    const struct shm_card *cards;
    const unsigned char *secret;
    int listener;
    int segment_fd;
    int heap; /* borrowed; -1: none */
    struct hello hello;
    uint64_t deadline_ns;
};

/* Read a word of the peer's memory: allowed by ptrace's rules, and the process ids mean the
 * same? */
static bool can_reach(const struct shm_peer *p, const struct hello *h)
{
    uint64_t word = 0;
    const struct iovec here = {&word, sizeof word};
    const struct iovec there = {(void *)(uintptr_t)h->probe_at, sizeof word};
    return p->pid > 0 && process_vm_readv(p->pid, &here, 1, &there, 1, 0) == (ssize_t)sizeof word &&
           word == h->probe;
}

/* Map what a peer sent; closes the descriptors. */
static enum kolo_status adopt_peer(struct meeting *m, int peer, int socket, const struct hello *h,
                                   int fds[2])
{
    struct shm_peer *p = &m->shm->peers[peer];
    enum kolo_status status = KOLO_OK;
    struct stat st;
    if (h->segment_bytes != m->shm->segment_bytes || fstat(fds[0], &st) != 0 ||
        (uint64_t)st.st_size < h->segment_bytes) {
        status = fail(KOLO_ERR_SETUP,
                      "shm: rank %d has segments of %ju bytes, rank %d of %zu: set "
                      "KOLO_SLOT_BYTES equal on all ranks",
                      peer, (uintmax_t)h->segment_bytes, m->shm->rank, m->shm->segment_bytes);
        goto close_fds;
    }
    void *segment =
        mmap(NULL, m->shm->segment_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    if (segment == MAP_FAILED) {
        status = fail(KOLO_ERR_NOMEM, "shm: cannot map %zu bytes of rank %d: %s",
                      m->shm->segment_bytes, peer, strerror(errno));
        goto close_fds;
    }
    madvise(segment, m->shm->segment_bytes, MADV_DONTDUMP);
    p->segment = segment;
    p->socket = socket;
    /* Without the peer's heap there are no windows, and all else works. */
    if (fds[1] >= 0 && heap_view_open(fds[1], h->heap_bytes, h->heap_id, &p->heap) != KOLO_OK)
        p->heap = NULL;
    struct ucred who;
    socklen_t bytes = sizeof who;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 && who.pid > 0) {
        p->pid = who.pid;
        p->pidfd = (int)syscall(SYS_pidfd_open, who.pid, 0);
    }
    m->shm->has_remote &= can_reach(p, h);

close_fds:
    close(fds[0]);
    if (fds[1] >= 0)
        close(fds[1]);
    return status;
}

static enum kolo_status say_hello(struct meeting *m, int peer, const char *socket_name, int fd)
{
    m->hello.from = m->shm->rank;
    m->hello.to = peer;
    m->hello.proof = proof(m->secret, m->shm->rank, peer, socket_name);
    return send_hello(fd, &m->hello, m->segment_fd, m->heap);
}

static enum kolo_status connect_peer(struct meeting *m, int peer)
{
    struct sockaddr_un a;
    const socklen_t bytes = abstract_address(m->cards[peer].socket, &a);
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return fail(KOLO_ERR_NOMEM, "shm: socket: %s (see ulimit -n)", strerror(errno));
    int rc;
    do {
        rc = connect(fd, (struct sockaddr *)&a, bytes);
    } while (rc != 0 && errno == EINTR);
    if (rc != 0) {
        const enum kolo_status status =
            fail(KOLO_ERR_SETUP, "shm: cannot reach rank %d (pid %jd on this host): %s", peer,
                 (intmax_t)m->cards[peer].pid, strerror(errno));
        close(fd);
        return status;
    }
    m->shm->peers[peer].socket = fd;
    return say_hello(m, peer, m->cards[peer].socket, fd);
}

/* One connection from a lower rank.  Strangers are dropped without a word. */
static enum kolo_status accept_peer(struct meeting *m, bool *is_peer)
{
    *is_peer = false;
    TRY(wait_readable(m->listener, m->deadline_ns));
    const int fd = accept4(m->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) {
        if (errno == EINTR || errno == ECONNABORTED)
            return KOLO_OK;
        return fail(KOLO_ERR_NOMEM, "shm: accept: %s (see ulimit -n)", strerror(errno));
    }
    /* A real peer has sent its hello right after connecting. */
    const uint64_t soon = now_ns() + 1000000000u;
    struct hello h;
    int fds[2] = {-1, -1};
    const char *name = m->cards[m->shm->rank].socket;
    if (wait_readable(fd, soon < m->deadline_ns ? soon : m->deadline_ns) != KOLO_OK ||
        !recv_hello(fd, &h, fds) || h.to != m->shm->rank || h.from < 0 || h.from >= m->shm->rank ||
        h.proof != proof(m->secret, h.from, h.to, name) || m->shm->peers[h.from].segment) {
        for (int i = 0; i < 2; i++)
            if (fds[i] >= 0)
                close(fds[i]);
        close(fd);
        return KOLO_OK;
    }
    enum kolo_status status = adopt_peer(m, h.from, fd, &h, fds);
    if (status == KOLO_OK)
        status = say_hello(m, h.from, name, fd);
    else if (m->shm->peers[h.from].socket < 0)
        close(fd);
    *is_peer = status == KOLO_OK;
    return status;
}

static enum kolo_status hear_answer(struct meeting *m, int peer)
{
    const int fd = m->shm->peers[peer].socket;
    TRY(wait_readable(fd, m->deadline_ns));
    struct hello h;
    int fds[2];
    if (!recv_hello(fd, &h, fds) || h.from != peer || h.to != m->shm->rank ||
        h.proof != proof(m->secret, peer, m->shm->rank, m->cards[peer].socket)) {
        for (int i = 0; i < 2; i++)
            if (fds[i] >= 0)
                close(fds[i]);
        return fail(KOLO_ERR_SETUP,
                    "shm: rank %d (pid %jd on this host) closed the connection "
                    "while ranks were meeting; see its own error",
                    peer, (intmax_t)m->cards[peer].pid);
    }
    return adopt_peer(m, peer, fd, &h, fds);
}

static enum kolo_status missing(const struct meeting *m)
{
    char list[256];
    struct text t;
    text_init(&t, list, sizeof list);
    for (int i = 0; i < m->shm->n; i++)
        if (!m->shm->peers[i].segment)
            text_add(&t, "%s%d (pid %jd)", t.used > 1 ? ", " : "", i, (intmax_t)m->cards[i].pid);
    return fail(KOLO_ERR_TIMEOUT, "shm: ranks that did not come to the meeting on this host: %s",
                list);
}

static enum kolo_status meet_all(struct meeting *m)
{
    const int me = m->shm->rank, n = m->shm->n;
    for (int peer = me + 1; peer < n; peer++)
        TRY(connect_peer(m, peer));
    for (int left = me; left > 0;) {
        bool is_peer;
        TRY(accept_peer(m, &is_peer));
        left -= is_peer;
    }
    for (int peer = me + 1; peer < n; peer++)
        TRY(hear_answer(m, peer));
    return KOLO_OK;
}

static enum kolo_status make_segment(struct shm *s, int *fd_out)
{
    const int fd = memfd_create("kolo-segment", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return fail(KOLO_ERR_NOMEM, "shm: memfd_create: %s", strerror(errno));
    void *p = MAP_FAILED;
    if (ftruncate(fd, (off_t)s->segment_bytes) == 0)
        p = mmap(NULL, s->segment_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        const enum kolo_status status = fail(KOLO_ERR_NOMEM, "shm: a segment of %zu bytes: %s",
                                             s->segment_bytes, strerror(errno));
        close(fd);
        return status;
    }
    /* No peer can shrink it under our feet. */
    (void)fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    madvise(p, s->segment_bytes, MADV_DONTDUMP);
    s->peers[s->rank].segment = p;
    *fd_out = fd;
    return KOLO_OK;
}

static void name_peers(struct meeting *m)
{
    struct shm *s = m->shm;
    s->is_one_process = true;
    s->has_windows = true;
    for (int i = 0; i < s->n; i++) {
        const struct shm_card *c = &m->cards[i];
        snprintf(s->peers[i].name, sizeof s->peers[i].name, "pid %jd on host %.60s",
                 (intmax_t)c->pid, c->hostname);
        if (memcmp(c->process, m->cards[s->rank].process, sizeof c->process) != 0)
            s->is_one_process = false;
        if (i != s->rank && !s->peers[i].heap)
            s->has_windows = false;
    }
    s->has_windows |= s->is_one_process;
}

static uint64_t deadline_after(int64_t ms)
{
    const uint64_t now = now_ns(), most = (UINT64_MAX - now) / 1000000u;
    return now + ((uint64_t)ms < most ? (uint64_t)ms : most) * 1000000u;
}

enum kolo_status shm_meet(struct shm_listener *listener, const struct shm_card *cards, int rank,
                          int n, const struct link_shape *shape, const unsigned char secret[16],
                          int64_t timeout_ms, struct transport **out)
{
    struct meeting m = {.cards = cards,
                        .secret = secret,
                        .listener = listener->fd,
                        .segment_fd = -1,
                        .deadline_ns = deadline_after(timeout_ms)};
    enum kolo_status status = shm_create(rank, n, shape, &m.shm);
    if (status != KOLO_OK)
        goto undo_listener;
    status = make_segment(m.shm, &m.segment_fd);
    if (status != KOLO_OK)
        goto undo_shm;
    size_t heap_bytes;
    m.heap = heap_fd(&heap_bytes, m.hello.heap_id);
    m.hello.magic = HELLO_MAGIC;
    m.hello.has_heap = m.heap >= 0;
    m.hello.heap_bytes = heap_bytes;
    m.hello.segment_bytes = m.shm->segment_bytes;
    if (getrandom(&m.shm->probe, sizeof m.shm->probe, 0) != (ssize_t)sizeof m.shm->probe)
        m.shm->probe = now_ns();
    m.hello.probe_at = (uint64_t)(uintptr_t)&m.shm->probe;
    m.hello.probe = m.shm->probe;
    m.shm->has_remote = true;

    status = meet_all(&m);
    if (status == KOLO_ERR_TIMEOUT)
        status = missing(&m);
    close(m.segment_fd);
    if (status != KOLO_OK)
        goto undo_shm;
    name_peers(&m);
    shm_listener_close(listener);
    *out = &m.shm->base;
    return KOLO_OK;

undo_shm:
    m.shm->base.ops->close(&m.shm->base);
undo_listener:
    shm_listener_close(listener);
    return status;
}
