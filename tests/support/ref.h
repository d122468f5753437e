/* ref.h - the specification of the collectives as naive loops, and one routine that runs a
 * collective and compares: values whose reduction is exact in every order and type, guard bytes
 * around the buffers, send buffers left alone. */
#ifndef REF_H
#define REF_H

#include "kolo.h"

#include <stdbool.h>

struct ref_case {
    int coll;
    int type;
    int op;
    int root;
    size_t count;
    bool in_place;
    bool windows;    /* buffers from kolo_mem_alloc */
    size_t misalign; /* bytes */
    void *stream;    /* NULL: blocking */
};

/* NULL when right; else a text.  Called by every rank of comm with the same case. */
const char *ref_run(struct kolo_comm *comm, const struct ref_case *c);

/* Whether the case is within what the data can check exactly (fp8 averages of many ranks are
 * not). */
bool ref_can(const struct ref_case *c, int nranks);

#endif
