#include "server/request/query_fields.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "base/message.h"
#include "nlohmann/json.hpp"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

// CheckFields refuses texts where a number is due.
Json QueryValue(const Field& field, const std::string& text) {
  int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  const bool is_number =
      field.type == FieldType::kInteger && parsed.ec == std::errc() && parsed.ptr == end;
  return is_number ? Json(number) : Json(text);
}

}  // namespace

absl::StatusOr<Json> QueryObject(std::span<const Field> table,
                                 std::span<const QueryParameter> query) {
  Json values = Json::object();
  for (const auto& [name, value] : query) {
    const auto is_named = [&name = name](const Field& field) { return field.name == name; };
    const auto field = std::find_if(table.begin(), table.end(), is_named);
    if (field == table.end()) continue;
    if (values.contains(name)) {
      return FieldError(name, base::StrCat("'", name, "' is given more than once"));
    }
    values[name] = QueryValue(*field, value);
  }
  return values;
}

}  // namespace heddle::server
