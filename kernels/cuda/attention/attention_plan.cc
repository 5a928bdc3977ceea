#include "kernels/cuda/attention/attention_plan.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "kernels/cuda/attention/attention_pieces.h"
#include "kernels/cuda/attention/shared_prefixes.h"
#include "kernels/cuda/attention/wide_pages.h"

namespace heddle::kernels::cuda {
namespace {

class Planner {
 public:
  Planner(const HostBatch& batch, const SequenceRange& sequences, const AttentionGrouping& grouping,
          const AttentionBudget& budget)
      : batch_(batch),
        sequences_(sequences),
        grouping_(grouping),
        rule_{grouping.window, grouping.in_chunks, grouping.turns_queries},
        all_partials_(budget.max_partials),
        max_partials_(budget.max_partials / 2) {
    const bool is_hopper = grouping.prefill_rows == kHopperTileRows;
    const int32_t blocks = budget.multiprocessors * kBlocksPerMultiprocessor;
    narrow_ = {kDecodeTileRows, blocks, {}};
    wide_ = {grouping.prefill_rows, is_hopper ? budget.multiprocessors : blocks, {}};
  }

  AttentionPlan Plan() {
    if (grouping_.shares_prefixes) SharePrefixes();
    AddPieces();
    const auto fits = [&](const PlannedPieces& pieces) {
      return pieces.Partials(pieces.Longest() + 1) <= max_partials_;
    };
    if (!prefixes_.empty() && !(fits(narrow_) && fits(wide_))) {
      Unshare();
      AddPieces();
    }
    const int64_t narrow = NarrowKeysPerPart(), wide = WideKeysPerPart();
    for (const bool is_shared : {true, false}) {
      Emit(wide_, wide, is_shared, plan_.prefill);
      Emit(narrow_, narrow, is_shared, plan_.decode);
    }
    if (grouping_.in_chunks) CutTrees();
    plan_.decode_rows = narrow_.MostRows() <= kNarrowTileRows ? kNarrowTileRows : kDecodeTileRows;
    std::stable_sort(plan_.prefill.begin(), plan_.prefill.end(),
                     [](const AttentionTile& a, const AttentionTile& b) {
                       return a.key_end - a.key_begin > b.key_end - b.key_begin;
                     });
    int64_t most_partials = plan_.n_partials;
    for (const PlannedChain& chain : chains_) {
      const bool is_wide = chain.pieces == &wide_;
      const int64_t partials = EmitChain(chain, is_wide ? wide : narrow, all_partials_,
                                         is_wide ? &plan_.prefill : &plan_.decode, &plan_);
      most_partials = std::max(most_partials, partials);
    }
    plan_.n_partials = static_cast<int32_t>(most_partials);
    return std::move(plan_);
  }

 private:
  bool IsPlanned(int32_t s) const {
    const int32_t rows = RowsOf(s);
    if (rows > 0 && CountsPositions(batch_, s, rule_)) return !grouping_.expands;
    return rows > 0 && rows >= grouping_.least_rows && rows <= grouping_.most_rows;
  }
  int32_t RowsOf(int32_t s) const { return batch_.q_begin[s + 1] - batch_.q_begin[s]; }
  int32_t PackedOf(int32_t s) const { return RowsOf(s) * grouping_.group; }

  // Whether all rows are in one tile and see the first key of the context.
  bool MayShare(int32_t s) const {
    const int32_t rows = RowsOf(s);
    return IsPlanned(s) && !CountsPositions(batch_, s, rule_) &&
           (rows == 1 || PackedOf(s) <= grouping_.prefill_rows) && FirstKeyOf(s, rows - 1) == 0 &&
           FirstListed(s) == rows;
  }

  // The keys before a sequence's own rows.
  int32_t BeforeRows(int32_t s) const { return batch_.context_len[s] - RowsOf(s); }

  // The keys that row i of a sequence sees; in groupings with lists, which have no windows.
  int32_t SeenBy(int32_t s, int32_t i) const {
    if (!IsTree(s)) return BeforeRows(s) + i + 1;
    return BeforeRows(s) +
           std::popcount(batch_.tree_mask[static_cast<size_t>(int64_t{batch_.q_begin[s]} + i)]);
  }

  // The first row of a sequence that has a list, as all behind it do: kernels/selection.h.
  int32_t FirstListed(int32_t s) const {
    const int32_t rows = RowsOf(s);
    if (grouping_.top_k == 0) return rows;
    if (!IsTree(s)) return std::clamp(grouping_.top_k - BeforeRows(s), 0, rows);
    for (int32_t i = 0; i < rows; ++i) {
      if (SeenBy(s, i) > grouping_.top_k) return 0;
    }
    return rows;
  }

  // The first key that row i of a sequence sees, at least up to its rows.
  int32_t FirstKeyOf(int32_t s, int32_t i) const {
    if (grouping_.window == 0) return 0;
    const int32_t before = BeforeRows(s);
    if (!grouping_.in_chunks) return std::max(0, before + i + 1 - grouping_.window);
    const auto position = [&](int32_t row) {
      return batch_.positions[static_cast<size_t>(int64_t{batch_.q_begin[s]} + row)];
    };
    const int32_t behind = position(i) % grouping_.window;  // positions of its chunk before its own
    if (!IsTree(s)) return std::max(0, before + i - behind);
    return std::max(0, before + std::min(0, position(i) - position(0) - behind));
  }
  // Takes what lies in other chunks than a row out of its mask.
  void CutTrees() {
    for (int32_t s = sequences_.begin; s < sequences_.end; ++s) {
      if (RowsOf(s) == 0 || !IsTree(s)) continue;
      const int32_t first = batch_.q_begin[s], end = batch_.q_begin[s + 1];
      const auto chunk = [&](int32_t row) {
        return batch_.positions[static_cast<size_t>(row)] / grouping_.window;
      };
      if (chunk(first) == chunk(end - 1)) continue;  // positions rise
      if (plan_.chunk_masks.empty()) {
        plan_.chunk_masks.assign(batch_.tree_mask.begin(), batch_.tree_mask.end());
      }
      for (int32_t row = first; row < end; ++row) {
        uint64_t in_it = 0;
        for (int32_t i = first; i < end; ++i) {
          in_it |= uint64_t{chunk(i) == chunk(row)} << (i - first);
        }
        plan_.chunk_masks[static_cast<size_t>(row)] &= in_it;
      }
    }
  }
  bool IsTree(int32_t s) const { return !grouping_.in_order && batch_.IsTree(s); }

  void SharePrefixes() {
    std::vector<int32_t> candidates;
    for (int32_t s = sequences_.begin; s < sequences_.end; ++s) {
      if (MayShare(s)) candidates.push_back(s);
    }
    if (candidates.size() < 2) return;
    const auto found = FindSharedPrefixes(batch_, candidates, kMinSharedKeys);
    int64_t saved = 0;
    for (const SharedPrefix& prefix : found) {
      saved += static_cast<int64_t>(prefix.sequences.size() - 1) * prefix.keys;
    }
    const int64_t least = int64_t{kMinSavedKeys} * narrow_.target_blocks;
    if (saved * grouping_.n_kv_heads < least) return;
    prefix_of_.assign(static_cast<size_t>(batch_.n_seqs()), {-1, 0});
    for (const SharedPrefix& prefix : found) AddPrefix(prefix);
  }

  void AddPrefix(const SharedPrefix& shared) {
    const auto begin = static_cast<int32_t>(plan_.shared_rows.size());
    PlannedPrefix prefix = {shared.sequences[0], shared.keys, begin, 0, 0, {}};
    for (const int32_t s : shared.sequences) {
      prefix_of_[static_cast<size_t>(s)] = {static_cast<int32_t>(prefixes_.size()), prefix.packed};
      for (int32_t row = batch_.q_begin[s]; row < batch_.q_begin[s + 1]; ++row) {
        plan_.shared_rows.push_back(row);
      }
      prefix.rows += RowsOf(s);
      prefix.packed += PackedOf(s);
    }
    prefixes_.push_back(prefix);
  }

  void Unshare() {
    prefixes_.clear();
    prefix_of_.clear();
    plan_.shared_rows.clear();
    plan_.turned_rows.clear();
    chains_.clear();
    narrow_.list.clear();
    wide_.list.clear();
  }

  PlannedPieces& PiecesFor(int32_t rows, int32_t packed) {
    const bool decodes = rows == 1 && !grouping_.decodes_in_wide_tiles;
    return decodes || packed <= kDecodeTileRows ? narrow_ : wide_;
  }

  void AddPieces() {
    for (size_t i = 0; i < prefixes_.size(); ++i) {
      const PlannedPrefix& prefix = prefixes_[i];
      PlannedPieces& pieces = PiecesFor(prefix.rows, prefix.packed);
      for (int32_t first = 0; first < prefix.packed; first += pieces.tile_rows) {
        pieces.list.push_back(
            {{prefix.seq, first, 0, prefix.keys, -1, prefix.shared_begin, prefix.rows},
             std::min(pieces.tile_rows, prefix.packed - first),
             static_cast<int32_t>(i),
             first,
             true});
      }
    }
    for (int32_t s = sequences_.begin; s < sequences_.end; ++s) AddSequence(s);
  }

  // Each row with a list is by itself, and those before the first one are together.
  void AddSequence(int32_t s) {
    if (!IsPlanned(s)) return;
    if (CountsPositions(batch_, s, rule_)) return AddBlocks(s);
    const int32_t listed = FirstListed(s);
    if (listed > 0) AddRows(s, listed, {});
    for (int32_t i = listed; i < RowsOf(s); ++i) AddListedRow(s, i);
  }

  void AddListedRow(int32_t s, int32_t i) {
    PlannedPieces& pieces = PiecesFor(1, grouping_.group);
    const int32_t keys = std::min(grouping_.top_k, SeenBy(s, i));
    const int32_t end = (i + 1) * grouping_.group;
    for (int32_t first = i * grouping_.group; first < end; first += pieces.tile_rows) {
      AttentionTile tile = {s, first, 0, keys, -1};
      tile.row_end = i + 1;
      tile.is_listed = true;
      pieces.list.push_back({tile, std::min(pieces.tile_rows, end - first), -1, first, false});
    }
  }

  // A row to begin with, and the first key.
  struct Begin {
    int32_t row = 0;
    int32_t key = 0;
  };

  // The rows of a sequence up to `rows`. The keys of a tile are those that some of its rows sees.
  void AddRows(int32_t s, int32_t rows, const Begin& from) {
    const int32_t packed = rows * grouping_.group;
    PlannedPieces& pieces = PiecesFor(rows - from.row, packed - from.row * grouping_.group);
    const auto [prefix, position] =
        prefix_of_.empty() ? std::pair(-1, 0) : prefix_of_[static_cast<size_t>(s)];
    const int32_t shared_keys = prefix < 0 ? 0 : prefixes_[static_cast<size_t>(prefix)].keys;
    const int32_t before = BeforeRows(s);
    const bool tree = IsTree(s);
    for (int32_t first = from.row * grouping_.group; first < packed; first += pieces.tile_rows) {
      const int32_t count = std::min(pieces.tile_rows, packed - first);
      // Positions of a tree rise with its rows, but by less than one.
      const int32_t first_row = tree && !grouping_.in_chunks ? 0 : first / grouping_.group;
      const int32_t last_row = (first + count - 1) / grouping_.group;
      const int32_t begin = std::max({shared_keys, from.key, FirstKeyOf(s, first_row)});
      const int32_t end = EndOf(s, tree, before + last_row);
      AttentionTile tile = {s, first, begin, end, -1};
      if (rows < RowsOf(s)) tile.row_end = rows;
      pieces.list.push_back({tile, count, prefix, position + first, false});
    }
  }

  // The rows of a sequence whose context is made of pieces.
  void AddBlocks(int32_t s) {
    std::vector<RowBlock> blocks = BlocksOfPieces(batch_, s, rule_, /*apart=*/false);
    const bool fits = std::all_of(blocks.begin(), blocks.end(), [&](const RowBlock& block) {
      const int64_t packed = PackedOf(s) - int64_t{block.begin} * grouping_.group;
      const int64_t parts = static_cast<int64_t>(block.ranges.size()) + 1;
      return parts * std::min<int64_t>(packed, wide_.tile_rows) <= all_partials_;
    });
    if (!fits) blocks = BlocksOfPieces(batch_, s, rule_, /*apart=*/true);
    for (const RowBlock& block : blocks) {
      if (block.ranges.empty()) {
        AddRows(s, RowsOf(s), {block.begin, block.own_begin});
      } else {
        AddChains(s, block);
      }
    }
  }

  // Where the plan's shared rows have those of a block, with a turn.
  int32_t RowsOfBlock(int32_t s, const RowBlock& block, int32_t turn) {
    const auto begin = static_cast<int32_t>(plan_.shared_rows.size());
    const int32_t behind = batch_.q_begin[sequences_.end];
    for (int32_t i = block.begin; i < block.end; ++i) {
      const int32_t row = batch_.q_begin[s] + i;
      if (turn == 0) {
        plan_.shared_rows.push_back(row);
      } else {
        plan_.shared_rows.push_back(behind + static_cast<int32_t>(plan_.turned_rows.size()));
        plan_.turned_rows.push_back({row, turn});
      }
    }
    return begin;
  }

  // A chain for each tile of a block's rows. Tiles of their own keys take the rows behind, too, as
  // far as there are any: results that nobody reads.
  void AddChains(int32_t s, const RowBlock& block) {
    const int32_t rows = block.end - block.begin, packed = rows * grouping_.group;
    const int32_t begin = block.begin * grouping_.group;
    PlannedPieces& pieces = PiecesFor(rows, packed);
    std::vector<std::pair<int32_t, int32_t>> begins;  // of shared rows, by turn
    begins.reserve(block.ranges.size());
    for (const SeenRange& range : block.ranges) {
      const auto same = std::find_if(begins.begin(), begins.end(),
                                     [&](const auto& of) { return of.first == range.turn; });
      if (same == begins.end()) begins.emplace_back(range.turn, RowsOfBlock(s, block, range.turn));
    }
    for (int32_t first = 0; first < packed; first += pieces.tile_rows) {
      const int32_t count = std::min(pieces.tile_rows, packed - first);
      const size_t at = pieces.list.size();
      for (const SeenRange& range : block.ranges) {
        const auto of = std::find_if(begins.begin(), begins.end(),
                                     [&](const auto& one) { return one.first == range.turn; });
        const AttentionTile tile = {s, first, range.begin, range.end, -1, of->second, rows};
        pieces.list.push_back({tile, count, -1, 0, false, true});
      }
      int32_t stride = count;
      if (block.own_begin >= 0) {
        stride = std::min(pieces.tile_rows, PackedOf(s) - begin - first);
        const int32_t first_row = block.begin + first / grouping_.group;
        const int32_t last_row = block.begin + (first + count - 1) / grouping_.group;
        const AttentionTile tile = {s, begin + first,
                                    std::max(block.own_begin, FirstKeyOf(s, first_row)),
                                    BeforeRows(s) + last_row + 1, -1};
        pieces.list.push_back({tile, stride, -1, 0, false, true});
      }
      chains_.push_back({&pieces, at, pieces.list.size(), s, begin + first, count, stride});
    }
  }

  // The end of the keys that the row at `place` of a sequence sees.
  int32_t EndOf(int32_t s, bool tree, int32_t place) const {
    const int32_t context = batch_.context_len[s];
    if (tree || (grouping_.both_ways && grouping_.window == 0)) return context;
    if (!grouping_.both_ways) return place + 1;
    return std::min(context, place + grouping_.window);
  }

  // All parts together should about fill the device.
  int64_t NarrowKeysPerPart() const {
    if (narrow_.list.empty()) return kMinSplitKeys;
    const int64_t load = narrow_.Load(grouping_.n_kv_heads);
    int64_t keys = ToKeyTiles(std::max<int64_t>(kMinSplitKeys, load));
    while (narrow_.Partials(keys) > max_partials_) keys *= 2;
    return keys;
  }

  // The fewest keys per part with which all parts run at once or, with more tiles than blocks, with
  // which long tiles end with the others. Tiles stay whole if that would gain less than a quarter.
  int64_t WideKeysPerPart() const {
    const int64_t longest = std::max<int64_t>(wide_.Longest(), 1);
    const int64_t load = wide_.Load(grouping_.n_kv_heads);
    if (3 * longest <= 4 * load) return longest;
    const int64_t blocks = wide_.Blocks(longest, grouping_.n_kv_heads);
    const int64_t room = wide_.target_blocks + (blocks <= wide_.target_blocks ? 0 : blocks);
    int64_t keys = ToKeyTiles(std::max<int64_t>(kMinWideSplitKeys, load));
    while (keys < longest && (wide_.Blocks(keys, grouping_.n_kv_heads) > room ||
                              wide_.Partials(keys) > max_partials_)) {
      keys += ToKeyTiles(keys / 16);
    }
    return 4 * keys > 3 * longest ? longest : keys;
  }

  void Emit(const PlannedPieces& pieces, int64_t keys_per_part, bool is_shared,
            std::vector<AttentionTile>& tiles) {
    for (const PlannedPiece& piece : pieces.list) {
      if (piece.is_chained || piece.is_shared != is_shared) continue;
      const int64_t parts = piece.PartsOf(keys_per_part);
      if (parts == 1 && !piece.is_partial()) {
        tiles.push_back(piece.tile);
        continue;
      }
      const auto keys = static_cast<int32_t>(ToKeyTiles(DivideUp(piece.keys(), parts)));
      AttentionTile part = piece.tile;
      PartialRange range = {plan_.n_partials, piece.rows,
                            static_cast<int32_t>(DivideUp(piece.keys(), keys))};
      if (is_shared) {
        range = PlacePrefix(piece, range.count);
      } else {
        plan_.n_partials += range.count * range.stride;
        part.merge = AddMerges(piece, range, pieces.tile_rows == kDecodeTileRows);
      }
      for (int32_t i = 0; i < range.count; ++i) {
        part.key_begin = piece.tile.key_begin + i * keys;
        part.key_end = std::min(part.key_begin + keys, piece.tile.key_end);
        part.partial = range.begin + i * range.stride;
        tiles.push_back(part);
      }
    }
  }

  // The partial results of all tiles of a prefix are adjacent, like its packed rows: those of a
  // sequence may be in two tiles.
  PartialRange PlacePrefix(const PlannedPiece& piece, int32_t parts) {
    PlannedPrefix& prefix = prefixes_[static_cast<size_t>(piece.prefix)];
    if (piece.tile.first == 0) {
      prefix.partials = {plan_.n_partials, prefix.packed, parts};
      plan_.n_partials += prefix.packed * parts;
    }
    PartialRange range = prefix.partials;
    range.begin += piece.tile.first;
    return range;
  }

  // Returns AttentionTile::merge of the parts. The blocks that make parts of a decode tile merge
  // them if all parts are theirs.
  int32_t AddMerges(const PlannedPiece& piece, const PartialRange& own, bool is_narrow) {
    const auto merges = static_cast<int64_t>(plan_.tile_merges.size()) + 1;
    if (grouping_.merges_in_tiles && is_narrow && piece.prefix < 0 &&
        merges * grouping_.n_kv_heads <= kMaxMergeCounters) {
      plan_.tile_merges.push_back({piece.tile.seq, piece.tile.first, own, {}});
      return static_cast<int32_t>(plan_.tile_merges.size()) - 1;
    }
    PartialRange shared;
    if (piece.prefix >= 0) shared = prefixes_[static_cast<size_t>(piece.prefix)].partials;
    for (int32_t row = 0; row < piece.rows; row += kDecodeTileRows) {
      AttentionMerge merge = {piece.tile.seq, piece.tile.first + row, own, shared,
                              std::min(kDecodeTileRows, piece.rows - row)};
      merge.own.begin += row;
      merge.shared.begin += piece.position + row;
      plan_.merges.push_back(merge);
    }
    return -1;
  }

  const HostBatch& batch_;
  const SequenceRange& sequences_;
  const AttentionGrouping& grouping_;
  const PieceRule rule_;
  const int64_t all_partials_;
  const int64_t max_partials_;  // per launch
  std::vector<PlannedPrefix> prefixes_;
  // [n_seqs] a sequence's prefix, or -1, and the position of its first packed row there; or empty.
  std::vector<std::pair<int32_t, int32_t>> prefix_of_;
  PlannedPieces narrow_, wide_;
  std::vector<PlannedChain> chains_;
  AttentionPlan plan_;
};

// Whether each tile is of a chunk with more rows than decoding and drafts have.
bool AreOfChunks(const HostBatch& batch, const std::vector<AttentionTile>& tiles) {
  return std::all_of(tiles.begin(), tiles.end(), [&](const AttentionTile& tile) {
    const int32_t rows = batch.q_begin[tile.seq + 1] - batch.q_begin[tile.seq];
    return tile.n_shared == 0 && rows > kMaxTreeRows;
  });
}

// The plan with the pages that its tiles read, and its rows; or an empty one.
AttentionPlan Expanded(const HostBatch& batch, const SequenceRange& sequences,
                       const AttentionGrouping& grouping, AttentionPlan plan) {
  constexpr int64_t kAnyPages = int64_t{1} << 40;
  if (plan.prefill.empty() || !FindWidePages(batch, kLeastTilesOfExpandedKey, kAnyPages, &plan)) {
    return {};
  }
  for (int32_t s = sequences.begin; s < sequences.end; ++s) {
    if (batch.q_begin[s + 1] - batch.q_begin[s] < grouping.least_rows) continue;
    if (CountsPositions(batch, s, {.turns = grouping.turns_queries})) continue;
    for (int32_t row = batch.q_begin[s]; row < batch.q_begin[s + 1]; ++row) {
      plan.expanded_rows.push_back(row);
    }
  }
  return plan;
}

}  // namespace

AttentionPlan PlanAttention(const HostBatch& batch, const SequenceRange& sequences,
                            const AttentionGrouping& grouping, const AttentionBudget& budget) {
  AttentionPlan plan = Planner(batch, sequences, grouping, budget).Plan();
  plan.prefill_rows = grouping.prefill_rows;
  if (grouping.expands) return Expanded(batch, sequences, grouping, std::move(plan));
  if (grouping.widened_page_tokens == 0 || plan.prefill.empty()) return plan;
  plan.codes_queries = grouping.copies_values_alone && AreOfChunks(batch, plan.prefill);
  const bool has_keys = grouping.copies_values_alone && !plan.codes_queries;
  const int64_t most = has_keys ? budget.max_wide_pages / 2 : budget.max_wide_pages;
  if (FindWidePages(batch, kLeastTilesOfWideKey, most, &plan)) return plan;
  AttentionGrouping as_it_is = grouping;
  as_it_is.prefill_rows = kPrefillTileRows;
  as_it_is.widened_page_tokens = 0;
  return PlanAttention(batch, sequences, as_it_is, budget);
}

}  // namespace heddle::kernels::cuda
