// Products of codes on Arm, with the instructions that every 64-bit Arm machine has: see plain_linear.h.
#pragma once

#ifdef __aarch64__

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "../types.h"
#include "unroll.h"

namespace octavo {

// Four input codes, four times.
static OCTAVO_INLINE int8x16_t neon_four_codes(const int8_t* codes) {
  int32_t four;
  std::memcpy(&four, codes, sizeof four);
  return vreinterpretq_s8_s32(vdupq_n_s32(four));
}

// 32 inputs with the 4-bit codes of 16 columns. Sums of halves of bytes fit into 16 bits: 8 x 15 x 127 < 2^15.
static OCTAVO_INLINE void neon_dot_q4(const uint8_t* w, const int8_t* codes, int32_t* dots) {
  int16x8_t sums[8];
  unroll<8>([&](auto i) OCTAVO_BODY { sums[i] = vdupq_n_s16(0); });
  for (int j = 0; j < 4; ++j, w += 64) {
    const int8x16_t first = neon_four_codes(codes + 4 * j), second = neon_four_codes(codes + 4 * j + 16);
    unroll<4>([&](auto part) OCTAVO_BODY {
      const uint8x16_t both = vld1q_u8(w + 16 * part);
      const int8x16_t low = vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15)));
      const int8x16_t high = vreinterpretq_s8_u8(vshrq_n_u8(both, 4));
      int16x8_t &left = sums[2 * part], &right = sums[2 * part + 1];
      left = vmlal_s8(left, vget_low_s8(low), vget_low_s8(first));
      left = vmlal_s8(left, vget_low_s8(high), vget_low_s8(second));
      right = vmlal_high_s8(right, low, first);
      right = vmlal_high_s8(right, high, second);
    });
  }
  unroll<4>([&](auto part) OCTAVO_BODY {
    const int32x4_t left = vpaddlq_s16(sums[2 * part]), right = vpaddlq_s16(sums[2 * part + 1]);
    vst1q_s32(dots + 4 * part, vpaddq_s32(left, right));
  });
}

// The same with codes plus 128; of these and of input codes -128 times -127 at most.
static OCTAVO_INLINE void neon_dot_q8(const uint8_t* w, const int8_t* codes, int32_t* dots) {
  int32x4_t sums[8];
  unroll<8>([&](auto i) OCTAVO_BODY { sums[i] = vdupq_n_s32(0); });
  for (int j = 0; j < 8; ++j, w += 64) {
    const int8x16_t inputs = neon_four_codes(codes + 4 * j);
    unroll<4>([&](auto part) OCTAVO_BODY {
      const int8x16_t here = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(w + 16 * part), vdupq_n_u8(128)));
      int32x4_t &left = sums[2 * part], &right = sums[2 * part + 1];
      left = vpadalq_s16(left, vmull_s8(vget_low_s8(here), vget_low_s8(inputs)));
      right = vpadalq_s16(right, vmull_high_s8(here, inputs));
    });
  }
  unroll<4>([&](auto part) OCTAVO_BODY {
    vst1q_s32(dots + 4 * part, vpaddq_s32(sums[2 * part], sums[2 * part + 1]));
  });
}

}  // namespace octavo

#endif  // __aarch64__
