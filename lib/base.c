/* base.c - error texts, time, hashing and growing texts, and the tables of names in kolo.h that
 * need nothing else.  The text of an error belongs to the thread that met it; the communicator
 * takes its copy when the call returns. */
#include "base.h"

#include "log.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static _Thread_local char error_text[ERROR_TEXT_BYTES];

/* A text that was cut ends in "..." so that nobody takes it for whole. */
static void mark_cut(char *buffer, size_t size, int needed)
{
    if (needed >= 0 && (size_t)needed >= size)
        memcpy(buffer + size - 4, "...", 4);
}

enum kolo_status fail(enum kolo_status status, const char *format, ...)
{
    const int saved_errno = errno;
    char buffer[ERROR_TEXT_BYTES]; /* the arguments may point into error_text */
    va_list args;
    va_start(args, format);
    const int needed = vsnprintf(buffer, sizeof(buffer), format, args);
    va_end(args);
    if (needed < 0)
        buffer[0] = '\0';
    mark_cut(buffer, sizeof(buffer), needed);
    memcpy(error_text, buffer, strlen(buffer) + 1);
    LOG(LOG_ERROR, "error", "%s", error_text);
    errno = saved_errno;
    return status;
}

enum kolo_status fail_again(enum kolo_status status, const char *text)
{
    const size_t n = text ? strnlen(text, sizeof(error_text) - 1) : 0;
    if (n > 0)
        memmove(error_text, text, n); /* may be the calling thread's own */
    error_text[n] = '\0';
    return status;
}

const char *fail_text(void)
{
    return error_text;
}

void fail_prefix(const char *format, ...)
{
    const int saved_errno = errno;
    char buffer[ERROR_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    int needed = vsnprintf(buffer, sizeof(buffer), format, args);
    va_end(args);
    if (needed >= 0 && (size_t)needed < sizeof(buffer)) {
        const size_t used = (size_t)needed;
        needed += snprintf(buffer + used, sizeof(buffer) - used, "%s", error_text);
    }
    if (needed >= 0) {
        mark_cut(buffer, sizeof(buffer), needed);
        memcpy(error_text, buffer, strlen(buffer) + 1);
    }
    errno = saved_errno;
}

uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- SipHash-2-4, by the paper of Aumasson and Bernstein ------------------------------------ */

static uint64_t load_le64(const unsigned char *p)
{
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

static uint64_t rotate_left(uint64_t v, int bits)
{
    return v << bits | v >> (64 - bits);
}

static void sip_rounds(uint64_t v[4], int n)
{
    for (int i = 0; i < n; i++) {
        v[0] += v[1];
        v[2] += v[3];
        v[1] = rotate_left(v[1], 13) ^ v[0];
        v[3] = rotate_left(v[3], 16) ^ v[2];
        v[0] = rotate_left(v[0], 32);
        v[2] += v[1];
        v[0] += v[3];
        v[1] = rotate_left(v[1], 17) ^ v[2];
        v[3] = rotate_left(v[3], 21) ^ v[0];
        v[2] = rotate_left(v[2], 32);
    }
}

static void sip_word(uint64_t v[4], uint64_t word)
{
    v[3] ^= word;
    sip_rounds(v, 2);
    v[0] ^= word;
}

uint64_t siphash(const unsigned char key[16], const void *data, size_t bytes)
{
    const uint64_t k0 = load_le64(key);
    const uint64_t k1 = load_le64(key + 8);
    uint64_t v[4] = {k0 ^ 0x736f6d6570736575u, k1 ^ 0x646f72616e646f6du, k0 ^ 0x6c7967656e657261u,
                     k1 ^ 0x7465646279746573u};
    const unsigned char *p = data;
    for (size_t left = bytes; left >= 8; left -= 8, p += 8)
        sip_word(v, load_le64(p));
    uint64_t last = (uint64_t)(bytes & 0xff) << 56;
    for (size_t i = 0; i < bytes % 8; i++)
        last |= (uint64_t)p[i] << (8 * i);
    sip_word(v, last);
    v[2] ^= 0xff;
    sip_rounds(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* ---- growing texts -------------------------------------------------------------------------- */

void text_init(struct text *t, char *buffer, size_t size)
{
    t->at = buffer;
    t->size = size;
    t->used = 0;
    if (size > 0)
        buffer[0] = '\0';
}

void text_add(struct text *t, const char *format, ...)
{
    const bool fits = t->used < t->size;
    va_list args;
    va_start(args, format);
    const int n =
        vsnprintf(fits ? t->at + t->used : NULL, fits ? t->size - t->used : 0, format, args);
    va_end(args);
    if (n > 0)
        t->used += (size_t)n;
}

/* ---- tables of kolo.h ----------------------------------------------------------------------- */

int kolo_version(void)
{
    return KOLO_VERSION;
}

const char *kolo_status_string(int status)
{
    switch (status) {
    case KOLO_OK:
        return "no error";
    case KOLO_IN_PROGRESS:
        return "still in progress";
    case KOLO_ERR_ARG:
        return "an argument is wrong";
    case KOLO_ERR_USAGE:
        return "the call is not allowed at this time";
    case KOLO_ERR_NOMEM:
        return "memory or another resource ran out";
    case KOLO_ERR_UNSUPPORTED:
        return "not supported in this build or on this machine";
    case KOLO_ERR_TIMEOUT:
        return "a deadline passed";
    case KOLO_ERR_SETUP:
        return "the ranks could not agree to form a communicator";
    case KOLO_ERR_MISMATCH:
        return "ranks called different operations";
    case KOLO_ERR_PEER_LOST:
        return "a rank died or disconnected";
    case KOLO_ERR_ABORTED:
        return "the communicator was aborted";
    case KOLO_ERR_SYSTEM:
        return "a system call failed";
    case KOLO_ERR_INTERNAL:
        return "a defect of Kolo";
    default:
        return "unknown status";
    }
}

size_t kolo_type_size(int type)
{
    static const unsigned char bytes[KOLO_NTYPES] = {
        [KOLO_I8] = 1,  [KOLO_U8] = 1,   [KOLO_I16] = 2,    [KOLO_U16] = 2,    [KOLO_I32] = 4,
        [KOLO_U32] = 4, [KOLO_I64] = 8,  [KOLO_U64] = 8,    [KOLO_F16] = 2,    [KOLO_F32] = 4,
        [KOLO_F64] = 8, [KOLO_BF16] = 2, [KOLO_F8E4M3] = 1, [KOLO_F8E5M2] = 1,
    };
    return type >= 0 && type < KOLO_NTYPES ? bytes[type] : 0;
}

static const char *const coll_names[KOLO_NCOLLS] = {
    [KOLO_COLL_ALL_REDUCE] = "all_reduce",
    [KOLO_COLL_REDUCE_SCATTER] = "reduce_scatter",
    [KOLO_COLL_ALL_GATHER] = "all_gather",
    [KOLO_COLL_ALL_TO_ALL] = "all_to_all",
    [KOLO_COLL_BROADCAST] = "broadcast",
    [KOLO_COLL_REDUCE] = "reduce",
    [KOLO_COLL_GATHER] = "gather",
    [KOLO_COLL_SCATTER] = "scatter",
    [KOLO_COLL_BARRIER] = "barrier",
    [KOLO_COLL_REDUCE_SCATTER_V] = "reduce_scatter_v",
    [KOLO_COLL_ALL_GATHER_V] = "all_gather_v",
    [KOLO_COLL_ALL_TO_ALL_V] = "all_to_all_v",
    [KOLO_COLL_SEND] = "send",
    [KOLO_COLL_RECV] = "recv",
};

const char *kolo_coll_name(int coll)
{
    return coll >= 0 && coll < KOLO_NCOLLS ? coll_names[coll] : NULL;
}

int kolo_coll_find(const char *name)
{
    for (int i = 0; name && i < KOLO_NCOLLS; i++) {
        if (strcmp(name, coll_names[i]) == 0)
            return i;
    }
    return -1;
}
