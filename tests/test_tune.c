/* test_tune.c - choosing by measured times: tables and their text, which refuses anything odd; the
 * cache folder; the choice; and communicators that measure, or take what is there, alike on all
 * ranks. */
#include "cfg.h"
#include "comm.h"
#include "mem.h"
#include "support/ranks.h"
#include "support/test.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a cache folder of the test's own ---- */

static char dir[64];

static void use_mode(const char *mode)
{
    setenv("KOLO_TUNE", mode, 1);
    cfg_reset();
}

static void enter(const char *mode)
{
    strcpy(dir, "/tmp/kolo-test-tune-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    setenv("XDG_CACHE_HOME", dir, 1);
    use_mode(mode);
}

/* How many files the folder holds; they are removed. */
static int leave(void)
{
    char path[512];
    int n = 0;
    snprintf(path, sizeof path, "%s/kolo", dir);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/kolo/%s", dir, e->d_name);
        if (remove(path) == 0)
            n++;
    }
    if (d)
        closedir(d);
    snprintf(path, sizeof path, "%s/kolo", dir);
    rmdir(path);
    rmdir(dir);
    unsetenv("XDG_CACHE_HOME");
    use_mode("model");
    return n;
}

static struct tune_facts facts_of(int n)
{
    struct tune_facts f = {.nranks = n, .nranks_here = n, .has_windows = true};
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    f.ncpus = CPU_COUNT(&set);
    return f;
}

static int row_of(enum kolo_coll coll, const char *name)
{
    size_t n;
    const struct plan_algo *a = plan_algo_find(coll, name);
    cr_assert_not_null(a, "there is no %s", name);
    return (int)(a - plan_algos(&n));
}

/* All algorithms equally fast. */
static struct tune_table flat_table(uint64_t key)
{
    struct tune_table t = {.key = key, .date = 1700000000};
    size_t n;
    plan_algos(&n);
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < TUNE_SIZES; k++)
            t.tenths[i][k] = tune_sizes[k] + 1000;
    return t;
}

static void set_times(struct tune_table *t, enum kolo_coll coll, const char *name, double factor)
{
    uint32_t *at = t->tenths[row_of(coll, name)];
    for (int k = 0; k < TUNE_SIZES; k++)
        at[k] = (uint32_t)((tune_sizes[k] + 1000) * factor);
}

/* ---- tables ---- */

Test(tune, between_and_beyond)
{
    struct tune_table t = {.key = 1, .date = 1};
    cr_assert_eq(tune_table_ns(&t, 0, 100), 0.0, "nothing was measured");
    t.tenths[0][0] = 70;
    cr_assert_eq(tune_table_ns(&t, 0, 0), 7.0);
    cr_assert_eq(tune_table_ns(&t, 0, 1 << 30), 7.0, "one size says nothing of others");
    t.tenths[0][1] = 170;
    t.tenths[0][2] = 170;
    const double half = tune_table_ns(&t, 0, (tune_sizes[0] + tune_sizes[1]) / 2);
    cr_assert(half > 11.9 && half < 12.1, "%f half way between 7 and 17", half);
    cr_assert_eq(tune_table_ns(&t, 0, tune_sizes[1]), 17.0);
    cr_assert_eq(tune_table_ns(&t, 0, 1 << 30), 17.0, "no slope at the end, none beyond it");
    t.tenths[0][2] = 160;
    cr_assert(tune_table_ns(&t, 0, (size_t)1 << 60) > 0, "a falling end must not become negative");
    for (int k = 0; k < TUNE_SIZES; k++)
        t.tenths[1][k] = tune_sizes[k] * 10;
    const double far = tune_table_ns(&t, 1, 8 << 20);
    cr_assert(far > (8 << 20) * 0.99 && far < (8 << 20) * 1.01, "%f ns for 8 MiB", far);
}

Test(tune, settles_small_disorder_and_refuses_large)
{
    struct tune_table t = flat_table(1);
    const int ring = row_of(KOLO_COLL_ALL_REDUCE, "ring");
    t.tenths[ring][0] = t.tenths[ring][1] + 5;
    cr_assert(tune_table_settle(&t));
    cr_assert_eq(t.tenths[ring][0], t.tenths[ring][1]);
    t.tenths[ring][1] = t.tenths[ring][2] * 2;
    cr_assert(tune_table_settle(&t), "one collective is odd, the others are not");
    const int oneshot = row_of(KOLO_COLL_ALL_REDUCE, "oneshot");
    cr_assert_eq(t.tenths[oneshot][0], 0u, "its rivals must not win for that");
    cr_assert(t.tenths[row_of(KOLO_COLL_REDUCE, "flat")][0] > 0);
    t = flat_table(1);
    size_t n;
    const struct plan_algo *algos = plan_algos(&n);
    for (size_t i = 0; i < n; i++)
        if (algos[i].coll != KOLO_COLL_ALL_REDUCE && algos[i].coll != KOLO_COLL_GATHER)
            t.tenths[i][0] = 1u << 30;
    cr_assert(!tune_table_settle(&t), "most collectives are odd");
}

static size_t print(const struct tune_table *t, char *text, size_t size)
{
    struct text out;
    text_init(&out, text, size);
    tune_table_print(t, 4, &out);
    cr_assert_lt(out.used, size);
    return out.used;
}

Test(tune, text_comes_back)
{
    char text[8192];
    struct tune_table t = flat_table(0xfedcba9876543210u), back;
    memset(t.tenths[3], 0, sizeof t.tenths[3]);
    t.tenths[5][3] = t.tenths[5][4] = 0;
    t.tenths[7][0] = UINT32_MAX;
    const size_t n = print(&t, text, sizeof text);
    cr_assert(tune_table_parse(text, n, t.key, &back), "refuses\n%s", text);
    cr_assert_eq(memcmp(&back, &t, sizeof t), 0, "comes back different");
    cr_assert(!tune_table_parse(text, n, t.key + 1, &back), "of another machine");
}

/* Cut off anywhere, longer, or with any byte changed: refused, and nothing is written. */
Test(tune, text_with_any_fault_is_refused)
{
    static char text[8192];
    const struct tune_table t = flat_table(42);
    struct tune_table back, untouched;
    memset(&back, 0x5a, sizeof back);
    untouched = back;
    const size_t n = print(&t, text, sizeof text - 1);
    for (size_t k = 0; k < n; k++)
        cr_assert(!tune_table_parse(text, k, 42, &back), "takes the first %zu bytes", k);
    text[n] = '\n';
    cr_assert(!tune_table_parse(text, n + 1, 42, &back), "takes a byte too much");
    for (size_t k = 0; k < n; k++)
        for (int bit = 0; bit < 8; bit++) {
            text[k] = (char)(text[k] ^ 1 << bit);
            cr_assert(!tune_table_parse(text, n, 42, &back), "takes bit %d of byte %zu flipped",
                      bit, k);
            text[k] = (char)(text[k] ^ 1 << bit);
        }
    cr_assert_eq(memcmp(&back, &untouched, sizeof back), 0);
    cr_assert(tune_table_parse(text, n, 42, &back), "refuses the right one after all");
}

/* ---- choosing ---- */

static const char *choice(const struct tune *t, enum kolo_coll coll, size_t bytes, bool windows)
{
    const struct plan_algo *a = tune_choose(t, coll, bytes, windows);
    return a ? a->name : "none";
}

Test(tune, takes_the_fastest)
{
    struct tune_facts f = facts_of(4);
    static struct tune t;
    struct tune_table table = flat_table(1);
    use_mode("model");
    set_times(&table, KOLO_COLL_BROADCAST, "circulant", 0.5);
    set_times(&table, KOLO_COLL_ALL_REDUCE, "tree", 0.5);
    set_times(&table, KOLO_COLL_ALL_REDUCE, "window", 0.4);
    cr_assert_eq(tune_init(&t, &f), KOLO_OK);
    cr_assert_eq(tune_apply(&t, &table), KOLO_OK);
    for (size_t bytes = 1; bytes < (size_t)1 << 40; bytes *= 2) {
        cr_assert_str_eq(choice(&t, KOLO_COLL_BROADCAST, bytes, false), "circulant");
        cr_assert_str_eq(choice(&t, KOLO_COLL_ALL_REDUCE, bytes, false), "tree");
        cr_assert_str_eq(choice(&t, KOLO_COLL_ALL_REDUCE, bytes, true), "window");
    }
    cr_assert_str_eq(choice(&t, KOLO_COLL_SEND, 100, false), "none");
    f.deterministic = true;
    cr_assert_eq(tune_init(&t, &f), KOLO_OK);
    cr_assert_eq(tune_apply(&t, &table), KOLO_OK);
    for (size_t bytes = 1; bytes < (size_t)1 << 40; bytes *= 2) {
        const struct plan_algo *a = tune_choose(&t, KOLO_COLL_ALL_REDUCE, bytes, false);
        cr_assert(a->flags & ALGO_RANK_ORDER, "%s does not reduce in rank order", a->name);
    }
}

Test(tune, prefers_rank_order_when_hardly_slower)
{
    const struct tune_facts f = facts_of(4);
    static struct tune t;
    struct tune_table table = flat_table(1);
    use_mode("model");
    set_times(&table, KOLO_COLL_ALL_REDUCE, "twoshot", 0.54);
    set_times(&table, KOLO_COLL_ALL_REDUCE, "tree", 0.5);
    cr_assert_eq(tune_init(&t, &f), KOLO_OK);
    cr_assert_eq(tune_apply(&t, &table), KOLO_OK);
    cr_assert_str_eq(choice(&t, KOLO_COLL_ALL_REDUCE, 5000, false), "twoshot");
    set_times(&table, KOLO_COLL_ALL_REDUCE, "twoshot", 0.8);
    cr_assert_eq(tune_apply(&t, &table), KOLO_OK);
    cr_assert_str_eq(choice(&t, KOLO_COLL_ALL_REDUCE, 5000, false), "tree");
}

Test(tune, what_was_given_up_wins_no_larger_size)
{
    const struct tune_facts f = facts_of(4);
    static struct tune t;
    struct tune_table table = flat_table(1);
    use_mode("model");
    set_times(&table, KOLO_COLL_ALL_REDUCE, "tree", 0.5);
    uint32_t *at = table.tenths[row_of(KOLO_COLL_ALL_REDUCE, "tree")];
    for (int k = 2; k < TUNE_SIZES; k++)
        at[k] = 0;
    cr_assert_eq(tune_init(&t, &f), KOLO_OK);
    cr_assert_eq(tune_apply(&t, &table), KOLO_OK);
    cr_assert_str_eq(choice(&t, KOLO_COLL_ALL_REDUCE, tune_sizes[1], false), "tree");
    for (size_t bytes = tune_sizes[1] * 2; bytes < (size_t)1 << 40; bytes *= 2)
        cr_assert_neq(strcmp(choice(&t, KOLO_COLL_ALL_REDUCE, bytes, false), "tree"), 0);
}

Test(tune, what_was_not_measured_is_left_to_the_model)
{
    const struct tune_facts f = facts_of(4);
    static struct tune model, t;
    const struct tune_table table = {.key = 1, .date = 1};
    use_mode("model");
    cr_assert_eq(tune_init(&model, &f), KOLO_OK);
    cr_assert_eq(tune_init(&t, &f), KOLO_OK);
    cr_assert_eq(tune_apply(&t, &table), KOLO_OK);
    cr_assert_eq(memcmp(t.choice, model.choice, sizeof t.choice), 0);
    cr_assert_eq(memcmp(t.choice_v, model.choice_v, sizeof t.choice_v), 0);
}

Test(tune, an_option_overrules_what_was_measured)
{
    const struct tune_facts f = facts_of(4);
    static struct tune t;
    struct tune_table table = flat_table(1);
    set_times(&table, KOLO_COLL_ALL_REDUCE, "tree", 0.5);
    setenv("KOLO_ALGO", "all_reduce:ring", 1);
    use_mode("model");
    cr_assert_eq(tune_init(&t, &f), KOLO_OK);
    cr_assert_eq(tune_apply(&t, &table), KOLO_OK);
    cr_assert_str_eq(choice(&t, KOLO_COLL_ALL_REDUCE, 5000, false), "ring");
    unsetenv("KOLO_ALGO");
    cfg_reset();
}

/* ---- the folder ---- */

Test(tune, key_depends_on_what_matters)
{
    use_mode("model");
    struct tune_facts f = facts_of(4);
    const uint64_t key = tune_key(&f);
    cr_assert_eq(tune_key(&f), key);
    f.has_remote = true;
    cr_assert_eq(tune_key(&f), key, "private memory through the kernel is chosen elsewhere");
    f.nranks = f.nranks_here = 5;
    cr_assert_neq(tune_key(&f), key);
    f = facts_of(4);
    f.shares_cpu = true;
    cr_assert_neq(tune_key(&f), key);
    f = facts_of(4);
    f.deterministic = true;
    cr_assert_neq(tune_key(&f), key);
    f = facts_of(4);
    setenv("KOLO_SLOT_BYTES", "65536", 1);
    cfg_reset();
    cr_assert_neq(tune_key(&f), key);
    unsetenv("KOLO_SLOT_BYTES");
    cfg_reset();
}

Test(tune, folder_keeps_what_it_is_given)
{
    enter("auto");
    char path[1024];
    struct stat about;
    const struct tune_table t = flat_table(0x1234);
    struct tune_table found;
    cr_assert(!tune_store_find(0x1234, true, &found), "an empty folder has an entry");
    tune_store_keep(&t, 4, true);
    cr_assert(tune_store_path(0x1234, path, sizeof path));
    cr_assert_eq(stat(path, &about), 0, "%s is not there", path);
    cr_assert_eq((int)about.st_mode & 0777, 0600);
    *strrchr(path, '/') = 0;
    cr_assert_eq(stat(path, &about), 0);
    cr_assert_eq((int)about.st_mode & 0777, 0700);
    cr_assert(tune_store_find(0x1234, false, &found), "this process has forgotten it");
    /* More than the process keeps: it comes from the file then. */
    for (uint64_t key = 1; key <= 64; key++) {
        const struct tune_table other = flat_table(key);
        tune_store_keep(&other, 4, false);
    }
    cr_assert(!tune_store_find(0x1234, false, &found), "memory never ends");
    cr_assert(tune_store_find(0x1234, true, &found));
    cr_assert_eq(memcmp(&found, &t, sizeof t), 0);
    cr_assert_eq(leave(), 1, "temporary files are left");
}

static void spoil(const char *path, const char *how)
{
    unlink(path);
    rmdir(path);
    if (strcmp(how, "directory") == 0) {
        cr_assert_eq(mkdir(path, 0700), 0);
    } else if (strcmp(how, "fifo") == 0) {
        cr_assert_eq(mkfifo(path, 0600), 0);
    } else if (strcmp(how, "link") == 0) {
        cr_assert_eq(symlink("/etc/passwd", path), 0);
    } else {
        FILE *f = fopen(path, "w");
        cr_assert_not_null(f);
        for (int i = 0; i < (strcmp(how, "long") == 0 ? 100000 : 1); i++)
            fputs(how, f);
        fclose(f);
    }
}

Test(tune, odd_files_count_as_missing)
{
    static const char *const ways[] = {"directory", "fifo", "link", "long", "kolo tune 1\n", ""};
    enter("auto");
    char path[1024];
    struct tune_table t = flat_table(77), found;
    tune_store_keep(&t, 4, true);
    for (uint64_t key = 100; key < 164; key++) {
        const struct tune_table other = flat_table(key);
        tune_store_keep(&other, 4, false);
    }
    cr_assert(tune_store_path(77, path, sizeof path));
    for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
        spoil(path, ways[i]);
        cr_assert(!tune_store_find(77, true, &found), "takes a %s", ways[i]);
    }
    cr_assert_eq(leave(), 1);
}

Test(tune, without_a_folder_nothing_is_kept)
{
    char path[1024];
    struct tune_table t = flat_table(88), found;
    const char *home = getenv("HOME");
    char *kept = home ? strdup(home) : NULL;
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    use_mode("auto");
    cr_assert(!tune_store_path(88, path, sizeof path));
    tune_store_keep(&t, 4, true);
    cr_assert(tune_store_find(88, true, &found), "not even in memory");
    setenv("XDG_CACHE_HOME", "relative", 1);
    cfg_reset();
    cr_assert(!tune_store_path(88, path, sizeof path), "a relative folder is none");
    setenv("XDG_CACHE_HOME", "/proc/kolo-no-such", 1);
    cfg_reset();
    tune_store_keep(&t, 4, true); /* cannot be made: no error */
    unsetenv("XDG_CACHE_HOME");
    if (kept)
        setenv("HOME", kept, 1);
    free(kept);
    use_mode("model");
}

/* ---- communicators ---- */

/* The rank's choices equal rank 0's, nothing of measuring shows, and sums are right. */
static const char *check_rank(struct kolo_comm *comm, void *arg)
{
    const char *expected = arg; /* of all_reduce, staged; or NULL */
    enum { ROOM = sizeof comm->tune.choice + sizeof comm->tune.choice_v };
    static _Thread_local unsigned char mine[ROOM], first[ROOM];
    for (int c = 0; c < KOLO_NCOLLS; c++)
        if (comm->engine->counters.operations[c] != 0)
            return "counts operations that the user has not called";
    if (comm->engine->record.next != 0)
        return "remembers the measuring";
    memcpy(mine, comm->tune.choice, sizeof comm->tune.choice);
    memcpy(mine + sizeof comm->tune.choice, comm->tune.choice_v, sizeof comm->tune.choice_v);
    memcpy(first, mine, ROOM);
    if (kolo_broadcast(first, first, ROOM, KOLO_U8, 0, comm, NULL) != KOLO_OK)
        return ranks_text("broadcast: %s", kolo_last_error(comm));
    if (memcmp(first, mine, ROOM) != 0)
        return "chooses otherwise than rank 0";
    if (expected && strcmp(choice(&comm->tune, KOLO_COLL_ALL_REDUCE, 5000, false), expected) != 0)
        return ranks_text("chooses %s, the table says %s",
                          choice(&comm->tune, KOLO_COLL_ALL_REDUCE, 5000, false), expected);
    for (int count = 1; count < 100000; count *= 7) {
        static _Thread_local int32_t in[100000], out[100000];
        for (int i = 0; i < count; i++)
            in[i] = i + comm->rank;
        if (kolo_all_reduce(in, out, (size_t)count, KOLO_I32, KOLO_SUM, comm, NULL) != KOLO_OK)
            return ranks_text("all_reduce: %s", kolo_last_error(comm));
        for (int i = 0; i < count; i++)
            if (out[i] != i * comm->nranks + comm->nranks * (comm->nranks - 1) / 2)
                return ranks_text("a wrong sum of %d elements", count);
    }
    return NULL;
}

/* Whether the times are believed depends on the machine's mood; that all agree does not. */
Test(tune, ranks_measure_and_agree)
{
    for (int n = 2; n <= 4; n++) {
        enter("measure");
        const char *wrong = ranks_processes(n, NULL, check_rank, NULL, -1);
        cr_assert(!wrong, "%d processes: %s", n, wrong);
        wrong = ranks_threads(n, NULL, check_rank, NULL);
        cr_assert(!wrong, "%d threads: %s", n, wrong);
        const int files = leave();
        cr_assert(files <= 1, "%d files are left", files);
    }
}

Test(tune, deterministic_ranks_measure_and_agree)
{
    struct kolo_config config = KOLO_CONFIG_INIT;
    config.deterministic = 1;
    enter("measure");
    const char *wrong = ranks_processes(3, &config, check_rank, NULL, -1);
    cr_assert(!wrong, "%s", wrong);
    leave();
}

Test(tune, ranks_take_what_is_in_the_folder)
{
    for (int n = 2; n <= 5; n++) {
        enter("auto");
        const struct tune_facts f = facts_of(n);
        struct tune_table t = flat_table(tune_key(&f));
        set_times(&t, KOLO_COLL_ALL_REDUCE, "tree", 0.3);
        tune_store_keep(&t, n, true);
        const char *wrong = ranks_processes(n, NULL, check_rank, (void *)"tree", -1);
        cr_assert(!wrong, "%d processes: %s", n, wrong);
        wrong = ranks_threads(n, NULL, check_rank, (void *)"tree");
        cr_assert(!wrong, "%d threads: %s", n, wrong);
        cr_assert_eq(leave(), 1);
    }
}

static const char *split_and_check(struct kolo_comm *comm, void *arg)
{
    struct kolo_comm *half;
    if (kolo_comm_split(comm, comm->rank % 2, 0, NULL, &half) != KOLO_OK)
        return ranks_text("split: %s", kolo_last_error(comm));
    const char *wrong = check_rank(half, arg);
    kolo_comm_destroy(half);
    return wrong;
}

Test(tune, split_ranks_agree)
{
    enter("auto");
    const char *wrong = ranks_processes(4, NULL, split_and_check, NULL, -1);
    cr_assert(!wrong, "%s", wrong);
    leave();
}

Test(tune, the_model_touches_no_file)
{
    enter("model");
    const struct tune_facts f = facts_of(2);
    struct tune_table t = flat_table(tune_key(&f));
    set_times(&t, KOLO_COLL_ALL_REDUCE, "tree", 0.3);
    tune_store_keep(&t, 2, false);
    const char *wrong = ranks_processes(2, NULL, check_rank, (void *)"oneshot", -1);
    cr_assert(!wrong, "%s", wrong);
    cr_assert_eq(leave(), 0);
}

/* Whichever allocation fails: an error, or the model's choice; nothing leaks, nobody hangs. */
Test(tune, survives_any_failing_allocation)
{
    enter("measure");
    struct kolo_comm *comms[2];
    const int64_t live = mem_live();
    const uint64_t before = mem_count();
    cr_assert_eq(kolo_comm_create_local(2, NULL, comms), KOLO_OK);
    const uint64_t needed = mem_count() - before;
    for (int r = 0; r < 2; r++)
        kolo_comm_destroy(comms[r]);
    for (uint64_t nth = 1; nth <= needed; nth += 1 + needed / 60) {
        setenv("KOLO_SLOT_BYTES", nth % 2 ? "8192" : "12288", 1);
        cfg_reset();
        for (uint64_t key = 1000; key < 1064; key++) {
            const struct tune_table other = flat_table(key);
            tune_store_keep(&other, 2, false); /* so that it measures again */
        }
        mem_fail_at(nth);
        const enum kolo_status status = kolo_comm_create_local(2, NULL, comms);
        mem_fail_at(0);
        cr_assert(status == KOLO_OK || status == KOLO_ERR_NOMEM, "allocation %" PRIu64 ": %s", nth,
                  kolo_status_string(status));
        for (int r = 0; r < 2 && status == KOLO_OK; r++)
            kolo_comm_destroy(comms[r]);
        cr_assert_eq(mem_live(), live, "allocation %" PRIu64 " leaves %lld blocks", nth,
                     (long long)(mem_live() - live));
    }
    unsetenv("KOLO_SLOT_BYTES");
    leave();
}

/* ---- telling ---- */

Test(tune, explains_where_times_come_from)
{
    enter("auto");
    const struct tune_facts f = facts_of(4);
    struct tune_table t = flat_table(tune_key(&f));
    set_times(&t, KOLO_COLL_ALL_REDUCE, "tree", 0.3);
    tune_store_keep(&t, 4, true);
    struct kolo_query q = {.size = sizeof q,
                           .coll = KOLO_COLL_ALL_REDUCE,
                           .nranks = 4,
                           .count = 5000,
                           .type = KOLO_F32};
    static char text[65536];
    cr_assert_eq(kolo_explain(NULL, &q, text, sizeof text, NULL), KOLO_OK);
    cr_assert_not_null(strstr(text, "measured on this machine, 2023-11-14"), "%s", text);
    cr_assert_not_null(strstr(text, dir), "%s", text);
    cr_assert_not_null(strstr(text, "chosen: tree"), "%s", text);
    cr_assert_not_null(strstr(text, "3.33 times as long"), "%s", text);
    cr_assert_eq(kolo_describe(KOLO_TOPIC_TUNE, text, sizeof text, NULL), KOLO_OK);
    cr_assert_not_null(strstr(text, "4 ranks, measured 2023-11-14"), "%s", text);
    use_mode("model");
    cr_assert_eq(kolo_explain(NULL, &q, text, sizeof text, NULL), KOLO_OK);
    cr_assert_not_null(strstr(text, "times: from a model"), "%s", text);
    leave();
}
