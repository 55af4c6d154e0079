// The tag of the instruction set that a test is compiled for: each test is built once for each of them.
#pragma once

#include "../isa/tags.h"

namespace octavo {

#if defined(OCTAVO_HAS_AVX512)
using TestedIsa = Avx512;
#elif defined(OCTAVO_HAS_AVX2)
using TestedIsa = Avx2;
#else
using TestedIsa = Plain;
#endif

}  // namespace octavo
