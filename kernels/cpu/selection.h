// Ops::SelectPositions on the CPU, by an instruction set's kernels (selection_table.h): arguments,
// shapes and the choice are those of kernels/selection.h. Scores are computed in tiles of rows and
// chunks of the context by all threads, for as many rows at a time as fit into a fixed memory, and
// each row's best are found by one thread. A row's scores have one order of summation, whatever the
// batch. A place is a position's index in the list of spans of its sequence.
//
// `batch` is that of the keys' group (HostBatch::OfGroup), without pieces; one key per position.
// Other batches are a bug of the caller: HEDDLE_CHECK.
// Threads: called by the thread that runs the step, which works with those of `pool` and returns
// when args.out is written. Nothing of the arguments is kept.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/batch.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/selection_table.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace heddle::kernels::cpu {

// Working memory that is kept between calls, and grows to the largest of them: of scores 16 MiB or
// one row's, of each thread a chunk of keys and a row of queries (300 KiB with 64 heads of 128) or,
// if that is more, as many numbers as a row has scores. Owned by the device's Ops; one call at a
// time uses it.
struct SelectionScratch {
  struct Row {
    int32_t seq;
    int32_t index;  // among the sequence's rows
    int32_t sees;   // places [0, sees), of a tree with holes
  };
  // Rows of one sequence, and the chunk of its context that begins at a place.
  struct Task {
    int32_t first_row;
    int32_t n_rows;
    int32_t begin;  // a place
  };
  std::vector<Row> rows;
  std::vector<Task> tasks;
  std::vector<int32_t> span_position;  // [n_spans] first place of each, in its sequence
  Scratch scores;
  Scratch threads;
};

void SelectPositions(const HostBatch& batch, const SelectArgs& args,
                     const SelectionKernels& kernels, ThreadPool& pool, SelectionScratch& scratch);

}  // namespace heddle::kernels::cpu
