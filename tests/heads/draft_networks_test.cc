// Draft networks against the published implementations (tests/golden/make_draft_goldens.py): logits
// of the first pass and of those that feed back the network's own state.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/heads/draft_goldens.h"
#include "tests/support/temp_dir.h"

namespace heddle {
namespace {

std::unique_ptr<kernels::Device> MakeDevice(const std::string& ops) {
  if (ops == "reference") return kernels::CreateReferenceDevice();
  auto device = kernels::CreateCpuDevice({.num_threads = 2, .isa = ops});
  REQUIRE(device.ok());
  return *std::move(device);
}

float LargestError(const std::vector<float>& found, const std::vector<float>& wanted) {
  REQUIRE(found.size() == wanted.size());
  float error = 0.0f;
  for (size_t i = 0; i < found.size(); ++i) error = std::max(error, std::abs(found[i] - wanted[i]));
  return error;
}

float Largest(const std::vector<float>& values) {
  float largest = 0.0f;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

TEST_CASE("A draft network's logits equal those of its authors' code", "[golden]") {
  const std::string name = GENERATE(from_range(test::DraftGoldenNames()));
  const std::string ops = GENERATE("reference", "portable", "auto");
  const test::DraftGolden golden = test::LoadDraftGolden(name);
  test::TempDir dir;
  test::NetworkRun run(golden, MakeDevice(ops), dir.path());
  for (const auto& [n_seqs, first_rows] : {std::pair{1, 0}, std::pair{2, 7}}) {
    INFO(name << " on " << ops << ", " << n_seqs << " sequences, first batch of " << first_rows);
    const auto logits = run.Run(n_seqs, first_rows);
    REQUIRE(logits.size() == golden.passes.size());
    for (size_t pass = 0; pass < logits.size(); ++pass) {
      // Single precision: some thousand roundings of 2^-24 of the largest terms.
      const float bound = 1e-4f * std::max(1.0f, Largest(golden.passes[pass]));
      for (const std::vector<float>& row : logits[pass]) {
        INFO("pass " << pass);
        CHECK(LargestError(row, golden.passes[pass]) < bound);
      }
    }
  }
}

TEST_CASE("EAGLE-3, DFlash and MTP in GGUF files have the same logits", "[golden]") {
  const std::string name = GENERATE("eagle3", "mtp_qwen", "dflash", "dflash_windows");
  INFO(name);
  const test::DraftGolden golden = test::LoadDraftGolden(name);
  test::TempDir dir;
  test::NetworkRun run(golden, MakeDevice("auto"), dir.path(), /*as_gguf=*/true);
  const auto logits = run.Run(/*n_seqs=*/1, /*first_rows=*/0);
  for (size_t pass = 0; pass < golden.passes.size(); ++pass) {
    CHECK(LargestError(logits[pass][0], golden.passes[pass]) < 1e-3f);
  }
}

TEST_CASE("The hidden states that a network reads are those that its configuration names",
          "[golden]") {
  const auto features_of = [](const std::string& name) {
    test::TempDir dir;
    const test::DraftGolden golden = test::LoadDraftGolden(name);
    return test::NetworkRun(golden, MakeDevice("reference"), dir.path()).traits().features;
  };
  using Layers = std::vector<int32_t>;
  // The model has three layers. EAGLE-3's own code reads what enters the third layer, the middle
  // one and the third from the end.
  CHECK(features_of("eagle3") == Layers{2, 1, 0});
  // At the top of config.json ids are inputs of layers (vLLM, speculators); within "eagle_config"
  // they are outputs (SpecForge, SGLang).
  CHECK(features_of("eagle3_speculators") == Layers{0, 2, 3});
  CHECK(features_of("eagle31") == Layers{1, 2, 3});
  // DFlash's authors list outputs, the speculators library inputs.
  CHECK(features_of("dflash") == Layers{1, 2});
  CHECK(features_of("dflash_speculators") == Layers{1, 2, 3});
  CHECK(features_of("dflash_windows") == Layers{1, 2});
  const Layers final = {engine::DraftTraits::kFinalNormed};
  for (const char* name : {"eagle1", "mtp_deepseek", "mtp_qwen", "medusa"}) {
    CHECK(features_of(name) == final);
  }
}

}  // namespace
}  // namespace heddle
