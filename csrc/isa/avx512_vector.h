// 16 float32 numbers in one register of AVX-512. What the functions promise: lanes.h.
#pragma once

#include "tags.h"

#ifdef OCTAVO_HAS_AVX512

#include <immintrin.h>

#include <cstdint>

#include "exp2.h"
#include "lanes.h"

namespace octavo {

template <>
struct Lanes<Avx512> {
  static constexpr int kCount = 16;
  __m512 v;

  static OCTAVO_INLINE Lanes load(const float* from) { return {_mm512_loadu_ps(from)}; }
  static OCTAVO_INLINE Lanes all(float x) { return {_mm512_set1_ps(x)}; }
  static OCTAVO_INLINE Lanes load_first(const float* from, int count) {
    return {_mm512_maskz_loadu_ps(first(count), from)};
  }
  static OCTAVO_INLINE Lanes from_bf16(const uint16_t* from) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
  }
  static OCTAVO_INLINE Lanes low_halves(const void* from) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(from), 16))};
  }
  static OCTAVO_INLINE Lanes high_halves(const void* from) {
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000));
    return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(from), high))};
  }

  OCTAVO_INLINE void store(float* to) const { _mm512_storeu_ps(to, v); }
  OCTAVO_INLINE void store_first(float* to, int count) const {
    _mm512_mask_storeu_ps(to, first(count), v);
  }
  OCTAVO_INLINE void store_bf16(uint16_t* to) const {
    _mm256_storeu_si256((__m256i*)to, rounded_to_bf16());
  }
  OCTAVO_INLINE void store_bf16_halves(uint16_t* to, int half) const {
    const __m512i wide = _mm512_cvtepu16_epi32(rounded_to_bf16());
    if (half == 0) {
      _mm512_mask_storeu_epi16(to, 0x55555555u, wide);
    } else {
      _mm512_mask_storeu_epi16(to, 0xaaaaaaaau, _mm512_slli_epi32(wide, 16));
    }
  }

  OCTAVO_INLINE Lanes operator+(Lanes b) const { return {_mm512_add_ps(v, b.v)}; }
  OCTAVO_INLINE Lanes operator-(Lanes b) const { return {_mm512_sub_ps(v, b.v)}; }
  OCTAVO_INLINE Lanes operator*(Lanes b) const { return {_mm512_mul_ps(v, b.v)}; }
  OCTAVO_INLINE Lanes operator/(Lanes b) const { return {_mm512_div_ps(v, b.v)}; }
  OCTAVO_INLINE Lanes plus(Lanes a, Lanes b) const { return {_mm512_fmadd_ps(a.v, b.v, v)}; }
  OCTAVO_INLINE Lanes max(Lanes b) const { return {_mm512_max_ps(v, b.v)}; }
  OCTAVO_INLINE Lanes min(Lanes b) const { return {_mm512_min_ps(v, b.v)}; }
  OCTAVO_INLINE Lanes abs() const { return {_mm512_abs_ps(v)}; }

  OCTAVO_INLINE Lanes keep(int from, int to, float other) const {
    const __mmask16 kept = static_cast<__mmask16>(first(to) & ~first(from));
    return {_mm512_mask_blend_ps(kept, _mm512_set1_ps(other), v)};
  }
  OCTAVO_INLINE Lanes flushed() const {
    const __mmask16 normal =
        _mm512_cmp_ps_mask(_mm512_abs_ps(v), _mm512_set1_ps(1.17549435e-38f), _CMP_NLT_UQ);
    return {_mm512_maskz_mov_ps(normal, v)};
  }

  OCTAVO_INLINE Lanes exp2() const {
    // Far enough down that the product below is 0; a NaN stands second and stays.
    const __m512 x = _mm512_max_ps(_mm512_set1_ps(-160.0f), v);
    const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 f = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(kExp2[0]);
    for (int i = 1; i < kExp2Terms; ++i) p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(kExp2[i]));
    return {_mm512_scalef_ps(p, n)};
  }

  OCTAVO_INLINE float sum() const { return _mm512_reduce_add_ps(v); }
  OCTAVO_INLINE float largest() const { return _mm512_reduce_max_ps(v); }
  OCTAVO_INLINE int first_equal(Lanes b) const {
    const unsigned equal = _mm512_cmp_ps_mask(v, b.v, _CMP_EQ_OQ);
    return __builtin_ctz(equal | 1u << kCount);
  }

 private:
  static OCTAVO_INLINE __mmask16 first(int count) {
    const int most = count < 0 ? 0 : count > 16 ? 16 : count;
    return static_cast<__mmask16>((1u << most) - 1);
  }

  OCTAVO_INLINE __m256i rounded_to_bf16() const {
    return (__m256i)_mm512_cvtneps_pbh(v);
  }
};

}  // namespace octavo

#endif  // OCTAVO_HAS_AVX512
