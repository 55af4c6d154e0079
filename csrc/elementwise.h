// What lies between the large products of a layer: norms, rotation, activations, rows of tables.
//
// Everything is float32 and treats one row at a time. Results go out through `emit(group, low, high)`:
// 32 numbers of the row, inputs 0-15 and 16-31 of a group, still in registers. An emitter stores,
// rounds, quantises or adds them.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "isa/avx2_vector.h"
#include "isa/avx512_vector.h"
#include "isa/plain_vector.h"
#include "quantize.h"
#include "types.h"

namespace octavo {

template <class Isa>
struct EmitFloats {
  float* out;
  OCTAVO_INLINE void operator()(int group, Lanes<Isa> low, Lanes<Isa> high) const {
    low.store(out + group * kGroup);
    high.store(out + group * kGroup + 16);
  }
};

// Adds to what is there: a residual stream.
template <class Isa>
struct EmitAdded {
  float* out;
  OCTAVO_INLINE void operator()(int group, Lanes<Isa> low, Lanes<Isa> high) const {
    float* to = out + group * kGroup;
    (Lanes<Isa>::load(to) + low).store(to);
    (Lanes<Isa>::load(to + 16) + high).store(to + 16);
  }
};

template <class Isa>
struct EmitBf16 {
  uint16_t* out;
  OCTAVO_INLINE void operator()(int group, Lanes<Isa> low, Lanes<Isa> high) const {
    low.store_bf16(out + group * kGroup);
    high.store_bf16(out + group * kGroup + 16);
  }
};

template <class Isa>
struct EmitQuantized {
  const QuantizedRows& out;
  int row;
  OCTAVO_INLINE void operator()(int group, Lanes<Isa> low, Lanes<Isa> high) const {
    alignas(64) float numbers[kGroup];
    low.store(numbers);
    high.store(numbers + 16);
    RowForm<Isa>::quantize(numbers, out, row, group);
  }
};

// 1 / sqrt(mean of squares + eps) of `size` numbers among `count`; the others are 0. Read in whole 16s.
// Four sums, so that the additions need not wait for each other; which one takes a number depends on
// its place alone.
template <class Isa>
static OCTAVO_INLINE float inverse_rms(const float* x, int count, int size, float eps) {
  using Vector = Lanes<Isa>;
  Vector a = Vector::all(0), b = a, c = a, d = a;
  int i = 0;
  for (; i + 64 <= count; i += 64) {
    const Vector p = Vector::load(x + i), q = Vector::load(x + i + 16);
    const Vector r = Vector::load(x + i + 32), s = Vector::load(x + i + 48);
    a = a.plus(p, p);
    b = b.plus(q, q);
    c = c.plus(r, r);
    d = d.plus(s, s);
  }
  for (; i < count; i += 16) {
    const Vector p = Vector::load(x + i);
    a = a.plus(p, p);
  }
  const float squares = ((a + b) + (c + d)).sum();
  return 1.0f / std::sqrt(squares / static_cast<float>(size) + eps);
}

// RMSNorm of one row: x * weight / rms(x). What fills row and weight up to whole groups is 0, and is
// emitted as 0.
template <class Isa, class Emit>
static OCTAVO_INLINE void rms_norm(const float* x, const float* weight, int count, float eps,
                                   Emit&& emit) {
  using Vector = Lanes<Isa>;
  const Vector scale = Vector::all(inverse_rms<Isa>(x, count, count, eps));
  for (int group = 0; group < (count + kGroup - 1) / kGroup; ++group) {
    const float *from = x + group * kGroup, *by = weight + group * kGroup;
    emit(group, Vector::load(from) * scale * Vector::load(by),
         Vector::load(from + 16) * scale * Vector::load(by + 16));
  }
}

// RMSNorm of each head by itself, in place, all with one weight [dim]. dim: a multiple of 16, of which
// `size` numbers count and the others are 0.
template <class Isa>
static void norm_heads(float* heads, int count, int dim, int size, const float* weight, float eps) {
  using Vector = Lanes<Isa>;
  for (float* head = heads; head < heads + static_cast<size_t>(count) * dim; head += dim) {
    const Vector scale = Vector::all(inverse_rms<Isa>(head, dim, size, eps));
    for (int i = 0; i < dim; i += 16) {
      (Vector::load(head + i) * scale * Vector::load(weight + i)).store(head + i);
    }
  }
}

// Turns the pairs of each head, in place: numbers i and i + dim / 2 by the angle of pair i. cos and
// sin: [dim / 2], of this row's position, already scaled where a model scales them.
template <class Isa>
static void rotate_heads(float* heads, int count, int dim, const float* cos, const float* sin) {
  using Vector = Lanes<Isa>;
  const int half = dim / 2;
  for (float* low = heads; low < heads + static_cast<size_t>(count) * dim; low += dim) {
    float* high = low + half;
    for (int i = 0; i < half; i += 16) {
      const int n = half - i < 16 ? half - i : 16;  // 8 at the end of a dim of 16, 48, 80, ...
      const Vector x = Vector::load_first(low + i, n), y = Vector::load_first(high + i, n);
      const Vector c = Vector::load_first(cos + i, n), s = Vector::load_first(sin + i, n);
      (x * c - y * s).store_first(low + i, n);
      (y * c + x * s).store_first(high + i, n);
    }
  }
}

enum class Activation : int { kSilu, kGeluTanh };

// activation(gate) = gate / (1 + 2^-slope). GELU's tanh: (1 + tanh(x)) / 2 is 1 / (1 + exp(-2x));
// source: Hendrycks and Gimpel 2016, arXiv 1606.08415.
template <class Isa>
static OCTAVO_INLINE Lanes<Isa> activate(Activation activation, Lanes<Isa> gate) {
  using Vector = Lanes<Isa>;
  constexpr float kLog2OfE = 1.44269504f;
  constexpr float kGeluSlope = 2 * 0.797884561f * kLog2OfE;  // 2 sqrt(2 / pi)
  Vector power = gate * Vector::all(-kLog2OfE);
  if (activation == Activation::kGeluTanh) {
    const Vector cube = Vector::all(1).plus(gate * gate, Vector::all(0.044715f));
    power = gate * cube * Vector::all(-kGeluSlope);
  }
  return gate / (Vector::all(1) + Vector::all(127).min(power).exp2());
}

// activation(gate) * up of `groups` groups of 32 numbers; they are emitted from group `first` on.
template <class Isa, class Emit>
static OCTAVO_INLINE void gated(Activation activation, const float* gate, const float* up, int groups,
                                int first, Emit&& emit) {
  using Vector = Lanes<Isa>;
  for (int group = 0; group < groups; ++group) {
    const float *g = gate + group * kGroup, *u = up + group * kGroup;
    emit(first + group, activate<Isa>(activation, Vector::load(g)) * Vector::load(u),
         activate<Isa>(activation, Vector::load(g + 16)) * Vector::load(u + 16));
  }
}

// to += from * scale. count: a multiple of 16.
template <class Isa>
static void add_scaled(float* to, const float* from, float scale, int count) {
  using Vector = Lanes<Isa>;
  const Vector factor = Vector::all(scale);
  for (int i = 0; i < count; i += 16) {
    Vector::load(to + i).plus(Vector::load(from + i), factor).store(to + i);
  }
}

// Moves the first `size` numbers of each head together, in place, and fills up with 0 to `width`.
OCTAVO_INLINE void join_heads(float* heads, int count, int dim, int size, int width) {
  for (int head = 1; head < count; ++head) {
    std::memmove(heads + head * size, heads + head * dim, sizeof(float) * size);
  }
  std::memset(heads + count * size, 0, sizeof(float) * (width - count * size));
}

// to += from: a residual, or a bias.
template <class Isa>
static void add_row(float* to, const float* from, int count) {
  using Vector = Lanes<Isa>;
  for (int i = 0; i < count; i += 16) (Vector::load(to + i) + Vector::load(from + i)).store(to + i);
}

}  // namespace octavo
