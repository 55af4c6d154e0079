// Sequences with random queries, keys and values in poisoned pages, and exact attention over them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "../attention.h"
#include "../write_kv.h"
#include "check.h"
#include "isa.h"

namespace octavo {

struct CaseShape {
  int heads, kv_heads, dim, block, window;
  PageFormat format;
};

struct Sequence {
  std::vector<int32_t> table;
  std::vector<float> queries, keys, values;  // [positions, heads or kv_heads, dim]
};

// Memory without a byte to spare at its end, so that ASan sees every read behind it.
template <class T>
std::unique_ptr<T[]> exact_buffer(size_t count) {
  return std::unique_ptr<T[]>(new T[count]);
}

class AttentionCase {
 public:
  explicit AttentionCase(const CaseShape& shape, int blocks, int seed = 1)
      : shape_(shape), random_(seed), free_(blocks) {
    pages_.block_tokens = shape.block;
    pages_.kv_heads = shape.kv_heads;
    pages_.dim = shape.dim;
    pages_.format = shape.format;
    pages_.stride = pages_.page_bytes();
    memory_ = exact_buffer<uint8_t>(pages_.stride * blocks);
    std::memset(memory_.get(), 0xff, pages_.stride * blocks);  // NaN in both formats
    pages_.base = memory_.get();
    std::iota(free_.begin(), free_.end(), 0);
    std::shuffle(free_.begin(), free_.end(), random_);
  }

  // Makes a sequence whose first `shared` positions, whole blocks, are those of another; writes
  // nothing into pages.
  int add(int length, int of = 0, int shared = 0) {
    Sequence made;
    for (int position = 0; position < length; position += shape_.block) {
      if (position < shared) {
        made.table.push_back(sequences_[of].table[position / shape_.block]);
      } else {
        CHECK(!free_.empty());
        made.table.push_back(free_.back());
        free_.pop_back();
      }
    }
    made.queries = numbers(static_cast<size_t>(length) * shape_.heads * shape_.dim);
    made.keys = numbers(static_cast<size_t>(length) * shape_.kv_heads * shape_.dim);
    made.values = numbers(static_cast<size_t>(length) * shape_.kv_heads * shape_.dim);
    const size_t same = static_cast<size_t>(shared) * shape_.kv_heads * shape_.dim;
    if (same > 0) {
      std::copy_n(sequences_[of].keys.begin(), same, made.keys.begin());
      std::copy_n(sequences_[of].values.begin(), same, made.values.begin());
    }
    sequences_.push_back(made);
    return static_cast<int>(sequences_.size()) - 1;
  }

  void write(int number, int begin, int end) {
    const Sequence& of = sequences_[number];
    const size_t row = static_cast<size_t>(shape_.kv_heads) * shape_.dim;
    for (int p = begin; p < end; ++p) {
      const int64_t slot = static_cast<int64_t>(of.table[p / shape_.block]) * shape_.block + p % shape_.block;
      write_kv<TestedIsa>(pages_, slot, of.keys.data() + p * row, of.values.data() + p * row);
    }
  }

  // Lets a sequence use one block of another; call it before writing.
  void share_block(int number, int of, int block) {
    Sequence &mine = sequences_[number], &other = sequences_[of];
    mine.table[block] = other.table[block];
    const size_t size = static_cast<size_t>(shape_.block) * shape_.kv_heads * shape_.dim;
    std::copy_n(other.keys.begin() + block * size, size, mine.keys.begin() + block * size);
    std::copy_n(other.values.begin() + block * size, size, mine.values.begin() + block * size);
  }

  void multiply_queries(int number, float factor) {
    for (float& x : sequences_[number].queries) x *= factor;
  }

  // What a window group does: blocks behind the window of `position` are given back.
  void forget_behind(int number, int position) {
    if (shape_.window == 0) return;
    const int first = std::max(0, position - shape_.window + 1);
    for (int block = 0; (block + 1) * shape_.block <= first; ++block) sequences_[number].table[block] = -1;
  }

  struct Part {
    int sequence, begin, end;
  };

  // Attention of one step: [all tokens of the parts, heads, dim].
  std::vector<float> run(const std::vector<Part>& parts, int threads, bool backwards = false) {
    std::vector<AttentionSlice> slices;
    std::vector<float> queries;
    int tokens = 0;
    const size_t row = static_cast<size_t>(shape_.heads) * shape_.dim;
    for (const Part& part : parts) {
      const Sequence& of = sequences_[part.sequence];
      slices.push_back({tokens, part.end - part.begin, part.begin, of.table.data()});
      queries.insert(queries.end(), of.queries.begin() + part.begin * row,
                     of.queries.begin() + part.end * row);
      tokens += part.end - part.begin;
    }
    plan_.build({shape_.heads, shape_.kv_heads, shape_.block, shape_.window}, slices.data(),
                static_cast<int>(slices.size()), threads);
    const AttentionWork& work = plan_.work();
    std::vector<float> outputs(tokens * row, NAN);
    const size_t partial_count = partial_floats(work, shape_.dim);
    auto partials = exact_buffer<float>(partial_count);
    std::fill_n(partials.get(), partial_count, NAN);
    const AttentionLayer layer{pages_,         queries.data(), row,           scale(),
                               outputs.data(), row,            partials.get()};
    for (int i = 0; i < work.item_count; ++i) {
      run_attention<TestedIsa>(work, layer, backwards ? work.item_count - 1 - i : i, scratch());
    }
    for (int i = 0; i < work.merge_count; ++i) merge_attention<TestedIsa>(work, layer, i, scratch());
    return outputs;
  }

  const AttentionWork& work() const { return plan_.work(); }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.dim)); }

  // Compares the output of one token with exact attention; see attention.h for the bound.
  void check_token(int number, int position, const float* output) const {
    for (int head = 0; head < shape_.heads; ++head) {
      check_head(number, position, head, output + static_cast<size_t>(head) * shape_.dim);
    }
  }

  // The largest error so far, as a share of the bound.
  double worst() const { return worst_; }

 private:
  // Garbage, so that nothing is read that was not written.
  float* scratch() {
    const size_t count = attention_scratch_floats(shape_.dim);
    scratch_.assign(count + 16, NAN);
    auto at = reinterpret_cast<uintptr_t>(scratch_.data());
    return scratch_.data() + (64 - at % 64) % 64 / 4;
  }

  std::vector<float> numbers(size_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> made(count);
    for (float& x : made) x = normal(random_);
    return made;
  }

  double stored(float x) const {
    return shape_.format == PageFormat::kF32 ? x : bf16_to_float(float_to_bf16(x));
  }

  void check_head(int number, int position, int head, const float* output) const {
    const Sequence& of = sequences_[number];
    const int dim = shape_.dim, kv_head = head / (shape_.heads / shape_.kv_heads);
    const int first = shape_.window == 0 ? 0 : std::max(0, position - shape_.window + 1);
    const float* query = of.queries.data() + (static_cast<size_t>(position) * shape_.heads + head) * dim;
    const double scale = this->scale();
    std::vector<double> scores, exact(dim, 0.0);
    double most = -INFINITY, sum = 0, largest_product = 0, largest_value = 0, query_norm = 0;
    for (int i = 0; i < dim; ++i) query_norm += static_cast<double>(query[i]) * query[i];
    for (int p = first; p <= position; ++p) {
      const float* key = of.keys.data() + (static_cast<size_t>(p) * shape_.kv_heads + kv_head) * dim;
      double score = 0, key_norm = 0;
      for (int i = 0; i < dim; ++i) {
        score += query[i] * stored(key[i]);
        key_norm += stored(key[i]) * stored(key[i]);
      }
      scores.push_back(score * scale);
      most = std::max(most, score * scale);
      largest_product = std::max(largest_product, std::sqrt(query_norm * key_norm) * scale);
    }
    for (int p = first; p <= position; ++p) {
      const float* value = of.values.data() + (static_cast<size_t>(p) * shape_.kv_heads + kv_head) * dim;
      const double weight = std::exp(scores[p - first] - most);
      sum += weight;
      for (int i = 0; i < dim; ++i) {
        exact[i] += weight * stored(value[i]);
        largest_value = std::max(largest_value, std::fabs(stored(value[i])));
      }
    }
    const double u = std::ldexp(1.0, -24), segments = position / kSegment - first / kSegment + 1;
    const bool rounds = shape_.format == PageFormat::kBf16 && std::is_same_v<TestedIsa, Avx512>;
    const double h = rounds ? std::ldexp(1.0, -8) : 0;
    const double bound =
        ((2 * dim * u + 2 * h) * largest_product + (520 + segments) * u + h + 1e-6) * largest_value;
    for (int i = 0; i < dim; ++i) {
      const double error = std::fabs(output[i] - exact[i] / sum);
      CHECK(error <= bound);
      worst_ = std::max(worst_, error / bound);
    }
  }

  CaseShape shape_;
  std::mt19937 random_;
  KvPages pages_;
  std::unique_ptr<uint8_t[]> memory_;
  std::vector<int32_t> free_;
  std::vector<Sequence> sequences_;
  AttentionPlan plan_;
  std::vector<float> scratch_;
  mutable double worst_ = 0;
};

}  // namespace octavo
