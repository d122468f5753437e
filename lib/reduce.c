/* reduce.c - the arithmetic of a move in plain C: the specification that the vector tables
 * (reduce_avx2.c, reduce_avx512.c, reduce_neon.c, over reduce_kernels.h) match bit for bit but for
 * the payload of NaNs; the conversions of the narrow floats; the choice of a table.
 *
 *     sources --load, scale--> tile of accumulators --fold in the order of sources, divide-->
 *     --store--> destinations
 *
 * Build all reduce*.c with -O3 -ffp-contract=off: a fused multiply-add would change bits. */
#include "reduce.h"

#include "cfg.h"
#include "reduce_entries.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

enum { TILE = 512 }; /* elements; two tiles of doubles stay in the L1 cache */

/* ---- conversions -------------------------------------------------------------------------- */

static uint32_t bits_of(float v)
{
    uint32_t u;
    memcpy(&u, &v, sizeof(u));
    return u;
}

static float float_of(uint32_t u)
{
    float v;
    memcpy(&v, &u, sizeof(v));
    return v;
}

/* Narrow floats with `mant` bits of mantissa and exponent bias `bias`: the fields of |v| at their
 * place in an f32.  Subnormals become normal with a bit in front, which is subtracted again. */
static float widen(uint32_t magnitude, int mant, int bias)
{
    const uint32_t at = magnitude << (23 - mant);
    const uint32_t shift = (uint32_t)(127 - bias) << 23;
    const float normal = float_of(at + shift);
    const float subnormal = float_of(at + shift + (1U << 23)) - float_of(shift + (1U << 23));
    return magnitude >> mant ? normal : subnormal;
}

/* The reverse for a finite |v|, to nearest even.  Below the smallest normal, adding a float whose
 * last bit weighs one step of the subnormals does the rounding. */
static uint32_t narrow(uint32_t magnitude, int mant, int bias)
{
    const uint32_t cut = (uint32_t)(23 - mant);
    const uint32_t half = (1U << (cut - 1)) - 1;
    const uint32_t normal =
        ((magnitude + half + ((magnitude >> cut) & 1)) >> cut) - ((uint32_t)(127 - bias) << mant);
    const uint32_t magic = (uint32_t)(127 - bias + 1 + 23 - mant) << 23;
    const uint32_t subnormal = bits_of(float_of(magnitude) + float_of(magic)) - magic;
    return magnitude < (uint32_t)(127 - bias + 1) << 23 ? subnormal : normal;
}

static float with_sign(float magnitude, uint32_t is_negative)
{
    return float_of(bits_of(magnitude) | is_negative << 31);
}

float reduce_f16_to_f32(uint16_t v)
{
    const uint32_t magnitude = v & 0x7fffU;
    const float finite = widen(magnitude, 10, 15);
    const float special = float_of(magnitude << 13 | 0x7f800000U);
    return with_sign(magnitude >= 0x7c00U ? special : finite, v >> 15);
}

uint16_t reduce_f32_to_f16(float v)
{
    const uint32_t sign = bits_of(v) >> 16 & 0x8000U;
    const uint32_t magnitude = bits_of(v) & 0x7fffffffU;
    if (magnitude > 0x7f800000U)
        return (uint16_t)(sign | 0x7e00U | (magnitude >> 13 & 0x3ffU));
    if (magnitude >= 0x477ff000U) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00U);
    return (uint16_t)(sign | narrow(magnitude, 10, 15));
}

float reduce_bf16_to_f32(uint16_t v)
{
    return float_of((uint32_t)v << 16);
}

uint16_t reduce_f32_to_bf16(float v)
{
    const uint32_t u = bits_of(v);
    const uint32_t rounded = (u + 0x7fffU + (u >> 16 & 1)) >> 16;
    return (uint16_t)((u & 0x7fffffffU) > 0x7f800000U ? u >> 16 | 0x40U : rounded);
}

float reduce_e4m3_to_f32(uint8_t v)
{
    const uint32_t magnitude = v & 0x7fU;
    const float finite = widen(magnitude, 3, 7);
    return with_sign(magnitude == 0x7fU ? float_of(0x7fc00000U) : finite, v >> 7);
}

uint8_t reduce_f32_to_e4m3(float v)
{
    const uint32_t sign = bits_of(v) >> 24 & 0x80U;
    const uint32_t magnitude = bits_of(v) & 0x7fffffffU;
    if (magnitude > 0x7f800000U)
        return (uint8_t)(sign | 0x7fU);
    const uint32_t rounded = narrow(magnitude, 3, 7);
    return (uint8_t)(sign | (rounded < 0x7eU ? rounded : 0x7eU));
}

float reduce_e5m2_to_f32(uint8_t v)
{
    return reduce_f16_to_f32((uint16_t)(v << 8));
}

uint8_t reduce_f32_to_e5m2(float v)
{
    const uint32_t sign = bits_of(v) >> 24 & 0x80U;
    const uint32_t magnitude = bits_of(v) & 0x7fffffffU;
    if (magnitude >= 0x7f800000U)
        return (uint8_t)(sign | (magnitude > 0x7f800000U ? 0x7fU : 0x7cU));
    const uint32_t rounded = narrow(magnitude, 2, 15);
    return (uint8_t)(sign | (rounded < 0x7bU ? rounded : 0x7bU));
}

/* ---- rows: operations on a tile of accumulators ------------------------------------------- */

struct rows {
    size_t bytes; /* of an element in memory */
    void (*load)(void *acc, const void *src, size_t n);
    void (*scale)(void *acc, const void *by, size_t n); /* by: one accumulator */
    void (*divide)(void *acc, double by, size_t n);
    void (*store)(void *dst, const void *acc, size_t n);
};
typedef void (*fold_fn)(void *acc, const void *more, size_t n);

/* The larger (smaller) of two floats as IEEE 754-2019 maximum (minimum): NaN wins, +0 is above -0;
 * so the result does not depend on the order of sources. */
#define DEFINE_EXTREMES(type, uint)                                                                \
    static type type##_max(type a, type b)                                                         \
    {                                                                                              \
        uint x, y;                                                                                 \
        memcpy(&x, &a, sizeof(x));                                                                 \
        memcpy(&y, &b, sizeof(y));                                                                 \
        x = a != a || a > b ? x : (a == b ? x & y : y);                                            \
        memcpy(&a, &x, sizeof(a));                                                                 \
        return a;                                                                                  \
    }                                                                                              \
    static type type##_min(type a, type b)                                                         \
    {                                                                                              \
        uint x, y;                                                                                 \
        memcpy(&x, &a, sizeof(x));                                                                 \
        memcpy(&y, &b, sizeof(y));                                                                 \
        x = a != a || a < b ? x : (a == b ? x | y : y);                                            \
        memcpy(&a, &x, sizeof(a));                                                                 \
        return a;                                                                                  \
    }
DEFINE_EXTREMES(float, uint32_t)
DEFINE_EXTREMES(double, uint64_t)

#define DEFINE_FOLD(name, type, expr)                                                              \
    static void fold_##name(void *acc, const void *more, size_t n)                                 \
    {                                                                                              \
        type *restrict const to = acc;                                                             \
        const type *restrict const from = more;                                                    \
        for (size_t i = 0; i < n; i++) {                                                           \
            const type a = to[i], b = from[i];                                                     \
            to[i] = (type)(expr);                                                                  \
        }                                                                                          \
    }

#define DEFINE_LOAD_PLAIN(name, type)                                                              \
    static void load_##name(void *acc, const void *src, size_t n)                                  \
    {                                                                                              \
        memcpy(acc, src, n * sizeof(type));                                                        \
    }                                                                                              \
    static void store_##name(void *dst, const void *acc, size_t n)                                 \
    {                                                                                              \
        memcpy(dst, acc, n * sizeof(type));                                                        \
    }

/* wide: unsigned and at least an int, so that products wrap without undefined behaviour. */
#define DEFINE_SCALE(name, type, wide)                                                             \
    static void scale_##name(void *acc, const void *by, size_t n)                                  \
    {                                                                                              \
        type *const to = acc;                                                                      \
        const type factor = *(const type *)by;                                                     \
        for (size_t i = 0; i < n; i++)                                                             \
            to[i] = (type)((wide)to[i] * (wide)factor);                                            \
    }

/* least: 1 for integers, where a divisor between 0 and 1 would become 0. */
#define DEFINE_DIVIDE(name, type, divisor_type, least)                                             \
    static void divide_##name(void *acc, double by, size_t n)                                      \
    {                                                                                              \
        type *const to = acc;                                                                      \
        const divisor_type divisor = (divisor_type)(by < (least) ? (least) : by);                  \
        for (size_t i = 0; i < n; i++)                                                             \
            to[i] = (type)(to[i] / divisor);                                                       \
    }

#define DEFINE_INT(bits, wide)                                                                     \
    DEFINE_LOAD_PLAIN(u##bits, uint##bits##_t)                                                     \
    DEFINE_SCALE(u##bits, uint##bits##_t, wide)                                                    \
    DEFINE_DIVIDE(u##bits, uint##bits##_t, uint64_t, 1)                                            \
    DEFINE_DIVIDE(i##bits, int##bits##_t, int64_t, 1)                                              \
    DEFINE_FOLD(u##bits##_sum, uint##bits##_t, (wide)a + (wide)b)                                  \
    DEFINE_FOLD(u##bits##_prod, uint##bits##_t, (wide)a *(wide)b)                                  \
    DEFINE_FOLD(u##bits##_max, uint##bits##_t, a > b ? a : b)                                      \
    DEFINE_FOLD(u##bits##_min, uint##bits##_t, a < b ? a : b)                                      \
    DEFINE_FOLD(i##bits##_max, int##bits##_t, a > b ? a : b)                                       \
    DEFINE_FOLD(i##bits##_min, int##bits##_t, a < b ? a : b)                                       \
    DEFINE_FOLD(u##bits##_band, uint##bits##_t, a &b)                                              \
    DEFINE_FOLD(u##bits##_bor, uint##bits##_t, a | b)                                              \
    DEFINE_FOLD(u##bits##_bxor, uint##bits##_t, a ^ b)                                             \
    static const struct rows rows_u##bits = {bits / 8, load_u##bits, scale_u##bits,                \
                                             divide_u##bits, store_u##bits};                       \
    static const struct rows rows_i##bits = {bits / 8, load_u##bits, scale_u##bits,                \
                                             divide_i##bits, store_u##bits};
DEFINE_INT(8, uint32_t)
DEFINE_INT(16, uint32_t)
DEFINE_INT(32, uint32_t)
DEFINE_INT(64, uint64_t)

#define DEFINE_FLOAT(name, type)                                                                   \
    DEFINE_LOAD_PLAIN(name, type)                                                                  \
    DEFINE_SCALE(name, type, type)                                                                 \
    DEFINE_DIVIDE(name, type, type, -HUGE_VAL)                                                     \
    DEFINE_FOLD(name##_sum, type, a + b)                                                           \
    DEFINE_FOLD(name##_prod, type, a *b)                                                           \
    DEFINE_FOLD(name##_max, type, type##_max(a, b))                                                \
    DEFINE_FOLD(name##_min, type, type##_min(a, b))                                                \
    static const struct rows rows_##name = {sizeof(type), load_##name, scale_##name,               \
                                            divide_##name, store_##name};
DEFINE_FLOAT(f32, float)
DEFINE_FLOAT(f64, double)

/* Narrow floats: f32 in the tile. */
#define DEFINE_NARROW(name, uint)                                                                  \
    static void load_##name(void *acc, const void *src, size_t n)                                  \
    {                                                                                              \
        float *const to = acc;                                                                     \
        for (size_t i = 0; i < n; i++) {                                                           \
            uint v;                                                                                \
            memcpy(&v, (const char *)src + i * sizeof(v), sizeof(v));                              \
            to[i] = reduce_##name##_to_f32(v);                                                     \
        }                                                                                          \
    }                                                                                              \
    static void store_##name(void *dst, const void *acc, size_t n)                                 \
    {                                                                                              \
        const float *const from = acc;                                                             \
        for (size_t i = 0; i < n; i++) {                                                           \
            const uint v = reduce_f32_to_##name(from[i]);                                          \
            memcpy((char *)dst + i * sizeof(v), &v, sizeof(v));                                    \
        }                                                                                          \
    }                                                                                              \
    static const struct rows rows_##name = {sizeof(uint), load_##name, scale_f32, divide_f32,      \
                                            store_##name};
DEFINE_NARROW(f16, uint16_t)
DEFINE_NARROW(bf16, uint16_t)
DEFINE_NARROW(e4m3, uint8_t)
DEFINE_NARROW(e5m2, uint8_t)

/* ---- the move ----------------------------------------------------------------------------- */

enum { COPY_PIECE = 8192 }; /* bytes; a piece is read once and stays in L1 for all destinations */

static void copy_bytes(const struct reduce_args *args, size_t bytes)
{
    const char *const from = args->src[0];
    const size_t piece = args->ndst == 1 ? bytes : COPY_PIECE;
    for (size_t at = 0; at < bytes; at += piece) {
        const size_t n = bytes - at < piece ? bytes - at : piece;
        for (int j = 0; j < args->ndst; j++) {
            if (args->dst[j] != args->src[0])
                memcpy((char *)args->dst[j] + at, from + at, n);
        }
    }
}

static void copy(const struct reduce_args *args)
{
    copy_bytes(args, args->count);
}

static void load_source(void *acc, const struct reduce_args *args, const struct rows *rows, int k,
                        size_t at, size_t n)
{
    rows->load(acc, (const char *)args->src[k] + at * rows->bytes, n);
    if (args->pre != NULL && k < 64 && (args->pre_mask >> k & 1)) {
        double factor; /* room for one accumulator of any type */
        rows->load(&factor, args->pre, 1);
        rows->scale(acc, &factor, n);
    }
}

static __attribute__((noinline)) void run(const struct reduce_args *args, const struct rows *rows,
                                          fold_fn fold)
{
    if (args->nsrc == 1 && args->pre == NULL && args->post_div == 0) {
        copy_bytes(args, args->count * rows->bytes);
        return;
    }
    double acc[TILE], more[TILE];
    for (size_t at = 0; at < args->count; at += TILE) {
        const size_t n = args->count - at < TILE ? args->count - at : TILE;
        load_source(acc, args, rows, 0, at, n);
        for (int k = 1; k < args->nsrc; k++) {
            load_source(more, args, rows, k, at, n);
            fold(acc, more, n);
        }
        if (args->post_div != 0)
            rows->divide(acc, args->post_div, n);
        for (int j = 0; j < args->ndst; j++)
            rows->store((char *)args->dst[j] + at * rows->bytes, acc, n);
    }
}

#define DEFINE_ENTRY(type, op, number, op_number, bytes, how, fold)                                \
    static void entry_##type##_##op(const struct reduce_args *args)                                \
    {                                                                                              \
        run(args, &rows_##type, fold_##fold);                                                      \
    }
REDUCE_ENTRIES(DEFINE_ENTRY)

const struct reduce_table reduce_table_c = REDUCE_TABLE("c", copy);

/* ---- choice ------------------------------------------------------------------------------- */

struct candidate {
    const struct reduce_table *table;
    bool (*is_usable)(void);
    const char *names; /* of this one and those below, which a CPU with this one has as well */
};

static bool always(void)
{
    return true;
}

#if defined(__x86_64__)

static bool has_avx2(void)
{
    unsigned a, b, c, d; /* older compilers cannot ask for F16C by name */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

static const struct candidate candidates[] = {
    {&reduce_table_avx512, has_avx512, "avx512 avx2 c"},
    {&reduce_table_avx2, has_avx2, "avx2 c"},
    {&reduce_table_c, always, "c"},
};

#elif defined(__aarch64__)

static const struct candidate candidates[] = {
    {&reduce_table_neon, always, "neon c"},
    {&reduce_table_c, always, "c"},
};

#else

static const struct candidate candidates[] = {{&reduce_table_c, always, "c"}};

#endif

bool reduce_op_valid(int type, int op)
{
    return type >= 0 && type < KOLO_NTYPES && op >= 0 && op < KOLO_NOPS &&
           reduce_table_c.fn[type][op] != NULL;
}

const struct reduce_table *reduce_table_find(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(candidates); i++) {
        if (strcmp(candidates[i].table->name, name) == 0)
            return candidates[i].is_usable() ? candidates[i].table : NULL;
    }
    return NULL;
}

const char *reduce_table_names(void)
{
    size_t i = 0;
    while (!candidates[i].is_usable())
        i++;
    return candidates[i].names;
}

/* Whether `name` is a word of `list`; the empty list has all. */
static bool is_allowed(const char *list, const char *name)
{
    const size_t length = strlen(name);
    const char *at = list + strspn(list, ", ");
    if (*at == '\0')
        return true;
    while (*at != '\0') {
        const size_t word = strcspn(at, ", ");
        if (word == length && memcmp(at, name, word) == 0)
            return true;
        at += word;
        at += strspn(at, ", ");
    }
    return false;
}

static const struct reduce_table *choose(void)
{
    for (size_t i = 0; i < ARRAY_LEN(candidates); i++) {
        if (is_allowed(cfg_str(CFG_CPU), candidates[i].table->name) && candidates[i].is_usable())
            return candidates[i].table;
    }
    return &reduce_table_c;
}

const struct reduce_table *reduce_table_get(void)
{
    /* Threads that race here write the same value, and what it points to is constant. */
    static const struct reduce_table *_Atomic chosen;
    const struct reduce_table *table = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (UNLIKELY(table == NULL)) {
        table = choose();
        atomic_store_explicit(&chosen, table, memory_order_relaxed);
    }
    return table;
}
