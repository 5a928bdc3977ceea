// Folders of Hugging Face PEFT: adapter_config.json and adapter_model.safetensors.
#include <algorithm>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/adapter/adapter_tensors.h"
#include "engine/adapter/peft_config.h"
#include "engine/files/checkpoint.h"
#include "engine/files/safetensors.h"

namespace heddle::engine {
namespace {

constexpr std::string_view kPrefix = "base_model.model.";
constexpr int64_t kMaxConfigBytes = 4 << 20;

// The end of a PEFT key, which says which tensor of a module it is. The first that fits counts.
struct Suffix {
  std::string_view text;
  AdapterTensor AdapterModule::*tensor;
  bool is_matrix;
  bool is_embedding = false;
};
constexpr Suffix kSuffixes[] = {
    {".lora_A.weight", &AdapterModule::a, true},
    {".lora_B.weight", &AdapterModule::b, true},
    {".lora_A.default.weight", &AdapterModule::a, true},
    {".lora_B.default.weight", &AdapterModule::b, true},
    {".lora_B.bias", &AdapterModule::b_bias, false},
    {".lora_B.default.bias", &AdapterModule::b_bias, false},
    {".lora_embedding_A", &AdapterModule::a, true, true},
    {".lora_embedding_B", &AdapterModule::b, true, true},
    {".lora_embedding_A.default", &AdapterModule::a, true, true},
    {".lora_embedding_B.default", &AdapterModule::b, true, true},
    {".lora_magnitude_vector", &AdapterModule::magnitude, false},
    {".lora_magnitude_vector.weight", &AdapterModule::magnitude, false},
    {".lora_magnitude_vector.default", &AdapterModule::magnitude, false},
    {".lora_magnitude_vector.default.weight", &AdapterModule::magnitude, false},
    {".base_layer.bias", &AdapterModule::bias, false},
    {".modules_to_save.default.weight", &AdapterModule::weight, false},
    {".modules_to_save.weight", &AdapterModule::weight, false},
    {".modules_to_save.default.bias", &AdapterModule::bias, false},
    {".modules_to_save.bias", &AdapterModule::bias, false},
    {".base_layer.weight", &AdapterModule::base_weight, false},
    {".bias", &AdapterModule::bias, false},
    {".weight", &AdapterModule::weight, false},
};

absl::Status KeyError(std::string_view file, std::string_view key, std::string_view what) {
  return absl::InvalidArgumentError(base::StrCat(file, ": tensor ", base::Quote(key), " ", what));
}

absl::Status AddTensor(const SafetensorsTensor& tensor, AdapterFile* file) {
  std::string_view key = tensor.name;
  const Suffix* suffix =
      std::find_if(std::begin(kSuffixes), std::end(kSuffixes),
                   [&](const Suffix& known) { return key.ends_with(known.text); });
  const bool names_other_lora =
      key.find("lora_") != std::string_view::npos &&
      (suffix == std::end(kSuffixes) || suffix->text.find("lora_") == std::string_view::npos);
  if (suffix == std::end(kSuffixes) || names_other_lora ||
      key.find("trainable_tokens") != std::string_view::npos) {
    return KeyError(file->path, key, "is of no kind that this version knows");
  }
  key.remove_suffix(suffix->text.size());
  if (key.starts_with(kPrefix)) key.remove_prefix(kPrefix.size());
  const std::optional<kernels::DType> dtype = FindDType(tensor.type->name);
  if (dtype != kernels::DType::kF32 && dtype != kernels::DType::kF16 &&
      dtype != kernels::DType::kBF16) {
    return KeyError(file->path, tensor.name,
                    base::StrCat("is of type ", tensor.type->name, "; valid are F32, F16, BF16"));
  }
  const size_t dims = tensor.shape.size();
  if (suffix->is_matrix ? dims != 2 : dims != 1 && dims != 2) {
    return KeyError(file->path, tensor.name, "has the wrong number of dimensions");
  }
  if (tensor.shape.front() < 1 || tensor.shape.back() < 1) {
    return KeyError(file->path, tensor.name, "is no matrix with a rank of at least 1");
  }
  AdapterModule& module = file->modules[std::string(key)];
  AdapterTensor& own = module.*suffix->tensor;
  if (!own.empty() || (suffix->is_embedding && module.has_factors() && !module.is_embedding)) {
    return KeyError(file->path, tensor.name, "is there twice");
  }
  module.is_embedding = module.is_embedding || suffix->is_embedding;
  own = {tensor.name, *dtype, dims == 2 ? tensor.shape[0] : 1, tensor.shape.back(), 1, tensor.data};
  return absl::OkStatus();
}

absl::Status NoWeights(const std::filesystem::path& folder) {
  std::error_code error;
  if (std::filesystem::exists(folder / "adapter_model.bin", error)) {
    return absl::InvalidArgumentError(base::StrCat(
        folder.string(),
        ": has adapter_model.bin, a pickle, which may run any code when it is read; "
        "save the adapter again with PEFT 0.6 or later, which writes adapter_model.safetensors"));
  }
  return absl::NotFoundError(base::StrCat(folder.string(), ": has no adapter_model.safetensors"));
}

// use_dora and the magnitudes say the same.
absl::Status CheckMagnitudes(const AdapterFile& file, const PeftConfig& config) {
  for (const auto& [name, module] : file.modules) {
    const bool is_there = !module.magnitude.empty();
    if (is_there && !config.use_dora()) {
      return KeyError(file.path, module.magnitude.name,
                      "belongs to DoRA, and \"use_dora\" is not set");
    }
    // PEFT has no magnitudes for targets that are plain parameters.
    if (!is_there && config.use_dora() && module.has_factors()) {
      return absl::InvalidArgumentError(
          base::StrCat(file.path, ": module ", base::Quote(name),
                       " has no lora_magnitude_vector, and \"use_dora\" is set"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<AdapterFile> ReadPeftFolder(const std::filesystem::path& folder, int64_t max_bytes) {
  const std::filesystem::path config_path = folder / "adapter_config.json";
  HEDDLE_ASSIGN_OR_RETURN(const OwnedBytes text, ReadWholeFile(config_path, kMaxConfigBytes));
  HEDDLE_ASSIGN_OR_RETURN(
      PeftConfig config,
      PeftConfig::Parse({reinterpret_cast<const char*>(text.span().data()), text.size},
                        config_path.string()));
  const std::filesystem::path weights = folder / "adapter_model.safetensors";
  std::error_code error;
  if (!std::filesystem::exists(weights, error)) return NoWeights(folder);
  AdapterFile file;
  file.path = weights.string();
  HEDDLE_ASSIGN_OR_RETURN(file.bytes, ReadWholeFile(weights, max_bytes));
  HEDDLE_ASSIGN_OR_RETURN(const SafetensorsFile tensors,
                          SafetensorsFile::Parse(file.bytes.span(), file.path));
  for (const SafetensorsTensor& tensor : tensors.tensors()) {
    HEDDLE_RETURN_IF_ERROR(AddTensor(tensor, &file));
  }
  HEDDLE_RETURN_IF_ERROR(CheckMagnitudes(file, config));
  file.summary.format = "PEFT";
  file.summary.base = config.base();
  file.summary.file_bytes = static_cast<int64_t>(file.bytes.size);
  file.config = std::make_shared<const PeftConfig>(std::move(config));
  return file;
}

}  // namespace heddle::engine
