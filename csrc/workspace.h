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
  RowBuffers mixed;            // [tokens, heads * head_dim]
  RowBuffers active;           // [tokens, intermediate]; of experts: one expert's rows
  RowBuffers gathered;         // [tokens, hidden] the rows of one expert
  int* expert = nullptr;       // [tokens, experts per token] chosen for each row
  float* expert_share = nullptr;
};

// Memory of one thread.
struct Scratch {
  float* attention = nullptr;  // attention_scratch_floats
  float* gate_up = nullptr;    // [kRowsAtOnce, 64]
  int* expert_rows = nullptr;  // [tokens * experts per token]
};

// Rows of a gate whose outputs wait in a thread's own memory for their activation.
constexpr int kRowsAtOnce = 128;

}  // namespace octavo
