/* tune_store.c - where measured tables are kept: for this process in memory, for the user in
 * $XDG_CACHE_HOME/kolo or ~/.cache/kolo, one file per key.  A key stands for all that the times
 * depend on, so that nothing ever has to be invalidated.  A file that is odd in any way counts as
 * missing. */
#include "cfg.h"
#include "log.h"
#include "topo.h"
#include "tune.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_KEPT = 16, FILE_BYTES = 8192, PATH_BYTES = 1024 };

/* Tables of this process, the oldest leave first; guarded by lock. */
static struct {
    pthread_mutex_t lock;
    int next;
    struct tune_table tables[MOST_KEPT]; /* key 0: none */
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const unsigned char hash_key[16] = "kolo tune key  ";

static uint64_t algos_hash(void)
{
    char text[4096];
    struct text t;
    size_t n;
    const struct plan_algo *algos = plan_algos(&n);
    text_init(&t, text, sizeof text);
    for (size_t i = 0; i < n; i++)
        text_add(&t, "%d %s %u,", (int)algos[i].coll, algos[i].name, algos[i].flags);
    for (int k = 0; k < TUNE_SIZES; k++)
        text_add(&t, "%" PRIu32 ",", tune_sizes[k]);
    return siphash(hash_key, text, strnlen(text, sizeof text));
}

uint64_t tune_key(const struct tune_facts *f)
{
    char text[2048];
    struct text t;
    text_init(&t, text, sizeof text);
    text_add(&t, "%d.%d.%d ranks %d here %d cpus %d shared %d windows %d ordered %d ",
             KOLO_VERSION_MAJOR, KOLO_VERSION_MINOR, KOLO_VERSION_PATCH, f->nranks, f->nranks_here,
             f->ncpus, f->shares_cpu, f->has_windows, f->deterministic);
    text_add(&t, "wait %d spin %d slots %lld kernels %s algos %" PRIx64 "\n",
             (int)cfg_int(CFG_WAIT), (int)cfg_int(CFG_SPIN_US), (long long)cfg_int(CFG_SLOT_BYTES),
             cfg_str(CFG_CPU), algos_hash());
    topo_print_cpu(&t);
    const uint64_t key = siphash(hash_key, text, strnlen(text, sizeof text));
    return key ? key : 1;
}

/* ---- in memory ---- */

static bool find_kept(uint64_t key, struct tune_table *out)
{
    bool is_found = false;
    pthread_mutex_lock(&kept.lock);
    for (int i = 0; i < MOST_KEPT && !is_found; i++)
        if (kept.tables[i].key == key) {
            *out = kept.tables[i];
            is_found = true;
        }
    pthread_mutex_unlock(&kept.lock);
    return is_found;
}

static void keep(const struct tune_table *t)
{
    pthread_mutex_lock(&kept.lock);
    int at = 0;
    while (at < MOST_KEPT && kept.tables[at].key != t->key)
        at++;
    if (at == MOST_KEPT) {
        at = kept.next;
        kept.next = (kept.next + 1) % MOST_KEPT;
    }
    kept.tables[at] = *t;
    pthread_mutex_unlock(&kept.lock);
}

/* ---- in files ---- */

bool tune_store_path(uint64_t key, char *out, size_t size)
{
    const char *dir = cfg_cache_dir();
    if (!*dir)
        return false;
    const int n = snprintf(out, size, "%s/kolo/tune-%016" PRIx64, dir, key);
    return n > 0 && (size_t)n < size;
}

static bool read_file(uint64_t key, struct tune_table *out)
{
    char path[PATH_BYTES], text[FILE_BYTES];
    struct stat about;
    if (!tune_store_path(key, path, sizeof path))
        return false;
    /* Not blocking: whatever lies there must not hold up a communicator. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0)
        return false;
    size_t have = 0;
    ssize_t n = 0;
    const bool is_file = fstat(fd, &about) == 0 && S_ISREG(about.st_mode);
    while (is_file && have < sizeof text && (n = read(fd, text + have, sizeof text - have)) > 0)
        have += (size_t)n;
    close(fd);
    if (is_file && n == 0 && tune_table_parse(text, have, key, out))
        return true;
    LOG(LOG_WARN, "tune", "%s is not a table of measured times: measured anew", path);
    return false;
}

static bool write_all(int fd, const char *text, size_t bytes)
{
    while (bytes > 0) {
        const ssize_t n = write(fd, text, bytes);
        if (n <= 0)
            return false;
        text += n;
        bytes -= (size_t)n;
    }
    return true;
}

/* Under another name first, so that readers find all of it or nothing. */
static bool write_file(const char *path, const char *text, size_t bytes)
{
    char name[PATH_BYTES + 32];
    snprintf(name, sizeof name, "%s.%ld-%" PRIx64, path, (long)getpid(), now_ns());
    const int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return false;
    const bool is_written = write_all(fd, text, bytes);
    if (close(fd) == 0 && is_written && rename(name, path) == 0)
        return true;
    unlink(name);
    return false;
}

static void store(const struct tune_table *table, int nranks)
{
    char path[PATH_BYTES], text[FILE_BYTES];
    struct text t;
    if (!tune_store_path(table->key, path, sizeof path))
        return;
    char *slash = strrchr(path, '/');
    mkdir(cfg_cache_dir(), 0700); /* these may exist, and if they cannot be made, opening fails */
    *slash = 0;
    mkdir(path, 0700);
    *slash = '/';
    text_init(&t, text, sizeof text);
    tune_table_print(table, nranks, &t);
    if (t.used < sizeof text && write_file(path, text, t.used))
        LOG(LOG_INFO, "tune", "measured times for %d ranks are kept in %s", nranks, path);
    else
        LOG(LOG_INFO, "tune", "measured times for %d ranks cannot be kept in %s", nranks, path);
}

bool tune_store_find(uint64_t key, bool in_files, struct tune_table *out)
{
    struct tune_table found;
    if (!find_kept(key, &found)) {
        if (!in_files || !read_file(key, &found))
            return false;
        keep(&found);
    }
    *out = found;
    return true;
}

void tune_store_keep(const struct tune_table *t, int nranks, bool in_files)
{
    keep(t);
    if (in_files && t->date > 0)
        store(t, nranks);
}
