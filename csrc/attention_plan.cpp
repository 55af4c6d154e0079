#include "attention_plan.h"

#include <algorithm>
#include <cassert>

namespace octavo {

namespace {

// A tile that comes from memory takes as long as arithmetic for some 16 rows; all rows that need it
// share this.
float item_cost(int rows, int sharing_rows, int first, int last) {
  const int tiles = last / 16 - first / 16 + 1;
  return static_cast<float>(tiles * rows) * (1.0f + 16.0f / static_cast<float>(sharing_rows)) + 24.0f;
}

int parts_of(int rows) { return (rows + kMaxItemRows - 1) / kMaxItemRows; }

}  // namespace

const AttentionWork& AttentionPlan::build(const AttentionShape& shape, const AttentionSlice* slices,
                                          int count, int threads) {
  assert(shape.heads % shape.kv_heads == 0 && shape.block_tokens % 16 == 0);
  shape_ = shape;
  slices_ = slices;
  rows_.clear();
  rows_of_slice_.clear();
  items_.clear();
  merges_.clear();
  group_.clear();
  work_ = {};
  if (static_cast<int>(shared_.size()) < count) shared_.resize(count);
  for (int slice = 0; slice < count; ++slice) {
    shared_[slice].clear();
    add_rows(slice);
  }
  find_shared();
  for (size_t begin = 0, group = 0; group < group_ends_.size(); begin = group_ends_[group++]) {
    const int size = group_ends_[group] - static_cast<int>(begin);
    if (size > 1) add_shared_items(&full_[begin], size);
  }
  // Cut so that no item takes much of a thread's share; with one thread there is nothing to gain.
  const float limit = threads == 1 ? 1e30f : total_cost() / (4.0f * threads);
  for (int slice = 0; slice < count; ++slice) add_own_items(slice, limit);
  work_.heads_per_kv = shape.heads / shape.kv_heads;
  work_.kv_heads = shape.kv_heads;
  work_.rows = rows_.data();
  work_.items = items_.data();
  work_.item_count = static_cast<int>(items_.size());
  work_.merges = merges_.data();
  work_.merge_count = static_cast<int>(merges_.size());
  return work_;
}

// The first position that any token of the slice sees.
int AttentionPlan::lowest(int slice) const {
  const int start = slices_[slice].start;
  return shape_.window == 0 ? 0 : std::max(0, start - shape_.window + 1);
}

void AttentionPlan::add_rows(int slice) {
  const AttentionSlice& from = slices_[slice];
  const int heads = shape_.heads / shape_.kv_heads;
  RowRange range;
  range.begin = static_cast<int>(rows_.size());
  for (int token = 0; token < from.tokens; ++token) {
    const int last = from.start + token;
    const int first = shape_.window == 0 ? 0 : std::max(0, last - shape_.window + 1);
    for (int head = 0; head < heads; ++head) {
      rows_.push_back({from.first_token + token, head, first, last, -1});
    }
  }
  range.end = static_cast<int>(rows_.size());
  rows_of_slice_.push_back(range);
}

bool AttentionPlan::same_blocks(const FullSegment& a, const FullSegment& b) const {
  if (a.segment != b.segment || a.last_block != b.last_block) return false;
  const int size = shape_.block_tokens;
  const int begin = a.segment * kSegment / size;
  const int end = ((a.segment + 1) * kSegment - 1) / size + 1;
  const int32_t *left = slices_[a.slice].table, *right = slices_[b.slice].table;
  return std::equal(left + begin, left + end, right + begin);
}

// Fills full_, with segments of equal blocks side by side, and shared_.
void AttentionPlan::find_shared() {
  full_.clear();
  group_ends_.clear();
  const int count = static_cast<int>(rows_of_slice_.size());
  if (count < 2) return;
  for (int slice = 0; slice < count; ++slice) {
    if (slices_[slice].tokens == 0) continue;
    const int end = (slices_[slice].start + 1) / kSegment;
    for (int segment = lowest(slice) / kSegment; segment < end; ++segment) {
      const int last = ((segment + 1) * kSegment - 1) / shape_.block_tokens;
      full_.push_back({segment, slices_[slice].table[last], slice});
    }
  }
  std::sort(full_.begin(), full_.end(), [](const FullSegment& a, const FullSegment& b) {
    if (a.segment != b.segment) return a.segment < b.segment;
    if (a.last_block != b.last_block) return a.last_block < b.last_block;
    return a.slice < b.slice;
  });
  for (size_t begin = 0; begin < full_.size();) {
    size_t end = begin + 1;
    while (end < full_.size() && same_blocks(full_[begin], full_[end])) ++end;
    group_ends_.push_back(static_cast<int>(end));
    for (size_t i = begin; i < end && end - begin > 1; ++i) {
      shared_[full_[i].slice].push_back(full_[i].segment);
    }
    begin = end;
  }
}

void AttentionPlan::assign_partials(RowRange range) {
  for (int i = range.begin; i < range.end; ++i) {
    if (rows_[i].partial >= 0) continue;
    rows_[i].partial = work_.partials;
    work_.partials += rows_[i].segments();
    merges_.push_back(i);
  }
}

// One segment for the rows of all slices that share its blocks.
void AttentionPlan::add_shared_items(const FullSegment* members, int count) {
  const bool as_before =
      static_cast<int>(group_.size()) == count &&
      std::equal(group_.begin(), group_.end(), members,
                 [](int slice, const FullSegment& member) { return slice == member.slice; });
  if (!as_before) {
    group_.clear();
    group_rows_.begin = static_cast<int>(rows_.size());
    for (int member = 0; member < count; ++member) {
      group_.push_back(members[member].slice);
      const RowRange range = rows_of_slice_[members[member].slice];
      assign_partials(range);
      for (int i = range.begin; i < range.end; ++i) {
        const AttentionRow row = rows_[i];  // push_back may move the rows
        rows_.push_back(row);
      }
    }
    group_rows_.end = static_cast<int>(rows_.size());
  }
  AttentionItem item;
  item.table = slices_[members[0].slice].table;
  item.last = (members[0].segment + 1) * kSegment - 1;
  const int rows = group_rows_.end - group_rows_.begin, parts = parts_of(rows);
  for (item.kv_head = 0; item.kv_head < shape_.kv_heads; ++item.kv_head) {
    for (int part = 0; part < parts; ++part) {
      item.row = group_rows_.begin + rows * part / parts;
      item.rows = group_rows_.begin + rows * (part + 1) / parts - item.row;
      int lowest = item.last;
      for (int i = 0; i < item.rows; ++i) lowest = std::min(lowest, rows_[item.row + i].first);
      item.first = std::max(lowest, members[0].segment * kSegment);
      item.cost = item_cost(item.rows, rows, item.first, item.last);
      // Rows of a long slice may have their windows behind what its first rows share.
      if (item.first <= item.last) items_.push_back(item);
    }
  }
}

// What a slice does not share.
void AttentionPlan::add_own_items(int slice, float limit) {
  const RowRange range = rows_of_slice_[slice];
  const int rows = range.end - range.begin, parts = parts_of(rows);
  AttentionItem item;
  item.table = slices_[slice].table;
  for (item.kv_head = 0; item.kv_head < shape_.kv_heads; ++item.kv_head) {
    for (int part = 0; part < parts; ++part) {
      item.row = range.begin + static_cast<int>(static_cast<int64_t>(rows) * part / parts);
      item.rows = range.begin + static_cast<int>(static_cast<int64_t>(rows) * (part + 1) / parts) -
                  item.row;
      item.first = rows_[item.row].first;
      item.last = rows_[item.row + item.rows - 1].last;
      item.cost = item_cost(item.rows, rows, item.first, item.last);
      item.whole = shared_[slice].empty() &&
                   (item.cost <= limit || item.first / kSegment == item.last / kSegment);
      if (item.whole) {
        items_.push_back(item);
      } else {
        assign_partials({item.row, item.row + item.rows});
        add_segments(item, slice, limit);
      }
    }
  }
}

// Cuts an item between segments, and leaves out those that shared items compute.
void AttentionPlan::add_segments(AttentionItem item, int slice, float limit) {
  const std::vector<int>& shared = shared_[slice];
  const RowRange range = rows_of_slice_[slice];
  const int first = item.first, last = item.last;
  bool open = false;
  for (int segment = first / kSegment; segment <= last / kSegment; ++segment) {
    const int begin = std::max(first, segment * kSegment);
    const int end = std::min(last, (segment + 1) * kSegment - 1);
    const bool other = std::binary_search(shared.begin(), shared.end(), segment);
    const float cost = item_cost(item.rows, range.end - range.begin, open ? item.first : begin, end);
    if (open && (other || cost > limit)) {
      items_.push_back(item);
      open = false;
    }
    if (other) continue;
    if (!open) item.first = begin;
    item.last = end;
    item.cost = item_cost(item.rows, range.end - range.begin, item.first, end);
    open = true;
  }
  if (open) items_.push_back(item);
}

float AttentionPlan::total_cost() const {
  float total = 0;
  for (const AttentionItem& item : items_) total += item.cost;
  for (const RowRange& range : rows_of_slice_) {
    const int rows = range.end - range.begin;
    if (rows == 0) continue;
    // As if all rows saw what the middle one sees; segments that are shared are a small error.
    const AttentionRow& middle = rows_[range.begin + rows / 2];
    total += item_cost(rows, rows, middle.first, middle.last) * static_cast<float>(shape_.kv_heads);
  }
  return total;
}

}  // namespace octavo
