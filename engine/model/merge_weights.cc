#include "engine/model/merge_weights.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/adapter/merge_adapter.h"
#include "engine/files/quantized/quantized_matrix.h"
#include "engine/model/quantize.h"
#include "kernels/kv_element.h"
#include "kernels/weight_sources.h"

namespace heddle::engine {
namespace {

using kernels::DType;

bool KeepsFloats(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

void StoreValues(DType dtype, std::span<const float> values, uint8_t* out) {
  if (!KeepsFloats(dtype)) {
    return EncodeRow(dtype, values.data(), static_cast<int64_t>(values.size()), out);
  }
  for (size_t i = 0; i < values.size(); ++i) {
    kernels::StoreElement(dtype, out, static_cast<int64_t>(i), values[i]);
  }
}

// A tensor's rows with the adapter's part.
class MergedRows final : public QuantizedMatrix {
 public:
  MergedRows(const CheckpointTensor& tensor, std::shared_ptr<const AdapterMerge> merge)
      : source_(SourceOf(tensor)), merge_(std::move(merge)) {
    name = std::string(tensor.name);
    type_name = std::string(tensor.type_name);
    dtype = source_.dtype;
    rows = source_.rows;
    cols = source_.cols;
    code_bytes = tensor.data;
  }

  void ReadRows(int64_t begin, int64_t count, uint8_t* out) const override {
    std::vector<uint8_t> buffer;
    std::vector<float> values(static_cast<size_t>(cols));
    for (int64_t r = begin; r < begin + count; ++r) {
      kernels::DecodeSourceRow(source_, kernels::SourceRows(source_, r, 1, &buffer), values.data());
      merge_->Apply(name, r, values);
      StoreValues(dtype, values, out);
      out += kernels::RowBytes(dtype, cols);
    }
  }

 private:
  const kernels::WeightSource source_;
  const std::shared_ptr<const AdapterMerge> merge_;
};

// A matrix [inputs, outputs], whose merged rows are its columns.
std::vector<std::byte> MergeTransposed(const CheckpointTensor& tensor, const AdapterMerge& merge) {
  const kernels::WeightSource source = SourceOf(tensor);
  const std::string name(tensor.name);
  std::vector<std::byte> merged(tensor.data.begin(), tensor.data.end());
  std::vector<float> column(static_cast<size_t>(source.rows));
  for (int64_t c = 0; c < source.cols; ++c) {
    for (int64_t r = 0; r < source.rows; ++r) {
      column[static_cast<size_t>(r)] =
          kernels::LoadElement(source.dtype, source.data, r * source.cols + c);
    }
    merge.Apply(name, c, column);
    for (int64_t r = 0; r < source.rows; ++r) {
      kernels::StoreElement(source.dtype, merged.data(), r * source.cols + c,
                            column[static_cast<size_t>(r)]);
    }
  }
  return merged;
}

std::vector<std::byte> MergeVector(const CheckpointTensor& tensor, const AdapterMerge& merge) {
  std::vector<float> values(static_cast<size_t>(tensor.shape.back()));
  kernels::DequantizeRow(*tensor.dtype, tensor.data.data(), tensor.shape.back(), values.data());
  merge.Apply(std::string(tensor.name), 0, values);
  std::vector<std::byte> merged(tensor.data.size());
  StoreValues(*tensor.dtype, values, reinterpret_cast<uint8_t*>(merged.data()));
  return merged;
}

absl::Status CheckType(const Checkpoint& checkpoint, const CheckpointTensor& tensor,
                       bool as_floats) {
  const DType dtype = *tensor.dtype;
  const bool encodes = dtype == DType::kQ8_0 || dtype == DType::kQ4_0;
  if (tensor.quantized == nullptr && (KeepsFloats(dtype) || (encodes && !as_floats))) {
    return absl::OkStatus();
  }
  const std::string type =
      tensor.quantized == nullptr ? std::string(tensor.type_name) : tensor.quantized->type_name;
  return absl::UnimplementedError(absl::StrCat(
      checkpoint.path().string(), ": tensor ", std::string(tensor.name), " is stored as ", type,
      ", into which an adapter cannot be merged, as its scales would have to be searched for anew; "
      "F32, F16, BF16, Q8_0 and Q4_0 can. Serve the adapter with --lora, which leaves the base as "
      "it is"));
}

}  // namespace

absl::Status MergeAdapter(const std::filesystem::path& adapter, const ModelDescription& model,
                          Checkpoint* checkpoint) {
  HEDDLE_ASSIGN_OR_RETURN(std::shared_ptr<const AdapterMerge> merge,
                          AdapterMerge::Load(adapter, model, checkpoint->path()));
  const auto is_table = [&](std::string_view name) {
    return name == model.names.embed || name == model.names.lm_head;
  };
  struct Merged {
    std::string name;
    std::unique_ptr<QuantizedMatrix> rows;
    std::vector<std::byte> data;
  };
  std::vector<Merged> all;
  for (const std::string& name : merge->tensors()) {
    const CheckpointTensor* tensor = checkpoint->Find(name);
    if (tensor == nullptr || !tensor->dtype) {
      return absl::InvalidArgumentError(
          absl::StrCat(checkpoint->path().string(), ": tensor ", name, " is missing"));
    }
    const bool is_vector = tensor->shape.size() == 1;
    const bool is_transposed = model.names.transposed_linears && !is_vector && !is_table(name);
    HEDDLE_RETURN_IF_ERROR(CheckType(*checkpoint, *tensor, is_vector || is_transposed));
    Merged& own = all.emplace_back(Merged{.name = name, .rows = nullptr, .data = {}});
    if (is_vector) {
      own.data = MergeVector(*tensor, *merge);
    } else if (is_transposed) {
      own.data = MergeTransposed(*tensor, *merge);
    } else {
      own.rows = std::make_unique<MergedRows>(*tensor, merge);
    }
  }
  for (Merged& own : all) {
    if (own.rows != nullptr) {
      checkpoint->ReplaceRows(own.name, std::move(own.rows));
    } else {
      checkpoint->ReplaceData(own.name, std::move(own.data));
    }
  }
  return absl::OkStatus();
}

}  // namespace heddle::engine
