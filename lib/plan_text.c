/* plan_text.c - plans as text, for people and for files; plan_parse.c reads what this prints.
 *
 *   plan    = "plan" COLL ALGO "rank" N "of" N "root" N
 *             "chunks" "in" N "out" N "tmp" N  lane* "end"
 *   lane    = "lane" N move*                     numbers of lanes and moves are for readers only
 *   move    = N operand+ "<-" operand+ ["of" buffer] ["final"]
 *           | N ["wait" link+] ["signal" link+]
 *   operand = buffer | link                      link = ">" PEER "." CHANNEL (send) | "<" ...
 *   buffer  = space "[" span "]"                 span = A | A ".." B | A "+" R "/" S "*" C
 *   space   = "in" | "out" | "tmp" | "in@" PEER | "out@" PEER
 *
 * Destinations come first, then sources.  A span is chunk A, chunks A to B (past the end of the
 * row it goes on at 0), or C chunks from A on, R of every S.  "of" names the chunks that the move
 * is about; without it, they are those of the first own "in" or "out".  White space separates,
 * and "#" begins a comment up to the end of the line. */
#include "plan.h"

static const char *const space_names[] = {
    [PLAN_IN] = "in",       [PLAN_OUT] = "out",       [PLAN_TMP] = "tmp",
    [PLAN_PEER_IN] = "in@", [PLAN_PEER_OUT] = "out@",
};

static void print_span(struct text *out, const struct plan_span *of, int chunk)
{
    if (of->run < of->count)
        text_add(out, "[%d+%d/%d*%d]", chunk, of->run, of->stride, of->count);
    else if (of->count > 1)
        text_add(out, "[%d..%d]", chunk, chunk + of->count - 1);
    else
        text_add(out, "[%d]", chunk);
}

static void print_operand(struct text *out, const struct plan_step *s, const struct plan_operand *o,
                          bool is_dst)
{
    if (o->space == PLAN_LINK) {
        text_add(out, " %c%d.%d", is_dst ? '>' : '<', o->peer, o->channel);
        return;
    }
    text_add(out, " %s", space_names[o->space]);
    if (o->peer >= 0)
        text_add(out, "%d", o->peer);
    print_span(out, &s->of, o->chunk);
}

static void print_bare(struct text *out, const struct plan_step *s, const struct plan_operand *o)
{
    if (s->nsrc > 0)
        text_add(out, " wait");
    for (int i = s->ndst; i < s->ndst + s->nsrc; i++)
        print_operand(out, s, &o[i], false);
    if (s->ndst > 0)
        text_add(out, " signal");
    for (int i = 0; i < s->ndst; i++)
        print_operand(out, s, &o[i], true);
}

/* The first operand in a buffer of this rank that the collective knows; NULL: none. */
static const struct plan_operand *first_own(const struct plan_step *s, const struct plan_operand *o)
{
    for (int i = 0; i < s->ndst + s->nsrc; i++) {
        if (o[i].space == PLAN_IN || o[i].space == PLAN_OUT)
            return &o[i];
    }
    return NULL;
}

static void print_move(struct text *out, const struct plan_step *s, const struct plan_operand *o)
{
    if (s->of.count == 0) {
        print_bare(out, s, o);
        return;
    }
    for (int i = 0; i < s->ndst; i++)
        print_operand(out, s, &o[i], true);
    text_add(out, " <-");
    for (int i = s->ndst; i < s->ndst + s->nsrc; i++)
        print_operand(out, s, &o[i], false);
    const struct plan_operand *const own = first_own(s, o);
    if (!own || own->space != s->of_space || own->chunk != s->of.chunk) {
        text_add(out, "  of %s", space_names[s->of_space]);
        print_span(out, &s->of, s->of.chunk);
    }
    if (s->flags & PLAN_FINAL)
        text_add(out, "  final");
}

void plan_print(const struct plan *p, struct text *out)
{
    text_add(
        out,
        "# >p.c: send to rank p on channel c; <p.c: receive; in@p, out@p: buffers of rank p;\n"
        "# [a..b]: chunks a to b, then on from 0; [a+r/s*n]: n chunks from a on, r of every s\n");
    text_add(out, "plan %s %s rank %d of %d root %d\nchunks in %d out %d tmp %d\n",
             kolo_coll_name((int)p->coll), p->algo, p->rank, p->nranks, p->root,
             p->nchunks[PLAN_IN], p->nchunks[PLAN_OUT], p->nchunks[PLAN_TMP]);
    for (int l = 0; l < p->nlanes; l++) {
        text_add(out, "lane %d\n", l);
        for (uint32_t i = 0; i < p->lanes[l].nsteps; i++) {
            const struct plan_step *const s = &p->steps[p->lanes[l].first + i];
            text_add(out, "%3u ", i);
            print_move(out, s, p->operands + s->first);
            text_add(out, "\n");
        }
    }
    text_add(out, "end\n");
}
