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

void relax_core() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

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
  stopping_.store(true, std::memory_order_relaxed);
  called_.raise();
  for (std::thread& thread : threads_->list) thread.join();
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
    start();
  }
  call_ = call;
  context_ = context;
  if (size_ > 1) {
    running_.store(size_ - 1, std::memory_order_relaxed);
    begun_.store(runs_ + 1, std::memory_order_release);
    called_.raise();
  }
  work_on(0);
  if (size_ > 1) {
    // Raised once for each run.
    finished_.wait_while(runs_, patience_.within_a_run_ns);
    runs_ += 1;
  }
  busy_.store(false, std::memory_order_release);
}

void ThreadPool::barrier() {
  if (size_ == 1) return;
  const uint32_t old = passed_.value();
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    passed_.raise();
  } else {
    passed_.wait_while(old, patience_.within_a_run_ns);
  }
}

void ThreadPool::start() {
  forks_ = fork_count;
  for (Signal* signal : {&called_, &finished_, &passed_}) signal->reset();
  begun_ = 0;
  running_ = 0;
  arrived_ = 0;
  runs_ = 0;
  slots_ = std::make_unique<Slot[]>(size_);
  threads_ = std::make_unique<Threads>();
  for (int index = 1; index < size_; ++index) {
    threads_->list.emplace_back([this, index] { serve(index); });
  }
}

void ThreadPool::serve(int index) {
  uint32_t calls = 0, runs = 0;
  for (;;) {
    called_.wait_while(calls, patience_.between_runs_ns);
    calls = called_.value();
    if (stopping_.load(std::memory_order_relaxed)) return;
    if (begun_.load(std::memory_order_acquire) == runs) continue;  // only woken
    runs += 1;
    work_on(index);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) finished_.raise();
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
