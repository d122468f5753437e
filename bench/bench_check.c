/* bench_check.c - one operation on fresh data, and a look at every byte that it may have touched.
 *
 * Checked are the result, that the input is unchanged where it is not also output, that ranks which
 * get no result have none written, and guard bytes on both sides of each buffer.
 */
#include "bench.h"

static struct data_spec spec_of(const struct bench_job *job)
{
    return (struct data_spec){.type = job->type,
                              .op = job->rank->options->command->has_op ? job->op : BENCH_OP_NONE,
                              .nranks = job->rank->nranks,
                              .seed = job->seed,
                              .is_real = job->rank->options->is_real};
}

/* Where in the buffers guards lie, for data of `bytes` at `data`. */
static void set_guards(unsigned char *data, size_t bytes)
{
    data_poison(data - BENCH_GUARD_BYTES, BENCH_GUARD_BYTES);
    data_poison(data + bytes, BENCH_GUARD_BYTES);
}

static size_t broken_guards(const unsigned char *data, size_t bytes)
{
    return data_poison_broken(data - BENCH_GUARD_BYTES, BENCH_GUARD_BYTES) +
           data_poison_broken(data + bytes, BENCH_GUARD_BYTES);
}

void bench_fill(struct bench_job *job, const struct bench_place *place, bool in_place)
{
    const struct data_spec spec = spec_of(job);
    const size_t count = bench_send_count(job, job->rank->rank, in_place);
    if (count == 0)
        return;
    data_contribution(&spec, job->rank->rank, count, &job->pattern);
    data_fill(&job->pattern, 0, count, place->send);
}

/* `count` elements at `at` must be elements first .. of what `from` sent. */
static void expect_from(struct bench_job *job, int from, size_t first, size_t count,
                        const unsigned char *at, struct data_verdict *verdict)
{
    const struct data_spec spec = spec_of(job);
    if (count == 0)
        return;
    data_contribution(&spec, from, first + count, &job->pattern);
    data_check(&job->pattern, first, count, at, verdict);
}

/* The same with the reduction over all ranks. */
static void expect_reduced(struct bench_job *job, size_t first, const unsigned char *at,
                           struct data_verdict *verdict)
{
    const struct data_spec spec = spec_of(job);
    if (job->count == 0)
        return;
    data_expected(&spec, first + job->count, &job->pattern);
    data_check(&job->pattern, first, job->count, at, verdict);
}

/* A block of `count` from every rank, taken from element `first` of its input. */
static void expect_blocks(struct bench_job *job, size_t first, const unsigned char *recv,
                          struct data_verdict *verdict)
{
    for (int k = 0; k < job->rank->nranks; k++)
        expect_from(job, k, first, job->count, recv + (size_t)k * job->count * job->element_bytes,
                    verdict);
}

static void expect_uneven(struct bench_job *job, const unsigned char *recv, bool in_place,
                          struct data_verdict *verdict)
{
    const int rank = job->rank->rank;
    for (int k = 0; k < job->rank->nranks; k++) {
        size_t first = 0;
        for (int to = 0; to < rank; to++)
            first += bench_block(job, k, to, in_place);
        const size_t count = bench_block(job, k, rank, in_place);
        expect_from(job, k, first, count, recv, verdict);
        recv += count * job->element_bytes;
    }
}

static void check_result(struct bench_job *job, const struct bench_place *place, bool in_place,
                         struct data_verdict *verdict)
{
    const int rank = job->rank->rank, n = job->rank->nranks;
    const size_t own = (size_t)rank * job->count;
    const bool is_root = rank == job->root;
    switch (job->rank->options->command->coll) {
    case BENCH_ALL_REDUCE:
        expect_reduced(job, 0, place->recv, verdict);
        break;
    case BENCH_REDUCE_SCATTER:
        expect_reduced(job, own, place->recv, verdict);
        break;
    case BENCH_REDUCE:
        if (is_root)
            expect_reduced(job, 0, place->recv, verdict);
        else if (in_place)
            expect_from(job, rank, 0, job->count, place->send, verdict);
        break;
    case BENCH_GATHER:
        if (!is_root)
            break;
        expect_blocks(job, 0, place->recv, verdict);
        break;
    case BENCH_ALL_GATHER:
        expect_blocks(job, 0, place->recv, verdict);
        break;
    case BENCH_ALL_TO_ALL:
        expect_blocks(job, own, place->recv, verdict);
        break;
    case BENCH_ALL_TO_ALL_V:
        expect_uneven(job, place->recv, in_place, verdict);
        break;
    case BENCH_BROADCAST:
        expect_from(job, job->root, 0, job->count, place->recv, verdict);
        break;
    case BENCH_SCATTER:
        expect_from(job, job->root, own, job->count, place->recv, verdict);
        break;
    case BENCH_SENDRECV:
        expect_from(job, (rank + n - 1) % n, 0, job->count, place->recv, verdict);
        break;
    default:
        break;
    }
}

static void print_wrong(const struct bench_job *job, const struct bench_place *place, bool in_place,
                        const struct data_verdict *verdict, size_t stray)
{
    char text[320];
    int at =
        snprintf(text, sizeof text, "kolo_bench: rank %d: %s of %zu %s %s%s: ", job->rank->rank,
                 job->rank->options->command->name, job->count, data_type_get(job->type)->name,
                 data_op_name(job->op), in_place ? " in place" : "");
    if (verdict->first) {
        const ptrdiff_t offset = (const unsigned char *)verdict->first - place->whole;
        at += snprintf(text + at, sizeof text - (size_t)at,
                       "%zu wrong elements, first at byte %td: %g instead of %g; ", verdict->wrong,
                       offset, data_decode(job->type, verdict->first),
                       data_decode(job->type, verdict->want));
    }
    snprintf(text + at, sizeof text - (size_t)at, "%zu bytes written outside\n", stray);
    fputs(text, stderr);
}

size_t bench_check(struct bench_job *job, bool in_place, double *worst)
{
    const struct bench_place place = bench_place_data(job, in_place);
    const int rank = job->rank->rank;
    const size_t send_count = bench_send_count(job, rank, in_place);
    const size_t send_bytes = send_count * job->element_bytes;
    const bool is_apart = place.send < place.whole || place.send > place.whole + place.whole_bytes;
    struct data_verdict verdict = {.wrong = 0};
    job->seed++;
    if (is_apart)
        set_guards(place.send, send_bytes);
    set_guards(place.whole, place.whole_bytes);
    data_poison(place.whole, place.whole_bytes);
    bench_fill(job, &place, in_place);
    bench_team_barrier(&job->rank->team);
    bench_issue(job, &place, in_place);
    bench_wait(job);
    check_result(job, &place, in_place, &verdict);
    size_t stray = broken_guards(place.whole, place.whole_bytes);
    if (is_apart) {
        expect_from(job, rank, 0, send_count, place.send, &verdict);
        stray += broken_guards(place.send, send_bytes);
    }
    if (verdict.wrong || stray)
        print_wrong(job, &place, in_place, &verdict, stray);
    if (verdict.worst > *worst)
        *worst = verdict.worst;
    bench_team_barrier(&job->rank->team); /* nobody's buffers change while others still look */
    return verdict.wrong + stray;
}
