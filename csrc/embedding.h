// Rows of an embedding as float32, from packed strips or a matrix as it is. `scale` multiplies every
// number. The width is a multiple of 16.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa/avx2_vector.h"
#include "isa/avx512_vector.h"
#include "isa/plain_vector.h"
#include "pack.h"
#include "types.h"

namespace octavo {

template <class Isa>
static void embed_packed(const PackedMatrix& matrix, int token, float scale, float* out) {
  using Vector = Lanes<Isa>;
  unpack_row(matrix, token, out);
  if (scale == 1.0f) return;
  for (int i = 0; i < matrix.in; i += 16) (Vector::load(out + i) * Vector::all(scale)).store(out + i);
}

// From a matrix [tokens, width] of bf16 numbers.
template <class Isa>
static void embed_bf16(const uint16_t* matrix, int width, int token, float scale, float* out) {
  using Vector = Lanes<Isa>;
  const uint16_t* from = matrix + static_cast<size_t>(token) * width;
  for (int i = 0; i < width; i += 16) (Vector::from_bf16(from + i) * Vector::all(scale)).store(out + i);
}

template <class Isa>
static void embed_f32(const float* matrix, int width, int token, float scale, float* out) {
  using Vector = Lanes<Isa>;
  const float* from = matrix + static_cast<size_t>(token) * width;
  for (int i = 0; i < width; i += 16) (Vector::load(from + i) * Vector::all(scale)).store(out + i);
}

}  // namespace octavo
