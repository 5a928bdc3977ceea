#include "engine/adapter/base_weights.h"

#include <string>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/files/quantized/quantized_matrix.h"
#include "kernels/weight_sources.h"

namespace heddle::engine {

absl::StatusOr<const CheckpointTensor*> BaseWeights::FindIn(const std::string& name) {
  if (path_.empty()) {
    return absl::InvalidArgumentError(
        "the adapter needs the base's weights (DoRA, biases, modules_to_save), and the base has no "
        "files");
  }
  if (!checkpoint_.has_value()) {
    HEDDLE_ASSIGN_OR_RETURN(Checkpoint opened, OpenCheckpoint(path_));
    checkpoint_.emplace(std::move(opened));
  }
  const CheckpointTensor* tensor = checkpoint_->Find(name);
  if (tensor == nullptr) {
    return absl::InvalidArgumentError(
        base::StrCat("the base's files have changed: tensor ", base::Quote(name), " is gone"));
  }
  if (!tensor->dtype.has_value()) return UnsupportedType(*checkpoint_, *tensor);
  return tensor;
}

absl::Status BaseWeights::ReadRows(const Part& part, const RowFn& fn) {
  HEDDLE_ASSIGN_OR_RETURN(const BasePart found,
                          places_.FindBase(part.layer, part.site, part.member, part.part));
  HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, FindIn(found.tensor));
  if (model_.names.transposed_linears && part.layer != kModelLayer) {
    return ReadTransposed(*tensor, found.rows, fn);
  }
  const kernels::WeightSource source = SourceOf(*tensor);
  std::vector<float> values(static_cast<size_t>(source.cols));
  std::vector<uint8_t> buffer;
  const auto read = [&](int64_t index, int64_t row) {
    kernels::DecodeSourceRow(source, kernels::SourceRows(source, row, 1, &buffer), values.data());
    fn(index, values);
  };
  if (part.site == AdapterSite::kEmbedding) {
    for (int64_t token = 0; token < source.rows; ++token) read(token, token);
    return absl::OkStatus();
  }
  for (size_t i = 0; i < found.rows.size(); ++i) {
    if (found.rows[i] >= source.rows) {
      return absl::InvalidArgumentError(
          base::StrCat("the base's tensor ", base::Quote(found.tensor), " has another shape"));
    }
    read(static_cast<int64_t>(i), found.rows[i]);
  }
  return absl::OkStatus();
}

// The rows are columns of the tensor.
absl::Status BaseWeights::ReadTransposed(const CheckpointTensor& tensor,
                                         std::span<const int32_t> rows, const RowFn& fn) const {
  const kernels::WeightSource source = SourceOf(tensor);
  std::vector<float> all(static_cast<size_t>(source.rows * source.cols));
  std::vector<uint8_t> buffer;
  for (int64_t r = 0; r < source.rows; ++r) {
    kernels::DecodeSourceRow(source, kernels::SourceRows(source, r, 1, &buffer),
                             all.data() + r * source.cols);
  }
  std::vector<float> values(static_cast<size_t>(source.rows));
  for (size_t i = 0; i < rows.size(); ++i) {
    for (int64_t c = 0; c < source.rows; ++c) {
      values[static_cast<size_t>(c)] = all[static_cast<size_t>(c * source.cols + rows[i])];
    }
    fn(static_cast<int64_t>(i), values);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> BaseWeights::ReadNorm(const Part& part) {
  HEDDLE_ASSIGN_OR_RETURN(const BasePart found,
                          places_.FindBase(part.layer, part.site, part.member, part.part));
  HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, FindIn(found.tensor));
  std::vector<float> values(static_cast<size_t>(tensor->shape.back()));
  kernels::DequantizeRow(*tensor->dtype, tensor->data.data(), tensor->shape.back(), values.data());
  return values;
}

absl::StatusOr<std::vector<float>> BaseWeights::ReadBias(const Part& part, int64_t outputs) {
  HEDDLE_ASSIGN_OR_RETURN(const BasePart found,
                          places_.FindBase(part.layer, part.site, part.member, part.part));
  std::vector<float> bias(static_cast<size_t>(outputs));
  if (found.bias.empty()) return bias;
  HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, FindIn(found.bias));
  std::vector<float> values(static_cast<size_t>(tensor->shape.back()));
  kernels::DequantizeRow(*tensor->dtype, tensor->data.data(), tensor->shape.back(), values.data());
  for (size_t i = 0; i < bias.size(); ++i) {
    const size_t row = IsNorm(part.site) ? i : static_cast<size_t>(found.rows[i]);
    if (row >= values.size()) {
      return absl::InvalidArgumentError(
          base::StrCat("the base's tensor ", base::Quote(found.bias), " has another shape"));
    }
    bias[i] = values[row];
  }
  return bias;
}

}  // namespace heddle::engine
