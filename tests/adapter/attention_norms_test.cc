// Norms within attention in place of the base's (modules_to_save): the logits of a model whose own
// norms are these, on one rank and on several.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "engine/model/load.h"
#include "nlohmann/json.hpp"
#include "tests/adapter/golden_adapters.h"
#include "tests/support/goldens.h"
#include "tests/support/greedy_runner.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle::engine {
namespace {

using nlohmann::json;
using test::TensorToWrite;

const std::vector<std::string> kNorms = {"q_norm",          "k_norm",        "q_layernorm",
                                         "k_layernorm",     "q_a_layernorm", "kv_a_layernorm",
                                         "query_layernorm", "key_layernorm"};

bool IsAttentionNorm(const TensorToWrite& tensor) {
  return std::any_of(kNorms.begin(), kNorms.end(),
                     [&](const std::string& name) { return absl::StrContains(tensor.name, name); });
}

// Another weight in place of each norm within attention; returns the norms.
std::vector<TensorToWrite> ChangeNorms(std::vector<TensorToWrite>* tensors) {
  std::vector<TensorToWrite> changed;
  for (TensorToWrite& tensor : *tensors) {
    if (!IsAttentionNorm(tensor)) continue;
    REQUIRE(tensor.dtype == "F32");
    auto* values = reinterpret_cast<float*>(tensor.data.data());
    for (int64_t i = 0; i < tensor.shape.at(0); ++i) {
      values[i] = values[i] * 1.25f + 0.125f * static_cast<float>(i % 5) - 0.25f;
    }
    changed.push_back(tensor);
  }
  return changed;
}

std::filesystem::path WriteAdapter(std::vector<TensorToWrite> norms,
                                   const std::filesystem::path& folder) {
  for (TensorToWrite& norm : norms) norm.name = "base_model.model." + norm.name;
  json config = test::LoadGoldenJson("adapter_kinds.json")["saved_norms"]["config"];
  config["modules_to_save"] = kNorms;
  std::filesystem::create_directory(folder);
  test::WriteFile(folder / "adapter_config.json", config.dump());
  test::WriteFile(folder / "adapter_model.safetensors", test::SafetensorsBytes(norms));
  return folder;
}

float LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  float largest = 0.0f;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::fabs(a[i] - b[i]));
  return largest;
}

TEST_CASE("Norms within attention that an adapter replaces are as good as the base's own",
          "[golden]") {
  const std::string name = GENERATE("olmo2", "deepseek_v2", "deepseek_v2_lite", "deepseek_v3",
                                    "qwen3", "gemma3", "lfm2", "qwen3_next", "hunyuan");
  const int32_t tp = GENERATE(1, 2, 3);
  INFO(name << " on " << tp << " ranks");
  const test::Golden base = test::LoadGolden(name);
  test::TempDir dir;
  const auto base_path = test::WriteSyntheticModel(base, dir / "base");
  const auto other_path = test::WriteSyntheticModel(base, dir / "other");
  std::vector<TensorToWrite> tensors = test::SyntheticTensors(base);
  const std::vector<TensorToWrite> norms = ChangeNorms(&tensors);
  REQUIRE(!norms.empty());
  test::WriteFile(other_path / "model.safetensors", test::SafetensorsBytes(tensors));
  LoadOptions options = test::AdapterBaseOptions();
  options.cpu.isa = "portable";
  options.layout.tp = tp;
  LocalModel model = test::LoadAdapterBase(base_path, options);
  const auto adapter = WriteAdapter(norms, dir / "adapter");
  const test::RunAdapter own = test::LoadInto(model, base_path, adapter);
  const auto plain = test::AllLogits(*model.executor, base.prompt, 64);
  const auto adapted = test::AllLogits(*model.executor, base.prompt, 7, own);
  CHECK(test::AllLogits(*model.executor, base.prompt, 64) == plain);
  const LocalModel other = test::LoadAdapterBase(other_path, options);
  const auto expected = test::AllLogits(*other.executor, base.prompt, 64);
  CHECK(LargestDifference(adapted, expected) < 2e-4f);
  CHECK(LargestDifference(plain, expected) > 0.01f);

  options.merged_adapter = adapter;
  const LocalModel merged = test::LoadAdapterBase(base_path, options);
  CHECK(LargestDifference(test::AllLogits(*merged.executor, base.prompt, 64), expected) < 2e-4f);
}

}  // namespace
}  // namespace heddle::engine
