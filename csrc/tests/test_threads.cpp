// The pool runs every chunk once, keeps the order of phases, waits for no one who is away, survives a fork, and parks when idle.
// With the argument `time` it prints what a phase and a run cost instead.

#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.h"
#include "threads.h"

using octavo::Patience;
using octavo::ThreadPool;
using Clock = std::chrono::steady_clock;

namespace {

constexpr Patience kImpatient = {0, 0};
constexpr Patience kPolite = {200'000, 50'000, 1'000'000'000};

double process_seconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void a_run_calls_each_thread_once_at_most(ThreadPool& pool) {
  std::vector<std::atomic<int>> seen(pool.size());
  for (int run = 0; run < 500; ++run) {
    pool.run([&](ThreadPool::Member& me) {
      CHECK(me.size() == pool.size());
      seen[me.index()] += 1;
    });
    CHECK(seen[0] == run + 1);
    for (auto& count : seen) CHECK(count <= run + 1);
  }
}

// Waits for a flag, but not forever.
bool comes(const std::atomic<bool>& flag) {
  const auto patience = Clock::now() + std::chrono::seconds(20);
  while (!flag && Clock::now() < patience) std::this_thread::yield();
  return flag;
}

void a_thread_that_comes_late_finds_nothing_left(ThreadPool& pool) {
  constexpr int kCount = 8, kRounds = 5;
  std::vector<std::atomic<int>> seen(kCount * kRounds);
  std::atomic<bool> over{false};
  std::atomic<int> by_others{0};
  pool.run([&](ThreadPool::Member& me) {
    if (me.index() != 0) CHECK(comes(over));
    for (int round = 0; round < kRounds; ++round) {
      me.for_chunks(kCount, [&](int chunk) {
        seen[round * kCount + chunk] += 1;
        by_others += me.index() != 0;
      });
    }
    if (me.index() == 0) over = true;
  });
  for (auto& count : seen) CHECK(count == 1);
  CHECK(by_others == 0);
}

// Others go on once the phase is over, however long somebody takes to come back from an earlier one.
void a_thread_that_was_away_takes_part_again(ThreadPool& pool) {
  if (pool.size() == 1) return;
  constexpr int kRounds = 50;
  std::atomic<int> done{0};
  std::atomic<bool> begun{false}, halfway{false};
  pool.run([&](ThreadPool::Member& me) {
    for (int round = 0; round < kRounds; ++round) {
      if (me.index() == 1 && round == 1) {
        begun = true;
        CHECK(comes(halfway));
      }
      me.for_chunks(3, [&](int) { done += 1; });
      if (me.index() == 0 && round == kRounds / 2) halfway = true;
    }
  });
  CHECK(done == 3 * kRounds);
}

void chunks_run_once_each(ThreadPool& pool) {
  for (int count : {0, 1, 2, 3, 7, 64, 1000}) {
    std::vector<std::atomic<int>> seen(count);
    for (int run = 1; run <= 20; ++run) {
      pool.for_chunks(count, [&](int chunk) { seen[chunk] += 1; });
      for (auto& number : seen) CHECK(number == run);
    }
  }
}

// Each round reads what the whole round before it wrote; plain memory, so TSan checks the order.
void phases_order_memory(ThreadPool& pool) {
  constexpr int kCount = 37, kRounds = 300;
  std::vector<int> even(kCount, 0), odd(kCount, 0);
  pool.run([&](ThreadPool::Member& me) {
    for (int round = 1; round <= kRounds; ++round) {
      const auto& from = round % 2 ? even : odd;
      auto& to = round % 2 ? odd : even;
      me.for_chunks(kCount, [&](int chunk) { to[chunk] = from[kCount - 1 - chunk] + 1; });
    }
  });
  for (int value : even) CHECK(value == kRounds);
}

void an_uneven_chunk_does_not_hold_the_others(ThreadPool& pool) {
  if (pool.size() == 1) return;
  constexpr int kCount = 64;
  std::atomic<int> others{0};
  bool all_done = false;
  pool.for_chunks(kCount, [&](int chunk) {
    if (chunk != 0) {
      ++others;
      return;
    }
    // Whoever has this chunk waits for all the rest to be done by somebody else.
    const auto patience = Clock::now() + std::chrono::seconds(20);
    while (others < kCount - 1 && Clock::now() < patience) std::this_thread::yield();
    all_done = others == kCount - 1;
  });
  CHECK(all_done);
}

void a_nested_run_is_refused(ThreadPool& pool) {
  bool refused = false;
  pool.run([&](ThreadPool::Member& me) {
    if (me.index() != 0) return;
    try {
      pool.run([](ThreadPool::Member&) {});
    } catch (const std::logic_error&) {
      refused = true;
    }
  });
  CHECK(refused);
  a_run_calls_each_thread_once_at_most(pool);
}

void a_pool_needs_a_thread() {
  bool refused = false;
  try {
    ThreadPool none(0);
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  CHECK(refused);
}

[[maybe_unused]] void an_idle_pool_parks() {
  ThreadPool pool(3);
  pool.run([](ThreadPool::Member&) {});
  pool.wake();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const double before = process_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(process_seconds() - before < 0.003);
}

[[maybe_unused]] void a_child_process_has_threads_of_its_own() {
  ThreadPool pool(3);
  a_run_calls_each_thread_once_at_most(pool);
  const pid_t child = fork();
  if (child == 0) {
    a_run_calls_each_thread_once_at_most(pool);
    chunks_run_once_each(pool);
    _exit(0);
  }
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  a_run_calls_each_thread_once_at_most(pool);
}

// Microseconds for one of `count` repetitions, the best of several.
template <class Repeat>
double best_us(int count, Repeat&& repeat) {
  double best = 1e9;
  for (int trial = 0; trial < 15; ++trial) {
    const auto start = Clock::now();
    repeat(count);
    best = std::min(best, std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  return best / count;
}

void print_times(int threads) {
  ThreadPool pool(threads);
  const double phase = best_us(20000, [&](int count) {
    pool.run([&](ThreadPool::Member& me) {
      for (int round = 0; round < count; ++round) me.for_chunks(threads, [](int) { asm volatile(""); });
    });
  });
  const double chunks = best_us(2000, [&](int count) {
    pool.run([&](ThreadPool::Member& me) {
      for (int round = 0; round < count; ++round) me.for_chunks(64, [](int) { asm volatile(""); });
    });
  });
  const double run = best_us(20000, [&](int count) {
    for (int round = 0; round < count; ++round) pool.run([](ThreadPool::Member&) {});
  });
  std::vector<double> parked, woken;
  for (int trial = 0; trial < 101; ++trial) {
    for (auto* times : {&parked, &woken}) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      if (times == &woken) {
        pool.wake();
        for (const auto end = Clock::now() + std::chrono::microseconds(100); Clock::now() < end;) {
        }
      }
      const auto start = Clock::now();
      pool.run([](ThreadPool::Member&) {});
      times->push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    }
  }
  std::sort(parked.begin(), parked.end());
  std::sort(woken.begin(), woken.end());
  std::printf("%d threads: phase %.2f us, 64 empty chunks %.2f us, run %.2f us spinning, "
              "%.1f us parked, %.1f us parked but woken 100 us before\n",
              threads, phase, chunks, run, parked[50], woken[50]);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "time") == 0) {
    print_times(static_cast<int>(std::max(2u, std::thread::hardware_concurrency())));
    return 0;
  }
  for (int threads : {1, 2, 3, 5}) {
    for (Patience patience : {Patience{}, kImpatient, kPolite}) {
      ThreadPool pool(threads, patience);
      a_run_calls_each_thread_once_at_most(pool);
      a_thread_that_comes_late_finds_nothing_left(pool);
      a_thread_that_was_away_takes_part_again(pool);
      chunks_run_once_each(pool);
      phases_order_memory(pool);
      an_uneven_chunk_does_not_hold_the_others(pool);
      a_nested_run_is_refused(pool);
    }
  }
  a_pool_needs_a_thread();
#if !defined(__SANITIZE_THREAD__)
  an_idle_pool_parks();
#if !defined(OCTAVO_EMULATED)
  // qemu 7.2 ends a child that starts threads.
  a_child_process_has_threads_of_its_own();
#endif
#endif
  std::puts("threads: passed");
}
