/* bench_run.c - the sweep over sizes, and how one side of a row is timed.
 *
 * A sample is `batch` operations back to back between two clock reads, after a barrier; its value
 * is the time of one operation, reduced over the ranks (-a; the slowest by default).  The batch
 * makes a sample last 40 us, so that clock and barrier do not count.  A row's time is the median.
 */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    SAMPLE_NS = 40000,
    MAX_BATCH = 4096,
    MIN_SAMPLES = 3,
    DEFAULT_WARMUP = 5,
    MOST_GROUP_BYTES = 1 << 30,
};

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* ---- buffers ------------------------------------------------------------------------------ */

static void buffer_free(const struct bench_rank *rank, struct bench_buffer *buffer)
{
    if (rank->options->registration == 0) {
        free(buffer->base);
    } else if (buffer->base) {
        const enum kolo_status status = kolo_mem_free(buffer->base);
        if (status != KOLO_OK)
            bench_fail(rank->rank, "kolo_mem_free", status, NULL);
    }
    *buffer = (struct bench_buffer){.base = NULL};
}

/* Room for `bytes` of data with guards, page aligned but for -u. */
static void buffer_reserve(const struct bench_job *job, struct bench_buffer *buffer, size_t bytes)
{
    const struct bench_rank *rank = job->rank;
    if (buffer->base && buffer->bytes >= bytes)
        return;
    buffer_free(rank, buffer);
    const size_t shift = (size_t)rank->options->unalign * job->element_bytes;
    const size_t all = bytes + shift + 2 * BENCH_GUARD_BYTES;
    void *base = NULL;
    if (rank->options->registration == 0) {
        if (posix_memalign(&base, 4096, all)) {
            fprintf(stderr, "kolo_bench: rank %d: no memory for %zu bytes\n", rank->rank, all);
            fflush(NULL);
            _exit(BENCH_EXIT_ERROR);
        }
    } else {
        const enum kolo_status status = kolo_mem_alloc(&base, all);
        if (status != KOLO_OK)
            bench_fail(rank->rank, "kolo_mem_alloc", status, NULL);
    }
    *buffer = (struct bench_buffer){base, bytes};
}

/* In a group each operation has its own piece of the buffers, as far as that is sane. */
static size_t piece_stride(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static long count_pieces(const struct bench_job *job, size_t bytes)
{
    const size_t fit = bytes > 0 ? MOST_GROUP_BYTES / piece_stride(bytes) : 1;
    const long wanted = job->rank->options->group_ops;
    return fit < 1 ? 1 : (size_t)wanted < fit ? wanted : (long)fit;
}

/* The m-th operation's part of buffers whose first one is `place`. */
static struct bench_place piece_of(const struct bench_job *job, const struct bench_place *place,
                                   bool in_place, long m)
{
    struct bench_place piece = *place;
    const size_t bytes = bench_bytes(job, in_place);
    const size_t shift = piece_stride(bytes) * (size_t)(m % count_pieces(job, bytes));
    piece.send += shift;
    piece.recv += shift;
    piece.whole += shift;
    return piece;
}

static void fill_pieces(struct bench_job *job, const struct bench_place *place, bool in_place)
{
    const size_t bytes = bench_send_count(job, job->rank->rank, in_place) * job->element_bytes;
    const long n = count_pieces(job, bench_bytes(job, in_place));
    for (long m = 1; m < n && bytes > 0; m++)
        memcpy(piece_of(job, place, in_place, m).send, place->send, bytes);
}

/* Buffers for the largest row of the job's type. */
static void reserve_buffers(struct bench_job *job)
{
    size_t most[2] = {0, 0};
    job->count = bench_count(job, job->rank->options->max_bytes);
    for (int side = 0; side < 2; side++) {
        const size_t send = bench_send_count(job, job->rank->rank, side) * job->element_bytes;
        const size_t recv = bench_recv_count(job, job->rank->rank, side) * job->element_bytes;
        if (send > most[0])
            most[0] = send;
        if (recv > most[1])
            most[1] = recv;
        if (side == 1 && job->rank->options->command->has_in_place && most[0] > most[1])
            most[1] = most[0];
    }
    /* Pieces are as far apart as the largest buffer of any rank is long. */
    const size_t largest = max_size(bench_bytes(job, false), bench_bytes(job, true));
    const size_t more = piece_stride(largest) * (size_t)(count_pieces(job, largest) - 1);
    buffer_free(job->rank, &job->send);
    buffer_free(job->rank, &job->recv);
    buffer_reserve(job, &job->send, most[0] + more);
    buffer_reserve(job, &job->recv, most[1] + more);
}

/* ---- timing ------------------------------------------------------------------------------- */

/* Time of n operations in a row on this rank, in ns. */
static double time_batch(struct bench_job *job, const struct bench_place *place, bool in_place,
                         long n)
{
    const long group_ops = job->rank->options->group_ops;
    bench_team_barrier(&job->rank->team);
    const double start = now_ns();
    for (long i = 0; i < n; i++) {
        if (group_ops == 1) {
            bench_issue(job, place, in_place);
            continue;
        }
        enum kolo_status status = kolo_group_begin();
        for (long m = 0; status == KOLO_OK && m < group_ops; m++) {
            const struct bench_place piece = piece_of(job, place, in_place, m);
            bench_issue(job, &piece, in_place);
        }
        if (status == KOLO_OK)
            status = kolo_group_end();
        if (status != KOLO_OK)
            bench_fail(job->rank->rank, "group", status, job->rank->comm);
    }
    bench_wait(job);
    return now_ns() - start;
}

static double agree_max(struct bench_job *job, double value)
{
    return bench_team_agree(&job->rank->team, value, BENCH_MAX);
}

/* The time of the last operation on the slowest rank, in ns; 0 without warm-up. */
static double warm_up(struct bench_job *job, const struct bench_place *place, bool in_place)
{
    const struct bench_options *options = job->rank->options;
    const bool is_bounded = options->warmup < 0;
    const long n = is_bounded ? DEFAULT_WARMUP : options->warmup;
    double last = 0, all = 0;
    for (long i = 0; i < n; i++) {
        last = agree_max(job, time_batch(job, place, in_place, 1));
        all += last;
        if (is_bounded && all > (double)options->budget_ms * 0.5e6)
            break;
    }
    return last;
}

/* Operations of a sample, when one takes `single` ns. */
static long choose_batch(struct bench_job *job, const struct bench_place *place, bool in_place,
                         double single)
{
    long n = 1;
    if (single >= SAMPLE_NS)
        return 1;
    while (n < MAX_BATCH && agree_max(job, time_batch(job, place, in_place, n)) < SAMPLE_NS)
        n *= 2;
    return n;
}

/* Take samples until there are enough; -1 when interrupted. */
static long take_samples(struct bench_job *job, const struct bench_place *place, bool in_place,
                         long batch)
{
    const struct bench_options *options = job->rank->options;
    const double budget = (double)options->budget_ms * 1e6, start = now_ns();
    const double ops = (double)(batch * options->group_ops);
    const long most = options->iters ? options->iters : BENCH_MAX_SAMPLES;
    long done = 0, block = MIN_SAMPLES;
    while (done < most) {
        for (long i = 0; i < block && done < most; i++)
            job->samples[done++] = time_batch(job, place, in_place, batch) / ops;
        double state[2] = {now_ns() - start, bench_interrupted ? 1 : 0};
        bench_team_reduce(&job->rank->team, state, 2, BENCH_MAX);
        if (state[1] > 0)
            return -1;
        if (options->iters)
            continue;
        if (state[0] >= budget)
            break;
        const double fits = (budget - state[0]) * (double)done / state[0];
        block = fits < 1 ? 1 : fits < (double)done ? (long)fits : done;
    }
    return done;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The q-quantile of n sorted values, interpolated. */
static double quantile(const double *sorted, long n, double q)
{
    const double at = q * (double)(n - 1);
    const long i = (long)at;
    if (i + 1 >= n)
        return sorted[n - 1];
    return sorted[i] + (at - (double)i) * (sorted[i + 1] - sorted[i]);
}

static double variation(const double *values, long n)
{
    double sum = 0, squares = 0;
    for (long i = 0; i < n; i++)
        sum += values[i];
    const double mean = sum / (double)n;
    for (long i = 0; i < n; i++)
        squares += (values[i] - mean) * (values[i] - mean);
    return mean > 0 ? sqrt(squares / (double)n) / mean : 0;
}

static double bus_factor(const struct bench_command *command, int nranks)
{
    const double n = nranks;
    switch (command->factor) {
    case BENCH_FACTOR_ALL_REDUCE:
        return 2 * (n - 1) / n;
    case BENCH_FACTOR_PART:
        return (n - 1) / n;
    default:
        return 1;
    }
}

static void summarize(struct bench_job *job, size_t bytes, struct bench_side *side)
{
    double *v = job->samples;
    const long n = side->nsamples;
    bench_team_reduce(&job->rank->team, v, (int)n, (enum bench_average)job->rank->options->average);
    side->cv = variation(v, n);
    qsort(v, (size_t)n, sizeof *v, compare_doubles);
    side->min_us = v[0] * 1e-3;
    side->p50_us = quantile(v, n, 0.5) * 1e-3;
    side->p95_us = quantile(v, n, 0.95) * 1e-3;
    side->p99_us = quantile(v, n, 0.99) * 1e-3;
    side->max_us = v[n - 1] * 1e-3;
    side->time_us = side->p50_us;
    side->algbw = side->time_us > 0 ? (double)bytes / side->time_us * 1e-3 : 0;
    side->busbw = side->algbw * bus_factor(job->rank->options->command, job->rank->nranks);
}

/* Time one side of a row, then check it; false when interrupted. */
static bool run_side(struct bench_job *job, bool in_place, struct bench_side *side)
{
    const struct bench_options *options = job->rank->options;
    const struct bench_place place = bench_place_data(job, in_place);
    *side = (struct bench_side){.wrong = -1};
    job->seed++;
    if (options->command->coll != BENCH_BARRIER)
        bench_fill(job, &place, in_place);
    fill_pieces(job, &place, in_place);
    const double single = warm_up(job, &place, in_place);
    side->batch = choose_batch(job, &place, in_place, single);
    side->nsamples = take_samples(job, &place, in_place, side->batch);
    if (side->nsamples < 0)
        return false;
    summarize(job, bench_bytes(job, in_place), side);
    if (options->is_checked && options->command->coll != BENCH_BARRIER) {
        double worst = 0;
        const size_t wrong = bench_check(job, in_place, &worst);
        side->wrong = bench_team_agree(&job->rank->team, (double)wrong, BENCH_SUM);
        side->error_ratio = agree_max(job, worst);
    }
    side->is_valid = true;
    return true;
}

/* ---- the sweep ---------------------------------------------------------------------------- */

static bool run_row(struct bench_job *job, size_t size, struct bench_report *report)
{
    const struct bench_command *command = job->rank->options->command;
    job->count = bench_count(job, size);
    if (job->rank->options->is_overlap) {
        bench_overlap(job, size == job->rank->options->min_bytes);
        return true;
    }
    struct bench_row row = {
        .bytes = bench_bytes(job, false),
        .count = job->count,
        .type = command->coll == BENCH_BARRIER ? -1 : job->type,
        .op = command->has_op ? job->op : BENCH_OP_NONE,
        .root = command->has_root ? job->root : -1,
    };
    if (report)
        bench_report_progress(report, size);
    if (!run_side(job, false, &row.side[0]))
        return false;
    if (command->has_in_place && !run_side(job, true, &row.side[1]))
        return false;
    if (report)
        bench_report_row(report, &row);
    return true;
}

/* The size after `size`, at most the largest; 0 when there is none. */
static size_t next_size(const struct bench_options *options, size_t size)
{
    if (size >= options->max_bytes)
        return 0;
    const size_t left = options->max_bytes - size;
    size_t step = options->step_bytes;
    if (step == 0)
        step = size == 0 ? 8 : size * (size_t)(options->factor - 1);
    return step < left ? size + step : options->max_bytes;
}

static bool run_sizes(struct bench_job *job, struct bench_report *report)
{
    const struct bench_options *options = job->rank->options;
    if (options->command->coll == BENCH_BARRIER)
        return run_row(job, 0, report);
    size_t size = options->min_bytes;
    do {
        if (!run_row(job, size, report))
            return false;
        size = next_size(options, size);
    } while (size > 0);
    return true;
}

static bool run_roots(struct bench_job *job, struct bench_report *report)
{
    const struct bench_options *options = job->rank->options;
    const bool is_all = options->root < 0 && options->command->has_root;
    const int last = is_all ? job->rank->nranks - 1 : options->root < 0 ? 0 : options->root;
    for (int root = is_all ? 0 : last; root <= last; root++) {
        job->root = root;
        reserve_buffers(job);
        if (!run_sizes(job, report))
            return false;
    }
    return true;
}

static bool run_op(struct bench_job *job, int op, struct bench_report *report)
{
    struct kolo_comm *comm = job->rank->comm;
    const int rank = job->rank->rank;
    unsigned char scalar[8];
    job->op = job->handle = op;
    if (op != BENCH_OP_MULSUM)
        return run_roots(job, report);
    data_encode(job->type, data_factor(rank), scalar);
    enum kolo_status status = kolo_op_create_premul_sum(scalar, job->type, comm, &job->handle);
    if (status != KOLO_OK)
        bench_fail(rank, "kolo_op_create_premul_sum", status, comm);
    const bool is_complete = run_roots(job, report);
    status = kolo_op_destroy(job->handle, comm);
    if (status != KOLO_OK)
        bench_fail(rank, "kolo_op_destroy", status, comm);
    return is_complete;
}

static bool run_type(struct bench_job *job, int type, struct bench_report *report)
{
    const struct bench_options *options = job->rank->options;
    job->type = type;
    job->element_bytes = data_type_get(type)->bytes;
    if (!options->command->has_op)
        return run_op(job, BENCH_OP_NONE, report);
    for (int op = 0; op < BENCH_NOPS; op++) {
        if ((options->ops >> op & 1) && data_is_op_legal(type, op) && !run_op(job, op, report))
            return false;
    }
    return true;
}

/* One pass over all types; false when interrupted. */
static bool run_cycle(struct bench_job *job, struct bench_report *report)
{
    for (int type = 0; type < KOLO_NTYPES; type++) {
        if ((job->rank->options->types >> type & 1) && !run_type(job, type, report))
            return false;
    }
    return true;
}

static struct bench_report *open_report(struct bench_rank *rank)
{
    struct bench_seat seat = {.pid = (int)getpid(), .cpu = rank->cpu};
    struct bench_seat *seats = calloc((size_t)rank->nranks, sizeof *seats);
    if (!seats || gethostname(seat.host, sizeof seat.host - 1))
        strcpy(seat.host, "?");
    const enum kolo_status status =
        kolo_all_gather(&seat, seats, sizeof seat, KOLO_U8, rank->comm, NULL);
    if (status != KOLO_OK)
        bench_fail(rank->rank, "exchange of the ranks' places", status, rank->comm);
    struct bench_report *report = rank->rank == 0 ? bench_report_create(rank, seats) : NULL;
    free(seats);
    return report;
}

static void job_create(struct bench_rank *rank, struct bench_job *job)
{
    *job = (struct bench_job){.rank = rank, .seed = 1};
    job->counts = calloc(2 * (size_t)rank->nranks, sizeof *job->counts);
    job->samples = calloc(BENCH_MAX_SAMPLES, sizeof *job->samples);
    if (!job->counts || !job->samples || !data_pattern_create(&job->pattern)) {
        fprintf(stderr, "kolo_bench: rank %d: no memory\n", rank->rank);
        fflush(NULL);
        _exit(BENCH_EXIT_ERROR);
    }
    if (rank->options->is_blocking && !rank->options->is_overlap)
        return;
    const enum kolo_status status = kolo_stream_create(&job->stream);
    if (status != KOLO_OK)
        bench_fail(rank->rank, "kolo_stream_create", status, NULL);
}

static void job_destroy(struct bench_job *job)
{
    kolo_stream_destroy(job->stream);
    buffer_free(job->rank, &job->send);
    buffer_free(job->rank, &job->recv);
    data_pattern_destroy(&job->pattern);
    free(job->samples);
    free(job->counts);
}

int bench_rank_main(struct bench_rank *rank)
{
    struct bench_job job;
    bool is_complete = true;
    job_create(rank, &job);
    struct bench_report *report = rank->options->is_overlap ? NULL : open_report(rank);
    for (long i = 0; is_complete && (i < rank->options->cycles || !rank->options->cycles); i++)
        is_complete = run_cycle(&job, report);
    const int code = report ? bench_report_end(report, !is_complete) : 0;
    job_destroy(&job);
    return (int)bench_team_agree(&rank->team, code, BENCH_RANK0);
}
