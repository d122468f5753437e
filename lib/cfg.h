/* cfg.h - every option of the library in one table (CFG_TABLE): name, kind, default, range,
 * meaning. Read once from the environment, before first use; unknown KOLO_* names and bad values
 * are reported by cfg_check() and by kolo_info, never ignored. */
#ifndef CFG_H
#define CFG_H

#include "base.h"

/* X(key, "KOLO_NAME", kind, default, min, max, "meaning")
 * kinds: INT (plain number), MS (milliseconds; accepts 500ms, 10s, 2m), BYTES (accepts K M G),
 * STR (text, default "" or a word), ENUM (default is an index; `meaning` starts with
 * "a|b|c: "). min and max are ignored for STR. */
#define CFG_TABLE(X)                                                                               \
    X(LOG, "KOLO_LOG", STR, "", 0, 0, "log level, with modules: info or warn,boot:debug")          \
    X(LOG_FILE, "KOLO_LOG_FILE", STR, "", 0, 0, "file for the log; %h host, %p pid; else stderr")  \
    X(TIMEOUT, "KOLO_TIMEOUT", MS, 600000, 1, INT64_MAX / 1000000, "deadline of an operation")     \
    X(SETUP_TIMEOUT, "KOLO_SETUP_TIMEOUT", MS, 120000, 1, INT64_MAX / 1000000,                     \
      "deadline of creating or splitting a communicator")                                          \
    X(DETERMINISTIC, "KOLO_DETERMINISTIC", INT, 0, 0, 1,                                           \
      "1: bits do not depend on algorithm or topology")                                            \
    X(ALGO, "KOLO_ALGO", STR, "", 0, 0, "force algorithms: all_reduce:ring,broadcast:binomial")    \
    X(TUNE, "KOLO_TUNE", ENUM, 0, 0, 2,                                                            \
      "auto|model|measure: choose algorithms by times that were measured here once and are kept "  \
      "in ~/.cache/kolo; by a model alone; or measure anew")                                       \
    X(PLAN_FILE, "KOLO_PLAN_FILE", STR, "", 0, 0, "file with plans to add to the built-in ones")   \
    X(WAIT, "KOLO_WAIT", ENUM, 0, 0, 3, "auto|spin|yield|sleep: how a rank waits")                 \
    X(SPIN_US, "KOLO_SPIN_US", INT, -1, -1, 1000000,                                               \
      "microseconds to spin before yielding; -1: by ranks and CPUs")                               \
    X(POLL_US, "KOLO_POLL_US", INT, -1, -1, 1000000000,                                            \
      "microseconds that an idle worker polls before it sleeps; -1: by ranks and CPUs")            \
    X(SLOT_BYTES, "KOLO_SLOT_BYTES", BYTES, 131072, 4096, 16777216,                                \
      "payload of a large link slot")                                                              \
    X(WINDOWS, "KOLO_WINDOWS", INT, 1, 0, 1, "0: never read or write buffers of peers directly")   \
    X(CMA, "KOLO_CMA", ENUM, 0, 0, 2,                                                              \
      "auto|always|never: read and write private buffers of peers through the kernel")             \
    X(STREAM, "KOLO_STREAM", ENUM, 0, 0, 2,                                                        \
      "auto|always|never: write to peers past the caches, by how far the lines are")               \
    X(FUSE, "KOLO_FUSE", INT, 1, 0, 1, "0: run the small all_reduces of a group one by one")       \
    X(CPU, "KOLO_CPU", STR, "", 0, 0, "kernels to allow: c, avx2, avx512, neon; empty: the best")  \
    X(HEAP_BYTES, "KOLO_HEAP_BYTES", BYTES, 0, 0, INT64_MAX,                                       \
      "address space for kolo_mem_alloc; 0: as much as the machine has memory")                    \
    X(SOCKET_IFNAME, "KOLO_SOCKET_IFNAME", STR, "", 0, 0,                                          \
      "interfaces for the bootstrap: a comma list of prefixes, ^ in front excludes")               \
    X(PORT_RANGE, "KOLO_PORT_RANGE", STR, "", 0, 0, "ports for the bootstrap: LO-HI; empty: any")  \
    X(SECRET, "KOLO_SECRET", STR, "", 0, 0,                                                        \
      "shared secret for launchers that give none; any text, equal on all ranks")                  \
    X(RANK, "KOLO_RANK", INT, -1, -1, INT32_MAX, "rank of this process")                           \
    X(SIZE, "KOLO_SIZE", INT, -1, -1, INT32_MAX, "number of ranks")                                \
    X(LOCAL_RANK, "KOLO_LOCAL_RANK", INT, -1, -1, INT32_MAX, "rank among those of this host")      \
    X(ADDR, "KOLO_ADDR", STR, "", 0, 0, "host:port where rank 0 listens")                          \
    X(LAUNCHER, "KOLO_LAUNCHER", STR, "", 0, 0,                                                    \
      "use this launcher: kolo torchrun pmix ompi pmi pals slurm env jax k8s single")

/* Values of KOLO_CMA. */
enum { CMA_AUTO, CMA_ALWAYS, CMA_NEVER };
/* Values of KOLO_TUNE. */
enum { TUNE_AUTO, TUNE_MODEL, TUNE_MEASURE };

enum cfg_key {
#define X(key, ...) CFG_##key,
    CFG_TABLE(X)
#undef X
        CFG_NKEYS
};

int64_t cfg_int(enum cfg_key key);     /* INT, MS (milliseconds), BYTES, ENUM (index) */
const char *cfg_str(enum cfg_key key); /* STR; borrowed, never NULL */
bool cfg_is_set(enum cfg_key key);     /* from the environment, not the default */
/* $XDG_CACHE_HOME, or .cache in $HOME; "" when there is neither (borrowed). */
const char *cfg_cache_dir(void);

/* KOLO_OK, or KOLO_ERR_ARG with a text naming the first bad value or unknown KOLO_* variable and
 * what would be legal (for an unknown name: the nearest known one).  Called when a communicator is
 * created. */
enum kolo_status cfg_check(void);
/* The table as text for kolo_describe(KOLO_TOPIC_OPTIONS): name, value, origin, default,
 * meaning. */
void cfg_print(struct text *out);
/* Test hook: forget what was read, so that the next call reads the environment again. */
void cfg_reset(void);

#endif
