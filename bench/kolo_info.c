/* kolo_info - what Kolo sees and would do here: build, machine, launcher, options, algorithms, and
 * the plan of any call, for any number of ranks, without running it.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <kolo.h>

enum { EXIT_WRONG_USE = 2 };

static const char *const type_names[KOLO_NTYPES] = {
    [KOLO_I8] = "i8",         [KOLO_U8] = "u8",        [KOLO_I16] = "i16", [KOLO_U16] = "u16",
    [KOLO_I32] = "i32",       [KOLO_U32] = "u32",      [KOLO_I64] = "i64", [KOLO_U64] = "u64",
    [KOLO_F16] = "f16",       [KOLO_BF16] = "bf16",    [KOLO_F32] = "f32", [KOLO_F64] = "f64",
    [KOLO_F8E4M3] = "f8e4m3", [KOLO_F8E5M2] = "f8e5m2"};

static const char *const op_names[KOLO_NOPS] = {
    [KOLO_SUM] = "sum", [KOLO_PROD] = "prod", [KOLO_MAX] = "max", [KOLO_MIN] = "min",
    [KOLO_AVG] = "avg", [KOLO_BAND] = "band", [KOLO_BOR] = "bor", [KOLO_BXOR] = "bxor"};

/* ---- the command line --------------------------------------------------------------------- */

struct request {
    bool topics[KOLO_TOPIC_TUNE + 1];
    bool has_topic;
    bool has_bytes;
    int measured_ranks; /* 0: measure nothing */
    size_t bytes;
    struct kolo_query query;
};

static int find_name(const char *text, const char *const *names, int n)
{
    for (int i = 0; i < n; i++) {
        if (strcmp(text, names[i]) == 0)
            return i;
    }
    return -1;
}

static bool parse_number(const char *text, long min, long max, int *value)
{
    char *end;
    errno = 0;
    const long v = strtol(text, &end, 10);
    if (end == text || *end || errno || v < min || v > max)
        return false;
    *value = (int)v;
    return true;
}

static bool parse_size(const char *text, size_t *value)
{
    static const char units[] = "KMGT";
    char *end;
    double v = strtod(text, &end);
    const char *unit = *end ? strchr(units, *end & ~0x20) : NULL;
    for (const char *u = units; unit && u <= unit; u++)
        v *= 1024;
    if (end == text || end[unit != NULL] || !(v >= 0) || v > 0x1p60)
        return false;
    *value = (size_t)v;
    return true;
}

static bool set_topic(struct request *r, enum kolo_topic topic)
{
    r->topics[topic] = true;
    r->has_topic = true;
    return true;
}

static bool take_build(struct request *r, const char *value)
{
    (void)value;
    return set_topic(r, KOLO_TOPIC_BUILD);
}

static bool take_options(struct request *r, const char *value)
{
    (void)value;
    return set_topic(r, KOLO_TOPIC_OPTIONS);
}

static bool take_topology(struct request *r, const char *value)
{
    (void)value;
    return set_topic(r, KOLO_TOPIC_TOPOLOGY);
}

static bool take_launcher(struct request *r, const char *value)
{
    (void)value;
    return set_topic(r, KOLO_TOPIC_LAUNCHER);
}

static bool take_algos(struct request *r, const char *value)
{
    (void)value;
    return set_topic(r, KOLO_TOPIC_ALGOS);
}

static bool take_tune(struct request *r, const char *value)
{
    (void)value;
    return set_topic(r, KOLO_TOPIC_TUNE);
}

static bool take_measure(struct request *r, const char *value)
{
    return parse_number(value, 2, 64, &r->measured_ranks) && set_topic(r, KOLO_TOPIC_TUNE);
}

static bool take_plan(struct request *r, const char *value)
{
    r->query.coll = kolo_coll_find(value);
    return r->query.coll >= 0;
}

static bool take_ranks(struct request *r, const char *value)
{
    return parse_number(value, 1, 1 << 20, &r->query.nranks);
}

static bool take_rank(struct request *r, const char *value)
{
    r->query.rank = -1;
    return strcmp(value, "all") == 0 || parse_number(value, 0, 1 << 20, &r->query.rank);
}

static bool take_root(struct request *r, const char *value)
{
    return parse_number(value, 0, 1 << 20, &r->query.root);
}

static bool take_bytes(struct request *r, const char *value)
{
    r->has_bytes = true;
    return parse_size(value, &r->bytes);
}

static bool take_count(struct request *r, const char *value)
{
    r->has_bytes = false;
    return parse_size(value, &r->query.count);
}

static bool take_type(struct request *r, const char *value)
{
    r->query.type = find_name(value, type_names, KOLO_NTYPES);
    return r->query.type >= 0;
}

static bool take_op(struct request *r, const char *value)
{
    r->query.op = find_name(value, op_names, KOLO_NOPS);
    return r->query.op >= 0;
}

static bool take_algo(struct request *r, const char *value)
{
    r->query.algo = value;
    return *value != 0;
}

struct option_row {
    const char *name;
    const char *value;                                        /* NULL: takes none */
    bool (*take)(struct request *request, const char *value); /* false: bad value */
    const char *help;
};

static const struct option_row table[] = {
    {"--build", NULL, take_build, "version, compiler, CPU features in use"},
    {"--topology", NULL, take_topology, "CPUs, caches and memory, as far as known"},
    {"--launcher", NULL, take_launcher, "which launcher is seen, with rank and size"},
    {"--options", NULL, take_options, "every option with value, origin, default and meaning"},
    {"--algos", NULL, take_algos, "every algorithm with rounds, bytes and source"},
    {"--tune", NULL, take_tune, "times of algorithms that were measured here"},
    {"--measure", "N", take_measure, "  after measuring them anew with N ranks (2 to 64)"},
    {"--plan", "COLLECTIVE", take_plan, "the plan that a call would use, and its rivals"},
    {"--ranks", "N", take_ranks, "  ranks on a machine like this one (2)"},
    {"--rank", "R|all", take_rank, "  whose steps to print (0)"},
    {"--root", "R", take_root, "  root rank (0)"},
    {"--bytes", "SIZE", take_bytes, "  largest buffer of a rank, with K, M or G (1M)"},
    {"--count", "N", take_count, "  the count argument of the call instead"},
    {"--type", "TYPE", take_type,
     "  i8 u8 i16 u16 i32 u32 i64 u64 f16 bf16 f32 f64 f8e4m3 f8e5m2 (f32)"},
    {"--op", "OP", take_op, "  sum prod min max avg band bor bxor (sum)"},
    {"--algo", "NAME", take_algo, "  this algorithm instead of the choice"},
};

enum { TABLE_ROWS = sizeof table / sizeof table[0] };

static void print_help(void)
{
    printf(
        "Usage: kolo_info [options]\n"
        "What Kolo sees and would do here.  Without options: build, topology, launcher, options.\n"
        "\nOptions (default in parentheses):\n");
    for (int i = 0; i < TABLE_ROWS; i++) {
        char left[64];
        snprintf(left, sizeof left, "%s %s", table[i].name, table[i].value ? table[i].value : "");
        printf("  %-20s %s\n", left, table[i].help);
    }
    printf("\nCollectives:");
    for (int i = 0; i < KOLO_NCOLLS; i++)
        printf(" %s", kolo_coll_name(i));
    printf("\nExample: kolo_info --plan all_reduce --ranks 7 --bytes 1M --rank all\n");
}

static int complain(const char *what, const char *text)
{
    fprintf(stderr, "kolo_info: %s '%s'; see kolo_info --help\n", what, text);
    return -1;
}

/* Take argv[*at] with its value, either next to it or after '='. */
static int take_option(int argc, char **argv, int *at, struct request *request)
{
    char *word = argv[*at];
    const size_t length = strcspn(word, "=");
    for (int i = 0; i < TABLE_ROWS; i++) {
        if (strlen(table[i].name) != length || strncmp(word, table[i].name, length) != 0)
            continue;
        const char *value = word[length] ? word + length + 1 : NULL;
        if (!table[i].value && value)
            return complain("no value belongs to", word);
        if (table[i].value && !value) {
            if (*at + 1 >= argc)
                return complain("a value is missing after", word);
            value = argv[++*at];
        }
        if (!table[i].take(request, value)) {
            fprintf(stderr, "kolo_info: bad value '%s' for %s: %s; see kolo_info --help\n", value,
                    table[i].name, table[i].help + strspn(table[i].help, " "));
            return -1;
        }
        ++*at;
        return 0;
    }
    return complain("unknown option", word);
}

/* ---- measuring ---------------------------------------------------------------------------- */

/* One rank; the exit status says whether its communicator stood. */
static int measure_as(const struct kolo_unique_id *id, int rank, int n)
{
    struct kolo_comm *comm;
    if (kolo_comm_create(id, rank, n, NULL, &comm) != KOLO_OK) {
        fprintf(stderr, "kolo_info: rank %d: %s\n", rank, kolo_last_error(NULL));
        return EXIT_WRONG_USE;
    }
    kolo_comm_destroy(comm);
    return 0;
}

/* This process is rank 0, so that it knows the times even where they cannot be kept. */
static int measure(int n)
{
    struct kolo_unique_id id;
    setenv("KOLO_TUNE", "measure", 1);
    if (kolo_unique_id_create(&id) != KOLO_OK) {
        fprintf(stderr, "kolo_info: %s\n", kolo_last_error(NULL));
        return EXIT_WRONG_USE;
    }
    fflush(NULL);
    for (int r = 1; r < n; r++) {
        const pid_t pid = fork();
        if (pid == 0)
            _exit(measure_as(&id, r, n));
        if (pid < 0) {
            perror("kolo_info: fork");
            return EXIT_WRONG_USE; /* the ranks that were started give up at their deadline */
        }
    }
    int code = measure_as(&id, 0, n), status;
    while (wait(&status) > 0)
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            code = EXIT_WRONG_USE;
    return code;
}

/* ---- answers ------------------------------------------------------------------------------ */

/* Print what `write` writes, in a buffer of the size that it asks for. */
static int print_text(enum kolo_status (*write)(const struct request *request, int topic,
                                                char *text, size_t size, size_t *needed),
                      const struct request *request, int topic)
{
    size_t size = 0;
    char *text = NULL;
    enum kolo_status status = write(request, topic, NULL, 0, &size);
    if (status == KOLO_OK) {
        text = malloc(size + 1);
        if (!text) {
            fprintf(stderr, "kolo_info: no memory for %zu bytes of text\n", size);
            return EXIT_WRONG_USE;
        }
        text[0] = 0;
        status = write(request, topic, text, size + 1, NULL);
    }
    if (status != KOLO_OK) {
        fprintf(stderr, "kolo_info: %s: %s\n", kolo_status_string((int)status),
                kolo_last_error(NULL));
        free(text);
        return EXIT_WRONG_USE;
    }
    const size_t length = strlen(text);
    fputs(text, stdout);
    if (length > 0 && text[length - 1] != '\n')
        putchar('\n');
    free(text);
    return 0;
}

static enum kolo_status write_topic(const struct request *request, int topic, char *text,
                                    size_t size, size_t *needed)
{
    (void)request;
    return kolo_describe((enum kolo_topic)topic, text, size, needed);
}

static enum kolo_status write_plan(const struct request *request, int topic, char *text,
                                   size_t size, size_t *needed)
{
    (void)topic;
    return kolo_explain(NULL, &request->query, text, size, needed);
}

static int print_topics(const struct request *request)
{
    static const struct {
        enum kolo_topic topic;
        bool is_default;
        const char *title;
    } order[] = {
        {KOLO_TOPIC_BUILD, true, "build"},       {KOLO_TOPIC_TOPOLOGY, true, "topology"},
        {KOLO_TOPIC_LAUNCHER, true, "launcher"}, {KOLO_TOPIC_OPTIONS, true, "options"},
        {KOLO_TOPIC_ALGOS, false, "algorithms"}, {KOLO_TOPIC_TUNE, false, "measured times"},
    };
    int code = 0, printed = 0, wanted = 0;
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++)
        wanted += request->has_topic ? request->topics[order[i].topic] : order[i].is_default;
    for (size_t i = 0; i < sizeof order / sizeof order[0] && !code; i++) {
        if (!(request->has_topic ? request->topics[order[i].topic] : order[i].is_default))
            continue;
        if (wanted > 1)
            printf("%s== %s\n", printed++ ? "\n" : "", order[i].title);
        code = print_text(write_topic, request, (int)order[i].topic);
    }
    return code;
}

/* The count argument of the call whose largest buffer has `bytes`. */
static size_t count_of(const struct kolo_query *query, size_t bytes)
{
    const size_t count = bytes / kolo_type_size(query->type);
    switch (query->coll) {
    case KOLO_COLL_ALL_REDUCE:
    case KOLO_COLL_BROADCAST:
    case KOLO_COLL_REDUCE:
    case KOLO_COLL_SEND:
    case KOLO_COLL_RECV:
        return count;
    case KOLO_COLL_BARRIER:
        return 0;
    default:
        return count / (size_t)query->nranks;
    }
}

int main(int argc, char **argv)
{
    struct request request = {
        .has_bytes = true,
        .bytes = 1 << 20,
        .query = {.size = sizeof request.query, .coll = -1, .nranks = 2, .type = KOLO_F32},
    };
    for (int at = 1; at < argc;) {
        if (strcmp(argv[at], "--help") == 0 || strcmp(argv[at], "-h") == 0) {
            print_help();
            return 0;
        }
        if (take_option(argc, argv, &at, &request))
            return EXIT_WRONG_USE;
    }
    if (request.measured_ranks > 0 && measure(request.measured_ranks))
        return EXIT_WRONG_USE;
    if (request.query.coll < 0)
        return print_topics(&request);
    if (request.has_bytes)
        request.query.count = count_of(&request.query, request.bytes);
    const int code = request.has_topic ? print_topics(&request) : 0;
    return code ? code : print_text(write_plan, &request, 0);
}
