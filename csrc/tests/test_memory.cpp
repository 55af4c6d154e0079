// Memory for weights: apart from each other, aligned, and more than one mapping of it; pages of files.
#include "memory.h"

#include <cstdio>
#include <cstring>
#include <vector>

#include <sys/mman.h>

#include "check.h"

namespace {

using namespace octavo;

void pieces_are_aligned_zero_and_apart() {
  WeightMemory memory;
  const size_t sizes[] = {1, 63, 64, 65, size_t{1} << 20, size_t{50} << 20, size_t{20} << 20, size_t{70} << 20, 3};
  std::vector<uint8_t*> pieces;
  for (size_t size : sizes) {
    uint8_t* piece = memory.take(size);
    CHECK(reinterpret_cast<uintptr_t>(piece) % 64 == 0);
    CHECK(piece[0] == 0 && piece[size - 1] == 0);
    // Both ends, so that not all of it has to be touched.
    piece[0] = piece[size - 1] = static_cast<uint8_t>(pieces.size() + 1);
    pieces.push_back(piece);
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    CHECK(pieces[i][0] == i + 1 && pieces[i][sizes[i] - 1] == i + 1);
  }
}

void dropped_pages_are_read_from_the_file_again() {
  std::FILE* file = std::tmpfile();
  CHECK(file != nullptr);
  const std::vector<uint8_t> bytes(100'000, 7);
  CHECK(std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size());
  std::fflush(file);
  void* map = mmap(nullptr, bytes.size(), PROT_READ, MAP_PRIVATE, fileno(file), 0);
  CHECK(map != MAP_FAILED);
  const auto* data = static_cast<const uint8_t*>(map);
  CHECK(std::memcmp(data, bytes.data(), bytes.size()) == 0);
  drop_file_pages(data + 5'000, 60'000);  // begins and ends inside of pages
  CHECK(std::memcmp(data, bytes.data(), bytes.size()) == 0);
  munmap(map, bytes.size());
  std::fclose(file);
}

}  // namespace

int main() {
  pieces_are_aligned_zero_and_apart();
  dropped_pages_are_read_from_the_file_again();
  return 0;
}
