// A tile of query rows and a chunk of K/V: the arithmetic of attention, and the memory that a thread needs for it.
//
// Rows are the query vectors of an item, tokens x heads of one K/V head; all of them share every read of K and V. K/V is
// taken in chunks of 128 positions, of which a tile of a few rows first makes scores [rows][128], then weights (2 to the
// score, relative to the largest so far) in bfloat16, then weighted sums of V. Chunks begin at fixed positions and every sum
// runs over positions in order, whatever rows share a tile, so that a row's sums always have the same bits.
// Shapes: H heads, K kv heads, D head size (a multiple of 16), a pair is two neighbours in one word.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <algorithm>

#include "kv_memory.h"
#include "octavo_cpu.h"
#include "vec.h"

namespace OCTAVO_ISA {

constexpr int CHUNK = 128;         // positions whose weights are made together
constexpr int MAX_ROWS = 96;       // of an item that are computed together, if it has more than one token
constexpr float NOTHING = -1e30f;  // the largest of no scores
constexpr float LOG2_E = 1.44269504f;
// Rows of a tile, and tiles of K or columns of V beside each other, whose sums fill the registers.
constexpr int TILE_ROWS = OCTAVO_REGISTER == 64 ? 6 : 3;
constexpr int num_beside(int num_rows) { return OCTAVO_REGISTER != 64 ? 1 : num_rows <= 3 ? 8 : 4; }

// What is the same for all items of a layer.
struct AttentionCall {
    const OctavoAttentionShape& shape;
    const OctavoWorkList& work;
    const uint16_t* kv;
    int layer;
    const int32_t* block_tables;
    int32_t block_table_stride;
    const uint16_t* q;  // [T][H][D]
    int64_t q_stride;
    uint16_t* out;    // [T][H][D]
    float* partials;  // [partials][H] sums
};

// ---- Memory ---------------------------------------------------------------------------------------------------------

// The sums of a row, one after the other: the largest score (and 15 unused), sums of weights in 16 lanes, weighted V [D].
constexpr int WEIGHTS = LANES, VALUES = 2 * LANES;
inline int64_t sums_size(const OctavoAttentionShape& shape) { return VALUES + shape.head_dim; }

inline int group_size(const OctavoAttentionShape& shape) { return shape.num_heads / shape.num_kv_heads; }
inline int max_tokens(const OctavoAttentionShape& shape) { return std::max(1, MAX_ROWS / group_size(shape)); }

// A thread's own.
struct AttentionScratch {
    AttentionScratch(const OctavoAttentionShape& shape, void* memory) : next_((char*)memory) {
        const size_t num_rows = max_tokens(shape) * group_size(shape);
        queries = take<uint32_t>(num_rows * shape.head_dim / 2);
        positions = take<int32_t>(num_rows);
        segments = take<float>(num_rows * sums_size(shape));
        totals = take<float>(num_rows * sums_size(shape));
        scores = take<float>(TILE_ROWS * CHUNK);
        weights = take<uint16_t>(TILE_ROWS * CHUNK);
        last_v = take<uint16_t>(tile_size(shape));
        num_bytes = next_ - (char*)memory;
    }

    uint32_t* queries;   // of each tile of rows: [D / 2][rows of the tile] pairs
    int32_t* positions;  // [rows]
    float* segments;     // [rows] sums
    float* totals;       // [rows] sums
    float* scores;       // [TILE_ROWS][CHUNK]
    uint16_t* weights;   // [TILE_ROWS][CHUNK]
    uint16_t* last_v;    // a V tile
    size_t num_bytes;

private:
    template <class T>
    T* take(size_t count) {
        T* taken = (T*)next_;
        next_ += (count * sizeof(T) + 63) / 64 * 64;
        return taken;
    }

    char* next_;
};

inline size_t attention_scratch_bytes(const OctavoAttentionShape& shape) {
    return AttentionScratch(shape, nullptr).num_bytes;
}

inline size_t partial_floats(const OctavoAttentionShape& shape, int num_partials) {
    return (size_t)num_partials * shape.num_heads * sums_size(shape);
}

// ---- A tile of rows and a chunk of K/V ------------------------------------------------------------------------------

struct Chunk {
    int start;       // position of the first tile
    int begin, end;  // positions that count
    const uint16_t* k[CHUNK / TILE];
    const uint16_t* v[CHUNK / TILE];
    const uint16_t* next_k[CHUNK / TILE];
};

// The tiles of a chunk that a tile of rows sees anything of.
struct Span {
    int first, end;
};

// How scores become exponents of 2.
struct Scores {
    float cap, cap_input;  // x becomes cap * tanh(x * cap_input); 0: it stays
    float to_exponent;

    explicit Scores(const OctavoAttentionShape& shape)
        : cap(shape.soft_cap),
          cap_input(cap > 0 ? shape.scale / cap : 0.0f),
          to_exponent((cap > 0 ? 1.0f : shape.scale) * LOG2_E) {}
};

// Scores of ROWS rows against WIDTH tiles of K; meanwhile their V, which is needed next, comes nearer.
template <int ROWS, int WIDTH, bool PREFETCH>
inline void score_tiles(const uint32_t* queries, int num_pairs, const Chunk& chunk, int tile, float* scores) {
    F32 sums[ROWS][WIDTH];
    for (auto& row : sums)
        for (F32& sum : row) sum = zero();
    for (int pair = 0; pair < num_pairs; pair++) {
        I32 query[ROWS];
        for (int row = 0; row < ROWS; row++) query[row] = in_register(splat_word(queries + pair * ROWS + row));
        for (int i = 0; i < WIDTH; i++) {
            const I32 keys = in_register(load_words(chunk.k[tile + i] + pair * TILE * 2));
            if (PREFETCH) __builtin_prefetch(chunk.v[tile + i] + pair * TILE * 2);
            for (int row = 0; row < ROWS; row++) sums[row][i] = dot_bf16(sums[row][i], keys, query[row]);
        }
    }
    for (int row = 0; row < ROWS; row++)
        for (int i = 0; i < WIDTH; i++) store(scores + row * CHUNK + (tile + i) * TILE, sums[row][i]);
}

// values = values * decay + weights @ V, for WIDTH times 16 columns; meanwhile the next chunk's K comes nearer.
template <int ROWS, int WIDTH, bool PREFETCH>
inline void add_columns(const uint16_t* weights, const Chunk& chunk, Span span, int head_dim, int column,
                        const float* decay, float* values) {
    const int64_t stride = VALUES + head_dim;
    F32 sums[ROWS][WIDTH];
    for (int row = 0; row < ROWS; row++)
        for (int i = 0; i < WIDTH; i++)
            sums[row][i] = load(values + row * stride + column + i * LANES) * splat(decay[row]);
    for (int tile = span.first; tile < span.end; tile++) {
        for (int pair = 0; pair < TILE / 2; pair++) {
            const int64_t offset = (pair * head_dim + column) * 2;
            I32 weight[ROWS];
            for (int row = 0; row < ROWS; row++)
                weight[row] = in_register(splat_word(weights + row * CHUNK + tile * TILE + pair * 2));
            for (int i = 0; i < WIDTH; i++) {
                const I32 value = in_register(load_words(chunk.v[tile] + offset + i * LANES * 2));
                if (PREFETCH) __builtin_prefetch(chunk.next_k[tile] + offset + i * LANES * 2);
                for (int row = 0; row < ROWS; row++) sums[row][i] = dot_bf16(sums[row][i], value, weight[row]);
            }
        }
    }
    for (int row = 0; row < ROWS; row++)
        for (int i = 0; i < WIDTH; i++) store(values + row * stride + column + i * LANES, sums[row][i]);
}

// Calls f<WIDTH>(i) for i from first to end, WIDTH at a time while so many are left, then half as many.
template <int WIDTH, class Function>
inline void in_widths(int first, int end, Function f) {
    for (; first + WIDTH <= end; first += WIDTH) f.template operator()<WIDTH>(first);
    if constexpr (WIDTH > 1) {
        if (first < end) in_widths<WIDTH / 2>(first, end, f);
    }
}

inline void bend(float* scores, Span span, const Scores& how) {
    for (int i = span.first * TILE; i < span.end * TILE; i += LANES)
        store(scores + i, splat(how.cap) * tanh(load(scores + i) * splat(how.cap_input)));
}

// Leaves the scores from low to before high.
inline void hide_others(float* scores, Span span, int low, int high) {
    for (int tile = span.first; tile < span.end && tile * TILE < low; tile++)
        store(scores + tile * TILE,
              keep_lanes(load(scores + tile * TILE), splat(NOTHING), std::min(low - tile * TILE, TILE), TILE));
    for (int tile = std::max(span.first, high / TILE); tile < span.end; tile++)
        store(scores + tile * TILE,
              keep_lanes(load(scores + tile * TILE), splat(NOTHING), 0, std::max(high - tile * TILE, 0)));
}

inline float largest_score(const float* scores, Span span) {
    F32 top = splat(NOTHING);
    for (int tile = span.first; tile < span.end; tile++) top = max(top, load(scores + tile * TILE));
    return largest(top);
}

// Scores become weights, which are added to sums that have decayed.
inline void weigh(const float* scores, uint16_t* weights, Span span, float top, float decay, const Scores& how,
                  float* sums) {
    const F32 scale = splat(how.to_exponent);
    const F32 offset = splat(top > NOTHING ? -top * how.to_exponent : 0.0f);
    F32 sum = load(sums) * splat(decay);
    for (int tile = span.first; tile < span.end; tile++) {
        const F32 weight = exp2(fma(load(scores + tile * TILE), scale, offset));
        sum = sum + weight;
        store_bf16(weights + tile * TILE, weight);
    }
    store(sums, sum);
}

// Adds what a tile of rows sees of a chunk to their sums over the segment; `sums` are those of all rows.
template <int ROWS, bool PREFETCH>
inline void attend_chunk(const AttentionCall& call, const Chunk& chunk, const AttentionScratch& scratch, int first_row,
                         float* sums) {
    const int head_dim = call.shape.head_dim, num_pairs = head_dim / 2, window = call.work.window;
    const int32_t* positions = scratch.positions + first_row;
    const auto low = [&](int row) {
        return std::max(chunk.begin, window > 0 ? positions[row] - window + 1 : 0) - chunk.start;
    };
    const auto high = [&](int row) { return std::min(chunk.end, positions[row] + 1) - chunk.start; };
    const Span span{low(0) / TILE, (high(ROWS - 1) + TILE - 1) / TILE};
    if (high(ROWS - 1) <= low(0)) return;

    const uint32_t* queries = scratch.queries + first_row * num_pairs;
    in_widths<num_beside(ROWS)>(span.first, span.end, [&]<int WIDTH>(int tile) {
        score_tiles<ROWS, WIDTH, PREFETCH>(queries, num_pairs, chunk, tile, scratch.scores);
    });

    const Scores how(call.shape);
    sums += first_row * sums_size(call.shape);
    float top[ROWS], decay[LANES] = {};
    for (int row = 0; row < ROWS; row++) {
        float* scores = scratch.scores + row * CHUNK;
        if (how.cap > 0) bend(scores, span, how);
        hide_others(scores, span, low(row), high(row));
        float& top_so_far = sums[row * sums_size(call.shape)];
        top[row] = std::max(top_so_far, largest_score(scores, span));
        decay[row] = top_so_far - top[row];
        top_so_far = top[row];
    }
    store(decay, exp2(load(decay) * splat(how.to_exponent)));
    for (int row = 0; row < ROWS; row++)
        weigh(scratch.scores + row * CHUNK, scratch.weights + row * CHUNK, span, top[row], decay[row], how,
              sums + row * sums_size(call.shape) + WEIGHTS);

    in_widths<num_beside(ROWS)>(0, head_dim / LANES, [&]<int WIDTH>(int column) {
        add_columns<ROWS, WIDTH, PREFETCH>(scratch.weights, chunk, span, head_dim, column * LANES, decay,
                                           sums + VALUES);
    });
}

// The same for a number of rows known only here. Of all tiles of rows the first brings nearer what comes next.
template <int ROWS = TILE_ROWS>
inline void attend_chunk(int num_rows, const AttentionCall& call, const Chunk& chunk, const AttentionScratch& scratch,
                         int first_row, float* sums) {
    if constexpr (ROWS > 1) {
        if (num_rows < ROWS) return attend_chunk<ROWS - 1>(num_rows, call, chunk, scratch, first_row, sums);
    }
    if (first_row == 0)
        attend_chunk<ROWS, true>(call, chunk, scratch, first_row, sums);
    else
        attend_chunk<ROWS, false>(call, chunk, scratch, first_row, sums);
}

}  // namespace OCTAVO_ISA
