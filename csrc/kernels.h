// What an instruction set offers to the parts that are compiled for any machine: whole loops behind
// function pointers. Each csrc/isa/<name>.cpp fills one table; csrc/dispatch.h chooses.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention_plan.h"
#include "model.h"
#include "pages.h"
#include "threads.h"
#include "types.h"
#include "workspace.h"

namespace octavo {

enum class Arithmetic : int;
struct AttentionLayer;
struct Part;
struct Survey;
struct SurveyedRows;

struct Kernels {
  const char* name;

  // Rows begin..end of `values`, [rows, rows.in] floats, into `rows`.
  void (*quantize_rows)(const float* values, const QuantizedRows& rows, int begin, int end);
  void (*to_bf16)(const float* values, int count, uint16_t* out);

  // The strips begin..end of all `count` rows, to out[row * stride + column]; see linear.h.
  void (*linear)(const PackedMatrix& matrix, const Rows& rows, int count, int begin, int end,
                 float* out, size_t stride);

  // One token's keys and values, [kv_heads, dim], to a slot of its pages.
  void (*write_kv)(const KvPages& pages, int64_t slot, const float* keys, const float* values);

  // One item, or one merge, of a plan; see attention.h.
  void (*run_attention)(const AttentionWork& work, const AttentionLayer& layer, int item,
                        float* scratch);
  void (*merge_attention)(const AttentionWork& work, const AttentionLayer& layer, int merge,
                          float* scratch);

  // One thread's part of a step; see forward.h.
  void (*forward)(const Model& model, const Workspace& work, const Scratch& scratch, const Step& step,
                  ThreadPool::Member& member);
  void (*score)(const Model& model, const Workspace& work, const Scratch& scratch, int begin, int count,
                float* logits, ThreadPool::Member& member);

  // The same without the scores: what is kept of each row; see vocabulary.h.
  void (*survey)(const Model& model, const Workspace& work, const Scratch& scratch,
                 const SurveyedRows& asked, ThreadPool::Member& member);

  // Passes over a vocabulary; see vocabulary.h.
  void (*survey_row)(const float* scores, int count, Part* parts, Survey* found);
  double (*weigh)(const double* values, int count, double top, double scale, double* weights);
  void (*sum_weights)(const float* values, int count, double top, double scale, double* sums);
  void (*sum_wide_weights)(const double* values, int count, double top, double scale, double* sums);

  // What no kernel can beat; see floors.h and isa/floor_loops.h.
  uint64_t (*read_memory)(const uint8_t* from, size_t bytes);
  double (*calculate)(Arithmetic arithmetic, int turns);
};

const Kernels& plain_kernels();
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();

}  // namespace octavo
