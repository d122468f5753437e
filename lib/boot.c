/* boot.c - the bootstrap's interface: ids, handles, all-gather, barrier.
 *
 * All-gather by dissemination (Bruck et al. 1997): in round k each rank sends the last 2^k blobs
 * that it knows, ending with its own, to rank + 2^k; ceil(log2 n) rounds for every n, n - 1 blobs
 * in and out.  The blobs of ranks r-m+1 .. r lie one after the other in the result but for one
 * wrap, so they go out of it and come into it without a copy. */
#include "boot_link.h"
#include "boot_root.h"

#include "log.h"
#include "mem.h"

#include <string.h>

/* ---- ids ---- */

/* Listen and serve; `id` gets the addresses of this process. */
static enum kolo_status serve_id(struct wire_id *id, int port, int64_t timeout_ms)
{
    int listener;
    uint16_t bound;
    TRY(net_addrs_local(0, &id->addrs));
    TRY(net_listen(port, net_deadline(timeout_ms), &listener, &bound));
    id->addrs.port = bound;
    const enum kolo_status status = root_start(listener, id->secret, timeout_ms);
    if (status != KOLO_OK)
        net_close(listener);
    return status;
}

enum kolo_status boot_id_create(struct kolo_unique_id *id, int64_t timeout_ms)
{
    struct wire_id made = {0};
    if (id == NULL)
        return fail(KOLO_ERR_ARG, "the id to make is NULL");
    TRY(net_random(&made.nonce, sizeof(made.nonce)));
    TRY(net_random(made.secret, sizeof(made.secret)));
    TRY(serve_id(&made, 0, timeout_ms));
    wire_id_encode(&made, id);
    return KOLO_OK;
}

enum kolo_status boot_id_from_address(const char *host, int port, const char *secret_text,
                                      bool listen, int64_t timeout_ms, struct kolo_unique_id *id)
{
    struct wire_id made = {0};
    if (host == NULL || secret_text == NULL || id == NULL || port < 1 || port > 65535)
        return fail(KOLO_ERR_ARG,
                    "the address of rank 0 is not a host with a port in 1..65535 (host %s, "
                    "port %d)",
                    host != NULL ? host : "NULL", port);
    wire_secret_from_text(secret_text, made.secret);
    if (listen)
        TRY(serve_id(&made, port, timeout_ms));
    else
        TRY(net_addrs_lookup(host, port, net_deadline(timeout_ms), &made.addrs));
    wire_id_encode(&made, id);
    return KOLO_OK;
}

/* ---- handles ---- */

enum kolo_status boot_alloc(int rank, int size, const unsigned char *secret, struct boot **out)
{
    struct boot *b = mem_calloc(1, sizeof(*b));
    if (b == NULL)
        return fail(KOLO_ERR_NOMEM, "no memory for the bootstrap of rank %d", rank);
    b->rank = rank;
    b->size = size;
    b->rounds = wire_rounds(size);
    memcpy(b->secret, secret, sizeof(b->secret));
    net_host_name(b->host);
    wire_text_clean(b->host, sizeof(b->host));
    for (int k = 0; k < WIRE_MAX_ROUNDS; k++)
        b->out[k].fd = b->in[k].fd = -1;
    *out = b;
    return KOLO_OK;
}

void boot_destroy(struct boot *b)
{
    if (b == NULL)
        return;
    for (int k = 0; k < b->rounds; k++) {
        net_close(b->out[k].fd);
        net_close(b->in[k].fd);
    }
    mem_free(b);
}

enum kolo_status boot_create_single(struct boot **out)
{
    static const unsigned char no_secret[WIRE_SECRET_BYTES];
    return boot_alloc(0, 1, no_secret, out);
}

int boot_rank(const struct boot *b)
{
    return b->rank;
}

int boot_size(const struct boot *b)
{
    return b->size;
}

static enum kolo_status check_place(int rank, int nranks)
{
    if (nranks < 1 || nranks > WIRE_MAX_RANKS)
        return fail(KOLO_ERR_ARG, "nranks is %d, must be 1..%d", nranks, WIRE_MAX_RANKS);
    if (rank < 0 || rank >= nranks)
        return fail(KOLO_ERR_ARG, "rank is %d, must be 0..%d (nranks is %d)", rank, nranks - 1,
                    nranks);
    return KOLO_OK;
}

enum kolo_status boot_create(const struct kolo_unique_id *id, int rank, int nranks,
                             int64_t timeout_ms, struct boot **out)
{
    const uint64_t deadline = net_deadline(timeout_ms);
    struct wire_id where;
    struct wire_card mine;
    struct boot *b;
    int listener;
    if (id == NULL || out == NULL)
        return fail(KOLO_ERR_ARG, "%s is NULL",
                    id == NULL ? "the unique id" : "the handle to make");
    TRY(check_place(rank, nranks));
    TRY(wire_id_decode(id, &where));
    TRY(boot_alloc(rank, nranks, where.secret, &b));
    struct wire_card *cards = mem_calloc(2 * WIRE_MAX_ROUNDS, sizeof(*cards));
    enum kolo_status status;
    if (cards == NULL) {
        status = fail(KOLO_ERR_NOMEM, "no memory for the bootstrap of rank %d", rank);
        goto undo_boot;
    }
    status = boot_listen(rank, &listener, &mine);
    if (status != KOLO_OK)
        goto undo_cards;
    status = boot_join(&where, &mine, nranks, deadline, cards);
    if (status != KOLO_OK) {
        net_close(listener);
        goto undo_cards;
    }
    status = boot_connect(b, cards, listener, deadline);
    if (status != KOLO_OK)
        goto undo_cards;
    mem_free(cards);
    LOG(LOG_DEBUG, "boot", "rank %d of %d on host %s has met its neighbours", rank, nranks,
        b->host);
    *out = b;
    return KOLO_OK;

undo_cards:
    mem_free(cards);
undo_boot:
    boot_destroy(b);
    return status;
}

/* ---- all-gather ---- */

/* The run of `count` blobs that ends with `last`, as one or two pieces of `all`. */
static void run_pieces(const struct boot *b, char *all, size_t bytes, int last, int count,
                       struct iovec pieces[2])
{
    const int first = (last - count + 1 + b->size) % b->size;
    const int head = min_int(count, b->size - first);
    pieces[0] = (struct iovec){all + (size_t)first * bytes, (size_t)head * bytes};
    pieces[1] = (struct iovec){all, (size_t)(count - head) * bytes};
}

static enum kolo_status gather_round(struct boot *b, int k, char *all, size_t bytes,
                                     uint64_t deadline)
{
    const int step = 1 << k;
    const int count = min_int(step, b->size - step);
    struct link_round round = {.round = k, .bytes = bytes};
    if (bytes > 0) {
        run_pieces(b, all, bytes, b->rank, count, round.send);
        run_pieces(b, all, bytes, b->in[k].rank, count, round.recv);
    }
    return link_exchange(b, &round, deadline);
}

enum kolo_status boot_all_gather(struct boot *b, const void *mine, size_t bytes, void *all,
                                 int64_t timeout_ms)
{
    const uint64_t deadline = net_deadline(timeout_ms);
    size_t total;
    if (b == NULL || (bytes > 0 && (mine == NULL || all == NULL)))
        return fail(KOLO_ERR_ARG, "a NULL argument to an all-gather of %zu bytes a rank", bytes);
    if (bytes > BOOT_BLOB_MAX || !size_mul(bytes, (size_t)b->size, &total))
        return fail(KOLO_ERR_ARG,
                    "an all-gather of %zu bytes a rank; the bootstrap takes at most %d", bytes,
                    BOOT_BLOB_MAX);
    if (b->broken != KOLO_OK)
        return fail(b->broken,
                    "the bootstrap of rank %d of %d has failed before; make a new communicator",
                    b->rank, b->size);
    if (bytes > 0)
        memmove((char *)all + (size_t)b->rank * bytes, mine, bytes);
    b->seq++;
    for (int k = 0; k < b->rounds; k++) {
        const enum kolo_status status = gather_round(b, k, all, bytes, deadline);
        if (status != KOLO_OK) {
            link_give_up(b, status);
            return status;
        }
    }
    return KOLO_OK;
}

enum kolo_status boot_barrier(struct boot *b, int64_t timeout_ms)
{
    return boot_all_gather(b, NULL, 0, NULL, timeout_ms);
}
