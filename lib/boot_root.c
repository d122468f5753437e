/* boot_root.c - the server of one rendezvous: one thread, one poll loop for all ranks.
 *
 *     COLLECT   hello of each rank  --all there-->  ANSWER   neighbours' cards to each; end
 *        |
 *        +--double, disagreement, death, deadline-->  REFUSE   the same text to all, also to those
 *                                                              that come late; end after a while
 *
 * A rank gets only the cards that it needs, of rank +- 2^k, so that the bytes sent here grow with
 * n log n.  The connection to a rank in this process is closed last, after all memory is returned:
 * that rank waits for it, so nothing of the server is left when its communicator stands. */
#include "boot_root.h"

#include "boot_meet.h"
#include "log.h"
#include "mem.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define MS UINT64_C(1000000)

enum {
    ROOT_GUESTS = 128,
    ROOT_FIRST_WAITERS = 32,
    ROOT_SPARE_FDS = 24,    /* descriptors of this process beside one per rank, at least */
    ROOT_ANSWER_MS = 10000, /* to hand out the answers */
    ROOT_LINGER_MS = 10000, /* a failed rendezvous answers late ranks at least this long */
};

enum root_phase { ROOT_COLLECT, ROOT_ANSWER, ROOT_REFUSE };

struct waiter {
    int fd; /* -1: answered, or gone */
    size_t sent;
    struct wire_hello hello;
};

struct root {
    struct greeter greeter;
    enum root_phase phase;
    uint64_t deadline; /* of the phase */
    uint64_t end;      /* when late ranks need no answer any more */
    int64_t timeout_ms;
    int nranks;   /* as the first rank said; 0 before it */
    int *index;   /* [rank]: 1 + index of its waiter, or 0 */
    int nwaiters; /* in order of arrival */
    int cap;
    struct waiter *waiters;
    struct pollfd *fds;      /* 1 + ROOT_GUESTS + cap */
    enum kolo_status status; /* of REFUSE */
    char why[WIRE_TEXT_BYTES];
    unsigned char
        answer[sizeof(struct wire_reply) + 2 * WIRE_MAX_ROUNDS * sizeof(struct wire_card)];
};

void root_missing_print(const int *is_there, int n, struct text *out)
{
    const char *comma = "";
    for (int first = 0; first < n; first++) {
        if (is_there[first])
            continue;
        int last = first;
        while (last + 1 < n && !is_there[last + 1])
            last++;
        text_add(out, last > first ? "%s%d-%d" : "%s%d", comma, first, last);
        comma = ", ";
        first = last;
    }
}

static void root_destroy(struct root *r)
{
    for (int i = 0; i < r->nwaiters; i++)
        net_close(r->waiters[i].fd);
    greeter_fini(&r->greeter);
    mem_free(r->index);
    mem_free(r->waiters);
    mem_free(r->fds);
    mem_free(r);
}

/* ---- refusing ---- */

static void refuse(struct root *r, enum kolo_status status, const char *why)
{
    const uint64_t now = now_ns();
    if (r->phase == ROOT_REFUSE)
        return;
    LOG(LOG_WARN, "boot", "rendezvous failed: %s", why);
    r->phase = ROOT_REFUSE;
    r->status = status;
    (void)strncpy(r->why, why, sizeof(r->why) - 1);
    const int64_t linger_ms = r->timeout_ms < ROOT_LINGER_MS ? r->timeout_ms : ROOT_LINGER_MS;
    const uint64_t linger = now + (uint64_t)linger_ms * MS;
    r->deadline = r->end > linger ? r->end : linger;
}

static void refuse_disagreement(struct root *r, const struct wire_hello *a,
                                const struct wire_hello *b)
{
    char why[WIRE_TEXT_BYTES];
    struct text t;
    text_init(&t, why, sizeof(why));
    if (a->nranks != b->nranks)
        text_add(&t,
                 "ranks disagree about their number: rank %d (host %s, pid %u) says %d, rank %d "
                 "(host %s, pid %u) says %d; pass the same nranks everywhere",
                 a->rank, a->card.host, a->card.pid, a->nranks, b->rank, b->card.host, b->card.pid,
                 b->nranks);
    else
        text_add(&t,
                 "two processes say that they are rank %d of %d: host %s, pid %u, and host %s, "
                 "pid %u; give each its own rank",
                 a->rank, a->nranks, a->card.host, a->card.pid, b->card.host, b->card.pid);
    refuse(r, KOLO_ERR_SETUP, why);
}

static void refuse_missing(struct root *r)
{
    char why[WIRE_TEXT_BYTES];
    struct text t;
    text_init(&t, why, sizeof(why));
    text_add(&t, "%d of %d ranks have come before the deadline; missing: ", r->nwaiters, r->nranks);
    root_missing_print(r->index, r->nranks, &t);
    if (r->greeter.accept_error != 0)
        text_add(&t, " (and the server could not accept: %s)", strerror(r->greeter.accept_error));
    refuse(r, KOLO_ERR_TIMEOUT, why);
}

/* ---- collecting ---- */

static bool room_for_waiter(struct root *r)
{
    if (r->nwaiters < r->cap)
        return true;
    const int cap = 2 * r->cap;
    struct waiter *waiters = mem_resize(r->waiters, (size_t)cap, sizeof(*waiters));
    if (waiters == NULL)
        return false;
    r->waiters = waiters;
    struct pollfd *fds = mem_resize(r->fds, (size_t)(1 + ROOT_GUESTS + cap), sizeof(*fds));
    if (fds == NULL)
        return false;
    r->fds = fds;
    r->cap = cap;
    return true;
}

/* The first rank tells how many there are: see at once whether so many can be served. */
static void prepare(struct root *r, int nranks)
{
    struct rlimit limit;
    char why[WIRE_TEXT_BYTES];
    struct text t;
    text_init(&t, why, sizeof(why));
    r->nranks = nranks;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < (rlim_t)nranks + ROOT_SPARE_FDS) {
        text_add(&t,
                 "%d ranks need %d open files in the process that made the id, its limit is %llu; "
                 "raise it (ulimit -n)",
                 nranks, nranks + ROOT_SPARE_FDS, (unsigned long long)limit.rlim_cur);
        refuse(r, KOLO_ERR_NOMEM, why);
        return;
    }
    r->index = mem_calloc((size_t)nranks, sizeof(*r->index));
    if (r->index == NULL)
        refuse(r, KOLO_ERR_NOMEM,
               "no memory to serve the rendezvous in the process that made the id");
}

static void check_hello(struct root *r, const struct wire_hello *hello)
{
    if (hello->nranks != r->nranks)
        refuse_disagreement(r, &r->waiters[0].hello, hello);
    else if (r->index[hello->rank] != 0)
        refuse_disagreement(r, &r->waiters[r->index[hello->rank] - 1].hello, hello);
}

static void welcome(struct root *r, int fd, const struct wire_hello *hello)
{
    if (!wire_hello_check(hello) || hello->nranks < 1 || hello->nranks > WIRE_MAX_RANKS ||
        hello->rank >= hello->nranks) {
        refuse(r, KOLO_ERR_SETUP,
               "a rank sent a hello that makes no sense: is it another version?");
        net_close(fd);
        return;
    }
    if (!room_for_waiter(r)) {
        refuse(r, KOLO_ERR_NOMEM,
               "no memory to serve the rendezvous in the process that made the id");
        net_close(fd);
        return;
    }
    if (r->phase == ROOT_COLLECT && r->nranks == 0)
        prepare(r, hello->nranks);
    if (r->phase == ROOT_COLLECT)
        check_hello(r, hello);
    r->waiters[r->nwaiters++] = (struct waiter){.fd = fd, .hello = *hello};
    if (r->phase != ROOT_COLLECT)
        return;
    r->index[hello->rank] = r->nwaiters;
    const uint64_t patience = now_ns() + hello->wait_ms * MS;
    r->deadline = patience < r->deadline ? patience : r->deadline;
    LOG(LOG_DEBUG, "boot", "rank %d of %d has come from host %s", hello->rank, r->nranks,
        hello->card.host);
    if (r->nwaiters == r->nranks) {
        /* Nobody else can be expected: who comes now wants the next server at this port. */
        greeter_fini(&r->greeter);
        r->phase = ROOT_ANSWER;
        r->deadline = now_ns() + ROOT_ANSWER_MS * MS;
    }
}

/* A rank that waits says nothing: anything readable is its end. */
static void lose(struct root *r, struct waiter *w)
{
    char why[WIRE_TEXT_BYTES];
    struct text t;
    text_init(&t, why, sizeof(why));
    text_add(&t, "rank %d (host %s, pid %u) went away before all ranks had come", w->hello.rank,
             w->hello.card.host, w->hello.card.pid);
    net_close(w->fd);
    w->fd = -1;
    if (r->phase == ROOT_COLLECT)
        refuse(r, KOLO_ERR_SETUP, why);
}

/* ---- answering ---- */

static size_t answer_refusal(struct root *r)
{
    const size_t bytes = strlen(r->why);
    const struct wire_reply reply = {
        .magic = WIRE_MAGIC, .status = r->status, .bytes = (uint32_t)bytes};
    memcpy(r->answer, &reply, sizeof(reply));
    memcpy(r->answer + sizeof(reply), r->why, bytes);
    return sizeof(reply) + bytes;
}

static size_t answer_cards(struct root *r, int rank)
{
    const int n = r->nranks;
    const int rounds = wire_rounds(n);
    size_t used = sizeof(struct wire_reply);
    for (int i = 0; i < 2 * rounds; i++) {
        const int step = 1 << (i / 2);
        const int peer = i % 2 == 0 ? (rank + step) % n : (rank - step + n) % n;
        memcpy(r->answer + used, &r->waiters[r->index[peer] - 1].hello.card,
               sizeof(struct wire_card));
        used += sizeof(struct wire_card);
    }
    const struct wire_reply reply = {.magic = WIRE_MAGIC,
                                     .status = KOLO_OK,
                                     .bytes = (uint32_t)(used - sizeof(struct wire_reply))};
    memcpy(r->answer, &reply, sizeof(reply));
    return used;
}

/* Send what is missing of the answer; it is the same each time it is made. */
static bool answer(struct root *r, struct waiter *w)
{
    const size_t bytes =
        r->phase == ROOT_REFUSE ? answer_refusal(r) : answer_cards(r, w->hello.rank);
    const struct iovec rest = {r->answer + w->sent, bytes - w->sent};
    const ssize_t n = net_send(w->fd, &rest, 1);
    if (n > 0)
        w->sent += (size_t)n;
    return n < 0 || w->sent == bytes;
}

/* ---- the loop ---- */

static int fill_fds(struct root *r, uint64_t *wake, int *guests)
{
    *guests = greeter_fds(&r->greeter, r->fds, wake);
    for (int i = 0; i < r->nwaiters; i++)
        r->fds[*guests + i] = (struct pollfd){
            .fd = r->waiters[i].fd, .events = r->phase == ROOT_COLLECT ? POLLIN : POLLOUT};
    return *guests + r->nwaiters;
}

static bool is_local(const struct waiter *w, const char *host)
{
    return w->hello.card.pid == (uint32_t)getpid() && strcmp(w->hello.card.host, host) == 0;
}

/* Serve waiters whose descriptor is ready; the local rank's is kept open in *last. */
static void serve(struct root *r, const struct pollfd *fds, int n, const char *host, int *last)
{
    for (int i = 0; i < n; i++) {
        struct waiter *w = &r->waiters[i];
        if (w->fd < 0 || fds[i].revents == 0)
            continue;
        if (r->phase == ROOT_COLLECT) {
            lose(r, w);
        } else if (answer(r, w)) {
            if (*last < 0 && is_local(w, host))
                *last = w->fd;
            else
                net_close(w->fd);
            w->fd = -1;
        }
    }
}

/* A refusal is over when as many ranks as there should be have heard it. */
static bool is_over(const struct root *r)
{
    if (r->phase == ROOT_COLLECT || (r->phase == ROOT_REFUSE && r->nwaiters < r->nranks))
        return false;
    for (int i = 0; i < r->nwaiters; i++) {
        if (r->waiters[i].fd >= 0)
            return false;
    }
    return true;
}

static void root_loop(struct root *r, int *last)
{
    char host[NET_HOST_BYTES];
    struct wire_hello hello;
    int fd;
    net_host_name(host);
    wire_text_clean(host, sizeof(host));
    while (!is_over(r)) {
        uint64_t wake = r->deadline;
        int guests;
        const enum root_phase before = r->phase;
        const int nwaiters = r->nwaiters;
        const int n = fill_fds(r, &wake, &guests);
        (void)net_poll(r->fds, n, wake);
        greeter_step(&r->greeter, r->fds);
        if (before == r->phase)
            serve(r, r->fds + guests, nwaiters, host, last);
        while (r->phase != ROOT_ANSWER && (fd = greeter_take(&r->greeter, &hello)) >= 0)
            welcome(r, fd, &hello);
        if (r->phase == ROOT_REFUSE && *last >= 0) {
            net_close(*last);
            *last = -1;
        }
        if (now_ns() < r->deadline)
            continue;
        if (r->phase != ROOT_COLLECT || r->nranks == 0)
            break;
        refuse_missing(r);
    }
}

static void *root_main(void *arg)
{
    struct root *r = arg;
    int last = -1;
    root_loop(r, &last);
    root_destroy(r);
    net_close(last);
    return NULL;
}

static enum kolo_status start_thread(struct root *r)
{
    pthread_t thread;
    pthread_attr_t attr;
    sigset_t all, old;
    int rc = pthread_attr_init(&attr);
    if (rc != 0)
        return fail(KOLO_ERR_NOMEM, "no thread for the rendezvous: %s", strerror(rc));
    (void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = pthread_create(&thread, &attr, root_main, r);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    (void)pthread_attr_destroy(&attr);
    if (rc != 0)
        return fail(KOLO_ERR_NOMEM, "no thread for the rendezvous: %s", strerror(rc));
    return KOLO_OK;
}

enum kolo_status root_start(int listener, const unsigned char secret[WIRE_SECRET_BYTES],
                            int64_t timeout_ms)
{
    enum kolo_status status = KOLO_ERR_NOMEM;
    struct root *r = mem_calloc(1, sizeof(*r));
    if (r == NULL)
        return fail(KOLO_ERR_NOMEM, "no memory for the rendezvous");
    r->greeter.listener = -1;
    r->timeout_ms = timeout_ms;
    r->deadline = r->end = net_deadline(timeout_ms);
    r->cap = ROOT_FIRST_WAITERS;
    r->waiters = mem_calloc((size_t)r->cap, sizeof(*r->waiters));
    r->fds = mem_calloc((size_t)(1 + ROOT_GUESTS + r->cap), sizeof(*r->fds));
    if (r->waiters == NULL || r->fds == NULL) {
        (void)fail(KOLO_ERR_NOMEM, "no memory for the rendezvous");
        goto undo_root;
    }
    status = greeter_init(&r->greeter, listener, secret, WIRE_TO_ROOT, sizeof(struct wire_hello),
                          ROOT_GUESTS);
    if (status != KOLO_OK)
        goto undo_root;
    status = start_thread(r);
    if (status != KOLO_OK)
        goto undo_greeter;
    return KOLO_OK;

undo_greeter:
    r->greeter.listener = -1; /* the caller keeps it */
undo_root:
    root_destroy(r);
    return status;
}
