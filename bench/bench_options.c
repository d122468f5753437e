/* bench_options.c - the command line: one table gives parsing, checking and help.
 *
 * Letters and long names are nccl-tests' where it has the option ('-' and '_' are the same in long
 * names).  Values: -b8, -b 8, --minbytes 8, --minbytes=8.  Switches take an optional 0 or 1.
 */
#include "bench.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum kind {
    KIND_LONG,
    KIND_SIZE,   /* bytes with K, M, G */
    KIND_SWITCH, /* bool */
    KIND_OFF,    /* bool, the option makes it false */
    KIND_TYPES,  /* bit mask */
    KIND_OPS,    /* bit mask */
    KIND_ROOT,   /* int, or all */
    KIND_REAL,
    KIND_TEXT,
};

enum scope { SCOPE_ALL, SCOPE_OP, SCOPE_ROOT };

struct option_row {
    char letter;
    const char *name;
    const char *alias; /* other long name, or NULL */
    const char *value; /* for the help; NULL: none */
    enum kind kind;
    enum scope scope;
    size_t offset; /* in struct bench_options */
    long min;
    long max;
    const char *help;
};

#define AT(field) offsetof(struct bench_options, field)
#define MANY 1000000000L

static const struct option_row table[] = {
    {'b', "minbytes", NULL, "SIZE", KIND_SIZE, SCOPE_ALL, AT(min_bytes), 0, 0,
     "smallest size, with K, M or G (8)"},
    {'e', "maxbytes", NULL, "SIZE", KIND_SIZE, SCOPE_ALL, AT(max_bytes), 0, 0,
     "largest size, always measured (64M, or -b if larger)"},
    {'i', "stepbytes", NULL, "SIZE", KIND_SIZE, SCOPE_ALL, AT(step_bytes), 0, 0,
     "fixed increment between sizes (none: factor)"},
    {'f', "stepfactor", NULL, "N", KIND_LONG, SCOPE_ALL, AT(factor), 2, MANY,
     "factor between sizes (2)"},
    {'n', "iters", NULL, "N", KIND_LONG, SCOPE_ALL, AT(iters), 1, BENCH_MAX_SAMPLES,
     "samples of each row (as many as --budget allows, at least 3)"},
    {'w', "warmup_iters", NULL, "N", KIND_LONG, SCOPE_ALL, AT(warmup), 0, MANY,
     "operations before the first sample (5, fewer when they are slow)"},
    {'m', "agg_iters", NULL, "N", KIND_LONG, SCOPE_ALL, AT(group_ops), 1, MANY,
     "operations in one group, each on its own part of the buffers (1: no group)"},
    {'N', "run_cycles", NULL, "N", KIND_LONG, SCOPE_ALL, AT(cycles), 0, MANY,
     "repetitions of the whole table, 0: until stopped (1)"},
    {0, "overlap", NULL, NULL, KIND_SWITCH, SCOPE_ALL, AT(is_overlap), 0, 0,
     "measure how much hides behind computation, and the call on a stream (-z 0, no check)"},
    {0, "budget", NULL, "MS", KIND_LONG, SCOPE_ALL, AT(budget_ms), 1, MANY,
     "time for one side of a row, without -n (250)"},
    {'a', "average", NULL, "0..3", KIND_LONG, SCOPE_ALL, AT(average), 0, 3,
     "time of a sample among ranks: 0 rank 0, 1 average, 2 min, 3 max (3)"},
    {'c', "check", NULL, "0|1", KIND_SWITCH, SCOPE_ALL, AT(is_checked), 0, 0,
     "check every element of the results (1)"},
    {0, "real", NULL, NULL, KIND_SWITCH, SCOPE_ALL, AT(is_real), 0, 0,
     "check with real values and an error bound instead of exact data"},
    {'o', "op", NULL, "OP", KIND_OPS, SCOPE_OP, AT(ops), 0, 0,
     "sum prod min max avg mulsum band bor bxor, a list a,b or all (sum)"},
    {'d', "datatype", NULL, "TYPE", KIND_TYPES, SCOPE_ALL, AT(types), 0, 0,
     "i8 u8 i16 u16 i32 u32 i64 u64 f16 bf16 f32 f64 f8e4m3 f8e5m2, nccl-tests' names, a list or "
     "all (f32)"},
    {'r', "root", NULL, "RANK", KIND_ROOT, SCOPE_ROOT, AT(root), 0, 0, "root rank, or all (0)"},
    {'g', "nprocs", "ngpus", "N", KIND_LONG, SCOPE_ALL, AT(nprocs), 1, BENCH_MAX_RANKS,
     "processes on this machine (2 when there is no launcher)"},
    {'t', "nthreads", NULL, "N", KIND_LONG, SCOPE_ALL, AT(nthreads), 1, BENCH_MAX_RANKS,
     "ranks as threads of each process (1)"},
    {'z', "blocking", NULL, "0|1", KIND_SWITCH, SCOPE_ALL, AT(is_blocking), 0, 0,
     "1: calls that return when done; 0: on a stream (1)"},
    {'R', "local_register", NULL, "0|1|2", KIND_LONG, SCOPE_ALL, AT(registration), 0, 2,
     "0: buffers from malloc; 1, 2: from kolo_mem_alloc (0)"},
    {'u', "unalign", NULL, "N", KIND_LONG, SCOPE_ALL, AT(unalign), 0, 1024,
     "start buffers N elements off a page (0)"},
    {'T', "timeout", NULL, "S", KIND_LONG, SCOPE_ALL, AT(timeout_s), 1, 86400,
     "seconds that one operation may take (the library's default)"},
    {0, "no-pin", NULL, NULL, KIND_OFF, SCOPE_ALL, AT(is_pinned), 0, 0,
     "do not bind rank i to the i-th CPU"},
    {'I', "report_iter_stats", "percentiles", "0|1", KIND_SWITCH, SCOPE_ALL, AT(has_percentiles), 0,
     0, "print min, p50, p95, p99, max and variation below each row"},
    {'S', "report_timestamps", "timestamps", "0|1", KIND_SWITCH, SCOPE_ALL, AT(has_timestamps), 0,
     0, "end each row with the time of day"},
    {'J', "json", "output_json", "FILE", KIND_TEXT, SCOPE_ALL, AT(json), 0, 0,
     "write all results as JSON"},
    {0, "csv", NULL, "FILE", KIND_TEXT, SCOPE_ALL, AT(csv), 0, 0, "write all results as CSV"},
    {0, "min-busbw", NULL, "GB/s", KIND_REAL, SCOPE_ALL, AT(min_busbw), 0, 0,
     "exit with 3 when the average is below 0.9 of this"},
    {'h', "help", NULL, NULL, KIND_SWITCH, SCOPE_ALL, AT(is_help), 0, 0, "this text"},
};

enum { TABLE_ROWS = sizeof table / sizeof table[0] };

/* ---- help --------------------------------------------------------------------------------- */

static bool is_in_scope(const struct option_row *row, const struct bench_command *command)
{
    if (!command || row->scope == SCOPE_ALL)
        return true;
    return row->scope == SCOPE_OP ? command->has_op : command->has_root;
}

static void print_option(const struct option_row *row)
{
    char left[64], letter[8] = "   ";
    if (row->letter)
        snprintf(letter, sizeof letter, "-%c,", row->letter);
    snprintf(left, sizeof left, "%s --%s %s", letter, row->name, row->value ? row->value : "");
    printf("  %-32s %s\n", left, row->help);
}

static void print_help(const struct bench_command *command)
{
    printf("Usage: kolo_bench %s [options]\n", command ? command->name : "COLLECTIVE");
    if (command) {
        printf("%s: %s.\n", command->name, command->help);
    } else {
        printf("Measures a collective and checks its results.\n\nCollectives:\n");
        for (int i = 0; i < BENCH_NCOLLS; i++)
            printf("  %-16s %s\n", bench_commands[i].name, bench_commands[i].help);
    }
    printf("\nOptions (default in parentheses):\n");
    for (int i = 0; i < TABLE_ROWS; i++) {
        if (is_in_scope(&table[i], command))
            print_option(&table[i]);
    }
    printf(
        "\nRanks: -g and -t start them on this machine; without either they come from the launcher"
        "\n(mpirun, srun, torchrun ...), or are two processes here.\n"
        "Sizes are those of the largest buffer of a rank, in bytes.\n"
        "Exit codes: 0 right, 1 a wrong element, 2 an error, 3 too slow (--min-busbw), 130 "
        "stopped.\n");
}

/* ---- values ------------------------------------------------------------------------------- */

__attribute__((format(printf, 1, 2))) static int complain(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("kolo_bench: ", stderr);
    vfprintf(stderr, format, args);
    fputs("; see kolo_bench --help\n", stderr);
    va_end(args);
    return -1;
}

static bool parse_size(const char *text, size_t *bytes)
{
    char *end;
    double value = strtod(text, &end);
    static const char units[] = "KMGT";
    const char *unit = *end ? strchr(units, *end & ~0x20) : NULL;
    if (end == text || !(value >= 0))
        return false;
    if (unit) {
        end++;
        for (const char *u = units; u <= unit; u++)
            value *= 1024;
        if (*end == 'i')
            end++;
    }
    if (*end == 'B')
        end++;
    if (*end || value > 0x1p60)
        return false;
    *bytes = (size_t)value;
    return true;
}

static bool parse_long(const char *text, long min, long max, long *value)
{
    char *end;
    errno = 0;
    const long v = strtol(text, &end, 10);
    if (end == text || *end || errno || v < min || v > max)
        return false;
    *value = v;
    return true;
}

/* "a,b,c" or "all" to a bit mask, through a function that finds a name. */
static bool parse_mask(const char *text, int (*find)(const char *name), int n, unsigned *mask)
{
    char copy[256];
    unsigned bits = 0;
    if (strcmp(text, "all") == 0) {
        *mask = (1u << n) - 1;
        return true;
    }
    if (strlen(text) >= sizeof copy)
        return false;
    strcpy(copy, text);
    char *rest = copy;
    for (char *word; (word = strsep(&rest, ",")) != NULL;) {
        const int i = find(word);
        if (i < 0)
            return false;
        bits |= 1u << i;
    }
    *mask = bits;
    return true;
}

static bool parse_root(const char *text, int *root)
{
    long value;
    if (strcmp(text, "all") == 0) {
        *root = -1;
        return true;
    }
    if (!parse_long(text, 0, BENCH_MAX_RANKS - 1, &value))
        return false;
    *root = (int)value;
    return true;
}

static bool parse_real(const char *text, double *value)
{
    char *end;
    const double v = strtod(text, &end);
    if (end == text || *end || !(v >= 0))
        return false;
    *value = v;
    return true;
}

static bool store(const struct option_row *row, const char *text, struct bench_options *options)
{
    void *field = (char *)options + row->offset;
    long number;
    switch (row->kind) {
    case KIND_LONG:
        return parse_long(text, row->min, row->max, field);
    case KIND_SIZE:
        return parse_size(text, field);
    case KIND_SWITCH:
    case KIND_OFF:
        if (!parse_long(text, 0, MANY, &number))
            return false;
        *(bool *)field = (number != 0) == (row->kind == KIND_SWITCH);
        return true;
    case KIND_TYPES:
        return parse_mask(text, data_type_find, KOLO_NTYPES, field);
    case KIND_OPS:
        return parse_mask(text, data_op_find, BENCH_NOPS, field);
    case KIND_ROOT:
        return parse_root(text, field);
    case KIND_REAL:
        return parse_real(text, field);
    case KIND_TEXT:
        *(const char **)field = text;
        return *text != 0;
    }
    return false;
}

/* ---- parsing ------------------------------------------------------------------------------ */

/* Does `word`, up to its end or '=', name this option? */
static bool is_named(const char *word, const char *name)
{
    if (!name)
        return false;
    for (; *name; word++, name++) {
        const char a = *word == '_' ? '-' : *word, b = *name == '_' ? '-' : *name;
        if (a != b)
            return false;
    }
    return *word == 0 || *word == '=';
}

static const struct option_row *find_option(const char *word)
{
    for (int i = 0; i < TABLE_ROWS; i++) {
        const struct option_row *row = &table[i];
        if (word[0] == '-' && word[1] == '-') {
            if (is_named(word + 2, row->name) || is_named(word + 2, row->alias))
                return row;
        } else if (row->letter && word[0] == '-' && word[1] == row->letter) {
            return row;
        }
    }
    return NULL;
}

/* Take the option at argv[*at] with its value; *at moves past what was used. */
static int take_option(int argc, char **argv, int *at, struct bench_options *options)
{
    const char *word = argv[*at];
    const struct option_row *row = find_option(word);
    if (!row)
        return complain("unknown option '%s'", word);
    const bool is_long = word[1] == '-';
    const char *value = is_long ? strchr(word, '=') : word[2] ? word + 2 : NULL;
    if (is_long && value)
        value++;
    if (!value && (row->kind == KIND_SWITCH || row->kind == KIND_OFF)) {
        const char *next = *at + 1 < argc ? argv[*at + 1] : "";
        const bool has_value = strcmp(next, "0") == 0 || strcmp(next, "1") == 0;
        value = has_value ? argv[++*at] : "1";
    } else if (!value) {
        if (*at + 1 >= argc)
            return complain("option '%s' needs a value (%s)", word, row->value);
        value = argv[++*at];
    }
    if (!store(row, value, options))
        return complain("bad value '%s' for option --%s: %s", value, row->name, row->help);
    ++*at;
    return 0;
}

static const struct bench_command *find_command(const char *name)
{
    for (int i = 0; i < BENCH_NCOLLS; i++) {
        if (is_named(name, bench_commands[i].name) && !strchr(name, '='))
            return &bench_commands[i];
    }
    return NULL;
}

static bool has_legal_pair(const struct bench_options *options)
{
    for (int type = 0; type < KOLO_NTYPES; type++) {
        for (int op = 0; op < BENCH_NOPS; op++) {
            if ((options->types >> type & 1) && (options->ops >> op & 1) &&
                data_is_op_legal(type, op))
                return true;
        }
    }
    return false;
}

static int check_options(struct bench_options *options)
{
    if (options->max_bytes == SIZE_MAX)
        options->max_bytes = options->min_bytes > (64u << 20) ? options->min_bytes : 64u << 20;
    if (options->min_bytes > options->max_bytes)
        return complain("the smallest size (-b %zu) is above the largest (-e %zu)",
                        options->min_bytes, options->max_bytes);
    if (options->nprocs * options->nthreads > BENCH_MAX_RANKS)
        return complain("-g %ld times -t %ld are more than %d ranks", options->nprocs,
                        options->nthreads, BENCH_MAX_RANKS);
    if (options->command->has_op && !has_legal_pair(options))
        return complain("the operation (-o) wants integers, the type (-d) is a float");
    return 0;
}

static int parse(int argc, char **argv, struct bench_options *options)
{
    for (int at = 1; at < argc;) {
        if (argv[at][0] == '-' && argv[at][1]) {
            if (take_option(argc, argv, &at, options))
                return -1;
            continue;
        }
        if (options->command)
            return complain("unexpected argument '%s'", argv[at]);
        options->command = find_command(argv[at]);
        if (!options->command)
            return complain("unknown collective '%s'", argv[at]);
        at++;
    }
    if (options->is_help)
        return 0;
    if (!options->command)
        return complain("which collective?");
    return check_options(options);
}

int bench_options_parse(int argc, char **argv, struct bench_options *options, int *code)
{
    *options = (struct bench_options){
        .min_bytes = 8,
        .max_bytes = SIZE_MAX,
        .factor = 2,
        .warmup = -1,
        .cycles = 1,
        .group_ops = 1,
        .budget_ms = 250,
        .average = BENCH_MAX,
        .ops = 1u << KOLO_SUM,
        .types = 1u << KOLO_F32,
        .is_checked = true,
        .is_blocking = true,
        .is_pinned = true,
    };
    if (parse(argc, argv, options)) {
        *code = BENCH_EXIT_ERROR;
        return -1;
    }
    if (options->is_help) {
        print_help(options->command);
        *code = BENCH_EXIT_OK;
        return -1;
    }
    return 0;
}
