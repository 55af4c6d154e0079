// From the weights of a file to a PackedMatrix.
//
// What each source becomes, unless the caller asks for another format:
//
//   Q4_0, Q4_1         kQ4   exact (Q4_0: the minimum is -8 scales, exact below a scale of 8188)
//   Q4_K               kQ4   same codes; scale and minimum rounded to float16: each moves by at most
//                            2^-11 of itself, or by 2^-25 if it is below 2^-14
//   Q5_0, Q8_0         kQ8   exact
//   Q5_1, Q5_K, Q6_K   kQ8   quantised again, as kQ8 has no minimum: each number moves by at most half a
//                            scale, about 1/254 of the largest magnitude of its group. Next to the rounding of
//                            the type itself that adds below 1 % (Q5) and 4 % (Q6_K) rms
//   F32, F16           kF32  exact (kBf16 would take 3 bits from F16: ask for it to halve the bytes)
//   BF16               kBf16 exact
//
// Any source can become kQ8, kBf16 or kF32 as well; kQ4 takes 4-bit sources only.
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
// The table above; of several parts, the format that holds them all.
Format default_format(SourceType type);
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
