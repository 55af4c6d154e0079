#include "memory.h"

#include <new>

#include <sys/mman.h>

namespace octavo {

namespace {
constexpr size_t kHugePage = size_t{2} << 20;
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

}  // namespace octavo
