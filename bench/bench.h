/* bench.h - what the parts of kolo_bench share.
 *
 *     bench_options  the command line, from one table
 *     bench_ranks    processes, threads or a launcher become ranks; how ranks agree (the team)
 *     bench_run      one row: shapes, calls, timing, the check
 *     bench_overlap  --overlap: what hides behind computation
 *     bench_data     data whose results do not depend on the order of reduction, and its comparison
 *     bench_print    text like nccl-tests', CSV, JSON
 */
#ifndef KOLO_BENCH_H
#define KOLO_BENCH_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include <kolo.h>

/* Exit codes of kolo_bench; 128 + n when a rank died of signal n. */
enum bench_exit {
    BENCH_EXIT_OK = 0,
    BENCH_EXIT_WRONG = 1,     /* a result was wrong */
    BENCH_EXIT_ERROR = 2,     /* usage, or the library returned an error */
    BENCH_EXIT_SLOW = 3,      /* below --min-busbw */
    BENCH_EXIT_STOPPED = 130, /* Ctrl-C */
};

enum {
    BENCH_MAX_RANKS = 1024,
    BENCH_MAX_SAMPLES = 4096,
    BENCH_GUARD_BYTES = 4096, /* on each side of a buffer; keeps its page alignment */
};

/* ---- bench_data --------------------------------------------------------------------------- */

/* Reductions are kolo_op numbers, and these. */
enum {
    BENCH_OP_NONE = -1,          /* data is only moved */
    BENCH_OP_MULSUM = KOLO_NOPS, /* pre-multiplied sum, factor data_factor(rank) */
    BENCH_NOPS,
};

enum data_class { DATA_SIGNED, DATA_UNSIGNED, DATA_FLOAT };

struct data_type {
    const char *name;  /* as kolo.h */
    const char *alias; /* as nccl-tests */
    size_t bytes;
    enum data_class class;
    int exponent_bits; /* of floats */
    int mantissa_bits; /* of floats, without the hidden one */
    bool has_infinity;
};

/* NULL for a number that is not a type. */
const struct data_type *data_type_get(int type);
/* By name or alias; -1 when unknown. */
int data_type_find(const char *name);
const char *data_op_name(int op); /* as nccl-tests: "sum", "mulsum", "none" ... */
int data_op_find(const char *name);
bool data_is_op_legal(int type, int op); /* bitwise operations want integers */

/* The element of `type` closest to value (ties to even, saturating as kolo.h says), and back. */
void data_encode(int type, double value, void *element);
double data_decode(int type, const void *element);
void data_put_bits(size_t bytes, uint64_t bits, void *element);
/* The integer that an element of an integer type with these bits holds; u64 keeps its bits. */
int64_t data_narrow(const struct data_type *type, uint64_t bits);

/* Which data: every rank can compute what every other one has. */
struct data_spec {
    int type;
    int op;
    int nranks;
    uint64_t seed;
    bool is_real; /* normal-ish real values and an error bound, instead of exact ones */
};

/* Element i of a buffer is element i % PERIOD of a pattern.  The period is prime, so data that
 * landed a chunk or a block away from its place is never right by accident.  `bytes` holds two
 * periods, so that one period is contiguous from any phase. */
enum { DATA_PERIOD = 4093 };
struct data_pattern {
    int type;
    size_t element_bytes;
    size_t period;        /* elements in use: min(DATA_PERIOD, what the caller needs) */
    unsigned char *bytes; /* 2 * DATA_PERIOD elements of at most 8 bytes */
    double *value;        /* reference and largest legal error of each, when real; else NULL */
    double *bound;
    bool has_bound; /* false: compare bits */
};

bool data_pattern_create(struct data_pattern *pattern); /* false: no memory */
void data_pattern_destroy(struct data_pattern *pattern);

/* What `rank` puts in, and what the reduction over all ranks must give. `limit`: the largest index
 * (exclusive) that will be asked for. */
void data_contribution(const struct data_spec *spec, int rank, size_t limit,
                       struct data_pattern *pattern);
void data_expected(const struct data_spec *spec, size_t limit, struct data_pattern *pattern);
/* The factor of `rank` in BENCH_OP_MULSUM. */
int data_factor(int rank);

/* What comparisons have found so far. */
struct data_verdict {
    size_t wrong;      /* elements */
    double worst;      /* error / bound, with real data */
    const void *first; /* the first wrong element, or NULL; and what it should be, when exact */
    unsigned char want[8];
};

/* Write, or compare, elements first .. first + count of the pattern. */
void data_fill(const struct data_pattern *pattern, size_t first, size_t count, void *to);
void data_check(const struct data_pattern *pattern, size_t first, size_t count, const void *from,
                struct data_verdict *verdict);

/* Bytes that nobody may touch. */
void data_poison(void *at, size_t bytes);
size_t data_poison_broken(const void *at, size_t bytes); /* how many have changed */

/* ---- options ------------------------------------------------------------------------------ */

enum bench_factor { BENCH_FACTOR_ALL_REDUCE, BENCH_FACTOR_PART, BENCH_FACTOR_ONE };

enum bench_coll {
    BENCH_ALL_REDUCE,
    BENCH_ALL_GATHER,
    BENCH_REDUCE_SCATTER,
    BENCH_ALL_TO_ALL,
    BENCH_ALL_TO_ALL_V,
    BENCH_BROADCAST,
    BENCH_REDUCE,
    BENCH_GATHER,
    BENCH_SCATTER,
    BENCH_SENDRECV,
    BENCH_BARRIER,
    BENCH_NCOLLS,
};

struct bench_command {
    const char *name;
    const char *help;
    enum bench_coll coll;
    bool has_op;
    bool has_root;
    bool is_partitioned; /* the size is split among the ranks */
    bool has_in_place;
    enum bench_factor factor;
};

/* The table of subcommands, BENCH_NCOLLS long. */
extern const struct bench_command bench_commands[];

/* The first four are the values of -a. */
enum bench_average { BENCH_RANK0, BENCH_AVG, BENCH_MIN, BENCH_MAX, BENCH_SUM };

struct bench_options {
    const struct bench_command *command;
    size_t min_bytes;
    size_t max_bytes;
    size_t step_bytes; /* 0: factor */
    long factor;
    long iters; /* samples; 0: as many as the budget allows */
    long warmup;
    long cycles; /* 0: until stopped */
    long group_ops;
    long budget_ms; /* of one side of a row, when iters is 0 */
    long timeout_s;
    long unalign; /* elements */
    long nthreads;
    long nprocs;
    long average; /* enum bench_average */
    long registration;
    unsigned ops;   /* bit mask */
    unsigned types; /* bit mask */
    int root;       /* -1: every rank in turn */
    bool is_checked;
    bool is_real;
    bool is_blocking;
    bool has_percentiles;
    bool has_timestamps;
    bool is_pinned;
    bool is_overlap;
    bool is_help;
    double min_busbw;
    const char *csv;
    const char *json;
};

/* 0: go on; else the process is done and *code is its exit code (help was printed, or an error). */
int bench_options_parse(int argc, char **argv, struct bench_options *options, int *code);

/* ---- ranks -------------------------------------------------------------------------------- */

/* What the ranks of this machine share: memory that fork keeps shared. */
struct bench_shared;

/* How ranks agree outside the library under test; under a launcher through the library itself. */
struct bench_team {
    struct bench_shared *shared; /* NULL: use comm */
    struct kolo_comm *comm;
    int rank;
    int nranks;
    int sense;       /* of the next barrier */
    bool is_crowded; /* more ranks than CPUs: do not spin */
};

struct bench_shared *bench_shared_create(int nranks); /* NULL: no memory */
/* The id of the communicator: rank 0 makes it, in its own process, the others take it. */
enum kolo_status bench_team_share_id(struct bench_team *team, struct kolo_unique_id *id);
void bench_team_barrier(struct bench_team *team);
/* values[i] becomes, on every rank, the reduction of all ranks' values[i].  At most
 * BENCH_MAX_SAMPLES of them. */
void bench_team_reduce(struct bench_team *team, double *values, int n, enum bench_average how);
double bench_team_agree(struct bench_team *team, double value, enum bench_average how);

enum bench_mode { BENCH_MODE_THREADS, BENCH_MODE_PROCESSES, BENCH_MODE_LAUNCHER };

struct bench_rank {
    const struct bench_options *options;
    struct bench_team team;
    enum bench_mode mode;
    int rank;
    int nranks;
    int cpu; /* pinned to; -1: not pinned */
    struct kolo_comm *comm;
};

/* Start the ranks, run bench_rank_main on each, return the exit code of the program. */
int bench_ranks_run(const struct bench_options *options, char **argv);

/* Set by SIGINT; the ranks look at it together. */
extern volatile sig_atomic_t bench_interrupted;

/* Print what the library said about a failed call and leave with BENCH_EXIT_ERROR. */
__attribute__((noreturn)) void bench_fail(int rank, const char *what, enum kolo_status status,
                                          const struct kolo_comm *comm);

/* ---- rows --------------------------------------------------------------------------------- */

/* One rank's state while it measures. */
struct bench_buffer {
    unsigned char *base; /* guard, data, guard */
    size_t bytes;        /* of data, at most */
};

struct bench_job {
    struct bench_rank *rank;
    struct kolo_stream *stream; /* NULL: blocking calls */
    struct bench_buffer send;
    struct bench_buffer recv; /* also all data of operations in place */
    struct data_pattern pattern;
    size_t *counts; /* of all_to_all_v: send counts, receive counts, nranks of each */
    double *samples;
    uint64_t seed;
    int type;
    size_t element_bytes;
    int op;     /* of the benchmark */
    int handle; /* of the library: op, or what kolo_op_create_premul_sum made */
    int root;
    size_t count; /* the collective's own argument; of all_to_all_v the average block */
};

/* Where the data of one call lies.  In place, send and recv are parts of `whole`. */
struct bench_place {
    unsigned char *send;
    unsigned char *recv;
    unsigned char *whole; /* the receiving buffer */
    size_t whole_bytes;
};

/* ---- bench_call: what each collective moves ----------------------------------------------- */

/* The count argument for a size of the table. */
size_t bench_count(const struct bench_job *job, size_t bytes);
/* Elements in the buffers of `rank` for the count of the job. */
size_t bench_send_count(const struct bench_job *job, int rank, bool in_place);
size_t bench_recv_count(const struct bench_job *job, int rank, bool in_place);
/* Bytes of the largest buffer of any rank. */
size_t bench_bytes(const struct bench_job *job, bool in_place);
/* Elements that `from` sends to `to` in all_to_all_v. */
size_t bench_block(const struct bench_job *job, int from, int to, bool in_place);
struct bench_place bench_place_data(const struct bench_job *job, bool in_place);
/* Issue the operation once, and wait for it if it went to a stream. */
void bench_issue(const struct bench_job *job, const struct bench_place *place, bool in_place);
void bench_wait(const struct bench_job *job);

/* ---- bench_check --------------------------------------------------------------------------- */

/* Fill the input of this rank with data of the job's seed. */
void bench_fill(struct bench_job *job, const struct bench_place *place, bool in_place);
/* Run once on fresh data, look at everything: wrong elements here, and the error ratio. */
size_t bench_check(struct bench_job *job, bool in_place, double *worst);

/* ---- bench_run ----------------------------------------------------------------------------- */

struct bench_side {
    bool is_valid;
    long nsamples;
    long batch;     /* operations per sample */
    double time_us; /* median */
    double min_us;
    double p50_us;
    double p95_us;
    double p99_us;
    double max_us;
    double cv;    /* standard deviation / mean */
    double algbw; /* 1e9 bytes/s */
    double busbw;
    double wrong;       /* elements, all ranks; negative: not checked */
    double error_ratio; /* largest error / bound, with real data */
};

struct bench_row {
    size_t bytes; /* size column */
    size_t count; /* the collective's own argument */
    int type;
    int op;
    int root;                  /* -1: none */
    struct bench_side side[2]; /* out of place, in place */
};

/* Run the whole benchmark as this rank; returns the exit code, the same on every rank. */
int bench_rank_main(struct bench_rank *rank);

/* ---- bench_overlap ------------------------------------------------------------------------- */

/* Measure and print (rank 0) the row of the job's count; with a head when it is the first. */
void bench_overlap(struct bench_job *job, bool is_first);

/* ---- printing (rank 0) -------------------------------------------------------------------- */

struct bench_report;
struct bench_seat {
    int pid;
    int cpu; /* -1: not pinned by this program */
    char host[32];
};

struct bench_report *bench_report_create(const struct bench_rank *rank,
                                         const struct bench_seat *seats);
/* On a terminal: what is being measured now. */
void bench_report_progress(struct bench_report *report, size_t bytes);
void bench_report_row(struct bench_report *report, const struct bench_row *row);
/* Footer, files; returns the exit code. */
int bench_report_end(struct bench_report *report, bool is_interrupted);

#endif
