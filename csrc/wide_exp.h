// The exponential of float64 numbers.
//
// GCC's and Clang's vectors, no fused products, the same operations for every instruction set: so the
// same number has the same bits everywhere.
#pragma once

#include <cstdint>

#include "isa/tags.h"
#include "isa/unroll.h"

namespace octavo {

// As many float64 numbers as one register of an instruction set holds.
template <class Isa, int kBytes = 16>
struct WideLanes {
  static constexpr int kCount = kBytes / sizeof(double);
  typedef double Numbers __attribute__((vector_size(kBytes)));
  typedef uint64_t Bits __attribute__((vector_size(kBytes)));
  typedef float Narrow __attribute__((vector_size(kBytes / 2)));
};
template <>
struct WideLanes<Avx2> : WideLanes<void, 32> {};
template <>
struct WideLanes<Avx512> : WideLanes<void, 64> {};

// e^x for x <= 0, with a relative error below 1e-14; 0 below -708, where normal numbers end. e^0 is
// exactly 1, e^-inf exactly 0.
template <class Isa>
static OCTAVO_INLINE typename WideLanes<Isa>::Numbers wide_exp(typename WideLanes<Isa>::Numbers x) {
  using Numbers = typename WideLanes<Isa>::Numbers;
  using Bits = typename WideLanes<Isa>::Bits;
  constexpr double kLog2OfE = 1.4426950408889634;
  // ln 2 in two parts: a multiple of the first below 2^11 is exact.
  constexpr double kLn2High = 0.693147180369123816490, kLn2Low = 1.90821492927058770002e-10;
  // Adding it leaves the nearest integer in the lowest bits.
  constexpr double kShift = 6755399441055744.0;  // 1.5 * 2^52
  // Taylor's terms up to x^11: |x| is at most ln 2 / 2.
  constexpr double kTerms[] = {1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320,
                               1.0 / 5040,     1.0 / 720,     1.0 / 120,    1.0 / 24,
                               1.0 / 6,        0.5,           1.0,          1.0};
  const Numbers shifted = x * kLog2OfE + kShift, n = shifted - kShift;
  const Numbers rest = (x - n * kLn2High) - n * kLn2Low;
  // Odd and even powers apart: half as many operations wait for each other.
  const Numbers square = rest * rest;
  Numbers odd = kTerms[0] - Numbers{}, even = kTerms[1] - Numbers{};
  unroll<5>([&](auto i) OCTAVO_BODY {
    odd = odd * square + kTerms[2 * i + 2];
    even = even * square + kTerms[2 * i + 3];
  });
  const Numbers p = even + odd * rest;
  const Bits power = (Bits)shifted << 52, normal = (Bits)(x >= -708.0);
  return (Numbers)(((Bits)p + power) & normal);
}

}  // namespace octavo
