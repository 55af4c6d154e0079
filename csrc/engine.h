// A decoder with its KV memory: takes one step at a time, in any instruction set that the machine has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "attention_plan.h"
#include "kernels.h"
#include "memory.h"
#include "model.h"
#include "pages.h"
#include "threads.h"
#include "touch_ahead.h"
#include "vocabulary.h"
#include "workspace.h"

namespace octavo {

// Layers that share a table; see octavo.contract.layout.KVGroup.
struct GroupShape {
  int block_tokens = 0;
  int window = 0;           // positions that a query sees; 0: all
  int pages_per_block = 0;  // layers, and pages that no layer uses
};

// One step as it comes from Python: rows are the tokens of all slices, slice after slice.
struct GroupTables {
  const int32_t* tables = nullptr;  // the slices' tables one after the other
  const int32_t* starts = nullptr;  // [slices] where each begins
  const int32_t* blocks = nullptr;  // [tokens]
  const int32_t* offsets = nullptr;  // [tokens]
};

struct StepInputs {
  int tokens = 0;
  int slices = 0;
  const int32_t* ids = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* starts = nullptr;   // [slices]
  const int32_t* lengths = nullptr;  // [slices]
  std::vector<GroupTables> groups;
  int samples = 0;
  const int32_t* sample_rows = nullptr;
};

class Engine {
 public:
  // `model` must stay as it is; its layers' pages are set here. index_in_group: of each layer's page
  // within its block.
  Engine(Model model, std::vector<LayerWeights> layers, const std::vector<int>& index_in_group,
         std::vector<GroupShape> groups, PageFormat format, int blocks, ThreadPool& pool,
         const Kernels& kernels);

  int blocks() const { return blocks_; }
  size_t block_bytes() const { return block_bytes_; }
  const Model& model() const { return model_; }
  int group_count() const { return static_cast<int>(groups_.size()); }

  // From now on so many bytes of KV memory behind what is in use are made ready before they are
  // written; by itself memory is touched only when it is. Called once.
  void touch_ahead(size_t ahead);

  // Computes a step: writes the KV of all rows, and keeps the last states of the sampled ones.
  void run(const StepInputs& inputs);

  // Scores the vocabulary after some of the sampled rows of the last step: logits [count, vocab].
  void score(int begin, int count, float* logits);

  // The same without the scores: the likeliest token of each row, and what its probability takes.
  // masks: see SurveyedRows. A row that may not go on has the token kNothingLeft.
  void survey(int begin, int count, const int32_t* const* masks, Survey* found);

  int sampled() const { return sampled_; }

  // The last states of the sampled rows of the last step, before the last norm: [sampled, hidden].
  const float* states() const { return work_.sampled; }

  // Copies whole blocks, in order.
  void copy(const int32_t* sources, const int32_t* targets, int count);

 private:
  void plan(const StepInputs& inputs);
  void reach(const StepInputs& inputs);
  void reserve(int tokens, int samples, size_t partials);
  void cut(int tokens, int samples);

  Model model_;
  std::vector<LayerWeights> layers_;
  std::vector<GroupShape> groups_;
  int blocks_;
  size_t block_bytes_ = 0;
  MappedMemory arena_;
  std::unique_ptr<TouchAhead> ahead_;  // of arena_
  ThreadPool& pool_;
  const Kernels& kernels_;

  std::vector<AttentionPlan> plans_;
  std::vector<GroupStep> group_steps_;
  std::vector<AttentionSlice> slices_;

  std::vector<Part> parts_;
  std::vector<Allowed> allowed_;
  int sampled_ = 0;
  int token_room_ = 0, sample_room_ = 0;
  size_t partial_room_ = 0;
  MappedMemory rows_, partials_;
  std::vector<MappedMemory> own_;
  Workspace work_;
  std::vector<Scratch> scratch_;
};

}  // namespace octavo
