#include "server/openai/choice_fields.h"

#include <string>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/openai/sampling_fields.h"
#include "server/request/api_error.h"
#include "server/request/json_input.h"

namespace heddle::server {
namespace {

using ChoiceFields = RequestFields<fields::kChoice>;

absl::Status CheckChoices(const Json& list, const ApiRequest& api) {
  if (api.generations.size() > 1 || api.best_of != api.n || api.beam_width > 0 ||
      api.search.samples > 0 || api.parallel.syntax != nullptr) {
    return FieldError("branches",
                      "'branches' is for the n choices of one prompt, and not with 'best_of', "
                      "'search', 'parallel' or beam search");
  }
  if (list.size() == static_cast<size_t>(api.n)) return absl::OkStatus();
  return FieldError("branches", base::StrCat("'branches' must have an object for each of the ",
                                             api.n, " choices ('n'), found ", list.size()));
}

}  // namespace

absl::Status ReadChoices(const RequestFields<fields::kGeneration>& body, ApiRequest* api) {
  const Json* list = body.Value<"branches">();
  if (list == nullptr) return absl::OkStatus();
  HEDDLE_RETURN_IF_ERROR(CheckChoices(*list, *api));
  GenerationRequest& generation = api->generations.front();
  for (size_t i = 0; i < list->size(); ++i) {
    const Json& one = (*list)[i];
    const std::string path = base::StrCat("branches[", i, "]");
    if (!one.is_object()) {
      return FieldError(path, base::StrCat("'", path, "' must be an object, found ", JsonKind(one)),
                        "invalid_type");
    }
    for (const auto& [name, value] : one.items()) {
      if (!FindField(fields::kChoice, name).empty()) continue;
      return FieldError(base::StrCat(path, ".", name),
                        base::StrCat("'", path, "' has no member ", base::Quote(name),
                                     ": choices differ in numbers of sampling and in the seed"));
    }
    HEDDLE_ASSIGN_OR_RETURN(const ChoiceFields fields, ChoiceFields::Check(one, path));
    engine::SamplingParams& sampling = generation.sampling_of.emplace_back(generation.sampling);
    sampling.seed += i;
    HEDDLE_RETURN_IF_ERROR(ReadSamplingNumbers(fields, &sampling));
    if (sampling.has_dry() && !generation.sampling.has_dry()) {
      return FieldError(base::StrCat(path, ".dry_multiplier"),
                        "'dry_multiplier' of one choice needs that of the request");
    }
    if (fields.Has<"seed">()) sampling.seed = fields.Uint<"seed">();
  }
  return absl::OkStatus();
}

}  // namespace heddle::server
