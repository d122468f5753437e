/* cfg.c - the option table: reads the environment once, strictly.  A bad value leaves the default
 * in force and a misspelt name has no effect; cfg_check() reports both.  Names that start with
 * KOLO_BENCH_, KOLO_TEST_ or KOLO_PEER_ belong to the tools and are not looked at. */
#include "cfg.h"

#include "log.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum kind { INT, MS, BYTES, STR, ENUM };
enum {
    VALUE_BYTES = 4096,
    NAME_BYTES = 64,
    COLUMN_BYTES = 40,
    WIDTH_MAX = 64,
    CACHE_DIR_BYTES = 512
};

struct option {
    const char *name;
    enum kind kind;
    const char *default_text; /* as written in the table; for ENUM an index */
    int64_t min;
    int64_t max;
    const char *meaning;
};

/* In the table the default of a STR is quoted and that of the others is a number: both become text
 * by #, and default_number() and default_word() take it from there. */
#define X(key, name, kind, default_value, min, max, meaning)                                       \
    [CFG_##key] = {name, kind, #default_value, min, max, meaning},
static const struct option options[CFG_NKEYS] = {CFG_TABLE(X)};
#undef X

struct value {
    bool is_set; /* in the environment */
    bool is_bad; /* and then the default holds */
    int64_t number;
    char text[VALUE_BYTES]; /* as found, also when bad; cut to fit */
};

/* Guarded by `lock` until is_ready is set, then constant. */
static struct {
    pthread_mutex_t lock;
    atomic_bool is_ready;
    struct value values[CFG_NKEYS];
    char unknown[NAME_BYTES]; /* the first unknown name, "" when none */
    char cache_dir[CACHE_DIR_BYTES];
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};

extern char **environ;

/* ---- parsing: the whole text or nothing ----------------------------------------------------- */

/* Digits with an optional minus; *rest is what follows. */
static bool parse_digits(const char *s, int64_t *out, const char **rest)
{
    if (!isdigit((unsigned char)s[s[0] == '-']))
        return false;
    char *end;
    errno = 0;
    const long long v = strtoll(s, &end, 10);
    if (errno != 0)
        return false;
    *out = v;
    *rest = end;
    return true;
}

struct unit {
    const char *name;
    int64_t factor;
};

static bool parse_with_unit(const char *s, const struct unit *units, size_t n, int64_t *out)
{
    int64_t v;
    const char *rest;
    if (!parse_digits(s, &v, &rest))
        return false;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(rest, units[i].name) == 0)
            return !__builtin_mul_overflow(v, units[i].factor, out);
    }
    return false;
}

/* The words of an ENUM are the start of its meaning: "a|b|c: ...".  Index of s, or -1. */
static int64_t parse_word(const char *s, const char *meaning)
{
    const size_t all = strcspn(meaning, ":");
    int64_t index = 0;
    for (size_t at = 0; at < all; index++) {
        const size_t n = strcspn(meaning + at, "|:");
        if (strlen(s) == n && memcmp(s, meaning + at, n) == 0)
            return index;
        at += n + 1;
    }
    return -1;
}

static bool parse_value(const struct option *o, const char *s, int64_t *out)
{
    static const struct unit none[] = {{"", 1}};
    static const struct unit times[] = {{"", 1}, {"ms", 1}, {"s", 1000}, {"m", 60000}};
    static const struct unit sizes[] = {{"", 1},        {"K", 1 << 10}, {"M", 1 << 20},
                                        {"G", 1 << 30}, {"k", 1 << 10}, {"m", 1 << 20},
                                        {"g", 1 << 30}};
    int64_t v = -1;
    bool is_good = true;
    switch (o->kind) {
    case STR:
        *out = 0;
        return strlen(s) < VALUE_BYTES;
    case ENUM:
        v = parse_word(s, o->meaning);
        break;
    case INT:
        is_good = parse_with_unit(s, none, ARRAY_LEN(none), &v);
        break;
    case MS:
        is_good = parse_with_unit(s, times, ARRAY_LEN(times), &v);
        break;
    case BYTES:
        is_good = parse_with_unit(s, sizes, ARRAY_LEN(sizes), &v);
        break;
    }
    if (!is_good || v < o->min || v > o->max)
        return false;
    *out = v;
    return true;
}

static int64_t default_number(const struct option *o)
{
    return strtoll(o->default_text, NULL, 10);
}

/* ---- reading the environment ---------------------------------------------------------------- */

static bool starts_with(const char *s, const char *start)
{
    return strncmp(s, start, strlen(start)) == 0;
}

static bool is_of_tools(const char *name)
{
    return starts_with(name, "KOLO_BENCH_") || starts_with(name, "KOLO_TEST_") ||
           starts_with(name, "KOLO_PEER_");
}

/* The option whose name is the first n bytes of s; -1 if there is none. */
static int find_option(const char *s, size_t n)
{
    for (int i = 0; i < CFG_NKEYS; i++) {
        if (strlen(options[i].name) == n && memcmp(options[i].name, s, n) == 0)
            return i;
    }
    return -1;
}

static void copy_cut(char *to, size_t size, const char *from, size_t n)
{
    if (n >= size)
        n = size - 1;
    memcpy(to, from, n);
    to[n] = '\0';
}

static void read_value(int key, const char *s)
{
    struct value *const v = &table.values[key];
    v->is_set = true;
    v->is_bad = !parse_value(&options[key], s, &v->number);
    if (v->is_bad)
        v->number = default_number(&options[key]);
    copy_cut(v->text, sizeof(v->text), s, strlen(s));
}

/* A path that is not absolute, or too long, counts as none. */
static void read_cache_dir(void)
{
    const char *dir = getenv("XDG_CACHE_HOME"), *end = "";
    if (!dir || *dir != '/') {
        dir = getenv("HOME");
        end = "/.cache";
    }
    table.cache_dir[0] = '\0';
    if (dir && *dir == '/' && strlen(dir) + strlen(end) < sizeof(table.cache_dir)) {
        copy_cut(table.cache_dir, sizeof(table.cache_dir), dir, strlen(dir));
        strcat(table.cache_dir, end);
    }
}

static void read_environment(void)
{
    read_cache_dir();
    table.unknown[0] = '\0';
    for (int i = 0; i < CFG_NKEYS; i++) {
        table.values[i].is_set = false;
        table.values[i].is_bad = false;
        table.values[i].number = default_number(&options[i]);
        table.values[i].text[0] = '\0';
    }
    for (char **e = environ; e && *e; e++) {
        if (!starts_with(*e, "KOLO_") || is_of_tools(*e))
            continue;
        const size_t n = strcspn(*e, "=");
        const int key = find_option(*e, n);
        if (key >= 0 && (*e)[n] == '=')
            read_value(key, *e + n + 1);
        else if (key < 0 && table.unknown[0] == '\0')
            copy_cut(table.unknown, sizeof(table.unknown), *e, n);
    }
}

static void ready(void)
{
    /* Pairs with the release store below: the values come before. */
    if (LIKELY(atomic_load_explicit(&table.is_ready, memory_order_acquire)))
        return;
    pthread_mutex_lock(&table.lock);
    if (!atomic_load_explicit(&table.is_ready, memory_order_relaxed)) {
        const int saved_errno = errno; /* a caller's %m may come after this */
        read_environment();
        errno = saved_errno;
        /* Pairs with the acquire load above. */
        atomic_store_explicit(&table.is_ready, true, memory_order_release);
    }
    pthread_mutex_unlock(&table.lock);
}

/* ---- looking up ----------------------------------------------------------------------------- */

int64_t cfg_int(enum cfg_key key)
{
    ready();
    return table.values[key].number;
}

const char *cfg_cache_dir(void)
{
    ready();
    return table.cache_dir;
}

/* Defaults of STR, without the quotes that # left around them. */
static const char *default_word(int key)
{
#define X(name_key, name, kind, default_value, ...) [CFG_##name_key] = WORD_##kind(default_value),
#define WORD_STR(s) s
#define WORD_INT(s) ""
#define WORD_MS(s) ""
#define WORD_BYTES(s) ""
#define WORD_ENUM(s) ""
    static const char *const words[CFG_NKEYS] = {CFG_TABLE(X)};
#undef X
    return words[key];
}

const char *cfg_str(enum cfg_key key)
{
    ready();
    const struct value *const v = &table.values[key];
    return options[key].kind == STR && v->is_set && !v->is_bad ? v->text : default_word((int)key);
}

bool cfg_is_set(enum cfg_key key)
{
    ready();
    return table.values[key].is_set && !table.values[key].is_bad;
}

/* ---- reporting ------------------------------------------------------------------------------ */

/* Levenshtein distance; both names shorter than NAME_BYTES. */
static int edit_distance(const char *a, const char *b)
{
    int row[NAME_BYTES + 1];
    const int n = (int)strlen(b);
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            const int replace = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = min_int(replace, 1 + min_int(row[j], row[j - 1]));
        }
    }
    return row[n];
}

static const char *nearest_name(const char *name)
{
    int best = 0;
    for (int i = 1; i < CFG_NKEYS; i++) {
        if (edit_distance(name, options[i].name) < edit_distance(name, options[best].name))
            best = i;
    }
    return options[best].name;
}

static void describe_legal(const struct option *o, char *buffer, size_t size)
{
    static const char *const what[] = {
        [INT] = "a whole number",
        [MS] = "milliseconds, or with a unit (500ms, 10s, 2m),",
        [BYTES] = "bytes, or with a unit (64K, 1M, 2G),",
        [STR] = "",
        [ENUM] = "",
    };
    struct text t;
    text_init(&t, buffer, size);
    if (o->kind == STR)
        text_add(&t, "a text of less than %d bytes", (int)VALUE_BYTES);
    else if (o->kind == ENUM)
        text_add(&t, "one of %.*s", (int)strcspn(o->meaning, ":"), o->meaning);
    else
        text_add(&t, "%s from %lld to %lld", what[o->kind], (long long)o->min, (long long)o->max);
}

/* Secrets are never shown. */
static const char *shown_text(int key)
{
    return key == CFG_SECRET ? "(hidden)" : table.values[key].text;
}

enum kolo_status cfg_check(void)
{
    ready();
    for (int i = 0; i < CFG_NKEYS; i++) {
        if (!table.values[i].is_bad)
            continue;
        char legal[256];
        describe_legal(&options[i], legal, sizeof(legal));
        return fail(KOLO_ERR_ARG, "%s is \"%.200s\": it must be %s", options[i].name, shown_text(i),
                    legal);
    }
    if (table.unknown[0] != '\0')
        return fail(KOLO_ERR_ARG,
                    "the environment variable %s is not known to Kolo; did you mean %s? unset or "
                    "correct it (kolo_info --options lists all)",
                    table.unknown, nearest_name(table.unknown));
    return log_check();
}

static void print_number(const struct option *o, int64_t number, char *buffer, size_t size)
{
    struct text t;
    text_init(&t, buffer, size);
    if (o->kind != ENUM) {
        text_add(&t, "%lld%s", (long long)number, o->kind == MS ? "ms" : "");
        return;
    }
    const char *word = o->meaning;
    for (int64_t i = 0; i < number; i++)
        word += strcspn(word, "|:") + 1;
    text_add(&t, "%.*s", (int)strcspn(word, "|:"), word);
}

enum { COLUMNS = 4 }; /* aligned: name, value, origin, default; the meaning follows */

struct row {
    const char *cells[COLUMNS];
    char value[COLUMN_BYTES]; /* what cells point to where they are numbers */
    char usual[COLUMN_BYTES];
};

/* "-" stands for the empty text, so that each row has all its columns. */
static void fill_row(int key, struct row *row)
{
    const struct option *const o = &options[key];
    const struct value *const v = &table.values[key];
    const bool is_own = v->is_set && !v->is_bad;
    print_number(o, v->number, row->value, sizeof(row->value));
    print_number(o, default_number(o), row->usual, sizeof(row->usual));
    row->cells[0] = o->name;
    row->cells[1] = row->value;
    row->cells[2] = is_own ? "environment" : "default";
    row->cells[3] = row->usual;
    if (o->kind == STR) {
        row->cells[3] = default_word(key);
        row->cells[1] = is_own ? shown_text(key) : row->cells[3];
    }
    for (int i = 0; i < COLUMNS; i++) {
        if (row->cells[i][0] == '\0')
            row->cells[i] = "-";
    }
}

static void print_row(struct text *out, const char *const cells[COLUMNS], const int widths[COLUMNS],
                      const char *meaning)
{
    for (int i = 0; i < COLUMNS; i++)
        text_add(out, "%-*s ", widths[i], cells[i]);
    text_add(out, "%s", meaning);
}

/* A very long value pushes its own row to the right, not all. */
static void measure_row(const char *const cells[COLUMNS], int widths[COLUMNS])
{
    for (int i = 0; i < COLUMNS; i++)
        widths[i] = max_int(widths[i], min_int((int)strlen(cells[i]), WIDTH_MAX));
}

void cfg_print(struct text *out)
{
    static const char *const head[COLUMNS] = {"name", "value", "origin", "default"};
    int widths[COLUMNS] = {0};
    struct row row;
    ready();
    measure_row(head, widths);
    for (int i = 0; i < CFG_NKEYS; i++) {
        fill_row(i, &row);
        measure_row(row.cells, widths);
    }
    print_row(out, head, widths, "meaning\n");
    for (int i = 0; i < CFG_NKEYS; i++) {
        fill_row(i, &row);
        print_row(out, row.cells, widths, options[i].meaning);
        text_add(out, "%s\n",
                 table.values[i].is_bad ? "  [the value in the environment is not legal]" : "");
    }
    if (table.unknown[0] != '\0')
        text_add(out, "%s is set, but not known to Kolo; did you mean %s?\n", table.unknown,
                 nearest_name(table.unknown));
}

void cfg_reset(void)
{
    pthread_mutex_lock(&table.lock);
    atomic_store_explicit(&table.is_ready, false, memory_order_relaxed);
    pthread_mutex_unlock(&table.lock);
    log_reset();
}
