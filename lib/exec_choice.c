/* exec_choice.c - private buffers can be staged through links, or read and written through the
 * kernel.  Which is faster depends on size, operation, ranks per CPU, and on whether the ranks
 * share an L3, which on a virtual machine changes every few seconds.  So both are timed in use.
 *
 * All ranks must choose alike: each announces its times with its buffers, all take the largest
 * of each and come to the same answer.  Where staging wins, the next few calls do not even
 * announce.  Now and then the loser gets another trial, at longer and longer intervals while it
 * goes on losing.  A rank whose times have left what it knew says so, and all begin anew: the CPUs
 * have been moved. */
#include "engine.h"

enum {
    LEAST_BITS = 17,   /* 128 KiB: below, staging wins (2 to 8 ranks, one L3 or two) */
    TRIAL = 3,         /* tries in a row: the last finds the caches as its own way leaves them */
    SKIP = 7,          /* most calls without an announcement after staging has won, ... */
    SKIP_NS = 2000000, /* ... and how long they may last: nothing is learned meanwhile */
    RETRY = 32,        /* decisions until the loser gets another trial, at first ... */
    RETRY_MOST = 256,  /* ... and at last */
    ODD = 3, /* times in a row that are far from what is known, until everything is tried anew */
};
static const float hopeless = 1.5f; /* a trial ends when a try takes so much longer */
static const float far_off = 1.6f;  /* two L3s: staging takes 3 to 4 times as long as in one */

/* What a smaller class has concluded is a better start than trying both: all know which one. */
static void inherit(struct way *ways, int octave)
{
    for (int k = octave - 1; k >= 0; k--) {
        if (ways[k].retry == 0)
            continue;
        const float times = (float)((uint64_t)1 << (octave - k));
        ways[octave] = ways[k];
        ways[octave].staged_ns *= times;
        ways[octave].remote_ns *= times;
        ways[octave].trial_left = ways[octave].decisions = ways[octave].odd = 0;
        return;
    }
}

struct way *way_find(struct engine *e, const struct job *j)
{
    const size_t bytes = job_bytes(j);
    if (!j->may_choose || !e->has_remote || bytes >> LEAST_BITS == 0)
        return NULL;
    const int octave =
        min_int(63 - __builtin_clzll((unsigned long long)bytes) - LEAST_BITS, WAY_CLASSES - 1);
    struct way *ways = e->ways[j->call.coll];
    if (ways[octave].tries == 0)
        inherit(ways, octave);
    return &ways[octave];
}

bool way_skips(struct way *w)
{
    if (w->skip == 0)
        return false;
    w->skip--;
    return true;
}

static enum way_kind begin_trial(struct way *w, enum way_kind kind)
{
    w->decisions = 0;
    w->trial_kind = kind;
    w->trial_left = TRIAL;
    return kind;
}

/* A trial goes on while its kind has a chance. */
static bool goes_on(struct way *w, float staged_ns, float remote_ns)
{
    const bool is_staged = w->trial_kind == WAY_STAGED;
    const float own = is_staged ? staged_ns : remote_ns, other = is_staged ? remote_ns : staged_ns;
    if (w->trial_left == 0)
        return false;
    w->trial_left--;
    if (other > 0 && own > hopeless * other)
        w->trial_left = 0;
    return w->trial_left > 0;
}

enum way_kind way_choose(struct way *w, float staged_ns, float remote_ns, bool is_unsettled)
{
    if (is_unsettled)
        *w = (struct way){0};
    if (w->tries < TRIAL) {
        w->tries++;
        return WAY_STAGED;
    }
    if (w->retry == 0) {
        w->retry = RETRY;
        return begin_trial(w, WAY_REMOTE);
    }
    if (goes_on(w, staged_ns, remote_ns))
        return w->trial_kind;
    const enum way_kind best = staged_ns < remote_ns ? WAY_STAGED : WAY_REMOTE;
    if (best != w->best) {
        w->best = best;
        w->retry = RETRY;
    }
    if (++w->decisions >= w->retry) {
        w->retry = w->retry < RETRY_MOST ? 2 * w->retry : RETRY_MOST;
        return begin_trial(w, best == WAY_STAGED ? WAY_REMOTE : WAY_STAGED);
    }
    const float ns = best == WAY_STAGED ? staged_ns : remote_ns;
    if (best == WAY_STAGED)
        w->skip = ns * SKIP < SKIP_NS ? SKIP : (uint32_t)(SKIP_NS / ns);
    return best;
}

/* A trial replaces what was known.  Then faster is believed soon, slower by and by, and a very late
 * peer or a lost CPU hardly at all: it says nothing of the way. */
void way_learn(struct way *w, enum way_kind kind, uint64_t ns)
{
    float *known = kind == WAY_STAGED ? &w->staged_ns : &w->remote_ns;
    const float now = (float)ns;
    const bool is_trial = w->trial_left > 0 || w->retry == 0;
    const bool is_odd = !is_trial && (now > far_off * *known || now * far_off < *known);
    w->odd = is_odd ? w->odd + 1 : 0;
    w->is_unsettled |= w->odd >= ODD;
    if (is_trial || *known <= 0)
        *known = now;
    else if (now < *known)
        *known += (now - *known) * 0.5f;
    else
        *known += (now < 2 * *known ? now - *known : *known) * 0.125f;
}
