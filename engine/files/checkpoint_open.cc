// Finds out what a path is and opens its files.
#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/files/checkpoint.h"
#include "engine/files/checkpoint_storage.h"
#include "engine/files/json_file.h"

namespace heddle::engine {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kSingleName = "model.safetensors";
constexpr std::string_view kMedusaName = "medusa_lm_head.safetensors";
// More parts than any published checkpoint has (DeepSeek-V3: 163).
constexpr int64_t kMaxSplitParts = 10'000;

template <typename... Parts>
absl::Status Invalid(const fs::path& path, const Parts&... parts) {
  return absl::InvalidArgumentError(base::StrCat(path.string(), parts...));
}

// Whether the path exists; an error if that cannot be found out.
absl::StatusOr<bool> Exists(const fs::path& path) {
  std::error_code error;
  bool exists = fs::exists(path, error);
  if (error) return absl::ErrnoToStatus(error.value(), "cannot read " + path.string());
  return exists;
}

// For an unusable folder, returns a hint such as "; it has a.gguf: give that path".
std::string HintFor(const fs::path& folder) {
  std::error_code error;
  std::string pickle;
  std::string gguf;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    std::string name = entry.path().filename().string();
    std::string extension = entry.path().extension().string();
    if (extension == ".gguf" && (gguf.empty() || name < gguf)) gguf = name;
    if (extension == ".bin" || extension == ".pth" || extension == ".pt") pickle = name;
  }
  if (!gguf.empty())
    return base::StrCat("; the folder holds ", gguf, ": give the path of that file");
  if (!pickle.empty()) {
    return base::StrCat("; the folder holds ", pickle,
                        ": PyTorch pickles are not read, convert them to safetensors");
  }
  return "";
}

// The shards that the index names, each once, in order. Names must be plain file names, so that an
// index cannot refer to files outside its folder.
absl::StatusOr<std::vector<std::string>> ShardNames(const json& index, const fs::path& path) {
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return Invalid(path, " has no object \"weight_map\"");
  }
  std::vector<std::string> shards;
  for (const auto& [tensor, shard] : index["weight_map"].items()) {
    if (!shard.is_string()) {
      return Invalid(path, ": the shard of tensor ", base::Quote(tensor), " is not a string");
    }
    const std::string& name = shard.get_ref<const std::string&>();
    if (name.empty() || name == ".." || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos) {
      return Invalid(path, ": the shard of tensor ", base::Quote(tensor), " is ", base::Quote(name),
                     ", expected a file name");
    }
    shards.push_back(name);
  }
  std::sort(shards.begin(), shards.end());
  shards.erase(std::unique(shards.begin(), shards.end()), shards.end());
  if (shards.empty()) return Invalid(path, " names no tensors");
  return shards;
}

// Every tensor of the index must lie in the shard it names.
absl::Status CheckWeightMap(const json& weight_map, const std::vector<SafetensorsFile>& files,
                            const fs::path& index_path) {
  std::vector<std::pair<std::string_view, std::string>> found;
  for (const SafetensorsFile& file : files) {
    std::string shard = fs::path(file.name()).filename().string();
    for (const SafetensorsTensor& tensor : file.tensors()) found.emplace_back(tensor.name, shard);
  }
  std::sort(found.begin(), found.end());
  for (const auto& [tensor, shard] : weight_map.items()) {
    std::pair<std::string_view, std::string> wanted(tensor, shard.get<std::string>());
    if (!std::binary_search(found.begin(), found.end(), wanted)) {
      return Invalid(index_path, ": tensor ", base::Quote(tensor), " is not in ", wanted.second,
                     ", where the index places it");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SafetensorsFile>> OpenShards(const fs::path& folder) {
  fs::path index_path = folder / kIndexName;
  HEDDLE_ASSIGN_OR_RETURN(json index, ReadJsonFile(index_path));
  HEDDLE_ASSIGN_OR_RETURN(std::vector<std::string> shards, ShardNames(index, index_path));
  std::vector<SafetensorsFile> files;
  for (const std::string& shard : shards) {
    auto file = SafetensorsFile::Open(folder / shard);
    if (absl::IsNotFound(file.status())) {
      return absl::NotFoundError(base::StrCat(index_path.string(), ": shard ", shard, " (one of ",
                                              shards.size(), ") is missing from ",
                                              folder.string()));
    }
    if (!file.ok()) return file.status();
    files.push_back(*std::move(file));
  }
  HEDDLE_RETURN_IF_ERROR(CheckWeightMap(index["weight_map"], files, index_path));
  return files;
}

absl::StatusOr<std::vector<SafetensorsFile>> OpenSafetensors(const fs::path& folder) {
  for (const std::string_view name : {kSingleName, kMedusaName}) {
    HEDDLE_ASSIGN_OR_RETURN(bool exists, Exists(folder / name));
    if (!exists) continue;
    HEDDLE_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(folder / name));
    std::vector<SafetensorsFile> files;
    files.push_back(std::move(file));
    return files;
  }
  HEDDLE_ASSIGN_OR_RETURN(bool has_index, Exists(folder / kIndexName));
  if (has_index) return OpenShards(folder);
  return absl::NotFoundError(base::StrCat("folder ", folder.string(), " has no weights: expected ",
                                          kSingleName, " or ", kIndexName, HintFor(folder)));
}

absl::StatusOr<json> ReadObject(const fs::path& path) {
  HEDDLE_ASSIGN_OR_RETURN(json value, ReadJsonFile(path));
  if (!value.is_object())
    return Invalid(path, " holds ", value.type_name(), ", expected an object");
  return value;
}

// Reads the options that older checkpoints keep beside config.json; newer ones have them inside.
absl::Status AddQuantizeConfig(const fs::path& folder, json* config) {
  struct Beside {
    const char* file;
    const char* method;
  };
  // GPTQ's, those of NVIDIA's TensorRT Model Optimizer, and AWQ's.
  constexpr Beside kFiles[] = {{"quantize_config.json", "gptq"},
                               {"hf_quant_config.json", "modelopt"},
                               {"quant_config.json", "awq"}};
  for (const Beside& beside : kFiles) {
    if (config->contains("quantization_config")) return absl::OkStatus();
    HEDDLE_ASSIGN_OR_RETURN(bool exists, Exists(folder / beside.file));
    if (!exists) continue;
    HEDDLE_ASSIGN_OR_RETURN(json quantization, ReadObject(folder / beside.file));
    if (!quantization.contains("quant_method")) quantization["quant_method"] = beside.method;
    (*config)["quantization_config"] = std::move(quantization);
  }
  return absl::OkStatus();
}

absl::Status OpenFolder(const fs::path& folder, json* config, json* generation_config,
                        std::vector<SafetensorsFile>* files) {
  HEDDLE_ASSIGN_OR_RETURN(bool has_config, Exists(folder / "config.json"));
  if (!has_config) {
    return absl::NotFoundError(
        base::StrCat("folder ", folder.string(),
                     " has no config.json: expected a Hugging Face model folder", HintFor(folder)));
  }
  HEDDLE_ASSIGN_OR_RETURN(*config, ReadObject(folder / "config.json"));
  HEDDLE_RETURN_IF_ERROR(AddQuantizeConfig(folder, config));
  fs::path generation_path = folder / "generation_config.json";
  HEDDLE_ASSIGN_OR_RETURN(bool has_generation, Exists(generation_path));
  if (has_generation) {
    HEDDLE_ASSIGN_OR_RETURN(*generation_config, ReadObject(generation_path));
  }
  HEDDLE_ASSIGN_OR_RETURN(*files, OpenSafetensors(folder));
  return absl::OkStatus();
}

// The name of part `part` (from 0), given the first: "model-00001-of-00003.gguf".
absl::StatusOr<fs::path> SplitPartPath(const fs::path& first, int64_t part, int64_t num_parts) {
  std::string suffix = absl::StrFormat("-%05d-of-%05d.gguf", 1, num_parts);
  std::string name = first.filename().string();
  if (name.size() < suffix.size() ||
      name.compare(name.size() - suffix.size(), suffix.size(), suffix) != 0) {
    return Invalid(first, " is one of ", num_parts,
                   " parts (split.count), expected a name ending in ", suffix);
  }
  name.resize(name.size() - suffix.size());
  return first.parent_path() / (name + absl::StrFormat("-%05d-of-%05d.gguf", part + 1, num_parts));
}

absl::StatusOr<std::vector<GgufFile>> OpenGguf(const fs::path& path) {
  std::vector<GgufFile> files;
  HEDDLE_ASSIGN_OR_RETURN(GgufFile first, GgufFile::Open(path));
  HEDDLE_ASSIGN_OR_RETURN(int64_t num_parts, first.IntOr("split.count", 0));
  HEDDLE_ASSIGN_OR_RETURN(int64_t part, first.IntOr("split.no", 0));
  if (num_parts < 0 || num_parts > kMaxSplitParts || part != 0) {
    return Invalid(path, ": split.no is ", part, " and split.count ", num_parts,
                   "; give the path of the first part (split.no 0) of at most ", kMaxSplitParts);
  }
  files.push_back(std::move(first));
  for (int64_t i = 1; i < num_parts; ++i) {
    HEDDLE_ASSIGN_OR_RETURN(fs::path part_path, SplitPartPath(path, i, num_parts));
    auto file = GgufFile::Open(part_path);
    if (absl::IsNotFound(file.status())) {
      return absl::NotFoundError(base::StrCat(path.string(), ": part ",
                                              part_path.filename().string(), " of ", num_parts,
                                              " is missing"));
    }
    if (!file.ok()) return file.status();
    files.push_back(*std::move(file));
  }
  return files;
}

// Files that are not GGUF are told apart by their first bytes only.
absl::Status CheckIsGguf(const fs::path& path) {
  HEDDLE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  if (file.bytes().size() >= 4 && std::memcmp(file.bytes().data(), "GGUF", 4) == 0) {
    return absl::OkStatus();
  }
  if (path.extension() == ".safetensors") {
    return Invalid(path, " holds weights only: give the path of its folder, with config.json");
  }
  return Invalid(path,
                 " is not a GGUF file (it does not begin with \"GGUF\"): expected a GGUF file"
                 " or a Hugging Face model folder");
}

}  // namespace

absl::StatusOr<Checkpoint> OpenCheckpoint(const fs::path& path) {
  HEDDLE_ASSIGN_OR_RETURN(bool exists, Exists(path));
  if (!exists) {
    return absl::NotFoundError(
        base::StrCat("there is no file or folder ", path.string(),
                     ": expected a model on this machine, nothing is downloaded"));
  }
  auto storage = std::make_unique<Checkpoint::Storage>();
  storage->path = path;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    HEDDLE_RETURN_IF_ERROR(OpenFolder(path, &storage->config, &storage->generation_config,
                                      &storage->safetensors_files));
  } else {
    HEDDLE_RETURN_IF_ERROR(CheckIsGguf(path));
    HEDDLE_ASSIGN_OR_RETURN(storage->gguf_files, OpenGguf(path));
  }
  HEDDLE_RETURN_IF_ERROR(storage->IndexTensors());
  return Checkpoint(std::move(storage));
}

}  // namespace heddle::engine
