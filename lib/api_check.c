/* api_check.c - what can be wrong with a call, found before anything has started: each fault has a
 * text that names the argument, its value and what is legal. */
#include "api.h"

#include <inttypes.h>

/* Which buffers a rank brings to a collective, in blocks of `count` elements; 0: none. */
struct shape {
    size_t send_blocks;
    size_t recv_blocks;
    size_t in_place_send; /* offsets, in blocks, at which send and recv may meet */
    size_t in_place_recv;
};

static struct shape shape_of(const struct request *q)
{
    const size_t n = (size_t)q->comm->nranks, r = (size_t)q->comm->rank;
    const bool is_root = q->call.root == q->comm->rank;
    switch (q->call.coll) {
    case KOLO_COLL_REDUCE_SCATTER:
        return (struct shape){n, 1, r, 0};
    case KOLO_COLL_ALL_GATHER:
        return (struct shape){1, n, 0, r};
    case KOLO_COLL_ALL_TO_ALL:
        return (struct shape){n, n, 0, 0};
    case KOLO_COLL_BROADCAST: /* at the root recv may be missing: see request_check */
        return (struct shape){is_root, !is_root || q->recv, 0, 0};
    case KOLO_COLL_REDUCE:
        return (struct shape){1, is_root, 0, 0};
    case KOLO_COLL_GATHER:
        return (struct shape){1, is_root ? n : 0, 0, r};
    case KOLO_COLL_SCATTER:
        return (struct shape){is_root ? n : 0, 1, r, 0};
    case KOLO_COLL_BARRIER:
        return (struct shape){0, 0, 0, 0};
    case KOLO_COLL_SEND:
        return (struct shape){1, 0, 0, 0};
    case KOLO_COLL_RECV:
        return (struct shape){0, 1, 0, 0};
    default: /* all_reduce; v-variants have their own check */
        return (struct shape){1, 1, 0, 0};
    }
}

static const char *name_of(const struct request *q)
{
    return kolo_coll_name((int)q->call.coll);
}

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    const uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return x < y + b_bytes && y < x + a_bytes;
}

static enum kolo_status check_op(const struct request *q)
{
    const struct kolo_comm *comm = q->comm;
    const int op = q->call.op, type = q->call.type;
    if (op >= KOLO_OP_FIRST_CUSTOM) {
        const int i = op - KOLO_OP_FIRST_CUSTOM;
        if (i >= comm->ncustom || !comm->custom[i].is_used)
            return fail(KOLO_ERR_ARG, "%s: op %d is not a handle of this communicator", name_of(q),
                        op);
        if (comm->custom[i].type != type)
            return fail(KOLO_ERR_ARG, "%s: op %d was made for type %d, not %d", name_of(q), op,
                        comm->custom[i].type, type);
        return KOLO_OK;
    }
    if (op < 0 || op >= KOLO_NOPS)
        return fail(KOLO_ERR_ARG, "%s: op is %d, not an enum kolo_op (0 to %d) or a handle",
                    name_of(q), op, KOLO_NOPS - 1);
    if (!reduce_op_valid(type, op))
        return fail(KOLO_ERR_ARG, "%s: bitwise op %d is defined for integers, not for type %d",
                    name_of(q), op, type);
    return KOLO_OK;
}

static enum kolo_status check_overlap(const struct request *q, const void *send, size_t send_bytes,
                                      const void *recv, size_t recv_bytes, bool is_in_place)
{
    if (is_in_place || send_bytes == 0 || recv_bytes == 0 ||
        !overlap(send, send_bytes, recv, recv_bytes))
        return KOLO_OK;
    return fail(
        KOLO_ERR_ARG,
        "%s: send [%p, +%zu) and recv [%p, +%zu) overlap, but not as in place is defined for it",
        name_of(q), send, send_bytes, recv, recv_bytes);
}

static enum kolo_status check_buffers(const struct request *q)
{
    const struct shape s = shape_of(q);
    const size_t size = kolo_type_size(q->call.type), n = (size_t)q->comm->nranks;
    size_t block, whole;
    if (!size_mul(q->call.count, size, &block) || !size_mul(block, n, &whole) ||
        whole > (size_t)PTRDIFF_MAX)
        return fail(KOLO_ERR_ARG, "%s: count %zu of %zu-byte elements on %zu ranks overflows",
                    name_of(q), q->call.count, size, n);
    if (block == 0)
        return KOLO_OK;
    if (s.send_blocks && !q->send)
        return fail(KOLO_ERR_ARG, "%s: send is NULL with count %zu", name_of(q), q->call.count);
    if (s.recv_blocks && !q->recv)
        return fail(KOLO_ERR_ARG, "%s: recv is NULL with count %zu", name_of(q), q->call.count);
    if (!s.send_blocks || !s.recv_blocks)
        return KOLO_OK;
    const bool is_in_place = (const char *)q->send + s.in_place_send * block ==
                             (const char *)q->recv + s.in_place_recv * block;
    return check_overlap(q, q->send, s.send_blocks * block, q->recv, s.recv_blocks * block,
                         is_in_place);
}

void request_extents(const struct request *q, struct operation *op)
{
    const struct shape s = shape_of(q);
    const size_t block = q->call.count * kolo_type_size(q->call.type);
    op->has_recv = q->recv != NULL;
    op->send_extent = s.send_blocks * block;
    op->recv_extent = s.recv_blocks * block;
    op->in_place = (s.in_place_send - s.in_place_recv) * block;
}

/* ---- v-variants ---- */

/* Sum of counts, and the end of the farthest block, in bytes. */
static enum kolo_status measure(const struct request *q, const size_t *counts, const size_t *displs,
                                const char *what, size_t *extent_bytes, size_t *sum)
{
    const size_t size = kolo_type_size(q->call.type);
    size_t total = 0, extent = 0;
    for (int r = 0; r < q->comm->nranks; r++) {
        size_t end;
        if (!size_add(displs ? displs[r] : total, counts[r], &end) ||
            !size_add(total, counts[r], &total) || end > (size_t)PTRDIFF_MAX / size ||
            total > (size_t)PTRDIFF_MAX / size)
            return fail(KOLO_ERR_ARG, "%s: %s of rank %d (%zu elements of %zu bytes) overflow",
                        name_of(q), what, r, counts[r], size);
        extent = counts[r] > 0 && end > extent ? end : extent;
    }
    *extent_bytes = extent * size;
    *sum = total;
    return KOLO_OK;
}

/* Receive blocks must not overlap each other.  n is small or the blocks are in order: look at
 * neighbours first, at all pairs only when they are not in order. */
static enum kolo_status check_disjoint(const struct request *q)
{
    const size_t *counts = q->recv_counts, *displs = q->recv_displs;
    const int n = q->comm->nranks;
    size_t end = 0;
    bool is_ordered = true;
    for (int r = 0; displs && r < n; r++) {
        if (counts[r] == 0)
            continue;
        is_ordered &= displs[r] >= end;
        end = displs[r] + counts[r];
    }
    for (int a = 0; displs && !is_ordered && a < n; a++)
        for (int b = a + 1; b < n; b++)
            if (counts[a] && counts[b] && displs[a] < displs[b] + counts[b] &&
                displs[b] < displs[a] + counts[a])
                return fail(KOLO_ERR_ARG, "%s: the receive blocks of ranks %d and %d overlap",
                            name_of(q), a, b);
    return KOLO_OK;
}

static uint64_t hash_counts(const size_t *counts, int n)
{
    static const unsigned char key[16] = "kolo counts   ";
    return siphash(key, counts, (size_t)n * sizeof *counts);
}

static size_t sum_before(const size_t *counts, int r)
{
    size_t sum = 0;
    for (int i = 0; i < r; i++)
        sum += counts[i];
    return sum;
}

static bool same_layout(const struct request *q)
{
    size_t send_at = 0, recv_at = 0;
    for (int r = 0; r < q->comm->nranks; r++) {
        const size_t s = q->send_displs ? q->send_displs[r] : send_at;
        const size_t d = q->recv_displs ? q->recv_displs[r] : recv_at;
        if (q->send_counts[r] != q->recv_counts[r] || (q->send_counts[r] && s != d))
            return false;
        send_at += q->send_counts[r];
        recv_at += q->recv_counts[r];
    }
    return true;
}

/* The send buffer may lie in a gap between receive blocks. */
static enum kolo_status check_gaps(const struct request *q, size_t send_bytes)
{
    const size_t size = kolo_type_size(q->call.type);
    for (int k = 0; k < q->comm->nranks; k++)
        TRY(check_overlap(q, q->send, send_bytes, (const char *)q->recv + q->recv_displs[k] * size,
                          q->recv_counts[k] * size, false));
    return KOLO_OK;
}

/* Pointers, extents and in-place rules of the three v-variants. */
static enum kolo_status check_v(struct request *q)
{
    const int r = q->comm->rank, n = q->comm->nranks;
    const size_t size = kolo_type_size(q->call.type);
    const bool is_scatter = q->call.coll == KOLO_COLL_REDUCE_SCATTER_V;
    const bool is_gather = q->call.coll == KOLO_COLL_ALL_GATHER_V;
    size_t send_bytes = 0, recv_bytes = 0, sum;
    if ((!is_gather && !q->send_counts) || (!is_scatter && !q->recv_counts))
        return fail(KOLO_ERR_ARG, "%s: counts are NULL", name_of(q));
    if (!is_gather)
        TRY(measure(q, q->send_counts, q->send_displs, "send counts", &send_bytes, &sum));
    if (!is_scatter) {
        TRY(measure(q, q->recv_counts, q->recv_displs, "receive counts", &recv_bytes, &sum));
        TRY(check_disjoint(q));
    }
    bool is_in_place = q->send == q->recv;
    if (is_scatter) {
        recv_bytes = q->send_counts[r] * size;
        is_in_place = (const char *)q->send + sum_before(q->send_counts, r) * size == q->recv;
        q->call.count = hash_counts(q->send_counts, n);
    } else if (is_gather) {
        send_bytes = q->recv_counts[r] * size;
        const size_t at = q->recv_displs ? q->recv_displs[r] : sum_before(q->recv_counts, r);
        is_in_place = q->send == (const char *)q->recv + at * size;
        q->call.count = hash_counts(q->recv_counts, n);
    }
    if ((send_bytes && !q->send) || (recv_bytes && !q->recv))
        return fail(KOLO_ERR_ARG, "%s: %s is NULL with nonzero counts", name_of(q),
                    send_bytes && !q->send ? "send" : "recv");
    if (q->call.coll == KOLO_COLL_ALL_TO_ALL_V && q->send_counts[r] != q->recv_counts[r])
        return fail(KOLO_ERR_ARG, "%s: rank %d sends %zu elements to itself but expects %zu",
                    name_of(q), r, q->send_counts[r], q->recv_counts[r]);
    if (q->call.coll == KOLO_COLL_ALL_TO_ALL_V && is_in_place && send_bytes && !same_layout(q))
        return fail(KOLO_ERR_ARG, "%s: in place needs equal counts and displs for send and receive",
                    name_of(q));
    if (is_gather && q->recv_displs && !is_in_place)
        return check_gaps(q, send_bytes);
    return check_overlap(q, q->send, send_bytes, q->recv, recv_bytes, is_in_place);
}

enum kolo_status request_check(struct request *q)
{
    if (UNLIKELY(!q->comm))
        return fail(KOLO_ERR_ARG, "%s: comm is NULL", name_of(q));
    const enum kolo_status broken = engine_status(q->comm->engine);
    if (UNLIKELY(broken != KOLO_OK))
        return broken;
    if (UNLIKELY(q->call.type < 0 || q->call.type >= KOLO_NTYPES))
        return fail(KOLO_ERR_ARG, "%s: type is %d, not an enum kolo_type (0 to %d)", name_of(q),
                    q->call.type, KOLO_NTYPES - 1);
    if (coll_reduces(q->call.coll))
        TRY(check_op(q));
    if ((coll_has_root(q->call.coll) || coll_is_p2p(q->call.coll)) &&
        (q->call.root < 0 || q->call.root >= q->comm->nranks))
        return fail(KOLO_ERR_ARG, "%s: %s is %d, not 0 to %d", name_of(q),
                    coll_is_p2p(q->call.coll) ? "peer" : "root", q->call.root, q->comm->nranks - 1);
    if (coll_is_p2p(q->call.coll) && q->call.root == q->comm->rank && !group_is_open())
        return fail(KOLO_ERR_USAGE,
                    "%s: a rank exchanges with itself only inside a group that holds "
                    "both the send and the receive",
                    name_of(q));
    return coll_is_v(q->call.coll) ? check_v(q) : check_buffers(q);
}
