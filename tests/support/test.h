/* test.h - all that tests see of the test framework.  Criterion by default; with
 * -DKOLO_TEST_DRIVER the driver of test_driver.c, which runs the tests in this process, because
 * Criterion cannot start under ThreadSanitizer.  Both offer Test(), the cr_assert family with an
 * optional printf message (a literal format), cr_fail and cr_skip_test; nothing else is used. */
#ifndef TEST_H
#define TEST_H

#ifndef KOLO_TEST_DRIVER

#include <criterion/criterion.h>

/* Criterion's own takes an internal argument and cannot be called by tests. */
#undef cr_fail
#define cr_fail(...) cr_assert(0, "fail: " __VA_ARGS__)

#else

#include <stdlib.h>
#include <string.h>

struct test {
    const char *suite;
    const char *name;
    void (*run)(void);
    struct test *next;
};

void test_register(struct test *test);
__attribute__((format(printf, 4, 5), noreturn)) void test_fail(const char *file, int line,
                                                               const char *what, const char *format,
                                                               ...);
__attribute__((format(printf, 3, 4), noreturn)) void test_skip(const char *file, int line,
                                                               const char *format, ...);

/* Options of Criterion, such as .timeout, are accepted and ignored. */
#define Test(suite_name, test_name, ...)                                                           \
    static void suite_name##_##test_name##_run(void);                                              \
    __attribute__((constructor)) static void suite_name##_##test_name##_register(void)             \
    {                                                                                              \
        static struct test test = {#suite_name, #test_name, suite_name##_##test_name##_run, NULL}; \
        test_register(&test);                                                                      \
    }                                                                                              \
    static void suite_name##_##test_name##_run(void)

#define test_check(condition, what, ...)                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            test_fail(__FILE__, __LINE__, what, " " __VA_ARGS__);                                  \
    } while (0)

#define cr_assert(c, ...) test_check(c, #c, __VA_ARGS__)
#define cr_assert_not(c, ...) test_check(!(c), "!(" #c ")", __VA_ARGS__)
#define cr_assert_eq(a, b, ...) test_check((a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_assert_neq(a, b, ...) test_check((a) != (b), #a " != " #b, __VA_ARGS__)
#define cr_assert_lt(a, b, ...) test_check((a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_assert_leq(a, b, ...) test_check((a) <= (b), #a " <= " #b, __VA_ARGS__)
#define cr_assert_gt(a, b, ...) test_check((a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_assert_geq(a, b, ...) test_check((a) >= (b), #a " >= " #b, __VA_ARGS__)
#define cr_assert_null(p, ...) test_check((p) == NULL, #p " is NULL", __VA_ARGS__)
#define cr_assert_not_null(p, ...) test_check((p) != NULL, #p " is not NULL", __VA_ARGS__)
#define cr_assert_str_eq(a, b, ...) test_check(strcmp((a), (b)) == 0, #a " equals " #b, __VA_ARGS__)
#define cr_fail(...) test_fail(__FILE__, __LINE__, "fail", " " __VA_ARGS__)
#define cr_skip_test(...) test_skip(__FILE__, __LINE__, " " __VA_ARGS__)

#endif
#endif
