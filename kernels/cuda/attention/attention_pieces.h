// Tiles of attention before they are split along their keys, for the sources that plan it: those of
// one launch, and chains of those that together are what some rows see. Includes neither CUDA nor
// Abseil. Thread-safety: plain data.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/attention/attention_params.h"
#include "kernels/cuda/attention/attention_plan.h"

namespace heddle::kernels::cuda {

inline constexpr int64_t kKeyTile = 64;  // splits end at borders of the kernels' key tiles

constexpr int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t ToKeyTiles(int64_t keys) { return DivideUp(keys, kKeyTile) * kKeyTile; }

// A prefix that several sequences share.
struct PlannedPrefix {
  int32_t seq;  // the sequence whose spans give its pages
  int32_t keys;
  int32_t shared_begin;  // into the plan's shared_rows
  int32_t rows;
  int32_t packed;
  PartialRange partials;  // those of its first packed row
};

// A tile before it is split.
struct PlannedPiece {
  AttentionTile tile;
  int32_t rows;      // packed
  int32_t prefix;    // the prefix before the tile's keys, or the one that the tile computes; or -1
  int32_t position;  // its first packed row's index among the prefix's
  bool is_shared;    // it computes the prefix itself
  bool is_chained = false;  // a PlannedChain has it
  bool is_partial() const { return prefix >= 0; }
  int64_t keys() const { return tile.key_end - tile.key_begin; }
  int64_t PartsOf(int64_t keys_per_part) const { return DivideUp(keys(), keys_per_part); }
};

// The pieces of one launch.
struct PlannedPieces {
  int32_t tile_rows;
  int32_t target_blocks;  // number that fills the device
  std::vector<PlannedPiece> list;

  int64_t Blocks(int64_t keys_per_part, int32_t n_kv_heads) const {
    int64_t blocks = 0;
    for (const PlannedPiece& piece : list) blocks += piece.PartsOf(keys_per_part) * n_kv_heads;
    return blocks;
  }
  // Partial results; those of chains are placed in rounds.
  int64_t Partials(int64_t keys_per_part) const {
    int64_t partials = 0;
    for (const PlannedPiece& piece : list) {
      const int64_t parts = piece.PartsOf(keys_per_part);
      if (piece.is_chained) continue;
      if (parts > 1 || piece.is_partial()) partials += parts * piece.rows;
    }
    return partials;
  }
  int64_t Longest() const {
    int64_t longest = 0;
    for (const PlannedPiece& piece : list) longest = std::max(longest, piece.keys());
    return longest;
  }
  int32_t MostRows() const {
    int32_t most = 0;
    for (const PlannedPiece& piece : list) most = std::max(most, piece.rows);
    return most;
  }
  // Keys per block if all had the same number.
  int64_t Load(int32_t n_kv_heads) const {
    int64_t work = 0;
    for (const PlannedPiece& piece : list) work += piece.keys() * n_kv_heads;
    return DivideUp(work, target_blocks);
  }
};

// Pieces [begin, end) of a launch, which are what packed rows [first, first + rows) of a sequence
// see. Each part has room for the results of `stride` rows.
struct PlannedChain {
  PlannedPieces* pieces;
  size_t begin, end;
  int32_t seq, first, rows, stride;
};

// Adds a chain's parts to `tiles`, one of the plan's two lists, and their merges: in the present
// round, whose partial results are the plan's n_partials, or else in a new one, or in several of
// its own, each of which begins with the result of the one before. Returns the partial results of
// the fullest of them. Clears plan->fits if no round has room for two parts.
int64_t EmitChain(const PlannedChain& chain, int64_t keys_per_part, int64_t max_partials,
                  std::vector<AttentionTile>* tiles, AttentionPlan* plan);

}  // namespace heddle::kernels::cuda
