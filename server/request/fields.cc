#include "server/request/fields.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/request/api_error.h"
#include "server/request/request_fields.h"

namespace heddle::server {
namespace {

using enum FieldType;
using fields::kInfinity;
using fields::kMaxUint64;
using fields::kMinInt64;

constexpr double kMaxInt64 = 0x1p63;  // the nearest double, which is beyond the type

bool IsInteger(const Json& value) {
  if (value.is_number_integer()) return true;
  return value.is_number_float() && std::trunc(value.get<double>()) == value.get<double>();
}

bool HasType(const Json& value, FieldType type) {
  switch (type) {
    case kBoolean:
      return value.is_boolean();
    case kInteger:
      return IsInteger(value);
    case kNumber:
      return value.is_number();
    case kString:
      return value.is_string();
    case kArray:
      return value.is_array();
    case kObject:
      return value.is_object();
    case kStringOrArray:
      return value.is_string() || value.is_array();
    case kStringOrObject:
      return value.is_string() || value.is_object();
    case kArrayOrObject:
      return value.is_array() || value.is_object();
    case kSchema:
      return value.is_string() || value.is_object() || value.is_boolean();
    case kAny:
      return true;
  }
  return false;
}

std::string_view TypeName(FieldType type) {
  switch (type) {
    case kBoolean:
      return "a boolean";
    case kInteger:
      return "an integer";
    case kNumber:
      return "a number";
    case kString:
      return "a string";
    case kArray:
      return "an array";
    case kObject:
      return "an object";
    case kStringOrArray:
      return "a string or an array";
    case kStringOrObject:
      return "a string or an object";
    case kArrayOrObject:
      return "an array or an object";
    case kSchema:
      return "a JSON schema";
    case kAny:
      return "a value";
  }
  return "";
}

// Shows whole numbers in full: 2147483647, not 2.14748e+09.
std::string Shown(double number) {
  if (number >= kMaxUint64) return base::StrCat(std::numeric_limits<uint64_t>::max());
  if (std::trunc(number) != number || number < kMinInt64) return base::StrCat(number);
  if (number >= kMaxInt64) return base::StrCat(static_cast<uint64_t>(number));
  return base::StrCat(static_cast<int64_t>(number));
}

std::string RangeText(const Field& field) {
  if (field.maximum == kInfinity) return base::StrCat("at least ", Shown(field.minimum));
  return base::StrCat("from ", Shown(field.minimum), " to ", Shown(field.maximum));
}

absl::Status CheckRange(const Json& value, const Field& field, std::string_view path) {
  if (value.is_boolean() || field.type == kAny) return absl::OkStatus();
  bool is_number = value.is_number();
  double measure = 0;
  std::string_view what = "";  // the counted unit, for values that are not numbers
  std::string_view must = " must be ";
  if (is_number) {
    measure = value.get<double>();
  } else if (value.is_string()) {
    measure = static_cast<double>(value.get_ref<const std::string&>().size());
    what = field.minimum == 1 && field.maximum == kInfinity ? " byte" : " bytes";
    must = " must have ";
  } else {
    measure = static_cast<double>(value.size());
    what = field.minimum == 1 && field.maximum == kInfinity ? " entry" : " entries";
    must = " must have ";
  }
  // 2^64 is the first number that the type cannot hold.
  const bool beyond =
      field.maximum == kMaxUint64 && measure == kMaxUint64 && value.is_number_float();
  if (measure >= field.minimum && measure <= field.maximum && !beyond) return absl::OkStatus();
  std::string found = is_number ? value.dump() : Shown(measure);
  return FieldError(path,
                    base::StrCat("'", path, "'", must, RangeText(field), what, ", found ", found));
}

absl::Status CheckField(const Json& value, const Field& field, std::string_view path) {
  if (!HasType(value, field.type)) {
    return FieldError(
        path,
        base::StrCat("'", path, "' must be ", TypeName(field.type), ", found ", JsonKind(value)),
        "invalid_type");
  }
  HEDDLE_RETURN_IF_ERROR(CheckRange(value, field, path));
  if (field.members.empty()) return absl::OkStatus();
  return CheckFields(value, field.members, path);  // as deep as the tables are
}

}  // namespace

absl::Status CheckFields(const Json& object, std::span<const Field> fields, std::string_view path) {
  for (const Field& field : fields) {
    const Json* value = Find(object, field.name);
    if (value == nullptr && !field.required) continue;
    const std::string full = base::StrCat(path, path.empty() ? "" : ".", field.name);
    if (value == nullptr) {
      return FieldError(full, base::StrCat("'", full, "' is missing"),
                        "missing_required_parameter");
    }
    HEDDLE_RETURN_IF_ERROR(CheckField(*value, field, full));
  }
  return absl::OkStatus();
}

absl::Status CheckRefused(const Json& body, std::span<const RefusedField> refused) {
  for (const RefusedField& field : refused) {
    const Json* value = Find(body, field.name);
    if (value == nullptr) continue;
    // Compares by value: 0 may be written as 0.0.
    if (!field.only.empty() && *value == Json::parse(field.only)) continue;
    return FieldError(field.name, base::StrCat("'", field.name, "': ", field.reason),
                      "unsupported_parameter");
  }
  return absl::OkStatus();
}

absl::Status CheckKnown(const Json& body, std::span<const Field> fields,
                        std::span<const RefusedField> refused) {
  auto named = [](std::string_view name) {
    return [name](const auto& field) { return field.name == name; };
  };
  for (auto it = body.begin(); it != body.end(); ++it) {
    if (std::any_of(fields.begin(), fields.end(), named(it.key())) ||
        std::any_of(refused.begin(), refused.end(), named(it.key()))) {
      continue;
    }
    std::string name = it.key().substr(0, 64);
    return FieldError(name, base::StrCat("this server knows no field ", base::Quote(name)),
                      "unknown_parameter");
  }
  return absl::OkStatus();
}

bool CheckedObject::BoolOr(std::string_view name, bool fallback) const {
  const Json* value = Member(name);
  return value != nullptr && value->is_boolean() ? value->get<bool>() : fallback;
}

int64_t CheckedObject::IntOr(std::string_view name, int64_t fallback) const {
  const Json* value = Member(name);
  if (value == nullptr || !value->is_number()) return fallback;
  if (const std::optional<int64_t> whole = IntegerOf(*value)) return *whole;
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const double number = value->get<double>();
  return number >= kMaxInt64 ? kMax : static_cast<int64_t>(std::max(number, kMinInt64));
}

uint64_t CheckedObject::UintOr0(std::string_view name) const {
  const Json* value = Member(name);
  return value != nullptr && value->is_number_unsigned() ? value->get<uint64_t>()
                                                         : static_cast<uint64_t>(IntOr(name, 0));
}

double CheckedObject::NumberOr(std::string_view name, double fallback) const {
  const Json* value = Member(name);
  return value == nullptr ? fallback : NumberOf(*value).value_or(fallback);
}

}  // namespace heddle::server
