// One column's groups in the formats of scaled codes; isa/scaled_linear.h says how they lie.
#pragma once

#include <cstddef>
#include <cstdint>

#include "source_types.h"
#include "types.h"

namespace octavo {

size_t scaled_group_bytes(Format format);

// Writes column `lane` of a group; exact. `source` must be of a type that the format holds.
void pack_scaled(Format format, const GroupCodes& source, int lane, uint8_t* group);

// The reverse: 32 numbers of one column.
void unpack_scaled(Format format, const uint8_t* group, int lane, float* out);

}  // namespace octavo
