#include "engine/model/tensor_loader.h"

#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "engine/files/quantized/quantized_matrix.h"
#include "engine/model/expert_sources.h"
#include "kernels/weight_sources.h"

namespace heddle::engine {
namespace {

using kernels::WeightSource;

// Tensors of this size or more release their file pages while they are packed, not only afterwards:
// the last tensor is read when all others are in memory, and would add its size to the peak.
constexpr int64_t kLargeBytes = int64_t{32} << 20;

// Reads a matrix's rows from its file and releases the file's pages behind it.
class ReleasingReader final : public kernels::RowReader {
 public:
  ReleasingReader(const Checkpoint& checkpoint, const CheckpointTensor& tensor)
      : checkpoint_(checkpoint), tensor_(tensor), row_bytes_(RowBytesOf(tensor)) {}

  void ReadRows(int64_t begin, int64_t count, uint8_t* out) const override {
    CheckpointTensor part = tensor_;
    part.data = tensor_.data.subspan(static_cast<size_t>(begin * row_bytes_),
                                     static_cast<size_t>(count * row_bytes_));
    std::memcpy(out, part.data.data(), part.data.size());
    checkpoint_.DontNeed(part);
  }

  WeightSource source() const {
    WeightSource source = SourceOf(tensor_);
    source.data = nullptr;
    source.reader = this;
    return source;
  }

 private:
  static int64_t RowBytesOf(const CheckpointTensor& tensor) {
    return kernels::RowBytes(*tensor.dtype, tensor.shape.back());
  }

  const Checkpoint& checkpoint_;
  const CheckpointTensor& tensor_;
  const int64_t row_bytes_;
};

// Transposes a source from [in, out] to [out, in]; returns the bytes that it then points to.
std::vector<std::byte> Transpose(WeightSource* source) {
  const kernels::DTypeInfo& info = kernels::Info(source->dtype);
  HEDDLE_CHECK(info.block_elements == 1, "block formats are never stored transposed");
  const int64_t size = info.block_bytes;
  const auto* from = static_cast<const std::byte*>(source->data);
  std::vector<std::byte> bytes(source->rows * source->cols * size);
  for (int64_t r = 0; r < source->rows; ++r) {
    for (int64_t c = 0; c < source->cols; ++c) {
      std::memcpy(&bytes[(c * source->rows + r) * size], from + (r * source->cols + c) * size,
                  size);
    }
  }
  std::swap(source->rows, source->cols);
  source->data = bytes.data();
  return bytes;
}

}  // namespace

absl::StatusOr<LinearWeights> TensorLoader::Linear(Names names, Names biases, const Cut& cut,
                                                   WeightRole role) {
  std::vector<WeightSource> sources;
  std::vector<const CheckpointTensor*> tensors;
  std::vector<std::vector<std::byte>> transposed;
  for (const std::string* name : names) {
    if (name->empty()) continue;
    HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, Find(*name));
    tensors.push_back(tensor);
    HEDDLE_CHECK(tensor->shape.size() == 2, "a matrix was not validated");
    sources.push_back(SourceOf(*tensor));
    if (names_.transposed_linears && kernels::Info(*tensor->dtype).block_elements != 1) {
      return absl::UnimplementedError(absl::StrCat(checkpoint_.path().string(), ": tensor ", *name,
                                                   " is stored as ", std::string(tensor->type_name),
                                                   " in a family whose matrices lie transposed"));
    }
    if (names_.transposed_linears) transposed.push_back(Transpose(&sources.back()));
  }
  LinearWeights linear;
  HEDDLE_ASSIGN_OR_RETURN(linear.matrix, Pack(sources, tensors, cut, role));
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<float> values, Values(biases));
  HEDDLE_ASSIGN_OR_RETURN(linear.bias, Upload(CutValues(values, cut)));
  return linear;
}

absl::StatusOr<std::unique_ptr<kernels::PackedWeight>> TensorLoader::Table(const std::string& name,
                                                                           const Cut& cut) {
  HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, Find(name));
  WeightSource source = SourceOf(*tensor);  // in GGUF, a table of one row may have one dimension
  const ReleasingReader reader(checkpoint_, *tensor);
  if (tensor->quantized == nullptr && tensor->bytes() >= kLargeBytes) source = reader.source();
  return Pack({&source, 1}, {&tensor, 1}, cut, WeightRole::kTable);
}

absl::StatusOr<std::unique_ptr<kernels::PackedWeight>> TensorLoader::Stacked(
    const std::vector<std::string>& names, const Cut& cut) {
  std::vector<WeightSource> sources;
  std::vector<const CheckpointTensor*> tensors;
  for (const std::string& name : names) {
    HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, Find(name));
    tensors.push_back(tensor);
    sources.push_back(SourceOf(*tensor));
  }
  return Pack(sources, tensors, cut);
}

absl::StatusOr<DeviceVector> TensorLoader::Vector(Names names) {
  HEDDLE_ASSIGN_OR_RETURN(std::vector<float> values, Values(names));
  return Upload(values);
}

absl::StatusOr<DeviceVector> TensorLoader::Part(const std::string& name, const Cut& cut) {
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<float> values, Values({&name}));
  return Upload(CutValues(values, cut));
}

absl::StatusOr<NormWeights> TensorLoader::Norm(const std::string& weight, const std::string& bias) {
  NormWeights norm;
  HEDDLE_ASSIGN_OR_RETURN(norm.weight, Vector({&weight}));
  HEDDLE_ASSIGN_OR_RETURN(norm.bias, Vector({&bias}));
  return norm;
}

absl::StatusOr<std::vector<float>> TensorLoader::Values(Names names) {
  std::vector<float> values;
  for (const std::string* name : names) {
    if (name->empty()) continue;
    HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, FindPlain(*name));
    const auto begin = static_cast<int64_t>(values.size());
    const int64_t count = std::accumulate(tensor->shape.begin(), tensor->shape.end(), int64_t{1},
                                          std::multiplies<>());
    values.resize(begin + count);
    kernels::DequantizeRow(*tensor->dtype, tensor->data.data(), count, values.data() + begin);
  }
  return values;
}

absl::StatusOr<DeviceVector> TensorLoader::Upload(const std::vector<float>& values) {
  if (values.empty()) return DeviceVector();
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
  HEDDLE_ASSIGN_OR_RETURN(std::unique_ptr<kernels::Buffer> buffer, device_.Allocate(bytes));
  HEDDLE_RETURN_IF_ERROR(device_.Upload(buffer->data(), values.data(), bytes));
  return DeviceVector(std::move(buffer));
}

absl::StatusOr<const CheckpointTensor*> TensorLoader::Find(const std::string& name) const {
  return FindTensor(checkpoint_, name);
}

absl::StatusOr<const CheckpointTensor*> TensorLoader::FindPlain(const std::string& name) const {
  HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, Find(name));
  if (tensor->quantized != nullptr) return UnsupportedType(checkpoint_, *tensor);
  return tensor;
}

absl::StatusOr<std::unique_ptr<kernels::PackedWeight>> TensorLoader::Pack(
    std::span<const WeightSource> sources, Tensors tensors, const Cut& cut, WeightRole role) {
  const CutSources parts(sources, cut);
  if (parts.sources().empty()) return nullptr;
  HEDDLE_RETURN_IF_ERROR(Prepare(tensors));
  const KeptSources kept(policy_, role, parts.sources());
  HEDDLE_ASSIGN_OR_RETURN(std::unique_ptr<kernels::PackedWeight> packed,
                          device_.Pack(kept.sources()));
  Release(tensors);
  return packed;
}

absl::Status TensorLoader::Prepare(Tensors tensors) const {
  for (const CheckpointTensor* tensor : tensors) {
    checkpoint_.WillNeed(*tensor);
    // One check of all codes is enough for all ranks.
    if (tensor->quantized == nullptr || share_.rank > 0) continue;
    HEDDLE_RETURN_IF_ERROR(tensor->quantized->CheckCodes());
  }
  return absl::OkStatus();
}

void TensorLoader::Release(Tensors tensors) const {
  for (const CheckpointTensor* tensor : tensors) checkpoint_.DontNeed(*tensor);
}

}  // namespace heddle::engine
