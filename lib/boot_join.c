/* boot_join.c - from an id to connected neighbours: ask the root who they are, then connect to
 * rank + 2^k while rank - 2^k connects to us, for every k. */
#include "boot_link.h"

#include "log.h"
#include "mem.h"

#include <errno.h>
#include <string.h>

enum {
    PEER_GUESTS = 32,
    REFUSED_MS =
        1000, /* a neighbour that refuses this long is gone: it listened before we knew it */
    ROOT_END_MS = 2000, /* for the server in this process to clean up */
};

enum kolo_status boot_listen(int rank, int *listener, struct wire_card *card)
{
    struct net_addrs addrs;
    uint16_t port;
    int fd;
    TRY(net_addrs_local(0, &addrs));
    TRY(net_listen(0, now_ns(), &fd, &port));
    addrs.port = port;
    wire_card_fill(rank, &addrs, card);
    *listener = fd;
    return KOLO_OK;
}

/* ---- the root ---- */

/* Where the root should be, for messages. */
static void root_print(const struct wire_id *id, struct text *out)
{
    net_addr_print(&id->addrs.at[0], id->addrs.port, out);
}

static enum kolo_status fail_no_root(const struct dialer *d, int rank)
{
    char why[ERROR_TEXT_BYTES / 2];
    struct text t;
    text_init(&t, why, sizeof(why));
    dialer_explain(d, &t);
    return fail(dialer_is_rejected(d) ? KOLO_ERR_SETUP : KOLO_ERR_TIMEOUT,
                "rank %d cannot reach the process that made the id before the deadline (it must be "
                "alive and reachable; see KOLO_SOCKET_IFNAME): %s",
                rank, why);
}

static enum kolo_status dial_root(const struct wire_id *id, int rank, uint64_t deadline, int *fd)
{
    struct dialer d;
    enum kolo_status status = KOLO_OK;
    int made = -1;
    dialer_init(&d, &id->addrs, id->secret, WIRE_TO_ROOT);
    while (made < 0) {
        struct pollfd fds[NET_MAX_ADDRS];
        uint64_t wake = deadline;
        const int n = dialer_fds(&d, fds, &wake);
        (void)net_poll(fds, n, wake);
        made = dialer_step(&d, fds);
        if (made < 0 && now_ns() >= deadline) {
            status = fail_no_root(&d, rank);
            break;
        }
    }
    dialer_fini(&d);
    if (status == KOLO_OK)
        *fd = made;
    return status;
}

static enum kolo_status recv_from_root(int fd, void *to, size_t bytes, const struct wire_id *id,
                                       uint64_t deadline)
{
    char where[64];
    struct text t;
    size_t got = 0;
    text_init(&t, where, sizeof(where));
    root_print(id, &t);
    while (got < bytes) {
        struct pollfd pfd = {.fd = fd, .events = POLLIN};
        if (net_poll(&pfd, 1, deadline) == 0)
            return fail(KOLO_ERR_TIMEOUT,
                        "the process that made the id (%s) has accepted this rank but "
                        "does not answer",
                        where);
        const ssize_t n = net_recv_bytes(fd, (char *)to + got, bytes - got);
        if (n < 0)
            return fail(KOLO_ERR_SETUP,
                        "the process that made the id (%s) went away before all ranks "
                        "had come: %s",
                        where, errno == ESHUTDOWN ? "it closed the connection" : strerror(errno));
        got += (size_t)n;
    }
    return KOLO_OK;
}

static enum kolo_status recv_reply(int fd, const struct wire_id *id, int nranks, uint64_t deadline,
                                   struct wire_card *cards)
{
    struct wire_reply reply;
    char text[WIRE_TEXT_BYTES + 1] = "";
    TRY(recv_from_root(fd, &reply, sizeof(reply), id, deadline));
    if (!wire_reply_check(&reply, nranks))
        return fail(KOLO_ERR_SETUP,
                    "the process that made the id sent an answer that makes no sense: is "
                    "it another version of Kolo?");
    if (reply.status == KOLO_OK)
        return recv_from_root(fd, cards, reply.bytes, id, deadline);
    TRY(recv_from_root(fd, text, reply.bytes, id, deadline));
    wire_text_clean(text, sizeof(text));
    return fail(reply.status, "%s", text);
}

/* If the server is in this process, it closes when it has returned its memory. */
static void await_root_end(int fd, uint64_t deadline)
{
    const uint64_t patience = net_deadline(ROOT_END_MS);
    struct pollfd pfd = {.fd = fd, .events = POLLIN};
    (void)net_poll(&pfd, 1, patience < deadline ? patience : deadline);
}

enum kolo_status boot_join(const struct wire_id *id, const struct wire_card *mine, int nranks,
                           uint64_t deadline, struct wire_card *cards)
{
    int fd;
    TRY(dial_root(id, mine->rank, deadline, &fd));
    /* The server is told a little less, so that its list of missing ranks comes in time. */
    const int64_t wait_ms = net_left_ms(deadline) * 9 / 10;
    const struct wire_hello hello = {.rank = mine->rank,
                                     .nranks = nranks,
                                     .wait_ms =
                                         wait_ms < UINT32_MAX ? (uint32_t)wait_ms : UINT32_MAX,
                                     .card = *mine};
    enum kolo_status status = KOLO_OK;
    if (!net_send_small(fd, &hello, sizeof(hello)))
        status = fail(KOLO_ERR_SETUP, "the process that made the id closed the connection: %s",
                      strerror(errno));
    else
        status = recv_reply(fd, id, nranks, deadline, cards);
    if (status == KOLO_OK)
        await_root_end(fd, deadline);
    net_close(fd);
    return status;
}

/* ---- the neighbours ---- */

struct connecting {
    struct boot *b;
    struct net_addrs addrs[WIRE_MAX_ROUNDS]; /* of out[k] */
    struct greeter greeter;
    struct dialer dialer;
    int round;                          /* whose out is being dialed; b->rounds: all done */
    uint64_t refused_since;             /* the neighbour has refused ever since; 0: it has not */
    bool is_quiet[2 * WIRE_MAX_ROUNDS]; /* connections that need no watching */
};

static struct boot_link *link_at(struct boot *b, int i)
{
    return i % 2 == 0 ? &b->out[i / 2] : &b->in[i / 2];
}

static void dial_next(struct connecting *c)
{
    if (c->round < c->b->rounds)
        dialer_init(&c->dialer, &c->addrs[c->round], c->b->secret, WIRE_TO_RANK);
    c->refused_since = 0;
}

static enum kolo_status dialed(struct connecting *c, int fd)
{
    struct boot *b = c->b;
    struct boot_link *link = &b->out[c->round];
    const struct wire_peer_hello hello = {
        .from = b->rank, .to = link->rank, .nranks = b->size, .round = c->round};
    dialer_fini(&c->dialer);
    c->round++;
    dial_next(c);
    if (!net_send_small(fd, &hello, sizeof(hello))) {
        net_close(fd);
        return fail(KOLO_ERR_SETUP,
                    "rank %d on host %s went away while rank %d on host %s connected to "
                    "it: %s",
                    link->rank, link->host, b->rank, b->host, strerror(errno));
    }
    link->fd = fd;
    return KOLO_OK;
}

static enum kolo_status check_refused(struct connecting *c)
{
    const struct boot_link *link = &c->b->out[c->round];
    if (!dialer_is_refused(&c->dialer)) {
        c->refused_since = 0;
        return KOLO_OK;
    }
    if (c->refused_since == 0)
        c->refused_since = now_ns();
    if (now_ns() - c->refused_since < REFUSED_MS * UINT64_C(1000000))
        return KOLO_OK;
    return fail(KOLO_ERR_SETUP,
                "rank %d on host %s is gone: it does not listen any more (rank %d on host "
                "%s wanted to connect); see why that process died or left",
                link->rank, link->host, c->b->rank, c->b->host);
}

/* A neighbour has proved itself and said which one it is. */
static void greet(struct connecting *c, int fd, const struct wire_peer_hello *hello)
{
    struct boot *b = c->b;
    if (hello->to != b->rank || hello->nranks != b->size || hello->round < 0 ||
        hello->round >= b->rounds || hello->from != b->in[hello->round].rank ||
        b->in[hello->round].fd >= 0) {
        LOG(LOG_WARN, "boot", "refused a connection of rank %d in round %d", hello->from,
            hello->round);
        net_close(fd);
        return;
    }
    b->in[hello->round].fd = fd;
}

static bool is_connected(const struct connecting *c)
{
    for (int k = 0; k < c->b->rounds; k++) {
        if (c->b->in[k].fd < 0)
            return false;
    }
    return c->round == c->b->rounds;
}

/* Fill the watched connections behind the greeter's and the dialer's; returns how many. */
static int watch_fds(const struct connecting *c, struct pollfd *fds)
{
    for (int i = 0; i < 2 * c->b->rounds; i++)
        fds[i] =
            (struct pollfd){.fd = c->is_quiet[i] ? -1 : link_at(c->b, i)->fd, .events = POLLIN};
    return 2 * c->b->rounds;
}

static enum kolo_status watch_step(struct connecting *c, const struct pollfd *fds)
{
    for (int i = 0; i < 2 * c->b->rounds; i++) {
        if (fds[i].fd >= 0 && fds[i].revents != 0)
            TRY(link_check_notice(link_at(c->b, i), &c->is_quiet[i]));
    }
    return KOLO_OK;
}

static enum kolo_status connect_step(struct connecting *c, uint64_t deadline)
{
    struct pollfd fds[1 + PEER_GUESTS + NET_MAX_ADDRS + 2 * WIRE_MAX_ROUNDS];
    struct wire_peer_hello hello;
    uint64_t wake = deadline;
    int fd;
    const bool is_dialing = c->round < c->b->rounds;
    const int greeted = greeter_fds(&c->greeter, fds, &wake);
    const int watched = greeted + watch_fds(c, fds + greeted);
    const int n = watched + (is_dialing ? dialer_fds(&c->dialer, fds + watched, &wake) : 0);
    (void)net_poll(fds, n, wake);
    TRY(watch_step(c, fds + greeted));
    greeter_step(&c->greeter, fds);
    while ((fd = greeter_take(&c->greeter, &hello)) >= 0)
        greet(c, fd, &hello);
    if (!is_dialing)
        return KOLO_OK;
    fd = dialer_step(&c->dialer, fds + watched);
    return fd >= 0 ? dialed(c, fd) : check_refused(c);
}

static enum kolo_status fail_connect_late(const struct connecting *c)
{
    const struct boot *b = c->b;
    char why[ERROR_TEXT_BYTES / 2];
    struct text t;
    text_init(&t, why, sizeof(why));
    if (c->round < b->rounds) {
        const struct boot_link *link = &b->out[c->round];
        dialer_explain(&c->dialer, &t);
        return fail(dialer_is_rejected(&c->dialer) ? KOLO_ERR_SETUP : KOLO_ERR_TIMEOUT,
                    "rank %d on host %s cannot reach rank %d on host %s before the deadline (see "
                    "KOLO_SOCKET_IFNAME and KOLO_PORT_RANGE): %s",
                    b->rank, b->host, link->rank, link->host, why);
    }
    for (int k = 0; k < b->rounds; k++) {
        if (b->in[k].fd < 0)
            text_add(&t, "%s%d (host %s)", t.used > 0 ? ", " : "", b->in[k].rank, b->in[k].host);
    }
    return fail(KOLO_ERR_TIMEOUT,
                "rank %d on host %s was not reached before the deadline by rank %s", b->rank,
                b->host, why);
}

static enum kolo_status connect_all(struct connecting *c, uint64_t deadline)
{
    dial_next(c);
    while (!is_connected(c)) {
        TRY(connect_step(c, deadline));
        if (!is_connected(c) && now_ns() >= deadline)
            return fail_connect_late(c);
    }
    return KOLO_OK;
}

/* As the cards say, who is at the other ends; addrs[k] are those of out[k]. */
static enum kolo_status name_neighbours(struct boot *b, const struct wire_card *cards,
                                        struct net_addrs *addrs)
{
    struct net_addrs unused;
    for (int k = 0; k < b->rounds; k++) {
        const struct wire_card *to = &cards[2 * k], *from = &cards[2 * k + 1];
        const int step = 1 << k;
        if (!wire_card_check(to, &addrs[k]) || !wire_card_check(from, &unused))
            return fail(KOLO_ERR_SETUP,
                        "the cards of the neighbours of rank %d make no sense: is a rank "
                        "of another version of Kolo?",
                        b->rank);
        b->out[k].rank = (b->rank + step) % b->size;
        b->in[k].rank = (b->rank - step + b->size) % b->size;
        memcpy(b->out[k].host, to->host, sizeof(to->host));
        memcpy(b->in[k].host, from->host, sizeof(from->host));
    }
    return KOLO_OK;
}

/* Takes over the greeter's listener, in any case. */
static enum kolo_status connect_with(struct connecting *c, int listener, uint64_t deadline)
{
    struct boot *b = c->b;
    enum kolo_status status = greeter_init(&c->greeter, listener, b->secret, WIRE_TO_RANK,
                                           sizeof(struct wire_peer_hello), PEER_GUESTS);
    if (status != KOLO_OK) {
        net_close(listener);
        return status;
    }
    status = connect_all(c, deadline);
    if (c->round < b->rounds)
        dialer_fini(&c->dialer);
    greeter_fini(&c->greeter);
    return status;
}

enum kolo_status boot_connect(struct boot *b, const struct wire_card *cards, int listener,
                              uint64_t deadline)
{
    enum kolo_status status;
    struct connecting *c = mem_calloc(1, sizeof(*c));
    if (c == NULL) {
        net_close(listener);
        status = fail(KOLO_ERR_NOMEM, "no memory to connect to the other ranks");
    } else {
        c->b = b;
        status = name_neighbours(b, cards, c->addrs);
        if (status == KOLO_OK)
            status = connect_with(c, listener, deadline);
        else
            net_close(listener);
        mem_free(c);
    }
    if (status != KOLO_OK)
        link_give_up(b, status);
    return status;
}
