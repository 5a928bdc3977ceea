#include "engine/family/module_names.h"

#include <algorithm>

#include "engine/family/family_names.h"
#include "engine/family/family_table.h"

namespace heddle::engine {
namespace {

const Family* FamilyOf(const ModelDescription& model) {
  const std::vector<LayerSpec>& layers = model.spec.layers;
  const bool has_experts = std::any_of(
      layers.begin(), layers.end(), [](const LayerSpec& layer) { return layer.moe.n_experts > 0; });
  // GGUF files of Mixtral are of architecture "llama".
  const std::string_view name =
      model.spec.family == "llama" && has_experts ? "mixtral" : std::string_view(model.spec.family);
  for (const Family& family : FamilyTable()) {
    if (family.name == name) return &family;
  }
  return nullptr;
}

// The converter keeps stacked matrices stacked, under a name that may be that of a part.
NameMap GgufNamesLike(const NameMap& folder) {
  NameMap names = GgufNames();
  names.layers_of_index = folder.layers_of_index;
  LayerNames& layer = names.layer;
  if (folder.layer.qkv.empty()) {
    layer.qkv.clear();
  } else {
    layer.q.clear();
    layer.k.clear();
    layer.v.clear();
  }
  if (folder.layer.gate_up.empty()) {
    layer.gate_up.clear();
  } else {
    layer.gate.clear();
    layer.up.clear();
  }
  return names;
}

}  // namespace

bool HasGgufNames(const ModelDescription& model) {
  return model.names.embed.starts_with("token_embd");
}

std::vector<NameMap> HuggingFaceNames(const ModelDescription& model) {
  std::vector<NameMap> maps;
  if (!HasGgufNames(model)) maps.push_back(model.names);
  const Family* family = FamilyOf(model);
  if (family == nullptr) return maps;
  for (const NameMap* names : {family->names, family->stacked_names, family->mxfp4_names}) {
    if (names == nullptr) continue;
    maps.push_back(*names);
    maps.back().layers_of_index = model.names.layers_of_index;
  }
  return maps;
}

NameMap GgufFileNames(const ModelDescription& model) {
  return HasGgufNames(model) ? model.names : GgufNamesLike(model.names);
}

bool GgufPermutesQk(const ModelDescription& model) {
  const Family* family = FamilyOf(model);
  return family != nullptr && family->gguf_rope_layout == RopeLayout::kInterleaved &&
         family->rope_layout == RopeLayout::kHalf;
}

float NormOffsetOf(const ModelDescription& model, bool gguf_file) {
  if (gguf_file) return 0.0f;  // converters have already added it
  const Family* family = FamilyOf(model);
  return family == nullptr ? model.spec.norm_weight_offset : family->norm_weight_offset;
}

bool IsGgufArchitecture(const ModelDescription& model, std::string_view architecture) {
  const Family* family = FamilyOf(model);
  if (family == nullptr) return false;
  const auto& own = family->gguf_architectures;
  if (!own.empty()) return std::find(own.begin(), own.end(), architecture) != own.end();
  // Families without an architecture of their own share another's: files of Mistral are "llama",
  // those of DeepSeek-V2 are V3's.
  return architecture == (family->names->layer.kv_a.empty() ? "llama" : "deepseek2");
}

}  // namespace heddle::engine
