// Models that emulated GPUs share, with steps that are split in halves: answers are those of whole
// steps, bit for bit, whichever half runs ahead.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/model/load.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/nano_batch.h"
#include "server/cli/tune_run.h"
#include "tests/emulate/emulator.h"
#include "tests/emulate/machine.h"
#include "tests/model/side_by_side.h"
#include "tests/support/goldens.h"
#include "tests/support/long_runs.h"
#include "tests/support/stepped_load.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle {
namespace {

namespace emulate = kernels::cuda::emulate;

struct HalvesCase {
  int32_t tp = 2;
  bool graphs = true;
  bool splits = true;
  int32_t first_lane = 1;
  int32_t cut_rows = 0;       // halves are also cut within a chunk
  bool reads_chunks = false;  // of a prompt that is read in several
};

engine::LoadOptions OptionsOfHalves(const HalvesCase& what) {
  engine::LoadOptions options;
  options.layout.tp = what.tp;
  options.rank_devices.reserve(static_cast<size_t>(what.tp));
  for (int32_t rank = 0; rank < what.tp; ++rank) options.rank_devices.push_back(rank);
  const auto make = [what](int32_t rank) -> absl::StatusOr<std::unique_ptr<kernels::Device>> {
    auto device = kernels::CreateCudaDevice({.ordinal = rank,
                                             .activations = kernels::DType::kF32,
                                             .workspace_bytes = int64_t{4} << 20,
                                             .graphs = what.graphs});
    if (!device.ok() || !what.splits) return device;
    const absl::Status status =
        (*device)->SetNanoBatches({.device_name = {}, .rules = {{.cut_rows = what.cut_rows}}});
    if (!status.ok()) return status;
    return device;
  };
  options.make_device = [make] { return make(0); };
  options.make_rank_device = make;
  options.capacity.kv_bytes = 8 << 20;
  options.capacity.max_batch_tokens = what.reads_chunks ? 24 : 64;
  options.kv_type = "f32";
  return options;
}

struct HalvesRun {
  test::Answers answers;
  int64_t launches = 0;
};

HalvesRun RunHalves(const std::filesystem::path& path, const HalvesCase& what) {
  emulate::SetMachine({.device_count = what.tp, .first_lane = what.first_lane});
  HalvesRun run;
  {
    const auto model = engine::LoadLocalModel(path, OptionsOfHalves(what));
    INFO(model.status().ToString());
    REQUIRE(model.ok());
    const engine::ExecutorLimits& limits = model->executor->limits();
    test::SteppedLoad load(model->executor.get(), {.num_pages = limits.num_pages,
                                                   .page_tokens = limits.page_tokens,
                                                   .max_context = limits.max_context,
                                                   .max_step_tokens = limits.max_batch_tokens,
                                                   .max_step_seqs = limits.max_batch_seqs});
    load.Run(what.reads_chunks ? test::LongAndShort(limits.vocab) : test::SideBySide(limits.vocab),
             0);
    run = {load.answers(), emulate::Launches()};
  }
  emulate::SetMachine({});
  const std::vector<std::string> findings = emulate::TakeFindings();
  INFO((findings.empty() ? "" : findings.front()));
  CHECK(findings.empty());
  return run;
}

// Ladder layers end their sums late; Gemma 2 has two groups of layers, and is split from the second
// step on; OLMo 2 norms the heads of all ranks, which joins halves. Some ranks of three have no
// heads.
TEST_CASE("GPUs that share layers give the bits of whole steps in halves", "[cuda][nano]") {
  const std::string name =
      GENERATE(as<std::string>{}, "llama", "llama_ladder", "gemma2", "qwen3_moe", "olmo2");
  test::TempDir dir;
  const auto path = test::WriteSyntheticModel(test::LoadGolden(name), dir.path());
  const bool takes_three = name == "llama" || name == "qwen3_moe";
  for (const int32_t tp : test::Some(1, {takes_three ? 3 : 2, takes_three ? 2 : 3})) {
    for (const bool graphs : test::Some(name == "llama" ? 2 : 1, {true, false})) {
      const HalvesRun whole = RunHalves(path, {.tp = tp, .graphs = graphs, .splits = false});
      REQUIRE(whole.answers.size() == 5);
      for (const int32_t lane : test::Some(name == "llama" ? 2 : 1, {1, 0})) {
        if (!graphs && lane == 0) continue;  // there are no tapes
        INFO(name << " on " << tp << " GPUs" << (graphs ? ", by graphs" : "") << ", lane " << lane
                  << " first");
        const HalvesRun halves =
            RunHalves(path, {.tp = tp, .graphs = graphs, .splits = true, .first_lane = lane});
        CHECK(halves.answers == whole.answers);
        CHECK(halves.launches > whole.launches);
      }
    }
  }
}

TEST_CASE("GPUs that share layers read a chunk in halves with the bits of whole ones",
          "[cuda][nano]") {
  const std::string name = GENERATE(as<std::string>{}, "llama", "llama_ladder");
  test::TempDir dir;
  const auto path = test::WriteSyntheticModel(test::LoadGolden(name), dir.path());
  for (const bool graphs : test::Some(1, {true, false})) {
    HalvesCase what = {.graphs = graphs, .splits = false, .reads_chunks = true};
    const HalvesRun whole = RunHalves(path, what);
    REQUIRE(whole.answers.size() == 2);
    what.splits = true;
    const HalvesRun between = RunHalves(path, what);
    CHECK(between.answers == whole.answers);
    what.cut_rows = 4;
    for (const int32_t lane : test::Some(name == "llama" ? 2 : 1, {1, 0})) {
      if (!graphs && lane == 0) continue;  // there are no tapes
      INFO(name << (graphs ? ", by graphs" : "") << ", lane " << lane << " first");
      what.first_lane = lane;
      const HalvesRun halves = RunHalves(path, what);
      CHECK(halves.answers == whole.answers);
      CHECK(halves.launches > between.launches);
    }
  }
}

TEST_CASE("Steps of GPUs that share layers are timed whole and in halves", "[cuda][nano]") {
  emulate::SetMachine({.device_count = 2});
  test::TempDir dir;
  engine::LoadOptions options = OptionsOfHalves({.tp = 2, .splits = false});
  server::LoadedDevices devices;
  devices.Watch(&options);
  const auto model = engine::LoadLocalModel(
      test::WriteSyntheticModel(test::LoadGolden("llama"), dir.path()), options);
  REQUIRE(model.ok());
  const auto set = [&devices](const kernels::NanoBatchProfile& profile) {
    return devices.SetNanoBatches(profile);
  };
  for (const server::TunePoint& point : test::Some<server::TunePoint>(
           1, {{.sequences = 2, .context = 16}, {.sequences = 1, .context = 16, .chunk = 16}})) {
    const auto timing = server::TimePoint(*model->executor, point, 1, set);
    INFO(timing.status().ToString());
    REQUIRE(timing.ok());
    CHECK(timing->whole_us > 0);
    CHECK(timing->split_us > 0);
  }
}

}  // namespace
}  // namespace heddle
