// Products of bf16 pairs with AVX-512: queries and probabilities become bf16 too.
#pragma once

#include "tags.h"

#ifdef OCTAVO_HAS_AVX512

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "attention_kernels.h"
#include "avx512_vector.h"

namespace octavo {

template <>
struct PageWords<Avx512, PageFormat::kBf16> {
  using Vector = Lanes<Avx512>;
  using Operand = uint16_t;
  using Spread = __m512i;
  static constexpr int kNumbers = 2;
  __m512i words;

  static OCTAVO_INLINE PageWords load(const uint8_t* from) { return {_mm512_loadu_si512(from)}; }
  static OCTAVO_INLINE Spread spread(const Operand* from) {
    int32_t pair;
    std::memcpy(&pair, from, sizeof pair);
    return _mm512_set1_epi32(pair);
  }
  static OCTAVO_INLINE void store_operands(Operand* to, Vector x) { x.store_bf16(to); }
  // The instruction takes numbers below 2^-126 for 0.
  OCTAVO_INLINE Vector add_to(Vector sum, Spread row) const {
    return {_mm512_dpbf16_ps(sum.v, (__m512bh)words, (__m512bh)row)};
  }
};

}  // namespace octavo

#endif  // OCTAVO_HAS_AVX512
