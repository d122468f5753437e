/* test_choice.c - the choice between staging and the kernel, as pure arithmetic: it follows what is
 * measured, changes its mind when the machine does, is not fooled by single stalls, and gives equal
 * answers to equal announcements. */
#include "engine.h"
#include "support/test.h"

/* Two ranks with different experience; each way costs what the test says. */
struct pair {
    struct way ways[2];
    int staged;
    int remote;
};

static float larger(float a, float b)
{
    return a > b ? a : b;
}

/* One operation: decide from the announced maxima, check that both agree, learn. */
static enum way_kind operate(struct pair *p, uint64_t staged_ns, uint64_t remote_ns)
{
    const bool skips = way_skips(&p->ways[0]);
    cr_assert_eq(way_skips(&p->ways[1]), skips, "the ranks disagree about asking");
    if (skips) {
        p->staged++;
        return WAY_STAGED;
    }
    const float s = larger(p->ways[0].staged_ns, p->ways[1].staged_ns);
    const float r = larger(p->ways[0].remote_ns, p->ways[1].remote_ns);
    const bool odd = p->ways[0].is_unsettled || p->ways[1].is_unsettled;
    const enum way_kind kind = way_choose(&p->ways[0], s, r, odd);
    cr_assert_eq(way_choose(&p->ways[1], s, r, odd), kind, "the ranks disagree");
    const uint64_t ns = kind == WAY_STAGED ? staged_ns : remote_ns;
    way_learn(&p->ways[0], kind, ns);
    way_learn(&p->ways[1], kind, ns * 3 / 4); /* the second rank is always done earlier */
    p->staged += kind == WAY_STAGED;
    p->remote += kind == WAY_REMOTE;
    return kind;
}

static void many(struct pair *p, int n, uint64_t staged_ns, uint64_t remote_ns)
{
    p->staged = p->remote = 0;
    for (int i = 0; i < n; i++)
        operate(p, staged_ns, remote_ns);
}

Test(choice, follows_the_faster)
{
    struct pair a = {0}, b = {0};
    many(&a, 2000, 5000, 20000);
    cr_assert_gt(a.staged, 1950, "staging was taken %d times of 2000", a.staged);
    many(&b, 2000, 20000, 5000);
    cr_assert_gt(b.remote, 1900, "the kernel was taken %d times of 2000", b.remote);
    cr_assert_gt(b.staged, 5, "the loser never gets another try");
}

Test(choice, changes_its_mind)
{
    struct pair p = {0};
    many(&p, 500, 4000, 5000);
    many(&p, 500, 16000, 5000); /* the ranks moved to two L3s */
    cr_assert_gt(p.remote, 350, "the kernel was taken %d times of 500 after the change", p.remote);
    many(&p, 2000, 4000, 5000); /* and back: found by a retry */
    cr_assert_gt(p.staged, 1000, "staging was taken %d times of 2000 after the way back", p.staged);
}

/* Long operations, where each wrong choice hurts: a dozen of them decide anew. */
Test(choice, changes_its_mind_soon)
{
    struct pair p = {0};
    many(&p, 100, 2500000, 5200000);
    many(&p, 14, 10000000, 5700000); /* to two L3s: staging takes four times as long */
    many(&p, 40, 10000000, 5700000);
    cr_assert_gt(p.remote, 30, "the kernel was taken %d times of 40", p.remote);
    many(&p, 200, 2500000, 5200000); /* and back */
    cr_assert_gt(p.staged, 90, "staging was taken %d times of 200 after the way back", p.staged);
}

Test(choice, is_not_fooled_by_a_stall)
{
    struct pair p = {0};
    many(&p, 500, 20000, 5000);
    operate(&p, 20000, 4000000); /* somebody took the CPU for a time slice */
    many(&p, 100, 20000, 5000);
    cr_assert_gt(p.remote, 85, "the kernel was taken %d times of 100 after a stall", p.remote);
}

/* Long operations are asked about each time: a wrong choice costs too much to be kept. */
Test(choice, does_not_skip_long_operations)
{
    struct pair p = {0};
    many(&p, 50, 3000000, 9000000);
    cr_assert_eq(p.ways[0].skip, 0u, "skips %u operations of 3 ms", p.ways[0].skip);
}
