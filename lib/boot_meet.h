/* boot_meet.h - the two sides of the handshake, as state machines that their owner polls.
 *
 *   dialer:   tries all addresses of one process side by side, until one proves the secret
 *   greeter:  lets strangers in at a listener, few at a time and not for long, until they have
 *             proved the secret and said hello
 *
 * Neither blocks nor owns a thread: fill a pollfd array, poll, step, look at what came out. */
#ifndef BOOT_MEET_H
#define BOOT_MEET_H

#include "boot_wire.h"

enum { MEET_HELLO_MAX = sizeof(struct wire_hello) };

/* ---- dialer ---- */

enum dial_why { /* why the last attempt at an address ended */
                DIAL_UNTRIED,
                DIAL_ERRNO,
                DIAL_FOREIGN,  /* what answers does not speak this protocol */
                DIAL_VERSION,  /* a Kolo of another version */
                DIAL_REJECTED, /* the server closed after our proof: it has another secret */
                DIAL_IMPOSTOR, /* the server could not prove the secret */
                DIAL_SLOW,
};

struct dial_try {
    int fd; /* -1: waits until `at` to start */
    int state;
    int error; /* errno of DIAL_ERRNO */
    enum dial_why why;
    bool was_rejected; /* DIAL_REJECTED or DIAL_IMPOSTOR, now or in an attempt before */
    uint64_t at;       /* when to start, or when to give this attempt up */
    uint64_t pause_ns;
    size_t got;
    unsigned char in[sizeof(struct wire_challenge)];
    unsigned char expected[WIRE_PROOF_BYTES];
};

struct dialer {
    const struct net_addrs *to;  /* borrowed */
    const unsigned char *secret; /* borrowed */
    enum wire_kind kind;
    struct dial_try at[NET_MAX_ADDRS];
};

void dialer_init(struct dialer *d, const struct net_addrs *to, const unsigned char *secret,
                 enum wire_kind kind);
void dialer_fini(struct dialer *d);
/* Start what is due; fill fds (room for NET_MAX_ADDRS), return how many; lower *wake to the time at
 * which dialer_step should be called even if nothing happens. */
int dialer_fds(struct dialer *d, struct pollfd *fds, uint64_t *wake);
/* Take the results of the same fds; the descriptor of a connection on which both sides have proved
 * the secret (now the caller's), or -1. */
int dialer_step(struct dialer *d, const struct pollfd *fds);
/* Whether every address has refused the last attempt: nobody listens there. */
bool dialer_is_refused(const struct dialer *d);
/* Whether something that was ever reached lacks the secret. */
bool dialer_is_rejected(const struct dialer *d);
/* "10.0.0.1:4000: connection refused; [fd00::1]:4000: ..." */
void dialer_explain(const struct dialer *d, struct text *out);

/* ---- greeter ---- */

struct guest {
    int fd;
    int state;
    uint64_t since;
    size_t got;
    unsigned char challenge[16];
    unsigned char in[MEET_HELLO_MAX];
};

struct greeter {
    int listener; /* owned */
    enum wire_kind kind;
    size_t hello_bytes;
    unsigned char secret[WIRE_SECRET_BYTES];
    uint64_t accept_after; /* descriptors have run out: try again at this time */
    int accept_error;      /* errno of the last accept that failed for want of something, or 0 */
    int cap;
    int n;
    struct guest *guests;
};

/* On success the greeter owns the listener; on failure the caller keeps it. */
enum kolo_status greeter_init(struct greeter *g, int listener, const unsigned char *secret,
                              enum wire_kind kind, size_t hello_bytes, int cap);
void greeter_fini(struct greeter *g); /* takes one that is all zero but for listener -1 */
int greeter_fds(struct greeter *g, struct pollfd *fds, uint64_t *wake); /* room for 1 + cap */
void greeter_step(struct greeter *g, const struct pollfd *fds);
/* A guest that has said hello: its descriptor (now the caller's) and hello_bytes; or -1. */
int greeter_take(struct greeter *g, void *hello);

#endif
