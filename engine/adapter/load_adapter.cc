#include "engine/adapter/load_adapter.h"

#include <set>
#include <utility>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "engine/adapter/adapter_places.h"
#include "engine/adapter/adapter_tensors.h"
#include "engine/adapter/pack_adapter.h"
#include "engine/family/module_names.h"
#include "engine/files/gguf.h"

namespace heddle::engine {
namespace {

absl::Status AtFile(const AdapterFile& file, const absl::Status& status) {
  return {status.code(), base::StrCat(file.path, ": ", std::string(status.message()))};
}

absl::Status CheckFits(const PlacedModule& module, const AdapterTarget& target) {
  const AdapterTensor& a = module.module->a;
  const AdapterTensor& b = module.module->b;
  if (a.cols != module.place.inputs || b.rows != module.place.outputs) {
    return absl::InvalidArgumentError(base::StrCat(
        "module ", base::Quote(module.name), " has factors A [", a.rows, ", ", a.cols, "] and B [",
        b.rows, ", ", b.cols, "], and the base's matrix is [", module.place.outputs, ", ",
        module.place.inputs, "]; the adapter was trained on another model"));
  }
  if (a.rows > target.max_rank) {
    return absl::InvalidArgumentError(base::StrCat("module ", base::Quote(module.name),
                                                   " has rank ", a.rows, "; --max-lora-rank is ",
                                                   target.max_rank));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PlacedModule>> PlaceModules(const AdapterFile& file,
                                                       const AdapterTarget& target) {
  const AdapterPlaces places(*target.model, file.is_gguf);
  std::vector<PlacedModule> placed;
  std::set<std::tuple<int32_t, AdapterSite, int32_t>> taken;
  for (const auto& [name, module] : file.modules) {
    PlacedModule& own =
        placed.emplace_back(PlacedModule{.name = name, .module = &module, .place = {}});
    HEDDLE_ASSIGN_OR_RETURN(own.place, places.Find(name));
    HEDDLE_RETURN_IF_ERROR(CheckFits(own, target));
    for (const ModulePart& part : own.place.parts) {
      if (taken.emplace(own.place.layer, own.place.site, part.part).second) continue;
      return absl::InvalidArgumentError(base::StrCat(
          "module ", base::Quote(name), " changes a matrix that another module changes, too"));
    }
  }
  return placed;
}

absl::Status CheckArchitecture(const AdapterFile& file, const ModelDescription& model) {
  if (!file.is_gguf || IsGgufArchitecture(model, file.architecture)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      base::StrCat("\"general.architecture\" is ", base::Quote(file.architecture),
                   ", and the base is of family ", model.spec.family));
}

// "k_proj, q_proj in 22 layers".
std::string ModulesText(std::span<const PlacedModule> modules) {
  std::set<std::string_view> kinds;
  std::set<int32_t> layers;
  for (const PlacedModule& module : modules) {
    kinds.insert(module.name.substr(module.name.rfind('.') + 1));
    layers.insert(module.place.layer);
  }
  std::string text;
  for (const std::string_view kind : kinds) {
    text += text.empty() ? "" : ", ";
    text += kind;
  }
  return base::StrCat(text, " in ", static_cast<int64_t>(layers.size()),
                      layers.size() == 1 ? " layer" : " layers");
}

void Summarise(std::span<const PlacedModule> modules, const AdapterImage& image,
               AdapterSummary* summary) {
  summary->max_rank = image.max_rank;
  for (const PlacedModule& module : modules) {
    const AdapterTensor& a = module.module->a;
    const AdapterTensor& b = module.module->b;
    summary->parameters += a.rows * a.cols + b.rows * b.cols;
  }
  summary->modules = ModulesText(modules);
}

}  // namespace

absl::StatusOr<LoadedAdapter> LoadAdapter(const std::filesystem::path& path,
                                          const AdapterTarget& target) {
  // A file may have twice the bytes of the image, if it holds F32.
  HEDDLE_ASSIGN_OR_RETURN(const AdapterFile file, ReadAdapterFile(path, 2 * target.max_bytes));
  if (absl::Status status = CheckArchitecture(file, *target.model); !status.ok()) {
    return AtFile(file, status);
  }
  const absl::StatusOr<std::vector<PlacedModule>> placed = PlaceModules(file, target);
  if (!placed.ok()) return AtFile(file, placed.status());
  absl::StatusOr<std::shared_ptr<AdapterImage>> image = PackAdapter(*placed, target);
  if (!image.ok()) return AtFile(file, image.status());
  LoadedAdapter loaded{.image = *std::move(image), .summary = file.summary};
  Summarise(*placed, *loaded.image, &loaded.summary);
  return loaded;
}

bool IsAdapter(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return std::filesystem::exists(path / "adapter_config.json", error);
  }
  if (path.extension() != ".gguf") return false;
  const absl::StatusOr<GgufFile> gguf = GgufFile::Open(path);
  if (!gguf.ok()) return false;
  const absl::StatusOr<std::string_view> type = gguf->StringOr("general.type", "");
  return type.ok() && *type == "adapter";
}

}  // namespace heddle::engine
