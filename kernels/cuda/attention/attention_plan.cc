#include "kernels/cuda/attention/attention_plan.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "kernels/cuda/attention/shared_prefixes.h"
#include "kernels/cuda/attention/wide_pages.h"

namespace heddle::kernels::cuda {
namespace {

constexpr int64_t kKeyTile = 64;  // splits end at borders of the kernels' key tiles

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t RoundUp(int64_t a, int64_t b) { return CeilDiv(a, b) * b; }

// A prefix that several sequences share.
struct Prefix {
  int32_t seq;  // the sequence whose spans give its pages
  int32_t keys;
  int32_t shared_begin;  // into the plan's shared_rows
  int32_t rows;
  int32_t packed;
  PartialRange partials;  // those of its first packed row
};

// A tile before it is split.
struct Piece {
  AttentionTile tile;
  int32_t rows;      // packed
  int32_t prefix;    // the prefix before the tile's keys, or the one that the tile computes; or -1
  int32_t position;  // its first packed row's index among the prefix's
  bool is_shared;    // it computes the prefix itself
  bool is_partial() const { return prefix >= 0; }
  int64_t keys() const { return tile.key_end - tile.key_begin; }
  int64_t PartsOf(int64_t keys_per_part) const { return CeilDiv(keys(), keys_per_part); }
};

// The pieces of one launch.
struct Pieces {
  int32_t tile_rows;
  int32_t target_blocks;  // number that fills the device
  std::vector<Piece> list;

  int64_t Blocks(int64_t keys_per_part, int32_t n_kv_heads) const {
    int64_t blocks = 0;
    for (const Piece& piece : list) blocks += piece.PartsOf(keys_per_part) * n_kv_heads;
    return blocks;
  }
  int64_t Partials(int64_t keys_per_part) const {
    int64_t partials = 0;
    for (const Piece& piece : list) {
      const int64_t parts = piece.PartsOf(keys_per_part);
      if (parts > 1 || piece.is_partial()) partials += parts * piece.rows;
    }
    return partials;
  }
  int64_t Longest() const {
    int64_t longest = 0;
    for (const Piece& piece : list) longest = std::max(longest, piece.keys());
    return longest;
  }
  int32_t MostRows() const {
    int32_t most = 0;
    for (const Piece& piece : list) most = std::max(most, piece.rows);
    return most;
  }
  // Keys per block if all had the same number.
  int64_t Load(int32_t n_kv_heads) const {
    int64_t work = 0;
    for (const Piece& piece : list) work += piece.keys() * n_kv_heads;
    return CeilDiv(work, target_blocks);
  }
};

class Planner {
 public:
  Planner(const HostBatch& batch, const SequenceRange& sequences, const AttentionGrouping& grouping,
          const AttentionBudget& budget)
      : batch_(batch),
        sequences_(sequences),
        grouping_(grouping),
        max_partials_(budget.max_partials / 2) {
    const bool is_hopper = grouping.prefill_rows == kHopperTileRows;
    const int32_t blocks = budget.multiprocessors * kBlocksPerMultiprocessor;
    narrow_ = {kDecodeTileRows, blocks, {}};
    wide_ = {grouping.prefill_rows, is_hopper ? budget.multiprocessors : blocks, {}};
  }

  AttentionPlan Plan() {
    if (grouping_.shares_prefixes) SharePrefixes();
    AddPieces();
    const auto fits = [&](const Pieces& pieces) {
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
    return std::move(plan_);
  }

 private:
  bool IsPlanned(int32_t s) const {
    const int32_t rows = RowsOf(s);
    return rows > 0 && rows >= grouping_.least_rows && rows <= grouping_.most_rows;
  }
  int32_t RowsOf(int32_t s) const { return batch_.q_begin[s + 1] - batch_.q_begin[s]; }
  int32_t PackedOf(int32_t s) const { return RowsOf(s) * grouping_.group; }

  // Whether all rows are in one tile and see the first key of the context.
  bool MayShare(int32_t s) const {
    const int32_t rows = RowsOf(s);
    return IsPlanned(s) && (rows == 1 || PackedOf(s) <= grouping_.prefill_rows) &&
           FirstKeyOf(s, rows - 1) == 0 && FirstListed(s) == rows;
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
    Prefix prefix = {shared.sequences[0], shared.keys, begin, 0, 0, {}};
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
    narrow_.list.clear();
    wide_.list.clear();
  }

  Pieces& PiecesFor(int32_t rows, int32_t packed) {
    const bool decodes = rows == 1 && !grouping_.decodes_in_wide_tiles;
    return decodes || packed <= kDecodeTileRows ? narrow_ : wide_;
  }

  void AddPieces() {
    for (size_t i = 0; i < prefixes_.size(); ++i) {
      const Prefix& prefix = prefixes_[i];
      Pieces& pieces = PiecesFor(prefix.rows, prefix.packed);
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
    const int32_t listed = FirstListed(s);
    if (listed > 0) AddRows(s, listed);
    for (int32_t i = listed; i < RowsOf(s); ++i) AddListedRow(s, i);
  }

  void AddListedRow(int32_t s, int32_t i) {
    Pieces& pieces = PiecesFor(1, grouping_.group);
    const int32_t keys = std::min(grouping_.top_k, SeenBy(s, i));
    const int32_t end = (i + 1) * grouping_.group;
    for (int32_t first = i * grouping_.group; first < end; first += pieces.tile_rows) {
      AttentionTile tile = {s, first, 0, keys, -1};
      tile.row_end = i + 1;
      tile.is_listed = true;
      pieces.list.push_back({tile, std::min(pieces.tile_rows, end - first), -1, first, false});
    }
  }

  // The first `rows` rows of a sequence. The keys of a tile are those that some of its rows sees.
  void AddRows(int32_t s, int32_t rows) {
    const int32_t packed = rows * grouping_.group;
    Pieces& pieces = PiecesFor(rows, packed);
    const auto [prefix, position] =
        prefix_of_.empty() ? std::pair(-1, 0) : prefix_of_[static_cast<size_t>(s)];
    const int32_t shared_keys = prefix < 0 ? 0 : prefixes_[static_cast<size_t>(prefix)].keys;
    const int32_t before = BeforeRows(s);
    const bool tree = IsTree(s);
    for (int32_t first = 0; first < packed; first += pieces.tile_rows) {
      const int32_t count = std::min(pieces.tile_rows, packed - first);
      // Positions of a tree rise with its rows, but by less than one.
      const int32_t first_row = tree && !grouping_.in_chunks ? 0 : first / grouping_.group;
      const int32_t last_row = (first + count - 1) / grouping_.group;
      const int32_t begin = std::max(shared_keys, FirstKeyOf(s, first_row));
      const int32_t end = EndOf(s, tree, before + last_row);
      AttentionTile tile = {s, first, begin, end, -1};
      if (rows < RowsOf(s)) tile.row_end = rows;
      pieces.list.push_back({tile, count, prefix, position + first, false});
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
    int64_t keys = RoundUp(std::max<int64_t>(kMinSplitKeys, load), kKeyTile);
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
    int64_t keys = RoundUp(std::max<int64_t>(kMinWideSplitKeys, load), kKeyTile);
    while (keys < longest && (wide_.Blocks(keys, grouping_.n_kv_heads) > room ||
                              wide_.Partials(keys) > max_partials_)) {
      keys += RoundUp(keys / 16, kKeyTile);
    }
    return 4 * keys > 3 * longest ? longest : keys;
  }

  void Emit(const Pieces& pieces, int64_t keys_per_part, bool is_shared,
            std::vector<AttentionTile>& tiles) {
    for (const Piece& piece : pieces.list) {
      if (piece.is_shared != is_shared) continue;
      const int64_t parts = piece.PartsOf(keys_per_part);
      if (parts == 1 && !piece.is_partial()) {
        tiles.push_back(piece.tile);
        continue;
      }
      const auto keys = static_cast<int32_t>(RoundUp(CeilDiv(piece.keys(), parts), kKeyTile));
      AttentionTile part = piece.tile;
      PartialRange range = {plan_.n_partials, piece.rows,
                            static_cast<int32_t>(CeilDiv(piece.keys(), keys))};
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
  PartialRange PlacePrefix(const Piece& piece, int32_t parts) {
    Prefix& prefix = prefixes_[static_cast<size_t>(piece.prefix)];
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
  int32_t AddMerges(const Piece& piece, const PartialRange& own, bool is_narrow) {
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
  const int64_t max_partials_;  // per launch
  std::vector<Prefix> prefixes_;
  // [n_seqs] a sequence's prefix, or -1, and the position of its first packed row there; or empty.
  std::vector<std::pair<int32_t, int32_t>> prefix_of_;
  Pieces narrow_, wide_;
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
