#include "isa/table.h"

namespace octavo {

const Kernels& plain_kernels() {
  static constexpr Kernels kernels = Table<Plain>::kernels("plain");
  return kernels;
}

}  // namespace octavo
