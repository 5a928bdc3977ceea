// Finds the row of the family table that a checkpoint belongs to.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "base/message.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/family/describe.h"
#include "engine/family/other_architectures.h"
#include "engine/family/pooled.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

// Returns a sentence on what is missing if the name is known, and otherwise the supported ones,
// with the one that the name is a variant or a misspelling of.
std::string Suggest(std::string_view found, const std::vector<std::string_view>& known) {
  if (const OtherArchitecture* other = FindOtherArchitecture(found)) {
    const std::string nearest =
        other->nearest.empty() ? ""
                               : base::StrCat("; the nearest family that runs is ", other->nearest);
    return base::StrCat("it needs ", other->missing, nearest);
  }
  constexpr size_t kMaxCompared = 100;  // the distance is quadratic, and the name untrusted
  found = found.substr(0, kMaxCompared);
  const auto distance = [lower =
                             absl::AsciiStrToLower(base::AbslView(found))](std::string_view to) {
    return base::EditDistance(lower, absl::AsciiStrToLower(base::AbslView(to)));
  };
  auto nearest = std::min_element(known.begin(), known.end(),
                                  [&](auto a, auto b) { return distance(a) < distance(b); });
  std::vector<std::string> names(known.begin(), known.end());
  std::string supported = base::StrCat("supported are ", absl::StrJoin(names, ", "));
  // Names of classes end alike: what is far says nothing about the arithmetic.
  constexpr size_t kMaxDistance = 2;
  if (distance(*nearest) > kMaxDistance) return supported;
  return base::StrCat(supported, "; the nearest is ", *nearest);
}

bool Contains(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

absl::StatusOr<const Family*> FindFamily(const JsonSource& config) {
  std::vector<std::string_view> known;
  const nlohmann::json* architectures = config.Find("architectures");
  if (architectures != nullptr && !(architectures->is_array() && architectures->empty())) {
    if (!architectures->is_array() || !architectures->front().is_string()) {
      return config.Error("architectures", JsonSource::Show(*architectures), "a list of strings");
    }
    const std::string& name = architectures->front().get_ref<const std::string&>();
    const auto reads = [&](const Family& family) {
      return family.unless_key.empty() || !config.Has(family.unless_key);
    };
    for (const Family& family : FamilyTable()) {
      if (Contains(family.architectures, name) && reads(family)) return &family;
      known.insert(known.end(), family.architectures.begin(), family.architectures.end());
    }
    for (const Family& family : FamilyTable()) {
      const auto is_variant = [&](std::string_view of) { return IsVariantOf(name, of); };
      if (std::ranges::any_of(family.architectures, is_variant) && reads(family)) return &family;
    }
    return config.Unsupported("architectures", base::Quote(name), Suggest(name, known));
  }
  if (!config.Has("model_type")) {
    return config.Error("architectures", "missing, and so is \"model_type\"",
                        "the name of a model class such as LlamaForCausalLM");
  }
  HEDDLE_ASSIGN_OR_RETURN(std::string model_type, config.String("model_type"));
  for (const Family& family : FamilyTable()) {
    if (family.model_type == model_type) return &family;
    known.push_back(family.model_type);
  }
  return config.Unsupported("model_type", base::Quote(model_type), Suggest(model_type, known));
}

absl::StatusOr<const Family*> FindGgufFamily(const GgufFile& gguf, std::string_view architecture) {
  std::vector<std::string_view> known;
  for (const Family& family : FamilyTable()) {
    if (Contains(family.gguf_architectures, architecture)) return &family;
    known.insert(known.end(), family.gguf_architectures.begin(), family.gguf_architectures.end());
  }
  return absl::UnimplementedError(
      base::StrCat(gguf.name(), ": \"general.architecture\" is ", base::Quote(architecture),
                   ", which is not supported; ", Suggest(architecture, known)));
}

}  // namespace heddle::engine
