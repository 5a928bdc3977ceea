// Any bytes as a draft network for a small model: opened, and loaded where that succeeds. The input
// is one byte that chooses the kind; then a GGUF file, or config.json, a byte 0 and
// model.safetensors. For MTP these are the model's own files.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include "base/check.h"
#include "engine/heads/open_heads.h"
#include "engine/model/weights.h"
#include "kernels/device.h"
#include "nlohmann/json.hpp"
#include "tests/support/safetensors_writer.h"

namespace {

using heddle::engine::Checkpoint;
using heddle::engine::DraftSource;
using heddle::engine::DraftTraits;
using heddle::engine::ModelDescription;
using heddle::engine::ModelWeights;

constexpr int64_t kHidden = 16;
constexpr int64_t kVocab = 24;
constexpr int64_t kInter = 24;
constexpr int32_t kLayers = 4;

// A folder for this process, deleted at its end.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "heads-fuzz-XXXXXX").string();
    HEDDLE_CHECK(::mkdtemp(name.data()) != nullptr, "cannot make a temporary folder");
    path_ = name;
    std::filesystem::create_directory(path_ / "model");
    std::filesystem::create_directory(path_ / "network");
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

void Write(const std::filesystem::path& path, std::string_view bytes) {
  // Some file systems write a file to disk when it is truncated.
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

void WriteModel(const std::filesystem::path& folder) {
  const nlohmann::json config = {{"architectures", {"LlamaForCausalLM"}},
                                 {"model_type", "llama"},
                                 {"vocab_size", kVocab},
                                 {"hidden_size", kHidden},
                                 {"intermediate_size", kInter},
                                 {"num_hidden_layers", kLayers},
                                 {"num_attention_heads", 2},
                                 {"num_key_value_heads", 1},
                                 {"tie_word_embeddings", true},
                                 {"max_position_embeddings", 32}};
  Write(folder / "config.json", config.dump());
  std::vector<heddle::test::TensorToWrite> tensors;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    tensors.push_back(
        {name, "F32", std::move(shape), std::vector<std::byte>(static_cast<size_t>(count) * 4)});
  };
  add("model.embed_tokens.weight", {kVocab, kHidden});
  add("model.norm.weight", {kHidden});
  for (int32_t i = 0; i < kLayers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    add(layer + "input_layernorm.weight", {kHidden});
    add(layer + "post_attention_layernorm.weight", {kHidden});
    add(layer + "self_attn.q_proj.weight", {kHidden, kHidden});
    add(layer + "self_attn.k_proj.weight", {kHidden / 2, kHidden});
    add(layer + "self_attn.v_proj.weight", {kHidden / 2, kHidden});
    add(layer + "self_attn.o_proj.weight", {kHidden, kHidden});
    add(layer + "mlp.gate_proj.weight", {kInter, kHidden});
    add(layer + "mlp.up_proj.weight", {kInter, kHidden});
    add(layer + "mlp.down_proj.weight", {kHidden, kInter});
  }
  Write(folder / "model.safetensors", heddle::test::SafetensorsBytes(tensors));
}

void CheckTraits(const DraftTraits& traits, const ModelDescription& model) {
  const int32_t vocab = model.spec.vocab;
  HEDDLE_CHECK(traits.vocab > 0 && traits.vocab <= vocab, "a draft vocabulary is too large");
  HEDDLE_CHECK(
      traits.target_ids.empty() || traits.target_ids.size() == static_cast<size_t>(traits.vocab),
      "a map does not fit its vocabulary");
  for (const auto id : traits.target_ids) {
    HEDDLE_CHECK(id >= 0 && id < vocab, "a draft token is none of the model's");
  }
  for (const int32_t layer : traits.features) {
    HEDDLE_CHECK(layer >= DraftTraits::kFinalNormed && layer <= model.spec.n_layers(),
                 "a feature is of no layer");
  }
}

// Opens, checks and loads; errors are what is expected of most inputs.
void Try(heddle::kernels::Device& device, absl::StatusOr<std::unique_ptr<DraftSource>> source,
         const ModelDescription& model, const ModelWeights& weights) {
  if (!source.ok()) return;
  CheckTraits((*source)->traits(), model);
  // Sizes are those of tensors in the file, except the buffers'.
  constexpr int64_t kMaxBytes = 64 << 20;
  constexpr int32_t kRows = 2;
  if ((*source)->WorkspaceBytes(kRows, heddle::kernels::DType::kF32) > kMaxBytes) return;
  (void)(*source)->Load(device, model.spec, weights, kRows);
}

struct Base {
  Base() {
    WriteModel(folder.path() / "model");
    auto opened = heddle::engine::OpenCheckpoint(folder.path() / "model");
    HEDDLE_CHECK(opened.ok(), opened.status().ToString());
    checkpoint.emplace(*std::move(opened));
    auto described = heddle::engine::Describe(*checkpoint);
    HEDDLE_CHECK(described.ok(), described.status().ToString());
    model = *std::move(described);
    auto loaded = heddle::engine::LoadWeights(*device, *checkpoint, model);
    HEDDLE_CHECK(loaded.ok(), loaded.status().ToString());
    weights = *std::move(loaded);
  }

  Folder folder;
  std::unique_ptr<heddle::kernels::Device> device = heddle::kernels::CreateReferenceDevice();
  std::optional<Checkpoint> checkpoint;
  ModelDescription model;
  ModelWeights weights;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Base base;
  if (size == 0) return 0;
  const int kind = data[0] % 4;
  std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::filesystem::path path = base.folder.path() / "network";
  if (kind == 3) {
    path = base.folder.path() / "network.gguf";
    Write(path, bytes);
  } else {
    const size_t config_size = std::min(bytes.find('\0'), bytes.size());
    Write(path / "config.json", bytes.substr(0, config_size));
    bytes.remove_prefix(std::min(config_size + 1, bytes.size()));
    Write(path / "model.safetensors", bytes);
  }
  if (kind == 0) {
    Try(*base.device, heddle::engine::OpenMedusa(path, base.model), base.model, base.weights);
  } else if (kind == 2) {
    const auto own = heddle::engine::OpenCheckpoint(path);
    if (!own.ok()) return 0;
    const auto model = heddle::engine::Describe(*own);
    if (!model.ok() || !heddle::engine::ValidateTensors(*own, *model).ok()) return 0;
    if (model->spec.hidden != kHidden || model->spec.vocab != kVocab) return 0;
    Try(*base.device, heddle::engine::OpenMtp(*own, *model), *model, base.weights);
  } else {
    Try(*base.device, heddle::engine::OpenEagle(path, *base.checkpoint, base.model), base.model,
        base.weights);
  }
  return 0;
}
