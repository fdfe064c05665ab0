// Sixteen lanes in 2 registers (AVX2) or 4 (SSE2, NEON), by GCC's vector extensions. Only the products of bytes, and what
// a machine has a word of its own for, are written with intrinsics. Included by vec.h only.
#pragma once

#include <stdint.h>
#include <string.h>

#if OCTAVO_REGISTER == 32
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace OCTAVO_ISA {

constexpr int REGISTERS = 64 / OCTAVO_REGISTER;
constexpr int PER_REGISTER = OCTAVO_REGISTER / 4;
typedef float Floats __attribute__((vector_size(OCTAVO_REGISTER)));
typedef int32_t Words __attribute__((vector_size(OCTAVO_REGISTER)));

template <class Register>
struct Lanes {
    Register part[REGISTERS];
    auto operator[](int lane) const { return part[lane / PER_REGISTER][lane % PER_REGISTER]; }
};
typedef Lanes<Floats> F32;
typedef Lanes<Words> I32;

template <class Register, class Function>
inline Lanes<Register> each(Function function) {
    Lanes<Register> result;
#pragma GCC unroll 4
    for (int i = 0; i < REGISTERS; i++) result.part[i] = function(i);
    return result;
}

template <class R>
inline Lanes<R> operator+(Lanes<R> a, Lanes<R> b) {
    return each<R>([&](int i) { return a.part[i] + b.part[i]; });
}
template <class R>
inline Lanes<R> operator-(Lanes<R> a, Lanes<R> b) {
    return each<R>([&](int i) { return a.part[i] - b.part[i]; });
}
template <class R>
inline Lanes<R> operator*(Lanes<R> a, Lanes<R> b) {
    return each<R>([&](int i) { return a.part[i] * b.part[i]; });
}
inline F32 operator/(F32 a, F32 b) {
    return each<Floats>([&](int i) { return a.part[i] / b.part[i]; });
}
inline I32 operator&(I32 a, int32_t mask) {
    return each<Words>([&](int i) { return a.part[i] & mask; });
}
inline I32 operator>>(I32 a, int bits) {
    return each<Words>([&](int i) { return a.part[i] >> bits; });
}

inline F32 splat(float value) {
    return each<Floats>([&](int) { return Floats{} + value; });
}
inline I32 splat(int32_t value) {
    return each<Words>([&](int) { return Words{} + value; });
}
template <class Register>
inline Register load_part(const void* from, int part) {
    Register x;
    memcpy(&x, (const char*)from + part * OCTAVO_REGISTER, sizeof x);
    return x;
}
inline F32 load(const float* from) {
    return each<Floats>([&](int i) { return load_part<Floats>(from, i); });
}
inline I32 load_words(const void* from) {
    return each<Words>([&](int i) { return load_part<Words>(from, i); });
}
inline void store(float* to, F32 x) {
    for (int i = 0; i < REGISTERS; i++) memcpy((char*)to + i * OCTAVO_REGISTER, &x.part[i], OCTAVO_REGISTER);
}

inline Floats fused(Floats a, Floats b, Floats c) {
#if OCTAVO_REGISTER == 32
    return _mm256_fmadd_ps(a, b, c);
#elif defined(__ARM_NEON)
    return vfmaq_f32(c, a, b);
#else
    return a * b + c;
#endif
}
inline F32 fma(F32 a, F32 b, F32 c) {  // a * b + c
    return each<Floats>([&](int i) { return fused(a.part[i], b.part[i], c.part[i]); });
}
inline F32 max(F32 a, F32 b) {
    return each<Floats>([&](int i) { return a.part[i] > b.part[i] ? a.part[i] : b.part[i]; });
}
inline F32 min(F32 a, F32 b) {
    return each<Floats>([&](int i) { return a.part[i] < b.part[i] ? a.part[i] : b.part[i]; });
}
inline F32 abs(F32 x) {
    return each<Floats>([&](int i) { return (Floats)((Words)x.part[i] & 0x7fffffff); });
}
inline F32 to_float(I32 x) {
    return each<Floats>([&](int i) { return __builtin_convertvector(x.part[i], Floats); });
}
// To the nearest integer, ties to even, of values below 2^22: adding 1.5 * 2^23 leaves no bits behind the point.
inline F32 round_to_integer(F32 x) {
    return each<Floats>([&](int i) { return (x.part[i] + 12582912.0f) - 12582912.0f; });
}
inline I32 to_nearest(F32 x) {
    const F32 rounded = round_to_integer(x);
    return each<Words>([&](int i) { return __builtin_convertvector(rounded.part[i], Words); });
}
template <class R>
inline auto sum(Lanes<R> x) {
    R total = x.part[0];
    for (int i = 1; i < REGISTERS; i++) total = total + x.part[i];
    auto result = total[0];
    for (int i = 1; i < PER_REGISTER; i++) result += total[i];
    return result;
}
inline float largest(F32 x) {
    float result = x.part[0][0];
    for (int i = 0; i < LANES; i++) {
        result = x[i] > result ? x[i] : result;
    }
    return result;
}

typedef uint16_t Halves __attribute__((vector_size(OCTAVO_REGISTER / 2)));
typedef int8_t Bytes __attribute__((vector_size(OCTAVO_REGISTER / 4)));

inline Halves load_halves(const uint16_t* from, int part) {
    Halves halves;
    memcpy(&halves, from + part * PER_REGISTER, sizeof halves);
    return halves;
}
inline F32 load_bf16(const uint16_t* from) {
    return each<Floats>([&](int i) { return (Floats)(__builtin_convertvector(load_halves(from, i), Words) << 16); });
}
inline void store_bf16(uint16_t* to, F32 x) {
    for (int i = 0; i < REGISTERS; i++) {  // to nearest, ties to even
        const Words bits = (Words)x.part[i];
        const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
        const Words quiet = x.part[i] == x.part[i] ? rounded : (bits >> 16) | 64;
        const Halves halves = __builtin_convertvector(quiet, Halves);
        memcpy(to + i * PER_REGISTER, &halves, sizeof halves);
    }
}
inline F32 load_fp16(const uint16_t* from) {
    return each<Floats>([&](int i) {
#if OCTAVO_REGISTER == 32
        return (Floats)_mm256_cvtph_ps((__m128i)load_halves(from, i));
#else
        // The exponent counts from -15 there and from -127 here; the product also repairs subnormal numbers.
        const Words bits = __builtin_convertvector(load_halves(from, i), Words);
        const Floats magnitude = (Floats)((bits & 0x7fff) << 13) * 0x1p112f;
        return (Floats)((Words)magnitude | ((bits & 0x8000) << 16));
#endif
    });
}
inline void store_int8(int8_t* to, I32 x) {
    for (int i = 0; i < REGISTERS; i++) {
        const Bytes bytes = __builtin_convertvector(x.part[i], Bytes);
        memcpy(to + i * PER_REGISTER, &bytes, sizeof bytes);
    }
}

// Lanes first to end - 1 of x, the others of `other`.
inline F32 keep_lanes(F32 x, F32 other, int first, int end) {
    return each<Floats>([&](int i) {
        Words lane;
        for (int j = 0; j < PER_REGISTER; j++) lane[j] = i * PER_REGISTER + j;
        return (lane >= first) & (lane < end) ? x.part[i] : other.part[i];
    });
}
// Neighbours as complex numbers (real, imaginary): x * y.
inline F32 multiply_complex(F32 x, F32 y) {
    return each<Floats>([&](int i) {
        Words swap, even, odd, sign;
        for (int j = 0; j < PER_REGISTER; j++) {
            swap[j] = j ^ 1;
            even[j] = j & ~1;
            odd[j] = j | 1;
            sign[j] = j & 1 ? 0 : INT32_MIN;
        }
        const Floats crossed = __builtin_shuffle(x.part[i], swap) * __builtin_shuffle(y.part[i], odd);
        return fused(x.part[i], __builtin_shuffle(y.part[i], even), (Floats)((Words)crossed ^ sign));
    });
}
// x * 2^exponent; 0 for exponents below -126, infinity from 128.
inline F32 scale_by_power_of_two(F32 x, F32 exponent) {
    const F32 bounded = max(min(exponent, splat(128.0f)), splat(-127.0f));
    return each<Floats>([&](int i) {
        const Words power = (__builtin_convertvector(bounded.part[i], Words) + 127) << 23;
        return x.part[i] * (Floats)power;
    });
}

// Each lane: a + the products of its two pairs of bfloat16.
inline F32 dot_bf16(F32 a, I32 x, I32 y) {
    return each<Floats>([&](int i) {
        const Words u = x.part[i], v = y.part[i];
        const Floats first = fused((Floats)(u << 16), (Floats)(v << 16), a.part[i]);
        return fused((Floats)(u & -65536), (Floats)(v & -65536), first);
    });
}

#if OCTAVO_REGISTER == 32
inline Words dot_bytes(Words a, __m256i small, __m256i bytes) {
    const __m256i pairs = _mm256_maddubs_epi16(small, bytes);
    return a + (Words)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
inline Words dot_small(Words a, Words small, Words bytes) { return dot_bytes(a, (__m256i)small, (__m256i)bytes); }
inline Words dot_signed(Words a, Words x, Words bytes) {  // |x| <= 128 and |bytes| <= 127: two products fit 16 bits
    return dot_bytes(a, _mm256_abs_epi8((__m256i)x), _mm256_sign_epi8((__m256i)bytes, (__m256i)x));
}
#elif defined(__SSE2__)
inline Words dot_signed(Words a, Words x, Words bytes) {
    const __m128i x_odd = _mm_srai_epi16((__m128i)x, 8), bytes_odd = _mm_srai_epi16((__m128i)bytes, 8);
    const __m128i x_even = _mm_srai_epi16(_mm_slli_epi16((__m128i)x, 8), 8);
    const __m128i bytes_even = _mm_srai_epi16(_mm_slli_epi16((__m128i)bytes, 8), 8);
    return a + (Words)_mm_madd_epi16(x_even, bytes_even) + (Words)_mm_madd_epi16(x_odd, bytes_odd);
}
inline Words dot_small(Words a, Words small, Words bytes) { return dot_signed(a, small, bytes); }
#else
inline Words dot_signed(Words a, Words x, Words bytes) {
#if defined(__ARM_FEATURE_DOTPROD)
    return (Words)vdotq_s32((int32x4_t)a, (int8x16_t)x, (int8x16_t)bytes);
#else
    for (int shift = 0; shift < 32; shift += 8) a = a + ((x << (24 - shift)) >> 24) * ((bytes << (24 - shift)) >> 24);
    return a;
#endif
}
inline Words dot_small(Words a, Words small, Words bytes) { return dot_signed(a, small, bytes); }
#endif

// Each lane: a + the products of its four unsigned bytes, all below 16, with four signed bytes.
inline I32 dot_u4(I32 a, I32 small, I32 bytes) {
    return each<Words>([&](int i) { return dot_small(a.part[i], small.part[i], bytes.part[i]); });
}
// Each lane: a + the products of (four unsigned bytes - 128) with four signed bytes.
constexpr bool DOT_Q8_IS_OFFSET = false;
inline I32 dot_q8(I32 a, I32 offset, I32 bytes) {
    return each<Words>(
        [&](int i) { return dot_signed(a.part[i], offset.part[i] ^ (int32_t)0x80808080, bytes.part[i]); });
}

}  // namespace OCTAVO_ISA
