/* ranks.h - run a function on every rank of a new communicator: as threads of this process, or as
 * processes. */
#ifndef RANKS_H
#define RANKS_H

#include "kolo.h"

/* Returns NULL when all is well, else a text that says what was wrong (owned by the callee; a
 * static string or one that ranks_text made). */
typedef const char *(*rank_fn)(struct kolo_comm *comm, void *arg);

/* A printf text that lives as long as the process; for results of rank functions. */
__attribute__((format(printf, 1, 2))) const char *ranks_text(const char *format, ...);

/* Both return NULL or the first rank's text.  config may be NULL. */
const char *ranks_threads(int n, const struct kolo_config *config, rank_fn fn, void *arg);
/* A rank that dies or exits by itself is reported too, unless may_die names it (-1: none). */
const char *ranks_processes(int n, const struct kolo_config *config, rank_fn fn, void *arg,
                            int may_die);

#endif
