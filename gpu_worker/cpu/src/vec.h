// Sixteen lanes at once: the few operations on vectors that the kernels are written in.
//
// An F32 holds 16 floats, an I32 16 words of 32 bits: integers, pairs of bfloat16, or quads of bytes. With AVX-512 each is
// one register, written with intrinsics where the language has no word for it; elsewhere it is 2 (AVX2) or 4 (SSE2, NEON)
// registers of GCC's vector extensions, and only the dot products know which.
// The including file is compiled once per instruction set, each in a namespace of its own (OCTAVO_ISA), and with
// -ffp-contract=off: a sum is fused with a product exactly where `fma` says so, so that all shapes of a loop agree.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__AVX512BF16__) && defined(__AVX512VNNI__)
#define OCTAVO_REGISTER 64
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define OCTAVO_REGISTER 32
#else
#define OCTAVO_REGISTER 16
#endif

#ifndef OCTAVO_ISA
#error "compile with -DOCTAVO_ISA=avx512, avx2 or generic"
#endif

namespace OCTAVO_ISA {

constexpr int LANES = 16;

}  // namespace OCTAVO_ISA

#if OCTAVO_REGISTER == 64
#include "vec_avx512.h"
#else
#include "vec_parts.h"
#endif

namespace OCTAVO_ISA {

inline void prefetch(const void* address) { __builtin_prefetch(address, 0, 3); }
inline F32 zero() { return splat(0.0f); }
inline I32 zero_words() { return splat((int32_t)0); }

// One word of memory (a pair of bfloat16, a quad of bytes) in all lanes.
inline I32 splat_word(const void* from) {
    int32_t word;
    memcpy(&word, from, 4);
#if OCTAVO_REGISTER == 32
    Words words = Words{} + word;
    asm("" : "+x"(words));  // else the compiler shifts and masks the word before it spreads it: two ways where one does
    return {{words, words}};
#else
    return splat(word);
#endif
}

// e^x with a relative error of about 3e-7; exactly 0 below -110.
inline F32 exp(F32 x) {
    const F32 bounded = max(min(x, splat(128.0f)), splat(-200.0f));
    const F32 n = round_to_integer(bounded * splat(1.44269504f));
    const F32 r = fma(n, splat(-0.693147181f), bounded);
    F32 p = splat(8.29022942e-3f);  // minimax polynomial of e^r for |r| <= ln(2) / 2
    p = fma(p, r, splat(4.18983902e-2f));
    p = fma(p, r, splat(1.66676401e-1f));
    p = fma(p, r, splat(4.99991461e-1f));
    p = fma(p, r, splat(9.99999705e-1f));
    p = fma(p, r, splat(1.0f));
    return scale_by_power_of_two(p, n);
}
inline F32 sigmoid(F32 x) { return splat(1.0f) / (splat(1.0f) + exp(splat(0.0f) - x)); }
inline F32 tanh(F32 x) { return splat(2.0f) * sigmoid(x + x) - splat(1.0f); }

// 2^x for x <= 0 with a relative error of 3e-6; exactly 1 at 0, and 0 below -150.
inline F32 exp2(F32 x) {
    const F32 bounded = OCTAVO_REGISTER == 64 ? x : max(x, splat(-200.0f));
    const F32 n = round_to_integer(bounded);
    const F32 r = bounded - n;
    F32 p = splat(9.582853178e-3f);  // minimax polynomial of 2^r for |r| <= 1/2
    p = fma(p, r, splat(5.590642504e-2f));
    p = fma(p, r, splat(2.402409861e-1f));
    p = fma(p, r, splat(6.931241934e-1f));
    p = fma(p, r, splat(1.0f));
    return scale_by_power_of_two(p, n);
}

// x, loaded here and once; without it compilers put the load into every instruction that uses x.
inline I32 in_register(I32 x) {
#if OCTAVO_REGISTER == 64
    asm("" : "+v"(x));
#endif
    return x;
}

inline float bf16_to_float(uint16_t value) {
    const uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, 4);
    return result;
}

}  // namespace OCTAVO_ISA
