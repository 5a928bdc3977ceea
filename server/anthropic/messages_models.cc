#include "server/anthropic/messages_models.h"

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "server/answer/timestamp.h"
#include "server/json_writer.h"
#include "server/openai/model_choice.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

constexpr size_t kMaxLimit = 1000;

struct Page {
  size_t limit = 20;
  std::string after;
  std::string before;
};

absl::StatusOr<Page> ReadPage(std::span<const QueryParameter> query) {
  Page page;
  for (const auto& [name, value] : query) {
    if (name == "after_id") page.after = value;
    if (name == "before_id") page.before = value;
    if (name != "limit") continue;
    const char* end = value.data() + value.size();
    const auto [stop, error] = std::from_chars(value.data(), end, page.limit);
    if (error != std::errc() || stop != end || page.limit < 1 || page.limit > kMaxLimit) {
      return FieldError("limit", base::StrCat("'limit' must be from 1 to ", kMaxLimit, ", found ",
                                              base::Quote(value)));
    }
  }
  return page;
}

void WriteCard(std::string_view name, const ServedModel& model, JsonWriter* json) {
  json->BeginObject().Member("type", "model").Member("id", name).Member("display_name", name);
  json->Member("created_at", Rfc3339(model.created));
  json->Member("max_input_tokens", model.max_context).EndObject();
}

absl::StatusOr<size_t> PlaceOf(const std::string& id, std::string_view parameter,
                               const std::vector<std::string>& names) {
  const auto found = std::find(names.begin(), names.end(), id);
  if (found != names.end()) return static_cast<size_t>(found - names.begin());
  return FieldError(parameter, base::StrCat("'", parameter, "' names no model: ", base::Quote(id)));
}

}  // namespace

absl::StatusOr<std::string> MessagesModelList(std::span<const QueryParameter> query,
                                              const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(const Page page, ReadPage(query));
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ModelNames(context));
  size_t begin = 0;
  size_t end = names.size();
  if (!page.after.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(begin, PlaceOf(page.after, "after_id", names));
    ++begin;
  }
  if (!page.before.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(end, PlaceOf(page.before, "before_id", names));
  }
  begin = std::min(begin, end);
  const bool has_more = end - begin > page.limit;
  // Before an id come the last entries in front of it.
  if (has_more && !page.before.empty()) begin = end - page.limit;
  end = std::min(end, begin + page.limit);
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Key("data").BeginArray();
  for (size_t i = begin; i < end; ++i) WriteCard(names[i], *context.model, &json);
  json.EndArray().Key("has_more").Bool(has_more);
  const auto edge = [&](std::string_view name, size_t i) {
    json.Key(name);
    begin < end ? json.String(names[i]) : json.Null();
  };
  edge("first_id", begin);
  edge("last_id", begin < end ? end - 1 : begin);
  json.EndObject();
  return out;
}

absl::StatusOr<std::string> MessagesModelCard(const std::string& name,
                                              const RequestContext& context) {
  HEDDLE_RETURN_IF_ERROR(ChooseModel(&name, nullptr, context).status());
  std::string out;
  JsonWriter json(&out);
  WriteCard(name, *context.model, &json);
  return out;
}

}  // namespace heddle::server
