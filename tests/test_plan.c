/* test_plan.c - the builder's limits, and plans as text: what is printed reads back equal, and what
 * is wrong is refused with its line and column. */
#include "support/test.h"

#include "mem.h"
#include "plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_BYTES = 1 << 20 };

/* ---- builder --------------------------------------------------------------------------------- */

static struct plan_builder *begin(enum kolo_coll coll, int n, int rank, int in, int out, int tmp)
{
    const struct plan_shape shape = {.coll = coll, .nranks = n, .rank = rank};
    struct plan_builder *b = NULL;
    cr_assert_eq(plan_builder_create(&shape, "hand", in, out, tmp, &b), KOLO_OK, "%s", fail_text());
    plan_lane_begin(b);
    return b;
}

/* Builds, expects a refusal whose text has `part`. */
static void refused(struct plan_builder *b, const char *part)
{
    struct plan *p = NULL;
    cr_assert_eq(plan_build(b, &p), KOLO_ERR_ARG, "expected: %s", part);
    cr_assert_null(p, "expected: %s", part);
    cr_assert_not_null(strstr(fail_text(), part), "'%s' lacks '%s'", fail_text(), part);
    plan_builder_destroy(b);
}

/* A builder of an all-reduce of rank 1 of 3, with two chunks each, inside a move of one chunk. */
static struct plan_builder *in_move(void)
{
    struct plan_builder *const b = begin(KOLO_COLL_ALL_REDUCE, 3, 1, 2, 2, 2);
    plan_move(b, PLAN_IN, plan_chunk(0), 0);
    return b;
}

Test(plan, builder_computes_what_it_promises)
{
    struct plan_builder *const b = begin(KOLO_COLL_ALL_REDUCE, 3, 1, 4, 4, 2);
    struct plan *p;
    plan_move(b, PLAN_IN, plan_chunks(1, 3), 0);
    plan_from(b, PLAN_IN, -1, 0, 1); /* sources before destinations are legal */
    plan_to(b, PLAN_LINK, 2, 3, 0);
    plan_from(b, PLAN_LINK, 0, 1, 0);
    plan_to(b, PLAN_OUT, -1, 0, 3);
    plan_lane_begin(b);
    plan_move(b, PLAN_OUT, plan_chunk(0), 0);
    plan_to(b, PLAN_PEER_OUT, 2, 0, 3);
    plan_from(b, PLAN_PEER_IN, 0, 0, 2);
    plan_move(b, PLAN_IN, plan_chunks(0, 0), 0);
    plan_to(b, PLAN_LINK, 0, 0, 0);
    cr_assert_eq(plan_build(b, &p), KOLO_OK, "%s", fail_text());
    plan_builder_destroy(b);
    cr_assert_eq(p->nlanes, 2);
    cr_assert_eq(p->nsteps, 3);
    cr_assert_eq(p->noperands, 7);
    cr_assert_eq(p->nchannels, 4);
    cr_assert_eq(p->max_span, 3);
    cr_assert_eq(p->flags, (unsigned)PLAN_READS_PEERS | PLAN_WRITES_PEERS);
    cr_assert_eq(p->lanes[1].first, 1u);
    cr_assert_eq(p->lanes[1].nsteps, 2u);
    const struct plan_step *const s = &p->steps[0];
    const struct plan_operand *const o = &p->operands[s->first];
    cr_assert(s->ndst == 2 && s->nsrc == 2 && s->of.chunk == 1 && s->of.count == 3);
    cr_assert(o[0].space == PLAN_LINK && o[0].peer == 2 && o[0].channel == 3);
    cr_assert(o[1].space == PLAN_OUT && o[1].peer == -1 && o[1].chunk == 3);
    cr_assert(o[2].space == PLAN_IN && o[2].chunk == 1);
    cr_assert(o[3].space == PLAN_LINK && o[3].peer == 0 && o[3].channel == 1);
    plan_destroy(p);
}

Test(plan, create_refuses_bad_shapes)
{
    static const struct {
        struct plan_shape shape;
        const char *algo;
        int n[3];
    } bad[] = {
        {{.coll = KOLO_NCOLLS, .nranks = 2}, "hand", {1, 1, 0}},
        {{.coll = KOLO_COLL_ALL_REDUCE, .nranks = 0}, "hand", {1, 1, 0}},
        {{.coll = KOLO_COLL_ALL_REDUCE, .nranks = PLAN_MAX_RANKS + 1}, "hand", {1, 1, 0}},
        {{.coll = KOLO_COLL_ALL_REDUCE, .nranks = 2, .rank = 2}, "hand", {1, 1, 0}},
        {{.coll = KOLO_COLL_ALL_REDUCE, .nranks = 2, .rank = -1}, "hand", {1, 1, 0}},
        {{.coll = KOLO_COLL_ALL_REDUCE, .nranks = 2, .root = 2}, "hand", {1, 1, 0}},
        {{.coll = KOLO_COLL_ALL_REDUCE, .nranks = 2}, "", {1, 1, 0}},
        {{.coll = KOLO_COLL_ALL_REDUCE, .nranks = 2}, "two words", {1, 1, 0}},
        {{.coll = KOLO_COLL_ALL_REDUCE, .nranks = 2}, "abcdefghijklmnopqrstuvwx", {1, 1, 0}},
        {{.coll = KOLO_COLL_ALL_REDUCE, .nranks = 2}, "hand", {0, 0, 0}},
        {{.coll = KOLO_COLL_ALL_REDUCE, .nranks = 2}, "hand", {1, 2, 0}},
        {{.coll = KOLO_COLL_ALL_REDUCE, .nranks = 2}, "hand", {1, 1, -1}},
        {{.coll = KOLO_COLL_ALL_REDUCE, .nranks = 2}, "hand", {INT32_MAX, INT32_MAX, 0}},
        {{.coll = KOLO_COLL_REDUCE_SCATTER, .nranks = 2}, "hand", {1, 1, 0}},
        {{.coll = KOLO_COLL_ALL_GATHER_V, .nranks = 2}, "hand", {2, 2, 0}},
        {{.coll = KOLO_COLL_BROADCAST, .nranks = 2, .rank = 1}, "hand", {1, 1, 0}},
        {{.coll = KOLO_COLL_REDUCE, .nranks = 2, .rank = 1}, "hand", {1, 1, 0}},
        {{.coll = KOLO_COLL_GATHER, .nranks = 2, .rank = 0}, "hand", {1, 0, 0}},
        {{.coll = KOLO_COLL_SCATTER, .nranks = 2, .rank = 1}, "hand", {2, 1, 0}},
        {{.coll = KOLO_COLL_BARRIER, .nranks = 2}, "hand", {1, 1, 0}},
        {{.coll = KOLO_COLL_SEND, .nranks = 2}, "hand", {1, 1, 0}},
        {{.coll = KOLO_COLL_RECV, .nranks = 2}, "hand", {1, 0, 0}},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct plan_builder *b = NULL;
        cr_assert_eq(plan_builder_create(&bad[i].shape, bad[i].algo, bad[i].n[0], bad[i].n[1],
                                         bad[i].n[2], &b),
                     KOLO_ERR_ARG, "case %zu", i);
        cr_assert_null(b, "case %zu", i);
    }
}

Test(plan, build_refuses_what_has_no_lane_or_move)
{
    const struct plan_shape shape = {.coll = KOLO_COLL_BARRIER, .nranks = 2};
    struct plan_builder *b = NULL;
    cr_assert_eq(plan_builder_create(&shape, "hand", 0, 0, 0, &b), KOLO_OK);
    refused(b, "without lanes");
    cr_assert_eq(plan_builder_create(&shape, "hand", 0, 0, 0, &b), KOLO_OK);
    plan_move(b, PLAN_IN, plan_chunks(0, 0), 0);
    refused(b, "before the first lane");
    b = begin(KOLO_COLL_BARRIER, 2, 0, 0, 0, 0);
    plan_to(b, PLAN_LINK, 1, 0, 0);
    refused(b, "before the first move");
}

Test(plan, build_refuses_half_moves)
{
    struct plan_builder *b = in_move();
    refused(b, "something is missing");
    b = in_move();
    plan_to(b, PLAN_OUT, -1, 0, 0);
    refused(b, "something is missing");
    b = in_move();
    plan_from(b, PLAN_IN, -1, 0, 0);
    plan_lane_begin(b);
    refused(b, "something is missing");
    b = in_move();
    plan_to(b, PLAN_OUT, -1, 0, 0);
    plan_from(b, PLAN_IN, -1, 0, 0);
    plan_move(b, PLAN_IN, plan_chunks(0, 0), 0);
    refused(b, "something is missing");
}

Test(plan, build_refuses_bad_operands)
{
    static const struct {
        bool is_dst;
        enum plan_space space;
        int peer;
        int channel;
        int chunk;
        const char *part;
    } bad[] = {
        {true, PLAN_IN, -1, 0, 0, "cannot be a destination"},
        {true, PLAN_PEER_IN, 0, 0, 0, "cannot be a destination"},
        {false, (enum plan_space)6, 0, 0, 0, "cannot be a source"},
        {true, PLAN_LINK, 1, 0, 0, "not another rank"},
        {true, PLAN_LINK, 3, 0, 0, "not another rank"},
        {false, PLAN_LINK, -1, 0, 0, "not another rank"},
        {false, PLAN_PEER_IN, 1, 0, 0, "not another rank"},
        {true, PLAN_LINK, 0, PLAN_MAX_CHANNELS, 0, "channel 4"},
        {true, PLAN_LINK, 0, -1, 0, "channel -1"},
        {true, PLAN_OUT, -1, 0, 2, "not in a row of 2"},
        {false, PLAN_IN, -1, 0, -1, "not in a row of 2"},
        {false, PLAN_TMP, -1, 0, 2, "not in a row of 2"},
        {true, PLAN_PEER_OUT, 0, 0, 2, "not in a row of 2"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct plan_builder *const b = in_move();
        if (bad[i].is_dst)
            plan_to(b, bad[i].space, bad[i].peer, bad[i].channel, bad[i].chunk);
        else
            plan_from(b, bad[i].space, bad[i].peer, bad[i].channel, bad[i].chunk);
        refused(b, bad[i].part);
    }
}

Test(plan, build_refuses_bad_spans)
{
    static const struct plan_span bad[] = {
        {2, 1, 0, 1},
        {-1, 1, 0, 1},
        {0, 1, 0, -1},
        {0, 0, 0, 1},
        {0, 1, 0, 2},
        {0, 2, 1, 3},
        {0, INT32_MAX, 0, INT32_MAX},
        {INT32_MAX, 1, 0, 1},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct plan_builder *const b = begin(KOLO_COLL_ALL_REDUCE, 3, 1, 2, 2, 2);
        plan_move(b, PLAN_IN, bad[i], 0);
        refused(b, i == 3 || i == 4 || i == 5 ? "makes no sense" : "the move is about");
    }
    struct plan_builder *b = begin(KOLO_COLL_ALL_REDUCE, 3, 1, 2, 2, 4);
    plan_move(b, PLAN_IN, plan_chunks(0, 3), 0);
    plan_to(b, PLAN_TMP, -1, 0, 0);
    plan_from(b, PLAN_IN, -1, 0, 0); /* three chunks out of two */
    refused(b, "not in a row of 2");
    b = begin(KOLO_COLL_ALL_REDUCE, 3, 1, 2, 2, 2);
    plan_move(b, PLAN_TMP, plan_chunk(0), 0);
    refused(b, "about chunks of IN or OUT");
    b = begin(KOLO_COLL_ALL_REDUCE, 3, 1, 2, 2, 2);
    plan_move(b, PLAN_IN, plan_chunk(0), 2);
    refused(b, "known flags");
    b = begin(KOLO_COLL_BARRIER, 2, 0, 0, 0, 0);
    plan_move(b, PLAN_IN, plan_chunks(0, 0), PLAN_FINAL);
    refused(b, "bare move has no flags");
    b = begin(KOLO_COLL_ALL_REDUCE, 2, 0, 1, 1, 0);
    plan_move(b, PLAN_IN, plan_chunks(0, 0), 0);
    plan_to(b, PLAN_OUT, -1, 0, 0);
    refused(b, "no link");
}

/* A send from IN 0 of rank 0 to rank 1. */
static void send_chunk(struct plan_builder *b, int count)
{
    plan_move(b, PLAN_IN, plan_chunks(0, count), 0);
    plan_to(b, PLAN_LINK, 1, 0, 0);
    plan_from(b, PLAN_IN, -1, 0, 0);
}

Test(plan, a_link_belongs_to_one_lane_and_a_v_message_to_one_chunk)
{
    struct plan_builder *b = begin(KOLO_COLL_ALL_REDUCE, 2, 0, 2, 2, 0);
    struct plan *p;
    send_chunk(b, 1);
    send_chunk(b, 1); /* again, by the same lane */
    plan_lane_begin(b);
    plan_move(b, PLAN_OUT, plan_chunk(0), 0);
    plan_to(b, PLAN_OUT, -1, 0, 0);
    plan_from(b, PLAN_LINK, 1, 0, 0); /* the other direction */
    cr_assert_eq(plan_build(b, &p), KOLO_OK, "%s", fail_text());
    plan_builder_destroy(b);
    plan_destroy(p);

    b = begin(KOLO_COLL_ALL_REDUCE, 2, 0, 2, 2, 0);
    send_chunk(b, 1);
    plan_lane_begin(b);
    send_chunk(b, 1);
    refused(b, "lanes 0 and 1 both send to rank 1 on channel 0");

    b = begin(KOLO_COLL_ALL_REDUCE, 2, 0, 2, 2, 0);
    send_chunk(b, 1);
    plan_to(b, PLAN_LINK, 1, 0, 0);
    refused(b, "twice");

    b = begin(KOLO_COLL_ALL_TO_ALL_V, 2, 0, 2, 2, 0);
    send_chunk(b, 2);
    refused(b, "carries one chunk, not 2");
}

Test(plan, one_set_of_chunks_has_one_form)
{
    const struct plan_span same[] = {{1, 3, 0, 3}, {1, 1, 1, 3}, {1, 2, 2, 3}, {1, 7, 9, 3}};
    struct plan *plans[4];
    for (int i = 0; i < 4; i++) {
        struct plan_builder *const b = begin(KOLO_COLL_ALL_REDUCE, 2, 0, 4, 4, 0);
        plan_move(b, PLAN_IN, same[i], 0);
        plan_to(b, PLAN_OUT, -1, 0, 1);
        plan_from(b, PLAN_IN, -1, 0, 1);
        cr_assert_eq(plan_build(b, &plans[i]), KOLO_OK, "%d: %s", i, fail_text());
        plan_builder_destroy(b);
        cr_assert(plan_equal(plans[0], plans[i]), "span %d", i);
    }
    for (int i = 0; i < 4; i++)
        plan_destroy(plans[i]);
}

Test(plan, spans_wrap_and_stride)
{
    const struct plan_span wrap = plan_chunks(3, 4);
    const struct plan_span stride = {1, 2, 4, 5};
    static const int wrapped[] = {3, 4, 0, 1};
    static const int strided[] = {1, 2, 5, 6, 0};
    for (int i = 0; i < 4; i++)
        cr_assert_eq(plan_span_at(&wrap, 3, i, 5), wrapped[i], "chunk %d", i);
    for (int i = 0; i < 5; i++)
        cr_assert_eq(plan_span_at(&stride, 1, i, 9), strided[i], "chunk %d", i);
}

Test(plan, destroying_nothing_is_fine)
{
    plan_destroy(NULL);
    plan_builder_destroy(NULL);
    plan_set_destroy(NULL, 0);
}

/* ---- text ------------------------------------------------------------------------------------ */

static char *print(const struct plan *p)
{
    char *const buffer = malloc(TEXT_BYTES);
    struct text text;
    text_init(&text, buffer, TEXT_BYTES);
    plan_print(p, &text);
    cr_assert_lt(text.used, (size_t)TEXT_BYTES);
    return buffer;
}

static void round_trip(const struct plan *p)
{
    char *const text = print(p);
    const char *at = text;
    struct plan *again = NULL;
    cr_assert_eq(plan_parse(&at, text + strlen(text), &again), KOLO_OK, "%s\n%s", fail_text(),
                 text);
    cr_assert_str_eq(at, "\n", "%s", text);
    cr_assert(plan_equal(p, again), "%s", text);
    plan_destroy(again);
    free(text);
}

Test(plan, every_generated_plan_reads_back_equal)
{
    size_t n;
    const struct plan_algo *const algos = plan_algos(&n);
    for (size_t a = 0; a < n; a++) {
        for (int nranks = 1; nranks <= 9; nranks++) {
            for (int rank = 0; rank < nranks; rank++) {
                const struct plan_shape s = {algos[a].coll, nranks, rank, nranks / 2, 3};
                struct plan *p;
                if (nranks > 1 && !plan_algo_can(&algos[a], &s))
                    continue;
                cr_assert_eq(plan_generate(&algos[a], &s, &p), KOLO_OK, "%s", fail_text());
                round_trip(p);
                plan_destroy(p);
            }
        }
    }
}

Test(plan, text_is_what_the_grammar_says)
{
    const struct plan_shape s = {.coll = KOLO_COLL_ALL_REDUCE, .nranks = 3, .rank = 1};
    struct plan *p;
    cr_assert_eq(plan_generate(plan_algo_find(s.coll, "twoshot"), &s, &p), KOLO_OK);
    char *const text = print(p);
    cr_assert_not_null(strstr(text, "plan all_reduce twoshot rank 1 of 3 root 0\n"
                                    "chunks in 3 out 3 tmp 0\n"
                                    "lane 0\n"
                                    "  0  >2.0 <- in[2]\n"
                                    "  1  >0.0 <- in[0]\n"
                                    "lane 1\n"
                                    "  0  out[1] >2.1 >0.1 <- <0.0 in[1] <2.0  final\n"
                                    "lane 2\n"
                                    "  0  out[0] <- <0.1\n"
                                    "  1  out[2] <- <2.1\n"
                                    "end\n"),
                       "%s", text);
    free(text);
    plan_destroy(p);
}

#define HEAD "plan all_reduce hand rank 0 of 3 root 0 chunks in 4 out 4 tmp 2\n"

/* Parses `text` from a copy of its exact size, so that reading past the end is seen. */
static enum kolo_status parse(const char *text, size_t n, struct plan **out)
{
    char *const copy = malloc(n + 1);
    const char *at = copy;
    memcpy(copy, text, n);
    const enum kolo_status status = plan_parse(&at, copy + n, out);
    cr_assert(status == KOLO_OK || at == copy, "a failed parse moved the text");
    free(copy);
    return status;
}

Test(plan, parse_takes_every_form)
{
    static const char text[] = "# comment\n\r\t" HEAD "lane 7 # any number\n"
                               "9 out[3..4] >1.0 <- in[3..4] <2.1 final\n"
                               "9 >1.0<- "; /* no blank in front of the arrow: not a link */
    static const char good[] =
        "#\n" HEAD "lane 0\n 0 out[3..6] >1.0 <- in[3..6] <2.1 of out[2..5] final\n"
        "1 tmp[0+1/1*2] <- out@1[0+1/1*2] of in[1+1/1*2]\n"
        "2 wait <2.1 signal >1.0 >2.3\n3 signal >1.0 4 wait <2.1\n"
        "lane 1 lane 2 0 >1.1 <- <1.1 of in[0+2/3*4] end rest";
    struct plan *p = NULL;
    cr_assert_eq(parse(text, strlen(text), &p), KOLO_ERR_ARG);
    cr_assert_eq(parse(good, strlen(good), &p), KOLO_OK, "%s", fail_text());
    cr_assert_eq(p->nlanes, 3);
    cr_assert_eq(p->nsteps, 6);
    cr_assert_eq(p->lanes[1].nsteps, 0u);
    cr_assert_eq(p->steps[0].of_space, PLAN_OUT);
    cr_assert_eq(p->steps[0].of.chunk, 2);
    cr_assert_eq(p->steps[0].of.count, 4);
    cr_assert_eq(p->steps[0].flags, PLAN_FINAL);
    cr_assert_eq(p->steps[1].of.run, 2, "runs that touch are one run");
    cr_assert_eq(p->steps[5].of.stride, 3);
    round_trip(p);
    plan_destroy(p);
}

Test(plan, parse_errors_have_line_and_column)
{
    static const struct {
        const char *text;
        const char *part;
    } bad[] = {
        {"", "line 1 column 1: the text ends where plan"},
        {"# only a comment", "line 1 column 17: the text ends"},
        {"plan nothing x", "line 1 column 6: 'nothing' where the name of a collective"},
        {"plan all_reduce", "line 1 column 16: the text ends where the name of an algorithm"},
        {"plan all_reduce abcdefghijklmnopqrstuvwxyz rank", "where the name of an algorithm"},
        {"plan all_reduce x\nrank -1", "line 2 column 6: '-1' where a number"},
        {"plan all_reduce x\nrank 99999999999", "line 2 column 6: '99999999999' where a number"},
        {"plan all_reduce x rank 0 of 2 root 0 chunks in 1 out 2 tmp 0", "line 1 column 1: plan"},
        {"\n plan all_reduce X rank 0 of 2 root 0 chunks in 1 out 1 tmp 0",
         "line 2 column 2: plan"},
        {HEAD "x", "line 2 column 1: 'x' where lane"},
        {HEAD "lane 0", "line 2 column 7: the text ends where a number"},
        {HEAD "lane 0 0 out[0] <- <1.0", "the text ends"},
        {HEAD "lane 0\n  0 foo", "line 3 column 5: 'foo' where a destination"},
        {HEAD "lane 0\n  0 out[0]", "line 3 column 11: the text ends where <-"},
        {HEAD "lane 0\n  0 out[0] <-", "the text ends where a source"},
        {HEAD "lane 0\n  0 <1.0 <- in[0]", "'<1.0' where a destination"},
        {HEAD "lane 0\n  0 out[0] <- >1.0", "'>1.0' where a source"},
        {HEAD "lane 0\n  0 out[0 <- in[0]", "'out[0' where a destination"},
        {HEAD "lane 0\n  0 out[3..2] <- in[0]", "where a destination"},
        {HEAD "lane 0\n  0 out[0..2147483647] <- in[0]", "where a destination"},
        {HEAD "lane 0\n  0 out[0+1/2*0] <- in[0]", "where a destination"},
        {HEAD "lane 0\n  0 out[0..1] <- in[0]", "'in[0]' where a span of the same shape"},
        {HEAD "lane 0\n  0 out[0] <- in[0] of in[0..1]", "where a span of the same shape"},
        {HEAD "lane 0\n  0 out[0] <- in[0] of tmp[0]", "where a span of in or out"},
        {HEAD "lane 0\n  0 >1.0 <- <2.0 end", "line 3 column 18: 'end' where 'of'"},
        {HEAD "lane 0\n  0 wait <1.0 in[0]", "where a move with data"},
        {HEAD "lane 0\n  0 wait end", "'end' where a source"},
        {HEAD "lane 0\n  0 signal <1.0", "'<1.0' where a destination"},
        {HEAD "lane 0\n  0 out@[0] <- in[0]", "where a destination"},
        {HEAD "lane 0\n  0 out[0] <- in[4] end",
         "line 1 column 1: plan all_reduce hand rank 0 of 3, "
         "lane 0, step 0: 1 chunks from 4 on"},
        {HEAD "lane 0\n  0 out[0] <- \1\377", "'?\?' where a source"},
        {HEAD "end", "without lanes"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct plan *p = NULL;
        cr_assert_eq(parse(bad[i].text, strlen(bad[i].text), &p), KOLO_ERR_ARG, "%s", bad[i].text);
        cr_assert_null(p, "%s", bad[i].text);
        cr_assert_not_null(strstr(fail_text(), bad[i].part), "'%s' lacks '%s'", fail_text(),
                           bad[i].part);
    }
}

Test(plan, a_text_cut_anywhere_is_refused)
{
    const struct plan_shape s = {.coll = KOLO_COLL_ALL_TO_ALL, .nranks = 5, .rank = 1};
    struct plan *p;
    struct plan *cut = NULL;
    cr_assert_eq(plan_generate(plan_algo_find(s.coll, "bruck"), &s, &p), KOLO_OK);
    char *const text = print(p);
    for (size_t n = 0; n < strlen(text) - 1; n++)
        cr_assert_eq(parse(text, n, &cut), KOLO_ERR_ARG, "cut at %zu", n);
    free(text);
    plan_destroy(p);
}

/* ---- files ----------------------------------------------------------------------------------- */

static void write_file(char path[32], const char *text)
{
    strcpy(path, "/tmp/kolo_plan_XXXXXX");
    const int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

#define BARRIER(rank)                                                                              \
    "plan barrier hand rank " rank " of 3 root 0\nchunks in 0 out 0 tmp 0\nlane 0\nend\n"

Test(plan, load_reads_all_plans_of_a_file)
{
    char path[32];
    struct plan **plans = NULL;
    size_t n = 0;
    write_file(path, "# three\n" BARRIER("0") BARRIER("1") "\n\n" BARRIER("2") "# end\n");
    cr_assert_eq(plan_load(path, &plans, &n), KOLO_OK, "%s", fail_text());
    unlink(path);
    cr_assert_eq(n, (size_t)3);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(plans[i]->rank, i);
    plan_set_destroy(plans, n);
}

Test(plan, load_says_what_is_wrong_with_a_file)
{
    char path[32];
    struct plan **plans = NULL;
    size_t n = 7;
    cr_assert_eq(plan_load("/nonexistent/plan", &plans, &n), KOLO_ERR_ARG);
    cr_assert_not_null(strstr(fail_text(), "/nonexistent/plan"), "%s", fail_text());
    cr_assert_eq(plan_load("/", &plans, &n), KOLO_ERR_ARG);
    write_file(path, "# nothing\n");
    cr_assert_eq(plan_load(path, &plans, &n), KOLO_ERR_ARG);
    unlink(path);
    write_file(path, BARRIER("0") "lane\n");
    cr_assert_eq(plan_load(path, &plans, &n), KOLO_ERR_ARG);
    unlink(path);
    cr_assert_not_null(strstr(fail_text(), "line 5 column 1: 'lane' where plan"), "%s",
                       fail_text());
    cr_assert_not_null(strstr(fail_text(), path), "%s", fail_text());
    cr_assert_null(plans);
    cr_assert_eq(n, (size_t)7);
}

Test(plan, every_allocation_may_fail)
{
    char path[32];
    struct plan **plans = NULL;
    size_t n = 0;
    enum kolo_status status = KOLO_ERR_NOMEM;
    const int64_t live = mem_live();
    write_file(path, HEAD "lane 0 0 out[0] >1.0 <- in[0] <2.0 end\n" BARRIER("1") BARRIER("2"));
    int nth = 0;
    while (status != KOLO_OK) {
        mem_fail_at((uint64_t)++nth);
        status = plan_load(path, &plans, &n);
        mem_fail_at(0);
        cr_assert(status == KOLO_OK || status == KOLO_ERR_NOMEM, "allocation %d: %d", nth, status);
        cr_assert(status == KOLO_OK || mem_live() == live, "allocation %d leaks", nth);
        cr_assert_lt(nth, 1000);
    }
    unlink(path);
    cr_assert_gt(nth, 10);
    cr_assert_eq(n, (size_t)3);
    plan_set_destroy(plans, n);
    cr_assert_eq(mem_live(), live);
}
