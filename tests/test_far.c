/* test_far.c - payloads for far peers: the verdict follows the probes and is not fooled by single
 * ones, and what is written past the caches is what would have been written through them. */
#include "cfg.h"
#include "comm.h"
#include "engine.h"
#include "support/check.h"
#include "support/ref.h"

#include <stdlib.h>

static void judge(struct link *l, int times, bool is_late)
{
    for (int i = 0; i < times; i++)
        far_judge(l, is_late);
}

Test(far, verdict_follows_the_probes)
{
    struct link_back back = {0};
    struct link l = {.back = &back};
    for (int i = 0; i < 100; i++) {
        judge(&l, 2, true);
        cr_assert(!l.is_far && !back.is_far, "single late probes make a peer far");
        judge(&l, 1, false);
    }
    judge(&l, 3, true);
    cr_assert(l.is_far && back.is_far, "late probes in a row do not");
    for (int i = 0; i < 100; i++) {
        judge(&l, 2, false);
        cr_assert(l.is_far && back.is_far, "single early probes make a peer near");
        judge(&l, 1, true);
    }
    judge(&l, 3, false);
    cr_assert(!l.is_far && !back.is_far, "a peer that came near is still far");
}

Test(far, both_ends_probe_the_same_messages)
{
    struct link sends = {0}, receives = {0};
    int probes = 0;
    for (; sends.count < 1000; sends.count++, receives.count++)
        for (size_t bytes = 0; bytes <= 1 << 17; bytes += 1 << 9) {
            const bool is_probed = link_is_probed(&sends, bytes);
            cr_assert_eq(is_probed, link_is_probed(&receives, bytes));
            cr_assert(!is_probed || bytes > FAR_BYTES, "small messages pay for probes");
            probes += is_probed;
        }
    cr_assert_gt(probes, 1000);
}

/* ---- with KOLO_STREAM ---- */

static const int colls[] = {KOLO_COLL_ALL_REDUCE, KOLO_COLL_REDUCE_SCATTER, KOLO_COLL_ALL_GATHER,
                            KOLO_COLL_ALL_TO_ALL, KOLO_COLL_BROADCAST,      KOLO_COLL_REDUCE,
                            KOLO_COLL_GATHER,     KOLO_COLL_SCATTER};
enum { NCOLLS = sizeof colls / sizeof colls[0] };

static int far_links(const struct kolo_comm *comm)
{
    int n = 0;
    for (int peer = 0; peer < comm->nranks; peer++)
        n += engine_link(comm->engine, true, peer, 0)->is_far;
    return n;
}

/* Messages of many lengths, of which some end within a vector, and of narrow types; arg: whether
 * links are to become far. */
static const char *all_collectives(struct kolo_comm *comm, void *arg)
{
    static const size_t counts[] = {1031, 9001, 40000};
    static const int types[] = {KOLO_F32, KOLO_BF16, KOLO_U8, KOLO_F64};
    const bool *streams = arg;
    for (int k = 0; k < NCOLLS; k++)
        for (size_t i = 0; i < 12; i++) {
            struct ref_case c = {.coll = colls[k],
                                 .type = types[i % 4],
                                 .count = counts[i / 4],
                                 .root = (int)i % kolo_comm_size(comm),
                                 .misalign = i % 3 * 8};
            /* Two of each reach the probes of most links. */
            for (int in_place = 0; in_place < 2; in_place++) {
                c.in_place = in_place;
                const char *wrong = ref_can(&c, kolo_comm_size(comm)) ? ref_run(comm, &c) : NULL;
                if (wrong)
                    return wrong;
            }
        }
    if (*streams && far_links(comm) == 0)
        return "no link is far with KOLO_STREAM=always";
    if (!*streams && far_links(comm) > 0)
        return "a link is far with KOLO_STREAM=never";
    return NULL;
}

static void run_all(const char *stream, bool streams)
{
    static const int ranks[] = {2, 3, 5};
    setenv("KOLO_STREAM", stream, 1);
    setenv("KOLO_CMA", "never", 1);
    cfg_reset();
    for (size_t i = 0; i < 3; i++) {
        check(ranks_processes(ranks[i], NULL, all_collectives, &streams, -1));
        check(ranks_threads(ranks[i], NULL, all_collectives, &streams));
    }
    unsetenv("KOLO_CMA");
    unsetenv("KOLO_STREAM");
    cfg_reset();
}

Test(far, streams_the_right_bytes)
{
    run_all("always", true);
}

Test(far, never_streams_when_told)
{
    run_all("never", false);
}
