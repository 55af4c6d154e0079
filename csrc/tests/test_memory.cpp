// Memory for weights: apart from each other, aligned, and more than one mapping of it; pages of files;
// pages that are there before they are written.
#include "memory.h"

#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "touch_ahead.h"

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

#ifdef MADV_POPULATE_WRITE
constexpr size_t kMegabyte = size_t{1} << 20;

bool is_there(uint8_t* page) {
  unsigned char seen = 0;
  CHECK(mincore(page, 1, &seen) == 0);
  return seen & 1;
}

void wait_until_ready(const TouchAhead& touched, size_t bytes) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (touched.ready() < bytes) {
    CHECK(std::chrono::steady_clock::now() < end);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void so_much_is_ready_behind_what_is_in_use_and_no_more() {
  MappedMemory memory(64 * kMegabyte);
  TouchAhead touched(memory, 64 * kMegabyte, 8 * kMegabyte);
  wait_until_ready(touched, 8 * kMegabyte);
  memory.data()[7] = 9;
  touched.reach(10 * kMegabyte + 1);
  touched.reach(3);  // less than before
  wait_until_ready(touched, 18 * kMegabyte);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(touched.ready() == 18 * kMegabyte);
  CHECK(memory.data()[7] == 9);
  CHECK(is_there(memory.data() + 17 * kMegabyte));
  CHECK(!is_there(memory.data() + 20 * kMegabyte));
  touched.reach(64 * kMegabyte);
  wait_until_ready(touched, 64 * kMegabyte);
}

void the_end_need_not_be_a_whole_piece() {
  MappedMemory memory(5 * kMegabyte);
  TouchAhead touched(memory, 5 * kMegabyte, 64 * kMegabyte);
  wait_until_ready(touched, 4 * kMegabyte);
  touched.reach(5 * kMegabyte);
  MappedMemory small(100);
  TouchAhead none(small, 100, 64 * kMegabyte);
  none.reach(100);
  CHECK(none.ready() == 0);
}

void it_ends_in_the_middle() {
  const size_t bytes = 16'384 * kMegabyte;
  MappedMemory memory(bytes);
  const TouchAhead touched(memory, bytes, bytes);
  wait_until_ready(touched, 2 * kMegabyte);
}

void a_child_can_end_it() {
  MappedMemory memory(8 * kMegabyte);
  auto touched = std::make_unique<TouchAhead>(memory, 8 * kMegabyte, 2 * kMegabyte);
  wait_until_ready(*touched, 2 * kMegabyte);
  const pid_t child = fork();
  if (child == 0) {
    touched->reach(8 * kMegabyte);
    touched.reset();
    _exit(0);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}
#endif

}  // namespace

int main() {
  pieces_are_aligned_zero_and_apart();
  dropped_pages_are_read_from_the_file_again();
#ifdef MADV_POPULATE_WRITE
  so_much_is_ready_behind_what_is_in_use_and_no_more();
  the_end_need_not_be_a_whole_piece();
  it_ends_in_the_middle();
  a_child_can_end_it();
#endif
  return 0;
}
