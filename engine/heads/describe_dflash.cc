// DFlash's files: config.json with safetensors, as the authors (z-lab) or the speculators library
// write them, or GGUF. All layers are ordinary ones of the Qwen 3 family.
#include <string>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/heads/describe_heads.h"
#include "engine/heads/eagle_config.h"
#include "engine/heads/feature_files.h"
#include "engine/heads/head_tensors.h"

namespace heddle::engine {
namespace {

absl::Status CheckDflashLayers(const Checkpoint& file, const ModelSpec& spec) {
  for (const LayerSpec& layer : spec.layers) {
    const AttentionSpec& attention = layer.attention;
    if (attention.mla.kv_rank > 0 || layer.moe.n_experts > 0 ||
        attention.qk_norm == QkNorm::kFullWidth || layer.wiring != Wiring::kSequential ||
        !layer.pre_norm) {
      return absl::UnimplementedError(base::StrCat(
          file.path().string(), ": is a DFlash network whose layers are not Qwen 3's"));
    }
  }
  return absl::OkStatus();
}

// A row of a block sees all rows of it that its mask names, however short the window.
absl::Status CheckWindows(const Checkpoint& file, const ModelSpec& spec, int32_t block) {
  for (const LayerSpec& layer : spec.layers) {
    const int32_t window = layer.attention.window;
    if (window == 0 || window >= block) continue;
    return HeadError(file, base::StrCat("has a sliding window of ", window,
                                        " positions, which is shorter than its blocks of ", block));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<FeatureDraft> DescribeDflash(const Checkpoint& file, const EagleConfig& config,
                                            const ModelDescription& model) {
  const bool is_gguf = file.gguf() != nullptr;
  const FeatureLayout layout{
      .layers = is_gguf ? "blk.{}." : "layers.{}.", .top = "", .is_gguf = is_gguf};
  FeatureDraft draft;
  draft.kind = "dflash";
  HEDDLE_ASSIGN_OR_RETURN(draft.model, is_gguf ? DescribeGgufAs(file, "qwen3")
                                               : ReadFeatureLayers(file, config, layout, "qwen3"));
  ModelSpec& spec = draft.model.spec;
  HEDDLE_RETURN_IF_ERROR(CheckDflashLayers(file, spec));
  HEDDLE_RETURN_IF_ERROR(CheckFeatureSizes(file, config, model, &draft));
  HEDDLE_ASSIGN_OR_RETURN(EagleConfig::Block block, config.ReadBlock(file, model.spec, spec));
  HEDDLE_RETURN_IF_ERROR(CheckWindows(file, spec, block.rows));
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    spec.layers[i].attention.in_order = block.in_order[i];
  }
  spec.logit_scale = block.logit_scale;
  spec.logit_softcap = block.logit_softcap;
  draft.block = block.rows;
  draft.mask = block.mask;
  draft.features = std::move(block.features);
  draft.fuse = "fc.weight";
  draft.state_norm = is_gguf ? "enc.output_norm.weight" : "hidden_norm.weight";
  const auto width = static_cast<int64_t>(draft.features.size()) * model.spec.hidden;
  HEDDLE_RETURN_IF_ERROR(
      CheckTensor(file, draft.fuse, {spec.hidden, width}, "hidden, features * the model's hidden"));
  HEDDLE_RETURN_IF_ERROR(CheckTensor(file, draft.state_norm, {spec.hidden}, "hidden"));
  HEDDLE_RETURN_IF_ERROR(ReadFeatureTables(file, config, layout, model, &draft));
  // The model's own table comes with the model's own scale.
  if (draft.own_embedding.empty()) spec.embedding_scale = model.spec.embedding_scale;
  if (block.embedding_scale.has_value()) spec.embedding_scale = *block.embedding_scale;
  HEDDLE_RETURN_IF_ERROR(CheckUsedTensors(file, draft.model));
  HEDDLE_RETURN_IF_ERROR(CheckAllUsed(file, draft, "DFlash"));
  return draft;
}

}  // namespace heddle::engine
