// Packs matrices as files have them ([outputs][inputs], rows of values or of blocks of 32 or 256) into tiles of 16 outputs
// (octavo_cpu.h, "Packed weights"). Quantised blocks stay on their grid: bytes move, no value is rounded, but for the
// scales of Q4_K, which become fp16. Compiled once, for every machine.
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "octavo_cpu.h"

namespace {

constexpr int kLanes = 16;
constexpr int kGroup = 32;

enum Encoding { F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q8_0 = 8, Q4_K = 12, BF16 = 30 };  // numbers of GGUF

constexpr int group_bytes(int32_t format) {
    return format == OCTAVO_BF16 ? 64 * kGroup / 2 : format == OCTAVO_Q8 ? 32 + 512 : 64 + 256;
}

float fp16_to_float(uint16_t half) {
    const uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13, sign = (uint32_t)(half & 0x8000) << 16;
    float value;
    memcpy(&value, &magnitude, 4);
    value *= 0x1p112f;  // the exponent counts from -15 there and from -127 here; subnormal numbers come right as well
    uint32_t bits;
    memcpy(&bits, &value, 4);
    bits |= sign | ((half & 0x7c00) == 0x7c00 ? 0x7f800000 : 0);
    memcpy(&value, &bits, 4);
    return value;
}

// To nearest, ties to even; infinity if it does not fit.
uint16_t float_to_fp16(float value) {
    const uint16_t sign = signbit(value) ? 0x8000 : 0;
    const float magnitude = fabsf(value);
    if (!(magnitude < 65520.0f)) return (uint16_t)(sign | (isnan(value) ? 0x7e00 : 0x7c00));
    if (magnitude < 0x1p-14f) return (uint16_t)(sign | (uint16_t)nearbyintf(magnitude * 0x1p24f));
    int exponent;
    const float fraction = frexpf(magnitude, &exponent);       // in [0.5, 1)
    const int mantissa = (int)nearbyintf(fraction * 2048.0f);  // in [1024, 2048]: a carry moves into the exponent
    return (uint16_t)(sign | (((exponent + 14) << 10) + mantissa - 1024));
}

uint16_t float_to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (isnan(value)) return (uint16_t)(bits >> 16 | 64);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

uint16_t read_half(const uint8_t* from) {
    uint16_t half;
    memcpy(&half, from, 2);
    return half;
}

void write_half(uint8_t* to, uint16_t half) { memcpy(to, &half, 2); }

// ---- One group of 32 inputs of one output: `tile` is the group in the tile, `lane` the output's place in it -----------

void write_bf16(uint8_t* tile, int lane, const uint16_t* values) {
    for (int i = 0; i < kGroup / 2; i++) memcpy(tile + (i * kLanes + lane) * 4, values + 2 * i, 4);
}

void write_q8(uint8_t* tile, int lane, uint16_t scale, const uint8_t* bytes) {
    write_half(tile + 2 * lane, scale);
    for (int i = 0; i < 8; i++) memcpy(tile + 32 + (i * kLanes + lane) * 4, bytes + 4 * i, 4);
}

void write_q4(uint8_t* tile, int lane, uint16_t scale, uint16_t minimum, const uint8_t* halves) {
    write_half(tile + 2 * lane, scale);
    write_half(tile + 32 + 2 * lane, minimum);
    for (int i = 0; i < 4; i++) memcpy(tile + 64 + (i * kLanes + lane) * 4, halves + 4 * i, 4);
}

// ---- One group of 32 inputs as each encoding stores it ---------------------------------------------------------------

bool pack_values(uint8_t* tile, int lane, const uint8_t* row, int group, int32_t encoding) {
    uint16_t values[kGroup];
    for (int i = 0; i < kGroup; i++) {
        const int64_t at = (int64_t)group * kGroup + i;
        float value;
        if (encoding == BF16) {
            values[i] = read_half(row + 2 * at);
            continue;
        }
        if (encoding == F16)
            value = fp16_to_float(read_half(row + 2 * at));
        else
            memcpy(&value, row + 4 * at, 4);
        values[i] = float_to_bf16(value);
    }
    write_bf16(tile, lane, values);
    return true;
}

bool pack_q8_0(uint8_t* tile, int lane, const uint8_t* block) {  // fp16 scale, 32 int8
    uint8_t bytes[kGroup];
    for (int i = 0; i < kGroup; i++) bytes[i] = block[2 + i] ^ 0x80;
    write_q8(tile, lane, read_half(block), bytes);
    return true;
}

bool pack_q5_0(uint8_t* tile, int lane, const uint8_t* block) {  // fp16 scale, 32 fifth bits, 32 nibbles: value - 16
    uint32_t fifth_bits;
    memcpy(&fifth_bits, block + 2, 4);
    uint8_t bytes[kGroup];
    for (int i = 0; i < kGroup; i++) {
        const int nibble = i < 16 ? block[6 + i] & 15 : block[6 + i - 16] >> 4;
        bytes[i] = (uint8_t)((nibble | (fifth_bits >> i & 1) << 4) - 16 + 128);
    }
    write_q8(tile, lane, read_half(block), bytes);
    return true;
}

bool pack_q4_0(uint8_t* tile, int lane, const uint8_t* block) {  // fp16 scale, 32 nibbles: value - 8
    const float minimum = -8.0f * fp16_to_float(read_half(block));
    const uint16_t rounded = float_to_fp16(minimum);
    write_q4(tile, lane, read_half(block), rounded, block + 2);
    return fp16_to_float(rounded) == minimum;
}

bool pack_q4_1(uint8_t* tile, int lane, const uint8_t* block) {  // fp16 scale, fp16 minimum, 32 nibbles
    write_q4(tile, lane, read_half(block), read_half(block + 2), block + 4);
    return true;
}

// 256 inputs: fp16 scale and minimum, 8 pairs of 6-bit factors of them in 12 bytes, then four times 32 bytes whose low
// halves are one group of 32 and whose high halves the next.
bool pack_q4_k(uint8_t* tile, int lane, const uint8_t* block, int group) {
    const uint8_t *factors = block + 4, *bytes = block + 16 + group / 2 * 32;
    const int scale_factor =
        group < 4 ? factors[group] & 63 : (factors[group + 4] & 15) | (factors[group - 4] >> 6) << 4;
    const int minimum_factor =
        group < 4 ? factors[group + 4] & 63 : factors[group + 4] >> 4 | (factors[group] >> 6) << 4;
    const uint16_t scale = float_to_fp16(fp16_to_float(read_half(block)) * (float)scale_factor);
    const uint16_t minimum = float_to_fp16(-fp16_to_float(read_half(block + 2)) * (float)minimum_factor);
    const int shift = group % 2 * 4;
    uint8_t halves[16];
    for (int i = 0; i < 16; i++) halves[i] = (uint8_t)((bytes[i] >> shift & 15) | (bytes[16 + i] >> shift & 15) << 4);
    write_q4(tile, lane, scale, minimum, halves);
    return isfinite(fp16_to_float(scale)) && isfinite(fp16_to_float(minimum));
}

bool pack_group(uint8_t* tile, int lane, int32_t encoding, const uint8_t* row, int group) {
    switch (encoding) {
        case Q8_0:
            return pack_q8_0(tile, lane, row + (int64_t)group * 34);
        case Q5_0:
            return pack_q5_0(tile, lane, row + (int64_t)group * 22);
        case Q4_0:
            return pack_q4_0(tile, lane, row + (int64_t)group * 18);
        case Q4_1:
            return pack_q4_1(tile, lane, row + (int64_t)group * 20);
        case Q4_K:
            return pack_q4_k(tile, lane, row + (int64_t)(group / 8) * 144, group % 8);
        default:
            return pack_values(tile, lane, row, group, encoding);
    }
}

// Bytes of a row as stored, or -1 if a format cannot hold the encoding.
int64_t row_bytes(int32_t format, int32_t encoding, int64_t num_inputs) {
    switch (encoding) {
        case F32:
            return format == OCTAVO_BF16 ? 4 * num_inputs : -1;
        case F16:
        case BF16:
            return format == OCTAVO_BF16 ? 2 * num_inputs : -1;
        case Q8_0:
            return format == OCTAVO_Q8 ? num_inputs / kGroup * 34 : -1;
        case Q5_0:
            return format == OCTAVO_Q8 ? num_inputs / kGroup * 22 : -1;
        case Q4_0:
            return format == OCTAVO_Q4 ? num_inputs / kGroup * 18 : -1;
        case Q4_1:
            return format == OCTAVO_Q4 ? num_inputs / kGroup * 20 : -1;
        case Q4_K:
            return format == OCTAVO_Q4 && num_inputs % 256 == 0 ? num_inputs / 256 * 144 : -1;
        default:
            return -1;
    }
}

}  // namespace

int64_t octavo_packed_bytes(int32_t format, int32_t num_outputs, int32_t num_inputs) {
    const int64_t tiles = (num_outputs + kLanes - 1) / kLanes;
    return tiles * (num_inputs / kGroup) * group_bytes(format);
}

int32_t octavo_pack(const OctavoWeight* weight, uint8_t* tiles, int32_t encoding, int32_t first_output,
                    int32_t num_rows, const int32_t* order, const void* rows) {
    const int64_t stored_bytes = row_bytes(weight->format, encoding, weight->num_inputs);
    if (stored_bytes < 0 || weight->num_inputs % kGroup != 0) return -1;
    const int num_groups = weight->num_inputs / kGroup;
    const int64_t size = group_bytes(weight->format);
    bool fits = true;
    for (int32_t i = 0; i < num_rows; i++) {
        const int32_t output = first_output + (order ? order[i] : i);
        const uint8_t* row = (const uint8_t*)rows + i * stored_bytes;
        uint8_t* tile = tiles + output / kLanes * num_groups * size;
        for (int group = 0; group < num_groups; group++)
            fits &= pack_group(tile + group * size, output % kLanes, encoding, row, group);
    }
    return fits ? 0 : -1;
}
