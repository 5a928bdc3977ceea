// The same networks on the CUDA backend's kernels, emulated.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/cuda/cuda_device.h"
#include "tests/emulate/emulator.h"
#include "tests/emulate/machine.h"
#include "tests/heads/draft_chain.h"
#include "tests/heads/draft_goldens.h"
#include "tests/support/temp_dir.h"

namespace heddle {
namespace {

TEST_CASE("A draft network gives the same logits on CUDA's kernels", "[cuda]") {
  const std::string name = GENERATE("eagle1", "eagle3_speculators", "eagle31", "mtp_deepseek",
                                    "medusa_shared", "dflash", "dflash_windows");
  const test::DraftGolden golden = test::LoadDraftGolden(name);
  test::TempDir dir;
  auto device = kernels::CreateCudaDevice(
      {.activations = kernels::DType::kF32, .workspace_bytes = int64_t{4} << 20});
  REQUIRE(device.ok());
  test::NetworkRun run(golden, *std::move(device), dir.path());
  const auto logits = run.Run(/*n_seqs=*/2, /*first_rows=*/5);
  for (size_t pass = 0; pass < golden.passes.size(); ++pass) {
    INFO(name << ", pass " << pass);
    const std::vector<float>& wanted = golden.passes[pass];
    for (const std::vector<float>& row : logits[pass]) {
      for (size_t i = 0; i < wanted.size(); ++i) {
        const float bound = 2e-3f * std::max(1.0f, std::abs(wanted[i]));
        REQUIRE(std::abs(row[i] - wanted[i]) < bound);
      }
    }
  }
}

TEST_CASE("A network beside a model that GPUs share guesses what its authors' code does",
          "[cuda]") {
  kernels::cuda::emulate::Machine machine;
  machine.device_count = 4;
  kernels::cuda::emulate::SetMachine(machine);
  struct Case {
    std::string name;
    int32_t tp, pp;
  };
  const auto& [name, tp, pp] =
      GENERATE(Case{"eagle1", 2, 1}, Case{"eagle3_speculators", 2, 2}, Case{"mtp_deepseek", 1, 2},
               Case{"medusa_shared", 2, 1}, Case{"dflash", 1, 2}, Case{"dflash", 2, 1});
  INFO(name << " beside " << tp << " GPUs in each of " << pp << " stages");
  const test::DraftGolden golden = test::LoadDraftGolden(name);
  test::TempDir dir;
  engine::LoadOptions options;
  options.layout.tp = tp;
  options.layout.pp = pp;
  options.make_rank_device = [](int32_t rank) {
    return kernels::CreateCudaDevice({.ordinal = rank,
                                      .activations = kernels::DType::kF32,
                                      .workspace_bytes = int64_t{4} << 20});
  };
  options.make_device = [make = options.make_rank_device] { return make(0); };
  for (int32_t rank = 0; rank < tp * pp; ++rank) options.rank_devices.push_back(rank);
  auto executor = test::LoadBeside(golden, dir.path(), options);
  const auto num_guesses = static_cast<int32_t>(golden.chain.size()) - 1;
  CHECK(test::ChainOf(*executor, golden.prompt, /*first_rows=*/5, num_guesses) == golden.chain);
  executor.reset();
  CHECK(kernels::cuda::emulate::TakeFindings().empty());
  kernels::cuda::emulate::SetMachine({});
}

}  // namespace
}  // namespace heddle
