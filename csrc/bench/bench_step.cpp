// Times whole steps of a decoder with random weights: by default the shape of SmolLM2-135M, in 4 bits
// with a head in 8. Prints, for each number of rows, the median, the fastest and the slowest tenth.
//
//   bench_step [threads] [seconds for each figure] [context]

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include <time.h>

#include "../dispatch.h"
#include "../engine.h"
#include "../memory.h"
#include "../pack.h"
#include "../threads.h"

using namespace octavo;

namespace {

constexpr int kLayers = 30, kHidden = 576, kHeads = 9, kKvHeads = 3, kDim = 64, kInner = 1536, kVocab = 49152;
constexpr int kBlock = 16;

double now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

std::vector<MappedMemory> kept;
std::mt19937_64 random_bits(1);

float* floats(size_t count, float value) {
  kept.emplace_back(count * sizeof(float));
  auto* at = reinterpret_cast<float*>(kept.back().data());
  std::fill(at, at + count, value);
  return at;
}

// Codes of any bits; scales small, so that numbers stay finite.
PackedMatrix matrix(Format format, int out, int in) {
  PackedMatrix packed = packed_shape(format, out, in);
  kept.emplace_back(packed_bytes(packed));
  uint8_t* at = kept.back().data();
  for (size_t i = 0; i + 8 <= packed_bytes(packed); i += 8) {
    const uint64_t bits = random_bits();
    std::memcpy(at + i, &bits, 8);
  }
  const size_t group = format == Format::kQ4 ? 320 : 544, codes = format == Format::kQ4 ? 256 : 512;
  for (size_t g = 0; g + group <= packed_bytes(packed); g += group) {
    auto* scale = reinterpret_cast<uint16_t*>(at + g + codes);
    for (size_t i = 0; i < (group - codes) / 2; ++i) scale[i] = i < 16 ? 0x1400 : 0x9400;
  }
  packed.data = at;
  return packed;
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const double seconds = argc > 2 ? std::atof(argv[2]) : 0.5;
  const int context = argc > 3 ? std::atoi(argv[3]) : 96;
  ThreadPool pool(threads);
  Model model;
  model.vocab = kVocab;
  model.hidden = model.hidden_size = kHidden;
  model.intermediate = kInner;
  model.layers = kLayers;
  model.heads = kHeads;
  model.kv_heads = kKvHeads;
  model.head_dim = model.head_size = kDim;
  model.norm_eps = 1e-5f;
  float* frequencies = floats(kDim / 2, 0.1f);
  model.frequencies[0] = frequencies;
  model.embedding = model.output = matrix(Format::kQ8, kVocab, kHidden);
  model.norm = floats(kHidden, 1.0f);
  std::vector<FeedForward> parts(kLayers);
  std::vector<LayerWeights> layers(kLayers);
  std::vector<int> index(kLayers);
  std::iota(index.begin(), index.end(), 0);
  for (int l = 0; l < kLayers; ++l) {
    layers[l].attn_norm = floats(kHidden, 1.0f);
    layers[l].ffn_norm = floats(kHidden, 1.0f);
    layers[l].qkv = matrix(Format::kQ4, (kHeads + 2 * kKvHeads) * kDim, kHidden);
    layers[l].o = matrix(Format::kQ4, kHidden, kHeads * kDim);
    parts[l].gate_up = matrix(Format::kQ4, 2 * kInner, kHidden);
    parts[l].down = matrix(Format::kQ4, kHidden, kInner);
    layers[l].feed_forward = &parts[l];
  }
  const int blocks_each = (context + 600) / kBlock + 1, most = 64;
  const int blocks = blocks_each * most;
  Engine engine(model, layers, index, {{kBlock, 0, kLayers}}, PageFormat::kBf16, blocks, pool,
                default_kernels());
  std::vector<int32_t> order(blocks);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random_bits);
  std::vector<float> logits(size_t(most) * kVocab);

  auto run = [&](int slices, int length, int start, bool score) {
    const int tokens = slices * length;
    std::vector<int32_t> ids(tokens), positions(tokens), starts(slices, start), lengths(slices, length),
        table_starts(slices), where(tokens), offsets(tokens), samples(slices);
    for (int s = 0; s < slices; ++s) {
      table_starts[s] = s * blocks_each;
      samples[s] = (s + 1) * length - 1;
      for (int i = 0; i < length; ++i) {
        const int row = s * length + i, position = start + i;
        ids[row] = (row * 37) % kVocab;
        positions[row] = position;
        where[row] = order[s * blocks_each + position / kBlock];
        offsets[row] = position % kBlock;
      }
    }
    StepInputs inputs;
    inputs.tokens = tokens;
    inputs.slices = slices;
    inputs.ids = ids.data();
    inputs.positions = positions.data();
    inputs.starts = starts.data();
    inputs.lengths = lengths.data();
    inputs.groups = {{order.data(), table_starts.data(), where.data(), offsets.data()}};
    inputs.samples = slices;
    inputs.sample_rows = samples.data();
    const double before = now();
    engine.run(inputs);
    if (score) engine.score(0, slices, logits.data());
    return now() - before;
  };
  auto report = [&](const char* name, int slices, int length, int start, bool score) {
    std::vector<double> times;
    run(slices, length, start, score);
    const double end = now() + seconds;
    while (times.size() < 5 || now() < end) times.push_back(run(slices, length, start, score));
    std::sort(times.begin(), times.end());
    const size_t n = times.size();
    std::printf("%s %4d x %4d at %5d: median %8.3f ms  best %8.3f  p90 %8.3f\n", name, slices, length, start,
                times[n / 2] * 1e3, times[0] * 1e3, times[n * 9 / 10] * 1e3);
    std::fflush(stdout);
  };
  for (int rows : {1, 2, 4, 8, 16, 32, 64}) report("states", rows, 1, context, false);
  for (int rows : {1, 2, 4, 8, 16, 32, 64}) report("scored", rows, 1, context, true);
  report("prompt", 1, 512, 0, true);
  report("prompt", 8, 64, 0, true);
  return 0;
}
