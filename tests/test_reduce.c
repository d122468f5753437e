/* test_reduce.c - the C kernels against long-hand arithmetic, and every vector table of this CPU
 * against the C kernels: random bits with special values, all counts up to 200, misaligned and
 * aliased buffers, many sources and destinations, with guards around everything written. */
#include "support/test.h"

#include "cfg.h"
#include "reduce.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    MAX_SRC = 70,
    MAX_DST = 5,
    GUARD = 128,
    GUARD_BYTE = 0xa5,
    SMALL_COUNT = 1100,
    STRIDE = SMALL_COUNT * 8 + 2 * GUARD + 128,
};

static uint64_t next_random(uint64_t *seed)
{
    *seed += 0x9e3779b97f4a7c15U;
    uint64_t z = *seed;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9U;
    z = (z ^ z >> 27) * 0x94d049bb133111ebU;
    return z ^ z >> 31;
}

static size_t below(uint64_t *seed, size_t n)
{
    return (size_t)(next_random(seed) % n);
}

static const size_t type_bytes[KOLO_NTYPES] = {
    [KOLO_I8] = 1,  [KOLO_U8] = 1,   [KOLO_I16] = 2,    [KOLO_U16] = 2,   [KOLO_I32] = 4,
    [KOLO_U32] = 4, [KOLO_I64] = 8,  [KOLO_U64] = 8,    [KOLO_F16] = 2,   [KOLO_F32] = 4,
    [KOLO_F64] = 8, [KOLO_BF16] = 2, [KOLO_F8E4M3] = 1, [KOLO_F8E5M2] = 1};

/* ---- narrow floats, decoded and encoded the long way --------------------------------------- */

struct format {
    int type;
    int mant, bias;
    uint32_t max_finite; /* code */
    bool has_infinity;   /* the code after max_finite */
    bool saturates;
};

static const struct format formats[] = {
    {KOLO_F16, 10, 15, 0x7bff, true, false},
    {KOLO_BF16, 7, 127, 0x7f7f, true, false},
    {KOLO_F8E4M3, 3, 7, 0x7e, false, true},
    {KOLO_F8E5M2, 2, 15, 0x7b, true, true},
};

static const struct format *format_of(int type)
{
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        if (formats[i].type == type)
            return &formats[i];
    }
    return NULL;
}

/* code without sign */
static double decode_magnitude(const struct format *f, uint32_t code)
{
    const int exponent = (int)(code >> f->mant);
    const int mantissa = (int)(code & ((1U << f->mant) - 1));
    if (code > f->max_finite)
        return f->has_infinity && code == f->max_finite + 1 ? INFINITY : NAN;
    if (exponent == 0)
        return ldexp(mantissa, 1 - f->bias - f->mant);
    return ldexp(mantissa + (1 << f->mant), exponent - f->bias - f->mant);
}

static uint32_t sign_bit(const struct format *f)
{
    return 1U << (type_bytes[f->type] * 8 - 1);
}

static double decode(const struct format *f, uint32_t code)
{
    const double magnitude = decode_magnitude(f, code & (sign_bit(f) - 1));
    return code & sign_bit(f) ? -magnitude : magnitude;
}

static float lib_decode(int type, uint32_t code)
{
    switch (type) {
    case KOLO_F16:
        return reduce_f16_to_f32((uint16_t)code);
    case KOLO_BF16:
        return reduce_bf16_to_f32((uint16_t)code);
    case KOLO_F8E4M3:
        return reduce_e4m3_to_f32((uint8_t)code);
    default:
        return reduce_e5m2_to_f32((uint8_t)code);
    }
}

static uint32_t lib_encode(int type, float v)
{
    switch (type) {
    case KOLO_F16:
        return reduce_f32_to_f16(v);
    case KOLO_BF16:
        return reduce_f32_to_bf16(v);
    case KOLO_F8E4M3:
        return reduce_f32_to_e4m3(v);
    default:
        return reduce_f32_to_e5m2(v);
    }
}

Test(reduce, decodes_every_code)
{
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        const struct format *const f = &formats[i];
        for (uint32_t code = 0; code < 2 * sign_bit(f); code++) {
            const double want = decode(f, code), got = lib_decode(f->type, code);
            cr_assert(isnan(want) ? isnan(got) : got == want && !signbit(got) == !signbit(want),
                      "type %d code %#x: %a, not %a", f->type, code, got, want);
        }
    }
}

Test(reduce, encodes_every_code_and_its_borders)
{
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        const struct format *const f = &formats[i];
        for (uint32_t code = 0; code < f->max_finite; code++) {
            const float exact = (float)decode_magnitude(f, code);
            const float border =
                (float)((decode_magnitude(f, code) + decode_magnitude(f, code + 1)) / 2);
            const uint32_t even = code + (code & 1), sign = sign_bit(f);
            cr_assert_eq(lib_encode(f->type, exact), code, "type %d code %#x", f->type, code);
            cr_assert_eq(lib_encode(f->type, border), even, "type %d above %#x", f->type, code);
            cr_assert_eq(lib_encode(f->type, -border), even | sign, "type %d", f->type);
            cr_assert_eq(lib_encode(f->type, nextafterf(border, 0)), code,
                         "type %d below border %#x", f->type, code);
            cr_assert_eq(lib_encode(f->type, nextafterf(border, INFINITY)), code + 1,
                         "type %d above border %#x", f->type, code);
        }
    }
}

Test(reduce, encodes_what_is_too_large)
{
    cr_assert_eq(reduce_f32_to_f16(65504), 0x7bff);
    cr_assert_eq(reduce_f32_to_f16(nextafterf(65520, 0)), 0x7bff);
    cr_assert_eq(reduce_f32_to_f16(65520), 0x7c00);
    cr_assert_eq(reduce_f32_to_f16(-65536), 0xfc00);
    cr_assert_eq(reduce_f32_to_bf16(3.4028234e38F), 0x7f80);
    cr_assert_eq(reduce_f32_to_bf16(0x1.fep127F), 0x7f7f);
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        const struct format *const f = &formats[i];
        const uint32_t sign = sign_bit(f), top = f->max_finite;
        const uint32_t huge = f->saturates ? top : top + 1;
        const uint32_t infinite = f->has_infinity ? top + 1 : top;
        cr_assert_eq(lib_encode(f->type, (float)decode_magnitude(f, top)), top);
        cr_assert_eq(lib_encode(f->type, 3.4028234e38F), huge, "type %d", f->type);
        cr_assert_eq(lib_encode(f->type, -3.4028234e38F), huge | sign, "type %d", f->type);
        cr_assert_eq(lib_encode(f->type, INFINITY), infinite, "type %d", f->type);
        cr_assert_eq(lib_encode(f->type, -INFINITY), infinite | sign, "type %d", f->type);
        cr_assert(isnan(decode(f, lib_encode(f->type, NAN))), "type %d", f->type);
        cr_assert(isnan(decode(f, lib_encode(f->type, -NAN))), "type %d", f->type);
        const uint32_t low_payload = 0x7f800001;
        float odd_nan;
        memcpy(&odd_nan, &low_payload, sizeof(odd_nan));
        cr_assert(isnan(decode(f, lib_encode(f->type, odd_nan))), "type %d", f->type);
    }
}

/* ---- the C kernels, element by element ----------------------------------------------------- */

static float get_float(int type, const unsigned char *p)
{
    float v;
    if (type == KOLO_F32) {
        memcpy(&v, p, sizeof(v));
        return v;
    }
    uint32_t code = p[0];
    if (type_bytes[type] == 2)
        code |= (uint32_t)p[1] << 8;
    return (float)decode(format_of(type), code);
}

static double fold_double(int op, double a, double b)
{
    switch (op) {
    case KOLO_MAX:
        if (isnan(a) || isnan(b))
            return NAN;
        return a > b || (a == b && signbit(b)) ? a : b;
    case KOLO_MIN:
        if (isnan(a) || isnan(b))
            return NAN;
        return a < b || (a == b && signbit(a)) ? a : b;
    case KOLO_PROD:
        return a * b;
    default:
        return a + b;
    }
}

/* Sums and products of two floats are exact enough in double to round like the float operation. */
static float fold_float(int op, float a, float b)
{
    return (float)fold_double(op, a, b);
}

static bool is_signed(int type)
{
    return type == KOLO_I8 || type == KOLO_I16 || type == KOLO_I32 || type == KOLO_I64;
}

static __int128 get_int(int type, const unsigned char *p)
{
    const size_t bytes = type_bytes[type];
    __int128 v = 0;
    for (size_t i = bytes; i-- > 0;)
        v = v * 256 + p[i];
    if (is_signed(type) && p[bytes - 1] >= 128)
        v -= (__int128)1 << (8 * bytes);
    return v;
}

/* v modulo 2^bits, as the type reads it */
static __int128 wrap_int(int type, __int128 v)
{
    unsigned char p[16];
    memcpy(p, &v, sizeof(p));
    return get_int(type, p);
}

static __int128 fold_int(int op, __int128 a, __int128 b)
{
    switch (op) {
    case KOLO_PROD:
        return (__int128)((unsigned __int128)a * (unsigned __int128)b);
    case KOLO_MAX:
        return a > b ? a : b;
    case KOLO_MIN:
        return a < b ? a : b;
    case KOLO_BAND:
        return a & b;
    case KOLO_BOR:
        return a | b;
    case KOLO_BXOR:
        return a ^ b;
    default:
        return a + b;
    }
}

static bool is_float(int type)
{
    return format_of(type) != NULL || type == KOLO_F32 || type == KOLO_F64;
}

static void want_int(const struct reduce_args *args, int type, int op, size_t at,
                     unsigned char *out)
{
    __int128 v = 0;
    for (int k = 0; k < args->nsrc; k++) {
        __int128 more = get_int(type, (const unsigned char *)args->src[k] + at);
        if (args->pre != NULL && k < 64 && (args->pre_mask >> k & 1))
            more = wrap_int(type, fold_int(KOLO_PROD, more, get_int(type, args->pre)));
        v = k == 0 ? more : wrap_int(type, fold_int(op, v, more));
    }
    if (args->post_div != 0)
        v /= (__int128)args->post_div;
    memcpy(out, &v, type_bytes[type]);
}

static void want_double(const struct reduce_args *args, int op, size_t at, unsigned char *out)
{
    double v = 0, more, pre = 1;
    if (args->pre != NULL)
        memcpy(&pre, args->pre, sizeof(pre));
    for (int k = 0; k < args->nsrc; k++) {
        memcpy(&more, (const char *)args->src[k] + at, sizeof(more));
        if (args->pre != NULL && k < 64 && (args->pre_mask >> k & 1))
            more *= pre;
        volatile double apart = more; /* never fused */
        v = k == 0 ? apart : fold_double(op, v, apart);
    }
    if (args->post_div != 0)
        v /= args->post_div;
    memcpy(out, &v, sizeof(v));
}

static void want_float(const struct reduce_args *args, int type, int op, size_t at,
                       unsigned char *out)
{
    float v = 0;
    for (int k = 0; k < args->nsrc; k++) {
        float more = get_float(type, (const unsigned char *)args->src[k] + at);
        if (args->pre != NULL && k < 64 && (args->pre_mask >> k & 1))
            more = fold_float(KOLO_PROD, more, get_float(type, args->pre));
        v = k == 0 ? more : fold_float(op, v, more);
    }
    if (args->post_div != 0)
        v = (float)((double)v / (double)(float)args->post_div);
    const uint32_t code = type == KOLO_F32 ? 0 : lib_encode(type, v);
    if (type == KOLO_F32)
        memcpy(out, &v, sizeof(v));
    else
        memcpy(out, &code, type_bytes[type]);
}

static bool is_nan_at(int type, const unsigned char *p)
{
    double v;
    if (!is_float(type))
        return false;
    if (type != KOLO_F64)
        return isnan(get_float(type, p));
    memcpy(&v, p, sizeof(v));
    return isnan(v);
}

static bool is_same(int type, const unsigned char *a, const unsigned char *b)
{
    return memcmp(a, b, type_bytes[type]) == 0 || (is_nan_at(type, a) && is_nan_at(type, b));
}

/* ---- cases --------------------------------------------------------------------------------- */

struct buffers {
    unsigned char src[MAX_SRC][STRIDE];
    unsigned char dst[MAX_DST][STRIDE];
    unsigned char want[STRIDE];
    const void *from[MAX_SRC];
    void *to[MAX_DST];
};

/* Random bits, of floats also infinities, NaNs, zeros, subnormals and numbers near 1. */
static void fill(int type, unsigned char *p, size_t count, uint64_t *seed)
{
    const size_t bytes = type_bytes[type];
    for (size_t i = 0; i < count; i++, p += bytes) {
        uint64_t v = next_random(seed);
        const unsigned kind = (unsigned)(v >> 60);
        const int mant = type == KOLO_F64   ? 52
                         : type == KOLO_F32 ? 23
                         : is_float(type)   ? format_of(type)->mant
                                            : 0;
        const uint64_t sign = (uint64_t)1 << (bytes * 8 - 1);
        const uint64_t exponent = (sign - 1) >> mant << mant;
        if (mant != 0 && kind < 8) {
            const uint64_t specials[8] = {0,
                                          sign,
                                          exponent,
                                          exponent | sign,
                                          exponent | 1,
                                          v & ~exponent,
                                          exponent / 2 & exponent,
                                          (exponent / 2 & exponent) | (v & ~exponent)};
            v = specials[kind];
        }
        memcpy(p, &v, bytes);
    }
}

/* Set up a case of `count` elements; alias: destination j is source j. */
static void set_up(struct buffers *b, struct reduce_args *args, int type, bool alias,
                   uint64_t *seed)
{
    const size_t same = below(seed, 64);
    const unsigned how = (unsigned)below(seed, 4); /* of alignment */
    const size_t element = type_bytes[type];
    for (int k = 0; k < args->nsrc; k++) {
        const size_t off = how == 0 ? 0 : how == 1 ? same / element * element : below(seed, 64);
        b->from[k] = b->src[k] + GUARD + off;
        memset(b->src[k], GUARD_BYTE, STRIDE);
        fill(type, b->src[k] + GUARD + off, args->count, seed);
    }
    for (int j = 0; j < args->ndst; j++) {
        const size_t off = how == 0 ? 0 : how == 1 ? same / element * element : below(seed, 64);
        memset(b->dst[j], GUARD_BYTE, STRIDE);
        b->to[j] = b->dst[j] + GUARD + off;
        if (alias && j < args->nsrc)
            b->to[j] = (void *)b->from[j];
    }
    args->src = b->from;
    args->dst = b->to;
}

static void check(const struct buffers *b, const struct reduce_args *args, int type,
                  const char *what)
{
    const size_t element = type_bytes[type];
    for (int j = 0; j < args->ndst; j++) {
        const unsigned char *const got = b->to[j];
        for (size_t i = 0; i < args->count; i++) {
            cr_assert(is_same(type, got + i * element, b->want + i * element),
                      "%s, destination %d element %zu: %#llx, not %#llx", what, j, i,
                      (unsigned long long)get_int(type, got + i * element),
                      (unsigned long long)get_int(type, b->want + i * element));
        }
        const unsigned char *const end = got + args->count * element;
        for (size_t i = 1; i <= 64; i++)
            cr_assert_eq(got[-(ptrdiff_t)i], GUARD_BYTE, "%s, destination %d: byte -%zu", what, j,
                         i);
        for (size_t i = 0; i < 64; i++)
            cr_assert_eq(end[i], GUARD_BYTE, "%s, destination %d: byte +%zu", what, j, i);
    }
}

/* Random choices for a case of this count. */
static void vary(struct reduce_args *args, int type, unsigned char *pre, bool *alias,
                 uint64_t *seed)
{
    static const int many[] = {1, 2, 2, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 20, 67};
    const bool few = below(seed, 3) != 0;
    args->nsrc = few ? 1 + (int)below(seed, 4) : many[below(seed, sizeof(many) / sizeof(many[0]))];
    args->ndst = below(seed, 2) ? 1 : 1 + (int)below(seed, MAX_DST);
    args->stream = below(seed, 2) ? next_random(seed) : below(seed, 2) ? REDUCE_STREAM_ALL : 0;
    args->post_div = below(seed, 4) ? 0 : (double)(1 + below(seed, 600));
    args->pre = NULL;
    if (below(seed, 5) == 0) {
        fill(type, pre, 1, seed);
        args->pre = pre;
        args->pre_mask = below(seed, 3) ? next_random(seed) : UINT64_MAX;
    }
    *alias = below(seed, 3) == 0;
}

static void compare_with_c(const struct reduce_table *table, struct buffers *b, int type, int op,
                           size_t count, uint64_t seed)
{
    const uint64_t first_seed = seed;
    struct reduce_args args = {.count = count};
    unsigned char pre[8];
    bool alias;
    vary(&args, type, pre, &alias, &seed);
    set_up(b, &args, type, alias, &seed);
    void *const want[1] = {b->want};
    struct reduce_args c_args = args;
    c_args.dst = want;
    c_args.ndst = 1;
    reduce_table_find("c")->fn[type][op](&c_args);
    table->fn[type][op](&args);
    char what[200];
    snprintf(what, sizeof(what),
             "%s type %d op %d count %zu seed %#llx: %d -> %d, alias %d stream %#llx div %g pre %d",
             table->name, type, op, count, (unsigned long long)first_seed, args.nsrc, args.ndst,
             alias, (unsigned long long)args.stream, args.post_div, args.pre != NULL);
    check(b, &args, type, what);
}

static struct buffers *new_buffers(void)
{
    struct buffers *const b = aligned_alloc(64, (sizeof(struct buffers) + 63) / 64 * 64);
    cr_assert_not_null(b);
    return b;
}

/* The names of the tables usable here, one at each call; NULL after the last. */
static const struct reduce_table *next_table(const char **names)
{
    char name[32];
    int used = 0;
    if (sscanf(*names, "%31s%n", name, &used) != 1)
        return NULL;
    *names += used;
    const struct reduce_table *const table = reduce_table_find(name);
    cr_assert_not_null(table, "%s is listed, but not found", name);
    cr_assert_str_eq(table->name, name);
    return table;
}

Test(reduce, tables_equal_c, .timeout = 300)
{
    struct buffers *const b = new_buffers();
    const char *names = reduce_table_names();
    for (const struct reduce_table *table; (table = next_table(&names)) != NULL;) {
        for (int cell = 0; cell < KOLO_NTYPES * KOLO_NOPS; cell++) {
            const int type = cell / KOLO_NOPS, op = cell % KOLO_NOPS;
            cr_assert_eq(table->fn[type][op] != NULL, reduce_op_valid(type, op), "%s %d %d",
                         table->name, type, op);
            if (!reduce_op_valid(type, op))
                continue;
            for (size_t count = 0; count <= 200; count++)
                compare_with_c(table, b, type, op, count, (uint64_t)cell << 32 | count);
            for (size_t count = SMALL_COUNT; count > SMALL_COUNT - 8; count--)
                compare_with_c(table, b, type, op, count, (uint64_t)cell << 32 | count);
        }
    }
    free(b);
}

Test(reduce, c_equals_long_hand, .timeout = 120)
{
    struct buffers *const b = new_buffers();
    for (int cell = 0; cell < KOLO_NTYPES * KOLO_NOPS; cell++) {
        const int type = cell / KOLO_NOPS, op = cell % KOLO_NOPS;
        if (!reduce_op_valid(type, op))
            continue;
        for (size_t count = 0; count <= SMALL_COUNT; count += 1 + count / 2) {
            uint64_t seed = (uint64_t)cell << 40 | count;
            struct reduce_args args = {.count = count};
            unsigned char pre[8];
            bool alias;
            vary(&args, type, pre, &alias, &seed);
            set_up(b, &args, type, alias, &seed);
            for (size_t i = 0; i < count; i++) {
                const size_t at = i * type_bytes[type];
                if (type == KOLO_F64)
                    want_double(&args, op, at, b->want + at);
                else if (is_float(type))
                    want_float(&args, type, op, at, b->want + at);
                else
                    want_int(&args, type, op, at, b->want + at);
            }
            reduce_table_find("c")->fn[type][op](&args);
            char what[100];
            snprintf(what, sizeof(what), "c type %d op %d count %zu: %d -> %d, alias %d", type, op,
                     count, args.nsrc, args.ndst, alias);
            check(b, &args, type, what);
        }
    }
    free(b);
}

/* Numbers that anyone can check. */
Test(reduce, known_results)
{
    const float a[5] = {1, -2, 3.5F, 0, 1e30F}, b[5] = {10, 2, 0.25F, -0.0F, 1e30F};
    const float sum[5] = {11, 0, 3.75F, 0, 2e30F}, largest[5] = {10, 2, 3.5F, 0, 1e30F};
    const uint8_t x[3] = {200, 255, 1}, y[3] = {100, 2, 7}, wrapped[3] = {44, 1, 8};
    const char *names = reduce_table_names();
    for (const struct reduce_table *table; (table = next_table(&names)) != NULL;) {
        float out[5];
        uint8_t bytes[3];
        struct reduce_args args = {.dst = (void *[1]){out},
                                   .src = (const void *[2]){a, b},
                                   .ndst = 1,
                                   .nsrc = 2,
                                   .count = 5};
        table->fn[KOLO_F32][KOLO_SUM](&args);
        cr_assert(memcmp(out, sum, sizeof(sum)) == 0, "%s", table->name);
        table->fn[KOLO_F32][KOLO_MAX](&args);
        cr_assert(memcmp(out, largest, sizeof(largest)) == 0, "%s", table->name);
        args = (struct reduce_args){.dst = (void *[1]){bytes},
                                    .src = (const void *[2]){x, y},
                                    .ndst = 1,
                                    .nsrc = 2,
                                    .count = 3};
        table->fn[KOLO_U8][KOLO_SUM](&args);
        cr_assert(memcmp(bytes, wrapped, sizeof(wrapped)) == 0, "%s", table->name);
    }
}

/* f16 keeps what would be lost by rounding after each source: 2048 + 1 + 1. */
Test(reduce, narrow_floats_round_once)
{
    const uint16_t big[1] = {0x6800}, one[1] = {0x3c00}, want = 0x6801;
    const char *names = reduce_table_names();
    for (const struct reduce_table *table; (table = next_table(&names)) != NULL;) {
        uint16_t out[1] = {0};
        const struct reduce_args args = {.dst = (void *[1]){out},
                                         .src = (const void *[3]){big, one, one},
                                         .ndst = 1,
                                         .nsrc = 3,
                                         .count = 1};
        table->fn[KOLO_F16][KOLO_SUM](&args);
        cr_assert_eq(out[0], want, "%s: %#x", table->name, out[0]);
    }
}

/* More than the tiles and blocks inside, misaligned or not. */
Test(reduce, large_counts, .timeout = 60)
{
    enum { COUNT = 100003, NSRC = 3 };
    unsigned char *const memory = aligned_alloc(64, (NSRC + 3) * (COUNT * 8 + 64) / 64 * 64);
    cr_assert_not_null(memory);
    unsigned char *at[NSRC + 3];
    for (int k = 0; k < NSRC + 3; k++)
        at[k] = memory + (size_t)k * (COUNT * 8 + 8);
    uint64_t seed = 77;
    const char *names = reduce_table_names();
    for (const struct reduce_table *table; (table = next_table(&names)) != NULL;) {
        for (int type = 0; type < KOLO_NTYPES; type++) {
            const size_t off = below(&seed, 8);
            for (int k = 0; k < NSRC; k++)
                fill(type, at[k] + off, COUNT, &seed);
            const void *const src[NSRC] = {at[0] + off, at[1] + off, at[2] + off};
            void *const want[1] = {at[3]}, *const dst[2] = {at[4] + off, at[5] + off};
            struct reduce_args args = {.dst = want,
                                       .src = src,
                                       .ndst = 1,
                                       .nsrc = NSRC,
                                       .count = COUNT,
                                       .post_div = type % 3};
            reduce_table_find("c")->fn[type][KOLO_SUM](&args);
            args.dst = dst;
            args.ndst = 2;
            args.stream = type % 2;
            table->fn[type][KOLO_SUM](&args);
            for (size_t i = 0; i < 2 * (size_t)COUNT; i++) {
                const size_t p = i / 2 * type_bytes[type];
                cr_assert(is_same(type, at[4 + i % 2] + off + p, at[3] + p),
                          "%s type %d element %zu", table->name, type, i / 2);
            }
        }
    }
    free(memory);
}

Test(reduce, copies)
{
    struct buffers *const b = new_buffers();
    const char *names = reduce_table_names();
    for (const struct reduce_table *table; (table = next_table(&names)) != NULL;) {
        for (size_t count = 0; count < 1000; count += 1 + count / 20) {
            for (int variant = 0; variant < 4 * MAX_DST; variant++) {
                uint64_t seed = count * 64 + (uint64_t)variant;
                struct reduce_args args = {
                    .ndst = 1 + variant / 4, .nsrc = 1, .count = count, .stream = variant & 1};
                set_up(b, &args, KOLO_U8, variant & 2, &seed);
                memcpy(b->want, b->from[0], count);
                table->copy(&args);
                check(b, &args, KOLO_U8, table->name);
            }
        }
        const struct reduce_args nothing = {.dst = (void *[1]){NULL},
                                            .src = (const void *[1]){NULL},
                                            .ndst = 1,
                                            .nsrc = 1,
                                            .stream = true};
        table->copy(&nothing);
        table->fn[KOLO_F32][KOLO_SUM](&nothing);
    }
    free(b);
}

/* Long ones, to and from wherever a line may begin; the bytes around stay. */
Test(reduce, copies_long_stretches)
{
    enum { LEAST = 8192, ROOM = LEAST + 512 };
    unsigned char *const from = malloc(ROOM), *const to = malloc(ROOM);
    const char *names = reduce_table_names();
    uint64_t seed = 1;
    for (size_t i = 0; i < ROOM; i++)
        from[i] = (unsigned char)next_random(&seed);
    for (const struct reduce_table *table; (table = next_table(&names)) != NULL;) {
        for (size_t at = 0; at < 72; at++) {
            const size_t off = below(&seed, 72), count = LEAST - 2 + below(&seed, 200);
            memset(to, GUARD_BYTE, ROOM);
            table->copy(&(struct reduce_args){.dst = (void *[1]){to + 64 + at},
                                              .src = (const void *[1]){from + off},
                                              .ndst = 1,
                                              .nsrc = 1,
                                              .count = count,
                                              .stream = at % 3 == 0});
            cr_assert(memcmp(to + 64 + at, from + off, count) == 0, "%s: %zu bytes at %zu",
                      table->name, count, at);
            for (size_t i = 0; i < ROOM; i++)
                if (i < 64 + at || i >= 64 + at + count)
                    cr_assert_eq(to[i], GUARD_BYTE, "%s: %zu bytes at %zu, beside %zu", table->name,
                                 count, at, i);
        }
    }
    free(from);
    free(to);
}

/* A page between two that cannot be touched. */
static unsigned char *new_page(size_t page)
{
    unsigned char *const p = mmap(NULL, 3 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(p, MAP_FAILED);
    cr_assert_eq(mprotect(p + page, page, PROT_READ | PROT_WRITE), 0);
    return p + page;
}

Test(reduce, touches_nothing_outside)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *const src[2] = {new_page(page), new_page(page)}, *const dst = new_page(page);
    const char *names = reduce_table_names();
    for (const struct reduce_table *table; (table = next_table(&names)) != NULL;) {
        for (int type = 0; type < KOLO_NTYPES; type++) {
            for (size_t count = 1; count <= 300; count++) {
                const size_t off = count % 2 ? 0 : page - count * type_bytes[type];
                const struct reduce_args args = {.dst = (void *[1]){dst + off},
                                                 .src =
                                                     (const void *[2]){src[0] + off, src[1] + off},
                                                 .ndst = 1,
                                                 .nsrc = 2,
                                                 .count = count,
                                                 .stream = count & 2,
                                                 .post_div = count & 4};
                table->fn[type][KOLO_SUM](&args);
            }
        }
    }
    for (int k = 0; k < 3; k++)
        munmap((k < 2 ? src[k] : dst) - page, 3 * page);
}

Test(reduce, averages_of_integers_truncate)
{
    const int8_t a[4] = {-7, 7, -128, 100}, b[4] = {0, 0, 0, 100}, want[4] = {-3, 3, -64, -28};
    const uint8_t c[3] = {255, 7, 200}, d[3] = {0, 0, 100}, far[3] = {0, 0, 0};
    const char *names = reduce_table_names();
    for (const struct reduce_table *table; (table = next_table(&names)) != NULL;) {
        int8_t out[4];
        uint8_t tiny[3];
        struct reduce_args args = {.dst = (void *[1]){out},
                                   .src = (const void *[2]){a, b},
                                   .ndst = 1,
                                   .nsrc = 2,
                                   .count = 4,
                                   .post_div = 2};
        table->fn[KOLO_I8][KOLO_AVG](&args);
        cr_assert(memcmp(out, want, sizeof(want)) == 0, "%s", table->name);
        args = (struct reduce_args){.dst = (void *[1]){tiny},
                                    .src = (const void *[2]){c, d},
                                    .ndst = 1,
                                    .nsrc = 2,
                                    .count = 3,
                                    .post_div = 1000};
        table->fn[KOLO_U8][KOLO_AVG](&args);
        cr_assert(memcmp(tiny, far, sizeof(far)) == 0, "%s", table->name);
    }
}

Test(reduce, defined_pairs)
{
    cr_assert(reduce_op_valid(KOLO_F32, KOLO_SUM));
    cr_assert(reduce_op_valid(KOLO_F8E5M2, KOLO_AVG));
    cr_assert(reduce_op_valid(KOLO_U16, KOLO_BXOR));
    cr_assert_not(reduce_op_valid(KOLO_F32, KOLO_BAND));
    cr_assert_not(reduce_op_valid(KOLO_BF16, KOLO_BXOR));
    cr_assert_not(reduce_op_valid(-1, KOLO_SUM));
    cr_assert_not(reduce_op_valid(KOLO_NTYPES, KOLO_SUM));
    cr_assert_not(reduce_op_valid(KOLO_I8, KOLO_NOPS));
    cr_assert_not(reduce_op_valid(KOLO_I8, -1));
}

Test(reduce, tables_by_name)
{
    cr_assert_str_eq(reduce_table_find("c")->name, "c");
    cr_assert_null(reduce_table_find("avx"));
    cr_assert_null(reduce_table_find(""));
    const char *const names = reduce_table_names();
    const struct reduce_table *const chosen = reduce_table_get();
    cr_assert_not_null(chosen);
    cr_assert_eq(chosen, reduce_table_get());
    if (!cfg_is_set(CFG_CPU))
        cr_assert(strncmp(names, chosen->name, strlen(chosen->name)) == 0, "%s of %s", chosen->name,
                  names);
}
