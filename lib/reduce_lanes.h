/* reduce_lanes.h - vectors for reduce_kernels.h: how elements get from memory into a vector of
 * accumulators and back, and the operations on accumulators, over the compilers' vector types.
 *
 * reduce_<isa>.c sets V_BYTES and V_KEEP(v), an empty asm that keeps a product from being fused
 * into a sum, and defines the hooks.  All is static, so that nothing leaks to a CPU without the
 * instructions.
 * Bits equal those of reduce.c but for the payload of NaNs. */
#ifndef REDUCE_LANES_H
#define REDUCE_LANES_H

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
typedef uint16_t vhalf __attribute__((vector_size(V_BYTES / 2)));

/* ---- hooks, defined by the includer ------------------------------------------------------- */

/* `stream` asks for non-temporal stores; p is then aligned to the bytes stored. */
INLINE void full_store(char *p, vec v, bool stream);
/* 16-bit and 8-bit elements in memory, zero-extended to u32 lanes; stores keep the low bits. */
INLINE vec half_load(const char *p);
INLINE void half_store(char *p, vec v, bool stream);
INLINE vhalf quarter_load(const char *p); /* to u16 lanes */
INLINE void quarter_store(char *p, vec v, bool stream);
/* f16 in memory or u16 lanes, f32 lanes. */
INLINE vec f16_widen(vhalf v);
INLINE vec f16_load(const char *p);
INLINE void f16_store(char *p, vec v, bool stream);
/* Lanes of `yes` where those of mask are all ones, of `no` where they are zero. */
INLINE vec select_lanes(vec mask, vec yes, vec no);
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

/* As narrow() of reduce.c. */
INLINE vec narrow_lanes(vu32 magnitude, int mant, int bias)
{
    const int cut = 23 - mant;
    const uint32_t half = (1U << (cut - 1)) - 1;
    const uint32_t rebias = (uint32_t)(127 - bias) << 23;
    const vu32 normal = (magnitude + (half - rebias) + (magnitude >> cut & 1)) >> cut;
    const vu32 magic = (vu32){0} + ((uint32_t)(127 - bias + 1 + 23 - mant) << 23);
    const vu32 subnormal = (vu32)((vf32)magnitude + (vf32)magic) - magic;
    const vi32 is_small = (vi32)magnitude < (127 - bias + 1) << 23;
    return select_lanes((vec)is_small, (vec)subnormal, (vec)normal);
}

/* The fields of an e4m3 mean 1/256 of its value when put into those of an f16. */
INLINE vec e4m3_load(const char *p)
{
    const vhalf u = quarter_load(p);
    const vhalf magnitude = u & 0x7fU;
    const vhalf is_nan = (vhalf)(magnitude == 0x7fU);
    return (vec)((vf32)f16_widen((u & 0x80U) << 8 | magnitude << 7 | (is_nan & 0x7e00U)) * 256.0F);
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

/* An e5m2 is the upper half of an f16. */
INLINE vec e5m2_load(const char *p)
{
    return f16_widen(quarter_load(p) << 8);
}

INLINE void e5m2_store(char *p, vec v, bool stream)
{
    const vu32 magnitude = (vu32)v & 0x7fffffffU;
    const vi32 rounded = (vi32)narrow_lanes(magnitude, 2, 15);
    const vec top = (vec)((vu32){0} + 0x7bU);
    const vec finite = select_lanes((vec)(rounded > 0x7b), top, (vec)rounded);
    const vec nan_or_inf = (vec)((((vi32)magnitude > 0x7f800000) & 3) | 0x7c);
    const vec is_special = (vec)((vi32)magnitude >= 0x7f800000);
    quarter_store(p, select_lanes(is_special, nan_or_inf, finite) | (vec)((vu32)v >> 24 & 0x80U),
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

/* Quotients of 32-bit integers are exact in double before they are truncated: what is not a whole
 * number is at least 1/divisor away from one. */
#define DEFINE_DIVIDE_INT(name, type, wide, between, exact)                                        \
    INLINE vec divide_##name(vec x, double by)                                                     \
    {                                                                                              \
        const exact divisor = (exact)(wide)(by < 1 ? 1 : by);                                      \
        type each[V_BYTES / sizeof(type)];                                                         \
        memcpy(each, &x, sizeof(x));                                                               \
        for (size_t i = 0; i < ARRAY_LEN(each); i++)                                               \
            each[i] = (type)(between)((exact)each[i] / divisor);                                   \
        memcpy(&x, each, sizeof(x));                                                               \
        return x;                                                                                  \
    }
DEFINE_DIVIDE_INT(i8, int8_t, int64_t, int32_t, double)
DEFINE_DIVIDE_INT(u8, uint8_t, uint64_t, int32_t, double)
DEFINE_DIVIDE_INT(i16, int16_t, int64_t, int32_t, double)
DEFINE_DIVIDE_INT(u16, uint16_t, uint64_t, int32_t, double)
DEFINE_DIVIDE_INT(i32, int32_t, int64_t, int32_t, double)
DEFINE_DIVIDE_INT(u32, uint32_t, uint64_t, uint32_t, double)
DEFINE_DIVIDE_INT(i64, int64_t, int64_t, int64_t, int64_t)
DEFINE_DIVIDE_INT(u64, uint64_t, uint64_t, uint64_t, uint64_t)

#endif
