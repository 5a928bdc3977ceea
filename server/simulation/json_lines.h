// Files of one JSON object per line, read field by field. Every message begins with file:line and
// says what was found and what is expected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace heddle::server {

// Lines of a trace or a profile have a few hundred bytes at most.
inline constexpr size_t kMaxLineBytes = size_t{64} << 10;

// One line's object. Refers to the JSON value that it was made from.
class JsonLine {
 public:
  JsonLine(const nlohmann::json& object, std::string place)
      : object_(object), place_(std::move(place)) {}

  // A field in a range, both ends included; INVALID_ARGUMENT if it is missing, of another type or
  // outside. Whole numbers may not have a fraction.
  absl::StatusOr<int64_t> Integer(std::string_view name, int64_t min, int64_t max) const;
  absl::StatusOr<double> Number(std::string_view name, double min, double max) const;
  // Text, or a whole number as text.
  absl::StatusOr<std::string> Name(std::string_view name) const;
  bool Has(std::string_view name) const;

  // An error for a line whose parts are valid but contradict each other.
  absl::Status Error(std::string_view message) const;

  // INVALID_ARGUMENT for fields that are not in `known`; names them.
  absl::Status OnlyFields(std::span<const std::string_view> known) const;

 private:
  const nlohmann::json* Find(std::string_view name) const;
  absl::Status WrongField(std::string_view name, const std::string& expected) const;

  const nlohmann::json& object_;
  const std::string place_;  // "trace.jsonl:17"
};

// Calls `take` for each line of `text` that is not blank, until one fails. `name` is the file's.
absl::Status ForEachLine(std::string_view text, std::string_view name,
                         const std::function<absl::Status(const JsonLine&)>& take);

}  // namespace heddle::server
