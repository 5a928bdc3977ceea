#include "server/openai/input_items.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/json_writer.h"
#include "server/openai/api_error.h"
#include "server/openai/fields.h"

namespace heddle::server {
namespace {

constexpr size_t kMaxIdBytes = 128;
constexpr int64_t kDefaultLimit = 20;

std::string StringOr(const Json& object, std::string_view name, std::string_view fallback) {
  const Json* value = Find(object, name);
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string(fallback);
}

Json ArrayOrEmpty(const Json& object, std::string_view name) {
  const Json* value = Find(object, name);
  return value != nullptr && value->is_array() ? *value : Json::array();
}

std::string_view IdPrefix(std::string_view type) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kPrefixes = {{
      {"function_call", "fc"},
      {"function_call_output", "fco"},
      {"reasoning", "rs"},
  }};
  for (const auto& [name, prefix] : kPrefixes) {
    if (name == type) return prefix;
  }
  return "msg";
}

// Fit to stand in a URL as it is.
bool IsItemId(std::string_view id) {
  return !id.empty() && id.size() <= kMaxIdBytes && std::all_of(id.begin(), id.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
  });
}

Json TextPart(std::string_view role, std::string_view text) {
  if (role != "assistant") return {{"type", "input_text"}, {"text", text}};
  return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}};
}

// A text, or parts that are texts, as parts.
Json MessageParts(const Json& item, std::string_view role) {
  Json parts = Json::array();
  const Json* content = Find(item, "content");
  if (content == nullptr) return parts;
  if (content->is_string()) parts.push_back(TextPart(role, content->get_ref<const std::string&>()));
  if (!content->is_array()) return parts;
  for (const Json& part : *content) {
    if (part.is_string()) {
      parts.push_back(TextPart(role, part.get_ref<const std::string&>()));
    } else if (StringOr(part, "type", "") == "refusal") {
      parts.push_back({{"type", "refusal"}, {"refusal", StringOr(part, "refusal", "")}});
    } else {
      parts.push_back(TextPart(role, StringOr(part, "text", "")));
    }
  }
  return parts;
}

std::string Status(const Json& item) {
  std::string status = StringOr(item, "status", "");
  const bool is_known = status == "incomplete" || status == "in_progress";
  return is_known ? status : "completed";
}

// The members that the API knows of an item, in the order in which answers have them.
Json Normalized(const Json& given, std::string id) {
  const std::string type = StringOr(given, "type", "message");
  Json item = {{"id", std::move(id)}, {"type", type}, {"status", Status(given)}};
  if (type == "function_call") {
    item["call_id"] = StringOr(given, "call_id", StringOr(given, "id", ""));
    item["name"] = StringOr(given, "name", "");
    item["arguments"] = StringOr(given, "arguments", "{}");
  } else if (type == "function_call_output") {
    const Json* output = Find(given, "output");
    item["call_id"] = StringOr(given, "call_id", "");
    item["output"] = output == nullptr ? Json("") : *output;
  } else if (type == "reasoning") {
    item["summary"] = ArrayOrEmpty(given, "summary");
    item["content"] = ArrayOrEmpty(given, "content");
  } else {
    item["role"] = StringOr(given, "role", "user");
    item["content"] = MessageParts(given, StringOr(given, "role", "user"));
  }
  return item;
}

// The items of an answer, which are our own text, without log-probabilities.
void AddOutput(const std::string& body, ResponseItems* items) {
  const Json response = Json::parse(body);
  for (Json item : response["output"]) {
    if (item.contains("content")) {
      for (Json& part : item["content"]) {
        if (part.contains("logprobs")) part["logprobs"] = Json::array();
      }
    }
    items->push_back({item["id"].get<std::string>(), item.dump()});
  }
}

// Whole numbers become numbers where the field is one; another text there is left for CheckFields
// to refuse.
Json QueryValue(const Field& field, const std::string& text) {
  int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  const bool is_number =
      field.type == FieldType::kInteger && parsed.ec == std::errc() && parsed.ptr == end;
  return is_number ? Json(number) : Json(text);
}

// The parameters that InputItemsQuery names, as a body would have them; the others, which may be
// meant for somebody on the way, are left out.
absl::StatusOr<Json> ReadQuery(std::span<const QueryParameter> query) {
  Json values = Json::object();
  for (const auto& [name, value] : query) {
    if (name == "before") {  // OpenAI once had it: a page without it would be another one
      return FieldError(name, "'before' is not supported; give 'after' with another 'order'",
                        "unsupported_parameter");
    }
    const auto is_named = [&name = name](const Field& field) { return field.name == name; };
    const auto field = std::find_if(InputItemsQuery().begin(), InputItemsQuery().end(), is_named);
    if (field == InputItemsQuery().end()) continue;
    if (values.contains(name)) {
      return FieldError(name, base::StrCat("'", name, "' is given more than once"));
    }
    values[name] = QueryValue(*field, value);
  }
  return values;
}

// Of `items` in their order; `begin` and `end` are iterators over them, forwards or backwards.
template <typename Iterator>
absl::StatusOr<std::string> Page(Iterator begin, Iterator end, const Json& query) {
  if (const Json* after = Find(query, "after")) {
    const auto& id = after->get_ref<const std::string&>();
    begin = std::find_if(begin, end, [&id](const ResponseItem& item) { return item.id == id; });
    if (begin == end) {
      return FieldError("after",
                        base::StrCat("'after' must be the id of an item of this response, found ",
                                     base::Quote(id)));
    }
    ++begin;
  }
  const Iterator page_end =
      begin + std::min<int64_t>(end - begin, GetInt(query, "limit", kDefaultLimit));
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Member("object", "list").Key("data").BeginArray();
  for (Iterator item = begin; item != page_end; ++item) json.Raw(item->json);
  json.EndArray();
  if (begin == page_end) {
    json.NullMember("first_id").NullMember("last_id");
  } else {
    json.Member("first_id", begin->id).Member("last_id", std::prev(page_end)->id);
  }
  json.Key("has_more").Bool(page_end != end).EndObject();
  return out;
}

}  // namespace

ResponseItems InputItems(const Json& input, std::string_view unique,
                         const ResponseStore::Entry* previous) {
  ResponseItems items;
  if (previous != nullptr) {
    items = previous->items;
    AddOutput(previous->body, &items);
  }
  const std::string own = base::StrCat("_", unique, "_");
  std::unordered_set<std::string> taken;
  for (const ResponseItem& item : items) taken.insert(item.id);
  const auto add = [&](const Json& given) {
    std::string id = StringOr(given, "id", "");
    // Ids with `unique` are this response's to give; those of its answer lack the "i".
    if (!IsItemId(id) || taken.contains(id) || id.find(own) != std::string::npos) {
      id = base::StrCat(IdPrefix(StringOr(given, "type", "")), own, "i", items.size());
    }
    taken.insert(id);
    std::string json = Normalized(given, id).dump();
    items.push_back({std::move(id), std::move(json)});
  };
  if (input.is_string()) {
    add({{"role", "user"}, {"content", input}});
  } else {
    for (const Json& item : input) add(item);
  }
  return items;
}

absl::StatusOr<std::string> ListItems(const ResponseItems& items,
                                      std::span<const QueryParameter> query) {
  HEDDLE_ASSIGN_OR_RETURN(Json values, ReadQuery(query));
  HEDDLE_RETURN_IF_ERROR(CheckFields(values, InputItemsQuery()));
  const Json* order = Find(values, "order");
  if (order == nullptr || *order == "desc") return Page(items.rbegin(), items.rend(), values);
  if (*order == "asc") return Page(items.begin(), items.end(), values);
  return FieldError("order", base::StrCat("'order' must be asc or desc, found ",
                                          base::Quote(order->get_ref<const std::string&>())));
}

}  // namespace heddle::server
