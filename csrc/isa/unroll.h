// Loops that the compiler must unroll completely, so that small arrays live in registers.
//
// GCC 12 keeps accumulator arrays on the stack when a loop is unrolled by a pragma. Pack expansion over
// constant indices does not have this fault; look at the disassembly after changing a kernel.
#pragma once

#include <utility>

#define OCTAVO_INLINE inline __attribute__((always_inline))
#define OCTAVO_NOINLINE __attribute__((noinline))
// Written after the parameters of a lambda that is a loop body.
#define OCTAVO_BODY __attribute__((always_inline))

namespace octavo {

template <int I>
struct Index {
  constexpr OCTAVO_INLINE operator int() const { return I; }
};

template <class Body, int... I>
static OCTAVO_INLINE void unroll_each(Body&& body, std::integer_sequence<int, I...>) {
  (body(Index<I>{}), ...);
}

// Calls body(0), body(1), ... body(N - 1); each index is a constant.
template <int N, class Body>
static OCTAVO_INLINE void unroll(Body&& body) {
  unroll_each(body, std::make_integer_sequence<int, N>{});
}

}  // namespace octavo
