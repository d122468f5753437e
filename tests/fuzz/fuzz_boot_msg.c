/* fuzz_boot_msg.c - what strangers and broken peers send: to a greeter that has not seen a proof,
 * to a rank in the middle of an all-gather, and to the checks of every wire struct. */
#include "boot_link.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_structs(const uint8_t *data, size_t size)
{
    struct wire_hello hello = {0};
    struct wire_reply reply = {0};
    struct net_addrs addrs;
    memcpy(&hello, data, size < sizeof(hello) ? size : sizeof(hello));
    memcpy(&reply, data, size < sizeof(reply) ? size : sizeof(reply));
    if (wire_hello_check(&hello)) {
        if (strnlen(hello.card.host, NET_HOST_BYTES) == NET_HOST_BYTES || hello.rank < 0)
            __builtin_trap();
        if (!wire_card_check(&hello.card, &addrs) || addrs.n > NET_MAX_ADDRS)
            __builtin_trap();
    }
    for (int n = 1; n <= 1024; n *= 4) {
        if (wire_reply_check(&reply, n) && reply.status == KOLO_OK &&
            reply.bytes > 2 * WIRE_MAX_ROUNDS * sizeof(struct wire_card))
            __builtin_trap();
    }
}

/* A guest that says what the fuzzer says must never be taken for a rank. */
static void greet(const uint8_t *data, size_t size)
{
    static const unsigned char secret[WIRE_SECRET_BYTES] = "not to be known";
    struct greeter g;
    struct pollfd fds[2] = {{.fd = -1}};
    struct wire_hello hello;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0 ||
        greeter_init(&g, -1, secret, WIRE_TO_ROOT, sizeof(hello), 1) != KOLO_OK)
        __builtin_trap();
    g.guests[g.n++] = (struct guest){.fd = pair[0], .since = now_ns()};
    if (write(pair[1], data, size) != (ssize_t)size)
        __builtin_trap();
    for (int i = 0; i < 6 && g.n > 0; i++) {
        fds[1] = (struct pollfd){.fd = g.guests[0].fd, .revents = POLLIN};
        greeter_step(&g, fds);
        if (greeter_take(&g, &hello) >= 0)
            __builtin_trap();
    }
    greeter_fini(&g);
    close(pair[1]);
}

/* Rank 0 of 2, whose neighbour sends what the fuzzer says, and closes. */
static void gather(const uint8_t *data, size_t size)
{
    static const unsigned char secret[WIRE_SECRET_BYTES];
    struct boot *b;
    int out[2], in[2];
    char all[2][8];
    if (boot_alloc(0, 2, secret, &b) != KOLO_OK || socketpair(AF_UNIX, SOCK_STREAM, 0, out) != 0 ||
        socketpair(AF_UNIX, SOCK_STREAM, 0, in) != 0)
        __builtin_trap();
    b->out[0] = (struct boot_link){.fd = out[0], .rank = 1, .host = "peer"};
    b->in[0] = (struct boot_link){.fd = in[0], .rank = 1, .host = "peer"};
    if (write(in[1], data, size) != (ssize_t)size || write(out[1], data, size) != (ssize_t)size)
        __builtin_trap();
    close(in[1]);
    const enum kolo_status first = boot_all_gather(b, "1234567", 8, all, 1000);
    const enum kolo_status second = boot_barrier(b, 1000);
    if (first != KOLO_OK && second != first)
        __builtin_trap();
    boot_destroy(b);
    close(out[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > 4096)
        return 0;
    check_structs(data, size);
    greet(data, size);
    /* Most random bytes end at the magic number: also with a right one. */
    gather(data, size);
    uint8_t mended[4096];
    const uint32_t magic = WIRE_MAGIC;
    memcpy(mended, data, size);
    memcpy(mended, &magic, size < sizeof(magic) ? size : sizeof(magic));
    gather(mended, size);
    return 0;
}
