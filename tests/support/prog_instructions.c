/* prog_instructions.c - one collective in steady state, for callgrind to count its instructions:
 *
 *     prog_instructions COLLECTIVE RANKS BYTES OPERATIONS
 *
 * One rank calls and returns; two ranks are driven by this thread inside groups, so that nobody
 * ever waits and the count repeats exactly.  Only what runs below measured() is to be counted. */
#include "kolo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 8, WARM = 200 };

struct setup {
    struct kolo_comm *comms[MOST_RANKS];
    float *send[MOST_RANKS], *recv[MOST_RANKS];
    int coll;
    int n;
    size_t count; /* of a buffer of all blocks */
};

static enum kolo_status operate(const struct setup *s, int r)
{
    const size_t all = s->count, one = all / (size_t)s->n;
    const float *send = s->send[r];
    float *recv = s->recv[r];
    struct kolo_comm *comm = s->comms[r];
    switch (s->coll) {
    case KOLO_COLL_ALL_REDUCE:
        return kolo_all_reduce(send, recv, all, KOLO_F32, KOLO_SUM, comm, NULL);
    case KOLO_COLL_REDUCE_SCATTER:
        return kolo_reduce_scatter(send, recv, one, KOLO_F32, KOLO_SUM, comm, NULL);
    case KOLO_COLL_ALL_GATHER:
        return kolo_all_gather(send, recv, one, KOLO_F32, comm, NULL);
    case KOLO_COLL_ALL_TO_ALL:
        return kolo_all_to_all(send, recv, one, KOLO_F32, comm, NULL);
    case KOLO_COLL_BROADCAST:
        return kolo_broadcast(send, recv, all, KOLO_F32, 0, comm, NULL);
    case KOLO_COLL_REDUCE:
        return kolo_reduce(send, recv, all, KOLO_F32, KOLO_SUM, 0, comm, NULL);
    case KOLO_COLL_GATHER:
        return kolo_gather(send, recv, one, KOLO_F32, 0, comm, NULL);
    case KOLO_COLL_SCATTER:
        return kolo_scatter(send, recv, one, KOLO_F32, 0, comm, NULL);
    case KOLO_COLL_SEND: /* from rank 0 to 1 */
        if (s->n == 1)
            return KOLO_OK;
        return r == 0 ? kolo_send(send, all, KOLO_F32, 1, comm, NULL)
                      : kolo_recv(recv, all, KOLO_F32, 0, comm, NULL);
    default:
        return kolo_barrier(comm, NULL);
    }
}

static void expect_ok(enum kolo_status status)
{
    if (status == KOLO_OK)
        return;
    fprintf(stderr, "prog_instructions: %s: %s\n", kolo_status_string(status),
            kolo_last_error(NULL));
    exit(1);
}

static void once(const struct setup *s)
{
    if (s->n == 1) {
        expect_ok(operate(s, 0));
        return;
    }
    expect_ok(kolo_group_begin());
    for (int r = 0; r < s->n; r++)
        expect_ok(operate(s, r));
    expect_ok(kolo_group_end());
}

/* Has a name of its own for callgrind. */
__attribute__((noinline)) void measured(const struct setup *s, int times);

__attribute__((noinline)) void measured(const struct setup *s, int times)
{
    for (int i = 0; i < times; i++)
        once(s);
}

int main(int argc, char **argv)
{
    struct setup s;
    if (argc != 5 || (s.coll = kolo_coll_find(argv[1])) < 0 || (s.n = atoi(argv[2])) < 1 ||
        s.n > MOST_RANKS) {
        fprintf(stderr, "usage: prog_instructions COLLECTIVE RANKS BYTES OPERATIONS\n");
        return 2;
    }
    s.count = (size_t)atol(argv[3]) / sizeof(float);
    expect_ok(kolo_comm_create_local(s.n, NULL, s.comms));
    for (int r = 0; r < s.n; r++) {
        s.send[r] = calloc(s.count + 1, sizeof(float));
        s.recv[r] = calloc(s.count + 1, sizeof(float));
        if (!s.send[r] || !s.recv[r])
            return 1;
    }
    for (int i = 0; i < WARM; i++)
        once(&s);
    measured(&s, atoi(argv[4]));
    for (int r = 0; r < s.n; r++) {
        kolo_comm_destroy(s.comms[r]);
        free(s.send[r]);
        free(s.recv[r]);
    }
    return 0;
}
