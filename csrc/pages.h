// Where keys and values lie in the pages of one layer: see types.h for the order inside a tile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa/unroll.h"
#include "types.h"

namespace octavo {

// How numbers are stored in pages.
enum class PageFormat : int { kF32, kBf16 };

OCTAVO_INLINE constexpr size_t number_bytes(PageFormat format) {
  return format == PageFormat::kF32 ? 4 : 2;
}

// The pages of one layer. A block's page begins at base + block * stride.
struct KvPages {
  uint8_t* base = nullptr;
  size_t stride = 0;     // bytes from one block's page to the next block's
  int block_tokens = 0;  // a multiple of kTile
  int kv_heads = 0;
  int dim = 0;           // numbers of one head: a multiple of 16
  PageFormat format = PageFormat::kBf16;

  // Of the keys, or of the values.
  OCTAVO_INLINE size_t tile_bytes() const { return kTile * dim * number_bytes(format); }
  OCTAVO_INLINE size_t head_bytes() const { return 2 * tile_bytes() * (block_tokens / kTile); }
  OCTAVO_INLINE size_t page_bytes() const { return kv_heads * head_bytes(); }

  OCTAVO_INLINE uint8_t* keys(int64_t block, int head, int tile) const {
    return base + block * stride + head * head_bytes() + tile * tile_bytes();
  }
  OCTAVO_INLINE uint8_t* values(int64_t block, int head, int tile) const {
    return keys(block, head, tile) + head_bytes() / 2;
  }
};

}  // namespace octavo
