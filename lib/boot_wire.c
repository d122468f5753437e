/* boot_wire.c - ids and wire structs: writing, checking, and the keyed hashes of the handshake.
 * Everything here is a pure function but the reading of the host's name and process. */
#include "boot_wire.h"

#include <string.h>
#include <unistd.h>

enum { ID_VERSION = 1 };

#define ID_MAGIC UINT32_C(0x6469694b) /* "Kiid" */

/* The 128 bytes of an id. */
struct id_bytes {
    uint32_t magic;
    uint8_t version;
    uint8_t unused;
    uint16_t port;
    uint64_t nonce;
    unsigned char secret[WIRE_SECRET_BYTES];
    uint8_t addrs[NET_PACKED_BYTES];
    uint64_t check; /* hash of the above, against bytes that are no id */
};

_Static_assert(sizeof(struct id_bytes) == sizeof(struct kolo_unique_id), "id format");

static const unsigned char id_key[16] = "kolo id check 1";

void wire_id_encode(const struct wire_id *in, struct kolo_unique_id *out)
{
    struct id_bytes id = {
        .magic = ID_MAGIC, .version = ID_VERSION, .port = in->addrs.port, .nonce = in->nonce};
    memcpy(id.secret, in->secret, sizeof(id.secret));
    net_addrs_pack(&in->addrs, id.addrs);
    id.check = siphash(id_key, &id, offsetof(struct id_bytes, check));
    memcpy(out->bytes, &id, sizeof(id));
}

enum kolo_status wire_id_decode(const struct kolo_unique_id *in, struct wire_id *out)
{
    struct id_bytes id;
    memcpy(&id, in->bytes, sizeof(id));
    if (id.magic != ID_MAGIC)
        return fail(KOLO_ERR_ARG, "the unique id is not one of Kolo's: make it with "
                                  "kolo_unique_id_create on one rank and send all 128 bytes");
    if (id.version != ID_VERSION)
        return fail(KOLO_ERR_ARG,
                    "the unique id has format %u, this library reads %d: use the same "
                    "Kolo on all ranks",
                    id.version, ID_VERSION);
    if (id.check != siphash(id_key, &id, offsetof(struct id_bytes, check)))
        return fail(KOLO_ERR_ARG, "the unique id is damaged: its check sum is wrong; send all 128 "
                                  "bytes, also those that are zero");
    struct wire_id found = {.nonce = id.nonce};
    if (id.unused != 0 || !net_addrs_unpack(id.addrs, id.port, &found.addrs))
        return fail(KOLO_ERR_ARG, "the unique id is damaged: it has no usable address");
    memcpy(found.secret, id.secret, sizeof(found.secret));
    *out = found;
    return KOLO_OK;
}

/* 128 bits of keyed hash: two hashes of the message under two labels. */
static void hash128(const unsigned char key[16], void *message, size_t bytes, uint8_t *label,
                    unsigned char out[16])
{
    for (int half = 0; half < 2; half++) {
        *label = (uint8_t)(1 + half);
        const uint64_t h = siphash(key, message, bytes);
        memcpy(out + 8 * half, &h, sizeof(h));
    }
}

void wire_secret_from_text(const char *text, unsigned char out[WIRE_SECRET_BYTES])
{
    static const unsigned char keys[2][16] = {"kolo text key 1", "kolo text key 2"};
    for (int half = 0; half < 2; half++) {
        const uint64_t h = siphash(keys[half], text, strlen(text));
        memcpy(out + 8 * half, &h, sizeof(h));
    }
}

void wire_prove(const unsigned char secret[WIRE_SECRET_BYTES], enum wire_kind kind, bool is_server,
                const unsigned char server_challenge[16], const unsigned char client_challenge[16],
                unsigned char proof[WIRE_PROOF_BYTES])
{
    struct {
        uint32_t magic;
        uint8_t label;
        uint8_t is_server;
        uint16_t kind;
        unsigned char challenges[2][16];
    } message = {.magic = WIRE_MAGIC, .is_server = is_server, .kind = (uint16_t)kind};
    memcpy(message.challenges[0], server_challenge, 16);
    memcpy(message.challenges[1], client_challenge, 16);
    hash128(secret, &message, sizeof(message), &message.label, proof);
}

bool wire_proof_equal(const unsigned char a[WIRE_PROOF_BYTES],
                      const unsigned char b[WIRE_PROOF_BYTES])
{
    unsigned char different = 0;
    for (int i = 0; i < WIRE_PROOF_BYTES; i++)
        different |= a[i] ^ b[i];
    return different == 0;
}

void wire_text_clean(char *text, size_t size)
{
    text[size - 1] = '\0';
    for (char *at = text; *at != '\0'; at++) {
        if (*at < ' ' || *at > '~')
            *at = '?';
    }
}

void wire_card_fill(int rank, const struct net_addrs *addrs, struct wire_card *out)
{
    struct wire_card card = {.rank = rank, .pid = (uint32_t)getpid(), .port = addrs->port};
    net_host_name(card.host);
    wire_text_clean(card.host, sizeof(card.host));
    net_addrs_pack(addrs, card.addrs);
    *out = card;
}

bool wire_card_check(const struct wire_card *card, struct net_addrs *addrs)
{
    bool is_ended = false;
    for (int i = 0; i < NET_HOST_BYTES && !is_ended; i++) {
        is_ended = card->host[i] == '\0';
        if (!is_ended && (card->host[i] < ' ' || card->host[i] > '~'))
            return false;
    }
    return is_ended && card->rank >= 0 && net_addrs_unpack(card->addrs, card->port, addrs);
}

bool wire_hello_check(const struct wire_hello *hello)
{
    struct net_addrs addrs;
    return hello->rank == hello->card.rank && wire_card_check(&hello->card, &addrs);
}

int wire_rounds(int nranks)
{
    int k = 0;
    while (k < WIRE_MAX_ROUNDS && 1 << k < nranks)
        k++;
    return k;
}

bool wire_reply_check(const struct wire_reply *reply, int nranks)
{
    if (reply->magic != WIRE_MAGIC || reply->status > 0)
        return false;
    if (reply->status != KOLO_OK)
        return reply->bytes > 0 && reply->bytes <= WIRE_TEXT_BYTES;
    return reply->bytes == 2 * (size_t)wire_rounds(nranks) * sizeof(struct wire_card);
}

bool wire_msg_check(const struct wire_msg *msg)
{
    return msg->magic == WIRE_MAGIC && msg->what >= WIRE_DATA && msg->what <= WIRE_WAITING;
}
