/* tune_table.c - measured times of algorithms: what lies between and beyond the sizes, and the text
 * in which the user's cache folder keeps them.
 *
 *   kolo tune 1                       the format
 *   key 0123456789abcdef
 *   date 1764547200                   seconds since 1970
 *   ranks 4
 *   time all_reduce oneshot 3210 ...  tenths of a nanosecond at each of tune_sizes; - not measured
 *   sum 0123456789abcdef              of all bytes before this line
 */
#include "tune.h"

#include <inttypes.h>
#include <string.h>

/* Up to the payload of a cell's first line, behind it, an outbox body, slots.  A larger one would
 * take most of the time, and above these what counts are bytes. */
const uint32_t tune_sizes[TUNE_SIZES] = {32, 1024, 8192, 65536, 524288};

#define MOST_DISORDER 1.5

static const unsigned char sum_key[16] = "kolo tune table";

int tune_table_sizes(const struct tune_table *t, int row)
{
    int n = 0;
    while (n < TUNE_SIZES && t->tenths[row][n] > 0)
        n++;
    return n;
}

double tune_table_ns(const struct tune_table *t, int row, size_t bytes)
{
    const uint32_t *at = t->tenths[row];
    const int n = tune_table_sizes(t, row);
    if (n == 0)
        return 0;
    if (n == 1 || bytes <= tune_sizes[0])
        return at[0] * 0.1;
    int k = 1;
    while (k < n - 1 && bytes > tune_sizes[k])
        k++;
    const double slope = ((double)at[k] - at[k - 1]) / ((double)tune_sizes[k] - tune_sizes[k - 1]);
    const double beyond = (double)bytes - tune_sizes[k - 1];
    return (at[k - 1] + (slope > 0 ? slope : 0) * beyond) * 0.1;
}

/* How much longer a size took than the next one, at most. */
static double disorder(const uint32_t times[TUNE_SIZES])
{
    double most = 1;
    for (int k = 0; k < TUNE_SIZES - 1 && times[k + 1] > 0; k++) {
        const double ratio = (double)times[k] / times[k + 1];
        most = ratio > most ? ratio : most;
    }
    return most;
}

bool tune_table_settle(struct tune_table *t)
{
    size_t n;
    const struct plan_algo *algos = plan_algos(&n);
    bool is_measured[KOLO_NCOLLS] = {false}, is_odd[KOLO_NCOLLS] = {false};
    int nmeasured = 0, nodd = 0;
    for (size_t i = 0; i < n && i < TUNE_ALGOS; i++) {
        is_measured[algos[i].coll] |= t->tenths[i][0] > 0;
        is_odd[algos[i].coll] |= disorder(t->tenths[i]) > MOST_DISORDER;
    }
    for (size_t i = 0; i < n && i < TUNE_ALGOS; i++) {
        uint32_t *at = t->tenths[i];
        if (is_odd[algos[i].coll])
            memset(at, 0, sizeof t->tenths[i]);
        for (int k = TUNE_SIZES - 1; k > 0; k--)
            if (at[k] > 0 && at[k] < at[k - 1])
                at[k - 1] = at[k];
    }
    for (int c = 0; c < KOLO_NCOLLS; c++) {
        nmeasured += is_measured[c];
        nodd += is_odd[c];
    }
    return nodd * 2 <= nmeasured;
}

void tune_table_print(const struct tune_table *t, int nranks, struct text *out)
{
    size_t n;
    const struct plan_algo *algos = plan_algos(&n);
    text_add(out, "kolo tune 1\nkey %016" PRIx64 "\ndate %" PRIu64 "\nranks %d\n", t->key, t->date,
             nranks);
    for (size_t i = 0; i < n && i < TUNE_ALGOS; i++) {
        if (t->tenths[i][0] == 0)
            continue;
        text_add(out, "time %s %s", kolo_coll_name((int)algos[i].coll), algos[i].name);
        for (int k = 0; k < TUNE_SIZES; k++) {
            if (t->tenths[i][k] > 0)
                text_add(out, " %" PRIu32, t->tenths[i][k]);
            else
                text_add(out, " -");
        }
        text_add(out, "\n");
    }
    const size_t have = out->used < out->size ? out->used : out->size;
    text_add(out, "sum %016" PRIx64 "\n", siphash(sum_key, out->at, have));
}

/* ---- reading ---- */

/* What is left of a text. */
struct input {
    const char *at;
    const char *end;
};

static bool take(struct input *in, const char *word)
{
    const size_t n = strlen(word);
    if ((size_t)(in->end - in->at) < n || memcmp(in->at, word, n) != 0)
        return false;
    in->at += n;
    return true;
}

/* Decimal digits without leading zeros, at most `most`. */
static bool take_number(struct input *in, uint64_t most, uint64_t *out)
{
    const char *begin = in->at;
    uint64_t v = 0;
    for (; in->at < in->end && *in->at >= '0' && *in->at <= '9'; in->at++) {
        const uint64_t digit = (uint64_t)(*in->at - '0');
        if (in->at - begin >= 19 || (in->at > begin && *begin == '0'))
            return false;
        v = v * 10 + digit;
    }
    *out = v;
    return in->at > begin && v <= most;
}

/* 16 digits, lower case. */
static bool take_hash(struct input *in, uint64_t *out)
{
    static const char digits[] = "0123456789abcdef";
    if (in->end - in->at < 16)
        return false;
    uint64_t v = 0;
    for (int i = 0; i < 16; i++) {
        const char *d = in->at[i] ? strchr(digits, in->at[i]) : NULL;
        if (!d)
            return false;
        v = v << 4 | (uint64_t)(d - digits);
    }
    in->at += 16;
    *out = v;
    return true;
}

static bool take_times(struct input *in, uint32_t times[TUNE_SIZES])
{
    bool is_over = false;
    for (int k = 0; k < TUNE_SIZES; k++) {
        uint64_t v;
        if (!take(in, " "))
            return false;
        if (k > 0 && take(in, "-")) {
            is_over = true;
            continue;
        }
        if (is_over || !take_number(in, UINT32_MAX, &v) || v == 0)
            return false;
        times[k] = (uint32_t)v;
    }
    return take(in, "\n");
}

/* Rows stand in the order of plan_algos, each at most once. */
static bool take_rows(struct input *in, struct tune_table *t)
{
    size_t n;
    const struct plan_algo *algos = plan_algos(&n);
    for (size_t i = 0; i < n && i < TUNE_ALGOS; i++) {
        struct input row = *in;
        if (!take(&row, "time ") || !take(&row, kolo_coll_name((int)algos[i].coll)) ||
            !take(&row, " ") || !take(&row, algos[i].name))
            continue;
        if (row.at == row.end || *row.at != ' ')
            continue; /* the name goes on */
        if (!take_times(&row, t->tenths[i]))
            return false;
        *in = row;
    }
    return true;
}

bool tune_table_parse(const char *text, size_t bytes, uint64_t key, struct tune_table *out)
{
    struct input in = {text, text + bytes};
    struct tune_table t = {0};
    uint64_t ranks, sum;
    if (!take(&in, "kolo tune 1\nkey ") || !take_hash(&in, &t.key) || t.key != key ||
        !take(&in, "\ndate ") || !take_number(&in, INT64_MAX, &t.date) || t.date == 0 ||
        !take(&in, "\nranks ") || !take_number(&in, TUNE_MOST_RANKS, &ranks) || !take(&in, "\n") ||
        !take_rows(&in, &t))
        return false;
    const uint64_t expected = siphash(sum_key, text, (size_t)(in.at - text));
    if (!take(&in, "sum ") || !take_hash(&in, &sum) || !take(&in, "\n") || in.at != in.end ||
        sum != expected)
        return false;
    *out = t;
    return true;
}
