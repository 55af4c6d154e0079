// Linear layers in portable C++, written as loops over a strip's 16 columns that compilers vectorise.
#pragma once

#include <cstring>

#include "../half.h"
#include "../types.h"
#include "linear_kernels.h"
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
    for (int i = 0; i < R * kStrip; ++i) out[i] = 0;
    if constexpr (F == Format::kQ4) q4<R>(weights, rows.quantized, row, out);
    if constexpr (F == Format::kQ8) q8<R>(weights, rows.quantized, row, out);
    if constexpr (F == Format::kBf16) bf16<R>(weights, rows, row, out);
    if constexpr (F == Format::kF32) f32<R>(weights, rows, row, out);
  }

 private:
  // One rounding where the machine has it, the same choice everywhere in one object.
  static OCTAVO_INLINE float multiply_add(float a, float b, float sum) {
#ifdef __FP_FAST_FMAF
    return __builtin_fmaf(a, b, sum);
#else
    return a * b + sum;
#endif
  }

  static OCTAVO_INLINE void load_half(const uint8_t* from, float* out) {
    for (int c = 0; c < kStrip; ++c) {
      uint16_t half;
      std::memcpy(&half, from + 2 * c, sizeof half);
      out[c] = half_to_float(half);
    }
  }

  // Four codes as 16 bits, once for each column: what a row of 64 packed bytes is multiplied with.
  static OCTAVO_INLINE void spread(const int8_t* codes, int16_t (&out)[64]) {
    const int16_t four[4] = {codes[0], codes[1], codes[2], codes[3]};
    for (int c = 0; c < kStrip; ++c) std::memcpy(out + 4 * c, four, sizeof four);
  }

  // Products of halves of bytes fit into 16 bits for a whole group: 8 x 15 x 128 < 2^15.
  static OCTAVO_INLINE void dot_q4(const uint8_t* w, const int8_t* codes, int32_t (&dots)[kStrip]) {
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
  }

  static OCTAVO_INLINE void dot_q8(const uint8_t* w, const int8_t* codes, int32_t (&dots)[kStrip]) {
    int32_t sums[64] = {};
    for (int j = 0; j < 8; ++j, w += 64) {
      int16_t inputs[64];
      spread(codes + 4 * j, inputs);
      for (int i = 0; i < 64; ++i) sums[i] += static_cast<int16_t>(w[i] - 128) * inputs[i];
    }
    for (int c = 0; c < kStrip; ++c) dots[c] = sums[4 * c] + sums[4 * c + 1] + sums[4 * c + 2] + sums[4 * c + 3];
  }

  template <int R>
  static OCTAVO_INLINE void q4(const uint8_t* w, const QuantizedRows& rows, int row, float* out) {
    const size_t in = rows.in, groups = in / kGroup;
    for (size_t g = 0; g < groups; ++g, w += kQ4GroupBytes) {
      float scale[kStrip], minimum[kStrip];
      load_half(w + 256, scale);
      load_half(w + 288, minimum);
      for (int r = 0; r < R; ++r) {
        int32_t dots[kStrip];
        dot_q4(w, rows.codes + (row + r) * in + g * kGroup, dots);
        const float row_scale = rows.scales[(row + r) * groups + g];
        const float row_sum = rows.sums[(row + r) * groups + g];
        float* sums = out + r * kStrip;
        for (int c = 0; c < kStrip; ++c) {
          const float sum = multiply_add(static_cast<float>(dots[c]), scale[c] * row_scale, sums[c]);
          sums[c] = multiply_add(minimum[c], row_sum, sum);
        }
      }
    }
  }

  template <int R>
  static OCTAVO_INLINE void q8(const uint8_t* w, const QuantizedRows& rows, int row, float* out) {
    const size_t in = rows.in, groups = in / kGroup;
    for (size_t g = 0; g < groups; ++g, w += kQ8GroupBytes) {
      float scale[kStrip];
      load_half(w + 512, scale);
      for (int r = 0; r < R; ++r) {
        int32_t dots[kStrip];
        dot_q8(w, rows.codes + (row + r) * in + g * kGroup, dots);
        const float row_scale = rows.scales[(row + r) * groups + g];
        float* sums = out + r * kStrip;
        for (int c = 0; c < kStrip; ++c) {
          sums[c] = multiply_add(static_cast<float>(dots[c]), scale[c] * row_scale, sums[c]);
        }
      }
    }
  }

  template <int R>
  static OCTAVO_INLINE void bf16(const uint8_t* w, const Rows& rows, int row, float* out) {
    const size_t in = rows.in;
    for (size_t pair = 0; pair < in / 2; ++pair, w += 64) {
      float even[kStrip], odd[kStrip];
      for (int c = 0; c < kStrip; ++c) {
        uint32_t both;
        std::memcpy(&both, w + 4 * c, sizeof both);
        even[c] = float_of_bits(both << 16);
        odd[c] = float_of_bits(both & 0xffff0000u);
      }
      for (int r = 0; r < R; ++r) {
        const uint16_t* inputs = rows.bf16 + (row + r) * in + 2 * pair;
        const float even_input = bf16_to_float(inputs[0]), odd_input = bf16_to_float(inputs[1]);
        float* sums = out + r * kStrip;
        for (int c = 0; c < kStrip; ++c) {
          sums[c] = multiply_add(odd[c], odd_input, multiply_add(even[c], even_input, sums[c]));
        }
      }
    }
  }

  template <int R>
  static OCTAVO_INLINE void f32(const uint8_t* w, const Rows& rows, int row, float* out) {
    const size_t in = rows.in;
    for (size_t i = 0; i < in; ++i, w += 64) {
      float column[kStrip];
      std::memcpy(column, w, sizeof column);
      for (int r = 0; r < R; ++r) {
        const float input = rows.f32[(row + r) * in + i];
        float* sums = out + r * kStrip;
        for (int c = 0; c < kStrip; ++c) sums[c] = multiply_add(column[c], input, sums[c]);
      }
    }
  }
};

}  // namespace octavo
