/* test_boot.c - rendezvous, all-gather and split, with threads of this process as ranks.
 * Failures first: who is missing, double, silent, gone, or a stranger must be said by name. */
#include "support/test.h"

#include "boot.h"
#include "boot_net.h"
#include "boot_wire.h"
#include "cfg.h"
#include "mem.h"

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_RANKS = 32, LONG_MS = 20000, SHORT_MS = 400 };

static const int sizes[] = {1, 2, 3, 5, 8, 17};

/* One rank, on a thread of its own. */
struct rank {
    struct kolo_unique_id id;
    int rank, n;
    int64_t timeout_ms;
    enum kolo_status (*then)(struct rank *r, struct boot *b); /* after boot_create; may be NULL */
    size_t bytes;
    int victim;
    atomic_int *others; /* that have ended */
    enum kolo_status status;
    char text[ERROR_TEXT_BYTES];
};

static void *rank_main(void *arg)
{
    struct rank *r = arg;
    struct boot *b = NULL;
    r->status = boot_create(&r->id, r->rank, r->n, r->timeout_ms, &b);
    if (r->status == KOLO_OK && (boot_rank(b) != r->rank || boot_size(b) != r->n))
        r->status = KOLO_ERR_INTERNAL;
    if (r->status == KOLO_OK && r->then != NULL)
        r->status = r->then(r, b);
    else
        boot_destroy(b);
    if (r->status != KOLO_OK)
        memcpy(r->text, fail_text(), strlen(fail_text()) + 1);
    return NULL;
}

/* Run `count` ranks and wait for all. */
static void run(struct rank *ranks, int count)
{
    pthread_t threads[MAX_RANKS];
    for (int i = 0; i < count; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, rank_main, &ranks[i]), 0);
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

static void prepare(struct rank *ranks, int n, int64_t timeout_ms,
                    enum kolo_status (*then)(struct rank *r, struct boot *b))
{
    struct kolo_unique_id id;
    cr_assert_eq(boot_id_create(&id, timeout_ms), KOLO_OK, "%s", fail_text());
    memset(ranks, 0, MAX_RANKS * sizeof(*ranks));
    for (int i = 0; i < n; i++)
        ranks[i] =
            (struct rank){.id = id, .rank = i, .n = n, .timeout_ms = timeout_ms, .then = then};
}

static void assert_all(const struct rank *ranks, int count, enum kolo_status status,
                       const char *word)
{
    for (int i = 0; i < count; i++) {
        cr_assert_eq(ranks[i].status, status, "n %d rank %d: status %d, wanted %d: %s", ranks[i].n,
                     ranks[i].rank, ranks[i].status, status, ranks[i].text);
        cr_assert(strstr(ranks[i].text, word) != NULL, "n %d rank %d: no '%s' in: %s", ranks[i].n,
                  ranks[i].rank, word, ranks[i].text);
    }
}

/* ---- what must work ---- */

static unsigned char byte_of(int rank, size_t i, int turn)
{
    return (unsigned char)(rank * 31 + (int)(i % 251) + turn * 7);
}

static enum kolo_status gather_checked(struct boot *b, size_t bytes, int turn)
{
    const size_t n = (size_t)boot_size(b);
    unsigned char *mine = malloc(bytes + 1), *all = malloc(n * bytes + 1);
    enum kolo_status status = KOLO_OK;
    for (size_t i = 0; i < bytes; i++)
        mine[i] = byte_of(boot_rank(b), i, turn);
    memset(all, 0xee, n * bytes + 1);
    status = boot_all_gather(b, mine, bytes, all, LONG_MS);
    for (size_t i = 0; status == KOLO_OK && i < n * bytes; i++) {
        if (all[i] != byte_of((int)(i / bytes), i % bytes, turn))
            status = fail(KOLO_ERR_INTERNAL, "byte %zu of %zu blobs of %zu is wrong", i, n, bytes);
    }
    if (status == KOLO_OK && all[n * bytes] != 0xee)
        status = fail(KOLO_ERR_INTERNAL, "wrote behind the end");
    free(mine);
    free(all);
    return status;
}

static enum kolo_status gather_many(struct rank *r, struct boot *b)
{
    static const size_t bytes[] = {4, 0, 1, 3, 4096, 7, 70000};
    enum kolo_status status = KOLO_OK;
    (void)r;
    for (int turn = 0; turn < 14 && status == KOLO_OK; turn++)
        status = gather_checked(b, bytes[turn % 7], turn);
    if (status == KOLO_OK)
        status = boot_barrier(b, LONG_MS);
    boot_destroy(b);
    return status;
}

Test(boot, gathers_for_every_size)
{
    struct rank ranks[MAX_RANKS];
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        prepare(ranks, sizes[i], LONG_MS, gather_many);
        run(ranks, sizes[i]);
        assert_all(ranks, sizes[i], KOLO_OK, "");
    }
}

static enum kolo_status gather_largest(struct rank *r, struct boot *b)
{
    (void)r;
    const enum kolo_status status = gather_checked(b, BOOT_BLOB_MAX, 1);
    boot_destroy(b);
    return status;
}

Test(boot, gathers_the_largest_blob)
{
    struct rank ranks[MAX_RANKS];
    prepare(ranks, 3, LONG_MS, gather_largest);
    run(ranks, 3);
    assert_all(ranks, 3, KOLO_OK, "");
}

Test(boot, leaves_nothing_behind)
{
    struct rank ranks[MAX_RANKS];
    const int64_t before = mem_live();
    prepare(ranks, 3, LONG_MS, gather_many);
    run(ranks, 3);
    assert_all(ranks, 3, KOLO_OK, "");
    cr_assert_eq(mem_live(), before, "allocations left: %lld", (long long)(mem_live() - before));
}

Test(boot, single_needs_no_network)
{
    struct boot *b;
    int mine = 5, all = 0;
    cr_assert_eq(boot_create_single(&b), KOLO_OK);
    cr_assert_eq(boot_rank(b), 0);
    cr_assert_eq(boot_size(b), 1);
    cr_assert_eq(boot_all_gather(b, &mine, sizeof(mine), &all, 0), KOLO_OK);
    cr_assert_eq(all, 5);
    cr_assert_eq(boot_barrier(b, 0), KOLO_OK);
    boot_destroy(b);
    boot_destroy(NULL);
}

Test(boot, two_rendezvous_at_once)
{
    struct rank a[MAX_RANKS], b[MAX_RANKS], both[MAX_RANKS];
    prepare(a, 4, LONG_MS, gather_many);
    prepare(b, 5, LONG_MS, gather_many);
    memcpy(both, a, 4 * sizeof(*a));
    memcpy(both + 4, b, 5 * sizeof(*b));
    run(both, 9);
    assert_all(both, 9, KOLO_OK, "");
}

/* A port that was free a moment ago. */
static int free_port(void)
{
    int fd;
    uint16_t port;
    cr_assert_eq(net_listen(0, now_ns(), &fd, &port), KOLO_OK, "%s", fail_text());
    net_close(fd);
    return port;
}

Test(boot, meets_at_a_known_address_though_the_root_is_late)
{
    struct rank ranks[MAX_RANKS];
    pthread_t threads[3];
    const int port = free_port();
    for (int i = 2; i >= 0; i--) {
        ranks[i] = (struct rank){.rank = i, .n = 3, .timeout_ms = LONG_MS, .then = gather_many};
        cr_assert_eq(
            boot_id_from_address("localhost", port, "secret", i == 0, LONG_MS, &ranks[i].id),
            KOLO_OK, "%s", fail_text());
        cr_assert_eq(pthread_create(&threads[i], NULL, rank_main, &ranks[i]), 0);
    }
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    assert_all(ranks, 3, KOLO_OK, "");
}

/* ---- wrong arguments ---- */

Test(boot, garbage_ids_are_refused)
{
    struct kolo_unique_id id, bad;
    struct boot *b = NULL;
    const unsigned seed = 12345;
    srand(seed);
    for (int turn = 0; turn < 200; turn++) {
        for (size_t i = 0; i < sizeof(bad.bytes); i++)
            bad.bytes[i] = (unsigned char)rand();
        cr_assert_eq(boot_create(&bad, 0, 2, LONG_MS, &b), KOLO_ERR_ARG, "seed %u turn %d", seed,
                     turn);
    }
    memset(&bad, 0, sizeof(bad));
    cr_assert_eq(boot_create(&bad, 0, 1, LONG_MS, &b), KOLO_ERR_ARG);
    cr_assert(strstr(fail_text(), "unique id") != NULL, "%s", fail_text());
    /* One bit wrong anywhere. */
    cr_assert_eq(boot_id_create(&id, SHORT_MS), KOLO_OK, "%s", fail_text());
    for (size_t bit = 0; bit < 8 * sizeof(id.bytes); bit++) {
        bad = id;
        bad.bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        cr_assert_eq(boot_create(&bad, 0, 1, LONG_MS, &b), KOLO_ERR_ARG, "bit %zu", bit);
    }
    cr_assert_null(b);
}

Test(boot, wrong_arguments_are_refused)
{
    static const int places[][2] = {{-1, 2}, {2, 2},         {0, 0},
                                    {0, -1}, {0, INT32_MAX}, {INT32_MIN, 1}};
    struct kolo_unique_id id;
    struct boot *b = NULL, *single;
    char blob[8] = "";
    cr_assert_eq(boot_id_create(&id, SHORT_MS), KOLO_OK);
    cr_assert_eq(boot_id_create(NULL, SHORT_MS), KOLO_ERR_ARG);
    for (size_t i = 0; i < ARRAY_LEN(places); i++)
        cr_assert_eq(boot_create(&id, places[i][0], places[i][1], SHORT_MS, &b), KOLO_ERR_ARG,
                     "case %zu", i);
    cr_assert_eq(boot_create(NULL, 0, 1, SHORT_MS, &b), KOLO_ERR_ARG);
    cr_assert_eq(boot_create(&id, 0, 1, SHORT_MS, NULL), KOLO_ERR_ARG);
    cr_assert_null(b);
    cr_assert_eq(boot_id_from_address("localhost", 0, "", false, 0, &id), KOLO_ERR_ARG);
    cr_assert_eq(boot_id_from_address("localhost", 65536, "", false, 0, &id), KOLO_ERR_ARG);
    cr_assert_eq(boot_id_from_address("no.such.host.invalid", 5, "", false, 1, &id),
                 KOLO_ERR_TIMEOUT);
    cr_assert_eq(boot_create_single(&single), KOLO_OK);
    cr_assert_eq(boot_all_gather(single, blob, BOOT_BLOB_MAX + 1, blob, 0), KOLO_ERR_ARG);
    cr_assert_eq(boot_all_gather(single, NULL, 1, blob, 0), KOLO_ERR_ARG);
    cr_assert_eq(boot_all_gather(single, blob, 1, NULL, 0), KOLO_ERR_ARG);
    boot_destroy(single);
}

/* ---- ranks that do not do their part ---- */

Test(boot, missing_ranks_are_listed)
{
    struct rank ranks[MAX_RANKS];
    prepare(ranks, 12, SHORT_MS, NULL);
    ranks[3] = ranks[11];
    ranks[7] = ranks[10];
    run(ranks, 8); /* 0 1 2 4 5 6 and 10 11: without 3, 7, 8 and 9 */
    assert_all(ranks, 8, KOLO_ERR_TIMEOUT, "missing: 3, 7-9");
}

Test(boot, a_double_rank_is_told_to_all)
{
    struct rank ranks[MAX_RANKS];
    prepare(ranks, 4, LONG_MS, NULL);
    ranks[3].rank = 1;
    run(ranks, 4);
    assert_all(ranks, 4, KOLO_ERR_SETUP, "rank 1 of 4");
}

Test(boot, disagreement_about_nranks_is_told_to_all)
{
    struct rank ranks[MAX_RANKS];
    prepare(ranks, 4, LONG_MS, NULL);
    ranks[2].n = 5;
    run(ranks, 4);
    assert_all(ranks, 4, KOLO_ERR_SETUP, "disagree");
    assert_all(ranks, 4, KOLO_ERR_SETUP, "says 5");
    assert_all(ranks, 4, KOLO_ERR_SETUP, "says 4");
}

Test(boot, another_secret_gets_nowhere)
{
    struct rank ranks[MAX_RANKS];
    const int port = free_port();
    memset(ranks, 0, sizeof(ranks));
    for (int i = 0; i < 2; i++) {
        ranks[i] = (struct rank){.rank = i, .n = 2, .timeout_ms = SHORT_MS};
        cr_assert_eq(boot_id_from_address("127.0.0.1", port, i == 0 ? "a" : "b", i == 0, SHORT_MS,
                                          &ranks[i].id),
                     KOLO_OK, "%s", fail_text());
    }
    run(ranks, 2);
    assert_all(ranks, 1, KOLO_ERR_TIMEOUT, "missing: 1");
    assert_all(ranks + 1, 1, KOLO_ERR_SETUP, "secret");
}

Test(boot, a_root_that_never_was)
{
    struct rank ranks[MAX_RANKS] = {{.rank = 1, .n = 2, .timeout_ms = SHORT_MS}};
    cr_assert_eq(boot_id_from_address("127.0.0.1", free_port(), "", false, SHORT_MS, &ranks[0].id),
                 KOLO_OK);
    run(ranks, 1);
    assert_all(ranks, 1, KOLO_ERR_TIMEOUT, "refused");
}

static enum kolo_status leave_or_gather(struct rank *r, struct boot *b)
{
    enum kolo_status status = KOLO_OK;
    if (r->rank != r->victim)
        status = gather_checked(b, 100, 0);
    boot_destroy(b);
    return status;
}

Test(boot, a_rank_that_leaves_is_named)
{
    struct rank ranks[MAX_RANKS];
    for (size_t i = 1; i < ARRAY_LEN(sizes); i++) {
        const int n = sizes[i], victim = n / 2;
        char word[32];
        struct text t;
        text_init(&t, word, sizeof(word));
        text_add(&t, "rank %d on host", victim);
        prepare(ranks, n, LONG_MS, leave_or_gather);
        for (int r = 0; r < n; r++)
            ranks[r].victim = victim;
        run(ranks, n);
        assert_all(&ranks[victim], 1, KOLO_OK, "");
        assert_all(ranks, victim, KOLO_ERR_PEER_LOST, word);
        assert_all(ranks + victim + 1, n - victim - 1, KOLO_ERR_PEER_LOST, word);
    }
}

/* The silent rank leaves only after all others have given up. */
static enum kolo_status keep_silent(struct rank *r, struct boot *b)
{
    enum kolo_status status = KOLO_OK;
    int all[MAX_RANKS];
    if (r->rank == r->victim) {
        while (atomic_load(r->others) < r->n - 1)
            poll(NULL, 0, 1);
    } else {
        status = boot_all_gather(b, &r->rank, sizeof(r->rank), all, SHORT_MS);
        if (status != KOLO_OK && boot_barrier(b, LONG_MS) == KOLO_OK)
            status = KOLO_ERR_INTERNAL; /* a broken handle must stay broken */
        atomic_fetch_add(r->others, 1);
    }
    boot_destroy(b);
    return status;
}

Test(boot, a_silent_rank_times_out)
{
    struct rank ranks[MAX_RANKS];
    for (int n = 2; n <= 5; n++) {
        atomic_int others;
        atomic_init(&others, 0);
        prepare(ranks, n, LONG_MS, keep_silent);
        for (int r = 0; r < n; r++) {
            ranks[r].victim = 1;
            ranks[r].others = &others;
        }
        run(ranks, n);
        assert_all(&ranks[1], 1, KOLO_OK, "");
        assert_all(&ranks[0], 1, KOLO_ERR_TIMEOUT, "");
        assert_all(&ranks[2], n - 2, KOLO_ERR_TIMEOUT, "");
    }
}

static enum kolo_status gather_own_size(struct rank *r, struct boot *b)
{
    char mine[16] = "", all[16 * MAX_RANKS];
    const enum kolo_status status = boot_all_gather(b, mine, r->bytes, all, LONG_MS);
    boot_destroy(b);
    return status;
}

Test(boot, different_blob_sizes_are_a_mismatch)
{
    struct rank ranks[MAX_RANKS];
    prepare(ranks, 3, LONG_MS, gather_own_size);
    for (int r = 0; r < 3; r++)
        ranks[r].bytes = r == 1 ? 12 : 8;
    run(ranks, 3);
    assert_all(ranks, 3, KOLO_ERR_MISMATCH, "12");
}

/* ---- strangers ---- */

struct noise {
    atomic_bool is_over;
    atomic_int visits;
    unsigned seed;
};

/* The ports on which this process listens. */
static int find_listeners(int *ports, int cap)
{
    int n = 0;
    for (int fd = 0; fd < 256 && n < cap; fd++) {
        int listens = 0;
        socklen_t len = sizeof(listens);
        struct sockaddr_in6 in6;
        socklen_t in6_len = sizeof(in6);
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) == 0 && listens &&
            getsockname(fd, (struct sockaddr *)&in6, &in6_len) == 0)
            ports[n++] = ntohs(in6.sin6_port);
    }
    return n;
}

/* Connect to whatever listens and send nothing, random bytes, or a wrong answer to the
 * challenge. */
static void *make_noise(void *arg)
{
    struct noise *noise = arg;
    unsigned state = noise->seed;
    const struct net_addr loopback = {.family = 4, .bytes = {127, 0, 0, 1}};
    int kept[64], nkept = 0;
    while (!atomic_load(&noise->is_over)) {
        int ports[16];
        const int n = find_listeners(ports, 16);
        for (int i = 0; i < n; i++) {
            const int fd = net_connect_start(&loopback, (uint16_t)ports[i]);
            char bytes[256];
            struct wire_answer answer = {.magic = WIRE_MAGIC, .version = WIRE_VERSION, .kind = 1};
            struct pollfd pfd = {.fd = fd, .events = POLLOUT};
            for (size_t k = 0; k < sizeof(bytes); k++)
                bytes[k] = (char)rand_r(&state);
            if (fd < 0 || net_poll(&pfd, 1, net_deadline(100)) == 0) {
                net_close(fd);
                continue;
            }
            if (rand_r(&state) % 3 == 0)
                (void)net_send_small(fd, &answer, sizeof(answer));
            else if (rand_r(&state) % 2 == 0)
                (void)net_send_small(fd, bytes, 1 + (size_t)rand_r(&state) % sizeof(bytes));
            atomic_fetch_add(&noise->visits, 1);
            if (nkept < 64)
                kept[nkept++] = fd; /* half open until the end */
            else
                net_close(fd);
        }
    }
    while (nkept > 0)
        net_close(kept[--nkept]);
    return NULL;
}

Test(boot, strangers_cannot_disturb)
{
    struct rank ranks[MAX_RANKS];
    pthread_t thread;
    for (unsigned seed = 1; seed <= 5; seed++) {
        struct noise noise = {.seed = seed};
        prepare(ranks, 5, LONG_MS, gather_many);
        cr_assert_eq(pthread_create(&thread, NULL, make_noise, &noise), 0);
        while (atomic_load(&noise.visits) == 0)
            poll(NULL, 0, 1);
        run(ranks, 5);
        atomic_store(&noise.is_over, true);
        pthread_join(thread, NULL);
        assert_all(ranks, 5, KOLO_OK, "");
    }
}

/* ---- memory ---- */

Test(boot, every_allocation_may_fail)
{
    for (uint64_t nth = 1;; nth++) {
        struct kolo_unique_id id;
        struct boot *b = NULL;
        int mine = 1, all = 0;
        mem_fail_at(nth);
        enum kolo_status status = boot_id_create(&id, SHORT_MS);
        if (status == KOLO_OK)
            status = boot_create(&id, 0, 1, LONG_MS, &b);
        if (status == KOLO_OK)
            status = boot_all_gather(b, &mine, sizeof(mine), &all, LONG_MS);
        mem_fail_at(0);
        boot_destroy(b);
        cr_assert(status == KOLO_OK || status == KOLO_ERR_NOMEM, "allocation %d: %d %s", (int)nth,
                  status, fail_text());
        if (status == KOLO_OK) {
            cr_assert_gt(nth, 5, "only %d allocations were tried", (int)nth);
            return;
        }
        cr_assert_lt(nth, 100);
    }
}

/* ---- options ---- */

static void with_options(const char *ifname, const char *ports)
{
    setenv("KOLO_SOCKET_IFNAME", ifname, 1);
    setenv("KOLO_PORT_RANGE", ports, 1);
    cfg_reset();
}

Test(boot, obeys_the_options)
{
    struct kolo_unique_id id;
    struct wire_id said;
    struct rank ranks[MAX_RANKS];
    with_options("lo", "21000-21999");
    prepare(ranks, 3, LONG_MS, gather_many);
    cr_assert_eq(wire_id_decode(&ranks[0].id, &said), KOLO_OK);
    cr_assert(said.addrs.port >= 21000 && said.addrs.port <= 21999, "port %u", said.addrs.port);
    for (int i = 0; i < said.addrs.n; i++) {
        const struct net_addr *a = &said.addrs.at[i];
        cr_assert(a->family == 4 ? a->bytes[0] == 127 : a->bytes[15] == 1, "address %d", i);
    }
    run(ranks, 3);
    assert_all(ranks, 3, KOLO_OK, "");
    with_options("nosuch", "");
    cr_assert_eq(boot_id_create(&id, SHORT_MS), KOLO_ERR_ARG);
    cr_assert(strstr(fail_text(), "nosuch") != NULL && strstr(fail_text(), "lo") != NULL, "%s",
              fail_text());
    with_options("", "7-x");
    cr_assert_eq(boot_id_create(&id, SHORT_MS), KOLO_ERR_ARG);
    cr_assert(strstr(fail_text(), "7-x") != NULL, "%s", fail_text());
    unsetenv("KOLO_SOCKET_IFNAME");
    unsetenv("KOLO_PORT_RANGE");
    cfg_reset();
}
