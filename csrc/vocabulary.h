// Passes over the scores of a vocabulary, from which a token is chosen.
//
// A vocabulary is cut into parts of kPart tokens, the last one shorter; what is summed is summed part
// by part in ascending order. So it has the same bits whichever thread takes which part, and whether
// the scores of a row were written down or seen part by part as a matrix product gave them.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "isa/avx2_vector.h"
#include "isa/avx512_vector.h"
#include "isa/plain_vector.h"
#include "types.h"
#include "wide_exp.h"

namespace octavo {

constexpr int kPart = 128;

constexpr int parts_of_vocabulary(int vocab) { return (vocab + kPart - 1) / kPart; }

// What is kept of the scores of one part.
struct Part {
  float top = 0;   // the largest
  int id = 0;      // of it; the lowest of equal ones
  float sum = 0;   // of e^(score - top)
  int broken = 0;  // scores that are not finite; if there are any, nothing else here counts
};

// What is kept of a row.
struct Survey {
  float top = 0;
  int id = 0;
  int broken = 0;
  double level = 0;  // log of the sum of e^score

  double logprob() const { return static_cast<double>(top) - level; }
};

constexpr int kNothingLeft = -1;

// The likeliest of some tokens that may come; of equal ones the lowest id.
struct Allowed {
  float top = 0;
  int id = kNothingLeft;

  // By ascending id.
  OCTAVO_INLINE void add(float score, int its_id) {
    if (id == kNothingLeft || score > top) {
      top = score;
      id = its_id;
    }
  }
};

// Rows that are surveyed while a matrix product gives their scores: sampled rows of the last step.
struct SurveyedRows {
  int begin = 0;
  int count = 0;
  // [count] which tokens may come, a bit each, lowest first; null: all may. Null altogether: so it is
  // for every row.
  const int32_t* const* masks = nullptr;
  Part* parts = nullptr;       // [parts, count]
  Allowed* allowed = nullptr;  // the same, where there are masks
  Survey* found = nullptr;     // [count]; the token is the likeliest that may come
};

constexpr float kLog2OfEInFloat = 1.44269504f;

// One part: `count` scores, of which the first has the id `first`.
template <class Isa>
static OCTAVO_INLINE Part survey_part(const float* scores, int count, int first) {
  using Vector = Lanes<Isa>;
  const int whole = count / 16 * 16, rest = count - whole;
  Vector top = Vector::all(-__builtin_inff()), wrong = Vector::all(0), last = top;
  for (int i = 0; i < whole; i += 16) {
    const Vector x = Vector::load(scores + i);
    top = x.max(top);
    wrong = wrong + (x - x);  // 0, unless a number is not finite
  }
  if (rest) {
    const Vector x = Vector::load_first(scores + whole, rest);
    wrong = wrong + (x - x);
    last = x.keep(0, rest, -__builtin_inff());
    top = last.max(top);
  }
  Part part;
  if (wrong.sum() != 0) {
    for (int i = 0; i < count; ++i) part.broken += scores[i] - scores[i] != 0;
    return part;
  }
  part.top = top.largest();
  const Vector all_top = Vector::all(part.top), scale = Vector::all(kLog2OfEInFloat);
  Vector sum = Vector::all(0);
  int place = count;
  const auto add = [&](Vector x, int begin) OCTAVO_BODY {
    sum = sum + ((x - all_top) * scale).exp2();
    const int lane = x.first_equal(all_top);
    place = lane < 16 ? begin + lane : place;
  };
  // From the end on, so that the lowest place is found last.
  if (rest) add(last, whole);
  for (int i = whole - 16; i >= 0; i -= 16) add(Vector::load(scores + i), i);
  part.id = first + place;
  part.sum = sum.sum();
  return part;
}

// The same for the tokens that may come alone, where the scores are finite. mask: the words of this part.
//
// A grammar allows almost nothing or almost everything as a rule: if the likeliest of all may come, no
// other is looked at, and banned ones never are.
static OCTAVO_INLINE Allowed likeliest_allowed(const Part& part, const float* scores, int count, int first,
                                               const int32_t* mask) {
  Allowed best;
  if (part.broken) return best;
  const int place = part.id - first;
  if (static_cast<uint32_t>(mask[place / 32]) >> place % 32 & 1) return {part.top, part.id};
  for (int begin = 0; begin < count; begin += 32) {
    const int size = count - begin < 32 ? count - begin : 32;
    // What is beyond the vocabulary is nobody's.
    uint32_t left = static_cast<uint32_t>(mask[begin / 32]) & ~uint32_t{0} >> (32 - size);
    for (; left != 0; left &= left - 1) {
      const int i = begin + __builtin_ctz(left);
      best.add(scores[i], first + i);
    }
  }
  return best;
}

// Joins the parts of a row, which lie `stride` apart.
template <class Isa>
static Survey join_parts(const Part* parts, int count, size_t stride) {
  using Vector = Lanes<Isa>;
  Survey found;
  found.top = -__builtin_inff();
  for (int i = 0; i < count; ++i) {
    const Part& part = parts[i * stride];
    found.broken += part.broken;
    if (part.top > found.top) {
      found.top = part.top;
      found.id = part.id;
    }
  }
  double sum = 0;
  const Vector top = Vector::all(found.top), scale = Vector::all(kLog2OfEInFloat);
  for (int begin = 0; begin < count; begin += 16) {
    const int size = count - begin < 16 ? count - begin : 16;
    alignas(64) float tops[16], sums[16];
    for (int i = 0; i < size; ++i) {
      tops[i] = parts[(begin + i) * stride].top;
      sums[i] = parts[(begin + i) * stride].sum;
    }
    const Vector share = ((Vector::load_first(tops, size) - top) * scale).exp2();
    (share * Vector::load_first(sums, size)).store(sums);
    for (int i = 0; i < size; ++i) sum += static_cast<double>(sums[i]);
  }
  found.level = static_cast<double>(found.top) + std::log(sum);
  return found;
}

// The same of what may come.
static OCTAVO_INLINE Allowed join_allowed(const Allowed* parts, int count, size_t stride) {
  Allowed best;
  for (int i = 0; i < count; ++i) {
    const Allowed& part = parts[i * stride];
    if (part.id != kNothingLeft) best.add(part.top, part.id);
  }
  return best;
}

// A row of `count` scores; parts: [parts_of_vocabulary(count)], filled.
template <class Isa>
static void survey_row(const float* scores, int count, Part* parts, Survey* found) {
  const int number = parts_of_vocabulary(count);
  for (int i = 0; i < number; ++i) {
    const int first = i * kPart, size = count - first < kPart ? count - first : kPart;
    parts[i] = survey_part<Isa>(scores + first, size, first);
  }
  *found = join_parts<Isa>(parts, number, 1);
}

// Writes weights e^((value - top) * scale) of `count` numbers, none of them above `top`, and returns
// their sum. -inf has no weight. There is room for weights in whole eights.
template <class Isa, class T>
static double weigh(const T* values, int count, double top, double scale, double* weights) {
  using Vector = WideLanes<Isa>;
  using Narrow = std::conditional_t<sizeof(T) == sizeof(float), typename Vector::Narrow,
                                    typename Vector::Numbers>;
  // Number i goes to sum i % 8, whatever a register holds.
  constexpr int kSums = 8, kVectors = kSums / Vector::kCount;
  typename Vector::Numbers sums[kVectors] = {};
  for (int i = 0; i < count; i += kSums) {
    const int size = count - i < kSums ? count - i : kSums;
    T rest[kSums];
    const T* from = values + i;
    if (size < kSums) {
      for (int lane = 0; lane < kSums; ++lane) {
        rest[lane] = lane < size ? from[lane] : -static_cast<T>(__builtin_inff());
      }
      from = rest;
    }
    unroll<kVectors>([&](auto j) OCTAVO_BODY {
      Narrow loaded;
      std::memcpy(&loaded, from + j * Vector::kCount, sizeof loaded);
      const auto wide = __builtin_convertvector(loaded, typename Vector::Numbers);
      const auto weight = wide_exp<Isa>((wide - top) * scale);
      std::memcpy(weights + i + j * Vector::kCount, &weight, sizeof weight);
      sums[j] = sums[j] + weight;
    });
  }
  double s[kSums];
  std::memcpy(s, sums, sizeof s);
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

// The same of each part of a vocabulary: its sum alone.
template <class Isa, class T>
static void sum_weights(const T* values, int count, double top, double scale, double* sums) {
  for (int first = 0; first < count; first += kPart) {
    alignas(64) double weights[kPart];
    const int size = count - first < kPart ? count - first : kPart;
    *sums++ = weigh<Isa>(values + first, size, top, scale, weights);
  }
}

}  // namespace octavo
