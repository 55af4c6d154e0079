// Linear layers with AVX512: one register holds one number of each of a strip's 16 columns.
//
// Registers decide the shapes: a tile of R rows and S strips needs 2 R S of the 32 for integer formats
// (sums so far, and the dot products of one group), R S for the others, plus the weights in flight.
#pragma once

#include "tags.h"

#ifdef OCTAVO_HAS_AVX512

#include <immintrin.h>

#include <cstring>

#include "../types.h"
#include "linear_kernels.h"
#include "scaled_linear.h"
#include "unroll.h"

namespace octavo {

template <>
struct LinearKernels<Avx512> {
  static constexpr int kMaxRows = 12;

  // Strips side by side in a tile. Few rows take several, which gives the memory more streams.
  static constexpr int tile_strips(Format format, int rows) {
    if (!takes_codes(format)) return rows <= 4 ? 4 : 2;
    if (scaled_bits(format) != 0) return rows <= 2 ? 2 : 1;
    return rows <= 2 ? 4 : rows <= 4 ? 2 : 1;
  }

  template <Format F, int R, int S>
  static OCTAVO_NOINLINE void tile(const uint8_t* weights, size_t strip_bytes, const Rows& rows,
                                   int row, float* out) {
    if constexpr (F == Format::kQ4) q4<R, S>(weights, strip_bytes, rows.quantized, row, out);
    if constexpr (F == Format::kQ8) q8<R, S>(weights, strip_bytes, rows.quantized, row, out);
    if constexpr (F == Format::kBf16) bf16<R, S>(weights, strip_bytes, rows, row, out);
    if constexpr (takes_f32(F)) f32<F, R, S>(weights, strip_bytes, rows, row, out);
    if constexpr (scaled_bits(F) != 0) {
      ScaledTile<Avx512, scaled_bits(F)>::template run<R, S>(weights, strip_bytes, rows.quantized, row, out);
    }
  }

 private:
  static OCTAVO_INLINE __m512i load(const uint8_t* from) { return _mm512_loadu_si512(from); }

  static OCTAVO_INLINE __m512 load_half(const uint8_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }

  // Weights of one input, stored as F.
  template <Format F>
  static OCTAVO_INLINE __m512 column_of(const uint8_t* from) {
    return F == Format::kF16 ? load_half(from) : _mm512_castsi512_ps(load(from));
  }

  // Steps of one turn of a loop over floats: few rows have little work in each.
  static constexpr int dense_steps(int rows) { return rows <= 4 ? 4 : 1; }

  // Four bytes, in each of the 16 lanes.
  static OCTAVO_INLINE __m512i spread(const void* from) {
    int32_t value;
    std::memcpy(&value, from, sizeof value);
    return _mm512_set1_epi32(value);
  }

  template <int R, int S>
  static OCTAVO_INLINE void store(const __m512 (&sums)[R][S], float* out) {
    unroll<R>([&](auto r) OCTAVO_BODY {
      unroll<S>([&](auto s) OCTAVO_BODY { _mm512_store_ps(out + (r * S + s) * kStrip, sums[r][s]); });
    });
  }

  template <int R, int S>
  static OCTAVO_INLINE void q4(const uint8_t* w, size_t strip_bytes, const QuantizedRows& rows, int row,
                               float* out) {
    const size_t in = rows.in, groups = in / kGroup;
    RowPlaces<R, int8_t> codes(rows.codes + row * in, in);
    const float* first_scale = rows.scales + row * groups;
    const float* first_sum = rows.sums + row * groups;
    const __m512i low_half = _mm512_set1_epi8(15);
    Ahead<R, S, kQ4GroupBytes> ahead(w, strip_bytes);
    __m512 sums[R][S];
    unroll<R>([&](auto r) OCTAVO_BODY {
      unroll<S>([&](auto s) OCTAVO_BODY { sums[r][s] = _mm512_setzero_ps(); });
    });
    for (size_t g = 0; g < groups; ++g) {
      ahead.fetch();
      __m512i dots[R][S];
      unroll<R>([&](auto r) OCTAVO_BODY {
        unroll<S>([&](auto s) OCTAVO_BODY { dots[r][s] = _mm512_setzero_si512(); });
      });
      unroll<4>([&](auto j) OCTAVO_BODY {
        __m512i low[S], high[S];
        unroll<S>([&](auto s) OCTAVO_BODY {
          const __m512i both = load(w + s * strip_bytes + j * 64);
          low[s] = _mm512_and_si512(both, low_half);
          high[s] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low_half);
        });
        unroll<R>([&](auto r) OCTAVO_BODY {
          const __m512i first = spread(codes.row(r) + j * 4);
          const __m512i second = spread(codes.row(r) + j * 4 + 16);
          unroll<S>([&](auto s) OCTAVO_BODY {
            dots[r][s] = _mm512_dpbusd_epi32(dots[r][s], low[s], first);
            dots[r][s] = _mm512_dpbusd_epi32(dots[r][s], high[s], second);
          });
        });
      });
      const RowPlaces<R, float> scales(first_scale + g, groups), code_sums(first_sum + g, groups);
      unroll<S>([&](auto s) OCTAVO_BODY {
        const __m512 scale = load_half(w + s * strip_bytes + 256);
        const __m512 minimum = load_half(w + s * strip_bytes + 288);
        unroll<R>([&](auto r) OCTAVO_BODY {
          const __m512 step = _mm512_mul_ps(scale, _mm512_set1_ps(*scales.row(r)));
          const __m512 sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r][s]), step, sums[r][s]);
          sums[r][s] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(*code_sums.row(r)), sum);
        });
      });
      w += kQ4GroupBytes;
      codes.advance(kGroup);
    }
    store(sums, out);
  }

  template <int R, int S>
  static OCTAVO_INLINE void q8(const uint8_t* w, size_t strip_bytes, const QuantizedRows& rows, int row,
                               float* out) {
    const size_t in = rows.in, groups = in / kGroup;
    RowPlaces<R, int8_t> codes(rows.codes + row * in, in);
    const float* first_scale = rows.scales + row * groups;
    const int32_t* first_offset = rows.offsets + row * groups;
    Ahead<R, S, kQ8GroupBytes> ahead(w, strip_bytes);
    __m512 sums[R][S];
    unroll<R>([&](auto r) OCTAVO_BODY {
      unroll<S>([&](auto s) OCTAVO_BODY { sums[r][s] = _mm512_setzero_ps(); });
    });
    for (size_t g = 0; g < groups; ++g) {
      ahead.fetch();
      const RowPlaces<R, int32_t> offsets(first_offset + g, groups);
      __m512i dots[R][S];
      unroll<R>([&](auto r) OCTAVO_BODY {
        unroll<S>([&](auto s) OCTAVO_BODY { dots[r][s] = _mm512_set1_epi32(*offsets.row(r)); });
      });
      unroll<8>([&](auto j) OCTAVO_BODY {
        __m512i column[S];
        unroll<S>([&](auto s) OCTAVO_BODY { column[s] = load(w + s * strip_bytes + j * 64); });
        unroll<R>([&](auto r) OCTAVO_BODY {
          const __m512i inputs = spread(codes.row(r) + j * 4);
          unroll<S>([&](auto s) OCTAVO_BODY {
            dots[r][s] = _mm512_dpbusd_epi32(dots[r][s], column[s], inputs);
          });
        });
      });
      const RowPlaces<R, float> scales(first_scale + g, groups);
      unroll<S>([&](auto s) OCTAVO_BODY {
        const __m512 scale = load_half(w + s * strip_bytes + 512);
        unroll<R>([&](auto r) OCTAVO_BODY {
          const __m512 step = _mm512_mul_ps(scale, _mm512_set1_ps(*scales.row(r)));
          sums[r][s] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r][s]), step, sums[r][s]);
        });
      });
      w += kQ8GroupBytes;
      codes.advance(kGroup);
    }
    store(sums, out);
  }

  template <int R, int S>
  static OCTAVO_INLINE void bf16(const uint8_t* w, size_t strip_bytes, const Rows& rows, int row,
                                 float* out) {
    const size_t in = rows.in;
    RowPlaces<R, uint16_t> inputs(rows.bf16 + row * in, in);
    constexpr int kSteps = dense_steps(R);
    Ahead<R, S, kSteps * 64> ahead(w, strip_bytes);
    __m512 sums[R][S];
    unroll<R>([&](auto r) OCTAVO_BODY {
      unroll<S>([&](auto s) OCTAVO_BODY { sums[r][s] = _mm512_setzero_ps(); });
    });
    for (size_t pair = 0; pair < in / 2; pair += kSteps) {
      ahead.fetch();
      unroll<kSteps>([&](auto step) OCTAVO_BODY {
        __m512i column[S];
        unroll<S>([&](auto s) OCTAVO_BODY { column[s] = load(w + s * strip_bytes + step * 64); });
        unroll<R>([&](auto r) OCTAVO_BODY {
          const __m512bh both = (__m512bh)spread(inputs.row(r) + step * 2);
          unroll<S>([&](auto s) OCTAVO_BODY {
            sums[r][s] = _mm512_dpbf16_ps(sums[r][s], (__m512bh)column[s], both);
          });
        });
      });
      w += kSteps * 64;
      inputs.advance(kSteps * 2);
    }
    store(sums, out);
  }

  template <Format F, int R, int S>
  static OCTAVO_INLINE void f32(const uint8_t* w, size_t strip_bytes, const Rows& rows, int row,
                                float* out) {
    const size_t in = rows.in;
    RowPlaces<R, float> inputs(rows.f32 + row * in, in);
    constexpr int kSteps = dense_steps(R);
    constexpr size_t kBytes = dense_step_bytes(F);
    Ahead<R, S, kSteps * kBytes> ahead(w, strip_bytes);
    __m512 sums[R][S];
    unroll<R>([&](auto r) OCTAVO_BODY {
      unroll<S>([&](auto s) OCTAVO_BODY { sums[r][s] = _mm512_setzero_ps(); });
    });
    for (size_t i = 0; i < in; i += kSteps) {
      ahead.fetch();
      unroll<kSteps>([&](auto step) OCTAVO_BODY {
        __m512 column[S];
        unroll<S>([&](auto s) OCTAVO_BODY {
          column[s] = column_of<F>(w + s * strip_bytes + step * kBytes);
        });
        unroll<R>([&](auto r) OCTAVO_BODY {
          const __m512 input = _mm512_set1_ps(inputs.row(r)[step]);
          unroll<S>([&](auto s) OCTAVO_BODY {
            sums[r][s] = _mm512_fmadd_ps(column[s], input, sums[r][s]);
          });
        });
      });
      w += kSteps * kBytes;
      inputs.advance(kSteps);
    }
    store(sums, out);
  }
};

}  // namespace octavo

#endif  // OCTAVO_HAS_AVX512
