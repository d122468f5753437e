/* boot_meet.c - the handshake from both sides; the messages are in boot_wire.h.
 *
 * A dialer starts its addresses a little apart, the likeliest first, and keeps trying each until
 * its owner gives up, because the server may start later.  A greeter keeps at most `cap` guests.
 * When it is full, one that has said nothing for a while makes way, so that port scanners and
 * half-open connections cannot keep ranks out. */
#include "boot_meet.h"

#include "mem.h"

#include <errno.h>
#include <string.h>

#define MS UINT64_C(1000000)

enum {
    STAGGER_MS = 20,    /* between the starts of a dialer's addresses */
    PAUSE_FIRST_MS = 5, /* before an address is tried again, doubling */
    PAUSE_LAST_MS = 320,
    ATTEMPT_MS = 10000,      /* of one attempt, from connect to proof */
    GUEST_MS = 5000,         /* from accept to hello */
    GUEST_PATIENCE_MS = 300, /* after this a full house may show a guest the door */
    ACCEPT_PAUSE_MS = 50,    /* when descriptors run out */
    ACCEPT_BURST = 64,
};

enum dial_state { DIAL_CONNECTS, DIAL_AWAITS_CHALLENGE, DIAL_AWAITS_PROOF };

enum guest_state { GUEST_CHALLENGED, GUEST_PROVED, GUEST_DONE };

/* ---- dialer ---- */

void dialer_init(struct dialer *d, const struct net_addrs *to, const unsigned char *secret,
                 enum wire_kind kind)
{
    const uint64_t now = now_ns();
    memset(d, 0, sizeof(*d));
    d->to = to;
    d->secret = secret;
    d->kind = kind;
    for (int i = 0; i < to->n; i++) {
        d->at[i].fd = -1;
        d->at[i].at = now + (uint64_t)i * STAGGER_MS * MS;
        d->at[i].pause_ns = PAUSE_FIRST_MS * MS;
    }
}

void dialer_fini(struct dialer *d)
{
    for (int i = 0; i < d->to->n; i++) {
        net_close(d->at[i].fd);
        d->at[i].fd = -1;
    }
}

static void try_end(struct dial_try *t, enum dial_why why, int error)
{
    net_close(t->fd);
    t->fd = -1;
    t->why = why;
    t->was_rejected |= why == DIAL_REJECTED || why == DIAL_IMPOSTOR;
    t->error = error;
    t->at = now_ns() + t->pause_ns;
    if (t->pause_ns < PAUSE_LAST_MS * MS)
        t->pause_ns *= 2;
}

static void try_start(struct dialer *d, int i, uint64_t now)
{
    struct dial_try *t = &d->at[i];
    t->fd = net_connect_start(&d->to->at[i], d->to->port);
    if (t->fd < 0) {
        try_end(t, DIAL_ERRNO, errno);
        return;
    }
    t->state = DIAL_CONNECTS;
    t->got = 0;
    t->at = now + ATTEMPT_MS * MS;
}

int dialer_fds(struct dialer *d, struct pollfd *fds, uint64_t *wake)
{
    const uint64_t now = now_ns();
    for (int i = 0; i < d->to->n; i++) {
        struct dial_try *t = &d->at[i];
        if (t->fd >= 0 && now >= t->at)
            try_end(t, DIAL_SLOW, 0);
        if (t->fd < 0 && now >= t->at)
            try_start(d, i, now);
        if (t->at < *wake)
            *wake = t->at;
        fds[i] =
            (struct pollfd){.fd = t->fd, .events = t->state == DIAL_CONNECTS ? POLLOUT : POLLIN};
    }
    return d->to->n;
}

static void try_connected(struct dial_try *t)
{
    const int error = net_connect_error(t->fd);
    if (error != 0)
        try_end(t, DIAL_ERRNO, error);
    else
        t->state = DIAL_AWAITS_CHALLENGE;
}

/* The challenge is here: answer it. */
static void try_answer(struct dialer *d, struct dial_try *t)
{
    struct wire_challenge challenge;
    memcpy(&challenge, t->in, sizeof(challenge));
    if (challenge.magic != WIRE_MAGIC) {
        try_end(t, DIAL_FOREIGN, 0);
        return;
    }
    if (challenge.version != WIRE_VERSION) {
        try_end(t, DIAL_VERSION, challenge.version);
        return;
    }
    struct wire_answer answer = {
        .magic = WIRE_MAGIC, .version = WIRE_VERSION, .kind = (uint16_t)d->kind};
    if (net_random(answer.challenge, sizeof(answer.challenge)) != KOLO_OK) {
        try_end(t, DIAL_ERRNO, errno);
        return;
    }
    wire_prove(d->secret, d->kind, false, challenge.challenge, answer.challenge, answer.proof);
    wire_prove(d->secret, d->kind, true, challenge.challenge, answer.challenge, t->expected);
    if (!net_send_small(t->fd, &answer, sizeof(answer))) {
        try_end(t, DIAL_ERRNO, errno);
        return;
    }
    t->state = DIAL_AWAITS_PROOF;
    t->got = 0;
}

/* True when the server has proved itself. */
static bool try_receive(struct dialer *d, struct dial_try *t)
{
    const bool is_proof = t->state == DIAL_AWAITS_PROOF;
    const size_t want = is_proof ? WIRE_PROOF_BYTES : sizeof(struct wire_challenge);
    const ssize_t n = net_recv_bytes(t->fd, t->in + t->got, want - t->got);
    if (n < 0) {
        try_end(t, is_proof ? DIAL_REJECTED : DIAL_ERRNO, errno);
        return false;
    }
    t->got += (size_t)n;
    if (t->got < want)
        return false;
    if (!is_proof) {
        try_answer(d, t);
        return false;
    }
    if (wire_proof_equal(t->in, t->expected))
        return true;
    try_end(t, DIAL_IMPOSTOR, 0);
    return false;
}

int dialer_step(struct dialer *d, const struct pollfd *fds)
{
    for (int i = 0; i < d->to->n; i++) {
        struct dial_try *t = &d->at[i];
        if (t->fd < 0 || fds[i].fd != t->fd || fds[i].revents == 0)
            continue;
        if (t->state == DIAL_CONNECTS) {
            try_connected(t);
        } else if (try_receive(d, t)) {
            const int fd = t->fd;
            t->fd = -1;
            return fd;
        }
    }
    return -1;
}

bool dialer_is_refused(const struct dialer *d)
{
    for (int i = 0; i < d->to->n; i++) {
        if (d->at[i].why != DIAL_ERRNO || d->at[i].error != ECONNREFUSED)
            return false;
    }
    return true;
}

bool dialer_is_rejected(const struct dialer *d)
{
    for (int i = 0; i < d->to->n; i++) {
        if (d->at[i].was_rejected)
            return true;
    }
    return false;
}

static void try_explain(const struct dial_try *t, struct text *out)
{
    switch (t->why) {
    case DIAL_UNTRIED:
        text_add(out, t->fd >= 0 ? "no answer" : "not tried");
        break;
    case DIAL_ERRNO:
        text_add(out, "%s",
                 t->error == ESHUTDOWN ? "closed before the handshake" : strerror(t->error));
        break;
    case DIAL_FOREIGN:
        text_add(out, "what listens there is not Kolo");
        break;
    case DIAL_VERSION:
        text_add(out, "speaks version %d of the bootstrap, this library %d", t->error,
                 WIRE_VERSION);
        break;
    case DIAL_REJECTED:
        text_add(out, "refused our proof of the secret (another job, or another KOLO_SECRET)");
        break;
    case DIAL_IMPOSTOR:
        text_add(out, "could not prove the secret (another job, or another KOLO_SECRET)");
        break;
    case DIAL_SLOW:
        text_add(out, "no answer in %d s", ATTEMPT_MS / 1000);
        break;
    }
}

void dialer_explain(const struct dialer *d, struct text *out)
{
    for (int i = 0; i < d->to->n; i++) {
        text_add(out, "%s", i > 0 ? "; " : "");
        net_addr_print(&d->to->at[i], d->to->port, out);
        text_add(out, ": ");
        try_explain(&d->at[i], out);
        if (d->at[i].was_rejected && d->at[i].why != DIAL_REJECTED && d->at[i].why != DIAL_IMPOSTOR)
            text_add(out, " (before: another secret: another job, or another KOLO_SECRET)");
    }
}

/* ---- greeter ---- */

enum kolo_status greeter_init(struct greeter *g, int listener, const unsigned char *secret,
                              enum wire_kind kind, size_t hello_bytes, int cap)
{
    struct guest *guests = mem_calloc((size_t)cap, sizeof(*guests));
    if (guests == NULL)
        return fail(KOLO_ERR_NOMEM, "no memory for %d connections of the bootstrap", cap);
    memset(g, 0, sizeof(*g));
    g->listener = listener;
    g->kind = kind;
    g->hello_bytes = hello_bytes;
    g->cap = cap;
    g->guests = guests;
    memcpy(g->secret, secret, sizeof(g->secret));
    return KOLO_OK;
}

void greeter_fini(struct greeter *g)
{
    for (int i = 0; i < g->n; i++)
        net_close(g->guests[i].fd);
    mem_free(g->guests);
    net_close(g->listener);
    *g = (struct greeter){.listener = -1};
}

static void guest_remove(struct greeter *g, int i, bool is_closed)
{
    if (is_closed)
        net_close(g->guests[i].fd);
    g->guests[i] = g->guests[--g->n];
}

/* The guest to show the door when the house is full: the oldest, if its patience is over. */
static int guest_oldest(const struct greeter *g)
{
    int oldest = 0;
    for (int i = 1; i < g->n; i++) {
        if (g->guests[i].since < g->guests[oldest].since)
            oldest = i;
    }
    return oldest;
}

int greeter_fds(struct greeter *g, struct pollfd *fds, uint64_t *wake)
{
    uint64_t accept_at = g->accept_after;
    if (g->n > 0 && g->n == g->cap) {
        const uint64_t at = g->guests[guest_oldest(g)].since + GUEST_PATIENCE_MS * MS;
        accept_at = at > accept_at ? at : accept_at;
    }
    const bool is_open = now_ns() >= accept_at;
    if (!is_open && accept_at < *wake)
        *wake = accept_at;
    fds[0] = (struct pollfd){.fd = is_open ? g->listener : -1, .events = POLLIN};
    for (int i = 0; i < g->n; i++) {
        const struct guest *it = &g->guests[i];
        fds[1 + i] = (struct pollfd){.fd = it->fd, .events = POLLIN};
        if (it->since + GUEST_MS * MS < *wake)
            *wake = it->since + GUEST_MS * MS;
    }
    return 1 + g->n;
}

/* False for a guest who has to go. */
static bool guest_prove(const struct greeter *g, struct guest *it)
{
    struct wire_answer answer;
    unsigned char proof[WIRE_PROOF_BYTES];
    memcpy(&answer, it->in, sizeof(answer));
    wire_prove(g->secret, g->kind, false, it->challenge, answer.challenge, proof);
    if (!wire_proof_equal(answer.proof, proof) || answer.magic != WIRE_MAGIC ||
        answer.version != WIRE_VERSION || answer.kind != g->kind)
        return false;
    wire_prove(g->secret, g->kind, true, it->challenge, answer.challenge, proof);
    it->state = GUEST_PROVED;
    it->got = 0;
    return net_send_small(it->fd, proof, sizeof(proof));
}

static bool guest_receive(const struct greeter *g, struct guest *it)
{
    const size_t want = it->state == GUEST_CHALLENGED ? sizeof(struct wire_answer) : g->hello_bytes;
    const ssize_t n = net_recv_bytes(it->fd, it->in + it->got, want - it->got);
    if (n < 0)
        return false;
    it->got += (size_t)n;
    if (it->got < want)
        return true;
    if (it->state == GUEST_CHALLENGED)
        return guest_prove(g, it);
    it->state = GUEST_DONE;
    return true;
}

static void guest_welcome(struct greeter *g, int fd, uint64_t now)
{
    struct guest guest = {.fd = fd, .state = GUEST_CHALLENGED, .since = now};
    struct wire_challenge challenge = {.magic = WIRE_MAGIC, .version = WIRE_VERSION};
    if (net_random(guest.challenge, sizeof(guest.challenge)) != KOLO_OK) {
        net_close(fd);
        return;
    }
    memcpy(challenge.challenge, guest.challenge, sizeof(challenge.challenge));
    if (!net_send_small(fd, &challenge, sizeof(challenge))) {
        net_close(fd);
        return;
    }
    if (g->n == g->cap)
        guest_remove(g, guest_oldest(g), true);
    g->guests[g->n++] = guest;
}

static void accept_some(struct greeter *g, uint64_t now)
{
    for (int i = 0; i < ACCEPT_BURST; i++) {
        if (g->n == g->cap && now < g->guests[guest_oldest(g)].since + GUEST_PATIENCE_MS * MS)
            return;
        const int fd = net_accept(g->listener);
        if (fd < 0) {
            if (errno != EAGAIN && errno != EWOULDBLOCK) {
                g->accept_error = errno;
                g->accept_after = now + ACCEPT_PAUSE_MS * MS;
            }
            return;
        }
        guest_welcome(g, fd, now);
    }
}

void greeter_step(struct greeter *g, const struct pollfd *fds)
{
    const uint64_t now = now_ns();
    const bool is_knocking = fds[0].fd >= 0 && fds[0].revents != 0;
    for (int i = g->n - 1; i >= 0; i--) {
        struct guest *it = &g->guests[i];
        if (it->state == GUEST_DONE)
            continue;
        if ((fds[1 + i].revents != 0 && !guest_receive(g, it)) ||
            (it->state != GUEST_DONE && now >= it->since + GUEST_MS * MS))
            guest_remove(g, i, true);
    }
    if (is_knocking)
        accept_some(g, now);
}

int greeter_take(struct greeter *g, void *hello)
{
    for (int i = 0; i < g->n; i++) {
        if (g->guests[i].state != GUEST_DONE)
            continue;
        const int fd = g->guests[i].fd;
        memcpy(hello, g->guests[i].in, g->hello_bytes);
        guest_remove(g, i, false);
        return fd;
    }
    return -1;
}
