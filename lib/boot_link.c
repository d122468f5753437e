/* boot_link.c - one round of messages between neighbours, and how failures travel.
 *
 * When a deadline passes, the rank that is waited for may itself be waiting: so each rank tells its
 * neighbours whom it waits for, listens for a short while whether its own suspect has a suspect,
 * and names the last of that chain. */
#include "boot_link.h"

#include "log.h"

#include <errno.h>
#include <string.h>

enum { GRACE_MS = 300 }; /* to hear of better suspects after the deadline */

/* ---- notices ---- */

static void notice_send(struct boot_link *link, enum wire_what what,
                        const struct wire_notice *notice)
{
    struct {
        struct wire_msg msg;
        struct wire_notice notice;
    } both = {{.magic = WIRE_MAGIC, .what = (uint16_t)what}, *notice};
    if (link->fd < 0 || link->is_busy)
        return;
    const struct iovec part = {&both, sizeof(both)};
    const ssize_t n = net_send(link->fd, &part, 1);
    link->is_busy = n > 0 && n < (ssize_t)sizeof(both);
}

static void notice_send_all(struct boot *b, enum wire_what what, const struct wire_notice *notice)
{
    for (int k = 0; k < b->rounds; k++) {
        notice_send(&b->out[k], what, notice);
        if (what == WIRE_FAILED)
            notice_send(&b->in[k], what, notice);
    }
}

void link_give_up(struct boot *b, enum kolo_status status)
{
    struct wire_notice notice = {.rank = b->rank, .status = status};
    if (b->broken != KOLO_OK)
        return;
    b->broken = status;
    memcpy(notice.host, b->host, sizeof(notice.host));
    (void)strncpy(notice.text, fail_text(), sizeof(notice.text) - 1);
    notice_send_all(b, WIRE_FAILED, &notice);
    for (int k = 0; k < b->rounds; k++) {
        net_close_softly(b->out[k].fd);
        net_close_softly(b->in[k].fd);
        b->out[k].fd = b->in[k].fd = -1;
    }
}

/* The first cause is told once, whoever passed it on. */
static enum kolo_status fail_by_notice(struct wire_notice *notice)
{
    static const char mark[] = " reported: ";
    wire_text_clean(notice->host, sizeof(notice->host));
    wire_text_clean(notice->text, sizeof(notice->text));
    const enum kolo_status status = notice->status < 0 ? notice->status : KOLO_ERR_PEER_LOST;
    if (strstr(notice->text, mark) != NULL)
        return fail(status, "%s", notice->text);
    return fail(status, "rank %d on host %s%s%s", notice->rank, notice->host, mark, notice->text);
}

enum kolo_status link_check_notice(const struct boot_link *link, bool *is_quiet)
{
    struct {
        struct wire_msg msg;
        struct wire_notice notice;
    } both;
    const ssize_t n = net_peek(link->fd, &both, sizeof(both));
    *is_quiet = n < 0 || (n >= (ssize_t)sizeof(both.msg) &&
                          (!wire_msg_check(&both.msg) || both.msg.what != WIRE_FAILED));
    if (!*is_quiet && n < (ssize_t)sizeof(both))
        *is_quiet = net_is_ended(link->fd); /* the rest will not come */
    if (*is_quiet || n < (ssize_t)sizeof(both))
        return KOLO_OK;
    return fail_by_notice(&both.notice);
}

/* ---- one round ---- */

/* Progress of one direction: header, then two pieces. */
struct transfer {
    struct wire_msg msg;
    struct iovec parts[3];
    size_t done;
    size_t total;
};

static void transfer_init(struct transfer *t, const struct iovec *pieces)
{
    t->parts[0] = (struct iovec){&t->msg, sizeof(t->msg)};
    t->parts[1] = pieces[0];
    t->parts[2] = pieces[1];
    t->done = 0;
    t->total = sizeof(t->msg) + pieces[0].iov_len + pieces[1].iov_len;
}

/* The parts from `done` up to `limit`; how many. */
static int transfer_rest(const struct transfer *t, size_t limit, struct iovec rest[3])
{
    size_t at = 0;
    int n = 0;
    for (int i = 0; i < 3; i++) {
        const size_t start = t->done > at ? t->done - at : 0;
        const size_t end = limit - at < t->parts[i].iov_len ? limit - at : t->parts[i].iov_len;
        if (start < end)
            rest[n++] = (struct iovec){(char *)t->parts[i].iov_base + start, end - start};
        at += t->parts[i].iov_len;
        if (at >= limit)
            break;
    }
    return n;
}

struct exchange {
    struct boot *b;
    const struct link_round *round;
    struct boot_link *to;
    struct boot_link *from;
    struct transfer send;
    struct transfer recv;
    bool is_out_ended; /* the receiver has closed after it had everything */
    bool is_late;      /* the deadline has passed: only notices matter now */
    bool is_checked;   /* the header is here and belongs to data */
    size_t notice_got; /* of a notice that came instead of data */
    struct wire_notice notice;
    struct wire_notice suspect;
};

static enum kolo_status fail_lost(const struct exchange *x, const struct boot_link *link)
{
    return fail(
        KOLO_ERR_PEER_LOST,
        "rank %d on host %s is gone: its connection to rank %d on host %s ended (%s) in round "
        "%d of %d of an all-gather; see why that process died or left",
        link->rank, link->host, x->b->rank, x->b->host,
        errno == ESHUTDOWN ? "closed" : strerror(errno), x->round->round + 1, x->b->rounds);
}

/* The other way of a connection carries notices only. */
static enum kolo_status check_out_reverse(struct exchange *x)
{
    bool is_quiet;
    TRY(link_check_notice(x->to, &is_quiet));
    if (!is_quiet)
        return KOLO_OK;
    x->is_out_ended = true;
    char byte;
    if (x->send.done < x->send.total && net_peek(x->to->fd, &byte, 1) < 0)
        return fail_lost(x, x->to);
    return KOLO_OK;
}

static enum kolo_status step_send(struct exchange *x)
{
    struct iovec rest[3];
    const int n = transfer_rest(&x->send, x->send.total, rest);
    const ssize_t sent = net_send(x->to->fd, rest, n);
    if (sent < 0) {
        const int error = errno;
        bool is_quiet;
        TRY(link_check_notice(x->to, &is_quiet));
        errno = error;
        return fail_lost(x, x->to);
    }
    x->send.done += (size_t)sent;
    x->to->is_busy = x->send.done < x->send.total;
    return KOLO_OK;
}

/* A header is here: what is it? */
static enum kolo_status check_header(const struct exchange *x)
{
    const struct wire_msg *msg = &x->recv.msg;
    const struct boot_link *from = x->from;
    if (!wire_msg_check(msg))
        return fail(KOLO_ERR_MISMATCH,
                    "rank %d on host %s sent something that is no message of the "
                    "bootstrap: is it another version of Kolo?",
                    from->rank, from->host);
    if (msg->seq != x->send.msg.seq || msg->round != x->send.msg.round)
        return fail(KOLO_ERR_MISMATCH,
                    "rank %d on host %s is in round %u of operation %u of the "
                    "bootstrap, rank %d on host %s in round %u of %u",
                    from->rank, from->host, msg->round, msg->seq, x->b->rank, x->b->host,
                    x->send.msg.round, x->send.msg.seq);
    if (msg->bytes != x->round->bytes)
        return fail(KOLO_ERR_MISMATCH,
                    "rank %d on host %s gathers %llu bytes a rank, rank %d on host "
                    "%s %zu: all ranks must pass equal sizes",
                    from->rank, from->host, (unsigned long long)msg->bytes, x->b->rank, x->b->host,
                    x->round->bytes);
    return KOLO_OK;
}

static void suspect(struct exchange *x, const struct wire_notice *notice)
{
    x->suspect = *notice;
    notice_send_all(x->b, WIRE_WAITING, notice);
}

/* A header of a notice came where data was due: take the notice, then wait for a header again. */
static enum kolo_status step_notice(struct exchange *x)
{
    const ssize_t n = net_recv_bytes(x->from->fd, (char *)&x->notice + x->notice_got,
                                     sizeof(x->notice) - x->notice_got);
    if (n < 0)
        return fail_lost(x, x->from);
    x->notice_got += (size_t)n;
    if (x->notice_got < sizeof(x->notice))
        return KOLO_OK;
    x->notice_got = 0;
    x->recv.done = 0;
    if (x->recv.msg.what == WIRE_FAILED)
        return fail_by_notice(&x->notice);
    wire_text_clean(x->notice.host, sizeof(x->notice.host));
    /* Before our own deadline an impatient neighbour is no concern of ours. */
    if (x->is_late && x->notice.rank != x->b->rank)
        suspect(x, &x->notice);
    return KOLO_OK;
}

static enum kolo_status step_recv(struct exchange *x)
{
    const size_t header = sizeof(x->recv.msg);
    struct iovec rest[3];
    if (x->recv.done == header && !x->is_checked)
        return step_notice(x);
    const int n = transfer_rest(&x->recv, x->recv.done < header ? header : x->recv.total, rest);
    const ssize_t got = net_recv(x->from->fd, rest, n);
    if (got < 0)
        return fail_lost(x, x->from);
    x->recv.done += (size_t)got;
    if (x->recv.done != header || x->is_checked)
        return KOLO_OK;
    x->is_checked = !wire_msg_check(&x->recv.msg) || x->recv.msg.what == WIRE_DATA;
    return x->is_checked ? check_header(x) : KOLO_OK;
}

static bool is_received(const struct exchange *x)
{
    return x->is_checked && x->recv.done == x->recv.total;
}

static bool is_done(const struct exchange *x)
{
    return x->send.done == x->send.total && is_received(x);
}

static enum kolo_status exchange_until(struct exchange *x, uint64_t deadline)
{
    while (!is_done(x)) {
        const bool sends = x->send.done < x->send.total && !x->is_late;
        struct pollfd fds[2] = {
            {.fd = x->is_out_ended ? -1 : x->to->fd,
             .events = (short)(POLLIN | (sends ? POLLOUT : 0))},
            {.fd = is_received(x) ? -1 : x->from->fd, .events = POLLIN},
        };
        if (net_poll(fds, 2, deadline) == 0)
            return KOLO_OK;
        if (fds[0].revents & ~POLLOUT)
            TRY(check_out_reverse(x));
        if ((fds[0].revents & POLLOUT) && sends)
            TRY(step_send(x));
        if (fds[1].revents != 0)
            TRY(step_recv(x));
    }
    return KOLO_OK;
}

/* The deadline has passed. */
static enum kolo_status exchange_late(struct exchange *x, int64_t waited_ms)
{
    const bool is_sending = is_received(x);
    const struct boot_link *link = is_sending ? x->to : x->from;
    x->suspect = (struct wire_notice){.rank = link->rank, .status = KOLO_ERR_TIMEOUT};
    memcpy(x->suspect.host, link->host, sizeof(x->suspect.host));
    if (!is_sending) {
        x->is_late = true;
        notice_send_all(x->b, WIRE_WAITING, &x->suspect);
        TRY(exchange_until(x, net_deadline(GRACE_MS)));
    }
    return fail(
        KOLO_ERR_TIMEOUT,
        "rank %d on host %s %s in time: rank %d on host %s waited %lld ms for an all-gather "
        "(round %d of %d); see what that rank does, or raise KOLO_SETUP_TIMEOUT",
        x->suspect.rank, x->suspect.host, is_sending ? "took no data" : "sent nothing", x->b->rank,
        x->b->host, (long long)waited_ms, x->round->round + 1, x->b->rounds);
}

enum kolo_status link_exchange(struct boot *b, const struct link_round *round, uint64_t deadline)
{
    const uint64_t start = now_ns();
    struct exchange x = {
        .b = b, .round = round, .to = &b->out[round->round], .from = &b->in[round->round]};
    transfer_init(&x.send, round->send);
    transfer_init(&x.recv, round->recv);
    x.send.msg = (struct wire_msg){.magic = WIRE_MAGIC,
                                   .what = WIRE_DATA,
                                   .round = (uint16_t)round->round,
                                   .seq = b->seq,
                                   .bytes = round->bytes};
    TRY(exchange_until(&x, deadline));
    if (!is_done(&x))
        TRY(exchange_late(&x, (int64_t)((now_ns() - start) / 1000000)));
    return KOLO_OK;
}
