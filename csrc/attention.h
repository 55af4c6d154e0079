// Paged attention: decode, chunked prefill and verification in one kernel.
//
//   for all items i, in any order, on any thread:   run_attention<Isa>(work, layer, i, scratch)
//   after all items, for all merges m:              merge_attention<Isa>(work, layer, m, scratch)
//
// Softmax is in base 2 and sums are float32. With bf16 pages and Avx512, queries and probabilities are
// rounded to bf16 as well; other instruction sets keep them in float32.
//
// What lies in a page at positions that no row of an item sees, or behind a row's view, may be
// anything, NaN included: scores there are replaced after the product, and values of a tile that is
// seen in part are read from a copy in which the others are 0. Tiles that no row sees are not read.
//
// Error against exact attention over the numbers stored in the pages, with u = 2^-24, x the largest
// |query| |key| scale of a row and v the largest |value|:
//
//   ((2 dim u + 2 h) x + (520 + segments) u + h + 1e-6) v
//
// where h is 2^-8 for bf16 pages with Avx512, and 0 elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "attention_plan.h"
#include "isa/attention_kernels.h"
#include "isa/avx2_vector.h"
#include "isa/avx512_attention.h"
#include "isa/avx512_vector.h"
#include "isa/plain_vector.h"
#include "pages.h"

namespace octavo {

// One layer of one step.
struct AttentionLayer {
  KvPages pages;
  const float* queries = nullptr;  // [tokens, heads, dim], rotated
  size_t query_stride = 0;         // floats from one token to the next
  float scale = 1;                 // of scores; 1 / sqrt(dim) if queries are not scaled yet
  float* outputs = nullptr;        // [tokens, heads, dim]
  size_t output_stride = 0;
  float* partials = nullptr;       // partial_floats(work, dim)
};

// A partial result: maximum, sum, padding; output, not divided by the sum.
constexpr int kPartialHead = 16;

OCTAVO_INLINE size_t partial_floats(const AttentionWork& work, int dim) {
  return static_cast<size_t>(work.kv_heads) * work.partials * (dim + kPartialHead);
}

// Memory that a thread needs, aligned to 64 bytes.
OCTAVO_INLINE size_t attention_scratch_floats(int dim) {
  return static_cast<size_t>(3 * kMaxItemRows + 2 * kTile) * dim + 2 * kMaxItemRows * kChunk;
}

template <class Isa>
struct RowSums {
  // The maximum of no scores: finite, so that differences are numbers.
  static constexpr float kNothing = -1e30f;
  static constexpr int kCount = Lanes<Isa>::kCount;
  static_assert(kMaxItemRows <= kCount);
  alignas(64) float max[kCount];
  alignas(64) float sum[kCount];

  OCTAVO_INLINE void clear() {
    Lanes<Isa>::all(kNothing).store(max);
    Lanes<Isa>::all(0).store(sum);
  }

  // Adds the sums of further positions; returns what both sides' outputs must be multiplied with.
  // Where `more` has seen nothing the factors are 1 and 0 and nothing changes, to the bit.
  OCTAVO_INLINE void add(const RowSums& more, float* mine, float* its) {
    const auto old = Lanes<Isa>::load(max), other = Lanes<Isa>::load(more.max);
    const auto top = old.max(other);
    const auto a = (old - top).exp2(), b = (other - top).exp2();
    top.store(max);
    (Lanes<Isa>::load(sum) * a).plus(Lanes<Isa>::load(more.sum), b).store(sum);
    a.store(mine);
    b.store(its);
  }
};

// total = total * mine + part * its. Tiny numbers become 0 first: how far a sum gets below the normal
// ones may depend on whether products with 0 followed.
template <class Isa>
static OCTAVO_INLINE void add_output(float* total, float mine, const float* part, float its, int dim) {
  const auto a = Lanes<Isa>::all(mine), b = Lanes<Isa>::all(its);
  for (int i = 0; i < dim; i += kTile) {
    const auto flushed = Lanes<Isa>::load(part + i).flushed();
    (Lanes<Isa>::load(total + i) * a).plus(flushed, b).store(total + i);
  }
}

template <class Isa>
static OCTAVO_INLINE float* partial_of(const AttentionWork& work, const AttentionLayer& layer,
                                       const AttentionRow& row, int kv_head, int segment) {
  const size_t number = static_cast<size_t>(kv_head) * work.partials + row.partial +
                        (segment - row.first_segment());
  return layer.partials + number * (layer.pages.dim + kPartialHead);
}

static OCTAVO_INLINE float* output_of(const AttentionWork& work, const AttentionLayer& layer,
                                      const AttentionRow& row, int kv_head) {
  const int head = kv_head * work.heads_per_kv + row.head;
  return layer.outputs + row.token * layer.output_stride + static_cast<size_t>(head) * layer.pages.dim;
}

template <class Isa>
static OCTAVO_INLINE void store_output(const AttentionWork& work, const AttentionLayer& layer,
                                       const AttentionRow& row, int kv_head, const float* total,
                                       float sum) {
  const int dim = layer.pages.dim;
  float* to = output_of(work, layer, row, kv_head);
  const auto scale = Lanes<Isa>::all(1.0f / sum);
  for (int i = 0; i < dim; i += kTile) (Lanes<Isa>::load(total + i) * scale).store(to + i);
}

// Computes one work item.
template <class Isa, PageFormat kFormat>
class AttentionItemRun {
  using Vector = Lanes<Isa>;
  using Kernels = AttentionKernels<Isa, kFormat>;
  using Operand = typename Kernels::Operand;

 public:
  AttentionItemRun(const AttentionWork& work, const AttentionLayer& layer, int number, float* scratch)
      : work_(work),
        layer_(layer),
        item_(work.items[number]),
        next_(work.items[number + 1 < work.item_count ? number + 1 : number]),
        rows_(work.rows + item_.row),
        dim_(layer.pages.dim),
        block_tiles_(layer.pages.block_tokens / kTile) {
    outputs_ = scratch;
    totals_ = outputs_ + kMaxItemRows * dim_;
    queries_ = reinterpret_cast<Operand*>(totals_ + kMaxItemRows * dim_);
    edges_ = reinterpret_cast<uint8_t*>(totals_ + 2 * kMaxItemRows * dim_);
    scores_ = totals_ + (2 * kMaxItemRows + 2 * kTile) * dim_;
    weights_ = reinterpret_cast<Operand*>(scores_ + kMaxItemRows * kChunk);
  }

  void run() {
    gather_queries();
    if (item_.whole) clear_totals();
    for (int segment = item_.first / kSegment; segment <= item_.last / kSegment; ++segment) {
      reduce_segment(segment);
      if (item_.whole) {
        add_to_totals();
      } else {
        store_partials(segment);
      }
    }
    if (!item_.whole) return;
    for (int r = 0; r < item_.rows; ++r) {
      store_output<Isa>(work_, layer_, rows_[r], item_.kv_head, totals_ + r * dim_, all_.sum[r]);
    }
  }

 private:
  void gather_queries() {
    constexpr float kLog2OfE = 1.44269504f;
    const Vector scale = Vector::all(layer_.scale * kLog2OfE);
    for (int r = 0; r < item_.rows; ++r) {
      const float* from = query_of(item_, rows_[r]);
      for (int i = 0; i < dim_; i += kTile) {
        Kernels::Words::store_operands(queries_ + r * dim_ + i, Vector::load(from + i) * scale);
      }
    }
    fetch_rows();
  }

  // Where this item's outputs go, and the queries of the next one: nothing else waits for memory.
  // Inline: GCC takes a function that only fetches for one without effect, and leaves out the call.
  OCTAVO_INLINE void fetch_rows() const {
    const size_t bytes = sizeof(float) * dim_;
    for (int r = 0; item_.whole && r < item_.rows; ++r) {
      const char* to = reinterpret_cast<const char*>(output_of(work_, layer_, rows_[r], item_.kv_head));
      for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(to + at, 1);
    }
    for (int r = 0; r < next_.rows; ++r) {
      const char* from = reinterpret_cast<const char*>(query_of(next_, work_.rows[next_.row + r]));
      for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at);
    }
  }

  const float* query_of(const AttentionItem& item, const AttentionRow& row) const {
    const int head = item.kv_head * work_.heads_per_kv + row.head;
    return layer_.queries + row.token * layer_.query_stride + static_cast<size_t>(head) * dim_;
  }

  void clear_totals() {
    all_.clear();
    std::memset(totals_, 0, sizeof(float) * item_.rows * dim_);
  }

  // Chunks are counted from the segment's start, so that a row meets them alike in any company.
  void reduce_segment(int segment) {
    here_.clear();
    std::memset(outputs_, 0, sizeof(float) * item_.rows * dim_);
    constexpr int kSegmentTiles = kSegment / kTile;
    const int first = item_.first / kTile, end = item_.last / kTile + 1;
    for (int chunk = 0; chunk < kSegmentTiles; chunk += kChunkTiles) {
      const int begin = segment * kSegmentTiles + chunk;
      const int from = begin > first ? begin : first;
      const int to = begin + kChunkTiles < end ? begin + kChunkTiles : end;
      if (from < to) reduce_chunk(from, to - from);
    }
  }

  void reduce_chunk(int tile, int tiles) {
    find_tiles(tile, tiles);
    const int groups = (item_.rows + Kernels::Blocking::kRows - 1) / Kernels::Blocking::kRows;
    for (int group = 0; group < groups; ++group) {
      const int r = item_.rows * group / groups, count = item_.rows * (group + 1) / groups - r;
      const Operand* queries = queries_ + r * dim_;
      if (group == 0) {
        Kernels::template score<true>(count, keys_, tiles, queries, dim_, scores_);
      } else {
        Kernels::template score<false>(count, keys_, tiles, queries, dim_, scores_ + r * kChunk);
      }
    }
    copy_edges(tile, tiles);
    for (int r = 0; r < item_.rows; ++r) hide_positions(r, tile, tiles);
    alignas(64) float scales[Vector::kCount];
    weigh(tiles, scales);
    for (int group = 0; group < groups; ++group) {
      const int r = item_.rows * group / groups, count = item_.rows * (group + 1) / groups - r;
      const Operand* weights = weights_ + r * kChunk;
      if (group == 0) {
        Kernels::template add_values<true>(count, values_, tiles, weights, dim_, scales, outputs_);
      } else {
        Kernels::template add_values<false>(count, values_, tiles, weights, dim_, scales + r,
                                            outputs_ + r * dim_);
      }
    }
  }

  const uint8_t* keys_at(const AttentionItem& item, int tile) const {
    const int entry = tile / block_tiles_;
    return layer_.pages.keys(item.table[entry], item.kv_head, tile - entry * block_tiles_);
  }

  // Behind the item's last tile the next item begins; what is found there is only fetched.
  void find_tiles(int tile, int tiles) {
    const size_t to_values = layer_.pages.head_bytes() / 2;
    const int last = item_.last / kTile, next = next_.first / kTile, end = next_.last / kTile;
    for (int i = 0; i < 2 * tiles; ++i) {
      const int at = tile + i, behind = next + (at - last - 1);
      keys_[i] = at <= last ? keys_at(item_, at) : keys_at(next_, behind < end ? behind : end);
      values_[i] = keys_[i] + to_values;
    }
  }

  // An item has two such tiles at most, since each of the positions between is seen by a row.
  void copy_edges(int tile, int tiles) {
    for (int i = 0; i < tiles; ++i) {
      const int from = item_.first - (tile + i) * kTile, to = item_.last + 1 - (tile + i) * kTile;
      if (from <= 0 && to >= kTile) continue;
      uint8_t* copy = edges_ + (from > 0 ? 0 : layer_.pages.tile_bytes());
      copy_seen(values_[i], copy, from, to);
      values_[i] = copy;
    }
  }

  // Copies the values of the positions from <= i < to of a tile; the others become 0.
  void copy_seen(const uint8_t* values, uint8_t* copy, int from, int to) const {
    constexpr int kNumbers = Kernels::Words::kNumbers;
    const size_t bytes = sizeof(uint32_t) * dim_;
    for (int step = 0; step < kTile / kNumbers; ++step) {
      uint32_t seen = 0;
      for (int half = 0; half < kNumbers; ++half) {
        const int position = step * kNumbers + half;
        const uint32_t bits = kNumbers == 1 ? 0xffffffffu : 0xffffu << (16 * half);
        if (position >= from && position < to) seen |= bits;
      }
      for (size_t at = 0; at < bytes; at += sizeof seen) {
        uint32_t word;
        std::memcpy(&word, values + step * bytes + at, sizeof word);
        word &= seen;
        std::memcpy(copy + step * bytes + at, &word, sizeof word);
      }
    }
  }

  void hide_positions(int r, int tile, int tiles) {
    const int first = rows_[r].first, last = rows_[r].last;
    if (first <= tile * kTile && last >= (tile + tiles) * kTile - 1) return;
    for (int i = 0; i < tiles; ++i) {
      const int from = first - (tile + i) * kTile, to = last + 1 - (tile + i) * kTile;
      if (from <= 0 && to >= kTile) continue;
      float* scores = scores_ + r * kChunk + i * kTile;
      Vector::load(scores).keep(from, to, -__builtin_inff()).store(scores);
    }
  }

  // Makes probabilities of scores, and adds them to the sums. Scores that are hidden add exactly 0.
  void weigh(int tiles, float* scales) {
    RowSums<Isa> chunk;
    chunk.clear();
    for (int r = 0; r < item_.rows; ++r) {
      const float* scores = scores_ + r * kChunk;
      Vector top = Vector::load(scores);
      for (int i = 1; i < tiles; ++i) top = top.max(Vector::load(scores + i * kTile));
      const float largest = top.largest();
      chunk.max[r] = largest > here_.max[r] ? largest : here_.max[r];
    }
    (Vector::load(here_.max) - Vector::load(chunk.max)).exp2().store(scales);
    for (int r = 0; r < item_.rows; ++r) {
      const float sum = weights_of(scores_ + r * kChunk, tiles, chunk.max[r], weights_ + r * kChunk);
      here_.max[r] = chunk.max[r];
      here_.sum[r] = here_.sum[r] * scales[r] + sum;
    }
  }

  // Writes 2^(score - top) and returns the sum.
  static OCTAVO_INLINE float weights_of(const float* scores, int tiles, float top, Operand* weights) {
    const Vector shift = Vector::all(top);
    Vector sum = Vector::all(0);
    for (int i = 0; i < tiles; ++i) {
      const Vector weight = (Vector::load(scores + i * kTile) - shift).exp2();
      sum = sum + weight;
      Kernels::Words::store_operands(weights + i * kTile, weight);
    }
    return sum.sum();
  }

  void add_to_totals() {
    alignas(64) float mine[Vector::kCount], its[Vector::kCount];
    all_.add(here_, mine, its);
    for (int r = 0; r < item_.rows; ++r) {
      add_output<Isa>(totals_ + r * dim_, mine[r], outputs_ + r * dim_, its[r], dim_);
    }
  }

  void store_partials(int segment) {
    for (int r = 0; r < item_.rows; ++r) {
      const AttentionRow& row = rows_[r];
      if (segment < row.first_segment() || segment > row.last / kSegment) continue;
      float* to = partial_of<Isa>(work_, layer_, row, item_.kv_head, segment);
      to[0] = here_.max[r];
      to[1] = here_.sum[r];
      std::memcpy(to + kPartialHead, outputs_ + r * dim_, sizeof(float) * dim_);
    }
  }

  const AttentionWork& work_;
  const AttentionLayer& layer_;
  const AttentionItem& item_;
  const AttentionItem& next_;
  const AttentionRow* rows_;
  const int dim_;
  const int block_tiles_;
  Operand* queries_;  // [rows, dim]
  float* scores_;     // [rows, kChunk]
  Operand* weights_;  // [rows, kChunk]
  float* outputs_;    // [rows, dim] of this segment
  float* totals_;     // [rows, dim] of the segments so far
  uint8_t* edges_;    // two tiles of values
  RowSums<Isa> here_, all_;
  const uint8_t* keys_[2 * kChunkTiles];
  const uint8_t* values_[2 * kChunkTiles];
};

// scratch: attention_scratch_floats(dim), of this thread alone.
template <class Isa>
static void run_attention(const AttentionWork& work, const AttentionLayer& layer, int item,
                          float* scratch) {
  if (layer.pages.format == PageFormat::kBf16) {
    AttentionItemRun<Isa, PageFormat::kBf16>(work, layer, item, scratch).run();
  } else {
    AttentionItemRun<Isa, PageFormat::kF32>(work, layer, item, scratch).run();
  }
}

// Merges the partial results of one row, for all KV heads.
template <class Isa>
static void merge_attention(const AttentionWork& work, const AttentionLayer& layer, int merge,
                            float* scratch) {
  const AttentionRow& row = work.rows[work.merges[merge]];
  const int dim = layer.pages.dim, first = row.first_segment();
  for (int kv_head = 0; kv_head < work.kv_heads; ++kv_head) {
    RowSums<Isa> all, part;
    all.clear();
    part.clear();
    std::memset(scratch, 0, sizeof(float) * dim);
    for (int segment = first; segment < first + row.segments(); ++segment) {
      const float* from = partial_of<Isa>(work, layer, row, kv_head, segment);
      alignas(64) float mine[Lanes<Isa>::kCount], its[Lanes<Isa>::kCount];
      part.max[0] = from[0];
      part.sum[0] = from[1];
      all.add(part, mine, its);
      add_output<Isa>(scratch, mine[0], from + kPartialHead, its[0], dim);
    }
    store_output<Isa>(work, layer, row, kv_head, scratch, all.sum[0]);
  }
}

}  // namespace octavo
