#include "engine.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "attention.h"

namespace octavo {

namespace {

// Cuts one allocation into arrays that begin on cache lines.
class Cutter {
 public:
  explicit Cutter(uint8_t* at) : start_(at) {}

  template <class T>
  T* take(size_t count) {
    T* taken = start_ ? reinterpret_cast<T*>(start_ + used_) : nullptr;
    used_ += (count * sizeof(T) + kCacheLine - 1) / kCacheLine * kCacheLine;
    return taken;
  }

  RowBuffers rows(size_t count, int width) {
    const size_t numbers = count * width, groups = numbers / kGroup;
    RowBuffers buffers;
    buffers.in = width;
    buffers.quantized = {width, take<int8_t>(numbers), take<float>(groups), take<float>(groups),
                         take<int32_t>(groups)};
    buffers.f32 = take<float>(numbers);
    buffers.bf16 = reinterpret_cast<uint16_t*>(buffers.f32);
    return buffers;
  }

  size_t used() const { return used_; }

 private:
  uint8_t* start_;
  size_t used_ = 0;
};

// Fills `work`, or with `at` null just measures.
size_t cut_rows(const Model& model, size_t tokens, size_t samples, uint8_t* at, Workspace& work) {
  Cutter cutter(at);
  const size_t mixed = padded(model.q_size());
  const int intermediate = padded(model.intermediate);
  work.residual = cutter.take<float>(tokens * model.hidden);
  work.sampled = cutter.take<float>(samples * model.hidden);
  // The scores of a router go here as well.
  const size_t wide = std::max<size_t>(padded(model.qkv_size()), model.experts);
  work.qkv = cutter.take<float>(std::max(tokens, samples) * wide);
  work.attended = cutter.take<float>(tokens * mixed);
  work.sampled_attended = cutter.take<float>(samples * mixed);
  const size_t rows = std::max(tokens, samples);
  work.branch = cutter.take<float>(rows * model.hidden);
  for (float*& turns : work.turns) turns = cutter.take<float>(tokens * model.head_dim);
  work.normed = cutter.rows(rows, model.hidden);
  work.mixed = cutter.rows(rows, padded(model.mixed_size()));
  work.active = cutter.rows(rows, intermediate);
  if (model.experts) {
    work.gathered = cutter.rows(rows, model.hidden);
    work.expert = cutter.take<int>(rows * model.experts_per_token);
    work.expert_share = cutter.take<float>(rows * model.experts_per_token);
    work.expert_places_stride = rows * model.experts_per_token;
    work.expert_ends = cutter.take<int>(static_cast<size_t>(model.layers) * (model.experts + 1));
    work.expert_places = cutter.take<int>(model.layers * work.expert_places_stride);
  }
  return cutter.used();
}

// The same for one thread.
size_t cut_scratch(const Model& model, uint8_t* at, Scratch& scratch) {
  Cutter cutter(at);
  scratch.attention = cutter.take<float>(attention_scratch_floats(model.head_dim));
  scratch.gate_up = cutter.take<float>(kRowsAtOnce * 4 * kStrip);
  scratch.normed = cutter.rows(kOwnRows, model.hidden);
  scratch.mixed = cutter.rows(kOwnRows, padded(model.mixed_size()));
  return cutter.used();
}

// Steps grow as requests come: room for some more, so that it is seldom made anew.
int roomy(int count) {
  constexpr int kFewest = 64;
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::max(count, kFewest))));
}

}  // namespace

Engine::Engine(Model model, std::vector<LayerWeights> layers, const std::vector<int>& index_in_group,
               std::vector<GroupShape> groups, PageFormat format, int blocks, ThreadPool& pool,
               const Kernels& kernels)
    : model_(model),
      layers_(std::move(layers)),
      groups_(std::move(groups)),
      blocks_(blocks),
      pool_(pool),
      kernels_(kernels),
      plans_(groups_.size()),
      group_steps_(groups_.size()),
      scratch_(pool.size()) {
  KvPages pages;
  pages.kv_heads = model_.kv_heads;
  pages.dim = model_.head_dim;
  pages.format = format;
  for (const GroupShape& group : groups_) {
    pages.block_tokens = group.block_tokens;
    block_bytes_ = std::max(block_bytes_, pages.page_bytes() * group.pages_per_block);
  }
  arena_ = MappedMemory(block_bytes_ * blocks);
  for (size_t i = 0; i < layers_.size(); ++i) {
    pages.block_tokens = groups_[layers_[i].group].block_tokens;
    pages.stride = block_bytes_;
    pages.base = arena_.data() + index_in_group[i] * pages.page_bytes();
    layers_[i].pages = pages;
  }
  model_.layer = layers_.data();
  model_.layers = static_cast<int>(layers_.size());
  for (Scratch& scratch : scratch_) {
    own_.emplace_back(cut_scratch(model_, nullptr, scratch));
    cut_scratch(model_, own_.back().data(), scratch);
  }
}

void Engine::run(const StepInputs& inputs) {
  reach(inputs);
  plan(inputs);
  size_t partials = 0;
  for (const GroupStep& group : group_steps_) {
    partials = std::max(partials, partial_floats(*group.attention, model_.head_dim));
  }
  reserve(inputs.tokens, inputs.samples, partials);
  Step step;
  step.tokens = inputs.tokens;
  step.ids = inputs.ids;
  step.positions = inputs.positions;
  step.groups = group_steps_.data();
  step.samples = inputs.samples;
  step.sample_rows = inputs.sample_rows;
  pool_.run([&](ThreadPool::Member& member) {
    kernels_.forward(model_, work_, scratch_[member.index()], step, member);
  });
  sampled_ = inputs.samples;
}

void Engine::score(int begin, int count, float* logits) {
  pool_.run([&](ThreadPool::Member& member) {
    kernels_.score(model_, work_, scratch_[member.index()], begin, count, logits, member);
  });
}

void Engine::survey(int begin, int count, const int32_t* const* masks, Survey* found) {
  const size_t size = static_cast<size_t>(parts_of_vocabulary(model_.vocab)) * count;
  parts_.resize(size);
  if (masks) allowed_.resize(size);
  const SurveyedRows asked = {begin, count, masks, parts_.data(), allowed_.data(), found};
  pool_.run([&](ThreadPool::Member& member) {
    kernels_.survey(model_, work_, scratch_[member.index()], asked, member);
  });
}

void Engine::plan(const StepInputs& inputs) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const GroupTables& tables = inputs.groups[g];
    slices_.resize(inputs.slices);
    int first = 0;
    for (int i = 0; i < inputs.slices; ++i) {
      slices_[i] = {first, inputs.lengths[i], inputs.starts[i], tables.tables + tables.starts[i]};
      first += inputs.lengths[i];
    }
    const AttentionShape shape = {model_.heads, model_.kv_heads, groups_[g].block_tokens, groups_[g].window};
    // Plans point into slices_ only while they are made.
    group_steps_[g] = {&plans_[g].build(shape, slices_.data(), inputs.slices, pool_.size()),
                       tables.blocks, tables.offsets};
  }
}

void Engine::touch_ahead(size_t ahead) {
  ahead_ = std::make_unique<TouchAhead>(arena_, block_bytes_ * blocks_, ahead);
}

void Engine::reach(const StepInputs& inputs) {
  if (!ahead_ || inputs.tokens == 0) return;
  int32_t last = -1;
  for (const GroupTables& group : inputs.groups) {
    last = std::max(last, *std::max_element(group.blocks, group.blocks + inputs.tokens));
  }
  ahead_->reach(block_bytes_ * (static_cast<size_t>(last) + 1));
}

void Engine::reserve(int tokens, int samples, size_t partials) {
  if (tokens > token_room_ || samples > sample_room_) {
    cut(std::max(token_room_, roomy(tokens)), std::max(sample_room_, roomy(samples)));
  }
  if (partials > partial_room_) {
    const size_t room = std::bit_ceil(partials);
    partials_ = MappedMemory(room * sizeof(float));
    partial_room_ = room;
  }
  work_.partials = reinterpret_cast<float*>(partials_.data());
}

void Engine::cut(int tokens, int samples) {
  Workspace nothing;
  rows_ = MappedMemory(cut_rows(model_, tokens, samples, nullptr, nothing));
  cut_rows(model_, tokens, samples, rows_.data(), work_);
  token_room_ = tokens;
  sample_room_ = samples;
}

void Engine::copy(const int32_t* sources, const int32_t* targets, int count) {
  for (int i = 0; i < count; ++i) {
    std::memcpy(arena_.data() + block_bytes_ * targets[i], arena_.data() + block_bytes_ * sources[i],
                block_bytes_);
  }
}

}  // namespace octavo
