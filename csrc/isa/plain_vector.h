// 16 float32 numbers for any machine: GCC's and Clang's vectors of 16 bytes, which nearly every machine
// has as registers. Of 64 bytes they would lie in memory where it has no such registers.
// What the functions promise: lanes.h.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __aarch64__
#include <arm_neon.h>
#endif

#include "exp2.h"
#include "lanes.h"
#include "tags.h"

namespace octavo {

template <>
struct Lanes<Plain> {
  static constexpr int kCount = 16, kQuarters = 4;
  typedef float Floats __attribute__((vector_size(16)));
  typedef int32_t Ints __attribute__((vector_size(16)));
  typedef uint32_t Words __attribute__((vector_size(16)));
  Floats v[kQuarters];

  static OCTAVO_INLINE Lanes load(const float* from) { return load_bits(from); }
  static OCTAVO_INLINE Lanes all(float x) {
    return each([&](int) OCTAVO_BODY { return same(x); });
  }
  static OCTAVO_INLINE Lanes load_first(const float* from, int count) {
    float numbers[kCount] = {};
    for (int i = 0; i < count && i < kCount; ++i) numbers[i] = from[i];
    return load(numbers);
  }
  static OCTAVO_INLINE Lanes from_bf16(const uint16_t* from) {
    uint32_t bits[kCount];
    for (int i = 0; i < kCount; ++i) bits[i] = static_cast<uint32_t>(from[i]) << 16;
    return load_bits(bits);
  }
  static OCTAVO_INLINE Lanes low_halves(const void* from) {
    const Lanes x = load_bits(from);
    return each([&](int i) OCTAVO_BODY { return (Floats)((Words)x.v[i] << 16); });
  }
  static OCTAVO_INLINE Lanes high_halves(const void* from) {
    const Lanes x = load_bits(from);
    return each([&](int i) OCTAVO_BODY { return (Floats)((Words)x.v[i] & 0xffff0000u); });
  }

  OCTAVO_INLINE void store(float* to) const {
    unroll<kQuarters>([&](auto i) OCTAVO_BODY { std::memcpy(to + 4 * i, &v[i], sizeof v[i]); });
  }
  OCTAVO_INLINE void store_first(float* to, int count) const {
    float numbers[kCount];
    store(numbers);
    for (int i = 0; i < count && i < kCount; ++i) to[i] = numbers[i];
  }
  OCTAVO_INLINE void store_bf16(uint16_t* to) const { store_bf16<1>(to); }
  OCTAVO_INLINE void store_bf16_halves(uint16_t* to, int half) const { store_bf16<2>(to + half); }

  OCTAVO_INLINE Lanes operator+(const Lanes& b) const {
    return each([&](int i) OCTAVO_BODY { return v[i] + b.v[i]; });
  }
  OCTAVO_INLINE Lanes operator-(const Lanes& b) const {
    return each([&](int i) OCTAVO_BODY { return v[i] - b.v[i]; });
  }
  OCTAVO_INLINE Lanes operator*(const Lanes& b) const {
    return each([&](int i) OCTAVO_BODY { return v[i] * b.v[i]; });
  }
  OCTAVO_INLINE Lanes operator/(const Lanes& b) const {
    return each([&](int i) OCTAVO_BODY { return v[i] / b.v[i]; });
  }
  OCTAVO_INLINE Lanes plus(const Lanes& a, const Lanes& b) const {
    return each([&](int i) OCTAVO_BODY { return plus_product(v[i], a.v[i], b.v[i]); });
  }
  OCTAVO_INLINE Lanes max(const Lanes& b) const {
    return each([&](int i) OCTAVO_BODY { return larger(v[i], b.v[i]); });
  }
  OCTAVO_INLINE Lanes min(const Lanes& b) const {
    return each([&](int i) OCTAVO_BODY { return v[i] < b.v[i] ? v[i] : b.v[i]; });
  }
  OCTAVO_INLINE Lanes abs() const {
    return each([&](int i) OCTAVO_BODY { return (Floats)((Words)v[i] & 0x7fffffffu); });
  }

  OCTAVO_INLINE Lanes keep(int from, int to, float other) const {
    float numbers[kCount];
    store(numbers);
    for (int i = 0; i < kCount; ++i) numbers[i] = i < from || i >= to ? other : numbers[i];
    return load(numbers);
  }
  OCTAVO_INLINE Lanes flushed() const {
    const Lanes magnitudes = abs(), least = all(1.17549435e-38f);
    return each([&](int i) OCTAVO_BODY {
      return (Floats)((Ints)v[i] & ~(Ints)(magnitudes.v[i] < least.v[i]));
    });
  }

  OCTAVO_INLINE Lanes exp2() const {
    return each([&](int i) OCTAVO_BODY { return exp2(v[i]); });
  }

  OCTAVO_INLINE float sum() const {
    const Floats four = (v[0] + v[2]) + (v[1] + v[3]);
    return (four[0] + four[2]) + (four[1] + four[3]);
  }
  OCTAVO_INLINE float largest() const {
    const Floats four = larger(larger(v[0], v[1]), larger(v[2], v[3]));
    const float low = four[0] > four[1] ? four[0] : four[1], high = four[2] > four[3] ? four[2] : four[3];
    return low > high ? low : high;
  }
  OCTAVO_INLINE int first_equal(const Lanes& b) const {
    const Ints any = (v[0] == b.v[0]) | (v[1] == b.v[1]) | (v[2] == b.v[2]) | (v[3] == b.v[3]);
    uint64_t halves[2];
    std::memcpy(halves, &any, sizeof any);
    if ((halves[0] | halves[1]) == 0) return kCount;
    float mine[kCount], its[kCount];
    store(mine);
    b.store(its);
    int lane = 0;
    while (mine[lane] != its[lane]) ++lane;
    return lane;
  }

 private:
  template <class Make>
  static OCTAVO_INLINE Lanes each(Make&& make) {
    return {{make(0), make(1), make(2), make(3)}};
  }
  static OCTAVO_INLINE Lanes load_bits(const void* from) {
    // One by one: GCC makes a copy of 64 bytes on the stack first.
    return each([&](int i) OCTAVO_BODY {
      Floats x;
      std::memcpy(&x, static_cast<const uint8_t*>(from) + i * sizeof x, sizeof x);
      return x;
    });
  }
  static OCTAVO_INLINE Floats same(float x) { return Floats{x, x, x, x}; }
  static OCTAVO_INLINE Floats larger(Floats a, Floats b) { return a > b ? a : b; }
  static OCTAVO_INLINE Floats plus_product(Floats sum, Floats a, Floats b) {
#ifdef __aarch64__
    return (Floats)vfmaq_f32((float32x4_t)sum, (float32x4_t)a, (float32x4_t)b);
#elif defined(__FP_FAST_FMAF)
    for (int i = 0; i < 4; ++i) sum[i] = __builtin_fmaf(a[i], b[i], sum[i]);
    return sum;
#else
    return sum + a * b;
#endif
  }

  static OCTAVO_INLINE Floats exp2(Floats v) {
    // 2^-127 is made as 0; a NaN stays.
    const Floats least = same(-127.0f), x = v < least ? least : v;
    // Adding and taking away 1.5 * 2^23 rounds to an integer.
    const Floats n = (x + 12582912.0f) - 12582912.0f, f = x - n;
    Floats p = same(kExp2[0]);
    for (int i = 1; i < kExp2Terms; ++i) p = plus_product(same(kExp2[i]), p, f);
    return p * (Floats)((__builtin_convertvector(n, Ints) + 127) << 23);
  }

  template <int kStep>
  OCTAVO_INLINE void store_bf16(uint16_t* to) const {
    uint32_t rounded[kCount];
    for (int i = 0; i < kQuarters; ++i) {
      const Words bits = (Words)v[i], broken = (Words)(v[i] != v[i]);
      const Words up = bits + ((bits >> 16) & 1u) + 0x7fffu;
      const Words chosen = (up & ~broken) | (0x7fc00000u & broken);
      std::memcpy(rounded + i * 4, &chosen, sizeof chosen);
    }
    for (int i = 0; i < kCount; ++i) to[i * kStep] = static_cast<uint16_t>(rounded[i] >> 16);
  }
};

}  // namespace octavo
