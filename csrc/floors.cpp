#include "floors.h"

#include <atomic>

#include "kernels.h"
#include "threads.h"

namespace octavo {

namespace {
constexpr size_t kMegabyte = size_t{1} << 20;
// Of one chunk: long against the visit to the pool's counter, short against a time slice.
constexpr int kTurns = 1000;
}  // namespace

uint64_t read_memory(const uint8_t* data, size_t megabytes, ThreadPool& pool, const Kernels& kernels) {
  std::atomic<uint64_t> sum{0};
  pool.for_chunks(static_cast<int>(megabytes), [&](int chunk) {
    sum.fetch_add(kernels.read_memory(data + chunk * kMegabyte, kMegabyte), std::memory_order_relaxed);
  });
  return sum;
}

double calculate(Arithmetic arithmetic, int chunks, ThreadPool& pool, const Kernels& kernels) {
  std::atomic<int64_t> done{0};
  pool.for_chunks(chunks, [&](int) {
    done.fetch_add(static_cast<int64_t>(kernels.calculate(arithmetic, kTurns)), std::memory_order_relaxed);
  });
  return static_cast<double>(done);
}

}  // namespace octavo
