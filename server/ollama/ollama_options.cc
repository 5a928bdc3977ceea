#include "server/ollama/ollama_options.h"

#include <string_view>
#include <utility>

#include "base/message.h"
#include "nlohmann/json.hpp"

namespace heddle::server {
namespace {

// Names of fields here and there, in the order in which errors are searched for them: a longer name
// comes before one that it begins with.
constexpr Renamed kOllamaNames[] = {
    {"response_format.json_schema.schema", "format"},
    {"response_format", "format"},
    {"reasoning_effort", "think"},
    {"max_tokens", "options.num_predict"},
    {"repetition_penalty", "options.repeat_penalty"},
    {"stop", "options.stop"},
    {"seed", "options.seed"},
    {"temperature", "options.temperature"},
    {"top_k", "options.top_k"},
    {"top_p", "options.top_p"},
    {"min_p", "options.min_p"},
    {"typical_p", "options.typical_p"},
    {"presence_penalty", "options.presence_penalty"},
    {"frequency_penalty", "options.frequency_penalty"},
};

}  // namespace

std::string AddOllamaOptions(const RequestFields<fields::kOllamaOptions>& options,
                             const RequestContext& context, Json* body) {
  RequestFields<fields::kOllamaDrawing>(options).ForEach(
      [body](std::string_view name, const Json& value) {
        if (name == "num_predict") {
          const bool all = IntegerOf(value).value_or(0) < 0;
          (*body)["max_tokens"] = all ? Json(-1) : value;
        } else if (name == "repeat_penalty") {
          (*body)["repetition_penalty"] = value;
        } else {
          (*body)[std::string(name)] = value;
        }
      });
  const int64_t context_tokens = context.model->max_context;
  if (options.Int<"num_ctx">(0) > context_tokens) {
    return base::StrCat("num_ctx is not used: the context of this server holds ", context_tokens,
                        " tokens");
  }
  const bool penalises = options.Number<"repeat_penalty">(1) != 1;
  if (penalises && options.Int<"repeat_last_n">(-1) >= 0) {
    return "repeat_last_n is not used: repeat_penalty looks at the whole context";
  }
  return "";
}

absl::Status InOllamasWords(absl::Status status) {
  return RenameFields(std::move(status), kOllamaNames);
}

std::string WithoutLatest(const std::string& name, const ServedModel& model) {
  constexpr std::string_view kLatest = ":latest";
  if (IsModelName(name, model) || !name.ends_with(kLatest)) return name;
  return name.substr(0, name.size() - kLatest.size());
}

}  // namespace heddle::server
