/* compare_sweep.c - whose turn it is: A B C A B C ... at one point after the other.
 *
 * When the host moved the CPUs in between, contenders without enough bursts in the placement class
 * that most bursts of the point saw get extra turns; hopelessly slow ones get one turn a point.
 * One that dies is started again for the next point, a few times.  Sizes of which memory does not
 * hold the buffers of all contenders at once come last: each is started for its turn alone.
 */
#include "compare_run.h"

enum { MAX_RESTARTS = 3 };

static const double hopeless = 20; /* times slower than the fastest peer: no more turns */

/* The last burst of the fastest other library, in us; 0 before the first. */
static double fastest_peer(const struct run *run)
{
    double best = 0;
    for (int i = 0; i < run->ncontenders; i++) {
        const struct contender *c = &run->contenders[i];
        if (c->is_peer && c->nbursts > 0 && (best == 0 || c->us < best))
            best = c->us;
    }
    return best;
}

/* A library that waits without yielding can be 1000 times slower: one burst tells enough. */
static int takes_part(const struct run *run, const struct contender *c, int size_index)
{
    if (c->pid <= 0 || (c->is_sparse && size_index % 2))
        return 0;
    return !c->is_peer || c->nbursts == 0 || c->us <= hopeless * fastest_peer(run);
}

static void forget_point(struct run *run)
{
    for (int i = 0; i < run->ncontenders; i++) {
        run->contenders[i].batch = 0;
        run->contenders[i].nbursts = 0;
    }
}

static void restart_dead(struct run *run)
{
    for (int i = 0; i < run->ncontenders; i++) {
        struct contender *c = &run->contenders[i];
        if (c->pid <= 0 && c->is_able && c->nrestarts++ < MAX_RESTARTS)
            contender_launch(run, c);
    }
}

/* Returns 1 when no further round would tell more. */
static int run_round(struct run *run, int round, int coll, size_t bytes, int size_index)
{
    const int is_extra = round >= run->rounds;
    const char major = is_extra ? burst_major_class(run) : '-';
    int nturns = 0;
    if (is_extra && major == '-')
        return 1;
    for (int i = 0; i < run->ncontenders; i++) {
        struct contender *c = &run->contenders[i];
        if (!takes_part(run, c, size_index))
            continue;
        if (is_extra && burst_count(c, major) * 2 >= run->rounds)
            continue;
        burst_run(run, c, coll, bytes);
        nturns++;
    }
    return nturns == 0;
}

static void run_point(struct run *run, int coll, size_t bytes, int size_index)
{
    forget_point(run);
    restart_dead(run);
    for (int round = 0; round < run->rounds + run->extra; round++) {
        take_machine(run);
        if (run_round(run, round, coll, bytes, size_index))
            break;
    }
    fflush(run->out);
}

/* Parts of the partitioned collectives are whole floats. */
static size_t round_size(int coll, size_t bytes, int np)
{
    const size_t unit = sizeof(float) * (size_t)np;
    if (coll != CMP_REDUCE_SCATTER && coll != CMP_ALL_GATHER && coll != CMP_ALL_TO_ALL)
        return bytes;
    return (bytes + unit - 1) / unit * unit;
}

/* The size of the k-th collective at size s; *is_point is 0 where that point was before. */
static size_t point_size(const struct run *run, int s, int k, int *is_point)
{
    const int coll = run->colls[k];
    size_t bytes = coll == CMP_BARRIER ? 0 : round_size(coll, run->sizes[s], run->np);
    *is_point =
        s == 0 || (coll != CMP_BARRIER && bytes != round_size(coll, run->sizes[s - 1], run->np));
    return *is_point ? bytes : 0;
}

static int is_late(const struct run *run)
{
    return cmp_now() - run->start > run->limit_s;
}

/* Points of one size while all contenders stand by; returns how many there was no time for. */
static int run_size(struct run *run, int s)
{
    int nleft = 0;
    for (int k = 0; k < run->ncolls; k++) {
        int is_point;
        size_t bytes = point_size(run, s, k, &is_point);
        if (is_point && is_late(run))
            nleft++;
        else if (is_point)
            run_point(run, run->colls[k], bytes, s);
    }
    return nleft;
}

/* All points of one size in one life of a contender. */
static void run_alone(struct run *run, struct contender *c, int s, int round)
{
    contender_launch(run, c);
    for (int k = 0; k < run->ncolls; k++) {
        int is_point;
        size_t bytes = point_size(run, s, k, &is_point);
        if (!is_point || !takes_part(run, c, s))
            continue;
        c->batch = 1;
        c->nbursts = round;
        burst_run(run, c, run->colls[k], bytes);
    }
    contender_dismiss(run, c);
}

/* Points of one size with one contender in memory at a time. */
static int run_size_alone(struct run *run, int s)
{
    run->max_bytes = round_size(CMP_ALL_GATHER, run->sizes[s], run->np);
    if (is_late(run))
        return run->ncolls;
    forget_point(run);
    for (int round = 0; round < run->rounds && !is_late(run); round++) {
        for (int i = 0; i < run->ncontenders; i++) {
            struct contender *c = &run->contenders[i];
            if (!c->is_able || (c->is_sparse && s % 2))
                continue;
            take_machine(run);
            run_alone(run, c, s, round);
        }
    }
    return 0;
}

static void run_together(struct run *run, int *nleft)
{
    for (int s = 0; s < run->nsizes; s++) {
        if (run->sizes[s] <= run->solo_above && run->sizes[s] > run->max_bytes)
            run->max_bytes = run->sizes[s];
    }
    run->max_bytes = round_size(CMP_ALL_GATHER, run->max_bytes, run->np);
    for (int i = 0; i < run->ncontenders; i++) {
        take_machine(run);
        if (contender_launch(run, &run->contenders[i]))
            run->failed = 1;
    }
    for (int s = 0; s < run->nsizes; s++) {
        if (run->sizes[s] <= run->solo_above)
            *nleft += run_size(run, s);
    }
    for (int i = 0; i < run->ncontenders; i++)
        contender_dismiss(run, &run->contenders[i]);
}

int sweep(struct run *run)
{
    int nleft = 0;
    run_together(run, &nleft);
    for (int s = 0; s < run->nsizes; s++) {
        if (run->sizes[s] > run->solo_above)
            nleft += run_size_alone(run, s);
    }
    if (nleft > 0)
        note(run, "time: np=%d: %.0f s are over, the last %d points are left out", run->np,
             run->limit_s, nleft);
    double all_s = run->measured_s * run->ncpus;
    const double foreign_pct = all_s > 0 ? 100 * run->foreign_s / all_s : 0;
    note(run, "load: np=%d others took %.1f %% of the CPUs in %.0f s of bursts%s", run->np,
         foreign_pct, run->measured_s,
         foreign_pct > 8 ? ": the machine was busy, do not trust these times" : "");
    return run->failed;
}
