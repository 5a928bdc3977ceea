#include "server/openai/search_fields.h"

#include <string>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/request/api_error.h"
#include "server/request/json_input.h"

namespace heddle::server {
namespace {

absl::Status CheckSearch(size_t num_prompts, bool has_branches, const ApiRequest& api) {
  const std::pair<std::string_view, bool> refused[] = {
      {"n", api.n > 1},
      {"best_of", api.best_of > 1},
      {"prompt", num_prompts > 1},
      {"use_beam_search", api.beam_width > 0},
      {"keep", api.keep},
      {"parallel", has_branches},
      {"prompt_logprobs", api.prompt_logprobs >= 0},
      {"echo", api.echo},
  };
  for (const auto& [name, is_asked] : refused) {
    if (!is_asked) continue;
    return FieldError(name, base::StrCat("'", name, "' does not go with 'search', which gives one ",
                                         "answer at its end"));
  }
  return absl::OkStatus();
}

absl::Status ReadRank(const std::string* rank, const RequestPolicy& policy,
                      SearchOptions* options) {
  if (rank == nullptr || *rank == "logprob") return absl::OkStatus();
  if (*rank != "reward") {
    return FieldError("search.rank_by", base::StrCat("'search.rank_by' must be logprob or reward, ",
                                                     "found ", base::Quote(*rank)));
  }
  if (options->kind != SearchKind::kBestOfN) {
    return FieldError("search.rank_by",
                      "'search.rank_by' is for 'search.kind' best_of_n: votes need no rank");
  }
  if (!policy.has_reward_model) {
    return FieldError("search.rank_by",
                      "'search.rank_by' is reward, and this server has no reward model: its "
                      "operator names one by --reward-url");
  }
  options->by_reward = true;
  return absl::OkStatus();
}

std::string TextOfParts(const Json& content) {
  if (const std::string* text = TextOf(&content); text != nullptr) return *text;
  std::string all;
  if (!content.is_array()) return all;
  for (const Json& part : content) {
    if (const std::string* text = TextOf(Find(part, "text")); text != nullptr) all.append(*text);
  }
  return all;
}

}  // namespace

std::string LastQuestion(const Json& messages) {
  for (auto message = messages.rbegin(); message != messages.rend(); ++message) {
    if (TextOr(*message, "role", "") != "user") continue;
    const Json* content = Find(*message, "content");
    return content == nullptr ? "" : TextOfParts(*content);
  }
  return "";
}

absl::Status ReadSearch(const RequestFields<fields::kGeneration>& body, size_t num_prompts,
                        const RequestPolicy& policy, ApiRequest* api) {
  const auto search = body.Object<"search", fields::kSearch>();
  if (!search.has_value()) return absl::OkStatus();
  HEDDLE_RETURN_IF_ERROR(CheckSearch(num_prompts, body.Has<"parallel">(), *api));
  SearchOptions& options = api->search;
  if (const std::string* kind = search->Text<"kind">(); kind != nullptr) {
    if (*kind != "self_consistency" && *kind != "best_of_n") {
      return FieldError("search.kind",
                        base::StrCat("'search.kind' must be self_consistency or best_of_n, found ",
                                     base::Quote(*kind)));
    }
    if (*kind == "best_of_n") options.kind = SearchKind::kBestOfN;
  }
  HEDDLE_RETURN_IF_ERROR(ReadRank(search->Text<"rank_by">(), policy, &options));
  options.samples = static_cast<int32_t>(search->Int<"samples">(16));
  options.wave = static_cast<int32_t>(search->Int<"wave">(options.wave));
  options.confidence = search->Number<"confidence">(options.confidence);
  if (const std::string* answer = search->Text<"answer">()) options.answer = *answer;
  if (const std::string* at = search->Text<"answer_at">()) options.answer_at = *at;
  if (options.answer_at.has_value() && !options.answer.empty()) {
    return FieldError("search.answer_at", "'search.answer_at' does not go with 'search.answer'");
  }
  if (const auto prune = search->Object<"prune", fields::kSearchPrune>(); prune.has_value()) {
    options.prune_tokens = static_cast<int32_t>(prune->Int<"tokens">(32));
    options.similarity = prune->Number<"similarity">(options.similarity);
  }
  if (const auto made = SampleSearch::Make(options); !made.ok()) {
    return FieldError(options.answer_at.has_value() ? "search.answer_at" : "search.answer",
                      MessageOf(made.status()));
  }
  api->best_of = options.samples;
  return absl::OkStatus();
}

}  // namespace heddle::server
