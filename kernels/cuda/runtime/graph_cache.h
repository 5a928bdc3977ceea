// Plays tapes as CUDA graphs. A decoding step is some hundred short kernels; starting them one by
// one costs microseconds of the processor each and leaves the multiprocessors idle in between.
//
// A graph is made from an earlier tape and changed where this step's tape differs: the kernels are
// the same, grids and parameters may change. So nothing has to be padded, addresses may change, and
// a graph always does what the step asked for. A sequence of kernels is launched directly when it
// is first met, because making a graph costs milliseconds. It is also launched directly if the
// driver makes no graph, for want of memory, say: slower, but with the same result.
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
    int64_t replayed = 0;  // tapes played as existing graphs
    int64_t changed = 0;   // launches in these that differed
    int64_t refused = 0;   // changes that the driver refused
    int64_t failed = 0;    // graphs that it failed to make or launch
  };

  explicit GraphCache(Runtime& runtime) : runtime_(runtime) {}
  ~GraphCache();
  GraphCache(const GraphCache&) = delete;
  GraphCache& operator=(const GraphCache&) = delete;

  // Enqueues the tape's launches. `rows` distinguishes steps whose launches differ nearly
  // everywhere: each has its own graph.
  absl::Status Play(const Tape& tape, int32_t rows);

  const Counts& counts() const { return counts_; }

 private:
  // Decoding batches have up to kSkinnyRows rows, in a few mixtures of kernels.
  static constexpr size_t kMaxGraphs = 64;
  static constexpr int64_t kMaxRefused = 2;
  static constexpr int64_t kMaxFailed = 3;  // then no more are made

  struct Entry {
    int32_t rows = 0;
    int64_t last_use = 0;
    Tape tape;                       // the content of the graph
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
