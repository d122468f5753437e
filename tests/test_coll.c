/* test_coll.c - every collective against naive loops: types x operations x ranks x counts x places,
 * with ranks as threads and as processes. */
#include "plan.h"
#include "support/check.h"
#include "support/ref.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const int colls[] = {KOLO_COLL_ALL_REDUCE, KOLO_COLL_REDUCE_SCATTER, KOLO_COLL_ALL_GATHER,
                            KOLO_COLL_ALL_TO_ALL, KOLO_COLL_BROADCAST,      KOLO_COLL_REDUCE,
                            KOLO_COLL_GATHER,     KOLO_COLL_SCATTER,        KOLO_COLL_BARRIER};
enum { NCOLLS = sizeof colls / sizeof colls[0] };

static bool is_float(int type)
{
    return (type >= KOLO_F16 && type <= KOLO_F8E5M2);
}

/* Out of place, in place. */
static const char *both(struct kolo_comm *comm, struct ref_case c)
{
    if (!ref_can(&c, kolo_comm_size(comm)))
        return NULL;
    const char *wrong = ref_run(comm, &c);
    if (wrong)
        return wrong;
    c.in_place = true;
    return ref_run(comm, &c);
}

static const char *types_and_ops(struct kolo_comm *comm, void *arg)
{
    static const size_t counts[] = {0, 1, 3, 17, 130, 1000};
    (void)arg;
    for (int k = 0; k < NCOLLS; k++)
        for (int type = 0; type < KOLO_NTYPES; type++)
            for (int op = 0; op < (coll_reduces((enum kolo_coll)colls[k]) ? KOLO_NOPS : 1); op++)
                for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
                    if (op >= KOLO_BAND && is_float(type))
                        continue;
                    const struct ref_case c = {
                        .coll = colls[k], .type = type, .op = op, .count = counts[i]};
                    const char *wrong = both(comm, c);
                    if (wrong)
                        return wrong;
                }
    return NULL;
}

static const char *roots_and_sizes(struct kolo_comm *comm, void *arg)
{
    /* around the inline cell, the cell, a piece, a slot, several rounds */
    static const size_t counts[] = {11, 12, 13, 512, 513, 4097, 16384, 16385, 70001};
    const bool windows = arg != NULL;
    const int n = kolo_comm_size(comm);
    for (int k = 0; k < NCOLLS; k++)
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
            for (int root = 0; root < (coll_has_root((enum kolo_coll)colls[k]) ? n : 1);
                 root += root == 0 ? 1
                         : n > 3   ? n - 2
                                   : 1) {
                struct ref_case c = {.coll = colls[k],
                                     .type = KOLO_F32,
                                     .root = root,
                                     .count = counts[i],
                                     .windows = windows,
                                     .misalign = windows ? 0 : (size_t)(root + 1) * 4 % 64};
                const char *wrong = both(comm, c);
                if (wrong)
                    return wrong;
            }
    return NULL;
}

Test(coll, types_and_ops_threads)
{
    static const int ranks[] = {1, 2, 3, 5};
    for (size_t i = 0; i < 4; i++)
        check(ranks_threads(ranks[i], NULL, types_and_ops, NULL));
}

Test(coll, types_and_ops_processes)
{
    check(ranks_processes(2, NULL, types_and_ops, NULL, -1));
    check(ranks_processes(4, NULL, types_and_ops, NULL, -1));
}

Test(coll, sizes_threads)
{
    static const int ranks[] = {1, 2, 3, 4, 7, 8};
    for (size_t i = 0; i < 6; i++)
        check(ranks_threads(ranks[i], NULL, roots_and_sizes, NULL));
}

Test(coll, sizes_processes)
{
    static const int ranks[] = {1, 2, 3, 8};
    for (size_t i = 0; i < 4; i++)
        check(ranks_processes(ranks[i], NULL, roots_and_sizes, NULL, -1));
}

Test(coll, windows_processes)
{
    static char yes;
    static const int ranks[] = {2, 3, 5};
    for (size_t i = 0; i < 3; i++)
        check(ranks_processes(ranks[i], NULL, roots_and_sizes, &yes, -1));
}

Test(coll, sixteen_ranks)
{
    check(ranks_threads(16, NULL, roots_and_sizes, NULL));
}

/* Odd bytes: nothing is aligned to its own type. */
static const char *unaligned(struct kolo_comm *comm, void *arg)
{
    (void)arg;
    for (int k = 0; k < NCOLLS; k++)
        for (size_t misalign = 1; misalign < 16; misalign += 3)
            for (int type = 0; type < KOLO_NTYPES; type++) {
                const struct ref_case c = {
                    .coll = colls[k], .type = type, .count = 257, .misalign = misalign};
                const char *wrong = both(comm, c);
                if (wrong)
                    return wrong;
            }
    return NULL;
}

Test(coll, unaligned)
{
    check(ranks_threads(3, NULL, unaligned, NULL));
    check(ranks_processes(2, NULL, unaligned, NULL, -1));
}

/* ---- on streams ---- */

static const char *on_stream(struct kolo_comm *comm, void *arg)
{
    struct kolo_stream *stream;
    (void)arg;
    if (kolo_stream_create(&stream) != KOLO_OK)
        return "stream_create failed";
    const char *wrong = NULL;
    for (int k = 0; k < NCOLLS && !wrong; k++)
        for (size_t count = 1; count < 100000 && !wrong; count *= 37)
            wrong = both(comm,
                         (struct ref_case){
                             .coll = colls[k], .type = KOLO_I32, .count = count, .stream = stream});
    kolo_stream_destroy(stream);
    return wrong;
}

Test(coll, streams)
{
    check(ranks_threads(3, NULL, on_stream, NULL));
    check(ranks_processes(2, NULL, on_stream, NULL, -1));
}
