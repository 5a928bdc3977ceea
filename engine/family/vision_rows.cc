#include "engine/family/vision_rows.h"

#include "base/status.h"
#include "engine/family/describe.h"
#include "engine/family/family_refine.h"

namespace heddle::engine {
namespace {

constexpr std::string_view kQwen2VlArchitectures[] = {"Qwen2VLForConditionalGeneration"};
constexpr std::string_view kQwen2VlGguf[] = {"qwen2vl"};
constexpr std::string_view kQwen25VlArchitectures[] = {"Qwen2_5_VLForConditionalGeneration"};
constexpr std::string_view kQwen3VlArchitectures[] = {"Qwen3VLForConditionalGeneration"};
constexpr std::string_view kQwen3VlGguf[] = {"qwen3vl"};
constexpr std::string_view kQwen3VlMoeArchitectures[] = {"Qwen3VLMoeForConditionalGeneration"};
constexpr std::string_view kQwen3VlMoeGguf[] = {"qwen3vlmoe"};

// Features of images that are added to some layers' streams, of which text has none.
absl::Status SkipImages(const GgufSource& source, const TensorFinder&, ModelSpec*, NameMap*) {
  for (const std::string_view key : {"rope.dimension_sections", "n_deepstack_layers"}) {
    static_cast<void>(source.Has(key));
  }
  return absl::OkStatus();
}

Family Vision(Family row, std::string_view name, std::string_view model_type,
              std::span<const std::string_view> architectures,
              std::span<const std::string_view> gguf) {
  row.name = name;
  row.model_type = model_type;
  row.architectures = architectures;
  row.gguf_architectures = gguf;
  row.refine_gguf = SkipImages;
  return row;
}

Family Qwen2Vl(const VisionBases& bases) {
  Family vl = Vision(bases.qwen2, "qwen2_vl", "qwen2_vl_text", kQwen2VlArchitectures, kQwen2VlGguf);
  vl.norm_eps = 1e-5;
  vl.n_kv_heads = 8;
  vl.rope_theta = 1000000.0;
  vl.max_context = 32768;
  return vl;
}

// Files in GGUF are of architecture "qwen2vl".
Family Qwen25Vl(const VisionBases& bases) {
  Family vl = Qwen2Vl(bases);
  vl.name = "qwen2_5_vl";
  vl.model_type = "qwen2_5_vl_text";
  vl.architectures = kQwen25VlArchitectures;
  vl.gguf_architectures = {};
  return vl;
}

Family Qwen3Vl(const VisionBases& bases) {
  Family vl = Vision(bases.qwen3, "qwen3_vl", "qwen3_vl_text", kQwen3VlArchitectures, kQwen3VlGguf);
  vl.window = WindowRule::kNone;
  vl.rope_theta = 500000.0;
  vl.max_context = 128000;
  return vl;
}

// The class always renormalises.
absl::Status RefineQwen3VlMoe(const JsonSource& config, ModelSpec* spec, NameMap* names) {
  HEDDLE_RETURN_IF_ERROR(RefineQwen3Moe(config, spec, names));
  for (LayerSpec& layer : spec->layers) layer.moe.rule.renormalise = true;
  return absl::OkStatus();
}

Family Qwen3VlMoe(const VisionBases& bases) {
  static const NameMap stacked = [](NameMap names) {
    names.expert_layout = ExpertLayout::kTransposedHalves;
    return names;
  }(*bases.qwen3_moe.stacked_names);

  Family vl = Vision(bases.qwen3_moe, "qwen3_vl_moe", "qwen3_vl_moe_text", kQwen3VlMoeArchitectures,
                     kQwen3VlMoeGguf);
  vl.window = WindowRule::kNone;
  vl.rope_theta = 500000.0;
  vl.max_context = 128000;
  vl.tied_embeddings = true;
  vl.stacked_names = &stacked;
  vl.refine = RefineQwen3VlMoe;
  return vl;
}

}  // namespace

std::vector<Family> VisionRows(const VisionBases& bases) {
  return {Qwen2Vl(bases), Qwen25Vl(bases), Qwen3Vl(bases), Qwen3VlMoe(bases)};
}

}  // namespace heddle::engine
