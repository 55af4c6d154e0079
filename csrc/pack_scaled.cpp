#include "pack_scaled.h"

#include <cstring>

#include "half.h"
#include "isa/scaled_linear.h"

namespace octavo {
namespace {

void store_half(uint8_t* to, float value) {
  const uint16_t half = float_to_half(value);
  std::memcpy(to, &half, sizeof half);
}

float load_half(const uint8_t* from) {
  uint16_t half;
  std::memcpy(&half, from, sizeof half);
  return half_to_float(half);
}

template <int kBits>
struct ScaledColumn {
  using Group = ScaledGroup<kBits>;

  static void pack(const GroupCodes& source, int lane, uint8_t* group) {
    uint8_t* low = group + lane * 4;
    uint8_t* planes = low + Group::kPlanes;
    // Where the format's codes have no zero, the source's becomes a minimum of so many scales.
    const int moved = Group::kZero == 0 ? 0 : Group::kZero - source.zero;
    for (int plane = 0; plane < kBits - 4; ++plane) std::memset(planes + plane * 64, 0, 4);
    for (int i = 0; i < kGroup; ++i) {
      const int half = i / 16, j = i % 16 / 4, b = i % 4;
      const int code = source.codes[i] + moved;
      uint8_t& both = low[j * 64 + b];
      both = static_cast<uint8_t>(half ? both | (code & 15) << 4 : code & 15);
      for (int plane = 0; plane < kBits - 4; ++plane) {
        planes[plane * 64 + b] |= static_cast<uint8_t>((code >> (4 + plane) & 1) << (4 * half + j));
      }
    }
    store_half(group + Group::kScales + lane * 2, source.scale);
    for (int half = 0; half < Group::kFactors; ++half) {
      group[Group::kFactor + half * kStrip + lane] = static_cast<uint8_t>(source.factor[half]);
    }
    const bool as_minimum = Group::kZero == 0 && source.zero != 0;
    store_half(group + Group::kMinima + lane * 2, as_minimum ? source.scale : source.minimum);
    group[Group::kMinimumFactor + lane] =
        static_cast<uint8_t>(as_minimum ? -source.zero : source.minimum_factor);
  }

  static void unpack(const uint8_t* group, int lane, float* out) {
    const uint8_t* low = group + lane * 4;
    const uint8_t* planes = low + Group::kPlanes;
    const float scale = load_half(group + Group::kScales + lane * 2);
    const float minimum = load_half(group + Group::kMinima + lane * 2) *
                          static_cast<float>(static_cast<int8_t>(group[Group::kMinimumFactor + lane]));
    for (int i = 0; i < kGroup; ++i) {
      const int half = i / 16, j = i % 16 / 4, b = i % 4;
      int code = low[j * 64 + b] >> (4 * half) & 15;
      for (int plane = 0; plane < kBits - 4; ++plane) {
        code |= (planes[plane * 64 + b] >> (4 * half + j) & 1) << (4 + plane);
      }
      const int place = half * (Group::kFactors - 1) * kStrip + lane;
      const auto factor = static_cast<float>(static_cast<int8_t>(group[Group::kFactor + place]));
      out[i] = scale * factor * static_cast<float>(code - Group::kZero) + minimum;
    }
  }
};

// Calls body with the ScaledColumn of a format.
template <class Body>
void with_column(Format format, Body&& body) {
  switch (scaled_bits(format)) {
    case 4: return body(ScaledColumn<4>{});
    case 5: return body(ScaledColumn<5>{});
    case 6: return body(ScaledColumn<6>{});
    default: return body(ScaledColumn<8>{});
  }
}

}  // namespace

size_t scaled_group_bytes(Format format) {
  size_t bytes = 0;
  with_column(format, [&](auto column) { bytes = decltype(column)::Group::kBytes; });
  return bytes;
}

void pack_scaled(Format format, const GroupCodes& source, int lane, uint8_t* group) {
  with_column(format, [&](auto column) { column.pack(source, lane, group); });
}

void unpack_scaled(Format format, const uint8_t* group, int lane, float* out) {
  with_column(format, [&](auto column) { column.unpack(group, lane, out); });
}

}  // namespace octavo
