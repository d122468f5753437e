/* compare_run.h - what the files of the coordinator of `make compare` share.
 *
 *     compare_run.c        the command line
 *     compare_sweep.c      which contender takes which turn, at which point
 *     compare_burst.c      one turn: ask for it, judge it, write it down
 *     compare_contender.c  start and stop
 */
#ifndef KOLO_BENCH_COMPARE_RUN_H
#define KOLO_BENCH_COMPARE_RUN_H

#include "compare.h"

#define CMP_LOCK_ENV "KOLO_COMPARE_LOCK"

enum { MAX_CONTENDERS = 24, MAX_ROUNDS = 32, MAX_SIZES = 64 };

struct contender {
    char name[32];
    const char *command;
    int is_sparse;  /* takes part in every second size */
    int is_peer;    /* another library: neither Kolo nor a floor */
    char path[256]; /* of the control block */
    struct cmp_ctl *ctl;
    pid_t pid;   /* its launcher; 0: not running */
    int is_able; /* it came up once */
    int nrestarts;
    long nwrong;
    /* of the current point */
    long batch;
    double us; /* last burst */
    char classes[MAX_ROUNDS + 1];
    int nbursts;
};

struct run {
    struct contender contenders[MAX_CONTENDERS];
    int ncontenders, np;
    size_t sizes[MAX_SIZES];
    int nsizes;
    size_t max_bytes;  /* buffers of contenders that are started now */
    size_t solo_above; /* larger sizes: one contender in memory at a time */
    int colls[CMP_NCOLLS];
    int ncolls;
    int rounds, extra, is_fresh;
    double burst_s, limit_s, start;
    const char *out_path;
    FILE *out;
    int ncpus, cpus[CMP_MAX_CPUS];
    int lock_fd;                  /* -1: nobody to agree with */
    double locked_at;             /* 0: not now */
    int failed;                   /* exit status */
    double foreign_s, measured_s; /* CPU time of others, wall time, in bursts */
};

/* A line for the CSV and for whoever watches. */
__attribute__((format(printf, 2, 3))) void note(struct run *run, const char *format, ...);

/* Have the machine for the next turns.  Others get theirs here, when they share the file that
 * CMP_LOCK_ENV names and this run has had it for long; what that takes is not time of the run. */
void take_machine(struct run *run);

/* compare_contender.c */
int contender_launch(struct run *run, struct contender *c); /* not 0: nothing will work here */
void contender_dismiss(struct run *run, struct contender *c);
void contender_retire(struct run *run, struct contender *c, const char *why);
/* Wait until *word is `want`; NULL, or why it is not. */
const char *contender_await(struct contender *c, uint32_t *word, uint32_t want, double limit_s);

/* compare_burst.c */
void burst_run(struct run *run, struct contender *c, int coll, size_t bytes);
int burst_count(const struct contender *c, char cls);
char burst_major_class(const struct run *run); /* '-' when there was none */

/* compare_sweep.c */
int sweep(struct run *run);

#endif /* KOLO_BENCH_COMPARE_RUN_H */
