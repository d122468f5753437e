/* tune.h - which algorithm for which size: the lower envelope of the plans' predicted times on this
 * machine, from facts that all ranks share, so that all choose alike. */
#ifndef TUNE_H
#define TUNE_H

#include "plan.h"

/* Equal on all ranks of a communicator. */
struct tune_facts {
    int nranks;
    int nranks_here; /* on this machine */
    int ncpus;       /* that the ranks here may use together */
    bool shares_cpu; /* some ranks are bound to the same CPU */
    bool has_windows;
    bool has_remote; /* private memory is within reach, through the kernel */
    bool deterministic;
};

/* Some ranks take turns on a CPU. */
static inline bool tune_is_crowded(const struct tune_facts *f)
{
    return f->nranks_here > (f->ncpus > 1 ? f->ncpus : 1) || f->shares_cpu;
}

enum { TUNE_CLASSES = 4 * 48 }; /* quarter octaves of bytes */

struct tune {
    struct tune_facts facts;
    /* Per plain collective, by window use and size class: 1 + index into plan_algos, 0 none. */
    uint8_t choice[KOLO_NCOLLS][2][TUNE_CLASSES];
    uint8_t choice_v[KOLO_NCOLLS]; /* v-variants: one for all sizes */
};

/* Errors: ARG when KOLO_ALGO names what there is not, or what cannot serve. */
enum kolo_status tune_init(struct tune *t, const struct tune_facts *facts);
/* bytes: the largest buffer of a rank.  NULL for one rank, send and recv. */
const struct plan_algo *tune_choose(const struct tune *t, enum kolo_coll coll, size_t bytes,
                                    bool with_windows);
/* Predicted nanoseconds. */
double tune_cost_ns(const struct tune_facts *f, const struct plan_algo *a, enum kolo_coll coll,
                    size_t bytes);

#endif
