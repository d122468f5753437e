/* plan_parse.c - reads plans from text; the grammar is at the head of plan_text.c.  A move is read
 * twice: once to find out which chunks it is about, then to add its operands, so that the parser
 * needs no memory of its own.  Any input is safe: what the text cannot say wrong here, the builder
 * refuses, and what one plan cannot show, the verifier. */
#include "plan.h"

#include "mem.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* ---- words ----------------------------------------------------------------------------------- */

struct word {
    const char *at;
    size_t n; /* 0: the end of the text */
};

struct reader {
    const char *start;
    const char *end;
    const char *at; /* behind the current word */
    struct word word;
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void advance(struct reader *r)
{
    const char *p = r->at;
    while (p < r->end && (is_blank(*p) || *p == '#')) {
        if (*p == '#') {
            while (p < r->end && *p != '\n')
                p++;
        } else {
            p++;
        }
    }
    r->word.at = p;
    while (p < r->end && !is_blank(*p) && *p != '#')
        p++;
    r->word.n = (size_t)(p - r->word.at);
    r->at = p;
}

static void find_place(const struct reader *r, const char *at, int *line, int *column)
{
    *line = 1;
    *column = 1;
    for (const char *p = r->start; p < at; p++) {
        (*column)++;
        if (*p == '\n') {
            (*line)++;
            *column = 1;
        }
    }
}

/* The current word is not what should stand there. */
static __attribute__((cold)) enum kolo_status expected(const struct reader *r, const char *what)
{
    char shown[32];
    size_t n = 0;
    int line;
    int column;
    for (; n < r->word.n && n < sizeof(shown) - 1; n++)
        shown[n] = r->word.at[n] > ' ' && r->word.at[n] < 127 ? r->word.at[n] : '?';
    shown[n] = '\0';
    find_place(r, r->word.at, &line, &column);
    if (n == 0)
        return fail(KOLO_ERR_ARG, "line %d column %d: the text ends where %s should be", line,
                    column, what);
    return fail(KOLO_ERR_ARG, "line %d column %d: '%s' where %s should be", line, column, shown,
                what);
}

static bool is_word(const struct reader *r, const char *text)
{
    return r->word.n == strlen(text) && memcmp(r->word.at, text, r->word.n) == 0;
}

static enum kolo_status take_word(struct reader *r, const char *text)
{
    if (!is_word(r, text))
        return expected(r, text);
    advance(r);
    return KOLO_OK;
}

/* Pieces of a word, read from its front: each returns false when the piece is not there. */

static bool take_text(struct word *w, const char *text)
{
    const size_t n = strlen(text);
    if (w->n < n || memcmp(w->at, text, n) != 0)
        return false;
    w->at += n;
    w->n -= n;
    return true;
}

static bool take_number(struct word *w, int *out)
{
    int64_t v = 0;
    size_t n = 0;
    while (n < w->n && w->at[n] >= '0' && w->at[n] <= '9' && v <= INT32_MAX) {
        v = v * 10 + (w->at[n] - '0');
        n++;
    }
    if (n == 0 || v > INT32_MAX)
        return false;
    w->at += n;
    w->n -= n;
    *out = (int)v;
    return true;
}

static enum kolo_status take_int(struct reader *r, int *out)
{
    struct word w = r->word;
    if (!take_number(&w, out) || w.n != 0)
        return expected(r, "a number");
    advance(r);
    return KOLO_OK;
}

/* A word of at most size - 1 bytes. */
static enum kolo_status take_name(struct reader *r, char *out, size_t size, const char *what)
{
    if (r->word.n == 0 || r->word.n >= size)
        return expected(r, what);
    memcpy(out, r->word.at, r->word.n);
    out[r->word.n] = '\0';
    advance(r);
    return KOLO_OK;
}

/* ---- operands -------------------------------------------------------------------------------- */

struct operand {
    enum plan_space space;
    bool is_dst; /* links only */
    int peer;
    int channel;
    struct plan_span span; /* not links */
};

static bool take_span(struct word *w, struct plan_span *span)
{
    int a;
    int b;
    if (!take_text(w, "[") || !take_number(w, &a))
        return false;
    *span = plan_chunk(a);
    if (take_text(w, "..")) {
        if (!take_number(w, &b) || b < a || b - a == INT32_MAX)
            return false;
        *span = plan_chunks(a, b - a + 1);
    } else if (take_text(w, "+")) {
        if (!take_number(w, &span->run) || !take_text(w, "/") || !take_number(w, &span->stride) ||
            !take_text(w, "*") || !take_number(w, &span->count) || span->count == 0)
            return false;
    }
    return take_text(w, "]");
}

static bool take_buffer(struct word *w, struct operand *o)
{
    static const struct {
        const char *name;
        enum plan_space space;
    } buffers[] = {{"in@", PLAN_PEER_IN},
                   {"out@", PLAN_PEER_OUT},
                   {"in", PLAN_IN},
                   {"out", PLAN_OUT},
                   {"tmp", PLAN_TMP}};
    for (size_t i = 0; i < ARRAY_LEN(buffers); i++) {
        if (!take_text(w, buffers[i].name))
            continue;
        o->space = buffers[i].space;
        o->peer = -1;
        const bool has_peer = o->space == PLAN_PEER_IN || o->space == PLAN_PEER_OUT;
        return (!has_peer || take_number(w, &o->peer)) && take_span(w, &o->span);
    }
    return false;
}

static bool take_link(struct word *w, struct operand *o)
{
    o->space = PLAN_LINK;
    o->is_dst = take_text(w, ">");
    return (o->is_dst || take_text(w, "<")) && take_number(w, &o->peer) && take_text(w, ".") &&
           take_number(w, &o->channel);
}

/* Whether the current word is an operand; if so it is taken. */
static bool take_operand(struct reader *r, struct operand *o)
{
    struct word w = r->word;
    *o = (struct operand){.peer = -1};
    if (w.n == 0 || is_word(r, "<-"))
        return false;
    const bool is_link = w.at[0] == '<' || w.at[0] == '>';
    if (!(is_link ? take_link(&w, o) : take_buffer(&w, o)) || w.n != 0)
        return false;
    advance(r);
    return true;
}

static void add_operand(struct plan_builder *b, const struct operand *o, bool is_dst)
{
    if (is_dst)
        plan_to(b, o->space, o->peer, o->channel, o->span.chunk);
    else
        plan_from(b, o->space, o->peer, o->channel, o->span.chunk);
}

/* ---- moves ----------------------------------------------------------------------------------- */

/* What must be known of a move before its operands can be added. */
struct outline {
    struct plan_span shape; /* of all buffers; count 0: none seen */
    enum plan_space of_space;
    struct plan_span of; /* count 0: none seen */
};

static enum kolo_status see_buffer(const struct reader *before, struct outline *seen,
                                   const struct operand *o, bool is_of)
{
    const struct plan_span *const s = &seen->shape;
    if (s->count != 0 &&
        (o->span.run != s->run || o->span.stride != s->stride || o->span.count != s->count))
        return expected(before, "a span of the same shape as the move's others");
    seen->shape = o->span;
    const bool is_own = o->space == PLAN_IN || o->space == PLAN_OUT;
    if (is_of || (is_own && seen->of.count == 0)) {
        seen->of_space = o->space;
        seen->of = o->span;
    }
    return KOLO_OK;
}

/* Operands up to the first word that is none; adds them to `b`, or without b only looks. */
static enum kolo_status operands(struct reader *r, struct plan_builder *b, bool is_dst,
                                 struct outline *seen)
{
    struct operand o;
    int n = 0;
    for (struct reader before = *r; take_operand(r, &o); before = *r, n++) {
        if (o.space == PLAN_LINK && o.is_dst != is_dst)
            return expected(&before, is_dst ? "a destination" : "a source");
        if (o.space != PLAN_LINK && seen)
            TRY(see_buffer(&before, seen, &o, false));
        if (b)
            add_operand(b, &o, is_dst);
    }
    return n > 0 ? KOLO_OK : expected(r, is_dst ? "a destination" : "a source");
}

static enum kolo_status take_of(struct reader *r, struct outline *seen)
{
    const struct reader before = *r;
    struct operand o;
    if (!take_operand(r, &o) || (o.space != PLAN_IN && o.space != PLAN_OUT))
        return expected(&before, "a span of in or out");
    return see_buffer(&before, seen, &o, true);
}

static enum kolo_status data_move(struct reader *r, struct plan_builder *b)
{
    const struct reader first = *r;
    struct outline seen = {.of_space = PLAN_IN};
    unsigned flags = 0;
    TRY(operands(r, NULL, true, &seen));
    TRY(take_word(r, "<-"));
    TRY(operands(r, NULL, false, &seen));
    if (is_word(r, "of")) {
        advance(r);
        TRY(take_of(r, &seen));
    }
    if (is_word(r, "final")) {
        advance(r);
        flags = PLAN_FINAL;
    }
    if (seen.of.count == 0)
        return expected(r, "'of' and the chunks that the move is about");
    struct reader again = first;
    plan_move(b, seen.of_space, seen.of, flags);
    TRY(operands(&again, b, true, NULL));
    TRY(take_word(&again, "<-"));
    return operands(&again, b, false, NULL);
}

static enum kolo_status links(struct reader *r, struct plan_builder *b, bool is_dst)
{
    struct outline seen = {.of_space = PLAN_IN};
    const struct reader first = *r;
    advance(r);
    TRY(operands(r, b, is_dst, &seen));
    return seen.shape.count == 0 ? KOLO_OK : expected(&first, "a move with data");
}

static enum kolo_status take_move(struct reader *r, struct plan_builder *b)
{
    int number;
    TRY(take_int(r, &number));
    if (!is_word(r, "wait") && !is_word(r, "signal"))
        return data_move(r, b);
    plan_move(b, PLAN_IN, plan_chunks(0, 0), 0);
    if (is_word(r, "wait"))
        TRY(links(r, b, false));
    return is_word(r, "signal") ? links(r, b, true) : KOLO_OK;
}

/* ---- plans ----------------------------------------------------------------------------------- */

struct header {
    struct plan_shape shape;
    char algo[sizeof(((struct plan *)NULL)->algo)];
    int nchunks[3];
};

static enum kolo_status take_header(struct reader *r, struct header *h)
{
    char coll[32];
    TRY(take_word(r, "plan"));
    const struct reader at_coll = *r;
    TRY(take_name(r, coll, sizeof(coll), "the name of a collective"));
    const int found = kolo_coll_find(coll);
    if (found < 0)
        return expected(&at_coll, "the name of a collective");
    h->shape.coll = (enum kolo_coll)found;
    TRY(take_name(r, h->algo, sizeof(h->algo), "the name of an algorithm"));
    TRY(take_word(r, "rank"));
    TRY(take_int(r, &h->shape.rank));
    TRY(take_word(r, "of"));
    TRY(take_int(r, &h->shape.nranks));
    TRY(take_word(r, "root"));
    TRY(take_int(r, &h->shape.root));
    TRY(take_word(r, "chunks"));
    TRY(take_word(r, "in"));
    TRY(take_int(r, &h->nchunks[PLAN_IN]));
    TRY(take_word(r, "out"));
    TRY(take_int(r, &h->nchunks[PLAN_OUT]));
    TRY(take_word(r, "tmp"));
    return take_int(r, &h->nchunks[PLAN_TMP]);
}

static enum kolo_status take_lanes(struct reader *r, struct plan_builder *b)
{
    while (!is_word(r, "end")) {
        int number;
        TRY(take_word(r, "lane"));
        TRY(take_int(r, &number));
        plan_lane_begin(b);
        while (!is_word(r, "lane") && !is_word(r, "end"))
            TRY(take_move(r, b));
    }
    return KOLO_OK;
}

/* The builder knows no lines: say where the plan begins that it refuses. */
static enum kolo_status placed(const struct reader *r, const char *begin, enum kolo_status status)
{
    if (status != KOLO_OK) {
        int line;
        int column;
        find_place(r, begin, &line, &column);
        fail_prefix("line %d column %d: ", line, column);
    }
    return status;
}

/* The plan at *at of a text whose lines count from `start`. */
static enum kolo_status parse(const char *start, const char **at, const char *end,
                              struct plan **out)
{
    struct reader r = {.start = start, .end = end, .at = *at};
    struct header h = {.nchunks = {0}};
    struct plan_builder *b;
    advance(&r);
    const char *const begin = r.word.at;
    TRY(take_header(&r, &h));
    TRY(placed(&r, begin,
               plan_builder_create(&h.shape, h.algo, h.nchunks[PLAN_IN], h.nchunks[PLAN_OUT],
                                   h.nchunks[PLAN_TMP], &b)));
    enum kolo_status status = take_lanes(&r, b);
    if (status == KOLO_OK)
        status = placed(&r, begin, plan_build(b, out));
    plan_builder_destroy(b);
    if (status == KOLO_OK)
        *at = r.word.at + r.word.n; /* behind "end" */
    return status;
}

enum kolo_status plan_parse(const char **text, const char *end, struct plan **out)
{
    return parse(*text, text, end, out);
}

/* ---- files ----------------------------------------------------------------------------------- */

enum { MAX_FILE_BYTES = 1 << 28 };

/* The whole file in memory that the caller frees. */
static enum kolo_status read_all(const char *path, FILE *file, char **out, size_t *bytes)
{
    char *text = NULL;
    size_t room = 0;
    size_t used = 0;
    do {
        if (used == room) {
            room = room == 0 ? 1 << 16 : room * 2;
            char *const grown = room > MAX_FILE_BYTES ? NULL : mem_resize(text, room, 1);
            if (!grown) {
                mem_free(text);
                return fail(KOLO_ERR_NOMEM, "plan file %s: no memory for %zu bytes (at most %d)",
                            path, room, MAX_FILE_BYTES);
            }
            text = grown;
        }
        used += fread(text + used, 1, room - used, file);
    } while (!feof(file) && !ferror(file));
    if (ferror(file)) {
        mem_free(text);
        return fail(KOLO_ERR_ARG, "plan file %s cannot be read: %s", path, strerror(errno));
    }
    *out = text;
    *bytes = used;
    return KOLO_OK;
}

/* Appends a plan; on failure the caller still owns it. */
static enum kolo_status append(struct plan ***plans, size_t n, struct plan *p)
{
    const bool is_full = (n & (n - 1)) == 0; /* room is the next power of two */
    struct plan **const grown =
        is_full ? mem_resize(*plans, n == 0 ? 1 : 2 * n, sizeof(p)) : *plans;
    if (!grown)
        return fail(KOLO_ERR_NOMEM, "no memory for %zu plans", n + 1);
    grown[n] = p;
    *plans = grown;
    return KOLO_OK;
}

static bool has_more(const char *at, const char *end)
{
    struct reader r = {.start = at, .end = end, .at = at};
    advance(&r);
    return r.word.n > 0;
}

static enum kolo_status parse_all(const char *text, size_t bytes, struct plan ***plans, size_t *n)
{
    const char *const end = text + bytes;
    const char *at = text;
    *plans = NULL;
    *n = 0;
    enum kolo_status status = KOLO_OK;
    while (status == KOLO_OK && (*n == 0 || has_more(at, end))) {
        struct plan *p;
        status = parse(text, &at, end, &p);
        if (status != KOLO_OK)
            break;
        status = append(plans, *n, p);
        if (status != KOLO_OK)
            plan_destroy(p);
        else
            ++*n;
    }
    if (status != KOLO_OK)
        plan_set_destroy(*plans, *n);
    return status;
}

enum kolo_status plan_load(const char *path, struct plan ***out, size_t *n)
{
    FILE *const file = fopen(path, "rbe");
    if (!file)
        return fail(KOLO_ERR_ARG, "plan file %s cannot be opened: %s", path, strerror(errno));
    char *text = NULL;
    size_t bytes = 0;
    struct plan **plans;
    size_t nplans;
    enum kolo_status status = read_all(path, file, &text, &bytes);
    (void)fclose(file);
    TRY(status);
    status = parse_all(text, bytes, &plans, &nplans);
    mem_free(text);
    if (status != KOLO_OK) {
        fail_prefix("plan file %s, ", path);
        return status;
    }
    *out = plans;
    *n = nplans;
    return KOLO_OK;
}

void plan_set_destroy(struct plan **plans, size_t n)
{
    for (size_t i = 0; i < n && plans; i++)
        plan_destroy(plans[i]);
    mem_free(plans);
}
