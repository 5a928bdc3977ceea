// Turns a TestBatch into a step of speculation, or into one of sequences with a common prompt.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels::test {

// Rows [first, first + rows) become a tree: each but the first has a parent among those before it,
// in order of depth.
inline void GrowTree(Random& random, int32_t first, int32_t rows, std::vector<uint64_t>* masks,
                     std::vector<int32_t>* positions) {
  int32_t level = 0;  // where the last whole level begins
  int32_t next = 1;   // and the one that grows
  for (int32_t i = 0; i < rows; ++i) {
    uint64_t parents = 0;
    if (i > 0) {
      if (i > next && random.Below(3) == 0) level = std::exchange(next, i);
      const int32_t parent = level + random.Below(next - level);
      parents = (*masks)[first + parent];
      (*positions)[first + i] = (*positions)[first + parent] + 1;
    }
    (*masks)[first + i] = parents | uint64_t{1} << i;
  }
}

// The rows of these sequences become trees.
inline void GrowTrees(Random& random, const std::vector<int32_t>& sequences, TestBatch* batch) {
  if (sequences.empty()) return;
  batch->tree_mask.assign(batch->token_ids.size(), 0);
  for (const int32_t s : sequences) {
    const int32_t first = batch->q_begin[s];
    GrowTree(random, first, batch->q_begin[s + 1] - first, &batch->tree_mask, &batch->positions);
  }
}

// The contexts of these sequences become up to four pieces with positions of their own, the first
// of which may have lost its front, and each of which but the last may have a turn. The others stay
// in plain order.
inline void CutPieces(Random& random, const std::vector<int32_t>& sequences, bool turns,
                      TestBatch* batch) {
  batch->piece_begin.assign(1, 0);
  const auto num_sequences = static_cast<int32_t>(batch->context_len.size());
  for (int32_t s = 0; s < num_sequences; ++s) {
    const bool is_cut = std::find(sequences.begin(), sequences.end(), s) != sequences.end();
    const int32_t rows = batch->q_begin[s + 1] - batch->q_begin[s];
    for (int32_t left = batch->context_len[s]; is_cut && left > 0;) {
      const bool is_first = left == batch->context_len[s];
      const bool is_last = batch->pieces.size() - batch->piece_begin.back() == 3 || left <= rows;
      ContextPiece piece;
      piece.num_tokens = is_last ? left : 1 + random.Below(left - rows);
      left -= piece.num_tokens;
      if (is_first) piece.num_tokens += 512 * random.Below(2);
      if (!is_first) piece.position = random.Below(900);
      if (turns && left > 0) piece.turn = random.Below(3) * 40;
      for (int32_t i = 0; left == 0 && i < rows; ++i) {
        batch->positions[batch->q_begin[s] + i] = piece.position + piece.num_tokens - rows + i;
      }
      batch->pieces.push_back(piece);
    }
    batch->piece_begin.push_back(static_cast<int32_t>(batch->pieces.size()));
  }
}

// The first `tokens` positions of these sequences lie on the pages of the first of them.
// REQUIRES: their spans are cut alike so far, and none of their rows lies there.
struct SharedPages {
  std::vector<int32_t> sequences;
  int32_t tokens;
};
inline void SharePages(const SharedPages& shared, TestBatch* batch) {
  const int32_t from = batch->span_begin[shared.sequences[0]];
  for (const int32_t s : shared.sequences) {
    const int32_t rows = batch->q_begin[s + 1] - batch->q_begin[s];
    HEDDLE_CHECK(shared.tokens <= batch->context_len[s] - rows, "a row's own page is shared");
    const int32_t to = batch->span_begin[s];
    for (int32_t i = 0, done = 0; done < shared.tokens; ++i) {
      HEDDLE_CHECK(batch->span_tokens[to + i] == batch->span_tokens[from + i], "spans differ");
      done += batch->span_tokens[from + i];
      batch->span_page[to + i] = batch->span_page[from + i];
    }
  }
}

}  // namespace heddle::kernels::test
