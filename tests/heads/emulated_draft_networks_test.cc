// The same networks on the CUDA backend's kernels, emulated.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/cuda/cuda_device.h"
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

}  // namespace
}  // namespace heddle
