// Memory that one step works in.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa/unroll.h"
#include "model.h"
#include "types.h"

namespace octavo {

// Rows in the forms that matrices ask for.
struct RowBuffers {
  int in = 0;  // of a row, padded
  QuantizedRows quantized;
  uint16_t* bf16 = nullptr;
  float* f32 = nullptr;  // the bytes of bf16: only one of them is used at a time

  OCTAVO_INLINE Rows rows() const {
    Rows rows;
    rows.in = in;
    rows.quantized = quantized;
    rows.bf16 = bf16;
    rows.f32 = f32;
    return rows;
  }
};

// Which rows chose each expert, in one layer. A layer has its own, as a thread that comes late asks what
// was chosen in a layer that others have left.
struct ExpertChoices {
  int* ends;    // [experts + 1] where each expert's places begin, and the last one's end
  int* places;  // row * experts per token + number of the choice
};

// Memory of one step, shared by all threads. Rows are padded(width) floats apart; `hidden` is a whole
// number of groups. What pads a row stays zero.
struct Workspace {
  float* residual = nullptr;   // [tokens, hidden]
  float* sampled = nullptr;    // [samples, hidden] of it
  float* qkv = nullptr;        // [tokens, qkv]
  float* attended = nullptr;   // [tokens, heads * head_dim]
  float* sampled_attended = nullptr;  // [samples, heads * head_dim]
  float* branch = nullptr;     // [tokens, hidden] what a branch gives, before its norm
  float* turns[kMaxRotaries] = {};  // [tokens, head_dim] cosines, then sines
  float* partials = nullptr;   // of attention
  RowBuffers normed;           // [tokens, hidden]
  RowBuffers mixed;            // [tokens, heads * head_size]
  RowBuffers active;           // [tokens, intermediate]; of experts: one expert's rows
  RowBuffers gathered;         // [tokens, hidden] the rows of one expert
  int* expert = nullptr;       // [tokens, experts per token] chosen for each row
  float* expert_share = nullptr;
  int* expert_ends = nullptr;    // [layers, experts + 1]
  int* expert_places = nullptr;  // [layers, expert_places_stride]
  size_t expert_places_stride = 0;

  OCTAVO_INLINE ExpertChoices choices(int layer, const Model& model) const {
    return {expert_ends + static_cast<size_t>(layer) * (model.experts + 1),
            expert_places + layer * expert_places_stride};
  }
};

// Memory of one thread.
struct Scratch {
  float* attention = nullptr;  // attention_scratch_floats
  float* gate_up = nullptr;    // [kRowsAtOnce, 64]
  RowBuffers normed;           // [kOwnRows, hidden]
  RowBuffers mixed;            // [kOwnRows, heads * head_dim]
};

// Rows of a gate whose outputs wait in a thread's own memory for their activation.
constexpr int kRowsAtOnce = 128;
// With so many rows or fewer, every thread norms and quantises all of them for itself.
constexpr int kOwnRows = 4;

}  // namespace octavo
