/* reduce_avx2.c - the kernels of reduce_kernels.h for x86-64 with AVX2, FMA and F16C. */
#define V_BYTES 32
#define V_KEEP(v) __asm__("" : "+x"(v))
#include "reduce_kernels.h"

#include <immintrin.h>

INLINE void full_store(char *p, vec v, bool stream)
{
    if (stream)
        _mm256_stream_si256((__m256i *)p, (__m256i)v);
    else
        _mm256_storeu_si256((__m256i *)p, (__m256i)v);
}

INLINE void store16(char *p, __m128i v, bool stream)
{
    if (stream)
        _mm_stream_si128((__m128i *)p, v);
    else
        _mm_storeu_si128((__m128i *)p, v);
}

INLINE vec half_load(const char *p)
{
    return (vec)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
}

/* Lanes hold at most 16 bits, so that packing with unsigned saturation changes nothing. */
INLINE __m128i pack_half(vec v)
{
    const __m256i u = (__m256i)v;
    return _mm_packus_epi32(_mm256_castsi256_si128(u), _mm256_extracti128_si256(u, 1));
}

INLINE void half_store(char *p, vec v, bool stream)
{
    store16(p, pack_half(v), stream);
}

INLINE vhalf quarter_load(const char *p)
{
    return (vhalf)_mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)p));
}

INLINE void quarter_store(char *p, vec v, bool stream)
{
    const __m128i half = pack_half(v);
    const __m128i packed = _mm_packus_epi16(half, half);
    if (stream)
        _mm_stream_si64((long long *)p, _mm_cvtsi128_si64(packed));
    else
        _mm_storel_epi64((__m128i *)p, packed);
}

INLINE vec f16_widen(vhalf v)
{
    return (vec)_mm256_cvtph_ps((__m128i)v);
}

INLINE vec f16_load(const char *p)
{
    return f16_widen((vhalf)_mm_loadu_si128((const __m128i *)p));
}

INLINE void f16_store(char *p, vec v, bool stream)
{
    store16(p, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), stream);
}

INLINE vec select_lanes(vec mask, vec yes, vec no)
{
    return (vec)_mm256_blendv_epi8((__m256i)no, (__m256i)yes, (__m256i)mask);
}

INLINE vec full_load_part(const char *p, size_t n)
{
    if (n <= 8)
        return (vec)(vu64){word_load_part(p, n)};
    uint64_t low[2], high[2] = {0, 0};
    memcpy(low, p, 8);
    low[1] = word_load_part(p + 8, n < 16 ? n - 8 : 8);
    if (n > 16)
        high[0] = word_load_part(p + 16, n < 24 ? n - 16 : 8);
    if (n > 24)
        high[1] = word_load_part(p + 24, n - 24);
    return (vec)(vu64){low[0], low[1], high[0], high[1]};
}

INLINE void stream_fence(void)
{
    _mm_sfence();
}

const struct reduce_table reduce_table_avx2 = REDUCE_TABLE("avx2", copy);
