/* test_fuse.c - groups of small all_reduces that run as one: the results are those of the calls
 * one by one, to the bit; operations that depend on each other; ranks that group differently, die,
 * leave or run out of memory; and that a group which comes again allocates nothing. */
#include "support/edges.h"

#include "cfg.h"
#include "mem.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DO(expr)                                                                                   \
    do {                                                                                           \
        const enum kolo_status status_ = (expr);                                                   \
        if (status_ != KOLO_OK)                                                                    \
            return ranks_text("%s: status %d: %s", #expr, status_, kolo_last_error(comm));         \
    } while (0)

enum { MOST_OPS = 300 };

static uint64_t random_next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* A number of the communicator's metrics. */
static unsigned long long metric(const struct kolo_comm *comm, const char *name)
{
    static _Thread_local char text[32768];
    size_t needed;
    if (kolo_metrics(comm, text, sizeof text, &needed) != KOLO_OK)
        return 0;
    for (const char *at = text; (at = strstr(at, name)); at++)
        if ((at == text || at[-1] == '\n') && strchr(at, '}'))
            return strtoull(strchr(at, '}') + 1, NULL, 10);
    return 0;
}

static unsigned long long fused_operations(const struct kolo_comm *comm)
{
    return metric(comm, "kolo_fused_operations_total{");
}

/* ---- a list of operations, and its memory ---- */

enum memory { PRIVATE, SHARED, MIXED };

struct list {
    int nops;
    int type;
    int op;
    enum memory memory;
    bool in_place; /* every other one */
    bool on_stream;
    uint64_t seed;
    size_t counts[MOST_OPS];
};

struct buffers {
    unsigned char *send[MOST_OPS];
    unsigned char *recv[MOST_OPS];
    unsigned char *want[MOST_OPS];
};

/* Before and behind each buffer; nobody may touch it. */
enum { GUARD = 64, FILL = 0xa5 };

static bool is_shared(const struct list *l, int rank)
{
    return l->memory == SHARED || (l->memory == MIXED && rank % 2 == 0);
}

static unsigned char *reserve(size_t bytes, bool shared)
{
    void *at = NULL;
    if (!shared)
        at = malloc(bytes + 2 * GUARD);
    else if (kolo_mem_alloc(&at, bytes + 2 * GUARD) != KOLO_OK)
        at = NULL;
    if (at)
        memset(at, FILL, bytes + 2 * GUARD);
    return at ? (unsigned char *)at + GUARD : NULL;
}

static void release(unsigned char *at, bool shared)
{
    if (!shared)
        free(at - GUARD);
    else if (kolo_mem_free(at - GUARD) != KOLO_OK)
        abort();
}

static bool is_guarded(const unsigned char *at, size_t bytes)
{
    for (int i = 0; i < GUARD; i++)
        if (at[-1 - i] != FILL || at[bytes + (size_t)i] != FILL)
            return false;
    return true;
}

/* Values whose sum depends on the order of addition, so that equal bits mean an equal order. */
static void fill(unsigned char *at, size_t count, int type, uint64_t *seed)
{
    for (size_t i = 0; i < count; i++) {
        const double x = (double)(random_next(seed) % 200003) / 997.0 - 100.0;
        if (type == KOLO_F32)
            ((float *)(void *)at)[i] = (float)x;
        else if (type == KOLO_F64)
            ((double *)(void *)at)[i] = x;
        else if (type == KOLO_I32)
            ((int32_t *)(void *)at)[i] = (int32_t)random_next(seed);
        else if (type == KOLO_U8)
            at[i] = (unsigned char)random_next(seed);
        else /* f16, bf16: small exponents */
            ((uint16_t *)(void *)at)[i] =
                (uint16_t)((random_next(seed) & 0x83ff) | (type == KOLO_F16 ? 0x3000 : 0x3e00));
    }
}

static bool buffers_make(const struct list *l, int rank, struct buffers *b)
{
    const size_t size = kolo_type_size(l->type);
    uint64_t seed = l->seed * 1000003 + (uint64_t)rank + 1;
    for (int i = 0; i < l->nops; i++) {
        const size_t bytes = l->counts[i] * size;
        b->send[i] = reserve(bytes, is_shared(l, rank));
        b->recv[i] = l->in_place && i % 2 ? b->send[i] : reserve(bytes, is_shared(l, rank));
        b->want[i] = malloc(bytes + 1);
        if (!b->send[i] || !b->recv[i] || !b->want[i])
            return false;
        fill(b->send[i], l->counts[i], l->type, &seed);
    }
    return true;
}

static void buffers_free(const struct list *l, int rank, struct buffers *b)
{
    for (int i = 0; i < l->nops; i++) {
        if (b->recv[i] != b->send[i])
            release(b->recv[i], is_shared(l, rank));
        release(b->send[i], is_shared(l, rank));
        free(b->want[i]);
    }
}

static const char *run_list(struct kolo_comm *comm, const struct list *l, struct buffers *b,
                            struct kolo_stream *stream)
{
    DO(kolo_group_begin());
    for (int i = 0; i < l->nops; i++)
        DO(kolo_all_reduce(l->counts[i] ? b->send[i] : NULL, l->counts[i] ? b->recv[i] : NULL,
                           l->counts[i], l->type, l->op, comm, stream));
    DO(kolo_group_end());
    if (stream)
        DO(kolo_stream_synchronize(stream));
    return NULL;
}

/* The list one by one into `want`, then as a group, twice; everything else stays as it was. */
static const char *compare(struct kolo_comm *comm, const struct list *l)
{
    const size_t size = kolo_type_size(l->type);
    const int r = kolo_comm_rank(comm);
    struct buffers b;
    struct kolo_stream *stream = NULL;
    if (!buffers_make(l, r, &b))
        return "no memory";
    if (l->on_stream)
        DO(kolo_stream_create(&stream));
    for (int i = 0; i < l->nops; i++)
        DO(kolo_all_reduce(b.send[i], b.want[i], l->counts[i], l->type, l->op, comm, NULL));
    for (int round = 0; round < (l->in_place ? 1 : 2); round++) {
        const char *wrong = run_list(comm, l, &b, stream);
        for (int i = 0; i < l->nops && !wrong; i++) {
            const size_t bytes = l->counts[i] * size;
            if (memcmp(b.recv[i], b.want[i], bytes) != 0)
                wrong = ranks_text("operation %d of %d (count %zu, type %d, op %d, memory %d, "
                                   "round %d, seed %llu) differs from the call alone",
                                   i, l->nops, l->counts[i], l->type, l->op, l->memory, round,
                                   (unsigned long long)l->seed);
            else if (!is_guarded(b.recv[i], bytes) || !is_guarded(b.send[i], bytes))
                wrong = ranks_text("operation %d wrote outside its buffers (seed %llu)", i,
                                   (unsigned long long)l->seed);
            if (b.recv[i] != b.send[i])
                memset(b.recv[i], 0x5a, bytes);
        }
        if (wrong)
            return wrong;
    }
    kolo_stream_destroy(stream);
    buffers_free(l, r, &b);
    return NULL;
}

static void random_list(struct list *l, uint64_t *seed)
{
    static const int types[] = {KOLO_F32, KOLO_F64, KOLO_I32, KOLO_U8, KOLO_F16, KOLO_BF16};
    static const int ops[] = {KOLO_SUM, KOLO_MAX, KOLO_AVG, KOLO_MIN};
    l->seed = *seed;
    l->nops = 1 + (int)(random_next(seed) % (random_next(seed) % 4 ? 20 : MOST_OPS - 2));
    l->type = types[random_next(seed) % 6];
    l->op = ops[random_next(seed) % 4];
    l->in_place = random_next(seed) % 2;
    l->on_stream = random_next(seed) % 3 == 0;
    const size_t most = ((size_t)1 << random_next(seed) % 17) / kolo_type_size(l->type);
    for (int i = 0; i < l->nops; i++)
        l->counts[i] = random_next(seed) % 8 == 0 ? 0 : random_next(seed) % (most + 1);
}

static const char *many_lists(struct kolo_comm *comm, void *arg)
{
    const int *rounds = arg;
    uint64_t seed = 77001;
    static _Thread_local struct list l;
    for (int i = 0; i < *rounds; i++) {
        random_list(&l, &seed);
        for (l.memory = PRIVATE; l.memory <= MIXED; l.memory++) {
            const char *const wrong = compare(comm, &l);
            if (wrong)
                return wrong;
        }
    }
    return fused_operations(comm) > 0 ? NULL : "nothing was fused";
}

Test(fuse, equals_the_calls_alone)
{
    struct kolo_config config = KOLO_CONFIG_INIT;
    int rounds = 12;
    config.deterministic = 1;
    for (int n = 2; n <= 5; n++)
        check(ranks_threads(n, &config, many_lists, &rounds));
    rounds = 6;
    check(ranks_processes(2, &config, many_lists, &rounds, -1));
    check(ranks_processes(3, &config, many_lists, &rounds, -1));
    check(ranks_processes(8, &config, many_lists, &rounds, -1));
}

/* The list of the target: gradients of 4 KiB. */
static const char *gradients(struct kolo_comm *comm, void *arg)
{
    static _Thread_local struct list l;
    const bool *must_fuse = arg;
    l = (struct list){.nops = 200, .type = KOLO_F32, .op = KOLO_SUM, .seed = 5};
    for (int i = 0; i < l.nops; i++)
        l.counts[i] = 1024;
    for (l.memory = PRIVATE; l.memory <= MIXED; l.memory++) {
        const char *const wrong = compare(comm, &l);
        if (wrong)
            return wrong;
    }
    const unsigned long long got = fused_operations(comm), want = *must_fuse ? 6 * 200 : 0;
    return got == want ? NULL : ranks_text("%llu operations were fused, not %llu", got, want);
}

Test(fuse, gradients)
{
    struct kolo_config config = KOLO_CONFIG_INIT;
    bool must_fuse = true;
    config.deterministic = 1;
    for (int n = 2; n <= 8; n *= 2)
        check(ranks_processes(n, &config, gradients, &must_fuse, -1));
    setenv("KOLO_FUSE", "0", 1);
    cfg_reset();
    must_fuse = false;
    check(ranks_threads(3, &config, gradients, &must_fuse));
    unsetenv("KOLO_FUSE");
    cfg_reset();
}

/* ---- operations that depend on each other ---- */

enum dependence { READ_WRITTEN, WRITE_READ, WRITE_WRITTEN, OVERLAP, NDEPENDENCES };

/* A chain on the ranks of `who` (all: -1); the others use separate memory for the same calls. */
static const char *chain(struct kolo_comm *comm, void *arg)
{
    enum { N = 600 };
    const int who = *(const int *)arg, r = kolo_comm_rank(comm), n = kolo_comm_size(comm);
    for (int kind = 0; kind < NDEPENDENCES; kind++) {
        int32_t m[4][N], a[2 * N], free_in[2] = {r, r}, free_out[2];
        for (int i = 0; i < N; i++) {
            m[0][i] = a[i] = i % 7 + r;
            m[1][i] = m[2][i] = m[3][i] = i % 5;
        }
        int32_t *in[2] = {m[0], m[1]}, *out[2] = {m[2], m[3]};
        if (who < 0 || who == r) {
            if (kind == READ_WRITTEN)
                in[1] = out[0];
            else if (kind == WRITE_READ)
                out[1] = in[0];
            else if (kind == WRITE_WRITTEN)
                out[1] = out[0];
            else
                in[0] = a, out[1] = a + N / 2;
        }
        DO(kolo_group_begin());
        for (int k = 0; k < 4; k++) /* the first two depend on nothing */
            DO(kolo_all_reduce(k < 2 ? &free_in[k] : in[k - 2], k < 2 ? &free_out[k] : out[k - 2],
                               k < 2 ? 1 : N, KOLO_I32, KOLO_SUM, comm, NULL));
        DO(kolo_group_end());
        const int ranks_sum = n * (n - 1) / 2;
        for (int i = 0; i < N; i++) {
            const int32_t first = n * (i % 7) + ranks_sum;
            const int32_t chained = who < 0 ? n * first : (n - 1) * (i % 5) + first;
            const int32_t second = kind == READ_WRITTEN ? chained : n * (i % 5);
            if (out[1][i] != second || (out[0] != out[1] && out[0][i] != first))
                return ranks_text("dependence %d of rank %d, element %d: %d and %d, not %d and %d",
                                  kind, who, i, out[0][i], out[1][i], first, second);
        }
    }
    return fused_operations(comm) == 0 ? NULL : "what depends was fused";
}

Test(fuse, dependent_operations)
{
    static const int who[] = {-1, 0, 1};
    for (size_t i = 0; i < 3; i++)
        for (int n = 2; n <= 4; n++) {
            int w = who[i];
            check(ranks_threads(n, NULL, chain, &w));
        }
    int w = 1;
    check(ranks_processes(3, NULL, chain, &w, -1));
}

/* Other collectives, types, sizes and messages between them cut the runs, nothing else. */
static const char *between(struct kolo_comm *comm, void *arg)
{
    enum { N = 40, BIG = 40000 };
    const int n = kolo_comm_size(comm), r = kolo_comm_rank(comm);
    static _Thread_local int32_t in[12][N], out[12][N], big[BIG], token, got, sum, gathered[16];
    float f[2] = {1, 2}, g[2];
    (void)arg;
    for (int k = 0; k < 12; k++)
        for (int i = 0; i < N; i++)
            in[k][i] = k * 100 + i;
    token = r;
    for (int i = 0; i < BIG; i++)
        big[i] = i;
    DO(kolo_group_begin());
    DO(kolo_all_reduce(in[0], out[0], N, KOLO_I32, KOLO_SUM, comm, NULL));
    DO(kolo_send(&token, 1, KOLO_I32, (r + 1) % n, comm, NULL));
    for (int k = 1; k < 5; k++)
        DO(kolo_all_reduce(in[k], out[k], N, KOLO_I32, KOLO_SUM, comm, NULL));
    DO(kolo_recv(&got, 1, KOLO_I32, (r + n - 1) % n, comm, NULL));
    DO(kolo_all_gather(&token, gathered, 1, KOLO_I32, comm, NULL));
    for (int k = 5; k < 8; k++)
        DO(kolo_all_reduce(in[k], out[k], N, KOLO_I32, KOLO_MAX, comm, NULL));
    DO(kolo_all_reduce(f, g, 2, KOLO_F32, KOLO_MAX, comm, NULL));
    DO(kolo_all_reduce(big, big, BIG, KOLO_I32, KOLO_SUM, comm, NULL));
    for (int k = 8; k < 12; k++)
        DO(kolo_all_reduce(in[k], out[k], N, KOLO_I32, KOLO_SUM, comm, NULL));
    DO(kolo_barrier(comm, NULL));
    DO(kolo_group_end());
    DO(kolo_all_reduce(&token, &sum, 1, KOLO_I32, KOLO_SUM, comm, NULL));
    for (int k = 0; k < 12; k++)
        for (int i = 0; i < N; i++)
            if (out[k][i] != (k >= 5 && k < 8 ? 1 : n) * (k * 100 + i))
                return ranks_text("operation %d element %d is %d", k, i, out[k][i]);
    for (int i = 0; i < BIG; i++)
        if (big[i] != n * i)
            return ranks_text("big element %d is %d", i, big[i]);
    if (got != (r + n - 1) % n || gathered[n - 1] != n - 1 || sum != n * (n - 1) / 2)
        return ranks_text("got %d, gathered %d, sum %d", got, gathered[n - 1], sum);
    const unsigned long long fused = fused_operations(comm);
    return fused == 9 ? NULL : ranks_text("%llu operations were fused, not 9", fused);
}

Test(fuse, among_other_calls)
{
    for (int n = 2; n <= 5; n++)
        check(ranks_threads(n, NULL, between, NULL));
    check(ranks_processes(3, NULL, between, NULL, -1));
}

/* One thread that drives all ranks. */
Test(fuse, one_thread_drives_all)
{
    enum { OPS = 50, N = 33 };
    static int32_t in[4][OPS][N], out[4][OPS][N];
    struct kolo_comm *comms[4];
    create(4, NULL, comms);
    begin();
    for (int r = 0; r < 4; r++)
        for (int k = 0; k < OPS; k++) {
            for (int i = 0; i < N; i++)
                in[r][k][i] = r + k * i;
            cr_assert_eq(
                kolo_all_reduce(in[r][k], out[r][k], N, KOLO_I32, KOLO_SUM, comms[r], NULL),
                KOLO_OK);
        }
    end();
    for (int r = 0; r < 4; r++) {
        cr_assert_eq(fused_operations(comms[r]), OPS);
        for (int k = 0; k < OPS; k++)
            for (int i = 0; i < N; i++)
                cr_assert_eq(out[r][k][i], 6 + 4 * k * i, "rank %d operation %d element %d", r, k,
                             i);
    }
    destroy(4, comms);
}

/* ---- ranks that do not do the same ---- */

struct differ {
    int odd_nops;      /* of rank 1 in its group; 0: it calls without a group */
    size_t odd_count;  /* of its second operation */
    const char *needs; /* in the text */
};

static const char *call_differently(struct kolo_comm *comm, void *arg)
{
    enum { OPS = 5 };
    const struct differ *d = arg;
    static _Thread_local int32_t in[8][16], out[8][16];
    const bool is_odd = kolo_comm_rank(comm) == 1;
    const int nops = is_odd ? d->odd_nops : OPS;
    enum kolo_status status = KOLO_OK;
    if (nops > 0)
        DO(kolo_group_begin());
    for (int k = 0; k < (nops ? nops : OPS) && status == KOLO_OK; k++)
        status = kolo_all_reduce(in[k], out[k], is_odd && k == 1 ? d->odd_count : 8, KOLO_I32,
                                 KOLO_SUM, comm, NULL);
    if (nops > 0)
        status = kolo_group_end();
    const char *const text = kolo_last_error(comm);
    if (status != KOLO_ERR_MISMATCH)
        return ranks_text("status %d, not MISMATCH: %s", status, text);
    if (!strstr(text, d->needs) || !strstr(text, "a group of 5 all_reduce(") ||
        !strstr(text, "as operations 0 to 4"))
        return ranks_text("the text does not name both calls: %s", text);
    return NULL;
}

Test(fuse, ranks_group_differently)
{
    static struct differ cases[] = {
        {0, 8, "calls all_reduce(count 8, i32, sum) as operation 0"},
        {1, 8, "calls all_reduce(count 8, i32, sum) as operation 0"},
        {4, 8, "a group of 4 all_reduce("},
        {6, 8, "a group of 6 all_reduce("},
        {5, 7, "a group of 5 all_reduce("},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (int n = 2; n <= 3; n++)
            check(ranks_threads(n, NULL, call_differently, &cases[i]));
    check(ranks_processes(2, NULL, call_differently, &cases[0], -1));
    check(ranks_processes(3, NULL, call_differently, &cases[3], -1));
}

/* ---- failures in the middle ---- */

static int32_t much_in[MOST_OPS][4096], much_out[MOST_OPS][4096];

static enum kolo_status much(struct kolo_comm *comm)
{
    enum kolo_status status = kolo_group_begin();
    for (int k = 0; k < MOST_OPS && status == KOLO_OK; k++)
        status = kolo_all_reduce(much_in[k], much_out[k], 4096, KOLO_I32, KOLO_SUM, comm, NULL);
    const enum kolo_status ended = kolo_group_end();
    return status != KOLO_OK ? status : ended;
}

static void *kill_soon(void *arg)
{
    usleep(*(const unsigned *)arg);
    kill(getpid(), SIGKILL);
    return NULL;
}

static const char *die_in_group(struct kolo_comm *comm, void *arg)
{
    enum kolo_status status = KOLO_OK;
    pthread_t thread;
    if (kolo_comm_rank(comm) == 1 && pthread_create(&thread, NULL, kill_soon, arg) != 0)
        return "no thread";
    while (status == KOLO_OK)
        status = much(comm);
    return status == KOLO_ERR_PEER_LOST && strstr(kolo_last_error(comm), "rank 1 (pid")
               ? NULL
               : ranks_text("status %d: %s", status, kolo_last_error(comm));
}

Test(fuse, dead_rank)
{
    unsigned delay_us = 3000;
    for (int n = 2; n <= 4; n++, delay_us += 1777)
        check(ranks_processes(n, NULL, die_in_group, &delay_us, 1));
}

static void *abort_comm(void *comm)
{
    usleep(3000);
    kolo_comm_abort(comm);
    return NULL;
}

static const char *abort_in_group(struct kolo_comm *comm, void *arg)
{
    enum kolo_status status = KOLO_OK;
    pthread_t thread;
    (void)arg;
    const bool is_me = kolo_comm_rank(comm) == 0;
    if (is_me && pthread_create(&thread, NULL, abort_comm, comm) != 0)
        return "no thread";
    while (status == KOLO_OK)
        status = much(comm);
    if (is_me)
        pthread_join(thread, NULL);
    return status == KOLO_ERR_ABORTED ? NULL
                                      : ranks_text("status %d: %s", status, kolo_last_error(comm));
}

static enum kolo_status few(struct kolo_comm *comm)
{
    enum kolo_status status = kolo_group_begin();
    for (int k = 0; k < 5 && status == KOLO_OK; k++)
        status = kolo_all_reduce(much_in[k], much_out[k], 4, KOLO_I32, KOLO_SUM, comm, NULL);
    const enum kolo_status ended = kolo_group_end();
    return status != KOLO_OK ? status : ended;
}

/* Rank 1 comes much later than the deadline. */
static const char *come_late(struct kolo_comm *comm, void *arg)
{
    (void)arg;
    const enum kolo_status first = few(comm);
    if (kolo_comm_rank(comm) == 1)
        usleep(900000);
    const enum kolo_status second = few(comm);
    const char *const text = kolo_last_error(comm);
    return first == KOLO_OK && second == KOLO_ERR_TIMEOUT && strstr(text, "a group of 5 all_red") &&
                   strstr(text, "rank 1 (pid") && strstr(text, "has not entered it")
               ? NULL
               : ranks_text("status %d, %d: %s", first, second, text);
}

Test(fuse, abort_and_timeout)
{
    struct kolo_config config = KOLO_CONFIG_INIT;
    check(ranks_processes(3, NULL, abort_in_group, NULL, -1));
    config.timeout_ms = 300;
    check(ranks_processes(2, &config, come_late, NULL, -1));
}

/* ---- memory ---- */

static const char *steady(struct kolo_comm *comm, void *on_stream)
{
    static _Thread_local int32_t in[MOST_OPS][64], out[MOST_OPS][64];
    struct kolo_stream *stream = NULL;
    uint64_t before = 0;
    if (on_stream)
        DO(kolo_stream_create(&stream));
    for (int round = 0; round < 6; round++) {
        if (round == 3) {
            DO(kolo_barrier(comm, NULL));
            before = mem_count();
            DO(kolo_barrier(comm, NULL));
        }
        for (int half = 0; half < 2; half++) { /* two lists by turns */
            DO(kolo_group_begin());
            for (int k = half; k < MOST_OPS; k++)
                DO(kolo_all_reduce(in[k], out[k], 64, KOLO_I32, KOLO_SUM, comm, stream));
            DO(kolo_group_end());
            /* At first more groups wait on the stream than ever later. */
            if (stream && round >= 2)
                DO(kolo_stream_synchronize(stream));
        }
    }
    DO(kolo_barrier(comm, NULL));
    const uint64_t more = mem_count() - before;
    kolo_stream_destroy(stream);
    return more == 0 ? NULL : ranks_text("%llu allocations", (unsigned long long)more);
}

Test(fuse, steady_groups_make_nothing)
{
    static char yes;
    check(ranks_threads(2, NULL, steady, NULL));
    check(ranks_threads(2, NULL, steady, &yes));
}

/* More lists than are kept, several in one group. */
static const char *many_buckets(struct kolo_comm *comm, void *arg)
{
    enum { LISTS = 90 };
    static _Thread_local int32_t in[4][64], out[4][64];
    const int n = kolo_comm_size(comm);
    (void)arg;
    for (int round = 0; round < 3; round++) {
        DO(kolo_group_begin());
        for (int i = 0; i < LISTS; i++) {
            const size_t count = 1 + (size_t)(i + round * 7) % 60;
            for (int k = 0; k < 4; k++)
                DO(kolo_all_reduce(in[k], out[k], count, KOLO_I32, i % 2 ? KOLO_SUM : KOLO_MAX,
                                   comm, NULL));
        }
        for (int k = 0; k < 4; k++)
            for (int i = 0; i < 64; i++)
                in[k][i] = k + i, out[k][i] = -1;
        DO(kolo_group_end());
        const size_t last = 1 + (size_t)(LISTS - 1 + round * 7) % 60;
        for (int k = 0; k < 4; k++)
            for (size_t i = 0; i < last; i++)
                if (out[k][i] != n * (k + (int)i))
                    return ranks_text("round %d element %zu is %d", round, i, out[k][i]);
    }
    return NULL;
}

Test(fuse, many_buckets)
{
    check(ranks_threads(2, NULL, many_buckets, NULL));
    check(ranks_threads(3, NULL, many_buckets, NULL));
}

static void *little_group(void *comm)
{
    int32_t in[4] = {1, 2, 3, 4}, out[4];
    enum kolo_status status = kolo_group_begin();
    for (int k = 0; k < 4 && status == KOLO_OK; k++)
        status = kolo_all_reduce(&in[k], &out[k], 1, KOLO_I32, KOLO_SUM, comm, NULL);
    const enum kolo_status ended = kolo_group_end();
    static const char good[] = "good", none[] = "no memory";
    if (status == KOLO_OK && ended == KOLO_OK)
        return (void *)(uintptr_t)(out[0] == 2 && out[1] == 4 && out[2] == 6 && out[3] == 8
                                       ? good
                                       : "wrong");
    kolo_comm_abort(comm); /* it may have failed before its group had begun: nobody else knows */
    return (void *)(uintptr_t)none;
}

/* The nth allocation fails on one of two ranks: both end, neither is wrong. */
Test(fuse, out_of_memory)
{
    bool was_good = false;
    for (uint64_t nth = 1; nth < 200 && !was_good; nth++) {
        struct kolo_comm *comms[2];
        create(2, NULL, comms);
        mem_fail_at(nth);
        const pthread_t thread = start(little_group, comms[1]);
        const char *mine = little_group(comms[0]);
        void *theirs;
        pthread_join(thread, &theirs);
        mem_fail_at(0);
        was_good = strcmp(mine, "good") == 0 && strcmp(theirs, "good") == 0;
        cr_assert(strcmp(mine, "wrong") != 0 && strcmp(theirs, "wrong") != 0, "allocation %d",
                  (int)nth);
        destroy(2, comms);
    }
    cr_assert(was_good, "never enough memory");
}
