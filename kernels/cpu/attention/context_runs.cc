#include "kernels/cpu/attention/context_runs.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/piece_runs.h"

namespace heddle::kernels::cpu {

void ContextRuns::Find(const HostBatch& batch, const AttentionArgs& args) {
  runs_.clear();
  angles_.clear();
  counts_.clear();
  begin_.assign(1, 0);
  for (int32_t s = 0; s < batch.n_seqs(); ++s) {
    const std::span<const ContextPiece> pieces = batch.PiecesOf(s);
    const bool turns =
        args.rotation != nullptr &&
        std::any_of(pieces.begin(), pieces.end(), [](const auto& p) { return p.turn != 0; });
    const bool counts = !pieces.empty() && (args.window > 0 || turns);
    if (counts) {
      AddPieces(pieces, batch.context_len[s], turns ? args.rotation : nullptr);
    } else {
      runs_.push_back({0, batch.context_len[s], 0, 0, -1});
    }
    counts_.push_back(counts ? 1 : 0);
    begin_.push_back(static_cast<int32_t>(runs_.size()));
  }
}

void ContextRuns::AddPieces(std::span<const ContextPiece> pieces, int32_t context_len,
                            const QueryRotation* rotation) {
  ForEachPieceRun(pieces, context_len, [&](const PieceRun& piece) {
    ContextRun& run = runs_.emplace_back(
        ContextRun{piece.begin, piece.end, piece.position, piece.turn, /*angles=*/-1});
    if (piece.turn == 0 || rotation == nullptr) return;
    run.angles = static_cast<int32_t>(angles_.size());
    for (const float frequency : rotation->inv_freq) {
      angles_.push_back(static_cast<float>(std::cos(double{frequency} * piece.turn)));
    }
    for (const float frequency : rotation->inv_freq) {
      angles_.push_back(static_cast<float>(std::sin(double{frequency} * piece.turn)));
    }
  });
}

void ContextRuns::Turn(const ContextRun& run, const QueryRotation& rotation, const float* query,
                       int32_t head_dim, float* out) const {
  std::memcpy(out, query, static_cast<size_t>(head_dim) * sizeof(float));
  const size_t half = rotation.inv_freq.size();
  const float* cos = angles_.data() + run.angles;
  const float* sin = cos + half;
  const bool is_half = rotation.layout == RopeLayout::kHalf;
  for (size_t i = 0; i < half; ++i) {
    const size_t first = is_half ? i : 2 * i;
    const size_t second = is_half ? i + half : 2 * i + 1;
    out[first] = query[first] * cos[i] - query[second] * sin[i];
    out[second] = query[second] * cos[i] + query[first] * sin[i];
  }
}

}  // namespace heddle::kernels::cpu
