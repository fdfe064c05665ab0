// Paged attention: what one work item and one reduction compute.
//
// An item is computed segment by segment, each chunk by chunk for all its rows; a segment's sums are folded into the total.
// A piece of an item that was cut leaves its sums to a reduction, which folds them with the same function in the same order:
// a token's result has the same bits, however the work was cut and whoever did it.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>

#include "attention_chunk.h"
#include "kernels.h"
#include "kv_memory.h"
#include "octavo_cpu.h"
#include "pool.h"
#include "vec.h"

namespace OCTAVO_ISA {

struct WorkItem {
    int table, first_token, num_tokens, first_position, begin, end, first_partial;
};

// ---- Sums -----------------------------------------------------------------------------------------------------------

inline void clear(float* sums, int num_rows, const OctavoAttentionShape& shape) {
    std::fill_n(sums, num_rows * sums_size(shape), 0.0f);
    for (int row = 0; row < num_rows; row++) sums[row * sums_size(shape)] = NOTHING;
}

// Adds a row's sums over a segment to its total. Nothing and a segment is the segment, bit by bit, and a total and nothing is
// the total: segments of which a row sees nothing do not matter.
inline void fold(float* total, const float* segment, int head_dim, const Scores& how) {
    const float top = std::max(total[0], segment[0]);
    float factors[LANES] = {total[0] - top, segment[0] - top};
    store(factors, exp2(load(factors) * splat(how.to_exponent)));
    total[0] = top;
    for (int i = WEIGHTS; i < VALUES + head_dim; i += LANES)
        store(total + i, fma(load(segment + i), splat(factors[1]), load(total + i) * splat(factors[0])));
}

inline void fold_rows(const AttentionScratch& scratch, int num_rows, const OctavoAttentionShape& shape) {
    const int64_t size = sums_size(shape);
    for (int row = 0; row < num_rows; row++)
        fold(scratch.totals + row * size, scratch.segments + row * size, shape.head_dim, Scores(shape));
}

inline void finish(const float* total, int head_dim, uint16_t* out) {
    const F32 factor = splat(1.0f / sum(load(total + WEIGHTS)));
    for (int i = 0; i < head_dim; i += LANES) store_bf16(out + i, load(total + VALUES + i) * factor);
}

// ---- Work items -----------------------------------------------------------------------------------------------------

inline WorkItem item_at(const AttentionCall& call, int index) {
    WorkItem item;
    memcpy(&item, call.work.items + index * 8, sizeof item);
    return item;
}

// Memory behind `end` belongs to no token yet: whatever is in it must not reach a sum, even times 0.
inline const uint16_t* without_rest(const uint16_t* v, int num_positions, int head_dim, uint16_t* copy) {
    memcpy(copy, v, TILE * head_dim * sizeof(uint16_t));
    for (int position = num_positions; position < TILE; position++)
        for (int i = 0; i < head_dim; i++) copy[(position / 2 * head_dim + i) * 2 + position % 2] = 0;
    return copy;
}

// The K/V that one head of an item reads.
struct Stretch {
    Tiles tiles;
    int begin, end;

    Stretch(const AttentionCall& call, const WorkItem& item, int kv_head)
        : tiles(call.shape, call.kv, call.layer, kv_head,
                call.block_tables + (int64_t)item.table * call.block_table_stride),
          begin(item.begin),
          end(std::min(item.end, item.first_position + item.num_tokens)) {
        if (call.work.window > 0) begin = std::max(begin, item.first_position - call.work.window + 1);
    }

    int first_tile() const { return begin / TILE * TILE; }
};

// The chunk that starts at a tile. Behind the last one comes the first of what this thread will most likely do next.
inline Chunk chunk_at(const Stretch& kv, const Stretch& following, int start, uint16_t* last_v) {
    Chunk chunk;
    chunk.start = start;
    chunk.begin = std::max(start, kv.begin);
    chunk.end = std::min(kv.end, (start / CHUNK + 1) * CHUNK);
    const int tile_size = kv.tiles.pair_size / 2;
    for (int i = 0; start + i * TILE < chunk.end; i++) {
        const int position = start + i * TILE, next = chunk.end + i * TILE, after = following.first_tile() + i * TILE;
        chunk.k[i] = kv.tiles.at(position);
        chunk.v[i] = chunk.k[i] + tile_size;
        chunk.next_k[i] = next < kv.end           ? kv.tiles.at(next)
                          : after < following.end ? following.tiles.at(after)
                                                  : chunk.k[i];
        if (position + TILE > kv.end)
            chunk.v[i] = without_rest(chunk.v[i], kv.end - position, tile_size / TILE, last_v);
    }
    return chunk;
}

// The query vectors of some tokens and a head's group, each tile of rows with its pairs side by side.
inline void load_rows(const AttentionCall& call, const WorkItem& item, int kv_head, const AttentionScratch& scratch) {
    const int head_dim = call.shape.head_dim, num_pairs = head_dim / 2, group = group_size(call.shape);
    const int num_rows = item.num_tokens * group;
    for (int row = 0; row < num_rows; row++) {
        const int token = row / group, head = kv_head * group + row % group;
        const int first_row = row / TILE_ROWS * TILE_ROWS, tile_rows = std::min(TILE_ROWS, num_rows - first_row);
        const uint16_t* q = call.q + (item.first_token + token) * call.q_stride + head * head_dim;
        uint32_t* queries = scratch.queries + first_row * num_pairs + row - first_row;
        for (int pair = 0; pair < num_pairs; pair++) memcpy(queries + pair * tile_rows, q + pair * 2, 4);
        scratch.positions[row] = item.first_position + token;
    }
}

// Divides the totals, or leaves them for a reduction.
inline void store_rows(const AttentionCall& call, const WorkItem& item, int kv_head, const AttentionScratch& scratch) {
    const int64_t group = group_size(call.shape), num_heads = call.shape.num_heads, head_dim = call.shape.head_dim;
    for (int row = 0; row < item.num_tokens * group; row++) {
        const int64_t token = row / group, head = kv_head * group + row % group, size = sums_size(call.shape);
        const float* total = scratch.totals + row * size;
        if (item.first_partial < 0)
            finish(total, head_dim, call.out + ((item.first_token + token) * num_heads + head) * head_dim);
        else
            memcpy(call.partials + ((item.first_partial + token) * num_heads + head) * size, total,
                   size * sizeof(float));
    }
}

// An item of at most max_tokens.
inline void attend_tokens(const AttentionCall& call, const WorkItem& item, int kv_head, const Stretch& following,
                          const AttentionScratch& scratch) {
    const int num_rows = item.num_tokens * group_size(call.shape);
    const Stretch kv(call, item, kv_head);
    load_rows(call, item, kv_head, scratch);
    clear(scratch.totals, num_rows, call.shape);
    float* sums = scratch.totals;  // of the first segment, which needs no folding; then those of the segment
    for (int start = kv.first_tile(); start < kv.end;) {
        const int segment_end = std::min(kv.end, (start / OCTAVO_SEGMENT + 1) * OCTAVO_SEGMENT);
        while (start < segment_end) {
            const Chunk chunk = chunk_at(kv, following, start, scratch.last_v);
            for (int row = 0; row < num_rows; row += TILE_ROWS)
                attend_chunk<>(std::min(TILE_ROWS, num_rows - row), call, chunk, scratch, row, sums);
            start = chunk.end;
        }
        if (sums == scratch.segments) fold_rows(scratch, num_rows, call.shape);
        sums = scratch.segments;
        if (start < kv.end) clear(sums, num_rows, call.shape);
    }
    store_rows(call, item, kv_head, scratch);
}

// One K/V head of one item. `memory` is the thread's own: attention_scratch_bytes, aligned to 64.
inline void attend_item(const AttentionCall& call, int index, int kv_head, void* memory) {
    const bool is_last_head = kv_head + 1 == call.shape.num_kv_heads;
    const int next = is_last_head && index + 1 < call.work.num_items ? index + 1 : index;
    const Stretch following(call, item_at(call, next), is_last_head ? 0 : kv_head + 1);
    const WorkItem item = item_at(call, index);
    const AttentionScratch scratch(call.shape, memory);
    const int num_tokens = item.num_tokens, step = max_tokens(call.shape);
    for (int done = 0; done < num_tokens; done += step) {
        WorkItem part = item;
        part.first_token += done;
        part.first_position += done;
        part.num_tokens = std::min(step, num_tokens - done);
        if (part.first_partial >= 0) part.first_partial += done;
        attend_tokens(call, part, kv_head, following, scratch);
    }
}

// Some heads of one reduction, when all items are done.
inline void fold_partials(const AttentionCall& call, int index, int first_head, int end_head) {
    const int32_t* reduction = call.work.reductions + index * 4;
    const int64_t token = reduction[0], first = reduction[1], num_partials = reduction[2], distance = reduction[3];
    const int64_t num_heads = call.shape.num_heads, head_dim = call.shape.head_dim, size = sums_size(call.shape);
    for (int head = first_head; head < end_head; head++) {
        float* total = call.partials + (first * num_heads + head) * size;
        for (int i = 1; i < num_partials; i++)
            fold(total, total + i * distance * num_heads * size, head_dim, Scores(call.shape));
        finish(total, head_dim, call.out + (token * num_heads + head) * head_dim);
    }
}

// Attention of all tokens of a step in one layer, by all threads of a pool.
inline void attend(octavo::Pool& pool, const OctavoAttentionShape& shape, const uint16_t* kv, int32_t layer,
                   const OctavoWorkList& work, const int32_t* block_tables, int32_t block_table_stride,
                   const uint16_t* q, int64_t q_stride, uint16_t* out) {
    static thread_local octavo::Scratch memory;  // of the caller, for all
    const size_t scratch_bytes = attention_scratch_bytes(shape);
    char* scratch = (char*)memory.reserve(pool.size() * scratch_bytes + partial_floats(shape, work.num_partials) * 4);
    const AttentionCall call{shape,
                             work,
                             kv,
                             layer,
                             block_tables,
                             block_table_stride,
                             q,
                             q_stride,
                             out,
                             (float*)(scratch + pool.size() * scratch_bytes)};
    const int num_kv_heads = shape.num_kv_heads, group = group_size(shape);
    pool.run(pool.size(), [&](octavo::Member& member) {
        member.share((int64_t)work.num_items * num_kv_heads, 1, [&](int64_t unit, int64_t) {
            attend_item(call, unit / num_kv_heads, unit % num_kv_heads, scratch + member.id() * scratch_bytes);
        });
        if (work.num_reductions == 0) return;
        member.share((int64_t)work.num_reductions * num_kv_heads, 1, [&](int64_t unit, int64_t) {
            const int head = unit % num_kv_heads * group;
            fold_partials(call, unit / num_kv_heads, head, head + group);
        });
    });
}

}  // namespace OCTAVO_ISA
