// Paged attention is exact within its bound, whatever lies in unused slots; and a row has the same bits
// however it is computed.

#include <cstdio>

#include "attention_case.h"

using namespace octavo;

namespace {

constexpr PageFormat kFormats[] = {PageFormat::kF32, PageFormat::kBf16};

int blocks_for(int length, int block) { return (length + block - 1) / block; }

// The last tokens of a text of each length, in one step.
double matches_reference(const CaseShape& shape, int length, int tokens) {
  AttentionCase given(shape, blocks_for(length, shape.block) + 2);
  const int text = given.add(length);
  const int begin = std::max(0, length - tokens);
  given.write(text, 0, length);
  given.forget_behind(text, begin);
  const auto outputs = given.run({{text, begin, length}}, 2);
  const size_t row = static_cast<size_t>(shape.heads) * shape.dim;
  for (int p = begin; p < length; ++p) given.check_token(text, p, outputs.data() + (p - begin) * row);
  return given.worst();
}

void shapes_and_lengths() {
  for (PageFormat format : kFormats) {
    double worst = 0;
    for (auto [heads, kv_heads] : {std::pair{1, 1}, {9, 3}, {14, 2}, {4, 1}, {8, 8}}) {
      for (int dim : {16, 64, 80, 128, 256}) {
        for (int length : {1, 15, 16, 17, 100, 511, 512, 513, 1500}) {
          const int block = 16 << (length + dim / 16) % 3;
          worst = std::max(
              worst, matches_reference({heads, kv_heads, dim, block, 0, format}, length, length % 5 + 1));
        }
      }
    }
    std::printf("%s pages: largest error %.4f of the bound\n",
                format == PageFormat::kF32 ? "float32" : "bf16", worst);
  }
}

void windows() {
  for (PageFormat format : kFormats) {
    for (int window : {1, 7, 16, 100, 512}) {
      for (int block : {16, 32, 64, 48}) {
        for (int length : {1, 17, 100, 513, 1500}) {
          matches_reference({4, 2, 32, block, window, format}, length, 40);
        }
      }
    }
  }
}

void whole_prompts() {
  for (PageFormat format : kFormats) {
    matches_reference({9, 3, 64, 16, 0, format}, 530, 530);
    matches_reference({2, 1, 32, 32, 100, format}, 700, 700);
  }
}

bool same_bits(const float* a, const float* b, size_t count) {
  return std::memcmp(a, b, count * sizeof(float)) == 0;
}

// A text computed token by token, with nothing but NaN behind it, against other ways.
void bits_do_not_depend_on_chunks(const CaseShape& shape, int length) {
  AttentionCase given(shape, 2 * blocks_for(length, shape.block) + 4);
  const int text = given.add(length), other = given.add(length / 2);
  const size_t row = static_cast<size_t>(shape.heads) * shape.dim;
  std::vector<float> alone;
  for (int p = 0; p < length; ++p) {
    given.write(text, p, p + 1);
    const auto outputs = given.run({{text, p, p + 1}}, 1);
    alone.insert(alone.end(), outputs.begin(), outputs.end());
  }
  given.write(other, 0, length / 2);
  for (int chunk : {3, 64, 250, length}) {
    for (int threads : {1, 2, 16}) {
      for (int begin = 0; begin < length; begin += chunk) {
        const int end = std::min(length, begin + chunk);
        const auto outputs = given.run({{other, length / 2 - 2, length / 2}, {text, begin, end}}, threads,
                                       threads == 2);
        CHECK(same_bits(outputs.data() + 2 * row, alone.data() + begin * row, (end - begin) * row));
      }
    }
  }
}

// Sequences that begin with the same blocks, together and alone.
void bits_do_not_depend_on_sharing(const CaseShape& shape) {
  const int shared = 1088, sequences = 5;  // two segments and a bit
  AttentionCase given(shape, 6 * blocks_for(2000, shape.block));
  std::vector<AttentionCase::Part> parts;
  given.add(1700);
  given.write(0, 0, 1700);
  for (int i = 1; i < sequences; ++i) {
    const int length = shared + 100 * i + i;
    given.add(length, 0, shared);
    given.write(i, shared, length);
    parts.push_back({i, length - i, length});
  }
  parts.push_back({0, 1690, 1700});
  const auto together = given.run(parts, 2);
  const AttentionWork& work = given.work();
  int largest = 0, shared_items = 0;
  for (int i = 0; i < work.item_count; ++i) {
    const AttentionItem& item = work.items[i];
    largest = std::max(largest, item.rows);
    shared_items += work.rows[item.row].token != work.rows[item.row + item.rows - 1].token &&
                    item.last < shared;
  }
  CHECK(shared_items > 0 && largest > shape.heads / shape.kv_heads);
  const size_t row = static_cast<size_t>(shape.heads) * shape.dim;
  size_t at = 0;
  for (const auto& part : parts) {
    const auto alone = given.run({part}, 1);
    CHECK(same_bits(together.data() + at, alone.data(), alone.size()));
    for (int p = part.begin; p < part.end; ++p) {
      given.check_token(part.sequence, p, together.data() + at + (p - part.begin) * row);
    }
    at += alone.size();
  }
}

// The last block of a segment alone does not make the segment shared.
void one_common_block() {
  AttentionCase given({2, 1, 16, 16, 0, PageFormat::kF32}, 80);
  const int text = given.add(600), other = given.add(600);
  given.share_block(other, text, 31);
  given.write(text, 0, 600);
  given.write(other, 0, 600);
  const auto outputs = given.run({{text, 599, 600}, {other, 599, 600}}, 1);
  given.check_token(text, 599, outputs.data());
  given.check_token(other, 599, outputs.data() + 2 * 16);
}

void bits() {
  for (PageFormat format : kFormats) {
    bits_do_not_depend_on_chunks({9, 3, 64, 16, 0, format}, 700);
    bits_do_not_depend_on_chunks({4, 4, 80, 32, 0, format}, 530);
    bits_do_not_depend_on_chunks({7, 1, 16, 48, 130, format}, 1100);
    bits_do_not_depend_on_sharing({9, 3, 64, 16, 0, format});
    bits_do_not_depend_on_sharing({14, 2, 32, 64, 0, format});
    bits_do_not_depend_on_sharing({4, 1, 32, 64, 600, format});
  }
}

// Queries so large that nearly all probabilities are 0, and maxima change from tile to tile.
void extreme_scores() {
  for (float factor : {30.0f, 1000.0f}) {
    AttentionCase given({4, 2, 16, 16, 0, PageFormat::kF32}, 80);
    const int text = given.add(1200);
    given.multiply_queries(text, factor);
    given.write(text, 0, 1200);
    const auto outputs = given.run({{text, 900, 1200}}, 2);
    for (int p = 900; p < 1200; ++p) given.check_token(text, p, outputs.data() + (p - 900) * 4 * 16);
  }
}

void empty_steps() {
  AttentionCase given({2, 1, 16, 16, 0, PageFormat::kF32}, 8);
  const int text = given.add(20), other = given.add(20);
  given.write(text, 0, 20);
  CHECK(given.run({}, 2).empty());
  const auto outputs = given.run({{other, 5, 5}, {text, 19, 20}, {other, 5, 5}}, 2);
  given.check_token(text, 19, outputs.data());
}

}  // namespace

int main() {
  shapes_and_lengths();
  windows();
  whole_prompts();
  bits();
  one_common_block();
  extreme_scores();
  empty_steps();
}
