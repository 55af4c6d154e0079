// The loops behind floors.h: reading as fast as an instruction set can, and calculating in registers.
//
// Sums<Isa> has
//
//   Register                     all that this set works on at once, of whatever type
//   kCount                       sums that are kept: enough to hide how long an instruction takes, few
//                                enough for the registers
//   any()                        numbers that are neither 0 nor subnormal in any of the types
//   hidden(x)                    x, of which the compiler no longer knows where it comes from
//   add<arithmetic>(sum, a, b)   what the kernels of this set do with the products of a and b
//   operations(arithmetic)       of one such call
//   load(p)  total(x, y)         a register from memory; sums of 8-byte words
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../floors.h"
#include "tags.h"
#include "unroll.h"

#ifdef OCTAVO_HAS_AVX2
#include <immintrin.h>
#endif
#ifdef __aarch64__
#include <arm_neon.h>
#endif

namespace octavo {

template <class Isa>
struct Sums;

#ifdef OCTAVO_HAS_AVX512

template <>
struct Sums<Avx512> {
  using Register = __m512i;
  static constexpr int kCount = 16;

  static constexpr int operations(Arithmetic arithmetic) {
    return arithmetic == Arithmetic::kIntegers ? 128 : arithmetic == Arithmetic::kBf16 ? 64 : 32;
  }
  static OCTAVO_INLINE Register any() { return _mm512_set1_epi32(0x3f803f80); }
  static OCTAVO_INLINE Register load(const uint8_t* from) { return _mm512_loadu_si512(from); }
  static OCTAVO_INLINE Register total(Register x, Register y) { return _mm512_add_epi64(x, y); }
  static OCTAVO_INLINE Register hidden(Register x) {
    asm("" : "+v"(x));
    return x;
  }
  template <Arithmetic kArithmetic>
  static OCTAVO_INLINE Register add(Register sum, Register a, Register b) {
    if constexpr (kArithmetic == Arithmetic::kIntegers) return _mm512_dpbusd_epi32(sum, a, b);
    const __m512 before = _mm512_castsi512_ps(sum);
    if constexpr (kArithmetic == Arithmetic::kBf16) {
      return _mm512_castps_si512(_mm512_dpbf16_ps(before, (__m512bh)a, (__m512bh)b));
    }
    return _mm512_castps_si512(_mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), before));
  }
};

#endif  // OCTAVO_HAS_AVX512

#ifdef OCTAVO_HAS_AVX2

// Codes of more than 4 bits take the integers' instructions twice: see avx2_linear.h.
template <>
struct Sums<Avx2> {
  using Register = __m256i;
  static constexpr int kCount = 10;

  static constexpr int operations(Arithmetic arithmetic) {
    return arithmetic == Arithmetic::kIntegers ? 64 : 16;
  }
  static OCTAVO_INLINE Register any() { return _mm256_set1_epi32(0x3f803f80); }
  static OCTAVO_INLINE Register load(const uint8_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static OCTAVO_INLINE Register total(Register x, Register y) { return _mm256_add_epi64(x, y); }
  static OCTAVO_INLINE Register hidden(Register x) {
    asm("" : "+x"(x));
    return x;
  }
  template <Arithmetic kArithmetic>
  static OCTAVO_INLINE Register add(Register sum, Register a, Register b) {
    if constexpr (kArithmetic == Arithmetic::kIntegers) {
      return _mm256_add_epi16(sum, _mm256_maddubs_epi16(a, b));
    }
    return _mm256_castps_si256(
        _mm256_fmadd_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), _mm256_castsi256_ps(sum)));
  }
};

#endif  // OCTAVO_HAS_AVX2

// 16 bytes, which are a register nearly everywhere.
template <>
struct Sums<Plain> {
  typedef float Register __attribute__((vector_size(16)));
  typedef uint16_t Words __attribute__((vector_size(16)));
  typedef uint64_t LongWords __attribute__((vector_size(16)));
  static constexpr int kCount = 10;

  static constexpr int operations(Arithmetic arithmetic) {
    return arithmetic == Arithmetic::kIntegers ? 16 : 8;
  }
  static OCTAVO_INLINE Register any() {
    const float one = 1.0f;
    return Register{one, one, one, one};
  }
  static OCTAVO_INLINE Register load(const uint8_t* from) {
    Register x;
    std::memcpy(&x, from, sizeof x);
    return x;
  }
  static OCTAVO_INLINE Register total(Register x, Register y) {
    return (Register)((LongWords)x + (LongWords)y);
  }
  static OCTAVO_INLINE Register hidden(Register x) {
#if defined(__x86_64__) || defined(__i386__)
    asm("" : "+x"(x));
#elif defined(__aarch64__)
    asm("" : "+w"(x));
#else
    asm("" : "+m"(x));
#endif
    return x;
  }
  template <Arithmetic kArithmetic>
  static OCTAVO_INLINE Register add(Register sum, Register a, Register b) {
    if constexpr (kArithmetic == Arithmetic::kIntegers) return (Register)((Words)sum + (Words)a * (Words)b);
#ifdef __aarch64__
    return (Register)vfmaq_f32((float32x4_t)sum, (float32x4_t)a, (float32x4_t)b);
#else
    return sum + a * b;
#endif
  }
};

// Look at the disassembly after a change: the loop must hold nothing but these instructions.
template <class Isa, Arithmetic kArithmetic>
static OCTAVO_NOINLINE void add_products(int turns) {
  using Set = Sums<Isa>;
  constexpr int kCount = Set::kCount;
  typename Set::Register a = Set::any(), b = Set::any(), sums[kCount];
  unroll<kCount>([&](auto i) OCTAVO_BODY { sums[i] = Set::hidden(Set::any()); });
  for (int turn = 0; turn < turns; ++turn) {
    unroll<kCount>([&](auto i) OCTAVO_BODY {
      // Or one product would do for all.
      a = Set::hidden(a);
      sums[i] = Set::hidden(Set::template add<kArithmetic>(sums[i], a, b));
    });
  }
  typename Set::Register all = sums[0];
  unroll<kCount - 1>([&](auto i) OCTAVO_BODY { all = Set::template add<kArithmetic>(all, sums[i + 1], b); });
  asm volatile("" : : "m"(all));
}

// Returns the number of operations.
template <class Isa>
static double calculate_turns(Arithmetic arithmetic, int turns) {
  switch (arithmetic) {
    case Arithmetic::kIntegers: add_products<Isa, Arithmetic::kIntegers>(turns); break;
    case Arithmetic::kBf16: add_products<Isa, Arithmetic::kBf16>(turns); break;
    case Arithmetic::kFloat32: add_products<Isa, Arithmetic::kFloat32>(turns); break;
  }
  return static_cast<double>(turns) * Sums<Isa>::kCount * Sums<Isa>::operations(arithmetic);
}

// The sum of all 8-byte words; `bytes` is a multiple of 512.
template <class Isa>
static uint64_t read_words(const uint8_t* from, size_t bytes) {
  using Set = Sums<Isa>;
  using Register = typename Set::Register;
  constexpr int kLoads = 8, kLoopBytes = kLoads * sizeof(Register);
  Register sums[kLoads] = {};
  for (size_t at = 0; at < bytes; at += kLoopBytes) {
    unroll<kLoads>([&](auto i) OCTAVO_BODY {
      sums[i] = Set::total(sums[i], Set::load(from + at + i * sizeof(Register)));
    });
  }
  Register all = sums[0];
  unroll<kLoads - 1>([&](auto i) OCTAVO_BODY { all = Set::total(all, sums[i + 1]); });
  uint64_t words[sizeof(Register) / sizeof(uint64_t)], sum = 0;
  std::memcpy(words, &all, sizeof all);
  for (uint64_t word : words) sum += word;
  return sum;
}

}  // namespace octavo
