// The layout of the K/V memory: where a token's K and V go, and where the K and V of a run of positions are.
//
// Memory is [blocks][layers][K kv heads][block_size / 16] pairs of tiles of 16 positions: a K tile [D / 2][16][2], so that a
// word is a pair of neighbours of one position, and then a V tile [8][D][2], where a word is a pair of positions.
#pragma once

#include <stdint.h>
#include <string.h>

#include "octavo_cpu.h"
#include "vec.h"

namespace OCTAVO_ISA {

constexpr int TILE = 16;  // positions

inline int64_t tile_size(const OctavoAttentionShape& shape) { return TILE * (int64_t)shape.head_dim; }

// Of a layer and a head in block 0; block b is b * block_stride further.
inline int64_t head_offset(const OctavoAttentionShape& shape, int layer, int kv_head) {
    const int64_t head_size = 2 * tile_size(shape) * (shape.block_size / TILE);
    return ((int64_t)layer * shape.num_kv_heads + kv_head) * head_size;
}

inline int64_t block_stride(const OctavoAttentionShape& shape) { return head_offset(shape, shape.num_layers, 0); }

// The K tile with a slot; its V tile follows.
inline uint16_t* tile_of_slot(const OctavoAttentionShape& shape, uint16_t* kv, int layer, int slot, int kv_head) {
    const int block = slot / shape.block_size, tile = slot % shape.block_size / TILE;
    return kv + block * block_stride(shape) + head_offset(shape, layer, kv_head) + tile * 2 * tile_size(shape);
}

// Neighbouring slots share words of a V tile; each store touches its own half only, so that any thread may take any token.
inline void store_k(const OctavoAttentionShape& shape, uint16_t* kv, int layer, int slot, int kv_head,
                    const uint16_t* k) {
    uint16_t* tile = tile_of_slot(shape, kv, layer, slot, kv_head) + slot % TILE * 2;
    for (int i = 0; i < shape.head_dim; i += 2) memcpy(tile + i * TILE, k + i, 4);
}

inline void store_v(const OctavoAttentionShape& shape, uint16_t* kv, int layer, int slot, int kv_head,
                    const uint16_t* v) {
    uint16_t* tile = tile_of_slot(shape, kv, layer, slot, kv_head) + tile_size(shape);
    uint16_t* halves = tile + slot % TILE / 2 * shape.head_dim * 2 + slot % 2;
    for (int i = 0; i < shape.head_dim; i++) halves[i * 2] = v[i];
}

inline void write_kv(const OctavoAttentionShape& shape, uint16_t* kv, int32_t layer, int32_t num_tokens,
                     const int32_t* slots, const uint16_t* k, const uint16_t* v, int64_t stride) {
    for (int token = 0; token < num_tokens; token++) {
        if (slots[token] < 0) continue;
        for (int head = 0; head < shape.num_kv_heads; head++) {
            const int64_t offset = token * stride + head * shape.head_dim;
            store_k(shape, kv, layer, slots[token], head, k + offset);
            store_v(shape, kv, layer, slots[token], head, v + offset);
        }
    }
}

// Finds the tiles of one row of the block table, in one layer and head.
struct Tiles {
    Tiles(const OctavoAttentionShape& shape, const uint16_t* kv, int layer, int kv_head, const int32_t* block_table)
        : block_size(shape.block_size),
          pair_size(2 * tile_size(shape)),
          stride(block_stride(shape)),
          blocks(block_table),
          memory(kv + head_offset(shape, layer, kv_head)) {}

    // The K tile with a position.
    const uint16_t* at(int position) const {
        return memory + blocks[position / block_size] * stride + position % block_size / TILE * pair_size;
    }

    int block_size;
    int64_t pair_size, stride;
    const int32_t* blocks;
    const uint16_t* memory;
};

}  // namespace OCTAVO_ISA
