/* boot_link.h - the handle of a rank, its connections, and one round of messages on them.
 *
 *     rank - 2^k  --in[k]-->  rank  --out[k]-->  rank + 2^k          (modulo size)
 *
 * Data goes forward only.  When a rank gives up, it says so on all of its connections, both ways,
 * and closes them; who hears it gives up too.  So the first cause reaches everybody, as text. */
#ifndef BOOT_LINK_H
#define BOOT_LINK_H

#include "boot.h"
#include "boot_meet.h"

struct boot_link {
    int fd; /* -1: none */
    int rank;
    bool is_busy; /* stopped in the middle of sending a message */
    char host[NET_HOST_BYTES];
};

struct boot {
    int rank;
    int size;
    int rounds;
    uint32_t seq;            /* operations so far, equal on all ranks */
    enum kolo_status broken; /* KOLO_OK, or why nothing works any more */
    unsigned char secret[WIRE_SECRET_BYTES];
    char host[NET_HOST_BYTES];
    struct boot_link out[WIRE_MAX_ROUNDS];
    struct boot_link in[WIRE_MAX_ROUNDS];
};

/* One round: what to send to out[round] and where to put what comes from in[round], in up to two
 * pieces each (a run of blocks may wrap around).  Lengths are of this round, `bytes` of one
 * blob. */
struct link_round {
    int round;
    size_t bytes;
    struct iovec send[2];
    struct iovec recv[2];
};

/* Send and receive at the same time.  On failure the caller calls link_give_up. */
enum kolo_status link_exchange(struct boot *b, const struct link_round *round, uint64_t deadline);

/* Remember `status`, tell it and the thread's error text to all neighbours, close everything. */
void link_give_up(struct boot *b, enum kolo_status status);

/* Read a notice that waits on `link`, if one is whole: fails with what it says.  KOLO_OK: no
 * notice. *is_quiet becomes true when nothing but data or the end is there, so that watching is no
 * use. */
enum kolo_status link_check_notice(const struct boot_link *link, bool *is_quiet);

/* Connect to all neighbours, cards as boot_join gives them: out[k] by the addresses, in[k] at the
 * listener, which this closes in any case.  On failure it has given up (link_give_up). */
enum kolo_status boot_connect(struct boot *b, const struct wire_card *cards, int listener,
                              uint64_t deadline);

/* Listen for neighbours; the card tells where. */
enum kolo_status boot_listen(int rank, int *listener, struct wire_card *card);

/* A handle without connections. */
enum kolo_status boot_alloc(int rank, int size, const unsigned char *secret, struct boot **out);

/* Ask the root of `id` for the cards of the neighbours: cards[2 k] of out[k], cards[2 k + 1] of
 * in[k], room for 2 * WIRE_MAX_ROUNDS. */
enum kolo_status boot_join(const struct wire_id *id, const struct wire_card *mine, int nranks,
                           uint64_t deadline, struct wire_card *cards);

#endif
