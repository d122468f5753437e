/* boot_net.c - TCP sockets that never block: listen, connect, send, receive, poll by deadline.
 * Interrupted calls are repeated, SIGPIPE is never raised, descriptors are not inherited. */
#include "boot_net.h"
#include "cfg.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    LISTEN_BACKLOG = 4096,
    LISTEN_PAUSE_MS = 100, /* between attempts at a fixed port that is busy */
    KEEPALIVE_IDLE_S = 10, /* a silent peer is probed after this, and is dead 30 s later */
    KEEPALIVE_INTERVAL_S = 5,
    KEEPALIVE_COUNT = 6,
};

uint64_t net_deadline(int64_t timeout_ms)
{
    const uint64_t now = now_ns();
    uint64_t ns;
    if (timeout_ms <= 0)
        return now;
    if (__builtin_mul_overflow((uint64_t)timeout_ms, UINT64_C(1000000), &ns) ||
        __builtin_add_overflow(now, ns, &ns))
        return UINT64_MAX;
    return ns;
}

int64_t net_left_ms(uint64_t deadline)
{
    const uint64_t now = now_ns();
    return deadline <= now ? 0 : (int64_t)((deadline - now) / 1000000 + 1);
}

void net_close(int fd)
{
    const int saved = errno;
    if (fd >= 0)
        close(fd);
    errno = saved;
}

static void set_option(int fd, int level, int option, int value)
{
    (void)setsockopt(fd, level, option, &value, sizeof(value));
}

/* All of these only help: where the system lacks one, the connection still works. */
static void tune_connection(int fd)
{
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_COUNT);
}

/* A socket bound to `port` on every interface, or -1 with errno. */
static int bind_any(int family, int port)
{
    const int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    if (port != 0)
        set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    int rc;
    if (family == AF_INET6) {
        set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
        const struct sockaddr_in6 in6 = {.sin6_family = AF_INET6,
                                         .sin6_addr = IN6ADDR_ANY_INIT,
                                         .sin6_port = htons((uint16_t)port)};
        rc = bind(fd, (const struct sockaddr *)&in6, sizeof(in6));
    } else {
        const struct sockaddr_in in = {.sin_family = AF_INET,
                                       .sin_addr = {.s_addr = htonl(INADDR_ANY)},
                                       .sin_port = htons((uint16_t)port)};
        rc = bind(fd, (const struct sockaddr *)&in, sizeof(in));
    }
    if (rc == 0)
        rc = listen(fd, LISTEN_BACKLOG);
    if (rc != 0) {
        net_close(fd);
        return -1;
    }
    return fd;
}

static int listen_at(int port)
{
    const int fd = bind_any(AF_INET6, port);
    if (fd >= 0 || (errno != EAFNOSUPPORT && errno != EADDRNOTAVAIL))
        return fd;
    return bind_any(AF_INET, port);
}

static int listen_in_range(int lo, int hi)
{
    const int n = hi - lo + 1;
    const int start = (int)(now_ns() / 1000 % (uint64_t)n);
    int fd = -1;
    for (int i = 0; i < n && fd < 0; i++) {
        fd = listen_at(lo + (start + i) % n);
        if (fd < 0 && errno != EADDRINUSE && errno != EACCES)
            break;
    }
    return fd;
}

static int listen_until(int port, uint64_t deadline)
{
    for (;;) {
        const int fd = listen_at(port);
        const int64_t left = net_left_ms(deadline);
        if (fd >= 0 || errno != EADDRINUSE || left == 0)
            return fd;
        (void)poll(NULL, 0, left < LISTEN_PAUSE_MS ? (int)left : LISTEN_PAUSE_MS);
        errno = EADDRINUSE;
    }
}

static enum kolo_status fail_listen(int port, const char *range)
{
    const int error = errno;
    const enum kolo_status status =
        error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM ? KOLO_ERR_NOMEM
                                                                                  : KOLO_ERR_SYSTEM;
    if (port != 0)
        return fail(status,
                    "cannot listen on port %d for the other ranks: %s; free it or choose "
                    "another with KOLO_ADDR=host:port on all ranks",
                    port, strerror(error));
    if (range[0] != '\0')
        return fail(status, "no port of KOLO_PORT_RANGE=%s can be listened on: %s", range,
                    strerror(error));
    return fail(status, "cannot open a socket to listen on: %s%s", strerror(error),
                error == EMFILE ? "; raise the limit of open files (ulimit -n)" : "");
}

enum kolo_status net_listen(int port, uint64_t deadline, int *fd, uint16_t *bound)
{
    const char *range = cfg_str(CFG_PORT_RANGE);
    int lo = 0, hi = 0, made;
    if (port != 0) {
        made = listen_until(port, deadline);
    } else if (range[0] != '\0') {
        if (!net_port_range(range, &lo, &hi))
            return fail(KOLO_ERR_ARG, "KOLO_PORT_RANGE=%s is not LO-HI with ports in 1..65535",
                        range);
        made = listen_in_range(lo, hi);
    } else {
        made = listen_at(0);
    }
    if (made < 0)
        return fail_listen(port, range);
    struct sockaddr_storage ss;
    socklen_t len = sizeof(ss);
    if (getsockname(made, (struct sockaddr *)&ss, &len) != 0) {
        net_close(made);
        return fail(KOLO_ERR_SYSTEM, "cannot read the port of a listening socket: %s",
                    strerror(errno));
    }
    /* The port is in the same place for both families. */
    struct sockaddr_in in;
    memcpy(&in, &ss, sizeof(in));
    *bound = ntohs(in.sin_port);
    *fd = made;
    return KOLO_OK;
}

int net_accept(int listener)
{
    for (;;) {
        const int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED || errno == EPROTO))
            continue;
        if (fd < 0)
            return -1;
        if (!net_local_end_allowed(fd)) {
            net_close(fd);
            continue;
        }
        tune_connection(fd);
        return fd;
    }
}

int net_connect_start(const struct net_addr *addr, uint16_t port)
{
    struct sockaddr_storage ss = {0};
    socklen_t len;
    if (addr->family == 4) {
        struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(port)};
        memcpy(&in.sin_addr, addr->bytes, 4);
        memcpy(&ss, &in, len = sizeof(in));
    } else {
        struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
        memcpy(&in6.sin6_addr, addr->bytes, 16);
        memcpy(&ss, &in6, len = sizeof(in6));
    }
    const int fd = socket(ss.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    tune_connection(fd);
    /* EINTR leaves a non-blocking connect under way, as EINPROGRESS does. */
    if (connect(fd, (const struct sockaddr *)&ss, len) != 0 && errno != EINPROGRESS &&
        errno != EINTR) {
        net_close(fd);
        return -1;
    }
    return fd;
}

/* Connecting to a port of this host on which nobody listens can, by chance, choose the same port as
 * its own end, and then TCP connects the socket to itself. */
static bool is_connected_to_itself(int fd)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t here_len = sizeof(here), there_len = sizeof(there);
    return getsockname(fd, (struct sockaddr *)&here, &here_len) == 0 &&
           getpeername(fd, (struct sockaddr *)&there, &there_len) == 0 && here_len == there_len &&
           memcmp(&here, &there, here_len) == 0;
}

int net_connect_error(int fd)
{
    int error = 0;
    socklen_t len = sizeof(error);
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0)
        return errno;
    return error == 0 && is_connected_to_itself(fd) ? ECONNREFUSED : error;
}

ssize_t net_send(int fd, const struct iovec *parts, int n)
{
    const struct msghdr msg = {.msg_iov = (struct iovec *)parts, .msg_iovlen = (size_t)n};
    ssize_t done;
    do
        done = sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (done < 0 && errno == EINTR);
    return done < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? 0 : done;
}

static ssize_t receive(int fd, const struct iovec *parts, int n, int flags)
{
    struct msghdr msg = {.msg_iov = (struct iovec *)parts, .msg_iovlen = (size_t)n};
    ssize_t done;
    do
        done = recvmsg(fd, &msg, MSG_DONTWAIT | flags);
    while (done < 0 && errno == EINTR);
    if (done > 0)
        return done;
    if (done < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return 0;
    if (done == 0)
        errno = ESHUTDOWN;
    return -1;
}

ssize_t net_recv(int fd, const struct iovec *parts, int n)
{
    return receive(fd, parts, n, 0);
}

ssize_t net_recv_bytes(int fd, void *to, size_t bytes)
{
    const struct iovec part = {to, bytes};
    return receive(fd, &part, 1, 0);
}

ssize_t net_peek(int fd, void *to, size_t bytes)
{
    const struct iovec part = {to, bytes};
    return receive(fd, &part, 1, MSG_PEEK);
}

bool net_send_small(int fd, const void *from, size_t bytes)
{
    const struct iovec part = {(void *)from, bytes};
    return net_send(fd, &part, 1) == (ssize_t)bytes;
}

bool net_is_ended(int fd)
{
    struct pollfd pfd = {.fd = fd, .events = POLLRDHUP};
    return poll(&pfd, 1, 0) > 0 && pfd.revents != 0;
}

int net_poll(struct pollfd *fds, int n, uint64_t deadline)
{
    for (;;) {
        const int64_t left = net_left_ms(deadline);
        const int ready = poll(fds, (nfds_t)n, left > 60000 ? 60000 : (int)left);
        if (ready > 0)
            return ready;
        if ((ready < 0 && errno != EINTR && errno != EAGAIN) || net_left_ms(deadline) == 0) {
            for (int i = 0; i < n; i++)
                fds[i].revents = 0;
            return 0;
        }
    }
}

void net_close_softly(int fd)
{
    char waste[4096];
    if (fd < 0)
        return;
    (void)shutdown(fd, SHUT_WR);
    for (int i = 0; i < 256 && net_recv_bytes(fd, waste, sizeof(waste)) > 0; i++)
        ;
    net_close(fd);
}

enum kolo_status net_random(void *out, size_t bytes)
{
    unsigned char *at = out;
    size_t done = 0;
    while (done < bytes) {
        const ssize_t n = getrandom(at + done, bytes - done, 0);
        if (n < 0 && errno != EINTR)
            return fail(KOLO_ERR_SYSTEM, "no random bytes for a secret: getrandom: %s",
                        strerror(errno));
        if (n > 0)
            done += (size_t)n;
    }
    return KOLO_OK;
}
