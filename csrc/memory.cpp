#include "memory.h"

#include <new>

#include <sys/mman.h>
#include <unistd.h>

namespace octavo {

namespace {
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kMapping = size_t{64} << 20;
constexpr size_t kLine = 64;
}

MappedMemory::MappedMemory(size_t bytes) {
  size_ = bytes / kHugePage * kHugePage + 2 * kHugePage;
  start_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start_ == MAP_FAILED) {
    start_ = nullptr;
    throw std::bad_alloc();
  }
  const auto address = reinterpret_cast<uintptr_t>(start_);
  data_ = reinterpret_cast<uint8_t*>((address + kHugePage - 1) / kHugePage * kHugePage);
#ifdef MADV_HUGEPAGE
  // Only advice: without huge pages everything works, a little slower.
  if (bytes >= kHugePage) madvise(data_, bytes, MADV_HUGEPAGE);
#endif
}

void MappedMemory::release() {
  if (start_ != nullptr) munmap(start_, size_);
}

uint8_t* WeightMemory::take(size_t bytes) {
  bytes = (bytes + kLine - 1) / kLine * kLine;
  if (bytes > room_) {
    const size_t mapped = bytes > kMapping ? bytes : kMapping;
    mappings_.emplace_back(mapped);
    // What is left of the mapping before is never touched, and costs nothing.
    next_ = mappings_.back().data();
    room_ = mapped;
  }
  uint8_t* taken = next_;
  next_ += bytes;
  room_ -= bytes;
  return taken;
}

void drop_file_pages(const void* start, size_t bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(start) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(start) + bytes;
  // Only advice: the pages stay where it is not taken.
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace octavo
