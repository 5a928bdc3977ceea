#include "server/openai/model_choice.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

constexpr size_t kMaxAdaptersTogether = 64;  // beyond it, ranks add up to more than any limit

// The name behind "BASE:", or all of it.
std::string_view WithoutBase(std::string_view name, const ServedModel& model) {
  const auto strip = [&name](std::string_view base) {
    if (name.size() <= base.size() || !name.starts_with(base) || name[base.size()] != ':') {
      return false;
    }
    name.remove_prefix(base.size() + 1);
    return true;
  };
  if (!strip(model.id)) {
    static_cast<void>(std::any_of(model.aliases.begin(), model.aliases.end(), strip));
  }
  return name;
}

bool MayBlock(const RequestContext& context) {
  return !context.patience.short_only || context.patience.ask != nullptr;
}

// The names that the client may use, in words. Adapters are left out where their folder would have
// to be read and there is no patience for that.
std::string KnownNames(const RequestContext& context) {
  constexpr size_t kMaxNames = 20;
  RequestContext here = context;
  if (!MayBlock(context)) here.adapters = {};
  const absl::StatusOr<std::vector<std::string>> names = ModelNames(here);
  if (!names.ok()) return base::Quote(context.model->id);
  std::string text;
  for (size_t i = 0; i < std::min(names->size(), kMaxNames); ++i) {
    text.append(i == 0 ? "" : ", ").append(base::Quote((*names)[i]));
  }
  if (names->size() > kMaxNames) text.append(" and others (see /v1/models)");
  return text;
}

absl::Status FindAdapter(std::string_view name, const RequestContext& context) {
  const AdapterView& adapters = context.adapters;
  if (!adapters.Allows(name)) return UnknownModel(name, context);
  if (!MayBlock(context) && adapters.registry->NeedsLook(name)) return TakesLong();
  absl::Status status = adapters.registry->Look(name);
  if (absl::IsNotFound(status)) return UnknownModel(name, context);
  return status.ok() ? status : WithParam(std::move(status), "model");
}

absl::StatusOr<ScaledAdapter> ReadEntry(const Json& entry, std::string_view path,
                                        const RequestContext& context) {
  ScaledAdapter adapter;
  const Json* id = Find(entry, "id");
  const Json* scale = Find(entry, "scale");
  if (id == nullptr) {
    return FieldError(path, base::StrCat("'", path, "' must be an object with an 'id'"));
  }
  const double value = scale == nullptr ? 1.0 : NumberOf(*scale).value_or(NAN);
  if (!(std::abs(value) <= kMaxAdapterScale)) {
    return FieldError(base::StrCat(path, ".scale"),
                      base::StrCat("'", path, ".scale' must be a number from -", kMaxAdapterScale,
                                   " to ", kMaxAdapterScale));
  }
  adapter.scale = static_cast<float>(value);
  if (const std::string* name = TextOf(id)) {
    adapter.name = *name;
    return adapter;
  }
  const std::optional<int64_t> index = IntegerOf(*id);
  absl::StatusOr<std::string> name = absl::NotFoundError("");
  if (index.has_value() && context.adapters.registry != nullptr) {
    name = context.adapters.registry->NameAt(*index);
  }
  if (!name.ok() || !context.adapters.Allows(*name)) {
    return FieldError(base::StrCat(path, ".id"),
                      base::StrCat("'", path, ".id' must be the name or the number of an adapter, ",
                                   "see /v1/models"));
  }
  adapter.name = *std::move(name);
  return adapter;
}

// An adapter that stands twice has the last scale, as with llama.cpp.
absl::StatusOr<std::map<std::string, float>> ReadLora(const Json& lora,
                                                      const RequestContext& context) {
  std::map<std::string, float> scales;
  for (size_t i = 0; i < lora.size(); ++i) {
    HEDDLE_ASSIGN_OR_RETURN(ScaledAdapter adapter,
                            ReadEntry(lora[i], base::StrCat("lora[", i, "]"), context));
    scales[std::move(adapter.name)] = adapter.scale;
  }
  return scales;
}

// The adapters with a scale other than 0, which the client may use.
absl::StatusOr<std::vector<ScaledAdapter>> ChosenOf(const std::map<std::string, float>& scales,
                                                    const RequestContext& context) {
  std::vector<ScaledAdapter> chosen;
  for (const auto& [name, scale] : scales) {
    if (scale == 0) continue;
    HEDDLE_RETURN_IF_ERROR(FindAdapter(name, context));
    chosen.push_back({name, scale});
  }
  if (chosen.size() > kMaxAdaptersTogether) {
    return FieldError("lora",
                      base::StrCat("'lora' may have at most ", kMaxAdaptersTogether,
                                   " adapters with a scale other than 0, found ", chosen.size()));
  }
  return chosen;
}

}  // namespace

bool IsModelName(std::string_view name, const ServedModel& model) {
  return name == model.id ||
         std::find(model.aliases.begin(), model.aliases.end(), name) != model.aliases.end();
}

absl::StatusOr<std::vector<std::string>> ModelNames(const RequestContext& context) {
  std::vector<std::string> names = {context.model->id};
  names.insert(names.end(), context.model->aliases.begin(), context.model->aliases.end());
  HEDDLE_ASSIGN_OR_RETURN(const ListedAdapters listed, ListAdapters(context));
  for (const AdapterInfo& info : listed.infos) names.push_back(info.name);
  return names;
}

absl::StatusOr<ListedAdapters> ListAdapters(const RequestContext& context) {
  const AdapterView& adapters = context.adapters;
  ListedAdapters listed;
  if (adapters.registry == nullptr) return listed;
  if (!MayBlock(context)) return TakesLong();
  listed.infos = adapters.registry->List(&listed.cut);
  std::erase_if(listed.infos,
                [&adapters](const AdapterInfo& info) { return !adapters.Allows(info.name); });
  return listed;
}

absl::Status UnknownModel(std::string_view name, const RequestContext& context) {
  absl::Status status = absl::NotFoundError(base::StrCat(
      "the model ", base::Quote(name), " does not exist; this server has ", KnownNames(context)));
  return WithCode(WithParam(std::move(status), "model"), "model_not_found");
}

absl::StatusOr<ModelChoice> ChooseModel(const std::string* name, const Json* lora,
                                        const RequestContext& context) {
  ModelChoice choice;
  choice.shown = context.model->id;
  if (!context.deployment.empty()) name = &context.deployment;
  if (name != nullptr && !IsModelName(*name, *context.model)) {
    choice.shown = *name;
    choice.adapters.push_back({std::string(WithoutBase(*name, *context.model)), 1});
    HEDDLE_RETURN_IF_ERROR(FindAdapter(choice.adapters.front().name, context));
  }
  if (lora == nullptr) {
    if (choice.adapters.empty() && context.adapters.registry != nullptr) {
      choice.adapters = context.adapters.registry->base_adapters();
    }
    return choice;
  }
  HEDDLE_ASSIGN_OR_RETURN(const auto scales, ReadLora(*lora, context));
  if (scales.empty()) return choice;
  if (!choice.adapters.empty() && !scales.contains(choice.adapters.front().name)) {
    return FieldError("lora", base::StrCat("'model' names the adapter ",
                                           base::Quote(choice.adapters.front().name),
                                           ", and 'lora' does not: add it, or name the base"));
  }
  // Entries that are all 0 ask for the base alone.
  HEDDLE_ASSIGN_OR_RETURN(choice.adapters, ChosenOf(scales, context));
  return choice;
}

}  // namespace heddle::server
