/* reduce_neon.c - the kernels of reduce_kernels.h for aarch64.  Non-temporal stores are a hint
 * there (STNP) that no compiler offers by an intrinsic; `stream` stores plainly. */
#define V_BYTES 16
#define V_KEEP(v) __asm__("" : "+w"(v))
#include "reduce_kernels.h"

#include <arm_neon.h>

INLINE void full_store(char *p, vec v, bool stream)
{
    (void)stream;
    memcpy(p, &v, sizeof(v));
}

INLINE vec half_load(const char *p)
{
    uint16x4_t u;
    memcpy(&u, p, sizeof(u));
    return (vec)vmovl_u16(u);
}

INLINE void half_store(char *p, vec v, bool stream)
{
    (void)stream;
    const uint16x4_t u = vmovn_u32((uint32x4_t)v);
    memcpy(p, &u, sizeof(u));
}

INLINE vhalf quarter_load(const char *p)
{
    uint32_t word;
    memcpy(&word, p, sizeof(word));
    return (vhalf)vget_low_u16(vmovl_u8(vcreate_u8(word)));
}

INLINE void quarter_store(char *p, vec v, bool stream)
{
    (void)stream;
    const uint16x4_t half = vmovn_u32((uint32x4_t)v);
    const uint8x8_t bytes = vmovn_u16(vcombine_u16(half, half));
    memcpy(p, &bytes, 4);
}

INLINE vec f16_widen(vhalf v)
{
    return (vec)vcvt_f32_f16((float16x4_t)v);
}

INLINE vec f16_load(const char *p)
{
    vhalf v;
    memcpy(&v, p, sizeof(v));
    return f16_widen(v);
}

INLINE void f16_store(char *p, vec v, bool stream)
{
    (void)stream;
    const float16x4_t h = vcvt_f16_f32((float32x4_t)v);
    memcpy(p, &h, sizeof(h));
}

INLINE vec select_lanes(vec mask, vec yes, vec no)
{
    return (vec)vbslq_u8((uint8x16_t)mask, (uint8x16_t)yes, (uint8x16_t)no);
}

INLINE vec full_load_part(const char *p, size_t n)
{
    if (n <= 8)
        return (vec)(vu64){word_load_part(p, n)};
    uint64_t low;
    memcpy(&low, p, sizeof(low));
    return (vec)(vu64){low, word_load_part(p + 8, n - 8)};
}

INLINE void stream_fence(void)
{
}

const struct reduce_table reduce_table_neon = REDUCE_TABLE("neon", copy);
