// Rows of activations in the form that a matrix's format asks for.
//
//   RowForm<Isa>::quantize(values, rows, row, group)   32 floats: one group of a QuantizedRows
//   RowForm<Isa>::to_bf16(values, count, out)
//   quantize_row, prepare_row                          whole rows
//
// A group's scale is its largest magnitude / 127; codes are rounded to the nearest, ties to even, so that
// each number moves by at most half the scale (1 + 2^-20). All instruction sets give the same bits. A
// group whose largest magnitude is below 2^-100 becomes zeros. One with a NaN or an infinity gets codes of
// zero and a NaN as its scale, so that the outputs which depend on it are NaN.
#pragma once

#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "half.h"
#include "isa/tags.h"
#include "isa/unroll.h"
#include "types.h"

#ifdef OCTAVO_HAS_AVX2
#include <immintrin.h>
#endif

namespace octavo {

// Below, the reciprocal of a scale would overflow.
static constexpr float kSmallestMagnitude = 0x1p-100f;

template <class Isa>
struct RowForm;

// The factors between the numbers of a group and its codes.
struct GroupScale {
  float scale;
  float inverse;
  bool finite;  // if not, the codes must be zeros
};

// `magnitude` is the largest of the group, or NaN.
template <class Isa>
static OCTAVO_INLINE GroupScale group_scale(float magnitude) {
  if (magnitude < kSmallestMagnitude) return {0.0f, 0.0f, true};
  if (magnitude <= 3.4028235e38f) return {magnitude / 127.0f, 127.0f / magnitude, true};
  return {float_of_bits(0x7fc00000), 0.0f, false};
}

// Where group `group` of row `row` lies.
template <class Isa>
static OCTAVO_INLINE int8_t* group_codes(const QuantizedRows& rows, int row, int group) {
  return rows.codes + static_cast<size_t>(row) * rows.in + group * kGroup;
}

// What the codes of one group need beside themselves.
template <class Isa>
static OCTAVO_INLINE void store_scale(const QuantizedRows& rows, int row, int group, float scale,
                                      int32_t code_sum) {
  const size_t at = static_cast<size_t>(row) * (rows.in / kGroup) + group;
  rows.scales[at] = scale;
  rows.sums[at] = scale * static_cast<float>(code_sum);
  rows.offsets[at] = -128 * code_sum;
}

#ifdef OCTAVO_HAS_AVX512

template <>
struct RowForm<Avx512> {
  static OCTAVO_INLINE void quantize(const float* values, const QuantizedRows& rows, int row, int group) {
    quantize(_mm512_loadu_ps(values), _mm512_loadu_ps(values + 16), rows, row, group);
  }

  // The same for numbers that are in registers: inputs 0-15 and 16-31 of the group.
  static OCTAVO_INLINE void quantize(__m512 low, __m512 high, const QuantizedRows& rows, int row,
                                     int group) {
    const __m512 magnitudes = _mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high));
    float magnitude = _mm512_reduce_max_ps(magnitudes);
    if (_mm512_cmp_ps_mask(low, high, _CMP_UNORD_Q)) magnitude = float_of_bits(0x7fc00000);
    const GroupScale factors = group_scale<Avx512>(magnitude);
    if (!factors.finite) low = high = _mm512_setzero_ps();
    const __m512 inverse = _mm512_set1_ps(factors.inverse);
    const __m512i low_codes = _mm512_cvtps_epi32(_mm512_mul_ps(low, inverse));
    const __m512i high_codes = _mm512_cvtps_epi32(_mm512_mul_ps(high, inverse));
    int8_t* codes = group_codes<Avx512>(rows, row, group);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), _mm512_cvtsepi32_epi8(low_codes));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + 16), _mm512_cvtsepi32_epi8(high_codes));
    const int32_t code_sum = _mm512_reduce_add_epi32(_mm512_add_epi32(low_codes, high_codes));
    store_scale<Avx512>(rows, row, group, factors.scale, code_sum);
  }

  // Numbers below 2^-126 become zero.
  static OCTAVO_INLINE void to_bf16(const float* values, int count, uint16_t* out) {
    int i = 0;
    for (; i + 16 <= count; i += 16) {
      const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(values + i));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), rounded);
    }
    for (; i < count; ++i) out[i] = float_to_bf16(values[i]);
  }
};

#endif  // OCTAVO_HAS_AVX512

#ifdef OCTAVO_HAS_AVX2

template <>
struct RowForm<Avx2> {
  static OCTAVO_INLINE void quantize(const float* values, const QuantizedRows& rows, int row, int group) {
    const __m256 no_sign = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    __m256 part[4];
    __m256 largest = _mm256_setzero_ps(), unordered = _mm256_setzero_ps();
    unroll<4>([&](auto i) OCTAVO_BODY {
      part[i] = _mm256_loadu_ps(values + i * 8);
      largest = _mm256_max_ps(largest, _mm256_and_ps(part[i], no_sign));
      unordered = _mm256_or_ps(unordered, _mm256_cmp_ps(part[i], part[i], _CMP_UNORD_Q));
    });
    float magnitude = reduce_max(largest);
    if (_mm256_movemask_ps(unordered)) magnitude = float_of_bits(0x7fc00000);
    const GroupScale factors = group_scale<Avx2>(magnitude);
    const __m256 inverse = _mm256_set1_ps(factors.inverse);
    __m256i codes[4];
    unroll<4>([&](auto i) OCTAVO_BODY {
      if (!factors.finite) part[i] = _mm256_setzero_ps();
      codes[i] = _mm256_cvtps_epi32(_mm256_mul_ps(part[i], inverse));
    });
    // Packing works on 128-bit lanes; the permutation puts groups of four bytes back in order.
    const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(codes[0], codes[1]),
                                             _mm256_packs_epi32(codes[2], codes[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    int8_t* to = group_codes<Avx2>(rows, row, group);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(bytes, order));
    const int32_t code_sum = reduce_add(_mm256_add_epi32(_mm256_add_epi32(codes[0], codes[1]),
                                                         _mm256_add_epi32(codes[2], codes[3])));
    store_scale<Avx2>(rows, row, group, factors.scale, code_sum);
  }

  static OCTAVO_INLINE void to_bf16(const float* values, int count, uint16_t* out) {
    for (int i = 0; i < count; ++i) out[i] = float_to_bf16(values[i]);
  }

 private:
  static OCTAVO_INLINE float reduce_max(__m256 values) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps(values, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
  }
  static OCTAVO_INLINE int32_t reduce_add(__m256i values) {
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(values), _mm256_extracti128_si256(values, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
  }
};

#endif  // OCTAVO_HAS_AVX2

template <>
struct RowForm<Plain> {
  static OCTAVO_INLINE void quantize(const float* values, const QuantizedRows& rows, int row, int group) {
    float magnitude = 0;
    bool is_number = true;
    for (int i = 0; i < kGroup; ++i) {
      magnitude = std::fabs(values[i]) > magnitude ? std::fabs(values[i]) : magnitude;
      is_number &= values[i] == values[i];
    }
    if (!is_number) magnitude = float_of_bits(0x7fc00000);
    const GroupScale factors = group_scale<Plain>(magnitude);
    int8_t* codes = group_codes<Plain>(rows, row, group);
    int32_t code_sum = 0;
    for (int i = 0; i < kGroup; ++i) {
      const float value = factors.finite ? values[i] : 0.0f;
      codes[i] = static_cast<int8_t>(round_to_even(value * factors.inverse));
      code_sum += codes[i];
    }
    store_scale<Plain>(rows, row, group, factors.scale, code_sum);
  }

  static OCTAVO_INLINE void to_bf16(const float* values, int count, uint16_t* out) {
    for (int i = 0; i < count; ++i) out[i] = float_to_bf16(values[i]);
  }
};

// One row of rows.in floats.
template <class Isa>
static void quantize_row(const float* values, const QuantizedRows& rows, int row) {
  assert(rows.in % kGroup == 0);
  for (int group = 0; group < rows.in / kGroup; ++group) {
    RowForm<Isa>::quantize(values + group * kGroup, rows, row, group);
  }
}

}  // namespace octavo
