/* check.h - what a test does with the text that ranks_threads and ranks_processes return. */
#ifndef CHECK_H
#define CHECK_H

#include "ranks.h"
#include "test.h"

static inline void check(const char *wrong)
{
    cr_assert(wrong == NULL, "%s", wrong);
}

#endif
