// What this machine can do at most: reads of memory, and products of bfloat16 and of bytes, by several threads. Compiled by
// machine_limits.py for the machine it runs on, as no shipped code is.
#include <stdint.h>

#include "pool.h"
#include "vec.h"

using namespace OCTAVO_ISA;

namespace {

constexpr int NUM_SUMS = 24;  // enough to hide the latency of a product
volatile float sink;

template <class Sum, class Product>
double products(octavo::Pool& pool, int64_t num_rounds, Product product) {
    const int64_t started_ns = octavo::now_ns();
    pool.run(pool.size(), [&](octavo::Member&) {
        const I32 words = splat((int32_t)0x01010101);
        Sum sums[NUM_SUMS];  // that differ, or the compiler would keep one for all
        for (int i = 0; i < NUM_SUMS; i++) sums[i] = product(Sum{}, splat((int32_t)0x3f800000 + i * 0x10000));
        for (int64_t round = 0; round < num_rounds; round++) {
#pragma GCC unroll 24
            for (int i = 0; i < NUM_SUMS; i++) sums[i] = product(sums[i], words);
        }
        float total = 0;
        for (const Sum& one : sums) total += (float)sum(one);
        sink = total;
    });
    return (double)num_rounds * NUM_SUMS * pool.size() / (octavo::now_ns() - started_ns);  // a ns
}

}  // namespace

extern "C" {

octavo::Pool* limits_pool(int num_threads) { return new octavo::Pool(num_threads); }

// Seconds to read memory once, each thread a part of it.
double limits_read(octavo::Pool* pool, const char* memory, int64_t num_bytes) {
    const int64_t started_ns = octavo::now_ns(), part = num_bytes / pool->size() / 512 * 512;
    pool->run(pool->size(), [&](octavo::Member& member) {
        const char* from = memory + member.id() * part;
        I32 sums[8] = {};
        for (int64_t i = 0; i < part; i += 512)
            for (int j = 0; j < 8; j++) sums[j] = sums[j] + load_words(from + i + j * 64);
        I32 total = zero_words();
        for (const I32& one : sums) total = total + one;
        sink = (float)sum(total);
    });
    return (octavo::now_ns() - started_ns) * 1e-9;
}

// Operations a ns (a product and a sum are two) of pairs of bfloat16, and of quads of bytes.
double limits_bf16(octavo::Pool* pool, int64_t num_rounds) {
    return 4 * LANES * products<F32>(*pool, num_rounds, [](F32 sum, I32 words) { return dot_bf16(sum, words, words); });
}
double limits_int8(octavo::Pool* pool, int64_t num_rounds) {
    return 8 * LANES * products<I32>(*pool, num_rounds, [](I32 sum, I32 words) { return dot_q8(sum, words, words); });
}
}
