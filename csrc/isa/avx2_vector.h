// 16 float32 numbers in two registers of AVX2.
// What the functions promise: lanes.h.
#pragma once

#include "tags.h"

#ifdef OCTAVO_HAS_AVX2

#include <immintrin.h>

#include <cstdint>

#include "exp2.h"
#include "lanes.h"

namespace octavo {

template <>
struct Lanes<Avx2> {
  static constexpr int kCount = 16;
  __m256 a, b;

  static OCTAVO_INLINE Lanes load(const float* from) {
    return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
  }
  static OCTAVO_INLINE Lanes all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static OCTAVO_INLINE Lanes load_first(const float* from, int count) {
    return {_mm256_maskload_ps(from, below(count, 0)),
            count > 8 ? _mm256_maskload_ps(from + 8, below(count, 8)) : _mm256_setzero_ps()};
  }
  static OCTAVO_INLINE Lanes from_bf16(const uint16_t* from) {
    return {widened(from), widened(from + 8)};
  }
  static OCTAVO_INLINE Lanes low_halves(const void* from) {
    const __m256i* words = static_cast<const __m256i*>(from);
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(words), 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(words + 1), 16))};
  }
  static OCTAVO_INLINE Lanes high_halves(const void* from) {
    const __m256i* words = static_cast<const __m256i*>(from);
    const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000));
    return {_mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(words), high)),
            _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(words + 1), high))};
  }

  OCTAVO_INLINE void store(float* to) const {
    _mm256_storeu_ps(to, a);
    _mm256_storeu_ps(to + 8, b);
  }
  OCTAVO_INLINE void store_first(float* to, int count) const {
    _mm256_maskstore_ps(to, below(count, 0), a);
    if (count > 8) _mm256_maskstore_ps(to + 8, below(count, 8), b);
  }
  OCTAVO_INLINE void store_bf16(uint16_t* to) const {
    const __m256i packed = _mm256_packus_epi32(rounded_to_bf16(a), rounded_to_bf16(b));
    _mm256_storeu_si256((__m256i*)to, _mm256_permute4x64_epi64(packed, 0xd8));
  }
  OCTAVO_INLINE void store_bf16_halves(uint16_t* to, int half) const {
    uint16_t numbers[16];
    store_bf16(numbers);
    for (int i = 0; i < 16; ++i) to[2 * i + half] = numbers[i];
  }

  OCTAVO_INLINE Lanes operator+(Lanes o) const {
    return {_mm256_add_ps(a, o.a), _mm256_add_ps(b, o.b)};
  }
  OCTAVO_INLINE Lanes operator-(Lanes o) const {
    return {_mm256_sub_ps(a, o.a), _mm256_sub_ps(b, o.b)};
  }
  OCTAVO_INLINE Lanes operator*(Lanes o) const {
    return {_mm256_mul_ps(a, o.a), _mm256_mul_ps(b, o.b)};
  }
  OCTAVO_INLINE Lanes operator/(Lanes o) const {
    return {_mm256_div_ps(a, o.a), _mm256_div_ps(b, o.b)};
  }
  OCTAVO_INLINE Lanes plus(Lanes x, Lanes y) const {
    return {_mm256_fmadd_ps(x.a, y.a, a), _mm256_fmadd_ps(x.b, y.b, b)};
  }
  OCTAVO_INLINE Lanes max(Lanes o) const {
    return {_mm256_max_ps(a, o.a), _mm256_max_ps(b, o.b)};
  }
  OCTAVO_INLINE Lanes min(Lanes o) const {
    return {_mm256_min_ps(a, o.a), _mm256_min_ps(b, o.b)};
  }
  OCTAVO_INLINE Lanes abs() const { return {magnitude(a), magnitude(b)}; }

  OCTAVO_INLINE Lanes keep(int from, int to, float other) const {
    return {kept(a, from, to, 0, other), kept(b, from, to, 8, other)};
  }
  OCTAVO_INLINE Lanes flushed() const { return {flushed(a), flushed(b)}; }

  OCTAVO_INLINE Lanes exp2() const { return {exp2(a), exp2(b)}; }

  OCTAVO_INLINE float sum() const {
    const __m256 x = _mm256_add_ps(a, b);
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
  }
  OCTAVO_INLINE float largest() const {
    const __m256 x = _mm256_max_ps(a, b);
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
  }
  OCTAVO_INLINE int first_equal(Lanes o) const {
    const int low = _mm256_movemask_ps(_mm256_cmp_ps(a, o.a, _CMP_EQ_OQ));
    const int high = _mm256_movemask_ps(_mm256_cmp_ps(b, o.b, _CMP_EQ_OQ));
    return __builtin_ctz(static_cast<unsigned>(low | high << 8) | 1u << kCount);
  }

 private:
  static OCTAVO_INLINE __m256i numbers(int first) {
    return _mm256_add_epi32(_mm256_set1_epi32(first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static OCTAVO_INLINE __m256i below(int count, int first) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), numbers(first));
  }
  static OCTAVO_INLINE __m256 kept(__m256 x, int from, int to, int first, float other) {
    const __m256i inside = _mm256_andnot_si256(below(from, first), below(to, first));
    return _mm256_blendv_ps(_mm256_set1_ps(other), x, _mm256_castsi256_ps(inside));
  }
  static OCTAVO_INLINE __m256 widened(const uint16_t* from) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  static OCTAVO_INLINE __m256 magnitude(__m256 x) {
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
  }
  static OCTAVO_INLINE __m256 flushed(__m256 x) {
    return _mm256_and_ps(
        x, _mm256_cmp_ps(magnitude(x), _mm256_set1_ps(1.17549435e-38f), _CMP_NLT_UQ));
  }
  static OCTAVO_INLINE __m256i rounded_to_bf16(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff));
    const __m256 broken = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    const __m256 quiet = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    const __m256 chosen = _mm256_blendv_ps(_mm256_castsi256_ps(up), quiet, broken);
    return _mm256_srli_epi32(_mm256_castps_si256(chosen), 16);
  }
  static OCTAVO_INLINE __m256 exp2(__m256 v) {
    // 2^-127 is made as 0; a NaN stands second and stays.
    const __m256 x = _mm256_max_ps(_mm256_set1_ps(-127.0f), v);
    const __m256 n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256 f = _mm256_sub_ps(x, n);
    __m256 p = _mm256_set1_ps(kExp2[0]);
    for (int i = 1; i < kExp2Terms; ++i) p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(kExp2[i]));
    const __m256i power = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(power, 23)));
  }
};

}  // namespace octavo

#endif  // OCTAVO_HAS_AVX2
