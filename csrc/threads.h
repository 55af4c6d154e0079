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
//
// giving_way_ns: for so long after a run begins, its threads offer their core now and then to whoever
// waits for one. Who is to tell others what the last run came to is woken just then, and where
// every core computes, the system would otherwise let it wait until its clock ticks, up to 4 ms.
struct Patience {
  int64_t between_runs_ns = 200'000;
  int64_t within_a_run_ns = 50'000;
  int64_t giving_way_ns = 0;
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
// Work is a sequence of phases, each a number of chunks. A phase ends when its chunks are done, not
// when every thread has come: one that a neighbour has pushed off its core is missed for the chunk
// that it holds, and when it comes back it passes over what others have done meanwhile.
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

    // One phase: calls work(chunk) once for each chunk of 0 .. count - 1, on whichever thread is
    // free, and returns when all are done. Every thread of the run must make the same calls with
    // the same counts, and may come late, when later phases have begun: what decides about calls
    // and counts must stay until the run ends. A thread begins with a part of its own, so that it
    // meets the same data in every step.
    template <class Work>
    void for_chunks(int count, Work&& work) {
      if (count == 0) return;
      phase_ += 1;
      if (pool_.has_passed(phase_)) return;
      const int threads = size();
      int done = 0;
      for (int step = 0, owner = index_; step < threads; ++step) {
        const int first = part(count, owner), length = part(count, owner + 1) - first;
        for (;;) {
          const int place = pool_.claim(owner, phase_, length);
          if (place < 0) break;
          work(first + place);
          done += 1;
          give_way();
        }
        owner = owner + 1 == threads ? 0 : owner + 1;
      }
      pool_.finish(phase_, done, count);
    }

    // Lets others go first, if it is time for that; called between chunks, and by long ones.
    OCTAVO_INLINE void give_way() {
      if (pool_.give_way_until_ns_.load(std::memory_order_relaxed)) pool_.give_way(next_offer_ns_);
    }

   private:
    friend class ThreadPool;
    OCTAVO_INLINE Member(ThreadPool& pool, int index) : pool_(pool), index_(index) {}

    OCTAVO_INLINE int part(int count, int owner) const {
      return static_cast<int>(static_cast<int64_t>(count) * owner / size());
    }

    ThreadPool& pool_;
    const int index_;
    uint32_t phase_ = 0;  // of this run
    int64_t next_offer_ns_ = 0;
  };

  // Throws std::invalid_argument below 1, std::system_error if the system gives no more threads.
  explicit ThreadPool(int threads, Patience patience = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  OCTAVO_INLINE int size() const { return size_; }

  // Calls work(member) on this thread and on all others that come before it has returned here;
  // returns when all of them have.
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
    run([&](Member& member) { member.for_chunks(count, work); });
  }

  // Wakes parked threads, which then spin for a while, and returns before they have: a run that
  // is about to follow starts at once. Any thread may call.
  void wake();

 private:
  using Call = void (*)(void* context, Member& member) noexcept;
  struct Threads;

  // The phase in which somebody last began a chunk of this thread's part, and how many have been
  // begun in it: one number, so that a thread that comes late cannot begin what is over.
  struct alignas(kCacheLine) Slot {
    std::atomic<uint64_t> begun{0};
  };

  OCTAVO_INLINE bool has_passed(uint32_t phase) const {
    return static_cast<int32_t>(passed_.value() - (first_phase_ + phase)) >= 0;
  }

  // The next chunk of a thread's part; -1 if there is none.
  OCTAVO_INLINE int claim(int owner, uint32_t phase, int length) {
    std::atomic<uint64_t>& begun = slots_[owner].begun;
    uint64_t seen = begun.load(std::memory_order_relaxed);
    for (;;) {
      const uint32_t in_phase = static_cast<uint32_t>(seen >> 32);
      if (in_phase > phase) return -1;
      const uint32_t place = in_phase == phase ? static_cast<uint32_t>(seen) : 0;
      if (static_cast<int>(place) >= length) return -1;
      const uint64_t mine = static_cast<uint64_t>(phase) << 32 | (place + 1);
      if (begun.compare_exchange_weak(seen, mine, std::memory_order_relaxed)) {
        return static_cast<int>(place);
      }
    }
  }

  // After the last chunk that a thread finds: returns when all chunks of the phase are done.
  OCTAVO_INLINE void finish(uint32_t phase, int done, int count) {
    if (done && done_.fetch_add(done, std::memory_order_acq_rel) + done == count) {
      // Nobody else can have a chunk now.
      done_.store(0, std::memory_order_relaxed);
      passed_.raise();
      return;
    }
    if (!has_passed(phase)) passed_.wait_while(first_phase_ + phase - 1, patience_.within_a_run_ns);
  }

  void give_way(int64_t& next_offer_ns);
  void run_erased(Call call, void* context);
  void start();
  void stop();
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
  uint32_t first_phase_ = 0;  // what passed_ said before this run
  int forks_ = 0;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> busy_{false};
  std::atomic<int64_t> give_way_until_ns_{0};  // of the steady clock; 0: not now

  Signal called_;    // raised to begin a run, or just to wake
  Signal left_;      // raised when the last worker has left a run that is over
  Signal passed_;    // raised when a phase is over
  alignas(kCacheLine) std::atomic<uint64_t> gate_{0};  // number of the run, whether it is open, workers in it
  alignas(kCacheLine) std::atomic<int> done_{0};       // chunks of this phase
};

}  // namespace octavo
