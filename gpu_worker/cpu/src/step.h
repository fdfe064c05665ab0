// One forward pass of a whole model in one parallel region: embedding, layers, logits of the tokens that are sampled.
//
// Shapes: T tokens, E hidden size, H query heads, K kv heads, D head size, I intermediate size, V vocabulary, S sampled
// tokens. The residual stream x [T][E] and the norms are float32; between the products, rows are rounded as the weights
// want them (linear.h). Work is cut along tiles of outputs and blocks of rows, and never along inputs, so no result
// depends on the number of threads or on the other rows.
#pragma once

#include "attention.h"
#include "kernels.h"
#include "linear.h"
#include "rows.h"
#include "step_memory.h"
#include "vec.h"

namespace OCTAVO_ISA {

using octavo::Member;

constexpr int64_t ROW_BLOCK = 96;  // most rows of a piece of work
constexpr int PANEL = 4;           // tiles that are multiplied side by side

// What one member of the team does; all members go through the same phases.
class Pass {
public:
    Pass(const OctavoModel& model, const OctavoStep& step, uint16_t* kv, const StepMemory& memory, Member& member)
        : model_(model), shape_(model.attention), step_(step), kv_(kv), memory_(memory), member_(member) {}

    void run() {
        embed();
        const float* post_norm = nullptr;  // of the branch that is still to be added
        for (int32_t index = 0; index < shape_.num_layers; ++index) {
            const OctavoLayer& layer = model_.layers[index];
            project_heads(index, normed(layer.input_norm, post_norm, kinds_of_heads(layer)));
            attend(index);
            project(layer.output, rounded(memory_.attended, layer.output), layer.post_attention_norm != nullptr);
            const int kinds = kind_for(layer.gate.format);
            multiply_gates(layer, normed(layer.mlp_norm, layer.post_attention_norm, kinds));
            const int64_t width = model_.intermediate_size;
            project(layer.down, activations_in(memory_.hidden, kind_for(layer.down.format), step_.num_tokens, width),
                    layer.post_mlp_norm != nullptr);
            post_norm = layer.post_mlp_norm;
        }
        if (step_.num_sampled > 0) write_logits(post_norm);
    }

private:
    static int kinds_of_heads(const OctavoLayer& layer) {
        return kind_for(layer.query.format) | kind_for(layer.key.format) | kind_for(layer.value.format);
    }

    float* x(int64_t row) const { return memory_.x + row * model_.hidden_size; }
    float* branch(int64_t row) const { return memory_.branch + row * model_.hidden_size; }

    void embed() {
        const F32 scale = splat(model_.embedding_scale);
        member_.share(step_.num_tokens, 1, [&](int64_t row, int64_t) {
            unpack_row(model_.embedding, step_.token_ids[row], x(row));
            for (int i = 0; i < model_.hidden_size; i += LANES) store(x(row) + i, load(x(row) + i) * scale);
        });
    }

    // Calls round_one(activations, row) for rows 0 to num_rows - 1: everywhere for few of them, else once in the team.
    template <class RoundOne>
    Activations round_rows(int64_t num_rows, int64_t width, int kinds, bool is_shared, RoundOne round_one) {
        if (num_rows <= FEW_ROWS && !is_shared) {
            const Activations own = activations_in(memory_.own[member_.id()].inputs, kinds, FEW_ROWS, width);
            for (int64_t row = 0; row < num_rows; ++row) round_one(own, row);
            return own;
        }
        const Activations all = activations_in(memory_.inputs, kinds, num_rows, width);
        member_.share(num_rows, 1, [&](int64_t row, int64_t) { round_one(all, row); });
        return all;
    }

    // The normed residual stream, after the branch that has a norm of its own (`post_norm`) was added to it.
    Activations normed(const float* norm, const float* post_norm, int kinds) {
        const int size = model_.hidden_size;
        return round_rows(step_.num_tokens, size, kinds, post_norm != nullptr, [&](const Activations& to, int64_t row) {
            if (post_norm != nullptr) add_normed(x(row), branch(row), post_norm, size, model_.norm_epsilon);
            round_normed(to, row, x(row), norm, model_.norm_epsilon);
        });
    }

    // Rows of bfloat16 as `weight` wants them.
    Activations rounded(uint16_t* rows, const OctavoWeight& weight) {
        const int64_t width = weight.num_inputs;
        if (weight.format == OCTAVO_BF16) {
            Activations same = activations_in(memory_.inputs, 0, step_.num_tokens, width);
            same.bf16 = rows;
            return same;
        }
        return round_rows(step_.num_tokens, width, kind_for(weight.format), false,
                          [&](const Activations& to, int64_t row) { round_row_of_bf16(to, row, rows + row * width); });
    }

    // Calls panel(first_tile, end_tile, first_row, end_row), in the team, until every tile has met every row.
    template <class Panel>
    void share_panels(int64_t num_tiles, int64_t tiles_per_panel, int64_t num_rows, Panel panel) {
        const int64_t num_blocks = (num_rows + ROW_BLOCK - 1) / ROW_BLOCK;
        if (num_blocks == 1) {  // any cut of the tiles: a member's last panel may be narrow
            member_.share(num_tiles, tiles_per_panel,
                          [&](int64_t first, int64_t end) { panel(first, end, 0, num_rows); });
            return;
        }
        const int64_t num_panels = (num_tiles + tiles_per_panel - 1) / tiles_per_panel;
        member_.share(num_panels * num_blocks, 1, [&](int64_t index, int64_t) {
            const int64_t first = index / num_blocks * tiles_per_panel, block = index % num_blocks;
            const int64_t end = first + tiles_per_panel < num_tiles ? first + tiles_per_panel : num_tiles;
            panel(first, end, num_rows * block / num_blocks, num_rows * (block + 1) / num_blocks);
        });
    }

    // emit(row, sums) of tiles first_tile to end_tile - 1, at most PANEL of them.
    template <class Emit>
    static void multiply_panel(const OctavoWeight& weight, int64_t first_tile, int64_t end_tile,
                               const Activations& inputs, int64_t first_row, int64_t end_row, Emit emit) {
        const int64_t size = tile_bytes(weight.format, weight.num_inputs), num_rows = end_row - first_row;
        const uint8_t* at = weight.tiles + first_tile * size;
        const auto run = [&](const auto&... tile) {
            multiply<sizeof...(tile)>({tile...}, weight.format, inputs, first_row, num_rows, emit);
        };
        switch (end_tile - first_tile) {
            case 1:
                return run(at);
            case 2:
                return run(at, at + size);
            case 3:
                return run(at, at + size, at + 2 * size);
            default:
                return run(at, at + size, at + 2 * size, at + 3 * size);
        }
    }

    // Queries, keys and values, head by head: product, norm, rotation, and on to the K/V memory.
    void project_heads(int32_t index, const Activations& inputs) {
        const int64_t num_heads = shape_.num_heads + 2 * shape_.num_kv_heads;
        share_panels(num_heads, 1, step_.num_tokens, [&](int64_t head, int64_t, int64_t first_row, int64_t end_row) {
            for (int64_t row = first_row; row < end_row; row += HEAD_ROWS)
                project_head(index, head, inputs, row, row + HEAD_ROWS < end_row ? row + HEAD_ROWS : end_row);
        });
    }

    void project_head(int32_t index, int64_t head, const Activations& inputs, int64_t first_row, int64_t end_row) {
        const OctavoLayer& layer = model_.layers[index];
        const int64_t first_key = shape_.num_heads, first_value = first_key + shape_.num_kv_heads;
        const OctavoWeight& weight = head < first_key ? layer.query : head < first_value ? layer.key : layer.value;
        const int64_t of_weight = head < first_key ? head : head < first_value ? head - first_key : head - first_value;
        const int head_dim = shape_.head_dim, num_tiles = head_dim / LANES;
        float* values = memory_.own[member_.id()].head;
        for (int tile = 0; tile < num_tiles; tile += PANEL) {
            const int64_t first = of_weight * num_tiles + tile,
                          count = num_tiles - tile < PANEL ? num_tiles - tile : PANEL;
            multiply_panel(weight, first, first + count, inputs, first_row, end_row, [&](int64_t row, const F32* sums) {
                float* to = values + (row - first_row) * head_dim + tile * LANES;
                for (int64_t t = 0; t < count; ++t)
                    store(to + t * LANES, with_bias(sums[t], weight, (first + t) * LANES));
            });
        }
        for (int64_t row = first_row; row < end_row; ++row)
            keep_head(index, head, row, values + (row - first_row) * head_dim);
    }

    // A finished head of a token: into the queries, or into its slot.
    void keep_head(int32_t index, int64_t head, int64_t row, float* values) {
        const OctavoLayer& layer = model_.layers[index];
        const int head_dim = shape_.head_dim;
        const int64_t first_key = shape_.num_heads, first_value = first_key + shape_.num_kv_heads;
        const float* rotations = layer.rotations + static_cast<int64_t>(step_.positions[row]) * head_dim;
        if (head < first_value) {
            const float* norm = head < first_key ? layer.query_norm : layer.key_norm;
            norm_and_rotate(values, head_dim, norm, model_.norm_epsilon, rotations);
        }
        const bool is_query = head < first_key;
        uint16_t* to =
            is_query ? memory_.queries + (row * shape_.num_heads + head) * head_dim : memory_.own[member_.id()].kv;
        for (int i = 0; i < head_dim; i += LANES) store_bf16(to + i, load(values + i));
        if (is_query || step_.slots[row] < 0) return;
        if (head < first_value)
            store_k(shape_, kv_, index, step_.slots[row], static_cast<int>(head - first_key), to);
        else
            store_v(shape_, kv_, index, step_.slots[row], static_cast<int>(head - first_value), to);
    }

    void attend(int32_t index) {
        const OctavoWorkList& work = step_.work_lists[model_.layers[index].work_list];
        const int32_t num_heads = shape_.num_heads, num_kv_heads = shape_.num_kv_heads;
        const AttentionCall call{.shape = shape_,
                                 .work = work,
                                 .kv = kv_,
                                 .layer = index,
                                 .block_tables = step_.block_tables,
                                 .block_table_stride = step_.block_table_stride,
                                 .q = memory_.queries,
                                 .q_stride = static_cast<int64_t>(num_heads) * shape_.head_dim,
                                 .out = memory_.attended,
                                 .partials = memory_.partials};
        void* scratch = memory_.own[member_.id()].attention;
        member_.share(static_cast<int64_t>(work.num_items) * num_kv_heads, 1, [&](int64_t unit, int64_t) {
            attend_item(call, static_cast<int>(unit / num_kv_heads), static_cast<int>(unit % num_kv_heads), scratch);
        });
        if (work.num_reductions == 0) return;
        member_.share(static_cast<int64_t>(work.num_reductions) * num_heads, 1, [&](int64_t unit, int64_t) {
            const int head = static_cast<int>(unit % num_heads);
            fold_partials(call, static_cast<int>(unit / num_heads), head, head + 1);
        });
    }

    // The product, added to the residual stream, or put aside if a norm comes first.
    void project(const OctavoWeight& weight, const Activations& inputs, bool has_post_norm) {
        const int64_t size = model_.hidden_size;
        const int64_t num_tiles = size / LANES;
        share_panels(
            num_tiles, PANEL, step_.num_tokens, [&](int64_t first, int64_t end, int64_t first_row, int64_t end_row) {
                multiply_panel(weight, first, end, inputs, first_row, end_row, [&](int64_t row, const F32* sums) {
                    float* to = (has_post_norm ? memory_.branch : memory_.x) + row * size + first * LANES;
                    for (int64_t t = 0; t < end - first; ++t) {
                        const F32 sum = with_bias(sums[t], weight, (first + t) * LANES);
                        store(to + t * LANES, has_post_norm ? sum : load(to + t * LANES) + sum);
                    }
                });
            });
    }

    // activation(gate) * up, rounded as `down` wants it: two tiles of each side by side are one group of its inputs.
    void multiply_gates(const OctavoLayer& layer, const Activations& inputs) {
        const OctavoWeight &gate = layer.gate, &up = layer.up;
        const int64_t size = tile_bytes(gate.format, gate.num_inputs), num_tokens = step_.num_tokens;
        const Activations to =
            activations_in(memory_.hidden, kind_for(layer.down.format), num_tokens, model_.intermediate_size);
        const bool is_silu = model_.activation == OCTAVO_SILU;
        share_panels(
            model_.intermediate_size / GROUP, 1, num_tokens, [&](int64_t group, int64_t, int64_t first, int64_t end) {
                const uint8_t* gates = gate.tiles + 2 * group * size;
                const uint8_t* ups = up.tiles + 2 * group * size;
                const auto emit = [&](int64_t row, const F32* sums) {
                    F32 hidden[2];
                    for (int i = 0; i < 2; ++i) {
                        const int64_t output = group * GROUP + i * LANES;
                        const F32 gated = with_bias(sums[i], gate, output);
                        hidden[i] = (is_silu ? silu(gated) : gelu_tanh(gated)) * with_bias(sums[2 + i], up, output);
                    }
                    round_group(to, row, static_cast<int>(group), hidden[0], hidden[1]);
                };
                multiply<4>({gates, gates + size, ups, ups + size}, gate.format, inputs, first, end - first, emit);
            });
    }

    void write_logits(const float* post_norm) {
        const int size = model_.hidden_size;
        if (post_norm != nullptr) {
            member_.share(step_.num_tokens, 1, [&](int64_t row, int64_t) {
                add_normed(x(row), branch(row), post_norm, size, model_.norm_epsilon);
            });
        }
        const Activations inputs = round_rows(
            step_.num_sampled, size, kind_for(model_.head.format), false, [&](const Activations& to, int64_t row) {
                round_normed(to, row, x(step_.sampled_tokens[row]), model_.final_norm, model_.norm_epsilon);
            });
        const int64_t num_tiles = (model_.vocab_size + LANES - 1) / LANES;
        share_panels(
            num_tiles, PANEL, step_.num_sampled, [&](int64_t first, int64_t end, int64_t first_row, int64_t end_row) {
                multiply_panel(model_.head, first, end, inputs, first_row, end_row, [&](int64_t row, const F32* sums) {
                    for (int64_t t = 0; t < end - first; ++t) write_logits_of_tile(row, first + t, sums[t]);
                });
            });
    }

    void write_logits_of_tile(int64_t row, int64_t tile, F32 logits) {
        const float cap = model_.logit_soft_cap;
        if (cap > 0) logits = splat(cap) * tanh(logits * splat(1.0f / cap));
        const int64_t output = tile * LANES, left = model_.vocab_size - output;
        float* to = step_.logits + row * model_.vocab_size + output;
        if (left >= LANES) return store(to, logits);
        float lanes[LANES];
        store(lanes, logits);
        for (int64_t i = 0; i < left; ++i) to[i] = lanes[i];
    }

    const OctavoModel& model_;
    const OctavoAttentionShape& shape_;
    const OctavoStep& step_;
    uint16_t* const kv_;
    const StepMemory& memory_;
    Member& member_;
};

inline void step(OctavoRunner& runner, const OctavoStep& step, OctavoStepReport& report) {
    const OctavoModel& model = runner.model;
    const int kinds = kinds_of(model, model.attention.num_layers);
    const int num_threads = runner.pool.team_of(step.num_threads);
    Carver counted(nullptr);
    carve(counted, model, step, kinds, num_threads);
    Carver carver(runner.scratch.reserve(counted.num_bytes()));
    const StepMemory memory = carve(carver, model, step, kinds, num_threads);
    report.wait_ns =
        runner.pool.run(num_threads, [&](Member& member) { Pass(model, step, runner.kv, memory, member).run(); });
}

}  // namespace OCTAVO_ISA
