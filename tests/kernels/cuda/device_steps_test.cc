// Steps on the emulated CUDA device: which of them are graphs, what comes between them, and what
// is launched where a library refuses.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/cuda/attention/select_params.h"
#include "kernels/cuda/linear/expert_params.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/logit_batch.h"
#include "tests/emulate/machine.h"
#include "tests/kernels/batch_edits.h"
#include "tests/kernels/cuda/emulated.h"
#include "tests/kernels/cuda/on_machine.h"

namespace heddle::kernels::test {
namespace {

using cuda::emulate::GraphLaunches;
using cuda::emulate::Machine;
using cuda::emulate::TileCopies;

constexpr int64_t kWidth = 128;  // 4 heads of 32

std::vector<float> ValuesOf(const Activations& x, int64_t rows, int64_t cols) {
  std::vector<float> values;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) values.push_back(x(r, c));
  }
  return values;
}

// The outputs of decoding steps of so many sequences whose contexts grow.
std::vector<float> DecodeSteps(const std::vector<int32_t>& sequences, const TestWeight& weight,
                               bool graphs) {
  auto device = *CreateCudaDevice({.workspace_bytes = int64_t{4} << 20, .graphs = graphs});
  WeightSource source = weight.source();
  source.takes_int8_x = true;
  auto packed = *device->Pack({&source, 1});
  std::vector<float> all;
  for (size_t step = 0; step < sequences.size(); ++step) {
    BatchSpec spec{{}, 16};
    for (int32_t s = 0; s < sequences[step]; ++s) {
      spec.sequences.push_back({1, 5 + s % 7 + static_cast<int32_t>(step)});
    }
    const TestBatch batch(spec);
    TestCache cache(DType::kBF16, batch.num_pages, 16, 1, 32, 1);
    Random random(static_cast<uint32_t>(step));
    Matrix x = Matrix::RandomOf(random, sequences[step], kWidth);
    Matrix zeros(sequences[step], kWidth);
    Activations in(DType::kBF16, x), q(DType::kBF16, zeros), out(DType::kBF16, zeros);
    REQUIRE(device->Plan(batch.view()).ok());
    MustRun(*device, [&](Ops& ops) {
      ops.Norm({.x = in.tensor(), .residual = {}, .out = in.tensor()});
      ops.Linear({.x = in.tensor(), .weight = packed.get(), .out = q.tensor()});
      ops.Attention(
          {.q = q.tensor(), .n_heads = 4, .cache = cache.view, .scale = 0.2f, .out = out.tensor()});
    });
    for (const float value : ValuesOf(out, sequences[step], kWidth)) all.push_back(value);
  }
  return all;
}

TEST_CASE("Steps of many sequences become graphs once two of them are alike", "[cuda]") {
  Random random(5);
  const TestWeight weight = MakeWeight(random, DType::kBF16, kWidth, kWidth);
  const std::vector<int32_t> steps = {40, 40, 40, 40, 37, 40, 40};
  OnMachine on({});
  const std::vector<float> directly = DecodeSteps(steps, weight, /*graphs=*/false);
  CHECK(GraphLaunches() == 0);
  CHECK(DecodeSteps(steps, weight, /*graphs=*/true) == directly);
  // The first is launched directly, the second makes the launches known; after the step of 37 the
  // same again, for which there is a graph already.
  CHECK(GraphLaunches() == 3);
}

TEST_CASE("Steps that ask a library are launched directly", "[cuda]") {
  Random random(5);
  const TestWeight weight = MakeRowScaledWeight(random, DType::kInt8G32, kWidth, kWidth);
  OnMachine on({.has_library = true});
  const std::vector<int32_t> steps = {40, 40, 40, 40};
  const std::vector<float> directly = DecodeSteps(steps, weight, /*graphs=*/false);
  CHECK(DecodeSteps(steps, weight, /*graphs=*/true) == directly);
  CHECK(GraphLaunches() == 0);
}

TEST_CASE("Steps of FP8 weights ask no library and become graphs", "[cuda]") {
  Random random(5);
  const std::vector<int32_t> steps = {40, 40, 40, 40};
  for (const TestWeight& weight : {MakeRowScaledWeight(random, DType::kF8G128, kWidth, kWidth),
                                   MakeTileScaledWeight(random, DType::kF8G128, kWidth, kWidth)}) {
    OnMachine on({.has_library = true});
    const std::vector<float> directly = DecodeSteps(steps, weight, /*graphs=*/false);
    CHECK(DecodeSteps(steps, weight, /*graphs=*/true) == directly);
    CHECK(GraphLaunches() == 2);  // the third one and the fourth
  }
}

TEST_CASE("What a library refuses goes to the kernel with bulk copies", "[cuda]") {
  constexpr int64_t kRows = 420;  // predicted for the library
  Random random(3);
  const TestWeight weight = MakeWeight(random, DType::kBF16, 64, 64);
  Matrix x = Matrix::RandomOf(random, kRows, 64);
  Matrix zeros(kRows, 64);
  const auto multiply = [&](const Machine& machine, int64_t* copies) {
    OnMachine on(machine);
    auto device = *CreateCudaDevice({.workspace_bytes = int64_t{4} << 20, .graphs = false});
    const WeightSource source = weight.source();
    auto packed = *device->Pack({&source, 1});
    Activations in(DType::kBF16, x), out(DType::kBF16, zeros);
    const int64_t before = TileCopies();
    MustRun(*device, [&](Ops& ops) {
      ops.Linear({.x = in.tensor(), .weight = packed.get(), .out = out.tensor()});
    });
    *copies = TileCopies() - before;
    return ValuesOf(out, kRows, 64);
  };
  int64_t by_library = 0, refused = 0, without = 0;
  multiply({.has_library = true}, &by_library);
  const auto found = multiply({.has_library = true, .has_products = false}, &refused);
  const auto expected = multiply({}, &without);
  CHECK(by_library == 0);
  CHECK(refused > 0);
  CHECK(refused == without);
  CHECK(found == expected);
}

// A copy behind launches that nothing else follows: its kernel is one that could begin early.
TEST_CASE("A page is copied behind a step that draws nothing", "[cuda]") {
  const bool is_late = GENERATE(false, true);
  OnMachine on({.is_late = is_late});
  auto device = *CreateCudaDevice({.workspace_bytes = int64_t{4} << 20, .graphs = false});
  const TestBatch batch({{{1, 17}}, 16});
  TestCache cache(DType::kBF16, 4, 16, 1, 32, 1);
  Random random(7);
  Matrix keys = Matrix::RandomOf(random, 1, 32);
  Activations k(DType::kBF16, keys), q(DType::kBF16, keys), v(DType::kBF16, keys);
  REQUIRE(device->Plan(batch.view()).ok());
  REQUIRE(device
              ->Launch([&](Ops& ops) {
                ops.RopeKvWrite({.q = q.tensor(),
                                 .k = k.tensor(),
                                 .v = v.tensor(),
                                 .n_heads = 1,
                                 .rotary_dim = 32,
                                 .cache = cache.view});
              })
              .ok());
  const int32_t page = batch.span_page[1];  // of position 16
  const int32_t to = page == 3 ? 2 : 3;
  device->CopyPage(cache.view, page, to, 1);
  REQUIRE(device->Finish().ok());
  REQUIRE(device->Synchronize().ok());
  const auto at = [&](int32_t index) {
    const auto* bytes = static_cast<const uint8_t*>(cache.view.values);
    return reinterpret_cast<const uint16_t*>(bytes + cache.view.PageOffset(index));
  };
  for (int32_t c = 0; c < 32; ++c) CHECK(BF16ToF32(at(to)[c]) == v(0, c));
}

TEST_CASE("Several blocks group many pairs of rows and experts", "[cuda]") {
  constexpr int64_t kPairs = 3 * cuda::kGroupPairs + 77;
  constexpr int32_t kExperts = 37, kRows = 32;
  constexpr int64_t kBlocks = 4;
  Random random(2);
  std::vector<int32_t> experts;
  for (int64_t i = 0; i < kPairs; ++i)
    experts.push_back(random.Below(kExperts - 1));                // the last: 0
  const int32_t first = GENERATE(0, 5), here = GENERATE(37, 20);  // experts of this rank
  std::vector<int32_t> pairs(kPairs, -1), counts(kBlocks * (kExperts + 1), -1);
  std::vector<cuda::ExpertChunk> chunks(kPairs / kRows + kExperts);
  int32_t n_chunks = 0, counter = 0;
  const cuda::ExpertGroups groups = {.pairs = pairs.data(),
                                     .chunks = chunks.data(),
                                     .n_chunks = &n_chunks,
                                     .max_chunks = static_cast<int32_t>(chunks.size()),
                                     .chunk_rows = kRows,
                                     .block_counts = counts.data(),
                                     .counter = &counter};
  auto runtime = *cuda::Runtime::Open(0);
  REQUIRE(cuda::LaunchGroupExperts(experts.data(), kPairs, {first, here}, groups,
                                   runtime->stream()) == cuda::kSuccess);
  REQUIRE(runtime->Synchronize().ok());
  CHECK(counter == 0);
  std::vector<bool> seen(kPairs, false);
  int32_t at = 0;
  for (int32_t c = 0; c < n_chunks; ++c) {
    const cuda::ExpertChunk& chunk = chunks[static_cast<size_t>(c)];
    REQUIRE(chunk.begin == at);
    REQUIRE(chunk.count > 0);
    REQUIRE(chunk.count <= kRows);
    for (int32_t i = at; i < at + chunk.count; ++i) {
      const auto pair = static_cast<size_t>(pairs[static_cast<size_t>(i)]);
      REQUIRE(pair < seen.size());
      REQUIRE(experts[pair] == chunk.expert + first);
      REQUIRE_FALSE(seen[pair]);
      seen[pair] = true;
    }
    at += chunk.count;
  }
  CHECK(at == std::count_if(experts.begin(), experts.end(), [&](int32_t expert) {
          return expert >= first && expert < first + here;
        }));
  for (const int32_t pair : pairs) CHECK(pair >= 0);  // of experts elsewhere, too
}

TEST_CASE("Rows of experts are added up whatever their width and number", "[cuda]") {
  auto device = EmulatedDevice(DType::kBF16);
  auto runtime = *cuda::Runtime::Open(0);
  for (const int64_t cols : {8, 24, 1032, 7}) {
    for (const int32_t top_k : {1, 4, 5, 8}) {
      INFO(cols << " columns, " << top_k << " choices");
      Random random(static_cast<uint32_t>(cols + top_k));
      Matrix rows = Matrix::RandomOf(random, 2 * top_k, cols);
      Matrix before = Matrix::RandomOf(random, 2, cols);
      const std::vector<float> weights = random.Normals(2 * top_k);
      Activations own(DType::kBF16, rows), out(DType::kBF16, before);
      std::vector<int32_t> experts;
      for (int32_t i = 0; i < 2 * top_k; ++i) experts.push_back(i % 3);
      REQUIRE(cuda::LaunchExpertSum(own.tensor(), weights.data(), experts.data(),
                                    {.first = 1, .count = 2}, top_k, out.tensor(), true,
                                    DType::kBF16, runtime->stream()) == cuda::kSuccess);
      REQUIRE(runtime->Synchronize().ok());
      for (int64_t t = 0; t < 2; ++t) {
        for (int64_t c = 0; c < cols; ++c) {
          float sum = before(t, c);
          for (int64_t i = t * top_k; i < (t + 1) * top_k; ++i) {
            if (i % 3 == 0) continue;  // an expert elsewhere
            sum += weights[static_cast<size_t>(i)] * rows(i, c);
          }
          CHECK(std::fabs(out(t, c) - sum) <= RoundingOf(DType::kBF16, sum) + 1e-5);
        }
      }
    }
  }
}

// Places behind those that shared memory keeps, 160 here.
TEST_CASE("Places are chosen alike whether shared memory keeps their scores or not", "[cuda]") {
  auto runtime = *cuda::Runtime::Open(0);
  constexpr int32_t kTopK = 70, kContext = 512;
  TestBatch batch({{{1, 300}, {5, 420}, {1, 150}, {1, 50}}, 16});
  Random random(8);
  GrowTrees(random, {1}, &batch);
  const auto rows = static_cast<int64_t>(batch.token_ids.size());
  std::vector<float> scores(static_cast<size_t>(rows * kContext));
  for (float& score : scores) {
    score = static_cast<float>(random.Below(7) - 3) * (random.Below(2) == 0 ? 1.0f : -0.0f);
    if (random.Below(9) == 0) score = std::numeric_limits<float>::quiet_NaN();
  }
  cuda::SelectParams params;
  params.args.top_k = kTopK;
  params.batch.q_begin = batch.q_begin.data();
  params.batch.context_len = batch.context_len.data();
  params.batch.tree_mask = batch.tree_mask.data();
  params.batch.n_seqs = 4;
  params.n_rows = static_cast<int32_t>(rows);
  params.context = kContext;
  params.stride = kContext;
  params.scores = scores.data();
  const auto lists = [&](int32_t max_shared_bytes) {
    std::vector<int32_t> out(static_cast<size_t>(rows * (1 + kTopK)), -7);
    params.args.out = out.data();
    REQUIRE(cuda::LaunchChoosePlaces(params, max_shared_bytes, runtime->stream()) ==
            cuda::kSuccess);
    REQUIRE(runtime->Synchronize().ok());
    return out;
  };
  const std::vector<int32_t> few = lists(9000);
  CHECK(few == lists(64 << 10));
  for (int64_t t = 0; t < rows; ++t) {
    const int32_t* row = few.data() + t * (1 + kTopK);
    const bool in_tree = t >= 1 && t < 6;
    const int32_t sees = t == 0 ? 300 : in_tree ? 415 : t == 6 ? 150 : 50;  // a tree: before it
    CHECK(*row == (sees > kTopK ? kTopK : 0));
    if (*row == 0) continue;
    CHECK(std::is_sorted(row + 1, row + 1 + kTopK));
    // NaN counts as less than all, and of equal ones the first are chosen.
    const auto value = [&](int32_t place) {
      const float score = scores[static_cast<size_t>(t * kContext + place)];
      return std::isnan(score) ? -INFINITY : score;
    };
    std::vector<int32_t> places;
    for (int32_t place = 0; place < sees; ++place) places.push_back(place);
    for (int32_t i = 0; in_tree && i < 5; ++i) {
      if ((batch.tree_mask[static_cast<size_t>(t)] >> i & 1) != 0) places.push_back(415 + i);
    }
    std::stable_sort(places.begin(), places.end(),
                     [&](int32_t a, int32_t b) { return value(a) > value(b); });
    places.resize(kTopK);
    std::sort(places.begin(), places.end());
    CHECK(std::vector<int32_t>(row + 1, row + 1 + kTopK) == places);
  }
}

// Angles of the batch's rows, or of its logit rows, and attention of queries with and without a
// window.
std::vector<float> AnglesAndAttention(Device& device, const HostBatch& batch, const Matrix& queries,
                                      const KvCacheView& cache, bool narrows) {
  const auto n = static_cast<int32_t>(queries.num_rows());
  Matrix q_rows = queries, zeros(n, queries.num_cols());
  Activations q(DType::kBF16, q_rows), out(DType::kBF16, zeros);
  std::vector<float> frequencies = {1.0f, 0.1f, 0.01f}, angles(static_cast<size_t>(6 * n));
  REQUIRE(device.Plan(batch).ok());
  MustRun(device, [&](Ops& ops) {
    if (narrows) {
      REQUIRE(ops.EndsWithLogitRows());
      ops.NarrowToLogitRows();
    }
    ops.RopeAngles({.inv_freq = frequencies, .cos_sin = angles.data()});
    for (const int32_t window : {0, 40}) {
      ops.Attention({.q = q.tensor(),
                     .n_heads = 8,
                     .cache = cache,
                     .scale = 0.125f,
                     .window = window,
                     .out = out.tensor()});
      ops.GatherLogitRows(out.tensor(), q.tensor());  // all of them
    }
  });
  std::vector<float> all = ValuesOf(q, n, queries.num_cols());
  all.insert(all.end(), angles.begin(), angles.end());
  return all;
}

// The first step stages its second batch when it narrows, the others in front of it; small ones go
// by a tape.
TEST_CASE("A step that is narrowed is the step of its logit rows, bit for bit", "[cuda]") {
  const auto device = EmulatedDevice(DType::kBF16);
  const auto narrow_device = EmulatedDevice(DType::kBF16);
  int32_t step = 0;
  for (const int32_t chunk : {33, 5, 5, 6, 5}) {
    step += 17;
    TestBatch batch({{{20, 75}, {1, 250 + step}, {chunk, 300 + step}, {3, 90 - step / 4}}, 16});
    batch.logit_rows = {19, 20, 22 + chunk, 23 + chunk};
    TestCache cache(DType::kBF16, batch.num_pages, 16, 2, 64, 1);
    LogitBatch logit_batch;
    HostBatch narrow = logit_batch.Make(batch.view());
    narrow.kv_slot = narrow.kv_slot.first(4);
    Random random(static_cast<uint32_t>(step));
    const Matrix queries = Matrix::RandomOf(random, 4, 8 * 64);
    const auto found =
        AnglesAndAttention(*device, batch.view(), queries, cache.view, /*narrows=*/true);
    CHECK(found == AnglesAndAttention(*narrow_device, narrow, queries, cache.view,
                                      /*narrows=*/false));
  }
  TestBatch batch({{{4, 75}, {2, 9}}, 16});
  batch.logit_rows = {2, 5};  // not the last of its sequence
  REQUIRE(device->Plan(batch.view()).ok());
  MustRun(*device, [](Ops& ops) { CHECK_FALSE(ops.EndsWithLogitRows()); });
}

}  // namespace
}  // namespace heddle::kernels::test
