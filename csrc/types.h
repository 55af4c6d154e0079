// Values that every part of the native executor shares: raw pointers and sizes, no Python, no torch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

// Columns of one strip: all kernels produce this many outputs of a row at once.
constexpr int kStrip = 16;
// Inputs that share one scale, in low-bit weights and in activations.
constexpr int kGroup = 32;

// How a matrix is stored for the kernels.
enum class Format : int {
  kQ4,    // 4-bit codes; scale and minimum for each group of a column
  kQ8,    // 8-bit codes; scale for each group of a column
  kBf16,  // bfloat16
  kF32,   // float32
  kF16,   // float16
  // Codes of so many bits; scale and minimum for each group of a column, each times a whole number.
  kQ4S,
  kQ5S,
  kQ6S,
  kQ8S,
};

// Bits of a code in the last four formats; 0 for the others.
constexpr int scaled_bits(Format format) {
  switch (format) {
    case Format::kQ4S: return 4;
    case Format::kQ5S: return 5;
    case Format::kQ6S: return 6;
    case Format::kQ8S: return 8;
    default: return 0;
  }
}

// The form of the rows that a format is multiplied with.
constexpr bool takes_f32(Format format) { return format == Format::kF32 || format == Format::kF16; }
constexpr bool takes_bf16(Format format) { return format == Format::kBf16; }
constexpr bool takes_codes(Format format) { return !takes_f32(format) && !takes_bf16(format); }

// A matrix [out, in], packed strip by strip: 16 output columns lie together, in the order in which
// a kernel reads them. `out` is padded to whole strips with zeros, `in` is a multiple of kGroup.
//
//   kQ4   for each group: 4 rows of 64 bytes of codes, then 16 scales and 16 minima (float16)
//   kQ8   for each group: 8 rows of 64 bytes of codes plus 128, then 16 scales (float16)
//   kBf16 for each pair of inputs: 16 x 2 numbers
//   kF32, kF16  for each input: 16 numbers
//   kQ4S to kQ8S  for each group: see ScaledGroup in isa/scaled_linear.h
struct PackedMatrix {
  Format format = Format::kF32;
  int out = 0;
  int in = 0;
  size_t strip_bytes = 0;
  const uint8_t* data = nullptr;

  int strips() const { return (out + kStrip - 1) / kStrip; }
  const uint8_t* strip(int number) const { return data + strip_bytes * number; }
};

// Activations in 8 bits: one scale for each group of 32 numbers of a row.
struct QuantizedRows {
  int in = 0;
  int8_t* codes = nullptr;   // [rows, in]
  float* scales = nullptr;   // [rows, in / 32]
  float* sums = nullptr;     // [rows, in / 32] scale times the sum of the codes: for minima
  int32_t* offsets = nullptr;  // [rows, in / 32] -128 times the sum of the codes: for codes plus 128
};

// The rows that a linear layer multiplies, in the form that its format asks for.
struct Rows {
  int in = 0;
  QuantizedRows quantized;      // for formats that takes_codes
  const uint16_t* bf16 = nullptr;  // [rows, in] for kBf16
  const float* f32 = nullptr;      // [rows, in] for kF32 and kF16
};

// One page: the keys and values of one block in one layer, KV head by KV head. Positions of a block
// are cut into tiles of 16, so that a block holds a multiple of 16 tokens.
//   float32 pages: keys [dim, 16] for each tile, values [16, dim]
//   bf16 pages: keys [dim / 2, 16, 2] for each tile, values [8, dim, 2]
// All keys of one head lie before its values; heads follow each other.
constexpr int kTile = 16;

}  // namespace octavo
