// Chooses tokens from rows of scores: every option of octavo.contract.sampling.SamplingParams, in the
// order and with the meaning of octavo.runner.sampler, which is the oracle of the tests.
//
// A row's answer depends on the row, its options, its own text, its seed and its position alone, and
// has the same bits for every instruction set but for log-probabilities.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.h"
#include "vocabulary.h"

namespace octavo {

// Tokens, with a number for each where their kind has one.
struct TokenList {
  const int32_t* ids = nullptr;
  const double* values = nullptr;
  int count = 0;
};

struct SampleOptions {
  uint64_t seed = 0;
  uint64_t position = 0;
  double temperature = 0;
  double top_p = 1;
  double min_p = 0;
  double repetition = 1;
  double frequency = 0;
  double presence = 0;
  int top_k = 0;       // below 1: all
  int named = 0;       // likeliest tokens to name
  int candidates = 0;  // not 0: choose nothing, find so many
  int given = -1;      // at least 0: choose nothing, this is the token
  bool ranked = false;  // the token's own rank is wanted
  const int32_t* mask = nullptr;  // a bit for each token: 0 bans it; none: all may come
  TokenList allowed;   // none: all tokens
  TokenList banned;
  TokenList biased;    // values: what is added
  TokenList seen;      // of prompt and output, each once
  TokenList counted;   // of the output, each once; values: how often

  bool greedy() const { return temperature == 0; }
  bool lists() const {
    return allowed.count || banned.count || biased.count || seen.count || counted.count;
  }
  bool edits() const { return lists() || mask != nullptr; }
};

struct Choice {
  int token = kNothingLeft;
  double logprob = 0;  // before any option
  int rank = 0;        // of the token over the vocabulary, from 1, if it is wanted
  int broken = 0;      // scores that are not finite: then there is no answer
  int named = 0;       // tokens that were written to the caller's memory
};

// Number 0 <= x < 1, a pure function of both: see octavo.runner.philox.
double uniform(uint64_t seed, uint64_t position);

// Works on one row at a time, in memory of its own: one for each thread.
class RowSampler {
 public:
  RowSampler(const Kernels& kernels, int vocab) : kernels_(kernels), vocab_(vocab) {}

  // Names or candidates, best first, go to ids and values, which have room for them: natural
  // logarithms of probabilities.
  Choice sample(const float* row, const SampleOptions& options, int32_t* ids, double* values);

 private:
  struct Candidate {
    int id;
    double value;
    double weight;
  };
  static bool is_likelier(const Candidate& one, const Candidate& other) {
    return one.value > other.value || (one.value == other.value && one.id < other.id);
  }

  void edit(const float* row, double level, const SampleOptions& options);
  int choose(const float* row, const SampleOptions& options);
  int likeliest_allowed(const float* row, const int32_t* mask) const;
  template <class T>
  void find_tops(const T* values);
  template <class T>
  void collect(const T* values, double least);
  template <class T>
  void collect_likeliest(const T* values, int count);
  template <class T>
  void rank_likeliest(const T* values, int count);
  void drop_after(const Candidate& last);
  template <class T>
  int rank_of(const T* values, int token) const;
  template <class T>
  int draw(const T* values, const SampleOptions& options);
  template <class T>
  bool narrow(const T* values, const SampleOptions& options);
  template <class T>
  void collect_nucleus(const T* values, double top_p);
  template <class T>
  double sum_all(const T* values);
  template <class T>
  int invert_all(const T* values, double draw);
  void weigh_numbers();
  void weigh_kept();
  double kept_weight() const;
  void cut_nucleus(double enough);
  double rank_last_octave(double enough);
  int invert_kept(double draw) const;

  const Kernels& kernels_;
  const int vocab_;
  std::vector<Part> parts_;     // of the row
  std::vector<double> wide_;    // the row with options applied, if it has any
  std::vector<double> tops_;    // of each part of the one that is chosen from
  double top_ = 0;              // of all
  double scale_ = 1;            // 1 / temperature
  std::vector<double> sums_;    // of weights, by part
  std::vector<Candidate> kept_;  // tokens that may still be drawn, by ascending id
  std::vector<Candidate> ranked_;
  std::vector<double> numbers_, weights_;
};

}  // namespace octavo
