// 16 float32 numbers for any machine: GCC's and Clang's vectors, which become whatever the target has.
// What the functions promise: lanes.h.
#pragma once

#include <cstdint>
#include <cstring>

#include "exp2.h"
#include "lanes.h"
#include "tags.h"

namespace octavo {

template <>
struct Lanes<Plain> {
  static constexpr int kCount = 16;
  typedef float Floats __attribute__((vector_size(64)));
  typedef int32_t Ints __attribute__((vector_size(64)));
  typedef uint32_t Words __attribute__((vector_size(64)));
  Floats v;

  static OCTAVO_INLINE Lanes load(const float* from) {
    Lanes x;
    std::memcpy(&x.v, from, sizeof x.v);
    return x;
  }
  static OCTAVO_INLINE Lanes all(float x) { return {x - Floats{}}; }
  static OCTAVO_INLINE Lanes load_first(const float* from, int count) {
    Lanes x = all(0);
    for (int i = 0; i < count && i < kCount; ++i) x.v[i] = from[i];
    return x;
  }
  static OCTAVO_INLINE Lanes from_bf16(const uint16_t* from) {
    Words bits;
    for (int i = 0; i < kCount; ++i) bits[i] = static_cast<uint32_t>(from[i]) << 16;
    return {(Floats)bits};
  }
  static OCTAVO_INLINE Lanes low_halves(const void* from) {
    Words words;
    std::memcpy(&words, from, sizeof words);
    return {(Floats)(words << 16)};
  }
  static OCTAVO_INLINE Lanes high_halves(const void* from) {
    Words words;
    std::memcpy(&words, from, sizeof words);
    return {(Floats)(words & 0xffff0000u)};
  }

  OCTAVO_INLINE void store(float* to) const { std::memcpy(to, &v, sizeof v); }
  OCTAVO_INLINE void store_first(float* to, int count) const {
    for (int i = 0; i < count && i < kCount; ++i) to[i] = v[i];
  }
  OCTAVO_INLINE void store_bf16(uint16_t* to) const { store_bf16(to, 1); }
  OCTAVO_INLINE void store_bf16_halves(uint16_t* to, int half) const { store_bf16(to + half, 2); }

  OCTAVO_INLINE Lanes operator+(const Lanes& b) const { return {v + b.v}; }
  OCTAVO_INLINE Lanes operator-(const Lanes& b) const { return {v - b.v}; }
  OCTAVO_INLINE Lanes operator*(const Lanes& b) const { return {v * b.v}; }
  OCTAVO_INLINE Lanes operator/(const Lanes& b) const { return {v / b.v}; }
  OCTAVO_INLINE Lanes plus(const Lanes& a, const Lanes& b) const { return {v + a.v * b.v}; }
  OCTAVO_INLINE Lanes max(const Lanes& b) const { return {v > b.v ? v : b.v}; }
  OCTAVO_INLINE Lanes min(const Lanes& b) const { return {v < b.v ? v : b.v}; }
  OCTAVO_INLINE Lanes abs() const { return {(Floats)((Words)v & 0x7fffffffu)}; }

  OCTAVO_INLINE Lanes keep(int from, int to, float other) const {
    Lanes x = *this;
    for (int i = 0; i < kCount; ++i) {
      if (i < from || i >= to) x.v[i] = other;
    }
    return x;
  }
  OCTAVO_INLINE Lanes flushed() const {
    const Ints small = abs().v < 1.17549435e-38f;
    return {(Floats)((Ints)v & ~small)};
  }

  OCTAVO_INLINE Lanes exp2() const {
    // 2^-127 is made as 0; a NaN stays.
    const Floats x = v < -127.0f ? Floats{} - 127.0f : v;
    // Adding and taking away 1.5 * 2^23 rounds to an integer.
    const Floats n = (x + 12582912.0f) - 12582912.0f, f = x - n;
    Floats p = kExp2[0] - Floats{};
    for (int i = 1; i < kExp2Terms; ++i) p = p * f + kExp2[i];
    return {p * (Floats)((__builtin_convertvector(n, Ints) + 127) << 23)};
  }

  OCTAVO_INLINE float sum() const {
    float part[8];
    for (int i = 0; i < 8; ++i) part[i] = v[i] + v[i + 8];
    for (int i = 0; i < 4; ++i) part[i] += part[i + 4];
    return (part[0] + part[2]) + (part[1] + part[3]);
  }
  OCTAVO_INLINE float largest() const {
    float most = v[0];
    for (int i = 1; i < kCount; ++i) most = v[i] > most ? v[i] : most;
    return most;
  }

 private:
  OCTAVO_INLINE void store_bf16(uint16_t* to, int step) const {
    const Words bits = (Words)v;
    Words up = bits + ((bits >> 16) & 1u) + 0x7fffu;
    const Words broken = (Words)(v != v);
    up = (up & ~broken) | (0x7fc00000u & broken);
    for (int i = 0; i < kCount; ++i) to[i * step] = static_cast<uint16_t>(up[i] >> 16);
  }
};

}  // namespace octavo
