/* reduce_kernels.h - the vector kernels of a move, written once for all instruction sets; included
 * by reduce_<isa>.c under the conditions of reduce_lanes.h.
 *
 *     |head|block of 4 vectors|block| ... |vector|vector|tail|
 *
 * A block reads all its sources, folds them in registers and writes each destination: one pass over
 * memory for any number of each.  Head and tail are vectors that overlap the middle: folded before
 * the middle is written, because a destination may be a source, and stored after it. */
#ifndef REDUCE_KERNELS_H
#define REDUCE_KERNELS_H

#include "reduce_lanes.h"

/* ---- loops: one pair for each lane and operation ------------------------------------------- */

/* The operands of a move, in bytes. */
struct move {
    char *const *dst;
    const char *const *src;
    int ndst;
    int nsrc;
    size_t bytes;
    uint64_t stream; /* as in reduce_args */
    double divisor;  /* averages only */
};

struct loops {
    /* The vectors in [at, end), a multiple of lane->bytes; streamed destinations are aligned. */
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
        const bool stream = reduce_streams_to(move->stream, j);
        lane->store(to, v0, stream);
        lane->store(to + step, v1, stream);
        lane->store(to + 2 * step, v2, stream);
        lane->store(to + 3 * step, v3, stream);
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
            lane->store(move->dst[j] + at, v, reduce_streams_to(move->stream, j));
    }
}

/* Copies of the operands keep pointers in registers, which the stores could change for all that the
 * compiler knows.  Two into one, the step of every ring, has its own loop. */
INLINE void fold_middle_fast(const struct move *move, size_t at, size_t end,
                             const struct lane *lane, lane_op op, lane_divide finish)
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
    vec v =
        n == lane->bytes ? lane->load(move->src[0] + at) : lane->load_part(move->src[0] + at, n);
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
#define DEFINE_LOOPS_OP(how, op) DEFINE_LOOPS(how##_##op, how, op_##op, finish_none, fold_middle)
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

/* Bytes up to where all streamed destinations, or if there are none all, are aligned to `align`;
 * `align` if there is no such place. */
static size_t distance_to_aligned(const struct move *move, size_t align, size_t element)
{
    size_t distance = align;
    for (int j = 0; j < move->ndst; j++) {
        if (move->stream && !reduce_streams_to(move->stream, j))
            continue;
        const size_t own = -(uintptr_t)move->dst[j] & (align - 1);
        if (own % element != 0 || (distance < align && own != distance))
            return align;
        distance = own;
    }
    return distance;
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
    move->stream = distance < step ? move->stream : 0;
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

enum { COPY_PIECE = 4096 }; /* bytes; is read once and stays in the L1 cache for all destinations */

static void copy_plain(char *const *dst, int ndst, const char *from, size_t bytes)
{
    const size_t piece = ndst == 1 ? bytes : COPY_PIECE;
    for (size_t at = 0; at < bytes; at += piece) {
        const size_t n = bytes - at < piece ? bytes - at : piece;
        for (int j = 0; j < ndst; j++) {
            if (dst[j] != from)
                memcpy(dst[j] + at, from + at, n);
        }
    }
}

/* The C library copies long stretches with string instructions, which are slow where the
 * destination is not aligned: all_gather of 8 MiB, 2 ranks, buffers 16 bytes off a line: 760 us,
 * and 530 by vectors. */
INLINE bool is_slow_for_memcpy(char *const *dst, int ndst, size_t bytes)
{
    enum { LONG = 8192 };
    return ndst == 1 && bytes >= LONG && (uintptr_t)dst[0] % V_BYTES != 0;
}

/* With non-temporal stores copying is a fold of one source. */
static void copy_to_all(char *const *dst, int ndst, const char *from, size_t bytes, uint64_t stream)
{
    const char *const src[1] = {from};
    struct move move = {
        .dst = dst, .src = src, .ndst = ndst, .nsrc = 1, .bytes = bytes, .stream = stream};
    if (stream || is_slow_for_memcpy(dst, ndst, bytes))
        run_loops(&move, &loops_full_u8_bor, &lane_full, 1);
    else
        copy_plain(dst, ndst, from, bytes);
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

enum {
    TILE_BYTES = 4096, /* stays in the L1 cache */
    /* Above so many sources the caches run out of ways and prefetchers out of streams: twice as
     * slow at 32, equal at 16 (Zen 4, 2026-11).  Then tiles take TILE_SOURCES at a time. */
    MANY_SOURCES = 16,
    TILE_SOURCES = 8,
};

static void store_tile(const struct reduce_args *args, size_t at, const char *tile, size_t bytes)
{
    for (int j = 0; j < args->ndst; j++) {
        char *const dst[1] = {(char *)args->dst[j] + at};
        copy_to_all(dst, 1, tile, bytes, reduce_streams_to(args->stream, j));
    }
}

/* Many sources, where a tile of elements loses nothing against accumulators. */
static void run_tiled(const struct reduce_args *args, const struct kernel *kernel)
{
    char tile[TILE_BYTES] __attribute__((aligned(V_BYTES)));
    char *const dst[1] = {tile};
    const size_t bytes = args->count * kernel->element;
    for (size_t at = 0; at < bytes; at += TILE_BYTES) {
        const size_t n = bytes - at < TILE_BYTES ? bytes - at : TILE_BYTES;
        for (int k = 0; k < args->nsrc;) {
            const char *src[TILE_SOURCES];
            int nsrc = 0;
            if (k > 0)
                src[nsrc++] = tile;
            while (nsrc < TILE_SOURCES && k < args->nsrc)
                src[nsrc++] = (const char *)args->src[k++] + at;
            struct move move = {.dst = dst, .src = src, .ndst = 1, .nsrc = nsrc, .bytes = n};
            run_loops(&move, kernel->loops, kernel->lane, kernel->element);
        }
        store_tile(args, at, tile, n);
    }
}

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
    char tile[TILE_BYTES] = {0};
    const size_t bytes = args->count * kernel->element;
    for (size_t i = 0; args->pre != NULL && i < kernel->lane->bytes; i += kernel->element)
        memcpy(tile + i, args->pre, kernel->element);
    const vec factor = kernel->lane->load(tile);
    for (size_t at = 0; at < bytes; at += TILE_BYTES) {
        const size_t n = bytes - at < TILE_BYTES ? bytes - at : TILE_BYTES;
        scale_tile(args, kernel, factor, at, n, tile);
        store_tile(args, at, tile, n);
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
    else if (args->nsrc > MANY_SOURCES && args->post_div == 0 && kernel->lane == &lane_full)
        run_tiled(args, kernel);
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
        &lane_##how,           bytes,          op_##fold, (op_number) == KOLO_SUM,                 \
        &loops_##how##_##fold, &scaling_##type};                                                   \
    static void entry_##type##_##op_name(const struct reduce_args *args)                           \
    {                                                                                              \
        run_kernel(args, &kernel_##type##_##op_name);                                              \
    }
REDUCE_ENTRIES(DEFINE_ENTRY)

#endif
