/* reduce_entries.h - every defined pair of type and operation, for the tables of reduce*.c: each
 * file makes a function entry_<type>_<op> of every pair, and its table with REDUCE_TABLE. */
#ifndef REDUCE_ENTRIES_H
#define REDUCE_ENTRIES_H

#include "reduce.h"

/* X(type, op, number of the type, number of the operation, bytes of an element,
 *   how: "full" or the narrow float that is widened to f32, fold: operation on accumulators) */
#define REDUCE_ENTRIES(X)                                                                          \
    REDUCE_ENTRIES_INT(X, i8, KOLO_I8, 1, u8)                                                      \
    REDUCE_ENTRIES_INT(X, u8, KOLO_U8, 1, u8)                                                      \
    REDUCE_ENTRIES_INT(X, i16, KOLO_I16, 2, u16)                                                   \
    REDUCE_ENTRIES_INT(X, u16, KOLO_U16, 2, u16)                                                   \
    REDUCE_ENTRIES_INT(X, i32, KOLO_I32, 4, u32)                                                   \
    REDUCE_ENTRIES_INT(X, u32, KOLO_U32, 4, u32)                                                   \
    REDUCE_ENTRIES_INT(X, i64, KOLO_I64, 8, u64)                                                   \
    REDUCE_ENTRIES_INT(X, u64, KOLO_U64, 8, u64)                                                   \
    REDUCE_ENTRIES_ANY(X, f32, KOLO_F32, 4, full, f32, f32)                                        \
    REDUCE_ENTRIES_ANY(X, f64, KOLO_F64, 8, full, f64, f64)                                        \
    REDUCE_ENTRIES_ANY(X, f16, KOLO_F16, 2, f16, f32, f32)                                         \
    REDUCE_ENTRIES_ANY(X, bf16, KOLO_BF16, 2, bf16, f32, f32)                                      \
    REDUCE_ENTRIES_ANY(X, e4m3, KOLO_F8E4M3, 1, e4m3, f32, f32)                                    \
    REDUCE_ENTRIES_ANY(X, e5m2, KOLO_F8E5M2, 1, e5m2, f32, f32)

/* Sums and products of signed integers wrap as those of unsigned ones. */
#define REDUCE_ENTRIES_INT(X, type, number, bytes, bits)                                           \
    REDUCE_ENTRIES_ANY(X, type, number, bytes, full, bits, type)                                   \
    X(type, band, number, KOLO_BAND, bytes, full, bits##_band)                                     \
    X(type, bor, number, KOLO_BOR, bytes, full, bits##_bor)                                        \
    X(type, bxor, number, KOLO_BXOR, bytes, full, bits##_bxor)
#define REDUCE_ENTRIES_ANY(X, type, number, bytes, how, sums, orders)                              \
    X(type, sum, number, KOLO_SUM, bytes, how, sums##_sum)                                         \
    X(type, prod, number, KOLO_PROD, bytes, how, sums##_prod)                                      \
    X(type, max, number, KOLO_MAX, bytes, how, orders##_max)                                       \
    X(type, min, number, KOLO_MIN, bytes, how, orders##_min)

#define REDUCE_CELL(type, op, number, op_number, bytes, how, fold)                                 \
    [number][op_number] = entry_##type##_##op,
#define REDUCE_AVG(number, type) [number][KOLO_AVG] = entry_##type##_sum
#define REDUCE_TABLE(table_name, copy_entry)                                                       \
    {                                                                                              \
        .name = (table_name),                                                                      \
        .fn = {REDUCE_ENTRIES(REDUCE_CELL) REDUCE_AVG(KOLO_I8, i8),                                \
               REDUCE_AVG(KOLO_U8, u8),                                                            \
               REDUCE_AVG(KOLO_I16, i16),                                                          \
               REDUCE_AVG(KOLO_U16, u16),                                                          \
               REDUCE_AVG(KOLO_I32, i32),                                                          \
               REDUCE_AVG(KOLO_U32, u32),                                                          \
               REDUCE_AVG(KOLO_I64, i64),                                                          \
               REDUCE_AVG(KOLO_U64, u64),                                                          \
               REDUCE_AVG(KOLO_F16, f16),                                                          \
               REDUCE_AVG(KOLO_F32, f32),                                                          \
               REDUCE_AVG(KOLO_F64, f64),                                                          \
               REDUCE_AVG(KOLO_BF16, bf16),                                                        \
               REDUCE_AVG(KOLO_F8E4M3, e4m3),                                                      \
               REDUCE_AVG(KOLO_F8E5M2, e5m2)},                                                     \
        .copy = (copy_entry)                                                                       \
    }

extern const struct reduce_table reduce_table_c, reduce_table_avx2, reduce_table_avx512,
    reduce_table_neon;

#endif
