// What happens to single rows of activations between the products: norms, rotation, the MLP's activation functions.
//
// A row is float32 [size], size a multiple of 32, and each function reads one row only, in order.
#pragma once

#include <math.h>

#include "linear.h"
#include "vec.h"

namespace OCTAVO_ISA {

inline F32 inverse_rms(const float* values, int size, float epsilon) {
    F32 squares = zero();
    for (int i = 0; i < size; i += LANES) squares = fma(load(values + i), load(values + i), squares);
    return splat(1.0f / sqrtf(sum(squares) / (float)size + epsilon));
}

// values += norm(branch) * weight
inline void add_normed(float* values, const float* branch, const float* weight, int size, float epsilon) {
    const F32 inverse = inverse_rms(branch, size, epsilon);
    for (int i = 0; i < size; i += LANES)
        store(values + i, load(values + i) + load(branch + i) * inverse * load(weight + i));
}

// Row `row` of `to` = round(norm(values) * weight)
inline void round_normed(const Activations& to, int64_t row, const float* values, const float* weight, float epsilon) {
    const F32 inverse = inverse_rms(values, to.num_inputs, epsilon);
    const auto normed = [&](int i) { return load(values + i) * inverse * load(weight + i); };
    for (int i = 0; i < to.num_inputs; i += GROUP) round_group(to, row, i / GROUP, normed(i), normed(i + LANES));
}

inline void round_row_of_bf16(const Activations& to, int64_t row, const uint16_t* values) {
    for (int i = 0; i < to.num_inputs; i += GROUP)
        round_group(to, row, i / GROUP, load_bf16(values + i), load_bf16(values + i + LANES));
}

// A head of q or k in place: RMS norm if the model has one, then its pairs turned by the token's position.
inline void norm_and_rotate(float* head, int head_dim, const float* norm, float epsilon, const float* rotations) {
    const F32 inverse = norm == nullptr ? splat(1.0f) : inverse_rms(head, head_dim, epsilon);
    for (int i = 0; i < head_dim; i += LANES) {
        const F32 values = norm == nullptr ? load(head + i) : load(head + i) * inverse * load(norm + i);
        store(head + i, multiply_complex(values, load(rotations + i)));
    }
}

inline F32 silu(F32 x) { return x * sigmoid(x); }

inline F32 gelu_tanh(F32 x) {  // x / 2 (1 + tanh z) = x sigmoid(2 z)
    const F32 z = x * splat(0.797884561f) * fma(x * x, splat(0.044715f), splat(1.0f));
    return x * sigmoid(z + z);
}

inline F32 with_bias(F32 x, const OctavoWeight& weight, int64_t output) {
    return weight.bias == nullptr ? x : x + load(weight.bias + output);
}

}  // namespace OCTAVO_ISA
