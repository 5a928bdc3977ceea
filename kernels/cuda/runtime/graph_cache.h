// Plays tapes as CUDA graphs. A decoding step is some hundred short kernels; started one by one
// each costs the processor microseconds and leaves the multiprocessors idle in between.
//
// A graph is made of a tape that came before, and changed where this step's differs: kernels stay,
// grids and parameters are free. So nothing has to be padded, no address must stay, and what a
// graph does is always what the step asked for. A sequence of kernels is launched directly when it
// is first met: making a graph costs milliseconds. So it is where the driver makes no graph, for
// want of memory, say: slower, but the same.
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/runtime/tape.h"

namespace heddle::kernels::cuda {

class GraphCache {
 public:
  struct Counts {
    int64_t direct = 0;    // tapes launched one kernel after the other
    int64_t made = 0;      // graphs
    int64_t replayed = 0;  // tapes, as graphs made before
    int64_t changed = 0;   // launches of those that differed
    int64_t refused = 0;   // changes that the driver did not make
    int64_t failed = 0;    // graphs that it did not make or launch
  };

  explicit GraphCache(Runtime& runtime) : runtime_(runtime) {}
  ~GraphCache();
  GraphCache(const GraphCache&) = delete;
  GraphCache& operator=(const GraphCache&) = delete;

  // Enqueues the tape's launches. `rows` tells apart steps whose launches differ nearly everywhere:
  // each has a graph of its own.
  absl::Status Play(const Tape& tape, int32_t rows);

  const Counts& counts() const { return counts_; }

 private:
  // Decoding batches of up to kSkinnyRows rows, in a handful of mixtures of kernels.
  static constexpr size_t kMaxGraphs = 64;
  static constexpr int64_t kMaxRefused = 2;
  static constexpr int64_t kMaxFailed = 3;  // then no more are made

  struct Entry {
    int32_t rows = 0;
    int64_t last_use = 0;
    Tape tape;                       // what the graph does
    Runtime::Graph graph = nullptr;  // nullptr: met once
  };

  Entry* Find(const Tape& tape, int32_t rows);
  void Remember(const Tape& tape, int32_t rows);
  absl::Status Change(const Tape& tape, Entry* entry);
  absl::Status Make(const Tape& tape, Entry* entry);
  absl::Status PlayGraph(const Tape& tape, Entry* entry);

  Runtime& runtime_;
  std::vector<Entry> entries_;
  Counts counts_;
  int64_t uses_ = 0;
};

}  // namespace heddle::kernels::cuda
