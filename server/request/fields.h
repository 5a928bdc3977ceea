// Description of a request's field, and the checks by it: what validates fields is the same table
// (field_tables.h) that documents them, and that decides which of them can be read
// (request_fields.h).
//
// A field may always be null, which means its default. Unknown fields are ignored, as OpenAI's
// clients expect of servers older than they are; fields that this server knows of and cannot
// honour are refused, never ignored.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <span>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"
#include "server/request/json_input.h"

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
  kArrayOrObject,
  kSchema,  // a JSON schema: an object, a boolean, or the text of one
  kAny,     // any value
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
  std::span<const Field> members = {};  // of an object; empty: it is the client's own
};

// A field that is known, and why a value other than `only` is refused.
struct RefusedField {
  std::string_view name;
  std::string_view only;  // the one JSON value that is accepted besides null, or empty
  std::string_view reason;
};

// Presence, types and ranges of all members that `fields` names, and of theirs; the error's param
// is the field. `path` is the object's, for errors: "" or "stream_options".
absl::Status CheckFields(const Json& object, std::span<const Field> fields,
                         std::string_view path = "");
// INVALID_ARGUMENT for a member that is in neither list.
absl::Status CheckKnown(const Json& body, std::span<const Field> fields,
                        std::span<const RefusedField> refused);
absl::Status CheckRefused(const Json& body, std::span<const RefusedField> refused);

// Constants and functions to write tables of fields with.
namespace fields {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kMaxInt32 = std::numeric_limits<int32_t>::max();
inline constexpr double kMinInt64 = -0x1p63;
inline constexpr double kMaxUint64 = 0x1p64;  // the nearest double, and not within the type

// Names of tables' types, without their enum's.
using enum FieldType;

template <typename Table>
inline constexpr size_t kRowsOf = std::extent_v<Table>;
template <size_t n>
inline constexpr size_t kRowsOf<std::array<Field, n>> = n;

// Tables of one type of rows: Field or RefusedField.
template <typename First, typename... Tables>
constexpr auto Concat(const First& first, const Tables&... tables) {
  using Row = std::remove_cvref_t<decltype(first[0])>;
  std::array<Row, kRowsOf<First> + (kRowsOf<Tables> + ... + 0)> all{};
  auto end = all.begin();
  end = std::copy(std::begin(first), std::end(first), end);
  ((end = std::copy(std::begin(tables), std::end(tables), end)), ...);
  return all;
}

}  // namespace fields
}  // namespace heddle::server
