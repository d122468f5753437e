/* api.h - what the files of the door share: checking and launching a call. */
#ifndef API_H
#define API_H

#include "comm.h"

/* A call as it came in. */
struct request {
    struct call call;
    const void *send;
    void *recv;
    const size_t *send_counts, *send_displs, *recv_counts, *recv_displs;
    struct kolo_comm *comm;
    void *stream;
};

/* Check everything that can be checked here; a status of the call group with its text. */
enum kolo_status request_check(struct request *q);
/* What of a checked call need not be checked again when it is repeated; not for v-variants. */
void request_extents(const struct request *q, struct operation *op);
/* The call is right: run it, queue it, or add it to the thread's open group. */
enum kolo_status request_launch(const struct request *q);

/* api_group.c */
/* Adopt an operation into the thread's group; or note that a call of the group failed. */
void group_add(struct operation *op);
enum kolo_status group_fail(enum kolo_status status);

#endif
