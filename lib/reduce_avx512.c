/* reduce_avx512.c - the kernels of reduce_kernels.h for x86-64 with AVX-512 F, BW, VL and DQ. */
#define V_BYTES 64
#define V_KEEP(v) __asm__("" : "+v"(v))
#include "reduce_kernels.h"

#include <immintrin.h>

INLINE void full_store(char *p, vec v, bool stream)
{
    if (stream)
        _mm512_stream_si512((void *)p, (__m512i)v);
    else
        _mm512_storeu_si512(p, (__m512i)v);
}

INLINE void store32(char *p, __m256i v, bool stream)
{
    if (stream)
        _mm256_stream_si256((__m256i *)p, v);
    else
        _mm256_storeu_si256((__m256i *)p, v);
}

INLINE vec half_load(const char *p)
{
    return (vec)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
}

INLINE void half_store(char *p, vec v, bool stream)
{
    store32(p, _mm512_cvtepi32_epi16((__m512i)v), stream);
}

INLINE vhalf quarter_load(const char *p)
{
    return (vhalf)_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
}

INLINE void quarter_store(char *p, vec v, bool stream)
{
    const __m128i packed = _mm512_cvtepi32_epi8((__m512i)v);
    if (stream)
        _mm_stream_si128((__m128i *)p, packed);
    else
        _mm_storeu_si128((__m128i *)p, packed);
}

INLINE vec f16_widen(vhalf v)
{
    return (vec)_mm512_cvtph_ps((__m256i)v);
}

INLINE vec f16_load(const char *p)
{
    return f16_widen((vhalf)_mm256_loadu_si256((const __m256i *)p));
}

INLINE void f16_store(char *p, vec v, bool stream)
{
    store32(p, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), stream);
}

INLINE vec select_lanes(vec mask, vec yes, vec no)
{
    return (vec)_mm512_ternarylogic_epi64((__m512i)mask, (__m512i)yes, (__m512i)no, 0xca);
}

INLINE vec full_load_part(const char *p, size_t n)
{
    return (vec)_mm512_maskz_loadu_epi8(((__mmask64)1 << n) - 1, p);
}

INLINE void stream_fence(void)
{
    _mm_sfence();
}

const struct reduce_table reduce_table_avx512 = REDUCE_TABLE("avx512", copy);
