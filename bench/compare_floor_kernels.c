/* compare_floor_kernels.c - copies and float sums of k sources into m targets in one pass, with
 * stores that go through the caches or past them. */
#include "compare_floor.h"

/* A vector is a cache line where the machine has such registers; its store past the caches then
 * fills the line at once. */
#if defined(__AVX512F__)
#include <immintrin.h>
enum { VEC = 16 };
typedef float vec __attribute__((vector_size(64)));
typedef float loose_vec __attribute__((vector_size(64), aligned(4), may_alias));
static inline void store_past(float *to, vec x)
{
    _mm512_stream_ps(to, (__m512)x);
}
static inline void fence_past(void)
{
    _mm_sfence();
}
#elif defined(__AVX__)
#include <immintrin.h>
enum { VEC = 8 };
typedef float vec __attribute__((vector_size(32)));
typedef float loose_vec __attribute__((vector_size(32), aligned(4), may_alias));
static inline void store_past(float *to, vec x)
{
    _mm256_stream_ps(to, (__m256)x);
}
static inline void fence_past(void)
{
    _mm_sfence();
}
#else
enum { VEC = 4 };
typedef float vec __attribute__((vector_size(16)));
typedef float loose_vec __attribute__((vector_size(16), aligned(4), may_alias));
static inline void store_past(float *to, vec x)
{
    *(loose_vec *)to = x;
}
static inline void fence_past(void)
{
}
#endif

#define ALWAYS static inline __attribute__((always_inline))

ALWAYS vec sum_at(float **in, int nin, size_t i)
{
    vec s = *(const loose_vec *)(in[0] + i);
    for (int k = 1; k < nin; k++)
        s += *(const loose_vec *)(in[k] + i);
    return s;
}

ALWAYS void sum_one(float **out, int nout, float **in, int nin, size_t i)
{
    float s = in[0][i];
    for (int k = 1; k < nin; k++)
        s += in[k][i];
    for (int j = 0; j < nout; j++)
        out[j][i] = s;
}

/* A whole line at a time; stores past the caches want aligned targets. */
ALWAYS void sum_lines(float **out, int nout, float **in, int nin, size_t n, int is_nt)
{
    size_t i = 0;
    for (; is_nt && i < n && ((uintptr_t)(out[0] + i) & 63); i++)
        sum_one(out, nout, in, nin, i);
    for (; i + 16 <= n; i += 16) {
        vec sum[16 / VEC];
        for (size_t v = 0; v < 16 / VEC; v++)
            sum[v] = sum_at(in, nin, i + v * VEC);
        for (int j = 0; j < nout; j++) {
            for (size_t v = 0; v < 16 / VEC; v++) {
                float *to = out[j] + i + v * VEC;
                if (is_nt)
                    store_past(to, sum[v]);
                else
                    *(loose_vec *)to = sum[v];
            }
        }
    }
    for (; i < n; i++)
        sum_one(out, nout, in, nin, i);
}

ALWAYS void sum_any(float **out, int nout, float **in, int nin, size_t n, int is_nt)
{
    if (nin == 2 && nout == 1)
        sum_lines(out, 1, in, 2, n, is_nt);
    else if (nin == 2)
        sum_lines(out, nout, in, 2, n, is_nt);
    else if (nin == 4)
        sum_lines(out, nout, in, 4, n, is_nt);
    else if (nin == 8)
        sum_lines(out, nout, in, 8, n, is_nt);
    else
        sum_lines(out, nout, in, nin, n, is_nt);
}

void floor_sum(float **out, int nout, float **in, int nin, size_t n, int is_nt)
{
    if (!is_nt) {
        sum_any(out, nout, in, nin, n, 0);
        return;
    }
    sum_any(out, nout, in, nin, n, 1);
    fence_past();
}

void floor_copy(float *to, const float *from, size_t n, int is_nt)
{
    float *in = (float *)(uintptr_t)from;
    if (!is_nt) {
        memcpy(to, from, n * sizeof(float));
        return;
    }
    sum_lines(&to, 1, &in, 1, n, 1);
    fence_past();
}
