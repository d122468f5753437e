/* tune.c - a cost model in five numbers, and the lower envelope that it gives.
 *
 *   ns = hops * hand_over + messages * pieces * message + bytes touched * per_byte
 *
 * With more ranks than CPUs a hand-over waits for the other ranks of the CPU, their work adds up
 * on it, and links run full.  The numbers are of a 2-core virtual machine on Zen 4 (2026-11-30,
 * kolo_bench and compare); they place the crossings, they do not promise times. */
#include "tune.h"
#include "cfg.h"

#include <string.h>

#define HAND_OVER_NS 130.0          /* flag and line from core to core, with the engine's step */
#define HAND_OVER_CROWDED_NS 2400.0 /* sched_yield to another rank of the same CPU */
#define MESSAGE_NS 55.0             /* one cell written or read, beyond its bytes */
#define CACHED_NS_PER_BYTE 0.030    /* read or written, while all buffers fit into the caches */
#define CROWDED_NS_PER_BYTE 0.022   /* the same where ranks share CPUs, and so caches */
#define CROWDED_MEMORY_NS_PER_BYTE 0.040
#define MEMORY_NS_PER_BYTE 0.085
#define CACHE_BYTES (16.0 * 1024 * 1024)
#define PIECE_BYTES 131072.0             /* as job.c cuts most link messages */
#define REFILL_BYTES (4.0 * PIECE_BYTES) /* slots of a link: then the other end must run */

static double per_byte(const struct tune_facts *f, double bytes)
{
    return bytes * 2 * f->nranks > CACHE_BYTES ? MEMORY_NS_PER_BYTE : CACHED_NS_PER_BYTE;
}

/* Ranks that share CPUs: their work adds up, and a long stream through a link stops whenever its
 * slots are full, until its other end has had the CPU. */
static double crowded_ns(const struct tune_facts *f, const struct plan_cost *c, double hops,
                         double messages, double bytes)
{
    const double ncpus = max_int(f->ncpus, 1);
    const double per_cpu = (f->nranks_here + ncpus - 1) / ncpus;
    const double total = c->total > 0 ? c->total : c->touched * f->nranks;
    const double link = c->link > 0 ? c->link : c->messages > 0 ? 2 * c->sent / c->messages : 0;
    const double refills = link * bytes / REFILL_BYTES;
    const double rate =
        bytes * 2 * f->nranks > CACHE_BYTES ? CROWDED_MEMORY_NS_PER_BYTE : CROWDED_NS_PER_BYTE;
    return (hops + 2 * refills) * HAND_OVER_CROWDED_NS * per_cpu + per_cpu * messages * MESSAGE_NS +
           total / ncpus * bytes * rate;
}

/* What a plan costs at a size, given its closed form, which does not depend on the size. */
static double predict_ns(const struct tune_facts *f, const struct plan_cost *c, bool is_window,
                         size_t bytes)
{
    const double s = (double)bytes;
    double messages = c->messages, hops = c->hops;
    if (is_window) {
        /* The announcements before the first step. */
        messages += 2.0 * (f->nranks - 1);
        hops += 1;
    } else if (messages > 0) {
        const double each = c->sent * s / (messages / 2);
        messages *= each > PIECE_BYTES ? each / PIECE_BYTES : 1;
    }
    if (tune_is_crowded(f))
        return crowded_ns(f, c, hops, messages, s);
    return hops * HAND_OVER_NS + messages * MESSAGE_NS + c->touched * s * per_byte(f, s);
}

double tune_cost_ns(const struct tune_facts *f, const struct plan_algo *a, enum kolo_coll coll,
                    size_t bytes)
{
    const struct plan_shape shape = {coll, f->nranks, 0, 0, 0};
    struct plan_cost c;
    a->cost(&shape, &c);
    return predict_ns(f, &c, a->flags & ALGO_WINDOW, bytes);
}

/* Class k holds 2^(k/4) <= bytes < 2^((k+1)/4), about: the two bits below the leading one. */
static int size_class(size_t bytes)
{
    if (bytes < 4)
        return (int)bytes;
    const int top = 63 - __builtin_clzll((unsigned long long)bytes);
    const int k = top * 4 + (int)(bytes >> (top - 2) & 3);
    return min_int(k, TUNE_CLASSES - 1);
}

static size_t class_bytes(int k)
{
    if (k < 8)
        return (size_t)(k < 4 ? k : 3);
    return (size_t)(4 + k % 4) << (k / 4 - 2);
}

static bool may_use(const struct tune_facts *f, const struct plan_algo *a, enum kolo_coll coll,
                    bool with_windows)
{
    const struct plan_shape shape = {coll, f->nranks, 0, 0, 0};
    if (!plan_algo_can(a, &shape) || ((a->flags & ALGO_WINDOW) && !with_windows))
        return false;
    return !f->deterministic || !coll_reduces(coll) || (a->flags & ALGO_RANK_ORDER);
}

size_t tune_candidates(const struct tune_facts *f, enum kolo_coll coll, bool with_windows,
                       int rows[TUNE_ALGOS])
{
    size_t n, found = 0;
    const struct plan_algo *algos = plan_algos(&n);
    for (size_t i = 0; i < n && i < TUNE_ALGOS; i++)
        if (may_use(f, &algos[i], coll, with_windows))
            rows[found++] = (int)i;
    return found;
}

/* An algorithm that may serve a collective, with its closed form. */
struct candidate {
    int row; /* of plan_algos */
    bool is_window;
    bool is_preferred; /* when others are as fast */
    struct plan_cost cost;
};

static size_t list_candidates(const struct tune_facts *f, enum kolo_coll coll, bool with_windows,
                              struct candidate *out)
{
    size_t n;
    int rows[TUNE_ALGOS];
    const struct plan_algo *algos = plan_algos(&n);
    const struct plan_shape shape = {coll, f->nranks, 0, 0, 0};
    const size_t found = tune_candidates(f, coll, with_windows, rows);
    for (size_t i = 0; i < found; i++) {
        const struct plan_algo *a = &algos[rows[i]];
        out[i] =
            (struct candidate){.row = rows[i],
                               .is_window = a->flags & ALGO_WINDOW,
                               .is_preferred = coll_reduces(coll) && (a->flags & ALGO_RANK_ORDER)};
        a->cost(&shape, &out[i].cost);
    }
    return found;
}

static const struct candidate *best_of_model(const struct tune_facts *f,
                                             const struct candidate *list, size_t n, size_t bytes)
{
    const struct candidate *chosen = NULL;
    double least = 0;
    for (size_t i = 0; i < n; i++) {
        const double ns = predict_ns(f, &list[i].cost, list[i].is_window, bytes);
        if (!chosen || ns < least) {
            chosen = &list[i];
            least = ns;
        }
    }
    return chosen;
}

/* Of those that are hardly slower than the fastest: one whose result does not depend on the choice
 * (private buffers may then also go through the kernel), then the model's favourite. */
static const struct candidate *best_of_table(const struct tune *t, const struct candidate *list,
                                             size_t n, size_t bytes,
                                             const struct candidate *favourite)
{
    double ns[TUNE_ALGOS], least = 0;
    int most_sizes = 0;
    for (size_t i = 0; i < n; i++)
        most_sizes = max_int(most_sizes, tune_table_sizes(&t->table, list[i].row));
    for (size_t i = 0; i < n; i++) {
        /* One that was given up is not believed in beyond. */
        const int k = tune_table_sizes(&t->table, list[i].row);
        const bool is_known = k > 0 && (k == most_sizes || bytes <= tune_sizes[k - 1]);
        ns[i] = is_known ? tune_table_ns(&t->table, list[i].row, bytes) : 0;
        least = ns[i] > 0 && (least <= 0 || ns[i] < least) ? ns[i] : least;
    }
    const struct candidate *chosen = NULL;
    int most = -1;
    double chosen_ns = 0;
    for (size_t i = 0; i < n; i++) {
        const bool is_favourite = &list[i] == favourite;
        if (ns[i] <= 0 || ns[i] > least * (is_favourite ? TUNE_AS_FAST_FAVOURITE : TUNE_AS_FAST))
            continue;
        const int merit = 2 * list[i].is_preferred + is_favourite;
        if (merit > most || (merit == most && ns[i] < chosen_ns)) {
            chosen = &list[i];
            most = merit;
            chosen_ns = ns[i];
        }
    }
    return chosen;
}

/* 1 + row of the algorithm to use; 0 for an empty list. */
static uint8_t best(const struct tune *t, const struct candidate *list, size_t n, size_t bytes)
{
    const struct candidate *favourite = best_of_model(&t->facts, list, n, bytes);
    const struct candidate *chosen = NULL;
    if (t->table.date > 0)
        chosen = best_of_table(t, list, n, bytes, favourite);
    chosen = chosen ? chosen : favourite;
    return chosen ? (uint8_t)(chosen->row + 1) : 0;
}

static void force(struct tune *t, const struct plan_algo *a, uint8_t number)
{
    const struct plan_shape plain = {a->coll, t->facts.nranks, 0, 0, 0};
    const int first = a->flags & ALGO_WINDOW ? 1 : 0;
    for (int w = first; w < 2; w++)
        if (plan_algo_can(a, &plain))
            memset(t->choice[a->coll][w], number, TUNE_CLASSES);
    for (int c = KOLO_COLL_REDUCE_SCATTER_V; c <= KOLO_COLL_ALL_TO_ALL_V; c++)
        if (plan_algo_can(a, &(struct plan_shape){(enum kolo_coll)c, t->facts.nranks, 0, 0, 0}))
            t->choice_v[c] = number;
}

/* One "collective:algorithm" of KOLO_ALGO. */
static enum kolo_status force_word(struct tune *t, const char *word, size_t n)
{
    char text[96];
    if (n == 0)
        return KOLO_OK;
    if (n >= sizeof text)
        return fail(KOLO_ERR_ARG, "KOLO_ALGO: %.*s... is too long", 40, word);
    memcpy(text, word, n);
    text[n] = 0;
    char *name = strchr(text, ':');
    if (!name)
        return fail(KOLO_ERR_ARG, "KOLO_ALGO: '%s' is not collective:algorithm", text);
    *name++ = 0;
    const int coll = kolo_coll_find(text);
    if (coll < 0)
        return fail(KOLO_ERR_ARG, "KOLO_ALGO: there is no collective '%s'", text);
    const struct plan_algo *a = plan_algo_find((enum kolo_coll)coll, name);
    if (!a)
        return fail(KOLO_ERR_ARG, "KOLO_ALGO: %s has no algorithm '%s' (see kolo_info --algos)",
                    text, name);
    const struct plan_shape shape = {a->coll, t->facts.nranks, 0, 0, 0};
    if (t->facts.nranks > 1 && !plan_algo_can(a, &shape))
        return fail(KOLO_ERR_ARG, "KOLO_ALGO: %s:%s cannot serve %d ranks", text, name,
                    t->facts.nranks);
    if (t->facts.nranks > 1 && !may_use(&t->facts, a, a->coll, true))
        return fail(KOLO_ERR_ARG,
                    "KOLO_ALGO: %s:%s does not reduce in rank order, as a deterministic "
                    "communicator needs",
                    text, name);
    size_t count;
    force(t, a, (uint8_t)(a - plan_algos(&count) + 1));
    return KOLO_OK;
}

static enum kolo_status force_all(struct tune *t)
{
    for (const char *at = cfg_str(CFG_ALGO); *at;) {
        const size_t n = strcspn(at, ",");
        TRY(force_word(t, at, n));
        at += n;
        at += *at == ',';
    }
    return KOLO_OK;
}

static void choose_for(struct tune *t, enum kolo_coll coll)
{
    struct candidate list[TUNE_ALGOS];
    const struct tune_facts *f = &t->facts;
    if (coll_is_v(coll)) {
        const size_t n = list_candidates(f, coll, false, list);
        t->choice_v[coll] = best(t, list, n, 1 << 20);
        return;
    }
    for (int w = 0; w < 2; w++) {
        const size_t n = list_candidates(f, coll, w && f->has_windows, list);
        for (int k = 0; k < TUNE_CLASSES; k++)
            t->choice[coll][w][k] = best(t, list, n, class_bytes(k));
    }
}

static enum kolo_status choose_all(struct tune *t)
{
    for (int c = 0; c < KOLO_NCOLLS && t->facts.nranks > 1; c++)
        choose_for(t, (enum kolo_coll)c);
    return force_all(t);
}

enum kolo_status tune_init(struct tune *t, const struct tune_facts *facts)
{
    memset(t, 0, sizeof *t);
    t->facts = *facts;
    return choose_all(t);
}

enum kolo_status tune_apply(struct tune *t, const struct tune_table *table)
{
    t->table = *table;
    return choose_all(t);
}

const struct plan_algo *tune_choose(const struct tune *t, enum kolo_coll coll, size_t bytes,
                                    bool with_windows)
{
    if (t->facts.nranks == 1 || coll_is_p2p(coll))
        return NULL;
    const int number =
        coll_is_v(coll) ? t->choice_v[coll]
                        : t->choice[coll][with_windows && t->facts.has_windows][size_class(bytes)];
    size_t n;
    return number ? &plan_algos(&n)[number - 1] : NULL;
}
