#include "engine/family/config_source.h"

#include <cmath>
#include <limits>

#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {

using nlohmann::json;

absl::Status ConfigSource::Error(std::string_view key, std::string_view found,
                                 std::string_view expected) const {
  return absl::InvalidArgumentError(base::StrCat(file_, ": ",
                                                 base::Quote(prefix_ + std::string(key)), " is ",
                                                 found, ", expected ", expected));
}

absl::Status ConfigSource::Unsupported(std::string_view key, std::string_view found,
                                       std::string_view expected) const {
  return absl::UnimplementedError(base::StrCat(file_, ": ", base::Quote(prefix_ + std::string(key)),
                                               " is ", found, ", which is not supported; ",
                                               expected));
}

absl::StatusOr<int32_t> ConfigSource::Dim(std::string_view key, int64_t max) const {
  if (!Has(key)) return Error(key, "missing", base::StrCat("an integer from 1 to ", max));
  HEDDLE_ASSIGN_OR_RETURN(int64_t value, Int(key));
  if (value < 1 || value > max) {
    return Error(key, base::StrCat(value), base::StrCat("an integer from 1 to ", max));
  }
  return static_cast<int32_t>(value);
}

absl::StatusOr<int32_t> ConfigSource::DimOr(std::string_view key, int64_t max,
                                            int32_t absent) const {
  if (!Has(key)) return absent;
  return Dim(key, max);
}

absl::StatusOr<double> ConfigSource::Positive(std::string_view key, double max) const {
  std::string expected = base::StrCat("a number above 0 and up to ", max);
  if (!Has(key)) return Error(key, "missing", expected);
  HEDDLE_ASSIGN_OR_RETURN(double value, Float(key));
  if (!(value > 0.0 && value <= max)) return Error(key, base::StrCat(value), expected);
  return value;
}

absl::StatusOr<double> ConfigSource::PositiveOr(std::string_view key, double max,
                                                double absent) const {
  if (!Has(key)) return absent;
  return Positive(key, max);
}

absl::StatusOr<bool> ConfigSource::BoolOr(std::string_view key, bool absent) const {
  if (!Has(key)) return absent;
  return Bool(key);
}

absl::StatusOr<std::string> ConfigSource::StringOr(std::string_view key,
                                                   std::string_view absent) const {
  if (!Has(key)) return std::string(absent);
  return String(key);
}

JsonSource::JsonSource(std::string file, const json& object, std::string prefix)
    : ConfigSource(std::move(file), std::move(prefix)), object_(&object) {}

std::string JsonSource::Show(const json& value) {
  constexpr size_t kMaxShown = 60;
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kMaxShown) text = text.substr(0, kMaxShown) + "...";
  return text;
}

const json* JsonSource::Find(std::string_view key) const {
  Note(key);
  auto it = object_->find(key);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

std::vector<JsonSource::UnreadKey> JsonSource::Unread() const {
  std::vector<UnreadKey> unread;
  for (auto it = object_->begin(); it != object_->end(); ++it) {
    if (it->is_null()) continue;
    if (!WasAsked(it.key())) unread.push_back({*this, it.key(), &*it});
    const std::string inside = base::StrCat(prefix_, it.key(), ".");
    const auto first = asked_->lower_bound(inside);
    if (!it->is_object() || first == asked_->end() || !first->starts_with(inside)) continue;
    JsonSource object(file_, *it, inside);
    object.asked_ = asked_;
    for (UnreadKey& key : object.Unread()) unread.push_back(std::move(key));
  }
  return unread;
}

bool JsonSource::IsNull(std::string_view key) const {
  Note(key);
  auto it = object_->find(key);
  return it != object_->end() && it->is_null();
}

bool JsonSource::Has(std::string_view key) const { return Find(key) != nullptr; }

absl::StatusOr<int64_t> JsonSource::Int(std::string_view key) const {
  const json* value = Find(key);
  if (value == nullptr) return Error(key, "missing", "an integer");
  if (value->is_number_unsigned()) {
    uint64_t number = value->get<uint64_t>();
    constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
    if (number <= kMax) return static_cast<int64_t>(number);
  } else if (value->is_number_integer()) {
    return value->get<int64_t>();
  }
  return Error(key, Show(*value), "an integer");
}

absl::StatusOr<double> JsonSource::Float(std::string_view key) const {
  const json* value = Find(key);
  if (value == nullptr) return Error(key, "missing", "a number");
  if (!value->is_number()) return Error(key, Show(*value), "a number");
  return value->get<double>();  // the parser admits neither infinity nor NaN
}

absl::StatusOr<bool> JsonSource::Bool(std::string_view key) const {
  const json* value = Find(key);
  if (value == nullptr) return Error(key, "missing", "true or false");
  if (!value->is_boolean()) return Error(key, Show(*value), "true or false");
  return value->get<bool>();
}

absl::StatusOr<std::string> JsonSource::String(std::string_view key) const {
  const json* value = Find(key);
  if (value == nullptr) return Error(key, "missing", "a string");
  if (!value->is_string()) return Error(key, Show(*value), "a string");
  return value->get<std::string>();
}

absl::StatusOr<std::optional<JsonSource>> JsonSource::Object(std::string_view key) const {
  const json* value = Find(key);
  if (value == nullptr) return std::optional<JsonSource>();
  if (!value->is_object()) return Error(key, Show(*value), "an object");
  JsonSource object(file_, *value, base::StrCat(prefix_, key, "."));
  object.asked_ = asked_;
  return std::optional<JsonSource>(std::move(object));
}

GgufSource::GgufSource(const GgufFile& gguf, std::string_view architecture)
    : ConfigSource(gguf.name(), std::string(architecture) + "."), gguf_(gguf) {}

std::string GgufSource::FullKey(std::string_view key) const {
  Note(key);
  return prefix_ + std::string(key);
}

std::vector<std::string> GgufSource::Unread() const {
  std::vector<std::string> unread;
  for (std::string_view key : gguf_.keys()) {
    if (!key.starts_with(prefix_)) continue;
    key.remove_prefix(prefix_.size());
    if (!WasAsked(key)) unread.emplace_back(key);
  }
  return unread;
}

bool GgufSource::Has(std::string_view key) const { return gguf_.Has(FullKey(key)); }

absl::StatusOr<int64_t> GgufSource::Int(std::string_view key) const {
  return gguf_.Int(FullKey(key));
}

absl::StatusOr<double> GgufSource::Float(std::string_view key) const {
  HEDDLE_ASSIGN_OR_RETURN(double value, gguf_.Float(FullKey(key)));
  if (!std::isfinite(value)) return Error(key, base::StrCat(value), "a finite number");
  return value;
}

absl::StatusOr<bool> GgufSource::Bool(std::string_view key) const {
  return gguf_.Bool(FullKey(key));
}

absl::StatusOr<std::string> GgufSource::String(std::string_view key) const {
  HEDDLE_ASSIGN_OR_RETURN(std::string_view value, gguf_.String(FullKey(key)));
  return std::string(value);
}

}  // namespace heddle::engine
