#include "isa/table.h"

namespace octavo {

const Kernels& avx2_kernels() {
  static constexpr Kernels kernels = Table<Avx2>::kernels("avx2");
  return kernels;
}

}  // namespace octavo
