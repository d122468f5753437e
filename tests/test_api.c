/* test_api.c - the door: every wrong argument gives a status of the call group with a text that
 * names it, starts nothing and changes nothing; zero counts with NULL; one rank alone; split;
 * premultiplied sums; memory; looking in; failing each allocation in turn. */
#include "cfg.h"
#include "mem.h"
#include "support/check.h"

#include <stdio.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static struct kolo_comm *alone(void)
{
    struct kolo_comm *comm = NULL;
    const enum kolo_status status = kolo_comm_create_local(1, NULL, &comm);
    cr_assert_eq(status, KOLO_OK, "%s", kolo_last_error(NULL));
    return comm;
}

/* Expect ARG, and a text that has each of the words. */
static void expect(struct kolo_comm *comm, enum kolo_status status, const char *word,
                   const char *where)
{
    cr_assert_eq(status, KOLO_ERR_ARG, "%s: status %d", where, status);
    cr_assert(strstr(kolo_last_error(comm), word) != NULL, "%s: '%s' lacks '%s'", where,
              kolo_last_error(comm), word);
    cr_assert_eq(kolo_comm_status(comm), KOLO_OK, "%s: the communicator was damaged", where);
}
#define EXPECT(word, call) expect(comm, (call), word, #call)

Test(api, wrong_arguments)
{
    struct kolo_comm *comm = alone();
    float a[8] = {1}, b[8] = {0};
    const size_t huge = SIZE_MAX / 2;
    size_t counts[1] = {3};
    EXPECT("type", kolo_all_reduce(a, b, 8, -1, KOLO_SUM, comm, NULL));
    EXPECT("type", kolo_all_reduce(a, b, 8, KOLO_NTYPES, KOLO_SUM, comm, NULL));
    EXPECT("op", kolo_all_reduce(a, b, 8, KOLO_F32, -1, comm, NULL));
    EXPECT("op", kolo_all_reduce(a, b, 8, KOLO_F32, KOLO_NOPS, comm, NULL));
    EXPECT("handle", kolo_all_reduce(a, b, 8, KOLO_F32, KOLO_OP_FIRST_CUSTOM, comm, NULL));
    EXPECT("bitwise", kolo_all_reduce(a, b, 8, KOLO_F32, KOLO_BXOR, comm, NULL));
    EXPECT("send is NULL", kolo_all_reduce(NULL, b, 8, KOLO_F32, KOLO_SUM, comm, NULL));
    EXPECT("recv is NULL", kolo_all_reduce(a, NULL, 8, KOLO_F32, KOLO_SUM, comm, NULL));
    EXPECT("overflow", kolo_all_reduce(a, b, huge, KOLO_F32, KOLO_SUM, comm, NULL));
    EXPECT("overlap", kolo_all_reduce(a, a + 1, 4, KOLO_F32, KOLO_SUM, comm, NULL));
    EXPECT("root", kolo_broadcast(a, b, 8, KOLO_F32, 1, comm, NULL));
    EXPECT("root", kolo_broadcast(a, b, 8, KOLO_F32, -1, comm, NULL));
    EXPECT("root", kolo_reduce(a, b, 8, KOLO_F32, KOLO_SUM, 7, comm, NULL));
    EXPECT("root", kolo_gather(a, b, 8, KOLO_F32, 7, comm, NULL));
    EXPECT("root", kolo_scatter(a, b, 8, KOLO_F32, 7, comm, NULL));
    EXPECT("peer", kolo_send(a, 8, KOLO_F32, 1, comm, NULL));
    EXPECT("peer", kolo_recv(a, 8, KOLO_F32, -2, comm, NULL));
    EXPECT("send is NULL", kolo_broadcast(NULL, b, 8, KOLO_F32, 0, comm, NULL));
    EXPECT("overlap", kolo_all_gather(a + 2, a, 4, KOLO_F32, comm, NULL));
    EXPECT("overlap", kolo_all_to_all(a + 2, a, 4, KOLO_F32, comm, NULL));
    EXPECT("counts", kolo_all_gather_v(a, b, NULL, NULL, KOLO_F32, comm, NULL));
    EXPECT("counts", kolo_reduce_scatter_v(a, b, NULL, KOLO_F32, KOLO_SUM, comm, NULL));
    EXPECT("counts", kolo_all_to_all_v(a, counts, NULL, b, NULL, NULL, KOLO_F32, comm, NULL));
    EXPECT("NULL", kolo_all_gather_v(NULL, b, counts, NULL, KOLO_F32, comm, NULL));
    EXPECT("overlap", kolo_all_gather_v(b + 1, b, counts, NULL, KOLO_F32, comm, NULL));
    counts[0] = huge;
    EXPECT("overflow", kolo_all_gather_v(a, b, counts, NULL, KOLO_F32, comm, NULL));
    cr_assert_eq(b[0], 0, "a refused call wrote its output");
    kolo_comm_destroy(comm);

    cr_assert_eq(kolo_all_reduce(a, b, 8, KOLO_F32, KOLO_SUM, NULL, NULL), KOLO_ERR_ARG,
                 "comm NULL");
    cr_assert(strstr(kolo_last_error(NULL), "comm is NULL") != NULL, "%s", kolo_last_error(NULL));
    cr_assert_eq(kolo_barrier(NULL, NULL), KOLO_ERR_ARG, "comm NULL");
}

static const char *receive_blocks_overlap(struct kolo_comm *comm, void *arg)
{
    float a[4] = {0}, b[8] = {0};
    const size_t counts[2] = {2, 2}, displs[2] = {1, 0}, fine[2] = {3, 0};
    (void)arg;
    if (kolo_all_gather_v(a, b, counts, displs, KOLO_F32, comm, NULL) != KOLO_ERR_ARG)
        return "overlapping blocks were accepted";
    if (!strstr(kolo_last_error(comm), "ranks 0 and 1 overlap"))
        return kolo_last_error(comm);
    return kolo_all_gather_v(a, b, counts, fine, KOLO_F32, comm, NULL) == KOLO_OK
               ? NULL
               : "blocks out of order were refused";
}

Test(api, receive_blocks)
{
    check(ranks_threads(2, NULL, receive_blocks_overlap, NULL));
}

Test(api, wrong_creation)
{
    struct kolo_comm *comm = (struct kolo_comm *)&comm, *const before = comm;
    struct kolo_unique_id id;
    struct kolo_config config = KOLO_CONFIG_INIT;
    memset(&id, 0x5a, sizeof id);
    cr_assert_eq(kolo_comm_create(NULL, 0, 1, NULL, &comm), KOLO_ERR_ARG, "id NULL");
    cr_assert_eq(kolo_comm_create(&id, 0, 1, NULL, NULL), KOLO_ERR_ARG, "comm NULL");
    cr_assert_eq(kolo_comm_create(&id, 0, 0, NULL, &comm), KOLO_ERR_ARG, "no ranks");
    cr_assert_eq(kolo_comm_create(&id, 2, 2, NULL, &comm), KOLO_ERR_ARG, "rank beyond");
    cr_assert_eq(kolo_comm_create(&id, -1, 2, NULL, &comm), KOLO_ERR_ARG, "rank below");
    cr_assert_eq(kolo_comm_create(&id, 0, 1, NULL, &comm), KOLO_ERR_ARG, "garbage id: %s",
                 kolo_last_error(NULL));
    cr_assert_eq(kolo_comm_create_local(0, NULL, &comm), KOLO_ERR_ARG, "no ranks");
    cr_assert_eq(kolo_comm_create_local(1, NULL, NULL), KOLO_ERR_ARG, "comms NULL");
    config.size = 3;
    cr_assert_eq(kolo_comm_create_local(1, &config, &comm), KOLO_ERR_ARG, "size of config");
    cr_assert(strstr(kolo_last_error(NULL), "KOLO_CONFIG_INIT") != NULL, "%s",
              kolo_last_error(NULL));
    config = (struct kolo_config)KOLO_CONFIG_INIT;
    config.place = 0;
    cr_assert_eq(kolo_comm_create_local(1, &config, &comm), KOLO_ERR_UNSUPPORTED, "device");
    config = (struct kolo_config)KOLO_CONFIG_INIT;
    config.plan_file = "/nonexistent/plans";
    cr_assert_neq(kolo_comm_create_local(1, &config, &comm), KOLO_OK, "missing plan file");
    cr_assert_eq(kolo_unique_id_create(NULL), KOLO_ERR_ARG, "id NULL");
    cr_assert_eq(comm, before, "an output was written on failure");
    kolo_comm_destroy(NULL);
    kolo_comm_abort(NULL);
    cr_assert_eq(kolo_comm_rank(NULL), -1, "rank of NULL");
    cr_assert_eq(kolo_comm_status(NULL), KOLO_ERR_ARG, "status of NULL");
}

Test(api, environment_nonsense)
{
    struct kolo_comm *comm;
    setenv("KOLO_TIMEUOT", "1", 1);
    cfg_reset();
    cr_assert_eq(kolo_comm_create_local(1, NULL, &comm), KOLO_ERR_ARG, "unknown name");
    cr_assert(strstr(kolo_last_error(NULL), "KOLO_TIMEOUT") != NULL, "%s", kolo_last_error(NULL));
    unsetenv("KOLO_TIMEUOT");
    cfg_reset();
}

/* ---- nothing to do ---- */

static const char *zero_counts(struct kolo_comm *comm, void *arg)
{
    const size_t none[8] = {0};
    (void)arg;
    enum kolo_status s = KOLO_OK;
    for (int root = 0; root < kolo_comm_size(comm) && s == KOLO_OK; root++) {
        s = s ? s : kolo_all_reduce(NULL, NULL, 0, KOLO_F32, KOLO_SUM, comm, NULL);
        s = s ? s : kolo_reduce_scatter(NULL, NULL, 0, KOLO_F32, KOLO_SUM, comm, NULL);
        s = s ? s : kolo_all_gather(NULL, NULL, 0, KOLO_F32, comm, NULL);
        s = s ? s : kolo_all_to_all(NULL, NULL, 0, KOLO_F32, comm, NULL);
        s = s ? s : kolo_broadcast(NULL, NULL, 0, KOLO_F32, root, comm, NULL);
        s = s ? s : kolo_reduce(NULL, NULL, 0, KOLO_F32, KOLO_SUM, root, comm, NULL);
        s = s ? s : kolo_gather(NULL, NULL, 0, KOLO_F32, root, comm, NULL);
        s = s ? s : kolo_scatter(NULL, NULL, 0, KOLO_F32, root, comm, NULL);
        s = s ? s : kolo_reduce_scatter_v(NULL, NULL, none, KOLO_F32, KOLO_SUM, comm, NULL);
        s = s ? s : kolo_all_gather_v(NULL, NULL, none, NULL, KOLO_F32, comm, NULL);
        s = s ? s : kolo_all_to_all_v(NULL, none, NULL, NULL, none, NULL, KOLO_F32, comm, NULL);
    }
    return s == KOLO_OK ? NULL : kolo_last_error(comm);
}

Test(api, zero_counts)
{
    for (int n = 1; n <= 5; n++)
        check(ranks_threads(n, NULL, zero_counts, NULL));
    check(ranks_processes(3, NULL, zero_counts, NULL, -1));
}

/* ---- pre-multiplied sums ---- */

static const char *premul(struct kolo_comm *comm, void *arg)
{
    const int n = kolo_comm_size(comm), r = kolo_comm_rank(comm);
    const float scalar = (float)(r + 2);
    float in[500], out[500], want = 0;
    int op = -1;
    (void)arg;
    for (int i = 0; i < 500; i++)
        in[i] = (float)(r + 1);
    for (int k = 0; k < n; k++)
        want += (float)(k + 1) * (float)(k + 2);
    if (kolo_op_create_premul_sum(&scalar, KOLO_F32, comm, &op) != KOLO_OK)
        return kolo_last_error(comm);
    for (size_t count = 1; count <= 500; count += 499) {
        if (kolo_all_reduce(in, out, count, KOLO_F32, op, comm, NULL) != KOLO_OK)
            return kolo_last_error(comm);
        for (size_t i = 0; i < count; i++)
            if (out[i] != want)
                return ranks_text("%g, not %g", (double)out[i], (double)want);
    }
    double wrong_type[2] = {0};
    if (kolo_all_reduce(wrong_type, wrong_type, 1, KOLO_F64, op, comm, NULL) != KOLO_ERR_ARG)
        return "a sum of f32 was accepted for f64";
    if (kolo_op_destroy(op, comm) != KOLO_OK || kolo_op_destroy(op, comm) != KOLO_ERR_ARG ||
        kolo_all_reduce(in, out, 1, KOLO_F32, op, comm, NULL) != KOLO_ERR_ARG)
        return "a destroyed handle lives on";
    return NULL;
}

Test(api, premultiplied_sum)
{
    for (int n = 1; n <= 4; n++)
        check(ranks_threads(n, NULL, premul, NULL));
}

/* ---- split ---- */

static const char *split(struct kolo_comm *comm, void *arg)
{
    const int n = kolo_comm_size(comm), r = kolo_comm_rank(comm);
    struct kolo_comm *half = NULL, *again = NULL;
    (void)arg;
    /* Odd and even, in reverse order; the last rank stays out. */
    const int color = r == n - 1 ? KOLO_SPLIT_NONE : r % 2;
    if (kolo_comm_split(comm, color, -r, NULL, &half) != KOLO_OK)
        return kolo_last_error(comm);
    if ((color == KOLO_SPLIT_NONE) != (half == NULL))
        return "only the rank without color has no communicator";
    if (half) {
        int32_t mine = r, all[16];
        if (kolo_all_gather(&mine, all, 1, KOLO_I32, half, NULL) != KOLO_OK)
            return kolo_last_error(half);
        for (int i = 0; i < kolo_comm_size(half); i++)
            if (all[i] % 2 != color || (i > 0 && all[i] >= all[i - 1]))
                return ranks_text("member %d is rank %d", i, all[i]);
        if (all[kolo_comm_rank(half)] != r)
            return "the own rank is wrong";
        if (kolo_comm_split(half, 0, 0, NULL, &again) != KOLO_OK)
            return kolo_last_error(half);
    }
    kolo_comm_destroy(half);
    if (again && kolo_barrier(again, NULL) != KOLO_OK)
        return kolo_last_error(again);
    kolo_comm_destroy(again);
    if (kolo_comm_split(comm, -2, 0, NULL, &half) != KOLO_ERR_ARG)
        return "color -2 was accepted";
    return kolo_barrier(comm, NULL) == KOLO_OK ? NULL : kolo_last_error(comm);
}

Test(api, split)
{
    check(ranks_threads(1, NULL, split, NULL));
    check(ranks_threads(5, NULL, split, NULL));
    check(ranks_processes(4, NULL, split, NULL, -1));
}

/* ---- memory ---- */

Test(api, memory)
{
    void *a = NULL, *b = NULL, *c = NULL, *handle;
    struct kolo_comm *comm = alone();
    cr_assert_eq(kolo_mem_alloc(&a, 5 << 20), KOLO_OK, "%s", kolo_last_error(NULL));
    cr_assert_eq(kolo_mem_alloc(&b, 1), KOLO_OK, "%s", kolo_last_error(NULL));
    cr_assert_eq((uintptr_t)a % 4096 + (uintptr_t)b % 4096, 0, "page aligned");
    memset(a, 0xee, 5 << 20);
    cr_assert_eq(kolo_mem_free(a), KOLO_OK, "free");
    cr_assert_eq(kolo_mem_free(a), KOLO_ERR_ARG, "double free");
    cr_assert_eq(kolo_mem_free(&a), KOLO_ERR_ARG, "not ours");
    cr_assert_eq(kolo_mem_free(NULL), KOLO_OK, "NULL");
    cr_assert_eq(kolo_mem_alloc(&c, 5 << 20), KOLO_OK, "again");
    for (int i = 0; i < 5 << 20; i++)
        cr_assert_eq(((unsigned char *)c)[i], 0, "byte %d of new memory is not zero", i);
    cr_assert_eq(kolo_mem_alloc(&a, SIZE_MAX / 2), KOLO_ERR_NOMEM, "too much");
    cr_assert_eq(kolo_mem_alloc(NULL, 1), KOLO_ERR_ARG, "NULL");
    cr_assert_eq(kolo_comm_register(comm, c, 100, &handle), KOLO_OK, "register");
    cr_assert_eq(kolo_comm_deregister(comm, handle), KOLO_OK, "deregister");
    cr_assert_eq(kolo_comm_deregister(comm, handle), KOLO_ERR_ARG, "twice");
    kolo_comm_destroy(comm);
    cr_assert_eq(kolo_mem_free(b), KOLO_OK, "free");
    cr_assert_eq(kolo_mem_free(c), KOLO_OK, "free");
}

/* ---- looking in ---- */

Test(api, texts_that_do_not_fit)
{
    struct kolo_comm *comm = alone();
    char small[10], *large;
    size_t needed = 0;
    for (int topic = KOLO_TOPIC_BUILD; topic <= KOLO_TOPIC_TUNE; topic++) {
        memset(small, 'x', sizeof small);
        cr_assert_eq(kolo_describe((enum kolo_topic)topic, small, 5, &needed), KOLO_OK, "topic %d",
                     topic);
        cr_assert_eq(small[4], 0, "terminated");
        cr_assert_eq(small[5], 'x', "not beyond its size");
        large = malloc(needed);
        cr_assert_eq(kolo_describe((enum kolo_topic)topic, large, needed, NULL), KOLO_OK,
                     "topic %d", topic);
        cr_assert_eq(strlen(large) + 1, needed, "topic %d: needed is exact", topic);
        free(large);
    }
    cr_assert_eq(kolo_describe((enum kolo_topic)99, NULL, 0, &needed), KOLO_ERR_ARG,
                 "no such topic");
    cr_assert_eq(kolo_metrics(comm, NULL, 0, &needed), KOLO_OK, "metrics");
    cr_assert_eq(kolo_barrier(comm, NULL), KOLO_OK, "barrier");
    char text[4096];
    cr_assert_eq(kolo_record_dump(comm, text, sizeof text, NULL), KOLO_OK, "record");
    cr_assert(strstr(text, "barrier") != NULL, "the recorder shows the barrier: %s", text);
    cr_assert_eq(kolo_metrics(comm, text, sizeof text, NULL), KOLO_OK, "metrics");
    cr_assert(strstr(text, "op=\"barrier\"} 1") != NULL, "one barrier was counted: %s", text);
    kolo_comm_destroy(comm);
}

Test(api, explain)
{
    struct kolo_query q = {sizeof q, KOLO_COLL_ALL_REDUCE, 7, 3, 0, 1000, KOLO_F32, KOLO_SUM, NULL};
    static char text[1 << 20];
    for (q.coll = 0; q.coll < KOLO_NCOLLS; q.coll++)
        cr_assert_eq(kolo_explain(NULL, &q, text, sizeof text, NULL), KOLO_OK, "%s: %s",
                     kolo_coll_name(q.coll), kolo_last_error(NULL));
    q.coll = KOLO_COLL_ALL_REDUCE;
    q.algo = "ring";
    cr_assert_eq(kolo_explain(NULL, &q, text, sizeof text, NULL), KOLO_OK, "ring");
    cr_assert(strstr(text, "ring") != NULL, "%s", text);
    q.algo = "no such";
    cr_assert_eq(kolo_explain(NULL, &q, text, sizeof text, NULL), KOLO_ERR_ARG,
                 "unknown algorithm");
    q.size = 1;
    cr_assert_eq(kolo_explain(NULL, &q, text, sizeof text, NULL), KOLO_ERR_ARG, "size of query");
}

/* ---- out of memory at every point ---- */

static enum kolo_status create_use_destroy(void)
{
    struct kolo_comm *comms[3];
    float a[2] = {1, 2}, b[3][2];
    enum kolo_status status = kolo_comm_create_local(3, NULL, comms);
    if (status != KOLO_OK)
        return status;
    status = kolo_group_begin();
    for (int r = 0; r < 3 && status == KOLO_OK; r++)
        status = kolo_all_reduce(a, b[r], 2, KOLO_F32, KOLO_SUM, comms[r], NULL);
    const enum kolo_status ended = kolo_group_end();
    status = status != KOLO_OK ? status : ended;
    if (status == KOLO_OK && b[2][1] != 6)
        status = KOLO_ERR_INTERNAL;
    for (int r = 0; r < 3; r++)
        kolo_comm_destroy(comms[r]);
    return status;
}

Test(api, every_allocation_fails_once)
{
    cr_assert_eq(create_use_destroy(), KOLO_OK, "%s", kolo_last_error(NULL));
    const int64_t before = mem_live();
    uint64_t nth = 1;
    for (;; nth++) {
        mem_fail_at(nth);
        const enum kolo_status status = create_use_destroy();
        mem_fail_at(0);
        cr_assert_eq(mem_live(), before, "allocation %llu failing leaks", (unsigned long long)nth);
        if (status == KOLO_OK)
            break;
        cr_assert_eq(status, KOLO_ERR_NOMEM, "allocation %llu: status %d: %s",
                     (unsigned long long)nth, status, kolo_last_error(NULL));
        cr_assert_lt(nth, 2000u, "never succeeds");
    }
    cr_assert_gt(nth, 20u, "the hook was reached");
}

/* In the steady state an operation allocates nothing, blocking or on a stream.  Before it, some are
 * in flight at once: a worker may still hold the ticket of an operation that is already done. */
static const char *steady(struct kolo_comm *comm, void *arg)
{
    float a[64] = {0}, b[64];
    struct kolo_stream *stream = NULL;
    if (arg && kolo_stream_create(&stream) != KOLO_OK)
        return "stream";
    uint64_t before = 0;
    for (int i = 0; i < 300; i++) {
        if (i == 200) {
            if (kolo_barrier(comm, NULL) != KOLO_OK)
                return kolo_last_error(comm);
            before = mem_count();
        }
        const bool waits = stream && (i >= 100 || i % 4 == 3);
        if (kolo_all_reduce(a, b, 64, KOLO_F32, KOLO_SUM, comm, stream) != KOLO_OK ||
            (waits && kolo_stream_synchronize(stream) != KOLO_OK))
            return kolo_last_error(comm);
    }
    if (mem_count() != before)
        return ranks_text("%llu allocations in 100 operations",
                          (unsigned long long)(mem_count() - before));
    if (kolo_barrier(comm, NULL) != KOLO_OK)
        return kolo_last_error(comm);
    kolo_stream_destroy(stream);
    return NULL;
}

Test(api, steady_state_allocates_nothing)
{
    static char yes;
    check(ranks_threads(1, NULL, steady, NULL));
    check(ranks_processes(2, NULL, steady, NULL, -1));
    check(ranks_processes(2, NULL, steady, &yes, -1));
}
