#include "tests/support/goldens.h"

#include <fstream>

#include "base/check.h"
#include "nlohmann/json.hpp"
#include "tests/support/paths.h"

namespace heddle::test {

using nlohmann::json;

json LoadGoldenJson(std::string_view file_name) {
  std::filesystem::path path = SourceDir() / "tests" / "golden" / file_name;
  std::ifstream in(path);
  HEDDLE_CHECK(in.good(), "cannot read " + path.string());
  return json::parse(in);
}

Golden LoadGolden(std::string_view name) {
  json file = LoadGoldenJson(std::string(name) + ".json");
  Golden golden;
  golden.name = file.at("name");
  golden.config = std::make_shared<const json>(file.at("config"));
  golden.dtype = file.at("dtype");
  golden.shards = file.at("shards");
  golden.bits = file.at("bits");
  if (!file.at("gguf").is_null()) golden.gguf = file.at("gguf").get<std::string>();
  for (const json& entry : file.at("tensors")) {
    SyntheticTensor tensor{entry.at(0), entry.at(1), entry.at(2), entry.at(3)};
    if (entry.size() > 4) {
      tensor.type = entry.at(4);
      tensor.bits = entry.at(5);
      if (entry.size() > 6) tensor.values = entry.at(6).get<std::vector<int64_t>>();
    }
    golden.tensors.push_back(std::move(tensor));
  }
  if (file.contains("rope_divisors")) {
    golden.rope_divisors = file.at("rope_divisors").get<std::vector<float>>();
  }
  golden.prompt = file.at("prompt").get<std::vector<int32_t>>();
  golden.top = file.at("top").get<std::vector<std::vector<std::pair<int32_t, float>>>>();
  golden.last = file.at("last").get<std::vector<std::vector<float>>>();
  return golden;
}

std::vector<std::string> GoldenNames() {
  return {"llama",
          "llama3_rope",
          "llama_linear_rope",
          "llama_yarn_rope",
          "llama_ladder",
          "llama_bf16",
          "llama_f16",
          "llama_q8_0",
          "llama_q4_0",
          "llama_gptq",
          "mistral",
          "gemma",
          "gemma3_softcap",
          "olmo3",
          "deepseek_v32",
          "glm_moe_dsa",
          "glm_moe_dsa_shared",
          "rwkv7",
          "phi4flash",
          "phi4flash_biases",
          "seed_oss",
          "ernie4_5",
          "arcee",
          "cohere",
          "cohere2",
          "exaone4",
          "olmoe",
          "ministral3_long",
          "internlm3",
          "iquestcoder",
          "jais2",
          "helium",
          "cwm",
          "youtu",
          "vaultgemma",
          "hyperclovax",
          "hyperclovax_plain",
          "granite_swa",
          "minicpm",
          "mimo",
          "exaone",
          "exaone_moe",
          "solar_open",
          "hy_v3",
          "mellum",
          "stablelm",
          "stablelm_parallel",
          "apertus",
          "smolvlm",
          "glm4v",
          "glm4v_moe",
          "glm4_moe",
          "glm4_moe_lite",
          "qwen2_5_vl",
          "qwen3_vl",
          "qwen3_vl_moe",
          "dots1",
          "lfm2",
          "lfm2_first",
          "lfm2_moe",
          "lfm2_moe_separate",
          "qwen3_next",
          "qwen3_5",
          "qwen3_5_moe",
          "ernie4_5_moe",
          "granitemoe",
          "granitemoeshared",
          "granitemoehybrid",
          "granitemoehybrid_experts",
          "granitemoehybrid_state",
          "granitemoehybrid_groups",
          "mamba2",
          "mamba2_biases",
          "mamba",
          "mamba_biases",
          "falcon_mamba",
          "jamba",
          "jamba_stacked",
          "jamba_dense",
          "bamba",
          "nemotron_h",
          "nemotron_h_moe",
          "falcon_h1",
          "falcon_h1_norm",
          "minimax_m2",
          "hunyuan",
          "hunyuan_moe",
          "hunyuan_moe_stacked",
          "ministral3",
          "qwen3_moe_local",
          "gpt_oss_default_rope",
          "mistral_window",
          "qwen2",
          "qwen2_window",
          "qwen2_q8_0",
          "qwen3",
          "mixtral",
          "mixtral_stacked",
          "qwen2_moe",
          "qwen3_moe",
          "qwen3_moe_stacked",
          "mixtral_gptq",
          "mixtral_awq",
          "mixtral_w4a16",
          "qwen3_moe_nvfp4",
          "qwen3_moe_fp8",
          "deepseek_v3_fp8",
          "deepseek_v2",
          "deepseek_v2_lite",
          "deepseek_v3",
          "decilm",
          "nemotron",
          "gpt_oss",
          "gpt_oss_mxfp4",
          "gpt2",
          "gpt2_bare",
          "gemma2",
          "gemma3",
          "gemma3_layer_types",
          "gemma3n",
          "gemma3n_images",
          "gemma4",
          "gemma4_dense",
          "gemma4_moe",
          "llama4",
          "llama4_plain",
          "gemma3_images",
          "gemma3_images_moved",
          "mistral3_images",
          "phi3",
          "phi3_longrope",
          "phi",
          "olmo2",
          "smollm3",
          "granite",
          "ministral",
          "starcoder2",
          "gpt_neox",
          "gpt_neox_sequential",
          "falcon",
          "falcon_grouped",
          "falcon_sequential",
          "glm",
          "glm4"};
}

std::vector<std::string> RankGoldenNames() {
  std::vector<std::string> names = GoldenNames();
  std::erase_if(names, [](const std::string& name) {
    return name.starts_with("gemma3n") || name == "gemma4" || name == "gemma4_moe" ||
           name == "glm_moe_dsa_shared" || name == "rwkv7" || name.starts_with("phi4flash");
  });
  return names;
}

}  // namespace heddle::test
