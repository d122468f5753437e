/* test_link.c - the ring of a link: what is in flight never overlaps, LINK_SLOTS messages always
 * fit, a producer that was refused goes on once enough has been taken, and the consumer finds each
 * message whatever the producer chose. */
#include "support/test.h"
#include "transport.h"

#include <stdlib.h>
#include <string.h>

enum { SLOT = 4096, RING = 6 * SLOT, STRIDE = 192 };

struct pair {
    struct link sends, receives;
    struct link_back back;
    _Atomic uint64_t probe;
    _Atomic uint32_t bells[2];
    unsigned char *cells;
    unsigned char *smalls;
    unsigned char *ring;
    size_t bytes[LINK_CELLS]; /* of what is in flight */
};

static void *zeroed(size_t bytes)
{
    void *p = aligned_alloc(64, bytes);
    return memset(p, 0, bytes);
}

static void pair_open(struct pair *p, uint32_t ncells)
{
    *p = (struct pair){.cells = zeroed(ncells * STRIDE),
                       .smalls = zeroed(LINK_SMALLS * SMALL_STRIDE),
                       .ring = zeroed(RING)};
    p->sends = p->receives = (struct link){.cells = p->cells,
                                           .smalls = p->smalls,
                                           .ring = p->ring,
                                           .back = &p->back,
                                           .probe = &p->probe,
                                           .ncells = ncells,
                                           .cell_stride = STRIDE,
                                           .slot_bytes = SLOT,
                                           .ring_bytes = RING};
    p->sends.bell = &p->bells[0];
    p->receives.bell = &p->bells[1];
}

static void pair_close(struct pair *p)
{
    free(p->cells);
    free(p->smalls);
    free(p->ring);
}

static uint32_t next(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Every byte tells the message. */
static bool send_one(struct pair *p, size_t bytes, struct ring_use use)
{
    struct link *l = &p->sends;
    if (!link_has_room(l, LINK_CELLS, bytes, use))
        return false;
    unsigned char *at = link_payload(l, bytes);
    if (bytes > SMALL_BYTES)
        cr_assert(at >= p->ring && at + bytes <= p->ring + RING, "outside the ring");
    memset(at, (int)(l->count % 251 + 1), bytes);
    p->bytes[l->count % LINK_CELLS] = bytes;
    link_commit(l, 7, bytes, CELL_DATA);
    return true;
}

static bool receive_one(struct pair *p)
{
    struct link *l = &p->receives;
    if (!link_arrived(l))
        return false;
    const size_t bytes = p->bytes[l->count % LINK_CELLS];
    cr_assert_eq(link_cell_at(l)->bytes, bytes);
    const unsigned char *at = link_arrival(l, bytes), want = (unsigned char)(l->count % 251 + 1);
    for (size_t i = 0; i < bytes; i++)
        cr_assert_eq(at[i], want, "message %llu of %zu bytes is overwritten at %zu",
                     (unsigned long long)l->count, bytes, i);
    link_consume(l);
    return true;
}

/* What job_ring may come to for messages of up to `most`. */
static struct ring_use draw_use(uint32_t *state, size_t most)
{
    const size_t least = LINK_ROOM * round_up(most, 64);
    if (least > RING || next(state) % 3 == 0)
        return (struct ring_use){.window = LINK_SLOTS * SLOT, .stride = SLOT};
    return (struct ring_use){.window = least + next(state) % (RING - least + 1)};
}

static size_t draw_bytes(uint32_t *state, size_t most)
{
    switch (next(state) % 8) {
    case 0:
        return next(state) % (SMALL_BYTES + 2);
    case 1:
        return most;
    case 2:
    case 3:
    case 4:
        return next(state) % (CELL_INLINE + 2);
    default:
        return next(state) % (most + 1);
    }
}

/* Run on a new pair for each seed. */
static void with_seeds(uint32_t nseeds, void (*scene)(struct pair *p, uint32_t seed))
{
    for (uint32_t seed = 1; seed <= nseeds; seed++) {
        struct pair p;
        pair_open(&p, seed % 2 ? LINK_CELLS : LINK_SMALLS);
        scene(&p, seed);
        pair_close(&p);
    }
}

static void keep_apart(struct pair *p, uint32_t seed)
{
    uint32_t state = seed;
    uint64_t sent = 0;
    for (int job = 0; job < 60; job++) {
        const size_t most = next(&state) % 3 ? 1 + next(&state) % SLOT : 2048;
        const struct ring_use use = draw_use(&state, most);
        for (int i = 0; i < 40; i++) {
            for (unsigned n = next(&state) % 150; n > 0; n--)
                sent += send_one(p, draw_bytes(&state, most), use);
            for (unsigned n = next(&state) % 150; n > 0; n--)
                receive_one(p);
        }
    }
    while (receive_one(p))
        ;
    cr_assert_eq(p->receives.count, sent, "seed %u", seed);
    cr_assert_gt(sent, 10000u, "seed %u", seed);
}

Test(link, messages_in_flight_do_not_overlap)
{
    with_seeds(40, keep_apart);
}

static void fill_slots(struct pair *p, uint32_t seed)
{
    uint32_t state = seed;
    const size_t most = 1 + next(&state) % SLOT;
    const struct ring_use use = draw_use(&state, most);
    for (int i = 0; i < 3000; i++) {
        while (p->sends.count - p->receives.count >= LINK_SLOTS)
            cr_assert(receive_one(p));
        cr_assert(send_one(p, draw_bytes(&state, most), use), "seed %u: refused with %d in flight",
                  seed, (int)(p->sends.count - p->receives.count));
    }
}

/* Plans are proven with so many, whatever went before in the same job. */
Test(link, slots_messages_always_fit)
{
    with_seeds(60, fill_slots);
}

static void change_jobs(struct pair *p, uint32_t seed)
{
    uint32_t state = seed;
    for (int job = 0; job < 200; job++) {
        const size_t most = 1 + next(&state) % SLOT;
        const struct ring_use use = draw_use(&state, most);
        for (int i = 0; i < 10; i++) {
            const size_t bytes = draw_bytes(&state, most);
            while (!send_one(p, bytes, use)) {
                cr_assert_gt(p->sends.hold, p->sends.credit, "waits for nothing");
                cr_assert(receive_one(p), "seed %u: refused by an empty link", seed);
            }
        }
    }
}

/* A job with other messages finds the ring as the one before has left it: it may wait for those to
 * be taken, for nothing else. */
Test(link, other_jobs_do_not_block)
{
    with_seeds(60, change_jobs);
}

/* A peer that lies about a place is read inside the ring. */
Test(link, places_outside_are_not_read)
{
    struct pair p;
    pair_open(&p, LINK_CELLS);
    cr_assert(send_one(&p, SLOT, (struct ring_use){.window = RING}));
    struct link_cell *cell = link_cell_at(&p.receives);
    for (uint32_t at = 0; at < 1u << 24; at += 4093) {
        cell->detail = CELL_DATA | at << CELL_INDEX_BIT;
        const unsigned char *found = link_arrival(&p.receives, SLOT);
        cr_assert(found >= p.ring && found + SLOT <= p.ring + RING, "line %u", at);
    }
    pair_close(&p);
}
