// Times attention of one layer with 9 query heads, 3 KV heads and a head dim of 64, bf16 pages, shuffled
// blocks of 16. Prints the median and the best time; GB/s of the keys and values read and GFLOP/s for
// the best, since neighbours only ever make it slower; and read bandwidth before and after, without
// which figures cannot be compared.
//
//   bench_attention [threads] [seconds for each figure] [part of a name]

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include <time.h>

#include "../attention.h"
#include "../tests/isa.h"
#include "../threads.h"

using namespace octavo;

namespace {

constexpr int kHeads = 9, kKvHeads = 3, kDim = 64, kBlock = 16;
double seconds_each = 0.3;

bool one_thread = false;

// With one thread it is the time on a core, which neighbours change less.
double now() {
  timespec time;
  clock_gettime(one_thread ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

struct Times {
  double median, best;
};

template <class Work>
Times time_of(Work&& work) {
  std::vector<double> times;
  const double end = now() + seconds_each;
  while (times.size() < 5 || now() < end) {
    const double start = now();
    work();
    times.push_back(now() - start);
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[0]};
}

template <class T>
class Buffer {
 public:
  explicit Buffer(size_t count) : data_(static_cast<T*>(std::aligned_alloc(2 << 20, rounded(count)))) {
    std::memset(static_cast<void*>(data_), 0, rounded(count));
  }
  ~Buffer() { std::free(data_); }
  Buffer(const Buffer&) = delete;
  T* get() { return data_; }

 private:
  static size_t rounded(size_t count) { return (count * sizeof(T) + (2 << 20)) >> 21 << 21; }
  T* data_;
};

double read_bandwidth(ThreadPool& pool) {
  static Buffer<int64_t> memory(size_t{200} << 17);
  const size_t count = (size_t{200} << 17) / pool.size();
  std::vector<int64_t> sums(pool.size() * 8);
  const Times times = time_of([&] {
    pool.run([&](ThreadPool::Member& me) {
      const int64_t* from = memory.get() + count * me.index();
      int64_t sum = 0;
      for (size_t i = 0; i < count; ++i) sum += from[i];
      sums[me.index() * 8] += sum;
    });
  });
  return count * pool.size() * 8 / times.best / 1e9;
}

struct Case {
  const char* name;
  int sequences;
  int tokens;   // of each sequence in the step
  int context;  // length of each sequence after the step
  bool shared = false;
  bool in_order = false;
};

void time_case(ThreadPool& pool, const Case& c) {
  const int blocks = c.context / kBlock, tables = c.shared ? 1 : c.sequences;
  KvPages pages;
  pages.block_tokens = kBlock;
  pages.kv_heads = kKvHeads;
  pages.dim = kDim;
  pages.stride = pages.page_bytes();
  const size_t layer_bytes = pages.stride * blocks * tables;
  // Several layers, so that a small set is not in the cache unless it is one.
  const int layers = static_cast<int>(std::max<size_t>(1, std::min<size_t>(30, (300u << 20) / layer_bytes)));
  Buffer<uint16_t> memory(layers * layer_bytes / 2);
  for (size_t i = 0; i < layers * layer_bytes / 2; ++i) {
    memory.get()[i] = static_cast<uint16_t>(0x3c00 + (i * 2654435761u >> 20 & 0x80ff));
  }
  std::vector<int32_t> table(static_cast<size_t>(blocks) * tables);
  std::iota(table.begin(), table.end(), 0);
  if (!c.in_order) std::shuffle(table.begin(), table.end(), std::mt19937(1));
  std::vector<AttentionSlice> slices;
  for (int i = 0; i < c.sequences; ++i) {
    slices.push_back({i * c.tokens, c.tokens, c.context - c.tokens,
                      table.data() + (c.shared ? 0 : static_cast<size_t>(i) * blocks)});
  }
  const size_t row = kHeads * kDim, rows = static_cast<size_t>(c.sequences) * c.tokens;
  Buffer<float> queries(rows * row), outputs(rows * row);
  for (size_t i = 0; i < rows * row; ++i) queries.get()[i] = static_cast<float>(i % 37) / 37 - 0.5f;
  AttentionPlan plan;
  const AttentionShape shape{kHeads, kKvHeads, kBlock, 0};
  const AttentionWork& work = plan.build(shape, slices.data(), c.sequences, pool.size());
  const Times plan_times =
      time_of([&] { plan.build(shape, slices.data(), c.sequences, pool.size()); });
  Buffer<float> partials(partial_floats(work, kDim) + 16);
  const size_t scratch_floats = attention_scratch_floats(kDim);
  Buffer<float> scratch(scratch_floats * pool.size());
  Times times = time_of([&] {
    pool.run([&](ThreadPool::Member& me) {
      float* mine = scratch.get() + scratch_floats * me.index();
      AttentionLayer layer{pages, queries.get(), row, 0.125f, outputs.get(), row, partials.get()};
      for (int i = 0; i < layers; ++i) {
        layer.pages.base = reinterpret_cast<uint8_t*>(memory.get()) + i * layer_bytes;
        me.for_chunks(work.item_count,
                      [&](int item) { run_attention<TestedIsa>(work, layer, item, mine); });
        if (work.merge_count > 0) {
          me.for_chunks(work.merge_count,
                        [&](int merge) { merge_attention<TestedIsa>(work, layer, merge, mine); });
        }
      }
    });
  });
  times = {times.median / layers, times.best / layers};
  double flops = 0;
  for (int i = 0; i < c.tokens; ++i) flops += 4.0 * kHeads * kDim * (c.context - c.tokens + i + 1);
  std::printf("%-26s %4d items %9.1f us (best %8.1f)  %6.1f GB/s  %7.1f GFLOP/s   plan %5.1f us\n",
              c.name, work.item_count, times.median * 1e6, times.best * 1e6,
              layer_bytes / times.best / 1e9, flops * c.sequences / times.best / 1e9,
              plan_times.best * 1e6);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  ThreadPool pool(argc > 1 ? std::atoi(argv[1]) : 2);
  one_thread = pool.size() == 1;
  if (argc > 2) seconds_each = std::atof(argv[2]);
  std::printf("read %.1f GB/s\n", read_bandwidth(pool));
  const Case cases[] = {
      {"decode 1 x 128", 1, 1, 128},
      {"decode 1 x 1k", 1, 1, 1024},
      {"decode 1 x 8k", 1, 1, 8192},
      {"decode 32 x 128", 32, 1, 128},
      {"decode 32 x 1k", 32, 1, 1024},
      {"decode 32 x 1k, in order", 32, 1, 1024, false, true},
      {"decode 32 x 1k, shared", 32, 1, 1024, true},
      {"verify 1 x 1k, 5 tokens", 1, 5, 1024},
      {"prefill 512", 1, 512, 512},
      {"prefill 2k", 1, 2048, 2048},
  };
  for (const Case& c : cases) {
    if (argc < 4 || std::strstr(c.name, argv[3])) time_case(pool, c);
  }
  std::printf("read %.1f GB/s\n", read_bandwidth(pool));
}
