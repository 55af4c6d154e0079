// The table of one instruction set; only csrc/isa/<name>.cpp includes this.
#pragma once

#include "attention.h"
#include "floor_loops.h"
#include "forward.h"
#include "kernels.h"
#include "linear.h"
#include "quantize.h"
#include "vocabulary.h"
#include "write_kv.h"

namespace octavo {

template <class Isa>
struct Table {
  static void quantize_rows(const float* values, const QuantizedRows& rows, int begin, int end) {
    for (int row = begin; row < end; ++row) {
      quantize_row<Isa>(values + static_cast<size_t>(row) * rows.in, rows, row);
    }
  }

  static void to_bf16(const float* values, int count, uint16_t* out) {
    RowForm<Isa>::to_bf16(values, count, out);
  }

  static void linear(const PackedMatrix& matrix, const Rows& rows, int count, int begin, int end,
                     float* out, size_t stride) {
    octavo::linear<Isa>(matrix, rows, {0, count}, {begin, end},
                        StoreRows<Isa>{out, stride, matrix.out});
  }

  static void forward(const Model& model, const Workspace& work, const Scratch& scratch, const Step& step,
                      ThreadPool::Member& member) {
    Forward<Isa>(model, work, scratch, step, member).run();
  }

  static void score(const Model& model, const Workspace& work, const Scratch& scratch, int begin, int count,
                    float* logits, ThreadPool::Member& member) {
    Forward<Isa>(model, work, scratch, {}, member).score(begin, count, logits);
  }

  static void survey(const Model& model, const Workspace& work, const Scratch& scratch,
                     const SurveyedRows& asked, ThreadPool::Member& member) {
    Forward<Isa>(model, work, scratch, {}, member).survey(asked);
  }

  static constexpr Kernels kernels(const char* name) {
    return {
        name,
        quantize_rows,
        to_bf16,
        linear,
        octavo::write_kv<Isa>,
        octavo::run_attention<Isa>,
        octavo::merge_attention<Isa>,
        forward,
        score,
        survey,
        octavo::survey_row<Isa>,
        octavo::weigh<Isa, double>,
        octavo::sum_weights<Isa, float>,
        octavo::sum_weights<Isa, double>,
        octavo::read_words<Isa>,
        octavo::calculate_turns<Isa>,
    };
  }
};

}  // namespace octavo
