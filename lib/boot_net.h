/* boot_net.h - TCP for the bootstrap: addresses and interfaces (boot_addr.c), sockets that never
 * block (boot_net.c).  Deadlines are absolute, in nanoseconds of now_ns(). */
#ifndef BOOT_NET_H
#define BOOT_NET_H

#include "base.h"

#include <poll.h>
#include <sys/types.h>
#include <sys/uio.h>

enum {
    NET_MAX_ADDRS = 16,
    NET_PACKED_BYTES = 88, /* the addresses of a process as they travel in ids and cards */
    NET_HOST_BYTES = 64,   /* a host's name with its terminator, cut if longer */
};

struct net_addr {
    uint8_t family; /* 4 or 6 */
    uint8_t bytes[16];
};

/* Where a process listens: one port on all of its addresses, the likeliest first. */
struct net_addrs {
    uint16_t port;
    int n;
    struct net_addr at[NET_MAX_ADDRS];
};

/* ---- addresses ---- */

/* Addresses of the interfaces that are up and that KOLO_SOCKET_IFNAME allows, loopback last.
 * Link-local IPv6 is left out: it means nothing on another host.  ARG when the option leaves
 * none. */
enum kolo_status net_addrs_local(uint16_t port, struct net_addrs *out);
/* Look `host` up, again and again until the deadline, since names of pods appear late. */
enum kolo_status net_addrs_lookup(const char *host, int port, uint64_t deadline,
                                  struct net_addrs *out);
/* As many as fit, in order: a byte 4 or 6 and the address each, then zeros. */
void net_addrs_pack(const struct net_addrs *addrs, uint8_t packed[NET_PACKED_BYTES]);
/* False for bytes that net_addrs_pack cannot have written, or without any address. */
bool net_addrs_unpack(const uint8_t packed[NET_PACKED_BYTES], uint16_t port, struct net_addrs *out);
void net_addr_print(const struct net_addr *addr, uint16_t port, struct text *out);
/* Whether a filter in the syntax of KOLO_SOCKET_IFNAME allows an interface. */
bool net_ifname_allowed(const char *filter, const char *name);
/* "LO-HI" or one port; false for anything else. */
bool net_port_range(const char *range, int *lo, int *hi);
/* Whether the local end of a connection is on an interface that KOLO_SOCKET_IFNAME allows. */
bool net_local_end_allowed(int fd);
void net_host_name(char host[NET_HOST_BYTES]);

/* ---- sockets: non-blocking, close-on-exec ---- */

/* now + timeout_ms, without overflow; a timeout below 0 counts as 0. */
uint64_t net_deadline(int64_t timeout_ms);
/* Milliseconds from now to the deadline; 0 when it has passed. */
int64_t net_left_ms(uint64_t deadline);
/* Listen on all interfaces.  port 0: any, or one of KOLO_PORT_RANGE.  A fixed port that is busy is
 * tried again until the deadline. */
enum kolo_status net_listen(int port, uint64_t deadline, int *fd, uint16_t *bound);
/* The next connection, or -1 with errno (EAGAIN: none is waiting). */
int net_accept(int listener);
/* A socket that is connecting (POLLOUT tells the end), or -1 with errno. */
int net_connect_start(const struct net_addr *addr, uint16_t port);
/* 0, or the errno with which connecting ended. */
int net_connect_error(int fd);
/* Bytes moved; 0 when it would block; -1 with errno, which is ESHUTDOWN when the peer has
 * closed. */
ssize_t net_send(int fd, const struct iovec *parts, int n);
ssize_t net_recv(int fd, const struct iovec *parts, int n);
ssize_t net_recv_bytes(int fd, void *to, size_t bytes);
/* A small message on a fresh connection: whole or not at all. */
bool net_send_small(int fd, const void *from, size_t bytes);
/* Look at what is next without taking it: as net_recv. */
ssize_t net_peek(int fd, void *to, size_t bytes);
/* Whether the peer has closed: what has not been read yet is all there will be. */
bool net_is_ended(int fd);
/* poll() until something happens or the deadline has passed; number of ready entries. */
int net_poll(struct pollfd *fds, int n, uint64_t deadline);
/* End the stream, throw away what has come so that the peer can still read what was sent, close. */
void net_close_softly(int fd);
/* Closes, takes -1, keeps errno. */
void net_close(int fd);
enum kolo_status net_random(void *out, size_t bytes);

#endif
