// From the weights of a file to a PackedMatrix.
//
// What each source becomes, unless the caller asks for another format, with bits of a weight in the
// file and packed:
//
//   Q4_0, Q4_1         kQ4    4.5, 5.0 -> 5.0   (Q4_0: the minimum is -8 scales; a scale is at most 8188)
//   Q4_K               kQ4S   4.5 -> 5.5
//   Q5_0, Q5_1, Q5_K   kQ5S   5.5, 6.0, 5.5 -> 6.5
//   Q6_K               kQ6S   6.6 -> 7.75
//   Q8_0               kQ8    8.5 -> 8.5
//   F32, F16, BF16     kF32, kF16, kBf16
//
// All of this is exact: the packed numbers are those that the file stands for, but for the rounding of a
// product and a sum to float32. Parts that are multiplied together become the first format that holds
// all of them so; kQ8S (9.75) is for minima or scales in two stages beside codes of 8 bits.
//
// Any source can become kBf16 or kQ8 as well, rounded to the nearest: kQ8 moves a number by at most
// half a scale, about 1/254 of the largest magnitude of its group. kF32 takes all, exactly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "source_types.h"
#include "types.h"

namespace octavo {

// One matrix [out, in] of a file, row after row. `data` need not be aligned.
struct SourceMatrix {
  SourceType type = SourceType::kF32;
  int out = 0;
  int in = 0;
  const uint8_t* data = nullptr;
  // Permutation: packed row i is row rows[i] of the file. Null: as in the file.
  const int* rows = nullptr;
};

enum class Arrangement {
  kConcatenated,  // rows of the first matrix, then of the second, ...: query, key, value
  kPaired,        // 32 rows of the first of two, 32 of the second, ...: gate and up, group by group
};

// What one packed matrix is made of. All parts have the same `in`; kPaired takes two of one size, a
// multiple of 32.
struct PackSource {
  std::vector<SourceMatrix> parts;
  Arrangement arrangement = Arrangement::kConcatenated;

  int out() const;
  int in() const;
};

bool can_pack(SourceType type, Format format);
// Whether the format holds all numbers of the type, as they are.
bool is_exact(SourceType type, Format format);
// The table above; of several parts, the first format that holds them all.
Format default_format(const PackSource& source);

size_t packed_strip_bytes(Format format, int in);
// The matrix without data; `bytes()` of it are needed, aligned to 64.
PackedMatrix packed_shape(Format format, int out, int in);
size_t packed_bytes(const PackedMatrix& matrix);

// Throws std::invalid_argument if the parts do not fit together or into the format.
void check_source(const PackSource& source, Format format);

// Writes the strips begin..end of `matrix` to matrix.data + begin * strip_bytes. Reads only the rows of these
// strips, so threads can share the strips, and pages of the file can be dropped behind. `source` must have
// passed check_source; `data` is where the matrix will be.
void pack_strips(const PackSource& source, const PackedMatrix& matrix, int begin, int end, uint8_t* data);

// One row as float32, [in]: for embeddings that share the head's matrix.
void unpack_row(const PackedMatrix& matrix, int row, float* out);

}  // namespace octavo
