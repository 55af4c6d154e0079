#include "loads.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "attention.h"
#include "pack.h"

namespace octavo {

namespace {

constexpr size_t kMegabyte = size_t{1} << 20;

// Fills memory with 16-bit words, word(number) each, in parallel.
template <class Word>
void fill(uint8_t* memory, size_t bytes, ThreadPool& pool, Word&& word) {
  const size_t chunks = (bytes + kMegabyte - 1) / kMegabyte;
  pool.for_chunks(static_cast<int>(chunks), [&](int chunk) {
    const size_t begin = chunk * kMegabyte / 2, end = std::min(begin + kMegabyte / 2, bytes / 2);
    for (size_t i = begin; i < end; ++i) {
      const uint16_t value = word(i);
      std::memcpy(memory + 2 * i, &value, sizeof value);
    }
  });
}

// Small numbers as float16, bfloat16 and float32; any bytes do as codes.
uint16_t weight_word(size_t i) { return static_cast<uint16_t>(0x2c00 + (i * 7919 >> 4 & 0x3ff)); }

// Small bfloat16 numbers of both signs.
uint16_t kv_word(size_t i) {
  return static_cast<uint16_t>(0x3c00 + (static_cast<uint32_t>(i) * 2654435761u >> 20 & 0x80ff));
}

// Matrices begin on cache lines.
size_t room_of(const PackedMatrix& matrix) { return (packed_bytes(matrix) + 63) / 64 * 64; }

float* floats(const MappedMemory& memory) { return reinterpret_cast<float*>(memory.data()); }

}  // namespace

LinearLoad::LinearLoad(Format format, const std::vector<MatrixShape>& shapes, int copies, int most_rows,
                       ThreadPool& pool)
    : format_(format), most_rows_(most_rows), pool_(pool) {
  int widest = 0, longest = 0;
  for (int copy = 0; copy < copies; ++copy) {
    for (const MatrixShape& shape : shapes) {
      matrices_.push_back(packed_shape(format, shape.out, shape.in));
      bytes_ += room_of(matrices_.back());
      weights_ += static_cast<double>(shape.out) * shape.in;
      widest = std::max(widest, shape.in);
      longest = std::max(longest, shape.out);
    }
  }
  memory_ = MappedMemory(bytes_);
  fill(memory_.data(), bytes_, pool, weight_word);
  const uint8_t* next = memory_.data();
  for (PackedMatrix& matrix : matrices_) {
    matrix.data = next;
    next += room_of(matrix);
  }
  make_rows(widest);
  outputs_ = MappedMemory(sizeof(float) * most_rows * (longest + kStrip));
}

// Rows are read with the width of each matrix, so that what they hold is not the same for all; it is
// always numbers.
void LinearLoad::make_rows(int widest) {
  const size_t count = static_cast<size_t>(most_rows_) * widest, groups = count / kGroup;
  row_memory_ = MappedMemory(count * (sizeof(float) + sizeof(uint16_t) + 1) + groups * 12);
  float* values = floats(row_memory_);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i * 31 % 255) - 127.0f;
  float* scales = values + count;
  float* sums = scales + groups;
  auto* offsets = reinterpret_cast<int32_t*>(sums + groups);
  auto* bf16 = reinterpret_cast<uint16_t*>(offsets + groups);
  rows_.f32 = values;
  rows_.bf16 = bf16;
  rows_.quantized = {widest, reinterpret_cast<int8_t*>(bf16 + count), scales, sums, offsets};
  plain_kernels().to_bf16(values, static_cast<int>(count), bf16);
  plain_kernels().quantize_rows(values, rows_.quantized, 0, most_rows_);
}

void LinearLoad::run(int rows, const Kernels& kernels) {
  // As in a step.
  const int wide = rows <= 16 ? 4 : 2;
  pool_.run([&](ThreadPool::Member& me) {
    Rows mine = rows_;
    for (const PackedMatrix& matrix : matrices_) {
      mine.in = mine.quantized.in = matrix.in;
      const int strips = matrix.strips();
      const size_t stride = static_cast<size_t>(strips) * kStrip;
      me.for_chunks((strips + wide - 1) / wide, [&](int chunk) {
        const int begin = chunk * wide, end = std::min(begin + wide, strips);
        kernels.linear(matrix, mine, rows, begin, end, floats(outputs_), stride);
      });
    }
  });
}

AttentionLoad::AttentionLoad(const AttentionShape& shape, const KvLoad& kv,
                             std::vector<AttentionSlice> slices, ThreadPool& pool)
    : shape_(shape), kv_(kv), slices_(std::move(slices)), pool_(pool) {
  keep_tables();
  pages_.block_tokens = shape.block_tokens;
  pages_.kv_heads = shape.kv_heads;
  pages_.dim = kv.dim;
  pages_.stride = pages_.page_bytes() * kv.layers;
  const size_t bytes = pages_.stride * kv.blocks * kv.copies;
  memory_ = MappedMemory(bytes);
  fill(memory_.data(), bytes, pool, kv_word);
  const AttentionWork& work =
      plan_.build(shape_, slices_.data(), static_cast<int>(slices_.size()), pool.size());
  const AttentionSlice& last = slices_.back();
  make_queries(last.first_token + last.tokens);
  partials_ = MappedMemory(sizeof(float) * partial_floats(work, kv.dim));
  scratch_ = MappedMemory(sizeof(float) * attention_scratch_floats(kv.dim) * pool.size());
}

void AttentionLoad::keep_tables() {
  for (AttentionSlice& slice : slices_) {
    const int end = slice.start + slice.tokens;
    const int entries = (end + shape_.block_tokens - 1) / shape_.block_tokens;
    tables_.emplace_back(slice.table, slice.table + entries);
    slice.table = tables_.back().data();
  }
}

void AttentionLoad::make_queries(int tokens) {
  const size_t count = static_cast<size_t>(tokens) * shape_.heads * kv_.dim;
  queries_ = MappedMemory(sizeof(float) * count);
  outputs_ = MappedMemory(sizeof(float) * count);
  for (size_t i = 0; i < count; ++i) floats(queries_)[i] = static_cast<float>(i % 37) / 37 - 0.5f;
}

void AttentionLoad::run(const Kernels& kernels) {
  const AttentionWork& work = plan_.work();
  const size_t row = static_cast<size_t>(shape_.heads) * kv_.dim;
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(kv_.dim));
  pool_.run([&](ThreadPool::Member& me) {
    float* mine = floats(scratch_) + attention_scratch_floats(kv_.dim) * me.index();
    AttentionLayer layer{pages_, floats(queries_), row, scale, floats(outputs_), row, floats(partials_)};
    for (int copy = 0; copy < kv_.copies; ++copy) {
      uint8_t* start = memory_.data() + pages_.stride * kv_.blocks * copy;
      for (int number = 0; number < kv_.layers; ++number) {
        layer.pages.base = start + pages_.page_bytes() * number;
        me.for_chunks(work.item_count,
                      [&](int item) { kernels.run_attention(work, layer, item, mine); });
        me.for_chunks(work.merge_count,
                      [&](int merge) { kernels.merge_attention(work, layer, merge, mine); });
      }
    }
  });
}

}  // namespace octavo
