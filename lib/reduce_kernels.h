/* reduce_kernels.h - the vector kernels of a move, written once over the compilers' vector types.
 * Included by reduce_<isa>.c, which sets V_BYTES and V_KEEP(v), an empty asm that keeps a product
 * from being fused into a sum, and defines the hooks.  All is static, so that nothing leaks to a CPU
 * without the instructions.  Bits equal those of reduce.c but for the payload of NaNs.
 *
 *     |head|block of 4 vectors|block| ... |vector|vector|tail|
 *
 * A block reads all its sources, folds them in registers and writes each destination: one pass over
 * memory for any number of each.  Head and tail are vectors that overlap the middle: folded before
 * the middle is written, because a destination may be a source, and stored after it. */
#ifndef REDUCE_KERNELS_H
#define REDUCE_KERNELS_H

#include "reduce_entries.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))

typedef uint8_t vec __attribute__((vector_size(V_BYTES)));
typedef uint8_t vu8 __attribute__((vector_size(V_BYTES)));
typedef uint16_t vu16 __attribute__((vector_size(V_BYTES)));
typedef uint32_t vu32 __attribute__((vector_size(V_BYTES)));
typedef uint64_t vu64 __attribute__((vector_size(V_BYTES)));
typedef int8_t vi8 __attribute__((vector_size(V_BYTES)));
typedef int16_t vi16 __attribute__((vector_size(V_BYTES)));
typedef int32_t vi32 __attribute__((vector_size(V_BYTES)));
typedef int64_t vi64 __attribute__((vector_size(V_BYTES)));
typedef float vf32 __attribute__((vector_size(V_BYTES)));
typedef double vf64 __attribute__((vector_size(V_BYTES)));

/* ---- hooks, defined by the includer ------------------------------------------------------- */

/* `stream` asks for non-temporal stores; p is then aligned to the bytes stored. */
INLINE void full_store(char *p, vec v, bool stream);
/* 16-bit and 8-bit elements in memory, zero-extended to u32 lanes; stores keep the low bits. */
INLINE vec half_load(const char *p);
INLINE void half_store(char *p, vec v, bool stream);
INLINE vec quarter_load(const char *p);
INLINE void quarter_store(char *p, vec v, bool stream);
/* f16 in memory, f32 lanes. */
INLINE vec f16_load(const char *p);
INLINE void f16_store(char *p, vec v, bool stream);
/* The first n < V_BYTES bytes, without touching others; the rest of the vector is zero. */
INLINE vec full_load_part(const char *p, size_t n);
/* Makes earlier non-temporal stores visible before later stores. */
INLINE void stream_fence(void);

/* ---- parts of a vector -------------------------------------------------------------------- */

/* n <= 8 bytes as the low bytes of a word. */
INLINE uint64_t word_load_part(const char *p, size_t n)
{
    uint64_t w = 0;
    uint32_t lo4, hi4;
    uint16_t lo2, hi2;
    if (n == 8) {
        memcpy(&w, p, 8);
    } else if (n >= 4) {
        memcpy(&lo4, p, 4);
        memcpy(&hi4, p + n - 4, 4);
        w = lo4 | (uint64_t)hi4 << (8 * (n - 4));
    } else if (n >= 2) {
        memcpy(&lo2, p, 2);
        memcpy(&hi2, p + n - 2, 2);
        w = lo2 | (uint64_t)hi2 << (8 * (n - 2));
    } else if (n == 1) {
        w = (uint8_t)*p;
    }
    return w;
}

/* Copy n < V_BYTES bytes. */
INLINE void copy_part(char *to, const char *from, size_t n)
{
    while (n >= 8) {
        memcpy(to, from, 8);
        to += 8;
        from += 8;
        n -= 8;
    }
    if (n & 4)
        memcpy(to, from, 4);
    if (n & 2)
        memcpy(to + (n & 4), from + (n & 4), 2);
    if (n & 1)
        to[n - 1] = from[n - 1];
}

/* ---- lanes: how elements get from memory into a vector of accumulators and back ------------ */

struct lane {
    size_t bytes; /* of memory for one vector */
    vec (*load)(const char *p);
    vec (*load_part)(const char *p, size_t n);
    void (*store)(char *p, vec v, bool stream);
};

INLINE vec full_load(const char *p)
{
    vec v;
    memcpy(&v, p, sizeof(v));
    return v;
}

INLINE vec select_lanes(vec mask, vec yes, vec no)
{
    return (mask & yes) | (~mask & no);
}

INLINE vec bf16_load(const char *p)
{
    return (vec)((vu32)half_load(p) << 16);
}

INLINE void bf16_store(char *p, vec v, bool stream)
{
    const vu32 u = (vu32)v;
    const vu32 rounded = (u + 0x7fffU + (u >> 16 & 1)) >> 16;
    const vi32 is_nan = (vi32)(u & 0x7fffffffU) > 0x7f800000;
    half_store(p, select_lanes((vec)is_nan, (vec)(u >> 16 | 0x40U), (vec)rounded), stream);
}

/* As widen() and narrow() of reduce.c. */
INLINE vec widen_lanes(vu32 magnitude, int mant, int bias)
{
    const uint32_t shift = (uint32_t)(127 - bias) << 23;
    const vu32 normal = (magnitude << (23 - mant)) + shift;
    const vu32 one_more = (vu32){0} + (shift + (1U << 23));
    const vf32 subnormal = (vf32)(normal + (1U << 23)) - (vf32)one_more;
    return select_lanes((vec)((magnitude >> mant) == 0), (vec)subnormal, (vec)normal);
}

INLINE vec narrow_lanes(vu32 magnitude, int mant, int bias)
{
    const int cut = 23 - mant;
    const uint32_t half = (1U << (cut - 1)) - 1;
    const vu32 rebias = (vu32){0} + ((uint32_t)(127 - bias) << mant);
    const vu32 normal = ((magnitude + half + (magnitude >> cut & 1)) >> cut) - rebias;
    const vu32 magic = (vu32){0} + ((uint32_t)(127 - bias + 1 + 23 - mant) << 23);
    const vu32 subnormal = (vu32)((vf32)magnitude + (vf32)magic) - magic;
    const vi32 is_small = (vi32)magnitude < (127 - bias + 1) << 23;
    return select_lanes((vec)is_small, (vec)subnormal, (vec)normal);
}

INLINE vec e4m3_load(const char *p)
{
    const vu32 u = (vu32)quarter_load(p);
    const vu32 magnitude = u & 0x7fU;
    const vec quiet_nan = (vec)((vu32){0} + 0x7fc00000U);
    const vec value = widen_lanes(magnitude, 3, 7);
    return select_lanes((vec)(magnitude == 0x7fU), quiet_nan, value) | (vec)((u & 0x80U) << 24);
}

INLINE void e4m3_store(char *p, vec v, bool stream)
{
    const vu32 magnitude = (vu32)v & 0x7fffffffU;
    const vi32 rounded = (vi32)narrow_lanes(magnitude, 3, 7);
    const vec top = (vec)((vu32){0} + 0x7eU);
    const vec finite = select_lanes((vec)(rounded > 0x7e), top, (vec)rounded);
    const vec is_nan = (vec)((vi32)magnitude > 0x7f800000);
    quarter_store(p, finite | (is_nan & (vec)((vu32){0} + 0x7fU)) | (vec)((vu32)v >> 24 & 0x80U),
                  stream);
}

INLINE vec e5m2_load(const char *p)
{
    const vu32 u = (vu32)quarter_load(p);
    const vu32 magnitude = u & 0x7fU;
    const vec special = (vec)(magnitude << 21 | 0x7f800000U);
    const vec value = widen_lanes(magnitude, 2, 15);
    return select_lanes((vec)((vi32)magnitude >= 0x7c), special, value) | (vec)((u & 0x80U) << 24);
}

INLINE void e5m2_store(char *p, vec v, bool stream)
{
    const vu32 magnitude = (vu32)v & 0x7fffffffU;
    const vi32 rounded = (vi32)narrow_lanes(magnitude, 2, 15);
    const vec top = (vec)((vu32){0} + 0x7bU);
    const vec finite = select_lanes((vec)(rounded > 0x7b), top, (vec)rounded);
    const vec nan_or_inf = (vec)((((vi32)magnitude > 0x7f800000) & 3) | 0x7c);
    const vec is_special = (vec)((vi32)magnitude >= 0x7f800000);
    quarter_store(p,
                  select_lanes(is_special, nan_or_inf, finite) | (vec)((vu32)v >> 24 & 0x80U),
                  stream);
}

#define DEFINE_LOAD_PART(name)                                                                     \
    INLINE vec name##_load_part(const char *p, size_t n)                                           \
    {                                                                                              \
        char whole[V_BYTES] = {0};                                                                 \
        copy_part(whole, p, n);                                                                    \
        return name##_load(whole);                                                                 \
    }
DEFINE_LOAD_PART(f16)
DEFINE_LOAD_PART(bf16)
DEFINE_LOAD_PART(e4m3)
DEFINE_LOAD_PART(e5m2)

#define DEFINE_LANE(how, bytes)                                                                    \
    static const struct lane lane_##how = {bytes, how##_load, how##_load_part, how##_store};
DEFINE_LANE(full, V_BYTES)
DEFINE_LANE(f16, V_BYTES / 2)
DEFINE_LANE(bf16, V_BYTES / 2)
DEFINE_LANE(e4m3, V_BYTES / 4)
DEFINE_LANE(e5m2, V_BYTES / 4)

/* ---- operations on accumulators ----------------------------------------------------------- */

typedef vec (*lane_op)(vec x, vec y);
typedef vec (*lane_divide)(vec x, double by);

#define DEFINE_OP(name, type, expr)                                                                \
    INLINE vec op_##name(vec x, vec y)                                                             \
    {                                                                                              \
        const type a = (type)x, b = (type)y;                                                       \
        return (vec)(expr);                                                                        \
    }
#define DEFINE_OPS_ORDER(name, type)                                                               \
    DEFINE_OP(name##_max, type, select_lanes((vec)(a > b), x, y))                                  \
    DEFINE_OP(name##_min, type, select_lanes((vec)(a < b), x, y))
#define DEFINE_OPS_INT(bits)                                                                       \
    DEFINE_OP(u##bits##_sum, vu##bits, a + b)                                                      \
    DEFINE_OP(u##bits##_prod, vu##bits, a *b)                                                      \
    DEFINE_OP(u##bits##_band, vu##bits, a &b)                                                      \
    DEFINE_OP(u##bits##_bor, vu##bits, a | b)                                                      \
    DEFINE_OP(u##bits##_bxor, vu##bits, a ^ b)                                                     \
    DEFINE_OPS_ORDER(u##bits, vu##bits)                                                            \
    DEFINE_OPS_ORDER(i##bits, vi##bits)
DEFINE_OPS_INT(8)
DEFINE_OPS_INT(16)
DEFINE_OPS_INT(32)
DEFINE_OPS_INT(64)

/* NaN wins, and of two zeros +0 is above -0, as in reduce.c. */
#define DEFINE_OPS_FLOAT(name, type)                                                               \
    DEFINE_OP(name##_sum, type, a + b)                                                             \
    DEFINE_OP(name##_prod, type, a *b)                                                             \
    DEFINE_OP(name##_max, type,                                                                    \
              select_lanes((vec)(a != a) | (vec)(a > b), x, y & (x | ~(vec)(a == b))))             \
    DEFINE_OP(name##_min, type,                                                                    \
              select_lanes((vec)(a != a) | (vec)(a < b), x, y | (x & (vec)(a == b))))
DEFINE_OPS_FLOAT(f32, vf32)
DEFINE_OPS_FLOAT(f64, vf64)

#define DEFINE_DIVIDE_FLOAT(name, type, scalar)                                                    \
    INLINE vec divide_##name(vec x, double by)                                                     \
    {                                                                                              \
        return (vec)((type)x / (scalar)by);                                                        \
    }
DEFINE_DIVIDE_FLOAT(f32, vf32, float)
DEFINE_DIVIDE_FLOAT(f64, vf64, double)

#define DEFINE_DIVIDE_INT(name, type, wide)                                                        \
    INLINE vec divide_##name(vec x, double by)                                                     \
    {                                                                                              \
        const wide divisor = (wide)(by < 1 ? 1 : by);                                              \
        type each[V_BYTES / sizeof(type)];                                                         \
        memcpy(each, &x, sizeof(x));                                                               \
        for (size_t i = 0; i < ARRAY_LEN(each); i++)                                               \
            each[i] = (type)(each[i] / divisor);                                                   \
        memcpy(&x, each, sizeof(x));                                                               \
        return x;                                                                                  \
    }
DEFINE_DIVIDE_INT(i8, int8_t, int64_t)
DEFINE_DIVIDE_INT(u8, uint8_t, uint64_t)
DEFINE_DIVIDE_INT(i16, int16_t, int64_t)
DEFINE_DIVIDE_INT(u16, uint16_t, uint64_t)
DEFINE_DIVIDE_INT(i32, int32_t, int64_t)
DEFINE_DIVIDE_INT(u32, uint32_t, uint64_t)
DEFINE_DIVIDE_INT(i64, int64_t, int64_t)
DEFINE_DIVIDE_INT(u64, uint64_t, uint64_t)

/* ---- loops: one pair for each lane and operation ------------------------------------------- */

/* The operands of a move, in bytes. */
struct move {
    char *const *dst;
    const char *const *src;
    int ndst;
    int nsrc;
    size_t bytes;
    bool stream;
    double divisor; /* averages only */
};

struct loops {
    /* The vectors in [at, end), a multiple of lane->bytes; stores are aligned if move->stream. */
    void (*middle)(const struct move *move, size_t at, size_t end);
    /* n <= lane->bytes at `at`, into a buffer with room for a vector. */
    void (*edge)(const struct move *move, size_t at, size_t n, char *out);
};

INLINE void fold_block(const struct move *move, size_t at, const struct lane *lane, lane_op op,
                       lane_divide finish)
{
    const size_t step = lane->bytes;
    const char *const first = move->src[0] + at;
    vec v0 = lane->load(first);
    vec v1 = lane->load(first + step);
    vec v2 = lane->load(first + 2 * step);
    vec v3 = lane->load(first + 3 * step);
    for (int k = 1; k < move->nsrc; k++) {
        const char *const more = move->src[k] + at;
        v0 = op(v0, lane->load(more));
        v1 = op(v1, lane->load(more + step));
        v2 = op(v2, lane->load(more + 2 * step));
        v3 = op(v3, lane->load(more + 3 * step));
    }
    v0 = finish(v0, move->divisor);
    v1 = finish(v1, move->divisor);
    v2 = finish(v2, move->divisor);
    v3 = finish(v3, move->divisor);
    for (int j = 0; j < move->ndst; j++) {
        char *const to = move->dst[j] + at;
        lane->store(to, v0, move->stream);
        lane->store(to + step, v1, move->stream);
        lane->store(to + 2 * step, v2, move->stream);
        lane->store(to + 3 * step, v3, move->stream);
    }
}

INLINE void fold_middle(const struct move *move, size_t at, size_t end, const struct lane *lane,
                        lane_op op, lane_divide finish)
{
    const size_t step = lane->bytes;
    for (; at + 4 * step <= end; at += 4 * step)
        fold_block(move, at, lane, op, finish);
    for (; at < end; at += step) {
        vec v = lane->load(move->src[0] + at);
        for (int k = 1; k < move->nsrc; k++)
            v = op(v, lane->load(move->src[k] + at));
        v = finish(v, move->divisor);
        for (int j = 0; j < move->ndst; j++)
            lane->store(move->dst[j] + at, v, move->stream);
    }
}

/* Copies of the operands keep pointers in registers, which the stores could change for all that the
 * compiler knows.  Two into one, the step of every ring, has its own loop. */
INLINE void fold_middle_fast(const struct move *move, size_t at, size_t end, const struct lane *lane,
                             lane_op op, lane_divide finish)
{
    if (move->nsrc == 2 && move->ndst == 1) {
        const char *const src[2] = {move->src[0], move->src[1]};
        char *const dst[1] = {move->dst[0]};
        const struct move pair = {dst, src, 1, 2, move->bytes, move->stream, move->divisor};
        fold_middle(&pair, at, end, lane, op, finish);
    } else {
        const struct move any = *move;
        fold_middle(&any, at, end, lane, op, finish);
    }
}

INLINE void fold_edge(const struct move *move, size_t at, size_t n, char *out,
                      const struct lane *lane, lane_op op, lane_divide finish)
{
    vec v = n == lane->bytes ? lane->load(move->src[0] + at) : lane->load_part(move->src[0] + at, n);
    for (int k = 1; k < move->nsrc; k++) {
        const char *const more = move->src[k] + at;
        v = op(v, n == lane->bytes ? lane->load(more) : lane->load_part(more, n));
    }
    lane->store(out, finish(v, move->divisor), false);
}

INLINE vec finish_none(vec v, double divisor)
{
    (void)divisor;
    return v;
}

#define DEFINE_LOOPS(name, how, op, finish, fold)                                                  \
    static void middle_##name(const struct move *move, size_t at, size_t end)                      \
    {                                                                                              \
        fold(move, at, end, &lane_##how, op, finish);                                              \
    }                                                                                              \
    static void edge_##name(const struct move *move, size_t at, size_t n, char *out)               \
    {                                                                                              \
        fold_edge(move, at, n, out, &lane_##how, op, finish);                                      \
    }                                                                                              \
    static const struct loops loops_##name = {middle_##name, edge_##name};
#define DEFINE_LOOPS_OP(how, op)                                                                   \
    DEFINE_LOOPS(how##_##op, how, op_##op, finish_none, fold_middle)
#define DEFINE_LOOPS_SUM(how, type)                                                                \
    DEFINE_LOOPS(how##_##type##_sum, how, op_##type##_sum, finish_none, fold_middle_fast)
#define DEFINE_LOOPS_ORDER(how, type)                                                              \
    DEFINE_LOOPS_OP(how, type##_max)                                                               \
    DEFINE_LOOPS_OP(how, type##_min)
#define DEFINE_LOOPS_INT(bits)                                                                     \
    DEFINE_LOOPS_SUM(full, u##bits)                                                                \
    DEFINE_LOOPS_OP(full, u##bits##_prod)                                                          \
    DEFINE_LOOPS_OP(full, u##bits##_band)                                                          \
    DEFINE_LOOPS_OP(full, u##bits##_bor)                                                           \
    DEFINE_LOOPS_OP(full, u##bits##_bxor)                                                          \
    DEFINE_LOOPS_ORDER(full, u##bits)                                                              \
    DEFINE_LOOPS_ORDER(full, i##bits)
#define DEFINE_LOOPS_FLOAT(how, type)                                                              \
    DEFINE_LOOPS_SUM(how, type)                                                                    \
    DEFINE_LOOPS_OP(how, type##_prod)                                                              \
    DEFINE_LOOPS_ORDER(how, type)                                                                  \
    DEFINE_LOOPS(how##_##type##_average, how, op_##type##_sum, divide_##type, fold_middle_fast)
DEFINE_LOOPS_INT(8)
DEFINE_LOOPS_INT(16)
DEFINE_LOOPS_INT(32)
DEFINE_LOOPS_INT(64)
DEFINE_LOOPS_FLOAT(full, f32)
DEFINE_LOOPS_FLOAT(full, f64)
DEFINE_LOOPS_FLOAT(f16, f32)
DEFINE_LOOPS_FLOAT(bf16, f32)
DEFINE_LOOPS_FLOAT(e4m3, f32)
DEFINE_LOOPS_FLOAT(e5m2, f32)

/* ---- the move ----------------------------------------------------------------------------- */

/* Bytes up to where all destinations are aligned to `align`; `align` if there is no such place. */
static size_t distance_to_aligned(const struct move *move, size_t align, size_t element)
{
    const size_t distance = -(uintptr_t)move->dst[0] & (align - 1);
    uintptr_t differences = distance % element;
    for (int j = 1; j < move->ndst; j++)
        differences |= ((uintptr_t)move->dst[j] ^ (uintptr_t)move->dst[0]) & (align - 1);
    return differences ? align : distance;
}

static void store_edge(const struct move *move, size_t at, const char *from, size_t n)
{
    for (int j = 0; j < move->ndst; j++)
        copy_part(move->dst[j] + at, from, n);
}

/* Leaves to the caller the fence that non-temporal stores need. */
static void run_loops(struct move *move, const struct loops *loops, const struct lane *lane,
                      size_t element)
{
    char head[V_BYTES], tail[V_BYTES];
    const size_t step = lane->bytes;
    if (move->bytes < step) {
        loops->edge(move, 0, move->bytes, head);
        store_edge(move, 0, head, move->bytes);
        return;
    }
    const size_t distance = distance_to_aligned(move, step, element);
    const size_t at = distance < step ? distance : 0;
    const size_t end = at + (move->bytes - at) / step * step;
    move->stream = move->stream && distance < step;
    if (at > 0)
        loops->edge(move, 0, step, head);
    if (end < move->bytes)
        loops->edge(move, move->bytes - step, step, tail);
    loops->middle(move, at, end);
    if (at > 0)
        store_edge(move, 0, head, step);
    if (end < move->bytes)
        store_edge(move, move->bytes - step, tail, step);
}

/* Copying is a fold of one source. */
static void copy_to_all(char *const *dst, int ndst, const char *from, size_t bytes, bool stream)
{
    if (ndst == 1 && !stream) {
        if (dst[0] != from)
            memcpy(dst[0], from, bytes);
        return;
    }
    const char *const src[1] = {from};
    struct move move = {
        .dst = dst, .src = src, .ndst = ndst, .nsrc = 1, .bytes = bytes, .stream = stream};
    run_loops(&move, &loops_full_u8_bor, &lane_full, 1);
}

static void copy(const struct reduce_args *args)
{
    if (args->count == 0)
        return;
    copy_to_all((char *const *)args->dst, args->ndst, args->src[0], args->count, args->stream);
    if (args->stream)
        stream_fence();
}

/* What pre and post_div need of a type. */
struct scaling {
    lane_op multiply;
    lane_divide divide;
    const struct loops *average; /* of floats; NULL: by the scaled path */
};

struct kernel {
    const struct lane *lane;
    size_t element; /* bytes */
    lane_op op;
    bool is_sum;
    const struct loops *loops;
    const struct scaling *scaling;
};

enum { SCALED_TILE = 4096 }; /* bytes; stays in the L1 cache */

static void scale_tile(const struct reduce_args *args, const struct kernel *kernel, vec factor,
                       size_t at, size_t bytes, char *tile)
{
    const struct lane *const lane = kernel->lane;
    const size_t step = lane->bytes;
    for (size_t i = 0; i < bytes; i += step) {
        const size_t n = bytes - i < step ? bytes - i : step;
        vec v = {0};
        for (int k = 0; k < args->nsrc; k++) {
            const char *const from = (const char *)args->src[k] + at + i;
            vec more = n == step ? lane->load(from) : lane->load_part(from, n);
            if (args->pre != NULL && k < 64 && (args->pre_mask >> k & 1)) {
                more = kernel->scaling->multiply(more, factor);
                V_KEEP(more);
            }
            v = k == 0 ? more : kernel->op(v, more);
        }
        if (args->post_div != 0)
            v = kernel->scaling->divide(v, args->post_div);
        lane->store(tile + i, v, false);
    }
}

/* With pre, or post_div where no loops include it: a vector at a time through pointers. */
static void run_scaled(const struct reduce_args *args, const struct kernel *kernel)
{
    char tile[SCALED_TILE] = {0};
    const size_t bytes = args->count * kernel->element;
    for (size_t i = 0; args->pre != NULL && i < kernel->lane->bytes; i += kernel->element)
        memcpy(tile + i, args->pre, kernel->element);
    const vec factor = kernel->lane->load(tile);
    for (size_t at = 0; at < bytes; at += SCALED_TILE) {
        const size_t n = bytes - at < SCALED_TILE ? bytes - at : SCALED_TILE;
        scale_tile(args, kernel, factor, at, n, tile);
        for (int j = 0; j < args->ndst; j++) {
            char *const dst[1] = {(char *)args->dst[j] + at};
            copy_to_all(dst, 1, tile, n, args->stream);
        }
    }
}

static void run_kernel(const struct reduce_args *args, const struct kernel *kernel)
{
    if (args->count == 0)
        return;
    struct move move = {.dst = (char *const *)args->dst,
                        .src = (const char *const *)args->src,
                        .ndst = args->ndst,
                        .nsrc = args->nsrc,
                        .bytes = args->count * kernel->element,
                        .stream = args->stream,
                        .divisor = args->post_div};
    const struct loops *loops = kernel->loops;
    if (UNLIKELY(args->post_div != 0))
        loops = kernel->is_sum ? kernel->scaling->average : NULL;
    if (UNLIKELY(args->pre != NULL || loops == NULL))
        run_scaled(args, kernel);
    else if (args->nsrc == 1 && args->post_div == 0)
        copy_to_all(move.dst, move.ndst, move.src[0], move.bytes, move.stream);
    else
        run_loops(&move, loops, kernel->lane, kernel->element);
    if (args->stream)
        stream_fence();
}

#define DEFINE_SCALING(type, acc, divide, average)                                                 \
    static const struct scaling scaling_##type = {op_##acc##_prod, divide, average};
DEFINE_SCALING(i8, u8, divide_i8, NULL)
DEFINE_SCALING(u8, u8, divide_u8, NULL)
DEFINE_SCALING(i16, u16, divide_i16, NULL)
DEFINE_SCALING(u16, u16, divide_u16, NULL)
DEFINE_SCALING(i32, u32, divide_i32, NULL)
DEFINE_SCALING(u32, u32, divide_u32, NULL)
DEFINE_SCALING(i64, u64, divide_i64, NULL)
DEFINE_SCALING(u64, u64, divide_u64, NULL)
DEFINE_SCALING(f32, f32, divide_f32, &loops_full_f32_average)
DEFINE_SCALING(f64, f64, divide_f64, &loops_full_f64_average)
DEFINE_SCALING(f16, f32, divide_f32, &loops_f16_f32_average)
DEFINE_SCALING(bf16, f32, divide_f32, &loops_bf16_f32_average)
DEFINE_SCALING(e4m3, f32, divide_f32, &loops_e4m3_f32_average)
DEFINE_SCALING(e5m2, f32, divide_f32, &loops_e5m2_f32_average)

#define DEFINE_ENTRY(type, op_name, number, op_number, bytes, how, fold)                           \
    static const struct kernel kernel_##type##_##op_name = {                                       \
        &lane_##how,       bytes,                   op_##fold, (op_number) == KOLO_SUM,            \
        &loops_##how##_##fold, &scaling_##type};                                                   \
    static void entry_##type##_##op_name(const struct reduce_args *args)                           \
    {                                                                                              \
        run_kernel(args, &kernel_##type##_##op_name);                                              \
    }
REDUCE_ENTRIES(DEFINE_ENTRY)

#endif
