/* call.c - what an operation is, compared and put into words: signatures on the wire, records on
 * the board, texts in errors. */
#include "engine.h"

#include <inttypes.h>
#include <stdio.h>

static const char *const type_names[KOLO_NTYPES] = {
    [KOLO_I8] = "i8",   [KOLO_U8] = "u8",     [KOLO_I32] = "i32",       [KOLO_U32] = "u32",
    [KOLO_I64] = "i64", [KOLO_U64] = "u64",   [KOLO_F16] = "f16",       [KOLO_F32] = "f32",
    [KOLO_F64] = "f64", [KOLO_BF16] = "bf16", [KOLO_F8E4M3] = "f8e4m3", [KOLO_F8E5M2] = "f8e5m2",
    [KOLO_I16] = "i16", [KOLO_U16] = "u16",
};
static const char *const op_names[KOLO_NOPS] = {"sum", "prod", "max", "min",
                                                "avg", "band", "bor", "bxor"};

/* Custom sums may differ in their scalar, and so in their handle. */
static int shared_op(int op)
{
    return op >= KOLO_OP_FIRST_CUSTOM ? KOLO_OP_FIRST_CUSTOM : op;
}

void call_text(const struct call *c, uint64_t seq, char *out, size_t size)
{
    struct text t;
    text_init(&t, out, size);
    const char *type = c->type >= 0 && c->type < KOLO_NTYPES ? type_names[c->type] : "?";
    const int op = shared_op(c->op);
    const char *op_name = op == KOLO_OP_FIRST_CUSTOM       ? "pre-multiplied sum"
                          : op >= 0 && op < (int)KOLO_NOPS ? op_names[op]
                                                           : "?";
    if (c->coll == KOLO_COLL_ALL_REDUCE && c->root < 0) {
        text_add(&t,
                 "a group of %d all_reduce(counts with hash %zx, %s, %s) as operations %" PRIu64
                 " to %" PRIu64,
                 -c->root, c->count, type, op_name, seq, seq - 1 + (uint64_t)-c->root);
        return;
    }
    text_add(&t, "%s(", kolo_coll_name((int)c->coll));
    if (coll_is_p2p(c->coll)) {
        text_add(&t, "count %zu, %s, peer %d)", c->count, type, c->root);
        return;
    }
    if (c->coll == KOLO_COLL_REDUCE_SCATTER_V || c->coll == KOLO_COLL_ALL_GATHER_V)
        text_add(&t, "counts with hash %zx, %s", c->count, type);
    else if (c->coll == KOLO_COLL_ALL_TO_ALL_V)
        text_add(&t, "%s", type);
    else if (c->coll != KOLO_COLL_BARRIER)
        text_add(&t, "count %zu, %s", c->count, type);
    if (coll_reduces(c->coll))
        text_add(&t, ", %s", op_name);
    if (coll_has_root(c->coll))
        text_add(&t, ", root %d", c->root);
    text_add(&t, ") as operation %" PRIu64, seq);
}

uint64_t call_hash(const struct call *c)
{
    const bool is_p2p = coll_is_p2p(c->coll);
    const unsigned kind = is_p2p ? KOLO_COLL_SEND : c->coll;
    const bool shares_count = !is_p2p && c->coll != KOLO_COLL_ALL_TO_ALL_V;
    uint64_t h = kind | (unsigned)c->type << 8 | (uint64_t)shared_op(c->op) << 16 |
                 (is_p2p ? 0 : (uint64_t)(unsigned)c->root << 32);
    h = (h ^ (h >> 29)) * 0xbf58476d1ce4e5b9u;
    h ^= (shares_count ? c->count + 1 : 0) * 0x9e3779b97f4a7c15u;
    return (h ^ (h >> 32)) * 0x94d049bb133111ebu;
}

bool call_matches(const struct call *a, const struct call *b)
{
    return a->coll == b->coll && a->type == b->type && shared_op(a->op) == shared_op(b->op) &&
           a->root == b->root && (a->count == b->count || a->coll == KOLO_COLL_ALL_TO_ALL_V);
}

void board_publish(struct board *b, uint64_t seq, const struct call *c)
{
    struct board_call *r = &b->calls[seq % BOARD_CALLS];
    /* A reader that sees the old number and new fields sees 0 when it looks again. */
    atomic_store_explicit(&r->seq, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&r->count, c->count, memory_order_relaxed);
    atomic_store_explicit(&r->root, c->root, memory_order_relaxed);
    atomic_store_explicit(&r->op, shared_op(c->op), memory_order_relaxed);
    atomic_store_explicit(&r->coll, (uint8_t)c->coll, memory_order_relaxed);
    atomic_store_explicit(&r->type, (uint8_t)c->type, memory_order_relaxed);
    /* Release: pairs with the acquire load in board_find. */
    atomic_store_explicit(&r->seq, seq + 1, memory_order_release);
}

bool board_find(const struct board *b, uint64_t seq, struct call *out)
{
    const struct board_call *r = &b->calls[seq % BOARD_CALLS];
    if (atomic_load_explicit(&r->seq, memory_order_acquire) != seq + 1)
        return false;
    out->coll = atomic_load_explicit(&r->coll, memory_order_relaxed);
    out->type = atomic_load_explicit(&r->type, memory_order_relaxed);
    out->op = atomic_load_explicit(&r->op, memory_order_relaxed);
    out->root = atomic_load_explicit(&r->root, memory_order_relaxed);
    out->count = atomic_load_explicit(&r->count, memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&r->seq, memory_order_relaxed) == seq + 1;
}
