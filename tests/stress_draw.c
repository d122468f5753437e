/* stress_draw.c - random calls: every rank that draws from equal generators gets equal calls.
 * Sizes lie around the library's internal limits more often than elsewhere. */
#include "stress.h"

#include <stdio.h>
#include <string.h>

uint64_t rng_mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

uint64_t rng_next(struct rng *r)
{
    return rng_mix(r->state += 0x9e3779b97f4a7c15u);
}

uint64_t rng_below(struct rng *r, uint64_t n)
{
    return rng_next(r) % n;
}

bool rng_chance(struct rng *r, int of)
{
    return rng_below(r, (uint64_t)of) == 0;
}

struct rng rng_fork(uint64_t seed, uint64_t a, uint64_t b, uint64_t c)
{
    const uint64_t x = rng_mix(seed + 1) ^ rng_mix(a * 3 + 0x1001) ^ rng_mix(b * 5 + 0x2003);
    return (struct rng){rng_mix(x + rng_mix(c * 7 + 0x4007))};
}

bool draw_is_v(int coll)
{
    return coll == KOLO_COLL_REDUCE_SCATTER_V || coll == KOLO_COLL_ALL_GATHER_V ||
           coll == KOLO_COLL_ALL_TO_ALL_V;
}

static bool reduces(int coll)
{
    return coll == KOLO_COLL_ALL_REDUCE || coll == KOLO_COLL_REDUCE ||
           coll == KOLO_COLL_REDUCE_SCATTER || coll == KOLO_COLL_REDUCE_SCATTER_V;
}

static bool is_float(int type)
{
    return (type >= KOLO_F16 && type <= KOLO_F8E5M2);
}

/* ---- sizes ---- */

static size_t draw_bytes(struct rng *r, int n, bool small)
{
    static const size_t limits[] = {48,    64,    256,   1024,   2048,  4096,
                                    16384, 32768, 65536, 131072, 262144};
    const uint64_t kind = rng_below(r, 64);
    if (kind < 3)
        return 0;
    if (kind < 16)
        return 1 + rng_below(r, 16);
    if (kind < 40) {
        size_t limit = limits[rng_below(r, small ? 5 : sizeof limits / sizeof *limits)];
        if (rng_chance(r, 3)) /* of a rank's share, or of all together */
            limit = rng_chance(r, 2) ? limit * (size_t)n : limit / (size_t)n;
        return limit + rng_below(r, 17) - (limit >= 8 ? 8 : 0);
    }
    if (kind < 63 || small)
        return rng_below(r, (uint64_t)1 << (1 + rng_below(r, small ? 12 : 17)));
    return rng_below(r, (uint64_t)1 << (18 + rng_below(r, 5)));
}

/* Elements of a rank's share. */
static size_t draw_count(struct rng *r, int n, bool small, size_t type_bytes)
{
    const size_t bytes = draw_bytes(r, n, small);
    size_t count = bytes / type_bytes;
    if (bytes > 0 && count == 0)
        count = 1;
    if (count > (size_t)n && rng_chance(r, 4)) /* near a multiple of the ranks */
        count = count / (size_t)n * (size_t)n + rng_below(r, 3) - 1;
    return count;
}

static void draw_counts(struct rng *r, int n, bool small, struct shape *s)
{
    const bool is_matrix = s->coll == KOLO_COLL_ALL_TO_ALL_V;
    const int cells = is_matrix ? n * n : n;
    const bool is_even = rng_chance(r, 4);
    for (int i = 0; i < cells; i++) {
        s->counts[i] = is_even && i > 0 ? s->counts[0] : s->count;
        if (!is_even)
            s->counts[i] = rng_chance(r, 4) ? 0 : draw_count(r, n, small, kolo_type_size(s->type));
        if (s->counts[i] > 1 << 17)
            s->counts[i] %= 1 << 17;
    }
    if (!is_matrix || s->in_place == IN_PLACE_NONE)
        return;
    s->in_place = IN_PLACE_ALL; /* of all, since what both sides send must be alike */
    for (int a = 0; a < n; a++)
        for (int b = 0; b < a; b++)
            s->counts[a * n + b] = s->counts[b * n + a];
}

/* ---- calls ---- */

/* Whether some rank has a buffer of all ranks' shares. */
static bool is_wide(int coll)
{
    return coll == KOLO_COLL_REDUCE_SCATTER || coll == KOLO_COLL_ALL_GATHER ||
           coll == KOLO_COLL_ALL_TO_ALL || coll == KOLO_COLL_GATHER || coll == KOLO_COLL_SCATTER;
}

static void draw_op(struct rng *r, struct shape *s)
{
    static const int ops[] = {KOLO_SUM, KOLO_SUM, KOLO_PROD, KOLO_MAX, KOLO_MIN,
                              KOLO_AVG, PREMUL,   KOLO_BAND, KOLO_BOR, KOLO_BXOR};
    s->op = ops[rng_below(r, is_float(s->type) ? 7 : 10)];
}

void draw_call(struct rng *r, int n, bool p2p, bool small, struct shape *out)
{
    memset(out, 0, sizeof *out);
    do {
        out->coll = (int)rng_below(r, KOLO_NCOLLS);
    } while (out->coll == KOLO_COLL_RECV || (out->coll == KOLO_COLL_SEND && !p2p));
    if (rng_chance(r, 6))
        out->coll = KOLO_COLL_ALL_REDUCE;
    static const int types[] = {KOLO_F32, KOLO_BF16, KOLO_I32, KOLO_F64};
    out->type = rng_chance(r, 2) ? (int)rng_below(r, KOLO_NTYPES) : types[rng_below(r, 4)];
    out->root = (int)rng_below(r, (uint64_t)n);
    out->dst = (int)rng_below(r, (uint64_t)n);
    out->buffers = (enum buffers)rng_below(r, 3);
    out->in_place = (enum in_place)rng_below(r, 3);
    out->key = rng_next(r);
    out->count = draw_count(r, n, small, kolo_type_size(out->type));
    if (out->count > (size_t)1 << 16 && is_wide(out->coll))
        out->count /= (size_t)n;
    if (reduces(out->coll))
        draw_op(r, out);
    if (draw_is_v(out->coll))
        draw_counts(r, n, small, out);
}

size_t draw_bucket(struct rng *r, int n, struct shape *out)
{
    const size_t calls = 2 + rng_below(r, MOST_CALLS - 1);
    const int type = rng_chance(r, 2) ? KOLO_F32 : KOLO_BF16;
    const size_t top = (size_t)1 << (1 + rng_below(r, 11));
    const bool is_even = rng_chance(r, 2);
    for (size_t i = 0; i < calls; i++) {
        draw_call(r, n, false, true, &out[i]);
        out[i].coll = KOLO_COLL_ALL_REDUCE;
        out[i].type = type;
        out[i].op = KOLO_SUM;
        out[i].in_place = out[0].in_place;
        out[i].buffers = out[0].buffers;
        out[i].count = is_even ? top : rng_below(r, top + 1);
    }
    return calls;
}

static const char *op_name(int op)
{
    static const char *const names[] = {"sum", "prod", "max", "min", "avg", "band", "bor", "bxor"};
    return op == PREMUL ? "premul" : names[op];
}

void draw_text(const struct shape *s, char *out, size_t size)
{
    static const char *const types[] = {"i8",  "u8",  "i32",  "u32",    "i64",    "u64", "f16",
                                        "f32", "f64", "bf16", "f8e4m3", "f8e5m2", "i16", "u16"};
    static const char *const buffers[] = {"malloc", "kolo_mem_alloc", "mixed"};
    static const char *const places[] = {"never", "everywhere", "at some ranks"};
    snprintf(out, size,
             "%s on %s, count %zu%s, %s, op %s, root %d, dst %d, %s buffers, in place %s",
             kolo_coll_name(s->coll), s->is_on_sub ? "the group" : "the world", s->count,
             draw_is_v(s->coll) ? " (first of the counts' drawing)" : "", types[s->type],
             op_name(s->op), s->root, s->dst, buffers[s->buffers], places[s->in_place]);
}
