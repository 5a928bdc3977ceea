// The pieces of a context (batch.h) as runs of places in its list of spans.
// Thread-safety: pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/batch.h"

namespace heddle::kernels {

// Places [begin, end) of a sequence's list of spans.
struct PieceRun {
  int32_t begin;
  int32_t end;
  int32_t position;  // of the key at `begin`
  int32_t turn;      // ContextPiece::turn
};

// Calls visit(PieceRun) for each piece that the list has a part of, in order. Where the pieces have
// more tokens than the list, which has `context_len`, those are missing at its front.
template <typename Visit>
void ForEachPieceRun(std::span<const ContextPiece> pieces, int32_t context_len, Visit visit) {
  int32_t missing = -context_len;
  for (const ContextPiece& piece : pieces) missing += piece.num_tokens;
  int32_t begin = 0;
  for (const ContextPiece& piece : pieces) {
    const int32_t passed = std::min(missing, piece.num_tokens);
    missing -= passed;
    if (passed == piece.num_tokens) continue;
    const int32_t end = begin + piece.num_tokens - passed;
    visit(PieceRun{begin, end, piece.position + passed, piece.turn});
    begin = end;
  }
}

}  // namespace heddle::kernels
