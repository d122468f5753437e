/* reduce.h - the arithmetic of a move: every destination receives the reduction of all sources.
 * C kernels first (reduce.c is the specification), a table overwritten by CPU flag: reduce_avx2.c,
 * reduce_avx512.c, reduce_neon.c.  Semantics of types and operations: enum kolo_op in kolo.h. */
#ifndef REDUCE_H
#define REDUCE_H

#include "base.h"

/* One call.  Buffers need only element alignment... not even that: any byte alignment works.
 * A destination may equal a source exactly; other overlap is not allowed. */
struct reduce_args {
    void *const *dst;
    const void *const *src;
    int ndst;        /* >= 1 */
    int nsrc;        /* >= 1; 1 is a copy (with pre and post applied) */
    size_t count;    /* elements */
    double post_div; /* 0: none; else the result is divided by this (AVG on a final move): floats in
                          the accumulator before rounding, integers truncating */
    const void *pre; /* NULL, or one element of the type: sources in pre_mask are multiplied by it
                          first (products are rounded to f32 for f16, bf16 and f8) */
    uint64_t pre_mask; /* bit k: source k (sources above 63 are never pre-multiplied) */
    uint64_t stream;   /* bit j mod REDUCE_STREAMS: write destination j with non-temporal stores
                          where aligned; a store fence follows inside */
};

enum { REDUCE_STREAMS = 64 };
#define REDUCE_STREAM_ALL UINT64_MAX

static inline bool reduce_streams_to(uint64_t stream, int dst)
{
    return stream >> (dst % REDUCE_STREAMS) & 1;
}

typedef void (*reduce_fn)(const struct reduce_args *args);

/* Copy to several destinations: nsrc is 1, count is bytes. */
typedef void (*copy_fn)(const struct reduce_args *args);

struct reduce_table {
    const char *name;                     /* "c", "avx2", "avx512", "neon" */
    reduce_fn fn[KOLO_NTYPES][KOLO_NOPS]; /* [type][op]; AVG equals SUM here (post_div does it);
                                              NULL for bitwise operations on floats */
    copy_fn copy;
};

/* The best table for this CPU, restricted by the option KOLO_CPU; chosen once. */
const struct reduce_table *reduce_table_get(void);
/* A named one, for tests and kolo_info; NULL if not compiled in or the CPU lacks it. */
const struct reduce_table *reduce_table_find(const char *name);
/* The names compiled in and usable here, best first, as "avx512 avx2 c". */
const char *reduce_table_names(void);

/* Whether op is defined for type. */
bool reduce_op_valid(int type, int op);

/* Conversions of one element, the specification that the vector code must match. */
float reduce_f16_to_f32(uint16_t v);
uint16_t reduce_f32_to_f16(float v);
float reduce_bf16_to_f32(uint16_t v);
uint16_t reduce_f32_to_bf16(float v);
float reduce_e4m3_to_f32(uint8_t v);
uint8_t reduce_f32_to_e4m3(float v);
float reduce_e5m2_to_f32(uint8_t v);
uint8_t reduce_f32_to_e5m2(float v);

#endif
