/* test_algos.c - every algorithm of the table, forced by KOLO_ALGO, through the engine: the
 * proof is about plans, this is about bytes: spans of several chunks, pieces, scratch, chunks
 * cut off at the end of the vector.  And plans that a user brings in a file. */
#include "cfg.h"
#include "plan.h"
#include "support/ranks.h"
#include "support/ref.h"
#include "support/test.h"

#include <stdio.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *sizes(struct kolo_comm *comm, void *arg)
{
    static const size_t counts[] = {0, 1, 5, 17, 300, 9001, 20021};
    const int n = kolo_comm_size(comm), coll = *(const int *)arg;
    /* Several rounds for a few ranks; the shapes of many ranks show with little data. */
    const size_t ncounts = n <= 5 ? 7 : 5;
    for (size_t i = 0; i < ncounts; i++)
        for (int in_place = 0; in_place < 2; in_place++)
            for (int type = KOLO_I8; type <= KOLO_F32; type += KOLO_F32 - KOLO_I8) {
                const struct ref_case c = {.coll = coll,
                                           .type = type,
                                           .root = (int)(i % (size_t)n),
                                           .count = counts[i],
                                           .in_place = in_place};
                const char *wrong = ref_run(comm, &c);
                if (wrong)
                    return wrong;
            }
    return NULL;
}

static void force(const char *value)
{
    if (value)
        setenv("KOLO_ALGO", value, 1);
    else
        unsetenv("KOLO_ALGO");
    cfg_reset();
}

static void run_coll(enum kolo_coll coll)
{
    size_t n;
    const struct plan_algo *algos = plan_algos(&n);
    for (size_t i = 0; i < n; i++) {
        static const int ranks[] = {2, 3, 4, 5, 7, 8, 12};
        if (algos[i].coll != coll)
            continue;
        char value[64];
        snprintf(value, sizeof value, "%s:%s", kolo_coll_name((int)coll), algos[i].name);
        for (size_t k = 0; k < sizeof ranks / sizeof ranks[0]; k++) {
            const struct plan_shape shape = {coll, ranks[k], 0, 0, 0};
            if (!plan_algo_can(&algos[i], &shape))
                continue;
            force(value);
            int number = (int)coll;
            const char *wrong = ranks_threads(ranks[k], NULL, sizes, &number);
            force(NULL);
            cr_assert(wrong == NULL, "%s: %s", value, wrong);
        }
    }
}

Test(algos, all_reduce)
{
    run_coll(KOLO_COLL_ALL_REDUCE);
}
Test(algos, reduce_scatter)
{
    run_coll(KOLO_COLL_REDUCE_SCATTER);
}
Test(algos, all_gather)
{
    run_coll(KOLO_COLL_ALL_GATHER);
}
Test(algos, all_to_all)
{
    run_coll(KOLO_COLL_ALL_TO_ALL);
}
Test(algos, broadcast)
{
    run_coll(KOLO_COLL_BROADCAST);
}
Test(algos, reduce)
{
    run_coll(KOLO_COLL_REDUCE);
}
Test(algos, gather)
{
    run_coll(KOLO_COLL_GATHER);
}
Test(algos, scatter)
{
    run_coll(KOLO_COLL_SCATTER);
}
Test(algos, barrier)
{
    run_coll(KOLO_COLL_BARRIER);
}

Test(algos, unknown_names)
{
    struct kolo_comm *comms[3];
    static const char *const bad[] = {"all_reduce:no_such", "no_such:ring", "ring",
                                      "all_reduce:recdbl"};
    for (size_t i = 0; i < 4; i++) {
        force(bad[i]);
        const enum kolo_status status = kolo_comm_create_local(3, NULL, comms);
        force(NULL);
        cr_assert_eq(status, KOLO_ERR_ARG, "%s: status %d", bad[i], status);
        cr_assert(strstr(kolo_last_error(NULL), "KOLO_ALGO") != NULL, "%s", kolo_last_error(NULL));
    }
}

/* Ranks cut their chunks by max_span, so it must be equal wherever the table does not say
 * otherwise. */
Test(algos, spans_are_equal_or_declared_uneven)
{
    size_t n;
    const struct plan_algo *algos = plan_algos(&n);
    for (size_t i = 0; i < n; i++)
        for (int nranks = 2; nranks <= 33; nranks++) {
            int first = 0;
            for (int r = 0; r < nranks && !(algos[i].flags & ALGO_UNEVEN); r++) {
                const struct plan_shape shape = {algos[i].coll, nranks, r, nranks / 3, 0};
                struct plan *plan;
                if (!plan_algo_can(&algos[i], &shape))
                    continue;
                cr_assert_eq(plan_generate(&algos[i], &shape, &plan), KOLO_OK, "%s", fail_text());
                first = first ? first : plan->max_span;
                cr_assert_eq(plan->max_span, first, "%s:%s of %d ranks, rank %d",
                             kolo_coll_name((int)algos[i].coll), algos[i].name, nranks, r);
                plan_destroy(plan);
            }
        }
}

/* ---- plans from a file ---- */

static const char *write_plans(char *path, int nranks, bool damaged)
{
    const struct plan_algo *ring = plan_algo_find(KOLO_COLL_ALL_REDUCE, "ring");
    strcpy(path, "/tmp/kolo-plans-XXXXXX");
    const int fd = mkstemp(path);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!f)
        return "cannot write a file";
    for (int r = 0; r < nranks; r++) {
        static char buffer[1 << 16];
        const struct plan_shape shape = {KOLO_COLL_ALL_REDUCE, nranks, r, 0, 0};
        struct plan *plan;
        struct text t;
        if (plan_generate(ring, &shape, &plan) != KOLO_OK)
            return fail_text();
        text_init(&t, buffer, sizeof buffer);
        plan_print(plan, &t);
        char *send = strstr(buffer, "in[");
        if (damaged && r == 1 && send)
            send[3] = send[3] == '0' ? '1' : '0';
        fputs(buffer, f);
        plan_destroy(plan);
    }
    fclose(f);
    return NULL;
}

Test(algos, plans_from_a_file)
{
    char path[64];
    int coll = KOLO_COLL_ALL_REDUCE;
    struct kolo_config config = KOLO_CONFIG_INIT;
    config.plan_file = path;
    const char *wrong = write_plans(path, 3, false);
    cr_assert(wrong == NULL, "%s", wrong);
    wrong = ranks_threads(3, &config, sizes, &coll);
    cr_assert(wrong == NULL, "%s", wrong);
    struct kolo_comm *comms[3];
    wrong = ranks_threads(2, &config, sizes, &coll); /* no plan for 2 ranks: the built-in ones */
    cr_assert(wrong == NULL, "%s", wrong);
    unlink(path);

    wrong = write_plans(path, 3, true);
    cr_assert(wrong == NULL, "%s", wrong);
    cr_assert_eq(kolo_comm_create_local(3, &config, comms), KOLO_ERR_ARG, "a wrong plan was taken");
    unlink(path);
}
