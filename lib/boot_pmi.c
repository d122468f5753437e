/* boot_pmi.c - PMI-1, the text protocol of Hydra (MPICH, Intel MPI).
 *
 * One line each way:  cmd=put kvsname=.. key=.. value=..   cmd=put_result rc=0 ..
 * The connection is PMI_FD, or made to PMI_PORT.  An MPI library of the process may use the same
 * PMI_FD before or after: so on it this says neither init nor finalize.  Yet Hydra kills a job
 * when a process leaves that has talked to it and not said finalize: that is made up for when the
 * process exits, if nobody has done it by then.  Keys are numbered, since a key is written once. */
#include "boot_env.h"

#include "boot_net.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    PMI_LINE_BYTES = 2048,
    PMI_MAX_KEYS = 1000, /* communicators that one process makes from its environment */
    PMI_FAREWELL_MS = 1000,
    PMI_JOB_MS = 10000, /* to be told rank and size */
};

struct pmi {
    int fd;
    bool is_own_fd; /* made here: close it */
    int rank, size; /* as told over PMI_PORT; -1 */
    uint64_t deadline;
    char space[256]; /* name of the key-value space */
    char line[PMI_LINE_BYTES];
};

static enum kolo_status pmi_send(struct pmi *p, const char *text)
{
    size_t done = 0;
    const size_t bytes = strlen(text);
    while (done < bytes) {
        const struct iovec rest = {(void *)(text + done), bytes - done};
        struct pollfd pfd = {.fd = p->fd, .events = POLLOUT};
        if (net_poll(&pfd, 1, p->deadline) == 0)
            return fail(KOLO_ERR_TIMEOUT, "the process manager does not take requests (PMI)");
        const ssize_t n = net_send(p->fd, &rest, 1);
        if (n < 0)
            return fail(KOLO_ERR_SETUP, "the process manager closed the connection (PMI): %s",
                        strerror(errno));
        done += (size_t)n;
    }
    return KOLO_OK;
}

/* Byte by byte: what follows the line may belong to somebody else. */
static enum kolo_status pmi_recv(struct pmi *p)
{
    size_t used = 0;
    while (used + 1 < sizeof(p->line)) {
        struct pollfd pfd = {.fd = p->fd, .events = POLLIN};
        if (net_poll(&pfd, 1, p->deadline) == 0)
            return fail(KOLO_ERR_TIMEOUT,
                        "the process manager does not answer (PMI): perhaps some ranks "
                        "have not come to kolo_comm_create_env");
        const ssize_t n = net_recv_bytes(p->fd, &p->line[used], 1);
        if (n < 0)
            return fail(KOLO_ERR_SETUP, "the process manager closed the connection (PMI): %s",
                        errno == ESHUTDOWN ? "end of file" : strerror(errno));
        if (n == 1 && p->line[used] == '\n') {
            p->line[used] = '\0';
            return KOLO_OK;
        }
        used += (size_t)n;
    }
    return fail(KOLO_ERR_SETUP, "the process manager sent a line of more than %d bytes (PMI)",
                PMI_LINE_BYTES);
}

/* The value of `key` in the line, up to the next space; false if it is not there or too long. */
static bool pmi_value(const struct pmi *p, const char *key, char *out, size_t size)
{
    const size_t len = strlen(key);
    for (const char *at = p->line; *at != '\0'; at += strspn(at, " ")) {
        const size_t word = strcspn(at, " ");
        if (word > len && strncmp(at, key, len) == 0 && at[len] == '=') {
            if (word - len > size)
                return false;
            memcpy(out, at + len + 1, word - len - 1);
            out[word - len - 1] = '\0';
            return true;
        }
        at += word;
    }
    return false;
}

/* Send a request, wait for the line that begins with the answer's name. */
static enum kolo_status pmi_ask(struct pmi *p, const char *request, const char *answer)
{
    char cmd[64];
    TRY(pmi_send(p, request));
    TRY(pmi_recv(p));
    if (!pmi_value(p, "cmd", cmd, sizeof(cmd)) || strcmp(cmd, answer) != 0)
        return fail(KOLO_ERR_SETUP,
                    "the process manager answered '%.80s' where cmd=%s was due (PMI)", p->line,
                    answer);
    return KOLO_OK;
}

static bool pmi_is_good(const struct pmi *p)
{
    char rc[16];
    return pmi_value(p, "rc", rc, sizeof(rc)) && strcmp(rc, "0") == 0;
}

static enum kolo_status pmi_dial(struct pmi *p, const char *address)
{
    char host[256];
    const char *colon = strrchr(address, ':');
    struct net_addrs addrs;
    int fd = -1;
    if (colon == NULL || (size_t)(colon - address) >= sizeof(host))
        return fail(KOLO_ERR_ARG, "PMI_PORT=%s is not host:port", address);
    memcpy(host, address, (size_t)(colon - address));
    host[colon - address] = '\0';
    TRY(net_addrs_lookup(host, atoi(colon + 1), p->deadline, &addrs));
    for (int i = 0; i < addrs.n && fd < 0; i++) {
        fd = net_connect_start(&addrs.at[i], addrs.port);
        struct pollfd pfd = {.fd = fd, .events = POLLOUT};
        if (fd >= 0 && (net_poll(&pfd, 1, p->deadline) == 0 || net_connect_error(fd) != 0)) {
            net_close(fd);
            fd = -1;
        }
    }
    if (fd < 0)
        return fail(KOLO_ERR_SETUP, "cannot connect to the process manager at PMI_PORT=%s",
                    address);
    p->fd = fd;
    p->is_own_fd = true;
    return KOLO_OK;
}

/* Over PMI_PORT a connection first says whose it is; the server then tells size and rank. */
static enum kolo_status pmi_introduce(struct pmi *p)
{
    char request[128], number[16];
    const char *id = env_get("PMI_ID") != NULL ? env_get("PMI_ID") : env_get("PMI_RANK");
    (void)snprintf(request, sizeof(request), "cmd=initack pmiid=%.64s\n", id != NULL ? id : "0");
    TRY(pmi_ask(p, request, "initack"));
    for (int i = 0; i < 3; i++) {
        TRY(pmi_recv(p));
        if (pmi_value(p, "size", number, sizeof(number)))
            p->size = atoi(number);
        if (pmi_value(p, "rank", number, sizeof(number)))
            p->rank = atoi(number);
    }
    return KOLO_OK;
}

static enum kolo_status pmi_open(struct pmi *p)
{
    int fd;
    if (env_get("PMI_FD") != NULL) {
        TRY(env_int("PMI_FD", 0, 1 << 20, &fd));
        p->fd = fd;
    } else if (env_get("PMI_PORT") != NULL) {
        TRY(pmi_dial(p, env_get("PMI_PORT")));
        TRY(pmi_introduce(p));
    } else {
        return fail(KOLO_ERR_SETUP,
                    "PMI_RANK is set, but neither PMI_FD nor PMI_PORT: the launcher gives "
                    "no way to exchange addresses; set KOLO_ADDR=host:port of rank 0");
    }
    TRY(pmi_ask(p, "cmd=get_my_kvsname\n", "my_kvsname"));
    if (!pmi_value(p, "kvsname", p->space, sizeof(p->space)))
        return fail(KOLO_ERR_SETUP, "the process manager has no key-value space (PMI): %.80s",
                    p->line);
    return KOLO_OK;
}

/* Whether key number i is there; then its value. */
static enum kolo_status pmi_get(struct pmi *p, int i, bool *is_there, char text[ENV_SHARE_BYTES])
{
    char request[PMI_LINE_BYTES];
    char value[ENV_SHARE_BYTES];
    (void)snprintf(request, sizeof(request), "cmd=get kvsname=%s key=kolo-id-%d\n", p->space, i);
    TRY(pmi_ask(p, request, "get_result"));
    *is_there = pmi_is_good(p) && pmi_value(p, "value", value, sizeof(value));
    if (*is_there)
        memcpy(text, value, sizeof(value));
    return KOLO_OK;
}

static enum kolo_status pmi_put(struct pmi *p, int i, const char *text)
{
    char request[PMI_LINE_BYTES];
    (void)snprintf(request, sizeof(request), "cmd=put kvsname=%s key=kolo-id-%d value=%s\n",
                   p->space, i, text);
    TRY(pmi_ask(p, request, "put_result"));
    if (!pmi_is_good(p))
        return fail(KOLO_ERR_SETUP, "the process manager did not take the id (PMI): %.80s",
                    p->line);
    return KOLO_OK;
}

/* ---- leaving ----
 *
 * PMI_FD belongs to the process, and so does the debt of a finalize: it is remembered here by the
 * identity of the socket (its number may be somebody else's by the time of exit) and by process,
 * since a child after fork owes nothing.  Relaxed: written and read in one word each, and the exit
 * of a process comes after its calls. */
static _Atomic uint64_t debt_inode; /* 0: none */
static _Atomic int debt_fd;
static _Atomic int debt_pid;

static uint64_t inode_of(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode) ? (uint64_t)st.st_ino : 0;
}

static void pmi_owe(int fd)
{
    atomic_store_explicit(&debt_fd, fd, memory_order_relaxed);
    atomic_store_explicit(&debt_pid, (int)getpid(), memory_order_relaxed);
    atomic_store_explicit(&debt_inode, inode_of(fd), memory_order_relaxed);
}

__attribute__((destructor)) static void pmi_pay(void)
{
    const uint64_t inode = atomic_load_explicit(&debt_inode, memory_order_relaxed);
    struct pmi p = {.fd = atomic_load_explicit(&debt_fd, memory_order_relaxed)};
    if (inode == 0 || inode != inode_of(p.fd) ||
        atomic_load_explicit(&debt_pid, memory_order_relaxed) != (int)getpid())
        return;
    p.deadline = net_deadline(PMI_FAREWELL_MS);
    (void)pmi_ask(&p, "cmd=finalize\n", "finalize_ack");
}

/* ---- sharing ---- */

static enum kolo_status pmi_share(struct pmi *p, int rank, char text[ENV_SHARE_BYTES])
{
    char found[ENV_SHARE_BYTES] = "";
    bool is_there = true;
    int n = 0;
    if (rank == 0) {
        while (is_there && n < PMI_MAX_KEYS)
            TRY(pmi_get(p, n++, &is_there, found));
        /* The barrier also without a value: the others wait in it. */
        const enum kolo_status put = pmi_put(p, n - 1, text);
        TRY(pmi_ask(p, "cmd=barrier_in\n", "barrier_out"));
        return put;
    }
    TRY(pmi_ask(p, "cmd=barrier_in\n", "barrier_out"));
    while (is_there && n < PMI_MAX_KEYS)
        TRY(pmi_get(p, n++, &is_there, found));
    if (found[0] == '\0')
        return fail(KOLO_ERR_SETUP, "rank 0 has left no id with the process manager (PMI)");
    memcpy(text, found, sizeof(found));
    return KOLO_OK;
}

/* Say goodbye where the connection was made here, else owe it. */
static enum kolo_status pmi_close(struct pmi *p, enum kolo_status status)
{
    if (!p->is_own_fd) {
        if (p->fd >= 0)
            pmi_owe(p->fd);
        return status;
    }
    if (status == KOLO_OK)
        status = pmi_ask(p, "cmd=finalize\n", "finalize_ack");
    net_close(p->fd);
    return status;
}

enum kolo_status boot_pmi_share(int rank, char text[ENV_SHARE_BYTES], uint64_t deadline)
{
    struct pmi p = {.fd = -1, .deadline = deadline};
    enum kolo_status status = pmi_open(&p);
    if (status == KOLO_OK)
        status = pmi_share(&p, rank, text);
    return pmi_close(&p, status);
}

enum kolo_status boot_pmi_job(int *rank, int *size)
{
    struct pmi p = {.fd = -1, .rank = -1, .size = -1, .deadline = net_deadline(PMI_JOB_MS)};
    TRY(pmi_close(&p, pmi_open(&p)));
    if (p.rank < 0 || p.size <= p.rank)
        return fail(KOLO_ERR_SETUP, "the process manager at PMI_PORT=%s tells rank %d and size %d",
                    env_get("PMI_PORT"), p.rank, p.size);
    *rank = p.rank;
    *size = p.size;
    return KOLO_OK;
}
