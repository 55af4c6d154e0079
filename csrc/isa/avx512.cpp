#include "isa/table.h"

namespace octavo {

const Kernels& avx512_kernels() {
  static constexpr Kernels kernels = Table<Avx512>::kernels("avx512");
  return kernels;
}

}  // namespace octavo
