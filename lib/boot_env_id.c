/* boot_env_id.c - an id for the ranks of a launcher, by whatever way it offers, and the handle.
 *
 *     pmix, ompi, pmi        rank 0 makes a random id and leaves it in the key-value store
 *     slurm, its own pmi     the first host of the step's node list, where rank 0 runs
 *     torchrun, env, jax     MASTER_ADDR or the coordinator's host
 *     k8s                    pod 0 of the indexed job, by its stable name
 *     any                    KOLO_ADDR=host:port when it is set
 * MASTER_PORT and the coordinator's port belong to others: without KOLO_ADDR the port is 10000 +
 * hash % 20000, below those that systems give away, of launcher, job and attempt. */
#include "boot_env.h"

#include "boot_wire.h"
#include "cfg.h"
#include "log.h"

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum {
    PORT_FIRST = 10000,
    PORT_COUNT = 20000,
    HOST_BYTES = 256,
    JOB_BYTES = 512,
};

struct address {
    char host[HOST_BYTES];
    int port;
};

/* ---- the job ---- */

/* Names of the job and of its attempt: what differs between two jobs that could meet. */
static const char *const job_variables[] = {
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR",
    "MASTER_PORT",         "JAX_COORDINATOR_ADDRESS",    "JOB_NAME",
    "JOBSET_NAME",         "JOBSET_RESTART_ATTEMPT",
};
static const char *const slurm_variables[] = {
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_RESTART_COUNT",
};

static void add_variables(const char *const *names, size_t n, struct text *out)
{
    for (size_t i = 0; i < n; i++) {
        if (env_get(names[i]) != NULL)
            text_add(out, "|%s=%s", names[i], env_get(names[i]));
    }
}

static bool is_slurm(const struct boot_env *env)
{
    return strcmp(env->launcher, "slurm") == 0 ||
           (strcmp(env->launcher, "pmi") == 0 && env_is_slurm_pmi());
}

/* With KOLO_ADDR, the address alone names the job: a user may start ranks by hand in any way. */
static void describe_job(const struct boot_env *env, struct text *out)
{
    text_add(out, "%d", env->size);
    if (cfg_str(CFG_ADDR)[0] != '\0') {
        text_add(out, "|%s", cfg_str(CFG_ADDR));
        return;
    }
    text_add(out, "|%s", env->launcher);
    if (is_slurm(env))
        add_variables(slurm_variables, ARRAY_LEN(slurm_variables), out);
    else
        add_variables(job_variables, ARRAY_LEN(job_variables), out);
}

static int derive_port(const char *job, int taken)
{
    static const unsigned char key[16] = "kolo port key 1";
    const int port = PORT_FIRST + (int)(siphash(key, job, strlen(job)) % PORT_COUNT);
    return port == taken ? port + 1 : port;
}

/* ---- addresses ---- */

/* "host:port", "[v6]:port"; without port: *port is 0. */
static bool split_address(const char *text, struct address *out)
{
    const char *start = text, *end, *colon;
    if (text[0] == '[') {
        start = text + 1;
        end = strchr(start, ']');
        if (end == NULL || (end[1] != '\0' && end[1] != ':'))
            return false;
        colon = end[1] == ':' ? end + 1 : NULL;
    } else {
        colon = strrchr(text, ':');
        end = colon != NULL ? colon : text + strlen(text);
    }
    const size_t len = (size_t)(end - start);
    if (len == 0 || len >= sizeof(out->host))
        return false;
    struct address a = {.port = 0};
    memcpy(a.host, start, len);
    if (colon != NULL) {
        char *rest;
        const unsigned long port =
            colon[1] >= '0' && colon[1] <= '9' ? strtoul(colon + 1, &rest, 10) : 0;
        if (port < 1 || port > 65535 || *rest != '\0')
            return false;
        a.port = (int)port;
    }
    *out = a;
    return true;
}

static enum kolo_status find_by_master(const char *host, struct address *out)
{
    if (host == NULL)
        return fail(KOLO_ERR_ARG,
                    "MASTER_ADDR is not set: the host of rank 0 is unknown; set it, or "
                    "KOLO_ADDR=host:port");
    if (env_get("MASTER_PORT") != NULL)
        TRY(env_int("MASTER_PORT", 1, 65535, &out->port));
    if (strlen(host) >= sizeof(out->host))
        return fail(KOLO_ERR_ARG, "MASTER_ADDR has more than %d bytes", HOST_BYTES - 1);
    memcpy(out->host, host, strlen(host) + 1);
    return KOLO_OK;
}

static enum kolo_status find_by_slurm(struct address *out)
{
    const char *list = env_get("SLURM_STEP_NODELIST");
    if (list == NULL)
        return fail(KOLO_ERR_ARG,
                    "SLURM_STEP_NODELIST is not set: the host of rank 0 is unknown; set "
                    "KOLO_ADDR=host:port");
    if (!nodelist_first(list, out->host, sizeof(out->host)))
        return fail(KOLO_ERR_ARG,
                    "SLURM_STEP_NODELIST=%s is no list of hosts; set KOLO_ADDR=host:port", list);
    return KOLO_OK;
}

/* This pod is called <job>-<index>, and its full name, when it has one, adds the subdomain. */
static enum kolo_status find_by_pod(int rank, struct address *out)
{
    char name[HOST_BYTES] = "", suffix[16];
    net_host_name(name);
    (void)snprintf(suffix, sizeof(suffix), "-%d", rank);
    const size_t len = strlen(name), tail = strlen(suffix);
    if (len <= tail || strcmp(name + len - tail, suffix) != 0)
        return fail(KOLO_ERR_ARG,
                    "pod 0 of the indexed job cannot be found: this host is called %s, not "
                    "<job>-%d; set KOLO_ADDR=host:port of pod 0",
                    name, rank);
    const struct addrinfo hints = {.ai_flags = AI_CANONNAME, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list;
    const char *domain = NULL;
    const bool is_known = getaddrinfo(name, NULL, &hints, &list) == 0;
    if (is_known && list->ai_canonname != NULL)
        domain = strchr(list->ai_canonname, '.');
    const int n = snprintf(out->host, sizeof(out->host), "%.*s-0%s", (int)(len - tail), name,
                           domain != NULL ? domain : "");
    if (is_known)
        freeaddrinfo(list);
    if (n < 0 || (size_t)n >= sizeof(out->host))
        return fail(KOLO_ERR_ARG,
                    "the name of pod 0 is too long; set KOLO_ADDR=host:port of pod 0");
    return KOLO_OK;
}

static enum kolo_status find_address(const struct boot_env *env, struct address *out)
{
    const char *given = cfg_str(CFG_ADDR);
    const char *coordinator = env_get("JAX_COORDINATOR_ADDRESS");
    if (given[0] != '\0') {
        if (!split_address(given, out) || out->port == 0)
            return fail(KOLO_ERR_ARG, "KOLO_ADDR=%s is not host:port (or [IPv6]:port)", given);
        return KOLO_OK;
    }
    if (is_slurm(env))
        return find_by_slurm(out);
    if (strcmp(env->launcher, "k8s") == 0)
        return find_by_pod(env->rank, out);
    if (strcmp(env->launcher, "jax") == 0) {
        if (coordinator == NULL || !split_address(coordinator, out))
            return fail(KOLO_ERR_ARG, "JAX_COORDINATOR_ADDRESS=%s is not host:port",
                        coordinator != NULL ? coordinator : "");
        return KOLO_OK;
    }
    if (strcmp(env->launcher, "torchrun") == 0 || strcmp(env->launcher, "env") == 0)
        return find_by_master(env_get("MASTER_ADDR"), out);
    return fail(KOLO_ERR_ARG,
                "launcher %s tells rank and size, but not where rank 0 is; set "
                "KOLO_ADDR=host:port of rank 0 on all ranks",
                env->launcher);
}

/* The secret is made of the job and KOLO_SECRET, so that a late process of another job or attempt
 * is refused; without KOLO_SECRET, who knows the job can guess it. */
static enum kolo_status id_by_address(const struct boot_env *env, uint64_t deadline,
                                      struct kolo_unique_id *id)
{
    char secret[JOB_BYTES + 512];
    struct address at = {.port = 0};
    struct text t;
    TRY(find_address(env, &at));
    text_init(&t, secret, sizeof(secret));
    describe_job(env, &t);
    if (cfg_str(CFG_ADDR)[0] == '\0')
        at.port = derive_port(secret, at.port);
    text_add(&t, "|%s", cfg_str(CFG_SECRET));
    if (t.used >= sizeof(secret))
        return fail(KOLO_ERR_ARG,
                    "KOLO_SECRET or the variables of the job are too long (%zu bytes, at "
                    "most %zu)",
                    t.used, sizeof(secret) - 1);
    LOG(LOG_INFO, "boot", "rank 0 is expected at %s port %d%s", at.host, at.port,
        cfg_is_set(CFG_SECRET) ? "" : ", without KOLO_SECRET");
    return boot_id_from_address(at.host, at.port, secret, env->rank == 0, net_left_ms(deadline),
                                id);
}

/* ---- key-value stores ---- */

static void id_to_hex(const struct kolo_unique_id *id, char text[ENV_SHARE_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < sizeof(id->bytes); i++) {
        text[2 * i] = digits[id->bytes[i] >> 4];
        text[2 * i + 1] = digits[id->bytes[i] & 15];
    }
    text[2 * sizeof(id->bytes)] = '\0';
}

static int digit_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool id_from_hex(const char *text, struct kolo_unique_id *id)
{
    struct kolo_unique_id found;
    if (strlen(text) != 2 * sizeof(found.bytes))
        return false;
    for (size_t i = 0; i < sizeof(found.bytes); i++) {
        const int hi = digit_value(text[2 * i]), lo = digit_value(text[2 * i + 1]);
        if (hi < 0 || lo < 0)
            return false;
        found.bytes[i] = (unsigned char)(hi << 4 | lo);
    }
    *id = found;
    return true;
}

/* Rank 0's failure is shared too, as words with '_' for spaces: the others then need not wait. */
static void error_to_word(const char *why, char text[ENV_SHARE_BYTES])
{
    (void)snprintf(text, ENV_SHARE_BYTES, "!%s", why);
    for (char *at = text; *at != '\0'; at++) {
        if (*at <= ' ' || *at > '~' || *at == '=')
            *at = '_';
    }
}

static enum kolo_status id_by_store(const struct boot_env *env, uint64_t deadline,
                                    struct kolo_unique_id *id)
{
    char text[ENV_SHARE_BYTES] = "";
    struct kolo_unique_id made;
    enum kolo_status status = KOLO_OK;
    if (env->rank == 0) {
        status = boot_id_create(&made, net_left_ms(deadline));
        if (status == KOLO_OK)
            id_to_hex(&made, text);
        else
            error_to_word(fail_text(), text);
    }
    if (strcmp(env->launcher, "pmi") == 0)
        TRY(boot_pmi_share(env->rank, text, deadline));
    else
        TRY(boot_pmix_share(env->rank, text, deadline));
    if (status != KOLO_OK)
        return status;
    if (text[0] == '!')
        return fail(KOLO_ERR_SETUP, "rank 0 could not make an id: %s", text + 1);
    if (!id_from_hex(text, id))
        return fail(KOLO_ERR_SETUP, "what rank 0 left in the key-value store is no id: %.40s",
                    text);
    return KOLO_OK;
}

/* ---- the handle ---- */

static bool has_store(const struct boot_env *env)
{
    return strcmp(env->launcher, "pmix") == 0 ||
           (strcmp(env->launcher, "pmi") == 0 && !is_slurm(env)) ||
           (strcmp(env->launcher, "ompi") == 0 && env_get("PMIX_NAMESPACE") != NULL);
}

enum kolo_status boot_create_env(int64_t timeout_ms, struct boot_env *env, struct boot **out)
{
    const uint64_t deadline = net_deadline(timeout_ms);
    struct boot_env found;
    struct kolo_unique_id id;
    TRY(boot_env_find(&found));
    if (found.size == 1) {
        TRY(boot_create_single(out));
    } else {
        if (has_store(&found) && cfg_str(CFG_ADDR)[0] == '\0')
            TRY(id_by_store(&found, deadline, &id));
        else
            TRY(id_by_address(&found, deadline, &id));
        TRY(boot_create(&id, found.rank, found.size, net_left_ms(deadline), out));
    }
    if (env != NULL)
        *env = found;
    return KOLO_OK;
}
