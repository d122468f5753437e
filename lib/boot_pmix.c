/* boot_pmix.c - PMIx, the interface of Open MPI's, PRRTE's and Slurm's process managers, from a
 * libpmix that is loaded when it is needed.
 *
 * Types and numbers are those of the PMIx standard that every libpmix.so.2 (versions 2 to 5) keeps;
 * declared here so that nothing has to be installed to build.  PMIx_Init counts its callers, so an
 * MPI library in the same process is not disturbed; but the last PMIx_Finalize is for good, so one
 * reference is kept until the process exits.  Keys are numbered: a value is published once. */
#include "boot_env.h"

#include "boot_net.h"
#include "log.h"
#include "mem.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- as in the standard ---- */

enum {
    PMIX_OK = 0,
    PMIX_TYPE_BOOL = 1,
    PMIX_TYPE_STRING = 3,
    PMIX_TYPE_U16 = 13,
    PMIX_TYPE_U32 = 14
};
enum { PMIX_SCOPE_GLOBAL = 3 };
#define PMIX_WILDCARD (UINT32_MAX - 1)

struct pmix_proc {
    char name_space[256];
    uint32_t rank;
};

struct pmix_value {
    uint16_t type;
    union {
        bool flag;
        char *string;
        uint16_t u16;
        uint32_t u32;
        void *room[3];
    } data;
};

struct pmix_info {
    char key[512];
    uint32_t flags;
    struct pmix_value value;
};

_Static_assert(sizeof(struct pmix_value) == 32, "layout of pmix_value_t");

struct pmix_api {
    int (*init)(struct pmix_proc *proc, struct pmix_info *info, size_t n);
    int (*finalize)(const struct pmix_info *info, size_t n);
    int (*put)(uint8_t scope, const char *key, struct pmix_value *value);
    int (*commit)(void);
    int (*fence_nb)(const struct pmix_proc *procs, size_t nprocs, const struct pmix_info *info,
                    size_t ninfo, void (*done)(int status, void *arg), void *arg);
    int (*get)(const struct pmix_proc *proc, const char *key, const struct pmix_info *info,
               size_t n, struct pmix_value **value);
    const char *(*error_string)(int status);
    void (*value_destruct)(struct pmix_value *value); /* NULL before PMIx 4.2 */
};

struct pmix {
    void *library;
    struct pmix_api api;
    struct pmix_proc me;
};

enum { PMIX_MAX_KEYS = 1000 };

/* ---- loading ---- */

static enum kolo_status pmix_load(struct pmix *p)
{
    static const struct {
        const char *symbol;
        size_t offset;
        bool is_needed;
    } table[] = {
        {"PMIx_Init", offsetof(struct pmix_api, init), true},
        {"PMIx_Finalize", offsetof(struct pmix_api, finalize), true},
        {"PMIx_Put", offsetof(struct pmix_api, put), true},
        {"PMIx_Commit", offsetof(struct pmix_api, commit), true},
        {"PMIx_Fence_nb", offsetof(struct pmix_api, fence_nb), true},
        {"PMIx_Get", offsetof(struct pmix_api, get), true},
        {"PMIx_Error_string", offsetof(struct pmix_api, error_string), true},
        {"PMIx_Value_destruct", offsetof(struct pmix_api, value_destruct), false},
    };
    p->library = dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL);
    if (p->library == NULL)
        return fail(KOLO_ERR_SETUP,
                    "this process was started through PMIx, but its library cannot be "
                    "loaded (%s); install it (Debian: libpmix2), or set KOLO_ADDR=host:port "
                    "of rank 0 on all ranks",
                    dlerror());
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        void *at = dlsym(p->library, table[i].symbol);
        if (at == NULL && table[i].is_needed)
            return fail(KOLO_ERR_SETUP,
                        "libpmix.so.2 has no %s; use another, or set KOLO_ADDR=host:port "
                        "of rank 0 on all ranks",
                        table[i].symbol);
        memcpy((char *)&p->api + table[i].offset, &at, sizeof(at));
    }
    return KOLO_OK;
}

static enum kolo_status fail_pmix(const struct pmix *p, const char *what, int rc)
{
    return fail(KOLO_ERR_SETUP,
                "%s: %s (%d); KOLO_ADDR=host:port of rank 0 on all ranks works without "
                "PMIx",
                what, p->api.error_string(rc), rc);
}

/* The reference that the process keeps; a child after fork has none.  Release of `kept` pairs with
 * the acquire at exit. */
static _Atomic int kept_pid;
static int (*_Atomic kept)(const struct pmix_info *info, size_t n);

__attribute__((destructor)) static void pmix_leave(void)
{
    int (*const finalize)(const struct pmix_info *, size_t) =
        atomic_load_explicit(&kept, memory_order_acquire);
    if (finalize != NULL && atomic_load_explicit(&kept_pid, memory_order_relaxed) == (int)getpid())
        (void)finalize(NULL, 0);
}

static enum kolo_status pmix_open(struct pmix *p)
{
    TRY(pmix_load(p));
    const int rc = p->api.init(&p->me, NULL, 0);
    return rc == PMIX_OK ? KOLO_OK : fail_pmix(p, "cannot reach the PMIx server", rc);
}

/* The first to close leaves its reference to the process.  The library stays loaded in any case:
 * its threads and exit handlers would not survive. */
static void pmix_close(struct pmix *p)
{
    int (*none)(const struct pmix_info *, size_t) = NULL;
    if (atomic_load_explicit(&kept, memory_order_relaxed) == NULL)
        atomic_store_explicit(&kept_pid, (int)getpid(), memory_order_relaxed);
    if (!atomic_compare_exchange_strong_explicit(&kept, &none, p->api.finalize,
                                                 memory_order_release, memory_order_relaxed))
        (void)p->api.finalize(NULL, 0);
}

/* ---- asking ---- */

/* Values belong to libpmix's allocator, which has no function to free one in all versions: what is
 * inside goes where PMIx_Value_destruct exists, the 32 bytes around it stay. */
static void value_drop(const struct pmix *p, struct pmix_value *value)
{
    if (p->api.value_destruct != NULL)
        p->api.value_destruct(value);
}

static bool get_number(const struct pmix *p, uint32_t rank, const char *key, int *out)
{
    struct pmix_proc who = {.rank = rank};
    struct pmix_value *value = NULL;
    memcpy(who.name_space, p->me.name_space, sizeof(who.name_space));
    if (p->api.get(&who, key, NULL, 0, &value) != PMIX_OK || value == NULL)
        return false;
    const bool is_number = value->type == PMIX_TYPE_U32 || value->type == PMIX_TYPE_U16;
    const uint32_t number = value->type == PMIX_TYPE_U32 ? value->data.u32 : value->data.u16;
    value_drop(p, value);
    if (!is_number || number > INT32_MAX)
        return false;
    *out = (int)number;
    return true;
}

enum kolo_status boot_pmix_job(int *size, int *local_rank, int *local_size)
{
    struct pmix p = {0};
    int n = -1, lrank = -1, lsize = -1;
    TRY(pmix_open(&p));
    const bool is_known = get_number(&p, PMIX_WILDCARD, "pmix.job.size", &n);
    if (*local_rank < 0)
        (void)get_number(&p, p.me.rank, "pmix.lrank", &lrank);
    if (*local_size < 0)
        (void)get_number(&p, PMIX_WILDCARD, "pmix.local.size", &lsize);
    pmix_close(&p);
    if (!is_known || n < 1)
        return fail(KOLO_ERR_SETUP,
                    "the PMIx server does not tell the size of the job; set KOLO_RANK, "
                    "KOLO_SIZE and KOLO_ADDR");
    *size = n;
    *local_rank = *local_rank < 0 ? lrank : *local_rank;
    *local_size = *local_size < 0 ? lsize : *local_size;
    return KOLO_OK;
}

/* ---- sharing ---- */

/* Outlives the waiter when its deadline passes before the server answers. */
struct fence {
    pthread_mutex_t lock; /* guards the two below */
    bool is_done;
    int status;
    pthread_cond_t change;
    atomic_int owners; /* the waiter, and libpmix until it has called back; the last one frees */
};

static void fence_release(struct fence *f)
{
    if (atomic_fetch_sub_explicit(&f->owners, 1, memory_order_acq_rel) > 1)
        return;
    pthread_cond_destroy(&f->change);
    pthread_mutex_destroy(&f->lock);
    mem_free(f);
}

static void fence_done(int status, void *arg)
{
    struct fence *f = arg;
    pthread_mutex_lock(&f->lock);
    f->is_done = true;
    f->status = status;
    pthread_cond_signal(&f->change);
    pthread_mutex_unlock(&f->lock);
    fence_release(f);
}

static struct fence *fence_create(void)
{
    struct fence *f = mem_calloc(1, sizeof(*f));
    pthread_condattr_t attr;
    if (f == NULL)
        return NULL;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&f->change, &attr);
    (void)pthread_condattr_destroy(&attr);
    (void)pthread_mutex_init(&f->lock, NULL);
    atomic_init(&f->owners, 2);
    return f;
}

static bool fence_wait(struct fence *f, uint64_t deadline, int *status)
{
    const struct timespec until = {.tv_sec = (time_t)(deadline / 1000000000),
                                   .tv_nsec = (long)(deadline % 1000000000)};
    int rc = 0;
    pthread_mutex_lock(&f->lock);
    while (!f->is_done && rc == 0)
        rc = pthread_cond_timedwait(&f->change, &f->lock, &until);
    const bool is_done = f->is_done;
    *status = f->status;
    pthread_mutex_unlock(&f->lock);
    return is_done;
}

/* All ranks of the job, with the values that they have put. */
static enum kolo_status pmix_fence(const struct pmix *p, uint64_t deadline)
{
    struct pmix_info collect = {.key = "pmix.collect",
                                .value = {.type = PMIX_TYPE_BOOL, .data = {.flag = true}}};
    struct pmix_proc all = {.rank = PMIX_WILDCARD};
    int status = PMIX_OK;
    struct fence *f = fence_create();
    if (f == NULL)
        return fail(KOLO_ERR_NOMEM, "no memory for an exchange through PMIx");
    memcpy(all.name_space, p->me.name_space, sizeof(all.name_space));
    const int rc = p->api.fence_nb(&all, 1, &collect, 1, fence_done, f);
    if (rc != PMIX_OK) {
        fence_release(f);
        fence_release(f);
        return fail_pmix(p, "a fence through PMIx failed", rc);
    }
    const bool is_done = fence_wait(f, deadline, &status);
    fence_release(f);
    if (!is_done)
        return fail(KOLO_ERR_TIMEOUT,
                    "a fence through PMIx did not end in time: some ranks have not come "
                    "to kolo_comm_create_env");
    return status == PMIX_OK ? KOLO_OK : fail_pmix(p, "a fence through PMIx failed", status);
}

/* Key number i of rank 0, if it is here already. */
static bool pmix_find(const struct pmix *p, int i, char text[ENV_SHARE_BYTES])
{
    const struct pmix_info now = {.key = "pmix.immediate",
                                  .value = {.type = PMIX_TYPE_BOOL, .data = {.flag = true}}};
    struct pmix_proc root = {.rank = 0};
    struct pmix_value *value = NULL;
    char key[32];
    memcpy(root.name_space, p->me.name_space, sizeof(root.name_space));
    (void)snprintf(key, sizeof(key), "kolo.id.%d", i);
    if (p->api.get(&root, key, &now, 1, &value) != PMIX_OK || value == NULL)
        return false;
    const bool is_good = value->type == PMIX_TYPE_STRING && value->data.string != NULL &&
                         strlen(value->data.string) < ENV_SHARE_BYTES;
    if (is_good)
        memcpy(text, value->data.string, strlen(value->data.string) + 1);
    value_drop(p, value);
    return is_good;
}

static enum kolo_status pmix_publish(const struct pmix *p, char *text)
{
    char key[32], old[ENV_SHARE_BYTES];
    int i = 0;
    while (i < PMIX_MAX_KEYS && pmix_find(p, i, old))
        i++;
    struct pmix_value value = {.type = PMIX_TYPE_STRING, .data = {.string = text}};
    (void)snprintf(key, sizeof(key), "kolo.id.%d", i);
    int rc = p->api.put(PMIX_SCOPE_GLOBAL, key, &value);
    if (rc == PMIX_OK)
        rc = p->api.commit();
    return rc == PMIX_OK ? KOLO_OK : fail_pmix(p, "cannot publish the id through PMIx", rc);
}

static enum kolo_status pmix_share(const struct pmix *p, int rank, char text[ENV_SHARE_BYTES],
                                   uint64_t deadline)
{
    int i = 0;
    /* Also without a value: the others wait in the fence. */
    const enum kolo_status published = rank == 0 ? pmix_publish(p, text) : KOLO_OK;
    TRY(pmix_fence(p, deadline));
    if (rank == 0)
        return published;
    while (i < PMIX_MAX_KEYS && pmix_find(p, i, text))
        i++;
    return i > 0 ? KOLO_OK : fail(KOLO_ERR_SETUP, "rank 0 has left no id with the PMIx server");
}

enum kolo_status boot_pmix_share(int rank, char text[ENV_SHARE_BYTES], uint64_t deadline)
{
    struct pmix p = {0};
    TRY(pmix_open(&p));
    const enum kolo_status status = pmix_share(&p, rank, text, deadline);
    pmix_close(&p);
    return status;
}
