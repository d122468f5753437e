/* test_bench_data - the benchmark's own judge: right results in any order of reduction pass, and
 * every planted mistake is seen. */
#include "support/test.h"

#include "../bench/bench_data.c"
#include "../bench/bench_type.c"

enum { COUNT = 2 * DATA_PERIOD + 77, MAX_RANKS = 40 };

static const int rank_counts[] = {1, 2, 3, 5, 7, 8, 12, 16, 17, 33};

static size_t wrong_of(const struct data_pattern *pattern, size_t first, size_t count,
                       const void *from)
{
    struct data_verdict verdict = {.wrong = 0};
    data_check(pattern, first, count, from, &verdict);
    return verdict.wrong;
}

/* ---- types -------------------------------------------------------------------------------- */

Test(bench_data, every_small_float_survives_decode_and_encode)
{
    static const int small[] = {KOLO_F16, KOLO_BF16, KOLO_F8E4M3, KOLO_F8E5M2};
    for (size_t k = 0; k < sizeof small / sizeof small[0]; k++) {
        const struct data_type *t = data_type_get(small[k]);
        for (uint64_t bits = 0; bits < 1ULL << (8 * t->bytes); bits++) {
            unsigned char in[8] = {0}, out[8] = {0};
            data_put_bits(t->bytes, bits, in);
            const double value = data_decode(small[k], in);
            data_encode(small[k], value, out);
            const bool is_infinite = isinf(value);
            if (isnan(value))
                cr_assert(isnan(data_decode(small[k], out)), "%s %llx", t->name,
                          (unsigned long long)bits);
            else
                cr_assert(memcmp(in, out, t->bytes) == 0 || (is_infinite && t->bytes == 1),
                          "%s %llx is %g", t->name, (unsigned long long)bits, value);
        }
    }
}

Test(bench_data, encoding_rounds_to_even_and_saturates)
{
    static const struct {
        int type;
        double value;
        double want;
    } rows[] = {
        {KOLO_F16, 2049, 2048},      {KOLO_F16, 2051, 2052},          {KOLO_F16, 65504, 65504},
        {KOLO_F16, 65520, INFINITY}, {KOLO_BF16, 257, 256},           {KOLO_BF16, 259, 260},
        {KOLO_F8E4M3, 17, 16},       {KOLO_F8E4M3, 19, 20},           {KOLO_F8E4M3, 448, 448},
        {KOLO_F8E4M3, 1e9, 448},     {KOLO_F8E5M2, -9, -8},           {KOLO_F8E5M2, 11, 12},
        {KOLO_F8E5M2, 57344, 57344}, {KOLO_F8E5M2, 1e9, 57344},       {KOLO_F8E4M3, 0x1p-9, 0x1p-9},
        {KOLO_F8E4M3, 0x1p-10, 0},   {KOLO_F8E4M3, 0x1.8p-9, 0x1p-8}, {KOLO_F16, 0x1p-24, 0x1p-24},
        {KOLO_F16, 0x1p-25, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        unsigned char element[8];
        data_encode(rows[i].type, rows[i].value, element);
        const double got = data_decode(rows[i].type, element);
        cr_assert(got == rows[i].want, "%s of %g is %g, not %g", data_type_get(rows[i].type)->name,
                  rows[i].value, got, rows[i].want);
    }
}

Test(bench_data, names_are_found_and_found_again)
{
    for (int type = 0; type < KOLO_NTYPES; type++) {
        cr_assert_eq(data_type_find(data_type_get(type)->name), type);
        cr_assert_eq(data_type_find(data_type_get(type)->alias), type);
    }
    for (int op = 0; op < BENCH_NOPS; op++)
        cr_assert_eq(data_op_find(data_op_name(op)), op);
    cr_assert_eq(data_type_find("f31"), -1);
    cr_assert_eq(data_op_find(""), -1);
    cr_assert_null(data_type_get(-1));
    cr_assert_null(data_type_get(KOLO_NTYPES));
    cr_assert_not(data_is_op_legal(KOLO_F32, KOLO_BOR));
    cr_assert(data_is_op_legal(KOLO_I8, KOLO_BOR));
}

/* ---- order independence ------------------------------------------------------------------- */

/* One step of a reduction as a library does it, rounding into the type. */
static void reduce_step(int type, int op, const unsigned char *a, const unsigned char *b,
                        unsigned char *to)
{
    const struct data_type *t = data_type_get(type);
    if (t->class != DATA_FLOAT) {
        const int64_t x = data_narrow(t, get_bits(t->bytes, a)),
                      y = data_narrow(t, get_bits(t->bytes, b));
        data_put_bits(t->bytes, (uint64_t)combine_integers(t, op, x, y), to);
        return;
    }
    const double x = data_decode(type, a), y = data_decode(type, b);
    double z = x + y;
    if (op == KOLO_PROD)
        z = x * y;
    else if (op == KOLO_MAX)
        z = x > y ? x : y;
    else if (op == KOLO_MIN)
        z = x < y ? x : y;
    data_encode(type, z, to);
}

/* Combine contributions in an order drawn from *state: always two random ones of what is left. */
static void reduce_in_random_order(const struct data_spec *spec, unsigned char (*parts)[8],
                                   uint64_t *state, unsigned char *to)
{
    const struct data_type *t = data_type_get(spec->type);
    for (int left = spec->nranks; left > 1; left--) {
        *state = mix(*state);
        const int a = (int)(*state % (uint64_t)left);
        const int b =
            (int)(((uint64_t)a + 1 + (*state >> 32) % (uint64_t)(left - 1)) % (uint64_t)left);
        const int low = a < b ? a : b, high = a < b ? b : a;
        reduce_step(spec->type, spec->op, parts[a], parts[b], parts[low]);
        memcpy(parts[high], parts[left - 1], 8);
    }
    if (spec->op != KOLO_AVG) {
        memcpy(to, parts[0], t->bytes);
        return;
    }
    if (t->class == DATA_FLOAT)
        data_encode(spec->type, data_decode(spec->type, parts[0]) / spec->nranks, to);
    else
        data_put_bits(t->bytes,
                      (uint64_t)(data_narrow(t, get_bits(t->bytes, parts[0])) / spec->nranks), to);
}

static void scale_part(const struct data_spec *spec, int rank, unsigned char *part)
{
    const struct data_type *t = data_type_get(spec->type);
    if (t->class == DATA_FLOAT)
        data_encode(spec->type, data_decode(spec->type, part) * data_factor(rank), part);
    else
        data_put_bits(t->bytes, get_bits(t->bytes, part) * (uint64_t)data_factor(rank), part);
}

static void expect_order_independent(const struct data_spec *spec)
{
    enum { ELEMENTS = 60 };
    struct data_pattern part, want;
    static unsigned char all[MAX_RANKS][ELEMENTS][8];
    unsigned char result[ELEMENTS * 8];
    uint64_t state = spec->seed;
    const size_t width = data_type_get(spec->type)->bytes;
    cr_assert(data_pattern_create(&part) && data_pattern_create(&want));
    for (int r = 0; r < spec->nranks; r++) {
        data_contribution(spec, r, ELEMENTS, &part);
        for (size_t i = 0; i < ELEMENTS; i++) {
            data_fill(&part, i, 1, all[r][i]);
            if (spec->op == BENCH_OP_MULSUM)
                scale_part(spec, r, all[r][i]);
        }
    }
    for (size_t i = 0; i < ELEMENTS; i++) {
        unsigned char parts[MAX_RANKS][8];
        for (int r = 0; r < spec->nranks; r++)
            memcpy(parts[r], all[r][i], 8);
        reduce_in_random_order(spec, parts, &state, result + i * width);
    }
    data_expected(spec, ELEMENTS, &want);
    const size_t wrong = wrong_of(&want, 0, ELEMENTS, result);
    cr_assert_eq(wrong, 0, "%zu wrong: type %d op %d ranks %d real %d seed %llu", wrong, spec->type,
                 spec->op, spec->nranks, spec->is_real, (unsigned long long)spec->seed);
    data_pattern_destroy(&part);
    data_pattern_destroy(&want);
}

static void expect_all_order_independent(bool is_real)
{
    for (size_t k = 0; k < sizeof rank_counts / sizeof rank_counts[0]; k++) {
        for (int type = 0; type < KOLO_NTYPES; type++) {
            for (int op = 0; op < BENCH_NOPS; op++) {
                for (uint64_t seed = 1; data_is_op_legal(type, op) && seed <= 3; seed++)
                    expect_order_independent(
                        &(struct data_spec){type, op, rank_counts[k], seed, is_real});
            }
        }
    }
}

Test(bench_data, exact_data_gives_equal_bits_in_every_order)
{
    expect_all_order_independent(false);
}

Test(bench_data, real_data_stays_within_the_bound_in_every_order)
{
    expect_all_order_independent(true);
}

/* Data that does not depend on the rank, or is all zero, would hide mistakes. */
Test(bench_data, every_rank_contributes_to_every_reduction)
{
    struct data_pattern a, b;
    cr_assert(data_pattern_create(&a) && data_pattern_create(&b));
    for (int type = 0; type < KOLO_NTYPES; type++) {
        for (int op = BENCH_OP_NONE; op < BENCH_NOPS; op++) {
            if (op != BENCH_OP_NONE && !data_is_op_legal(type, op))
                continue;
            const struct data_spec spec = {type, op, 8, 5, false};
            for (int r = 0; r < 8; r++) {
                data_contribution(&spec, r, DATA_PERIOD, &a);
                data_contribution(&spec, (r + 1) % 8, DATA_PERIOD, &b);
                const size_t differ = wrong_of(&b, 0, DATA_PERIOD, a.bytes);
                cr_assert_gt(differ, DATA_PERIOD / 8, "type %d op %d rank %d: only %zu differ",
                             type, op, r, differ);
            }
        }
    }
    data_pattern_destroy(&a);
    data_pattern_destroy(&b);
}

/* ---- filling and checking ----------------------------------------------------------------- */

Test(bench_data, fill_and_check_agree_from_any_phase)
{
    static unsigned char buffer[COUNT * 8];
    static const size_t firsts[] = {0, 1, DATA_PERIOD - 1, DATA_PERIOD, 3 * DATA_PERIOD + 5};
    static const size_t counts[] = {0, 1, DATA_PERIOD - 1, DATA_PERIOD, DATA_PERIOD + 1, COUNT};
    struct data_pattern pattern;
    cr_assert(data_pattern_create(&pattern));
    for (int type = 0; type < KOLO_NTYPES; type++) {
        const struct data_spec spec = {type, BENCH_OP_NONE, 3, 9, false};
        data_contribution(&spec, 1, SIZE_MAX, &pattern);
        for (size_t f = 0; f < sizeof firsts / sizeof firsts[0]; f++) {
            for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
                data_fill(&pattern, firsts[f], counts[c], buffer);
                cr_assert_eq(wrong_of(&pattern, firsts[f], counts[c], buffer), 0);
                if (counts[c] < DATA_PERIOD || type == KOLO_I8 || type == KOLO_U8)
                    continue;
                cr_assert_gt(wrong_of(&pattern, firsts[f] + 1, counts[c], buffer), counts[c] / 2,
                             "type %d: data moved by one element", type);
                cr_assert_gt(wrong_of(&pattern, firsts[f] + 4096, counts[c], buffer), counts[c] / 2,
                             "type %d: data moved by 4096 elements", type);
            }
        }
    }
    data_pattern_destroy(&pattern);
}

Test(bench_data, one_flipped_bit_is_seen_and_located)
{
    static unsigned char buffer[COUNT * 8];
    static const size_t places[] = {0, 1, DATA_PERIOD - 1, DATA_PERIOD, 2 * DATA_PERIOD, COUNT - 1};
    struct data_pattern pattern;
    cr_assert(data_pattern_create(&pattern));
    for (int type = 0; type < KOLO_NTYPES; type++) {
        const struct data_spec spec = {type, KOLO_SUM, 5, 9, false};
        const size_t width = data_type_get(type)->bytes;
        data_expected(&spec, SIZE_MAX, &pattern);
        for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
            data_fill(&pattern, 7, COUNT, buffer);
            unsigned char *element = buffer + places[p] * width;
            element[width - 1] ^= 0x20;
            struct data_verdict verdict = {.wrong = 0};
            data_check(&pattern, 7, COUNT, buffer, &verdict);
            cr_assert_eq(verdict.wrong, 1, "type %d place %zu: %zu wrong", type, places[p],
                         verdict.wrong);
            cr_assert(verdict.first == element, "type %d place %zu", type, places[p]);
            element[width - 1] ^= 0x20;
            cr_assert(memcmp(verdict.want, element, width) == 0, "type %d", type);
        }
    }
    data_pattern_destroy(&pattern);
}

Test(bench_data, real_data_flags_nan_and_what_is_beyond_the_bound)
{
    struct data_pattern pattern;
    float values[100];
    const struct data_spec spec = {KOLO_F32, KOLO_SUM, 6, 3, true};
    cr_assert(data_pattern_create(&pattern));
    data_expected(&spec, 100, &pattern);
    for (int i = 0; i < 100; i++)
        values[i] = (float)pattern.value[i];
    cr_assert_eq(wrong_of(&pattern, 0, 100, values), 0);
    values[17] = NAN;
    values[40] = (float)(pattern.value[40] + 3 * pattern.bound[40]);
    struct data_verdict verdict = {.wrong = 0};
    data_check(&pattern, 0, 100, values, &verdict);
    cr_assert_eq(verdict.wrong, 2, "%zu wrong", verdict.wrong);
    cr_assert(verdict.first == &values[17]);
    cr_assert_gt(verdict.worst, 2.0, "worst %g", verdict.worst);
    data_pattern_destroy(&pattern);
}

/* A missing or doubled contribution, where each rank gives a value that is not neutral. */
Test(bench_data, a_lost_or_doubled_contribution_is_seen)
{
    enum { RANKS = 4 };
    struct data_pattern part, want;
    static double sums[2][DATA_PERIOD];
    const struct data_spec spec = {KOLO_F64, KOLO_SUM, RANKS, 11, false};
    cr_assert(data_pattern_create(&part) && data_pattern_create(&want));
    data_expected(&spec, SIZE_MAX, &want);
    for (int victim = 0; victim < RANKS; victim++) {
        memset(sums, 0, sizeof sums);
        for (int r = 0; r < RANKS; r++) {
            data_contribution(&spec, r, SIZE_MAX, &part);
            for (size_t i = 0; i < DATA_PERIOD; i++) {
                const double x = data_decode(KOLO_F64, part.bytes + i * sizeof(double));
                sums[0][i] += r == victim ? 0 : x;
                sums[1][i] += r == victim ? 2 * x : x;
            }
        }
        for (int k = 0; k < 2; k++)
            cr_assert_gt(wrong_of(&want, 0, DATA_PERIOD, sums[k]), DATA_PERIOD * 9 / 10,
                         "victim %d %s", victim, k ? "doubled" : "lost");
    }
    data_pattern_destroy(&part);
    data_pattern_destroy(&want);
}

Test(bench_data, poison_tells_how_many_bytes_changed)
{
    unsigned char bytes[300];
    data_poison(bytes, sizeof bytes);
    cr_assert_eq(data_poison_broken(bytes, sizeof bytes), 0);
    cr_assert_eq(data_poison_broken(bytes, 1), 0);
    cr_assert_eq(data_poison_broken(NULL, 0), 0);
    bytes[0] ^= 1;
    cr_assert_eq(data_poison_broken(bytes, sizeof bytes), 1);
    bytes[299] ^= 1;
    cr_assert_eq(data_poison_broken(bytes, sizeof bytes), 2);
    memset(bytes, 0, sizeof bytes);
    cr_assert_eq(data_poison_broken(bytes, sizeof bytes), sizeof bytes);
}
