/* board.h - what a rank shows its peers in the page that the transport shares: whether it lives,
 * why it failed, and its last collectives, so that a rank that waits can tell a slow peer from
 * one that called something else.  Each rank writes its own board only. */
#ifndef BOARD_H
#define BOARD_H

#include "transport.h"

enum board_state {
    BOARD_LIVE,
    BOARD_LEFT,   /* destroyed its communicator in order */
    BOARD_FAILED, /* status and text say why */
};

/* One started collective.  seq is stored with release after the rest; 0 while it is rewritten.  The
 * rest is read while its owner may write it, so all of it is atomic, stored and loaded relaxed. */
struct board_call {
    _Atomic uint64_t seq; /* 1 + sequence number; 0: none */
    _Atomic uint64_t count;
    _Atomic int32_t root;
    _Atomic int32_t op;
    _Atomic uint8_t coll;
    _Atomic uint8_t type;
    uint8_t unused[6];
};
_Static_assert(sizeof(struct board_call) == 32, "shared struct");

/* A rank that runs ahead still shows the call that the others are at. */
enum { BOARD_CALLS = LINK_CELLS, BOARD_TEXT = ERROR_TEXT_BYTES };

struct board {
    _Atomic uint32_t state; /* enum board_state; release after status and text */
    int32_t status;
    /* 1 + the rank in whose private memory this rank reads or writes just now; 0: none. */
    _Atomic uint32_t touches;
    uint32_t unused[13];
    struct board_call calls[BOARD_CALLS];
    char text[BOARD_TEXT];
};
_Static_assert(sizeof(struct board) <= BOARD_BYTES, "a board fits into its place");

#endif
