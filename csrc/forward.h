// One step of a decoder, computed by all threads of a pool together.
//
// Every row is treated alone, but for attention, whose sums do not depend on company either: so the bits
// of a row's logits are the same whatever else is in the step, however its text was cut into steps and
// whatever the number of threads is.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention.h"
#include "choose.h"
#include "elementwise.h"
#include "embedding.h"
#include "linear.h"
#include "model.h"
#include "quantize.h"
#include "threads.h"
#include "workspace.h"
#include "write_kv.h"

namespace octavo {

template <class Isa>
class Forward {
 public:
  Forward(const Model& model, const Workspace& work, const Scratch& scratch, const Step& step,
          ThreadPool::Member& member)
      : model_(model), work_(work), scratch_(scratch), step_(step), member_(member),
        rows_(step.tokens), residual_(work.residual), attended_(work.attended) {}

  void run() {
    begin();
    for (int number = 0; number < model_.layers; ++number) {
      const LayerWeights& layer = model_.layer[number];
      attend(layer);
      if (number + 1 == model_.layers) keep_samples();
      add_attention(layer);
      add_feed_forward(layer);
    }
  }

  // Scores the vocabulary after the sampled rows begin .. begin + count - 1 of the last step:
  // logits [count, vocab].
  void score(int begin, int count, float* logits) {
    rows_ = count;
    residual_ = work_.sampled + static_cast<size_t>(begin) * model_.hidden;
    norm_rows(model_.norm, model_.output.format);
    multiply(model_.output, work_.normed,
             StoreRows<Isa>{logits, static_cast<size_t>(model_.vocab), model_.output.out});
  }

 private:
  // The rows' embeddings, and the rotary factors of their positions.
  void begin() {
    const int dim = model_.head_dim, half = dim / 2;
    member_.for_chunks(rows_, [&](int row) {
      float* to = residual_ + static_cast<size_t>(row) * model_.hidden;
      embed_packed<Isa>(model_.embedding, step_.ids[row], model_.embedding_scale, to);
      const float position = static_cast<float>(step_.positions[row]);
      for (int r = 0; r < kMaxRotaries && model_.frequencies[r]; ++r) {
        float* cos = work_.turns[r] + static_cast<size_t>(row) * dim;
        for (int i = 0; i < half; ++i) {
          // The angle is rounded to float32, as transformers does.
          const float angle = position * model_.frequencies[r][i];
          cos[i] = std::cos(angle) * model_.rotary_scale[r];
          cos[half + i] = std::sin(angle) * model_.rotary_scale[r];
        }
      }
    });
  }

  // ── attention ──

  void attend(const LayerWeights& layer) {
    norm_rows(layer.attn_norm, layer.qkv.format);
    multiply(layer.qkv, work_.normed, StoreRows<Isa>{work_.qkv, size_t(qkv_stride()), layer.qkv.out});
    const GroupStep& group = step_.groups[layer.group];
    member_.for_chunks(rows_, [&](int row) { turn_row(layer, group, row); });
    const AttentionWork& work = *group.attention;
    AttentionLayer all;
    all.pages = layer.pages;
    all.queries = work_.qkv;
    all.query_stride = qkv_stride();
    all.scale = 1.0f / __builtin_sqrtf(static_cast<float>(model_.head_dim));
    all.outputs = work_.attended;
    all.output_stride = padded(model_.q_size());
    all.partials = work_.partials;
    member_.for_chunks(work.item_count,
                       [&](int item) { run_attention<Isa>(work, all, item, scratch_.attention); });
    if (work.merge_count == 0) return;
    member_.for_chunks(work.merge_count,
                       [&](int merge) { merge_attention<Isa>(work, all, merge, scratch_.attention); });
  }

  // Biases, norms and rotation of one row's queries and keys; its keys and values go to their page.
  void turn_row(const LayerWeights& layer, const GroupStep& group, int row) {
    const int dim = model_.head_dim;
    float* qkv = work_.qkv + static_cast<size_t>(row) * qkv_stride();
    if (layer.qkv_bias) add_row<Isa>(qkv, layer.qkv_bias, model_.qkv_size());
    const float* cos = work_.turns[layer.rotary] + static_cast<size_t>(row) * dim;
    HeadForm form;
    form.heads = model_.heads;
    form.q_norm = layer.q_norm;
    form.k_norm = layer.k_norm;
    form.norm_eps = model_.norm_eps;
    const int64_t slot =
        static_cast<int64_t>(group.blocks[row]) * layer.pages.block_tokens + group.offsets[row];
    enter_attention<Isa>(layer.pages, form, slot, cos, cos + dim / 2, qkv);
  }

  // After the last attention no row needs another: go on with those that are sampled.
  void keep_samples() {
    const size_t hidden = model_.hidden, mixed = padded(model_.q_size());
    member_.for_chunks(step_.samples, [&](int i) {
      const int row = step_.sample_rows[i];
      std::memcpy(work_.sampled + i * hidden, residual_ + row * hidden, hidden * sizeof(float));
      std::memcpy(work_.sampled_attended + i * mixed, attended_ + row * mixed, mixed * sizeof(float));
    });
    rows_ = step_.samples;
    residual_ = work_.sampled;
    attended_ = work_.sampled_attended;
  }

  void add_attention(const LayerWeights& layer) {
    const int width = padded(model_.q_size());
    member_.for_chunks(rows_, [&](int row) {
      const float* from = attended_ + static_cast<size_t>(row) * width;
      emit_to(work_.mixed, row, layer.o.format, [&](auto&& emit) OCTAVO_BODY {
        using Vector = Lanes<Isa>;
        for (int g = 0; g < width / kGroup; ++g) {
          emit(g, Vector::load(from + g * kGroup), Vector::load(from + g * kGroup + 16));
        }
      });
    });
    add_branch(layer.o, work_.mixed, layer.attn_post_norm);
  }

  // ── feed-forward ──

  void add_feed_forward(const LayerWeights& layer) {
    if (model_.experts) {
      add_experts(layer);
      return;
    }
    const FeedForward& only = *layer.feed_forward;
    norm_rows(layer.ffn_norm, only.gate_up.format);
    activate_rows(only, work_.normed.rows(), rows_);
    add_branch(only.down, work_.active, layer.ffn_post_norm);
  }

  // Fills work_.active, group by group of 32: gate and up of a group are computed by one thread.
  void activate_rows(const FeedForward& part, const Rows& rows, int count) {
    const Activation activation = model_.gelu ? Activation::kGeluTanh : Activation::kSilu;
    float* here = scratch_.gate_up;
    member_.for_chunks(part.gate_up.strips() / 4, [&](int group) {
      for (int first = 0; first < count; first += kRowsAtOnce) {
        const int end = first + kRowsAtOnce < count ? first + kRowsAtOnce : count;
        linear<Isa>(part.gate_up, rows, {first, end}, {4 * group, 4 * group + 4},
                    [&](int row, int strip, const float* values) OCTAVO_BODY {
                      float* to = here + (row - first) * 4 * kStrip + (strip & 3) * kStrip;
                      for (int c = 0; c < kStrip; ++c) to[c] = values[c];
                    });
        for (int row = first; row < end; ++row) {
          const float* gate = here + (row - first) * 4 * kStrip;
          emit_to(work_.active, row, part.down.format, [&](auto&& emit) OCTAVO_BODY {
            gated<Isa>(activation, gate, gate + kGroup, 1, group, emit);
          });
        }
      }
    });
  }

  // Each row goes through a few experts. An expert's rows are gathered and computed together; what they
  // give is added in the order of the experts, so that a row's sum does not depend on other rows.
  void add_experts(const LayerWeights& layer) {
    route_rows(layer);
    const size_t stride = model_.hidden;
    member_.for_chunks(rows_, [&](int row) {
      std::memset(work_.branch + row * stride, 0, stride * sizeof(float));
    });
    for (int number = 0; number < model_.experts; ++number) {
      int* mine = scratch_.expert_rows;
      const int count = rows_of_expert(number, mine);
      if (count == 0) continue;
      add_expert(layer.feed_forward[number], mine, count);
    }
    add_normed_branch(layer.ffn_post_norm);
  }

  void route_rows(const LayerWeights& layer) {
    // The router's rows are float32, whatever the experts read.
    norm_rows(layer.ffn_norm, layer.router.format);
    multiply(layer.router, work_.normed,
             StoreRows<Isa>{work_.qkv, static_cast<size_t>(model_.experts), model_.experts});
    member_.for_chunks(rows_, [&](int row) {
      const int chosen = model_.experts_per_token;
      choose_experts<Isa>(work_.qkv + static_cast<size_t>(row) * model_.experts, model_.experts, chosen,
                          model_.normalized_experts, work_.expert + row * chosen,
                          work_.expert_share + row * chosen);
    });
    const Format format = layer.feed_forward->gate_up.format;
    if (format != layer.router.format) norm_rows(layer.ffn_norm, format);
  }

  // Places in work_.expert where an expert was chosen, row by row.
  int rows_of_expert(int number, int* places) const {
    int count = 0;
    for (int place = 0; place < rows_ * model_.experts_per_token; ++place) {
      if (work_.expert[place] == number) places[count++] = place;
    }
    return count;
  }

  void add_expert(const FeedForward& expert, const int* places, int count) {
    const int chosen = model_.experts_per_token;
    gather_rows(places, count, expert.gate_up.format);
    activate_rows(expert, work_.gathered.rows(), count);
    const Rows rows = work_.active.rows();
    const int strips = expert.down.strips();
    member_.for_chunks(strips, [&](int strip) {
      linear<Isa>(expert.down, rows, {0, count}, {strip, strip + 1},
                  [&](int row, int at, const float* values) OCTAVO_BODY {
                    const int place = places[row];
                    float* to = work_.branch + static_cast<size_t>(place / chosen) * model_.hidden + at * kStrip;
                    const float share = work_.expert_share[place];
                    for (int c = 0; c < kStrip; ++c) to[c] += values[c] * share;
                  });
    });
  }

  // Copies normed rows of an expert to work_.gathered, in the form of its matrices.
  void gather_rows(const int* places, int count, Format format) {
    const int width = model_.hidden;
    member_.for_chunks(count, [&](int i) {
      const size_t row = places[i] / model_.experts_per_token;
      const RowBuffers &from = work_.normed, &to = work_.gathered;
      if (format == Format::kF32) {
        std::memcpy(to.f32 + size_t(i) * width, from.f32 + row * width, width * sizeof(float));
      } else if (format == Format::kBf16) {
        std::memcpy(to.bf16 + size_t(i) * width, from.bf16 + row * width, width * sizeof(uint16_t));
      } else {
        const size_t groups = width / kGroup;
        const QuantizedRows &a = from.quantized, &b = to.quantized;
        std::memcpy(b.codes + size_t(i) * width, a.codes + row * width, width);
        std::memcpy(b.scales + i * groups, a.scales + row * groups, groups * sizeof(float));
        std::memcpy(b.sums + i * groups, a.sums + row * groups, groups * sizeof(float));
        std::memcpy(b.offsets + i * groups, a.offsets + row * groups, groups * sizeof(int32_t));
      }
    });
  }

  // ── parts ──

  // Adds matrix times rows to the residual, through a norm if there is one.
  void add_branch(const PackedMatrix& matrix, const RowBuffers& rows, const float* post_norm) {
    const size_t stride = model_.hidden;
    if (!post_norm) {
      multiply(matrix, rows, AddRows<Isa>{residual_, stride, matrix.out});
      return;
    }
    multiply(matrix, rows, StoreRows<Isa>{work_.branch, stride, matrix.out});
    add_normed_branch(post_norm);
  }

  void add_normed_branch(const float* post_norm) {
    const size_t stride = model_.hidden;
    member_.for_chunks(rows_, [&](int row) {
      const float* branch = work_.branch + row * stride;
      float* to = residual_ + row * stride;
      if (post_norm) {
        rms_norm<Isa>(branch, post_norm, model_.hidden, model_.norm_eps, EmitAdded<Isa>{to});
      } else {
        add_row<Isa>(to, branch, model_.hidden);
      }
    });
  }

  template <class Emit>
  void multiply(const PackedMatrix& matrix, const RowBuffers& buffers, Emit emit) {
    const Rows rows = buffers.rows();
    const int strips = matrix.strips(), wide = rows_ <= 16 ? 4 : 2;
    member_.for_chunks((strips + wide - 1) / wide, [&](int chunk) {
      const int begin = chunk * wide, end = begin + wide < strips ? begin + wide : strips;
      linear<Isa>(matrix, rows, {0, rows_}, {begin, end}, emit);
    });
  }

  // Norms rows of the residual into work_.normed.
  void norm_rows(const float* weight, Format format) {
    member_.for_chunks(rows_, [&](int row) {
      const float* from = residual_ + static_cast<size_t>(row) * model_.hidden;
      emit_to(work_.normed, row, format, [&](auto&& emit) OCTAVO_BODY {
        rms_norm<Isa>(from, weight, model_.hidden, model_.norm_eps, emit);
      });
    });
  }

  // Calls body with what takes groups of 32 numbers of a row in the form of a format.
  template <class Body>
  static OCTAVO_INLINE void emit_to(const RowBuffers& buffers, int row, Format format, Body&& body) {
    const size_t at = static_cast<size_t>(row) * buffers.in;
    switch (format) {
      case Format::kQ4:
      case Format::kQ8: return body(EmitQuantized<Isa>{buffers.quantized, row});
      case Format::kBf16: return body(EmitBf16<Isa>{buffers.bf16 + at});
      case Format::kF32: return body(EmitFloats<Isa>{buffers.f32 + at});
    }
  }

  int qkv_stride() const { return padded(model_.qkv_size()); }

  const Model& model_;
  const Workspace& work_;
  const Scratch& scratch_;
  const Step& step_;
  ThreadPool::Member& member_;
  // Of the step; after the last attention of its samples.
  int rows_;
  float* residual_;
  float* attended_;
};

}  // namespace octavo
