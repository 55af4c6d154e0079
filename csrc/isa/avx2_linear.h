// Linear layers with AVX2: two registers hold one number of each of a strip's 16 columns.
//
// There is no instruction for dot products of bytes that cannot overflow. Codes are therefore taken as
// halves of 4 bits: a product of two pairs is at most 2 x 15 x 128, and the 8 of a group add up to less than
// 2^15, so that 16-bit sums are exact until the end of a group.
#pragma once

#include "tags.h"

#ifdef OCTAVO_HAS_AVX2

#include <immintrin.h>

#include <cstring>

#include "../types.h"
#include "linear_kernels.h"
#include "scaled_linear.h"
#include "unroll.h"

namespace octavo {

template <>
struct LinearKernels<Avx2> {
  static constexpr int kMaxRows = 4;

  static constexpr int tile_strips(Format, int rows) { return rows == 1 ? 2 : 1; }

  template <Format F, int R, int S>
  static OCTAVO_NOINLINE void tile(const uint8_t* weights, size_t strip_bytes, const Rows& rows,
                                   int row, float* out) {
    if constexpr (F == Format::kQ4) q4<R, S>(weights, strip_bytes, rows.quantized, row, out);
    if constexpr (F == Format::kQ8) q8<R, S>(weights, strip_bytes, rows.quantized, row, out);
    if constexpr (F == Format::kBf16) bf16<R, S>(weights, strip_bytes, rows, row, out);
    if constexpr (takes_f32(F)) f32<F, R, S>(weights, strip_bytes, rows, row, out);
    if constexpr (scaled_bits(F) != 0) {
      ScaledTile<Avx2, scaled_bits(F)>::template run<R, S>(weights, strip_bytes, rows.quantized, row, out);
    }
  }

 private:
  static OCTAVO_INLINE __m256i load(const uint8_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }

  static OCTAVO_INLINE __m256 load_half(const uint8_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }

  // Four bytes, in each of the 8 lanes.
  static OCTAVO_INLINE __m256i spread(const void* from) {
    int32_t value;
    std::memcpy(&value, from, sizeof value);
    return _mm256_set1_epi32(value);
  }

  // Halves of a strip follow each other: half h of strip s has number 2 s + h.
  template <int R, int H>
  static OCTAVO_INLINE void store(const __m256 (&sums)[R][H], float* out) {
    unroll<R>([&](auto r) OCTAVO_BODY {
      unroll<H>([&](auto h) OCTAVO_BODY { _mm256_store_ps(out + (r * H + h) * 8, sums[r][h]); });
    });
  }

  template <int R, int H>
  static OCTAVO_INLINE void clear(__m256 (&sums)[R][H]) {
    unroll<R>([&](auto r) OCTAVO_BODY {
      unroll<H>([&](auto h) OCTAVO_BODY { sums[r][h] = _mm256_setzero_ps(); });
    });
  }

  static OCTAVO_INLINE __m256i add_dots(__m256i sums, __m256i small, __m256i inputs) {
    return _mm256_add_epi16(sums, _mm256_maddubs_epi16(small, inputs));
  }

  template <int R, int S>
  static OCTAVO_INLINE void q4(const uint8_t* w, size_t strip_bytes, const QuantizedRows& rows, int row,
                               float* out) {
    const size_t in = rows.in, groups = in / kGroup;
    const int8_t* codes = rows.codes + row * in;
    const float* scales = rows.scales + row * groups;
    const float* code_sums = rows.sums + row * groups;
    const __m256i low_half = _mm256_set1_epi8(15);
    Ahead<R, S, kQ4GroupBytes> ahead(w, strip_bytes);
    __m256 sums[R][2 * S];
    clear(sums);
    for (size_t g = 0; g < groups; ++g) {
      ahead.fetch();
      unroll<2 * S>([&](auto h) OCTAVO_BODY {
        const uint8_t* at = w + h / 2 * strip_bytes;
        __m256i dots[R];
        unroll<R>([&](auto r) OCTAVO_BODY { dots[r] = _mm256_setzero_si256(); });
        unroll<4>([&](auto j) OCTAVO_BODY {
          const __m256i both = load(at + j * 64 + h % 2 * 32);
          const __m256i low = _mm256_and_si256(both, low_half);
          const __m256i high = _mm256_and_si256(_mm256_srli_epi16(both, 4), low_half);
          unroll<R>([&](auto r) OCTAVO_BODY {
            dots[r] = add_dots(dots[r], low, spread(codes + r * in + j * 4));
            dots[r] = add_dots(dots[r], high, spread(codes + r * in + j * 4 + 16));
          });
        });
        const __m256 scale = load_half(at + 256 + h % 2 * 16);
        const __m256 minimum = load_half(at + 288 + h % 2 * 16);
        unroll<R>([&](auto r) OCTAVO_BODY {
          const __m256i dot = _mm256_madd_epi16(dots[r], _mm256_set1_epi16(1));
          const __m256 step = _mm256_mul_ps(scale, _mm256_set1_ps(scales[r * groups + g]));
          const __m256 sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), step, sums[r][h]);
          sums[r][h] = _mm256_fmadd_ps(minimum, _mm256_set1_ps(code_sums[r * groups + g]), sum);
        });
      });
      w += kQ4GroupBytes;
      codes += kGroup;
    }
    store(sums, out);
  }

  template <int R, int S>
  static OCTAVO_INLINE void q8(const uint8_t* w, size_t strip_bytes, const QuantizedRows& rows, int row,
                               float* out) {
    const size_t in = rows.in, groups = in / kGroup;
    const int8_t* codes = rows.codes + row * in;
    const float* scales = rows.scales + row * groups;
    const int32_t* offsets = rows.offsets + row * groups;
    const __m256i low_half = _mm256_set1_epi8(15);
    Ahead<R, S, kQ8GroupBytes> ahead(w, strip_bytes);
    __m256 sums[R][2 * S];
    clear(sums);
    for (size_t g = 0; g < groups; ++g) {
      ahead.fetch();
      unroll<2 * S>([&](auto h) OCTAVO_BODY {
        const uint8_t* at = w + h / 2 * strip_bytes;
        __m256i low_dots[R], high_dots[R];
        unroll<R>([&](auto r) OCTAVO_BODY {
          low_dots[r] = high_dots[r] = _mm256_setzero_si256();
        });
        unroll<8>([&](auto j) OCTAVO_BODY {
          const __m256i both = load(at + j * 64 + h % 2 * 32);
          const __m256i low = _mm256_and_si256(both, low_half);
          const __m256i high = _mm256_and_si256(_mm256_srli_epi16(both, 4), low_half);
          unroll<R>([&](auto r) OCTAVO_BODY {
            const __m256i inputs = spread(codes + r * in + j * 4);
            low_dots[r] = add_dots(low_dots[r], low, inputs);
            high_dots[r] = add_dots(high_dots[r], high, inputs);
          });
        });
        const __m256 scale = load_half(at + 512 + h % 2 * 16);
        unroll<R>([&](auto r) OCTAVO_BODY {
          const __m256i low = _mm256_madd_epi16(low_dots[r], _mm256_set1_epi16(1));
          const __m256i high = _mm256_madd_epi16(high_dots[r], _mm256_set1_epi16(16));
          const __m256i offset = _mm256_set1_epi32(offsets[r * groups + g]);
          const __m256i dot = _mm256_add_epi32(_mm256_add_epi32(low, high), offset);
          const __m256 step = _mm256_mul_ps(scale, _mm256_set1_ps(scales[r * groups + g]));
          sums[r][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), step, sums[r][h]);
        });
      });
      w += kQ8GroupBytes;
      codes += kGroup;
    }
    store(sums, out);
  }

  static OCTAVO_INLINE __m256 even_bf16(__m256i pair) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
  }
  static OCTAVO_INLINE __m256 odd_bf16(__m256i pair) {
    return _mm256_castsi256_ps(_mm256_and_si256(pair, _mm256_set1_epi32(-65536)));
  }

  template <int R, int S>
  static OCTAVO_INLINE void bf16(const uint8_t* w, size_t strip_bytes, const Rows& rows, int row,
                                 float* out) {
    const size_t in = rows.in;
    const uint16_t* inputs = rows.bf16 + row * in;
    Ahead<R, S, 64> ahead(w, strip_bytes);
    __m256 sums[R][2 * S];
    clear(sums);
    for (size_t pair = 0; pair < in / 2; ++pair) {
      ahead.fetch();
      __m256 even[2 * S], odd[2 * S];
      unroll<2 * S>([&](auto h) OCTAVO_BODY {
        const __m256i both = load(w + h / 2 * strip_bytes + h % 2 * 32);
        even[h] = even_bf16(both);
        odd[h] = odd_bf16(both);
      });
      unroll<R>([&](auto r) OCTAVO_BODY {
        const __m256i both = spread(inputs + r * in);
        const __m256 even_input = even_bf16(both), odd_input = odd_bf16(both);
        unroll<2 * S>([&](auto h) OCTAVO_BODY {
          const __m256 sum = _mm256_fmadd_ps(even[h], even_input, sums[r][h]);
          sums[r][h] = _mm256_fmadd_ps(odd[h], odd_input, sum);
        });
      });
      w += 64;
      inputs += 2;
    }
    store(sums, out);
  }

  template <Format F, int R, int S>
  static OCTAVO_INLINE void f32(const uint8_t* w, size_t strip_bytes, const Rows& rows, int row,
                                float* out) {
    const size_t in = rows.in;
    const float* inputs = rows.f32 + row * in;
    constexpr size_t kBytes = dense_step_bytes(F);
    Ahead<R, S, kBytes> ahead(w, strip_bytes);
    __m256 sums[R][2 * S];
    clear(sums);
    for (size_t i = 0; i < in; ++i) {
      ahead.fetch();
      __m256 column[2 * S];
      unroll<2 * S>([&](auto h) OCTAVO_BODY {
        const uint8_t* at = w + h / 2 * strip_bytes + h % 2 * (kBytes / 2);
        column[h] = F == Format::kF16 ? load_half(at) : _mm256_castsi256_ps(load(at));
      });
      unroll<R>([&](auto r) OCTAVO_BODY {
        const __m256 input = _mm256_set1_ps(inputs[r * in + i]);
        unroll<2 * S>([&](auto h) OCTAVO_BODY {
          sums[r][h] = _mm256_fmadd_ps(column[h], input, sums[r][h]);
        });
      });
      w += kBytes;
    }
    store(sums, out);
  }
};

}  // namespace octavo

#endif  // OCTAVO_HAS_AVX2
