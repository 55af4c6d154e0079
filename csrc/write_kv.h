// Keys and values of new tokens go to their slots; queries are made ready for attention.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "elementwise.h"
#include "pages.h"

namespace octavo {

// What happens to queries and keys between their product and attention, in one layer.
struct HeadForm {
  int heads = 0;
  const float* q_norm = nullptr;  // [dim]; null: no norm of heads
  const float* k_norm = nullptr;  // [dim]
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

  void write(const float* keys, const float* values) const {
    for (int head = 0; head < pages_.kv_heads; ++head) {
      uint8_t* to_keys = pages_.keys(block_, head, tile_);
      uint8_t* to_values = pages_.values(block_, head, tile_);
      const size_t from = static_cast<size_t>(head) * pages_.dim;
      if (pages_.format == PageFormat::kBf16) {
        write_bf16(keys + from, values + from, to_keys, to_values);
      } else {
        write_f32(keys + from, values + from, to_keys, to_values);
      }
    }
  }

 private:
  static constexpr int kLine = kTile * 4;  // bytes of one word of each of a tile's keys

  void write_bf16(const float* keys, const float* values, uint8_t* to_keys, uint8_t* to_values) const {
    for (int i = 0; i < pages_.dim; i += 16) {
      uint16_t numbers[16];
      Vector::load(keys + i).store_bf16(numbers);
      uint8_t* to = to_keys + i / 2 * kLine + place_ * 4;
      for (int pair = 0; pair < 8; ++pair) std::memcpy(to + pair * kLine, numbers + 2 * pair, 4);
    }
    uint8_t* pair_row = to_values + static_cast<size_t>(place_ / 2) * pages_.dim * 4;
    for (int i = 0; i < pages_.dim; i += 16) {
      auto* to = reinterpret_cast<uint16_t*>(pair_row + i * 4);
      Vector::load(values + i).store_bf16_halves(to, place_ % 2);
    }
  }

  void write_f32(const float* keys, const float* values, uint8_t* to_keys, uint8_t* to_values) const {
    for (int i = 0; i < pages_.dim; ++i) {
      std::memcpy(to_keys + i * kLine + place_ * 4, keys + i, 4);
    }
    const size_t row_bytes = static_cast<size_t>(pages_.dim) * 4;
    std::memcpy(to_values + place_ * row_bytes, values, row_bytes);
  }

  const KvPages& pages_;
  const int64_t block_;
  const int tile_, place_;
};

template <class Isa>
static void write_kv(const KvPages& pages, int64_t slot, const float* keys, const float* values) {
  KvWriter<Isa>(pages, slot).write(keys, values);
}

// One token's row [heads + 2 * kv_heads, dim] of queries, keys and values: normalises heads where the
// model does, turns queries and keys in place, and writes keys and values to the token's slot.
// cos, sin: [dim / 2] of the token's position.
template <class Isa>
static void enter_attention(const KvPages& pages, const HeadForm& form, int64_t slot, const float* cos,
                            const float* sin, float* row) {
  const int dim = pages.dim;
  float* keys = row + static_cast<size_t>(form.heads) * dim;
  if (form.q_norm) norm_heads<Isa>(row, form.heads, dim, form.q_norm, form.norm_eps);
  if (form.k_norm) norm_heads<Isa>(keys, pages.kv_heads, dim, form.k_norm, form.norm_eps);
  rotate_heads<Isa>(row, form.heads + pages.kv_heads, dim, cos, sin);
  write_kv<Isa>(pages, slot, keys, keys + static_cast<size_t>(pages.kv_heads) * dim);
}

}  // namespace octavo
