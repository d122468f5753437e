/* bench_type.c - element types and reductions by name, and single elements as numbers.
 *
 * The benchmark has its own conversions of the small floats, so that a mistake in the library's is
 * not repeated in what the library is checked against.
 */
#include "bench.h"

#include <math.h>
#include <string.h>

static const struct data_type types[KOLO_NTYPES] = {
    [KOLO_I8] = {"i8", "int8", 1, DATA_SIGNED, 0, 0, false},
    [KOLO_U8] = {"u8", "uint8", 1, DATA_UNSIGNED, 0, 0, false},
    [KOLO_I16] = {"i16", "int16", 2, DATA_SIGNED, 0, 0, false},
    [KOLO_U16] = {"u16", "uint16", 2, DATA_UNSIGNED, 0, 0, false},
    [KOLO_I32] = {"i32", "int32", 4, DATA_SIGNED, 0, 0, false},
    [KOLO_U32] = {"u32", "uint32", 4, DATA_UNSIGNED, 0, 0, false},
    [KOLO_I64] = {"i64", "int64", 8, DATA_SIGNED, 0, 0, false},
    [KOLO_U64] = {"u64", "uint64", 8, DATA_UNSIGNED, 0, 0, false},
    [KOLO_F16] = {"f16", "half", 2, DATA_FLOAT, 5, 10, true},
    [KOLO_BF16] = {"bf16", "bfloat16", 2, DATA_FLOAT, 8, 7, true},
    [KOLO_F32] = {"f32", "float", 4, DATA_FLOAT, 8, 23, true},
    [KOLO_F64] = {"f64", "double", 8, DATA_FLOAT, 11, 52, true},
    [KOLO_F8E4M3] = {"f8e4m3", "fp8e4m3", 1, DATA_FLOAT, 4, 3, false},
    [KOLO_F8E5M2] = {"f8e5m2", "fp8e5m2", 1, DATA_FLOAT, 5, 2, true},
};

static const char *const op_names[BENCH_NOPS] = {
    [KOLO_SUM] = "sum", [KOLO_PROD] = "prod", [KOLO_MAX] = "max",
    [KOLO_MIN] = "min", [KOLO_AVG] = "avg",   [KOLO_BAND] = "band",
    [KOLO_BOR] = "bor", [KOLO_BXOR] = "bxor", [BENCH_OP_MULSUM] = "mulsum",
};

const struct data_type *data_type_get(int type)
{
    return type >= 0 && type < KOLO_NTYPES ? &types[type] : NULL;
}

int data_type_find(const char *name)
{
    for (int i = 0; i < KOLO_NTYPES; i++) {
        if (strcmp(name, types[i].name) == 0 || strcmp(name, types[i].alias) == 0)
            return i;
    }
    return -1;
}

const char *data_op_name(int op)
{
    return op >= 0 && op < BENCH_NOPS ? op_names[op] : "none";
}

int data_op_find(const char *name)
{
    for (int i = 0; i < BENCH_NOPS; i++) {
        if (strcmp(name, op_names[i]) == 0)
            return i;
    }
    return -1;
}

bool data_is_op_legal(int type, int op)
{
    const bool is_bitwise = op == KOLO_BAND || op == KOLO_BOR || op == KOLO_BXOR;
    return !is_bitwise || types[type].class != DATA_FLOAT;
}

/* ---- elements ----------------------------------------------------------------------------- */

void data_put_bits(size_t bytes, uint64_t bits, void *element)
{
    const uint8_t b1 = (uint8_t)bits;
    const uint16_t b2 = (uint16_t)bits;
    const uint32_t b4 = (uint32_t)bits;
    switch (bytes) {
    case 1:
        memcpy(element, &b1, 1);
        break;
    case 2:
        memcpy(element, &b2, 2);
        break;
    case 4:
        memcpy(element, &b4, 4);
        break;
    default:
        memcpy(element, &bits, 8);
    }
}

static uint64_t get_bits(size_t bytes, const void *element)
{
    uint8_t b1;
    uint16_t b2;
    uint32_t b4;
    uint64_t b8;
    switch (bytes) {
    case 1:
        memcpy(&b1, element, 1);
        return b1;
    case 2:
        memcpy(&b2, element, 2);
        return b2;
    case 4:
        memcpy(&b4, element, 4);
        return b4;
    default:
        memcpy(&b8, element, 8);
        return b8;
    }
}

int64_t data_narrow(const struct data_type *t, uint64_t bits)
{
    const unsigned unused = 64 - 8 * (unsigned)t->bytes;
    if (t->class == DATA_SIGNED)
        return (int64_t)(bits << unused) >> unused;
    return (int64_t)(bits << unused >> unused);
}

/* Largest finite value of the small floats. */
static double float_largest(const struct data_type *t)
{
    const int bias = (1 << (t->exponent_bits - 1)) - 1;
    if (t->has_infinity)
        return ldexp(2.0 - ldexp(1.0, -t->mantissa_bits), bias);
    return ldexp(2.0 - ldexp(1.0, 1 - t->mantissa_bits), bias + 1);
}

static uint64_t small_float_encode(const struct data_type *t, double value)
{
    const int bias = (1 << (t->exponent_bits - 1)) - 1;
    const uint64_t sign = signbit(value) ? 1ULL << (t->exponent_bits + t->mantissa_bits) : 0;
    const uint64_t exponent_mask = ((1ULL << t->exponent_bits) - 1) << t->mantissa_bits;
    const uint64_t all_ones = exponent_mask | ((1ULL << t->mantissa_bits) - 1);
    if (isnan(value))
        return sign | all_ones;
    double x = fabs(value);
    if (isinf(x))
        return sign | (t->has_infinity ? exponent_mask : all_ones - 1);
    int e = 1 - bias;
    if (x > 0 && ilogb(x) > e)
        e = ilogb(x);
    x = ldexp(nearbyint(ldexp(x, t->mantissa_bits - e)), e - t->mantissa_bits);
    if (x > float_largest(t)) {
        if (t->has_infinity && t->bytes > 1)
            return sign | exponent_mask;
        x = float_largest(t);
    }
    if (x < ldexp(1.0, 1 - bias))
        return sign | (uint64_t)ldexp(x, bias - 1 + t->mantissa_bits);
    e = ilogb(x);
    const uint64_t hidden = 1ULL << t->mantissa_bits;
    const uint64_t mantissa = (uint64_t)ldexp(x, t->mantissa_bits - e) - hidden;
    return sign | (uint64_t)(e + bias) << t->mantissa_bits | mantissa;
}

static double small_float_decode(const struct data_type *t, uint64_t bits)
{
    const int bias = (1 << (t->exponent_bits - 1)) - 1;
    const uint64_t mantissa = bits & ((1ULL << t->mantissa_bits) - 1);
    const int all_ones = (1 << t->exponent_bits) - 1;
    const int exponent = (int)(bits >> t->mantissa_bits) & all_ones;
    const double sign = bits >> (t->exponent_bits + t->mantissa_bits) & 1 ? -1 : 1;
    if (exponent == all_ones && t->has_infinity)
        return mantissa ? (double)NAN : sign * (double)INFINITY;
    if (exponent == all_ones && mantissa == (1ULL << t->mantissa_bits) - 1)
        return (double)NAN;
    if (exponent == 0)
        return sign * ldexp((double)mantissa, 1 - bias - t->mantissa_bits);
    return sign *
           ldexp((double)(mantissa | 1ULL << t->mantissa_bits), exponent - bias - t->mantissa_bits);
}

void data_encode(int type, double value, void *element)
{
    const struct data_type *t = &types[type];
    const float f = (float)value;
    if (type == KOLO_F64)
        memcpy(element, &value, sizeof value);
    else if (type == KOLO_F32)
        memcpy(element, &f, sizeof f);
    else if (t->class == DATA_FLOAT)
        data_put_bits(t->bytes, small_float_encode(t, value), element);
    else if (t->class == DATA_SIGNED)
        data_put_bits(t->bytes, (uint64_t)(int64_t)value, element);
    else
        data_put_bits(t->bytes, (uint64_t)value, element);
}

double data_decode(int type, const void *element)
{
    const struct data_type *t = &types[type];
    const uint64_t bits = get_bits(t->bytes, element);
    float f;
    double d;
    if (type == KOLO_F64) {
        memcpy(&d, element, sizeof d);
        return d;
    }
    if (type == KOLO_F32) {
        memcpy(&f, element, sizeof f);
        return (double)f;
    }
    if (t->class == DATA_FLOAT)
        return small_float_decode(t, bits);
    return t->class == DATA_SIGNED ? (double)data_narrow(t, bits) : (double)bits;
}
