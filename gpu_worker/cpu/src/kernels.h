// The table of functions that kernels.cpp exports, once per instruction set; octavo_cpu.cpp chooses one of them.
#pragma once

#include <stddef.h>

#include <new>

#include "octavo_cpu.h"
#include "pool.h"

struct OctavoPool {
    explicit OctavoPool(int num_threads) : pool(num_threads) {}
    octavo::Pool pool;
};

namespace octavo {

// Memory that keeps its address while it is used and grows between steps; 64-byte aligned, not initialised.
class Scratch {
public:
    Scratch() = default;
    ~Scratch() { release(); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    void* reserve(size_t num_bytes) {
        if (num_bytes > num_bytes_) {
            release();
            data_ = ::operator new(num_bytes, std::align_val_t(64));
            num_bytes_ = num_bytes;
        }
        return data_;
    }

private:
    void release() {
        if (data_ != nullptr) ::operator delete(data_, std::align_val_t(64));
        data_ = nullptr;
        num_bytes_ = 0;
    }

    void* data_ = nullptr;
    size_t num_bytes_ = 0;
};

}  // namespace octavo

// A model, its K/V memory, scratch memory, threads.
struct OctavoRunner {
    OctavoRunner(const OctavoModel& model, uint16_t* kv, int num_threads) : model(model), kv(kv), pool(num_threads) {}
    const OctavoModel model;
    uint16_t* const kv;
    octavo::Pool pool;
    octavo::Scratch scratch;
};

namespace octavo {

struct Kernels {
    void (*linear)(Pool&, const OctavoWeight&, const float* x, int32_t num_rows, float* y);
    void (*unpack_row)(const OctavoWeight&, int32_t row, float* values);
    void (*write_kv)(const OctavoAttentionShape&, uint16_t* kv, int32_t layer, int32_t num_tokens, const int32_t* slots,
                     const uint16_t* k, const uint16_t* v, int64_t stride);
    void (*attend)(Pool&, const OctavoAttentionShape&, const uint16_t* kv, int32_t layer, const OctavoWorkList&,
                   const int32_t* block_tables, int32_t block_table_stride, const uint16_t* q, int64_t q_stride,
                   uint16_t* out);
    void (*step)(OctavoRunner&, const OctavoStep&, OctavoStepReport&);
};

extern const Kernels kernels_generic;
#ifdef OCTAVO_HAS_AVX2
extern const Kernels kernels_avx2;
#endif
#ifdef OCTAVO_HAS_AVX512
extern const Kernels kernels_avx512;
#endif

}  // namespace octavo
