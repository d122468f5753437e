/* compare_floor_kernels.c - copies and float sums of k sources into m targets in one pass, with
 * stores that go through the caches or past them. */
#include "compare_floor.h"

typedef float vec __attribute__((vector_size(32)));
typedef float loose_vec __attribute__((vector_size(32), aligned(4), may_alias));

#if defined(__AVX__)
#include <immintrin.h>
static inline void store_past(float *to, vec x)
{
    _mm256_stream_ps(to, (__m256)x);
}
static inline void fence_past(void)
{
    _mm_sfence();
}
#else
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
        vec a = sum_at(in, nin, i), b = sum_at(in, nin, i + 8);
        for (int j = 0; j < nout; j++) {
            if (is_nt) {
                store_past(out[j] + i, a);
                store_past(out[j] + i + 8, b);
            } else {
                *(loose_vec *)(out[j] + i) = a;
                *(loose_vec *)(out[j] + i + 8) = b;
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
