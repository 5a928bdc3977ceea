#include <string>

#include "base/message.h"
#include "base/status.h"
#include "engine/text/jinja/chat_template.h"
#include "nlohmann/json.hpp"
#include "server/cli/command.h"
#include "server/cli/standard_io.h"

namespace heddle::server {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMaxInputBytes = size_t{256} << 20;

absl::Status WithPrefix(std::string_view prefix, const absl::Status& status) {
  return absl::Status(status.code(), base::StrCat(prefix, ": ", status.message()));
}

absl::StatusOr<ordered_json> ReadVariables() {
  HEDDLE_ASSIGN_OR_RETURN(std::string text, ReadStandardInput(kMaxInputBytes));
  ordered_json variables;
  try {
    variables = ordered_json::parse(text);
  } catch (const ordered_json::parse_error& error) {
    return absl::InvalidArgumentError(
        base::StrCat("standard input is not JSON, at byte ", error.byte,
                     "; expected {\"messages\": [...], \"add_generation_prompt\": true}"));
  }
  if (!variables.is_object()) {
    return absl::InvalidArgumentError(
        base::StrCat("standard input is a JSON ", variables.type_name(),
                     "; expected an object such as {\"messages\": [...]}"));
  }
  return variables;
}

}  // namespace

absl::Status RunRender(const config::Config& config) {
  engine::text::TemplateLimits limits;
  HEDDLE_ASSIGN_OR_RETURN(std::string source,
                          ReadFile(config.template_file, limits.max_source_bytes));
  auto parsed = engine::text::ChatTemplate::Parse(std::move(source));
  if (!parsed.ok()) return WithPrefix(config.template_file, parsed.status());
  HEDDLE_ASSIGN_OR_RETURN(ordered_json variables, ReadVariables());
  absl::StatusOr<std::string> text = (*parsed)->Render(variables);
  if (!text.ok()) return WithPrefix(config.template_file, text.status());
  HEDDLE_RETURN_IF_ERROR(WriteOut(*text));
  return FlushOut();
}

}  // namespace heddle::server
