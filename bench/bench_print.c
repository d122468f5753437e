/* bench_print.c - results as text, CSV and JSON; only rank 0 prints.
 *
 * The text has nccl-tests' columns and footer, for scripts that cut them with awk; what it does not
 * have stands in comment lines.  CSV has one line, JSON one object, for each side of a row, with
 * the keys size count type redop root inplace time_us min_us p50_us p95_us p99_us max_us cv samples
 * batch algbw busbw wrong (-1: not checked) error_ratio (with --real).
 */
#include "bench.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct bench_report {
    const struct bench_rank *rank;
    struct bench_seat *seats;
    FILE *csv;
    FILE *json;
    bool has_progress;
    struct bench_row *rows;
    size_t nrows;
    size_t capacity;
    double wrong;
    double busbw_sum;
    long nsides;
    double error_ratio;
    char cpu_model[96];
    char date[40];
};

static const char *const mode_names[] = {[BENCH_MODE_THREADS] = "threads of one process",
                                         [BENCH_MODE_PROCESSES] = "processes of this machine",
                                         [BENCH_MODE_LAUNCHER] = "ranks of the launcher"};
static const char *const average_names[] = {"rank 0", "average", "min", "max"};

static const char *type_name(int type)
{
    const struct data_type *t = data_type_get(type);
    return t ? t->alias : "none";
}

static void get_cpu_model(char *text, size_t size)
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    snprintf(text, size, "unknown CPU");
    while (file && fgets(line, sizeof line, file)) {
        const char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && value) {
            snprintf(text, size, "%.*s", (int)strcspn(value + 2, "\n"), value + 2);
            break;
        }
    }
    if (file)
        fclose(file);
}

static void get_date(char *text, size_t size)
{
    const time_t now = time(NULL);
    struct tm tm;
    if (!localtime_r(&now, &tm) || !strftime(text, size, "%Y-%m-%dT%H:%M:%S%z", &tm))
        snprintf(text, size, "?");
}

/* ---- text --------------------------------------------------------------------------------- */

static void print_settings(const struct bench_report *report)
{
    const struct bench_options *o = report->rank->options;
    printf("# Collective test starting: %s\n", o->command->name);
    printf(
        "# nThread %ld nProc %ld nRanks %d minBytes %zu maxBytes %zu step: %zu(%s) warmup iters: ",
        o->nthreads ? o->nthreads : 1, o->nprocs ? o->nprocs : 1, report->rank->nranks,
        o->min_bytes, o->max_bytes, o->step_bytes ? o->step_bytes : (size_t)o->factor,
        o->step_bytes ? "bytes" : "factor");
    if (o->warmup < 0)
        printf("auto iters: ");
    else
        printf("%ld iters: ", o->warmup);
    if (o->iters)
        printf("%ld ", o->iters);
    else
        printf("auto ");
    printf("agg iters: %ld validation: %d graph: 0\n", o->group_ops, o->is_checked);
    printf("# Kolo %d.%d.%d on %s, %ld CPUs, %s\n", kolo_version() / 10000,
           kolo_version() / 100 % 100, kolo_version() % 100, report->cpu_model,
           sysconf(_SC_NPROCESSORS_ONLN), report->date);
    printf("# %s; buffers from %s; time: median of samples, of a sample the %s of the ranks\n",
           o->is_blocking ? "blocking calls" : "calls on a stream",
           o->registration ? "kolo_mem_alloc" : "malloc", average_names[o->average]);
    printf("# data: %s\n", !o->is_checked ? "not checked"
                           : o->is_real   ? "real values, checked against an error bound"
                                          : "exact in every order, every element checked");
}

static void print_seats(const struct bench_report *report)
{
    const int n = report->rank->nranks;
    printf("#\n# Using %d %s%s\n", n,
           n == 1 ? "rank: " : "ranks: ", mode_names[report->rank->mode]);
    for (int i = 0; i < n; i++) {
        const struct bench_seat *seat = &report->seats[i];
        printf("#  Rank %2d Group  0 Pid %6d on %10s cpu ", i, seat->pid, seat->host);
        if (seat->cpu < 0)
            printf("not pinned\n");
        else
            printf("%2d\n", seat->cpu);
    }
}

static void print_columns(void)
{
    printf("#\n# %10s  %12s  %8s  %6s  %6s           out-of-place                       in-place"
           "          \n",
           "", "", "", "", "");
    printf("# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s %6s  %7s  %6s  %6s %6s\n", "size", "count",
           "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw",
           "#wrong");
    printf("# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %5s  %7s  %6s  %6s  %5s\n", "(B)",
           "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)",
           "");
}

static void print_side(const struct bench_side *side)
{
    if (!side->is_valid) {
        printf("  %7s  %6s  %6s  %5s", "N/A", "N/A", "N/A", "N/A");
        return;
    }
    const int decimals = side->time_us >= 10000 ? 0 : side->time_us >= 100 ? 1 : 2;
    printf("  %7.*f  %6.2f  %6.2f", decimals, side->time_us, side->algbw, side->busbw);
    if (side->wrong < 0)
        printf("  %5s", "N/A");
    else
        printf("  %5g", side->wrong);
}

static void print_percentiles(const struct bench_side *side, const char *name)
{
    if (!side->is_valid)
        return;
    printf(
        "#   %-12s us: min %.2f  p50 %.2f  p95 %.2f  p99 %.2f  max %.2f  cv %.3f  (%ld samples of "
        "%ld)\n",
        name, side->min_us, side->p50_us, side->p95_us, side->p99_us, side->max_us, side->cv,
        side->nsamples, side->batch);
}

static void print_row(const struct bench_report *report, const struct bench_row *row)
{
    const struct bench_options *options = report->rank->options;
    char date[40];
    printf("%12zu  %12zu  %8s  %6s  %6d", row->bytes, row->count, type_name(row->type),
           data_op_name(row->op), row->root);
    print_side(&row->side[0]);
    print_side(&row->side[1]);
    if (options->has_timestamps) {
        get_date(date, sizeof date);
        printf("  %s", date);
    }
    printf("\n");
    if (options->has_percentiles) {
        print_percentiles(&row->side[0], "out-of-place");
        print_percentiles(&row->side[1], "in-place");
    }
    fflush(stdout);
}

static void clear_progress(const struct bench_report *report)
{
    if (report->has_progress)
        fputs("\r\033[K", stderr);
}

void bench_report_progress(struct bench_report *report, size_t bytes)
{
    if (!report->has_progress)
        return;
    fprintf(stderr, "\r\033[Kmeasuring %zu bytes, up to %zu", bytes,
            report->rank->options->max_bytes);
    fflush(stderr);
}

/* ---- CSV and JSON ------------------------------------------------------------------------- */

static const char side_keys[] = "size,count,type,redop,root,inplace,time_us,min_us,p50_us,p95_us,"
                                "p99_us,max_us,cv,samples,batch,algbw,busbw,wrong,error_ratio";

static void write_csv_side(FILE *file, const struct bench_row *row, int i)
{
    const struct bench_side *s = &row->side[i];
    if (!file || !s->is_valid)
        return;
    fprintf(file,
            "%zu,%zu,%s,%s,%d,%d,%.4f,%.4f,%.4f,%.4f,%.4f,%.4f,%.5f,%ld,%ld,%.6g,%.6g,%.0f,%.4g\n",
            row->bytes, row->count, type_name(row->type), data_op_name(row->op), row->root, i,
            s->time_us, s->min_us, s->p50_us, s->p95_us, s->p99_us, s->max_us, s->cv, s->nsamples,
            s->batch, s->algbw, s->busbw, s->wrong, s->error_ratio);
    fflush(file);
}

static void write_json_text(FILE *file, const char *text)
{
    fputc('"', file);
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            fprintf(file, "\\%c", c);
        else if (c < 0x20)
            fprintf(file, "\\u%04x", c);
        else
            fputc(c, file);
    }
    fputc('"', file);
}

static void write_json_pair(FILE *file, const char *key, const char *value)
{
    fputs("    ", file);
    write_json_text(file, key);
    fputs(": ", file);
    write_json_text(file, value);
    fputs(",\n", file);
}

/* KOLO_* of the environment. */
static void write_json_environment(FILE *file)
{
    extern char **environ;
    const char *separator = "";
    fputs("    \"environment\": {", file);
    for (char **e = environ; *e; e++) {
        const char *value = strchr(*e, '=');
        char name[128];
        if (strncmp(*e, "KOLO_", 5) != 0 || !value)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)(value - *e), *e);
        fputs(separator, file);
        write_json_text(file, name);
        fputs(": ", file);
        write_json_text(file, value + 1);
        separator = ", ";
    }
    fputs("}\n", file);
}

static void write_json_header(const struct bench_report *report)
{
    const struct bench_options *o = report->rank->options;
    FILE *file = report->json;
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", kolo_version() / 10000,
             kolo_version() / 100 % 100, kolo_version() % 100);
    fputs("{\n  \"header\": {\n", file);
    write_json_pair(file, "version", version);
    write_json_pair(file, "collective", o->command->name);
    write_json_pair(file, "host", report->seats[0].host);
    write_json_pair(file, "cpu_model", report->cpu_model);
    write_json_pair(file, "date", report->date);
    write_json_pair(file, "mode", mode_names[report->rank->mode]);
    write_json_pair(file, "average", average_names[o->average]);
    fprintf(file, "    \"ncpu\": %ld,\n    \"nranks\": %d,\n", sysconf(_SC_NPROCESSORS_ONLN),
            report->rank->nranks);
    fprintf(file, "    \"blocking\": %d,\n    \"group_ops\": %ld,\n    \"registration\": %ld,\n",
            o->is_blocking, o->group_ops, o->registration);
    fprintf(file, "    \"pinned\": %d,\n    \"real\": %d,\n    \"unalign\": %ld,\n",
            report->seats[0].cpu >= 0, o->is_real, o->unalign);
    write_json_environment(file);
    fputs("  },\n  \"results\": [", file);
}

static void write_json_side(FILE *file, const struct bench_row *row, int i, const char *separator)
{
    const struct bench_side *s = &row->side[i];
    fprintf(file,
            "%s\n    {\"size\": %zu, \"count\": %zu, \"type\": \"%s\", \"redop\": \"%s\", "
            "\"root\": %d, \"inplace\": %d, ",
            separator, row->bytes, row->count, type_name(row->type), data_op_name(row->op),
            row->root, i);
    fprintf(file,
            "\"time_us\": %.4f, \"min_us\": %.4f, \"p50_us\": %.4f, \"p95_us\": %.4f, "
            "\"p99_us\": %.4f, \"max_us\": %.4f, \"cv\": %.5f, ",
            s->time_us, s->min_us, s->p50_us, s->p95_us, s->p99_us, s->max_us, s->cv);
    fprintf(file,
            "\"samples\": %ld, \"batch\": %ld, \"algbw\": %.6g, \"busbw\": %.6g, \"wrong\": %.0f, "
            "\"error_ratio\": %.4g}",
            s->nsamples, s->batch, s->algbw, s->busbw, s->wrong, s->error_ratio);
}

static void write_json(const struct bench_report *report, double busbw, bool is_interrupted)
{
    const char *separator = "";
    write_json_header(report);
    for (size_t i = 0; i < report->nrows; i++) {
        for (int side = 0; side < 2; side++) {
            if (!report->rows[i].side[side].is_valid)
                continue;
            write_json_side(report->json, &report->rows[i], side, separator);
            separator = ",";
        }
    }
    fprintf(report->json,
            "\n  ],\n  \"wrong\": %.0f,\n  \"average_busbw\": %.6g,\n  \"complete\": %s\n}\n",
            report->wrong, busbw, is_interrupted ? "false" : "true");
}

/* ---- the report --------------------------------------------------------------------------- */

__attribute__((noreturn)) static void leave(const char *what)
{
    fprintf(stderr, "kolo_bench: ");
    perror(what);
    fflush(NULL);
    _exit(BENCH_EXIT_ERROR);
}

static FILE *open_output(const char *path)
{
    if (!path)
        return NULL;
    FILE *file = fopen(path, "w");
    if (!file)
        leave(path);
    return file;
}

static void close_output(FILE *file, const char *path)
{
    if (file && (ferror(file) | fclose(file)))
        leave(path);
}

struct bench_report *bench_report_create(const struct bench_rank *rank,
                                         const struct bench_seat *seats)
{
    struct bench_report *report = calloc(1, sizeof *report);
    if (!report)
        leave("report");
    const size_t n = (size_t)rank->nranks;
    report->rank = rank;
    report->seats = calloc(n, sizeof *seats);
    if (!report->seats)
        leave("report");
    memcpy(report->seats, seats, n * sizeof *seats);
    report->csv = open_output(rank->options->csv);
    report->json = open_output(rank->options->json);
    report->has_progress = isatty(STDERR_FILENO);
    get_cpu_model(report->cpu_model, sizeof report->cpu_model);
    get_date(report->date, sizeof report->date);
    print_settings(report);
    print_seats(report);
    print_columns();
    fflush(stdout);
    if (report->csv)
        fprintf(report->csv, "%s\n", side_keys);
    return report;
}

static void keep_row(struct bench_report *report, const struct bench_row *row)
{
    if (report->nrows == report->capacity) {
        const size_t capacity = report->capacity ? 2 * report->capacity : 64;
        struct bench_row *rows = realloc(report->rows, capacity * sizeof *rows);
        if (!rows)
            leave("rows");
        report->rows = rows;
        report->capacity = capacity;
    }
    report->rows[report->nrows++] = *row;
}

void bench_report_row(struct bench_report *report, const struct bench_row *row)
{
    clear_progress(report);
    print_row(report, row);
    for (int i = 0; i < 2; i++) {
        const struct bench_side *side = &row->side[i];
        write_csv_side(report->csv, row, i);
        if (!side->is_valid)
            continue;
        report->nsides++;
        report->busbw_sum += side->busbw;
        if (side->wrong > 0)
            report->wrong += side->wrong;
        if (side->error_ratio > report->error_ratio)
            report->error_ratio = side->error_ratio;
    }
    if (report->json)
        keep_row(report, row);
}

static void report_destroy(struct bench_report *report)
{
    close_output(report->csv, report->rank->options->csv);
    close_output(report->json, report->rank->options->json);
    free(report->seats);
    free(report->rows);
    free(report);
}

int bench_report_end(struct bench_report *report, bool is_interrupted)
{
    const struct bench_options *options = report->rank->options;
    const double busbw = report->nsides ? report->busbw_sum / (double)report->nsides : 0;
    const bool is_slow = busbw < 0.9 * options->min_busbw;
    clear_progress(report);
    if (is_interrupted)
        printf("# Stopped before the end: what follows is of the rows above\n");
    printf("# Out of bounds values : %.0f %s\n", report->wrong,
           report->wrong > 0 ? "FAILED" : "OK");
    printf("# Avg bus bandwidth    : %g %s\n", busbw,
           options->min_busbw > 0 ? (is_slow ? "FAILED" : "OK") : "");
    if (options->is_real && options->is_checked)
        printf("# Max error / bound    : %.3g\n", report->error_ratio);
    printf("#\n");
    fflush(stdout);
    int code = BENCH_EXIT_OK;
    if (report->wrong > 0)
        code = BENCH_EXIT_WRONG;
    else if (is_interrupted)
        code = BENCH_EXIT_STOPPED;
    else if (is_slow)
        code = BENCH_EXIT_SLOW;
    if (report->json)
        write_json(report, busbw, is_interrupted);
    report_destroy(report);
    return code;
}
