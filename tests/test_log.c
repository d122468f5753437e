/* test_log.c - the log sink: off unless asked, levels and modules, one whole line each. */
#include "support/test.h"

#include "base.h"
#include "cfg.h"
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[64];
static char path[128];
static char content[1 << 20];

/* A fresh file for the log, and KOLO_LOG (NULL: unset). */
static void begin(const char *levels)
{
    snprintf(dir, sizeof(dir), "/tmp/kolo_test_log.XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/log", dir);
    setenv("KOLO_LOG_FILE", path, 1);
    if (levels)
        setenv("KOLO_LOG", levels, 1);
    else
        unsetenv("KOLO_LOG");
    cfg_reset();
    log_set_rank(-1);
}

static void end(void)
{
    unsetenv("KOLO_LOG_FILE");
    unsetenv("KOLO_LOG");
    cfg_reset();
    unlink(path);
    rmdir(dir);
}

/* The file as text; "" when there is none. */
static const char *read_file(const char *name)
{
    size_t n = 0;
    FILE *const f = fopen(name, "r");
    if (f) {
        n = fread(content, 1, sizeof(content) - 1, f);
        fclose(f);
    }
    content[n] = '\0';
    return content;
}

static int count_lines(const char *text)
{
    int n = 0;
    for (; *text; text++)
        n += *text == '\n';
    return n;
}

Test(log, is_off_unless_asked)
{
    static const char *const off[] = {NULL, "", "none"};
    for (size_t i = 0; i < ARRAY_LEN(off); i++) {
        begin(off[i]);
        cr_assert(!log_enabled(LOG_ERROR, "comm"), "case %zu", i);
        LOG(LOG_ERROR, "comm", "nobody reads this");
        (void)fail(KOLO_ERR_ARG, "nor this");
        cr_assert_eq(access(path, F_OK), -1, "case %zu made a file", i);
        end();
    }
}

Test(log, levels_and_modules)
{
    static const struct {
        const char *spec;
        enum log_level boot;
        enum log_level comm;
    } cases[] = {
        {"error", LOG_ERROR, LOG_ERROR},
        {"trace", LOG_TRACE, LOG_TRACE},
        {"info,boot:debug", LOG_DEBUG, LOG_INFO},
        {"boot:debug", LOG_DEBUG, LOG_NONE},
        {"debug,boot:none", LOG_NONE, LOG_DEBUG},
        {"boot:debug,info", LOG_INFO, LOG_INFO}, /* the later one wins */
        {"boo:debug,warn,bootx:trace", LOG_WARN, LOG_WARN},
        {"info,boot:debug,comm:error", LOG_DEBUG, LOG_ERROR},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        begin(cases[i].spec);
        cr_assert_eq(log_check(), KOLO_OK, "%s", cases[i].spec);
        for (int level = LOG_ERROR; level <= LOG_TRACE; level++) {
            cr_assert_eq(log_enabled((enum log_level)level, "boot"), level <= (int)cases[i].boot,
                         "%s: boot %d", cases[i].spec, level);
            cr_assert_eq(log_enabled((enum log_level)level, "comm"), level <= (int)cases[i].comm,
                         "%s: comm %d", cases[i].spec, level);
        }
        cr_assert(!log_enabled(LOG_NONE, "boot"), "%s", cases[i].spec);
        end();
    }
}

Test(log, bad_specifications_are_reported_and_log_nothing)
{
    static const char too_many[] = "info,a:info,b:info,c:info,d:info,e:info,f:info,g:info,h:info,"
                                   "i:info,j:info,k:info,l:info,m:info,n:info,o:info,p:info";
    static const char *const bad[] = {
        "loud",       "Info",  "info ",        "info,",     ",info",
        ",",          "boot:", ":debug",       "boot:loud", "boot",
        "info,,warn", "3",     "boot:debug:x", "info,boot", "a-name-that-is-too-long:info",
        too_many,
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        begin(bad[i]);
        cr_assert_eq(log_check(), KOLO_ERR_ARG, "\"%s\"", bad[i]);
        cr_assert_not_null(strstr(fail_text(), bad[i]), "%s", fail_text());
        cr_assert_not_null(strstr(fail_text(), "none|error|warn|info|debug|trace"));
        cr_assert(!log_enabled(LOG_ERROR, "a"), "\"%s\"", bad[i]);
        end();
    }
}

Test(log, a_line_has_time_host_pid_rank_level_module)
{
    char host[64] = "";
    char expected[512];
    gethostname(host, sizeof(host) - 1);
    begin("info");
    log_set_rank(3);
    LOG(LOG_INFO, "boot", "ranks %d", 8);
    LOG(LOG_DEBUG, "boot", "not this");
    log_set_rank(-1);
    LOG(LOG_WARN, "shm", "two\nlines");
    const char *const text = read_file(path);
    int year, month, day, hour, minute, second, micro;
    cr_assert_eq(sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d.%6dZ", &year, &month, &day, &hour, &minute,
                        &second, &micro),
                 7, "%s", text);
    cr_assert_eq(strcspn(text, " "), strlen("2026-01-31T12:34:56.123456Z"), "%s", text);
    snprintf(expected, sizeof(expected), " %s:%ld rank 3 info boot: ranks 8\n", host,
             (long)getpid());
    cr_assert_not_null(strstr(text, expected), "%s", text);
    snprintf(expected, sizeof(expected), " %s:%ld warn shm: two lines\n", host, (long)getpid());
    cr_assert_not_null(strstr(text, expected), "%s", text);
    cr_assert_eq(count_lines(text), 2, "%s", text);
    end();
}

Test(log, an_error_is_logged_once_where_it_is_born)
{
    begin("error");
    (void)fail(KOLO_ERR_TIMEOUT, "rank 2 did not come");
    fail_prefix("rank 0: ");
    (void)fail_again(KOLO_ERR_TIMEOUT, "elsewhere");
    const char *const text = read_file(path);
    cr_assert_eq(count_lines(text), 1, "%s", text);
    cr_assert_not_null(strstr(text, ": rank 2 did not come\n"), "%s", text);
    end();
}

Test(log, long_lines_are_cut_but_end)
{
    char word[5000];
    memset(word, 'w', sizeof(word) - 1);
    word[sizeof(word) - 1] = '\0';
    begin("info");
    LOG(LOG_INFO, "comm", "%s", word);
    LOG(LOG_INFO, "comm", "next");
    const char *const text = read_file(path);
    cr_assert_eq(count_lines(text), 2);
    cr_assert_gt(strcspn(text, "\n"), 1000);
    cr_assert_lt(strcspn(text, "\n"), 2048);
    end();
}

Test(log, file_names_hold_host_and_pid)
{
    char host[64] = "";
    char name[256];
    gethostname(host, sizeof(host) - 1);
    begin("info");
    snprintf(name, sizeof(name), "%s/%%h.%%p.%%%%.%%x%%", dir);
    setenv("KOLO_LOG_FILE", name, 1);
    cfg_reset();
    LOG(LOG_INFO, "comm", "of the parent");
    const pid_t child = fork();
    if (child == 0) {
        LOG(LOG_INFO, "comm", "of the child");
        _exit(0);
    }
    cr_assert_gt(child, 0);
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    LOG(LOG_INFO, "comm", "of the parent again");
    snprintf(name, sizeof(name), "%s/%s.%ld.%%.%%x%%", dir, host, (long)getpid());
    const char *text = read_file(name);
    cr_assert_eq(count_lines(text), 2, "%s", text);
    cr_assert_null(strstr(text, "child"), "%s", text);
    unlink(name);
    snprintf(name, sizeof(name), "%s/%s.%ld.%%.%%x%%", dir, host, (long)child);
    text = read_file(name);
    cr_assert_eq(count_lines(text), 1, "%s", text);
    cr_assert_not_null(strstr(text, "of the child\n"), "%s", text);
    unlink(name);
    end();
}

Test(log, a_file_that_cannot_be_opened_falls_back_to_stderr)
{
    char errors[128];
    begin("info");
    snprintf(errors, sizeof(errors), "%s/stderr", dir);
    setenv("KOLO_LOG_FILE", "/nonexistent/dir/log", 1);
    cfg_reset();
    const int saved = dup(STDERR_FILENO);
    const int fd = open(errors, O_WRONLY | O_CREAT, 0600);
    dup2(fd, STDERR_FILENO);
    LOG(LOG_INFO, "comm", "one");
    LOG(LOG_INFO, "comm", "two");
    dup2(saved, STDERR_FILENO);
    close(fd);
    close(saved);
    const char *const text = read_file(errors);
    cr_assert_eq(count_lines(text), 3, "%s", text);
    cr_assert_not_null(strstr(text, "/nonexistent/dir/log: No such file"), "%s", text);
    cr_assert_not_null(strstr(text, "comm: two\n"), "%s", text);
    unlink(errors);
    end();
}

enum { THREADS = 4, LINES = 500 };

static void *log_lines(void *rank)
{
    log_set_rank(*(int *)rank);
    for (int i = 0; i < LINES; i++)
        LOG(LOG_INFO, "comm", "line %d of %d begins here and ends here", i, *(int *)rank);
    return NULL;
}

Test(log, lines_of_threads_do_not_mix)
{
    pthread_t threads[THREADS];
    int ranks[THREADS];
    int next[THREADS] = {0};
    begin("info");
    for (int i = 0; i < THREADS; i++) {
        ranks[i] = i;
        cr_assert_eq(pthread_create(&threads[i], NULL, log_lines, &ranks[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    const char *at = read_file(path);
    cr_assert_eq(count_lines(at), THREADS * LINES);
    while (*at) {
        int prefix_rank, line, rank, n = 0;
        const int got =
            sscanf(at, "%*s %*s rank %d info comm: line %d of %d begins here and ends here%n",
                   &prefix_rank, &line, &rank, &n);
        cr_assert_eq(got, 3, "%.120s", at);
        cr_assert_eq(at[n], '\n', "%.120s", at);
        cr_assert(rank >= 0 && rank < THREADS && rank == prefix_rank, "%.120s", at);
        cr_assert_eq(line, next[rank]++, "%.120s", at);
        at += n + 1;
    }
    end();
}

Test(log, errno_reaches_the_text)
{
    begin("info");
    setenv("KOLO_RANK", "1", 1); /* a number to parse */
    errno = EBADF;
    LOG(LOG_INFO, "comm", "close: %m"); /* the first use reads the options */
    cr_assert_eq(errno, EBADF);
    const char *const text = read_file(path);
    cr_assert_not_null(strstr(text, "close: Bad file descriptor\n"), "%s", text);
    unsetenv("KOLO_RANK");
    end();
}
