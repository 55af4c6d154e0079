// Linear layers over codes of 4, 5, 6 or 8 bits whose scales are a float16 times a whole number: K-quants
// store theirs so, and the products fit into no float16. Written once, in 16 integers for each
// instruction set; formats that are read most have kernels of their own.
//
// CodeLanes<Isa> has
//
//   Bytes   64 codes: four of each of a strip's 16 columns
//     load(p)
//     shifted<n>(bytes, mask)       each byte n bits up (down, if negative), of which the mask stays;
//                                   it must leave out what came from the next byte
//     joined(a, b)                  bits of either
//   Ints    a whole number for each column
//     all(x)  load_int8(p)  times(a, b)  plus(a, b)
//     add_dot<bits>(sums, codes, inputs)   adds the products of four codes of `bits` bits with four inputs
//   sum16(inputs)                   of 16 inputs
//   Floats  a number for each column
//     zero()  load_half(p)  number(ints)  scaled(a, b)  scaled_by(a, x)  store(p, a)
//     plus_product(sum, a, b)  plus_product_by(sum, a, x)    one rounding where the machine can
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../half.h"
#include "../types.h"
#include "linear_kernels.h"
#include "tags.h"
#include "unroll.h"

#ifdef OCTAVO_HAS_AVX2
#include <immintrin.h>
#endif

namespace octavo {

// Where the parts of a packed group lie. With h = i / 16, number i of a column is
//
//   scale * factor[h] * (code - kZero) + minimum * minimum_factor
//
//   4 rows of 64 bytes     the low halves of all codes, as in kQ4
//   a row for each bit more   bit 4 h + j of byte b of a column's four: of input 16 h + 4 j + b
//   16 scales, 16 minima   float16
//   16 factors             int8; 16 more for inputs 16-31 from 6 bits on
//   16 minimum factors     int8
template <int kBits>
struct ScaledGroup {
  static constexpr int kZero = kBits == 6 ? 32 : kBits == 8 ? 128 : 0;
  static constexpr int kFactors = kBits >= 6 ? 2 : 1;
  static constexpr size_t kPlanes = 4 * 64;
  static constexpr size_t kScales = kPlanes + (kBits - 4) * 64;
  static constexpr size_t kMinima = kScales + kStrip * 2;
  static constexpr size_t kFactor = kMinima + kStrip * 2;
  static constexpr size_t kMinimumFactor = kFactor + kFactors * kStrip;
  static constexpr size_t kBytes = kMinimumFactor + kStrip;
};

template <class Isa>
struct CodeLanes;

#ifdef OCTAVO_HAS_AVX2

// Of 16 codes: as whole numbers from 0 on, less what that adds.
static OCTAVO_INLINE int sum_of_16(const int8_t* codes) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
  const __m128i raised = _mm_xor_si128(bytes, _mm_set1_epi8(-128));
  const __m128i sums = _mm_sad_epu8(raised, _mm_setzero_si128());
  return _mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4) - 16 * 128;
}

#endif  // OCTAVO_HAS_AVX2

#ifdef OCTAVO_HAS_AVX512

template <>
struct CodeLanes<Avx512> {
  using Bytes = __m512i;
  using Ints = __m512i;
  using Floats = __m512;

  static OCTAVO_INLINE Bytes load(const uint8_t* from) { return _mm512_loadu_si512(from); }
  template <int kUp>
  static OCTAVO_INLINE Bytes shifted(Bytes bytes, int mask) {
    if constexpr (kUp > 0) bytes = _mm512_slli_epi16(bytes, kUp);
    if constexpr (kUp < 0) bytes = _mm512_srli_epi16(bytes, -kUp);
    return _mm512_and_si512(bytes, _mm512_set1_epi8(static_cast<char>(mask)));
  }
  static OCTAVO_INLINE Bytes joined(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }

  static OCTAVO_INLINE Ints all(int x) { return _mm512_set1_epi32(x); }
  static OCTAVO_INLINE Ints load_int8(const uint8_t* from) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static OCTAVO_INLINE Ints times(Ints a, Ints b) { return _mm512_mullo_epi32(a, b); }
  static OCTAVO_INLINE Ints plus(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
  template <int>
  static OCTAVO_INLINE Ints add_dot(Ints sums, Bytes codes, const int8_t* inputs) {
    int32_t four;
    std::memcpy(&four, inputs, sizeof four);
    return _mm512_dpbusd_epi32(sums, codes, _mm512_set1_epi32(four));
  }

  static OCTAVO_INLINE int sum16(const int8_t* inputs) { return sum_of_16(inputs); }

  static OCTAVO_INLINE Floats zero() { return _mm512_setzero_ps(); }
  static OCTAVO_INLINE Floats load_half(const uint8_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static OCTAVO_INLINE Floats number(Ints x) { return _mm512_cvtepi32_ps(x); }
  static OCTAVO_INLINE Floats scaled(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static OCTAVO_INLINE Floats scaled_by(Floats a, float x) { return _mm512_mul_ps(a, _mm512_set1_ps(x)); }
  static OCTAVO_INLINE Floats plus_product(Floats sum, Floats a, Floats b) { return _mm512_fmadd_ps(a, b, sum); }
  static OCTAVO_INLINE Floats plus_product_by(Floats sum, Floats a, float x) {
    return _mm512_fmadd_ps(a, _mm512_set1_ps(x), sum);
  }
  static OCTAVO_INLINE void store(float* to, Floats x) { _mm512_store_ps(to, x); }
};

#endif  // OCTAVO_HAS_AVX512

#ifdef OCTAVO_HAS_AVX2

template <>
struct CodeLanes<Avx2> {
  struct Bytes {
    __m256i a, b;  // of columns 0-7 and 8-15
  };
  using Ints = Bytes;
  struct Floats {
    __m256 a, b;
  };

  static OCTAVO_INLINE Bytes load(const uint8_t* from) {
    const __m256i* halves = reinterpret_cast<const __m256i*>(from);
    return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
  }
  template <int kUp>
  static OCTAVO_INLINE Bytes shifted(Bytes x, int mask) {
    const __m256i kept = _mm256_set1_epi8(static_cast<char>(mask));
    return {_mm256_and_si256(moved<kUp>(x.a), kept), _mm256_and_si256(moved<kUp>(x.b), kept)};
  }
  static OCTAVO_INLINE Bytes joined(Bytes x, Bytes y) {
    return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)};
  }

  static OCTAVO_INLINE Ints all(int x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
  static OCTAVO_INLINE Ints load_int8(const uint8_t* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))};
  }
  static OCTAVO_INLINE Ints times(Ints x, Ints y) {
    return {_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)};
  }
  static OCTAVO_INLINE Ints plus(Ints x, Ints y) {
    return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
  }
  template <int kBits>
  static OCTAVO_INLINE Ints add_dot(Ints sums, Bytes codes, const int8_t* inputs) {
    int32_t four;
    std::memcpy(&four, inputs, sizeof four);
    const __m256i x = _mm256_set1_epi32(four);
    return {_mm256_add_epi32(sums.a, dot<kBits>(codes.a, x)), _mm256_add_epi32(sums.b, dot<kBits>(codes.b, x))};
  }

  static OCTAVO_INLINE int sum16(const int8_t* inputs) { return sum_of_16(inputs); }

  static OCTAVO_INLINE Floats zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static OCTAVO_INLINE Floats load_half(const uint8_t* from) {
    const __m128i* halves = reinterpret_cast<const __m128i*>(from);
    return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
  }
  static OCTAVO_INLINE Floats number(Ints x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
  static OCTAVO_INLINE Floats scaled(Floats x, Floats y) {
    return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
  }
  static OCTAVO_INLINE Floats scaled_by(Floats a, float x) { return scaled(a, same(x)); }
  static OCTAVO_INLINE Floats plus_product(Floats sum, Floats x, Floats y) {
    return {_mm256_fmadd_ps(x.a, y.a, sum.a), _mm256_fmadd_ps(x.b, y.b, sum.b)};
  }
  static OCTAVO_INLINE Floats plus_product_by(Floats sum, Floats a, float x) {
    return plus_product(sum, a, same(x));
  }
  static OCTAVO_INLINE void store(float* to, Floats x) {
    _mm256_store_ps(to, x.a);
    _mm256_store_ps(to + 8, x.b);
  }

 private:
  static OCTAVO_INLINE Floats same(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  template <int kUp>
  static OCTAVO_INLINE __m256i moved(__m256i x) {
    if constexpr (kUp > 0) x = _mm256_slli_epi16(x, kUp);
    if constexpr (kUp < 0) x = _mm256_srli_epi16(x, -kUp);
    return x;
  }
  // Two products of up to 6 bits with inputs fit into 16 bits; of 8 bits they do not.
  template <int kBits>
  static OCTAVO_INLINE __m256i dot(__m256i codes, __m256i inputs) {
    const __m256i ones = _mm256_set1_epi16(1);
    if constexpr (kBits <= 6) return _mm256_madd_epi16(_mm256_maddubs_epi16(codes, inputs), ones);
    const __m256i low_half = _mm256_set1_epi8(15);
    const __m256i low = _mm256_and_si256(codes, low_half), high = _mm256_and_si256(moved<-4>(codes), low_half);
    return _mm256_add_epi32(_mm256_madd_epi16(_mm256_maddubs_epi16(low, inputs), ones),
                            _mm256_madd_epi16(_mm256_maddubs_epi16(high, inputs), _mm256_set1_epi16(16)));
  }
};

#endif  // OCTAVO_HAS_AVX2

template <>
struct CodeLanes<Plain> {
  struct Bytes {
    uint8_t v[64];
  };
  struct Ints {
    int32_t v[kStrip];
  };
  struct Floats {
    float v[kStrip];
  };

  static OCTAVO_INLINE Bytes load(const uint8_t* from) {
    Bytes x;
    std::memcpy(x.v, from, sizeof x.v);
    return x;
  }
  template <int kUp>
  static OCTAVO_INLINE Bytes shifted(const Bytes& x, int mask) {
    Bytes y;
    for (int i = 0; i < 64; ++i) {
      y.v[i] = static_cast<uint8_t>((kUp >= 0 ? x.v[i] << (kUp & 7) : x.v[i] >> (-kUp & 7)) & mask);
    }
    return y;
  }
  static OCTAVO_INLINE Bytes joined(const Bytes& a, const Bytes& b) {
    Bytes y;
    for (int i = 0; i < 64; ++i) y.v[i] = a.v[i] | b.v[i];
    return y;
  }

  static OCTAVO_INLINE Ints all(int x) {
    return each<Ints>([&](int) { return x; });
  }
  static OCTAVO_INLINE Ints load_int8(const uint8_t* from) {
    return each<Ints>([&](int c) { return static_cast<int8_t>(from[c]); });
  }
  static OCTAVO_INLINE Ints times(const Ints& a, const Ints& b) {
    return each<Ints>([&](int c) { return a.v[c] * b.v[c]; });
  }
  static OCTAVO_INLINE Ints plus(const Ints& a, const Ints& b) {
    return each<Ints>([&](int c) { return a.v[c] + b.v[c]; });
  }
  template <int>
  static OCTAVO_INLINE Ints add_dot(const Ints& sums, const Bytes& codes, const int8_t* x) {
    return each<Ints>([&](int c) {
      const uint8_t* four = codes.v + 4 * c;
      return sums.v[c] + four[0] * x[0] + four[1] * x[1] + four[2] * x[2] + four[3] * x[3];
    });
  }

  static OCTAVO_INLINE int sum16(const int8_t* inputs) {
    int sum = 0;
    for (int i = 0; i < 16; ++i) sum += inputs[i];
    return sum;
  }

  static OCTAVO_INLINE Floats zero() {
    return each<Floats>([](int) { return 0.0f; });
  }
  static OCTAVO_INLINE Floats load_half(const uint8_t* from) {
    return each<Floats>([&](int c) {
      uint16_t half;
      std::memcpy(&half, from + 2 * c, sizeof half);
      return half_to_float(half);
    });
  }
  static OCTAVO_INLINE Floats number(const Ints& x) {
    return each<Floats>([&](int c) { return static_cast<float>(x.v[c]); });
  }
  static OCTAVO_INLINE Floats scaled(const Floats& a, const Floats& b) {
    return each<Floats>([&](int c) { return a.v[c] * b.v[c]; });
  }
  static OCTAVO_INLINE Floats scaled_by(const Floats& a, float x) {
    return each<Floats>([&](int c) { return a.v[c] * x; });
  }
  static OCTAVO_INLINE Floats plus_product(const Floats& sum, const Floats& a, const Floats& b) {
    return each<Floats>([&](int c) { return multiply_add(a.v[c], b.v[c], sum.v[c]); });
  }
  static OCTAVO_INLINE Floats plus_product_by(const Floats& sum, const Floats& a, float x) {
    return each<Floats>([&](int c) { return multiply_add(a.v[c], x, sum.v[c]); });
  }
  static OCTAVO_INLINE void store(float* to, const Floats& x) { std::memcpy(to, x.v, sizeof x.v); }

 private:
  template <class Lanes16, class Make>
  static OCTAVO_INLINE Lanes16 each(Make&& make) {
    Lanes16 x;
    for (int c = 0; c < kStrip; ++c) x.v[c] = make(c);
    return x;
  }
};

// The tile of LinearKernels for a format of scaled codes.
template <class Isa, int kBits>
class ScaledTile {
  using Part = CodeLanes<Isa>;
  using Group = ScaledGroup<kBits>;
  using Bytes = typename Part::Bytes;
  using Ints = typename Part::Ints;
  using Floats = typename Part::Floats;
  static constexpr int kLast = Group::kFactors - 1;

 public:
  template <int R, int S>
  static OCTAVO_INLINE void run(const uint8_t* w, size_t strip_bytes, const QuantizedRows& rows, int row,
                                float* out) {
    const size_t in = rows.in, groups = in / kGroup;
    Ahead<R, S, Group::kBytes> ahead(w, strip_bytes);
    Floats sums[R][S];
    unroll<R>([&](auto r) OCTAVO_BODY { unroll<S>([&](auto s) OCTAVO_BODY { sums[r][s] = Part::zero(); }); });
    for (size_t g = 0; g < groups; ++g, w += Group::kBytes) {
      ahead.fetch();
      const int8_t* codes = rows.codes + row * in + g * kGroup;
      const size_t at = row * groups + g;
      unroll<S>([&](auto s) OCTAVO_BODY {
        const uint8_t* here = w + s * strip_bytes;
        Ints dots[R][Group::kFactors];
        unroll<R>([&](auto r) OCTAVO_BODY {
          begin_dots(codes + r * in, rows.offsets[at + r * groups], dots[r]);
        });
        unroll<4>([&](auto j) OCTAVO_BODY {
          const Bytes low = codes_of<0, decltype(j){}>(here), high = codes_of<1, decltype(j){}>(here);
          unroll<R>([&](auto r) OCTAVO_BODY {
            const int8_t* inputs = codes + r * in + j * 4;
            dots[r][0] = Part::template add_dot<kBits>(dots[r][0], low, inputs);
            dots[r][kLast] = Part::template add_dot<kBits>(dots[r][kLast], high, inputs + 16);
          });
        });
        const Floats scale = Part::load_half(here + Group::kScales);
        const Floats minimum = Part::scaled(Part::load_half(here + Group::kMinima),
                                            Part::number(Part::load_int8(here + Group::kMinimumFactor)));
        unroll<R>([&](auto r) OCTAVO_BODY {
          const Floats step = Part::scaled_by(scale, rows.scales[at + r * groups]);
          const Floats sum = Part::plus_product(sums[r][s], Part::number(factored(here, dots[r])), step);
          sums[r][s] = Part::plus_product_by(sum, minimum, rows.sums[at + r * groups]);
        });
      });
    }
    unroll<R>([&](auto r) OCTAVO_BODY {
      unroll<S>([&](auto s) OCTAVO_BODY { Part::store(out + (r * S + s) * kStrip, sums[r][s]); });
    });
  }

 private:
  // Four codes of each column: of the inputs 16 kHalf + 4 j to 16 kHalf + 4 j + 3.
  template <int kHalf, int j>
  static OCTAVO_INLINE Bytes codes_of(const uint8_t* group) {
    Bytes codes = Part::template shifted<-4 * kHalf>(Part::load(group + j * 64), 15);
    unroll<kBits - 4>([&](auto plane) OCTAVO_BODY {
      constexpr int kPlane = decltype(plane){}, kUp = 4 + kPlane - (4 * kHalf + j);
      const Bytes bits = Part::load(group + Group::kPlanes + kPlane * 64);
      codes = Part::joined(codes, Part::template shifted<kUp>(bits, 16 << kPlane));
    });
    return codes;
  }

  // What a dot product lacks because codes have kZero added. offset: -128 times the sum of the inputs.
  static OCTAVO_INLINE void begin_dots(const int8_t* inputs, int32_t offset, Ints (&dots)[Group::kFactors]) {
    if constexpr (Group::kZero == 0) {
      dots[0] = Part::all(0);
    } else {
      const int first = Part::sum16(inputs);
      dots[0] = Part::all(-Group::kZero * first);
      dots[1] = Part::all(-Group::kZero * (offset / -128 - first));
    }
  }

  // Exact: a product of 16 codes and inputs is below 2^19, a factor below 2^8.
  static OCTAVO_INLINE Ints factored(const uint8_t* group, const Ints (&dots)[Group::kFactors]) {
    Ints sum = Part::times(dots[0], Part::load_int8(group + Group::kFactor));
    if constexpr (Group::kFactors == 2) {
      sum = Part::plus(sum, Part::times(dots[1], Part::load_int8(group + Group::kFactor + kStrip)));
    }
    return sum;
  }
};

}  // namespace octavo
