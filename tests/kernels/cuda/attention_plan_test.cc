// How attention is cut into tiles: every row meets every key that it sees once, and the cuts are
// where they pay.
#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/cuda/attention/attention_params.h"
#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/attention/shared_prefixes.h"
#include "kernels/cuda/attention/wide_pages.h"
#include "tests/kernels/batch_edits.h"

namespace heddle::kernels::cuda {
namespace {

using test::BatchSpec;
using test::Random;
using test::SharedPages;
using test::TestBatch;

struct Keys {
  int32_t begin, end;
  friend bool operator<(const Keys& a, const Keys& b) { return a.begin < b.begin; }
};
using PackedRow = std::pair<int32_t, int32_t>;  // sequence, packed row

// Checks a plan row by row.
class Audit {
 public:
  Audit(const HostBatch& batch, const AttentionGrouping& grouping, const AttentionPlan& plan)
      : batch_(batch), grouping_(grouping), plan_(plan) {
    for (const AttentionTile& tile : plan.decode) Add(tile, plan.decode_rows);
    for (const AttentionTile& tile : plan.prefill) Add(tile, plan.prefill_rows);
    for (const AttentionMerge& merge : plan.merges) Merge(merge);
  }

  // Each partial result is of one row, and is merged once.
  void CheckPartials() const {
    CHECK(static_cast<int32_t>(partials_.size()) == plan_.n_partials);
    for (const auto& [partial, uses] : merged_) CHECK(uses == 1);
    CHECK(merged_.size() == partials_.size());
  }

  // A row's visible keys are met once, all of them.
  void CheckRow(int32_t s, int32_t packed) const {
    const auto [first, end] = Visible(s, packed);
    const auto met = met_.find({s, packed});
    if (met == met_.end()) FAIL("a row meets nothing");
    std::vector<Keys> parts = met->second;
    std::sort(parts.begin(), parts.end());
    CHECK(parts.front().begin <= first);
    CHECK(parts.back().end >= end);
    for (size_t i = 1; i < parts.size(); ++i) CHECK(parts[i].begin == parts[i - 1].end);
  }

 private:
  int32_t SeenBy(int32_t s, int32_t row) const {
    const int32_t before = batch_.context_len[s] - (batch_.q_begin[s + 1] - batch_.q_begin[s]);
    if (!batch_.IsTree(s)) return before + row + 1;
    return before + std::popcount(batch_.tree_mask[batch_.q_begin[s] + row]);
  }
  // Whether a row has a list: if one of a tree has, all have.
  bool IsListed(int32_t s, int32_t row) const {
    if (grouping_.top_k == 0) return false;
    if (!batch_.IsTree(s)) return SeenBy(s, row) > grouping_.top_k;
    bool any = false;
    for (int32_t i = 0; i < batch_.q_begin[s + 1] - batch_.q_begin[s]; ++i) {
      any = any || SeenBy(s, i) > grouping_.top_k;
    }
    return any;
  }

  // Between the first and the last key that a row sees, or all of its list: batch.h.
  Keys Visible(int32_t s, int32_t packed) const {
    const int32_t rows = batch_.q_begin[s + 1] - batch_.q_begin[s];
    const int32_t before = batch_.context_len[s] - rows;
    const int32_t row = packed / grouping_.group;
    if (IsListed(s, row)) return {0, std::min(grouping_.top_k, SeenBy(s, row))};
    const int32_t q = batch_.q_begin[s];
    const bool tree = batch_.IsTree(s);
    const int32_t depth = tree ? batch_.positions[q + row] - batch_.positions[q] : row;
    const int32_t window =
        grouping_.in_chunks ? batch_.positions[q + row] % grouping_.window + 1 : grouping_.window;
    const int32_t first = window > 0 ? std::max(0, before + depth + 1 - window) : 0;
    return tree ? Keys{std::min(first, before), before + rows} : Keys{first, before + row + 1};
  }

  PackedRow RowOf(const AttentionTile& tile, int32_t packed) const {
    if (tile.n_shared == 0) return {tile.seq, packed};
    const int32_t row = plan_.shared_rows[tile.shared_begin + packed / grouping_.group];
    int32_t s = 0;
    while (batch_.q_begin[s + 1] <= row) ++s;
    // It reads those keys on the pages of another sequence.
    const int32_t own = batch_.span_begin[s], its = batch_.span_begin[tile.seq];
    for (int32_t i = 0, keys = 0; keys < tile.key_end; keys += batch_.span_tokens[own + i++]) {
      const bool same = batch_.span_page[own + i] == batch_.span_page[its + i] &&
                        batch_.span_tokens[own + i] == batch_.span_tokens[its + i];
      if (!same) FAIL("a row shares a page that is not its own");
    }
    return {s, (row - batch_.q_begin[s]) * grouping_.group + packed % grouping_.group};
  }

  void Add(const AttentionTile& tile, int32_t tile_rows) {
    CHECK(tile.key_begin < tile.key_end);
    int32_t rows =
        tile.n_shared > 0 ? tile.n_shared : batch_.q_begin[tile.seq + 1] - batch_.q_begin[tile.seq];
    if (tile.row_end > 0) {
      CHECK(tile.row_end <= rows);
      rows = tile.row_end;
    }
    CHECK(tile.is_listed ==
          (tile.n_shared == 0 && IsListed(tile.seq, tile.first / grouping_.group)));
    if (tile.is_listed) CHECK(tile.first / grouping_.group == tile.row_end - 1);
    const int32_t end = std::min(tile.first + tile_rows, rows * grouping_.group);
    if (tile.n_shared == 0) {  // kernels may rely on keys that some row of the tile sees
      CHECK(tile.key_begin < Visible(tile.seq, end - 1).end);
      CHECK(tile.key_end > Visible(tile.seq, tile.first).begin);
    }
    for (int32_t packed = tile.first; packed < end; ++packed) {
      const PackedRow row = RowOf(tile, packed);
      const Keys keys = {tile.key_begin, tile.key_end};
      if (tile.partial < 0) {
        CHECK(met_[row].empty());
        met_[row].push_back(keys);
      } else {
        CHECK(partials_.emplace(tile.partial + packed - tile.first, std::pair(row, keys)).second);
      }
    }
  }

  void Merge(const AttentionMerge& merge) {
    const int32_t rows = batch_.q_begin[merge.seq + 1] - batch_.q_begin[merge.seq];
    CHECK(merge.rows <= kDecodeTileRows);
    const int32_t end = std::min(merge.first + merge.rows, rows * grouping_.group);
    for (int32_t packed = merge.first; packed < end; ++packed) {
      for (const PartialRange& range : {merge.own, merge.shared}) {
        for (int32_t i = 0; i < range.count; ++i) {
          const int32_t partial = range.begin + i * range.stride + packed - merge.first;
          REQUIRE(partials_.count(partial) == 1);
          const auto& [row, keys] = partials_.at(partial);
          CHECK(row == PackedRow(merge.seq, packed));
          met_[row].push_back(keys);
          ++merged_[partial];
        }
      }
    }
  }

  const HostBatch& batch_;
  const AttentionGrouping& grouping_;
  const AttentionPlan& plan_;
  std::map<int32_t, std::pair<PackedRow, Keys>> partials_;
  std::map<int32_t, int32_t> merged_;
  std::map<PackedRow, std::vector<Keys>> met_;
};

// The pages that a span's positions are copied from are the span's.
void CheckWidePages(const HostBatch& batch, const AttentionGrouping& grouping,
                    const AttentionBudget& budget, const AttentionPlan& plan) {
  const bool is_wide = !plan.wide_pages.empty();
  if (plan.prefill.empty() || grouping.widened_page_tokens == 0) CHECK_FALSE(is_wide);
  if (plan.prefill.empty()) return;
  const bool falls_back = grouping.widened_page_tokens > 0 && !is_wide;
  CHECK(plan.prefill_rows == (falls_back ? kPrefillTileRows : grouping.prefill_rows));
  if (!is_wide) return;
  CHECK(static_cast<int64_t>(plan.wide_pages.size()) <= budget.max_wide_pages);
  bool same = true;
  for (const AttentionTile& tile : plan.prefill) {
    int32_t key = 0;
    for (int32_t i = batch.span_begin[tile.seq]; i < batch.span_begin[tile.seq + 1]; ++i) {
      const int32_t end = key + batch.span_tokens[i];
      const bool is_read = key < tile.key_end && end > tile.key_begin;
      key = end;
      if (!is_read) continue;
      const auto at = static_cast<size_t>(i - plan.first_wide_span);
      REQUIRE(at < plan.wide_of_span.size());
      const auto page = static_cast<size_t>(plan.wide_of_span[at]);
      REQUIRE(page < plan.wide_pages.size());
      same = same && plan.wide_pages[page] == batch.span_page[i];
    }
  }
  CHECK(same);
}

void CheckPlan(const HostBatch& batch, const AttentionGrouping& grouping,
               const AttentionBudget& budget) {
  const AttentionPlan plan = PlanAttention(batch, {0, batch.n_seqs()}, grouping, budget);
  CHECK(plan.n_partials <= budget.max_partials);
  CheckWidePages(batch, grouping, budget, plan);
  const Audit audit(batch, grouping, plan);
  audit.CheckPartials();
  for (int32_t s = 0; s < batch.n_seqs(); ++s) {
    const int32_t packed = (batch.q_begin[s + 1] - batch.q_begin[s]) * grouping.group;
    for (int32_t row = 0; row < packed; ++row) audit.CheckRow(s, row);
  }
}

TEST_CASE("A plan lets every row meet every key that it sees once, within its partial results",
          "[cuda][plan]") {
  Random random(3);
  for (int round = 0; round < 300; ++round) {
    INFO("round " << round);
    BatchSpec spec;
    std::vector<int32_t> trees;
    const int32_t n_seqs = 1 + random.Below(6);
    for (int32_t s = 0; s < n_seqs; ++s) {
      const int32_t rows = random.Below(3) > 0 ? 1 : 1 + random.Below(100);
      if (rows <= kMaxTreeRows && random.Below(4) == 0) trees.push_back(s);
      spec.sequences.push_back({rows, rows + random.Below(3000)});
    }
    TestBatch batch(spec, static_cast<uint32_t>(round));
    GrowTrees(random, trees, &batch);
    std::vector<int32_t> sharing;
    int32_t prefix = 3000;
    for (int32_t s = 0; s < n_seqs; ++s) {
      if (random.Below(2) == 0) continue;
      sharing.push_back(s);
      prefix = std::min(prefix, spec.sequences[s].context - spec.sequences[s].rows);
    }
    if (sharing.size() > 1) SharePages({sharing, prefix / 16 * 16}, &batch);
    // One in three batches has windows, one chunks, one lists or neither.
    const int32_t kind = random.Below(3);
    const AttentionGrouping grouping = {
        .group = 1 + random.Below(20),
        .n_kv_heads = 1 + random.Below(4),
        .prefill_rows = random.Below(2) == 0 ? kPrefillTileRows : kHopperTileRows,
        .window = kind == 0 ? 0 : 1 + random.Below(3000),
        .in_chunks = kind == 1,
        .top_k = kind == 0 && random.Below(3) > 0 ? 1 + random.Below(2000) : 0,
        .shares_prefixes = random.Below(3) > 0,
        .widened_page_tokens = random.Below(2) * 16};
    CheckPlan(batch.view(), grouping,
              {.multiprocessors = 1 + random.Below(132),
               .max_partials = random.Below(2) == 0 ? 128 : 16000,
               .max_wide_pages = random.Below(2) == 0 ? 100 : 16000});
  }
}

constexpr AttentionBudget kH200 = {.multiprocessors = 132, .max_partials = 8192};
constexpr AttentionGrouping kLlama = {.group = 4,
                                      .n_kv_heads = 8,
                                      .head_dim = 128,
                                      .prefill_rows = kHopperTileRows,
                                      .shares_prefixes = true};

AttentionPlan PlanOf(const TestBatch& batch, const AttentionGrouping& grouping = kLlama) {
  return PlanAttention(batch.view(), {0, batch.view().n_seqs()}, grouping, kH200);
}

TEST_CASE("A short chunk of a long prompt fills the device", "[cuda][plan]") {
  // 32 rows are one tile of 128 packed rows for each of 8 heads: 16 parts are 128 of 132 blocks.
  const AttentionPlan chunk = PlanOf(TestBatch({{{32, 32768}}, 16}));
  CHECK(chunk.prefill.size() == 16);
  CHECK(chunk.merges.size() == 128 / kDecodeTileRows);
  for (const AttentionTile& tile : chunk.prefill) CHECK(tile.key_end - tile.key_begin <= 2112);
  // 16 tiles for 8 heads fill it already, and so does a long prompt.
  CHECK(PlanOf(TestBatch({{{512, 32768}}, 16})).merges.empty());
  CHECK(PlanOf(TestBatch({{{4096, 4096}}, 16})).merges.empty());
  // 300 keys are not worth it either.
  CHECK(PlanOf(TestBatch({{{32, 300}}, 16})).merges.empty());
}

TEST_CASE("A long tile among many short ones is split so that it ends with them", "[cuda][plan]") {
  BatchSpec spec = {{{32, 65536}}, 16};
  for (int i = 0; i < 8; ++i) spec.sequences.push_back({128, 128});
  const AttentionPlan plan = PlanOf(TestBatch(spec));
  CHECK(plan.prefill.size() > 8 * 4 + 8);
  for (const AttentionTile& tile : plan.prefill) CHECK((tile.seq == 0) == (tile.partial >= 0));
}

TEST_CASE("Pages are copied where several tiles read them, and the copy has room", "[cuda][plan]") {
  AttentionGrouping widened = kLlama;
  widened.widened_page_tokens = 16;
  const auto pages = [&](const BatchSpec& spec, int64_t room) {
    AttentionBudget budget = kH200;
    budget.max_wide_pages = room;
    const TestBatch batch(spec);
    return PlanAttention(batch.view(), {0, batch.view().n_seqs()}, widened, budget)
        .wide_pages.size();
  };
  CHECK(pages({{{512, 5000}}, 16}, 1000) == 313);
  CHECK(pages({{{512, 5000}}, 16}, 312) == 0);
  CHECK(pages({{{32, 5000}}, 16}, 1000) == 0);                      // one tile
  CHECK(pages({{{1, 9000}, {128, 1000}, {1, 70}}, 16}, 63) == 63);  // decoding reads its own
  // The part before the window of the chunk's first row stays: 1 + (2000 - 512 + 1 - 500) / 16.
  widened.window = 500;
  CHECK(pages({{{512, 2000}}, 16}, 1000) == 125 - 61);
  CHECK(pages({{{1, 9000}, {1, 70}}, 16}, 1000) == 0);
}

TEST_CASE("The parts of attention's workspace lie one behind the other", "[cuda][plan]") {
  for (const int64_t bytes : {int64_t{4} << 20, int64_t{100} << 20, int64_t{256} << 20}) {
    for (const int32_t head_dim : {64, 128}) {
      AttentionGrouping grouping = {.n_kv_heads = 8, .head_dim = head_dim};
      CHECK(RoomOf(bytes, grouping).max_wide_pages == 0);
      grouping.widened_page_tokens = 16;
      const AttentionRoom room = RoomOf(bytes, grouping);
      CHECK(room.max_partials > 0);
      CHECK(room.lse_at >= room.max_partials * 8 * head_dim * 4);
      CHECK(room.wide_at >= room.lse_at + room.max_partials * 8 * 4);
      KvCacheView cache = {
          .dtype = DType::kF8E4M3, .page_tokens = 16, .n_kv_heads = 8, .head_dim = head_dim};
      std::vector<uint8_t> memory(static_cast<size_t>(bytes));
      const auto n_pages = static_cast<int32_t>(room.max_wide_pages);
      const KvCacheView wide = WideView(cache, n_pages, false, memory.data() + room.wide_at);
      CHECK(wide.dtype == DType::kF16);
      CHECK(wide.num_pages == n_pages);
      auto* values = static_cast<uint8_t*>(wide.values);
      CHECK(values >= static_cast<uint8_t*>(wide.keys) + n_pages * wide.block_bytes());
      CHECK(values + n_pages * wide.block_bytes() <= memory.data() + bytes);
      // The copy takes half of the workspace, except for a little.
      CHECK(2 * n_pages * wide.block_bytes() > bytes * 9 / 20);
      // Without keys it has twice as many pages in the same place.
      grouping.copies_values_alone = true;
      const auto most = static_cast<int32_t>(RoomOf(bytes, grouping).max_wide_pages);
      CHECK(most >= 2 * n_pages);
      const KvCacheView alone = WideView(cache, most, true, memory.data() + room.wide_at);
      CHECK(alone.keys == nullptr);
      CHECK(alone.values == memory.data() + room.wide_at);
      CHECK(room.wide_at + most * alone.block_bytes() <= bytes);
    }
  }
}

TEST_CASE("A window's keys are split, not the context before it", "[cuda][plan]") {
  AttentionGrouping windowed = kLlama;
  windowed.window = 4096;
  const AttentionPlan plan = PlanOf(TestBatch({{{1, 100000}}, 16}), windowed);
  CHECK(plan.decode.size() == 32);
  CHECK(plan.decode.front().key_begin == 100000 - 4096);
  CHECK(plan.decode.back().key_end == 100000);
}

int64_t SharedTiles(const AttentionPlan& plan) {
  const auto is_shared = [](const AttentionTile& tile) { return tile.n_shared > 0; };
  return std::count_if(plan.prefill.begin(), plan.prefill.end(), is_shared) +
         std::count_if(plan.decode.begin(), plan.decode.end(), is_shared);
}

// A decode step of 64 sequences, `sharing` of which have one prefix.
TestBatch Decodes(const std::vector<int32_t>& sharing, int32_t prefix) {
  BatchSpec spec{{}, 16};
  for (int i = 0; i < 64; ++i) spec.sequences.push_back({1, 2048 + 7 * i});
  TestBatch batch(spec);
  SharePages({sharing, prefix}, &batch);
  return batch;
}

TEST_CASE("Prefixes are shared where that saves more than it costs", "[cuda][plan]") {
  std::vector<int32_t> all(64);
  std::iota(all.begin(), all.end(), 0);
  const AttentionPlan plan = PlanOf(Decodes(all, 1024));
  // 256 packed rows are 2 tiles for 8 heads, 1024 keys are 4 parts of 256.
  CHECK(SharedTiles(plan) == 8);
  CHECK(plan.shared_rows == all);
  CHECK(SharedTiles(PlanOf(Decodes(all, 240))) == 0);      // too short
  CHECK(SharedTiles(PlanOf(Decodes({3, 50}, 512))) == 0);  // too little saved
  CHECK(SharedTiles(PlanOf(Decodes({3, 9, 20, 31, 50, 51, 52, 53, 54}, 1024))) > 0);
  AttentionGrouping own = kLlama;
  own.shares_prefixes = false;
  CHECK(SharedTiles(PlanOf(Decodes(all, 1024), own)) == 0);
  own.shares_prefixes = true;
  own.window = 1500;
  CHECK(SharedTiles(PlanOf(Decodes(all, 1024), own)) == 0);  // not seen by the rows
}

std::vector<std::pair<std::vector<int32_t>, int32_t>> Found(const TestBatch& batch,
                                                            int32_t min_keys) {
  std::vector<int32_t> all(batch.context_len.size());
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::pair<std::vector<int32_t>, int32_t>> found;
  for (const SharedPrefix& prefix : FindSharedPrefixes(batch.view(), all, min_keys)) {
    found.emplace_back(prefix.sequences, prefix.keys);
  }
  std::sort(found.begin(), found.end());
  return found;
}

TEST_CASE("Sequences are grouped as lets them read the fewest keys", "[cuda][plan]") {
  using Groups = std::vector<std::pair<std::vector<int32_t>, int32_t>>;
  const BatchSpec six = {{{1, 900}, {1, 900}, {1, 901}, {1, 900}, {1, 903}, {1, 90}}, 16};
  TestBatch batch(six);
  CHECK(Found(batch, 64).empty());
  SharePages({{0, 1, 2, 3, 4}, 208}, &batch);
  CHECK(Found(batch, 64) == Groups{{{0, 1, 2, 3, 4}, 208}});
  CHECK(Found(batch, 200) == Groups{{{0, 1, 2, 3, 4}, 208}});
  CHECK(Found(batch, 224).empty());
  // Two pairs that share 800 save 1,600, all five together 832.
  SharePages({{0, 3}, 800}, &batch);
  SharePages({{2, 4}, 800}, &batch);
  CHECK(Found(batch, 64) == Groups{{{0, 3}, 800}, {{2, 4}, 800}});
  // Two pairs that share 320 save 640.
  TestBatch near(six);
  SharePages({{0, 1, 2, 3, 4}, 208}, &near);
  SharePages({{0, 3}, 320}, &near);
  SharePages({{2, 4}, 320}, &near);
  CHECK(Found(near, 64) == Groups{{{0, 1, 2, 3, 4}, 208}});
  // A page that two sequences have, of which one may see less.
  TestBatch less({{{1, 300}, {1, 200, 137}}, 16});
  SharePages({{0, 1}, 128}, &less);
  less.span_page[less.span_begin[1] + 8] = less.span_page[8];
  CHECK(Found(less, 64) == Groups{{{0, 1}, 128}});
  // The page that a row is written to is its own, whatever its number.
  TestBatch twins({{{1, 160}, {17, 176}}, 16});
  SharePages({{0, 1}, 144}, &twins);
  twins.span_page[twins.span_begin[1] + 9] = twins.span_page[9];
  CHECK(Found(twins, 64) == Groups{{{0, 1}, 144}});
}

TEST_CASE("Decode tiles are narrow where all of them are", "[cuda]") {
  const auto rows = [](std::vector<BatchSpec::Sequence> sequences, int32_t group) {
    const TestBatch batch(BatchSpec{std::move(sequences), 16});
    const HostBatch view = batch.view();
    return PlanAttention(view, {0, view.n_seqs()}, {.group = group, .head_dim = 64},
                         {.multiprocessors = 4, .max_partials = 1000})
        .decode_rows;
  };
  CHECK(rows({{1, 40}, {1, 900}}, 4) == kNarrowTileRows);
  CHECK(rows({{1, 40}, {2, 900}}, 4) == kNarrowTileRows);
  CHECK(rows({{1, 40}, {1, 900}}, 8) == kNarrowTileRows);
  CHECK(rows({{1, 40}, {1, 900}}, 9) == kDecodeTileRows);
  CHECK(rows({{1, 40}, {3, 900}}, 4) == kDecodeTileRows);
  CHECK(rows({{1, 40}, {100, 900}}, 4) == kNarrowTileRows);  // the others are prompts
}

}  // namespace
}  // namespace heddle::kernels::cuda
