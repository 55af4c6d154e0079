// Choices by score: the next token, the experts of a row.
#pragma once

#include <cmath>
#include <cstdint>

#include "isa/avx2_vector.h"
#include "isa/avx512_vector.h"
#include "isa/plain_vector.h"

namespace octavo {

// The largest score so far and its id; of equal scores the lowest id. NaN is never the largest.
struct Best {
  float score = -__builtin_inff();
  int id = 0;

  OCTAVO_INLINE void add(float other, int its_id) {
    if (other > score || (other == score && its_id < id)) {
      score = other;
      id = its_id;
    }
  }
};

// Among `count` scores, of which the first has the id `first`. Parts of a vocabulary are joined with
// `add`, in any order.
template <class Isa>
static Best best_of(const float* scores, int count, int first) {
  using Vector = Lanes<Isa>;
  constexpr int kPart = 256;
  Best best;
  best.id = first;
  for (int begin = 0; begin < count; begin += kPart) {
    const int size = count - begin < kPart ? count - begin : kPart;
    const float* part = scores + begin;
    int i = 0;
    // A NaN must stand first: max then gives the other.
    Vector top = Vector::all(-__builtin_inff());
    for (; i + 16 <= size; i += 16) top = Vector::load(part + i).max(top);
    float largest = top.largest();
    for (; i < size; ++i) largest = part[i] > largest ? part[i] : largest;
    if (!(largest > best.score)) continue;
    for (i = 0; part[i] != largest; ++i) {
    }
    best = {largest, first + begin + i};
  }
  return best;
}

// The `chosen` largest of `count` scores, largest first, lowest number first among equals, with their
// shares of the softmax over all scores; `normalized` divides the shares by their sum.
template <class Isa>
static void choose_experts(const float* scores, int count, int chosen, bool normalized, int* numbers,
                           float* shares) {
  float top = scores[0];
  for (int i = 1; i < count; ++i) top = scores[i] > top ? scores[i] : top;
  float all = 0, of_chosen = 0;
  for (int i = 0; i < count; ++i) all += std::exp(scores[i] - top);
  for (int place = 0; place < chosen; ++place) {
    int next = -1;
    for (int i = 0; i < count; ++i) {
      bool taken = false;
      for (int before = 0; before < place; ++before) taken |= numbers[before] == i;
      // A NaN is chosen only when nothing else is left: there must always be `chosen` numbers.
      if (!taken && (next < 0 || scores[i] > scores[next] || scores[next] != scores[next])) next = i;
    }
    numbers[place] = next;
    shares[place] = std::exp(scores[next] - top) / all;
    of_chosen += shares[place];
  }
  for (int place = 0; normalized && place < chosen; ++place) shares[place] /= of_chosen;
}

}  // namespace octavo
