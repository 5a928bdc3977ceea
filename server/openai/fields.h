// The fields of each request, as data: what validates them is the same table that documents them.
//
// A field may always be null, which means its default. Unknown fields are ignored, as OpenAI's
// clients expect of servers older than they are; fields that this server knows of and cannot
// honour are refused, never ignored.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "server/openai/json_input.h"

namespace heddle::server {

enum class FieldType : uint8_t {
  kBoolean,
  kInteger,
  kNumber,
  kString,
  kArray,
  kObject,
  kStringOrArray,
  kStringOrObject,
};

struct Field {
  std::string_view name;
  FieldType type;
  // Inclusive: of a number, of the length of a string or array, of the members of an object.
  double minimum = -std::numeric_limits<double>::infinity();
  double maximum = std::numeric_limits<double>::infinity();
  std::string_view default_value;  // JSON, or words in brackets; empty: none
  std::string_view description;
  bool required = false;
};

// A field that is known, and why a value other than `only` is refused.
struct RefusedField {
  std::string_view name;
  std::string_view only;  // the one JSON value that is accepted besides null, or empty
  std::string_view reason;
};

// In the order of the documentation.
std::span<const Field> CompletionFields();
std::span<const Field> ChatFields();
std::span<const Field> ResponsesFields();
std::span<const Field> MessagesFields();
std::span<const Field> EmbeddingFields();
std::span<const Field> ScoreFields();
std::span<const Field> RerankFields();
std::span<const Field> TokenizeFields();
std::span<const Field> DetokenizeFields();
std::span<const Field> InputItemsQuery();  // of a URL: its texts are read as these types
std::span<const RefusedField> RefusedChatFields();
std::span<const RefusedField> RefusedResponsesFields();

// Presence, types and ranges of all members that `fields` names; the error's param is the field.
absl::Status CheckFields(const Json& body, std::span<const Field> fields);
// INVALID_ARGUMENT for a member that is in neither list.
absl::Status CheckKnown(const Json& body, std::span<const Field> fields,
                        std::span<const RefusedField> refused);
absl::Status CheckRefused(const Json& body, std::span<const RefusedField> refused);

// Values of fields that CheckFields has passed; `fallback` where missing or null. Integers may be
// written as 3.0.
bool GetBool(const Json& body, std::string_view name, bool fallback);
int64_t GetInt(const Json& body, std::string_view name, int64_t fallback);
double GetNumber(const Json& body, std::string_view name, double fallback);

}  // namespace heddle::server
