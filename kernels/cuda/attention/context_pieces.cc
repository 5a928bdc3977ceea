#include "kernels/cuda/attention/context_pieces.h"

#include <algorithm>
#include <span>
#include <utility>

#include "kernels/piece_runs.h"

namespace heddle::kernels::cuda {
namespace {

std::vector<PieceRun> RunsOf(const HostBatch& batch, int32_t seq) {
  const std::span<const ContextPiece> pieces = batch.PiecesOf(seq);
  std::vector<PieceRun> runs;
  runs.reserve(pieces.size());
  ForEachPieceRun(pieces, batch.context_len[seq],
                  [&](const PieceRun& run) { runs.push_back(run); });
  return runs;
}

bool IsSame(const std::vector<SeenRange>& a, const std::vector<SeenRange>& b) {
  return std::ranges::equal(a, b, [](const SeenRange& x, const SeenRange& y) {
    return x.begin == y.begin && x.end == y.end && x.turn == y.turn;
  });
}

class BlockFinder {
 public:
  BlockFinder(const HostBatch& batch, int32_t seq, const PieceRule& rule)
      : rule_(rule),
        runs_(RunsOf(batch, seq)),
        first_row_(batch.q_begin[seq]),
        rows_(batch.q_begin[seq + 1] - first_row_),
        before_(batch.context_len[seq] - rows_),
        positions_(batch.positions) {}

  std::vector<RowBlock> Find(bool apart) const {
    const PieceRun& last = runs_.back();
    const bool turns_last = rule_.turns && last.turn != 0;
    std::vector<RowBlock> blocks;
    blocks.reserve(static_cast<size_t>(turns_last ? rows_ : 1));
    for (int32_t i = 0; i < rows_; ++i) {
      std::vector<SeenRange> ranges = EarlierRanges(i);
      const bool may_join = !turns_last && (!apart || ranges.empty());
      if (!blocks.empty() && may_join && IsSame(blocks.back().ranges, ranges)) {
        blocks.back().end = i + 1;
      } else {
        blocks.push_back({i, i + 1, std::move(ranges), last.begin});
      }
    }
    for (RowBlock& block : blocks) {
      const bool is_alone = block.end - block.begin == 1;
      if (!is_alone || (block.ranges.empty() && !turns_last)) continue;
      AddRange(last, block.begin, before_ + block.end, &block.ranges);
      block.own_begin = -1;
    }
    return blocks;
  }

 private:
  // The ranges that row i sees of the pieces before the last one.
  std::vector<SeenRange> EarlierRanges(int32_t i) const {
    std::vector<SeenRange> ranges;
    ranges.reserve(runs_.size());
    for (const PieceRun& run : std::span(runs_).first(runs_.size() - 1)) {
      AddRange(run, i, run.end, &ranges);
    }
    return ranges;
  }

  // Adds what row i sees of a piece up to place `end`, to the range before where it goes on.
  void AddRange(const PieceRun& run, int32_t i, int32_t end, std::vector<SeenRange>* ranges) const {
    int32_t begin = run.begin;
    if (rule_.window > 0) {
      const int32_t seen_as = positions_[static_cast<size_t>(int64_t{first_row_} + i)] + run.turn;
      const int32_t seen = rule_.in_chunks ? seen_as % rule_.window + 1 : rule_.window;
      begin = std::max(begin, run.begin + seen_as + 1 - seen - run.position);
    }
    if (begin >= end) return;
    const int32_t turn = rule_.turns ? run.turn : 0;
    if (!ranges->empty() && ranges->back().end == begin && ranges->back().turn == turn) {
      ranges->back().end = end;
    } else {
      ranges->push_back({begin, end, turn});
    }
  }

  const PieceRule& rule_;
  const std::vector<PieceRun> runs_;
  const int32_t first_row_, rows_;
  const int32_t before_;  // places before the rows' own
  const std::span<const int32_t> positions_;
};

}  // namespace

bool HasTurns(const HostBatch& batch) {
  return std::any_of(batch.pieces.begin(), batch.pieces.end(),
                     [](const ContextPiece& piece) { return piece.turn != 0; });
}

bool CountsPositions(const HostBatch& batch, int32_t seq, const PieceRule& rule) {
  const std::span<const ContextPiece> pieces = batch.PiecesOf(seq);
  if (pieces.empty()) return false;
  return rule.window > 0 || (rule.turns && std::any_of(pieces.begin(), pieces.end(),
                                                       [](auto& p) { return p.turn != 0; }));
}

std::vector<RowBlock> BlocksOfPieces(const HostBatch& batch, int32_t seq, const PieceRule& rule,
                                     bool apart) {
  return BlockFinder(batch, seq, rule).Find(apart);
}

}  // namespace heddle::kernels::cuda
