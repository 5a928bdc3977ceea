// Typed access to an untrusted JSON document, with messages that give the place of a missing or
// wrong value. Only for .cc files: nlohmann's header is heavy.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace heddle::engine::text {

// A value and its place, for example "tokenizer.json: model.vocab". Does not own the value.
class JsonNode {
 public:
  JsonNode(const nlohmann::json* value, std::string place)
      : value_(value), place_(std::move(place)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& place() const { return place_; }
  bool is_string() const { return value_->is_string(); }
  bool is_object() const { return value_->is_object(); }

  // INVALID_ARGUMENT "<place>: expected <expected>, found <what>".
  absl::Status Wrong(std::string_view expected) const;

  // A member that is present and not null. The value may be of any kind: only objects have members.
  std::optional<JsonNode> Find(std::string_view key) const;
  absl::StatusOr<JsonNode> Get(std::string_view key) const;

  absl::StatusOr<std::string> String(std::string_view key) const;
  absl::StatusOr<std::string> StringOr(std::string_view key, std::string_view absent) const;
  absl::StatusOr<bool> BoolOr(std::string_view key, bool absent) const;
  absl::StatusOr<int64_t> Int(std::string_view key) const;
  absl::StatusOr<std::vector<JsonNode>> Array(std::string_view key) const;
  // The member "type", which names the kind of a step.
  absl::StatusOr<std::string> Type() const { return String("type"); }

  absl::StatusOr<std::string> AsString() const;

 private:
  JsonNode Member(const nlohmann::json& value, std::string_view key) const;

  const nlohmann::json* value_;
  std::string place_;
};

}  // namespace heddle::engine::text
