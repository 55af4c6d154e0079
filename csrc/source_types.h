// The forms in which files hold weights: floats, and the blocks of GGUF.
#pragma once

#include <cstddef>
#include <cstdint>

#include "types.h"

namespace octavo {

// The numbers are those of GGUF files.
enum class SourceType : int {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBf16 = 30,
};

// Inputs of one block of a row, and its bytes; zeros for a type that is not known here.
struct BlockShape {
  int inputs = 0;
  int bytes = 0;
};

BlockShape block_shape(SourceType type);
const char* source_name(SourceType type);
bool is_float(SourceType type);
// Bits of a code; 0 for floats.
int code_bits(SourceType type);

// Bytes of one row of `in` inputs.
inline size_t source_row_bytes(SourceType type, int in) {
  const BlockShape shape = block_shape(type);
  return static_cast<size_t>(in / shape.inputs) * shape.bytes;
}

// 32 weights of a low-bit type. Number i is
//   scale * factor[i / 16] * (codes[i] - zero) + minimum * minimum_factor
// where scale and minimum are float16 numbers of the file; a type with a minimum has no zero.
struct GroupCodes {
  int8_t codes[kGroup];
  int zero = 0;
  float scale = 0;
  int factor[2] = {1, 1};  // differ in kQ6_K only; fit into 8 bits
  float minimum = 0;
  int minimum_factor = 1;  // fits into 8 bits
};

// `row` is where the row begins. The type must not be a float.
GroupCodes read_codes(SourceType type, const uint8_t* row, int group);

// The 32 numbers of a group of any type, as float32.
void read_floats(SourceType type, const uint8_t* row, int group, float* out);

}  // namespace octavo
