// Sixteen lanes in one register: AVX-512 with its dot products of bfloat16 and of bytes. Included by vec.h only.
#pragma once

#include <immintrin.h>
#include <stdint.h>

namespace OCTAVO_ISA {

typedef float F32 __attribute__((vector_size(64)));
typedef int32_t I32 __attribute__((vector_size(64)));

inline F32 splat(float value) { return _mm512_set1_ps(value); }
inline I32 splat(int32_t value) { return (I32)_mm512_set1_epi32(value); }
inline F32 load(const float* from) { return _mm512_loadu_ps(from); }
inline void store(float* to, F32 x) { _mm512_storeu_ps(to, x); }
inline I32 load_words(const void* from) { return (I32)_mm512_loadu_si512(from); }

inline F32 fma(F32 a, F32 b, F32 c) { return _mm512_fmadd_ps(a, b, c); }  // a * b + c
inline F32 max(F32 a, F32 b) { return _mm512_max_ps(a, b); }
inline F32 min(F32 a, F32 b) { return _mm512_min_ps(a, b); }
inline F32 abs(F32 x) { return _mm512_abs_ps(x); }
inline F32 to_float(I32 x) { return _mm512_cvtepi32_ps((__m512i)x); }
inline I32 to_nearest(F32 x) { return (I32)_mm512_cvtps_epi32(x); }
inline float sum(F32 x) { return _mm512_reduce_add_ps(x); }
inline int32_t sum(I32 x) { return _mm512_reduce_add_epi32((__m512i)x); }
inline float largest(F32 x) { return _mm512_reduce_max_ps(x); }

inline F32 load_bf16(const uint16_t* from) {
    const __m256i halves = _mm256_loadu_si256((const __m256i*)from);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
inline void store_bf16(uint16_t* to, F32 x) { _mm256_storeu_si256((__m256i*)to, (__m256i)_mm512_cvtneps_pbh(x)); }
inline F32 load_fp16(const uint16_t* from) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from)); }
inline void store_int8(int8_t* to, I32 x) { _mm_storeu_si128((__m128i*)to, _mm512_cvtepi32_epi8((__m512i)x)); }

// Lanes first to end - 1 of x, the others of `other`.
inline F32 keep_lanes(F32 x, F32 other, int first, int end) {
    return _mm512_mask_mov_ps(other, (__mmask16)(((1u << end) - 1) & ~((1u << first) - 1)), x);
}
// Neighbours as complex numbers (real, imaginary): x * y.
inline F32 multiply_complex(F32 x, F32 y) {
    const F32 swapped = _mm512_permute_ps(x, 0xb1);
    return _mm512_fmaddsub_ps(x, _mm512_moveldup_ps(y), swapped * (F32)_mm512_movehdup_ps(y));
}
inline F32 scale_by_power_of_two(F32 x, F32 exponent) { return _mm512_scalef_ps(x, exponent); }
inline F32 round_to_integer(F32 x) { return _mm512_roundscale_ps(x, 0); }

// Each lane: a + the products of its two pairs of bfloat16.
inline F32 dot_bf16(F32 a, I32 x, I32 y) { return _mm512_dpbf16_ps(a, (__m512bh)x, (__m512bh)y); }
// Each lane: a + the products of its four unsigned bytes, all below 16, with four signed bytes.
inline I32 dot_u4(I32 a, I32 small, I32 bytes) {
    return (I32)_mm512_dpbusd_epi32((__m512i)a, (__m512i)small, (__m512i)bytes);
}
// Each lane: a + the products of (four unsigned bytes - 128) with four signed bytes. Where the machine multiplies unsigned
// bytes (DOT_Q8_IS_OFFSET) the 128s are left to the caller, who starts from -128 * the sum of all signed bytes.
constexpr bool DOT_Q8_IS_OFFSET = true;
inline I32 dot_q8(I32 a, I32 offset, I32 bytes) {
    return (I32)_mm512_dpbusd_epi32((__m512i)a, (__m512i)offset, (__m512i)bytes);
}

}  // namespace OCTAVO_ISA
