#include "source_types.h"

#include <cstring>

#include "half.h"

namespace octavo {
namespace {

uint16_t load16(const uint8_t* from) {
  uint16_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

uint32_t load32(const uint8_t* from) {
  uint32_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

float load_half(const uint8_t* from) { return half_to_float(load16(from)); }

// Inputs 0-15 are the low halves of 16 bytes, inputs 16-31 the high ones.
void split_halves(const uint8_t* bytes, int8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = static_cast<int8_t>(bytes[i] & 15);
    codes[i + 16] = static_cast<int8_t>(bytes[i] >> 4);
  }
}

// The fifth bits of a group's codes, one bit for each input.
void add_fifth_bits(uint32_t bits, int8_t* codes) {
  for (int i = 0; i < kGroup; ++i) codes[i] |= static_cast<int8_t>(((bits >> i) & 1) << 4);
}

void set_scale(GroupCodes& out, float scale, float minimum, int zero) {
  out.scale = scale;
  out.minimum = minimum;
  out.zero = zero;
}

// Scale and minimum of one of eight groups: 6 bits each, in 12 bytes.
void set_k_scale(GroupCodes& out, const uint8_t* block, int group) {
  const uint8_t* packed = block + 4;
  int scale, minimum;
  if (group < 4) {
    scale = packed[group] & 63;
    minimum = packed[group + 4] & 63;
  } else {
    scale = (packed[group + 4] & 15) | (packed[group - 4] >> 6 << 4);
    minimum = (packed[group + 4] >> 4) | (packed[group] >> 6 << 4);
  }
  set_scale(out, load_half(block), load_half(block + 2), 0);
  out.factor[0] = out.factor[1] = scale;
  out.minimum_factor = -minimum;
}

// Two groups of a 256-block share 32 bytes: the even group has their low halves.
void split_k_halves(const uint8_t* bytes, int group, int8_t* codes) {
  const uint8_t* at = bytes + group / 2 * 32;
  const int shift = group % 2 * 4;
  for (int i = 0; i < kGroup; ++i) codes[i] = static_cast<int8_t>((at[i] >> shift) & 15);
}

void read_q5_k(GroupCodes& out, const uint8_t* block, int group) {
  set_k_scale(out, block, group);
  split_k_halves(block + 48, group, out.codes);
  for (int i = 0; i < kGroup; ++i) {
    out.codes[i] |= static_cast<int8_t>(((block[16 + i] >> group) & 1) << 4);
  }
}

// Four groups share 64 bytes of low halves and 32 bytes of pairs of bits; a scale has 16 inputs.
void read_q6_k(GroupCodes& out, const uint8_t* block, int group) {
  const uint8_t* low = block + group / 4 * 64 + group % 2 * 32;
  const uint8_t* high = block + 128 + group / 4 * 32;
  const int low_shift = group % 4 / 2 * 4, high_shift = group % 4 * 2;
  for (int i = 0; i < kGroup; ++i) {
    const int code = ((low[i] >> low_shift) & 15) | (((high[i] >> high_shift) & 3) << 4);
    out.codes[i] = static_cast<int8_t>(code);
  }
  set_scale(out, load_half(block + 208), 0, 32);
  for (int half = 0; half < 2; ++half) out.factor[half] = static_cast<int8_t>(block[192 + group * 2 + half]);
}

void read_dense(SourceType type, const uint8_t* row, int group, float* out) {
  if (type == SourceType::kF32) {
    std::memcpy(out, row + group * kGroup * sizeof(float), kGroup * sizeof(float));
    return;
  }
  for (int i = 0; i < kGroup; ++i) {
    const uint16_t value = load16(row + (group * kGroup + i) * 2);
    out[i] = type == SourceType::kF16 ? half_to_float(value) : bf16_to_float(value);
  }
}

}  // namespace

BlockShape block_shape(SourceType type) {
  switch (type) {
    case SourceType::kF32: return {1, 4};
    case SourceType::kF16: return {1, 2};
    case SourceType::kBf16: return {1, 2};
    case SourceType::kQ4_0: return {32, 18};
    case SourceType::kQ4_1: return {32, 20};
    case SourceType::kQ5_0: return {32, 22};
    case SourceType::kQ5_1: return {32, 24};
    case SourceType::kQ8_0: return {32, 34};
    case SourceType::kQ4_K: return {256, 144};
    case SourceType::kQ5_K: return {256, 176};
    case SourceType::kQ6_K: return {256, 210};
  }
  return {};
}

const char* source_name(SourceType type) {
  switch (type) {
    case SourceType::kF32: return "F32";
    case SourceType::kF16: return "F16";
    case SourceType::kBf16: return "BF16";
    case SourceType::kQ4_0: return "Q4_0";
    case SourceType::kQ4_1: return "Q4_1";
    case SourceType::kQ5_0: return "Q5_0";
    case SourceType::kQ5_1: return "Q5_1";
    case SourceType::kQ8_0: return "Q8_0";
    case SourceType::kQ4_K: return "Q4_K";
    case SourceType::kQ5_K: return "Q5_K";
    case SourceType::kQ6_K: return "Q6_K";
  }
  return "unknown";
}

bool is_float(SourceType type) {
  return type == SourceType::kF32 || type == SourceType::kF16 || type == SourceType::kBf16;
}

int code_bits(SourceType type) {
  switch (type) {
    case SourceType::kQ4_0:
    case SourceType::kQ4_1:
    case SourceType::kQ4_K: return 4;
    case SourceType::kQ5_0:
    case SourceType::kQ5_1:
    case SourceType::kQ5_K: return 5;
    case SourceType::kQ6_K: return 6;
    case SourceType::kQ8_0: return 8;
    default: return 0;
  }
}

GroupCodes read_codes(SourceType type, const uint8_t* row, int group) {
  const BlockShape shape = block_shape(type);
  const int groups = shape.inputs / kGroup;
  const uint8_t* block = row + static_cast<size_t>(group / groups) * shape.bytes;
  GroupCodes out;
  switch (type) {
    case SourceType::kQ4_0:
      split_halves(block + 2, out.codes);
      set_scale(out, load_half(block), 0, 8);
      break;
    case SourceType::kQ4_1:
      split_halves(block + 4, out.codes);
      set_scale(out, load_half(block), load_half(block + 2), 0);
      break;
    case SourceType::kQ5_0:
      split_halves(block + 6, out.codes);
      add_fifth_bits(load32(block + 2), out.codes);
      set_scale(out, load_half(block), 0, 16);
      break;
    case SourceType::kQ5_1:
      split_halves(block + 8, out.codes);
      add_fifth_bits(load32(block + 4), out.codes);
      set_scale(out, load_half(block), load_half(block + 2), 0);
      break;
    case SourceType::kQ8_0:
      std::memcpy(out.codes, block + 2, kGroup);
      set_scale(out, load_half(block), 0, 0);
      break;
    case SourceType::kQ4_K:
      set_k_scale(out, block, group % groups);
      split_k_halves(block + 16, group % groups, out.codes);
      break;
    case SourceType::kQ5_K: read_q5_k(out, block, group % groups); break;
    case SourceType::kQ6_K: read_q6_k(out, block, group % groups); break;
    default: std::memset(out.codes, 0, sizeof out.codes);
  }
  return out;
}

void read_floats(SourceType type, const uint8_t* row, int group, float* out) {
  if (is_float(type)) return read_dense(type, row, group, out);
  const GroupCodes codes = read_codes(type, row, group);
  const float minimum = codes.minimum * static_cast<float>(codes.minimum_factor);
  for (int i = 0; i < kGroup; ++i) {
    const float scale = codes.scale * static_cast<float>(codes.factor[i / 16]);
    out[i] = scale * static_cast<float>(codes.codes[i] - codes.zero) + minimum;
  }
}

}  // namespace octavo
