#include "engine/adapter/place_modules.h"

#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "engine/adapter/adapter_places.h"
#include "engine/family/module_names.h"

namespace heddle::engine {
namespace {

struct PlacedModule {
  std::string_view name;
  const AdapterModule* module = nullptr;
  ModulePlace place;
};

absl::StatusOr<std::vector<PlacedModule>> FindPlaces(const AdapterFile& file,
                                                     const AdapterTarget& target) {
  const AdapterPlaces places(*target.model, file.is_gguf);
  std::vector<PlacedModule> placed;
  // Layer, site, member, part.
  std::set<std::tuple<int32_t, AdapterSite, int32_t, int32_t>> taken;
  for (const auto& [name, module] : file.modules) {
    HEDDLE_ASSIGN_OR_RETURN(std::vector<ModulePlace> found, places.Find(name, module.b.rows));
    for (ModulePlace& place : found) {
      for (const ModulePart& part : place.parts) {
        for (int32_t i = 0; i < place.n_members; ++i) {
          if (taken.emplace(place.layer, place.site, place.member + i, part.part).second) continue;
          return absl::InvalidArgumentError(base::StrCat(
              "module ", base::Quote(name), " changes a matrix that another module changes, too"));
        }
      }
      placed.push_back({name, &module, std::move(place)});
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
    if (module.place.layer != kModelLayer) layers.insert(module.place.layer);
  }
  std::string text;
  for (const std::string_view kind : kinds) {
    text += text.empty() ? "" : ", ";
    text += kind;
  }
  return base::StrCat(text, " in ", static_cast<int64_t>(layers.size()),
                      layers.size() == 1 ? " layer" : " layers");
}

}  // namespace

absl::Status AtFile(const AdapterFile& file, const absl::Status& status) {
  return {status.code(), base::StrCat(file.path, ": ", std::string(status.message()))};
}

absl::StatusOr<std::string> PlaceModules(const AdapterFile& file, const AdapterTarget& target,
                                         FactorBuilder* factors) {
  if (absl::Status status = CheckArchitecture(file, *target.model); !status.ok()) {
    return AtFile(file, status);
  }
  const absl::StatusOr<std::vector<PlacedModule>> placed = FindPlaces(file, target);
  if (!placed.ok()) return AtFile(file, placed.status());
  for (const PlacedModule& module : *placed) {
    const absl::Status added = factors->Add(module.name, *module.module, module.place);
    if (!added.ok()) return AtFile(file, added);
  }
  return ModulesText(*placed);
}

}  // namespace heddle::engine
