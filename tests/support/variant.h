/* variant.h - for tests that go through all algorithms, also as what they are for v-variants. */
#ifndef VARIANT_H
#define VARIANT_H

#include "plan.h"

/* The v-variant of a collective; the collective itself if it has none. */
static inline enum kolo_coll variant(enum kolo_coll coll)
{
    switch (coll) {
    case KOLO_COLL_REDUCE_SCATTER:
        return KOLO_COLL_REDUCE_SCATTER_V;
    case KOLO_COLL_ALL_GATHER:
        return KOLO_COLL_ALL_GATHER_V;
    case KOLO_COLL_ALL_TO_ALL:
        return KOLO_COLL_ALL_TO_ALL_V;
    default:
        return coll;
    }
}

#endif
