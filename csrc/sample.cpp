#include "sample.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace octavo {

namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();
// Scores stay within it, so that no penalty makes them infinite.
constexpr double kLargest = 1e300;
// A nucleus is small as a rule: so many tokens are looked at first.
constexpr int kFirstNucleus = 64;

// A score below which no token weighs `weight`; lowered by more than rounding can do, since what passes
// is weighed.
double least_score(double top, double scale, double weight) {
  const double distance = std::log(weight) / scale;
  return top + distance - 1e-12 * (std::fabs(top) + std::fabs(distance) + 1 / scale + 1);
}

}  // namespace

// Philox4x32-10; source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
double uniform(uint64_t seed, uint64_t position) {
  uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  uint32_t c[4] = {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0};
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t{0xD2511F53} * c[0], second = uint64_t{0xCD9E8D57} * c[2];
    const uint32_t next[4] = {static_cast<uint32_t>(second >> 32) ^ c[1] ^ key[0],
                              static_cast<uint32_t>(second),
                              static_cast<uint32_t>(first >> 32) ^ c[3] ^ key[1],
                              static_cast<uint32_t>(first)};
    std::copy(next, next + 4, c);
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  const uint64_t bits = uint64_t{c[0]} << 32 | c[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

Choice RowSampler::sample(const float* row, const SampleOptions& options, int32_t* ids, double* values) {
  parts_.resize(parts_of_vocabulary(vocab_));
  Survey survey;
  kernels_.survey_row(row, vocab_, parts_.data(), &survey);
  Choice choice;
  choice.broken = survey.broken;
  if (choice.broken) return choice;
  if (options.candidates) {
    // Penalties scale what they act on, so that more digits of it count than elsewhere.
    find_tops(row);
    scale_ = 1;
    edit(row, top_ + std::log(sum_all(row)), options);
    rank_likeliest(wide_.data(), options.candidates);
    choice.named = static_cast<int>(ranked_.size());
    for (int place = 0; place < choice.named; ++place) {
      ids[place] = ranked_[place].id;
      values[place] = ranked_[place].value;
    }
    return choice;
  }
  const bool plain = options.greedy() && !options.edits();
  choice.token = options.given >= 0 ? options.given : plain ? survey.id : choose(row, options);
  if (choice.token == kNothingLeft) return choice;
  choice.logprob = static_cast<double>(row[choice.token]) - survey.level;
  if (options.named) {
    find_tops(row);
    rank_likeliest(row, options.named);
    choice.named = static_cast<int>(ranked_.size());
    for (int place = 0; place < choice.named; ++place) {
      const Candidate& one = ranked_[place];
      ids[place] = one.id;
      values[place] = one.value - survey.level;
      if (one.id == choice.token) choice.rank = place + 1;
    }
  }
  if (options.ranked && choice.rank == 0) choice.rank = rank_of(row, choice.token);
  return choice;
}

int RowSampler::choose(const float* row, const SampleOptions& options) {
  if (!options.edits()) {
    find_tops(row);
    return draw(row, options);
  }
  if (options.greedy() && !options.lists()) return likeliest_allowed(row, options.mask);
  edit(row, 0, options);
  if (top_ == kNone) return kNothingLeft;
  if (!options.greedy()) return draw(wide_.data(), options);
  const int part = static_cast<int>(std::find(tops_.begin(), tops_.end(), top_) - tops_.begin());
  return static_cast<int>(std::find(wide_.begin() + part * kPart, wide_.end(), top_) - wide_.begin());
}

// Parts with nothing likelier than what was found are passed over.
int RowSampler::likeliest_allowed(const float* row, const int32_t* mask) const {
  Allowed best;
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (best.id != kNothingLeft && !(parts_[i].top > best.top)) continue;
    const int first = static_cast<int>(i) * kPart, size = std::min(kPart, vocab_ - first);
    const Allowed one = octavo::likeliest_allowed(parts_[i], row + first, size, first, mask + first / 32);
    if (one.id != kNothingLeft) best.add(one.top, one.id);
  }
  return best.id;
}

// Fills wide_ with the scores less `level`, all options but those of the draw applied: what is banned
// becomes -inf.
void RowSampler::edit(const float* row, double level, const SampleOptions& options) {
  wide_.resize(vocab_);
  double* wide = wide_.data();
  for (int i = 0; i < vocab_; ++i) wide[i] = static_cast<double>(row[i]) - level;
  const TokenList &biased = options.biased, &seen = options.seen, &counted = options.counted;
  for (int i = 0; i < biased.count; ++i) wide[biased.ids[i]] += biased.values[i];
  for (int i = 0; i < seen.count; ++i) {
    double& value = wide[seen.ids[i]];
    value = value > 0 ? value / options.repetition : value * options.repetition;
  }
  for (int i = 0; i < counted.count; ++i) {
    double& value = wide[counted.ids[i]];
    value -= options.frequency * counted.values[i];
    value -= options.presence;
  }
  for (const TokenList* list : {&biased, &seen, &counted}) {
    for (int i = 0; i < list->count; ++i) {
      double& value = wide[list->ids[i]];
      value = std::clamp(value, -kLargest, kLargest);
    }
  }
  if (options.allowed.count) {
    numbers_.clear();
    for (int i = 0; i < options.allowed.count; ++i) numbers_.push_back(wide[options.allowed.ids[i]]);
    std::fill(wide_.begin(), wide_.end(), kNone);
    for (int i = 0; i < options.allowed.count; ++i) wide[options.allowed.ids[i]] = numbers_[i];
  }
  for (int i = 0; i < options.banned.count; ++i) wide[options.banned.ids[i]] = kNone;
  for (int begin = 0; options.mask != nullptr && begin < vocab_; begin += 32) {
    const auto word = static_cast<uint32_t>(options.mask[begin / 32]);
    if (word == ~0u) continue;
    const int size = std::min(32, vocab_ - begin);
    for (int i = 0; i < size; ++i) {
      if (!(word >> i & 1)) wide[begin + i] = kNone;
    }
  }
  find_tops(wide);
}

template <class T>
void RowSampler::find_tops(const T* values) {
  const int parts = parts_of_vocabulary(vocab_);
  tops_.resize(parts);
  top_ = kNone;
  for (int part = 0; part < parts; ++part) {
    const int begin = part * kPart, end = std::min(begin + kPart, vocab_);
    if constexpr (sizeof(T) == sizeof(float)) {
      tops_[part] = parts_[part].top;
    } else {
      // Four at once, so that the comparisons need not wait for each other.
      T top[4] = {values[begin], values[begin], values[begin], values[begin]};
      int i = begin;
      for (; i + 4 <= end; i += 4) {
        for (int lane = 0; lane < 4; ++lane) top[lane] = std::max(top[lane], values[i + lane]);
      }
      for (; i < end; ++i) top[0] = std::max(top[0], values[i]);
      tops_[part] = *std::max_element(top, top + 4);
    }
    top_ = std::max(top_, tops_[part]);
  }
}

// ── tokens by score ──

// Keeps the tokens whose scores are at least `least`; what is banned stays out.
template <class T>
void RowSampler::collect(const T* values, double least) {
  least = std::max(least, std::numeric_limits<double>::lowest());
  kept_.clear();
  for (size_t part = 0; part < tops_.size(); ++part) {
    if (tops_[part] < least) continue;
    const int begin = static_cast<int>(part) * kPart, end = std::min(begin + kPart, vocab_);
    for (int i = begin; i < end; ++i) {
      if (values[i] >= least) kept_.push_back({i, static_cast<double>(values[i]), 0});
    }
  }
}

// Keeps the `count` likeliest tokens; equally likely ones by ascending id.
template <class T>
void RowSampler::collect_likeliest(const T* values, int count) {
  double least = kNone;
  if (count < static_cast<int>(tops_.size())) {
    // So many parts have a token that is at least as likely.
    numbers_ = tops_;
    std::nth_element(numbers_.begin(), numbers_.begin() + count - 1, numbers_.end(), std::greater<>());
    least = numbers_[count - 1];
  }
  collect(values, least);
  if (count >= static_cast<int>(kept_.size())) return;
  ranked_ = kept_;
  std::nth_element(ranked_.begin(), ranked_.begin() + count - 1, ranked_.end(), is_likelier);
  drop_after(ranked_[count - 1]);
}

void RowSampler::drop_after(const Candidate& last) {
  std::erase_if(kept_, [last](const Candidate& one) { return is_likelier(last, one); });
}

// Fills ranked_ with the `count` likeliest tokens, best first.
template <class T>
void RowSampler::rank_likeliest(const T* values, int count) {
  collect_likeliest(values, count);
  ranked_ = kept_;
  std::sort(ranked_.begin(), ranked_.end(), is_likelier);
}

template <class T>
int RowSampler::rank_of(const T* values, int token) const {
  const T own = values[token];
  int rank = 1;
  for (int i = 0; i < vocab_; ++i) rank += values[i] > own;
  for (int i = 0; i < token; ++i) rank += values[i] == own;
  return rank;
}

// ── the draw ──

// min_p, top_k and top_p, then the inverse of the distribution.
template <class T>
int RowSampler::draw(const T* values, const SampleOptions& options) {
  // Whatever is below the top has no weight if the temperature is so low.
  scale_ = std::min(1 / options.temperature, std::numeric_limits<double>::max());
  const double number = uniform(options.seed, options.position);
  return narrow(values, options) ? invert_kept(number) : invert_all(values, number);
}

// Puts what may be drawn into kept_; false: all tokens may be.
template <class T>
bool RowSampler::narrow(const T* values, const SampleOptions& options) {
  const bool most = options.top_k > 0 && options.top_k < vocab_;
  if (!most && options.min_p <= 0) {
    if (options.top_p >= 1) return false;
    collect_nucleus(values, options.top_p);
    return true;
  }
  if (most) {
    collect_likeliest(values, options.top_k);
  } else {
    collect(values, least_score(top_, scale_, options.min_p));
  }
  weigh_kept();
  if (options.min_p > 0) {
    // The most likely token has weight 1.
    std::erase_if(kept_, [&](const Candidate& one) { return one.weight < options.min_p; });
  }
  if (options.top_p < 1) cut_nucleus(options.top_p * kept_weight());
  return true;
}

// Keeps the smallest set of likeliest tokens that has the share top_p of all weight.
template <class T>
void RowSampler::collect_nucleus(const T* values, double top_p) {
  const double total = sum_all(values), enough = top_p * total;
  collect_likeliest(values, kFirstNucleus);
  weigh_kept();
  if (kept_weight() < enough) {
    // What weighs less is not needed, even if it is all of the vocabulary.
    collect(values, least_score(top_, scale_, (1 - top_p) * total / vocab_));
    weigh_kept();
  }
  cut_nucleus(enough);
}

template <class T>
double RowSampler::sum_all(const T* values) {
  sums_.resize(tops_.size());
  if constexpr (sizeof(T) == sizeof(float)) {
    kernels_.sum_weights(values, vocab_, top_, scale_, sums_.data());
  } else {
    kernels_.sum_wide_weights(values, vocab_, top_, scale_, sums_.data());
  }
  double total = 0;
  for (double sum : sums_) total += sum;
  return total;
}

// Takes the first id at which the sum of the weights exceeds `draw` times their total.
template <class T>
int RowSampler::invert_all(const T* values, double draw) {
  const double wanted = draw * sum_all(values);
  double reached = 0;
  size_t part = 0, last = 0;
  for (; part < sums_.size(); ++part) {
    if (sums_[part] == 0) continue;
    last = part;
    if (reached + sums_[part] > wanted) break;
    reached += sums_[part];
  }
  // Past the end if the product was rounded up to the total: then the last token with any weight.
  const bool found = part < sums_.size();
  const int begin = static_cast<int>(last) * kPart, size = std::min(kPart, vocab_ - begin);
  numbers_.assign(values + begin, values + begin + size);
  weigh_numbers();
  int token = begin;
  for (int i = 0; i < size; ++i) {
    if (weights_[i] == 0) continue;
    token = begin + i;
    reached += weights_[i];
    if (found && reached > wanted) break;
  }
  return token;
}

// Fills weights_ with the weights of numbers_.
void RowSampler::weigh_numbers() {
  const auto count = static_cast<int>(numbers_.size());
  weights_.resize((count + 7) / 8 * 8);
  kernels_.weigh(numbers_.data(), count, top_, scale_, weights_.data());
}

void RowSampler::weigh_kept() {
  numbers_.clear();
  for (const Candidate& one : kept_) numbers_.push_back(one.value);
  weigh_numbers();
  for (size_t i = 0; i < kept_.size(); ++i) kept_[i].weight = weights_[i];
}

double RowSampler::kept_weight() const {
  double sum = 0;
  for (const Candidate& one : kept_) sum += one.weight;
  return sum;
}

// Leaves the smallest set of likeliest tokens whose weights reach `enough`; all, if none do.
void RowSampler::cut_nucleus(double enough) {
  double reached = rank_last_octave(enough);
  // All before `begin` are needed, and weigh `reached` with what is likelier; nothing from `end` on is.
  size_t begin = 0, end = ranked_.size();
  while (end - begin > 1) {
    const size_t middle = begin + (end - begin) / 2;
    std::nth_element(ranked_.begin() + begin, ranked_.begin() + middle, ranked_.begin() + end, is_likelier);
    double more = 0;
    for (size_t i = begin; i < middle; ++i) more += ranked_[i].weight;
    if (reached + more >= enough) {
      end = middle;
    } else {
      reached += more;
      begin = middle;
    }
  }
  drop_after(ranked_[begin]);
}

// Fills ranked_ with the tokens among which the sum of the weights reaches `enough`, and returns what the
// likelier ones weigh. Their weights are within an eighth of an octave.
double RowSampler::rank_last_octave(double enough) {
  constexpr int kSlots = 512;
  const auto slot_of = [](double weight) {
    return static_cast<int>(std::min<uint64_t>(
        (std::bit_cast<uint64_t>(1.0) - std::bit_cast<uint64_t>(weight)) >> 49, kSlots - 1));
  };
  double sums[kSlots] = {};
  for (const Candidate& one : kept_) sums[slot_of(one.weight)] += one.weight;
  int slot = 0, last = 0;
  double reached = 0, before = 0;
  for (; slot < kSlots && (slot == 0 || reached < enough); ++slot) {
    if (sums[slot] == 0) continue;
    last = slot;
    before = reached;
    reached += sums[slot];
  }
  ranked_.clear();
  for (const Candidate& one : kept_) {
    if (slot_of(one.weight) == last) ranked_.push_back(one);
  }
  return before;
}

int RowSampler::invert_kept(double draw) const {
  const double wanted = draw * kept_weight();
  double reached = 0;
  int token = kNothingLeft;
  for (const Candidate& one : kept_) {
    if (one.weight == 0) continue;
    token = one.id;
    reached += one.weight;
    if (reached > wanted) break;
  }
  return token;
}

}  // namespace octavo
