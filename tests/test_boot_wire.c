/* test_boot_wire.c - the parts of the bootstrap that need no network: addresses, options, proofs,
 * checks of wire structs, and the handshake over a socket pair with each byte wrong in turn. */
#include "support/test.h"

#include "boot_meet.h"
#include "boot_root.h"

#include <string.h>
#include <sys/socket.h>

Test(boot_wire, missing_ranks_print_as_ranges)
{
    static const struct {
        int n;
        const char *there; /* a '1' for each rank that is there */
        const char *text;
    } cases[] = {{1, "1", ""},
                 {1, "0", "0"},
                 {2, "00", "0-1"},
                 {5, "10101", "1, 3"},
                 {10, "1110111000", "3, 7-9"},
                 {4, "0110", "0, 3"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        int there[16];
        char out[64];
        struct text t;
        text_init(&t, out, sizeof(out));
        for (int r = 0; r < cases[i].n; r++)
            there[r] = cases[i].there[r] - '0';
        root_missing_print(there, cases[i].n, &t);
        cr_assert_str_eq(out, cases[i].text, "case %zu: %s", i, out);
    }
}

Test(boot_wire, addresses_pack_and_unpack)
{
    struct net_addrs in = {.port = 77, .n = 6}, out;
    uint8_t packed[NET_PACKED_BYTES];
    for (int i = 0; i < in.n; i++) {
        in.at[i].family = i % 2 ? 6 : 4;
        memset(in.at[i].bytes, i + 1, i % 2 ? 16 : 4);
    }
    net_addrs_pack(&in, packed);
    cr_assert(net_addrs_unpack(packed, 77, &out));
    cr_assert_eq(out.n, 6, "%d", out.n);
    cr_assert_eq(memcmp(out.at, in.at, 6 * sizeof(in.at[0])), 0);
    cr_assert_not(net_addrs_unpack(packed, 0, &out), "port 0");
    packed[NET_PACKED_BYTES - 1] = 6;
    cr_assert_not(net_addrs_unpack(packed, 77, &out), "a cut address");
    memset(packed, 0, sizeof(packed));
    cr_assert_not(net_addrs_unpack(packed, 77, &out), "no address");
}

Test(boot_wire, options_choose_interfaces_and_ports)
{
    int lo = 0, hi = 0;
    cr_assert(net_ifname_allowed("", "eth0"));
    cr_assert(net_ifname_allowed("eth", "eth0"));
    cr_assert(net_ifname_allowed("ib,eth", "eth0"));
    cr_assert_not(net_ifname_allowed("ib", "eth0"));
    cr_assert_not(net_ifname_allowed("^eth,ib", "eth0"));
    cr_assert(net_ifname_allowed("^docker", "eth0"));
    cr_assert(net_ifname_allowed(",", "eth0"));
    cr_assert(net_port_range("5-9", &lo, &hi) && lo == 5 && hi == 9);
    cr_assert(net_port_range("65535", &lo, &hi) && lo == 65535 && hi == 65535);
    static const char *const bad[] = {
        "", "0-5", "9-5", "a", "1-", "-1", "1-65536", "1-2x", "+1", " 1", "99999999999999999999"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        cr_assert_not(net_port_range(bad[i], &lo, &hi), "'%s'", bad[i]);
}

/* ---- proofs ---- */

Test(boot_wire, a_proof_serves_for_one_thing_only)
{
    unsigned char secret[16] = "0123456789abcde", other[16] = "0123456789abcdf";
    unsigned char a[16] = "challenge one..", b[16] = "challenge two..";
    unsigned char proofs[8][WIRE_PROOF_BYTES], again[WIRE_PROOF_BYTES];
    wire_prove(secret, WIRE_TO_ROOT, false, a, b, proofs[0]);
    wire_prove(secret, WIRE_TO_ROOT, true, a, b, proofs[1]);
    wire_prove(secret, WIRE_TO_RANK, false, a, b, proofs[2]);
    wire_prove(secret, WIRE_TO_RANK, true, a, b, proofs[3]);
    wire_prove(secret, WIRE_TO_ROOT, false, b, a, proofs[4]);
    wire_prove(secret, WIRE_TO_ROOT, false, a, a, proofs[5]);
    wire_prove(secret, WIRE_TO_ROOT, false, b, b, proofs[6]);
    wire_prove(other, WIRE_TO_ROOT, false, a, b, proofs[7]);
    for (int i = 0; i < 8; i++) {
        for (int k = 0; k < i; k++)
            cr_assert_not(wire_proof_equal(proofs[i], proofs[k]), "%d and %d", i, k);
        cr_assert_neq(memcmp(proofs[i], proofs[i] + 8, 8), 0, "%d: its halves are equal", i);
    }
    wire_prove(secret, WIRE_TO_ROOT, false, a, b, again);
    cr_assert(wire_proof_equal(proofs[0], again));
    for (int i = 0; i < WIRE_PROOF_BYTES; i++) {
        again[i] ^= 1;
        cr_assert_not(wire_proof_equal(proofs[0], again), "byte %d", i);
        again[i] ^= 1;
    }
}

Test(boot_wire, secrets_differ)
{
    static const char *const texts[] = {"secret", "", "secret ", "Secret", "terces"};
    unsigned char out[5][16];
    for (int i = 0; i < 5; i++) {
        wire_secret_from_text(texts[i], out[i]);
        for (int k = 0; k < i; k++)
            cr_assert_neq(memcmp(out[i], out[k], 16), 0, "%d and %d", i, k);
    }
}

Test(boot_wire, hellos_and_replies_are_checked)
{
    const struct net_addrs addrs = {.port = 5, .n = 1, .at = {{.family = 4}}};
    struct wire_hello good = {.rank = 3, .nranks = 4}, bad;
    wire_card_fill(3, &addrs, &good.card);
    cr_assert(wire_hello_check(&good));
    bad = good;
    bad.rank = 2;
    cr_assert_not(wire_hello_check(&bad), "another rank than its card's");
    bad = good;
    memset(bad.card.host, 'x', sizeof(bad.card.host));
    cr_assert_not(wire_hello_check(&bad), "a host without end");
    bad = good;
    bad.card.host[0] = '\n';
    cr_assert_not(wire_hello_check(&bad), "a host that is no text");
    bad = good;
    bad.card.port = 0;
    cr_assert_not(wire_hello_check(&bad), "no port");
    for (int n = 1; n <= 1025; n++) {
        const int rounds = wire_rounds(n);
        cr_assert((1 << rounds) >= n && (rounds == 0 || 1 << (rounds - 1) < n), "n %d: %d", n,
                  rounds);
        struct wire_reply reply = {.magic = WIRE_MAGIC,
                                   .bytes = (uint32_t)(2 * rounds * (int)sizeof(struct wire_card))};
        cr_assert(wire_reply_check(&reply, n));
        reply.bytes++;
        cr_assert_not(wire_reply_check(&reply, n), "n %d: a byte too many", n);
    }
    const struct wire_reply text = {
        .magic = WIRE_MAGIC, .status = -1, .bytes = WIRE_TEXT_BYTES + 1};
    cr_assert_not(wire_reply_check(&text, 2), "a text that is too long");
}

/* ---- the handshake ---- */

/* A greeter with one guest at the other end of a socket pair; the challenge has been sent. */
struct scene {
    struct greeter greeter;
    int client;
    unsigned char secret[16];
    struct wire_challenge challenge;
};

static void scene_open(struct scene *s)
{
    int pair[2];
    memset(s, 0, sizeof(*s));
    memcpy(s->secret, "a good secret..", 16);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    cr_assert_eq(
        greeter_init(&s->greeter, -1, s->secret, WIRE_TO_RANK, sizeof(struct wire_peer_hello), 4),
        KOLO_OK);
    s->client = pair[1];
    memset(s->challenge.challenge, 7, 16);
    s->greeter.guests[s->greeter.n++] = (struct guest){.fd = pair[0], .since = now_ns()};
    memcpy(s->greeter.guests[0].challenge, s->challenge.challenge, 16);
}

static void scene_close(struct scene *s)
{
    greeter_fini(&s->greeter);
    net_close(s->client);
}

static void scene_step(struct scene *s)
{
    struct pollfd fds[5];
    uint64_t wake = UINT64_MAX;
    const int n = greeter_fds(&s->greeter, fds, &wake);
    for (int i = 0; i < 4; i++) {
        (void)net_poll(fds, n, now_ns());
        greeter_step(&s->greeter, fds);
    }
}

static struct wire_answer right_answer(const struct scene *s)
{
    struct wire_answer answer = {
        .magic = WIRE_MAGIC, .version = WIRE_VERSION, .kind = WIRE_TO_RANK, .challenge = "mine"};
    wire_prove(s->secret, WIRE_TO_RANK, false, s->challenge.challenge, answer.challenge,
               answer.proof);
    return answer;
}

Test(boot_wire, a_right_answer_is_greeted)
{
    struct scene s;
    struct wire_peer_hello hello = {.from = 3}, got;
    unsigned char proof[WIRE_PROOF_BYTES], expected[WIRE_PROOF_BYTES];
    scene_open(&s);
    const struct wire_answer answer = right_answer(&s);
    cr_assert(net_send_small(s.client, &answer, sizeof(answer)));
    scene_step(&s);
    cr_assert_eq(net_recv_bytes(s.client, proof, sizeof(proof)), WIRE_PROOF_BYTES);
    wire_prove(s.secret, WIRE_TO_RANK, true, s.challenge.challenge, answer.challenge, expected);
    cr_assert(wire_proof_equal(proof, expected));
    cr_assert_eq(greeter_take(&s.greeter, &got), -1, "before its hello");
    cr_assert(net_send_small(s.client, &hello, sizeof(hello)));
    scene_step(&s);
    const int fd = greeter_take(&s.greeter, &got);
    cr_assert(fd >= 0 && got.from == 3);
    net_close(fd);
    scene_close(&s);
}

Test(boot_wire, an_answer_with_any_byte_wrong_is_shown_the_door)
{
    for (size_t i = 0; i < sizeof(struct wire_answer); i++) {
        struct scene s;
        unsigned char byte;
        scene_open(&s);
        struct wire_answer answer = right_answer(&s);
        ((unsigned char *)&answer)[i] ^= 0x10;
        cr_assert(net_send_small(s.client, &answer, sizeof(answer)));
        scene_step(&s);
        cr_assert_eq(net_recv_bytes(s.client, &byte, 1), -1, "byte %zu: it was answered", i);
        cr_assert_eq(s.greeter.n, 0, "byte %zu: still a guest", i);
        scene_close(&s);
    }
}
