// Times the linear layers of SmolLM2-135M with weights that really stream: 30 layers, all of them allocated.
//
//   bench_linear [q4|q8|bf16|f32] [threads] [rows ...]
//
// Prints the median and the best beside two floors: the bytes of the weights at the read bandwidth that
// was measured just before and after, and for low-bit formats the operations at 1.1 TOP/s a thread, the
// VNNI peak of Zen 5 at 4.3 GHz. With one thread the times are processor times, which busy neighbours
// disturb less. Built for one instruction set, which -DOCTAVO_BENCH_ISA=Avx2 names.
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "linear.h"
#include "pack.h"
#include "quantize.h"
#include "threads.h"

#ifndef OCTAVO_BENCH_ISA
#define OCTAVO_BENCH_ISA Avx512
#endif

namespace {

using namespace octavo;
using Isa = OCTAVO_BENCH_ISA;

constexpr int kLayers = 30;
constexpr int kShapes[][2] = {{960, 576}, {576, 576}, {3072, 576}, {576, 1536}};  // out, in
constexpr int kMostRows = 1024;
constexpr double kPeakPerThread = 1.1e12;

double seconds_of(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

double now() { return seconds_of(CLOCK_MONOTONIC); }

struct Seconds {
  double median;
  double best;  // what a machine with neighbours shows in its quiet moments
};

Seconds summary(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front()};
}

uint8_t* allocate(size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) std::abort();
  madvise(at, bytes, MADV_HUGEPAGE);
  return static_cast<uint8_t*>(at);
}

template <class T>
T* allocate_numbers(size_t count) {
  return reinterpret_cast<T*>(allocate(count * sizeof(T)));
}

// Any bytes do as codes; as 16-bit floats they must be small numbers.
void fill(uint8_t* to, size_t bytes) {
  for (size_t i = 0; i + 1 < bytes; i += 2) {
    const auto value = static_cast<uint16_t>(0x2c00 + (i * 7919 >> 4 & 0x3ff));
    std::memcpy(to + i, &value, 2);
  }
}

double read_bandwidth(ThreadPool& pool) {
  constexpr size_t kBytes = size_t{256} << 20;
  static const uint64_t* data = [] {
    auto* numbers = allocate_numbers<uint64_t>(kBytes / 8);
    for (size_t i = 0; i < kBytes / 8; ++i) numbers[i] = i;
    return numbers;
  }();
  std::vector<double> times;
  for (int repeat = 0; repeat < 3; ++repeat) {
    const double begin = now();
    pool.run([&](ThreadPool::Member& me) {
      const size_t part = kBytes / 8 / me.size();
      const uint64_t* from = data + part * me.index();
      uint64_t sums[32] = {};
      for (size_t i = 0; i + 32 <= part; i += 32) {
        for (int k = 0; k < 32; ++k) sums[k] += from[i + k];
      }
      volatile uint64_t sink = sums[0] + sums[31];
      (void)sink;
    });
    times.push_back(now() - begin);
  }
  return kBytes / *std::min_element(times.begin(), times.end());
}

struct Model {
  std::vector<PackedMatrix> matrices;
  size_t bytes = 0;
  double weights = 0;
};

Model make_model(Format format) {
  Model model;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const auto& shape : kShapes) {
      model.matrices.push_back(packed_shape(format, shape[0], shape[1]));
      model.bytes += packed_bytes(model.matrices.back());
      model.weights += double(shape[0]) * shape[1];
    }
  }
  uint8_t* data = allocate(model.bytes);
  fill(data, model.bytes);
  for (PackedMatrix& matrix : model.matrices) {
    matrix.data = data;
    data += packed_bytes(matrix);
  }
  return model;
}

Rows make_rows() {
  constexpr size_t kIn = 1536, kCount = kMostRows * kIn;
  Rows rows;
  rows.quantized.codes = allocate_numbers<int8_t>(kCount);
  rows.quantized.scales = allocate_numbers<float>(kCount / kGroup);
  rows.quantized.sums = allocate_numbers<float>(kCount / kGroup);
  rows.quantized.offsets = allocate_numbers<int32_t>(kCount / kGroup);
  rows.in = rows.quantized.in = kIn;
  auto* f32 = allocate_numbers<float>(kCount);
  auto* bf16 = allocate_numbers<uint16_t>(kCount);
  for (size_t i = 0; i < kCount; ++i) f32[i] = float(i * 31 % 255) - 127.0f;
  RowForm<Isa>::to_bf16(f32, kCount, bf16);
  for (int row = 0; row < kMostRows; ++row) quantize_row<Isa>(f32 + row * kIn, rows.quantized, row);
  rows.bf16 = bf16;
  rows.f32 = f32;
  return rows;
}

Seconds time_step(ThreadPool& pool, const Model& model, Rows rows, int count, float* out) {
  std::vector<double> times;
  const double until = now() + 0.5;
  const clockid_t clock = pool.size() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
  while (times.size() < 4 || now() < until) {
    const double begin = seconds_of(clock);
    pool.run([&, rows](ThreadPool::Member& me) mutable {
      for (const PackedMatrix& matrix : model.matrices) {
        rows.in = rows.quantized.in = matrix.in;
        const int strips = matrix.strips();
        const Range mine = {strips * me.index() / me.size(), strips * (me.index() + 1) / me.size()};
        const size_t stride = strips * kStrip;
        linear<Isa>(matrix, rows, {0, count}, mine, StoreRows<Isa>{out, stride, matrix.out});
        me.barrier();
      }
    });
    times.push_back(seconds_of(clock) - begin);
  }
  return summary(times);
}

double load_average() {
  double load = 0;
  std::ifstream("/proc/loadavg") >> load;
  return load;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "q4";
  const Format format = name == "q4" ? Format::kQ4 : name == "q8" ? Format::kQ8
                      : name == "bf16" ? Format::kBf16 : Format::kF32;
  ThreadPool pool(argc > 2 ? std::atoi(argv[2]) : 2);
  std::vector<int> counts;
  for (int i = 3; i < argc; ++i) counts.push_back(std::min(std::atoi(argv[i]), kMostRows));
  if (counts.empty()) counts = {1, 2, 4, 8, 16, 32, 64, 256};

  const Model model = make_model(format);
  const Rows rows = make_rows();
  auto* out = allocate_numbers<float>(size_t{kMostRows} * 3072);
  const bool integers = format == Format::kQ4 || format == Format::kQ8;
  std::printf("%s, %d threads, %.1f MB of weights, load %.1f\n", name.c_str(), pool.size(), model.bytes / 1e6,
              load_average());
  std::printf("rows median ms  best ms | bytes ms (GB/s before, after) | peak ms  best TOP/s\n");
  for (const int count : counts) {
    const double before = read_bandwidth(pool);
    const Seconds seconds = time_step(pool, model, rows, count, out);
    const double after = read_bandwidth(pool);
    const double operations = 2 * model.weights * count;
    std::printf("%4d %9.2f %8.2f | %8.2f (%5.1f, %5.1f)         | ", count, seconds.median * 1e3,
                seconds.best * 1e3, 2e3 * model.bytes / (before + after), before / 1e9, after / 1e9);
    if (integers) std::printf("%7.2f", 1e3 * operations / (kPeakPerThread * pool.size()));
    std::printf("  %.2f\n", operations / seconds.best / 1e12);
  }
}
