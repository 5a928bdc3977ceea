#include "engine/model/expert_sources.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "kernels/weight_sources.h"

namespace heddle::engine {
namespace {

using kernels::DType;
using kernels::WeightSource;

constexpr int64_t kMxfp4Block = 32;       // elements
constexpr int64_t kMxfp4BlockBytes = 16;  // without the scale

// Moves the nibbles of a Hugging Face block to GGUF's order: there byte j holds elements j and j +
// 16, here byte i holds elements 2i and 2i + 1.
void RepackMxfp4(const uint8_t* from, uint8_t scale, uint8_t* to) {
  auto nibble = [from](int element) { return (from[element / 2] >> (4 * (element % 2))) & 15; };
  to[0] = scale;
  for (int j = 0; j < 16; ++j) {
    to[1 + j] = static_cast<uint8_t>(nibble(j) | (nibble(j + 16) << 4));
  }
}

}  // namespace

absl::StatusOr<const CheckpointTensor*> FindTensor(const Checkpoint& checkpoint,
                                                   const std::string& name) {
  const CheckpointTensor* tensor = checkpoint.Find(name);
  if (tensor == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(checkpoint.path().string(), ": tensor ", name, " is missing"));
  }
  if (!tensor->dtype) return UnsupportedType(checkpoint, *tensor);
  return tensor;
}

// Gate lies over or before up or, in gpt-oss' two layouts, their rows alternate.
std::vector<ExpertSources::Part> ExpertSources::Parts(int64_t outputs, bool fused) const {
  if (!fused) return {{0, 1, outputs}};
  const int64_t half = outputs / 2;
  if (layout_ == ExpertLayout::kPlain || layout_ == ExpertLayout::kTransposedHalves) {
    return {{0, 1, half}, {half, 1, half}};
  }
  return {{0, 2, half}, {1, 2, half}};
}

void ExpertSources::AddPlain(const CheckpointTensor& tensor, int32_t expert, Part part) {
  const size_t dims = tensor.shape.size();
  HEDDLE_CHECK(dims == 2 || dims == 3, "an expert was not validated");
  const int64_t first = part.first + (dims == 3 ? expert * tensor.shape[1] : 0);
  sources_.push_back(kernels::PartOf(SourceOf(tensor), first, part.count));
}

// Adds an expert's part of a tensor [experts, inputs, outputs].
void ExpertSources::AddTransposed(const CheckpointTensor& tensor, int32_t expert, Part part) {
  const int64_t inputs = tensor.shape[1];
  const int64_t outputs = tensor.shape[2];
  const kernels::DTypeInfo& info = kernels::Info(*tensor.dtype);
  HEDDLE_CHECK(info.block_elements == 1, "block formats are never stored transposed");
  const int64_t size = info.block_bytes;
  const std::byte* from = tensor.data.data() + expert * inputs * outputs * size;
  std::vector<std::byte> to(static_cast<size_t>(part.count * inputs * size));
  for (int64_t r = 0; r < part.count; ++r) {
    const std::byte* column = from + (part.first + r * part.step) * size;
    for (int64_t c = 0; c < inputs; ++c) {
      std::memcpy(&to[(r * inputs + c) * size], column + c * outputs * size,
                  static_cast<size_t>(size));
    }
  }
  rearranged_.push_back(std::move(to));
  sources_.push_back({.data = rearranged_.back().data(),
                      .dtype = *tensor.dtype,
                      .rows = part.count,
                      .cols = inputs,
                      .name = std::string(tensor.name)});
}

absl::Status ExpertSources::AddMxfp4(const std::string& name, int32_t expert, bool fused) {
  const CheckpointTensor* blocks = checkpoint_.Find(Mxfp4Blocks(name));
  const CheckpointTensor* scales = checkpoint_.Find(Mxfp4Scales(name));
  HEDDLE_CHECK(blocks != nullptr && scales != nullptr, "experts were not validated");
  if (expert == 0) tensors_.insert(tensors_.end(), {blocks, scales});
  const int64_t outputs = scales->shape[1];
  const int64_t per_row = scales->shape[2];
  const auto* from = reinterpret_cast<const uint8_t*>(blocks->data.data());
  const auto* from_scale = reinterpret_cast<const uint8_t*>(scales->data.data());
  const int64_t row_bytes = kernels::RowBytes(DType::kMXFP4, per_row * kMxfp4Block);
  for (const Part& part : Parts(outputs, fused)) {
    std::vector<std::byte> to(static_cast<size_t>(part.count * row_bytes));
    auto* out = reinterpret_cast<uint8_t*>(to.data());
    for (int64_t r = 0; r < part.count; ++r) {
      const int64_t first = (expert * outputs + part.first + r * part.step) * per_row;
      for (int64_t b = first; b < first + per_row; ++b, out += 1 + kMxfp4BlockBytes) {
        RepackMxfp4(from + b * kMxfp4BlockBytes, from_scale[b], out);
      }
    }
    rearranged_.push_back(std::move(to));
    sources_.push_back({.data = rearranged_.back().data(),
                        .dtype = DType::kMXFP4,
                        .rows = part.count,
                        .cols = per_row * kMxfp4Block,
                        .name = std::string(blocks->name)});
  }
  return absl::OkStatus();
}

absl::Status ExpertSources::AddMatrix(const std::string& name, int32_t expert, bool fused) {
  if (layout_ == ExpertLayout::kMxfp4) return AddMxfp4(name, expert, fused);
  HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* tensor,
                          FindTensor(checkpoint_, ExpertName(name, expert)));
  if (expert == 0 || !IsStacked(name)) tensors_.push_back(tensor);
  const size_t dims = tensor->shape.size();
  const bool transposed =
      layout_ == ExpertLayout::kTransposed || layout_ == ExpertLayout::kTransposedHalves;
  for (const Part& part : Parts(tensor->shape[transposed ? dims - 1 : dims - 2], fused)) {
    if (transposed && kernels::Info(*tensor->dtype).block_elements != 1) {
      return absl::UnimplementedError(absl::StrCat(
          checkpoint_.path().string(), ": tensor ", std::string(tensor->name), " is stored as ",
          std::string(tensor->type_name), " in a family whose experts lie transposed"));
    }
    if (transposed) {
      AddTransposed(*tensor, expert, part);
    } else {
      AddPlain(*tensor, expert, part);
    }
  }
  return absl::OkStatus();
}

absl::Status ExpertSources::Add(const std::string& fused,
                                std::initializer_list<const std::string*> names) {
  for (int32_t e = 0; e < n_experts_; ++e) {
    if (!fused.empty()) {
      HEDDLE_RETURN_IF_ERROR(AddMatrix(fused, e, /*fused=*/true));
      continue;
    }
    for (const std::string* name : names) {
      if (name->empty()) continue;
      HEDDLE_RETURN_IF_ERROR(AddMatrix(*name, e, /*fused=*/false));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> ExpertSources::Biases(
    const std::string& fused, std::initializer_list<const std::string*> names) const {
  std::vector<const CheckpointTensor*> tensors;
  auto find = [&](const std::string& name) -> absl::Status {
    if (name.empty()) return absl::OkStatus();
    HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, FindTensor(checkpoint_, name));
    if (tensor->quantized != nullptr) return UnsupportedType(checkpoint_, *tensor);
    tensors.push_back(tensor);
    return absl::OkStatus();
  };
  HEDDLE_RETURN_IF_ERROR(find(fused));
  for (const std::string* name : names) {
    if (fused.empty()) {
      HEDDLE_RETURN_IF_ERROR(find(*name));
    }
  }
  std::vector<float> biases;
  for (int32_t e = 0; e < n_experts_; ++e) {
    for (const CheckpointTensor* tensor : tensors) {
      const int64_t outputs = tensor->shape[1];
      std::vector<float> own(static_cast<size_t>(outputs));
      kernels::DequantizeRow(*tensor->dtype,
                             tensor->data.data() + e * kernels::RowBytes(*tensor->dtype, outputs),
                             outputs, own.data());
      for (const Part& part : Parts(outputs, !fused.empty())) {
        for (int64_t r = 0; r < part.count; ++r) {
          biases.push_back(own[static_cast<size_t>(part.first + r * part.step)]);
        }
      }
    }
  }
  return biases;
}

}  // namespace heddle::engine
