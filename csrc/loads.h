// Kernels at work on numbers that mean nothing: with as much memory as a model takes, in the order and in
// the shares in which threads go through a step. For `octavo bench kernels`.
//
// Each load exists several times over, and a run goes through all copies: so none is still in a cache
// when its turn comes again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention_plan.h"
#include "kernels.h"
#include "memory.h"
#include "pages.h"
#include "threads.h"
#include "types.h"

namespace octavo {

struct MatrixShape {
  int out = 0;
  int in = 0;  // a multiple of kGroup
};

// Linear layers, one after the other.
class LinearLoad {
 public:
  LinearLoad(Format format, const std::vector<MatrixShape>& shapes, int copies, int most_rows,
             ThreadPool& pool);

  int most_rows() const { return most_rows_; }
  // Of all copies.
  size_t bytes() const { return bytes_; }
  double weights() const { return weights_; }

  // Multiplies `rows` rows with all matrices.
  void run(int rows, const Kernels& kernels);

 private:
  void make_rows(int widest);

  Format format_;
  int most_rows_;
  ThreadPool& pool_;
  std::vector<PackedMatrix> matrices_;
  size_t bytes_ = 0;
  double weights_ = 0;
  MappedMemory memory_, row_memory_, outputs_;
  Rows rows_;
};

// KV memory as an engine has it: a block holds a page for each layer.
struct KvLoad {
  int dim = 0;
  int blocks = 0;
  int layers = 0;
  int copies = 0;
};

// The attention of one step, in bf16 pages.
class AttentionLoad {
 public:
  // The slices' tables are copied.
  AttentionLoad(const AttentionShape& shape, const KvLoad& kv, std::vector<AttentionSlice> slices,
                ThreadPool& pool);

  // Computes all layers, of all copies.
  void run(const Kernels& kernels);

 private:
  void keep_tables();
  void make_queries(int tokens);

  const AttentionShape shape_;
  const KvLoad kv_;
  std::vector<AttentionSlice> slices_;
  std::vector<std::vector<int32_t>> tables_;
  ThreadPool& pool_;
  KvPages pages_;
  MappedMemory memory_, queries_, outputs_, partials_, scratch_;
  AttentionPlan plan_;
};

}  // namespace octavo
