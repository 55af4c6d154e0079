// Pages of a large mapping, taken from the system shortly before they are written.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "memory.h"

namespace octavo {

// Keeps memory ready for so many bytes behind what is in use, on a thread of its own.
//
// A page that is written for the first time costs its writer a fault: 0.5 ms for 2 MB, more where a
// host has to find it first. Texts that grow side by side fill their blocks in one step, and all of
// it came between two layers. What lies far behind is left alone: reserved memory costs nothing.
//
// What must be contiguous is the use: blocks are given out from the lowest address on.
class TouchAhead {
 public:
  // The bytes in use are none as yet. Without a thread, in a child of fork(), or where the system does
  // not take the advice, pages come when they are written.
  TouchAhead(const MappedMemory& memory, size_t bytes, size_t ahead);
  ~TouchAhead();
  TouchAhead(const TouchAhead&) = delete;
  TouchAhead& operator=(const TouchAhead&) = delete;

  // Bytes before `end` are in use from now on. Returns at once; one thread at a time may call.
  void reach(size_t end);

  // Bytes from the beginning that are ready, whatever has been written beside.
  size_t ready() const { return ready_.load(std::memory_order_acquire); }

 private:
  struct Worker;

  void serve(Worker& worker);
  bool has_worker() const;

  uint8_t* const data_;
  const size_t bytes_, ahead_;
  size_t reached_ = 0;
  std::atomic<size_t> ready_{0};
  Worker* worker_ = nullptr;
};

}  // namespace octavo
