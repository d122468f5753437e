/* test_driver.c - runs tests in this process, one after the other: all, or those whose
 * "suite/name" contains argv[1].  Only for -DKOLO_TEST_DRIVER builds; else this file is empty. */
#ifdef KOLO_TEST_DRIVER

#include "test.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

enum outcome { RUNNING, FAILED, SKIPPED };

static struct test *first;
static struct test **last = &first;
static jmp_buf out_of_test;
static pthread_t main_thread;

void test_register(struct test *test)
{
    *last = test;
    last = &test->next;
}

/* A failure in a thread of the test cannot unwind the test: it ends the program. */
static void __attribute__((noreturn)) leave(enum outcome outcome)
{
    if (!pthread_equal(pthread_self(), main_thread)) {
        printf("\n0 passed, 1 failed, 0 skipped (in a thread of the test; the rest did not run)\n");
        fflush(stdout);
        _Exit(1);
    }
    longjmp(out_of_test, (int)outcome);
}

void test_fail(const char *file, int line, const char *what, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("\n%s:%d: failed: %s:", file, line, what);
    vprintf(format, args);
    va_end(args);
    leave(FAILED);
}

void test_skip(const char *file, int line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("\n%s:%d: skipped:", file, line);
    vprintf(format, args);
    va_end(args);
    leave(SKIPPED);
}

static enum outcome run(const struct test *test)
{
    const int outcome = setjmp(out_of_test);
    if (outcome == RUNNING)
        test->run();
    return (enum outcome)outcome;
}

int main(int argc, char **argv)
{
    static const char *const words[] = {"ok", "FAILED", "skipped"};
    int counts[3] = {0, 0, 0};
    main_thread = pthread_self();
    setenv("KOLO_TUNE", "model", 0); /* as run.sh: thousands of communicators, no time to measure */
    for (const struct test *test = first; test; test = test->next) {
        char name[256];
        snprintf(name, sizeof(name), "%s/%s", test->suite, test->name);
        if (argc > 1 && !strstr(name, argv[1]))
            continue;
        printf("%s ... ", name);
        fflush(stdout); /* a test that hangs is known by its name */
        const enum outcome outcome = run(test);
        counts[outcome]++;
        printf("%s%s\n", outcome == RUNNING ? "" : "\n", words[outcome]);
    }
    printf("%d passed, %d failed, %d skipped\n", counts[0], counts[1], counts[2]);
    return counts[1] > 0 || counts[0] + counts[2] == 0;
}

#endif
