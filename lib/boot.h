/* boot.h - how ranks find each other: rendezvous by id over TCP, and all-gathers of small blobs
 * before any transport exists.  The only part of the library with TCP sockets (boot*.c).
 * Every wait has a deadline; its error lists the ranks that did not come. */
#ifndef BOOT_H
#define BOOT_H

#include "base.h"

struct boot;

enum { BOOT_BLOB_MAX = 1 << 20 };

/* Make an id: listen on all usable interfaces in this process (a thread serves one rendezvous, then
 * ends by itself; it also ends `timeout_ms` after creation if the ranks never come), with a random
 * secret. */
enum kolo_status boot_id_create(struct kolo_unique_id *id, int64_t timeout_ms);
/* An id for an address that all ranks know (host and port of rank 0) and a secret derived from
 * `secret_text`; with `listen` this process serves it, as above. */
enum kolo_status boot_id_from_address(const char *host, int port, const char *secret_text,
                                      bool listen, int64_t timeout_ms, struct kolo_unique_id *id);

/* Join.  On success every rank has a handle.  Secret proved both ways first. */
enum kolo_status boot_create(const struct kolo_unique_id *id, int rank, int nranks,
                             int64_t timeout_ms, struct boot **out);
/* A handle for the only rank there is: no sockets. */
enum kolo_status boot_create_single(struct boot **out);
int boot_rank(const struct boot *b);
int boot_size(const struct boot *b);

/* all[k * bytes ...] = mine of rank k.  bytes is equal on all ranks (checked).  At most
 * BOOT_BLOB_MAX bytes.  Logarithmic number of rounds.  A dead peer is an error that names it. */
enum kolo_status boot_all_gather(struct boot *b, const void *mine, size_t bytes, void *all,
                                 int64_t timeout_ms);
enum kolo_status boot_barrier(struct boot *b, int64_t timeout_ms);
/* Local, never blocks, takes NULL. */
void boot_destroy(struct boot *b);

/* ---- launchers (boot_env.c) ---- */

struct boot_env {
    const char *launcher; /* kolo torchrun pmix ompi pmi pals slurm env jax k8s single */
    int rank;
    int size;
    int local_rank; /* -1: unknown */
    int local_size; /* -1: unknown */
};
/* Who started this process.  KOLO_ERR_SETUP with a text that shows both when two sources
 * disagree. */
enum kolo_status boot_env_find(struct boot_env *env);
/* The above, and the id by whatever way the launcher offers (PMIx or PMI key-value exchange, a
 * known address, ...), and then boot_create. */
enum kolo_status boot_create_env(int64_t timeout_ms, struct boot_env *env, struct boot **out);
/* Text for kolo_describe(KOLO_TOPIC_LAUNCHER). */
void boot_env_print(struct text *out);

#endif
