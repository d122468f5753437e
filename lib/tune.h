/* tune.h - which algorithm for which size: the lower envelope of the plans' times on this machine,
 * as measured here, or else as a model predicts; from what all ranks share, so that all choose
 * alike.
 *
 *   tune.c        the model, and the envelope          tune_table.c   measured times
 *   tune_store.c  kept in the user's cache folder      comm_tune.c    measuring
 *   tune_explain.c   why
 */
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

enum {
    TUNE_CLASSES = 4 * 48, /* quarter octaves of bytes */
    TUNE_SIZES = 5,        /* that are measured: tune_sizes */
    TUNE_ALGOS = 64,       /* most rows of plan_algos */
    TUNE_MOST_RANKS = 64,  /* more are not measured: it would take too long */
};

/* Measured times within this factor of the least are as good; for what the model would take, which
 * one disturbed measurement shall not overrule, within the second. */
#define TUNE_AS_FAST 1.1
#define TUNE_AS_FAST_FAVOURITE 1.25

/* Bytes of the largest buffer of a rank, rising. */
extern const uint32_t tune_sizes[TUNE_SIZES];

/* What has been measured; equal on all ranks, which get it in this form. */
struct tune_table {
    uint64_t key;  /* of machine, ranks, options and algorithms, see tune_key */
    uint64_t date; /* seconds since 1970; 0: nothing has been measured */
    /* Tenths of a nanosecond, by row of plan_algos and tune_sizes; 0: not measured.  An algorithm's
     * sizes begin with the first, without a gap. */
    uint32_t tenths[TUNE_ALGOS][TUNE_SIZES];
};

struct tune {
    struct tune_facts facts;
    struct tune_table table;
    /* Per plain collective, by window use and size class: 1 + index into plan_algos, 0 none. */
    uint8_t choice[KOLO_NCOLLS][2][TUNE_CLASSES];
    uint8_t choice_v[KOLO_NCOLLS]; /* v-variants: one for all sizes */
};

/* From the model alone.  Errors: ARG when KOLO_ALGO names what there is not, or what cannot
 * serve. */
enum kolo_status tune_init(struct tune *t, const struct tune_facts *facts);
/* From now on, choose by these times. */
enum kolo_status tune_apply(struct tune *t, const struct tune_table *table);
/* bytes: the largest buffer of a rank.  NULL for one rank, send and recv. */
const struct plan_algo *tune_choose(const struct tune *t, enum kolo_coll coll, size_t bytes,
                                    bool with_windows);
/* What the model predicts, in nanoseconds. */
double tune_cost_ns(const struct tune_facts *f, const struct plan_algo *a, enum kolo_coll coll,
                    size_t bytes);
/* What may serve a call, what each would take and how that is known, and why which is chosen. */
void tune_explain(const struct tune *t, enum kolo_coll coll, size_t bytes, struct text *out);
/* Rows of plan_algos that may serve a collective, in order; how many. */
size_t tune_candidates(const struct tune_facts *f, enum kolo_coll coll, bool with_windows,
                       int rows[TUNE_ALGOS]);

/* ---- tune_table.c ---- */

/* How many sizes an algorithm was measured at. */
int tune_table_sizes(const struct tune_table *t, int row);
/* Nanoseconds of an algorithm, between and beyond what was measured; 0: it was not. */
double tune_table_ns(const struct tune_table *t, int row, size_t bytes);
/* A larger size that took less time shows that the smaller one was disturbed.  Where that is much,
 * nothing of the collective is believed; false when that leaves less than half of them. */
bool tune_table_settle(struct tune_table *t);
/* What has been measured, for people. */
void tune_table_show(const struct tune_table *t, int nranks, struct text *out);
/* The text of a file of the cache; tune_table_parse reads it, and nothing else: false, and *out is
 * untouched.  Text and number of ranks are for readers only. */
void tune_table_print(const struct tune_table *t, int nranks, struct text *out);
bool tune_table_parse(const char *text, size_t bytes, uint64_t key, struct tune_table *out);

/* ---- tune_store.c ---- */

/* Of machine, ranks, options and algorithms. */
uint64_t tune_key(const struct tune_facts *f);
/* The file of a key; false when there is no cache folder. */
bool tune_store_path(uint64_t key, char *out, size_t size);
/* What this process has measured or read under a key, or, when `in_files`, what the cache folder
 * holds.  Date 0 in *out: it was tried in vain. */
bool tune_store_find(uint64_t key, bool in_files, struct tune_table *out);
/* Keep a table for this process, and in the folder when `in_files`; failing to is no error. */
void tune_store_keep(const struct tune_table *t, int nranks, bool in_files);

#endif
