/* tune_explain.c - for people: what each algorithm would take, how that is known, and why one is
 * chosen; and all that has been measured. */
#include "tune.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

static double known_ns(const struct tune *t, int row, enum kolo_coll coll, size_t bytes)
{
    size_t n;
    const double ns = t->table.date > 0 ? tune_table_ns(&t->table, row, bytes) : 0;
    return ns > 0 ? ns : tune_cost_ns(&t->facts, &plan_algos(&n)[row], coll, bytes);
}

static void print_date(uint64_t date, struct text *out)
{
    const time_t when = (time_t)date;
    struct tm tm;
    char text[32] = "?";
    if (gmtime_r(&when, &tm))
        strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &tm);
    text_add(out, "%s", text);
}

static void print_origin(const struct tune *t, struct text *out)
{
    char path[1024];
    if (t->table.date == 0) {
        text_add(out, "# times: from a model\n");
        return;
    }
    text_add(out, "# times: measured on this machine, ");
    print_date(t->table.date, out);
    if (tune_store_path(t->table.key, path, sizeof path))
        text_add(out, ", kept in %s", path);
    text_add(out, "; in brackets the model's\n");
}

/* The chosen one against the best of the others. */
static void print_reason(const struct tune *t, enum kolo_coll coll, size_t bytes, bool with_windows,
                         const char *when, struct text *out)
{
    size_t n;
    int rows[TUNE_ALGOS], second = -1;
    const struct plan_algo *algos = plan_algos(&n);
    const struct plan_algo *chosen = tune_choose(t, coll, bytes, with_windows);
    if (!chosen)
        return;
    const size_t found =
        tune_candidates(&t->facts, coll, with_windows && t->facts.has_windows, rows);
    const double ns = known_ns(t, (int)(chosen - algos), coll, bytes);
    double second_ns = 0;
    for (size_t i = 0; i < found; i++) {
        const double other = known_ns(t, rows[i], coll, bytes);
        if (&algos[rows[i]] == chosen || (second >= 0 && other >= second_ns))
            continue;
        second = rows[i];
        second_ns = other;
    }
    text_add(out, "# %s: %s, %.2f us", when, chosen->name, ns * 1e-3);
    if (second < 0)
        text_add(out, ", the only one");
    else if (ns <= second_ns)
        text_add(out, "; the next, %s, would take %.2f times as long", algos[second].name,
                 second_ns / ns);
    else if (t->table.date > 0 && ns <= second_ns * TUNE_AS_FAST_FAVOURITE)
        text_add(out, "; %s takes %.2f us, hardly less: then %s", algos[second].name,
                 second_ns * 1e-3,
                 chosen->flags & ALGO_RANK_ORDER ? "one that reduces in rank order is preferred"
                                                 : "the model's favourite is preferred");
    else
        text_add(
            out,
            "; %s would take %.2f us: KOLO_ALGO, or the choice for sizes nearby, says otherwise",
            algos[second].name, second_ns * 1e-3);
    text_add(out, "\n");
}

void tune_explain(const struct tune *t, enum kolo_coll coll, size_t bytes, struct text *out)
{
    size_t n;
    int rows[TUNE_ALGOS];
    const struct plan_algo *algos = plan_algos(&n);
    const struct plan_algo *chosen = tune_choose(t, coll, bytes, bytes > 0);
    const struct plan_algo *staged = tune_choose(t, coll, bytes, false);
    const size_t found = tune_candidates(&t->facts, coll, true, rows);
    print_origin(t, out);
    for (size_t i = 0; i < found; i++) {
        const struct plan_algo *a = &algos[rows[i]];
        const double measured = t->table.date > 0 ? tune_table_ns(&t->table, rows[i], bytes) : 0;
        const double model = tune_cost_ns(&t->facts, a, coll, bytes);
        text_add(out, "#   %-15s ", a->name);
        if (measured > 0)
            text_add(out, "%10.2f us (%.2f)", measured * 1e-3, model * 1e-3);
        else if (t->table.date > 0)
            text_add(out, "not measured (%.2f)", model * 1e-3);
        else
            text_add(out, "%10.2f us", model * 1e-3);
        text_add(out, "  %s%s\n", a->what,
                 a == chosen   ? "   <- chosen"
                 : a == staged ? "   <- when a buffer is private memory"
                               : "");
    }
    print_reason(t, coll, bytes, bytes > 0, "chosen", out);
    if (chosen != staged)
        print_reason(t, coll, bytes, false, "when a buffer is private memory", out);
}

void tune_table_show(const struct tune_table *t, int nranks, struct text *out)
{
    size_t n;
    const struct plan_algo *algos = plan_algos(&n);
    text_add(out, "%d ranks, measured ", nranks);
    print_date(t->date, out);
    text_add(out, "; us of a call whose largest buffer has\n%-31s", "");
    for (int k = 0; k < TUNE_SIZES; k++)
        text_add(out, " %10" PRIu32, tune_sizes[k]);
    text_add(out, " bytes\n");
    for (size_t i = 0; i < n && i < TUNE_ALGOS; i++) {
        if (t->tenths[i][0] == 0)
            continue;
        text_add(out, "%-15s %-15s", kolo_coll_name((int)algos[i].coll), algos[i].name);
        for (int k = 0; k < TUNE_SIZES; k++) {
            if (t->tenths[i][k] > 0)
                text_add(out, " %10.2f", t->tenths[i][k] * 1e-4);
            else
                text_add(out, " %10s", "-");
        }
        text_add(out, "\n");
    }
}
