// The part of the thread pool that knows threads; compiled for any machine.
#include "threads.h"

#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace octavo {

namespace {

constexpr int kLooksBetweenClockReads = 32;

// An offer that nobody takes costs about 0.4 us; chunks of a small step take not much longer. Who has
// taken one is likely to come again at once: a server that sends many streams wakes their readers.
constexpr int64_t kBetweenOffersNs = 50'000;
constexpr int64_t kTakenNs = 5'000;
constexpr int64_t kAfterTakenNs = 5'000;

void relax_core() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int64_t steady_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// Parts of ThreadPool::gate_.
constexpr int kRunShift = 32;
constexpr uint64_t kOpen = uint64_t{1} << 31;
constexpr uint64_t kInside = kOpen - 1;

// How often this process has been made by a fork since the first pool.
std::atomic<int> fork_count{0};

void count_forks() {
#if defined(__unix__) || defined(__APPLE__)
  static const int registered = pthread_atfork(nullptr, nullptr, [] { fork_count += 1; });
  (void)registered;
#endif
}

}  // namespace

void Signal::raise() {
  // Sequentially consistent on both sides: either we see who parks, or it sees the new value.
  value_.fetch_add(1, std::memory_order_seq_cst);
  if (parked_.load(std::memory_order_seq_cst) > 0) value_.notify_all();
}

void Signal::wait_while(uint32_t old, int64_t patience_ns) {
  if (spin_while(old, patience_ns)) return;
  parked_.fetch_add(1, std::memory_order_seq_cst);
  while (value() == old) value_.wait(old, std::memory_order_seq_cst);
  parked_.fetch_sub(1, std::memory_order_relaxed);
}

void Signal::reset() {
  value_.store(0);
  parked_.store(0);
}

// True if the value has changed within the time. The clock is read only in long waits.
bool Signal::spin_while(uint32_t old, int64_t patience_ns) const {
  using Clock = std::chrono::steady_clock;
  Clock::time_point end{};
  do {
    for (int look = 0; look < kLooksBetweenClockReads; ++look) {
      if (value() != old) return true;
      relax_core();
    }
    if (end == Clock::time_point{}) end = Clock::now() + std::chrono::nanoseconds(patience_ns);
  } while (Clock::now() < end);
  return false;
}

struct ThreadPool::Threads {
  std::vector<std::thread> list;
};

ThreadPool::ThreadPool(int threads, Patience patience) : size_(threads), patience_(patience) {
  if (threads < 1) throw std::invalid_argument("a thread pool needs at least 1 thread");
  count_forks();
  start();
}

ThreadPool::~ThreadPool() {
  if (forked()) {
    abandon_threads();
    return;
  }
  stop();
}

void ThreadPool::wake() {
  if (!forked()) called_.raise();
}

void ThreadPool::run_erased(Call call, void* context) {
  if (busy_.exchange(true, std::memory_order_acquire)) {
    throw std::logic_error(
        "the thread pool already runs work: runs do not nest, and one thread at a time may call");
  }
  if (forked()) {
    abandon_threads();
    try {
      start();
    } catch (...) {
      busy_.store(false, std::memory_order_release);
      throw;
    }
  }
  call_ = call;
  context_ = context;
  if (patience_.giving_way_ns) give_way_until_ns_ = steady_ns() + patience_.giving_way_ns;
  first_phase_ = passed_.value();
  for (int i = 0; i < size_; ++i) slots_[i].begun.store(0, std::memory_order_relaxed);
  if (size_ == 1) {
    work_on(0);
  } else {
    const uint64_t run = (gate_.load(std::memory_order_relaxed) >> kRunShift) + 1;
    gate_.store(run << kRunShift | kOpen, std::memory_order_release);
    called_.raise();
    work_on(0);
    const uint32_t left = left_.value();
    // A worker that has not come by now is not waited for.
    if (gate_.fetch_and(~kOpen, std::memory_order_acq_rel) & kInside) {
      left_.wait_while(left, patience_.within_a_run_ns);
    }
  }
  busy_.store(false, std::memory_order_release);
}

void ThreadPool::start() {
  forks_ = fork_count;
  for (Signal* signal : {&called_, &left_, &passed_}) signal->reset();
  gate_ = 0;
  done_ = 0;
  slots_ = std::make_unique<Slot[]>(size_);
  threads_ = std::make_unique<Threads>();
  try {
    for (int index = 1; index < size_; ++index) {
      threads_->list.emplace_back([this, index] { serve(index); });
    }
  } catch (...) {
    stop();
    throw;
  }
}

void ThreadPool::stop() {
  stopping_.store(true, std::memory_order_relaxed);
  called_.raise();
  for (std::thread& thread : threads_->list) thread.join();
}

void ThreadPool::serve(int index) {
  uint32_t calls = 0;
  uint64_t last = 0;
  for (;;) {
    called_.wait_while(calls, patience_.between_runs_ns);
    calls = called_.value();
    if (stopping_.load(std::memory_order_relaxed)) return;
    uint64_t gate = gate_.load(std::memory_order_acquire);
    bool entered = false;
    while (!entered && (gate & kOpen) && gate >> kRunShift != last) {
      entered = gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel);
    }
    if (!entered) continue;  // only woken, or too late
    last = gate >> kRunShift;
    work_on(index);
    const uint64_t after = gate_.fetch_sub(1, std::memory_order_acq_rel) - 1;
    if (!(after & (kOpen | kInside))) left_.raise();
  }
}

void ThreadPool::give_way(int64_t& next_offer_ns) {
  int64_t until = give_way_until_ns_.load(std::memory_order_relaxed);
  const int64_t now = steady_ns();
  if (now < until) {
    if (now < next_offer_ns) return;
    std::this_thread::yield();
    const int64_t after = steady_ns();
    next_offer_ns = after + (after - now < kTakenNs ? kBetweenOffersNs : kAfterTakenNs);
  } else {
    // Unless another run has begun meanwhile.
    give_way_until_ns_.compare_exchange_strong(until, 0, std::memory_order_relaxed);
  }
}

void ThreadPool::work_on(int index) noexcept {
  Member member(*this, index);
  call_(context_, member);
}

bool ThreadPool::forked() const { return forks_ != fork_count.load(std::memory_order_relaxed); }

// The parent's threads are not here: their handles can be neither joined nor destroyed.
void ThreadPool::abandon_threads() { threads_.release(); }

}  // namespace octavo
