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
#include "vocabulary.h"
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
      layer_number_ = number;
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
    const Rows normed = norm_rows(model_.norm, model_.output.format);
    multiply(model_.output, normed,
             StoreRows<Isa>{logits, static_cast<size_t>(model_.vocab), model_.output.out});
  }

  // The same, but keeps of each row only what its likeliest token asks for.
  void survey(const SurveyedRows& asked) {
    static_assert(kPart == kPartStrips * kStrip && kPartStrips * kPartRows == 4 * kRowsAtOnce);
    rows_ = asked.count;
    residual_ = work_.sampled + static_cast<size_t>(asked.begin) * model_.hidden;
    const Rows normed = norm_rows(model_.norm, model_.output.format);
    const int number = parts_of_vocabulary(model_.output.out);
    member_.for_chunks(number, [&](int part) { survey_part_of_rows(part, normed, asked); });
    member_.for_chunks(rows_, [&](int row) {
      Survey& found = asked.found[row];
      found = join_parts<Isa>(asked.parts + row, number, asked.count);
      if (!mask_of(asked, row)) return;
      const Allowed best = join_allowed(asked.allowed + row, number, asked.count);
      found.top = best.top;
      found.id = best.id;
    });
  }

 private:
  static constexpr int kPartStrips = kPart / kStrip;
  // Rows whose scores of one part wait in a thread's own memory.
  static constexpr int kPartRows = 4 * kRowsAtOnce / kPartStrips;

  static OCTAVO_INLINE const int32_t* mask_of(const SurveyedRows& asked, int row) {
    return asked.masks ? asked.masks[row] : nullptr;
  }

  void survey_part_of_rows(int number, const Rows& rows, const SurveyedRows& asked) {
    const PackedMatrix& head = model_.output;
    const int strip = number * kPartStrips, first = number * kPart, left = head.out - first;
    const int size = left < kPart ? left : kPart, strips = (size + kStrip - 1) / kStrip;
    const size_t place = static_cast<size_t>(number) * asked.count;
    float* here = scratch_.gate_up;
    for (int begin = 0; begin < rows_; begin += kPartRows) {
      const int end = begin + kPartRows < rows_ ? begin + kPartRows : rows_;
      linear<Isa>(head, rows, {begin, end}, {strip, strip + strips},
                  [&](int row, int at, const float* values) OCTAVO_BODY {
                    float* to = here + (row - begin) * kPart + (at - strip) * kStrip;
                    for (int c = 0; c < kStrip; ++c) to[c] = values[c];
                  });
      for (int row = begin; row < end; ++row) {
        const float* scores = here + (row - begin) * kPart;
        const Part part = asked.parts[place + row] = survey_part<Isa>(scores, size, first);
        if (const int32_t* mask = mask_of(asked, row)) {
          asked.allowed[place + row] = likeliest_allowed(part, scores, size, first, mask + first / 32);
        }
      }
    }
  }

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
    const GroupStep& group = step_.groups[layer.group];
    fill_qkv(layer, group);
    const AttentionWork& work = *group.attention;
    AttentionLayer all;
    all.pages = layer.pages;
    all.queries = work_.qkv;
    all.query_stride = qkv_stride();
    all.scale = 1.0f / __builtin_sqrtf(static_cast<float>(model_.head_size));
    all.outputs = work_.attended;
    all.output_stride = padded(model_.q_size());
    all.partials = work_.partials;
    member_.for_chunks(work.item_count,
                       [&](int item) { run_attention<Isa>(work, all, item, scratch_.attention); });
    member_.for_chunks(work.merge_count,
                       [&](int merge) { merge_attention<Isa>(work, all, merge, scratch_.attention); });
  }

  // Queries, keys and values, head by head: whoever has computed a head also turns it, and writes keys
  // and values to their pages.
  void fill_qkv(const LayerWeights& layer, const GroupStep& group) {
    const Rows normed = norm_rows(layer.attn_norm, layer.qkv.format);
    const int dim = model_.head_dim, strips = dim / kStrip;
    const StoreRows<Isa> store{work_.qkv, size_t(qkv_stride()), layer.qkv.out};
    member_.for_chunks(model_.heads + 2 * model_.kv_heads, [&](int head) {
      linear<Isa>(layer.qkv, normed, {0, rows_}, {head * strips, (head + 1) * strips}, store);
      const HeadForm form = form_of(layer, head);
      for (int row = 0; row < rows_; ++row) {
        const float* cos = work_.turns[layer.rotary] + static_cast<size_t>(row) * dim;
        enter_head<Isa>(layer.pages, form, slot_of(group, layer.pages, row), cos, cos + dim / 2,
                        work_.qkv + static_cast<size_t>(row) * qkv_stride() + head * dim);
      }
    });
  }

  HeadForm form_of(const LayerWeights& layer, int head) const {
    HeadForm form;
    const int of_keys = head - model_.heads, of_values = of_keys - model_.kv_heads;
    form.kind = of_keys < 0 ? HeadKind::kQuery : of_values < 0 ? HeadKind::kKey : HeadKind::kValue;
    form.number = of_keys < 0 ? head : of_values < 0 ? of_keys : of_values;
    form.bias = layer.qkv_bias ? layer.qkv_bias + head * model_.head_dim : nullptr;
    form.norm = of_keys < 0 ? layer.q_norm : of_values < 0 ? layer.k_norm : nullptr;
    form.size = model_.head_size;
    form.norm_eps = model_.norm_eps;
    return form;
  }

  static int64_t slot_of(const GroupStep& group, const KvPages& pages, int row) {
    return static_cast<int64_t>(group.blocks[row]) * pages.block_tokens + group.offsets[row];
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
    const int stride = padded(model_.q_size()), width = padded(model_.mixed_size());
    if (model_.head_size != model_.head_dim) {
      member_.for_chunks(rows_, [&](int row) {
        float* heads = attended_ + static_cast<size_t>(row) * stride;
        join_heads(heads, model_.heads, model_.head_dim, model_.head_size, width);
      });
    }
    const Rows mixed = prepare(work_.mixed, scratch_.mixed, [&](const RowBuffers& to, int row) {
      const float* from = attended_ + static_cast<size_t>(row) * stride;
      emit_to(to, row, layer.o.format, [&](auto&& emit) OCTAVO_BODY {
        using Vector = Lanes<Isa>;
        for (int g = 0; g < width / kGroup; ++g) {
          emit(g, Vector::load(from + g * kGroup), Vector::load(from + g * kGroup + 16));
        }
      });
    });
    add_branch(layer.o, mixed, layer.attn_post_norm);
  }

  // ── feed-forward ──

  void add_feed_forward(const LayerWeights& layer) {
    if (model_.experts) {
      add_experts(layer);
      return;
    }
    const FeedForward& only = *layer.feed_forward;
    const Rows normed = norm_rows(layer.ffn_norm, only.gate_up.format);
    activate_rows(only, normed, rows_);
    add_branch(only.down, work_.active.rows(), layer.ffn_post_norm);
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
        member_.give_way();
      }
    });
  }

  // Each row goes through a few experts. An expert's rows are gathered and computed together; what they
  // give is added in the order of the experts, so that a row's sum does not depend on other rows.
  void add_experts(const LayerWeights& layer) {
    const ExpertChoices choices = work_.choices(layer_number_, model_);
    route_rows(layer, choices);
    const size_t stride = model_.hidden;
    member_.for_chunks(rows_, [&](int row) {
      std::memset(work_.branch + row * stride, 0, stride * sizeof(float));
    });
    for (int number = 0; number < model_.experts; ++number) {
      const int begin = choices.ends[number], count = choices.ends[number + 1] - begin;
      if (count) add_expert(layer.feed_forward[number], choices.places + begin, count);
    }
    add_normed_branch(layer.ffn_post_norm);
  }

  void route_rows(const LayerWeights& layer, const ExpertChoices& choices) {
    // The router's rows are float32, whatever the experts read.
    const Rows normed = norm_rows(layer.ffn_norm, layer.router.format);
    multiply(layer.router, normed,
             StoreRows<Isa>{work_.qkv, static_cast<size_t>(model_.experts), model_.experts});
    member_.for_chunks(rows_, [&](int row) {
      const int chosen = model_.experts_per_token;
      choose_experts<Isa>(work_.qkv + static_cast<size_t>(row) * model_.experts, model_.experts, chosen,
                          model_.normalized_experts, work_.expert + row * chosen,
                          work_.expert_share + row * chosen);
    });
    member_.for_chunks(1, [&](int) { sort_choices(choices); });
    const Format format = layer.feed_forward->gate_up.format;
    // Into the shared rows, however few: experts gather from them.
    member_.for_chunks(rows_, [&](int row) { norm_row(layer.ffn_norm, format, work_.normed, row); });
  }

  // Places in work_.expert, expert by expert and row by row.
  void sort_choices(const ExpertChoices& choices) const {
    const int places = rows_ * model_.experts_per_token;
    std::memset(choices.ends, 0, sizeof(int) * (model_.experts + 1));
    for (int place = 0; place < places; ++place) choices.ends[work_.expert[place] + 1] += 1;
    for (int number = 0; number < model_.experts; ++number) choices.ends[number + 1] += choices.ends[number];
    for (int place = 0; place < places; ++place) choices.places[choices.ends[work_.expert[place]]++] = place;
    for (int number = model_.experts; number > 0; --number) choices.ends[number] = choices.ends[number - 1];
    choices.ends[0] = 0;
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
      if (takes_f32(format)) {
        std::memcpy(to.f32 + size_t(i) * width, from.f32 + row * width, width * sizeof(float));
      } else if (takes_bf16(format)) {
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
  void add_branch(const PackedMatrix& matrix, const Rows& rows, const float* post_norm) {
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
        rms_norm<Isa>(branch, post_norm, model_.hidden_size, model_.norm_eps, EmitAdded<Isa>{to});
      } else {
        add_row<Isa>(to, branch, model_.hidden);
      }
    });
  }

  template <class Emit>
  void multiply(const PackedMatrix& matrix, const Rows& rows, Emit emit) {
    const int strips = matrix.strips(), wide = rows_ <= 16 ? 4 : 2;
    member_.for_chunks((strips + wide - 1) / wide, [&](int chunk) {
      const int begin = chunk * wide, end = begin + wide < strips ? begin + wide : strips;
      for (int first = 0; first < rows_; first += kRowsAtOnce) {
        const int last = first + kRowsAtOnce < rows_ ? first + kRowsAtOnce : rows_;
        linear<Isa>(matrix, rows, {first, last}, {begin, end}, emit);
        member_.give_way();
      }
    });
  }

  // Norms rows of the residual.
  Rows norm_rows(const float* weight, Format format) {
    return prepare(work_.normed, scratch_.normed, [&](const RowBuffers& to, int row) {
      norm_row(weight, format, to, row);
    });
  }

  void norm_row(const float* weight, Format format, const RowBuffers& to, int row) {
    const float* from = residual_ + static_cast<size_t>(row) * model_.hidden;
    emit_to(to, row, format, [&](auto&& emit) OCTAVO_BODY {
      rms_norm<Isa>(from, weight, model_.hidden_size, model_.norm_eps, emit);
    });
  }

  // Makes the rows that a matrix is about to multiply. Few of them every thread makes for itself, which is
  // faster than to wait for each other. (A thread that comes late may read rows that have changed by now;
  // it does nothing with them, as the phase that needs them has passed.)
  template <class Make>
  Rows prepare(const RowBuffers& shared, const RowBuffers& own, Make&& make) {
    if (rows_ <= kOwnRows) {
      for (int row = 0; row < rows_; ++row) make(own, row);
      return own.rows();
    }
    member_.for_chunks(rows_, [&](int row) { make(shared, row); });
    return shared.rows();
  }

  // Calls body with what takes groups of 32 numbers of a row in the form of a format.
  template <class Body>
  static OCTAVO_INLINE void emit_to(const RowBuffers& buffers, int row, Format format, Body&& body) {
    const size_t at = static_cast<size_t>(row) * buffers.in;
    if (takes_codes(format)) return body(EmitQuantized<Isa>{buffers.quantized, row});
    if (takes_bf16(format)) return body(EmitBf16<Isa>{buffers.bf16 + at});
    body(EmitFloats<Isa>{buffers.f32 + at});
  }

  int qkv_stride() const { return padded(model_.qkv_size()); }

  const Model& model_;
  const Workspace& work_;
  const Scratch& scratch_;
  const Step& step_;
  ThreadPool::Member& member_;
  // Of the step; after the last attention of its samples.
  int layer_number_ = 0;
  int rows_;
  float* residual_;
  float* attended_;
};

}  // namespace octavo
