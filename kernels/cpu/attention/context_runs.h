// The contexts of a batch as runs of consecutive positions: one for each sequence, or one for each
// piece (batch.h) where positions are not places in the list of spans and the layer must know them,
// because it has a window or because queries are rotated further for a piece.
//
// Thread-safety: none; found by one thread before all of them read it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/batch.h"
#include "kernels/ops.h"

namespace heddle::kernels::cpu {

// Places [begin, end) of a sequence's span list.
struct ContextRun {
  int32_t begin;
  int32_t end;
  int32_t position;  // of the key at `begin`
  int32_t turn;      // ContextPiece::turn
  int32_t angles;    // where the angles of `turn` begin; -1: queries are as they are

  int32_t length() const { return end - begin; }
};

class ContextRuns {
 public:
  // Finds the runs of all sequences, as a layer with these arguments needs them. Keeps its memory.
  void Find(const HostBatch& batch, const AttentionArgs& args);

  // At least one, in the order of the list.
  std::span<const ContextRun> Of(int32_t seq) const {
    return std::span(runs_).subspan(static_cast<size_t>(begin_[seq]),
                                    static_cast<size_t>(begin_[seq + 1] - begin_[seq]));
  }
  // Whether rows of the sequence find their places by their positions.
  bool CountsPositions(int32_t seq) const { return counts_[seq] != 0; }
  bool has_turns() const { return !angles_.empty(); }

  // Writes `query` [head_dim], rotated further as the run says, to `out`.
  // REQUIRES: run.angles >= 0.
  void Turn(const ContextRun& run, const QueryRotation& rotation, const float* query,
            int32_t head_dim, float* out) const;

 private:
  void AddPieces(std::span<const ContextPiece> pieces, int32_t context_len,
                 const QueryRotation* rotation);

  std::vector<ContextRun> runs_;
  std::vector<int32_t> begin_;  // [n_seqs + 1]
  std::vector<char> counts_;    // [n_seqs]
  std::vector<float> angles_;   // of each turn [2, rotary_dim / 2]: cosines, then sines
};

}  // namespace heddle::kernels::cpu
