// Products of rows of activations with tiles of packed weights (octavo_cpu.h, "Packed weights").
//
// One accumulator per (row, output), over the inputs in order, whatever is computed beside it: a row's result depends on
// nothing but the row and the weight. What changes with the number of rows is how many accumulators a loop keeps in
// registers. The first rows meet tile after tile, so that memory is read in one stream, a tile ahead; the other rows find
// the tiles in the cache and meet several at once, so that each load serves many products.
#pragma once

#include <memory>
#include <new>

#include "activations.h"
#include "octavo_cpu.h"
#include "pool.h"
#include "vec.h"

namespace OCTAVO_ISA {

// ---- Formats: adding the products of one group of 32 inputs, ROWS rows x TILES tiles --------------------------------
// `groups[t]` is the group in tile t. If the weights STREAM from memory, each load asks for what lies `ahead` bytes on.

struct Bf16Format {
    static constexpr int GROUP_BYTES = 1024;  // [16 pairs][16 outputs][2]

    template <int TILES, int ROWS, bool STREAM>
    static void add_group(F32 (&sums)[ROWS][TILES], const uint8_t* const (&groups)[TILES], int64_t ahead,
                          const Activations& x, int64_t row, int64_t group) {
        const uint16_t* values = x.bf16 + row * x.num_inputs + group * GROUP;
        for (int pair = 0; pair < GROUP / 2; pair++) {
            I32 weights[TILES];
            for (int t = 0; t < TILES; t++) {
                weights[t] = load_words(groups[t] + pair * 64);
                if (STREAM) prefetch(groups[t] + pair * 64 + ahead);
            }
            for (int r = 0; r < ROWS; r++) {
                const I32 value = splat_word(values + (int64_t)r * x.num_inputs + pair * 2);
                for (int t = 0; t < TILES; t++) sums[r][t] = dot_bf16(sums[r][t], weights[t], value);
            }
        }
    }
};

struct Q8Format {
    static constexpr int GROUP_BYTES = 544;  // 16 scales, [8 quads][16 outputs][4]

    template <int TILES, int ROWS, bool STREAM>
    static void add_group(F32 (&sums)[ROWS][TILES], const uint8_t* const (&groups)[TILES], int64_t ahead,
                          const Activations& x, int64_t row, int64_t group) {
        const int8_t* values = x.int8 + row * x.num_inputs + group * GROUP;
        const int64_t num_groups = x.num_inputs / GROUP;
        const GroupScale* scales = x.scales + row * num_groups + group;
        I32 dots[ROWS][TILES];
        for (int r = 0; r < ROWS; r++)
            for (int t = 0; t < TILES; t++)
                dots[r][t] = splat(DOT_Q8_IS_OFFSET ? scales[r * num_groups].offset : (int32_t)0);
        for (int quad = 0; quad < GROUP / 4; quad++) {
            I32 weights[TILES];
            for (int t = 0; t < TILES; t++) {
                weights[t] = load_words(groups[t] + 32 + quad * 64);
                if (STREAM) prefetch(groups[t] + 32 + quad * 64 + ahead);
            }
            for (int r = 0; r < ROWS; r++) {
                const I32 value = splat_word(values + (int64_t)r * x.num_inputs + quad * 4);
                for (int t = 0; t < TILES; t++) dots[r][t] = dot_q8(dots[r][t], weights[t], value);
            }
        }
        for (int t = 0; t < TILES; t++) {
            const F32 scale = load_fp16((const uint16_t*)groups[t]);
            for (int r = 0; r < ROWS; r++)
                sums[r][t] = fma(to_float(dots[r][t]) * splat(scales[r * num_groups].scale), scale, sums[r][t]);
        }
    }
};

struct Q4Format {
    static constexpr int GROUP_BYTES = 320;  // 16 scales, 16 minima, [4 quads][16 outputs][4], two inputs in a byte

    template <int TILES, int ROWS, bool STREAM>
    static void add_group(F32 (&sums)[ROWS][TILES], const uint8_t* const (&groups)[TILES], int64_t ahead,
                          const Activations& x, int64_t row, int64_t group) {
        const int8_t* values = x.int8 + row * x.num_inputs + group * GROUP;
        const int64_t num_groups = x.num_inputs / GROUP;
        const GroupScale* scales = x.scales + row * num_groups + group;
        I32 dots[ROWS][TILES];
        for (int r = 0; r < ROWS; r++)
            for (int t = 0; t < TILES; t++) dots[r][t] = zero_words();
        for (int quad = 0; quad < GROUP / 8; quad++) {
            I32 low[TILES], high[TILES];
            for (int t = 0; t < TILES; t++) {
                const I32 both = load_words(groups[t] + 64 + quad * 64);
                if (STREAM) prefetch(groups[t] + 64 + quad * 64 + ahead);
                low[t] = both & 0x0f0f0f0f;
                high[t] = (both >> 4) & 0x0f0f0f0f;
            }
            for (int r = 0; r < ROWS; r++) {
                const int8_t* at = values + (int64_t)r * x.num_inputs + quad * 4;
                const I32 first = splat_word(at), second = splat_word(at + GROUP / 2);
                for (int t = 0; t < TILES; t++) dots[r][t] = dot_u4(dot_u4(dots[r][t], low[t], first), high[t], second);
            }
        }
        for (int t = 0; t < TILES; t++) {
            if (STREAM) prefetch(groups[t] + ahead);
            const F32 scale = load_fp16((const uint16_t*)groups[t]);
            const F32 minimum = load_fp16((const uint16_t*)(groups[t] + 32));
            for (int r = 0; r < ROWS; r++) {
                const GroupScale& of = scales[r * num_groups];
                const F32 sum = fma(to_float(dots[r][t]) * splat(of.scale), scale, sums[r][t]);
                sums[r][t] = fma(minimum, splat(of.scaled_sum), sum);
            }
        }
    }
};

inline int64_t tile_bytes(int32_t format, int64_t num_inputs) {
    const int64_t num_groups = num_inputs / GROUP;
    switch (format) {
        case OCTAVO_BF16:
            return num_groups * Bf16Format::GROUP_BYTES;
        case OCTAVO_Q8:
            return num_groups * Q8Format::GROUP_BYTES;
        default:
            return num_groups * Q4Format::GROUP_BYTES;
    }
}

// ---- Blocks: as many accumulators as there are registers for ---------------------------------------------------------

constexpr int STREAM_ROWS = OCTAVO_REGISTER == 16 ? 2 : 4;  // that meet a tile on its way from memory

// How many rows memory is slower for than the products.
constexpr int few_rows(int32_t format) { return format == OCTAVO_BF16 ? 12 : 8; }

// How many tiles of `tiles` are multiplied side by side, and how many rows meet them at once: the sums and a few operands
// fill the registers, and with products of bytes each sum has an integer beside it.
constexpr int side_by_side(int32_t format, int tiles, bool is_few) {
    if (OCTAVO_REGISTER < 64) return 1;
    return format == OCTAVO_Q4 && tiles == 4 && !is_few ? 2 : tiles;
}
constexpr int most_rows(int32_t format, int tiles) {
    if (OCTAVO_REGISTER < 64) return STREAM_ROWS;
    if (format == OCTAVO_BF16) return tiles == 1 ? 12 : 24 / tiles;
    return tiles == 1 ? 8 : tiles == 2 ? 6 : 4;
}

// Memory that will be read next, fetched bit by bit while products are computed.
struct Fetch {
    const uint8_t* at;
    int64_t lines;  // with each group
};

// out[row * stride + tile] = products of ROWS rows with TILES tiles.
template <class Format, int TILES, int ROWS, bool STREAM>
void multiply_block(const uint8_t* const* tiles, Fetch fetch, const Activations& x, int64_t row, F32* out, int stride) {
    F32 sums[ROWS][TILES];
    const uint8_t* groups[TILES];
    for (int t = 0; t < TILES; t++) {
        groups[t] = tiles[t];
        for (int r = 0; r < ROWS; r++) sums[r][t] = zero();
    }
    const int64_t num_groups = x.num_inputs / GROUP, tile_bytes = num_groups * Format::GROUP_BYTES;
    for (int64_t group = 0; group < num_groups; group++) {
        if constexpr (!STREAM)
            for (int64_t line = 0; line < fetch.lines; line++, fetch.at += 64) prefetch(fetch.at);
        Format::template add_group<TILES, ROWS, STREAM>(sums, groups, tile_bytes, x, row, group);
        for (int t = 0; t < TILES; t++) groups[t] += Format::GROUP_BYTES;
    }
    for (int r = 0; r < ROWS; r++)
        for (int t = 0; t < TILES; t++) store((float*)(out + r * stride + t), sums[r][t]);
}

template <class Format, int TILES, int MOST_ROWS, bool STREAM>
inline void multiply_rows(int64_t num_rows, const uint8_t* const* tiles, Fetch fetch, const Activations& x, int64_t row,
                          F32* out, int stride) {
    if constexpr (MOST_ROWS > 1) {
        if (num_rows < MOST_ROWS)
            return multiply_rows<Format, TILES, MOST_ROWS - 1, STREAM>(num_rows, tiles, fetch, x, row, out, stride);
    }
    multiply_block<Format, TILES, MOST_ROWS, STREAM>(tiles, fetch, x, row, out, stride);
}

// ---- All rows --------------------------------------------------------------------------------------------------------

// Cuts what lies behind the tiles, the next that will be asked for, into the parts that each visit to a block fetches.
template <int TILES>
class NextTiles {
public:
    NextTiles(const uint8_t* const (&tiles)[TILES], int64_t tile_bytes, int64_t num_groups, int64_t num_visits)
        : tiles_(tiles), tile_bytes_(tile_bytes), num_groups_(num_groups) {
        while (run_ < TILES && tiles[run_] == tiles[run_ - 1] + tile_bytes) run_++;
        const int64_t most = num_visits * num_groups;
        lines_ = (tile_bytes / 64 * TILES + most - 1) / most;
    }

    Fetch of_visit(int64_t visit) const {
        const int64_t begin = visit * lines_ * num_groups_ * 64, first = begin / (run_ * tile_bytes_) * run_;
        if (first >= TILES) return {nullptr, 0};
        return {tiles_[first] + begin + (run_ - first) * tile_bytes_, lines_};
    }

private:
    const uint8_t* const (&tiles_)[TILES];
    const int64_t tile_bytes_, num_groups_;
    int run_ = 1;  // tiles that follow each other in memory
    int64_t lines_;
};

template <class Format, int32_t FORMAT, int TILES>
struct Multiplication {
    const uint8_t* const (&tiles)[TILES];
    const Activations& x;

    // Rows row to end - 1, at most STREAM_ROWS, whose weights come from memory: one tile after the other.
    template <class Emit>
    void stream(int64_t row, int64_t end, Emit& emit) const {
        F32 out[STREAM_ROWS * TILES];
        for (int t = 0; t < TILES; t++)
            multiply_rows<Format, 1, STREAM_ROWS, true>(end - row, tiles + t, {nullptr, 0}, x, row, out + t, TILES);
        for (int64_t i = row; i < end; i++) emit(i, (const F32*)out + (i - row) * TILES);
    }

    // Rows first to end - 1, in blocks of nearly the same size.
    template <bool IS_FEW, class Emit>
    void multiply(int64_t first, int64_t end, Emit& emit) const {
        constexpr int BESIDE = side_by_side(FORMAT, TILES, IS_FEW), MOST_ROWS = most_rows(FORMAT, BESIDE);
        F32 out[MOST_ROWS * TILES];
        const int64_t num_rows = end - first, num_blocks = (num_rows + MOST_ROWS - 1) / MOST_ROWS;
        const int64_t num_groups = x.num_inputs / GROUP, visits = TILES / BESIDE;
        const NextTiles<TILES> next(tiles, num_groups * Format::GROUP_BYTES, num_groups, num_blocks * visits);
        for (int64_t block = 0; block < num_blocks; block++) {
            const int64_t row = first + num_rows * block / num_blocks,
                          end = first + num_rows * (block + 1) / num_blocks;
            for (int t = 0; t < TILES; t += BESIDE) {
                const Fetch fetch = IS_FEW ? Fetch{nullptr, 0} : next.of_visit(block * visits + t / BESIDE);
                multiply_rows<Format, BESIDE, MOST_ROWS, false>(end - row, tiles + t, fetch, x, row, out + t, TILES);
            }
            for (int64_t i = row; i < end; i++) emit(i, (const F32*)out + (i - row) * TILES);
        }
    }

    // With few rows memory sets the pace: the first read it in one stream, the others find it in the cache. With many
    // the products do, and memory is read beside them.
    template <class Emit>
    void run(int64_t first, int64_t num_rows, Emit& emit) const {
        const int64_t end = first + num_rows;
        if (num_rows > few_rows(FORMAT)) return multiply<false>(first, end, emit);
        const int64_t streamed = num_rows < STREAM_ROWS ? end : first + STREAM_ROWS;
        stream(first, streamed, emit);
        if (streamed < end) multiply<true>(streamed, end, emit);
    }
};

// Calls emit(row, sums) for rows first_row to first_row + num_rows - 1 of x, where sums[t] are the products of the row
// with the 16 outputs of tiles[t]. Tiles that follow each other in memory are best given together, in order.
template <int TILES, class Emit>
inline void multiply(const uint8_t* const (&tiles)[TILES], int32_t format, const Activations& x, int64_t first_row,
                     int64_t num_rows, Emit emit) {
    switch (format) {
        case OCTAVO_BF16:
            return Multiplication<Bf16Format, OCTAVO_BF16, TILES>{tiles, x}.run(first_row, num_rows, emit);
        case OCTAVO_Q8:
            return Multiplication<Q8Format, OCTAVO_Q8, TILES>{tiles, x}.run(first_row, num_rows, emit);
        default:
            return Multiplication<Q4Format, OCTAVO_Q4, TILES>{tiles, x}.run(first_row, num_rows, emit);
    }
}

// Tiles first_tile to end_tile - 1 of y[rows][num_outputs] = x @ weight.T + bias.
inline void linear_tiles(const OctavoWeight& weight, const Activations& x, int64_t num_rows, int first_tile,
                         int end_tile, float* y) {
    const int64_t size = tile_bytes(weight.format, weight.num_inputs);
    const auto write = [&](int tile, int count) {
        return [&weight, y, tile, count](int64_t row, const F32* sums) {
            for (int t = 0; t < count; t++) {
                const int output = (tile + t) * LANES;
                float* to = y + row * weight.num_outputs + output;
                const int left = weight.num_outputs - output;
                if (left >= LANES) {
                    store(to, weight.bias ? sums[t] + load(weight.bias + output) : sums[t]);
                    continue;
                }
                float lanes[LANES];
                store(lanes, sums[t]);
                for (int i = 0; i < left; i++) to[i] = weight.bias ? lanes[i] + weight.bias[output + i] : lanes[i];
            }
        };
    };
    int tile = first_tile;
    for (; tile + 4 <= end_tile; tile += 4) {
        const uint8_t* at = weight.tiles + tile * size;
        multiply<4>({at, at + size, at + 2 * size, at + 3 * size}, weight.format, x, 0, num_rows, write(tile, 4));
    }
    for (; tile < end_tile; tile++)
        multiply<1>({weight.tiles + tile * size}, weight.format, x, 0, num_rows, write(tile, 1));
}

// y[rows][num_outputs] = x[rows][num_inputs] @ weight.T + bias by all threads of a pool.
inline void linear(octavo::Pool& pool, const OctavoWeight& weight, const float* x, int32_t num_rows, float* y) {
    const int kinds = kind_for(weight.format);
    const int64_t size = activation_bytes(kinds, num_rows, weight.num_inputs);
    struct Free {
        void operator()(uint8_t* memory) const { ::operator delete(memory, std::align_val_t(64)); }
    };
    const std::unique_ptr<uint8_t, Free> memory((uint8_t*)::operator new(size, std::align_val_t(64)));
    const Activations rounded = activations_in(memory.get(), kinds, num_rows, weight.num_inputs);
    pool.run(pool.size(), [&](octavo::Member& member) {
        member.share(num_rows, 1, [&](int64_t first, int64_t end) {
            for (int64_t row = first; row < end; row++) round_row(rounded, row, x + row * weight.num_inputs);
        });
        member.share((weight.num_outputs + LANES - 1) / LANES, 4, [&](int64_t first, int64_t end) {
            linear_tiles(weight, rounded, num_rows, (int)first, (int)end, y);
        });
    });
}

// Row `row` of a packed matrix as float32 [inputs].
inline void unpack_row(const OctavoWeight& weight, int32_t row, float* values) {
    const uint8_t* tile = weight.tiles + row / LANES * tile_bytes(weight.format, weight.num_inputs);
    const int lane = row % LANES;
    if (weight.format == OCTAVO_BF16) {
        const uint16_t* pairs = (const uint16_t*)tile + lane * 2;
        for (int i = 0; i < weight.num_inputs; i++) values[i] = bf16_to_float(pairs[i / 2 * 32 + i % 2]);
        return;
    }
    const bool is_q8 = weight.format == OCTAVO_Q8;
    const int scales = is_q8 ? 32 : 64, group_bytes = is_q8 ? Q8Format::GROUP_BYTES : Q4Format::GROUP_BYTES;
    for (int first = 0; first < weight.num_inputs; first += GROUP, tile += group_bytes) {
        float scale[LANES], minimum[LANES];
        store(scale, load_fp16((const uint16_t*)tile));
        store(minimum, is_q8 ? splat(0.0f) : load_fp16((const uint16_t*)(tile + 32)));
        for (int i = 0; i < GROUP; i++) {
            const int quad = is_q8 ? i / 4 : i % 16 / 4;
            const uint8_t byte = tile[scales + (quad * LANES + lane) * 4 + i % 4];
            const int value = is_q8 ? byte - 128 : i < 16 ? byte & 15 : byte >> 4;
            values[first + i] = scale[lane] * (float)value + minimum[lane];
        }
    }
}

}  // namespace OCTAVO_ISA
