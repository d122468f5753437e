/* bench_data.c - data whose reductions are the same in every order, and how results are compared.
 *
 * Exact data: small integers whose partial sums (of any subset of the ranks) all are representable
 * in the type, factors whose partial products are, or random bits where arithmetic is modular or
 * data only moves.  So the one right result is known bit by bit, without tolerance, whatever the
 * algorithm.  Real data: bell-shaped values, a reference in extended precision, and the classic
 * bound on the error of a sum in any order.
 */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- values ------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ULL;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
    return x ^ x >> 31;
}

static uint64_t hash(const struct data_spec *spec, int rank, size_t i)
{
    return mix(spec->seed ^ mix((uint64_t)i * 0x100000001b3ULL + (uint64_t)(rank + 1)));
}

int data_factor(int rank)
{
    return 1 + rank % 2;
}

/* Largest m such that all integers up to m are exact, or may be summed without overflow. */
static int64_t exact_limit(const struct data_type *t)
{
    if (t->class == DATA_FLOAT)
        return 1LL << (t->mantissa_bits + 1);
    if (t->bytes == 8)
        return 1LL << 62;
    return (1LL << (8 * t->bytes - (t->class == DATA_SIGNED))) - 1;
}

static bool is_bounded(const struct data_spec *spec)
{
    const bool is_float = data_type_get(spec->type)->class == DATA_FLOAT;
    return spec->op == KOLO_AVG ||
           (is_float && (spec->op == KOLO_SUM || spec->op == BENCH_OP_MULSUM));
}

static int odd_part(int n)
{
    while (n % 2 == 0)
        n /= 2;
    return n;
}

/* How a bounded sum spends the exact range: `active` ranks (others give 0) of values up to
 * `amplitude`; for averages of floats one active rank makes the sum a multiple of `divisor`, so
 * that the quotient is exact. */
struct shares {
    int active;
    int64_t amplitude;
    int divisor;
};

static struct shares make_shares(const struct data_spec *spec)
{
    const struct data_type *t = data_type_get(spec->type);
    struct shares s = {.divisor = 1};
    int64_t budget = exact_limit(t);
    if (spec->op == BENCH_OP_MULSUM)
        budget /= 2;
    if (spec->op == KOLO_AVG && t->class == DATA_FLOAT)
        s.divisor = odd_part(spec->nranks);
    budget -= s.divisor / 2;
    if (budget <= 0)
        return s;
    s.active = budget < spec->nranks ? (int)budget : spec->nranks;
    s.amplitude = budget / s.active;
    return s;
}

/* Ranks take turns: position 0 .. nranks - 1 of `rank` at element i. */
static int position(const struct data_spec *spec, int rank, size_t i)
{
    return (int)(((uint64_t)rank + hash(spec, -1, i) % (uint64_t)spec->nranks) %
                 (uint64_t)spec->nranks);
}

static int64_t uniform(const struct data_spec *spec, int rank, size_t i, int64_t amplitude)
{
    const uint64_t h = hash(spec, rank, i);
    if (data_type_get(spec->type)->class == DATA_UNSIGNED)
        return (int64_t)(h % ((uint64_t)amplitude + 1));
    return (int64_t)(h % (2 * (uint64_t)amplitude + 1)) - amplitude;
}

static int64_t bounded_raw(const struct data_spec *spec, const struct shares *s, int rank, size_t i)
{
    return position(spec, rank, i) < s->active ? uniform(spec, rank, i, s->amplitude) : 0;
}

static int64_t bounded_value(const struct data_spec *spec, int rank, size_t i)
{
    const struct shares s = make_shares(spec);
    const int at = position(spec, rank, i);
    if (s.active == 0) /* too many ranks for any other exact quotient than 0 */
        return at == 0 ? 1 : at == 1 ? -1 : 0;
    int64_t value = bounded_raw(spec, &s, rank, i);
    if (s.divisor == 1 || at != 0)
        return value;
    int64_t total = 0;
    for (int r = 0; r < spec->nranks; r++)
        total += bounded_raw(spec, &s, r, i);
    int64_t rest = total % s.divisor;
    if (rest > s.divisor / 2)
        rest -= s.divisor;
    else if (rest < -(s.divisor / 2))
        rest += s.divisor;
    return value - rest;
}

/* At most one factor 3 and six factors 2: exact and in range in every type, in every order. */
static int64_t product_value(const struct data_spec *spec, int rank, size_t i)
{
    const uint64_t h = hash(spec, rank, i);
    const int at = position(spec, rank, i);
    const int64_t magnitude = at == 0 ? 3 : at <= 6 ? 2 : 1;
    return (h & 2 ? magnitude : 1) * (h & 1 ? -1 : 1);
}

/* The exact element, as an integer, or as bits when the data is only moved. */
static int64_t exact_value(const struct data_spec *spec, int rank, size_t i)
{
    const struct data_type *t = data_type_get(spec->type);
    if (spec->op == BENCH_OP_NONE)
        return (int64_t)hash(spec, rank, i);
    if (is_bounded(spec))
        return bounded_value(spec, rank, i);
    if (t->class != DATA_FLOAT)
        return data_narrow(t, hash(spec, rank, i));
    if (spec->op == KOLO_PROD)
        return product_value(spec, rank, i);
    return uniform(spec, rank, i, exact_limit(t)); /* min, max */
}

static void put_exact(const struct data_spec *spec, int64_t value, void *element)
{
    const struct data_type *t = data_type_get(spec->type);
    if (t->class == DATA_FLOAT && spec->op != BENCH_OP_NONE)
        data_encode(spec->type, (double)value, element);
    else
        data_put_bits(t->bytes, (uint64_t)value, element);
}

static bool is_really_real(const struct data_spec *spec)
{
    return spec->is_real && spec->op != BENCH_OP_NONE &&
           data_type_get(spec->type)->class == DATA_FLOAT;
}

/* Bell-shaped around 0 with deviation 0.6; for products near 1 in magnitude. */
static double real_value(const struct data_spec *spec, int rank, size_t i)
{
    const uint64_t h = hash(spec, rank, i);
    double x = -2;
    for (int k = 0; k < 4; k++)
        x += (double)(h >> (16 * k) & 0xffff) / 65536.0;
    if (spec->op == KOLO_PROD)
        return (h & 1 ? -1 : 1) * exp2(x / spec->nranks);
    return x;
}

static size_t limited_period(size_t limit)
{
    if (limit == 0)
        return 1;
    return limit < DATA_PERIOD ? limit : DATA_PERIOD;
}

void data_contribution(const struct data_spec *spec, int rank, size_t limit,
                       struct data_pattern *pattern)
{
    pattern->type = spec->type;
    pattern->element_bytes = data_type_get(spec->type)->bytes;
    pattern->period = limited_period(limit);
    pattern->has_bound = false;
    for (size_t i = 0; i < pattern->period; i++) {
        unsigned char *element = pattern->bytes + i * pattern->element_bytes;
        if (is_really_real(spec))
            data_encode(spec->type, real_value(spec, rank, i), element);
        else
            put_exact(spec, exact_value(spec, rank, i), element);
    }
    const size_t bytes = pattern->period * pattern->element_bytes;
    memcpy(pattern->bytes + bytes, pattern->bytes, bytes);
}

/* ---- expected results --------------------------------------------------------------------- */

static int64_t combine_integers(const struct data_type *t, int op, int64_t a, int64_t b)
{
    const uint64_t x = (uint64_t)a, y = (uint64_t)b;
    const bool is_less = t->class == DATA_UNSIGNED ? y < x : b < a;
    switch (op) {
    case KOLO_PROD:
        return (int64_t)(x * y);
    case KOLO_MAX:
        return is_less ? a : b;
    case KOLO_MIN:
        return is_less ? b : a;
    case KOLO_BAND:
        return (int64_t)(x & y);
    case KOLO_BOR:
        return (int64_t)(x | y);
    case KOLO_BXOR:
        return (int64_t)(x ^ y);
    default:
        return (int64_t)(x + y);
    }
}

static void expect_exact(const struct data_spec *spec, size_t i, void *element)
{
    const struct data_type *t = data_type_get(spec->type);
    int64_t result = 0;
    for (int r = 0; r < spec->nranks; r++) {
        int64_t value = exact_value(spec, r, i);
        if (spec->op == BENCH_OP_MULSUM)
            value = (int64_t)((uint64_t)value * (uint64_t)data_factor(r));
        result = r == 0 ? value : combine_integers(t, spec->op, result, value);
    }
    if (spec->op == KOLO_AVG && t->class == DATA_FLOAT)
        data_encode(spec->type, (double)result / spec->nranks, element);
    else if (spec->op == KOLO_AVG)
        put_exact(spec, result / spec->nranks, element);
    else
        put_exact(spec, result, element);
}

/* Half the distance of neighbours, relative, and the smallest positive number. */
static double unit_roundoff(const struct data_type *t)
{
    return ldexp(1.0, -t->mantissa_bits - 1);
}

static double smallest(const struct data_type *t)
{
    return ldexp(1.0, 2 - (1 << (t->exponent_bits - 1)) - t->mantissa_bits);
}

/* |error| of a sum of n terms in any order <= (n - 1) u sum|x|, to first order; doubled, plus one
 * rounding for each pre-multiplication, one for the result, and what underflows. */
static void expect_real(const struct data_spec *spec, size_t i, double *reference, double *bound)
{
    const struct data_type *t = data_type_get(spec->type);
    const double u = unit_roundoff(t), n = spec->nranks;
    long double result = 0, magnitude = 0;
    for (int r = 0; r < spec->nranks; r++) {
        unsigned char element[8];
        data_encode(spec->type, real_value(spec, r, i), element);
        long double x = (long double)data_decode(spec->type, element);
        if (spec->op == BENCH_OP_MULSUM)
            x *= data_factor(r);
        magnitude += fabsl(x);
        if (r == 0)
            result = x;
        else if (spec->op == KOLO_PROD)
            result *= x;
        else if (spec->op == KOLO_MAX || spec->op == KOLO_MIN)
            result = (x > result) == (spec->op == KOLO_MAX) ? x : result;
        else
            result += x;
    }
    const double divisor = spec->op == KOLO_AVG ? n : 1;
    *reference = (double)(result / (long double)divisor);
    if (spec->op == KOLO_MAX || spec->op == KOLO_MIN) {
        *bound = 0;
        return;
    }
    const double rounding = (spec->op == KOLO_PROD ? 2 * n : 1) * u * fabs(*reference);
    const double order = spec->op == KOLO_PROD ? 0 : 2 * (n - 1) * u * (double)magnitude / divisor;
    const double factors = spec->op == BENCH_OP_MULSUM ? u * (double)magnitude : 0;
    *bound = order + factors + rounding + n * smallest(t);
}

void data_expected(const struct data_spec *spec, size_t limit, struct data_pattern *pattern)
{
    pattern->type = spec->type;
    pattern->element_bytes = data_type_get(spec->type)->bytes;
    pattern->period = limited_period(limit);
    pattern->has_bound = is_really_real(spec);
    for (size_t i = 0; i < pattern->period; i++) {
        if (pattern->has_bound)
            expect_real(spec, i, &pattern->value[i], &pattern->bound[i]);
        else
            expect_exact(spec, i, pattern->bytes + i * pattern->element_bytes);
    }
    const size_t bytes = pattern->period * pattern->element_bytes;
    memcpy(pattern->bytes + bytes, pattern->bytes, bytes);
}

/* ---- patterns ----------------------------------------------------------------------------- */

bool data_pattern_create(struct data_pattern *pattern)
{
    *pattern = (struct data_pattern){.bytes = calloc(2 * DATA_PERIOD, 8),
                                     .value = calloc(DATA_PERIOD, sizeof(double)),
                                     .bound = calloc(DATA_PERIOD, sizeof(double))};
    if (pattern->bytes && pattern->value && pattern->bound)
        return true;
    data_pattern_destroy(pattern);
    return false;
}

void data_pattern_destroy(struct data_pattern *pattern)
{
    free(pattern->bytes);
    free(pattern->value);
    free(pattern->bound);
    *pattern = (struct data_pattern){.bytes = NULL};
}

/* The pattern as it appears from element `first` on, and how much of it is contiguous. */
static const unsigned char *pattern_at(const struct data_pattern *pattern, size_t first)
{
    return pattern->bytes + first % pattern->period * pattern->element_bytes;
}

void data_fill(const struct data_pattern *pattern, size_t first, size_t count, void *to)
{
    unsigned char *at = to;
    for (size_t done = 0; done < count;) {
        const size_t n = count - done < pattern->period ? count - done : pattern->period;
        memcpy(at, pattern_at(pattern, first), n * pattern->element_bytes);
        at += n * pattern->element_bytes;
        done += n;
    }
}

static void note_wrong(struct data_verdict *verdict, const void *element, const void *want,
                       size_t bytes)
{
    if (verdict->wrong++ > 0)
        return;
    verdict->first = element;
    memcpy(verdict->want, want, bytes);
}

static void check_bits(const struct data_pattern *pattern, size_t first, size_t count,
                       const unsigned char *from, struct data_verdict *verdict)
{
    const size_t width = pattern->element_bytes;
    const unsigned char *want = pattern_at(pattern, first);
    for (size_t done = 0; done < count;) {
        const size_t n = count - done < pattern->period ? count - done : pattern->period;
        const bool is_equal = memcmp(from, want, n * width) == 0;
        for (size_t i = 0; !is_equal && i < n; i++) {
            if (memcmp(from + i * width, want + i * width, width) != 0)
                note_wrong(verdict, from + i * width, want + i * width, width);
        }
        from += n * width;
        done += n;
    }
}

static void check_bound(const struct data_pattern *pattern, size_t first, size_t count,
                        const unsigned char *from, struct data_verdict *verdict)
{
    for (size_t i = 0; i < count; i++) {
        const size_t at = (first + i) % pattern->period;
        const unsigned char *element = from + i * pattern->element_bytes;
        const double error = fabs(data_decode(pattern->type, element) - pattern->value[at]);
        const double bound = pattern->bound[at];
        if (!(error <= bound)) {
            unsigned char want[8];
            data_encode(pattern->type, pattern->value[at], want);
            note_wrong(verdict, element, want, pattern->element_bytes);
        }
        if (bound > 0 && error / bound > verdict->worst)
            verdict->worst = error / bound;
    }
}

void data_check(const struct data_pattern *pattern, size_t first, size_t count, const void *from,
                struct data_verdict *verdict)
{
    if (count == 0)
        return;
    if (pattern->has_bound)
        check_bound(pattern, first, count, from, verdict);
    else
        check_bits(pattern, first, count, from, verdict);
}

enum { POISON = 0xc5 };

void data_poison(void *at, size_t bytes)
{
    if (bytes > 0)
        memset(at, POISON, bytes);
}

size_t data_poison_broken(const void *at, size_t bytes)
{
    const unsigned char *p = at;
    if (bytes == 0 || (p[0] == POISON && memcmp(p, p + 1, bytes - 1) == 0))
        return 0;
    size_t broken = 0;
    for (size_t i = 0; i < bytes; i++)
        broken += p[i] != POISON;
    return broken;
}
