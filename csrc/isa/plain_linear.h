// Linear layers in portable C++: a strip's 16 columns are Lanes, or loops that compilers vectorise.
#pragma once

#include <cstring>

#include "../half.h"
#include "../types.h"
#include "linear_kernels.h"
#include "neon_dots.h"
#include "plain_vector.h"
#include "scaled_linear.h"
#include "tags.h"
#include "unroll.h"

namespace octavo {

template <>
struct LinearKernels<Plain> {
  static constexpr int kMaxRows = 4;

  static constexpr int tile_strips(Format, int) { return 1; }

  template <Format F, int R, int S>
  static OCTAVO_NOINLINE void tile(const uint8_t* weights, size_t strip_bytes, const Rows& rows,
                                   int row, float* out) {
    static_assert(S == 1);
    (void)strip_bytes;
    if constexpr (F == Format::kQ4) q4<R>(weights, rows.quantized, row, out);
    if constexpr (F == Format::kQ8) q8<R>(weights, rows.quantized, row, out);
    if constexpr (F == Format::kBf16) bf16<R>(weights, rows, row, out);
    if constexpr (takes_f32(F)) f32<F, R>(weights, rows, row, out);
    if constexpr (scaled_bits(F) != 0) {
      ScaledTile<Plain, scaled_bits(F)>::template run<R, S>(weights, strip_bytes, rows.quantized, row, out);
    }
  }

 private:
  using Vector = Lanes<Plain>;

  static OCTAVO_INLINE Vector load_half(const uint8_t* from) {
    uint16_t halves[kStrip];
    float numbers[kStrip];
    std::memcpy(halves, from, sizeof halves);
    for (int c = 0; c < kStrip; ++c) numbers[c] = half_to_float(halves[c]);
    return Vector::load(numbers);
  }

  static OCTAVO_INLINE Vector numbers_of(const int32_t (&dots)[kStrip]) {
    float numbers[kStrip];
    for (int c = 0; c < kStrip; ++c) numbers[c] = static_cast<float>(dots[c]);
    return Vector::load(numbers);
  }

  template <int R>
  static OCTAVO_INLINE void clear(Vector (&sums)[R]) {
    unroll<R>([&](auto r) OCTAVO_BODY { sums[r] = Vector::all(0); });
  }
  template <int R>
  static OCTAVO_INLINE void store(const Vector (&sums)[R], float* out) {
    unroll<R>([&](auto r) OCTAVO_BODY { sums[r].store(out + r * kStrip); });
  }

  // Four codes as 16 bits, once for each column: what a row of 64 packed bytes is multiplied with.
  static OCTAVO_INLINE void spread(const int8_t* codes, int16_t (&out)[64]) {
    const int16_t four[4] = {codes[0], codes[1], codes[2], codes[3]};
    for (int c = 0; c < kStrip; ++c) std::memcpy(out + 4 * c, four, sizeof four);
  }

  // Products of halves of bytes fit into 16 bits for a whole group: 8 x 15 x 128 < 2^15.
  static OCTAVO_INLINE void dot_q4(const uint8_t* w, const int8_t* codes, int32_t (&dots)[kStrip]) {
#ifdef __aarch64__
    neon_dot_q4(w, codes, dots);
#else
    int16_t sums[64] = {};
    for (int j = 0; j < 4; ++j, w += 64) {
      int16_t first[64], second[64];
      spread(codes + 4 * j, first);
      spread(codes + 4 * j + 16, second);
      for (int i = 0; i < 64; ++i) {
        const int16_t low = w[i] & 15, high = w[i] >> 4;
        sums[i] = static_cast<int16_t>(sums[i] + low * first[i] + high * second[i]);
      }
    }
    for (int c = 0; c < kStrip; ++c) dots[c] = sums[4 * c] + sums[4 * c + 1] + sums[4 * c + 2] + sums[4 * c + 3];
#endif
  }

  static OCTAVO_INLINE void dot_q8(const uint8_t* w, const int8_t* codes, int32_t (&dots)[kStrip]) {
#ifdef __aarch64__
    neon_dot_q8(w, codes, dots);
#else
    int32_t sums[64] = {};
    for (int j = 0; j < 8; ++j, w += 64) {
      int16_t inputs[64];
      spread(codes + 4 * j, inputs);
      for (int i = 0; i < 64; ++i) sums[i] += static_cast<int16_t>(w[i] - 128) * inputs[i];
    }
    for (int c = 0; c < kStrip; ++c) dots[c] = sums[4 * c] + sums[4 * c + 1] + sums[4 * c + 2] + sums[4 * c + 3];
#endif
  }

  template <int R>
  static OCTAVO_INLINE void q4(const uint8_t* w, const QuantizedRows& rows, int row, float* out) {
    const size_t in = rows.in, groups = in / kGroup;
    Vector sums[R];
    clear(sums);
    for (size_t g = 0; g < groups; ++g, w += kQ4GroupBytes) {
      const Vector scale = load_half(w + 256), minimum = load_half(w + 288);
      unroll<R>([&](auto r) OCTAVO_BODY {
        const size_t at = (row + r) * groups + g;
        int32_t dots[kStrip];
        dot_q4(w, rows.codes + (row + r) * in + g * kGroup, dots);
        const Vector sum = sums[r].plus(numbers_of(dots), scale * Vector::all(rows.scales[at]));
        sums[r] = sum.plus(minimum, Vector::all(rows.sums[at]));
      });
    }
    store(sums, out);
  }

  template <int R>
  static OCTAVO_INLINE void q8(const uint8_t* w, const QuantizedRows& rows, int row, float* out) {
    const size_t in = rows.in, groups = in / kGroup;
    Vector sums[R];
    clear(sums);
    for (size_t g = 0; g < groups; ++g, w += kQ8GroupBytes) {
      const Vector scale = load_half(w + 512);
      unroll<R>([&](auto r) OCTAVO_BODY {
        int32_t dots[kStrip];
        dot_q8(w, rows.codes + (row + r) * in + g * kGroup, dots);
        const Vector factor = scale * Vector::all(rows.scales[(row + r) * groups + g]);
        sums[r] = sums[r].plus(numbers_of(dots), factor);
      });
    }
    store(sums, out);
  }

  template <int R>
  static OCTAVO_INLINE void bf16(const uint8_t* w, const Rows& rows, int row, float* out) {
    const size_t in = rows.in;
    Vector sums[R];
    clear(sums);
    for (size_t pair = 0; pair < in / 2; ++pair, w += 64) {
      const Vector even = Vector::low_halves(w), odd = Vector::high_halves(w);
      unroll<R>([&](auto r) OCTAVO_BODY {
        const uint16_t* inputs = rows.bf16 + (row + r) * in + 2 * pair;
        const Vector sum = sums[r].plus(even, Vector::all(bf16_to_float(inputs[0])));
        sums[r] = sum.plus(odd, Vector::all(bf16_to_float(inputs[1])));
      });
    }
    store(sums, out);
  }

  template <Format F, int R>
  static OCTAVO_INLINE void f32(const uint8_t* w, const Rows& rows, int row, float* out) {
    const size_t in = rows.in;
    Vector sums[R];
    clear(sums);
    for (size_t i = 0; i < in; ++i, w += dense_step_bytes(F)) {
      Vector column;
      if constexpr (F == Format::kF16) {
        column = load_half(w);
      } else {
        column = Vector::load(reinterpret_cast<const float*>(w));
      }
      unroll<R>([&](auto r) OCTAVO_BODY {
        sums[r] = sums[r].plus(column, Vector::all(rows.f32[(row + r) * in + i]));
      });
    }
    store(sums, out);
  }
};

}  // namespace octavo
