/* ref.c - see ref.h. */
#include "ref.h"
#include "ranks.h"
#include "reduce.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 64 };

/* ---- values: small integers, exact under any order of reduction ---- */

static bool is_f8(int type)
{
    return type == KOLO_F8E4M3 || type == KOLO_F8E5M2;
}

static int64_t value(const struct ref_case *c, int n, int r, size_t i)
{
    switch (c->op) {
    case KOLO_SUM:
        return is_f8(c->type) ? (i + (size_t)r * 3) % 5 == 0
                              : (int64_t)((i * 7 + (size_t)r * 13) % 11);
    case KOLO_PROD:
        return (i + (size_t)r) % 4 == 0 ? 2 : 1;
    case KOLO_MAX:
    case KOLO_MIN:
        return (int64_t)((i * 5 + (size_t)r * 7) % 8);
    case KOLO_AVG: /* sums to a multiple of n */
        if (is_f8(c->type))
            return (int)(i % (size_t)n) == r ? n : 0;
        return (int64_t)(i % 3) + 1 + ((r ^ 1) < n ? (r & 1 ? -1 : 1) : 0);
    case KOLO_BAND:
        return 0xff & ~(1 << ((i + (size_t)r) % 8));
    default: /* bor, bxor */
        return 0xff & (int64_t)(i * 37 + (size_t)r * 101);
    }
}

static int64_t reduced(const struct ref_case *c, int n, size_t i)
{
    int64_t v = value(c, n, 0, i);
    for (int r = 1; r < n; r++) {
        const int64_t x = value(c, n, r, i);
        switch (c->op) {
        case KOLO_PROD:
            v *= x;
            break;
        case KOLO_MAX:
            v = x > v ? x : v;
            break;
        case KOLO_MIN:
            v = x < v ? x : v;
            break;
        case KOLO_BAND:
            v &= x;
            break;
        case KOLO_BOR:
            v |= x;
            break;
        case KOLO_BXOR:
            v ^= x;
            break;
        default:
            v += x;
        }
    }
    return c->op == KOLO_AVG ? v / n : v;
}

static void put(unsigned char *at, int type, int64_t v)
{
    const float f = (float)v;
    const double d = (double)v;
    uint16_t h;
    switch (type) {
    case KOLO_F16:
        h = reduce_f32_to_f16(f);
        memcpy(at, &h, 2);
        return;
    case KOLO_BF16:
        h = reduce_f32_to_bf16(f);
        memcpy(at, &h, 2);
        return;
    case KOLO_F8E4M3:
        *at = reduce_f32_to_e4m3(f);
        return;
    case KOLO_F8E5M2:
        *at = reduce_f32_to_e5m2(f);
        return;
    case KOLO_F32:
        memcpy(at, &f, 4);
        return;
    case KOLO_F64:
        memcpy(at, &d, 8);
        return;
    default: /* integers, little-endian: the low bytes */
        memcpy(at, &v, kolo_type_size(type));
    }
}

/* ---- shapes ---- */

struct sizes {
    size_t send, recv;       /* elements; of this rank */
    size_t send_at, recv_at; /* in place: offsets of both into one buffer */
};

static struct sizes sizes_of(const struct ref_case *c, int n, int r)
{
    const size_t k = c->count, all = k * (size_t)n, mine = k * (size_t)r;
    const bool is_root = r == c->root;
    switch (c->coll) {
    case KOLO_COLL_REDUCE_SCATTER:
        return (struct sizes){all, k, 0, mine};
    case KOLO_COLL_ALL_GATHER:
        return (struct sizes){k, all, mine, 0};
    case KOLO_COLL_ALL_TO_ALL:
        return (struct sizes){all, all, 0, 0};
    case KOLO_COLL_BROADCAST:
        return (struct sizes){is_root ? k : 0, k, 0, 0};
    case KOLO_COLL_REDUCE:
        return (struct sizes){k, is_root ? k : 0, 0, 0};
    case KOLO_COLL_GATHER:
        return (struct sizes){k, is_root ? all : 0, is_root ? mine : 0, 0};
    case KOLO_COLL_SCATTER:
        return (struct sizes){is_root ? all : 0, k, 0, is_root ? mine : 0};
    case KOLO_COLL_BARRIER:
        return (struct sizes){0, 0, 0, 0};
    default:
        return (struct sizes){k, k, 0, 0};
    }
}

/* Element i of the send buffer of rank r. */
static int64_t sent(const struct ref_case *c, int n, int r, size_t i)
{
    return value(c, n, r, i);
}

/* Element i of the receive buffer of rank r: the definitions of kolo.h, word for word. */
static int64_t expected(const struct ref_case *c, int n, int r, size_t i)
{
    const size_t k = c->count;
    switch (c->coll) {
    case KOLO_COLL_ALL_REDUCE:
    case KOLO_COLL_REDUCE:
        return reduced(c, n, i);
    case KOLO_COLL_REDUCE_SCATTER:
        return reduced(c, n, (size_t)r * k + i);
    case KOLO_COLL_ALL_GATHER:
    case KOLO_COLL_GATHER:
        return sent(c, n, (int)(i / k), i % k);
    case KOLO_COLL_ALL_TO_ALL:
        return sent(c, n, (int)(i / k), (size_t)r * k + i % k);
    case KOLO_COLL_BROADCAST:
        return sent(c, n, c->root, i);
    default: /* scatter */
        return sent(c, n, c->root, (size_t)r * k + i);
    }
}

static enum kolo_status call(struct kolo_comm *comm, const struct ref_case *c, const void *send,
                             void *recv)
{
    switch (c->coll) {
    case KOLO_COLL_ALL_REDUCE:
        return kolo_all_reduce(send, recv, c->count, c->type, c->op, comm, c->stream);
    case KOLO_COLL_REDUCE_SCATTER:
        return kolo_reduce_scatter(send, recv, c->count, c->type, c->op, comm, c->stream);
    case KOLO_COLL_ALL_GATHER:
        return kolo_all_gather(send, recv, c->count, c->type, comm, c->stream);
    case KOLO_COLL_ALL_TO_ALL:
        return kolo_all_to_all(send, recv, c->count, c->type, comm, c->stream);
    case KOLO_COLL_BROADCAST:
        return kolo_broadcast(send, recv, c->count, c->type, c->root, comm, c->stream);
    case KOLO_COLL_REDUCE:
        return kolo_reduce(send, recv, c->count, c->type, c->op, c->root, comm, c->stream);
    case KOLO_COLL_GATHER:
        return kolo_gather(send, recv, c->count, c->type, c->root, comm, c->stream);
    case KOLO_COLL_SCATTER:
        return kolo_scatter(send, recv, c->count, c->type, c->root, comm, c->stream);
    case KOLO_COLL_BARRIER:
        return kolo_barrier(comm, c->stream);
    default:
        return KOLO_ERR_INTERNAL;
    }
}

/* ---- buffers with guards ---- */

struct buffer {
    unsigned char *memory;
    unsigned char *at; /* behind guard and misalignment */
    size_t bytes;
    bool is_window;
};

static bool buffer_make(struct buffer *b, size_t bytes, const struct ref_case *c)
{
    const size_t all = bytes + 2 * GUARD + c->misalign;
    void *p = NULL;
    b->is_window = c->windows;
    if (c->windows ? kolo_mem_alloc(&p, all) != KOLO_OK : !(p = malloc(all)))
        return false;
    memset(p, 0xa5, all);
    b->memory = p;
    b->at = b->memory + GUARD + c->misalign;
    b->bytes = bytes;
    return true;
}

static void buffer_free(struct buffer *b)
{
    if (b->is_window) {
        if (kolo_mem_free(b->memory) != KOLO_OK)
            abort();
    } else {
        free(b->memory);
    }
}

static bool guards_hold(const struct buffer *b)
{
    for (const unsigned char *p = b->memory; p < b->at; p++)
        if (*p != 0xa5)
            return false;
    for (int i = 0; i < GUARD; i++)
        if (b->at[b->bytes + (size_t)i] != 0xa5)
            return false;
    return true;
}

static const char *compare(const struct ref_case *c, int n, int r, const unsigned char *recv,
                           size_t elems)
{
    const size_t size = kolo_type_size(c->type);
    for (size_t i = 0; i < elems; i++) {
        unsigned char want[8];
        put(want, c->type, expected(c, n, r, i));
        if (memcmp(recv + i * size, want, size) != 0)
            return ranks_text("element %zu of %zu is wrong: %02x..%02x, not %02x..%02x", i, elems,
                              recv[i * size], recv[i * size + size - 1], want[0], want[size - 1]);
    }
    return NULL;
}

bool ref_can(const struct ref_case *c, int nranks)
{
    return !(is_f8(c->type) && ((c->op == KOLO_AVG && nranks > 8) || c->op == KOLO_PROD) &&
             nranks > 8);
}

static const char *describe(const struct ref_case *c, const char *what)
{
    return ranks_text("%s type %d op %d root %d count %zu%s%s misalign %zu: %s",
                      kolo_coll_name(c->coll), c->type, c->op, c->root, c->count,
                      c->in_place ? " in place" : "", c->windows ? " windows" : "", c->misalign,
                      what);
}

const char *ref_run(struct kolo_comm *comm, const struct ref_case *c)
{
    const int n = kolo_comm_size(comm), r = kolo_comm_rank(comm);
    const size_t size = kolo_type_size(c->type);
    const struct sizes s = sizes_of(c, n, r);
    const size_t whole = s.send > s.recv ? s.send : s.recv;
    struct buffer a, b;
    if (!buffer_make(&a, (c->in_place ? whole : s.send) * size, c))
        return "out of memory";
    if (!buffer_make(&b, s.recv * size, c)) {
        buffer_free(&a);
        return "out of memory";
    }
    unsigned char *send = a.at + (c->in_place ? s.send_at * size : 0);
    unsigned char *recv = c->in_place ? a.at + s.recv_at * size : b.at;
    for (size_t i = 0; i < s.send; i++)
        put(send + i * size, c->type, sent(c, n, r, i));

    const char *wrong = NULL;
    const enum kolo_status status = call(comm, c, s.send ? send : NULL, s.recv ? recv : NULL);
    if (status != KOLO_OK)
        wrong = describe(c, kolo_last_error(comm));
    if (!wrong && c->stream && kolo_stream_synchronize(c->stream) != KOLO_OK)
        wrong = describe(c, kolo_last_error(comm));
    if (!wrong) {
        wrong = compare(c, n, r, recv, s.recv);
        wrong = wrong ? describe(c, wrong) : NULL;
    }
    if (!wrong && (!guards_hold(&a) || !guards_hold(&b)))
        wrong = describe(c, "guard bytes were overwritten");
    for (size_t i = 0; !wrong && !c->in_place && i < s.send; i++) {
        unsigned char was[8];
        put(was, c->type, sent(c, n, r, i));
        if (memcmp(send + i * size, was, size) != 0)
            wrong = describe(c, "the send buffer was changed");
    }
    buffer_free(&a);
    buffer_free(&b);
    return wrong;
}
