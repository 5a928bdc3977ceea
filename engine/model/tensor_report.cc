#include "engine/model/tensor_report.h"

#include <unordered_set>

#include "base/status.h"
#include "engine/family/model_description.h"

namespace heddle::engine {
namespace {

WeightRole RoleOf(const CheckpointTensor& tensor, const NameMap& names) {
  const bool is_table = tensor.name == names.embed || tensor.name == names.lm_head ||
                        tensor.name == names.positions || tensor.name == names.token_types ||
                        tensor.name == names.layer_inputs;
  if (tensor.name.ends_with(".self_attn.seg_embeddings.weight")) return WeightRole::kExact;
  // A router has one row per expert; every hidden layer has far more rows.
  constexpr int64_t kMostExperts = 512;
  const bool is_router =
      tensor.shape.size() == 2 && tensor.shape[0] <= kMostExperts &&
      (tensor.name.ends_with(".gate.weight") || tensor.name.ends_with("ffn_gate_inp.weight") ||
       tensor.name.ends_with(".router.weight") ||
       tensor.name.ends_with(".altup.modality_router.weight") ||
       tensor.name.ends_with(".altup_router.weight") ||
       tensor.name.ends_with("shared_expert_gate.weight"));
  return is_table ? WeightRole::kTable : is_router ? WeightRole::kExact : WeightRole::kMatrix;
}

}  // namespace

kernels::DType KeptTypeOf(const CheckpointTensor& tensor, const NameMap& names,
                          const WeightPolicy& policy) {
  if (!tensor.dtype || tensor.shape.size() < 2) return tensor.dtype.value_or(kernels::DType::kF32);
  return KeptAs(policy, RoleOf(tensor, names), *tensor.dtype, tensor.shape.back());
}

absl::StatusOr<TensorReports> ReportTensors(const std::filesystem::path& path,
                                            const std::string& weights) {
  HEDDLE_ASSIGN_OR_RETURN(const WeightPolicy policy, ParseWeightPolicy(weights));
  HEDDLE_ASSIGN_OR_RETURN(const Checkpoint checkpoint, OpenCheckpoint(path));
  HEDDLE_ASSIGN_OR_RETURN(const ModelDescription model, Describe(checkpoint));
  const std::unordered_set<std::string> used = UsedTensors(model);
  TensorReports reports;
  QuantizingError all;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    const kernels::DType kept = KeptTypeOf(tensor, model.names, policy);
    const bool is_used = used.contains(std::string(tensor.name));
    const bool is_kept = is_used && tensor.dtype.has_value();
    TensorReport report{.name = std::string(tensor.name),
                        .type = std::string(tensor.type_name),
                        .kept = is_kept ? std::string(kernels::Info(kept).name) : "",
                        .used = is_used,
                        .shape = tensor.shape,
                        .bytes = tensor.bytes()};
    if (is_kept && kept != *tensor.dtype) {
      const kernels::WeightSource source = SourceOf(tensor);
      checkpoint.WillNeed(tensor);
      const QuantizingError error = MeasureQuantizing(source, kept);
      checkpoint.DontNeed(tensor);
      report.bytes = source.rows * kernels::RowBytes(kept, source.cols);
      report.relative_rms = error.relative_rms();
      all.Add(error);
    }
    reports.tensors.push_back(std::move(report));
  }
  if (all.values > 0) reports.relative_rms = all.relative_rms();
  return reports;
}

}  // namespace heddle::engine
