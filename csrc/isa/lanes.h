// 16 float32 numbers: what element-wise code and attention are written in, once for all instruction sets.
//
// Lanes<Isa> has
//
//   load(p)  all(x)                    16 numbers from memory, unaligned; one number 16 times
//   load_first(p, n)  store_first      n numbers, the others 0; nothing behind them is touched
//   from_bf16(p)  store_bf16(p)        16 neighbouring bf16 numbers; rounded to nearest, ties to even
//   low_halves(p)  high_halves(p)      16 words that hold two bf16 numbers each: one of each word
//   store_bf16_halves(p, half)         the same the other way; the other halves are not written, so
//                                      that another thread may write them meanwhile
//   + - * /  max  min  abs
//   c.plus(a, b)                       c + a * b, with one rounding where the machine can
//   keep(from, to, other)              lanes from <= i < to as they are, `other` elsewhere
//   flushed()                          -0, and numbers too small to be normal, become +0
//   exp2()                             2^x for x <= 127; +0 far down, about where normal numbers end;
//                                      2^0 is exactly 1
//   sum()  largest()                   over the lanes, in a fixed order
//   first_equal(b)                     the first lane in which both have the same number; 16: none
//
// max and min of a NaN and a number b give b when b stands second.
#pragma once

#include <type_traits>

#include "unroll.h"

namespace octavo {

template <class Isa>
struct Lanes;

// Calls body with `count` as a constant between 1 and kMost.
template <int kMost, class Body>
static OCTAVO_INLINE void with_constant(int count, Body&& body) {
  if constexpr (kMost > 1) {
    if (count < kMost) return with_constant<kMost - 1>(count, body);
  }
  body(std::integral_constant<int, kMost>{});
}

}  // namespace octavo
