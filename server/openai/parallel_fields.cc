#include "server/openai/parallel_fields.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/parallel/parallel_format.h"
#include "server/request/api_error.h"
#include "server/request/json_input.h"
#include "server/request/show_json.h"

namespace heddle::server {
namespace {

using ParallelFields = RequestFields<fields::kParallel>;
using CustomFields = RequestFields<fields::kParallelCustom>;

absl::Status UnknownFormat(std::string_view message) {
  return FieldError("parallel.format", message, "parallel_format_unknown");
}

std::string Or(const std::string* text, std::string_view fallback) {
  return text == nullptr ? std::string(fallback) : *text;
}

absl::StatusOr<ParallelFormat> ReadCustom(const ParallelFields& body) {
  const auto custom = body.Object<"custom", fields::kParallelCustom>();
  if (!custom.has_value()) {
    return FieldError("parallel.custom", "'parallel.custom' must be given with the format custom");
  }
  ParallelFormat format{.name = "custom"};
  format.fork_at = Or(custom->Text<"fork_at">(), "");
  format.items_from = Or(custom->Text<"items_from">(), "");
  format.items = Or(custom->Text<"items">(), "");
  format.before = Or(custom->Text<"before">(), "");
  format.header = Or(custom->Text<"header">(), "");
  format.branch_begin = Or(custom->Text<"branch_begin">(), "");
  format.branch_end = Or(custom->Text<"branch_end">(), "");
  format.cut_end = Or(custom->Text<"cut_end">(), format.branch_end);
  format.after = Or(custom->Text<"after">(), "");
  format.tail = Or(custom->Text<"tail">(), "");
  const std::string join = Or(custom->Text<"join">(), "text");
  if (join != "text" && join != "concurrent") {
    return FieldError("parallel.custom.join",
                      base::StrCat("'parallel.custom.join' must be text or concurrent, found ",
                                   base::Quote(join)));
  }
  if (join == "concurrent") format.join = ParallelJoin::kConcurrent;
  if (join == "concurrent" && format.tail.empty()) {
    return FieldError("parallel.custom.tail",
                      "'parallel.custom.tail' must have a token, the first one that sees all of "
                      "the branches");
  }
  return format;
}

absl::StatusOr<ParallelFormat> ReadFormat(const ParallelFields& body,
                                          const RequestContext& context) {
  const std::string name = Or(body.Text<"format">(), "auto");
  if (name == "custom") return ReadCustom(body);
  if (body.Has<"custom">()) {
    return FieldError("parallel.custom", "'parallel.custom' needs the format custom");
  }
  if (name == "auto") {
    const ParallelFormat* found =
        DetectParallelFormat(*context.codec, /*has_segments=*/context.model->segments > 0);
    if (found != nullptr) return *found;
    return UnknownFormat(
        base::StrCat("this model has no tokens that ask for branches: name a format of ",
                     ParallelFormatNames()));
  }
  const ParallelFormat* found = FindParallelFormat(name);
  if (found != nullptr && found->at_start && context.model->segments == 0) {
    return UnknownFormat(base::StrCat("the format ", name,
                                      " needs segment embeddings, which this model does not have"));
  }
  if (found != nullptr) return *found;
  return UnknownFormat(base::StrCat("'parallel.format' must be auto, ", ParallelFormatNames(),
                                    ", found ", base::Quote(name)));
}

// Branches that begin unasked are as many as the client wants, and the model tells so many apart.
absl::Status ReadMaxBranches(const ParallelFields& body, const RequestContext& context,
                             const ParallelSyntax& syntax, ParallelLimits* limits) {
  constexpr std::string_view kPath = "parallel.max_branches";
  int64_t most = ParallelLimits::kMaxBranches;
  if (syntax.at_start()) most = std::min(syntax.max_number(), context.model->segments - 1);
  if (most < 1) return FieldError("parallel.format", "this model tells no branches apart");
  const int64_t usual = std::min<int64_t>(limits->max_branches, most);
  const int64_t wanted = body.Int<"max_branches">(usual);
  if (wanted > most) {
    return FieldError(kPath, base::StrCat("'", kPath, "' must be at most ", most,
                                          ", as many as this model tells apart, found ", wanted));
  }
  limits->max_branches = static_cast<int32_t>(wanted);
  return absl::OkStatus();
}

// "wait", or the seconds after which what still runs is cut.
absl::Status ReadSlow(const Json* value, ParallelLimits* limits) {
  constexpr std::string_view kPath = "parallel.on_slow";
  if (value == nullptr) return absl::OkStatus();
  if (const std::string* text = TextOf(value); text != nullptr) {
    if (*text == "wait") return absl::OkStatus();
    return FieldError(kPath, base::StrCat("'", kPath,
                                          "' must be wait or {\"cut_after_s\": "
                                          "seconds}, found ",
                                          base::Quote(*text)));
  }
  const std::string path = base::StrCat(kPath, ".cut_after_s");
  const Json* seconds = Find(*value, "cut_after_s");
  const std::optional<double> number = seconds == nullptr ? std::nullopt : NumberOf(*seconds);
  if (!number.has_value() || !(*number > 0 && *number <= 86400)) {
    return FieldError(path, base::StrCat("'", path, "' must be a number from 0 to 86400, found ",
                                         seconds == nullptr ? "nothing" : ShowJson(*seconds)));
  }
  limits->cut_after_seconds = *number;
  return absl::OkStatus();
}

// Names what the request asks for and an answer with branches cannot give.
absl::Status CheckTogether(const ApiRequest& api) {
  const std::pair<std::string_view, bool> refused[] = {
      {"n", api.n > 1},
      {"best_of", api.best_of > 1},
      {"prompt", api.generations.size() > 1},
      {"use_beam_search", api.beam_width > 0},
      {"keep", api.keep},
      {"echo", api.echo},
      {"logprobs", api.logprobs},
      {"prompt_logprobs", api.prompt_logprobs >= 0},
      {"tools", api.syntax.tools != nullptr},
      {"response_format", api.generations.front().grammar != nullptr},
      {"max_tokens", api.generations.front().max_tokens == 0},
  };
  for (const auto& [name, is_asked] : refused) {
    if (!is_asked) continue;
    return FieldError(name, base::StrCat("'", name, "' does not go with 'parallel': ",
                                         "an answer with branches is one choice of plain text"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadParallel(const RequestFields<fields::kGeneration>& body,
                          const RequestContext& context, ApiRequest* api) {
  const auto parallel = body.Object<"parallel", fields::kParallel>();
  if (!parallel.has_value()) return absl::OkStatus();
  HEDDLE_RETURN_IF_ERROR(CheckTogether(*api));
  HEDDLE_ASSIGN_OR_RETURN(ParallelFormat format, ReadFormat(*parallel, context));
  absl::StatusOr<std::shared_ptr<const ParallelSyntax>> syntax =
      ParallelSyntax::Make(std::move(format), context.codec);
  if (!syntax.ok()) {
    const bool is_custom = Or(parallel->Text<"format">(), "auto") == "custom";
    return is_custom ? FieldError("parallel.custom", MessageOf(syntax.status()))
                     : UnknownFormat(MessageOf(syntax.status()));
  }
  api->parallel.syntax = *std::move(syntax);
  ParallelLimits& limits = api->parallel.limits;
  HEDDLE_RETURN_IF_ERROR(ReadMaxBranches(*parallel, context, *api->parallel.syntax, &limits));
  limits.max_depth = static_cast<int32_t>(parallel->Int<"max_depth">(limits.max_depth));
  limits.max_branch_tokens = parallel->Int<"max_branch_tokens">(0);
  limits.max_total_tokens = parallel->Int<"max_total_tokens">(api->generations.front().max_tokens);
  HEDDLE_RETURN_IF_ERROR(ReadSlow(parallel->Value<"on_slow">(), &limits));
  const std::string order = Or(parallel->Text<"stream_order">(), "tagged");
  if (order != "tagged" && order != "sequential") {
    return FieldError("parallel.stream_order",
                      base::StrCat("'parallel.stream_order' must be tagged or sequential, found ",
                                   base::Quote(order)));
  }
  limits.is_sequential = order == "sequential";
  return absl::OkStatus();
}

}  // namespace heddle::server
