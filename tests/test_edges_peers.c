/* test_edges_peers.c - corners between ranks where an earlier version went wrong: ranks that leave
 * or exit early, forked children, settings that differ, deadlines. */
#include "support/edges.h"

#include "cfg.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- ranks that leave ---- */

static void *send_twice_and_leave(void *comm)
{
    for (int i = 0; i < 2; i++) {
        linger();
        EXPECT_OK(kolo_send("leaving", 8, KOLO_U8, 0, comm, NULL), comm);
    }
    kolo_comm_destroy(comm);
    return NULL;
}

static void *send_twice(void *comm)
{
    for (int i = 0; i < 2; i++) {
        linger();
        EXPECT_OK(kolo_send("staying", 8, KOLO_U8, 0, comm, NULL), comm);
    }
    return NULL;
}

static enum kolo_status receive_twice(struct kolo_comm *comm, int peer, char got[2][8])
{
    begin();
    for (int i = 0; i < 2; i++)
        cr_assert_eq(kolo_recv(got[i], 8, KOLO_U8, peer, comm, NULL), KOLO_OK);
    return kolo_group_end();
}

/* The same operations wait for rank 2 first, then, when it has left, for rank 1. */
Test(edges_peers, who_left_is_not_missed)
{
    struct kolo_comm *c[3];
    char got[2][8];
    create(3, NULL, c);
    pthread_t thread = start(send_twice_and_leave, c[2]);
    cr_assert_eq(receive_twice(c[0], 2, got), KOLO_OK, "%s", kolo_last_error(c[0]));
    join(thread);
    cr_assert_str_eq(got[1], "leaving");
    thread = start(send_twice, c[1]);
    cr_assert_eq(receive_twice(c[0], 1, got), KOLO_OK, "%s", kolo_last_error(c[0]));
    join(thread);
    cr_assert_str_eq(got[1], "staying");
    cr_assert_eq(receive_twice(c[0], 2, got), KOLO_ERR_PEER_LOST, "who needs it must know");
    const char *text = kolo_last_error(c[0]);
    cr_assert_not_null(strstr(text, "rank 2 ("), "%s", text);
    destroy(2, c);
}

static const char *exit_after_gather(struct kolo_comm *comm, void *arg)
{
    const int r = kolo_comm_rank(comm);
    int all[3];
    (void)arg;
    if (r == 2)
        linger();
    EXPECT_OK(kolo_gather(&r, all, 1, KOLO_I32, 0, comm, NULL), comm);
    if (r == 1)
        _exit(0);
    if (r == 0 && (all[1] != 1 || all[2] != 2))
        return "wrong data";
    const enum kolo_status status = kolo_barrier(comm, NULL);
    const char *text = kolo_last_error(comm);
    return status == KOLO_ERR_PEER_LOST && strstr(text, "rank 1 (")
               ? NULL
               : ranks_text("barrier with a rank that is gone: status %d: %s", status, text);
}

Test(edges_peers, exit_without_destroy)
{
    check(ranks_processes(3, NULL, exit_after_gather, NULL, -1));
}

struct last {
    enum kolo_coll coll;
    size_t count;
};

static enum kolo_status last_call(const struct last *l, const int *in, int *out,
                                  struct kolo_comm *comm)
{
    switch (l->coll) {
    case KOLO_COLL_ALL_REDUCE:
        return kolo_all_reduce(in, out, l->count, KOLO_I32, KOLO_SUM, comm, NULL);
    case KOLO_COLL_ALL_GATHER:
        return kolo_all_gather(in, out, l->count, KOLO_I32, comm, NULL);
    case KOLO_COLL_ALL_TO_ALL:
        return kolo_all_to_all(in, out, l->count, KOLO_I32, comm, NULL);
    case KOLO_COLL_REDUCE_SCATTER:
        return kolo_reduce_scatter(in, out, l->count, KOLO_I32, KOLO_SUM, comm, NULL);
    default:
        return kolo_broadcast(in, out, l->count, KOLO_I32, 0, comm, NULL);
    }
}

/* Every rank ends right after its last operation; the last rank comes late. */
static const char *exit_at_once(struct kolo_comm *comm, void *arg)
{
    const struct last *l = arg;
    const int r = kolo_comm_rank(comm), n = kolo_comm_size(comm);
    const size_t room = l->count * (size_t)n;
    int *in = calloc(room, sizeof *in), *out = calloc(room, sizeof *out);
    if (!in || !out)
        return "out of memory";
    for (size_t i = 0; i < room; i++)
        in[i] = l->coll == KOLO_COLL_BROADCAST && r != 0 ? -1 : 7;
    if (r == n - 1)
        linger();
    EXPECT_OK(last_call(l, in, out, comm), comm);
    const bool is_sum = l->coll == KOLO_COLL_ALL_REDUCE || l->coll == KOLO_COLL_REDUCE_SCATTER;
    for (size_t i = 0; i < l->count; i++)
        if (out[i] != (is_sum ? 7 * n : 7))
            return ranks_text("%s: element %zu is %d", kolo_coll_name((int)l->coll), i, out[i]);
    if (r != 0)
        _exit(0);
    return NULL;
}

Test(edges_peers, all_exit_after_the_last_operation)
{
    static const enum kolo_coll colls[] = {KOLO_COLL_ALL_REDUCE, KOLO_COLL_ALL_GATHER,
                                           KOLO_COLL_ALL_TO_ALL, KOLO_COLL_REDUCE_SCATTER,
                                           KOLO_COLL_BROADCAST};
    for (size_t i = 0; i < sizeof colls / sizeof *colls; i++) {
        struct last small = {colls[i], 5}, large = {colls[i], 1 << 16};
        check(ranks_processes(4, NULL, exit_at_once, &small, -1));
        check(ranks_processes(4, NULL, exit_at_once, &large, -1));
    }
    struct last all_reduce = {KOLO_COLL_ALL_REDUCE, 1 << 18};
    check(ranks_processes(8, NULL, exit_at_once, &all_reduce, -1));
}

/* ---- forked children ---- */

/* The child has what its parent had, and puts it away. */
static const char *child_destroys(struct kolo_comm **comms, int n)
{
    int status = -1;
    const pid_t pid = fork();
    if (pid == 0) {
        destroy(n, comms);
        _exit(0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return "no child";
    return status == 0 ? NULL : ranks_text("the child ended with wait status %x", status);
}

static const char *go_on_after_child(struct kolo_comm *comm, void *arg)
{
    struct kolo_stream *stream = arg; /* this process' copy: not NULL when rank 1 has a worker */
    const bool is_parent = kolo_comm_rank(comm) == 1;
    int sum = 1;
    if (is_parent && arg) {
        EXPECT_OK(kolo_stream_create(&stream), comm);
        EXPECT_OK(kolo_barrier(comm, stream), comm);
        EXPECT_OK(kolo_stream_synchronize(stream), comm);
    } else {
        EXPECT_OK(kolo_barrier(comm, NULL), comm);
    }
    if (is_parent) {
        const char *wrong = child_destroys(&comm, 1);
        if (wrong)
            return wrong;
        linger(); /* the other looks at what the child has left behind */
    }
    EXPECT_OK(kolo_all_reduce(&sum, &sum, 1, KOLO_I32, KOLO_SUM, comm, NULL), comm);
    EXPECT_OK(kolo_barrier(comm, NULL), comm);
    return sum == kolo_comm_size(comm) ? NULL : ranks_text("sum %d", sum);
}

Test(edges_peers, child_destroys_its_copy)
{
    static char with_worker;
    struct kolo_config config = KOLO_CONFIG_INIT;
    config.timeout_ms = 20000;
    check(ranks_processes(2, &config, go_on_after_child, NULL, -1));
    check(ranks_processes(3, &config, go_on_after_child, &with_worker, -1));
}

Test(edges_peers, child_destroys_local_ranks)
{
    struct kolo_comm *c[2];
    create(2, NULL, c);
    check(child_destroys(c, 2));
    begin();
    for (int r = 0; r < 2; r++)
        cr_assert_eq(kolo_barrier(c[r], NULL), KOLO_OK);
    end();
    destroy(2, c);
}

/* ---- settings ---- */

enum { MOST = 4, TEXT = 1024 };

struct meeting {
    _Atomic int has_id; /* 1: id is valid; -1: it could not be made */
    struct kolo_unique_id id;
    char text[MOST][TEXT];
};

/* What the odd rank sets, and the others; NULL: nothing.  Without a name: the plan file. */
struct setting {
    const char *name;
    const char *odd;
    const char *others;
    int who;
    bool is_fine;
};

static const char *meet(const struct setting *s, int rank, int n, const struct kolo_unique_id *id)
{
    const char *value = rank == s->who ? s->odd : s->others;
    struct kolo_config config = KOLO_CONFIG_INIT;
    struct kolo_comm *comm = NULL;
    config.setup_timeout_ms = 20000;
    config.plan_file = s->name ? NULL : value;
    const enum kolo_status status = kolo_comm_create(id, rank, n, &config, &comm);
    const char *text = kolo_last_error(NULL);
    if (!s->is_fine)
        return status == KOLO_ERR_SETUP && !comm &&
                       strcasestr(text, s->name ? s->name + strlen("KOLO_") : "plan file")
                   ? NULL
                   : ranks_text("status %d, text: %s", status, text);
    EXPECT_OK(status, NULL);
    int sum = 1;
    EXPECT_OK(kolo_all_reduce(&sum, &sum, 1, KOLO_I32, KOLO_SUM, comm, NULL), comm);
    kolo_comm_destroy(comm);
    return sum == n ? NULL : ranks_text("sum %d", sum);
}

static void be_rank(const struct setting *s, int rank, int n, struct meeting *m)
{
    const char *value = rank == s->who ? s->odd : s->others;
    if (s->name && value)
        setenv(s->name, value, 1);
    cfg_reset();
    if (rank == 0)
        m->has_id = kolo_unique_id_create(&m->id) == KOLO_OK ? 1 : -1;
    while (m->has_id == 0)
        usleep(200); /* rank 0 needs a moment; nothing depends on how long */
    const char *wrong = m->has_id < 0 ? "no id" : meet(s, rank, n, &m->id);
    if (wrong)
        snprintf(m->text[rank], TEXT, "%s", wrong);
    _exit(wrong != NULL);
}

static void check_setting(const struct setting *s, int n)
{
    struct meeting *m =
        mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(m != MAP_FAILED);
    pid_t pids[MOST];
    fflush(NULL);
    for (int r = 0; r < n; r++) {
        pids[r] = fork();
        if (pids[r] == 0)
            be_rank(s, r, n, m);
    }
    for (int r = 0; r < n; r++) {
        int status = -1;
        waitpid(pids[r], &status, 0);
        cr_assert_eq(status, 0, "%s %s, others %s: rank %d of %d: %s (wait status %x)",
                     s->name ? s->name : "plan file", s->odd ? s->odd : "none",
                     s->others ? s->others : "none", r, n, m->text[r], (unsigned)status);
    }
    munmap(m, sizeof *m);
}

Test(edges_peers, settings_that_differ)
{
    struct setting all[] = {
        {"KOLO_CMA", "never", "auto", 1, false},
        {"KOLO_CMA", "never", NULL, 0, false},
        {"KOLO_ALGO", "all_reduce:ring", NULL, 1, false},
        {"KOLO_ALGO", "all_reduce:ring", "all_reduce:oneshot", 1, false},
        {"KOLO_WINDOWS", "0", "1", 1, false},
        {"KOLO_SLOT_BYTES", "8192", "64K", 1, false},
        {"KOLO_DETERMINISTIC", "1", "0", 1, false},
        {"KOLO_CMA", "never", "never", 1, true},
        {"KOLO_SLOT_BYTES", "64K", "65536", 1, true},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        check_setting(&all[i], 2);
        all[i].who = all[i].who ? 2 : 0;
        check_setting(&all[i], 3);
    }
}

/* Writes the plans of an algorithm for 2 ranks into a new file. */
static void write_plans(char *path, const char *algo)
{
    static char text[1 << 16];
    const struct kolo_query query = {.size = sizeof query,
                                     .coll = KOLO_COLL_ALL_REDUCE,
                                     .nranks = 2,
                                     .rank = -1,
                                     .count = 64,
                                     .type = KOLO_I32,
                                     .algo = algo};
    cr_assert_eq(kolo_explain(NULL, &query, text, sizeof text, NULL), KOLO_OK, "%s",
                 kolo_last_error(NULL));
    strcpy(path, "/tmp/kolo-edges-XXXXXX");
    const int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

Test(edges_peers, plan_files_that_differ)
{
    char ring[32], same[32], oneshot[32];
    write_plans(ring, "ring");
    write_plans(same, "ring");
    write_plans(oneshot, "oneshot");
    const struct setting all[] = {
        {NULL, ring, oneshot, 1, false},
        {NULL, ring, NULL, 1, false},
        {NULL, ring, NULL, 0, false},
        {NULL, ring, same, 1, true}, /* the content counts */
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        check_setting(&all[i], 2);
        check_setting(&all[i], 3); /* plans for other sizes do no harm, but must be the same too */
    }
    unlink(ring);
    unlink(same);
    unlink(oneshot);
}

static enum kolo_status create_forced(const char *algo, int deterministic, const char **text)
{
    struct kolo_config config = KOLO_CONFIG_INIT;
    struct kolo_comm *c[4] = {NULL};
    config.deterministic = deterministic;
    setenv("KOLO_ALGO", algo, 1);
    cfg_reset();
    const enum kolo_status status = kolo_comm_create_local(4, &config, c);
    *text = kolo_last_error(NULL);
    unsetenv("KOLO_ALGO");
    cfg_reset();
    destroy(4, c);
    return status;
}

Test(edges_peers, deterministic_with_a_ring)
{
    const char *text;
    cr_assert_eq(create_forced("all_reduce:ring", 1, &text), KOLO_ERR_ARG);
    cr_assert_not_null(strstr(text, "all_reduce:ring"), "%s", text);
    cr_assert_not_null(strstr(text, "deterministic"), "%s", text);
    cr_assert_eq(create_forced("all_reduce:ring", 0, &text), KOLO_OK, "%s", text);
    cr_assert_eq(create_forced("all_reduce:oneshot", 1, &text), KOLO_OK, "%s", text);
}

/* ---- deadlines ---- */

enum { NSTEPS = 30, TIMEOUT_MS = 1500 }; /* together longer than a deadline, each much shorter */

static void *broadcast_slowly(void *comm)
{
    for (int i = 0; i < NSTEPS; i++) {
        linger();
        EXPECT_OK(kolo_broadcast(&i, &i, 1, KOLO_I32, 1, comm, NULL), comm);
    }
    return NULL;
}

static enum kolo_status receive_broadcasts(struct kolo_comm *comm, int got[NSTEPS],
                                           struct kolo_stream *stream)
{
    begin();
    for (int i = 0; i < NSTEPS; i++)
        cr_assert_eq(kolo_broadcast(NULL, &got[i], 1, KOLO_I32, 1, comm, stream), KOLO_OK);
    return kolo_group_end();
}

Test(edges_peers, deadline_of_each_operation)
{
    struct kolo_config config = KOLO_CONFIG_INIT;
    struct kolo_stream *stream;
    struct kolo_comm *c[2];
    config.timeout_ms = TIMEOUT_MS;
    create(2, &config, c);
    cr_assert_eq(kolo_stream_create(&stream), KOLO_OK);
    for (int round = 0; round < 2; round++) {
        int got[NSTEPS] = {0};
        const pthread_t thread = start(broadcast_slowly, c[1]);
        cr_assert_eq(receive_broadcasts(c[0], got, round ? stream : NULL), KOLO_OK, "%s",
                     kolo_last_error(c[0]));
        cr_assert_eq(kolo_stream_synchronize(stream), KOLO_OK, "%s", kolo_last_error(c[0]));
        join(thread);
        for (int i = 0; i < NSTEPS; i++)
            cr_assert_eq(got[i], i);
    }
    destroy(2, c);
    kolo_stream_destroy(stream);
}

/* Earlier operations of the group that went well do not save one that hangs. */
Test(edges_peers, deadline_of_a_later_operation)
{
    struct kolo_config config = KOLO_CONFIG_INIT;
    struct kolo_comm *c[2];
    int got[NSTEPS], v = 42;
    config.timeout_ms = 200;
    create(2, &config, c);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(kolo_broadcast(&v, &v, 1, KOLO_I32, 1, c[1], NULL), KOLO_OK);
    cr_assert_eq(receive_broadcasts(c[0], got, NULL), KOLO_ERR_TIMEOUT);
    cr_assert_not_null(strstr(kolo_last_error(c[0]), "rank 1 ("), "%s", kolo_last_error(c[0]));
    cr_assert(got[0] == 42 && got[1] == 42);
    destroy(2, c);
}

static const char *split_and_meet(struct kolo_comm *comm, void *arg)
{
    struct kolo_comm *half;
    (void)arg;
    EXPECT_OK(kolo_barrier(comm, NULL), comm);
    if (kolo_comm_rank(comm) == 1)
        linger();
    EXPECT_OK(kolo_comm_split(comm, kolo_comm_rank(comm) % 2, 0, NULL, &half), comm);
    EXPECT_OK(kolo_barrier(half, NULL), half);
    kolo_comm_destroy(half);
    return NULL;
}

Test(edges_peers, longest_deadlines)
{
    struct kolo_config config = KOLO_CONFIG_INIT;
    config.setup_timeout_ms = INT64_MAX;
    check(ranks_processes(3, &config, split_and_meet, NULL, -1));
    check(ranks_threads(3, &config, split_and_meet, NULL));
    config.timeout_ms = INT64_MAX;
    check(ranks_processes(4, &config, split_and_meet, NULL, -1));
    check(ranks_threads(4, &config, split_and_meet, NULL));
}
