// Adapters of modules beside plain linears, against Hugging Face PEFT: embeddings, heads,
// biases, whole vectors and matrices, DoRA, experts, latent attention, sets of adapters.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "engine/model/load.h"
#include "nlohmann/json.hpp"
#include "tests/adapter/golden_adapters.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/goldens.h"
#include "tests/support/greedy_runner.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/synthetic_weights.h"
#include "tests/support/temp_dir.h"

namespace heddle::engine {
namespace {

using nlohmann::json;
using test::Golden;
using test::MaxError;

void CheckCase(const json& golden, int bits, const Golden& base,
               const std::filesystem::path& model_path, const std::filesystem::path& dir) {
  for (const std::string ops : {"reference", "portable"}) {
    LocalModel model = test::LoadAdapterBase(model_path, ops);
    const test::RunAdapter adapter = test::LoadCase(golden, bits, model, model_path, dir);
    for (const int32_t chunk : {64, 7}) {
      INFO(ops << " in chunks of " << chunk);
      CHECK(MaxError(golden, test::AllLogits(*model.executor, base.prompt, chunk, adapter)) <
            2e-3f);
    }
    CHECK(MaxError(golden, test::AllLogits(*model.executor, base.prompt, 64)) > 0.02f);
    // A scale of 0 leaves the base as it is, bit for bit.
    CHECK(test::AllLogits(*model.executor, base.prompt, 64, {adapter.image, 0.0f}) ==
          test::AllLogits(*model.executor, base.prompt, 64));
  }
}

TEST_CASE("Adapters of all kinds give PEFT's logits", "[golden]") {
  const json goldens = test::LoadGoldenJson("adapter_kinds.json");
  const std::string name = GENERATE_COPY(from_range(test::CaseNames(goldens)));
  INFO(name);
  const json& golden = goldens[name];
  const Golden base = test::LoadGolden(golden["base"].get<std::string>());
  test::TempDir dir;
  CheckCase(golden, goldens["bits"], base, test::WriteSyntheticModel(base, dir / "model"),
            dir.path());
}

TEST_CASE("PEFT's adapters of all kinds give the same logits beside bases in GGUF files",
          "[golden]") {
  const json goldens = test::LoadGoldenJson("adapter_kinds.json");
  const std::string name =
      GENERATE("embedding", "embedding_tied", "head", "bias_all_qkv", "bias_lora_only",
               "bias_all_qwen", "saved_norms", "saved_embedding", "dora", "dora_fused",
               "dora_biases", "dora_transposed", "dora_tables", "experts_gpt_oss", "set");
  INFO(name);
  const json& golden = goldens[name];
  const std::string base = golden["base"];
  test::TempDir dir;
  CheckCase(golden, goldens["bits"], test::LoadGolden(base),
            test::WriteGgufBase(base, dir / "model.gguf"), dir.path());
}

// The names of llama.cpp's converter.
std::string GgufModuleOf(std::string name) {
  const std::pair<std::string, std::string> parts[] = {{"base_model.model.", ""},
                                                       {"model.embed_tokens", "token_embd"},
                                                       {"model.layers.", "blk."},
                                                       {"model.norm", "output_norm"},
                                                       {"lm_head", "output"},
                                                       {"self_attn.q_proj", "attn_q"},
                                                       {"self_attn.v_proj", "attn_v"},
                                                       {"input_layernorm", "attn_norm"},
                                                       {"post_attention_layernorm", "ffn_norm"}};
  for (const auto& [from, to] : parts) {
    if (const size_t at = name.find(from); at != std::string::npos) {
      name.replace(at, from.size(), to);
    }
  }
  return name;
}

struct GgufTensorToWrite {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

// A part [first, first + count) of each row group of B for all experts, [out, rank * experts] to
// [experts, out, rank].
std::vector<float> ExpertsOfB(const std::vector<float>& b, int64_t rank, int64_t experts,
                              int64_t first, int64_t count) {
  std::vector<float> stacked;
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t o = first; o < first + count; ++o) {
      for (int64_t r = 0; r < rank; ++r) {
        stacked.push_back(b[static_cast<size_t>(o * rank * experts + r * experts + e)]);
      }
    }
  }
  return stacked;
}

// One PEFT tensor as the converter writes it, for models of llama's shape with heads of `dim`.
std::vector<GgufTensorToWrite> ToGguf(const json& tensor, int bits, int64_t rank, int64_t dim,
                                      int64_t experts) {
  const std::string name = tensor[0];
  const auto shape = tensor[1].get<std::vector<int64_t>>();
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  std::vector<float> values = test::SyntheticValues(name, count, tensor[2], tensor[3], bits);
  const auto ends = [&](std::string_view end) { return name.ends_with(end); };
  const auto module = [&](std::string_view end) {
    return GgufModuleOf(name.substr(0, name.size() - end.size()));
  };
  if (ends(".base_layer.weight")) return {};
  if (ends(".lora_embedding_A")) {  // token by token
    std::vector<float> turned(values.size());
    for (int64_t r = 0; r < shape[0]; ++r) {
      for (int64_t t = 0; t < shape[1]; ++t) {
        turned[static_cast<size_t>(t * shape[0] + r)] =
            values[static_cast<size_t>(r * shape[1] + t)];
      }
    }
    return {{module(".lora_embedding_A") + ".weight.lora_a", {shape[1], shape[0]}, turned}};
  }
  if (ends(".lora_embedding_B")) {
    return {{module(".lora_embedding_B") + ".weight.lora_b", shape, values}};
  }
  if (name.find("mlp.experts") != std::string::npos) {
    const std::string layer = "blk." + name.substr(name.find("layers.") + 7, 1) + ".";
    const bool is_down = name.find("base_layer") == std::string::npos;
    const auto both = [&](std::string_view end, const GgufTensorToWrite& gate,
                          const GgufTensorToWrite& up) {
      std::vector<GgufTensorToWrite> pair = {gate, up};
      pair[0].name = layer + "ffn_gate_exps.weight" + std::string(end);
      pair[1].name = layer + "ffn_up_exps.weight" + std::string(end);
      return pair;
    };
    if (ends(".lora_A.weight")) {
      const GgufTensorToWrite a{
          layer + "ffn_down_exps.weight.lora_a", {experts, rank, shape[1]}, values};
      return is_down ? std::vector{a} : both(".lora_a", a, a);
    }
    const int64_t half = shape[0] / 2;
    if (is_down) {
      return {{layer + "ffn_down_exps.weight.lora_b",
               {experts, shape[0], rank},
               ExpertsOfB(values, rank, experts, 0, shape[0])}};
    }
    return both(".lora_b", {"", {experts, half, rank}, ExpertsOfB(values, rank, experts, 0, half)},
                {"", {experts, half, rank}, ExpertsOfB(values, rank, experts, half, half)});
  }
  if (ends(".lora_A.weight")) return {{module(".lora_A.weight") + ".weight.lora_a", shape, values}};
  if (ends(".lora_B.weight")) {
    std::vector<float> rows = values;
    for (int64_t i = 0; name.find("q_proj") != std::string::npos && i < shape[0]; ++i) {
      const int64_t at = i % dim;  // of a head: halves take turns
      const int64_t to = i - at + 2 * (at % (dim / 2)) + at / (dim / 2);
      std::copy_n(values.begin() + i * shape[1], shape[1], rows.begin() + to * shape[1]);
    }
    return {{module(".lora_B.weight") + ".weight.lora_b", shape, rows}};
  }
  return {{GgufModuleOf(name), shape, values}};
}

TEST_CASE("GGUF adapters of all kinds that the converter writes give PEFT's logits", "[golden]") {
  const json goldens = test::LoadGoldenJson("adapter_kinds.json");
  const auto [name, dim, experts] = GENERATE(table<std::string, int64_t, int64_t>(
      {{"embedding", 16, 1}, {"head", 16, 1}, {"saved_norms", 16, 1}, {"experts_mixtral", 16, 4}}));
  INFO(name);
  const json& golden = goldens[name];
  const json& config = golden["config"];
  test::GgufWriter writer;
  writer.String("general.type", "adapter")
      .String("general.architecture", "llama")
      .String("adapter.type", "lora")
      .F32("adapter.lora.alpha", config["lora_alpha"].get<float>());
  for (const json& tensor : golden["tensors"]) {
    for (const GgufTensorToWrite& own :
         ToGguf(tensor, goldens["bits"], config["r"], dim, experts)) {
      const auto bytes = std::as_bytes(std::span(own.values));
      writer.Tensor(own.name, 0, own.shape, {bytes.begin(), bytes.end()});
    }
  }
  test::TempDir dir;
  test::WriteFile(dir / "adapter.gguf", writer.Bytes());
  const Golden base = test::LoadGolden(golden["base"].get<std::string>());
  const auto model_path = test::WriteSyntheticModel(base, dir / "model");
  LocalModel model = test::LoadAdapterBase(model_path, "portable");
  const test::RunAdapter adapter = test::LoadInto(model, model_path, dir / "adapter.gguf");
  CHECK(MaxError(golden, test::AllLogits(*model.executor, base.prompt, 64, adapter)) < 2e-3f);
}

LocalModel LoadMerged(const std::filesystem::path& model, const std::filesystem::path& adapter,
                      absl::Status* status) {
  LoadOptions options;
  options.cpu.isa = "portable";
  options.cpu.num_threads = 2;
  options.capacity.kv_bytes = 4 << 20;
  options.capacity.max_batch_tokens = 64;
  options.kv_type = "f32";
  options.merged_adapter = adapter;
  auto loaded = LoadLocalModel(model, options);
  *status = loaded.status();
  return loaded.ok() ? *std::move(loaded) : LocalModel();
}

TEST_CASE("An adapter that is merged at load gives PEFT's logits", "[golden]") {
  const json goldens = test::LoadGoldenJson("adapter_kinds.json");
  const std::string name = GENERATE(
      "embedding", "embedding_granite", "head", "bias_all", "bias_all_qkv", "bias_lora_only",
      "saved_norms", "saved_norms_falcon", "saved_head", "saved_embedding", "dora", "dora_fused",
      "dora_transposed", "dora_tables", "dora_latent", "latent", "latent_lite", "experts_mixtral",
      "experts_qwen3", "experts_each", "experts_deepseek");
  const bool gguf = GENERATE(false, true);
  INFO(name << (gguf ? " in GGUF" : ""));
  const json& golden = goldens[name];
  const std::string base_name = golden["base"];
  const Golden base = test::LoadGolden(base_name);
  const bool has_gguf =
      base_name == "llama" || base_name == "gpt2" || base_name == "gpt_neox" || base_name == "phi3";
  if (gguf && !has_gguf) return;
  test::TempDir dir;
  const auto model_path = gguf ? test::WriteGgufBase(base_name, dir / "model.gguf")
                               : test::WriteSyntheticModel(base, dir / "model");
  const auto adapter = test::WriteAdapter(golden, goldens["bits"], dir / "adapter");
  absl::Status status;
  const LocalModel model = LoadMerged(model_path, adapter, &status);
  INFO(status.ToString());
  REQUIRE(status.ok());
  CHECK(MaxError(golden, test::AllLogits(*model.executor, base.prompt, 64)) < 2e-3f);
}

TEST_CASE("Quantised weights are merged as well as they are adapted, and the rest is refused",
          "[golden]") {
  const json goldens = test::LoadGoldenJson("adapter_kinds.json");
  const Golden base = test::LoadGolden("llama");
  test::TempDir dir;
  const auto adapter = test::WriteAdapter(goldens["head"], goldens["bits"], dir / "adapter");
  absl::Status status;
  for (const kernels::DType dtype : {kernels::DType::kQ8_0, kernels::DType::kQ4_0}) {
    const auto file = test::WriteSyntheticGguf(base, dtype, dir / "merged.gguf");
    const LocalModel model = LoadMerged(file, adapter, &status);
    INFO(status.ToString());
    REQUIRE(status.ok());
    const float error =
        MaxError(goldens["head"], test::AllLogits(*model.executor, base.prompt, 64));
    const LocalModel beside = test::LoadAdapterBase(file, "portable");
    const test::RunAdapter own = test::LoadInto(beside, file, adapter);
    const float error_beside =
        MaxError(goldens["head"], test::AllLogits(*beside.executor, base.prompt, 64, own));
    CHECK(error < 2.0f * error_beside);
  }
  // The base has no bias for what was trained as one.
  const auto biased = test::WriteAdapter(goldens["bias_of_b"], goldens["bits"], dir / "biased");
  LoadMerged(test::WriteSyntheticModel(base, dir / "model"), biased, &status);
  CHECK(absl::StrContains(std::string(status.message()), "has no bias"));
  // The embedding is the head.
  const json& tied = goldens["embedding_tied"];
  const auto table = test::WriteAdapter(tied, goldens["bits"], dir / "tied");
  LoadMerged(test::WriteSyntheticModel(test::LoadGolden("qwen2"), dir / "qwen2"), table, &status);
  CHECK(absl::StrContains(std::string(status.message()), "are one matrix"));
}

}  // namespace
}  // namespace heddle::engine
