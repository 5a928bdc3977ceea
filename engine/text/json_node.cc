#include "engine/text/json_node.h"

#include <utility>

#include "base/message.h"
#include "base/status.h"

namespace heddle::engine::text {
namespace {

// A part of the value, long enough to recognise it.
std::string Excerpt(const nlohmann::json& value) {
  if (value.is_object()) return base::StrCat("an object of ", value.size(), " members");
  if (value.is_array()) return base::StrCat("an array of ", value.size());
  const std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return text.size() <= 60 ? text : base::StrCat(text.substr(0, 60), "...");
}

}  // namespace

absl::Status JsonNode::Wrong(std::string_view expected) const {
  return absl::InvalidArgumentError(
      base::StrCat(place_, ": expected ", expected, ", found ", Excerpt(*value_)));
}

JsonNode JsonNode::Member(const nlohmann::json& value, std::string_view key) const {
  const bool at_root = place_.ends_with(".json");
  return JsonNode(&value, base::StrCat(place_, at_root ? ": " : ".", key));
}

std::optional<JsonNode> JsonNode::Find(std::string_view key) const {
  if (!value_->is_object()) return std::nullopt;
  const auto found = value_->find(std::string(key));
  if (found == value_->end() || found->is_null()) return std::nullopt;
  return Member(*found, key);
}

absl::StatusOr<JsonNode> JsonNode::Get(std::string_view key) const {
  if (!value_->is_object()) return Wrong("an object");
  auto node = Find(key);
  if (!node) return absl::InvalidArgumentError(base::StrCat(place_, ": '", key, "' is missing"));
  return *std::move(node);
}

absl::StatusOr<std::string> JsonNode::AsString() const {
  if (!value_->is_string()) return Wrong("a string");
  return value_->get_ref<const std::string&>();
}

absl::StatusOr<std::string> JsonNode::String(std::string_view key) const {
  HEDDLE_ASSIGN_OR_RETURN(const JsonNode node, Get(key));
  return node.AsString();
}

absl::StatusOr<std::string> JsonNode::StringOr(std::string_view key,
                                               std::string_view absent) const {
  const auto node = Find(key);
  return node ? node->AsString() : std::string(absent);
}

absl::StatusOr<bool> JsonNode::BoolOr(std::string_view key, bool absent) const {
  const auto node = Find(key);
  if (!node) return absent;
  if (!node->value().is_boolean()) return node->Wrong("true or false");
  return node->value().get<bool>();
}

absl::StatusOr<int64_t> JsonNode::Int(std::string_view key) const {
  HEDDLE_ASSIGN_OR_RETURN(const JsonNode node, Get(key));
  const nlohmann::json& value = node.value();
  if (!value.is_number_integer()) return node.Wrong("an integer");
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    return node.Wrong("an integer below 2^63");
  }
  return value.get<int64_t>();
}

absl::StatusOr<std::vector<JsonNode>> JsonNode::Array(std::string_view key) const {
  HEDDLE_ASSIGN_OR_RETURN(const JsonNode node, Get(key));
  if (!node.value().is_array()) return node.Wrong("an array");
  std::vector<JsonNode> elements;
  elements.reserve(node.value().size());
  for (size_t i = 0; i < node.value().size(); ++i) {
    elements.emplace_back(&node.value()[i], base::StrCat(node.place(), "[", i, "]"));
  }
  return elements;
}

}  // namespace heddle::engine::text
