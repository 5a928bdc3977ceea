// The ranges that the rows of a step see of contexts that are made of pieces (batch.h): places of
// the list of spans, known on the host, where positions are not places in that list and a layer
// must know them, because it has a window or because queries are rotated further for a piece.
//
// The last piece is as a context of its own: there places differ as positions do, and kernels mask
// it as they do others. Of earlier ones a row sees whole ranges. Rows that see the same ranges are
// together.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/batch.h"

namespace heddle::kernels::cuda {

// Whether some row of the batch is to be rotated further for a piece.
bool HasTurns(const HostBatch& batch);

// How a layer's rows depend on positions.
struct PieceRule {
  int32_t window = 0;
  bool in_chunks = false;  // AttentionArgs
  bool turns = false;      // it rotates queries
};

// Whether rows of a sequence find what they see by positions. Otherwise places do, as in contexts
// without pieces.
bool CountsPositions(const HostBatch& batch, int32_t seq, const PieceRule& rule);

// Places [begin, end) of a sequence's list.
struct SeenRange {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t turn = 0;  // of the queries
};

// Rows [begin, end) of a sequence, counted from its first one.
struct RowBlock {
  int32_t begin = 0;
  int32_t end = 0;
  std::vector<SeenRange> ranges;  // in order; each row sees all of each
  // They also see the places from here on up to themselves, with a window's last ones; -1: no.
  int32_t own_begin = -1;
};

// All rows in order. Those behind the last block with ranges are one block. `apart`: others are by
// themselves. REQUIRES: CountsPositions; `batch` is the view of the layers' group
// (HostBatch::OfGroup).
std::vector<RowBlock> BlocksOfPieces(const HostBatch& batch, int32_t seq, const PieceRule& rule,
                                     bool apart);

}  // namespace heddle::kernels::cuda
