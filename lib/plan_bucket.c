/* plan_bucket.c - many small all_reduces as one plan: each chunk is a vector, or a part of one, and
 * has its own length and place; a message carries as many neighbours as fit, packed.
 *
 *   chunks    | 0 | 1 |   2   | 3 | 4 | 5 |    6    | ...
 *   messages  |     0         |     1     |    2    | ...      owner of message i: rank i mod n
 *
 * Each chunk is reduced in one move, in rank order: bits are those of the vectors one by one. */
#include "plan_gen.h"

/* The next chunks that fit into one message, from `chunk` on; at least one. */
static struct plan_span next_message(const struct plan_bucket *bucket, int chunk)
{
    size_t bytes = bucket->bytes[chunk];
    int count = 1;
    while (chunk + count < bucket->n && bytes + bucket->bytes[chunk + count] <= bucket->most_bytes)
        bytes += bucket->bytes[chunk + count++];
    return plan_chunks(chunk, count);
}

/* Everybody gets every message and reduces for itself, one message behind what it sends.  Rounds 1,
 * bytes sent (n-1) S.  One lane: in place, sums may overwrite a message only after it was sent. */
static void oneshot(struct plan_builder *b, const struct plan_shape *s,
                    const struct plan_bucket *bucket)
{
    struct plan_span sent = {0, 0, 0, 0};
    plan_lane_begin(b);
    for (int at = 0; at < bucket->n || sent.count > 0;) {
        struct plan_span next = {0, 0, 0, 0};
        if (at < bucket->n) {
            next = next_message(bucket, at);
            plan_move(b, PLAN_IN, next, 0);
            plan_to_others(b, s, 0);
            plan_from(b, PLAN_IN, -1, 0, at);
            at += next.count;
        }
        if (sent.count > 0) {
            plan_move(b, PLAN_OUT, sent, PLAN_FINAL);
            plan_to(b, PLAN_OUT, -1, 0, sent.chunk);
            plan_from_all(b, s, PLAN_LINK, sent.chunk);
        }
        sent = next;
    }
}

/* The moves of one lane of the two-shot for the message `of`. */
typedef void stage(struct plan_builder *b, const struct plan_shape *s, int owner,
                   struct plan_span of);

static void scatter(struct plan_builder *b, const struct plan_shape *s, int owner,
                    struct plan_span of)
{
    if (owner != s->rank)
        plan_send(b, PLAN_IN, of, owner, 0);
}

static void reduce(struct plan_builder *b, const struct plan_shape *s, int owner,
                   struct plan_span of)
{
    if (owner != s->rank)
        return;
    plan_move(b, PLAN_OUT, of, PLAN_FINAL);
    plan_to(b, PLAN_OUT, -1, 0, of.chunk);
    plan_to_others(b, s, 1);
    plan_from_all(b, s, PLAN_LINK, of.chunk);
}

static void gather(struct plan_builder *b, const struct plan_shape *s, int owner,
                   struct plan_span of)
{
    if (owner != s->rank)
        plan_receive(b, of, owner, 1);
}

/* The owner of a message reduces it and gives the result to all.  Rounds 2, bytes sent
 * 2 S (n-1)/n.  All lanes go through the messages in one order, so that the first message that is
 * not reduced yet has come from everybody, and finds room for its result. */
static void twoshot(struct plan_builder *b, const struct plan_shape *s,
                    const struct plan_bucket *bucket)
{
    static stage *const stages[] = {scatter, reduce, gather};
    for (size_t i = 0; i < ARRAY_LEN(stages); i++) {
        plan_lane_begin(b);
        int owner = 0;
        for (int at = 0; at < bucket->n;) {
            const struct plan_span of = next_message(bucket, at);
            stages[i](b, s, owner, of);
            owner = plan_wrap(owner, 1, s->nranks);
            at += of.count;
        }
    }
}

/* The chunks that begin in a rank's share of all bytes. */
static struct plan_span share_of(const struct plan_shape *s, const struct plan_bucket *bucket)
{
    const size_t n = (size_t)s->nranks;
    size_t all = 0, before = 0;
    struct plan_span mine = {0, 0, 0, 0};
    for (int k = 0; k < bucket->n; k++)
        all += bucket->bytes[k];
    for (int k = 0; k < bucket->n; k++) {
        const size_t owner = all > 0 ? before * n / all : 0;
        before += bucket->bytes[k];
        if ((owner < n ? owner : n - 1) != (size_t)s->rank)
            continue;
        mine = plan_chunks(mine.count ? mine.chunk : k, mine.count + 1);
    }
    return mine;
}

/* Each rank reduces its share straight from all inputs into all outputs.  Hand-overs 1, memory
 * traffic 2 S. */
static void window(struct plan_builder *b, const struct plan_shape *s,
                   const struct plan_bucket *bucket)
{
    const struct plan_span mine = share_of(s, bucket);
    plan_lane_begin(b);
    for (int at = mine.chunk; at < mine.chunk + mine.count;) {
        struct plan_span of = next_message(bucket, at);
        of = plan_chunks(at, min_int(of.count, mine.chunk + mine.count - at));
        plan_move(b, PLAN_OUT, of, PLAN_FINAL);
        plan_to(b, PLAN_OUT, -1, 0, at);
        for (int i = 1; i < s->nranks; i++)
            plan_to(b, PLAN_PEER_OUT, plan_wrap(s->rank, i, s->nranks), 0, at);
        plan_from_all(b, s, PLAN_PEER_IN, at);
        at += of.count;
    }
    plan_signal_others(b, s);
    plan_wait_others(b, s);
}

enum kolo_status plan_gen_bucket(const struct plan_shape *s, const struct plan_bucket *bucket,
                                 struct plan **out)
{
    struct plan_builder *b;
    switch (bucket->kind) {
    case BUCKET_ONESHOT:
        TRY(plan_builder_create(s, "bucket_oneshot", bucket->n, bucket->n, 0, &b));
        oneshot(b, s, bucket);
        break;
    case BUCKET_TWOSHOT:
        TRY(plan_builder_create(s, "bucket_twoshot", bucket->n, bucket->n, 0, &b));
        twoshot(b, s, bucket);
        break;
    default:
        TRY(plan_builder_create(s, "bucket_window", bucket->n, bucket->n, 0, &b));
        window(b, s, bucket);
    }
    return plan_finish(b, out);
}
