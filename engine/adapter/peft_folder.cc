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

// The part of a PEFT key that says which tensor of a module it is.
struct Suffix {
  std::string_view text;
  bool is_b;
};
constexpr Suffix kSuffixes[] = {{".lora_A.weight", false},
                                {".lora_B.weight", true},
                                {".lora_A.default.weight", false},
                                {".lora_B.default.weight", true}};

absl::Status KeyError(std::string_view file, std::string_view key, std::string_view what) {
  return absl::InvalidArgumentError(base::StrCat(file, ": tensor ", base::Quote(key), " ", what));
}

// What a tensor that is no plain factor asks for.
absl::Status RefuseKey(std::string_view file, std::string_view key) {
  const auto has = [&](std::string_view part) { return key.find(part) != std::string_view::npos; };
  constexpr std::string_view kMerge =
      "; merge the adapter into its base with PEFT (merge_and_unload) and serve the result";
  if (has("lora_magnitude_vector")) {
    return KeyError(file, key, base::StrCat("belongs to DoRA, which is not supported", kMerge));
  }
  if (has("lora_embedding_")) {
    return KeyError(file, key, base::StrCat("changes embeddings, which is not supported", kMerge));
  }
  if (has(".bias")) {
    return KeyError(file, key, base::StrCat("is a bias, which is not supported", kMerge));
  }
  if (has("modules_to_save") || !has("lora_")) {
    return KeyError(
        file, key,
        base::StrCat("replaces one of the base (modules_to_save, trained tokens), which "
                     "is not supported",
                     kMerge));
  }
  return KeyError(file, key, "is of no kind that this version knows");
}

absl::Status AddTensor(const SafetensorsTensor& tensor, AdapterFile* file) {
  std::string_view key = tensor.name;
  const Suffix* suffix =
      std::find_if(std::begin(kSuffixes), std::end(kSuffixes),
                   [&](const Suffix& known) { return key.ends_with(known.text); });
  if (suffix == std::end(kSuffixes)) return RefuseKey(file->path, key);
  key.remove_suffix(suffix->text.size());
  if (key.starts_with(kPrefix)) key.remove_prefix(kPrefix.size());
  const std::optional<kernels::DType> dtype = FindDType(tensor.type->name);
  if (dtype != kernels::DType::kF32 && dtype != kernels::DType::kF16 &&
      dtype != kernels::DType::kBF16) {
    return KeyError(file->path, tensor.name,
                    base::StrCat("is of type ", tensor.type->name, "; valid are F32, F16, BF16"));
  }
  if (tensor.shape.size() != 2 || tensor.shape[0] < 1 || tensor.shape[1] < 1) {
    return KeyError(file->path, tensor.name, "is no matrix with a rank of at least 1");
  }
  AdapterModule& module = file->modules[std::string(key)];
  AdapterTensor& factor = suffix->is_b ? module.b : module.a;
  if (!factor.empty()) return KeyError(file->path, tensor.name, "is there twice");
  factor = {tensor.name, *dtype, tensor.shape[0], tensor.shape[1], tensor.data};
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

}  // namespace

absl::StatusOr<AdapterFile> ReadPeftFolder(const std::filesystem::path& folder, int64_t max_bytes) {
  const std::filesystem::path config_path = folder / "adapter_config.json";
  HEDDLE_ASSIGN_OR_RETURN(const OwnedBytes text, ReadWholeFile(config_path, kMaxConfigBytes));
  HEDDLE_ASSIGN_OR_RETURN(
      const PeftConfig config,
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
  for (auto& [name, module] : file.modules) {
    if (module.a.empty()) continue;  // CheckModules says so
    HEDDLE_ASSIGN_OR_RETURN(module.scale, config.Scale(name, static_cast<int32_t>(module.a.rows)));
  }
  file.summary.format = "PEFT";
  file.summary.base = config.base();
  file.summary.file_bytes = static_cast<int64_t>(file.bytes.size);
  return file;
}

}  // namespace heddle::engine
