#include "config/values.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "absl/strings/ascii.h"
#include "base/message.h"
#include "base/status.h"
#include "base/strings.h"

namespace heddle::config {
namespace {

using base::Quote;
using base::StrCat;

absl::Status Invalid(const std::string& message) { return absl::InvalidArgumentError(message); }

std::string_view Trim(std::string_view text) {
  while (!text.empty() && absl::ascii_isspace(static_cast<unsigned char>(text.front()))) {
    text.remove_prefix(1);
  }
  while (!text.empty() && absl::ascii_isspace(static_cast<unsigned char>(text.back()))) {
    text.remove_suffix(1);
  }
  return text;
}

struct Unit {
  std::string_view name;
  double factor;
};

constexpr Unit kByteUnits[] = {{"", 1},
                               {"B", 1},
                               {"KiB", 1024.0},
                               {"MiB", 1048576.0},
                               {"GiB", 1073741824.0},
                               {"TiB", 1099511627776.0},
                               {"KB", 1e3},
                               {"MB", 1e6},
                               {"GB", 1e9},
                               {"TB", 1e12}};
constexpr Unit kTimeUnits[] = {{"", 1},   {"s", 1},    {"ms", 1e-3},
                               {"m", 60}, {"min", 60}, {"h", 3600}};

bool EqualIgnoringCase(std::string_view a, std::string_view b) {
  return a.size() == b.size() &&
         absl::AsciiStrToLower(base::AbslView(a)) == absl::AsciiStrToLower(base::AbslView(b));
}

// Parses text like "1.5 GiB" to a number times its unit's factor; negative if invalid.
double ParseWithUnit(std::string_view text, std::span<const Unit> units) {
  text = Trim(text);
  size_t end = text.find_first_not_of("0123456789.");
  std::string_view unit = end == text.npos ? "" : Trim(text.substr(end));
  absl::StatusOr<double> number = ParseNumber(text.substr(0, end));
  if (!number.ok()) return -1;
  for (const Unit& candidate : units) {
    if (EqualIgnoringCase(candidate.name, unit)) return *number * candidate.factor;
  }
  return -1;
}

template <typename Number>
std::string NumberText(Number number) {
  if (number == std::floor(static_cast<double>(number)) && std::fabs(number) < 1e15) {
    return StrCat(static_cast<int64_t>(number));
  }
  return StrCat(number);
}

absl::Status CheckRange(const Option& option, double value, std::string_view shown) {
  if (value >= option.min && value <= option.max) return absl::OkStatus();
  bool bytes = std::holds_alternative<Bytes Config::*>(option.field);
  auto text = [bytes](double bound) {
    return bytes ? base::ExactBytes(static_cast<uint64_t>(bound)) : NumberText(bound);
  };
  if (std::isinf(option.max))
    return Invalid(StrCat("must be at least ", text(option.min), ", not ", shown));
  return Invalid(
      StrCat("must be between ", text(option.min), " and ", text(option.max), ", not ", shown));
}

absl::Status CheckChoice(const Option& option, std::string_view text) {
  if (option.choices.empty()) return absl::OkStatus();
  std::string list;
  for (std::string_view choice : option.choices) {
    if (choice == text) return absl::OkStatus();
    list += StrCat(list.empty() ? "" : ", ", choice);
  }
  return Invalid(StrCat("must be one of ", list, ", not ", Quote(text)));
}

// Parses one text into the type of a field, with its checks.
struct Reader {
  const Option& option;
  std::span<const std::string> texts;
  Config* config;

  const std::string& text() const { return texts.back(); }

  absl::Status operator()(const EnumField& field) const {
    HEDDLE_RETURN_IF_ERROR(CheckChoice(option, text()));
    const auto found = std::find(option.choices.begin(), option.choices.end(), text());
    field.set(config, static_cast<size_t>(found - option.choices.begin()));
    return absl::OkStatus();
  }
  absl::Status operator()(bool Config::*field) const {
    HEDDLE_ASSIGN_OR_RETURN(config->*field, ParseBool(text()));
    return absl::OkStatus();
  }
  absl::Status operator()(int64_t Config::*field) const {
    HEDDLE_ASSIGN_OR_RETURN(int64_t value, ParseInteger(text()));
    HEDDLE_RETURN_IF_ERROR(CheckRange(option, static_cast<double>(value), text()));
    config->*field = value;
    return absl::OkStatus();
  }
  absl::Status operator()(std::optional<int64_t> Config::*field) const {
    HEDDLE_ASSIGN_OR_RETURN(int64_t value, ParseInteger(text()));
    HEDDLE_RETURN_IF_ERROR(CheckRange(option, static_cast<double>(value), text()));
    config->*field = value;
    return absl::OkStatus();
  }
  absl::Status operator()(std::optional<double> Config::*field) const {
    HEDDLE_ASSIGN_OR_RETURN(double value, ParseNumber(text()));
    HEDDLE_RETURN_IF_ERROR(CheckRange(option, value, text()));
    config->*field = value;
    return absl::OkStatus();
  }
  absl::Status operator()(NumbersByName Config::*field) const {
    double value = 0;
    if (option.is_integer) {
      HEDDLE_ASSIGN_OR_RETURN(const int64_t integer, ParseInteger(text()));
      value = static_cast<double>(integer);
    } else {
      HEDDLE_ASSIGN_OR_RETURN(value, ParseNumber(text()));
    }
    HEDDLE_RETURN_IF_ERROR(CheckRange(option, value, text()));
    (config->*field)[UnderscoredName(option)] = value;
    return absl::OkStatus();
  }
  absl::Status operator()(std::optional<std::string> Config::*field) const {
    HEDDLE_RETURN_IF_ERROR(CheckChoice(option, text()));
    config->*field = text();
    return absl::OkStatus();
  }
  absl::Status operator()(std::string Config::*field) const {
    HEDDLE_RETURN_IF_ERROR(CheckChoice(option, text()));
    config->*field = text();
    return absl::OkStatus();
  }
  absl::Status operator()(std::vector<std::string> Config::*field) const {
    std::vector<std::string> values;
    for (std::string_view rest : texts) {
      while (option.splits_commas && rest.find(',') != rest.npos) {
        values.emplace_back(Trim(rest.substr(0, rest.find(','))));
        rest.remove_prefix(rest.find(',') + 1);
      }
      values.emplace_back(option.splits_commas ? Trim(rest) : rest);
    }
    for (const std::string& value : values) {
      if (value.empty()) return Invalid("must not be empty");
    }
    config->*field = std::move(values);
    return absl::OkStatus();
  }
  absl::Status operator()(Bytes Config::*field) const {
    HEDDLE_ASSIGN_OR_RETURN(Bytes value, ParseBytes(text()));
    HEDDLE_RETURN_IF_ERROR(CheckRange(option, static_cast<double>(value.value), text()));
    config->*field = value;
    return absl::OkStatus();
  }
  absl::Status operator()(Seconds Config::*field) const {
    HEDDLE_ASSIGN_OR_RETURN(Seconds value, ParseSeconds(text()));
    HEDDLE_RETURN_IF_ERROR(CheckRange(option, value.value, text()));
    config->*field = value;
    return absl::OkStatus();
  }
  absl::Status operator()(MemorySize Config::*field) const {
    HEDDLE_ASSIGN_OR_RETURN(config->*field, ParseMemorySize(text()));
    return absl::OkStatus();
  }
};

}  // namespace

absl::StatusOr<int64_t> ParseInteger(std::string_view text) {
  std::string_view digits = Trim(text);
  if (digits.starts_with('+')) digits.remove_prefix(1);
  int64_t value = 0;
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    return Invalid(StrCat("must be a whole number, not ", Quote(text)));
  }
  return value;
}

absl::StatusOr<double> ParseNumber(std::string_view text) {
  std::string_view digits = Trim(text);
  double value = 0;
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || !std::isfinite(value)) {
    return Invalid(StrCat("must be a number, not ", Quote(text)));
  }
  return value;
}

absl::StatusOr<bool> ParseBool(std::string_view text) {
  std::string lower = absl::AsciiStrToLower(base::AbslView(Trim(text)));
  if (lower == "true" || lower == "yes" || lower == "on" || lower == "1") return true;
  if (lower == "false" || lower == "no" || lower == "off" || lower == "0") return false;
  return Invalid(StrCat("must be true or false, not ", Quote(text)));
}

absl::StatusOr<Bytes> ParseBytes(std::string_view text) {
  double value = ParseWithUnit(text, kByteUnits);
  if (value < 0) {
    return Invalid(
        StrCat("must be a size such as 8MiB, 4GiB or 1000000 (units: B, KiB, MiB, GiB, "
               "TiB, KB, MB, GB, TB), not ",
               Quote(text)));
  }
  if (value >= 9e18) return Invalid(StrCat("is larger than any memory: ", Quote(text)));
  return Bytes{static_cast<uint64_t>(value)};
}

absl::StatusOr<Seconds> ParseSeconds(std::string_view text) {
  double value = ParseWithUnit(text, kTimeUnits);
  if (value >= 0) return Seconds{value};
  return Invalid(StrCat("must be a time such as 30, 1.5s, 500ms, 2m or 1h, not ", Quote(text)));
}

absl::StatusOr<MemorySize> ParseMemorySize(std::string_view text) {
  std::string_view trimmed = Trim(text);
  MemorySize size;
  if (EqualIgnoringCase(trimmed, "auto")) return size;
  if (trimmed.ends_with('%')) {
    absl::StatusOr<double> percent = ParseNumber(trimmed.substr(0, trimmed.size() - 1));
    if (!percent.ok() || *percent <= 0 || *percent > 100) {
      return Invalid(StrCat("must be a share above 0% and up to 100%, not ", Quote(text)));
    }
    size.kind = MemorySize::Kind::kShare;
    size.share = *percent / 100;
    return size;
  }
  absl::StatusOr<Bytes> bytes = ParseBytes(trimmed);
  if (!bytes.ok() || bytes->value == 0) {
    return Invalid(
        StrCat("must be auto, a size such as 4GiB, or a share of the free memory such "
               "as 60%, not ",
               Quote(text)));
  }
  size.kind = MemorySize::Kind::kBytes;
  size.bytes = bytes->value;
  return size;
}

uint64_t MemorySize::Resolve(uint64_t free_bytes, double automatic_share) const {
  if (kind == Kind::kBytes) return bytes;
  double part = kind == Kind::kShare ? share : automatic_share;
  return static_cast<uint64_t>(static_cast<double>(free_bytes) * part);
}

absl::Status SetOption(const Option& option, std::span<const std::string> texts,
                       std::string_view origin, Config* config) {
  if (texts.empty()) return Invalid(StrCat(origin, " needs a value"));
  const auto is_blank = [](const std::string& text) { return Trim(text).empty(); };
  if (option.needs_value && std::any_of(texts.begin(), texts.end(), is_blank)) {
    return Invalid(StrCat(origin, " must not be empty; to go without it, do not set it at all"));
  }
  absl::Status status = std::visit(Reader{option, texts, config}, option.field);
  if (status.ok()) return status;
  return absl::Status(status.code(), StrCat(origin, " ", status.message()));
}

}  // namespace heddle::config
