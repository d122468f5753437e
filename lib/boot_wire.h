/* boot_wire.h - everything that the bootstrap puts on a wire, and the proof of the secret.
 *
 *     server                                client
 *       wire_challenge            ->                       on accept, 24 bytes
 *                                 <-   wire_answer         its own challenge, its proof, 40 bytes
 *       proof                     ->                       16 bytes; only after a right answer
 *                                 <-   wire_hello          the first thing that anybody parses
 *
 * Fixed sizes only, little-endian.  The proof is no encryption: whoever can change packets on the
 * way can still change what follows. */
#ifndef BOOT_WIRE_H
#define BOOT_WIRE_H

#include "boot_net.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "wire structs are copied as they are");

enum {
    WIRE_SECRET_BYTES = 16,
    WIRE_PROOF_BYTES = 16,
    WIRE_VERSION = 1,
    WIRE_TEXT_BYTES = 1024,
    WIRE_MAX_ROUNDS = 20, /* 2^20 = PLAN_MAX_RANKS */
    WIRE_MAX_RANKS = 1 << WIRE_MAX_ROUNDS,
};

#define WIRE_MAGIC UINT32_C(0x6f6c6f4b) /* "Kolo" */

/* Whom the client wants; part of the proof, so that an answer serves for nothing else. */
enum wire_kind { WIRE_TO_ROOT = 1, WIRE_TO_RANK = 2 };

struct wire_challenge {
    uint32_t magic;
    uint16_t version;
    uint16_t unused;
    unsigned char challenge[16];
};

struct wire_answer {
    uint32_t magic;
    uint16_t version;
    uint16_t kind;
    unsigned char challenge[16];
    unsigned char proof[WIRE_PROOF_BYTES];
};

/* How to find a rank, and what to call it in messages. */
struct wire_card {
    char host[NET_HOST_BYTES];
    int32_t rank;
    uint32_t pid;
    uint16_t port;
    uint16_t unused[3];
    uint8_t addrs[NET_PACKED_BYTES];
};

/* Rank -> root. */
struct wire_hello {
    int32_t rank;
    int32_t nranks;
    uint32_t wait_ms; /* how long the rank can wait for an answer */
    uint32_t unused;
    struct wire_card card;
};

/* Root -> rank: status KOLO_OK and then the cards of rank + 2^k and rank - 2^k for each round k; or
 * an error and then its text.  `bytes` follow. */
struct wire_reply {
    uint32_t magic;
    int32_t status;
    uint32_t bytes;
    uint32_t unused;
};

/* Rank -> rank, first message on a connection. */
struct wire_peer_hello {
    int32_t from;
    int32_t to;
    int32_t nranks;
    int32_t round;
};

enum wire_what {
    WIRE_DATA = 1,    /* blocks of an all-gather follow */
    WIRE_FAILED = 2,  /* a wire_notice follows: the sender gave up */
    WIRE_WAITING = 3, /* a wire_notice follows: the sender's deadline passed while waiting */
};

struct wire_msg {
    uint32_t magic;
    uint16_t what; /* enum wire_what */
    uint16_t round;
    uint32_t seq;
    uint32_t unused;
    uint64_t bytes; /* of one rank's blob */
};

/* Who found a failure, or (WIRE_WAITING) who is waited for. */
struct wire_notice {
    int32_t rank;
    int32_t status;
    char host[NET_HOST_BYTES];
    char text[440];
};

_Static_assert(sizeof(struct wire_challenge) == 24, "wire format");
_Static_assert(sizeof(struct wire_answer) == 40, "wire format");
_Static_assert(sizeof(struct wire_card) == 168, "wire format");
_Static_assert(sizeof(struct wire_hello) == 184, "wire format");
_Static_assert(sizeof(struct wire_reply) == 16, "wire format");
_Static_assert(sizeof(struct wire_peer_hello) == 16, "wire format");
_Static_assert(sizeof(struct wire_msg) == 24, "wire format");
_Static_assert(sizeof(struct wire_notice) == 512, "wire format");

/* What an id says.  `nonce` only tells ids apart. */
struct wire_id {
    uint64_t nonce;
    unsigned char secret[WIRE_SECRET_BYTES];
    struct net_addrs addrs;
};

void wire_id_encode(const struct wire_id *in, struct kolo_unique_id *out);
/* ARG for bytes that wire_id_encode cannot have written. */
enum kolo_status wire_id_decode(const struct kolo_unique_id *in, struct wire_id *out);

void wire_secret_from_text(const char *text, unsigned char out[WIRE_SECRET_BYTES]);

/* The keyed hash of both challenges and of the side that proves. */
void wire_prove(const unsigned char secret[WIRE_SECRET_BYTES], enum wire_kind kind, bool is_server,
                const unsigned char server_challenge[16], const unsigned char client_challenge[16],
                unsigned char proof[WIRE_PROOF_BYTES]);
/* In a time that does not depend on where they differ. */
bool wire_proof_equal(const unsigned char a[WIRE_PROOF_BYTES],
                      const unsigned char b[WIRE_PROOF_BYTES]);

void wire_card_fill(int rank, const struct net_addrs *addrs, struct wire_card *out);
/* False for a card without address or with a host that is no text. */
bool wire_card_check(const struct wire_card *card, struct net_addrs *addrs);
bool wire_hello_check(const struct wire_hello *hello);
/* Number of rounds of an all-gather of n ranks: ceil(log2 n). */
int wire_rounds(int nranks);
/* Whether a reply to a rank of nranks is what a root can send. */
bool wire_reply_check(const struct wire_reply *reply, int nranks);
bool wire_msg_check(const struct wire_msg *msg);
/* Make texts that came over a wire safe to print: terminated, printable ASCII. */
void wire_text_clean(char *text, size_t size);

#endif
