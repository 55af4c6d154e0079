#include "dispatch.h"

#include <cstdlib>
#include <stdexcept>

namespace octavo {

const std::vector<const Kernels*>& available_kernels() {
  static const std::vector<const Kernels*> found = [] {
    std::vector<const Kernels*> kernels;
#ifdef OCTAVO_WITH_AVX512
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16")) {
      kernels.push_back(&avx512_kernels());
    }
#endif
#ifdef OCTAVO_WITH_AVX2
    // Every machine with these two has F16C.
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
      kernels.push_back(&avx2_kernels());
    }
#endif
    kernels.push_back(&plain_kernels());
    return kernels;
  }();
  return found;
}

const Kernels& kernels_called(const std::string& name) {
  std::string names;
  for (const Kernels* kernels : available_kernels()) {
    if (name == kernels->name) return *kernels;
    names += (names.empty() ? "" : ", ") + std::string(kernels->name);
  }
  throw std::invalid_argument("this machine has no instruction set '" + name + "'; it has " + names);
}

const Kernels& default_kernels() {
  static const Kernels& chosen = [&]() -> const Kernels& {
    const char* name = std::getenv("OCTAVO_CPU_ISA");
    return name && *name ? kernels_called(name) : *available_kernels().front();
  }();
  return chosen;
}

}  // namespace octavo
