#include "touch_ahead.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

namespace octavo {

namespace {

constexpr size_t kPiece = size_t{2} << 20;
constexpr int kNice = 10;

// One piece at a time: whoever waits for this core, or for the memory's bus, goes first.
constexpr std::chrono::milliseconds kPause{10};

// False: the system does not know how, or has no memory left.
bool take_pages(uint8_t* start, size_t bytes) {
#ifdef MADV_POPULATE_WRITE
  return madvise(start, bytes, MADV_POPULATE_WRITE) == 0;
#else
  (void)start;
  (void)bytes;
  return false;
#endif
}

// Whoever computes goes first. Elsewhere than on Linux a thread has no share of its own.
void step_back() {
#ifdef __linux__
  setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + kNice);
#endif
}

}  // namespace

// In a child of fork() there is no such thread, and what it waits at cannot even be destroyed.
struct TouchAhead::Worker {
  Worker(TouchAhead& owner, size_t bytes) : wanted(bytes), thread([this, &owner] { owner.serve(*this); }) {}

  const pid_t process = getpid();
  std::mutex mutex;
  std::condition_variable news;
  size_t wanted;          // by mutex
  bool stopping = false;  // by mutex
  std::thread thread;
};

TouchAhead::TouchAhead(const MappedMemory& memory, size_t bytes, size_t ahead)
    : data_(memory.data()), bytes_(bytes / kPiece * kPiece), ahead_(ahead) {
  if (bytes_ == 0) return;
  try {
    worker_ = new Worker(*this, std::min(bytes_, ahead_));
  } catch (const std::system_error&) {
    // The process has all threads that it may have: it works without this one.
  }
}

TouchAhead::~TouchAhead() {
  if (!has_worker()) return;
  {
    const std::lock_guard lock(worker_->mutex);
    worker_->stopping = true;
  }
  worker_->news.notify_one();
  worker_->thread.join();
  delete worker_;
}

void TouchAhead::reach(size_t end) {
  if (end <= reached_) return;
  reached_ = end;
  if (!has_worker()) return;
  {
    const std::lock_guard lock(worker_->mutex);
    const size_t wanted = std::min(bytes_, (end + ahead_) / kPiece * kPiece);
    if (wanted <= worker_->wanted) return;
    worker_->wanted = wanted;
  }
  worker_->news.notify_one();
}

bool TouchAhead::has_worker() const { return worker_ != nullptr && worker_->process == getpid(); }

void TouchAhead::serve(Worker& worker) {
  step_back();
  size_t done = 0;
  std::unique_lock lock(worker.mutex);
  for (;;) {
    worker.news.wait(lock, [&] { return worker.stopping || done < worker.wanted; });
    if (worker.news.wait_for(lock, kPause, [&] { return worker.stopping; })) return;
    lock.unlock();
    if (!take_pages(data_ + done, kPiece)) return;
    done += kPiece;
    ready_.store(done, std::memory_order_release);
    lock.lock();
  }
}

}  // namespace octavo
