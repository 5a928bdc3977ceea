// Models that several emulated GPUs share: the tokens of one GPU, the same bits in every run, and
// what cannot work by its name.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "catch2/catch.hpp"
#include "engine/model/load.h"
#include "engine/model/random_model.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/emulate/emulator.h"
#include "tests/emulate/machine.h"
#include "tests/support/goldens.h"
#include "tests/support/greedy_runner.h"
#include "tests/support/long_runs.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle {
namespace {

using engine::TokenId;
using kernels::DType;
namespace emulate = kernels::cuda::emulate;

// A machine of so many GPUs, until the end of a test.
class Gpus {
 public:
  explicit Gpus(int32_t count, emulate::Machine machine = {}) {
    machine.device_count = count;
    emulate::SetMachine(machine);
  }
  ~Gpus() { emulate::SetMachine({}); }
  Gpus(const Gpus&) = delete;
  Gpus& operator=(const Gpus&) = delete;
};

struct RankOptions {
  int32_t tp = 1;
  int32_t pp = 1;
  DType activations = DType::kF32;
  bool graphs = true;
  std::vector<int32_t> devices = {};  // empty: the first ones
  bool expert_parallel = false;
  bool over_nccl = false;  // where GPUs are out of reach, steps of more than three rows
};

engine::LoadOptions OptionsOf(const RankOptions& ranks) {
  engine::LoadOptions options;
  options.layout.tp = ranks.tp;
  options.layout.pp = ranks.pp;
  options.layout.expert_parallel = ranks.expert_parallel;
  options.rank_devices = ranks.devices;
  const int32_t world = options.layout.world();
  for (int32_t r = static_cast<int32_t>(ranks.devices.size()); r < world; ++r) {
    options.rank_devices.push_back(r);
  }
  const auto make = [devices = options.rank_devices, ranks](int32_t rank) {
    return kernels::CreateCudaDevice({.ordinal = devices[static_cast<size_t>(rank)],
                                      .activations = ranks.activations,
                                      .workspace_bytes = int64_t{4} << 20,
                                      .graphs = ranks.graphs,
                                      .rank_network = ranks.over_nccl ? kernels::RankNetwork::kNccl
                                                                      : kernels::RankNetwork::kHost,
                                      .rows_through_host = 3});
  };
  options.make_device = [make] { return make(0); };
  if (world > 1) options.make_rank_device = make;
  options.capacity.kv_bytes = 8 << 20;
  options.capacity.max_batch_tokens = 64;
  options.kv_type = ranks.activations == DType::kF32 ? "f32" : "bf16";
  return options;
}

engine::LocalModel Load(const std::filesystem::path& path, const RankOptions& ranks) {
  auto model = engine::LoadLocalModel(path, OptionsOf(ranks));
  INFO(model.status().ToString());
  REQUIRE(model.ok());
  return std::move(model).value();
}

std::vector<float> LogitsOf(const std::filesystem::path& path, const test::Golden& golden,
                            const RankOptions& ranks, int32_t chunk) {
  engine::LocalModel model = Load(path, ranks);
  return test::AllLogits(*model.executor, golden.prompt, chunk);
}

// The largest difference from the golden's best tokens of each position.
double MaxError(const test::Golden& golden, const std::vector<float>& logits) {
  const size_t vocab = logits.size() / golden.prompt.size();
  double error = 0;
  for (size_t t = 0; t < golden.top.size(); ++t) {
    for (const auto& [token, logit] : golden.top[t]) {
      const float found = logits[t * vocab + static_cast<size_t>(token)];
      error = std::max(error, double{std::abs(found - logit)});
    }
  }
  return error;
}

void CheckNoFindings() {
  const std::vector<std::string> findings = emulate::TakeFindings();
  INFO((findings.empty() ? "" : findings.front()));
  CHECK(findings.empty());
}

// Heads, features and tokens of these models divide by few of these numbers; some ranks have none.
TEST_CASE("GPUs that share a model give transformers' logits", "[cuda]") {
  const Gpus gpus(3);
  const std::string name = GENERATE(as<std::string>{}, "llama", "llama_ladder", "gemma2", "olmo2",
                                    "qwen3_moe", "deepseek_v2", "lfm2", "qwen3_next");
  const test::Golden golden = test::LoadGolden(name);
  test::TempDir dir;
  const std::filesystem::path path = test::WriteGoldenModel(golden, dir.path());
  const bool takes_three = name == "llama" || name == "gemma2";  // first, and alone but at night
  for (const int32_t tp : test::Some(1, {takes_three ? 3 : 2, takes_three ? 2 : 3})) {
    INFO(name << " on " << tp << " GPUs");
    CHECK(MaxError(golden, LogitsOf(path, golden, {.tp = tp}, /*chunk=*/5)) < 1e-3);
  }
  CheckNoFindings();
}

TEST_CASE("GPUs that have whole experts give transformers' logits", "[cuda]") {
  const Gpus gpus(3);
  const std::string name = GENERATE(as<std::string>{}, "qwen3_moe", "deepseek_v2");
  const test::Golden golden = test::LoadGolden(name);
  test::TempDir dir;
  const std::filesystem::path path = test::WriteGoldenModel(golden, dir.path());
  for (const int32_t tp : test::Some(1, {3, 2})) {
    INFO(name << " on " << tp << " GPUs");
    CHECK(MaxError(golden, LogitsOf(path, golden, {.tp = tp, .expert_parallel = true},
                                    /*chunk=*/5)) < 1e-3);
  }
  // In BF16 rows are grouped by their experts. What rounds may choose another expert here and
  // there.
  RankOptions rounded = {.tp = 2, .activations = DType::kBF16};
  const double of_parts = MaxError(golden, LogitsOf(path, golden, rounded, /*chunk=*/5));
  rounded.expert_parallel = true;
  const double of_experts = MaxError(golden, LogitsOf(path, golden, rounded, /*chunk=*/5));
  INFO(name << " in BF16, errors " << of_parts << " and " << of_experts);
  CHECK(of_experts < 2 * of_parts);
  CheckNoFindings();
}

TEST_CASE("GPUs of one layout give the same bits in every run, by graphs and without", "[cuda]") {
  const Gpus gpus(3);
  test::Golden golden = test::LoadGolden("llama");
  golden.prompt.resize(20);
  test::TempDir dir;
  const std::filesystem::path path = test::WriteGoldenModel(golden, dir.path());
  for (const auto& [activations, tp] : {std::pair(DType::kF32, 3), std::pair(DType::kBF16, 2)}) {
    {
      const RankOptions ranks = {.tp = tp, .activations = activations};
      RankOptions direct = ranks;
      direct.graphs = false;
      const std::vector<float> first = LogitsOf(path, golden, ranks, /*chunk=*/1);
      CHECK(LogitsOf(path, golden, ranks, /*chunk=*/1) == first);
      CHECK(LogitsOf(path, golden, direct, /*chunk=*/1) == first);
      RankOptions alone = ranks;
      alone.tp = 1;
      const std::vector<float> whole = LogitsOf(path, golden, alone, /*chunk=*/1);
      // Sums of BF16 parts are rounded once more for each product that is cut.
      const double bound = activations == DType::kF32 ? 1e-3 : 0.2;
      double worst = 0;
      for (size_t i = 0; i < whole.size(); ++i) {
        worst = std::max(worst, double{std::abs(whole[i] - first[i])});
      }
      INFO(tp << " ranks, error " << worst);
      CHECK(worst < bound);
    }
  }
  CHECK(emulate::GraphLaunches() > 0);
  CheckNoFindings();
}

// A pipeline changes no arithmetic.
TEST_CASE("Stages on GPUs give the very bits of one stage", "[cuda]") {
  const Gpus gpus(4);
  const test::Golden golden = test::LoadGolden("gemma2");
  test::TempDir dir;
  const std::filesystem::path path = test::WriteGoldenModel(golden, dir.path());
  for (const auto& [tp, pp] : {std::pair(1, 3), std::pair(2, 2)}) {
    const int32_t chunk = tp == 2 ? 5 : 1;  // by graphs, too
    INFO(tp << " GPUs in each of " << pp << " stages");
    CHECK(LogitsOf(path, golden, {.tp = tp, .pp = pp}, chunk) ==
          LogitsOf(path, golden, {.tp = tp}, chunk));
  }
  CheckNoFindings();
}

TEST_CASE("Two ranks on one GPU are allowed where it is named twice", "[cuda]") {
  const Gpus gpus(1);
  const test::Golden golden = test::LoadGolden("llama");
  test::TempDir dir;
  const std::filesystem::path path = test::WriteGoldenModel(golden, dir.path());
  const engine::LocalModel model = Load(path, {.tp = 2, .devices = {0, 0}});
  CHECK(model.device.find("2 ranks on devices 0,0") == 0);
  REQUIRE(!model.advice.empty());
  CHECK(model.advice.back().find("ranks 0 and 1 share cuda:0") == 0);
  CHECK(MaxError(golden, test::AllLogits(*model.executor, golden.prompt, 64)) < 1e-3);
}

TEST_CASE("GPUs that cannot share a model are refused by name", "[cuda]") {
  const test::Golden golden = test::LoadGolden("llama");
  test::TempDir dir;
  const std::filesystem::path path = test::WriteGoldenModel(golden, dir.path());
  const auto refusal = [&](const RankOptions& ranks) {
    const absl::Status status = engine::LoadLocalModel(path, OptionsOf(ranks)).status();
    REQUIRE(!status.ok());
    return std::string(status.message());
  };
  {
    const Gpus gpus(2);
    const std::string missing = refusal({.tp = 3});
    INFO(missing);
    CHECK(missing.find("rank 2: ") == 0);
    CHECK(missing.find('2') != std::string::npos);
  }
  const Gpus gpus(2, {.opens_peers = false});
  const std::string apart = refusal({.tp = 2});
  INFO(apart);
  CHECK(apart.find("cannot read the memory of cuda:") != std::string::npos);
  CHECK(apart.find("--rank-devices") != std::string::npos);
}

bool SaysApart(const engine::LocalModel& model) {
  return std::any_of(model.advice.begin(), model.advice.end(), [](const std::string& text) {
    return text.find("do not read each other's memory") != std::string::npos;
  });
}

TEST_CASE("GPUs out of each other's reach give the bits of those within, and say so", "[cuda]") {
  test::Golden golden = test::LoadGolden("llama");
  golden.prompt.resize(20);
  test::TempDir dir;
  const std::filesystem::path path = test::WriteGoldenModel(golden, dir.path());
  for (const auto& [tp, pp] : {std::pair(3, 1), std::pair(2, 2)}) {
    // By graphs where there are stages.
    RankOptions ranks = {.tp = tp, .pp = pp, .activations = DType::kBF16};
    const auto run = [&, count = tp * pp, chunk = pp == 2 ? 1 : 5](emulate::Machine machine) {
      const Gpus gpus(count, machine);
      engine::LocalModel model = Load(path, ranks);
      CHECK(SaysApart(model) == (!machine.has_peer_access && !ranks.over_nccl));
      return test::AllLogits(*model.executor, golden.prompt, chunk);
    };
    INFO(tp << " GPUs in each of " << pp << " stages");
    const std::vector<float> within = run({});
    CHECK(run({.has_peer_access = false}) == within);
    ranks.over_nccl = true;
    CHECK(run({.has_peer_access = false}) == within);
  }
  // One of four GPUs is out of reach: its stage alone meets through the host.
  const auto stage = [&](int32_t unreachable) {
    const Gpus gpus(4, {.unreachable_ordinal = unreachable});
    return LogitsOf(path, golden, {.tp = 2, .pp = 2}, 5);
  };
  CHECK(stage(3) == stage(-1));
  CheckNoFindings();
}

TEST_CASE("The GPU with the least room decides how many pages there are", "[cuda]") {
  const Gpus gpus(3);
  const test::Golden golden = test::LoadGolden("llama");
  test::TempDir dir;
  const std::filesystem::path path = test::WriteGoldenModel(golden, dir.path());
  engine::LoadOptions options = OptionsOf({.tp = 2});
  options.capacity.kv_bytes = 0;
  options.capacity.kv_fraction = 0.0001;
  const auto pages = [&] {
    auto model = engine::LoadLocalModel(path, options);
    INFO(model.status().ToString());
    REQUIRE(model.ok());
    CHECK(model->ranks.size() == 2);
    CHECK(model->ranks[0].kv_bytes == model->ranks[1].kv_bytes);
    return model->executor->limits().num_pages;
  };
  const int32_t apart = pages();
  options.rank_devices = {1, 1};  // says so, and has half of the memory for each
  CHECK(pages() < 0.6 * apart);
}

// Runs the row at `position` of a sequence whose pages are the pool's first, and draws nothing.
absl::Status RunRow(engine::LocalExecutor& executor, int32_t position) {
  const int32_t page_tokens = executor.limits().page_tokens;
  engine::StepPlan plan;
  plan.step = static_cast<uint64_t>(position) + 1;
  plan.token_ids = {7};
  plan.positions = {position};
  plan.kv_slots = {{engine::PageId{position / page_tokens}, position % page_tokens}};
  for (int32_t page = 0; page <= position / page_tokens; ++page) {
    const int32_t tokens = std::min(page_tokens, position + 1 - page * page_tokens);
    plan.spans.push_back({engine::PageId{page}, tokens});
  }
  plan.sequences.push_back({.id = engine::SequenceId{1},
                            .num_tokens = 1,
                            .num_spans = static_cast<int32_t>(plan.spans.size()),
                            .context_tokens = position + 1});
  plan.scores.push_back({.row = 0, .target = 1});
  engine::StepResult result;
  HEDDLE_RETURN_IF_ERROR(executor.Submit(plan, {}));
  return executor.Wait(&result);
}

TEST_CASE("A GPU that fails ends the step on all, and is named", "[cuda]") {
  const test::Golden golden = test::LoadGolden("llama");
  test::TempDir dir;
  const std::filesystem::path path = test::WriteGoldenModel(golden, dir.path());
  for (const int32_t faulty : {0, 1, 2}) {
    const Gpus gpus(3, {.launches_before_fault = 40, .faulty_ordinal = faulty});
    engine::LocalModel model = Load(path, {.tp = 3});
    // The first steps are good; the failing one says which GPU it was.
    absl::Status status;
    for (int32_t position = 0; position < 16 && status.ok(); ++position) {
      status = RunRow(*model.executor, position);
    }
    INFO(status.ToString());
    CHECK(!status.ok());
    CHECK(status.message().find("cuda:" + std::to_string(faulty)) != std::string::npos);
  }
}

}  // namespace
}  // namespace heddle
