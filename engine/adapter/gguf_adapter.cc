// GGUF adapters, as llama.cpp's convert_lora_to_gguf.py writes them.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/adapter/adapter_tensors.h"
#include "engine/files/checkpoint.h"
#include "engine/files/gguf.h"

namespace heddle::engine {
namespace {

constexpr std::string_view kSuffixA = ".lora_a";
constexpr std::string_view kSuffixB = ".lora_b";
constexpr std::string_view kTensorSuffix = ".weight";

absl::Status TensorError(const AdapterFile& file, std::string_view name, std::string_view what) {
  return absl::InvalidArgumentError(
      base::StrCat(file.path, ": tensor ", base::Quote(name), " ", what));
}

// Vectors of norms are whole; matrices are not, since llama.cpp has no such adapters.
constexpr std::string_view kNormSuffix = "_norm";
constexpr std::string_view kEmbedding = "token_embd";

absl::Status AddGgufTensor(const GgufTensor& tensor, AdapterFile* file) {
  std::string_view module = tensor.name;
  AdapterTensor AdapterModule::*kind = &AdapterModule::weight;
  if (module.ends_with(kSuffixA) || module.ends_with(kSuffixB)) {
    kind = module.ends_with(kSuffixA) ? &AdapterModule::a : &AdapterModule::b;
    module.remove_suffix(kSuffixA.size());
  }
  if (module.ends_with(kTensorSuffix)) module.remove_suffix(kTensorSuffix.size());
  const bool is_factor = kind != &AdapterModule::weight;
  if (!is_factor && !module.ends_with(kNormSuffix)) {
    return TensorError(*file, tensor.name, "is neither a factor of a matrix nor a norm");
  }
  const std::optional<kernels::DType> dtype = FindDType(tensor.type->name);
  if (dtype != kernels::DType::kF32 && dtype != kernels::DType::kF16 &&
      dtype != kernels::DType::kBF16 && (dtype != kernels::DType::kQ8_0 || !is_factor)) {
    return TensorError(
        *file, tensor.name,
        base::StrCat("is of type ", tensor.type->name, "; valid are F32, F16, BF16, Q8_0"));
  }
  const size_t dims = tensor.shape.size();
  const bool fits = is_factor ? dims == 2 || dims == 3 : dims == 1;
  if (!fits || *std::min_element(tensor.shape.begin(), tensor.shape.end()) < 1) {
    return TensorError(*file, tensor.name,
                       is_factor ? "is no matrix with a rank of at least 1" : "is no vector");
  }
  AdapterModule& own = file->modules[std::string(module)];
  if (!(own.*kind).empty()) return TensorError(*file, tensor.name, "is there twice");
  own.is_embedding = is_factor && module == kEmbedding;
  const int64_t stack = dims == 3 ? tensor.shape[0] : 1;
  const int64_t rows = dims == 1 ? 1 : stack * tensor.shape[dims - 2];
  own.*kind = {std::string(tensor.name), *dtype, rows, tensor.shape[dims - 1], stack, tensor.data};
  return absl::OkStatus();
}

absl::Status CheckKind(const GgufFile& gguf, const AdapterFile& file) {
  HEDDLE_ASSIGN_OR_RETURN(const std::string_view type, gguf.StringOr("general.type", ""));
  if (type != "adapter") {
    return absl::InvalidArgumentError(base::StrCat(
        file.path, ": \"general.type\" is ", base::Quote(type), "; an adapter has \"adapter\""));
  }
  HEDDLE_ASSIGN_OR_RETURN(const std::string_view kind, gguf.StringOr("adapter.type", ""));
  if (kind != "lora") {
    return absl::InvalidArgumentError(base::StrCat(file.path, ": \"adapter.type\" is ",
                                                   base::Quote(kind), "; valid is \"lora\""));
  }
  if (gguf.ArrayLength("adapter.alora.invocation_tokens") > 0) {
    return absl::InvalidArgumentError(base::StrCat(
        file.path,
        ": \"adapter.alora.invocation_tokens\" asks for an activated LoRA, which is not "
        "supported"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<AdapterFile> ReadGgufAdapter(const std::filesystem::path& path, int64_t max_bytes) {
  AdapterFile file;
  file.path = path.string();
  file.is_gguf = true;
  HEDDLE_ASSIGN_OR_RETURN(file.bytes, ReadWholeFile(path, max_bytes));
  HEDDLE_ASSIGN_OR_RETURN(const GgufFile gguf, GgufFile::Parse(file.bytes.span(), file.path));
  HEDDLE_RETURN_IF_ERROR(CheckKind(gguf, file));
  HEDDLE_ASSIGN_OR_RETURN(const std::string_view architecture, gguf.String("general.architecture"));
  file.architecture = std::string(architecture);
  for (const GgufTensor& tensor : gguf.tensors()) {
    HEDDLE_RETURN_IF_ERROR(AddGgufTensor(tensor, &file));
  }
  double alpha = 0;
  if (gguf.Has("adapter.lora.alpha")) {
    HEDDLE_ASSIGN_OR_RETURN(alpha, gguf.Float("adapter.lora.alpha"));
  }
  if (!(std::fabs(alpha) < 1e6)) {
    return absl::InvalidArgumentError(
        base::StrCat(file.path, ": \"adapter.lora.alpha\" of ", alpha, " is out of range"));
  }
  for (auto& [name, module] : file.modules) {
    if (module.b.empty()) continue;
    module.scale =
        alpha == 0 ? 1.0f : static_cast<float>(alpha / static_cast<double>(module.b.cols));
  }
  HEDDLE_ASSIGN_OR_RETURN(const std::string_view base,
                          gguf.StringOr("general.base_model.0.name", ""));
  file.summary.format = "GGUF";
  file.summary.base = std::string(base);
  file.summary.file_bytes = static_cast<int64_t>(file.bytes.size);
  return file;
}

}  // namespace heddle::engine
