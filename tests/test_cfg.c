/* test_cfg.c - options: strict values, ranges, unknown names, what is printed. */
#include "support/test.h"

#include "cfg.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

/* No option set, nothing read yet. */
static void clear_options(void)
{
    for (char **e = environ; *e;) {
        char name[128];
        const size_t n = strcspn(*e, "=");
        if (strncmp(*e, "KOLO_", 5) != 0 || n >= sizeof(name)) {
            e++;
            continue;
        }
        memcpy(name, *e, n);
        name[n] = '\0';
        unsetenv(name);
        e = environ;
    }
    cfg_reset();
}

static void set_option(const char *name, const char *value)
{
    setenv(name, value, 1);
    cfg_reset();
}

Test(cfg, defaults)
{
    clear_options();
    cr_assert_eq(cfg_check(), KOLO_OK);
    cr_assert_eq(cfg_int(CFG_TIMEOUT), 600000);
    cr_assert_eq(cfg_int(CFG_RANK), -1);
    cr_assert_eq(cfg_int(CFG_WAIT), 0);
    cr_assert_eq(cfg_int(CFG_SLOT_BYTES), 131072);
    cr_assert_str_eq(cfg_str(CFG_ALGO), "");
    for (int i = 0; i < CFG_NKEYS; i++)
        cr_assert(!cfg_is_set((enum cfg_key)i), "option %d", i);
}

static const struct {
    enum cfg_key key;
    const char *name;
    const char *text;
    int64_t value;
} good_values[] = {
    {CFG_RANK, "KOLO_RANK", "0", 0},
    {CFG_RANK, "KOLO_RANK", "-1", -1},
    {CFG_RANK, "KOLO_RANK", "2147483647", INT32_MAX},
    {CFG_RANK, "KOLO_RANK", "007", 7},
    {CFG_DETERMINISTIC, "KOLO_DETERMINISTIC", "1", 1},
    {CFG_SPIN_US, "KOLO_SPIN_US", "-1", -1},
    {CFG_SPIN_US, "KOLO_SPIN_US", "1000000", 1000000},
    {CFG_TIMEOUT, "KOLO_TIMEOUT", "1", 1},
    {CFG_TIMEOUT, "KOLO_TIMEOUT", "500ms", 500},
    {CFG_TIMEOUT, "KOLO_TIMEOUT", "10s", 10000},
    {CFG_TIMEOUT, "KOLO_TIMEOUT", "2m", 120000},
    {CFG_TIMEOUT, "KOLO_TIMEOUT", "9223372036854", INT64_MAX / 1000000},
    {CFG_SLOT_BYTES, "KOLO_SLOT_BYTES", "4096", 4096},
    {CFG_SLOT_BYTES, "KOLO_SLOT_BYTES", "64K", 65536},
    {CFG_SLOT_BYTES, "KOLO_SLOT_BYTES", "64k", 65536},
    {CFG_SLOT_BYTES, "KOLO_SLOT_BYTES", "16M", 16777216},
    {CFG_HEAP_BYTES, "KOLO_HEAP_BYTES", "3G", (int64_t)3 << 30},
    {CFG_HEAP_BYTES, "KOLO_HEAP_BYTES", "8589934591G", (int64_t)8589934591 << 30},
    {CFG_HEAP_BYTES, "KOLO_HEAP_BYTES", "9223372036854775807", INT64_MAX},
    {CFG_WAIT, "KOLO_WAIT", "auto", 0},
    {CFG_WAIT, "KOLO_WAIT", "spin", 1},
    {CFG_WAIT, "KOLO_WAIT", "yield", 2},
    {CFG_WAIT, "KOLO_WAIT", "sleep", 3},
};

Test(cfg, good_values)
{
    for (size_t i = 0; i < ARRAY_LEN(good_values); i++) {
        clear_options();
        set_option(good_values[i].name, good_values[i].text);
        cr_assert_eq(cfg_check(), KOLO_OK, "%s=%s: %s", good_values[i].name, good_values[i].text,
                     fail_text());
        cr_assert_eq(cfg_int(good_values[i].key), good_values[i].value, "%s=%s",
                     good_values[i].name, good_values[i].text);
        cr_assert(cfg_is_set(good_values[i].key), "%s", good_values[i].name);
    }
}

static const struct {
    enum cfg_key key;
    const char *name;
    const char *text;
    const char *legal; /* part of the report */
} bad_values[] = {
    {CFG_RANK, "KOLO_RANK", "", "a whole number from -1 to 2147483647"},
    {CFG_RANK, "KOLO_RANK", "-2", "a whole number from -1"},
    {CFG_RANK, "KOLO_RANK", "2147483648", "to 2147483647"},
    {CFG_RANK, "KOLO_RANK", "99999999999999999999", "to 2147483647"},
    {CFG_RANK, "KOLO_RANK", "-99999999999999999999", "from -1"},
    {CFG_RANK, "KOLO_RANK", " 1", "whole number"},
    {CFG_RANK, "KOLO_RANK", "1 ", "whole number"},
    {CFG_RANK, "KOLO_RANK", "+1", "whole number"},
    {CFG_RANK, "KOLO_RANK", "--1", "whole number"},
    {CFG_RANK, "KOLO_RANK", "-", "whole number"},
    {CFG_RANK, "KOLO_RANK", "- 1", "whole number"},
    {CFG_RANK, "KOLO_RANK", "0x10", "whole number"},
    {CFG_RANK, "KOLO_RANK", "1.5", "whole number"},
    {CFG_RANK, "KOLO_RANK", "1K", "whole number"},
    {CFG_RANK, "KOLO_RANK", "one", "whole number"},
    {CFG_DETERMINISTIC, "KOLO_DETERMINISTIC", "2", "from 0 to 1"},
    {CFG_DETERMINISTIC, "KOLO_DETERMINISTIC", "yes", "from 0 to 1"},
    {CFG_TIMEOUT, "KOLO_TIMEOUT", "0", "from 1 to"},
    {CFG_TIMEOUT, "KOLO_TIMEOUT", "-5s", "from 1 to"},
    {CFG_TIMEOUT, "KOLO_TIMEOUT", "10S", "500ms, 10s, 2m"},
    {CFG_TIMEOUT, "KOLO_TIMEOUT", "10 s", "500ms, 10s, 2m"},
    {CFG_TIMEOUT, "KOLO_TIMEOUT", "ms", "500ms, 10s, 2m"},
    {CFG_TIMEOUT, "KOLO_TIMEOUT", "1h", "500ms, 10s, 2m"},
    {CFG_TIMEOUT, "KOLO_TIMEOUT", "9223372036855", "to 9223372036854"},
    {CFG_TIMEOUT, "KOLO_TIMEOUT", "9223372036854775807m", "to 9223372036854"},
    {CFG_SLOT_BYTES, "KOLO_SLOT_BYTES", "4095", "from 4096 to 16777216"},
    {CFG_SLOT_BYTES, "KOLO_SLOT_BYTES", "17M", "from 4096 to 16777216"},
    {CFG_SLOT_BYTES, "KOLO_SLOT_BYTES", "64KB", "64K, 1M, 2G"},
    {CFG_SLOT_BYTES, "KOLO_SLOT_BYTES", "64KK", "64K, 1M, 2G"},
    {CFG_SLOT_BYTES, "KOLO_SLOT_BYTES", "K", "64K, 1M, 2G"},
    {CFG_HEAP_BYTES, "KOLO_HEAP_BYTES", "8589934592G", "64K, 1M, 2G"},
    {CFG_HEAP_BYTES, "KOLO_HEAP_BYTES", "-1", "from 0"},
    {CFG_WAIT, "KOLO_WAIT", "", "one of auto|spin|yield|sleep"},
    {CFG_WAIT, "KOLO_WAIT", "aut", "one of auto|spin|yield|sleep"},
    {CFG_WAIT, "KOLO_WAIT", "autospin", "one of auto|spin|yield|sleep"},
    {CFG_WAIT, "KOLO_WAIT", "auto|spin", "one of auto|spin|yield|sleep"},
    {CFG_WAIT, "KOLO_WAIT", "Spin", "one of auto|spin|yield|sleep"},
    {CFG_WAIT, "KOLO_WAIT", "1", "one of auto|spin|yield|sleep"},
    {CFG_WAIT, "KOLO_WAIT", "how a rank waits", "one of auto|spin|yield|sleep"},
};

Test(cfg, bad_values_are_reported_and_the_default_holds)
{
    for (size_t i = 0; i < ARRAY_LEN(bad_values); i++) {
        clear_options();
        const int64_t standard = cfg_int(bad_values[i].key);
        set_option(bad_values[i].name, bad_values[i].text);
        const char *const what = bad_values[i].text;
        cr_assert_eq(cfg_int(bad_values[i].key), standard, "\"%s\"", what);
        cr_assert(!cfg_is_set(bad_values[i].key), "\"%s\"", what);
        cr_assert_eq(cfg_check(), KOLO_ERR_ARG, "%s \"%s\"", bad_values[i].name, what);
        cr_assert_eq(cfg_check(), KOLO_ERR_ARG, "asked again");
        cr_assert_not_null(strstr(fail_text(), bad_values[i].name), "%s", fail_text());
        cr_assert_not_null(strstr(fail_text(), bad_values[i].text), "%s", fail_text());
        cr_assert_not_null(strstr(fail_text(), bad_values[i].legal), "%s", fail_text());
    }
}

Test(cfg, texts_are_kept_whole_or_refused)
{
    char word[4097];
    memset(word, 'w', sizeof(word));
    clear_options();
    word[4096] = '\0';
    set_option("KOLO_PLAN_FILE", word);
    cr_assert_str_eq(cfg_str(CFG_PLAN_FILE), "");
    cr_assert_eq(cfg_check(), KOLO_ERR_ARG);
    cr_assert_not_null(strstr(fail_text(), "KOLO_PLAN_FILE"), "%s", fail_text());
    cr_assert_not_null(strstr(fail_text(), "4096 bytes"), "%s", fail_text());
    word[4095] = '\0';
    set_option("KOLO_PLAN_FILE", word);
    cr_assert_eq(cfg_check(), KOLO_OK);
    cr_assert_str_eq(cfg_str(CFG_PLAN_FILE), word);
    set_option("KOLO_PLAN_FILE", "");
    cr_assert_eq(cfg_check(), KOLO_OK);
    cr_assert(cfg_is_set(CFG_PLAN_FILE)); /* set to the empty text */
    cr_assert_str_eq(cfg_str(CFG_PLAN_FILE), "");
}

Test(cfg, the_environment_is_read_once)
{
    clear_options();
    set_option("KOLO_ALGO", "all_reduce:ring");
    const char *const before = cfg_str(CFG_ALGO);
    setenv("KOLO_ALGO", "all_reduce:tree", 1);
    setenv("KOLO_RANK", "5", 1);
    cr_assert_eq(cfg_str(CFG_ALGO), before);
    cr_assert_str_eq(before, "all_reduce:ring");
    cr_assert_eq(cfg_int(CFG_RANK), -1);
    cfg_reset();
    cr_assert_str_eq(cfg_str(CFG_ALGO), "all_reduce:tree");
    cr_assert_eq(cfg_int(CFG_RANK), 5);
}

Test(cfg, unknown_names_are_reported_with_the_nearest)
{
    static const struct {
        const char *name;
        const char *nearest;
    } cases[] = {
        {"KOLO_TIMOUT", "did you mean KOLO_TIMEOUT?"},
        {"KOLO_LOGS", "did you mean KOLO_LOG?"},
        {"KOLO_SLOTBYTES", "did you mean KOLO_SLOT_BYTES?"},
        {"KOLO_LOCALRANK", "did you mean KOLO_LOCAL_RANK?"},
        {"KOLO_", "did you mean KOLO_"},
        {"KOLO_log", "did you mean KOLO_LOG?"},
        {"KOLO_BENCH", "did you mean KOLO_"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        clear_options();
        set_option(cases[i].name, "1");
        cr_assert_eq(cfg_check(), KOLO_ERR_ARG, "%s", cases[i].name);
        cr_assert_not_null(strstr(fail_text(), cases[i].name), "%s", fail_text());
        cr_assert_not_null(strstr(fail_text(), cases[i].nearest), "%s", fail_text());
    }
}

Test(cfg, a_name_of_any_length_is_reported)
{
    char name[3000] = "KOLO_";
    memset(name + 5, 'Z', sizeof(name) - 6);
    clear_options();
    set_option(name, "1");
    cr_assert_eq(cfg_check(), KOLO_ERR_ARG);
    cr_assert_not_null(strstr(fail_text(), "KOLO_ZZZ"));
    unsetenv(name);
    cfg_reset();
}

Test(cfg, names_of_tools_and_of_others_are_not_ours)
{
    clear_options();
    set_option("KOLO_BENCH_ANY", "1");
    set_option("KOLO_TEST_SEED", "x");
    set_option("KOLO_PEER_MPI", "x");
    setenv("KOLOSSUS", "x", 1);
    setenv("kolo_RANK", "x", 1);
    cfg_reset();
    cr_assert_eq(cfg_check(), KOLO_OK, "%s", fail_text());
    unsetenv("KOLOSSUS");
    unsetenv("kolo_RANK");
}

Test(cfg, an_unreadable_log_specification_is_reported)
{
    clear_options();
    set_option("KOLO_LOG", "loud");
    cr_assert_eq(cfg_check(), KOLO_ERR_ARG);
    cr_assert_not_null(strstr(fail_text(), "KOLO_LOG is \"loud\""), "%s", fail_text());
    clear_options();
}

Test(cfg, an_empty_environment_is_fine)
{
    char **const saved = environ;
    char *none[] = {NULL};
    environ = none;
    cfg_reset();
    cr_assert_eq(cfg_check(), KOLO_OK);
    environ = NULL; /* after clearenv() */
    cfg_reset();
    cr_assert_eq(cfg_check(), KOLO_OK);
    environ = saved;
    cfg_reset();
}

/* The line of `text` that starts with `name` and a space; copied to `line`. */
static bool find_line(const char *text, const char *name, char *line, size_t size)
{
    for (const char *at = text; *at;) {
        const size_t n = strcspn(at, "\n");
        if (n < size && strncmp(at, name, strlen(name)) == 0 && at[strlen(name)] == ' ') {
            memcpy(line, at, n);
            line[n] = '\0';
            return true;
        }
        at += n + (at[n] == '\n');
    }
    return false;
}

Test(cfg, print_has_a_row_for_each_option)
{
    static char text[16384];
    char line[512];
    char value[64];
    char origin[64];
    char usual[64];
    struct text t;
    clear_options();
    set_option("KOLO_SETUP_TIMEOUT", "2m");
    set_option("KOLO_WAIT", "yield");
    set_option("KOLO_SLOT_BYTES", "1");
    text_init(&t, text, sizeof(text));
    cfg_print(&t);
    cr_assert_lt(t.used, sizeof(text));
#define X(key, name, ...)                                                                          \
    cr_assert(find_line(text, name, line, sizeof(line)), name " in:\n%s", text);
    CFG_TABLE(X)
#undef X
    static const char *const rows[][4] = {
        {"KOLO_SETUP_TIMEOUT", "120000ms", "environment", "120000ms"},
        {"KOLO_WAIT", "yield", "environment", "auto"},
        {"KOLO_SLOT_BYTES", "131072", "default", "131072"},
        {"KOLO_LOG", "-", "default", "-"},
        {"name", "value", "origin", "default"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        cr_assert(find_line(text, rows[i][0], line, sizeof(line)));
        cr_assert_eq(sscanf(line, "%*s %63s %63s %63s", value, origin, usual), 3, "%s", line);
        cr_assert_str_eq(value, rows[i][1], "%s", line);
        cr_assert_str_eq(origin, rows[i][2], "%s", line);
        cr_assert_str_eq(usual, rows[i][3], "%s", line);
    }
    cr_assert(find_line(text, "KOLO_SLOT_BYTES", line, sizeof(line)));
    cr_assert_not_null(strstr(line, "not legal"), "%s", line);
    clear_options();
}

/* Every column starts at the same place in each row, however long the values are. */
Test(cfg, print_is_aligned)
{
    static char text[16384];
    struct text t;
    clear_options();
    set_option("KOLO_ADDR", "a-very-long-host-name.of.a.very.long.domain:12345");
    text_init(&t, text, sizeof(text));
    cfg_print(&t);
    const size_t column = (size_t)(strstr(text, "origin") - text);
    int rows = 0;
    for (const char *at = text; *at; at += strcspn(at, "\n") + 1, rows++) {
        const char *const cell = at + column;
        cr_assert_gt(strcspn(at, "\n"), column, "%s", at);
        cr_assert_eq(cell[-1], ' ', "%.80s", at);
        cr_assert(strncmp(cell, "origin ", 7) == 0 || strncmp(cell, "default ", 8) == 0 ||
                      strncmp(cell, "environment ", 12) == 0,
                  "%.80s", at);
    }
    cr_assert_eq(rows, CFG_NKEYS + 1);
    clear_options();
}

Test(cfg, the_secret_is_never_shown)
{
    static char text[16384];
    char *const secret = calloc(1, 5000);
    struct text t;
    clear_options();
    memset(secret, 's', 4999); /* too long: reported */
    memcpy(secret, "opensesame", 10);
    for (int i = 0; i < 2; i++) {
        set_option("KOLO_SECRET", secret);
        cr_assert_eq(cfg_check(), i == 0 ? KOLO_ERR_ARG : KOLO_OK);
        cr_assert_null(strstr(fail_text(), "opensesame"));
        text_init(&t, text, sizeof(text));
        cfg_print(&t);
        cr_assert_null(strstr(text, "opensesame"));
        secret[10] = '\0';
    }
    cr_assert_str_eq(cfg_str(CFG_SECRET), "opensesame");
    free(secret);
    clear_options();
}

Test(cfg, print_shows_unknown_names)
{
    static char text[16384];
    struct text t;
    clear_options();
    set_option("KOLO_RANKS", "1");
    text_init(&t, text, sizeof(text));
    cfg_print(&t);
    cr_assert_not_null(strstr(text, "KOLO_RANKS is set, but not known to Kolo; did you mean "
                                    "KOLO_RANK?"));
    clear_options();
}
