// Linear layers: rows times a packed matrix, in every format and for every instruction set.
//
//   linear<Isa>(matrix, rows, {r0, r1}, {s0, s1}, emit)
//
// computes the rows r0..r1 of the outputs in the strips s0..s1 and hands each on as
// emit(row, strip, values): 16 floats, aligned to 64 bytes, valid during the call. Columns past
// `matrix.out` are zero times the inputs; emit leaves them out if nobody has room for them. Each pair of
// row and strip is emitted once, in an order that is not promised.
//
// A row's outputs have the same bits whatever other rows are computed with it, however strips are
// divided over threads: see LinearKernels. Compile with -ffp-contract=off, so that it stays so.
//
// Error, with u = 2^-24 and x the rows as stored (codes times scales, bf16, or float32):
//   codes       |y - exact| <= (2 groups + 4) u (sum |scale x dot| + sum |minimum x code sum|)
//   kBf16       |y - exact| <= (2 in) u sum |w x|
//   kF32, kF16  |y - exact| <= in u sum |w x|
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "isa/avx2_linear.h"
#include "isa/avx512_linear.h"
#include "isa/plain_linear.h"
#include "isa/tags.h"
#include "isa/unroll.h"
#include "types.h"

namespace octavo {

// From `begin` up to, not including, `end`.
struct Range {
  int begin = 0;
  int end = 0;
};

template <class Isa, Format F>
class LinearLayer {
  using Kernels = LinearKernels<Isa>;
  using Tile = void (*)(const uint8_t*, size_t, const Rows&, int, float*);
  static constexpr int kMaxRows = Kernels::kMaxRows;
  // Strips of a tile when the rows are cut into several tiles.
  static constexpr int kTallStrips = Kernels::tile_strips(F, kMaxRows);
  static constexpr int kMostStrips = 4;
  // Rows that are read again for each strip should stay in the second-level cache.
  static constexpr size_t kChunkBytes = 512 << 10;

 public:
  template <class Emit>
  static void run(const PackedMatrix& matrix, const Rows& rows, Range of_rows, Range of_strips,
                  Emit& emit) {
    const int count = of_rows.end - of_rows.begin;
    const int chunks = (count + chunk_rows(matrix.in) - 1) / chunk_rows(matrix.in);
    for (int chunk = 0; chunk < chunks; ++chunk) {
      run_chunk(matrix, rows, part(of_rows, chunk, chunks), of_strips, emit);
    }
  }

 private:
  static int chunk_rows(int in) {
    const size_t row_bytes = in * (takes_f32(F) ? 4 : takes_bf16(F) ? 2 : 1);
    const int fit = static_cast<int>(kChunkBytes / row_bytes) / kMaxRows * kMaxRows;
    return fit > 4 * kMaxRows ? fit : 4 * kMaxRows;
  }

  static Range part(Range whole, int index, int parts) {
    const int64_t size = whole.end - whole.begin;
    return {whole.begin + static_cast<int>(size * index / parts),
            whole.begin + static_cast<int>(size * (index + 1) / parts)};
  }

  template <class Emit>
  static void run_chunk(const PackedMatrix& matrix, const Rows& rows, Range chunk, Range of_strips,
                        Emit& emit) {
    const int count = chunk.end - chunk.begin;
    const int blocks = (count + kMaxRows - 1) / kMaxRows;
    const int short_rows = count / blocks, tall_blocks = count % blocks;  // 16 as 8 and 8, not 12 and 4
    const int wide = blocks == 1 ? Kernels::tile_strips(F, count) : kTallStrips;
    int strip = of_strips.begin;
    while (strip < of_strips.end) {
      const int strips = strip + wide <= of_strips.end ? wide : 1;
      int row = chunk.begin;
      for (int block = 0; block < blocks; ++block) {
        const int rows_here = short_rows + (block < tall_blocks);
        run_tile(matrix, rows, row, rows_here, strip, strips, emit);
        row += rows_here;
      }
      strip += strips;
    }
  }

  template <class Emit>
  static void run_tile(const PackedMatrix& matrix, const Rows& rows, int row, int count, int strip,
                       int strips, Emit& emit) {
    alignas(64) float values[kMaxRows * kMostStrips * kStrip];
    const Tile tile = strips == 1 ? kOneStrip[count - 1] : kWide[count - 1];
    tile(matrix.strip(strip), matrix.strip_bytes, rows, row, values);
    const float* next = values;
    for (int r = 0; r < count; ++r) {
      for (int s = 0; s < strips; ++s, next += kStrip) emit(row + r, strip + s, next);
    }
  }

  template <bool kIsWide, int R>
  static constexpr Tile choose() {
    static_assert(Kernels::tile_strips(F, R) <= kMostStrips);
    // When rows are cut evenly, no block has fewer rows than this.
    static_assert(R < (kMaxRows + 1) / 2 || Kernels::tile_strips(F, R) == kTallStrips);
    return &Kernels::template tile<F, R, kIsWide ? Kernels::tile_strips(F, R) : 1>;
  }
  template <bool kIsWide, int... R>
  struct Table {
    static constexpr Tile tiles[] = {choose<kIsWide, R + 1>()...};
  };
  template <bool kIsWide, int... R>
  static constexpr const Tile* table(std::integer_sequence<int, R...>) {
    return Table<kIsWide, R...>::tiles;
  }
  using Counts = std::make_integer_sequence<int, kMaxRows>;
  static constexpr const Tile* kOneStrip = table<false>(Counts{});
  static constexpr const Tile* kWide = table<true>(Counts{});
};

template <class Isa, class Emit>
static void linear(const PackedMatrix& matrix, const Rows& rows, Range of_rows, Range of_strips,
                   Emit&& emit) {
  assert((takes_codes(matrix.format) ? rows.quantized.in : rows.in) == matrix.in);
  assert(matrix.in % kGroup == 0);
  assert(of_strips.begin >= 0 && of_strips.end <= matrix.strips());
  assert(reinterpret_cast<uintptr_t>(matrix.data) % 64 == 0);
  switch (matrix.format) {
    case Format::kQ4: return LinearLayer<Isa, Format::kQ4>::run(matrix, rows, of_rows, of_strips, emit);
    case Format::kQ8: return LinearLayer<Isa, Format::kQ8>::run(matrix, rows, of_rows, of_strips, emit);
    case Format::kBf16: return LinearLayer<Isa, Format::kBf16>::run(matrix, rows, of_rows, of_strips, emit);
    case Format::kF32: return LinearLayer<Isa, Format::kF32>::run(matrix, rows, of_rows, of_strips, emit);
    case Format::kF16: return LinearLayer<Isa, Format::kF16>::run(matrix, rows, of_rows, of_strips, emit);
    case Format::kQ4S: return LinearLayer<Isa, Format::kQ4S>::run(matrix, rows, of_rows, of_strips, emit);
    case Format::kQ5S: return LinearLayer<Isa, Format::kQ5S>::run(matrix, rows, of_rows, of_strips, emit);
    case Format::kQ6S: return LinearLayer<Isa, Format::kQ6S>::run(matrix, rows, of_rows, of_strips, emit);
    case Format::kQ8S: return LinearLayer<Isa, Format::kQ8S>::run(matrix, rows, of_rows, of_strips, emit);
  }
}

// Emits into a matrix [rows, stride] of floats and leaves out columns from `columns` on.
template <class Isa>
struct StoreRows {
  float* out;
  size_t stride;
  int columns;

  OCTAVO_INLINE void operator()(int row, int strip, const float* values) const {
    float* to = out + row * stride + strip * kStrip;
    const int count = columns - strip * kStrip;
    if (count >= kStrip) {
      std::memcpy(to, values, kStrip * sizeof(float));
    } else {
      std::memcpy(to, values, count * sizeof(float));
    }
  }
};

// The same, added to what is there: a residual stream.
template <class Isa>
struct AddRows {
  float* out;
  size_t stride;
  int columns;

  OCTAVO_INLINE void operator()(int row, int strip, const float* values) const {
    float* __restrict to = out + row * stride + strip * kStrip;
    const float* __restrict from = values;
    const int count = columns - strip * kStrip;
    if (count >= kStrip) {
      for (int c = 0; c < kStrip; ++c) to[c] += from[c];
    } else {
      for (int c = 0; c < count; ++c) to[c] += from[c];
    }
  }
};

}  // namespace octavo
