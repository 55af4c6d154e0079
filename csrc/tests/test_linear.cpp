// Linear layers: bounds, bits that do not depend on neighbours, nothing written outside.
//
// Built once for each instruction set. Sets that its flags allow are also compared with each other, but not
// with sanitizers, under which the kernels of each set take a minute to compile.
#include "linear.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "check.h"
#include "isa.h"
#include "linear_data.h"
#include "quantize.h"

namespace {

using namespace octavo;
using namespace octavo::tests;

constexpr int kMostRows = 64;
constexpr float kPoison = -12345.0f;
constexpr Format kFormats[] = {Format::kQ4,  Format::kQ8,  Format::kBf16, Format::kF32, Format::kF16,
                               Format::kQ4S, Format::kQ5S, Format::kQ6S,  Format::kQ8S};
constexpr Format kCodes[] = {Format::kQ4, Format::kQ8, Format::kQ4S, Format::kQ5S, Format::kQ6S, Format::kQ8S};

template <class Isa>
TestRows random_rows(int count, int in, uint64_t seed) {
  TestRows rows(count, in);
  Random random(seed);
  for (size_t i = 0; i < rows.f32.size(); ++i) {
    // A few large numbers among small ones, as in real activations.
    rows.f32[i] = random.between(-1, 1) * (random.bits() % 61 ? 1.0f : 20.0f);
  }
  for (int r = 0; r < count; ++r) quantize_row<Isa>(&rows.f32[size_t(r) * in], rows.rows.quantized, r);
  RowForm<Isa>::to_bf16(rows.f32.data(), count * in, rows.bf16.data());
  return rows;
}

// The outputs of rows r0..r1 in strips s0..s1, in a poisoned matrix with a margin on every side.
template <class Isa>
std::vector<float> run(const PackedMatrix& matrix, const TestRows& rows, Range of_rows, Range of_strips) {
  const size_t stride = matrix.out + 5;
  std::vector<float> out((rows.count + 1) * stride, kPoison);
  std::vector<int> seen(size_t(rows.count) * matrix.strips());
  const StoreRows<Isa> store{out.data(), stride, matrix.out};
  linear<Isa>(matrix, rows.rows, of_rows, of_strips, [&](int row, int strip, const float* values) {
    CHECK(reinterpret_cast<uintptr_t>(values) % 64 == 0);
    CHECK(seen[size_t(row) * matrix.strips() + strip]++ == 0);
    store(row, strip, values);
  });
  for (int row = 0; row <= rows.count; ++row) {
    for (int column = 0; column < int(stride); ++column) {
      const bool wanted = row >= of_rows.begin && row < of_rows.end && column < matrix.out &&
                          column / kStrip >= of_strips.begin && column / kStrip < of_strips.end;
      CHECK(wanted == (out[row * stride + column] != kPoison));
    }
  }
  return out;
}

float half_at(const uint8_t* from) {
  uint16_t half;
  std::memcpy(&half, from, 2);
  return half_to_float(half);
}

template <int kBits>
float scaled_minimum(const uint8_t* strip, size_t group, int lane) {
  using Group = ScaledGroup<kBits>;
  const uint8_t* at = strip + group * Group::kBytes;
  return half_at(at + Group::kMinima + lane * 2) * float(int8_t(at[Group::kMinimumFactor + lane]));
}

// What is added to each number of a group, whatever its code: nothing in formats without minima.
std::vector<float> minima_of(const PackedMatrix& matrix, int row) {
  std::vector<float> minima(matrix.in / kGroup);
  const uint8_t* strip = matrix.strip(row / kStrip);
  const int lane = row % kStrip;
  for (size_t g = 0; g < minima.size(); ++g) {
    switch (matrix.format) {
      case Format::kQ4: minima[g] = half_at(strip + g * kQ4GroupBytes + 288 + lane * 2); break;
      case Format::kQ4S: minima[g] = scaled_minimum<4>(strip, g, lane); break;
      case Format::kQ5S: minima[g] = scaled_minimum<5>(strip, g, lane); break;
      case Format::kQ6S: minima[g] = scaled_minimum<6>(strip, g, lane); break;
      case Format::kQ8S: minima[g] = scaled_minimum<8>(strip, g, lane); break;
      default: break;
    }
  }
  return minima;
}

// A sum in float32 of dequantised weights and numbers, input by input.
float plain_output(const TestRows& rows, Format format, int r, const std::vector<float>& weights) {
  float sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) sum += weights[i] * float(rows.stored(format, r, int(i)));
  return sum;
}

void check_bounds(const PackedMatrix& matrix, const TestRows& rows, const std::vector<float>& out) {
  const bool low_bit = takes_codes(matrix.format);
  std::vector<float> weights(matrix.in);
  for (int column = 0; column < matrix.out; ++column) {
    unpack_row(matrix, column, weights.data());
    const std::vector<float> minima = minima_of(matrix, column);
    for (int r = 0; r < rows.count; r += r < 8 ? 1 : 11) {
      const Exact exact =
          exact_output(rows, matrix.format, r, weights.data(), minima.data());
      const double bound = kernel_bound(exact, matrix.format, matrix.in);
      const double value = out[r * size_t(matrix.out + 5) + column];
      CHECK(std::fabs(value - exact.of_stored) <= bound);
      CHECK(std::fabs(value - exact.of_floats) <= bound + exact.rounding);
      double magnitude = exact.magnitude;
      if (low_bit) {  // the plain sum has other terms: weights with their minima, one for each input
        for (int i = 0; i < matrix.in; ++i) magnitude += std::fabs(weights[i] * rows.stored(matrix.format, r, i));
      }
      const double of_plain = plain_output(rows, matrix.format, r, weights);
      CHECK(std::fabs(value - of_plain) <= bound + (matrix.in + 2) * 0x1p-24 * magnitude);
    }
  }
}

void same_bits(const std::vector<float>& all, const std::vector<float>& part) {
  for (size_t i = 0; i < all.size(); ++i) {
    if (part[i] != kPoison) CHECK(std::memcmp(&all[i], &part[i], sizeof(float)) == 0);
  }
}

// Whatever rows and strips are computed together, a row has the bits that it has among all.
template <class Isa>
void check_cuts(const PackedMatrix& matrix, const TestRows& rows, const std::vector<float>& all) {
  const int strips = matrix.strips();
  for (const int count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 31, 64}) {
    same_bits(all, run<Isa>(matrix, rows, {0, count}, {0, strips}));
    const int begin = (rows.count - count) / 2;
    same_bits(all, run<Isa>(matrix, rows, {begin, begin + count}, {0, strips}));
    if (strips < 3) continue;
    same_bits(all, run<Isa>(matrix, rows, {begin, begin + count}, {1, strips - 1}));
    same_bits(all, run<Isa>(matrix, rows, {begin, begin + count}, {strips / 2, strips / 2 + 1}));
  }
}

template <class Isa>
void check_shape(Format format, int out, int in) {
  const Packed packed = random_matrix(format, out, in, out * 7 + in);
  const TestRows rows = random_rows<Isa>(kMostRows, in, in);
  const std::vector<float> all = run<Isa>(packed.matrix, rows, {0, kMostRows}, {0, packed.matrix.strips()});
  check_bounds(packed.matrix, rows, all);
  check_cuts<Isa>(packed.matrix, rows, all);
  run<Isa>(packed.matrix, rows, {3, 3}, {0, packed.matrix.strips()});
  run<Isa>(packed.matrix, rows, {0, 3}, {0, 0});
}

// Codes and weights at their ends: sums that would not fit into 16 bits must not be cut.
template <class Isa>
void check_extremes() {
  constexpr int kIn = 64;
  for (const Format format : kCodes) {
    Packed packed = random_matrix(format, 16, kIn, 1);
    const int bits = scaled_bits(format);
    const size_t code_bytes = bits ? 256 + 64 * (bits - 4) : format == Format::kQ4 ? 256 : 512;
    const size_t group_bytes = packed_strip_bytes(format, kGroup);
    for (size_t at = 0; at < packed.bytes.size(); at += group_bytes) {
      for (size_t i = 0; i < code_bytes; ++i) packed.bytes[at + i] = i % 64 < 32 ? 0xff : 0x00;
    }
    for (const float sign : {1.0f, -1.0f}) {
      TestRows rows(1, kIn);
      for (int i = 0; i < kIn; ++i) rows.f32[i] = sign * 3;
      quantize_row<Isa>(rows.f32.data(), rows.rows.quantized, 0);
      CHECK(rows.codes[0] == int8_t(127 * sign));
      check_bounds(packed.matrix, rows, run<Isa>(packed.matrix, rows, {0, 1}, {0, 1}));
    }
  }
}

template <class Isa>
void check_added_rows() {
  const Packed packed = random_matrix(Format::kF32, 17, 32, 5);
  const TestRows rows = random_rows<Isa>(3, 32, 5);
  std::vector<float> added(3 * 22, 1.5f);
  const std::vector<float> stored = run<Isa>(packed.matrix, rows, {0, 3}, {0, 2});
  linear<Isa>(packed.matrix, rows.rows, {0, 3}, {0, 2}, AddRows<Isa>{added.data(), 22, 17});
  for (int i = 0; i < 3 * 22; ++i) CHECK(added[i] == 1.5f + (i % 22 < 17 ? stored[i] : 0));
}

template <class Isa>
void check_quantizing() {
  TestRows rows = random_rows<Isa>(1, 192, 9);
  float* values = rows.f32.data();
  for (int i = 0; i < 32; ++i) values[32 + i] = 0;
  for (int i = 0; i < 32; ++i) values[64 + i] = 0x1p-110f;
  values[96 + 7] = std::numeric_limits<float>::quiet_NaN();
  values[128 + 20] = -std::numeric_limits<float>::infinity();
  quantize_row<Isa>(values, rows.rows.quantized, 0);
  for (const int group : {0, 1, 2, 5}) {
    int sum = 0;
    for (int i = group * 32; i < group * 32 + 32; ++i) {
      CHECK(rows.codes[i] >= -127 && rows.codes[i] <= 127);
      CHECK(std::fabs(rows.stored(Format::kQ8, 0, i) - values[i]) <=
            rows.scales[group] * (0.5 + 0x1p-16) + 0x1p-100);
      sum += rows.codes[i];
    }
    CHECK(rows.offsets[group] == -128 * sum);
    CHECK(rows.sums[group] == rows.scales[group] * float(sum));
  }
  CHECK(rows.scales[1] == 0 && rows.scales[2] == 0);
  for (const int group : {3, 4}) CHECK(std::isnan(rows.scales[group]) && rows.codes[group * 32] == 0);
  const Packed packed = random_matrix(Format::kQ4, 16, 192, 3);
  for (const float value : run<Isa>(packed.matrix, rows, {0, 1}, {0, 1})) {
    CHECK(std::isnan(value) || value == kPoison);
  }
}

template <class Isa>
void check_all() {
  for (const Format format : kFormats) {
    for (const int in : {32, 64, 96, 576}) {
      for (const int out : {1, 15, 16, 17}) check_shape<Isa>(format, out, in);
    }
    check_shape<Isa>(format, 192, 576);
    check_shape<Isa>(format, 576, 96);
    check_shape<Isa>(format, 960, 64);
    check_shape<Isa>(format, 17, 1536);
    check_shape<Isa>(format, 80, 1536);
    check_shape<Isa>(format, 3, 12288);  // more rows than stay in the cache together
  }
  check_extremes<Isa>();
  check_added_rows<Isa>();
  check_quantizing<Isa>();
}

// Low-bit formats give the same bits on all sets that round a product and a sum once.
template <class One, class Other>
[[maybe_unused]] void check_same_bits() {
  for (const Format format : kCodes) {
    const Packed packed = random_matrix(format, 48, 768, 2);
    const TestRows rows = random_rows<One>(13, 768, 8), others = random_rows<Other>(13, 768, 8);
    CHECK(std::memcmp(rows.codes.data(), others.codes.data(), rows.codes.size()) == 0);
    CHECK(std::memcmp(rows.scales.data(), others.scales.data(), rows.scales.size() * 4) == 0);
    CHECK(std::memcmp(rows.sums.data(), others.sums.data(), rows.sums.size() * 4) == 0);
    same_bits(run<One>(packed.matrix, rows, {0, 13}, {0, 3}), run<Other>(packed.matrix, others, {0, 13}, {0, 3}));
  }
}

}  // namespace

int main() {
  check_all<TestedIsa>();
#ifndef __SANITIZE_ADDRESS__
#ifdef OCTAVO_HAS_AVX2
  check_same_bits<Plain, Avx2>();
#endif
#ifdef OCTAVO_HAS_AVX512
  check_same_bits<Avx2, Avx512>();
#endif
#endif
}
