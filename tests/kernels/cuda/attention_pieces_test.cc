// Attention over contexts that are made of pieces: windows that count positions, queries that are
// rotated further for some pieces, and what a workspace holds at a time.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/attention/context_pieces.h"
#include "tests/kernels/cuda/attention_case.h"
#include "tests/kernels/cuda/emulated.h"

namespace heddle::kernels::test {
namespace {

constexpr DType kCaches[] = {DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kInt8};

// Chunks of prompts, and rows that decode; one of each in plain order.
AttentionCase InPieces(bool turns) {
  AttentionCase c;
  c.batch = {{{21, 75}, {1, 9}, {33, 250}, {1, 500}, {20, 90}}, 16};
  c.pieces = {0, 2, 3};
  c.turns = turns;
  return c;
}

TEST_CASE("Windows over pieces of a context count their positions on CUDA", "[cuda][pieces]") {
  uint32_t seed = 700;
  for (const int32_t window : {0, 1, 70, 300}) {
    for (const bool in_chunks : {false, true}) {
      AttentionCase c = InPieces(/*turns=*/false);
      c.head_dim = 24;
      c.cache = DType::kF32;
      c.window = window;
      c.in_chunks = in_chunks && window > 0;
      CheckAttention(c, DType::kF32, ++seed);
    }
  }
  for (const DType cache : kCaches) {
    for (const int32_t window : {70, 300}) {
      AttentionCase c = InPieces(/*turns=*/false);
      c.cache = cache;
      c.window = window;
      c.in_chunks = (window == 70) == (cache == DType::kF16);
      c.sinks = window == 300;
      c.softcap = cache == DType::kBF16 ? 4.0f : 0.0f;
      c.compute_major = cache == DType::kF16 && window == 300 ? 8 : 9;
      c.poisoned = cache == DType::kBF16;
      CheckAttention(c, DType::kBF16, ++seed);
    }
  }
}

// Rotated queries are rounded to BF16 once more, as keys are where `rounds_keys` says so.
TEST_CASE("Queries are rotated further for pieces with a turn on CUDA", "[cuda][pieces]") {
  uint32_t seed = 800;
  for (const RopeLayout layout : {RopeLayout::kHalf, RopeLayout::kInterleaved}) {
    for (const int32_t window : {0, 300}) {
      AttentionCase c = InPieces(/*turns=*/true);
      c.head_dim = 32;
      c.cache = DType::kF32;
      c.window = window;
      c.layout = layout;
      CheckAttention(c, DType::kF32, ++seed);
      c.in_chunks = window > 0;
      c.sinks = true;
      CheckAttention(c, DType::kF32, ++seed);
    }
  }
  for (const DType cache : kCaches) {
    AttentionCase c = InPieces(/*turns=*/true);
    c.cache = cache;
    c.window = cache == DType::kBF16 ? 300 : 0;
    c.sinks = cache == DType::kF16;
    c.compute_major = cache == DType::kInt8 ? 8 : 9;
    c.rounds_keys = true;
    CheckAttention(c, DType::kBF16, ++seed);
  }
  AttentionCase latent = InPieces(/*turns=*/true);
  latent.batch.sequences = {{5, 40}, {1, 9}, {9, 120}, {1, 200}};
  latent.n_kv_heads = 1;
  latent.head_dim = 320;
  latent.cache = DType::kBF16;
  latent.latent = latent.rounds_keys = true;
  CheckAttention(latent, DType::kBF16, ++seed);
  // Half of 512 KiB holds the queries of some of the heads of the only key head.
  latent.lse = false;
  latent.n_heads = 16;
  CheckAttention(latent, DType::kBF16, ++seed, int64_t{512} << 10);
}

// 40 rows of 16 heads are five tiles of 128 that read a key, and so its page is copied.
TEST_CASE("Copies of pages of 8 bits serve pieces", "[cuda][pieces]") {
  for (const DType cache : {DType::kF8E4M3, DType::kInt8}) {
    AttentionCase c = {.batch = {{{40, 130}, {1, 60}}, 16}, .n_heads = 16, .n_kv_heads = 1};
    c.cache = cache;
    c.window = 400;
    c.pieces = {0, 1};
    c.rounds_keys = cache == DType::kInt8;  // to BF16, as copies have them
    CheckAttention(c, DType::kBF16, 77);
    c.lse = false;
    CheckAttention(c, DType::kBF16, 78, int64_t{1} << 20);
  }
}

// A prompt of 10 at 0, branches of 4 and 6 from there on, and two rows behind the longer one.
TestBatch Joined() {
  TestBatch batch({{{2, 22}}, 4});
  batch.piece_begin = {0, 3};
  batch.pieces = {{10, 0, 0}, {4, 10, 0}, {8, 10, 0}};
  batch.positions = {16, 17};
  return batch;
}

// A workspace of 4 MiB holds all; smaller ones hold the partial results of some rows at a time, and
// the queries of some heads.
TEST_CASE("Pieces run in as many rounds as the workspace asks for", "[cuda][pieces]") {
  for (const bool turns : {false, true}) {
    AttentionCase c = InPieces(turns);
    c.n_heads = c.n_kv_heads = 4;
    c.head_dim = 32;
    c.cache = DType::kF32;
    c.window = 300;
    c.lse = false;
    for (const int64_t bytes : {int64_t{4} << 20, int64_t{96} << 10}) {
      CheckAttention(c, DType::kF32, 5, bytes);
    }
    c.cache = DType::kBF16;
    c.head_dim = 64;
    c.rounds_keys = true;
    CheckAttention(c, DType::kBF16, 5, int64_t{96} << 10);
  }
  const TestBatch batch = BatchOf(InPieces(/*turns=*/false), 5), joined = Joined();
  const auto plan = [](const TestBatch& of, int32_t window, int32_t partials) {
    const cuda::AttentionGrouping grouping = {
        .group = 1, .n_kv_heads = 4, .head_dim = 32, .window = window};
    return cuda::PlanAttention(of.view(), {0, of.view().n_seqs()}, grouping,
                               {.multiprocessors = 4, .max_partials = partials});
  };
  CHECK(plan(batch, 300, 4096).later_rounds.empty());
  CHECK(plan(batch, 300, 4096).fits);
  const cuda::AttentionPlan small = plan(batch, 300, 64);
  CHECK(small.fits);
  CHECK(small.n_partials <= 64);
  CHECK_FALSE(small.later_rounds.empty());
  CHECK(plan(joined, 4, 2).fits);
  CHECK_FALSE(plan(joined, 4, 1).fits);  // row 0 sees two ranges
}

// A prompt of 10, seven branches of 20 from there on, and two rows behind them, which see the ends
// of all of them by a window of 15.
TestBatch SideBySide() {
  constexpr int32_t kBranches = 7;
  TestBatch batch({{{2, 10 + kBranches * 20 + 2}, {1, 40}}, 16});
  batch.pieces = {{10, 0, 0}};
  for (int32_t i = 0; i < kBranches; ++i) batch.pieces.push_back({20, 10, 0});
  batch.pieces.back().num_tokens += 2;
  batch.piece_begin = {0, 1 + kBranches, 1 + kBranches};
  batch.positions = {30, 31, 39};
  return batch;
}

// 512 bytes, or 1,024, hold two parts of a row, or of two heads of one.
TEST_CASE("A row of more parts than the workspace holds has them merged in turns",
          "[cuda][pieces]") {
  const TestBatch batch = SideBySide();
  const auto plan = [&](int32_t partials) {
    const cuda::AttentionGrouping grouping = {
        .group = 2, .n_kv_heads = 2, .head_dim = 32, .window = 15};
    return cuda::PlanAttention(batch.view(), {0, 2}, grouping,
                               {.multiprocessors = 4, .max_partials = partials});
  };
  CHECK(plan(4096).later_rounds.empty());
  CHECK(plan(14).later_rounds.size() == 1);  // a row after the other
  CHECK(plan(13).later_rounds.size() == 3);  // 6 parts and 1, twice
  CHECK(plan(4).later_rounds.size() == 11);  // 2 parts, and 1 to their result, 5 times; twice
  CHECK(plan(4).n_partials == 4);
  CHECK_FALSE(plan(3).fits);
  for (const DType act : {DType::kF32, DType::kBF16}) {
    for (const int32_t head_dim : {32, 33}) {
      if (act == DType::kBF16 && head_dim == 33) continue;
      for (const int32_t n_heads : {2, 4}) {
        AttentionCase c = {.n_heads = n_heads, .head_dim = head_dim};
        c.cache = act;
        c.window = 15;
        c.sinks = c.rounds_keys = true;
        const int64_t partial_bytes = int64_t{2} * head_dim * 4;
        const auto device = EmulatedDevice(act, n_heads / 2 * 2 * partial_bytes * 2);
        CheckAttentionOf(*device, c, batch.view(), batch.num_pages, 0, 9);
      }
    }
  }
}

TEST_CASE("A workspace that holds no two parts of a row is an error with its reason",
          "[cuda][pieces]") {
  const TestBatch batch = Joined();
  TestCache cache(DType::kF32, batch.num_pages, 4, 2, 64, 1);
  Matrix queries(2, 4 * 64), zeros(2, 4 * 64);
  Activations q(DType::kF32, queries), out(DType::kF32, zeros);
  const auto device = EmulatedDevice(DType::kF32, /*workspace_bytes=*/2048);
  REQUIRE(device->Plan(batch.view()).ok());
  const absl::Status status = device->Run([&](Ops& ops) {
    ops.Attention({.q = q.tensor(),
                   .n_heads = 4,
                   .cache = cache.view,
                   .scale = 0.125f,
                   .window = 4,
                   .out = out.tensor()});
  });
  CHECK(absl::IsResourceExhausted(status));
  CHECK_THAT(std::string(status.message()), Catch::Contains("pieces"));
}

TEST_CASE("Rows that see the same of a context's pieces are together", "[cuda][pieces]") {
  const TestBatch batch = Joined();
  const auto blocks = [&](int32_t window) {
    return cuda::BlocksOfPieces(batch.view(), 0, {.window = window}, /*apart=*/false);
  };
  CHECK_FALSE(cuda::CountsPositions(batch.view(), 0, {}));
  CHECK(cuda::CountsPositions(batch.view(), 0, {.window = 4}));
  {  // all: one range, and the last piece
    const auto all = blocks(100);
    REQUIRE(all.size() == 1);
    CHECK((all[0].begin == 0 && all[0].end == 2 && all[0].own_begin == 14));
    REQUIRE(all[0].ranges.size() == 1);
    CHECK((all[0].ranges[0].begin == 0 && all[0].ranges[0].end == 14));
  }
  {  // the same, each row by itself
    const auto apart = cuda::BlocksOfPieces(batch.view(), 0, {.window = 100}, /*apart=*/true);
    REQUIRE(apart.size() == 2);
    CHECK(
        (apart[1].ranges.size() == 1 && apart[1].ranges[0].end == 22 && apart[1].own_begin == -1));
  }
  {  // row 0 sees positions from 13 on, row 1 from 14 on: no branch but its own
    const auto some = blocks(4);
    REQUIRE(some.size() == 2);
    REQUIRE(some[0].ranges.size() == 2);
    CHECK((some[0].ranges[0].begin == 13 && some[0].ranges[0].end == 14));
    CHECK((some[0].ranges[1].begin == 17 && some[0].ranges[1].end == 21));  // 13 to 16 of its own
    CHECK(some[0].own_begin == -1);
    CHECK(some[1].ranges.empty());
    CHECK((some[1].begin == 1 && some[1].end == 2 && some[1].own_begin == 14));
  }
}

// Follows a plan as the kernels run it, round by round, whose partial results are merged before the
// next one, and notes place by place what the rows of some sequences see.
class PieceAudit {
 public:
  PieceAudit(const HostBatch& batch, int32_t end, const cuda::AttentionGrouping& grouping,
             const cuda::AttentionPlan& plan)
      : batch_(batch), behind_(batch.q_begin[end]), grouping_(grouping), plan_(plan) {
    cuda::AttentionRound from;
    for (const cuda::AttentionRound& to : plan.later_rounds) Run(std::exchange(from, to), to);
    Run(from, {static_cast<int32_t>(plan.decode.size()), static_cast<int32_t>(plan.prefill.size()),
               static_cast<int32_t>(plan.merges.size())});
  }

  // How often a packed row meets each place with a query that is turned as far as the piece wants.
  void CheckRow(int32_t s, int32_t packed) {
    const int32_t own = batch_.context_len[s] - (batch_.q_begin[s + 1] - batch_.q_begin[s]) +
                        packed / grouping_.group;
    const int32_t position = batch_.positions[batch_.q_begin[s] + packed / grouping_.group];
    std::vector<ContextPiece> pieces(batch_.PiecesOf(s).begin(), batch_.PiecesOf(s).end());
    if (pieces.empty()) pieces = {{batch_.context_len[s], position - own, 0}};
    int32_t missing = -batch_.context_len[s];  // positions in front
    for (const ContextPiece& piece : pieces) missing += piece.num_tokens;
    std::vector<std::pair<int32_t, int32_t>> expected;  // place and turn
    int32_t place = -missing;
    for (const ContextPiece& piece : pieces) {
      for (int32_t i = 0; i < piece.num_tokens; ++i, ++place) {
        const int32_t seen_as = position + piece.turn, key = piece.position + i;
        bool sees = place >= 0 && place <= own;
        if (grouping_.in_chunks) {
          sees = sees && key >= seen_as - seen_as % grouping_.window;
        } else if (grouping_.window > 0) {
          sees = sees && seen_as - key < grouping_.window;
        }
        if (sees) expected.emplace_back(place, grouping_.turns_queries ? piece.turn : 0);
      }
    }
    std::vector<std::pair<int32_t, int32_t>>& met = met_[{s, packed}];
    std::sort(met.begin(), met.end());
    CHECK(met == expected);
  }

 private:
  using Row = std::pair<int32_t, int32_t>;                  // sequence, packed row
  using Places = std::vector<std::pair<int32_t, int32_t>>;  // and turns

  void Run(const cuda::AttentionRound& from, const cuda::AttentionRound& to) {
    for (int32_t i = from.decode; i < to.decode; ++i) Add(plan_.decode[i], plan_.decode_rows);
    for (int32_t i = from.prefill; i < to.prefill; ++i) Add(plan_.prefill[i], plan_.prefill_rows);
    for (int32_t i = from.merges; i < to.merges; ++i) Merge(plan_.merges[i]);
  }

  // The row of the batch, its place among packed ones, and its turn.
  std::pair<Row, int32_t> RowOf(const cuda::AttentionTile& tile, int32_t packed) const {
    if (tile.n_shared == 0) return {{tile.seq, packed}, 0};
    int32_t row = plan_.shared_rows[tile.shared_begin + packed / grouping_.group], turn = 0;
    if (row >= behind_) {
      turn = plan_.turned_rows[row - behind_].turn;
      row = plan_.turned_rows[row - behind_].row;
    }
    const int32_t first = batch_.q_begin[tile.seq];
    REQUIRE((row >= first && row < batch_.q_begin[tile.seq + 1]));
    return {{tile.seq, (row - first) * grouping_.group + packed % grouping_.group}, turn};
  }

  void Add(const cuda::AttentionTile& tile, int32_t tile_rows) {
    const int32_t s = tile.seq, rows = batch_.q_begin[s + 1] - batch_.q_begin[s];
    const int32_t all = (tile.n_shared > 0 ? tile.n_shared : rows) * grouping_.group;
    for (int32_t packed = tile.first; packed < std::min(tile.first + tile_rows, all); ++packed) {
      const auto [row, turn] = RowOf(tile, packed);
      // Kernels mask the last piece by places; of others a row sees what its tile has.
      const int32_t i = row.second / grouping_.group;
      int32_t begin = tile.key_begin, end = tile.key_end;
      if (tile.n_shared == 0) {
        const int32_t own = batch_.context_len[s] - rows + i;
        const int32_t position = batch_.positions[batch_.q_begin[s] + i];
        const int32_t sees = grouping_.in_chunks    ? position % grouping_.window + 1
                             : grouping_.window > 0 ? grouping_.window
                                                    : own + 1;
        begin = std::max(begin, own + 1 - sees);
        end = std::min(end, own + 1);
      }
      Places places;
      for (int32_t key = begin; key < end; ++key) places.emplace_back(key, turn);
      if (tile.partial < 0) {
        Take(places, &met_[row]);
      } else {
        partials_[tile.partial + packed - tile.first] = {row, std::move(places)};
        CHECK(tile.partial + packed - tile.first < plan_.n_partials);
      }
    }
  }

  static void Take(const Places& from, Places* to) {
    to->insert(to->end(), from.begin(), from.end());
  }

  void Merge(const cuda::AttentionMerge& merge) {
    for (int32_t i = 0; i < merge.rows; ++i) {
      const Row row = {merge.seq, merge.first + i};
      if (row.second >=
          (batch_.q_begin[row.first + 1] - batch_.q_begin[row.first]) * grouping_.group)
        continue;
      Places all;
      for (const cuda::PartialRange& range : {merge.own, merge.shared}) {
        for (int32_t part = 0; part < range.count; ++part) {
          const auto at = partials_.find(range.begin + part * range.stride + i);
          REQUIRE(at != partials_.end());
          CHECK(at->second.first == row);
          Take(at->second.second, &all);
          partials_.erase(at);
        }
      }
      if (merge.into < 0) {
        Take(all, &met_[row]);
      } else {
        partials_[merge.into + i] = {row, std::move(all)};
      }
    }
  }

  const HostBatch batch_;
  const int32_t behind_;
  const cuda::AttentionGrouping& grouping_;
  const cuda::AttentionPlan& plan_;
  std::map<int32_t, std::pair<Row, Places>> partials_;
  std::map<Row, Places> met_;
};

TEST_CASE("A plan over pieces lets each row meet what it sees once, in whole steps and halves",
          "[cuda][pieces]") {
  Random random(11);
  int32_t turned = 0, rounds = 0, merged = 0;
  for (int round = 0; round < 200; ++round) {
    INFO("round " << round);
    BatchSpec spec;
    std::vector<int32_t> cut;
    const int32_t n_seqs = 1 + random.Below(4);
    for (int32_t s = 0; s < n_seqs; ++s) {
      const int32_t rows = random.Below(2) > 0 ? 1 : 1 + random.Below(40);
      spec.sequences.push_back({rows, rows + random.Below(400)});
      if (random.Below(3) > 0) cut.push_back(s);
    }
    TestBatch batch(spec, static_cast<uint32_t>(round));
    const bool turns = random.Below(2) == 0;
    CutPieces(random, cut, turns, &batch);
    const int32_t kind = random.Below(4);
    const cuda::AttentionGrouping grouping = {
        .group = 1 + random.Below(5),
        .n_kv_heads = 1 + random.Below(3),
        .prefill_rows = random.Below(2) == 0 ? cuda::kPrefillTileRows : cuda::kHopperTileRows,
        .window = kind == 0 ? 0 : 1 + random.Below(500),
        .in_chunks = kind == 1,
        .turns_queries = turns};
    const int32_t most[] = {2 * grouping.group, 64, 8192};
    const cuda::AttentionBudget budget = {.multiprocessors = 1 + random.Below(132),
                                          .max_partials = most[random.Below(3)]};
    const HostBatch view = batch.view();
    const int32_t middle = random.Below(n_seqs + 1);
    for (const cuda::SequenceRange& range :
         {cuda::SequenceRange{0, middle}, cuda::SequenceRange{middle, n_seqs}}) {
      const cuda::AttentionPlan plan = cuda::PlanAttention(view, range, grouping, budget);
      REQUIRE(plan.fits);
      CHECK(plan.n_partials <= budget.max_partials);
      turned += plan.turned_rows.empty() ? 0 : 1;
      rounds += plan.later_rounds.empty() ? 0 : 1;
      merged += std::ranges::any_of(plan.merges, [](auto& merge) { return merge.into >= 0; });
      PieceAudit audit(view, range.end, grouping, plan);
      for (int32_t s = range.begin; s < range.end; ++s) {
        const int32_t rows = batch.q_begin[s + 1] - batch.q_begin[s];
        for (int32_t row = 0; row < rows * grouping.group; ++row) audit.CheckRow(s, row);
      }
    }
  }
  CHECK((turned > 20 && rounds > 20 && merged > 5));
}

}  // namespace
}  // namespace heddle::kernels::test
