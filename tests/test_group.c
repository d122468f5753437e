/* test_group.c - send, receive and groups: exchanges that would deadlock one by one, many
 * messages on one link, a rank with itself, one thread that drives all ranks, streams, and
 * misuse. */
#include "support/check.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define DO(expr)                                                                                   \
    do {                                                                                           \
        const enum kolo_status status_ = (expr);                                                   \
        if (status_ != KOLO_OK)                                                                    \
            return ranks_text("%s: status %d: %s", #expr, status_, kolo_last_error(comm));         \
    } while (0)

static int32_t word(int from, int to, size_t i)
{
    return (int32_t)((size_t)from * 1000003 + (size_t)to * 10007 + i);
}

static int32_t *make(size_t n)
{
    return malloc((n ? n : 1) * sizeof(int32_t));
}

/* Everybody sends to everybody, also to itself; sizes differ, some are zero. */
static size_t size_between(int from, int to)
{
    static const size_t sizes[] = {0, 1, 12, 13, 600, 20000, 70000};
    return sizes[(size_t)(from * 3 + to) % 7];
}

static const char *exchange(struct kolo_comm *comm, void *stream_wanted)
{
    const int n = kolo_comm_size(comm), r = kolo_comm_rank(comm);
    int32_t *out[16], *in[16];
    struct kolo_stream *stream = NULL;
    if (stream_wanted)
        DO(kolo_stream_create(&stream));
    DO(kolo_group_begin());
    for (int p = 0; p < n; p++) {
        const size_t send = size_between(r, p), recv = size_between(p, r);
        out[p] = make(send);
        in[p] = make(recv);
        for (size_t i = 0; i < send; i++)
            out[p][i] = word(r, p, i);
        DO(kolo_send(send ? out[p] : NULL, send, KOLO_I32, p, comm, stream));
        DO(kolo_recv(recv ? in[p] : NULL, recv, KOLO_I32, p, comm, stream));
    }
    DO(kolo_group_end());
    if (stream)
        DO(kolo_stream_synchronize(stream));
    for (int p = 0; p < n; p++) {
        for (size_t i = 0; i < size_between(p, r); i++)
            if (in[p][i] != word(p, r, i))
                return ranks_text("from %d: word %zu is %d", p, i, in[p][i]);
        free(in[p]);
        free(out[p]);
    }
    kolo_stream_destroy(stream);
    return NULL;
}

Test(group, everybody_with_everybody)
{
    static char yes;
    static const int ranks[] = {1, 2, 3, 7};
    for (size_t i = 0; i < 4; i++) {
        check(ranks_threads(ranks[i], NULL, exchange, NULL));
        check(ranks_threads(ranks[i], NULL, exchange, &yes));
    }
    check(ranks_processes(3, NULL, exchange, NULL, -1));
    check(ranks_processes(2, NULL, exchange, &yes, -1));
}

/* Order of issue on one link, more messages than the link holds, with and without groups. */
static const char *many_messages(struct kolo_comm *comm, void *grouped)
{
    enum { MESSAGES = 200 };
    const int r = kolo_comm_rank(comm), peer = r ^ 1;
    static int32_t data[2][MESSAGES][40];
    if (grouped)
        DO(kolo_group_begin());
    for (int i = 0; i < MESSAGES; i++) {
        const size_t count = (size_t)(i % 40) + 1;
        for (size_t k = 0; k < count && r == 0; k++)
            data[0][i][k] = word(i, 1, k);
        if (r == 0)
            DO(kolo_send(data[0][i], count, KOLO_I32, peer, comm, NULL));
        else
            DO(kolo_recv(data[1][i], count, KOLO_I32, peer, comm, NULL));
    }
    if (grouped)
        DO(kolo_group_end());
    for (int i = 0; i < MESSAGES && r == 1; i++)
        for (int k = 0; k <= i % 40; k++)
            if (data[1][i][k] != word(i, 1, (size_t)k))
                return ranks_text("message %d word %d is %d", i, k, data[1][i][k]);
    return NULL;
}

Test(group, order_on_a_link)
{
    static char yes;
    check(ranks_threads(2, NULL, many_messages, NULL));
    check(ranks_threads(2, NULL, many_messages, &yes));
}

/* Collectives of one communicator in a group, with point to point beside them. */
static const char *mixed(struct kolo_comm *comm, void *arg)
{
    const int n = kolo_comm_size(comm), r = kolo_comm_rank(comm);
    int32_t a = r, sum = -1, gathered[16], token = r * 7, got = -1;
    (void)arg;
    DO(kolo_group_begin());
    DO(kolo_send(&token, 1, KOLO_I32, (r + 1) % n, comm, NULL));
    DO(kolo_all_reduce(&a, &sum, 1, KOLO_I32, KOLO_SUM, comm, NULL));
    DO(kolo_group_begin()); /* nested: nothing runs before the outermost end */
    DO(kolo_all_gather(&a, gathered, 1, KOLO_I32, comm, NULL));
    DO(kolo_group_end());
    if (sum != -1)
        return "an operation ran before the end of the group";
    DO(kolo_recv(&got, 1, KOLO_I32, (r + n - 1) % n, comm, NULL));
    DO(kolo_group_end());
    if (sum != n * (n - 1) / 2 || got != (r + n - 1) % n * 7)
        return ranks_text("sum %d, got %d", sum, got);
    for (int i = 0; i < n; i++)
        if (gathered[i] != i)
            return ranks_text("gathered[%d] is %d", i, gathered[i]);
    return NULL;
}

Test(group, collectives_and_messages)
{
    static const int ranks[] = {1, 2, 3, 8};
    for (size_t i = 0; i < 4; i++)
        check(ranks_threads(ranks[i], NULL, mixed, NULL));
    check(ranks_processes(4, NULL, mixed, NULL, -1));
}

/* One thread drives every rank. */
static const char *drive(struct kolo_comm **comms, int n, size_t count)
{
    struct kolo_comm *comm = comms[0];
    float *in[16], *out[16];
    for (int r = 0; r < n; r++) {
        in[r] = calloc(count, sizeof(float));
        out[r] = calloc(count, sizeof(float));
        for (size_t i = 0; i < count; i++)
            in[r][i] = (float)((i + (size_t)r) % 13);
    }
    DO(kolo_group_begin());
    for (int r = 0; r < n; r++)
        DO(kolo_all_reduce(in[r], out[r], count, KOLO_F32, KOLO_SUM, comms[r], NULL));
    DO(kolo_group_end());
    for (int r = 0; r < n; r++) {
        for (size_t i = 0; i < count; i++) {
            float want = 0;
            for (int k = 0; k < n; k++)
                want += (float)((i + (size_t)k) % 13);
            if (out[r][i] != want)
                return ranks_text("rank %d element %zu: %g, not %g", r, i, (double)out[r][i],
                                  (double)want);
        }
        free(in[r]);
        free(out[r]);
    }
    return NULL;
}

Test(group, one_thread_drives_all)
{
    struct kolo_comm *comms[16];
    for (int n = 1; n <= 8; n += n < 3 ? 1 : 5) {
        cr_assert_eq(kolo_comm_create_local(n, NULL, comms), KOLO_OK, "%s", kolo_last_error(NULL));
        for (size_t count = 1; count < 1000000; count *= 60)
            check(drive(comms, n, count));
        for (int r = 0; r < n; r++)
            kolo_comm_destroy(comms[r]);
    }
}

/* ---- misuse ---- */

Test(group, misuse)
{
    struct kolo_comm *comm;
    int32_t a = 1, b = 0;
    cr_assert_eq(kolo_comm_create_local(1, NULL, &comm), KOLO_OK, "%s", kolo_last_error(NULL));
    cr_assert_eq(kolo_group_end(), KOLO_ERR_USAGE, "end without begin");
    cr_assert_eq(kolo_send(&a, 1, KOLO_I32, 0, comm, NULL), KOLO_ERR_USAGE, "to itself, no group");

    cr_assert_eq(kolo_group_begin(), KOLO_OK, "begin");
    cr_assert_eq(kolo_send(&a, 1, KOLO_I32, 0, comm, NULL), KOLO_OK, "send");
    cr_assert_eq(kolo_group_end(), KOLO_ERR_USAGE, "a send to itself without receive");

    cr_assert_eq(kolo_group_begin(), KOLO_OK, "begin");
    cr_assert_eq(kolo_recv(&b, 1, KOLO_I32, 0, comm, NULL), KOLO_OK, "recv");
    cr_assert_eq(kolo_send(&a, 2, KOLO_I16, 0, comm, NULL), KOLO_OK, "send");
    cr_assert_eq(kolo_group_end(), KOLO_ERR_MISMATCH, "types differ");

    cr_assert_eq(kolo_group_begin(), KOLO_OK, "begin");
    cr_assert_eq(kolo_all_reduce(&a, &b, 1, KOLO_I32, KOLO_SUM, comm, NULL), KOLO_OK, "all_reduce");
    cr_assert_eq(kolo_all_reduce(&a, &b, 1, 99, KOLO_SUM, comm, NULL), KOLO_ERR_ARG, "type");
    cr_assert_eq(kolo_group_end(), KOLO_ERR_ARG, "a failed call fails its group");
    cr_assert_eq(b, 0, "nothing of a failed group runs");

    cr_assert_eq(kolo_all_reduce(&a, &b, 1, KOLO_I32, KOLO_SUM, comm, NULL), KOLO_OK, "works on");
    cr_assert_eq(b, 1, "copied");
    kolo_comm_destroy(comm);
}
