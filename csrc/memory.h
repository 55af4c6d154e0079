// Memory that is taken from the system page by page: reserved at once, touched only when written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace octavo {

// A private mapping of zeros, aligned to 2 MB, on huge pages where the system has them.
class MappedMemory {
 public:
  MappedMemory() = default;
  // Throws std::bad_alloc.
  explicit MappedMemory(size_t bytes);
  ~MappedMemory() { release(); }
  MappedMemory(MappedMemory&& other) noexcept
      : start_(std::exchange(other.start_, nullptr)), size_(std::exchange(other.size_, 0)),
        data_(std::exchange(other.data_, nullptr)) {}
  MappedMemory& operator=(MappedMemory&& other) noexcept {
    std::swap(start_, other.start_);
    std::swap(size_, other.size_);
    std::swap(data_, other.data_);
    return *this;
  }

  uint8_t* data() const { return data_; }

 private:
  void release();

  void* start_ = nullptr;
  size_t size_ = 0;
  uint8_t* data_ = nullptr;
};

}  // namespace octavo
