// Latent attention over positions that indexers choose: descriptions, texts that are too short for
// a choice, what pages hold, and devices without it.
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/family/model_description.h"
#include "engine/files/checkpoint.h"
#include "engine/model/load.h"
#include "kernels/cuda/cuda_device.h"
#include "nlohmann/json.hpp"
#include "tests/model/described_configs.h"
#include "tests/support/gguf_model.h"
#include "tests/support/goldens.h"
#include "tests/support/greedy_runner.h"
#include "tests/support/status_matchers.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle::engine {
namespace {

using absl::StatusCode;
using nlohmann::json;
using test::CheckError;
using test::DescribeJson;
using test::With;

constexpr int32_t kTopK = 11;  // of the golden deepseek_v32

std::vector<bool> OwnIndexers(const json& config) {
  const auto description = DescribeJson(config);
  INFO(description.status().ToString());
  REQUIRE(description.ok());
  std::vector<bool> own;
  for (const LayerSpec& layer : description->spec.layers) {
    CHECK(layer.attention.mla.indexer.top_k == 13);
    own.push_back(layer.attention.mla.indexer.is_here());
  }
  return own;
}

TEST_CASE("DeepSeek-V3.2 and GLM-5: indexers of layers, and bad values", "[model]") {
  const json config = *test::LoadGolden("deepseek_v32").config;
  const auto description = DescribeJson(config);
  REQUIRE(description.ok());
  const IndexerSpec& indexer = description->spec.layers[2].attention.mla.indexer;
  CHECK(indexer.n_heads == 19);
  CHECK(indexer.head_dim == 24);
  CHECK(indexer.top_k == kTopK);
  CHECK(indexer.layout == RopeLayout::kHalf);
  CHECK(description->spec.indexer_top_k() == kTopK);
  CHECK(DescribeJson(With(config, "indexer_rope_interleave", true))
            ->spec.layers[0]
            .attention.mla.indexer.layout == RopeLayout::kInterleaved);
  CHECK(DescribeJson(With(config, "layer_types",
                          {"deepseek_sparse_attention", "indexed_attention", "indexed_attention"}))
            .ok());
  const auto refused = [&](const char* key, const json& value, StatusCode code, const char* text) {
    CheckError(DescribeJson(With(config, key, value)).status(), code, {key, text});
  };
  refused("index_topk", 0, StatusCode::kInvalidArgument, "");
  refused("index_n_heads", -3, StatusCode::kInvalidArgument, "");
  refused("index_head_dim", 8, StatusCode::kInvalidArgument, "at least the rotated part");
  refused("q_lora_rank", nullptr, StatusCode::kInvalidArgument, "has its queries");
  refused("layer_types", {"indexed_attention", "full_attention", "indexed_attention"},
          StatusCode::kUnimplemented, "indexed_attention");
  refused("mlp_layer_types", {"sparse", "sparse", "dense"}, StatusCode::kUnimplemented, "dense");

  json glm = *test::LoadGolden("glm_moe_dsa").config;
  CHECK(DescribeJson(glm)->spec.layers[0].attention.mla.indexer.layout == RopeLayout::kInterleaved);
  glm["num_hidden_layers"] = 7;
  glm.erase("mlp_layer_types");
  using Own = std::vector<bool>;
  CHECK(OwnIndexers(glm) == Own(7, true));
  CHECK(OwnIndexers(With(glm, "index_topk_freq", 3)) == Own{1, 1, 0, 0, 1, 0, 0});
  CHECK(OwnIndexers(With(With(glm, "index_topk_freq", 2), "index_skip_topk_offset", 3)) ==
        Own{1, 1, 1, 0, 1, 0, 1});
  CHECK(OwnIndexers(With(glm, "index_topk_pattern", "FSSFFSS")) == Own{1, 0, 0, 1, 1, 0, 0});
  CheckError(DescribeJson(With(glm, "index_topk_pattern", "FSF")).status(),
             StatusCode::kInvalidArgument, {"index_topk_pattern", "one type for each of 7"});
  CheckError(DescribeJson(With(glm, "indexer_types", json::array_t(7, "shared"))).status(),
             StatusCode::kInvalidArgument, {"indexer_types", "the first with an indexer"});
  CheckError(DescribeJson(With(glm, "index_topk_pattern", "FSfFFSS")).status(),
             StatusCode::kInvalidArgument, {"index_topk_pattern", "F or S"});
  json types = json::array_t(7, "full");
  types[3] = "indexed";
  CheckError(DescribeJson(With(glm, "indexer_types", types)).status(), StatusCode::kInvalidArgument,
             {"indexer_types", "full or shared"});
  CHECK(DescribeJson(With(glm, "index_share_for_mtp_iteration", true)).ok());  // as GLM-5.2 has it
}

TEST_CASE("Files without a list of indexers have those whose tensors are there", "[model]") {
  test::GgufModel model = test::LoadGgufModel("glm_moe_dsa_shared");
  json file = *model.file;
  json metadata = json::array();
  for (const json& entry : file["metadata"]) {
    if (entry.at(0) != "glm-dsa.attention.indexer.types") metadata.push_back(entry);
  }
  REQUIRE(metadata.size() + 1 == file["metadata"].size());
  metadata.push_back({"glm-dsa.attention.indexer.index_share_mtp", true});
  file["metadata"] = metadata;
  model.file = std::make_shared<json>(file);
  test::TempDir dir;
  const auto checkpoint = OpenCheckpoint(test::WriteGguf(model, dir / "m.gguf"));
  REQUIRE(checkpoint.ok());
  const auto description = Describe(*checkpoint);
  INFO(description.status().ToString());
  REQUIRE(description.ok());
  std::vector<bool> own;
  for (const LayerSpec& layer : description->spec.layers) {
    own.push_back(layer.attention.mla.indexer.is_here());
  }
  CHECK(own == std::vector<bool>{1, 0, 1, 0});
}

absl::StatusOr<LocalModel> Load(const std::string& golden, int32_t max_context,
                                const LoadOptions& given = {}) {
  test::TempDir dir;
  LoadOptions options = given;
  options.capacity.max_context = max_context;
  options.capacity.kv_bytes = 4 << 20;
  options.capacity.max_batch_tokens = 64;
  options.cpu.num_threads = 2;
  options.kv_type = "f32";
  return LoadLocalModel(test::WriteGoldenModel(test::LoadGolden(golden), dir.path()), options);
}

TEST_CASE("Rows that see no more than indexers choose have the bits of a model without them",
          "[golden]") {
  const std::string name = GENERATE("deepseek_v32", "glm_moe_dsa_shared");
  const int32_t top_k = name == "deepseek_v32" ? kTopK : 13;
  auto sparse = Load(name, 0);
  auto dense = Load(name, top_k);
  REQUIRE(sparse.ok());
  REQUIRE(dense.ok());
  CHECK(sparse->idle_indexers == 0);
  CHECK(dense->idle_indexers == top_k);
  CHECK(dense->model.spec.indexer_top_k() == 0);
  CHECK(dense->unused_tensors.empty());
  // Keys of indexers are part of what a token takes: F32, in three layers or in two of four.
  CHECK(sparse->capacity.kv_bytes_per_token - dense->capacity.kv_bytes_per_token ==
        4 * (name == "deepseek_v32" ? 3 * 24 : 2 * 40));
  CHECK(sparse->capacity.weight_bytes > dense->capacity.weight_bytes);
  const std::vector<TokenId> prompt = test::LoadGolden(name).prompt;
  const std::vector<float> all = test::AllLogits(*sparse->executor, prompt, /*prefill_chunk=*/5);
  const auto vocab = all.size() / prompt.size();
  const std::span<const TokenId> first(prompt.data(), static_cast<size_t>(top_k));
  const std::vector<float> of_dense = test::AllLogits(*dense->executor, first, /*prefill_chunk=*/4);
  CHECK(std::equal(of_dense.begin(), of_dense.end(), all.begin()));
  // Behind them a choice is made, in any chunks alike.
  CHECK(test::AllLogits(*sparse->executor, prompt, /*prefill_chunk=*/64) == all);
  CHECK(test::AllLogits(*sparse->executor, prompt, /*prefill_chunk=*/1) == all);
  CHECK(all.size() == prompt.size() * vocab);
}

TEST_CASE("Caches of 16 and of 8 bits keep the keys of indexers, too", "[golden]") {
  const std::string type = GENERATE("bf16", "f16", "fp8", "int8");
  INFO(type);
  const test::Golden golden = test::LoadGolden("deepseek_v32");
  test::TempDir dir;
  LoadOptions options;
  options.capacity.kv_bytes = 4 << 20;
  options.capacity.max_batch_tokens = 64;
  options.cpu.num_threads = 2;
  options.kv_type = type;
  auto model = LoadLocalModel(test::WriteGoldenModel(golden, dir.path()), options);
  INFO(model.status().ToString());
  REQUIRE(model.ok());
  const std::vector<float> logits = test::AllLogits(*model->executor, golden.prompt, 64);
  CHECK(test::AllLogits(*model->executor, golden.prompt, 3) == logits);
  const size_t vocab = logits.size() / golden.prompt.size();
  // Other positions are chosen where scores are close: what is left is of the size of such a key.
  double sum = 0, squares = 0;
  for (size_t v = 0; v < vocab; ++v) {
    const double wanted = golden.last[1][v];
    sum += std::pow(logits[(golden.prompt.size() - 1) * vocab + v] - wanted, 2);
    squares += wanted * wanted;
  }
  CHECK(std::sqrt(sum / squares) < (type == "bf16" || type == "f16" ? 0.2 : 0.4));
}

TEST_CASE("A GPU reads all of texts that are short enough without indexers", "[cuda]") {
  LoadOptions options;
  options.make_device = [] {
    return kernels::CreateCudaDevice(
        {.activations = kernels::DType::kF32, .workspace_bytes = int64_t{4} << 20});
  };
  auto model = Load("deepseek_v32", kTopK, options);
  INFO(model.status().ToString());
  REQUIRE(model.ok());
  const test::Golden golden = test::LoadGolden("deepseek_v32");
  const std::span<const TokenId> first(golden.prompt.data(), size_t{kTopK});
  const std::vector<float> logits = test::AllLogits(*model->executor, first, /*prefill_chunk=*/64);
  const size_t vocab = logits.size() / first.size();
  for (size_t t = 0; t < first.size(); ++t) {
    for (const auto& [token, logit] : golden.top[t]) {
      CHECK(std::abs(logits[t * vocab + static_cast<size_t>(token)] - logit) < 1e-3f);
    }
  }
}

}  // namespace
}  // namespace heddle::engine
