// Which instruction set's kernels run: chosen once, by what the machine has.
#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace octavo {

// The kernels that this machine can run, the fastest first; the last are the plain ones.
const std::vector<const Kernels*>& available_kernels();

// The kernels called `name`. Throws std::invalid_argument, with what there is, if there are none.
const Kernels& kernels_called(const std::string& name);

// The fastest, or those that the environment variable OCTAVO_CPU_ISA names: for tests.
const Kernels& default_kernels();

}  // namespace octavo
