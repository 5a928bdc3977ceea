#include "kernels/cuda/attention/attention_pieces.h"

#include <span>

namespace heddle::kernels::cuda {
namespace {

// The keys of each part of a piece but its last one.
int64_t KeysOfPart(const PlannedPiece& piece, int64_t keys_per_part) {
  return ToKeyTiles(DivideUp(piece.keys(), piece.PartsOf(keys_per_part)));
}

int64_t PartsOf(std::span<const PlannedPiece> pieces, int64_t keys_per_part) {
  int64_t parts = 0;
  for (const PlannedPiece& piece : pieces) {
    parts += DivideUp(piece.keys(), KeysOfPart(piece, keys_per_part));
  }
  return parts;
}

}  // namespace

void EmitChain(const PlannedChain& chain, int64_t keys_per_part, int64_t max_partials,
               std::vector<AttentionTile>* tiles, AttentionPlan* plan) {
  const auto pieces = std::span(chain.pieces->list).subspan(chain.begin, chain.end - chain.begin);
  if (PartsOf(pieces, keys_per_part) * chain.stride > max_partials) {
    keys_per_part = chain.pieces->Longest() + 1;
  }
  const int64_t parts = PartsOf(pieces, keys_per_part);
  const int64_t partials = parts * chain.stride;
  if (partials > max_partials) {
    plan->fits = false;
    return;
  }
  if (plan->n_partials + partials > max_partials) {
    plan->later_rounds.push_back({static_cast<int32_t>(plan->decode.size()),
                                  static_cast<int32_t>(plan->prefill.size()),
                                  static_cast<int32_t>(plan->merges.size())});
    plan->n_partials = 0;
  }
  const PartialRange range = {plan->n_partials, chain.stride, static_cast<int32_t>(parts)};
  plan->n_partials += static_cast<int32_t>(partials);
  for (int32_t row = 0; row < chain.rows; row += kDecodeTileRows) {
    AttentionMerge merge = {
        chain.seq, chain.first + row, range, {}, std::min(kDecodeTileRows, chain.rows - row)};
    merge.own.begin += row;
    plan->merges.push_back(merge);
  }
  int32_t partial = range.begin;
  size_t at = tiles->size();
  tiles->resize(at + static_cast<size_t>(parts));  // grows by doubling
  for (const PlannedPiece& piece : pieces) {
    const int64_t keys = KeysOfPart(piece, keys_per_part);
    AttentionTile part = piece.tile;
    for (int64_t key = piece.tile.key_begin; key < piece.tile.key_end; key += keys) {
      part.key_begin = static_cast<int32_t>(key);
      part.key_end = static_cast<int32_t>(std::min<int64_t>(key + keys, piece.tile.key_end));
      part.partial = partial;
      partial += chain.stride;
      (*tiles)[at++] = part;
    }
  }
}

}  // namespace heddle::kernels::cuda
