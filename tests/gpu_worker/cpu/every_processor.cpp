// Calls the CPU kernels from C++ alone and compares them with plain loops: for processors that run no Python here.
//
// Prints the instruction set in use and a line per check; ends with 1 at the first difference. Linear layers get whole
// numbers and scales that are powers of two, so that every format has to be exact.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#include "octavo_cpu.h"

namespace {

constexpr int kOutputs = 40, kInputs = 96, kGroup = 32, kRows = 9;
constexpr float kScale = 0.0625f;  // 0x2c00 as fp16

uint32_t random_state = 1;

int random_int(int low, int high) {
    random_state = random_state * 1664525u + 1013904223u;
    return low + static_cast<int>((random_state >> 8) % static_cast<uint32_t>(high - low + 1));
}

void require(bool is_right, const char* what) {
    if (is_right) return;
    printf("wrong: %s\n", what);
    exit(1);
}

uint16_t to_bfloat16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float to_float(uint16_t bfloat16) {
    const uint32_t bits = static_cast<uint32_t>(bfloat16) << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

// A matrix as a file stores it, and the same numbers as floats.
struct Stored {
    int32_t encoding;
    std::vector<uint8_t> bytes;
    std::vector<float> values;  // [outputs][inputs]
};

void put(std::vector<uint8_t>& bytes, const void* from, size_t num_bytes) {
    const uint8_t* first = static_cast<const uint8_t*>(from);
    bytes.insert(bytes.end(), first, first + num_bytes);
}

Stored float_matrix() {
    Stored stored{0, {}, {}};
    for (int i = 0; i < kOutputs * kInputs; ++i) stored.values.push_back(kScale * random_int(-127, 127));
    put(stored.bytes, stored.values.data(), stored.values.size() * 4);
    return stored;
}

// GGUF's Q8_0: a scale and 32 signed bytes.
Stored q8_matrix() {
    Stored stored{8, {}, {}};
    const uint16_t scale = 0x2c00;
    for (int group = 0; group < kOutputs * kInputs / kGroup; ++group) {
        put(stored.bytes, &scale, 2);
        for (int i = 0; i < kGroup; ++i) {
            const int8_t value = static_cast<int8_t>(random_int(-127, 127));
            put(stored.bytes, &value, 1);
            stored.values.push_back(kScale * value);
        }
    }
    return stored;
}

// GGUF's Q4_1: a scale, a minimum and 32 nibbles, the first 16 in the low halves.
Stored q4_matrix() {
    Stored stored{3, {}, {}};
    const uint16_t scale_and_minimum[2] = {0x2c00, 0xb800};  // 0.0625, -0.5
    for (int group = 0; group < kOutputs * kInputs / kGroup; ++group) {
        int nibbles[kGroup];
        for (int& nibble : nibbles) nibble = random_int(0, 15);
        put(stored.bytes, scale_and_minimum, 4);
        for (int i = 0; i < kGroup / 2; ++i) {
            const uint8_t both = static_cast<uint8_t>(nibbles[i] | nibbles[i + kGroup / 2] << 4);
            put(stored.bytes, &both, 1);
        }
        for (int nibble : nibbles) stored.values.push_back(kScale * nibble - 0.5f);
    }
    return stored;
}

void check_linear(OctavoPool* pool, OctavoFormat format, const Stored& stored, const char* name) {
    std::vector<uint8_t> memory(octavo_packed_bytes(format, kOutputs, kInputs) + 64);
    uint8_t* tiles = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
    std::vector<float> bias, x(kRows * kInputs), y(kRows * kOutputs);
    for (int output = 0; output < kOutputs; ++output) bias.push_back(static_cast<float>(output));
    const OctavoWeight weight{format, kOutputs, kInputs, 0, tiles, bias.data()};
    require(octavo_pack(&weight, tiles, stored.encoding, 0, kOutputs, nullptr, stored.bytes.data()) == 0,
            "octavo_pack");
    // The largest of a group is 127, so that rounding it to int8 changes nothing.
    for (int i = 0; i < kRows * kInputs; ++i) x[i] = i % kGroup ? random_int(-127, 127) : 127;
    octavo_linear(pool, &weight, x.data(), kRows, y.data());
    for (int row = 0; row < kRows; ++row) {
        for (int output = 0; output < kOutputs; ++output) {
            double sum = bias[output];
            for (int i = 0; i < kInputs; ++i) sum += double(x[row * kInputs + i]) * stored.values[output * kInputs + i];
            require(y[row * kOutputs + output] == static_cast<float>(sum), name);
        }
    }
    printf("%s: equal\n", name);
}

constexpr int kHeads = 4, kKVHeads = 2, kHeadDim = 64, kTokens = 40, kBlockSize = 16;

float attention_reference(const std::vector<uint16_t>& q, const std::vector<uint16_t>& k,
                          const std::vector<uint16_t>& v, int token, int head, int element) {
    const int kv_head = head / (kHeads / kKVHeads);
    double sum = 0, weighted = 0;
    for (int position = 0; position <= token; ++position) {
        double product = 0;
        for (int i = 0; i < kHeadDim; ++i) {
            product += double(to_float(q[(token * kHeads + head) * kHeadDim + i])) *
                       to_float(k[(position * kKVHeads + kv_head) * kHeadDim + i]);
        }
        const double weight = exp(product * 0.125);
        sum += weight;
        weighted += weight * to_float(v[(position * kKVHeads + kv_head) * kHeadDim + element]);
    }
    return static_cast<float>(weighted / sum);
}

// One prompt in three blocks that lie in another order than its tokens.
void check_attention(OctavoPool* pool) {
    const OctavoAttentionShape shape{kHeads, kKVHeads, kHeadDim, kBlockSize, 1, 0.125f, 0};
    const int32_t block_table[3] = {2, 0, 1};
    std::vector<uint16_t> kv(3 * 2 * kKVHeads * kBlockSize * kHeadDim + 32);
    uint16_t* blocks = kv.data() + (64 - reinterpret_cast<uintptr_t>(kv.data()) % 64) % 64 / 2;
    std::vector<uint16_t> q(kTokens * kHeads * kHeadDim), k(kTokens * kKVHeads * kHeadDim), v(k.size()), out(q.size());
    for (std::vector<uint16_t>* tensor : {&q, &k, &v})
        for (uint16_t& value : *tensor) value = to_bfloat16(random_int(-100, 100) / 100.0f);
    std::vector<int32_t> slots;
    for (int token = 0; token < kTokens; ++token)
        slots.push_back(block_table[token / kBlockSize] * kBlockSize + token % kBlockSize);
    octavo_write_kv(&shape, blocks, 0, kTokens, slots.data(), k.data(), v.data(), kKVHeads * kHeadDim);
    const int32_t item[8] = {0, 0, kTokens, 0, 0, kTokens, -1, 0};
    const OctavoWorkList work{item, nullptr, 1, 0, 0, 0};
    octavo_attend(pool, &shape, blocks, 0, &work, block_table, 3, q.data(), kHeads * kHeadDim, out.data());
    for (int token = 0; token < kTokens; ++token)
        for (int head = 0; head < kHeads; ++head)
            for (int element = 0; element < kHeadDim; ++element) {
                const float expected = attention_reference(q, k, v, token, head, element);
                const float got = to_float(out[(token * kHeads + head) * kHeadDim + element]);
                require(fabsf(got - expected) < 0.01f, "attention");
            }
    printf("attention: within 0.01\n");
}

}  // namespace

int main() {
    printf("isa: %s\n", octavo_isa());
    OctavoPool* pool = octavo_pool_new(2);
    check_linear(pool, OCTAVO_BF16, float_matrix(), "bf16");
    check_linear(pool, OCTAVO_Q8, q8_matrix(), "q8");
    check_linear(pool, OCTAVO_Q4, q4_matrix(), "q4");
    check_attention(pool);
    octavo_pool_free(pool);
    return 0;
}
