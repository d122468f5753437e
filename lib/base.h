/* base.h - what every file of the library may use: status propagation, error texts, checked sizes,
 * small helpers.  Nothing here knows of plans, transports or communicators. */
#ifndef BASE_H
#define BASE_H

#include "kolo.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

#define TRY(expr)                                                                                  \
    do {                                                                                           \
        const enum kolo_status try_status_ = (expr);                                               \
        if (try_status_ != KOLO_OK)                                                                \
            return try_status_;                                                                    \
    } while (0)

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

/* In a loop that polls. */
#if defined(__x86_64__)
#define cpu_relax() __builtin_ia32_pause()
#else
#define cpu_relax() __asm__ volatile("" ::: "memory")
#endif

enum { ERROR_TEXT_BYTES = 1024 };

/* Write the text of an error into the calling thread's buffer, log it once, and return `status`.
 * Called where the error is born; callers pass the status up silently. */
__attribute__((format(printf, 2, 3), cold)) enum kolo_status fail(enum kolo_status status,
                                                                  const char *format, ...);
/* For an error that was born, and logged, elsewhere: make `text` (NULL: "") the calling thread's
 * text and return `status`. */
enum kolo_status fail_again(enum kolo_status status, const char *text);
/* The calling thread's last text (borrowed; "" when none). */
const char *fail_text(void);
/* Put words in front of the calling thread's last text: "rank 3 on host a: ...". */
__attribute__((format(printf, 1, 2), cold)) void fail_prefix(const char *format, ...);

/* a * b and a + b for sizes; false on overflow, *out then untouched. */
static inline bool size_mul(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

static inline bool size_add(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

static inline size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static inline int min_int(int a, int b)
{
    return a < b ? a : b;
}

static inline int max_int(int a, int b)
{
    return a > b ? a : b;
}

/* CLOCK_MONOTONIC. */
uint64_t now_ns(void);

/* SipHash-2-4 with a 128-bit key: for proofs of the secret, and with a fixed key for hashes of
 * program data. */
uint64_t siphash(const unsigned char key[16], const void *data, size_t bytes);

/* A growing text that never overflows: writes what fits, counts what is needed. */
struct text {
    char *at;
    size_t size;
    size_t used; /* bytes that the whole text needs so far, without terminator */
};
void text_init(struct text *t, char *buffer, size_t size);
__attribute__((format(printf, 2, 3))) void text_add(struct text *t, const char *format, ...);

#endif
