#include "engine/files/checkpoint.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/files/checkpoint_storage.h"
#include "engine/files/quantized/quantized_tensors.h"

namespace heddle::engine {
namespace {

struct NamedDType {
  std::string_view name;
  kernels::DType dtype;
};

// Safetensors and GGUF use the same names for the types that both have.
constexpr NamedDType kDTypes[] = {
    {"F32", kernels::DType::kF32},       {"F16", kernels::DType::kF16},
    {"BF16", kernels::DType::kBF16},     {"Q8_0", kernels::DType::kQ8_0},
    {"Q4_0", kernels::DType::kQ4_0},     {"Q4_1", kernels::DType::kQ4_1},
    {"Q5_0", kernels::DType::kQ5_0},     {"Q5_1", kernels::DType::kQ5_1},
    {"Q2_K", kernels::DType::kQ2_K},     {"Q3_K", kernels::DType::kQ3_K},
    {"Q4_K", kernels::DType::kQ4_K},     {"Q5_K", kernels::DType::kQ5_K},
    {"Q6_K", kernels::DType::kQ6_K},     {"IQ4_NL", kernels::DType::kIQ4_NL},
    {"IQ4_XS", kernels::DType::kIQ4_XS}, {"MXFP4", kernels::DType::kMXFP4},
    {"TQ2_0", kernels::DType::kTQ2_0},
};

}  // namespace

std::optional<kernels::DType> FindDType(std::string_view type_name) {
  for (const NamedDType& entry : kDTypes) {
    if (entry.name == type_name) return entry.dtype;
  }
  return std::nullopt;
}

absl::Status UnsupportedType(const Checkpoint& checkpoint, const CheckpointTensor& tensor) {
  std::string supported = absl::StrJoin(
      kDTypes, ", ", [](std::string* out, const NamedDType& entry) { out->append(entry.name); });
  return absl::InvalidArgumentError(base::StrCat(
      checkpoint.path().string(), ": tensor ", base::Quote(tensor.name), " is stored as ",
      tensor.type_name, ", which is not supported; supported are ", supported));
}

Checkpoint::Checkpoint(std::unique_ptr<Storage> storage) : storage_(std::move(storage)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

const std::filesystem::path& Checkpoint::path() const { return storage_->path; }
CheckpointFormat Checkpoint::format() const {
  return storage_->gguf_files.empty() ? CheckpointFormat::kHuggingFace : CheckpointFormat::kGguf;
}
std::span<const CheckpointTensor> Checkpoint::tensors() const { return storage_->tensors; }
int64_t Checkpoint::total_bytes() const { return storage_->total_bytes; }
const nlohmann::json& Checkpoint::config() const { return storage_->config; }
const nlohmann::json& Checkpoint::generation_config() const { return storage_->generation_config; }
const GgufFile* Checkpoint::gguf() const {
  return storage_->gguf_files.empty() ? nullptr : &storage_->gguf_files.front();
}

const CheckpointTensor* Checkpoint::Find(std::string_view name) const {
  const std::vector<CheckpointTensor>& tensors = storage_->tensors;
  auto it =
      std::lower_bound(tensors.begin(), tensors.end(), name,
                       [](const auto& tensor, std::string_view n) { return tensor.name < n; });
  return it != tensors.end() && it->name == name ? &*it : nullptr;
}

std::vector<TypeUsage> Checkpoint::types() const {
  std::map<std::string_view, TypeUsage> by_name;
  for (const CheckpointTensor& tensor : storage_->tensors) {
    TypeUsage& usage = by_name[tensor.type_name];
    usage.type_name = tensor.type_name;
    usage.supported = tensor.dtype.has_value();
    ++usage.num_tensors;
    usage.num_elements += NumElements(tensor);
    usage.bytes += tensor.bytes();
  }
  std::vector<TypeUsage> types;
  types.reserve(by_name.size());
  for (const auto& [name, usage] : by_name) types.push_back(usage);
  std::stable_sort(types.begin(), types.end(),
                   [](const TypeUsage& a, const TypeUsage& b) { return a.bytes > b.bytes; });
  return types;
}

CheckpointTensor& Checkpoint::Storage::Existing(std::string_view name) {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const auto& tensor) { return tensor.name == name; });
  HEDDLE_CHECK(found != tensors.end(), "a tensor that is replaced is missing");
  return *found;
}

void Checkpoint::ReplaceRows(std::string_view name, std::unique_ptr<QuantizedMatrix> rows) {
  CheckpointTensor& tensor = storage_->Existing(name);
  tensor.quantized = rows.get();
  if (tensor.shape.size() == 2) tensor.shape[0] = rows->rows;
  storage_->matrices.push_back(std::move(rows));
}

void Checkpoint::ReplaceData(std::string_view name, std::vector<std::byte> data) {
  CheckpointTensor& tensor = storage_->Existing(name);
  storage_->replaced.push_back(std::move(data));
  tensor.data = storage_->replaced.back();
}

void Checkpoint::WillNeed(const CheckpointTensor& tensor) const {
  if (const MappedFile* file = storage_->MappingOf(tensor)) file->WillNeed(tensor.data);
}
void Checkpoint::DontNeed(const CheckpointTensor& tensor) const {
  if (const MappedFile* file = storage_->MappingOf(tensor)) file->DontNeed(tensor.data);
}

int64_t CheckpointTensor::bytes() const {
  if (quantized == nullptr) return static_cast<int64_t>(data.size());
  return quantized->rows * kernels::RowBytes(quantized->dtype, quantized->cols);
}

kernels::WeightSource SourceOf(const CheckpointTensor& tensor) {
  HEDDLE_CHECK(tensor.dtype && !tensor.shape.empty(), "a tensor was not validated");
  kernels::WeightSource source{.data = tensor.data.data(),
                               .dtype = *tensor.dtype,
                               .rows = 1,
                               .cols = tensor.shape.back(),
                               .name = std::string(tensor.name)};
  for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) source.rows *= tensor.shape[i];
  if (tensor.quantized != nullptr) {
    source.data = nullptr;
    source.reader = tensor.quantized;
    source.column_order = tensor.quantized->column_order;
    source.takes_int8_x = tensor.quantized->takes_int8_x;
  }
  return source;
}

std::string Checkpoint::Storage::FileOf(const CheckpointTensor& tensor) const {
  const MappedFile* mapping = MappingOf(tensor);
  for (const SafetensorsFile& file : safetensors_files) {
    if (&file.mapping() == mapping) return file.name();
  }
  return path.string();
}

const MappedFile* Checkpoint::Storage::MappingOf(const CheckpointTensor& tensor) const {
  auto holds = [&](const MappedFile& mapping) {
    std::span<const std::byte> bytes = mapping.bytes();
    return !tensor.data.empty() && tensor.data.data() >= bytes.data() &&
           tensor.data.data() < bytes.data() + bytes.size();
  };
  for (const GgufFile& file : gguf_files) {
    if (holds(file.mapping())) return &file.mapping();
  }
  for (const SafetensorsFile& file : safetensors_files) {
    if (holds(file.mapping())) return &file.mapping();
  }
  return nullptr;
}

absl::Status Checkpoint::Storage::IndexTensors() {
  for (const SafetensorsFile& file : safetensors_files) {
    for (const SafetensorsTensor& tensor : file.tensors()) {
      tensors.push_back({tensor.name, tensor.type->name, FindDType(tensor.type->name), tensor.shape,
                         tensor.data, nullptr});
    }
  }
  for (const GgufFile& file : gguf_files) {
    for (const GgufTensor& tensor : file.tensors()) {
      tensors.push_back({tensor.name, tensor.type->name, FindDType(tensor.type->name), tensor.shape,
                         tensor.data, nullptr});
    }
  }
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  if (!safetensors_files.empty()) {
    const std::string config_file = (path / "config.json").string();
    HEDDLE_RETURN_IF_ERROR(GroupQuantizedTensors(
        config, config_file, [this](const CheckpointTensor& tensor) { return FileOf(tensor); },
        &tensors, &matrices));
  } else {
    HEDDLE_RETURN_IF_ERROR(GroupGgufMatrices(
        [this](const CheckpointTensor& tensor) { return FileOf(tensor); }, &tensors, &matrices));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    total_bytes += tensors[i].bytes();
    if (i > 0 && tensors[i].name == tensors[i - 1].name) {
      return absl::InvalidArgumentError(base::StrCat(
          path.string(), ": tensor ", base::Quote(tensors[i].name), " occurs twice, in ",
          FileOf(tensors[i - 1]), " and in ", FileOf(tensors[i])));
    }
  }
  return absl::OkStatus();
}

}  // namespace heddle::engine
