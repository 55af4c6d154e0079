// Norms, rotation, activations, tables, choices and KV writes against plain float64 code.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "../choose.h"
#include "../elementwise.h"
#include "../embedding.h"
#include "../pack.h"
#include "../write_kv.h"
#include "check.h"
#include "isa.h"

using namespace octavo;
using Isa = TestedIsa;
using Vector = Lanes<Isa>;

namespace {

std::vector<float> random_numbers(size_t count, float scale = 1, int seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> made(count);
  for (float& x : made) x = normal(random);
  return made;
}

bool near(double a, double exact, double relative, double absolute = 1e-30) {
  return std::fabs(a - exact) <= relative * std::fabs(exact) + absolute;
}

void powers_of_two() {
  for (double x = -130; x <= 127; x += 0.0137) {
    float out[16];
    Vector::all(static_cast<float>(x)).exp2().store(out);
    CHECK(near(out[5], std::exp2(static_cast<double>(static_cast<float>(x))), 2.5e-7, 1.2e-38));
  }
  float out[16];
  const std::pair<float, float> exact_ones[] = {
      {0.0f, 1.0f}, {-1.0f, 0.5f}, {-INFINITY, 0.0f}, {-1e30f, 0.0f}, {-160.0f, 0.0f}};
  for (auto [x, exact] : exact_ones) {
    Vector::all(x).exp2().store(out);
    CHECK(out[0] == exact && !std::signbit(out[0]));
  }
  Vector::all(NAN).exp2().store(out);
  CHECK(std::isnan(out[0]));
}

void lanes() {
  float numbers[16], out[16];
  for (int i = 0; i < 16; ++i) numbers[i] = static_cast<float>(i * i % 23) - 7;
  const Vector x = Vector::load(numbers);
  CHECK(x.sum() == std::accumulate(numbers, numbers + 16, 0.0f));
  CHECK(x.largest() == *std::max_element(numbers, numbers + 16));
  for (int from = -20; from <= 20; ++from) {
    for (int to = -20; to <= 20; ++to) {
      x.keep(from, to, 99).store(out);
      for (int i = 0; i < 16; ++i) CHECK(out[i] == (i >= from && i < to ? numbers[i] : 99));
    }
  }
  for (int count = 0; count <= 16; ++count) {
    const std::vector<float> exact(numbers, numbers + count);
    std::fill_n(out, 16, 5.0f);
    Vector::load_first(exact.data(), count).store_first(out, 16);
    for (int i = 0; i < 16; ++i) CHECK(out[i] == (i < count ? numbers[i] : 0));
    std::vector<float> room(count);
    x.store_first(room.data(), count);
    CHECK(room == exact);
  }
  const float tiny[] = {-0.0f, 1e-39f, -1e-40f, 1.2e-38f, -3.0f};
  float padded[16] = {};
  std::copy_n(tiny, 5, padded);
  Vector::load(padded).flushed().store(out);
  for (int i = 0; i < 3; ++i) CHECK(out[i] == 0 && !std::signbit(out[i]));
  CHECK(out[3] == 1.2e-38f && out[4] == -3.0f);
}

void bf16_rounding() {
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    float numbers[16];
    for (float& x : numbers) {
      uint32_t bits = random();
      if (round % 3 == 0) bits = (bits & 0xffff0000u) | 0x8000u;  // ties
      std::memcpy(&x, &bits, sizeof x);
      if (std::fabs(x) < 1.2e-38f) x = 0;
    }
    uint16_t out[16], halves[32];
    Vector::load(numbers).store_bf16(out);
    std::memset(halves, 0xab, sizeof halves);
    Vector::load(numbers).store_bf16_halves(halves, round % 2);
    float back[16], low[16], high[16];
    Vector::from_bf16(out).store(back);
    Vector::low_halves(halves).store(low);
    Vector::high_halves(halves).store(high);
    for (int i = 0; i < 16; ++i) {
      if (std::isnan(numbers[i])) {
        CHECK(std::isnan(bf16_to_float(out[i])));
        continue;
      }
      CHECK(out[i] == float_to_bf16(numbers[i]) && back[i] == bf16_to_float(out[i]));
      CHECK(halves[2 * i + round % 2] == out[i] && halves[2 * i + 1 - round % 2] == 0xabab);
      CHECK((round % 2 ? high : low)[i] == back[i]);
    }
  }
}

void norms() {
  for (int size : {32, 48, 56, 63, 64, 80, 96, 576, 2048}) {
    const int count = (size + kGroup - 1) / kGroup * kGroup;
    auto x = random_numbers(count, 3), weight = random_numbers(count, 1, 2);
    for (int i = size; i < count; ++i) x[i] = weight[i] = 0;
    double squares = 0;
    for (float n : x) squares += static_cast<double>(n) * n;
    const double scale = 1 / std::sqrt(squares / size + 1e-5);
    std::vector<float> out(count), added(count, 2.0f);
    std::vector<uint16_t> rounded(count);
    rms_norm<Isa>(x.data(), weight.data(), size, 1e-5f, EmitFloats<Isa>{out.data()});
    rms_norm<Isa>(x.data(), weight.data(), size, 1e-5f, EmitAdded<Isa>{added.data()});
    rms_norm<Isa>(x.data(), weight.data(), size, 1e-5f, EmitBf16<Isa>{rounded.data()});
    for (int i = 0; i < count; ++i) {
      CHECK(near(out[i], x[i] * scale * weight[i], 5e-7));
      CHECK(added[i] == 2.0f + out[i] && rounded[i] == float_to_bf16(out[i]));
    }
    std::vector<int8_t> codes(2 * count), codes2(2 * count);
    std::vector<float> scales(count / 16), sums(count / 16), scales2(count / 16), sums2(count / 16);
    std::vector<int32_t> offsets(count / 16), offsets2(count / 16);
    const QuantizedRows rows{count, codes.data(), scales.data(), sums.data(), offsets.data()};
    const QuantizedRows direct{count, codes2.data(), scales2.data(), sums2.data(), offsets2.data()};
    rms_norm<Isa>(x.data(), weight.data(), size, 1e-5f, EmitQuantized<Isa>{rows, 1});
    quantize_row<Isa>(out.data(), direct, 1);
    CHECK(codes == codes2 && scales == scales2 && sums == sums2 && offsets == offsets2);
  }
  const int head_sizes[][2] = {{16, 16}, {16, 6}, {80, 80}, {112, 100}, {128, 128}};
  for (const auto& [dim, size] : head_sizes) {
    const auto weight = random_numbers(dim, 1, 4);
    auto heads = random_numbers(3 * dim);
    for (int i = 0; i < 3 * dim; ++i) {
      if (i % dim % (dim / 2) >= size / 2) heads[i] = 0;
    }
    const auto before = heads;
    norm_heads<Isa>(heads.data(), 3, dim, size, weight.data(), 1e-6f);
    for (int h = 0; h < 3; ++h) {
      double squares = 0;
      for (int i = 0; i < dim; ++i) squares += std::pow(before[h * dim + i], 2.0);
      for (int i = 0; i < dim; ++i) {
        const double exact = before[h * dim + i] / std::sqrt(squares / size + 1e-6) * weight[i];
        CHECK(near(heads[h * dim + i], exact, 5e-7));
      }
    }
  }
}

void joining_of_heads() {
  std::vector<float> row(3 * 16, 9);
  for (int head = 0; head < 3; ++head) {
    for (int i = 0; i < 10; ++i) row[head * 16 + i] = 100.0f * head + i;
  }
  join_heads(row.data(), 3, 16, 10, 32);
  for (int i = 0; i < 30; ++i) CHECK(row[i] == 100.0f * (i / 10) + i % 10);
  CHECK(row[30] == 0 && row[31] == 0 && row[32] == 200);
}

void rotation() {
  for (int dim : {16, 48, 64, 80, 256}) {
    const int half = dim / 2;
    // Exactly as long as they may be, so that ASan sees reads behind them.
    std::vector<float> cos(half), sin(half);
    for (int i = 0; i < half; ++i) {
      cos[i] = std::cos(0.3f * i + 1);
      sin[i] = std::sin(0.3f * i + 1);
    }
    auto heads = random_numbers(2 * dim), before = heads;
    rotate_heads<Isa>(heads.data(), 2, dim, cos.data(), sin.data());
    for (int h = 0; h < 2; ++h) {
      for (int i = 0; i < half; ++i) {
        const double x = before[h * dim + i], y = before[h * dim + half + i];
        CHECK(near(heads[h * dim + i], x * cos[i] - y * sin[i], 0, 1e-6));
        CHECK(near(heads[h * dim + half + i], y * cos[i] + x * sin[i], 0, 1e-6));
      }
    }
  }
}

void activations() {
  auto gate = random_numbers(320, 4);
  const auto up = random_numbers(320, 1, 2);
  const float special[] = {0, -0.0f, 200, -200, 1e5f, -1e5f, 1e20f, -1e20f, 1e-20f};
  std::copy(std::begin(special), std::end(special), gate.begin());
  std::vector<float> out(384, 7);
  for (Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    gated<Isa>(activation, gate.data(), up.data(), 10, 2, EmitFloats<Isa>{out.data()});
    for (int i = 0; i < 320; ++i) {
      const double g = gate[i];
      const double inner = 2 * std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g);
      const double slope = activation == Activation::kSilu ? g : inner;
      // exp2 rounds its argument: an error of slope * 2^-24.
      const double relative = 1e-6 + 2.5e-7 * std::min(std::fabs(slope), 90.0);
      CHECK(near(out[64 + i], g / (1 + std::exp(-slope)) * up[i], relative, 1e-17));
    }
  }
  CHECK(out[63] == 7);
}

void rows() {
  auto to = random_numbers(48), before = to;
  const auto from = random_numbers(48, 1, 2);
  add_row<Isa>(to.data(), from.data(), 48);
  for (int i = 0; i < 48; ++i) CHECK(to[i] == before[i] + from[i]);
  add_scaled<Isa>(to.data(), from.data(), -0.25f, 48);
  for (int i = 0; i < 48; ++i) CHECK(near(to[i], before[i] + 0.75 * from[i], 1e-6, 1e-6));
}

void embeddings() {
  const int tokens = 40, width = 96;
  const auto numbers = random_numbers(tokens * width);
  std::vector<uint16_t> rounded(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) rounded[i] = float_to_bf16(numbers[i]);
  const SourceMatrix source{SourceType::kF32, tokens, width,
                            reinterpret_cast<const uint8_t*>(numbers.data()), nullptr};
  const PackSource sources{{source}, Arrangement::kConcatenated};
  std::vector<float> out(width);
  for (Format format : {Format::kF32, Format::kBf16, Format::kQ8}) {
    PackedMatrix packed = packed_shape(format, tokens, width);
    std::vector<uint8_t> memory(packed_bytes(packed));
    pack_strips(sources, packed, 0, packed.strips(), memory.data());
    packed.data = memory.data();
    for (int token : {0, 15, 16, 39}) {
      embed_packed<Isa>(packed, token, 3.0f, out.data());
      for (int i = 0; i < width; ++i) {
        const float exact = 3.0f * numbers[token * width + i];
        const double error = format == Format::kF32 ? 0 : format == Format::kBf16 ? 0.004 : 0;
        CHECK(near(out[i], exact, error, format == Format::kQ8 ? 0.06 : 0));
      }
    }
  }
  embed_bf16<Isa>(rounded.data(), width, 39, 0.5f, out.data());
  for (int i = 0; i < width; ++i) CHECK(out[i] == 0.5f * bf16_to_float(rounded[39 * width + i]));
  embed_f32<Isa>(numbers.data(), width, 39, 0.5f, out.data());
  for (int i = 0; i < width; ++i) CHECK(out[i] == 0.5f * numbers[39 * width + i]);
}

void best_scores() {
  for (int count : {1, 15, 16, 17, 255, 256, 257, 49152}) {
    auto scores = random_numbers(count, 1, count);
    for (int place : {0, count / 3, count - 1}) {
      auto mine = scores;
      mine[place] = 50;
      for (int i = place; i < count; i += 7) mine[i] = 50;
      const Best best = best_of<Isa>(mine.data(), count, 1000);
      CHECK(best.score == 50 && best.id == 1000 + place);
      if (place > 0) mine[place - 1] = NAN;
      CHECK(best_of<Isa>(mine.data(), count, 0).id == place);
    }
  }
  Best joined{3, 17};
  joined.add(3, 9);
  CHECK(joined.id == 9);
  joined.add(3, 12);
  joined.add(NAN, 1);
  CHECK(joined.id == 9);
  const std::vector<float> nothing(40, -INFINITY);
  CHECK(best_of<Isa>(nothing.data(), 40, 5).id == 5);
}

void experts() {
  const float scores[] = {0.5f, 2.0f, -1.0f, 2.0f, 1.0f};
  double all = 0;
  for (float x : scores) all += std::exp(static_cast<double>(x));
  int numbers[3];
  float shares[3];
  choose_experts<Isa>(scores, 5, 3, false, numbers, shares);
  CHECK(numbers[0] == 1 && numbers[1] == 3 && numbers[2] == 4);
  CHECK(near(shares[0], std::exp(2.0) / all, 1e-6) && near(shares[2], std::exp(1.0) / all, 1e-6));
  choose_experts<Isa>(scores, 5, 3, true, numbers, shares);
  CHECK(near(shares[0] + shares[1] + shares[2], 1, 1e-6));
  CHECK(near(shares[2], 1 / (1 + 2 * std::exp(1.0)), 1e-6));
}

// Slots of a page against the order that types.h describes, with and without norms of heads.
void kv_pages() {
  for (PageFormat format : {PageFormat::kF32, PageFormat::kBf16}) {
    for (int dim : {16, 80}) {
      const int block = 32, kv_heads = 2, heads = 4;
      KvPages pages{nullptr, 0, block, kv_heads, dim, format};
      pages.stride = pages.page_bytes();
      std::vector<uint8_t> memory(2 * pages.stride, 0xcd);
      pages.base = memory.data();
      const int64_t slot = 32 + 21;
      auto row = random_numbers((heads + 2 * kv_heads) * dim);
      const auto cos = random_numbers(dim / 2, 1, 2), sin = random_numbers(dim / 2, 1, 3);
      const auto norm = random_numbers(dim, 1, 4);
      const auto bias = random_numbers(dim, 1, 5);
      auto expected = row;
      for (int head = 0; head < kv_heads; ++head) {
        add_row<Isa>(expected.data() + (heads + kv_heads + head) * dim, bias.data(), dim);
      }
      norm_heads<Isa>(expected.data() + heads * dim, kv_heads, dim, dim, norm.data(), 1e-6f);
      rotate_heads<Isa>(expected.data(), heads + kv_heads, dim, cos.data(), sin.data());
      for (int head = 0; head < heads + 2 * kv_heads; ++head) {
        HeadForm form;
        form.kind = head < heads ? HeadKind::kQuery : head < heads + kv_heads ? HeadKind::kKey : HeadKind::kValue;
        form.number = head < heads ? head : (head - heads) % kv_heads;
        form.size = dim;
        form.norm = form.kind == HeadKind::kKey ? norm.data() : nullptr;
        form.bias = form.kind == HeadKind::kValue ? bias.data() : nullptr;
        form.norm_eps = 1e-6f;
        enter_head<Isa>(pages, form, slot, cos.data(), sin.data(), row.data() + head * dim);
      }
      CHECK(row == expected);
      const size_t head_numbers = 2 * static_cast<size_t>(block) * dim;
      size_t written = 0;
      for (int head = 0; head < kv_heads; ++head) {
        for (int i = 0; i < dim; ++i) {
          const float key = row[(heads + head) * dim + i], value = row[(heads + kv_heads + head) * dim + i];
          const size_t start = kv_heads * head_numbers + head * head_numbers;
          if (format == PageFormat::kF32) {
            const auto* numbers = reinterpret_cast<const float*>(memory.data()) + start;
            CHECK(numbers[16 * dim + i * 16 + 5] == key);
            CHECK(numbers[block * dim + 16 * dim + 5 * dim + i] == value);
          } else {
            const auto* numbers = reinterpret_cast<const uint16_t*>(memory.data()) + start;
            CHECK(numbers[16 * dim + i / 2 * 32 + 5 * 2 + i % 2] == float_to_bf16(key));
            CHECK(numbers[block * dim + 16 * dim + 2 * 2 * dim + i * 2 + 1] == float_to_bf16(value));
          }
        }
      }
      for (uint8_t byte : memory) written += byte != 0xcd;
      CHECK(written <= 2 * static_cast<size_t>(kv_heads) * dim * number_bytes(format));
    }
  }
}

}  // namespace

int main() {
  powers_of_two();
  lanes();
  bf16_rounding();
  norms();
  joining_of_heads();
  rotation();
  activations();
  rows();
  embeddings();
  best_scores();
  experts();
  kv_pages();
}
