/* exec_choice.c - private buffers can be staged through links, or read and written through the
 * kernel.  Which is faster depends on size, operation, ranks per CPU, and on whether the ranks
 * share an L3, which on a virtual machine changes every few seconds.  So both are timed in use.
 *
 * All ranks must choose alike: each announces its times with its buffers, all take the largest
 * of each and come to the same answer.  Where staging wins, the next few calls do not even
 * announce; now and then the loser gets another try.  A rank whose times have left what it knew
 * says so, and all begin anew: the CPUs have been moved. */
#include "engine.h"

enum {
    LEAST_BYTES = 16384, /* below, the announcements cost more than either way can save */
    TRIAL = 3,           /* tries in a row: the last finds the caches as its own way leaves them */
    FIRST_TRIES = 2 * TRIAL, /* of both, before anything is concluded */
    SKIP = 7,                /* most calls without an announcement after staging has won, ... */
    SKIP_NS = 2000000,       /* ... and how long they may last: nothing is learned meanwhile */
    RETRY = 16,              /* decisions until the loser gets another trial */
    RETRY_HOPELESS = 48, /* the same, when it took more than HOPELESS times as long: a single try */
    HOPELESS = 3,
    ODD = 3, /* times in a row that are far from what is known, until everything is tried anew */
};
static const float far_off = 1.6f; /* two L3s: staging takes 3 to 4 times as long as in one */

/* What a smaller class has concluded is a better start than trying both: all know which one. */
static void inherit(struct way *ways, int octave)
{
    for (int k = octave - 1; k >= 0; k--) {
        if (ways[k].tries < FIRST_TRIES)
            continue;
        const float times = (float)((uint64_t)1 << (octave - k));
        ways[octave] = (struct way){.staged_ns = ways[k].staged_ns * times,
                                    .remote_ns = ways[k].remote_ns * times,
                                    .tries = FIRST_TRIES,
                                    .decisions = RETRY / 2};
        return;
    }
}

struct way *way_find(struct engine *e, const struct job *j)
{
    const size_t bytes = job_bytes(j);
    if (!j->may_choose || !e->has_remote || bytes < LEAST_BYTES)
        return NULL;
    const int octave =
        min_int(63 - __builtin_clzll((unsigned long long)bytes) - 14, WAY_CLASSES - 1);
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

enum way_kind way_choose(struct way *w, float staged_ns, float remote_ns, bool is_unsettled)
{
    if (is_unsettled)
        *w = (struct way){0};
    if (w->tries < FIRST_TRIES)
        return w->tries++ < TRIAL ? WAY_REMOTE : WAY_STAGED;
    if (w->trial_left > 0) {
        w->trial_left--;
        return w->trial_kind;
    }
    const bool staged_wins = staged_ns < remote_ns;
    const float best = staged_wins ? staged_ns : remote_ns;
    const float worst = staged_wins ? remote_ns : staged_ns;
    const bool is_hopeless = worst > HOPELESS * best;
    if (++w->decisions >= (is_hopeless ? RETRY_HOPELESS : RETRY)) {
        w->decisions = 0;
        w->trial_left = is_hopeless ? 0 : TRIAL - 1;
        w->trial_kind = staged_wins ? WAY_REMOTE : WAY_STAGED;
        return w->trial_kind;
    }
    if (staged_wins)
        w->skip = best * SKIP < SKIP_NS ? SKIP : (uint32_t)(SKIP_NS / best);
    return staged_wins ? WAY_STAGED : WAY_REMOTE;
}

/* At first the best try counts.  Then faster is believed soon, slower by and by, and a very late
 * peer or a lost CPU hardly at all: it says nothing of the way. */
void way_learn(struct way *w, enum way_kind kind, uint64_t ns)
{
    float *known = kind == WAY_STAGED ? &w->staged_ns : &w->remote_ns;
    const float now = (float)ns;
    if (w->trial_left > 0)
        return;
    const bool is_odd = *known > 0 && (now > far_off * *known || now * far_off < *known);
    w->odd = is_odd && w->tries >= FIRST_TRIES ? w->odd + 1 : 0;
    w->is_unsettled |= w->odd >= ODD;
    if (*known <= 0 || (now < *known && w->decisions == 0))
        *known = now;
    else if (now < *known)
        *known += (now - *known) * 0.5f;
    else
        *known += (now < 2 * *known ? now - *known : *known) * 0.125f;
}
