// The scratch memory of one step, carved out of one allocation: shared by the team, and of each member.
//
// Shapes: T tokens, E hidden size, H query heads, D head size, I intermediate size.
#pragma once

#include "attention.h"
#include "kernels.h"
#include "linear.h"

namespace OCTAVO_ISA {

constexpr int64_t FEW_ROWS = 4;    // so few rows every member norms for itself: that takes less than a barrier
constexpr int64_t HEAD_ROWS = 48;  // rows of a head between its product and the K/V memory

// Hands out pieces of one allocation; from null it only counts.
class Carver {
public:
    explicit Carver(void* memory) : memory_(static_cast<uint8_t*>(memory)) {}
    size_t num_bytes() const { return num_bytes_; }

    uint8_t* bytes(int64_t count) {
        uint8_t* piece = memory_ == nullptr ? nullptr : memory_ + num_bytes_;
        num_bytes_ += static_cast<size_t>(count + 63) / 64 * 64;
        return piece;
    }
    template <class Value>
    Value* array(int64_t count) {
        return reinterpret_cast<Value*>(bytes(count * static_cast<int64_t>(sizeof(Value))));
    }

private:
    uint8_t* memory_;
    size_t num_bytes_ = 0;
};

// What a member has for itself.
struct OwnMemory {
    uint8_t* inputs;     // activations of FEW_ROWS rows
    float* head;         // [HEAD_ROWS][D]
    uint16_t* kv;        // [D] on its way into the K/V memory
    uint8_t* attention;  // what attend_item needs
};

struct StepMemory {
    float* x;            // [T][E] residual stream
    float* branch;       // [T][E] what attention or the MLP gives, if that is normed before it is added
    uint16_t* queries;   // [T][H][D]
    uint16_t* attended;  // [T][H][D]
    uint8_t* inputs;     // activations [T][max(E, H * D)] of a product
    uint8_t* hidden;     // activations [T][I]
    float* partials;     // of attention
    OwnMemory own[octavo::kMaxThreads];
};

// The kinds of activations that any weight of the model wants.
inline int kinds_of(const OctavoModel& model, int32_t num_layers) {
    int kinds = kind_for(model.head.format);
    for (int32_t i = 0; i < num_layers; ++i) {
        const OctavoLayer& of = model.layers[i];
        for (const OctavoWeight* weight : {&of.query, &of.key, &of.value, &of.output, &of.gate, &of.up, &of.down})
            kinds |= kind_for(weight->format);
    }
    return kinds;
}

inline StepMemory carve(Carver& carver, const OctavoModel& model, const OctavoStep& step, int kinds, int num_threads) {
    const OctavoAttentionShape& shape = model.attention;
    const int64_t tokens = step.num_tokens, size = model.hidden_size, head_dim = shape.head_dim;
    const int64_t queries = shape.num_heads * head_dim, widest = size > queries ? size : queries;
    int32_t num_partials = 0;
    for (int32_t i = 0; i < shape.num_layers; ++i) {
        const OctavoWorkList& work = step.work_lists[model.layers[i].work_list];
        num_partials = work.num_partials > num_partials ? work.num_partials : num_partials;
    }
    StepMemory memory;
    memory.x = carver.array<float>(tokens * size);
    memory.branch = carver.array<float>(tokens * size);
    memory.queries = carver.array<uint16_t>(tokens * queries);
    memory.attended = carver.array<uint16_t>(tokens * queries);
    memory.inputs = carver.bytes(activation_bytes(kinds, tokens, widest));
    memory.hidden = carver.bytes(activation_bytes(kinds, tokens, model.intermediate_size));
    memory.partials = carver.array<float>(partial_floats(shape, num_partials));
    for (int id = 0; id < num_threads; ++id) {
        memory.own[id].inputs = carver.bytes(activation_bytes(kinds, FEW_ROWS, widest));
        memory.own[id].head = carver.array<float>(HEAD_ROWS * head_dim);
        memory.own[id].kv = carver.array<uint16_t>(head_dim);
        memory.own[id].attention = carver.bytes(static_cast<int64_t>(attention_scratch_bytes(shape)));
    }
    return memory;
}

}  // namespace OCTAVO_ISA
