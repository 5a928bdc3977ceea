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

void BeginRound(AttentionPlan* plan) {
  plan->later_rounds.push_back({static_cast<int32_t>(plan->decode.size()),
                                static_cast<int32_t>(plan->prefill.size()),
                                static_cast<int32_t>(plan->merges.size())});
  plan->n_partials = 0;
}

// Merges a chain's parts in the present round: to its rows of the output, or else to the first part
// of the next round.
void AddMerges(const PlannedChain& chain, const PartialRange& parts, bool is_last,
               AttentionPlan* plan) {
  for (int32_t row = 0; row < chain.rows; row += kDecodeTileRows) {
    AttentionMerge merge = {
        chain.seq, chain.first + row, parts, {}, std::min(kDecodeTileRows, chain.rows - row)};
    merge.own.begin += row;
    if (!is_last) merge.into = row;
    plan->merges.push_back(merge);
  }
}

}  // namespace

int64_t EmitChain(const PlannedChain& chain, int64_t keys_per_part, int64_t max_partials,
                  std::vector<AttentionTile>* tiles, AttentionPlan* plan) {
  const auto pieces = std::span(chain.pieces->list).subspan(chain.begin, chain.end - chain.begin);
  if (PartsOf(pieces, keys_per_part) * chain.stride > max_partials) {
    keys_per_part = chain.pieces->Longest() + 1;
  }
  const int64_t parts = PartsOf(pieces, keys_per_part);
  const int64_t at_once = std::min(parts, max_partials / chain.stride);
  if (at_once < std::min<int64_t>(parts, 2)) {
    plan->fits = false;
    return 0;
  }
  // Several rounds begin with a new one, so that the results of each are the first part of the
  // next.
  if (plan->n_partials + parts * chain.stride > max_partials && plan->n_partials > 0) {
    BeginRound(plan);
  }
  PartialRange range = {plan->n_partials, chain.stride, 0};
  for (const PlannedPiece& piece : pieces) {
    const int64_t keys = KeysOfPart(piece, keys_per_part);
    AttentionTile part = piece.tile;
    for (int64_t key = piece.tile.key_begin; key < piece.tile.key_end; key += keys) {
      if (range.count == at_once) {
        AddMerges(chain, range, /*is_last=*/false, plan);
        BeginRound(plan);
        range = {0, chain.stride, 1};
      }
      part.key_begin = static_cast<int32_t>(key);
      part.key_end = static_cast<int32_t>(std::min<int64_t>(key + keys, piece.tile.key_end));
      part.partial = range.begin + range.count++ * chain.stride;
      tiles->push_back(part);
    }
  }
  AddMerges(chain, range, /*is_last=*/true, plan);
  plan->n_partials = range.begin + range.count * chain.stride;
  return range.begin + at_once * chain.stride;
}

}  // namespace heddle::kernels::cuda
