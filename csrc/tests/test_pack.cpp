// Packing: every source and format against the definitions of GGUF, arrangements, ranges, refusals.
#include "pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "linear_data.h"

namespace {

using namespace octavo;
using namespace octavo::tests;

constexpr SourceType kTypes[] = {SourceType::kF32,  SourceType::kF16,  SourceType::kBf16, SourceType::kQ4_0,
                                 SourceType::kQ4_1, SourceType::kQ5_0, SourceType::kQ5_1, SourceType::kQ8_0,
                                 SourceType::kQ4_K, SourceType::kQ5_K, SourceType::kQ6_K};
constexpr Format kFormats[] = {Format::kQ4,  Format::kQ8,  Format::kBf16, Format::kF32, Format::kF16,
                               Format::kQ4S, Format::kQ5S, Format::kQ6S,  Format::kQ8S};

float half_at(const uint8_t* from) {
  uint16_t half;
  std::memcpy(&half, from, 2);
  return half_to_float(half);
}

void append_halves(const uint8_t* bytes, int count, float scale, float shift, std::vector<float>& out,
                   uint32_t fifth = 0) {
  for (int i = 0; i < count; ++i) out.push_back(scale * float((bytes[i] & 15) + 16 * (fifth >> i & 1)) + shift);
  for (int i = 0; i < count; ++i) {
    out.push_back(scale * float((bytes[i] >> 4) + 16 * (fifth >> (i + count) & 1)) + shift);
  }
}

// The eight 6-bit pairs of a K block, unpacked in the order in which they were packed.
void k_scales(const uint8_t* packed, int (&scales)[8], int (&minima)[8]) {
  for (int i = 0; i < 4; ++i) {
    scales[i] = packed[i] & 63;
    minima[i] = packed[4 + i] & 63;
    scales[4 + i] = (packed[8 + i] & 15) + (packed[i] >> 6) * 16;
    minima[4 + i] = (packed[8 + i] >> 4) + (packed[4 + i] >> 6) * 16;
  }
}

void append_k_block(SourceType type, const uint8_t* block, std::vector<float>& out) {
  int scales[8], minima[8];
  k_scales(block + 4, scales, minima);
  const bool five = type == SourceType::kQ5_K;
  const uint8_t* halves = block + (five ? 48 : 16);
  for (int group = 0; group < 8; ++group) {
    const float scale = half_at(block) * float(scales[group]), shift = -half_at(block + 2) * float(minima[group]);
    for (int i = 0; i < 32; ++i) {
      const uint8_t byte = halves[group / 2 * 32 + i];
      const int code = group % 2 ? byte >> 4 : byte & 15;
      const int fifth = five ? block[16 + i] >> group & 1 : 0;
      out.push_back(scale * float(code + 16 * fifth) + shift);
    }
  }
}

void append_q6_block(const uint8_t* block, std::vector<float>& out) {
  const size_t begin = out.size();
  out.resize(begin + 256);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, quarter = i % 128 / 32, place = i % 32;
    const uint8_t low = block[half * 64 + quarter % 2 * 32 + place], high = block[128 + half * 32 + place];
    const int code = (quarter < 2 ? low & 15 : low >> 4) + 16 * (high >> (2 * quarter) & 3) - 32;
    out[begin + i] = half_at(block + 208) * float(int8_t(block[192 + i / 16])) * float(code);
  }
}

// All numbers of a matrix, block by block, written from the definitions.
std::vector<float> expand(SourceType type, const std::vector<uint8_t>& bytes) {
  std::vector<float> out;
  const int size = block_shape(type).bytes;
  for (size_t at = 0; at < bytes.size(); at += size) {
    const uint8_t* block = &bytes[at];
    uint32_t word = 0;
    std::memcpy(&word, block + (size > 4 ? (type == SourceType::kQ5_1 ? 4 : 2) : 0), size < 4 ? size : 4);
    switch (type) {
      case SourceType::kF32: out.push_back(float_of_bits(word)); break;
      case SourceType::kF16: out.push_back(half_at(block)); break;
      case SourceType::kBf16: out.push_back(float_of_bits(word << 16)); break;
      case SourceType::kQ4_0: append_halves(block + 2, 16, half_at(block), -8 * half_at(block), out); break;
      case SourceType::kQ4_1: append_halves(block + 4, 16, half_at(block), half_at(block + 2), out); break;
      case SourceType::kQ5_0:
        append_halves(block + 6, 16, half_at(block), -16 * half_at(block), out, word);
        break;
      case SourceType::kQ5_1:
        append_halves(block + 8, 16, half_at(block), half_at(block + 2), out, word);
        break;
      case SourceType::kQ8_0:
        for (int i = 0; i < 32; ++i) out.push_back(half_at(block) * float(int8_t(block[2 + i])));
        break;
      case SourceType::kQ6_K: append_q6_block(block, out); break;
      default: append_k_block(type, block, out);
    }
  }
  return out;
}

// What pack.h promises for one of 32 numbers.
float bound(SourceType type, Format format, const float* group, float value) {
  float largest = 0;
  for (int i = 0; i < kGroup; ++i) largest = std::max(largest, std::fabs(group[i]));
  if (is_exact(type, format)) return is_float(type) ? 0 : 1e-6f * std::fabs(value);
  if (format == Format::kBf16) return largest * 0x1p-8f;
  return largest / 254 * 1.002f + 0x1p-25f;
}

void check_types() {
  constexpr int kOut = 21, kIn = 512;
  for (const SourceType type : kTypes) {
    Random random(static_cast<int>(type));
    const std::vector<uint8_t> bytes = random_weights(type, kOut, kIn, random);
    const std::vector<float> expected = expand(type, bytes);
    CHECK(expected.size() == kOut * kIn);
    for (const Format format : kFormats) {
      if (!can_pack(type, format)) continue;
      const Packed packed = pack_all({{{type, kOut, kIn, bytes.data()}}}, format);
      for (int row = 0; row < packed.matrix.strips() * kStrip; ++row) {
        std::vector<float> got(kIn);
        unpack_row(packed.matrix, row, got.data());
        for (int i = 0; i < kIn; ++i) {
          if (row >= kOut) {
            CHECK(got[i] == 0);
            continue;
          }
          const float* want = &expected[size_t(row) * kIn];
          CHECK(std::fabs(got[i] - want[i]) <= bound(type, format, want + i / kGroup * kGroup, want[i]));
        }
      }
    }
  }
}

PackSource one_part(SourceType type) { return {{{type, 32, 256, nullptr}}}; }

void check_default_formats() {
  for (const SourceType type : kTypes) {
    const Format format = default_format(one_part(type));
    CHECK(is_exact(type, format) && can_pack(type, format));
    const double packed = double(packed_strip_bytes(format, 256)) / kStrip;
    CHECK(packed <= 1.35 * double(source_row_bytes(type, 256)));
    CHECK(is_float(type) == !takes_codes(format));
  }
  auto of_two = [](SourceType one, SourceType other) {
    return default_format(PackSource{{{one, 32, 256, nullptr}, {other, 32, 256, nullptr}}});
  };
  CHECK(of_two(SourceType::kQ4_K, SourceType::kQ6_K) == Format::kQ6S);
  CHECK(of_two(SourceType::kQ5_0, SourceType::kQ8_0) == Format::kQ8);
  CHECK(of_two(SourceType::kQ5_1, SourceType::kQ8_0) == Format::kQ8S);
  CHECK(of_two(SourceType::kBf16, SourceType::kF16) == Format::kF32);
}

// Row `row` of a packed matrix has the numbers of row `from` of `bytes` (kF32).
void check_row(const PackedMatrix& matrix, int row, const std::vector<uint8_t>& bytes, int from) {
  std::vector<float> got(matrix.in);
  unpack_row(matrix, row, got.data());
  CHECK(std::memcmp(got.data(), &bytes[size_t(from) * matrix.in * 4], size_t(matrix.in) * 4) == 0);
}

void check_arrangements() {
  Random random(4);
  constexpr SourceType kType = SourceType::kF32;
  const auto first = random_weights(kType, 96, 32, random), second = random_weights(kType, 96, 32, random);
  const auto third = random_weights(kType, 5, 32, random);

  std::vector<int> reversed(20);
  for (int i = 0; i < 20; ++i) reversed[i] = 19 - i;
  const PackSource parts = {{{kType, 20, 32, first.data(), reversed.data()},
                             {kType, 7, 32, second.data()},
                             {kType, 5, 32, third.data()}}};
  const Packed joined = pack_all(parts, Format::kF32);
  CHECK(joined.matrix.out == 32);
  for (int i = 0; i < 20; ++i) check_row(joined.matrix, i, first, 19 - i);
  for (int i = 0; i < 7; ++i) check_row(joined.matrix, 20 + i, second, i);
  for (int i = 0; i < 5; ++i) check_row(joined.matrix, 27 + i, third, i);

  const PackSource pair = {{{kType, 96, 32, first.data()}, {kType, 96, 32, second.data()}},
                           Arrangement::kPaired};
  const Packed paired = pack_all(pair, Format::kF32);
  for (int i = 0; i < 96; ++i) {
    check_row(paired.matrix, i / 32 * 64 + i % 32, first, i);
    check_row(paired.matrix, i / 32 * 64 + 32 + i % 32, second, i);
  }

  Aligned<uint8_t> by_parts(packed_bytes(paired.matrix));
  for (int strip = 0; strip < paired.matrix.strips(); strip += 5) {
    pack_strips(pair, paired.matrix, strip, std::min(strip + 5, paired.matrix.strips()), by_parts.data());
  }
  CHECK(std::memcmp(by_parts.data(), paired.bytes.data(), by_parts.size()) == 0);
}

bool refused(const PackSource& source, Format format) {
  try {
    check_source(source, format);
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

void check_refusals() {
  const SourceMatrix good = {SourceType::kQ4_1, 32, 64, nullptr};
  CHECK(!refused({{good}}, Format::kQ4));
  CHECK(refused({}, Format::kQ4));
  CHECK(refused({{{SourceType::kQ8_0, 32, 64, nullptr}}}, Format::kQ4));
  CHECK(refused({{{SourceType::kQ4_K, 32, 256, nullptr}}}, Format::kQ4));
  CHECK(refused({{{SourceType::kQ4_K, 32, 64, nullptr}}}, Format::kQ4S));
  CHECK(refused({{{SourceType::kQ6_K, 32, 256, nullptr}}}, Format::kQ5S));
  CHECK(refused({{{SourceType::kF32, 32, 64, nullptr}}}, Format::kF16));
  CHECK(refused({{{SourceType::kF32, 32, 65, nullptr}}}, Format::kF32));
  CHECK(refused({{{static_cast<SourceType>(10), 32, 256, nullptr}}}, Format::kF32));
  CHECK(refused({{good, {SourceType::kQ4_1, 32, 96, nullptr}}}, Format::kQ4));
  CHECK(refused({{good}, Arrangement::kPaired}, Format::kQ4));
  CHECK(refused({{{SourceType::kQ4_1, 16, 64, nullptr}, {SourceType::kQ4_1, 16, 64, nullptr}},
                 Arrangement::kPaired}, Format::kQ4));
}

// Scales of any size give codes that fit; what is not finite stays visible.
void check_quantizing() {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float size : {0.0f, 1e-9f, 3e-6f, 7e-4f, 1.0f, 127.06f, 1e6f, infinity}) {
    std::vector<float> numbers(32, size / 3);
    numbers[5] = -size;
    numbers[6] = size;
    const auto* bytes = reinterpret_cast<const uint8_t*>(numbers.data());
    const Packed packed = pack_all({{{SourceType::kF32, 1, 32, bytes}}}, Format::kQ8);
    std::vector<float> got(32);
    unpack_row(packed.matrix, 0, got.data());
    for (int i = 0; i < 32; ++i) {
      if (size == infinity) CHECK(std::isnan(got[i]));
      else CHECK(std::fabs(got[i] - numbers[i]) <= size / 254 * 1.002f + 0x1p-25f);
    }
  }
}

void check_halves() {
  for (uint32_t half = 0; half < 65536; ++half) {
    const float value = half_to_float(static_cast<uint16_t>(half));
    if ((half & 0x7fff) > 0x7c00) CHECK(std::isnan(value) && (float_to_half(value) & 0x7fff) > 0x7c00);
    else CHECK(float_to_half(value) == half);
    if ((half & 0x7fff) >= 0x7bff) continue;
    const float next = half_to_float(static_cast<uint16_t>(half + 1)), middle = value + (next - value) / 2;
    CHECK(float_to_half(middle) == (half & 1 ? half + 1 : half));  // ties to even
    CHECK(float_to_half(std::nextafter(middle, value)) == half);
    CHECK(float_to_half(std::nextafter(middle, next)) == half + 1);
  }
  CHECK(float_to_half(65519.0f) == 0x7bff && float_to_half(65520.0f) == 0x7c00);
  CHECK(float_to_bf16(1.00390625f) == 0x3f80 && float_to_bf16(1.01171875f) == 0x3f82);
  CHECK(std::isnan(bf16_to_float(float_to_bf16(float_of_bits(0x7f800001)))));
}

}  // namespace

int main() {
  check_halves();
  check_types();
  check_default_formats();
  check_arrangements();
  check_refusals();
  check_quantizing();
}
