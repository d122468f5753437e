/* shm.h - opening the shared-memory transport: for ranks of one machine that meet over Unix
 * sockets, or for ranks of one process that are created together. */
#ifndef SHM_H
#define SHM_H

#include "transport.h"

enum { SHM_NAME_BYTES = 40 };

/* What the ranks tell each other through the bootstrap before they connect; fixed bytes. */
struct shm_card {
    unsigned char host[16];      /* equal for ranks that can meet over a Unix socket */
    unsigned char process[16];   /* equal for ranks of one process */
    char socket[SHM_NAME_BYTES]; /* abstract name of the rank's listener */
    uint64_t slot_bytes;
    int64_t pid;
    char hostname[64];
};
_Static_assert(sizeof(struct shm_card) == 152, "wire struct");

struct shm_listener;

/* Step 1, before the exchange of cards: listen, and fill in the own card. */
enum kolo_status shm_listen(size_t slot_bytes, struct shm_listener **listener,
                            struct shm_card *card);
/* Step 2: cards[0..n) of all ranks, all of one host; shape is the same on all; `secret` (16 bytes)
 * is known to them only.
 * Consumes the listener, also on failure.  The lists of missing peers name ranks as in `cards`. */
enum kolo_status shm_meet(struct shm_listener *listener, const struct shm_card *cards, int rank,
                          int n, const struct link_shape *shape, const unsigned char secret[16],
                          int64_t timeout_ms, struct transport **out);
void shm_listener_close(struct shm_listener *listener); /* takes NULL */

/* n transports in one process, connected. */
enum kolo_status shm_create_local(int n, const struct link_shape *shape, struct transport **out);

#endif
