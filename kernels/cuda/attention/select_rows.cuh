// The rows for which Ops::SelectPositions makes lists, and the places that they choose from.
#pragma once

#include "kernels/cuda/attention/select_params.h"
#include "kernels/cuda/primitives/primitives.cuh"

namespace heddle::kernels::cuda {

// The part of its sequence's context that a row of the batch sees: places [0, whole), and in a tree
// those from there on whose bits are set.
struct RowSight {
  int32_t seq;
  int32_t whole;
  int32_t end;    // behind the last place that it may see
  uint64_t tree;  // from `whole` on; 0: no tree
  bool chooses;   // it needs a list

  HEDDLE_DEVICE bool Sees(int place) const {
    return place < whole || (place < end && (tree >> (place - whole) & 1) != 0);
  }
};

HEDDLE_DEVICE int BitsOf(uint64_t mask) {
  return PopCount(static_cast<uint32_t>(mask)) + PopCount(static_cast<uint32_t>(mask >> 32));
}

// The sequence that has a row of the batch. Steps that decode have one for each.
HEDDLE_DEVICE int SequenceOf(const DeviceBatch& batch, int row) {
  if (row < batch.n_seqs && batch.q_begin[row] == row && batch.q_begin[row + 1] > row) return row;
  int low = 0, high = batch.n_seqs;
  while (high - low > 1) {  // the last sequence that does not begin behind the row
    const int middle = (low + high) / 2;
    if (batch.q_begin[middle] <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Reads the batch alone, which is there before the step's kernels.
HEDDLE_DEVICE RowSight SightOf(const DeviceBatch& batch, int row, int top_k) {
  RowSight sight = {};
  sight.seq = SequenceOf(batch, row);
  const int first = batch.q_begin[sight.seq];
  const int rows = batch.q_begin[sight.seq + 1] - first;
  const int before = batch.context_len[sight.seq] - rows;
  if (batch.tree_mask == nullptr || batch.tree_mask[first] == 0) {
    sight.whole = sight.end = before + row - first + 1;
    sight.chooses = sight.end > top_k;
    return sight;
  }
  sight.whole = before;
  sight.end = before + rows;
  sight.tree = batch.tree_mask[row];
  for (int i = 0; i < rows && !sight.chooses; ++i) {
    sight.chooses = before + BitsOf(batch.tree_mask[first + i]) > top_k;
  }
  return sight;
}

}  // namespace heddle::kernels::cuda
