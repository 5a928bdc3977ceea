// Steps split in two halves that run side by side, on the emulated device, whose tapes run lane 1
// as early as they allow.
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/cuda/nano_split.h"
#include "kernels/cuda/rows/row_params.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/runtime/tape.h"
#include "kernels/nano_batch.h"
#include "kernels/owned_batch.h"
#include "tests/emulate/machine.h"
#include "tests/kernels/batch_edits.h"
#include "tests/kernels/cuda/emulated.h"
#include "tests/support/paths.h"

namespace heddle::kernels::test {
namespace {

const NanoBatchProfile kAlways = {.device_name = {}, .rules = {NanoBatchRule{}}};

std::optional<cuda::NanoSplit> SplitOf(const std::vector<BatchSpec::Sequence>& sequences,
                                       const std::vector<NanoBatchRule>& rules) {
  TestBatch batch({sequences, 16});
  return cuda::SplitOf(batch.view(), {.device_name = {}, .rules = rules}, /*may_cut_within=*/true);
}

TEST_CASE("A step is cut between sequences, where the halves' rows differ least", "[cuda][nano]") {
  const auto even = SplitOf({{1, 9}, {1, 9}, {1, 9}, {1, 9}}, {NanoBatchRule{}});
  REQUIRE(even.has_value());
  CHECK(even->sequences == 2);
  CHECK(even->rows == 2);
  const auto uneven = SplitOf({{1, 9}, {1, 9}, {40, 40}, {3, 8}}, {NanoBatchRule{}});
  REQUIRE(uneven.has_value());
  CHECK(uneven->sequences == 3);
  CHECK(uneven->rows == 42);
  CHECK_FALSE(SplitOf({{40, 40}}, {NanoBatchRule{}}).has_value());
}

TEST_CASE("A step is cut within a sequence where its rule says so", "[cuda][nano]") {
  const auto at = [](const std::vector<BatchSpec::Sequence>& sequences, int32_t cut_rows) {
    const auto split = SplitOf(sequences, {{.cut_rows = cut_rows}});
    if (!split.has_value()) return std::string("whole");
    return std::to_string(split->sequences) + " sequences, " + std::to_string(split->rows) +
           (split->is_within ? " rows, within" : " rows");
  };
  CHECK(at({{40, 40}}, 0) == "whole");
  CHECK(at({{40, 40}}, 40) == "whole");
  CHECK(at({{40, 90}}, 16) == "1 sequences, 16 rows, within");
  CHECK(at({{42, 90}}, 16) == "1 sequences, 16 rows, within");
  CHECK(at({{50, 90}}, 16) == "1 sequences, 32 rows, within");
  CHECK(at({{40, 90}}, 1) == "1 sequences, 20 rows, within");
  CHECK(at({{1, 9}, {1, 9}, {60, 60}, {3, 8}}, 16) == "3 sequences, 34 rows, within");
  CHECK(at({{20, 20}, {20, 20}}, 4) == "1 sequences, 20 rows");  // as good as any other cut
  CHECK(at({{1, 9}, {1, 9}}, 4) == "1 sequences, 1 rows");
  CHECK(at({{4, 9}, {60, 60}}, std::numeric_limits<int32_t>::max()) == "1 sequences, 4 rows");
  TestBatch tree({{{40, 60}}, 16});
  Random random(3);
  GrowTrees(random, {0}, &tree);
  const NanoBatchProfile cuts = {.device_name = {}, .rules = {{.cut_rows = 4}}};
  CHECK_FALSE(cuda::SplitOf(tree.view(), cuts, true).has_value());
  TestBatch chunk({{{40, 60}}, 16});
  CHECK(cuda::SplitOf(chunk.view(), cuts, true).has_value());
  CHECK_FALSE(cuda::SplitOf(chunk.view(), cuts, false).has_value());
}

TEST_CASE("Rules are for decodes, or for steps with most rows in chunks", "[cuda][nano]") {
  const NanoBatchRule decodes = {.steps = StepKind::kDecodes},
                      prompts = {.steps = StepKind::kPrompts};
  const std::vector<BatchSpec::Sequence> few = {{1, 9}, {65, 80}}, many = {{1, 9}, {64, 80}};
  CHECK(SplitOf(few, {prompts}).has_value());
  CHECK_FALSE(SplitOf(few, {decodes}).has_value());
  CHECK(SplitOf(many, {decodes}).has_value());
  CHECK_FALSE(SplitOf(many, {prompts}).has_value());
  std::vector<BatchSpec::Sequence> half(65, {1, 9});
  half.push_back({65, 80});
  CHECK_FALSE(SplitOf(half, {prompts}).has_value());
  CHECK(SplitOf(half, {decodes}).has_value());
}

// The second sequence's pages hold 6 and 16 and 11 positions, of which its rows are the last 25.
TEST_CASE("A cut sequence is two, of which the first ends where the cut is", "[cuda][nano]") {
  TestBatch batch({{{2, 20}, {25, 33, 6}, {1, 40}}, 16});
  const std::vector<int64_t> slots(28, 7);
  const std::vector<int32_t> begin = {0, 1, 3, 4}, pages = {4, 5, 6, 7}, tokens = {9, 16, 12, 3},
                             context = {9, 28, 3};
  HostBatch view = batch.view();
  const BatchSpans other = {slots, begin, pages, tokens, context};
  view.more_groups = {&other, 1};
  const auto list = [](std::span<const int32_t> values) {
    return std::vector<int32_t>(values.begin(), values.end());
  };
  REQUIRE(list(view.span_tokens) == std::vector<int32_t>{16, 4, 6, 16, 11, 16, 16, 8});
  cuda::CutBatch cutter;
  OwnedBatch checked;
  for (const int32_t rows : {10, 16, 26}) {  // of the first half, with the first sequence's two
    INFO(rows << " rows");
    const HostBatch cut = cutter.Cut(view, {.sequences = 2, .rows = rows, .is_within = true});
    REQUIRE(checked.Assign(cut).ok());
    CHECK(cut.n_tokens() == 28);
    CHECK(list(cut.q_begin) == std::vector<int32_t>{0, 2, rows, 27, 28});
    const int32_t later = 27 - rows;
    CHECK(list(cut.context_len) == std::vector<int32_t>{20, 33 - later, 33, 40});
    const HostBatch second = cut.OfGroup(1);
    CHECK(list(second.context_len) == std::vector<int32_t>{9, 28 - later, 28, 3});
    CHECK(second.kv_slot.size() == 28);
    for (const HostBatch& group : {cut, second}) {
      // The pages of the first part are those of the whole sequence, as far as they go.
      const int32_t first = group.span_begin[1], whole = group.span_begin[2];
      const int32_t count = whole - first;
      for (int32_t i = 0; i < count; ++i) {
        CHECK(group.span_page[first + i] == group.span_page[whole + i]);
        if (i + 1 < count) CHECK(group.span_tokens[first + i] == group.span_tokens[whole + i]);
      }
    }
  }
  // The cut is where a page ends: it leaves none without positions.
  const HostBatch cut = cutter.Cut(view, {.sequences = 2, .rows = 16, .is_within = true});
  CHECK(list(cut.span_tokens) == std::vector<int32_t>{16, 4, 6, 16, 6, 16, 11, 16, 16, 8});
}

TEST_CASE("The first rule that holds decides, and without one a step runs whole", "[cuda][nano]") {
  const std::vector<BatchSpec::Sequence> four = {{1, 100}, {1, 200}, {1, 100}, {1, 200}};
  CHECK_FALSE(SplitOf(four, {}).has_value());
  CHECK_FALSE(SplitOf(four, {{.min_rows = 5}}).has_value());
  CHECK_FALSE(SplitOf(four, {{.min_rows = 0, .max_rows = 3}}).has_value());
  CHECK(SplitOf(four, {{.min_context = 150}}).has_value());
  CHECK_FALSE(SplitOf(four, {{.min_context = 151}}).has_value());
  CHECK_FALSE(SplitOf(four, {{.split = false}, NanoBatchRule{}}).has_value());
  CHECK(SplitOf(four, {{.min_rows = 9}, {.attention_multiprocessors = 3}})
            ->attention_multiprocessors == 3);
}

TEST_CASE("A profile of another device, or one that cannot be followed, is refused",
          "[cuda][nano]") {
  auto device = EmulatedDevice(DType::kBF16);
  CHECK(device->nano_batch_device()->name == "emulated");
  CHECK(device->nano_batch_device()->num_multiprocessors == 6);
  CHECK(device->SetNanoBatches({.device_name = "emulated", .rules = {NanoBatchRule{}}}).ok());
  CHECK(device->SetNanoBatches({.device_name = "NVIDIA H200", .rules = {}}) ==
        absl::FailedPreconditionError("the tune profile was measured on \"NVIDIA H200\", and this "
                                      "device is \"emulated\"; run heddle tune on this one"));
  CHECK(device->SetNanoBatches({.device_name = {}, .rules = {{.min_rows = 9, .max_rows = 3}}}) ==
        absl::InvalidArgumentError("rule 0 of the tune profile holds from 9 rows to 3: never"));
  CHECK(device->SetNanoBatches({.device_name = {}, .rules = {{.cut_rows = -1}}}) ==
        absl::InvalidArgumentError("rule 0 of the tune profile cuts at -1 rows; 0 stands for "
                                   "between sequences"));
  CHECK(device->SetNanoBatches({.device_name = {}, .rules = {{.attention_multiprocessors = 6}}}) ==
        absl::InvalidArgumentError("rule 0 of the tune profile gives attention 6 multiprocessors; "
                                   "the device has 6, and some must be left for the rest"));
  CHECK(CreateReferenceDevice()->SetNanoBatches({}).message() ==
        "reference (plain loops, 1 thread) runs every step whole: splitting it in halves that run "
        "side by side is for "
        "GPUs; use --device cuda:N");
}

// value = (value + 1) * 2 holds only in the right order; the ops are on lanes 0 and 1 in turn.
TEST_CASE("A tape's lanes meet where they wait for each other, replayed or not", "[cuda][nano]") {
  auto runtime = *cuda::Runtime::Open(0);
  for (const bool waits : {true, false}) {
    Matrix value(1, 1), other(1, 1);
    *value.at(0, 0) = 1;
    cuda::Tape tape;
    runtime->set_tape(&tape);
    // ScaleLogits with a cap: not the same as the other way round.
    CHECK(cuda::LaunchScaleLogits(other.tensor(), 1, 0, runtime->stream(0)) == cuda::kSuccess);
    CHECK(cuda::LaunchScaleLogits(value.tensor(), 3, 0, runtime->stream(0)) == cuda::kSuccess);
    REQUIRE(runtime->Signal(0).ok());
    CHECK(cuda::LaunchScaleLogits(other.tensor(), 1, 0, runtime->stream(0)) == cuda::kSuccess);
    if (waits) REQUIRE(runtime->Wait(1, 0).ok());
    CHECK(cuda::LaunchScaleLogits(value.tensor(), 1, 2, runtime->stream(1)) == cuda::kSuccess);
    REQUIRE(runtime->Signal(1).ok());
    if (waits) REQUIRE(runtime->Wait(0, 1).ok());
    CHECK(cuda::LaunchScaleLogits(value.tensor(), 5, 0, runtime->stream(0)) == cuda::kSuccess);
    runtime->set_tape(nullptr);
    CHECK(tape.launches()[3].after == (waits ? 1 : -1));
    CHECK(tape.launches()[4].after == (waits ? 3 : -1));
    CHECK(tape.launches()[4].before == 2);
    REQUIRE(runtime->LaunchAll(tape).ok());
    REQUIRE(runtime->Synchronize().ok());
    const float right = 5 * 2 * std::tanh(1.5f);
    CHECK((std::fabs(value(0, 0) - right) < 1e-5f) == waits);
    auto graph = *runtime->MakeGraph(tape);
    *value.at(0, 0) = 1;
    REQUIRE(runtime->LaunchGraph(graph).ok());
    REQUIRE(runtime->Synchronize().ok());
    CHECK((std::fabs(value(0, 0) - right) < 1e-5f) == waits);
    runtime->FreeGraph(graph);
  }
}

struct Steps {
  bool graphs = true;
  bool library = false;
  std::vector<BatchSpec::Sequence> sequences;
  std::vector<int32_t> trees = {};
  std::vector<SharedPages> shared = {};
  bool both_ways = false;
};

// Two layers of a made-up decoder, three times: all kinds of ops that halves share tensors in.
std::vector<float> Run(const Steps& steps, const NanoBatchProfile& profile) {
  cuda::emulate::SetMachine({.has_library = steps.library});
  auto device = *CreateCudaDevice(
      {.activations = DType::kBF16, .workspace_bytes = int64_t{4} << 20, .graphs = steps.graphs});
  REQUIRE(device->SetNanoBatches(profile).ok());
  constexpr int32_t kHeads = 2, kKvHeads = 1, kDim = 64, kHidden = 128;
  Random random(5);
  const TestWeight in = MakeWeight(random, DType::kQ4_0, 2 * kHidden, kHidden);
  const TestWeight back = MakeWeight(random, DType::kBF16, kHidden, kHidden);
  const WeightSource in_source = in.source(), back_source = back.source();
  auto qkv_weight = *device->Pack({&in_source, 1});
  auto out_weight = *device->Pack({&back_source, 1});
  const std::vector<float> frequencies(kDim / 2, 0.1f);
  TestBatch batch({steps.sequences, 16});
  GrowTrees(random, steps.trees, &batch);
  for (const SharedPages& shared : steps.shared) SharePages(shared, &batch);
  const auto rows = static_cast<int64_t>(batch.token_ids.size());
  const auto n_seqs = static_cast<int64_t>(steps.sequences.size());
  TestCache cache(DType::kBF16, batch.num_pages, 16, kKvHeads, kDim, 1);
  Matrix start = Matrix::RandomOf(random, rows, kHidden), wide(rows, 2 * kHidden);
  Matrix ends(n_seqs, kHidden), angles(rows, kDim);
  Activations x(DType::kBF16, start), normed(DType::kBF16, start), attended(DType::kBF16, start);
  Activations qkv(DType::kBF16, wide), last(DType::kBF16, ends);
  // Results that other models' layers make of attended rows, without a way back to the layers.
  Matrix factors = Matrix::RandomOf(random, rows, 16), other_ends(n_seqs, kHidden);
  Activations aside(DType::kBF16, start), other_last(DType::kBF16, other_ends);
  const Tensor heads = {aside.tensor().data, rows * kHeads, kDim, kDim};  // as rows
  const auto columns = [&](int64_t first, int64_t count) {
    const Tensor t = qkv.tensor();
    return Tensor{t.row<uint16_t>(0) + first, t.rows, count, t.stride};
  };
  for (int round = 0; round < 3; ++round) {
    REQUIRE(device->Plan(batch.view()).ok());
    MustRun(*device, [&](Ops& ops) {
      ops.RopeAngles({.inv_freq = frequencies, .cos_sin = angles.at(0, 0)});
      for (int layer = 0; layer < 2; ++layer) {
        ops.Linear({.x = normed.tensor(),
                    .weight = qkv_weight.get(),
                    .out = qkv.tensor(),
                    .norm = NormArgs{.x = x.tensor(), .residual = {}, .out = normed.tensor()}});
        ops.RopeKvWrite({.q = columns(0, kHeads * kDim),
                         .k = columns(kHeads * kDim, kKvHeads * kDim),
                         .v = columns((kHeads + kKvHeads) * kDim, kKvHeads * kDim),
                         .n_heads = kHeads,
                         .cos_sin = angles.at(0, 0),
                         .rotary_dim = kDim,
                         .cache = cache.view});
        ops.Attention({.q = columns(0, kHeads * kDim),
                       .n_heads = kHeads,
                       .cache = cache.view,
                       .scale = 0.125f,
                       .both_ways = steps.both_ways,
                       .out = attended.tensor()});
        ops.CopyRows(attended.tensor(), aside.tensor());
        ops.Norm({.x = heads, .residual = {}, .out = heads});
        ops.Multiply(columns(kHeads * kDim, kHidden), aside.tensor());
        ops.MatchMagnitude(columns(0, kHidden), aside.tensor());
        ops.Scale(heads, 0.5f);
        ops.PredictStreams({.streams = aside.tensor(), .count = 4, .factors = factors.tensor()});
        ops.CorrectStreams({.streams = aside.tensor(),
                            .count = 4,
                            .factors = factors.tensor(),
                            .computed = columns(0, kHidden / 4),
                            .active = 2});
        ops.SparseGate({aside.tensor(), -1.0f, Activation::kNone});
        ops.Linear({.x = attended.tensor(),
                    .weight = out_weight.get(),
                    .epilogue = Epilogue::kAdd,
                    .out = x.tensor()});
      }
      ops.GatherLogitRows(x.tensor(), last.tensor());
      ops.Norm({.x = last.tensor(), .residual = {}, .out = last.tensor()});
      ops.GatherLogitRows(aside.tensor(), other_last.tensor());
      ops.Norm({.x = other_last.tensor(), .residual = {}, .out = other_last.tensor()});
    });
  }
  if (steps.library) cuda::emulate::SetMachine({});
  std::vector<float> all;
  for (int64_t s = 0; s < n_seqs; ++s) {
    for (int64_t c = 0; c < kHidden; ++c) all.push_back(last(s, c));
    for (int64_t c = 0; c < kHidden; ++c) all.push_back(other_last(s, c));
  }
  return all;
}

// The names of virtual functions that `header` overrides.
std::set<std::string> Overridden(const char* header) {
  std::ifstream in(heddle::test::SourceDir() / "kernels/cuda" / header);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const std::regex declaration(R"((\w+)\([^;{}]*\)( const)? override)");
  std::set<std::string> names;
  for (std::sregex_iterator at(text.begin(), text.end(), declaration), end; at != end; ++at) {
    names.insert((*at)[1]);
  }
  return names;
}

// An op that halves lack would end the program with the first step that is split. Sums begin early
// only across processes, stages have no profile, and halves say that they keep their rows.
TEST_CASE("Halves have each op that whole steps have, but those of no profile", "[cuda][nano]") {
  std::set<std::string> missing = Overridden("cuda_ops.h");
  REQUIRE(missing.size() > 30);
  for (const std::string& name : Overridden("split_ops.h")) missing.erase(name);
  CHECK(missing == std::set<std::string>{"BeginAllReduce", "EndAllReduce", "EndsWithLogitRows",
                                         "NarrowToLogitRows", "RecvRows", "SendRows"});
}

TEST_CASE("Halves side by side compute what the whole step does", "[cuda][nano]") {
  const std::vector<BatchSpec::Sequence> decodes = {{1, 150}, {1, 20}, {1, 9}, {1, 77}, {1, 260}};
  const std::vector<BatchSpec::Sequence> mixed = {{1, 150}, {40, 60}, {33, 33}, {5, 50}};
  const std::vector<BatchSpec::Sequence> common = {{1, 400}, {7, 410}, {1, 390},
                                                   {2, 420}, {3, 380}, {1, 377}};
  const NanoBatchProfile divided = {.device_name = {}, .rules = {{.attention_multiprocessors = 2}}};
  const NanoBatchProfile within = {.device_name = {}, .rules = {{.cut_rows = 8}}};
  const std::vector<BatchSpec::Sequence> chunk = {{26, 150}}, long_chunk = {{300, 420}, {1, 9}};
  for (const Steps& steps :
       {Steps{.graphs = true, .sequences = chunk}, Steps{.graphs = true, .sequences = long_chunk},
        Steps{.graphs = true, .library = false, .sequences = decodes},
        Steps{.graphs = false, .library = false, .sequences = decodes},
        Steps{.graphs = true, .library = false, .sequences = mixed},
        Steps{.graphs = true, .library = true, .sequences = mixed},
        Steps{.graphs = true,
        .sequences = common,
        .trees = {1, 3, 4},
        .shared = {{{0, 1, 2, 3, 4, 5}, 368}}}}) {
    const std::vector<float> whole = Run(steps, {});
    for (const NanoBatchProfile& profile : {kAlways, divided, within}) {
      if (!profile.rules[0].attention_multiprocessors && steps.library) continue;
      const std::vector<float> halves = Run(steps, profile);
      REQUIRE(halves.size() == whole.size());
      double worst = 0;  // root of the mean square of a row's errors
      const size_t cols = whole.size() / (2 * steps.sequences.size());
      for (size_t row = 0; row < whole.size(); row += cols) {
        double squares = 0;
        for (size_t i = row; i < row + cols; ++i) {
          const double error = double{whole[i]} - halves[i];
          squares += std::isnan(error) ? 1e9 : error * error;
        }
        worst = std::max(worst, std::sqrt(squares / static_cast<double>(cols)));
      }
      INFO("graphs " << steps.graphs << " library " << steps.library << " of "
                     << steps.sequences.size());
      // Halves and wholes take the same kernels here; contexts are split in other places. Normed
      // values are of unit size: those of another row would give more than 1.
      CHECK(worst < 0.1);
    }
  }
}

// The first step runs whole, and tells the device.
TEST_CASE("A text whose rows see later ones is not cut", "[cuda][nano]") {
  const NanoBatchProfile within = {.device_name = {}, .rules = {{.cut_rows = 8}}};
  Steps steps = {.graphs = true, .sequences = {{26, 26}}, .both_ways = true};
  CHECK(Run(steps, within) == Run(steps, {}));
  CHECK(cuda::emulate::SecondLaneLaunches() == 0);
  steps.both_ways = false;
  Run(steps, within);
  CHECK(cuda::emulate::SecondLaneLaunches() > 0);
}

}  // namespace
}  // namespace heddle::kernels::test
