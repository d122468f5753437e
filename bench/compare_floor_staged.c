/* compare_floor_staged.c - floors for private buffers: pieces through shared memory that stays in
 * the caches, or process_vm_readv.
 *
 *     input --put--> stage --take--> output        a piece is put when its readers have got the
 *                       \--take--> result          one FLOOR_DEPTH before
 *                                   \--fetch--> output      (shares of a split reduction)
 */
#include "compare_floor.h"

#include <sys/uio.h>

const size_t floor_pieces[] = {16 << 10, 32 << 10, 64 << 10, 128 << 10, FLOOR_PIECE, 0};

/* One operation as a stream of pieces. */
struct stream {
    struct floor_rank *f;
    int coll, is_split, is_nt;
    size_t n, part;     /* floats */
    size_t total, step; /* floats that are cut into pieces, and of one piece */
    uint64_t npieces, base;
    uint64_t put, taken, got;
};

static float *at_slot(char area[][FLOOR_PIECE], const struct stream *s, uint64_t p)
{
    return (float *)(void *)area[(s->base + p) % FLOOR_DEPTH];
}

static size_t piece_len(const struct stream *s, uint64_t p)
{
    const size_t left = s->total - p * s->step;
    return left < s->step ? left : s->step;
}

static int gives(const struct stream *s, int k)
{
    if (s->coll == CMP_BROADCAST)
        return k == 0;
    return s->coll != CMP_REDUCE || s->is_split || k != 0;
}

static int takes(const struct stream *s, int k)
{
    if (s->coll == CMP_BROADCAST)
        return k != 0;
    return s->coll != CMP_REDUCE || s->is_split || k == 0;
}

static int fetches(const struct stream *s, int k)
{
    return s->is_split && (s->coll == CMP_ALL_REDUCE || k == 0);
}

/* Everything of this rank's input that others need of piece p. */
static void put_piece(const struct stream *s, uint64_t p)
{
    const struct floor_rank *f = s->f;
    const int np = f->r.np, me = f->r.rank;
    const size_t at = p * s->step, len = piece_len(s, p);
    float *to = at_slot(f->g->stage[me], s, p);
    const float *in = f->r.in;
    if (s->coll == CMP_ALL_TO_ALL || s->coll == CMP_REDUCE_SCATTER) {
        for (int q = 1; q < np; q++) {
            const size_t k = (size_t)((me + q) % np);
            memcpy(to + s->step * k, in + s->part * k + at, len * sizeof(float));
        }
    } else if (s->is_split) {
        const size_t lo = floor_cut(len, np, me), hi = floor_cut(len, np, me + 1);
        memcpy(to, in + at, lo * sizeof(float));
        memcpy(to + hi, in + at + hi, (len - hi) * sizeof(float));
    } else {
        memcpy(to, in + at, len * sizeof(float));
    }
}

/* Sum floats [lo, hi) of piece p; others' come from the stage, own ones lie at `own`. */
static void sum_piece(const struct stream *s, uint64_t p, float *own, size_t lo, size_t hi,
                      float **out, int nout)
{
    const struct floor_rank *f = s->f;
    float *in[CMP_MAX_RANKS] = {own};
    for (int q = 1; q < f->r.np; q++)
        in[q] = at_slot(f->g->stage[(f->r.rank + q) % f->r.np], s, p) + lo;
    floor_sum(out, nout, in, f->r.np, hi - lo, s->is_nt && nout == 1);
}

static void copy_piece(const struct stream *s, uint64_t p, size_t from)
{
    const struct floor_rank *f = s->f;
    const int np = f->r.np, me = f->r.rank;
    for (int q = 1; q < np; q++) {
        const int k = (me + q) % np;
        if (gives(s, k))
            floor_copy(f->r.out + s->part * (size_t)k + p * s->step,
                       at_slot(f->g->stage[k], s, p) + from, piece_len(s, p), s->is_nt);
    }
}

static void take_piece(const struct stream *s, uint64_t p)
{
    const struct floor_rank *f = s->f;
    const int np = f->r.np, me = f->r.rank;
    const size_t at = p * s->step, len = piece_len(s, p);
    const size_t mine = s->part * (size_t)me, box = s->step * (size_t)me;
    float *out[2] = {f->r.out + at, NULL};
    if (s->coll == CMP_BROADCAST || s->coll == CMP_ALL_GATHER) {
        copy_piece(s, p, 0);
    } else if (s->coll == CMP_ALL_TO_ALL) {
        copy_piece(s, p, box);
    } else if (s->coll == CMP_REDUCE_SCATTER) {
        sum_piece(s, p, f->r.in + mine + at, box, box + len, out, 1);
    } else if (!s->is_split) {
        sum_piece(s, p, f->r.in + at, 0, len, out, 1);
    } else {
        const size_t lo = floor_cut(len, np, me), hi = floor_cut(len, np, me + 1);
        float *result = at_slot(f->g->result[me], s, p) + lo;
        const int keeps = s->coll == CMP_ALL_REDUCE || me == 0;
        out[0] = keeps ? f->r.out + at + lo : result;
        out[1] = result;
        sum_piece(s, p, f->r.in + at + lo, lo, hi, out, s->coll == CMP_ALL_REDUCE ? 2 : 1);
    }
}

static void fetch_piece(const struct stream *s, uint64_t p)
{
    const struct floor_rank *f = s->f;
    const int np = f->r.np, me = f->r.rank;
    const size_t at = p * s->step, len = piece_len(s, p);
    for (int q = 1; q < np; q++) {
        const int k = (me + q) % np;
        const size_t lo = floor_cut(len, np, k), hi = floor_cut(len, np, k + 1);
        floor_copy(f->r.out + at + lo, at_slot(f->g->result[k], s, p) + lo, hi - lo, s->is_nt);
    }
}

/* Have all ranks of one kind counted up to here? */
static int all_have(const struct stream *s, const struct floor_line *lines,
                    int (*is_one)(const struct stream *s, int k), uint64_t n)
{
    for (int k = 0; k < s->f->r.np; k++) {
        if (k != s->f->r.rank && is_one(s, k) && !floor_has(&lines[k], n))
            return 0;
    }
    return 1;
}

/* One step of the oldest work that can go on; 0 when all must wait. */
static int advance(struct stream *s)
{
    struct floor_shared *g = s->f->g;
    const int me = s->f->r.rank;
    if (fetches(s, me) && s->got < s->taken && all_have(s, g->red, takes, s->base + s->got + 1)) {
        fetch_piece(s, s->got++);
        floor_publish(&g->got[me], s->base + s->got);
        return 1;
    }
    if (takes(s, me) && s->taken < s->npieces && (!gives(s, me) || s->taken < s->put) &&
        all_have(s, g->put, gives, s->base + s->taken + 1)) {
        take_piece(s, s->taken++);
        floor_publish(&g->red[me], s->base + s->taken);
        if (!fetches(s, me)) {
            s->got = s->taken;
            floor_publish(&g->got[me], s->base + s->got);
        }
        return 1;
    }
    const uint64_t next = s->base + s->put + 1;
    if (gives(s, me) && s->put < s->npieces &&
        (next <= FLOOR_DEPTH || all_have(s, g->got, takes, next - FLOOR_DEPTH))) {
        put_piece(s, s->put++);
        floor_publish(&g->put[me], s->base + s->put);
        return 1;
    }
    return 0;
}

void floor_staged(struct floor_rank *f, int coll, size_t bytes, int way)
{
    const int np = f->r.np, me = f->r.rank;
    const size_t piece = floor_pieces[way / WAY_PIECE] / sizeof(float);
    struct stream s = {.f = f, .coll = coll, .base = f->pieces};
    s.is_split = way & WAY_SPLIT;
    s.is_nt = way & WAY_NT;
    s.n = bytes / sizeof(float);
    s.part = coll == CMP_BROADCAST ? 0 : s.n / (size_t)np;
    s.total = s.n;
    s.step = piece;
    if (coll == CMP_ALL_GATHER || coll == CMP_ALL_TO_ALL || coll == CMP_REDUCE_SCATTER)
        s.total = s.part;
    if (coll == CMP_ALL_TO_ALL || coll == CMP_REDUCE_SCATTER)
        s.step = piece / (size_t)np / 16 * 16;
    s.npieces = (s.total + s.step - 1) / s.step;
    const uint64_t nputs = gives(&s, me) ? s.npieces : 0, ngots = takes(&s, me) ? s.npieces : 0;
    const size_t mine = s.part * (size_t)me, from = coll == CMP_ALL_TO_ALL ? mine : 0;
    int is_copied = coll != CMP_ALL_TO_ALL && coll != CMP_ALL_GATHER;
    for (long turns = 0; s.put < nputs || s.got < ngots; turns++) {
        if (advance(&s)) {
            turns = 0;
        } else if (!is_copied) { /* the own part, while there is nothing else to do */
            floor_copy(f->r.out + mine, f->r.in + from, s.part, s.is_nt);
            is_copied = 1;
        } else {
            floor_relax(f, turns);
        }
    }
    if (!is_copied)
        floor_copy(f->r.out + mine, f->r.in + from, s.part, s.is_nt);
    f->pieces += s.npieces;
}

/* ---- process_vm_readv ----------------------------------------------------------------------- */

static void pull(const struct floor_rank *f, int k, float *to, const float *from, size_t n)
{
    size_t left = n * sizeof(float);
    for (char *at = (char *)to; left > 0;) {
        struct iovec here = {at, left};
        struct iovec there = {(char *)(uintptr_t)from + (n * sizeof(float) - left), left};
        ssize_t got = process_vm_readv(f->g->pid[k], &here, 1, &there, 1, 0);
        if (got <= 0) {
            perror("process_vm_readv");
            _exit(1);
        }
        at += got;
        left -= (size_t)got;
    }
}

/* Floats [lo, hi) of the sum of all inputs, in pieces that stay in the cache. */
static void pull_sum(struct floor_rank *f, float *out, size_t lo, size_t hi, int is_nt)
{
    const size_t step = (128 << 10) / sizeof(float);
    const int np = f->r.np;
    for (size_t at = lo; at < hi; at += step) {
        const size_t len = hi - at < step ? hi - at : step;
        float *to = out + (at - lo), *in[2] = {f->r.in + at, f->part};
        for (int q = 1; q < np; q++) {
            const int k = (f->r.rank + q) % np;
            pull(f, k, f->part, f->g->in[k] + at, len);
            floor_sum(&to, 1, in, 2, len, is_nt && q == np - 1);
            in[0] = to;
        }
    }
}

/* Shares of a split reduction, once their owners have them. */
static void pull_shares(struct floor_rank *f, size_t n)
{
    const int np = f->r.np, me = f->r.rank;
    for (int q = 1; q < np; q++) {
        const int k = (me + q) % np;
        const size_t lo = floor_cut(n, np, k), hi = floor_cut(n, np, k + 1);
        floor_await(f, &f->g->red[k], f->pieces);
        pull(f, k, f->r.out + lo, f->g->out[k] + lo, hi - lo);
    }
}

/* Between the barriers of the caller. */
void floor_cma(struct floor_rank *f, int coll, size_t bytes, int way)
{
    const int np = f->r.np, me = f->r.rank, nt = way & WAY_NT;
    const size_t n = bytes / sizeof(float), part = n / (size_t)np, mine = part * (size_t)me;
    const size_t lo = floor_cut(n, np, me), hi = floor_cut(n, np, me + 1);
    f->pieces++;
    if (coll == CMP_REDUCE_SCATTER) {
        pull_sum(f, f->r.out, mine, mine + part, nt);
    } else if (coll == CMP_BROADCAST && me > 0) {
        pull(f, 0, f->r.out, f->g->in[0], n);
    } else if (coll == CMP_ALL_GATHER || coll == CMP_ALL_TO_ALL) {
        const size_t from = coll == CMP_ALL_TO_ALL ? mine : 0;
        floor_copy(f->r.out + mine, f->r.in + from, part, nt);
        for (int q = 1; q < np; q++) {
            const int k = (me + q) % np;
            pull(f, k, f->r.out + part * (size_t)k, f->g->in[k] + from, part);
        }
    } else if ((coll == CMP_ALL_REDUCE || coll == CMP_REDUCE) && way & WAY_SPLIT) {
        pull_sum(f, f->r.out + lo, lo, hi, 0);
        floor_publish(&f->g->red[me], f->pieces);
        if (coll == CMP_ALL_REDUCE || me == 0)
            pull_shares(f, n);
    } else if (coll == CMP_ALL_REDUCE || (coll == CMP_REDUCE && me == 0)) {
        pull_sum(f, f->r.out, 0, n, nt);
    }
}
