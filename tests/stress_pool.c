/* stress_pool.c - buffers of calls: reused many times, as programs do, but also new, freed, and of
 * exactly the size that is used, so that AddressSanitizer sees what reads beyond. */
#include "stress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GUARD = 64, SHIFT = 64, BLOCKS = 2 * MOST_CALLS + 8, KEEP_BYTES = 1 << 20, PATTERN = 0xa5 };

struct block {
    unsigned char *memory;
    size_t room;
    bool is_used;
};

struct pool {
    struct block blocks[2][BLOCKS]; /* private, shared */
};

static void give_up(const char *what)
{
    fprintf(stderr, "stress: %s\n", what);
    _exit(2);
}

static void block_empty(struct block *b, bool is_shared)
{
    if (!is_shared)
        free(b->memory);
    else if (kolo_mem_free(b->memory) != KOLO_OK)
        give_up("kolo_mem_free failed");
    *b = (struct block){NULL, 0, false};
}

static void block_fill(struct block *b, size_t bytes, bool is_shared)
{
    void *p = NULL;
    if (is_shared ? kolo_mem_alloc(&p, bytes) != KOLO_OK : !(p = malloc(bytes)))
        give_up("out of memory");
    *b = (struct block){p, bytes, false};
}

struct pool *pool_create(void)
{
    struct pool *p = calloc(1, sizeof *p);
    if (!p)
        give_up("out of memory");
    return p;
}

void pool_destroy(struct pool *p)
{
    for (int kind = 0; kind < 2; kind++)
        for (int i = 0; i < BLOCKS; i++)
            if (p->blocks[kind][i].memory)
                block_empty(&p->blocks[kind][i], kind);
    free(p);
}

/* A free block, from a random place on; one with room if there is one. */
static struct block *find(struct block *blocks, struct rng *r, size_t bytes)
{
    const uint64_t start = rng_below(r, BLOCKS);
    struct block *best = NULL;
    for (uint64_t i = 0; i < BLOCKS; i++) {
        struct block *b = &blocks[(start + i) % BLOCKS];
        if (b->is_used)
            continue;
        if (!best)
            best = b;
        if (b->room >= bytes)
            return b;
    }
    if (!best)
        give_up("the pool is used up");
    return best;
}

struct region pool_take(struct pool *p, struct rng *r, size_t bytes, bool is_shared)
{
    const size_t shift = rng_chance(r, 3) ? rng_below(r, SHIFT) : 0;
    if (!is_shared && rng_chance(r, 4)) {
        unsigned char *exact = malloc(bytes ? bytes : 1);
        if (!exact)
            give_up("out of memory");
        memset(exact, PATTERN, bytes);
        return (struct region){exact, bytes, NULL, exact};
    }
    const size_t all = 2 * GUARD + shift + bytes;
    struct block *b = find(p->blocks[is_shared], r, all);
    if (b->memory && (b->room < all || rng_chance(r, 32)))
        block_empty(b, is_shared);
    if (!b->memory)
        block_fill(b, all + rng_below(r, 4096), is_shared);
    b->is_used = true;
    memset(b->memory, PATTERN, GUARD + shift + bytes + GUARD);
    return (struct region){b->memory + GUARD + shift, bytes, b, NULL};
}

void pool_give(struct pool *p, struct rng *r, struct region *g)
{
    free(g->exact);
    if (!g->block)
        return;
    g->block->is_used = false;
    const bool is_shared = g->block >= p->blocks[1] && g->block < p->blocks[1] + BLOCKS;
    if (g->block->room > KEEP_BYTES && rng_chance(r, 2))
        block_empty(g->block, is_shared);
}

bool pool_guards_hold(const struct region *g)
{
    if (!g->block)
        return true;
    for (const unsigned char *at = g->block->memory; at < g->at; at++)
        if (*at != PATTERN)
            return false;
    for (size_t i = 0; i < GUARD; i++)
        if (g->at[g->bytes + i] != PATTERN)
            return false;
    return true;
}
