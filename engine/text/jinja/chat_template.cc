#include "engine/text/jinja/chat_template.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "engine/text/jinja/ast.h"
#include "engine/text/jinja/evaluator.h"
#include "engine/text/jinja/parser.h"

namespace heddle::engine::text {
namespace {

std::tm SystemLocalTime() {
  std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

}  // namespace

struct ChatTemplate::Parsed {
  jinja::Template tree;
};

ChatTemplate::ChatTemplate(std::string source, Options options, std::unique_ptr<Parsed> parsed)
    : source_(std::move(source)), options_(std::move(options)), parsed_(std::move(parsed)) {}

ChatTemplate::~ChatTemplate() = default;

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Parse(std::string source) {
  return Parse(std::move(source), Options());
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Parse(std::string source,
                                                                  Options options) {
  if (!options.now) options.now = SystemLocalTime;
  auto parsed = std::make_unique<Parsed>();
  HEDDLE_ASSIGN_OR_RETURN(parsed->tree, jinja::ParseTemplate(source, options.limits));
  return std::unique_ptr<ChatTemplate>(
      new ChatTemplate(std::move(source), std::move(options), std::move(parsed)));
}

absl::StatusOr<std::string> ChatTemplate::Render(const nlohmann::ordered_json& context) const {
  return jinja::Evaluator(parsed_->tree, options_.limits, options_.now).Run(context);
}

bool ChatTemplate::mentions(std::string_view variable) const {
  const auto& symbols = parsed_->tree.symbols;
  auto end = symbols.begin() + static_cast<ptrdiff_t>(parsed_->tree.num_named);
  return std::find(symbols.begin(), end, variable) != end;
}

}  // namespace heddle::engine::text
