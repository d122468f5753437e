/* transport.h - the contract between the engine and a transport.
 *
 *   engine --- link: a ring of messages, two counters that only grow ---> engine of the peer
 *
 * A transport connects one rank to its peers and gives it two ends per peer and channel: one to
 * send, one to receive.  A *memory* transport (shm.c) places cells, rings and counters where both
 * sides can load and store, and the engine does all the rest with the inline functions below.  A
 * *message* transport keeps a copy of the ring on each side and makes the counters true.
 *
 *   message p:  cell p mod ncells        [ seq | signature | bytes | detail | up to CELL_INLINE ]
 *               small p mod LINK_SMALLS  [ or up to SMALL_BYTES ]
 *               ring                     [ or more, where the cell says ]
 *
 * Invariants, with p = messages sent and c = messages received on a link, both 64-bit, never reset:
 *   c <= p <= c + ncells, and a message that does not fit into its cell is sent only when
 *   p < c + LINK_SMALLS; messages in flight do not overlap in the ring, and LINK_SLOTS of them fit
 *   whatever their lengths.
 *   cell p mod ncells holds seq == (uint32_t)(p + 1) once message p is complete.
 *
 * What a rank tells all its peers on a channel it may write once, into its *outbox*, which has
 * entries for three kinds of length; the cells tell the index.  Of such messages as many may be in
 * flight on each link as there are entries of the kind.
 */
#ifndef TRANSPORT_H
#define TRANSPORT_H

#include "base.h"

#include <stdatomic.h>

enum {
    LINK_CELLS =
        128, /* at most; messages in flight that fit into them: how far a root runs ahead */
    CELL_INLINE = 48,               /* payload that travels in the same cache line as the counter */
    CELLS_BYTES = LINK_CELLS * 576, /* over which they are spread */
    LINK_SMALLS = 32,               /* messages in flight of those that do not */
    SMALL_BYTES = 1024, /* what is larger goes into the ring, and leaves its reader's own cache */
    /* Twice as far as need be: else prefetchers run into the next one (broadcast of 1 KiB between
     * 2 ranks: 0.137 us, 0.175 without). */
    SMALL_STRIDE = 64 + 2 * SMALL_BYTES,
    LINK_SLOTS = 4,             /* messages of any length in flight that plans are proven with */
    LINK_ROOM = LINK_SLOTS + 1, /* a ring with room for so many always has it for LINK_SLOTS: what
                                   is left over at its end is less than one */
    /* An outbox has entries for notes, for bodies, and for whole slots.  Strides are no powers of
     * two: first lines fall into different sets. */
    OUTBOX_NOTES = 128,
    NOTE_BYTES = 2048,
    NOTE_STRIDE = NOTE_BYTES + 64,
    OUTBOX_BODIES = 16,
    BODY_BYTES = 16384,
    BODY_STRIDE = BODY_BYTES + 192,
    OUTBOX_BODIES_AT = OUTBOX_NOTES * NOTE_STRIDE,
    OUTBOX_SLOTS_AT = (OUTBOX_BODIES_AT + OUTBOX_BODIES * BODY_STRIDE + 4095) / 4096 * 4096,
    /* A payload of more than this is written past the caches when its consumer is far.  At 1 KiB
     * that gains 5 % then, and the question costs as much when it is near.  What several far ones
     * read gains at any length (128 bytes, 4 ranks in two L3s: 0.39 us, 0.47 without). */
    FAR_BYTES = 1024,
    PROBE_EACH = 64,      /* of such messages those whose number is a multiple are probed; ... */
    PROBE_BYTES = 16384,  /* ... from this on, where a probe is cheap beside the copying, ... */
    PROBE_EACH_LARGE = 8, /* ... multiples of this */
    LINK_CHANNELS = 5,    /* PLAN_MAX_CHANNELS for plans, and one for send and recv */
    LINK_CHANNEL_P2P = 4,
    BOARD_BYTES = 8192, /* per rank, written by it, readable by all peers: the engine's */
};

/* Head of a cell.  The producer fills the rest, then stores seq with release; the consumer's
 * acquire load of seq in link_arrived pairs with it. */
struct link_cell {
    _Atomic uint32_t seq;
    uint32_t signature; /* of the operation, compared by the consumer */
    uint32_t bytes;     /* of payload */
    uint32_t detail;    /* enum cell_detail; CELL_SHARED: the outbox index in the upper bytes */
    unsigned char payload[CELL_INLINE];
};
_Static_assert(sizeof(struct link_cell) == 64, "a cell is one cache line");

enum cell_detail {
    CELL_DATA,
    CELL_ANNOUNCE,      /* where the sender's buffers are (exec_window.c) */
    CELL_SHARED,        /* data, of which the payload lies in the sender's outbox */
    CELL_KIND = 0xff,   /* mask of the above */
    CELL_INDEX_BIT = 8, /* there starts the index in the outbox, or where in the ring: in lines */
};

struct transport;

/* What the consumer writes, in a line of its own. */
struct link_back {
    _Atomic uint64_t consumed; /* messages taken */
    _Atomic uint32_t is_far;   /* 1: lines that the producer wrote take long to come here */
};

/* Equal for all links of ranks that meet. */
struct link_shape {
    size_t slot_bytes; /* largest message */
    size_t ring_bytes; /* at least LINK_SLOTS slots */
    unsigned ncells;   /* power of two, LINK_SMALLS to LINK_CELLS */
};

/* One end of a link, owned by the rank that holds it; touched by its engine's thread only. */
struct link {
    unsigned char *cells;
    unsigned char *smalls;
    unsigned char *ring;         /* ring_bytes, see link_ring_has */
    const unsigned char *outbox; /* consumer: the sender's, of this channel; NULL: it has none */
    struct link_back *back;
    _Atomic uint64_t *probe; /* written by the producer, timed by the consumer */
    _Atomic uint32_t *bell;  /* the other end's doorbell: 1 while it sleeps */
    uint64_t count;          /* messages sent (producer) or received (consumer) by this end */
    uint64_t credit;         /* producer: last value seen of back->consumed */
    uint64_t hold;           /* producer: it sends nothing before that has come to this */
    size_t ring_at;          /* producer: where the next message in the ring lies, ... */
    size_t ring_need;        /* ... and how much it takes of it */
    uint32_t ncells;
    uint32_t cell_stride; /* bytes: far apart, as prefetchers fetch what lies near */
    int peer;
    int16_t channel;
    uint8_t odd_probes; /* consumer: in a row that speak against is_far */
    bool is_far;        /* consumer: what it says; producer: what it has last seen of it */
    uint32_t in_ring;   /* producer: bit p mod LINK_SMALLS: message p lies in the ring, ... */
    uint32_t starts[LINK_SMALLS];  /* ... there, in lines */
    size_t slot_bytes, ring_bytes; /* as in link_shape */
    uint64_t pass; /* the engine's: last pass in which a job of a group used this link */
};
_Static_assert(offsetof(struct link, starts) <= 128, "what is always used: two cache lines");

/* Where a buffer is, in a form that peers can resolve. */
enum window_kind {
    WINDOW_NONE,    /* out of reach */
    WINDOW_ABSENT,  /* there is no such buffer on this rank: nothing to resolve */
    WINDOW_HEAP,    /* `at` is an offset into the shareable heap of the rank's process */
    WINDOW_ADDRESS, /* `at` is an address, good inside the same process */
    WINDOW_REMOTE, /* `at` is an address in private memory: remote_read and remote_write reach it */
    WINDOW_REFUSED, /* shareable or not, the rank does not want windows for this operation */
};
struct window_ref {
    uint64_t kind;
    uint64_t at;
};

struct transport_ops {
    size_t size; /* sizeof this struct; new members are appended */
    const char *name;
    /* Fill in the end that sends to, or receives from, `peer` on `channel`. */
    void (*link)(struct transport *t, int peer, int channel, bool is_producer, struct link *out);
    /* The own outbox of a channel; NULL: there is none. */
    unsigned char *(*outbox)(struct transport *t, int channel);
    /* The board of a rank (own: writable), BOARD_BYTES, or NULL when peer is not served. */
    void *(*board)(struct transport *t, int rank);
    /* The doorbell of a rank: own to sleep on, a peer's to ring. */
    _Atomic uint32_t *(*bell)(struct transport *t, int rank);
    /* Slow: false once the peer's process is gone (or it closed the transport). */
    bool (*is_alive)(struct transport *t, int peer);
    /* Whether peers may resolve refs: the same answer on every rank that opened together. */
    bool (*has_windows)(struct transport *t);
    /* Describe own memory [p, p + bytes): WINDOW_REMOTE when it is private. */
    struct window_ref (*window_ref)(struct transport *t, const void *p, size_t bytes);
    /* Address here of `bytes` at a peer's ref; NULL when it lies outside what is mapped. */
    void *(*window_map)(struct transport *t, int peer, struct window_ref ref, size_t bytes);
    /* Whether private memory of every peer can be read and written (cross memory attach):
     * probed. */
    bool (*has_remote)(struct transport *t);
    /* Copy from, or to, [at, at + bytes) of a peer's memory.  0 or an errno. */
    int (*remote_read)(struct transport *t, int peer, uint64_t at, void *to, size_t bytes);
    int (*remote_write)(struct transport *t, int peer, uint64_t at, const void *from, size_t bytes);
    /* A name for messages: "pid 123 on host a". */
    const char *(*peer_name)(struct transport *t, int peer);
    /* Never blocks; takes a half-built one. */
    void (*close)(struct transport *t);
};

struct transport {
    const struct transport_ops *ops;
};

/* ---- the fast path of memory links ---- */

static inline struct link_cell *link_cell_at(const struct link *l)
{
    const size_t index = l->count & (l->ncells - 1);
    return (struct link_cell *)(void *)(l->cells + index * l->cell_stride);
}

/* Producer: where the payload of the next message of `bytes` is written. */
static inline unsigned char *link_payload(const struct link *l, size_t bytes)
{
    if (bytes <= CELL_INLINE)
        return link_cell_at(l)->payload;
    if (bytes <= SMALL_BYTES)
        return l->smalls + l->count % LINK_SMALLS * SMALL_STRIDE;
    return l->ring + l->ring_at;
}

/* How a job uses rings: their first `window` bytes, and of them at least `stride` for a message.
 * LINK_SLOTS messages always fit when the window has room for LINK_ROOM of the longest, or when
 * each takes as much as the longest and it has room for LINK_SLOTS. */
struct ring_use {
    size_t window;
    size_t stride;
};

/* Producer: is there room for a message of `bytes` in the ring?  ring_at then is where.
 *
 * A line is best written again only when it has left its reader's own cache, from which it must be
 * taken (2 ranks in one L3, exchanges of 32 KiB: 1.8 instead of 4.5 us), but not the cache that all
 * share.  So what comes to one CPU together should fill some MiB: the window is long where few
 * links do that, short where many do. */
static inline bool link_ring_has(struct link *l, size_t bytes, struct ring_use use)
{
    const size_t exact = round_up(bytes, 64), need = exact > use.stride ? exact : use.stride;
    const unsigned flying = (unsigned)(l->count - l->credit);
    const unsigned oldest = l->credit % LINK_SMALLS;
    const uint64_t twice = (uint64_t)l->in_ring << 32 | l->in_ring;
    const uint64_t mask = twice >> oldest & (((uint64_t)1 << flying) - 1);
    l->ring_need = need;
    if (mask == 0) {
        /* Slots are many, and the fewer are used the better. */
        if (use.stride > 0 || l->ring_at + need > use.window)
            l->ring_at = 0;
        return true;
    }
    const size_t tail =
        (size_t)l->starts[(oldest + (unsigned)__builtin_ctzll(mask)) % LINK_SMALLS] * 64;
    if (l->ring_at <= tail)
        return l->ring_at + need <= tail;
    if (l->ring_at + need <= use.window)
        return true;
    if (need > tail)
        return false;
    l->ring_at = 0;
    return true;
}

enum outbox_kind { OUTBOX_NOTE, OUTBOX_BODY, OUTBOX_SLOT, OUTBOX_KINDS };

static inline enum outbox_kind outbox_kind(size_t bytes)
{
    return bytes <= NOTE_BYTES ? OUTBOX_NOTE : bytes <= BODY_BYTES ? OUTBOX_BODY : OUTBOX_SLOT;
}

/* Entries of a kind: a power of two. */
static inline uint64_t outbox_entries(enum outbox_kind kind)
{
    return kind == OUTBOX_NOTE ? OUTBOX_NOTES : kind == OUTBOX_BODY ? OUTBOX_BODIES : LINK_SLOTS;
}

/* Where entry `index` of an outbox lies; inside it whatever the index. */
static inline size_t outbox_at(uint64_t index, enum outbox_kind kind, size_t slot_bytes)
{
    const size_t i = (size_t)(index & (outbox_entries(kind) - 1));
    return kind == OUTBOX_NOTE   ? i * NOTE_STRIDE
           : kind == OUTBOX_BODY ? OUTBOX_BODIES_AT + i * BODY_STRIDE
                                 : OUTBOX_SLOTS_AT + i * slot_bytes;
}

/* Consumer: where the payload of the message that has arrived stands. */
static inline const unsigned char *link_arrival(const struct link *l, size_t bytes)
{
    if (bytes > CELL_INLINE) {
        const uint32_t detail = link_cell_at(l)->detail;
        if ((detail & CELL_KIND) == CELL_SHARED && l->outbox)
            return l->outbox +
                   outbox_at(detail >> CELL_INDEX_BIT, outbox_kind(bytes), l->slot_bytes);
        if (bytes > SMALL_BYTES) {
            const size_t at = (size_t)(detail >> CELL_INDEX_BIT) * 64;
            return l->ring + (at + bytes <= l->ring_bytes ? at : 0);
        }
    }
    return link_payload(l, bytes);
}

/* Producer: look what the consumer says. */
static inline void link_look_back(struct link *l)
{
    /* Acquire: pairs with the release store in link_consume.  The consumer has read the payloads
     * that this side is about to overwrite. */
    l->credit = atomic_load_explicit(&l->back->consumed, memory_order_acquire);
    l->is_far = atomic_load_explicit(&l->back->is_far, memory_order_relaxed) != 0; /* a hint */
}

/* Producer: has the consumer taken `wanted` messages? */
static inline bool link_has_consumed(struct link *l, uint64_t wanted)
{
    if (LIKELY(l->credit >= wanted))
        return true;
    link_look_back(l);
    return l->credit >= wanted;
}

/* Producer: it was refused room: nothing more before half of what is in flight has been taken (but
 * always room for as many messages as plans are proven with).  Where ranks share a CPU, each then
 * runs for many messages rather than for one. */
static inline void link_hold(struct link *l)
{
    const uint64_t flying = l->count - l->credit;
    const uint64_t most = flying / 2 > LINK_SLOTS ? flying / 2 : LINK_SLOTS;
    l->hold = l->count + 1 > most ? l->count + 1 - most : 0;
    if (l->hold <= l->credit)
        l->hold = l->credit + 1;
}

/* Producer: room for one more message, of which `depth` may be in flight?  bytes: that it needs
 * here, 0 when it lies in the outbox. */
static inline bool link_has_room(struct link *l, uint64_t depth, size_t bytes, struct ring_use use)
{
    const uint64_t most = bytes > CELL_INLINE ? LINK_SMALLS : l->ncells;
    depth = depth < most ? depth : most;
    for (int looks = 0;; looks++) {
        const bool may_go = l->credit >= l->hold;
        if (LIKELY(may_go && l->count - l->credit < depth) &&
            (bytes <= SMALL_BYTES || link_ring_has(l, bytes, use)))
            return true;
        if (looks > 0) {
            if (may_go)
                link_hold(l);
            return false;
        }
        link_look_back(l);
    }
}

/* Both ends: does the producer write *probe for the next message, and the consumer time its
 * load? */
static inline bool link_is_probed(const struct link *l, size_t bytes)
{
    return bytes > FAR_BYTES &&
           l->count % (bytes >= PROBE_BYTES ? PROBE_EACH_LARGE : PROBE_EACH) == 0;
}

/* Consumer: has the next message arrived? */
static inline bool link_arrived(const struct link *l)
{
    return atomic_load_explicit(&link_cell_at(l)->seq, memory_order_acquire) ==
           (uint32_t)(l->count + 1);
}

/* Wake the other end if it sleeps; system call only then. */
void link_ring(_Atomic uint32_t *bell);

/* Producer: the payload is in place; publish it. */
static inline void link_commit(struct link *l, uint32_t signature, size_t bytes, uint32_t detail)
{
    struct link_cell *cell = link_cell_at(l);
    if (UNLIKELY(link_is_probed(l, bytes)))
        atomic_store_explicit(l->probe, l->count, memory_order_relaxed);
    cell->signature = signature;
    cell->bytes = (uint32_t)bytes;
    cell->detail = detail;
    const uint32_t bit = (uint32_t)1 << (l->count % LINK_SMALLS);
    if (bytes > SMALL_BYTES && (detail & CELL_KIND) != CELL_SHARED) {
        const uint32_t at = (uint32_t)(l->ring_at / 64);
        cell->detail |= at << CELL_INDEX_BIT;
        l->in_ring |= bit;
        l->starts[l->count % LINK_SMALLS] = at;
        l->ring_at += l->ring_need;
    } else if (UNLIKELY(l->in_ring != 0)) {
        l->in_ring &= ~bit;
    }
    /* Release: pairs with link_arrived. */
    atomic_store_explicit(&cell->seq, (uint32_t)(l->count + 1), memory_order_release);
    l->count++;
    /* Relaxed, without a fence: a sleeper issues a barrier on all CPUs after it set its bell and
     * before it looks at its links a last time (see wait.c), so one of both sides sees the
     * other. */
    if (UNLIKELY(atomic_load_explicit(l->bell, memory_order_relaxed) != 0))
        link_ring(l->bell);
}

/* Consumer: the payload has been read; give its room back. */
static inline void link_consume(struct link *l)
{
    l->count++;
    /* The next message may be there already, when the producer runs ahead; else this hits the own
     * cache, where the line stays until the producer writes it. */
    __builtin_prefetch(link_cell_at(l));
    /* Release: pairs with link_has_room. */
    atomic_store_explicit(&l->back->consumed, l->count, memory_order_release);
    if (UNLIKELY(atomic_load_explicit(l->bell, memory_order_relaxed) != 0))
        link_ring(l->bell);
}

#endif
