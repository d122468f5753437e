/* log.c - the log sink.  KOLO_LOG is a comma list: a level for all modules, and module:level pairs;
 * a later entry wins.  Lines go to stderr or to KOLO_LOG_FILE, one write(2) each, so that lines of
 * threads and processes do not mix:
 *
 *     2026-01-31T12:34:56.123456Z host:4711 rank 3 info boot: 8 ranks joined in 12 ms */
#include "log.h"

#include "cfg.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RULES_MAX = 16, MODULE_BYTES = 16, LINE_BYTES = 2048, PATH_BYTES = 4096 };

static const char *const level_names[] = {"none", "error", "warn", "info", "debug", "trace"};

struct rule {
    char module[MODULE_BYTES]; /* "": all */
    enum log_level level;
};

/* Guarded by `lock`, but for is_ready and most, and rules and nrules once is_ready is set. */
static struct {
    pthread_mutex_t lock;
    atomic_bool is_ready;
    atomic_int most; /* the highest level of any rule: the quick answer */
    struct rule rules[RULES_MAX];
    int nrules;
    bool is_bad;
    char host[64];
    int fd;    /* -1: not open */
    pid_t pid; /* that opened fd: a forked child opens its own */
} sink = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

static _Thread_local int thread_rank = -1;

static bool parse_level(const char *s, size_t n, enum log_level *level)
{
    for (size_t i = 0; i < ARRAY_LEN(level_names); i++) {
        if (strlen(level_names[i]) == n && memcmp(s, level_names[i], n) == 0) {
            *level = (enum log_level)i;
            return true;
        }
    }
    return false;
}

static bool parse_rule(const char *s, size_t n, struct rule *rule)
{
    const char *const colon = memchr(s, ':', n);
    const size_t module = colon ? (size_t)(colon - s) : 0;
    const size_t skip = colon ? module + 1 : 0;
    if (module >= MODULE_BYTES || (colon && module == 0))
        return false;
    if (!parse_level(s + skip, n - skip, &rule->level))
        return false;
    memcpy(rule->module, s, module);
    rule->module[module] = '\0';
    return true;
}

/* Fills the rules from the specification; false if it cannot be read, and then there are none. */
static bool parse_rules(const char *spec)
{
    sink.nrules = 0;
    int most = LOG_NONE;
    bool is_good = true;
    while (*spec && is_good) {
        const size_t n = strcspn(spec, ",");
        is_good = sink.nrules < RULES_MAX && parse_rule(spec, n, &sink.rules[sink.nrules]);
        if (is_good)
            most = max_int(most, (int)sink.rules[sink.nrules++].level);
        spec += n;
        if (*spec == ',')
            is_good = is_good && *++spec != '\0'; /* "info," */
    }
    if (!is_good) {
        sink.nrules = 0;
        most = LOG_NONE;
    }
    atomic_store_explicit(&sink.most, most, memory_order_relaxed); /* published by is_ready */
    return is_good;
}

static void read_options(void)
{
    pthread_mutex_lock(&sink.lock);
    if (!atomic_load_explicit(&sink.is_ready, memory_order_relaxed)) {
        sink.is_bad = !parse_rules(cfg_str(CFG_LOG));
        if (gethostname(sink.host, sizeof(sink.host) - 1) != 0)
            memcpy(sink.host, "?", 2);
        /* Pairs with the acquire loads in ready(): rules, host and most come before. */
        atomic_store_explicit(&sink.is_ready, true, memory_order_release);
    }
    pthread_mutex_unlock(&sink.lock);
}

static void ready(void)
{
    /* Pairs with the release store in read_options(). */
    if (UNLIKELY(!atomic_load_explicit(&sink.is_ready, memory_order_acquire)))
        read_options();
}

bool log_enabled(enum log_level level, const char *module)
{
    ready();
    if (LIKELY((int)level > atomic_load_explicit(&sink.most, memory_order_relaxed)))
        return false;
    enum log_level allowed = LOG_NONE;
    for (int i = 0; i < sink.nrules; i++) {
        if (sink.rules[i].module[0] == '\0' || strcmp(sink.rules[i].module, module) == 0)
            allowed = sink.rules[i].level;
    }
    return level != LOG_NONE && level <= allowed;
}

/* KOLO_LOG_FILE with %h, %p and %% filled in; false if it does not fit. */
static bool expand_path(const char *pattern, char *path, size_t size)
{
    struct text t;
    text_init(&t, path, size);
    for (const char *p = pattern; *p; p++) {
        if (p[0] == '%' && p[1] == 'h')
            text_add(&t, "%s", sink.host);
        else if (p[0] == '%' && p[1] == 'p')
            text_add(&t, "%ld", (long)getpid());
        else
            text_add(&t, "%c", *p);
        if (p[0] == '%' && (p[1] == 'h' || p[1] == 'p' || p[1] == '%'))
            p++;
    }
    return t.used < size;
}

/* Where lines go; called with the lock held. */
static int sink_fd(void)
{
    if (sink.fd >= 0 && sink.pid == getpid())
        return sink.fd;
    if (sink.fd > STDERR_FILENO)
        close(sink.fd);
    sink.fd = STDERR_FILENO;
    sink.pid = getpid();
    const char *const pattern = cfg_str(CFG_LOG_FILE);
    char path[PATH_BYTES];
    if (pattern[0] == '\0')
        return sink.fd;
    int fd = -1;
    if (expand_path(pattern, path, sizeof(path)))
        fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd >= 0)
        sink.fd = fd;
    else
        dprintf(STDERR_FILENO, "kolo: cannot open KOLO_LOG_FILE %s: %m; logging to stderr\n",
                pattern);
    return sink.fd;
}

static void add_prefix(struct text *t, enum log_level level, const char *module)
{
    struct timespec now;
    struct tm utc;
    char when[32];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%S", &utc);
    text_add(t, "%s.%06ldZ %s:%ld ", when, now.tv_nsec / 1000, sink.host, (long)getpid());
    if (thread_rank >= 0)
        text_add(t, "rank %d ", thread_rank);
    text_add(t, "%s %s: ", level_names[level], module);
}

static void write_all(int fd, const char *at, size_t bytes)
{
    while (bytes > 0) {
        const ssize_t n = write(fd, at, bytes);
        if (n <= 0)
            return; /* a log that cannot be written has nowhere to say so */
        at += n;
        bytes -= (size_t)n;
    }
}

void log_write(enum log_level level, const char *module, const char *format, ...)
{
    const int saved_errno = errno;
    char message[LINE_BYTES];
    va_list args;
    va_start(args, format); /* before anything that could change errno: the format may hold %m */
    if (vsnprintf(message, sizeof(message), format, args) < 0)
        message[0] = '\0';
    va_end(args);
    ready();

    char line[LINE_BYTES];
    struct text t;
    text_init(&t, line, sizeof(line) - 1); /* room for the newline */
    add_prefix(&t, level, module);
    text_add(&t, "%s", message);
    size_t bytes = t.used < t.size ? t.used : t.size - 1;
    for (size_t i = 0; i < bytes; i++) {
        if (line[i] == '\n')
            line[i] = ' ';
    }
    line[bytes++] = '\n';
    pthread_mutex_lock(&sink.lock);
    write_all(sink_fd(), line, bytes);
    pthread_mutex_unlock(&sink.lock);
    errno = saved_errno;
}

enum kolo_status log_check(void)
{
    ready();
    if (!sink.is_bad)
        return KOLO_OK;
    return fail(
        KOLO_ERR_ARG,
        "KOLO_LOG is \"%s\": it must be a comma list of none|error|warn|info|debug|trace or "
        "module:level, as in info,boot:debug",
        cfg_str(CFG_LOG));
}

void log_reset(void)
{
    pthread_mutex_lock(&sink.lock);
    if (sink.fd > STDERR_FILENO)
        close(sink.fd);
    sink.fd = -1;
    atomic_store_explicit(&sink.is_ready, false, memory_order_relaxed);
    pthread_mutex_unlock(&sink.lock);
}

void log_set_rank(int rank)
{
    thread_rank = rank;
}
