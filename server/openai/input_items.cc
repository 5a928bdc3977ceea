#include "server/openai/input_items.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/json_writer.h"
#include "server/openai/api_fields.h"
#include "server/request/api_error.h"
#include "server/request/request_fields.h"

namespace heddle::server {
namespace {

using QueryFields = RequestFields<fields::kInputItemsQuery>;

constexpr size_t kMaxIdBytes = 128;
constexpr int64_t kDefaultLimit = 20;

Json ArrayOrEmpty(const Json& object, std::string_view name) {
  const Json* value = Find(object, name);
  return value != nullptr && value->is_array() ? *value : Json::array();
}

std::string_view IdPrefix(std::string_view type) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 12> kPrefixes = {{
      {"compaction", "cmp"},
      {"function_call", "fc"},
      {"function_call_output", "fco"},
      {"custom_tool_call", "ctc"},
      {"custom_tool_call_output", "ctco"},
      {"local_shell_call", "lsh"},
      {"local_shell_call_output", "lsho"},
      {"shell_call", "sh"},
      {"shell_call_output", "sho"},
      {"apply_patch_call", "apc"},
      {"apply_patch_call_output", "apco"},
      {"reasoning", "rs"},
  }};
  for (const auto& [name, prefix] : kPrefixes) {
    if (name == type) return prefix;
  }
  return "msg";
}

// Whether the id can be used in a URL without escapes.
bool IsItemId(std::string_view id) {
  return !id.empty() && id.size() <= kMaxIdBytes && std::all_of(id.begin(), id.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
  });
}

Json TextPart(std::string_view role, std::string_view text) {
  if (role != "assistant") return {{"type", "input_text"}, {"text", text}};
  return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}};
}

// Converts a text, or parts that are texts, to parts.
Json MessageParts(const Json& item, std::string_view role) {
  Json parts = Json::array();
  const Json* content = Find(item, "content");
  if (content == nullptr) return parts;
  if (const std::string* text = TextOf(content)) parts.push_back(TextPart(role, *text));
  if (!content->is_array()) return parts;
  for (const Json& part : *content) {
    if (const std::string* text = TextOf(&part)) {
      parts.push_back(TextPart(role, *text));
    } else if (TextOr(part, "type", "") == "refusal") {
      parts.push_back({{"type", "refusal"}, {"refusal", TextOr(part, "refusal", "")}});
    } else {
      parts.push_back(TextPart(role, TextOr(part, "text", "")));
    }
  }
  return parts;
}

std::string Status(const Json& item) {
  std::string status = TextOr(item, "status", "");
  const bool is_known = status == "incomplete" || status == "in_progress";
  return is_known ? status : "completed";
}

// The members that the API knows of an item, in the order of answers.
Json Normalized(const Json& given, std::string id) {
  const std::string type = TextOr(given, "type", "message");
  Json item = {{"id", std::move(id)}, {"type", type}, {"status", Status(given)}};
  const auto copy = [&](std::initializer_list<const char*> names) {
    for (const char* name : names) {
      if (const Json* value = Find(given, name)) item[name] = *value;
    }
  };
  if (type == "function_call") {
    item["call_id"] = TextOr(given, "call_id", TextOr(given, "id", ""));
    item["name"] = TextOr(given, "name", "");
    item["arguments"] = TextOr(given, "arguments", "{}");
    copy({"namespace"});
  } else if (type == "function_call_output") {
    const Json* output = Find(given, "output");
    item["call_id"] = TextOr(given, "call_id", "");
    item["output"] = output == nullptr ? Json("") : *output;
  } else if (type != "message" && type != "reasoning") {
    copy({"call_id", "name", "input", "output", "action", "encrypted_content"});
  } else if (type == "reasoning") {
    item["summary"] = ArrayOrEmpty(given, "summary");
    item["content"] = ArrayOrEmpty(given, "content");
  } else {
    item["role"] = TextOr(given, "role", "user");
    item["content"] = MessageParts(given, TextOr(given, "role", "user"));
  }
  return item;
}

// The parameters that InputItemsQuery names, in the form of a body.
absl::StatusOr<Json> ReadQuery(std::span<const QueryParameter> query) {
  for (const auto& [name, value] : query) {
    if (name == "before") {  // OpenAI once had it: without it the page would be another
      return FieldError(name, "'before' is not supported; give 'after' with another 'order'",
                        "unsupported_parameter");
    }
  }
  return QueryObject(fields::kInputItemsQuery, query);
}

// A page of `items` in their order; `begin` and `end` are iterators, forwards or backwards.
template <typename Iterator>
absl::StatusOr<std::string> Page(Iterator begin, Iterator end, const QueryFields& query) {
  if (const std::string* after = query.Text<"after">()) {
    const std::string& id = *after;
    begin = std::find_if(begin, end, [&id](const ResponseItem& item) { return item.id == id; });
    if (begin == end) {
      return FieldError("after",
                        base::StrCat("'after' must be the id of an item of this response, found ",
                                     base::Quote(id)));
    }
    ++begin;
  }
  const Iterator page_end =
      begin + std::min<int64_t>(end - begin, query.Int<"limit">(kDefaultLimit));
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

void AddOutputItems(const std::string& body, ResponseItems* items) {
  const Json response = Json::parse(body);
  for (Json item : ArrayOrEmpty(response, "output")) {
    if (item.contains("content")) {
      for (Json& part : item["content"]) {
        if (part.contains("logprobs")) part["logprobs"] = Json::array();
      }
    }
    items->push_back({TextOr(item, "id", ""), item.dump()});
  }
}

ResponseItems InputItems(const Json& input, std::string_view unique,
                         const ResponseStore::Entry* previous) {
  ResponseItems items;
  if (previous != nullptr) {
    items = previous->items;
    AddOutputItems(previous->body, &items);
  }
  const std::string own = base::StrCat("_", unique, "_");
  std::unordered_set<std::string> taken;
  for (const ResponseItem& item : items) taken.insert(item.id);
  const auto add = [&](const Json& given) {
    std::string id = TextOr(given, "id", "");
    // Ids with `unique` are assigned by this response; those of its answer lack the "i".
    if (!IsItemId(id) || taken.contains(id) || id.find(own) != std::string::npos) {
      id = base::StrCat(IdPrefix(TextOr(given, "type", "")), own, "i", items.size());
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
  HEDDLE_ASSIGN_OR_RETURN(const Json values, ReadQuery(query));
  HEDDLE_ASSIGN_OR_RETURN(const QueryFields fields, QueryFields::Check(values));
  const std::string* order = fields.Text<"order">();
  if (order == nullptr || *order == "desc") return Page(items.rbegin(), items.rend(), fields);
  if (*order == "asc") return Page(items.begin(), items.end(), fields);
  return FieldError("order",
                    base::StrCat("'order' must be asc or desc, found ", base::Quote(*order)));
}

}  // namespace heddle::server
