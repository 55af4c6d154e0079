// What the attention of one step consists of: work items, which threads may take in any order.
//
// Scores of a row (one query head of one token) are reduced segment by segment: 512 positions each,
// counted from position 0. What a segment gives for a row depends on nothing else, and a row's segments
// are merged in ascending order. So the bits of a row are the same however the text was cut into
// chunks, whatever else is in the step, and whichever items the plan makes of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "isa/unroll.h"

namespace octavo {

constexpr int kSegment = 512;  // positions
constexpr int kMaxItemRows = 12;

// What one step computes of one sequence.
struct AttentionSlice {
  int first_token = 0;             // its first row among the tokens of the step
  int tokens = 0;
  int start = 0;                   // position of its first token
  const int32_t* table = nullptr;  // block ids; -1 where all positions are behind every window
};

struct AttentionShape {
  int heads = 0;
  int kv_heads = 0;
  int block_tokens = 0;  // a multiple of 16
  int window = 0;        // positions that a query sees, its own included; 0: all
};

// One query head of one token. It sees the positions from `first` to `last`.
struct AttentionRow {
  int token;
  int head;  // among the query heads of its KV head
  int first;
  int last;
  int partial;  // number of its first segment's partial result; -1: none, its item gives all of it

  OCTAVO_INLINE int first_segment() const { return first / kSegment; }
  OCTAVO_INLINE int segments() const { return last / kSegment - first_segment() + 1; }
};

// Some rows, one KV head, some segments. All rows see these positions in blocks of one table.
struct AttentionItem {
  int row = 0;   // the first of its rows
  int rows = 0;  // at most kMaxItemRows
  int kv_head = 0;
  const int32_t* table = nullptr;
  int first = 0;  // positions that any of the rows sees here
  int last = 0;
  bool whole = false;  // all that its rows see: it writes outputs, not partial results
  float cost = 0;      // of no unit
};

// A plan without its memory: what the kernels read.
struct AttentionWork {
  int heads_per_kv = 0;
  int kv_heads = 0;
  int partials = 0;  // partial results of one KV head
  const AttentionRow* rows = nullptr;
  const AttentionItem* items = nullptr;
  int item_count = 0;
  const int* merges = nullptr;  // rows whose partial results must be merged, after all items
  int merge_count = 0;
};

// Makes plans; keeps its memory from one to the next.
class AttentionPlan {
 public:
  // `threads` decides how finely long texts are cut. The tables must stay until the step has run.
  const AttentionWork& build(const AttentionShape& shape, const AttentionSlice* slices, int count,
                             int threads);

  const AttentionWork& work() const { return work_; }

 private:
  // A segment that all tokens of a slice see up to its end.
  struct FullSegment {
    int segment;
    int32_t last_block;
    int slice;
  };
  struct RowRange {
    int begin = 0;
    int end = 0;
  };

  void add_rows(int slice);
  void find_shared();
  bool same_blocks(const FullSegment& a, const FullSegment& b) const;
  void add_shared_items(const FullSegment* members, int count);
  void add_own_items(int slice, float limit);
  void add_segments(AttentionItem item, int slice, float limit);
  void assign_partials(RowRange range);
  float total_cost() const;
  int lowest(int slice) const;

  AttentionShape shape_;
  const AttentionSlice* slices_ = nullptr;
  std::vector<AttentionRow> rows_;
  std::vector<RowRange> rows_of_slice_;
  std::vector<AttentionItem> items_;
  std::vector<int> merges_;
  std::vector<FullSegment> full_;
  std::vector<int> group_ends_;         // in full_: ends of runs that share their blocks
  std::vector<std::vector<int>> shared_;  // for each slice, ascending: segments shared with others
  std::vector<int> group_;              // slices whose rows the last shared group copied
  RowRange group_rows_;
  AttentionWork work_;
};

}  // namespace octavo
