#include "server/simulation/json_lines.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/files/json_file.h"
#include "nlohmann/json.hpp"

namespace heddle::server {
namespace {

using base::Quote;
using base::StrCat;

std::string Shown(const nlohmann::json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

// A number as an integer, if it has no fraction and fits.
std::optional<int64_t> AsInteger(const nlohmann::json& value) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX}) return {};
  if (value.is_number_integer()) return value.get<int64_t>();
  return {};
}

bool IsBlank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace

const nlohmann::json* JsonLine::Find(std::string_view name) const {
  auto found = object_.find(std::string(name));
  return found == object_.end() ? nullptr : &*found;
}

bool JsonLine::Has(std::string_view name) const { return Find(name) != nullptr; }

absl::Status JsonLine::Error(std::string_view message) const {
  return absl::InvalidArgumentError(StrCat(place_, ": ", message));
}

absl::Status JsonLine::WrongField(std::string_view name, const std::string& expected) const {
  const nlohmann::json* value = Find(name);
  if (value == nullptr) return Error(StrCat("has no \"", name, "\"; expected ", expected));
  std::string shown = Shown(*value);
  if (shown.size() > 80) shown = shown.substr(0, 80) + "...";
  return Error(StrCat("\"", name, "\" is ", shown, "; expected ", expected));
}

absl::StatusOr<int64_t> JsonLine::Integer(std::string_view name, int64_t min, int64_t max) const {
  const nlohmann::json* value = Find(name);
  const std::optional<int64_t> number = value == nullptr ? std::nullopt : AsInteger(*value);
  if (number && *number >= min && *number <= max) return *number;
  return WrongField(name, StrCat("a whole number from ", min, " to ", max));
}

absl::StatusOr<double> JsonLine::Number(std::string_view name, double min, double max) const {
  const nlohmann::json* value = Find(name);
  if (value != nullptr && value->is_number()) {
    const double number = value->get<double>();
    if (number >= min && number <= max) return number;
  }
  return WrongField(name, StrCat("a number from ", min, " to ", max));
}

absl::StatusOr<std::string> JsonLine::Name(std::string_view name) const {
  const nlohmann::json* value = Find(name);
  if (value != nullptr && value->is_string()) return value->get<std::string>();
  if (value != nullptr && AsInteger(*value)) return Shown(*value);
  return WrongField(name, "a text or a whole number");
}

absl::Status JsonLine::OnlyFields(std::span<const std::string_view> known) const {
  for (const auto& [name, value] : object_.items()) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    auto append = [](std::string* out, std::string_view field) { out->append(field); };
    return Error(
        StrCat("unknown field ", Quote(name), "; known are ", absl::StrJoin(known, ", ", append)));
  }
  return absl::OkStatus();
}

absl::Status ForEachLine(std::string_view text, std::string_view name,
                         const std::function<absl::Status(const JsonLine&)>& take) {
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (IsBlank(line)) continue;
    const std::string place = StrCat(name, ":", number);
    if (line.size() > kMaxLineBytes) {
      return absl::InvalidArgumentError(StrCat(place, ": the line has ", line.size(),
                                               " bytes; expected at most ", kMaxLineBytes));
    }
    HEDDLE_ASSIGN_OR_RETURN(const nlohmann::json object, engine::ParseJson(line, place));
    if (!object.is_object()) {
      return absl::InvalidArgumentError(
          StrCat(place, ": found ", object.type_name(), "; expected one JSON object per line"));
    }
    HEDDLE_RETURN_IF_ERROR(take(JsonLine(object, place)));
  }
  return absl::OkStatus();
}

}  // namespace heddle::server
