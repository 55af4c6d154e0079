// The two products of attention: queries with the keys of tiles, probabilities with their values.
//
// Both read 64 bytes of a page at a time, 16 words, and multiply them with a few numbers of a row. A
// sum takes its products in the order of the words in memory, whatever else is computed beside it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../pages.h"
#include "lanes.h"
#include "tags.h"

namespace octavo {

// Positions whose scores are computed before their values are added: a share of a segment.
constexpr int kChunkTiles = 8;
constexpr int kChunk = kChunkTiles * kTile;
// While keys are multiplied, those of the next chunk are fetched, and while values are added, its values:
// so memory is never idle. Once for all rows is enough. They go to the second-level cache, as two chunks do
// not fit into the first.
OCTAVO_INLINE void fetch_line(const uint8_t* at) { __builtin_prefetch(at, 0, 2); }

// Words of pages, and how they are multiplied. A word holds kNumbers numbers, for which a row has
// kNumbers operands. A specialisation may store operands as it likes.
template <class Isa, PageFormat kFormat>
struct PageWords;

template <class Isa>
struct PageWords<Isa, PageFormat::kF32> {
  using Vector = Lanes<Isa>;
  using Operand = float;
  using Spread = Vector;
  static constexpr int kNumbers = 1;
  Vector words;

  static OCTAVO_INLINE PageWords load(const uint8_t* from) {
    return {Vector::load(reinterpret_cast<const float*>(from))};
  }
  static OCTAVO_INLINE Spread spread(const Operand* from) { return Vector::all(from[0]); }
  static OCTAVO_INLINE void store_operands(Operand* to, Vector x) { x.store(to); }
  OCTAVO_INLINE Vector add_to(Vector sum, Spread row) const { return sum.plus(words, row); }
};

template <class Isa>
struct PageWords<Isa, PageFormat::kBf16> {
  using Vector = Lanes<Isa>;
  using Operand = float;
  struct Spread {
    Vector low, high;
  };
  static constexpr int kNumbers = 2;
  Vector low, high;

  static OCTAVO_INLINE PageWords load(const uint8_t* from) {
    return {Vector::low_halves(from), Vector::high_halves(from)};
  }
  static OCTAVO_INLINE Spread spread(const Operand* from) {
    return {Vector::all(from[0]), Vector::all(from[1])};
  }
  static OCTAVO_INLINE void store_operands(Operand* to, Vector x) { x.store(to); }
  OCTAVO_INLINE Vector add_to(Vector sum, const Spread& row) const {
    return sum.plus(low, row.low).plus(high, row.high);
  }
};

// How much is computed at once: as many sums as the registers hold.
template <class Isa>
struct AttentionBlocking;
template <>
struct AttentionBlocking<Plain> {
  static constexpr int kRows = 2, kTiles = 1, kColumns = 1;
};
template <>
struct AttentionBlocking<Avx2> {
  static constexpr int kRows = 4, kTiles = 1, kColumns = 1;
};
template <>
struct AttentionBlocking<Avx512> {
  static constexpr int kRows = 6, kTiles = 4, kColumns = 4;
};

template <class Isa, PageFormat kFormat>
struct AttentionKernels {
  using Vector = Lanes<Isa>;
  using Words = PageWords<Isa, kFormat>;
  using Operand = typename Words::Operand;
  using Blocking = AttentionBlocking<Isa>;
  static constexpr int kWordBytes = 4, kLineBytes = 64;

  // Scores of `rows` <= kRows rows in some tiles: scores[row * kChunk + position]. queries: [rows,
  // dim]. With kFetch, keys are followed by as many of tiles to fetch.
  template <bool kFetch>
  static OCTAVO_INLINE void score(int rows, const uint8_t* const* keys,
                                  int tiles, const Operand* queries, int dim, float* scores) {
    with_constant<Blocking::kRows>(rows, [&](auto constant) OCTAVO_BODY {
      constexpr int kRows = decltype(constant)::value;
      for (int tile = 0; tile < tiles;) {
        const int left = tiles - tile;
        if (Blocking::kTiles == 4 && left >= 4) {
          score_tiles<kRows, 4, kFetch>(keys + tile, tiles, queries, dim, scores + tile * kTile);
          tile += 4;
        } else if (Blocking::kTiles >= 2 && left >= 2) {
          score_tiles<kRows, 2, kFetch>(keys + tile, tiles, queries, dim, scores + tile * kTile);
          tile += 2;
        } else {
          score_tiles<kRows, 1, kFetch>(keys + tile, tiles, queries, dim, scores + tile * kTile);
          tile += 1;
        }
      }
    });
  }

  // outputs[row, dim] = outputs * scales[row] + weights[row * kChunk + position] * values. With kFetch,
  // values are followed by as many of tiles to fetch.
  template <bool kFetch>
  static OCTAVO_INLINE void add_values(int rows, const uint8_t* const* values, int tiles,
                                       const Operand* weights, int dim, const float* scales,
                                       float* outputs) {
    with_constant<Blocking::kRows>(rows, [&](auto constant) OCTAVO_BODY {
      constexpr int kRows = decltype(constant)::value;
      for (int column = 0; column < dim; column += Blocking::kColumns * kTile) {
        const int left = (dim - column) / kTile;
        const int columns = left < Blocking::kColumns ? left : Blocking::kColumns;
        with_constant<Blocking::kColumns>(columns, [&](auto width) OCTAVO_BODY {
          add_columns<kRows, decltype(width)::value, kFetch>(values, tiles, column, weights, dim, scales,
                                                     outputs + column);
        });
      }
    });
  }

 private:
  template <int kRows, int kTiles, bool kFetch>
  static OCTAVO_NOINLINE void score_tiles(const uint8_t* const* keys, int ahead, const Operand* queries,
                                          int dim, float* scores) {
    const uint8_t *tile_keys[kTiles], *next_keys[kTiles];
    Vector sums[kRows][kTiles];
    unroll<kTiles>([&](auto t) OCTAVO_BODY {
      tile_keys[t] = keys[t];
      if (kFetch) next_keys[t] = keys[t + ahead];
      unroll<kRows>([&](auto r) OCTAVO_BODY { sums[r][t] = Vector::all(0); });
    });
    const size_t bytes = static_cast<size_t>(dim / Words::kNumbers) * kLineBytes;
    for (size_t at = 0; at < bytes; at += kLineBytes) {
      Words words[kTiles];
      unroll<kTiles>([&](auto t) OCTAVO_BODY {
        words[t] = Words::load(tile_keys[t] + at);
        if (kFetch) fetch_line(next_keys[t] + at);
      });
      unroll<kRows>([&](auto r) OCTAVO_BODY {
        const auto row = Words::spread(queries + r * dim);
        unroll<kTiles>([&](auto t) OCTAVO_BODY { sums[r][t] = words[t].add_to(sums[r][t], row); });
      });
      queries += Words::kNumbers;
    }
    unroll<kRows>([&](auto r) OCTAVO_BODY {
      unroll<kTiles>([&](auto t) OCTAVO_BODY { sums[r][t].store(scores + r * kChunk + t * kTile); });
    });
  }

  template <int kRows, int kColumns, bool kFetch>
  static OCTAVO_NOINLINE void add_columns(const uint8_t* const* values, int tiles, int column,
                                          const Operand* weights, int dim, const float* scales,
                                          float* outputs) {
    Vector sums[kRows][kColumns];
    unroll<kRows>([&](auto r) OCTAVO_BODY {
      const Vector scale = Vector::all(scales[r]);
      unroll<kColumns>([&](auto c) OCTAVO_BODY {
        sums[r][c] = Vector::load(outputs + r * dim + c * kTile) * scale;
      });
    });
    for (int tile = 0; tile < tiles; ++tile) {
      const uint8_t* from = values[tile] + column * kWordBytes;
      const uint8_t* next = kFetch ? values[tile + tiles] + column * kWordBytes : nullptr;
      for (int step = 0; step < kTile / Words::kNumbers; ++step) {
        Words words[kColumns];
        unroll<kColumns>([&](auto c) OCTAVO_BODY {
          words[c] = Words::load(from + c * kLineBytes);
          if (kFetch) fetch_line(next + c * kLineBytes);
        });
        unroll<kRows>([&](auto r) OCTAVO_BODY {
          const auto row = Words::spread(weights + r * kChunk);
          unroll<kColumns>([&](auto c) OCTAVO_BODY { sums[r][c] = words[c].add_to(sums[r][c], row); });
        });
        from += static_cast<size_t>(dim) * kWordBytes;
        if (kFetch) next += static_cast<size_t>(dim) * kWordBytes;
        weights += Words::kNumbers;
      }
    }
    unroll<kRows>([&](auto r) OCTAVO_BODY {
      unroll<kColumns>([&](auto c) OCTAVO_BODY {
        sums[r][c].store(outputs + r * dim + c * kTile);
      });
    });
  }
};

}  // namespace octavo
