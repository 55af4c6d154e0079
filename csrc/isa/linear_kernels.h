// What an instruction set provides for linear layers, and the parts that all of them share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../types.h"
#include "unroll.h"

namespace octavo {

constexpr size_t kQ4GroupBytes = 4 * 64 + 2 * kStrip * 2;
constexpr size_t kQ8GroupBytes = 8 * 64 + kStrip * 2;

// Of one input of a strip, where rows are float32.
constexpr size_t dense_step_bytes(Format format) { return format == Format::kF16 ? kStrip * 2 : kStrip * 4; }

// A specialisation for a tag has
//
//   kMaxRows                     rows of the tallest tile
//   tile_strips(format, rows)    strips of a tile with that many rows; one number for all counts that
//                                occur when more than kMaxRows rows are cut evenly
//   tile<F, R, S>(weights, strip_bytes, rows, row, out)
//
// `tile` multiplies R rows, from `row` on, with S neighbouring strips, the first at `weights`, and writes
// out[R][S][16], aligned to 64 bytes. What must stay true: a number of `out` is computed by one
// accumulator, which takes the groups (or the inputs) in ascending order with the same operations in
// every tile. Then a row's bits do not depend on the rows beside it.
//
// Activation codes lie in [-127, 127].
template <class Isa>
struct LinearKernels;

// One rounding where the machine has it, the same choice everywhere in one object.
static OCTAVO_INLINE float multiply_add(float a, float b, float sum) {
#ifdef __FP_FAST_FMAF
  return __builtin_fmaf(a, b, sum);
#else
  return a * b + sum;
#endif
}

// The same place in R rows, `stride` numbers apart, in few registers: an address for each three rows, the
// others by index. Left alone, GCC keeps an address for each row, most of them on the stack.
template <int R, class T>
class RowPlaces {
 public:
  OCTAVO_INLINE RowPlaces(const T* first, size_t stride) : stride_(stride) {
    at_[0] = hide(first);
    unroll<kThrees - 1>([&](auto i) OCTAVO_BODY { at_[i + 1] = hide(at_[i] + 3 * stride); });
  }

  OCTAVO_INLINE const T* row(int r) const { return at_[r / 3] + r % 3 * stride_; }

  OCTAVO_INLINE void advance(size_t count) {
    unroll<kThrees>([&](auto i) OCTAVO_BODY { at_[i] = hide(at_[i] + count); });
  }

 private:
  static constexpr int kThrees = (R + 2) / 3;

  // The compiler must not derive other addresses from this one's origin.
  static OCTAVO_INLINE const T* hide(const T* address) {
    asm("" : "+r"(address));
    return address;
  }

  size_t stride_;
  const T* at_[kThrees];
};

// Software prefetch of the packed stream: about 5 KB before the kernel, 2.5 KB for few rows. The hardware
// alone reaches half of the memory's speed with 5 to 32 rows.
//
// Strips of a tile are read side by side, so that what follows the end of one is the next tile's strip
// in the same place, not its neighbour, which is in the cache already.
template <int R, int S, size_t kStepBytes>
class Ahead {
 public:
  OCTAVO_INLINE Ahead(const uint8_t* weights, size_t strip_bytes)
      : at_(reinterpret_cast<uintptr_t>(weights) + kDistance), strip_bytes_(strip_bytes) {
    if (S > 1) {
      before_jump_ = static_cast<ptrdiff_t>(strip_bytes) - static_cast<ptrdiff_t>(kDistance);
      if (before_jump_ <= 0) at_ += (S - 1) * strip_bytes;
    }
  }

  // Call once for each step of kStepBytes in each strip. May pass the end of the matrix: a prefetch
  // never faults.
  OCTAVO_INLINE void fetch() {
    unroll<S>([&](auto s) OCTAVO_BODY {
      unroll<kLines>([&](auto line) OCTAVO_BODY {
        __builtin_prefetch(reinterpret_cast<const void*>(at_ + s * strip_bytes_ + line * 64));
      });
    });
    at_ += kStepBytes;
    if (S > 1) {
      const bool before = before_jump_ > 0;
      before_jump_ -= kStepBytes;
      if (before && before_jump_ <= 0) at_ += (S - 1) * strip_bytes_;
    }
  }

 private:
  static constexpr size_t kDistance = R <= 4 ? 2560 : 5120;
  static constexpr int kLines = (kStepBytes + 63) / 64;

  uintptr_t at_;
  size_t strip_bytes_;
  ptrdiff_t before_jump_ = 0;
};

}  // namespace octavo
