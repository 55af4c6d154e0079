// Memory that is taken from the system page by page: reserved at once, touched only when written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

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

// Memory for many arrays that live and go together: cut out of large mappings, so that there are few
// page faults while they are filled, and few pages to look up while they are read.
class WeightMemory {
 public:
  // Aligned to 64 bytes. Throws std::bad_alloc.
  uint8_t* take(size_t bytes);

 private:
  std::vector<MappedMemory> mappings_;
  uint8_t* next_ = nullptr;
  size_t room_ = 0;
};

// Gives back the memory that pages of a mapped file take; whoever reads them again gets them from the
// file. Must not be used on other memory, which would lose what is in it.
void drop_file_pages(const void* start, size_t bytes);

}  // namespace octavo
