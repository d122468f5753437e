/* bench_call.c - what each collective moves: counts, places, and the call itself.
 *
 * Sizes are nccl-tests': of the largest buffer of a rank; what is split among the ranks is rounded
 * down to whole elements, and to 16 bytes a rank when it is at least that.  So -b 8 with 8 ranks
 * and 4-byte elements has rows with count 0, which run like any other.
 */
#include "bench.h"

static const struct bench_command *command_of(const struct bench_job *job)
{
    return job->rank->options->command;
}

size_t bench_count(const struct bench_job *job, size_t bytes)
{
    const size_t count = bytes / job->element_bytes;
    if (!command_of(job)->is_partitioned)
        return count;
    const size_t part = count / (size_t)job->rank->nranks, line = 16 / job->element_bytes;
    return part < line ? part : part - part % line;
}

/* Uneven on purpose: 0, 1/2, 1 or 3/2 of the average block, and not what `to` sends to `from`.  In
 * place needs equal counts both ways. */
size_t bench_block(const struct bench_job *job, int from, int to, bool in_place)
{
    const size_t weight = (size_t)(from + (in_place ? 1 : 2) * to) % 4;
    return job->rank->nranks == 1 ? job->count : job->count * weight / 2;
}

static size_t all_blocks(const struct bench_job *job, int rank, bool is_send, bool in_place)
{
    size_t sum = 0;
    for (int k = 0; k < job->rank->nranks; k++)
        sum += is_send ? bench_block(job, rank, k, in_place) : bench_block(job, k, rank, in_place);
    return sum;
}

size_t bench_send_count(const struct bench_job *job, int rank, bool in_place)
{
    const size_t n = (size_t)job->rank->nranks;
    switch (command_of(job)->coll) {
    case BENCH_REDUCE_SCATTER:
    case BENCH_ALL_TO_ALL:
        return n * job->count;
    case BENCH_SCATTER:
        return rank == job->root ? n * job->count : 0;
    case BENCH_ALL_TO_ALL_V:
        return all_blocks(job, rank, true, in_place);
    case BENCH_BROADCAST:
        return rank == job->root ? job->count : 0;
    default:
        return job->count;
    }
}

size_t bench_recv_count(const struct bench_job *job, int rank, bool in_place)
{
    const size_t n = (size_t)job->rank->nranks;
    switch (command_of(job)->coll) {
    case BENCH_ALL_GATHER:
    case BENCH_ALL_TO_ALL:
        return n * job->count;
    case BENCH_GATHER:
        return rank == job->root ? n * job->count : 0;
    case BENCH_ALL_TO_ALL_V:
        return all_blocks(job, rank, false, in_place);
    case BENCH_REDUCE:
        return rank == job->root ? job->count : 0;
    default:
        return job->count;
    }
}

size_t bench_bytes(const struct bench_job *job, bool in_place)
{
    size_t most = 0;
    for (int r = 0; r < job->rank->nranks; r++) {
        const size_t send = bench_send_count(job, r, in_place);
        const size_t recv = bench_recv_count(job, r, in_place);
        if (send > most)
            most = send;
        if (recv > most)
            most = recv;
    }
    return most * job->element_bytes;
}

static unsigned char *start_of(const struct bench_job *job, const struct bench_buffer *buffer)
{
    return buffer->base + BENCH_GUARD_BYTES +
           (size_t)job->rank->options->unalign * job->element_bytes;
}

struct bench_place bench_place_data(const struct bench_job *job, bool in_place)
{
    const size_t send = bench_send_count(job, job->rank->rank, in_place) * job->element_bytes;
    const size_t recv = bench_recv_count(job, job->rank->rank, in_place) * job->element_bytes;
    const size_t block = job->count * job->element_bytes;
    unsigned char *whole = start_of(job, &job->recv);
    struct bench_place place = {start_of(job, &job->send), whole, whole, recv};
    if (!in_place)
        return place;
    const bool is_root = job->rank->rank == job->root;
    const size_t own = (size_t)job->rank->rank * block;
    place.whole_bytes = send > recv ? send : recv;
    switch (command_of(job)->coll) {
    case BENCH_GATHER:
        if (is_root)
            place.send = whole + own;
        else
            place.whole_bytes = 0;
        break;
    case BENCH_SCATTER:
        if (is_root) {
            place.send = whole;
            place.recv = whole + own;
        }
        break;
    case BENCH_ALL_GATHER:
        place.send = whole + own;
        break;
    case BENCH_REDUCE_SCATTER:
        place.send = whole;
        place.recv = whole + own;
        break;
    default:
        place.send = whole;
    }
    return place;
}

static enum kolo_status send_and_receive(const struct bench_job *job,
                                         const struct bench_place *place)
{
    const int n = job->rank->nranks, next = (job->rank->rank + 1) % n;
    const int before = (job->rank->rank + n - 1) % n;
    struct kolo_comm *comm = job->rank->comm;
    enum kolo_status status = kolo_group_begin();
    if (status != KOLO_OK)
        return status;
    const enum kolo_status sent =
        kolo_send(place->send, job->count, job->type, next, comm, job->stream);
    const enum kolo_status received =
        kolo_recv(place->recv, job->count, job->type, before, comm, job->stream);
    status = kolo_group_end();
    if (sent != KOLO_OK)
        return sent;
    return received != KOLO_OK ? received : status;
}

static enum kolo_status call_v(const struct bench_job *job, const struct bench_place *place,
                               bool in_place)
{
    const int n = job->rank->nranks;
    for (int k = 0; k < n; k++) {
        job->counts[k] = bench_block(job, job->rank->rank, k, in_place);
        job->counts[n + k] = bench_block(job, k, job->rank->rank, in_place);
    }
    return kolo_all_to_all_v(place->send, job->counts, NULL, place->recv, job->counts + n, NULL,
                             job->type, job->rank->comm, job->stream);
}

static enum kolo_status call(const struct bench_job *job, const struct bench_place *place,
                             bool in_place)
{
    struct kolo_comm *comm = job->rank->comm;
    const size_t count = job->count;
    const int type = job->type, op = job->handle, root = job->root;
    void *send = place->send, *recv = place->recv, *stream = job->stream;
    switch (command_of(job)->coll) {
    case BENCH_ALL_REDUCE:
        return kolo_all_reduce(send, recv, count, type, op, comm, stream);
    case BENCH_ALL_GATHER:
        return kolo_all_gather(send, recv, count, type, comm, stream);
    case BENCH_REDUCE_SCATTER:
        return kolo_reduce_scatter(send, recv, count, type, op, comm, stream);
    case BENCH_ALL_TO_ALL:
        return kolo_all_to_all(send, recv, count, type, comm, stream);
    case BENCH_ALL_TO_ALL_V:
        return call_v(job, place, in_place);
    case BENCH_BROADCAST:
        return kolo_broadcast(send, recv, count, type, root, comm, stream);
    case BENCH_REDUCE:
        return kolo_reduce(send, recv, count, type, op, root, comm, stream);
    case BENCH_GATHER:
        return kolo_gather(send, recv, count, type, root, comm, stream);
    case BENCH_SCATTER:
        return kolo_scatter(send, recv, count, type, root, comm, stream);
    case BENCH_SENDRECV:
        return send_and_receive(job, place);
    default:
        return kolo_barrier(comm, stream);
    }
}

static void fail_call(const struct bench_job *job, enum kolo_status status, bool in_place)
{
    char what[128];
    const struct data_type *type = data_type_get(job->type);
    snprintf(what, sizeof what, "%s of %zu %s %s%s", command_of(job)->name, job->count,
             type ? type->name : "", data_op_name(job->op), in_place ? " in place" : "");
    bench_fail(job->rank->rank, what, status, job->rank->comm);
}

void bench_issue(const struct bench_job *job, const struct bench_place *place, bool in_place)
{
    const enum kolo_status status = call(job, place, in_place);
    if (status != KOLO_OK)
        fail_call(job, status, in_place);
}

void bench_wait(const struct bench_job *job)
{
    if (!job->stream)
        return;
    const enum kolo_status status = kolo_stream_synchronize(job->stream);
    if (status != KOLO_OK)
        fail_call(job, status, false);
}
