// Passes over a vocabulary against plain float64 code, and the sampler's options in random mixes.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "../sample.h"
#include "../vocabulary.h"
#include "check.h"
#include "isa.h"

using namespace octavo;
using Isa = TestedIsa;

namespace {

// What a sampler calls.
Kernels kernels() {
  Kernels some{};
  some.survey_row = survey_row<Isa>;
  some.weigh = weigh<Isa, double>;
  some.sum_weights = sum_weights<Isa, float>;
  some.sum_wide_weights = sum_weights<Isa, double>;
  return some;
}

constexpr int kSizes[] = {1, 7, 15, 16, 17, 127, 128, 129, 255, 400, 1000};

std::vector<float> random_scores(int count, int seed, bool with_ties = false) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 4);
  std::vector<float> made(count);
  for (float& x : made) x = with_ties ? std::round(normal(random)) : normal(random);
  return made;
}

bool near(double a, double b, double bound) { return std::fabs(a - b) <= bound; }

void first_equal_lane() {
  using Vector = Lanes<Isa>;
  float numbers[16];
  for (int i = 0; i < 16; ++i) numbers[i] = static_cast<float>(i / 2);
  const Vector x = Vector::load(numbers);
  for (int i = 0; i < 16; ++i) CHECK(x.first_equal(Vector::all(numbers[i])) == i / 2 * 2);
  CHECK(x.first_equal(Vector::all(99)) == 16);
  CHECK(Vector::all(NAN).first_equal(Vector::all(NAN)) == 16);
}

void exponentials() {
  for (double x = 0; x > -708; x -= 0.0371) {
    double from[9], made[16];
    std::fill_n(from, 9, x);
    weigh<Isa>(from, 9, 0.0, 1.0, made);
    for (int i = 0; i < 9; ++i) CHECK(near(made[i] / std::exp(x), 1, 1e-14));
  }
  const double from[] = {0, -1e-300, -709, -1e300, -INFINITY}, exact[] = {1, 1, 0, 0, 0};
  double made[8];
  CHECK(weigh<Isa>(from, 5, 0.0, 1.0, made) == 2);
  for (int i = 0; i < 5; ++i) CHECK(made[i] == exact[i]);
  // Whatever is below the top has no weight, and nothing becomes a NaN.
  CHECK(weigh<Isa>(from, 5, 0.0, 1.7e308, made) == 1);
}

void surveys() {
  for (int size : kSizes) {
    for (int seed = 0; seed < 6; ++seed) {
      const std::vector<float> scores = random_scores(size, seed, seed % 2);
      std::vector<Part> parts(parts_of_vocabulary(size));
      Survey found;
      survey_row<Isa>(scores.data(), size, parts.data(), &found);
      const auto top = std::max_element(scores.begin(), scores.end());
      CHECK(found.top == *top && found.id == top - scores.begin() && found.broken == 0);
      double sum = 0;
      for (float x : scores) sum += std::exp(static_cast<double>(x) - *top);
      CHECK(near(found.level, *top + std::log(sum), 1e-6));
      std::vector<double> sums(parts.size());
      sum_weights<Isa>(scores.data(), size, static_cast<double>(*top), 1.0, sums.data());
      CHECK(near(std::accumulate(sums.begin(), sums.end(), 0.0) / sum, 1, 1e-13));
    }
  }
}

void the_likeliest_of_what_a_mask_allows() {
  std::mt19937 random(7);
  for (int size : kSizes) {
    for (int round = 0; round < 40; ++round) {
      const std::vector<float> scores = random_scores(size, round, round % 2);
      const unsigned share = std::vector<unsigned>{0, 3, 50, 97, 100}[round % 5];
      std::vector<int32_t> mask((size + 31) / 32, 0);
      int expected = kNothingLeft;
      for (int i = 0; i < static_cast<int>(mask.size()) * 32; ++i) {
        // What is beyond the vocabulary is allowed, and never comes.
        const bool allowed = i >= size || random() % 100 < share;
        mask[i / 32] |= static_cast<int32_t>(uint32_t{allowed} << i % 32);
        if (allowed && i < size && (expected < 0 || scores[i] > scores[expected])) expected = i;
      }
      std::vector<Allowed> parts(parts_of_vocabulary(size));
      for (int i = 0; i < static_cast<int>(parts.size()); ++i) {
        const int first = i * kPart, count = std::min(kPart, size - first);
        const Part part = survey_part<Isa>(scores.data() + first, count, first);
        parts[i] = likeliest_allowed(part, scores.data() + first, count, first, mask.data() + first / 32);
      }
      const Allowed found = join_allowed(parts.data(), static_cast<int>(parts.size()), 1);
      CHECK(found.id == expected);
      CHECK(expected < 0 || found.top == scores[expected]);
      SampleOptions options;
      options.mask = mask.data();
      CHECK(RowSampler(kernels(), size).sample(scores.data(), options, nullptr, nullptr).token == expected);
    }
  }
}

void broken_scores_are_counted() {
  for (int size : kSizes) {
    for (float bad : {NAN, INFINITY, -INFINITY}) {
      for (int place : {0, size / 2, size - 1}) {
        std::vector<float> scores = random_scores(size, size);
        scores[place] = scores[size - 1] = bad;
        std::vector<Part> parts(parts_of_vocabulary(size));
        Survey found;
        survey_row<Isa>(scores.data(), size, parts.data(), &found);
        CHECK(found.broken == (place == size - 1 ? 1 : 2));
      }
    }
  }
}

void the_published_numbers_of_philox() {
  // Random123, kat_vectors: philox4x32 10, all counters and keys zero, gives 6627e8d5 e169c58d ...
  CHECK(uniform(0, 0) == static_cast<double>(0x6627e8d5e169c58dull >> 11) * 0x1p-53);
}

// The token by sorting and plain sums; -1: the draw is too near to an edge to say.
int expected_token(const std::vector<double>& scores, const SampleOptions& options) {
  std::vector<int> ranked(scores.size());
  std::iota(ranked.begin(), ranked.end(), 0);
  std::stable_sort(ranked.begin(), ranked.end(), [&](int a, int b) { return scores[a] > scores[b]; });
  if (options.greedy()) return ranked[0];
  std::vector<double> weights(scores.size());
  for (size_t i = 0; i < scores.size(); ++i) {
    weights[i] = std::exp((scores[i] - scores[ranked[0]]) / options.temperature);
    if (options.min_p > 0 && weights[i] < 1 && near(weights[i], options.min_p, 1e-9)) return -1;
    if (weights[i] < options.min_p) weights[i] = 0;
  }
  for (size_t i = options.top_k; options.top_k > 0 && i < ranked.size(); ++i) weights[ranked[i]] = 0;
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double reached = 0;
  for (int token : ranked) {
    const bool enough = reached >= options.top_p * total;
    if (options.top_p < 1 && near(reached, options.top_p * total, 1e-9 * total)) return -1;
    reached += weights[token];
    if (options.top_p < 1 && enough) weights[token] = 0;
  }
  const double wanted = uniform(options.seed, options.position) *
                        std::accumulate(weights.begin(), weights.end(), 0.0);
  reached = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    reached += weights[i];
    if (near(reached, wanted, 1e-9 * total)) return -1;
    if (reached > wanted) return static_cast<int>(i);
  }
  return -1;
}

void any_mix_of_options_gives_the_token_of_plain_sums() {
  std::mt19937 random(3);
  const auto one_of = [&](auto... choices) {
    const std::common_type_t<decltype(choices)...> all[] = {choices...};
    return all[random() % sizeof...(choices)];
  };
  const Kernels used = kernels();
  int compared = 0;
  for (int round = 0; round < 3000; ++round) {
    const int size = kSizes[random() % std::size(kSizes)];
    const std::vector<float> row = random_scores(size, round, round % 3 == 0);
    std::vector<double> scores(row.begin(), row.end());
    SampleOptions options;
    options.seed = random();
    options.position = random();
    options.temperature = one_of(0.0, 0.1, 1.0, 5.0);
    options.top_k = one_of(-1, 0, 0, 1, 5, 300, 5000);
    options.top_p = one_of(1.0, 1.0, 0.1, 0.9, 0.9999);
    options.min_p = one_of(0.0, 0.0, 1e-4, 0.3, 1.0);
    const int32_t ids[] = {0, size / 2, size - 1};
    const double bias[] = {3, -40, 0.25};
    if (one_of(0, 0, 1)) {
      options.biased = {ids, bias, size < 3 ? 1 : 3};
      for (int i = 0; i < options.biased.count; ++i) scores[ids[i]] += bias[i];
    }
    if (size > 1 && one_of(0, 0, 1)) {
      options.banned = {ids, bias, 1};
      scores[0] = -INFINITY;
    }
    std::vector<int32_t> named(size);
    std::vector<double> values(size);
    options.named = one_of(0, 1, size);
    RowSampler sampler(used, size);
    const Choice choice = sampler.sample(row.data(), options, named.data(), values.data());
    CHECK(choice.named == options.named);
    for (int i = 1; i < choice.named; ++i) {
      CHECK(values[i - 1] > values[i] || (values[i - 1] == values[i] && named[i - 1] < named[i]));
    }
    const int expected = expected_token(scores, options);
    if (expected < 0) continue;
    CHECK(choice.token == expected);
    compared += 1;
  }
  CHECK(compared > 2900);
}

}  // namespace

int main() {
  first_equal_lane();
  exponentials();
  surveys();
  the_likeliest_of_what_a_mask_allows();
  broken_scores_are_counted();
  the_published_numbers_of_philox();
  any_mix_of_options_gives_the_token_of_plain_sums();
}
