/* stress_data.c - what each element must be: every element that a rank sends is a hash of the
 * call's key, the rank and the place; moved data is random bits, reduced data integers (in floats
 * small enough for every partial result to be exact), so that the result has one right value. */
#include "stress.h"

#include <string.h>

static bool is_signed(int type)
{
    return type == KOLO_I8 || type == KOLO_I16 || type == KOLO_I32 || type == KOLO_I64;
}

static bool reduces(const struct shape *s)
{
    return s->coll == KOLO_COLL_ALL_REDUCE || s->coll == KOLO_COLL_REDUCE ||
           s->coll == KOLO_COLL_REDUCE_SCATTER || s->coll == KOLO_COLL_REDUCE_SCATTER_V;
}

/* ---- floats, exactly ---- */

struct format {
    int exponent_bits;
    int mantissa_bits;
    int64_t range; /* inputs of a sum lie in -range .. range: 16 times that is exact */
};

/* NULL for integers. */
static const struct format *format_of(int type)
{
    static const struct format formats[KOLO_NTYPES] = {
        [KOLO_F16] = {5, 10, 100},      [KOLO_BF16] = {8, 7, 15},  [KOLO_F32] = {8, 23, 1 << 19},
        [KOLO_F64] = {11, 52, 1 << 30}, [KOLO_F8E4M3] = {4, 3, 1}, [KOLO_F8E5M2] = {5, 2, 1},
    };
    return formats[type].exponent_bits ? &formats[type] : NULL;
}

/* The bits of an integer that the format holds exactly. */
static uint64_t encode_float(const struct format *f, int64_t v)
{
    if (v == 0)
        return 0;
    const uint64_t sign = v < 0, m = (uint64_t)(v < 0 ? -v : v);
    const int top = 63 - __builtin_clzll(m);
    const uint64_t exponent = (uint64_t)(top + (1 << (f->exponent_bits - 1)) - 1);
    const uint64_t rest = m ^ (uint64_t)1 << top;
    const uint64_t mantissa = top <= f->mantissa_bits ? rest << (f->mantissa_bits - top)
                                                      : rest >> (top - f->mantissa_bits);
    return (sign << f->exponent_bits | exponent) << f->mantissa_bits | mantissa;
}

static uint64_t cut(uint64_t v, size_t bytes)
{
    return bytes == 8 ? v : v & (((uint64_t)1 << 8 * bytes) - 1);
}

static uint64_t encode(int type, int64_t v)
{
    const struct format *f = format_of(type);
    return f ? encode_float(f, v) : cut((uint64_t)v, kolo_type_size(type));
}

/* ---- elements ---- */

static uint64_t word(const struct shape *s, int src, uint64_t i)
{
    return rng_mix(s->key + (uint64_t)(src + 1) * 0xd1342543de82ef95u + i * 0x9e3779b97f4a7c15u);
}

static int64_t scalar(const struct shape *s, int r)
{
    const struct format *f = format_of(s->type);
    return f && f->range == 1 ? 1 : 1 + (int64_t)((s->key + (uint64_t)r) % 2);
}

void data_scalar(const struct shape *s, int r, void *out)
{
    const uint64_t bits = encode(s->type, scalar(s, r));
    memcpy(out, &bits, kolo_type_size(s->type));
}

/* An integer as its type sees it. */
static int64_t wrap(int type, uint64_t v)
{
    const int unused = 64 - 8 * (int)kolo_type_size(type);
    return is_signed(type) ? (int64_t)(v << unused) >> unused : (int64_t)(v << unused >> unused);
}

/* Averages of floats must come out even: all ranks have one base, and pairs of them differ by one
 * up and down. */
static int64_t average_input(const struct shape *s, int n, int src, uint64_t i)
{
    const struct format *f = format_of(s->type);
    const uint64_t w = word(s, f ? 0 : src, i);
    if (!f)
        return (int64_t)(w % 16) - (is_signed(s->type) ? 8 : 0);
    if (f->range == 1)
        return (int64_t)(w % 3) - 1;
    return (int64_t)(w % 9) - 4 + ((src ^ 1) >= n ? 0 : src & 1 ? -1 : 1);
}

/* What rank src contributes to element i. */
static int64_t input(const struct shape *s, int n, int src, uint64_t i)
{
    const struct format *f = format_of(s->type);
    if (s->op == KOLO_AVG)
        return average_input(s, n, src, i);
    const uint64_t w = word(s, src, i);
    if (!f)
        return wrap(s->type, w);
    if (s->op == KOLO_PROD)
        return (w & 1 ? 2 : 1) * (w & 2 ? -1 : 1);
    return (int64_t)(w % (uint64_t)(2 * f->range + 1)) - f->range;
}

static bool is_less(const struct shape *s, int64_t a, int64_t b)
{
    const bool as_unsigned = !format_of(s->type) && !is_signed(s->type);
    return as_unsigned ? (uint64_t)a < (uint64_t)b : a < b;
}

static int64_t combine(const struct shape *s, int64_t a, int64_t b)
{
    switch (s->op) {
    case KOLO_PROD:
        return (int64_t)((uint64_t)a * (uint64_t)b);
    case KOLO_MAX:
        return is_less(s, a, b) ? b : a;
    case KOLO_MIN:
        return is_less(s, b, a) ? b : a;
    case KOLO_BAND:
        return a & b;
    case KOLO_BOR:
        return a | b;
    case KOLO_BXOR:
        return a ^ b;
    default:
        return (int64_t)((uint64_t)a + (uint64_t)b);
    }
}

static int64_t reduced(const struct shape *s, int n, uint64_t i)
{
    int64_t v = 0;
    for (int r = 0; r < n; r++) {
        int64_t x = input(s, n, r, i);
        if (s->op == PREMUL)
            x = (int64_t)((uint64_t)x * (uint64_t)scalar(s, r));
        v = r == 0 ? x : combine(s, v, x);
    }
    return s->op == KOLO_AVG ? v / n : v;
}

/* Bits of element i of rank src, or of the reduction of all. */
static uint64_t element(const struct shape *s, int n, int src, uint64_t i)
{
    if (!reduces(s))
        return cut(word(s, src, i), kolo_type_size(s->type));
    return encode(s->type, src == REDUCED ? reduced(s, n, i) : input(s, n, src, i));
}

/* The data repeats after a prime number of elements, so that large buffers are cheap to make and to
 * compare, and yet no chunk of a usual size looks like another. */
enum { PERIOD = 1021, PAIR_SHIFT = 40 };

/* The elements of a segment up to the first repetition; returns how many. */
static size_t make_tile(const struct shape *s, int n, const struct segment *g, unsigned char *tile)
{
    const size_t size = kolo_type_size(s->type), len = g->len < PERIOD ? g->len : PERIOD;
    const uint64_t pair = g->first >> PAIR_SHIFT << PAIR_SHIFT, from = g->first - pair;
    for (size_t i = 0; i < len; i++) {
        const uint64_t bits = element(s, n, g->src, pair + (from + i) % PERIOD);
        memcpy(tile + i * size, &bits, size);
    }
    return len;
}

void data_fill(const struct shape *s, int n, const struct side *side, unsigned char *at)
{
    unsigned char tile[PERIOD * 8];
    const size_t size = kolo_type_size(s->type);
    for (int k = 0; k < side->nsegments; k++) {
        const struct segment *g = &side->segments[k];
        const size_t len = make_tile(s, n, g, tile);
        for (size_t i = 0; i < g->len; i += len) {
            const size_t rest = g->len - i < len ? g->len - i : len;
            memcpy(at + (g->at + i) * size, tile, rest * size);
        }
    }
}

/* Index of the first of `len` elements that differs. */
static size_t first_difference(const unsigned char *a, const unsigned char *b, size_t size,
                               size_t len)
{
    size_t i = 0;
    while (i < len && memcmp(a + i * size, b + i * size, size) == 0)
        i++;
    return i;
}

int64_t data_check(const struct shape *s, int n, const struct side *side, const unsigned char *at,
                   uint64_t *want, uint64_t *seen)
{
    unsigned char tile[PERIOD * 8];
    const size_t size = kolo_type_size(s->type);
    for (int k = 0; k < side->nsegments; k++) {
        const struct segment *g = &side->segments[k];
        const size_t len = make_tile(s, n, g, tile);
        for (size_t i = 0; i < g->len; i += len) {
            const unsigned char *from = at + (g->at + i) * size;
            const size_t rest = g->len - i < len ? g->len - i : len;
            if (memcmp(from, tile, rest * size) == 0)
                continue;
            const size_t j = first_difference(from, tile, size, rest);
            *want = *seen = 0;
            memcpy(want, tile + j * size, size);
            memcpy(seen, from + j * size, size);
            return (int64_t)(g->at + i + j);
        }
    }
    return -1;
}

/* ---- where elements lie ---- */

static size_t sum(const size_t *counts, int n)
{
    size_t all = 0;
    for (int i = 0; i < n; i++)
        all += counts[i];
    return all;
}

static void add(struct side *side, size_t at, size_t len, int src, uint64_t first)
{
    side->segments[side->nsegments++] = (struct segment){at, len, src, first};
    side->extent = at + len > side->extent ? at + len : side->extent;
}

/* All-to-all numbers the elements of each pair by themselves. */
static uint64_t pair_first(int dst)
{
    return (uint64_t)(dst + 1) << PAIR_SHIFT;
}

void data_send_side(const struct shape *s, int n, int r, const size_t *displs, struct side *out)
{
    const size_t c = s->count, all = c * (size_t)n;
    *out = (struct side){.nsegments = 0};
    switch (s->coll) {
    case KOLO_COLL_ALL_TO_ALL:
        for (int k = 0; k < n; k++)
            add(out, (size_t)k * c, c, r, pair_first(k));
        break;
    case KOLO_COLL_ALL_TO_ALL_V:
        for (int k = 0; k < n; k++)
            add(out, displs[k], s->counts[r * n + k], r, pair_first(k));
        break;
    case KOLO_COLL_REDUCE_SCATTER:
        add(out, 0, all, r, 0);
        break;
    case KOLO_COLL_REDUCE_SCATTER_V:
        add(out, 0, sum(s->counts, n), r, 0);
        break;
    case KOLO_COLL_ALL_GATHER_V:
        add(out, 0, s->counts[r], r, 0);
        break;
    case KOLO_COLL_SCATTER:
    case KOLO_COLL_BROADCAST:
    case KOLO_COLL_SEND:
        if (r == s->root)
            add(out, 0, s->coll == KOLO_COLL_SCATTER ? all : c, r, 0);
        break;
    case KOLO_COLL_BARRIER:
        break;
    default:
        add(out, 0, c, r, 0);
    }
}

void data_recv_side(const struct shape *s, int n, int r, const size_t *displs, struct side *out)
{
    const size_t c = s->count;
    const bool gathers =
        s->coll == KOLO_COLL_ALL_GATHER || (s->coll == KOLO_COLL_GATHER && r == s->root);
    *out = (struct side){.nsegments = 0};
    for (int k = 0; k < n; k++) {
        if (gathers)
            add(out, (size_t)k * c, c, k, 0);
        else if (s->coll == KOLO_COLL_ALL_GATHER_V)
            add(out, displs[k], s->counts[k], k, 0);
        else if (s->coll == KOLO_COLL_ALL_TO_ALL)
            add(out, (size_t)k * c, c, k, pair_first(r));
        else if (s->coll == KOLO_COLL_ALL_TO_ALL_V)
            add(out, displs[k], s->counts[k * n + r], k, pair_first(r));
    }
    if (s->coll == KOLO_COLL_ALL_REDUCE || (s->coll == KOLO_COLL_REDUCE && r == s->root))
        add(out, 0, c, REDUCED, 0);
    else if (s->coll == KOLO_COLL_REDUCE_SCATTER)
        add(out, 0, c, REDUCED, (size_t)r * c);
    else if (s->coll == KOLO_COLL_REDUCE_SCATTER_V)
        add(out, 0, s->counts[r], REDUCED, sum(s->counts, r));
    else if (s->coll == KOLO_COLL_BROADCAST || (s->coll == KOLO_COLL_SEND && r == s->dst))
        add(out, 0, c, s->root, 0);
    else if (s->coll == KOLO_COLL_SCATTER)
        add(out, 0, c, s->root, (size_t)r * c);
}

void data_in_place(const struct shape *s, int n, int r, size_t *send_at, size_t *recv_at)
{
    const size_t mine = (size_t)r * s->count;
    (void)n;
    *send_at = *recv_at = 0;
    if (s->coll == KOLO_COLL_ALL_GATHER || (s->coll == KOLO_COLL_GATHER && r == s->root))
        *send_at = mine;
    if (s->coll == KOLO_COLL_REDUCE_SCATTER || (s->coll == KOLO_COLL_SCATTER && r == s->root))
        *recv_at = mine;
    if (s->coll == KOLO_COLL_REDUCE_SCATTER_V)
        *recv_at = sum(s->counts, r);
}
