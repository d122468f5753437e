/* test_edges.c - corners of the interface where an earlier version went wrong: own blocks, odd
 * mixtures of streams in a group, what does not belong into a group, texts. */
#include "support/edges.h"

#include "cfg.h"
#include "mem.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct kolo_stream *new_stream(void)
{
    struct kolo_stream *s = NULL;
    cr_assert_eq(kolo_stream_create(&s), KOLO_OK);
    return s;
}

/* ---- the own block of all_to_all_v ---- */

static const char *own_block(struct kolo_comm *comm, void *arg)
{
    enum { N = 3, ROOM = 64 };
    const int r = kolo_comm_rank(comm), n = kolo_comm_size(comm);
    const size_t send_own = ((const size_t *)arg)[0], recv_own = ((const size_t *)arg)[1];
    size_t out[N] = {2, 2, 2}, in[N] = {2, 2, 2};
    unsigned char send[ROOM], recv[ROOM];
    memset(send, r + 1, ROOM);
    memset(recv, 0xee, ROOM);
    out[r] = send_own;
    in[r] = recv_own;
    const enum kolo_status status =
        kolo_all_to_all_v(send, out, NULL, recv, in, NULL, KOLO_U8, comm, NULL);
    if (status != KOLO_ERR_ARG)
        return ranks_text("%zu sent, %zu expected: status %d", send_own, recv_own, status);
    for (int i = 0; i < ROOM; i++)
        if (recv[i] != 0xee)
            return ranks_text("%zu sent, %zu expected: byte %d was written", send_own, recv_own, i);
    in[r] = send_own; /* the communicator is as good as before */
    EXPECT_OK(kolo_all_to_all_v(send, out, NULL, recv, in, NULL, KOLO_U8, comm, NULL), comm);
    size_t at = 0;
    for (int k = 0; k < n; k++)
        for (size_t i = 0; i < in[k]; i++)
            if (recv[at++] != k + 1)
                return ranks_text("wrong data from rank %d", k);
    return recv[at] == 0xee ? NULL : "too much was written";
}

Test(edges, own_block_of_all_to_all_v)
{
    static size_t own[][2] = {{4, 32}, {3, 8}, {8, 3}, {0, 1}, {1, 0}};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        check(ranks_threads(1, NULL, own_block, own[i]));
        check(ranks_threads(3, NULL, own_block, own[i]));
    }
}

/* ---- pre-multiplied sums ---- */

static void force(const char *algo)
{
    if (algo)
        setenv("KOLO_ALGO", algo, 1);
    else
        unsetenv("KOLO_ALGO");
    cfg_reset();
}

static const char *const forms[] = {"all_reduce:oneshot", "all_reduce:twoshot"};

/* More ranks than bits in a word. */
enum { MANY = 70, FEW = 3 };

static const char *scaled_sum(struct kolo_comm **c, size_t count)
{
    static float send[MANY][FEW], recv[MANY][FEW];
    float want = 0;
    int op[MANY];
    for (int r = 0; r < MANY; r++) {
        const float scalar = (float)(r + 1);
        want += 2 * scalar;
        EXPECT_OK(kolo_op_create_premul_sum(&scalar, KOLO_F32, c[r], &op[r]), c[r]);
        for (size_t i = 0; i < count; i++)
            send[r][i] = 2 + (float)i;
    }
    EXPECT_OK(kolo_group_begin(), NULL);
    for (int r = 0; r < MANY; r++)
        EXPECT_OK(kolo_all_reduce(send[r], recv[r], count, KOLO_F32, op[r], c[r], NULL), c[r]);
    EXPECT_OK(kolo_group_end(), c[0]);
    for (int r = 0; r < MANY; r++)
        for (size_t i = 0; i < count; i++)
            if (recv[r][i] != want / 2 * (2 + (float)i))
                return ranks_text("rank %d element %zu: %g", r, i, (double)recv[r][i]);
    return NULL;
}

Test(edges, scaled_sum_of_many_ranks)
{
    for (size_t f = 0; f < 2; f++) {
        struct kolo_comm *c[MANY];
        force(forms[f]);
        const enum kolo_status made = kolo_comm_create_local(MANY, NULL, c);
        force(NULL);
        cr_assert_eq(made, KOLO_OK, "%s: %s", forms[f], kolo_last_error(NULL));
        for (size_t count = 1; count <= FEW; count += FEW - 1) {
            const char *wrong = scaled_sum(c, count);
            cr_assert(wrong == NULL, "%s: %s", forms[f], wrong);
        }
        destroy(MANY, c);
    }
}

static uint32_t random_next(uint32_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 17;
    return *seed ^= *seed << 5;
}

/* Of moderate size, either sign, any mantissa. */
static uint16_t random_half(uint32_t *seed, int type)
{
    const uint32_t x = random_next(seed);
    return (uint16_t)((x & 0x8000) | (type == KOLO_F16 ? 0x3000 + x % 0x1000 : 0x3e00 + x % 0x200));
}

static const char *scaled_halves(struct kolo_comm **c, int n, int type, uint32_t seed)
{
    enum { COUNT = 257, MOST = 5 };
    static uint16_t send[MOST][COUNT], recv[MOST][COUNT];
    int op[MOST];
    for (int r = 0; r < n; r++) {
        const uint16_t scalar = random_half(&seed, type);
        EXPECT_OK(kolo_op_create_premul_sum(&scalar, type, c[r], &op[r]), c[r]);
        for (size_t i = 0; i < COUNT; i++)
            send[r][i] = random_half(&seed, type);
    }
    EXPECT_OK(kolo_group_begin(), NULL);
    for (int r = 0; r < n; r++)
        EXPECT_OK(kolo_all_reduce(send[r], recv[r], COUNT, type, op[r], c[r], NULL), c[r]);
    EXPECT_OK(kolo_group_end(), c[0]);
    for (int r = 1; r < n; r++)
        for (size_t i = 0; i < COUNT; i++)
            if (recv[r][i] != recv[0][i])
                return ranks_text("type %d, element %zu: %x on rank 0, %x on rank %d of %d", type,
                                  i, recv[0][i], recv[r][i], r, n);
    return NULL;
}

Test(edges, scaled_sum_has_equal_bits)
{
    static const int ranks[] = {2, 3, 5};
    const uint32_t seed = (uint32_t)time(NULL) | 1;
    for (size_t f = 0; f < 2; f++)
        for (size_t i = 0; i < 3; i++) {
            struct kolo_comm *c[5];
            force(forms[f]);
            const enum kolo_status made = kolo_comm_create_local(ranks[i], NULL, c);
            force(NULL);
            cr_assert_eq(made, KOLO_OK, "%s: %s", forms[f], kolo_last_error(NULL));
            for (int k = 0; k < 2; k++) {
                const char *wrong = scaled_halves(c, ranks[i], k ? KOLO_BF16 : KOLO_F16, seed);
                cr_assert(wrong == NULL, "%s, seed %u: %s", forms[f], seed, wrong);
            }
            destroy(ranks[i], c);
        }
}

/* ---- what does not belong into a group ---- */

static const char *split_in_group(struct kolo_comm *comm, void *arg)
{
    struct kolo_comm *const untouched = arg, *out = untouched;
    EXPECT_OK(kolo_group_begin(), NULL);
    const enum kolo_status status = kolo_comm_split(comm, 0, 0, NULL, &out);
    if (status != KOLO_ERR_USAGE || out != untouched)
        return ranks_text("status %d, out is %s", status, out == untouched ? "kept" : "written");
    if (!strstr(kolo_last_error(comm), "group"))
        return ranks_text("text: %s", kolo_last_error(comm));
    const enum kolo_status ended = kolo_group_end();
    if (ended != KOLO_OK && ended != KOLO_ERR_USAGE)
        return ranks_text("group_end: %d", ended);
    EXPECT_OK(kolo_comm_split(comm, 0, 0, NULL, &out), comm);
    EXPECT_OK(kolo_barrier(out, NULL), out);
    kolo_comm_destroy(out);
    return NULL;
}

Test(edges, split_inside_a_group)
{
    static char mark;
    check(ranks_threads(1, NULL, split_in_group, &mark));
    check(ranks_threads(3, NULL, split_in_group, &mark));
}

static void add_all(struct kolo_comm **c, int *out, struct kolo_stream *stream)
{
    static const int in = 42;
    for (int i = 0; i < 3; i++)
        if (c[i])
            cr_assert_eq(
                kolo_all_reduce(&in, &out[i], 1, KOLO_I32, KOLO_SUM, c[i], i == 0 ? stream : NULL),
                KOLO_OK);
}

/* Three communicators take turns in a group; one goes, from the front, the middle or the end. */
Test(edges, destroy_inside_a_group)
{
    struct kolo_stream *stream = new_stream();
    for (int who = 0; who < 3; who++)
        for (int more = 0; more < 2; more++) {
            struct kolo_comm *c[3];
            int out[3] = {-1, -1, -1};
            for (int i = 0; i < 3; i++)
                create(1, NULL, &c[i]);
            begin();
            add_all(c, out, stream);
            add_all(c, out, stream);
            kolo_comm_destroy(c[who]);
            c[who] = NULL;
            if (more)
                add_all(c, out, stream);
            end();
            cr_assert_eq(kolo_stream_synchronize(stream), KOLO_OK);
            for (int i = 0; i < 3; i++)
                cr_assert_eq(out[i], i == who ? -1 : 42, "%d destroyed: out[%d]", who, i);
            destroy(3, c);
        }
    struct kolo_comm *c[3] = {NULL};
    int out[3] = {-1, -1, -1};
    create(1, NULL, c);
    begin();
    add_all(c, out, stream);
    kolo_comm_destroy(c[0]);
    end();
    cr_assert_eq(out[0], -1, "nobody is left to run it");
    kolo_stream_destroy(stream);
}

/* ---- order across streams and communicators ---- */

static void *broadcast_late(void *comm)
{
    int v = 42;
    linger();
    EXPECT_OK(kolo_broadcast(&v, &v, 1, KOLO_I32, 1, comm, NULL), comm);
    return NULL;
}

/* x arrives on a stream; the rank sends it to itself: with streams by the bits of `which`. */
static void copy_behind_broadcast(struct kolo_comm **c, struct kolo_stream *s, int which)
{
    int x = 0, y = 0;
    const pthread_t thread = start(broadcast_late, c[1]);
    cr_assert_eq(kolo_broadcast(NULL, &x, 1, KOLO_I32, 1, c[0], s), KOLO_OK);
    begin();
    cr_assert_eq(kolo_send(&x, 1, KOLO_I32, 0, c[0], which & 1 ? s : NULL), KOLO_OK);
    cr_assert_eq(kolo_recv(&y, 1, KOLO_I32, 0, c[0], which & 2 ? s : NULL), KOLO_OK);
    end();
    if (which == 3)
        cr_assert_eq(kolo_stream_synchronize(s), KOLO_OK);
    cr_assert_eq(y, 42, "streams %d: issued behind the broadcast of 42", which);
    cr_assert_eq(kolo_stream_synchronize(s), KOLO_OK);
    join(thread);
}

Test(edges, self_copy_behind_earlier_work)
{
    struct kolo_comm *c[2];
    struct kolo_stream *s = new_stream();
    create(2, NULL, c);
    for (int which = 0; which < 4; which++)
        copy_behind_broadcast(c, s, which);
    destroy(2, c);
    kolo_stream_destroy(s);
}

/* More streams than bits in a word; behind these there is earlier work of another communicator. */
enum { NSTREAMS = 70, NLATE = 4 };
static const int late[NLATE] = {0, 63, 64, 69};

static void *broadcast_all_late(void *comm)
{
    for (int i = 0; i < NLATE; i++) {
        int v = 42 + late[i];
        linger();
        EXPECT_OK(kolo_broadcast(&v, &v, 1, KOLO_I32, 1, comm, NULL), comm);
    }
    return NULL;
}

static void *receive_all(void *comm)
{
    int got[NSTREAMS];
    for (int i = 0; i < NSTREAMS; i++)
        EXPECT_OK(kolo_recv(&got[i], 1, KOLO_I32, 0, comm, NULL), comm);
    for (int i = 0; i < NLATE; i++)
        if (got[late[i]] != 42 + late[i])
            return (void *)ranks_text("stream %d: sent %d before it was there", late[i],
                                      got[late[i]]);
    return NULL;
}

Test(edges, group_over_many_streams)
{
    struct kolo_comm *c[2], *other[2];
    struct kolo_stream *s[NSTREAMS];
    int x[NSTREAMS] = {0};
    create(2, NULL, c);
    create(2, NULL, other);
    for (int i = 0; i < NSTREAMS; i++)
        s[i] = new_stream();
    const pthread_t root = start(broadcast_all_late, other[1]), sink = start(receive_all, c[1]);
    for (int i = 0; i < NLATE; i++)
        cr_assert_eq(kolo_broadcast(NULL, &x[late[i]], 1, KOLO_I32, 1, other[0], s[late[i]]),
                     KOLO_OK);
    begin();
    for (int i = 0; i < NSTREAMS; i++)
        cr_assert_eq(kolo_send(&x[i], 1, KOLO_I32, 1, c[0], s[i]), KOLO_OK);
    end();
    for (int i = 0; i < NSTREAMS; i++)
        cr_assert_eq(kolo_stream_synchronize(s[i]), KOLO_OK);
    join(root);
    join(sink);
    destroy(2, c);
    destroy(2, other);
    for (int i = 0; i < NSTREAMS; i++)
        kolo_stream_destroy(s[i]);
}

/* Two ranks of one thread, two operations each: on a stream or not by the bits of `which`. */
static void mixed_group(struct kolo_comm **c, struct kolo_stream **s, unsigned which)
{
    int a[2] = {1, 2}, sum[2] = {0}, max[2] = {0};
    begin();
    for (int r = 0; r < 2; r++) {
        struct kolo_stream *first = which >> (2 * r) & 1 ? s[r] : NULL,
                           *second = which >> (2 * r) & 2 ? s[r] : NULL;
        cr_assert_eq(kolo_all_reduce(&a[r], &sum[r], 1, KOLO_I32, KOLO_SUM, c[r], first), KOLO_OK);
        cr_assert_eq(kolo_all_reduce(&sum[r], &max[r], 1, KOLO_I32, KOLO_PROD, c[r], second),
                     KOLO_OK);
    }
    end();
    for (int r = 0; r < 2; r++)
        cr_assert_eq(kolo_stream_synchronize(s[r]), KOLO_OK, "%s", kolo_last_error(c[r]));
    for (int r = 0; r < 2; r++)
        cr_assert(sum[r] == 3 && max[r] == 9, "streams %x: rank %d has %d, %d", which, r, sum[r],
                  max[r]);
}

static void same_stream(struct kolo_comm **c, struct kolo_stream *s)
{
    int a[2] = {1, 2}, b[2] = {-1, -1};
    begin();
    for (int r = 0; r < 2; r++)
        cr_assert_eq(kolo_all_reduce(&a[r], &b[r], 1, KOLO_I32, KOLO_SUM, c[r], s), KOLO_OK);
    cr_assert_eq(kolo_group_end(), KOLO_ERR_USAGE);
    cr_assert_not_null(strstr(kolo_last_error(NULL), "stream"), "%s", kolo_last_error(NULL));
    cr_assert_eq(kolo_stream_synchronize(s), KOLO_OK);
    cr_assert(b[0] == -1 && b[1] == -1, "nothing was started");
    cr_assert(kolo_comm_status(c[0]) == KOLO_OK && kolo_comm_status(c[1]) == KOLO_OK);
}

Test(edges, two_ranks_of_one_thread)
{
    struct kolo_config config = KOLO_CONFIG_INIT;
    struct kolo_comm *c[2];
    struct kolo_stream *s[2] = {new_stream(), new_stream()};
    config.timeout_ms = 20000;
    create(2, &config, c);
    for (unsigned which = 0; which < 16; which++)
        mixed_group(c, s, which);
    same_stream(c, s[0]);
    mixed_group(c, s, 9);
    destroy(2, c);
    for (int r = 0; r < 2; r++)
        kolo_stream_destroy(s[r]);
}

/* ---- all_gather_v with gaps ---- */

static const char *send_from_gap(struct kolo_comm *comm, void *arg)
{
    enum { N = 3, BLOCK = 1000, PITCH = 4 * BLOCK };
    static int buffer[N][N * PITCH];
    const int r = kolo_comm_rank(comm), n = kolo_comm_size(comm);
    int *const b = buffer[r], *const send = b + 2 * BLOCK;
    size_t counts[N], displs[N];
    (void)arg;
    for (int k = 0; k < n; k++) {
        counts[k] = BLOCK;
        displs[k] = (size_t)k * PITCH;
    }
    for (int i = 0; i < N * PITCH; i++)
        b[i] = -1;
    for (int i = 0; i < BLOCK; i++)
        send[i] = r * BLOCK + i;
    for (int wrong = -1; wrong <= 1; wrong += 2) { /* reaches into a block below or above */
        const int *const at = b + (wrong < 0 ? BLOCK - 1 : 3 * BLOCK + 1);
        if (kolo_all_gather_v(at, b, counts, displs, KOLO_I32, comm, NULL) != KOLO_ERR_ARG)
            return "an overlap was accepted";
    }
    EXPECT_OK(kolo_all_gather_v(send, b, counts, displs, KOLO_I32, comm, NULL), comm);
    for (int i = 0; i < n * PITCH; i++) {
        const int k = i / PITCH, at = i % PITCH;
        const int want = at < BLOCK                                    ? k * BLOCK + at
                         : k == 0 && at >= 2 * BLOCK && at < 3 * BLOCK ? r * BLOCK + at - 2 * BLOCK
                                                                       : -1;
        if (b[i] != want)
            return ranks_text("element %d is %d, not %d", i, b[i], want);
    }
    return NULL;
}

Test(edges, send_in_a_gap_of_all_gather_v)
{
    check(ranks_threads(2, NULL, send_from_gap, NULL));
    check(ranks_threads(3, NULL, send_from_gap, NULL));
}

/* ---- texts ---- */

static enum kolo_status call_v(int which, const int *in, int *out, struct kolo_comm *comm)
{
    const size_t one = 1;
    switch (which) {
    case 0:
        return kolo_all_to_all_v(in, &one, NULL, out, &one, NULL, KOLO_I32, comm, NULL);
    case 1:
        return kolo_all_gather_v(in, out, &one, NULL, KOLO_I32, comm, NULL);
    default:
        return kolo_reduce_scatter_v(in, out, &one, KOLO_I32, KOLO_SUM, comm, NULL);
    }
}

Test(edges, no_memory_has_a_text)
{
    for (int which = 0; which < 3; which++) {
        struct kolo_comm *c;
        const int in = 42;
        int out = -1, nfailed = 0;
        create(1, NULL, &c);
        enum kolo_status status = KOLO_ERR_NOMEM;
        for (uint64_t nth = 1; status != KOLO_OK; nth++) {
            cr_assert_eq(out, -1);
            mem_fail_at(nth);
            status = call_v(which, &in, &out, c);
            mem_fail_at(0);
            if (status == KOLO_OK)
                break;
            nfailed++;
            cr_assert_eq(status, KOLO_ERR_NOMEM, "call %d, allocation %d", which, nfailed);
            cr_assert(strlen(kolo_last_error(c)) > 0, "call %d, allocation %d", which, nfailed);
        }
        cr_assert_gt(nfailed, 0, "call %d allocated nothing", which);
        cr_assert_eq(out, 42);
        kolo_comm_destroy(c);
    }
}

/* name{label="value",...} number: what stands between the quotes of a label has no quote itself. */
static bool is_metric(const char *line)
{
    const char *at = line + strcspn(line, "{");
    while (*at == '{' || *at == ',') {
        const size_t label = strspn(at + 1, "abcdefghijklmnopqrstuvwxyz_");
        at += 1 + label;
        if (label == 0 || strncmp(at, "=\"", 2) != 0)
            return false;
        at += 2 + strcspn(at + 2, "\"\\");
        if (*at++ != '"')
            return false;
    }
    char *last;
    if (strncmp(at, "} ", 2) != 0)
        return false;
    strtoull(at + 2, &last, 10);
    return last > at + 2 && *last == 0;
}

Test(edges, names_in_metrics)
{
    static const char *const names[] = {"plain", "a\"b", "\"", "a\\", "two\nlines", "\"} 7"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        static char text[1 << 14];
        struct kolo_config config = KOLO_CONFIG_INIT;
        struct kolo_comm *c;
        int v = 1, nlines = 0;
        config.name = names[i];
        create(1, &config, &c);
        cr_assert_eq(kolo_all_reduce(&v, &v, 1, KOLO_I32, KOLO_SUM, c, NULL), KOLO_OK);
        cr_assert_eq(kolo_metrics(c, text, sizeof text, NULL), KOLO_OK);
        for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
            if (*line == '#')
                continue;
            cr_assert(is_metric(line), "name %zu: %s", i, line);
            nlines++;
        }
        cr_assert_gt(nlines, 1);
        kolo_comm_destroy(c);
    }
}
