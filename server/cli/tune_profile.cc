#include "server/cli/tune_profile.h"

#include <limits>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/message.h"
#include "base/status.h"
#include "server/simulation/json_lines.h"

namespace heddle::server {
namespace {

constexpr std::string_view kEach = " ranks, each ";
constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
constexpr std::string_view kFields[] = {"device",      "min_rows", "max_rows",
                                        "min_context", "split",    "attention_multiprocessors",
                                        "speedup"};

absl::StatusOr<int32_t> Count(const JsonLine& line, std::string_view name, int64_t min,
                              int64_t max) {
  HEDDLE_ASSIGN_OR_RETURN(const int64_t value, line.Integer(name, min, max));
  return static_cast<int32_t>(value);
}

absl::Status TakeRule(const JsonLine& line, kernels::NanoBatchProfile* profile) {
  HEDDLE_RETURN_IF_ERROR(line.OnlyFields(kFields));
  HEDDLE_ASSIGN_OR_RETURN(const std::string device, line.Name("device"));
  if (profile->rules.empty()) profile->device_name = device;
  if (device != profile->device_name) {
    return line.Error(base::StrCat("\"device\" is ", base::Quote(device), "; expected ",
                                   base::Quote(profile->device_name),
                                   " as in the lines before: a profile is of one device"));
  }
  if (profile->rules.size() == kMaxTuneRules) {
    return line.Error(
        base::StrCat("is one rule too many; a profile has ", kMaxTuneRules, " at most"));
  }
  kernels::NanoBatchRule rule;
  HEDDLE_ASSIGN_OR_RETURN(rule.min_rows, Count(line, "min_rows", 0, kMost));
  HEDDLE_ASSIGN_OR_RETURN(rule.max_rows, Count(line, "max_rows", rule.min_rows, kMost));
  HEDDLE_ASSIGN_OR_RETURN(rule.min_context, Count(line, "min_context", 0, kMost));
  HEDDLE_ASSIGN_OR_RETURN(rule.attention_multiprocessors,
                          Count(line, "attention_multiprocessors", 0, 1 << 16));
  HEDDLE_ASSIGN_OR_RETURN(const int32_t split, Count(line, "split", 0, 1));
  rule.split = split == 1;
  profile->rules.push_back(rule);
  return absl::OkStatus();
}

// Escapes a device's name, which comes from outside.
std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out + "\"";
}

}  // namespace

absl::StatusOr<kernels::NanoBatchProfile> ReadTuneProfile(std::string_view text,
                                                          std::string_view name) {
  kernels::NanoBatchProfile profile;
  HEDDLE_RETURN_IF_ERROR(
      ForEachLine(text, name, [&](const JsonLine& line) { return TakeRule(line, &profile); }));
  if (!profile.rules.empty()) return profile;
  return absl::InvalidArgumentError(
      base::StrCat(name, ": has no rules; expected the lines that `heddle tune` writes"));
}

std::string TunedDevice(int32_t tp, const std::string& device) {
  return tp > 1 ? base::StrCat(tp, kEach, device) : device;
}

absl::StatusOr<kernels::NanoBatchProfile> ProfileOfRank(kernels::NanoBatchProfile profile,
                                                        int32_t tp, std::string_view name) {
  std::string& device = profile.device_name;
  if (device.empty()) return profile;
  const std::string ranks = TunedDevice(tp, "");
  const bool is_of_ranks = device.find(kEach) != std::string::npos;
  if (is_of_ranks == (tp > 1) && device.starts_with(ranks)) {
    device.erase(0, ranks.size());
    return profile;
  }
  return absl::InvalidArgumentError(base::StrCat("--tune-profile ", name, " was measured on ",
                                                 base::Quote(device), "; measure it with --tp ",
                                                 tp));
}

std::string WriteTuneProfile(const kernels::NanoBatchProfile& profile,
                             std::span<const double> speedups) {
  HEDDLE_CHECK(speedups.size() == profile.rules.size(), "a speedup for each rule");
  std::string out;
  for (size_t i = 0; i < profile.rules.size(); ++i) {
    const kernels::NanoBatchRule& rule = profile.rules[i];
    out += absl::StrFormat(
        "{\"device\": %s, \"min_rows\": %d, \"max_rows\": %d, \"min_context\": %d, "
        "\"split\": %d, \"attention_multiprocessors\": %d, \"speedup\": %.3f}\n",
        Quoted(profile.device_name), rule.min_rows, rule.max_rows, rule.min_context,
        rule.split ? 1 : 0, rule.attention_multiprocessors, speedups[i]);
  }
  return out;
}

}  // namespace heddle::server
