// Any bytes as an adapter for small bases of several kinds: read, placed and packed into pages, and
// all places of the image checked. The input is one byte that chooses the format, the base, the
// type and the pages' size; then either a GGUF file, or adapter_config.json, a byte 0 and
// adapter_model.safetensors.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "engine/adapter/load_adapter.h"
#include "engine/family/model_description.h"
#include "nlohmann/json.hpp"
#include "tests/support/safetensors_writer.h"

namespace {

using heddle::engine::AdapterImage;
using heddle::engine::ImageFactors;
using heddle::engine::ImagePlace;
using heddle::engine::ModelDescription;

constexpr int32_t kMaxRank = 16;
constexpr int64_t kMaxImageBytes = 1 << 20;

// A folder for this process, deleted at its end.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "adapter-fuzz-XXXXXX").string();
    HEDDLE_CHECK(::mkdtemp(name.data()) != nullptr, "cannot make a temporary folder");
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path Write(const char* name, std::string_view bytes) const {
    // Some file systems write a file to disk when it is truncated.
    std::error_code ignored;
    std::filesystem::remove(path_ / name, ignored);
    std::ofstream out(path_ / name, std::ios::binary);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

ModelDescription Describe(const nlohmann::json& config) {
  auto model = heddle::engine::DescribeConfig(config, nlohmann::json::object(), "config.json");
  HEDDLE_CHECK(model.ok(), model.status().ToString());
  return *std::move(model);
}

// Separate and fused matrices, rows grouped by head, latent attention with experts.
std::vector<ModelDescription> Bases() {
  const auto with = [](nlohmann::json config, const nlohmann::json& more) {
    config.update(more);
    return config;
  };
  const nlohmann::json llama = {{"architectures", {"LlamaForCausalLM"}},
                                {"model_type", "llama"},
                                {"vocab_size", 16},
                                {"hidden_size", 16},
                                {"intermediate_size", 24},
                                {"num_hidden_layers", 2},
                                {"num_attention_heads", 2},
                                {"num_key_value_heads", 1},
                                {"max_position_embeddings", 32}};
  return {Describe(llama),
          Describe(with(llama, {{"architectures", {"Phi3ForCausalLM"}}, {"model_type", "phi3"}})),
          Describe(with(llama, {{"architectures", {"GPTNeoXForCausalLM"}},
                                {"model_type", "gpt_neox"},
                                {"hidden_act", "gelu"},
                                {"rotary_pct", 0.5}})),
          Describe(with(llama, {{"architectures", {"DeepseekV2ForCausalLM"}},
                                {"model_type", "deepseek_v2"},
                                {"num_key_value_heads", 2},
                                {"kv_lora_rank", 8},
                                {"q_lora_rank", 8},
                                {"qk_nope_head_dim", 8},
                                {"qk_rope_head_dim", 4},
                                {"v_head_dim", 8},
                                {"moe_intermediate_size", 8},
                                {"n_routed_experts", 4},
                                {"num_experts_per_tok", 2},
                                {"n_shared_experts", 1},
                                {"first_k_dense_replace", 1},
                                {"topk_method", "greedy"},
                                {"norm_topk_prob", false}}))};
}

void CheckPlace(const AdapterImage& image, const ImagePlace& place, int64_t bytes) {
  HEDDLE_CHECK(place.page >= 0 && place.page < image.num_pages, "a place is in no page");
  HEDDLE_CHECK(place.offset >= 0 && place.offset + bytes <= image.page_bytes,
               "a place is not within its page");
}

void CheckBlocks(const AdapterImage& image, const std::vector<ImagePlace>& blocks,
                 const ImagePlace& table, int64_t rows, int64_t block_rows) {
  if (blocks.empty()) return;
  const auto n_blocks = static_cast<size_t>((rows + block_rows - 1) / block_rows);
  HEDDLE_CHECK(blocks.size() == n_blocks, "factors have blocks for another number of rows");
  for (const ImagePlace& place : blocks) CheckPlace(image, place, 4);
  CheckPlace(image, table, static_cast<int64_t>(n_blocks) * 8);
}

void CheckImage(const AdapterImage& image) {
  for (const ImageFactors& factors : image.factors) {
    const bool whole = factors.rank > 0 && (factors.a.empty() || factors.b.empty());
    HEDDLE_CHECK(factors.rank >= 0 && (whole || factors.rank <= kMaxRank),
                 "factors have a rank that the limit does not allow");
    HEDDLE_CHECK(factors.rank == 0 || (factors.block_rows > 0 && factors.a_block_rows > 0),
                 "factors have blocks of no rows");
    if (factors.rank > 0) {
      CheckBlocks(image, factors.a, factors.a_table,
                  factors.gathers() ? factors.inputs : factors.rank, factors.a_block_rows);
      CheckBlocks(image, factors.b, factors.b_table, factors.rank, factors.block_rows);
    }
    for (const ImagePlace& vector : {factors.gain, factors.bias}) {
      if (!(vector == heddle::engine::kNoPlace)) {
        CheckPlace(image, vector, int64_t{4} * factors.outputs);
      }
    }
  }
}

// The files of the first base, for adapters that are said relative to its weights.
std::filesystem::path WriteBase(const Folder& folder) {
  std::vector<heddle::test::TensorToWrite> tensors;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    std::vector<float> values(static_cast<size_t>(count), 0.125f);
    const auto bytes = std::as_bytes(std::span(values));
    tensors.push_back({name, "F32", std::move(shape), {bytes.begin(), bytes.end()}});
  };
  for (const std::string name : {"model.embed_tokens", "lm_head"}) add(name + ".weight", {16, 16});
  add("model.norm.weight", {16});
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    for (const std::string norm : {"input_layernorm", "post_attention_layernorm"}) {
      add(layer + norm + ".weight", {16});
    }
    for (const std::string part : {"q", "o"})
      add(layer + "self_attn." + part + "_proj.weight", {16, 16});
    for (const std::string part : {"k", "v"})
      add(layer + "self_attn." + part + "_proj.weight", {8, 16});
    for (const std::string part : {"gate", "up"})
      add(layer + "mlp." + part + "_proj.weight", {24, 16});
    add(layer + "mlp.down_proj.weight", {16, 24});
  }
  std::filesystem::create_directory(folder.path() / "base");
  heddle::test::WriteFile(folder.path() / "base" / "config.json", "{}");
  heddle::test::WriteFile(folder.path() / "base" / "model.safetensors",
                          heddle::test::SafetensorsBytes(tensors));
  return folder.path() / "base";
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Folder folder;
  static const std::vector<ModelDescription> bases = Bases();
  static const std::filesystem::path base = WriteBase(folder);
  constexpr heddle::kernels::DType kTypes[] = {
      heddle::kernels::DType::kBF16, heddle::kernels::DType::kF16, heddle::kernels::DType::kF32};
  constexpr int64_t kPageBytes[] = {64, 256, 4096};
  if (size == 0) return 0;
  const int choice = data[0];
  std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::filesystem::path path = folder.path();
  if (choice % 2 == 0) {
    const size_t config_size = std::min(bytes.find('\0'), bytes.size());
    folder.Write("adapter_config.json", bytes.substr(0, config_size));
    bytes.remove_prefix(std::min(config_size + 1, bytes.size()));
    folder.Write("adapter_model.safetensors", bytes);
  } else {
    path = folder.Write("adapter.gguf", bytes);
    (void)heddle::engine::IsAdapter(path);
  }
  const heddle::engine::ModelDescription& model = bases[static_cast<size_t>(choice / 2 % 4)];
  const int world = 1 + choice / 72 % 3;  // ranks that share the base
  const auto shares = heddle::engine::DivideModel(model.spec, {.tp = world}, {});
  const auto loaded = heddle::engine::LoadAdapter(
      path, {.model = &model,
             .dtype = kTypes[choice / 8 % 3],
             .page_bytes = kPageBytes[choice / 24 % 3],
             .max_rank = kMaxRank,
             .max_bytes = kMaxImageBytes,
             .base = choice / 2 % 4 == 0 ? base : std::filesystem::path(),
             .shares = shares,
             .rank_page_bytes = std::vector<int64_t>(shares.size(), kPageBytes[choice / 24 % 3])});
  if (!loaded.ok()) return 0;
  HEDDLE_CHECK(loaded->image->num_ranks() == world, "ranks without an image");
  HEDDLE_CHECK(loaded->image->bytes() <= kMaxImageBytes, "images are larger than the limit");
  for (int rank = 0; rank < world; ++rank) CheckImage(loaded->image->OfRank(rank));
  return 0;
}
