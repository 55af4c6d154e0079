// Keys and values of new tokens go to their slots; queries are made ready for attention.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "elementwise.h"
#include "pages.h"

namespace octavo {

enum class HeadKind : int { kQuery, kKey, kValue };

// What one head of a row is, and what happens to it between its product and attention.
struct HeadForm {
  HeadKind kind = HeadKind::kQuery;
  int number = 0;               // among the heads of its kind
  int size = 0;                 // numbers that are not padding
  const float* bias = nullptr;  // [dim]; null: none
  const float* norm = nullptr;  // [dim]; null: none
  float norm_eps = 0;
};

// Writes the keys and values of one token, [kv_heads, dim] each, to slot block * block_tokens + offset.
// Tokens of one tile may be written by several threads at once.
template <class Isa>
class KvWriter {
  using Vector = Lanes<Isa>;

 public:
  KvWriter(const KvPages& pages, int64_t slot)
      : pages_(pages),
        block_(slot / pages.block_tokens),
        tile_(static_cast<int>(slot % pages.block_tokens) / kTile),
        place_(static_cast<int>(slot % kTile)) {}

  void write_key(int head, const float* key) const {
    uint8_t* to = pages_.keys(block_, head, tile_);
    if (pages_.format == PageFormat::kF32) {
      for (int i = 0; i < pages_.dim; ++i) std::memcpy(to + i * kLine + place_ * 4, key + i, 4);
      return;
    }
    for (int i = 0; i < pages_.dim; i += 16) {
      uint16_t numbers[16];
      Vector::load(key + i).store_bf16(numbers);
      uint8_t* line = to + i / 2 * kLine + place_ * 4;
      for (int pair = 0; pair < 8; ++pair) std::memcpy(line + pair * kLine, numbers + 2 * pair, 4);
    }
  }

  void write_value(int head, const float* value) const {
    uint8_t* to = pages_.values(block_, head, tile_);
    const size_t row_bytes = static_cast<size_t>(pages_.dim) * 4;
    if (pages_.format == PageFormat::kF32) {
      std::memcpy(to + place_ * row_bytes, value, row_bytes);
      return;
    }
    uint8_t* pair_row = to + place_ / 2 * row_bytes;
    for (int i = 0; i < pages_.dim; i += 16) {
      Vector::load(value + i).store_bf16_halves(reinterpret_cast<uint16_t*>(pair_row + i * 4), place_ % 2);
    }
  }

 private:
  static constexpr int kLine = kTile * 4;  // bytes of one word of each of a tile's keys

  const KvPages& pages_;
  const int64_t block_;
  const int tile_, place_;
};

template <class Isa>
static void write_kv(const KvPages& pages, int64_t slot, const float* keys, const float* values) {
  const KvWriter<Isa> writer(pages, slot);
  for (int head = 0; head < pages.kv_heads; ++head) {
    writer.write_key(head, keys + static_cast<size_t>(head) * pages.dim);
    writer.write_value(head, values + static_cast<size_t>(head) * pages.dim);
  }
}

// One head of one token: adds its bias, norms and turns it in place where it is a query or a key, and
// writes keys and values to the token's slot. cos, sin: [dim / 2] of the token's position.
template <class Isa>
static void enter_head(const KvPages& pages, const HeadForm& form, int64_t slot, const float* cos,
                       const float* sin, float* head) {
  const int dim = pages.dim;
  if (form.bias) add_row<Isa>(head, form.bias, dim);
  if (form.norm) norm_heads<Isa>(head, 1, dim, form.size, form.norm, form.norm_eps);
  if (form.kind != HeadKind::kValue) rotate_heads<Isa>(head, 1, dim, cos, sin);
  if (form.kind == HeadKind::kQuery) return;
  const KvWriter<Isa> writer(pages, slot);
  if (form.kind == HeadKind::kKey) {
    writer.write_key(form.number, head);
  } else {
    writer.write_value(form.number, head);
  }
}

}  // namespace octavo
