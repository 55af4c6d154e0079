// Conversions between float32 and the 16-bit floats, without special instructions.
//
// Everything is `static`: these functions are part of objects with different instruction sets.
#pragma once

#include <cstdint>
#include <cstring>

namespace octavo {

static inline float float_of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

static inline uint32_t bits_of_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Exact.
static inline float half_to_float(uint16_t half) {
#ifdef __aarch64__
  // An instruction of every such machine, which converts four at once in loops.
  __fp16 number;
  std::memcpy(&number, &half, sizeof number);
  return number;
#else
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t rest = half & 0x7fff;
  if (rest >= 0x7c00) return float_of_bits(sign | 0x7f800000u | (rest << 13));
  // The product moves the exponent from bias 15 to bias 127 and makes subnormals normal.
  return float_of_bits(sign | bits_of_float(float_of_bits(rest << 13) * 0x1p112f));
#endif
}

// Rounds to the nearest, ties to even; too large becomes infinite.
static inline uint16_t float_to_half(float value) {
  const uint32_t bits = bits_of_float(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  uint32_t rest = bits & 0x7fffffff;
  if (rest > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (rest >= 0x47800000) return static_cast<uint16_t>(sign | 0x7c00);
  if (rest < 0x38800000) {  // below 2^-14: the addition rounds at the last bit of a subnormal
    rest = bits_of_float(float_of_bits(rest) + 0.5f) - 0x3f000000;
  } else {
    rest = (rest - 0x38000000 + 0xfff + ((rest >> 13) & 1)) >> 13;
  }
  return static_cast<uint16_t>(sign | rest);
}

// Exact.
static inline float bf16_to_float(uint16_t value) {
  return float_of_bits(static_cast<uint32_t>(value) << 16);
}

// Rounds to the nearest, ties to even; a NaN stays one.
static inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = bits_of_float(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// To a whole number, ties to even, for magnitudes below 2^22; compilers can vectorise it.
static inline float round_to_even(float value) {
  return (value + 12582912.0f) - 12582912.0f;  // 1.5 x 2^23: the sum has no bits for a fraction
}

}  // namespace octavo
