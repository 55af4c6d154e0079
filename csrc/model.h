// A decoder and one step of it, as the native executor sees them: sizes and raw pointers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention_plan.h"
#include "pages.h"
#include "types.h"

namespace octavo {

// Rows of all buffers are padded to whole groups, with zeros.
OCTAVO_INLINE constexpr int padded(int count) { return (count + kGroup - 1) / kGroup * kGroup; }

// down(activation(gate(x)) * up(x)).
struct FeedForward {
  PackedMatrix gate_up;  // 32 outputs of gate, 32 of up, ...
  PackedMatrix down;
};

// Absent parts are null; what they mean is said in octavo.contract.model.ModelSpec.
struct LayerWeights {
  const float* attn_norm = nullptr;
  PackedMatrix qkv;
  const float* qkv_bias = nullptr;  // [heads + 2 kv_heads, head_dim]
  const float* q_norm = nullptr;    // [head_dim]
  const float* k_norm = nullptr;
  PackedMatrix o;
  const float* attn_post_norm = nullptr;
  const float* ffn_norm = nullptr;
  PackedMatrix router;                     // [experts, hidden]; nothing for a dense layer
  const FeedForward* feed_forward = nullptr;  // one, or one for each expert
  const float* ffn_post_norm = nullptr;
  int rotary = 0;  // which frequencies turn its queries and keys
  int group = 0;   // KV group
  KvPages pages;
};

constexpr int kMaxRotaries = 2;

// Rows of `hidden` numbers are filled up to whole groups, heads to whole tiles: see `hidden_size` and
// `head_size`. A head's two halves are filled up each by itself in queries and keys, since their pairs
// turn together; values are filled up at their end. Weights hold zeros there.
struct Model {
  int vocab = 0;
  int hidden = 0;       // a multiple of kGroup
  int hidden_size = 0;  // of the model: what a norm divides by
  int intermediate = 0;  // of one expert, where there are experts
  int layers = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;   // a multiple of kTile
  int head_size = 0;  // of the model: what a norm divides by, and scores
  int experts = 0;
  int experts_per_token = 0;
  bool normalized_experts = false;
  bool gelu = false;
  float norm_eps = 0;
  float embedding_scale = 1;
  const float* frequencies[kMaxRotaries] = {};  // [head_dim / 2]
  float rotary_scale[kMaxRotaries] = {1, 1};
  PackedMatrix embedding;
  const LayerWeights* layer = nullptr;
  const float* norm = nullptr;
  PackedMatrix output;

  int q_size() const { return heads * head_dim; }
  int kv_size() const { return kv_heads * head_dim; }
  int qkv_size() const { return q_size() + 2 * kv_size(); }
  int mixed_size() const { return heads * head_size; }  // what attention gives, without padding
};

// Where the tokens of a step belong, in one KV group.
struct GroupStep {
  const AttentionWork* attention = nullptr;
  const int32_t* blocks = nullptr;   // [tokens] the block that each token's KV is written to
  const int32_t* offsets = nullptr;  // [tokens] the slot within it
};

struct Step {
  int tokens = 0;
  const int32_t* ids = nullptr;        // [tokens]
  const int32_t* positions = nullptr;  // [tokens]
  const GroupStep* groups = nullptr;
  int samples = 0;
  const int32_t* sample_rows = nullptr;  // [samples] rows whose logits are wanted
};

}  // namespace octavo
