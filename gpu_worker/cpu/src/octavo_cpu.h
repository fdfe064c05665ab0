// The C interface of Octavo's CPU kernels: packed linear layers, paged attention, and one fused forward step.
//
// Shapes: T tokens of a step, E hidden size, H query heads, K kv heads, D head size, V vocabulary, S sampled tokens.
// Everything that a pointer points to stays the caller's and must outlive the call (of OctavoModel: the runner).
// bfloat16 is passed as uint16_t. No function throws or keeps Python's lock.
#pragma once

#include <stdint.h>

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

#define OCTAVO_ABI 1  // raised when what is declared here changes; library.py compares

// ---- Packed weights -------------------------------------------------------------------------------------------------
// A matrix [outputs, inputs] is kept in tiles of 16 outputs (the last padded with zeros), each tile contiguous:
//   BF16  [inputs / 2][16][2]                                                  bfloat16
//   Q8    for each group of 32 inputs: 16 fp16 scales, [8][16][4] uint8        weight = scale * (byte - 128)
//   Q4    for each group of 32 inputs: 16 fp16 scales, 16 fp16 minima, [4][16][4] bytes; the low half of a byte is input
//         4 j + i, the high half input 16 + 4 j + i                            weight = scale * nibble + minimum
// With Q8 and Q4 a row of activations is rounded to int8 per group of 32, as llama.cpp does (ggml, block_q8_1).
enum OctavoFormat { OCTAVO_BF16 = 0, OCTAVO_Q8 = 1, OCTAVO_Q4 = 2 };

typedef struct OctavoWeight {
    int32_t format;       // OctavoFormat
    int32_t num_outputs;  // without padding
    int32_t num_inputs;   // a multiple of 32
    int32_t reserved;
    const uint8_t* tiles;  // 64-byte aligned
    const float* bias;     // [num_outputs], or null
} OctavoWeight;

// ---- Attention ------------------------------------------------------------------------------------------------------
// K/V memory: [blocks][layers][K][block_size / 16] pairs of tiles, a K tile [D / 2][16 tokens][2] and then a V tile
// [8 token pairs][D][2], bfloat16. A block of all layers is one contiguous piece.
//
// A work item is 8 int32: row of the block table, first token, tokens, position of the first token, first and end
// position of the K/V it reads, first partial or -1, 0. A row's K/V is summed in segments of OCTAVO_SEGMENT positions,
// counted from 0, one after the other; an item with partials covers one segment and writes partial `first + i` for its
// token i. A reduction is 4 int32: token, first partial, number of partials, distance between them; it folds them in
// order, with the same arithmetic as an item that covers several segments. So a token's result does not depend on how
// the work was cut.
#define OCTAVO_SEGMENT 512

typedef struct OctavoWorkList {
    const int32_t* items;       // [num_items, 8], longest first
    const int32_t* reductions;  // [num_reductions, 4]
    int32_t num_items;
    int32_t num_reductions;
    int32_t num_partials;
    int32_t window;  // a token sees itself and window - 1 before it; 0: all before it
} OctavoWorkList;

typedef struct OctavoAttentionShape {
    int32_t num_heads, num_kv_heads, head_dim, block_size;
    int32_t num_layers;
    float scale;
    float soft_cap;  // 0: none
} OctavoAttentionShape;

// ---- A model --------------------------------------------------------------------------------------------------------
enum OctavoActivation { OCTAVO_SILU = 0, OCTAVO_GELU_TANH = 1 };

typedef struct OctavoLayer {
    const float* input_norm;           // [E]
    const float* query_norm;           // [D], or null (Qwen3, Gemma3)
    const float* key_norm;             // [D], or null
    const float* post_attention_norm;  // [E] of attention's output before it is added, or null (Gemma3)
    const float* mlp_norm;             // [E] of the MLP's input
    const float* post_mlp_norm;        // [E], or null (Gemma3)
    OctavoWeight query, key, value, output, gate, up, down;
    const float* rotations;  // [positions][D / 2][2] cosine and sine; pairs are neighbours (2 i, 2 i + 1)
    int32_t work_list;       // index into OctavoStep.work_lists: layers of one window share one
    int32_t reserved;
} OctavoLayer;

typedef struct OctavoModel {
    OctavoAttentionShape attention;
    int32_t hidden_size, intermediate_size, vocab_size;
    int32_t activation;  // OctavoActivation
    float norm_epsilon;
    float embedding_scale;  // 1, or sqrt(E) (Gemma)
    float logit_soft_cap;   // 0: none
    int32_t reserved;
    OctavoWeight embedding;  // looked up by row; the same tiles as head when they are tied
    OctavoWeight head;
    const float* final_norm;  // [E]
    const OctavoLayer* layers;
} OctavoModel;

typedef struct OctavoStep {
    int32_t num_tokens, num_sampled;
    int32_t num_threads;         // how many of the pool work on this step
    int32_t block_table_stride;  // int32s between rows
    const int32_t* token_ids;    // [T]
    const int32_t* positions;    // [T]
    const int32_t* slots;        // [T] block * block_size + offset
    const int32_t* block_tables;
    const OctavoWorkList* work_lists;
    const int32_t* sampled_tokens;  // [S] indices of tokens
    float* logits;                  // [S][V]
} OctavoStep;

typedef struct OctavoStepReport {
    int64_t busy_ns;  // wall time of the step
    int64_t wait_ns;  // of it, the longest waiting of one thread for the others
} OctavoStepReport;

// ---- Functions ------------------------------------------------------------------------------------------------------
int32_t octavo_abi(void);
const char* octavo_isa(void);              // "avx512", "avx2" or "generic": the best that this machine runs
int32_t octavo_use_isa(const char* name);  // for tests; 0, or -1 if this machine or this build lacks it

int64_t octavo_packed_bytes(int32_t format, int32_t num_outputs, int32_t num_inputs);
// Packs rows of a stored matrix as outputs first_output, first_output + 1, ... `encoding` is the number of a type of GGUF
// (0 F32, 1 F16, 2 Q4_0, 3 Q4_1, 8 Q8_0, 12 Q4_K, 30 BF16, ...); row i of `rows` becomes output first_output + order[i]
// (order null: i). Returns 0, or -1 if the encoding cannot be packed in the format without losing more than rounding.
int32_t octavo_pack(const OctavoWeight* weight, uint8_t* tiles, int32_t encoding, int32_t first_output,
                    int32_t num_rows, const int32_t* order, const void* rows);

typedef struct OctavoPool OctavoPool;              // threads that wait, spinning a little, then sleeping
OctavoPool* octavo_pool_new(int32_t num_threads);  // the caller is one of them
void octavo_pool_free(OctavoPool* pool);

// y[M, outputs] = x[M, inputs] @ weight.T + bias, both float32; x is rounded as the format says.
void octavo_linear(OctavoPool* pool, const OctavoWeight* weight, const float* x, int32_t num_rows, float* y);
// Row `row` of a packed matrix as float32 [inputs].
void octavo_unpack_row(const OctavoWeight* weight, int32_t row, float* values);

// Stores K and V of T tokens; k and v are [T][K][D], `stride` uint16s between tokens. A slot below 0 is skipped.
void octavo_write_kv(const OctavoAttentionShape* shape, uint16_t* kv, int32_t layer, int32_t num_tokens,
                     const int32_t* slots, const uint16_t* k, const uint16_t* v, int64_t stride);
// out[T][H][D] of q[T][H][D]; `q_stride` uint16s between tokens of q.
void octavo_attend(OctavoPool* pool, const OctavoAttentionShape* shape, const uint16_t* kv, int32_t layer,
                   const OctavoWorkList* work, const int32_t* block_tables, int32_t block_table_stride,
                   const uint16_t* q, int64_t q_stride, uint16_t* out);

typedef struct OctavoRunner OctavoRunner;  // a model, its K/V memory, scratch memory, threads
OctavoRunner* octavo_runner_new(const OctavoModel* model, uint16_t* kv, int32_t num_threads);
void octavo_runner_free(OctavoRunner* runner);
void octavo_step(OctavoRunner* runner, const OctavoStep* step, OctavoStepReport* report);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
