#include "pack.h"

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "half.h"
#include "isa/linear_kernels.h"
#include "pack_scaled.h"

namespace octavo {
namespace {

// One packed column: a row of a file, or nothing, for padding.
struct Column {
  SourceType type = SourceType::kF32;
  const uint8_t* row = nullptr;
};

Column file_row(const SourceMatrix& part, int row) {
  const int number = part.rows ? part.rows[row] : row;
  return {part.type, part.data + source_row_bytes(part.type, part.in) * number};
}

Column find_column(const PackSource& source, int column) {
  if (column >= source.out()) return {};
  if (source.arrangement == Arrangement::kPaired) {
    const int group = column / (2 * kGroup), place = column % (2 * kGroup);
    return file_row(source.parts[place / kGroup], group * kGroup + place % kGroup);
  }
  for (const SourceMatrix& part : source.parts) {
    if (column < part.out) return file_row(part, column);
    column -= part.out;
  }
  return {};
}

void store16(uint8_t* to, uint16_t value) { std::memcpy(to, &value, sizeof value); }

uint16_t load16(const uint8_t* from) {
  uint16_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Four bytes of each of `rows` rows, 64 bytes apart: how a column's codes lie in a group.
void spread_codes(const uint8_t* codes, int rows, uint8_t* to) {
  for (int j = 0; j < rows; ++j) std::memcpy(to + j * 64, codes + j * 4, 4);
}

// `group` is where the packed group begins; zeros need no work, except for codes with an offset.
void pack_q4(const Column& column, int number, int lane, uint8_t* group) {
  uint8_t* scale = group + 256 + lane * 2;
  uint8_t* minimum = group + 288 + lane * 2;
  if (!column.row) return;
  if (column.type == SourceType::kQ4_1) {  // the same bytes in another order
    const uint8_t* block = column.row + static_cast<size_t>(number) * 20;
    spread_codes(block + 4, 4, group + lane * 4);
    std::memcpy(scale, block, 2);
    std::memcpy(minimum, block + 2, 2);
    return;
  }
  const GroupCodes source = read_codes(column.type, column.row, number);
  uint8_t codes[16];
  for (int i = 0; i < 16; ++i) {
    codes[i] = static_cast<uint8_t>(source.codes[i] | (source.codes[i + 16] << 4));
  }
  spread_codes(codes, 4, group + lane * 4);
  store16(scale, float_to_half(source.scale));
  store16(minimum, float_to_half(-static_cast<float>(source.zero) * source.scale));
}

// The smallest float16 that is not below `value`: then no code passes 127.
uint16_t half_not_below(float value) {
  const uint16_t half = float_to_half(value);
  return half_to_float(half) < value ? half + 1 : half;
}

// Codes plus 128 and their scale for any 32 numbers. One that is not finite makes the scale a NaN.
uint16_t quantize_weights(const float* values, uint8_t* codes) {
  float magnitude = 0;
  bool finite = true;
  for (int i = 0; i < kGroup; ++i) {
    magnitude = std::fabs(values[i]) > magnitude ? std::fabs(values[i]) : magnitude;
    finite &= std::fabs(values[i]) <= 3.4028235e38f;
  }
  const uint16_t scale = finite ? half_not_below(magnitude / 127.0f) : 0x7e00;
  const float inverse = finite && magnitude > 0 ? 1.0f / half_to_float(scale) : 0.0f;
  for (int i = 0; i < kGroup; ++i) {
    const float code = round_to_even((finite ? values[i] : 0.0f) * inverse);
    codes[i] = static_cast<uint8_t>(static_cast<int>(code) + 128);
  }
  return scale;
}

void pack_q8(const Column& column, int number, int lane, uint8_t* group) {
  uint8_t codes[kGroup];
  uint16_t scale = 0;
  if (!column.row) {
    std::memset(codes, 128, sizeof codes);
  } else if (is_exact(column.type, Format::kQ8)) {
    const GroupCodes source = read_codes(column.type, column.row, number);
    for (int i = 0; i < kGroup; ++i) {
      codes[i] = static_cast<uint8_t>(source.codes[i] - source.zero + 128);
    }
    scale = float_to_half(source.scale);
  } else {
    float values[kGroup];
    read_floats(column.type, column.row, number, values);
    scale = quantize_weights(values, codes);
  }
  spread_codes(codes, 8, group + lane * 4);
  store16(group + 512 + lane * 2, scale);
}

void pack_bf16(const Column& column, int number, int lane, uint8_t* group) {
  if (!column.row) return;
  if (column.type == SourceType::kBf16) {
    const uint8_t* from = column.row + static_cast<size_t>(number) * kGroup * 2;
    spread_codes(from, kGroup / 2, group + lane * 4);
    return;
  }
  float values[kGroup];
  uint16_t rounded[kGroup];
  read_floats(column.type, column.row, number, values);
  for (int i = 0; i < kGroup; ++i) rounded[i] = float_to_bf16(values[i]);
  spread_codes(reinterpret_cast<const uint8_t*>(rounded), kGroup / 2, group + lane * 4);
}

void pack_f32(const Column& column, int number, int lane, uint8_t* group) {
  if (!column.row) return;
  float values[kGroup];
  read_floats(column.type, column.row, number, values);
  spread_codes(reinterpret_cast<const uint8_t*>(values), kGroup, group + lane * 4);
}

void pack_f16(const Column& column, int number, int lane, uint8_t* group) {
  if (!column.row) return;
  const uint8_t* from = column.row + static_cast<size_t>(number) * kGroup * 2;
  for (int i = 0; i < kGroup; ++i) std::memcpy(group + i * kStrip * 2 + lane * 2, from + i * 2, 2);
}

size_t group_bytes(Format format) {
  switch (format) {
    case Format::kQ4: return kQ4GroupBytes;
    case Format::kQ8: return kQ8GroupBytes;
    case Format::kBf16:
    case Format::kF16: return kGroup * kStrip * 2;
    case Format::kF32: return kGroup * kStrip * 4;
    default: return scaled_group_bytes(format);
  }
}

// The reverse of pack_*: 32 numbers of one column.
void unpack_group(Format format, const uint8_t* group, int lane, float* out) {
  const uint8_t* column = group + lane * 4;
  if (scaled_bits(format) != 0) {
    unpack_scaled(format, group, lane, out);
  } else if (format == Format::kQ4) {
    const float scale = half_to_float(load16(group + 256 + lane * 2));
    const float minimum = half_to_float(load16(group + 288 + lane * 2));
    for (int i = 0; i < 16; ++i) {
      const uint8_t both = column[i / 4 * 64 + i % 4];
      out[i] = scale * static_cast<float>(both & 15) + minimum;
      out[i + 16] = scale * static_cast<float>(both >> 4) + minimum;
    }
  } else if (format == Format::kQ8) {
    const float scale = half_to_float(load16(group + 512 + lane * 2));
    for (int i = 0; i < kGroup; ++i) {
      out[i] = scale * static_cast<float>(column[i / 4 * 64 + i % 4] - 128);
    }
  } else if (format == Format::kBf16) {
    for (int i = 0; i < kGroup; ++i) out[i] = bf16_to_float(load16(column + i / 2 * 64 + i % 2 * 2));
  } else if (format == Format::kF16) {
    for (int i = 0; i < kGroup; ++i) out[i] = half_to_float(load16(group + (i * kStrip + lane) * 2));
  } else {
    for (int i = 0; i < kGroup; ++i) std::memcpy(out + i, column + i * 64, 4);
  }
}

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

}  // namespace

int PackSource::out() const {
  int sum = 0;
  for (const SourceMatrix& part : parts) sum += part.out;
  return sum;
}

int PackSource::in() const { return parts.empty() ? 0 : parts.front().in; }

bool is_exact(SourceType type, Format format) {
  switch (format) {
    case Format::kF32: return block_shape(type).inputs != 0;
    case Format::kF16: return type == SourceType::kF16;
    case Format::kBf16: return type == SourceType::kBf16;
    case Format::kQ4: return type == SourceType::kQ4_0 || type == SourceType::kQ4_1;
    case Format::kQ8:
      return type == SourceType::kQ4_0 || type == SourceType::kQ5_0 || type == SourceType::kQ8_0;
    default: return code_bits(type) != 0 && code_bits(type) <= scaled_bits(format);
  }
}

bool can_pack(SourceType type, Format format) {
  if (format == Format::kQ8 || format == Format::kBf16) return block_shape(type).inputs != 0;
  return is_exact(type, format);
}

Format default_format(const PackSource& source) {
  // From few bits to many.
  constexpr Format kFormats[] = {Format::kQ4, Format::kQ4S, Format::kQ5S,  Format::kQ6S,
                                 Format::kQ8, Format::kQ8S, Format::kBf16, Format::kF16};
  for (const Format format : kFormats) {
    bool fits = true;
    for (const SourceMatrix& part : source.parts) fits &= is_exact(part.type, format);
    if (fits) return format;
  }
  return Format::kF32;
}

size_t packed_strip_bytes(Format format, int in) { return in / kGroup * group_bytes(format); }

PackedMatrix packed_shape(Format format, int out, int in) {
  PackedMatrix matrix;
  matrix.format = format;
  matrix.out = out;
  matrix.in = in;
  matrix.strip_bytes = packed_strip_bytes(format, in);
  return matrix;
}

size_t packed_bytes(const PackedMatrix& matrix) { return matrix.strip_bytes * matrix.strips(); }

void check_source(const PackSource& source, Format format) {
  if (source.parts.empty()) refuse("a packed matrix needs at least one part");
  for (const SourceMatrix& part : source.parts) {
    const std::string shape = std::to_string(part.out) + " x " + std::to_string(part.in);
    if (!can_pack(part.type, format)) {
      refuse(std::string("weights of type ") + source_name(part.type) + " (" +
             std::to_string(static_cast<int>(part.type)) + ") cannot become this format; ask default_format");
    }
    const int multiple = block_shape(part.type).inputs > kGroup ? block_shape(part.type).inputs : kGroup;
    if (part.out <= 0 || part.in <= 0 || part.in % multiple != 0) {
      refuse("a matrix of " + shape + " needs inputs in multiples of " + std::to_string(multiple));
    }
    if (part.in != source.in()) {
      refuse("a part of " + shape + " stands beside one with " + std::to_string(source.in()) + " inputs");
    }
  }
  if (source.arrangement != Arrangement::kPaired) return;
  if (source.parts.size() != 2 || source.parts[0].out != source.parts[1].out ||
      source.parts[0].out % kGroup != 0) {
    refuse("pairs need two matrices of one size, with rows in multiples of 32");
  }
}

void pack_strips(const PackSource& source, const PackedMatrix& matrix, int begin, int end, uint8_t* data) {
  const size_t bytes = group_bytes(matrix.format);
  for (int strip = begin; strip < end; ++strip) {
    Column columns[kStrip];
    bool padded = false;
    for (int lane = 0; lane < kStrip; ++lane) {
      columns[lane] = find_column(source, strip * kStrip + lane);
      padded |= !columns[lane].row;
    }
    uint8_t* to = data + matrix.strip_bytes * strip;
    if (padded) std::memset(to, 0, matrix.strip_bytes);
    for (int group = 0; group < matrix.in / kGroup; ++group, to += bytes) {
      for (int lane = 0; lane < kStrip; ++lane) {
        switch (matrix.format) {
          case Format::kQ4: pack_q4(columns[lane], group, lane, to); break;
          case Format::kQ8: pack_q8(columns[lane], group, lane, to); break;
          case Format::kBf16: pack_bf16(columns[lane], group, lane, to); break;
          case Format::kF32: pack_f32(columns[lane], group, lane, to); break;
          case Format::kF16: pack_f16(columns[lane], group, lane, to); break;
          default:
            if (!columns[lane].row) break;
            pack_scaled(matrix.format, read_codes(columns[lane].type, columns[lane].row, group), lane, to);
        }
      }
    }
  }
}

void unpack_row(const PackedMatrix& matrix, int row, float* out) {
  const size_t bytes = group_bytes(matrix.format);
  const uint8_t* group = matrix.strip(row / kStrip);
  for (int g = 0; g < matrix.in / kGroup; ++g, group += bytes, out += kGroup) {
    unpack_group(matrix.format, group, row % kStrip, out);
  }
}

}  // namespace octavo
