// The C interface: chooses the best table of kernels that this machine runs, and passes every call on to it.
#include "octavo_cpu.h"

#include <string.h>

#include <atomic>

#include "kernels.h"

namespace octavo {
namespace {

bool runs_generic() { return true; }

#ifdef OCTAVO_HAS_AVX2
bool runs_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
#endif

#ifdef OCTAVO_HAS_AVX512
bool runs_avx512() {
    return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
}
#endif

struct Isa {
    const char* name;
    const Kernels* kernels;
    bool (*runs_here)();
};

// Best first.
const Isa kIsas[] = {
#ifdef OCTAVO_HAS_AVX512
    {"avx512", &kernels_avx512, runs_avx512},
#endif
#ifdef OCTAVO_HAS_AVX2
    {"avx2", &kernels_avx2, runs_avx2},
#endif
    {"generic", &kernels_generic, runs_generic},
};

const Isa* best_isa() {
#if defined(__x86_64__)
    __builtin_cpu_init();
#endif
    for (const Isa& isa : kIsas)
        if (isa.runs_here()) return &isa;
    return nullptr;  // never: every machine runs the last
}

std::atomic<const Isa*>& chosen_isa() {
    static std::atomic<const Isa*> chosen{best_isa()};
    return chosen;
}

const Kernels& kernels() { return *chosen_isa().load(std::memory_order_relaxed)->kernels; }

}  // namespace
}  // namespace octavo

using octavo::kernels;

int32_t octavo_abi(void) { return OCTAVO_ABI; }

const char* octavo_isa(void) { return octavo::chosen_isa().load()->name; }

int32_t octavo_use_isa(const char* name) {
    for (const octavo::Isa& isa : octavo::kIsas) {
        if (strcmp(isa.name, name) == 0 && isa.runs_here()) {
            octavo::chosen_isa().store(&isa);
            return 0;
        }
    }
    return -1;
}

OctavoPool* octavo_pool_new(int32_t num_threads) { return new OctavoPool(num_threads); }

void octavo_pool_free(OctavoPool* pool) { delete pool; }

void octavo_linear(OctavoPool* pool, const OctavoWeight* weight, const float* x, int32_t num_rows, float* y) {
    kernels().linear(pool->pool, *weight, x, num_rows, y);
}

void octavo_unpack_row(const OctavoWeight* weight, int32_t row, float* values) {
    kernels().unpack_row(*weight, row, values);
}

void octavo_write_kv(const OctavoAttentionShape* shape, uint16_t* kv, int32_t layer, int32_t num_tokens,
                     const int32_t* slots, const uint16_t* k, const uint16_t* v, int64_t stride) {
    kernels().write_kv(*shape, kv, layer, num_tokens, slots, k, v, stride);
}

void octavo_attend(OctavoPool* pool, const OctavoAttentionShape* shape, const uint16_t* kv, int32_t layer,
                   const OctavoWorkList* work, const int32_t* block_tables, int32_t block_table_stride,
                   const uint16_t* q, int64_t q_stride, uint16_t* out) {
    kernels().attend(pool->pool, *shape, kv, layer, *work, block_tables, block_table_stride, q, q_stride, out);
}

OctavoRunner* octavo_runner_new(const OctavoModel* model, uint16_t* kv, int32_t num_threads) {
    return new OctavoRunner(*model, kv, num_threads);
}

void octavo_runner_free(OctavoRunner* runner) { delete runner; }

void octavo_step(OctavoRunner* runner, const OctavoStep* step, OctavoStepReport* report) {
    const int64_t started_ns = octavo::now_ns();
    kernels().step(*runner, *step, *report);
    report->busy_ns = octavo::now_ns() - started_ns;
}
