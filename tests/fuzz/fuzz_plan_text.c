/* fuzz_plan_text.c - any text parses or is refused; a plan that parses prints as a text that parses
 * as an equal plan, and prints the same again. */
#include "mem.h"
#include "plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool is_right, const char *what)
{
    if (!is_right) {
        (void)fprintf(stderr, "fuzz_plan_text: %s: %s\n", what, fail_text());
        abort();
    }
}

/* The text of a plan, which the caller frees, and its length. */
static char *print(const struct plan *p, size_t *n)
{
    struct text text;
    text_init(&text, NULL, 0);
    plan_print(p, &text);
    *n = text.used;
    char *const buffer = malloc(*n + 1);
    check(buffer != NULL, "no memory");
    text_init(&text, buffer, *n + 1);
    plan_print(p, &text);
    check(text.used == *n, "printed a different length");
    return buffer;
}

static void round_trip(const struct plan *p)
{
    struct plan *again = NULL;
    size_t n;
    size_t n_again;
    char *const text = print(p, &n);
    const char *at = text;
    check(plan_parse(&at, text + n, &again) == KOLO_OK, "the print does not parse");
    check(plan_equal(p, again), "the print parses as another plan");
    char *const text_again = print(again, &n_again);
    check(n == n_again && memcmp(text, text_again, n) == 0, "the print changes");
    free(text_again);
    free(text);
    plan_destroy(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const int64_t live = mem_live();
    const char *at = (const char *)data;
    const char *const end = at + size;
    struct plan *p;
    while (plan_parse(&at, end, &p) == KOLO_OK) {
        round_trip(p);
        plan_destroy(p);
    }
    check(mem_live() == live, "memory leaks");
    return 0;
}
