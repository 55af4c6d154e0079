// A pool of threads for one forward step: fork, barriers, shared chunks of work, join.
//
// A thread that waits spins for a bounded time and then parks in the kernel. While a step runs, a
// barrier costs a fraction of a microsecond; an idle engine uses no time at all; and a thread that
// a neighbour has pushed off its core gets the core of the one that waits for it, once that parks.
// Threads are not pinned, for the same reason.
//
// Units with newer instructions include this: see isa/tags.h for why all but templates is elsewhere.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "isa/unroll.h"

namespace octavo {

constexpr size_t kCacheLine = 64;

// How long a thread spins before it parks, in nanoseconds. Within a run it must be short: with a
// busy neighbour, 200 us double the time of a step, 50 us do not change it.
struct Patience {
  int64_t between_runs_ns = 200'000;
  int64_t within_a_run_ns = 50'000;
};

// A number that goes up and that threads wait for.
class alignas(kCacheLine) Signal {
 public:
  OCTAVO_INLINE uint32_t value() const { return value_.load(std::memory_order_acquire); }

  void raise();

  // Returns once the value is no longer `old`: spins for `patience_ns`, then parks.
  void wait_while(uint32_t old, int64_t patience_ns);

  // In a child process: back to 0, and nobody waits.
  void reset();

 private:
  bool spin_while(uint32_t old, int64_t patience_ns) const;

  std::atomic<uint32_t> value_{0};
  std::atomic<int> parked_{0};
};

// Threads that together run one piece of work at a time; the one that calls `run` is the first.
//
// - Work must not throw: an exception that leaves it ends the process.
// - Runs do not nest, and two threads must not run work on one pool at once: std::logic_error.
// - After fork() the child starts threads of its own with its first run. A fork while work runs
//   leaves that pool of the child unusable.
class ThreadPool {
 public:
  // What one thread of the pool sees of a run.
  class Member {
   public:
    OCTAVO_INLINE int index() const { return index_; }
    OCTAVO_INLINE int size() const { return pool_.size_; }

    // Returns once every thread has come here.
    OCTAVO_INLINE void barrier() { pool_.barrier(); }

    // Calls work(chunk) once for each chunk of 0 .. count - 1, on whichever thread is free, and
    // returns when all are done. Every thread of the run must make this call, with one count.
    // A thread begins with a part of its own, so that it meets the same data in every step.
    template <class Work>
    void for_chunks(int count, Work&& work) {
      share_chunks(count, work);
      barrier();
    }

    // The same, but returns when no chunk is left to begin: others may still be at work. A barrier
    // must come before the next `for_chunks` or `share_chunks`.
    template <class Work>
    void share_chunks(int count, Work&& work) {
      const unsigned side = pool_.slots_[index_].calls++ & 1;
      // The side of the call before this one: everybody has left it, nobody can be at the next.
      pool_.slots_[index_].begun[side ^ 1].store(0, std::memory_order_relaxed);
      const int threads = size();
      for (int step = 0, owner = index_; step < threads; ++step) {
        const int first = part(count, owner), length = part(count, owner + 1) - first;
        std::atomic<int>& begun = pool_.slots_[owner].begun[side];
        while (begun.load(std::memory_order_relaxed) < length) {
          const int place = begun.fetch_add(1, std::memory_order_relaxed);
          if (place < length) work(first + place);
        }
        owner = owner + 1 == threads ? 0 : owner + 1;
      }
    }

   private:
    friend class ThreadPool;
    OCTAVO_INLINE Member(ThreadPool& pool, int index) : pool_(pool), index_(index) {}

    OCTAVO_INLINE int part(int count, int owner) const {
      return static_cast<int>(static_cast<int64_t>(count) * owner / size());
    }

    ThreadPool& pool_;
    const int index_;
  };

  // Throws std::invalid_argument below 1.
  explicit ThreadPool(int threads, Patience patience = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  OCTAVO_INLINE int size() const { return size_; }

  // Calls work(member) on every thread, this one included; returns when all have returned.
  template <class Work>
  void run(Work&& work) {
    using Plain = std::remove_reference_t<Work>;
    run_erased(
        [](void* context, Member& member) noexcept { (*static_cast<Plain*>(context))(member); },
        const_cast<void*>(static_cast<const void*>(std::addressof(work))));
  }

  // Calls work(chunk) once for each chunk of 0 .. count - 1, spread over the threads.
  template <class Work>
  void for_chunks(int count, Work&& work) {
    run([&](Member& member) { member.share_chunks(count, work); });
  }

  // Wakes parked threads, which then spin for a while, and returns before they have: a run that
  // is about to follow starts at once. Any thread may call.
  void wake();

 private:
  using Call = void (*)(void* context, Member& member) noexcept;
  struct Threads;

  struct alignas(kCacheLine) Slot {
    // Chunks of this thread's part that somebody has begun; calls use the two in turn.
    std::atomic<int> begun[2] = {0, 0};
    unsigned calls = 0;  // of share_chunks by this thread; the same number on every thread
  };

  void run_erased(Call call, void* context);
  void barrier();
  void start();
  void serve(int index);
  void work_on(int index) noexcept;
  void abandon_threads();
  bool forked() const;

  const int size_;
  const Patience patience_;
  std::unique_ptr<Threads> threads_;
  std::unique_ptr<Slot[]> slots_;
  Call call_ = nullptr;
  void* context_ = nullptr;
  uint32_t runs_ = 0;
  int forks_ = 0;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> busy_{false};

  Signal called_;    // raised to begin a run, or just to wake
  Signal finished_;  // raised when the last worker has returned
  Signal passed_;    // raised when all have come to a barrier
  alignas(kCacheLine) std::atomic<uint32_t> begun_{0};  // runs
  alignas(kCacheLine) std::atomic<int> running_{0};     // workers that have not returned
  alignas(kCacheLine) std::atomic<int> arrived_{0};     // threads at the barrier
};

}  // namespace octavo
