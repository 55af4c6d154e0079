// Random weights, rows and float64 references for the tests of linear layers.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "half.h"
#include "pack.h"
#include "types.h"

namespace octavo::tests {

// The same numbers in every run.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2654435761u + 88172645463325252u) {}
  uint32_t bits() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<uint32_t>(state_ >> 16);
  }
  float between(float low, float high) {
    return low + (high - low) * static_cast<float>(bits() >> 8) * 0x1p-24f;
  }

 private:
  uint64_t state_;
};

struct Free {
  void operator()(void* at) const { std::free(at); }
};

// Exactly as many numbers as asked for, so that a sanitizer sees the first one behind.
template <class T>
class Aligned {
 public:
  Aligned() = default;
  explicit Aligned(size_t count) : count_(count) {
    void* at = nullptr;
    if (posix_memalign(&at, 64, count * sizeof(T))) std::abort();
    std::memset(at, 0, count * sizeof(T));
    at_.reset(static_cast<T*>(at));
  }
  T* data() const { return at_.get(); }
  size_t size() const { return count_; }
  T& operator[](size_t i) const { return at_.get()[i]; }

 private:
  size_t count_ = 0;
  std::unique_ptr<T, Free> at_;
};

// Bytes of a matrix as a file holds it; scales are small positive halves, all else is random.
inline std::vector<uint8_t> random_weights(SourceType type, int out, int in, Random& random) {
  const BlockShape shape = block_shape(type);
  std::vector<uint8_t> bytes(source_row_bytes(type, in) * out);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.bits());
  auto put_half = [&](size_t at, float low, float high) {
    const uint16_t half = float_to_half(random.between(low, high));
    std::memcpy(&bytes[at], &half, 2);
  };
  for (size_t block = 0; block < bytes.size(); block += shape.bytes) {
    float number = random.between(-1, 1);
    uint16_t bf16 = float_to_bf16(number);
    switch (type) {
      case SourceType::kF32: std::memcpy(&bytes[block], &number, 4); break;
      case SourceType::kBf16: std::memcpy(&bytes[block], &bf16, 2); break;
      case SourceType::kF16: put_half(block, -1, 1); break;
      case SourceType::kQ6_K: put_half(block + 208, 0.0001f, 0.001f); break;
      case SourceType::kQ4_K:
      case SourceType::kQ5_K:
        put_half(block, 0.001f, 0.01f);
        put_half(block + 2, 0.001f, 0.01f);
        break;
      default:
        put_half(block, 0.01f, 0.1f);
        if (type == SourceType::kQ4_1 || type == SourceType::kQ5_1) put_half(block + 2, -0.8f, 0.1f);
    }
  }
  return bytes;
}

struct Packed {
  PackedMatrix matrix;
  Aligned<uint8_t> bytes;
};

inline Packed pack_all(const PackSource& source, Format format) {
  check_source(source, format);
  Packed packed{packed_shape(format, source.out(), source.in()), {}};
  packed.bytes = Aligned<uint8_t>(packed_bytes(packed.matrix));
  std::memset(packed.bytes.data(), 0xa5, packed.bytes.size());
  pack_strips(source, packed.matrix, 0, packed.matrix.strips(), packed.bytes.data());
  packed.matrix.data = packed.bytes.data();
  return packed;
}

inline Packed random_matrix(Format format, int out, int in, uint64_t seed) {
  // K-quants have rows of whole 256 only.
  const bool whole = in % 256 == 0;
  const SourceType types[] = {SourceType::kQ4_1, SourceType::kQ8_0, SourceType::kBf16, SourceType::kF32,
                              SourceType::kF16,  whole ? SourceType::kQ4_K : SourceType::kQ4_1,
                              whole ? SourceType::kQ5_K : SourceType::kQ5_1,
                              whole ? SourceType::kQ6_K : SourceType::kQ5_1,
                              whole ? SourceType::kQ5_K : SourceType::kQ8_0};
  Random random(seed);
  const SourceType type = types[static_cast<int>(format)];
  const std::vector<uint8_t> bytes = random_weights(type, out, in, random);
  return pack_all({{{type, out, in, bytes.data()}}}, format);
}

// Rows in every form, in arrays of their own.
struct TestRows {
  TestRows(int rows_count, int in)
      : count(rows_count), f32(size_t(rows_count) * in), bf16(f32.size()), codes(f32.size()),
        scales(f32.size() / kGroup), sums(scales.size()), offsets(scales.size()) {
    rows.in = rows.quantized.in = in;
    rows.quantized.codes = codes.data();
    rows.quantized.scales = scales.data();
    rows.quantized.sums = sums.data();
    rows.quantized.offsets = offsets.data();
    rows.bf16 = bf16.data();
    rows.f32 = f32.data();
  }

  // Number i of row r, as the kernel for `format` sees it.
  double stored(Format format, int r, int i) const {
    const size_t at = size_t(r) * rows.in + i;
    if (takes_f32(format)) return f32[at];
    if (takes_bf16(format)) return bf16_to_float(bf16[at]);
    return double(codes[at]) * scales[at / kGroup];
  }

  int count;
  Aligned<float> f32;
  Aligned<uint16_t> bf16;
  Aligned<int8_t> codes;
  Aligned<float> scales, sums;
  Aligned<int32_t> offsets;
  Rows rows;
};

// One output in float64, and the sums that its error bounds are made of.
struct Exact {
  double of_stored = 0;   // from the rows as the kernel sees them
  double of_floats = 0;   // from the rows before they were rounded
  double magnitude = 0;   // sum of |weight x number|; low-bit: of group terms, see linear.h
  double rounding = 0;    // how far rounding the row can move the output
};

inline Exact exact_output(const TestRows& rows, Format format, int r, const float* weights,
                          const float* minima) {
  Exact exact;
  const int in = rows.rows.in;
  for (int group = 0; group < in / kGroup; ++group) {
    const double scale = rows.scales[size_t(r) * (in / kGroup) + group];
    double term = 0, input_sum = 0;
    for (int i = group * kGroup; i < (group + 1) * kGroup; ++i) {
      const double x = rows.stored(format, r, i), original = rows.f32[size_t(r) * in + i];
      term += weights[i] * x;
      input_sum += x;
      exact.of_floats += weights[i] * original;
      if (takes_bf16(format)) exact.rounding += std::fabs(weights[i] * original) * 0x1.01p-9;
      if (takes_codes(format)) {
        exact.rounding += std::fabs(weights[i]) * scale * (0.5 + 0x1p-16);
      } else {
        exact.magnitude += std::fabs(weights[i] * x);
      }
    }
    const double from_minimum = minima ? minima[group] * input_sum : 0;
    exact.of_stored += term;
    if (takes_codes(format)) {
      exact.magnitude += std::fabs(term - from_minimum) + std::fabs(from_minimum);
    }
  }
  return exact;
}

// How far from of_stored an output may be; the bounds of linear.h.
inline double kernel_bound(const Exact& exact, Format format, int in) {
  const double u = 0x1p-24;
  if (takes_f32(format)) return in * u * exact.magnitude + 1e-30;
  if (takes_bf16(format)) return 2.0 * in * u * exact.magnitude + 1e-30;
  return (2.0 * (in / kGroup) + 4) * u * exact.magnitude + 1e-30;
}

}  // namespace octavo::tests
