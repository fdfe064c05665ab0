// Rows of activations as packed weights want them: bfloat16, or int8 with a scale for every 32 inputs.
//
// With Q8 and Q4 weights a group of 32 inputs is rounded to scale * int8, scale = largest magnitude / 127, as llama.cpp
// does. Which rows are rounded together changes nothing.
#pragma once

#include "octavo_cpu.h"
#include "vec.h"

namespace OCTAVO_ISA {

constexpr int GROUP = 32;  // inputs that share a scale

// What rounding a group of activations to int8 leaves to remember.
struct GroupScale {
    float scale;
    float scaled_sum;  // scale * the sum of the int8
    int32_t offset;    // -128 * that sum: what the unsigned bytes of Q8 have too much
};

// Rows of activations as weights want them. Either kind may be missing if no weight that they meet is of its format.
struct Activations {
    int32_t num_inputs;
    uint16_t* bf16;      // [rows][num_inputs], or null
    int8_t* int8;        // [rows][num_inputs], or null
    GroupScale* scales;  // [rows][num_inputs / 32] of int8
};

// What OCTAVO_BF16 and the other formats need; `kinds` of a model is the union over its weights.
enum ActivationKind { AS_BF16 = 1, AS_INT8 = 2 };
inline int kind_for(int32_t format) { return format == OCTAVO_BF16 ? AS_BF16 : AS_INT8; }

inline int64_t activation_bytes(int kinds, int64_t num_rows, int64_t num_inputs) {
    const int64_t bf16 = kinds & AS_BF16 ? num_rows * num_inputs * 2 : 0;
    const int64_t int8 =
        kinds & AS_INT8 ? num_rows * (num_inputs + num_inputs / GROUP * (int64_t)sizeof(GroupScale)) : 0;
    return (bf16 + int8 + 3 * 64) / 64 * 64;
}

// Lays out activations in `activation_bytes` bytes of 64-byte aligned memory.
inline Activations activations_in(uint8_t* memory, int kinds, int64_t num_rows, int64_t num_inputs) {
    Activations x{(int32_t)num_inputs, nullptr, nullptr, nullptr};
    if (kinds & AS_BF16) {
        x.bf16 = (uint16_t*)memory;
        memory += num_rows * num_inputs * 2;
    }
    if (kinds & AS_INT8) {
        x.int8 = (int8_t*)memory;
        x.scales = (GroupScale*)(memory + num_rows * num_inputs);
    }
    return x;
}

// Rounds 32 neighbouring inputs of a row, in the kinds that `x` has.
inline void round_group(const Activations& x, int64_t row, int group, F32 low, F32 high) {
    const int64_t at = row * x.num_inputs + group * GROUP;
    if (x.bf16) {
        store_bf16(x.bf16 + at, low);
        store_bf16(x.bf16 + at + LANES, high);
    }
    if (!x.int8) return;
    const float amax = largest(max(abs(low), abs(high)));
    const float inverse = amax > 0 ? 127.0f / amax : 0.0f;
    const I32 a = to_nearest(low * splat(inverse)), b = to_nearest(high * splat(inverse));
    store_int8(x.int8 + at, a);
    store_int8(x.int8 + at + LANES, b);
    const int32_t total = sum(a + b);
    const float scale = amax / 127.0f;
    x.scales[row * (x.num_inputs / GROUP) + group] = {scale, scale * (float)total, -128 * total};
}

inline void round_row(const Activations& x, int64_t row, const float* values) {
    for (int i = 0; i < x.num_inputs; i += GROUP)
        round_group(x, row, i / GROUP, load(values + i), load(values + i + LANES));
}

}  // namespace OCTAVO_ISA
