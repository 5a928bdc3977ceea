#include "server/cli/tune_profile.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/message.h"
#include "base/status.h"
#include "server/simulation/json_lines.h"

namespace heddle::server {
namespace {

constexpr std::string_view kEach = " ranks, each ";
constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
constexpr std::string_view kFields[] = {"device",
                                        "model",
                                        "min_rows",
                                        "max_rows",
                                        "min_context",
                                        "split",
                                        "attention_multiprocessors",
                                        "steps",
                                        "cut_rows",
                                        "speedup"};
constexpr std::string_view kDecodes = "decodes", kPrompts = "prompts";

absl::StatusOr<int32_t> Count(const JsonLine& line, std::string_view name, int64_t min,
                              int64_t max) {
  HEDDLE_ASSIGN_OR_RETURN(const int64_t value, line.Integer(name, min, max));
  return static_cast<int32_t>(value);
}

absl::StatusOr<std::string> ModelOf(const JsonLine& line) {
  if (!line.Has("model")) return std::string();
  HEDDLE_ASSIGN_OR_RETURN(std::string model, line.Name("model"));
  const bool is_text = std::all_of(model.begin(), model.end(),
                                   [](char c) { return static_cast<unsigned char>(c) >= 0x20; });
  if (is_text && !model.empty() && model.size() <= kMaxTunedModelBytes) return model;
  return line.Error(base::StrCat("\"model\" is ", base::Quote(model), " of ", model.size(),
                                 " bytes; expected 1 to ", kMaxTunedModelBytes,
                                 " bytes without control characters"));
}

// Each line names the same device and the same model, or none does.
absl::Status TakeNames(const JsonLine& line, TuneProfile* profile) {
  HEDDLE_ASSIGN_OR_RETURN(std::string device, line.Name("device"));
  HEDDLE_ASSIGN_OR_RETURN(std::string model, ModelOf(line));
  if (profile->steps.rules.empty()) {
    profile->steps.device_name = std::move(device);
    profile->model = std::move(model);
    return absl::OkStatus();
  }
  if (device != profile->steps.device_name) {
    return line.Error(base::StrCat("\"device\" is ", base::Quote(device), "; expected ",
                                   base::Quote(profile->steps.device_name),
                                   " as in the lines before: a profile is of one device"));
  }
  if (model != profile->model) {
    return line.Error(base::StrCat("\"model\" is ", model.empty() ? "missing" : base::Quote(model),
                                   "; expected that of the lines before",
                                   profile->model.empty() ? ", which have none" : "",
                                   ": a profile is of one model"));
  }
  return absl::OkStatus();
}

absl::StatusOr<kernels::StepKind> KindOf(const JsonLine& line) {
  if (!line.Has("steps")) return kernels::StepKind::kAny;
  HEDDLE_ASSIGN_OR_RETURN(const std::string steps, line.Name("steps"));
  if (steps == kDecodes) return kernels::StepKind::kDecodes;
  if (steps == kPrompts) return kernels::StepKind::kPrompts;
  return line.Error(base::StrCat("\"steps\" is ", base::Quote(steps), "; expected ",
                                 base::Quote(kDecodes), " or ", base::Quote(kPrompts)));
}

// Fields that rules for all steps, and rules that cut between sequences, have not.
std::string KindText(const kernels::NanoBatchRule& rule) {
  std::string text;
  if (rule.steps != kernels::StepKind::kAny) {
    const bool decodes = rule.steps == kernels::StepKind::kDecodes;
    text += base::StrCat(", \"steps\": ", base::Quote(decodes ? kDecodes : kPrompts));
  }
  if (rule.cut_rows > 0) text += base::StrCat(", \"cut_rows\": ", rule.cut_rows);
  return text;
}

absl::Status TakeRule(const JsonLine& line, TuneProfile* profile) {
  HEDDLE_RETURN_IF_ERROR(line.OnlyFields(kFields));
  HEDDLE_RETURN_IF_ERROR(TakeNames(line, profile));
  if (profile->steps.rules.size() == kMaxTuneRules) {
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
  HEDDLE_ASSIGN_OR_RETURN(rule.steps, KindOf(line));
  if (line.Has("cut_rows")) {
    HEDDLE_ASSIGN_OR_RETURN(rule.cut_rows, Count(line, "cut_rows", 0, kMost));
  }
  profile->steps.rules.push_back(rule);
  return absl::OkStatus();
}

// Escapes a name, which may come from outside.
std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out + "\"";
}

}  // namespace

absl::StatusOr<TuneProfile> ReadTuneProfile(std::string_view text, std::string_view name) {
  TuneProfile profile;
  HEDDLE_RETURN_IF_ERROR(
      ForEachLine(text, name, [&](const JsonLine& line) { return TakeRule(line, &profile); }));
  if (!profile.steps.rules.empty()) return profile;
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

std::string WriteTuneProfile(const TuneProfile& profile, std::span<const double> speedups) {
  const std::vector<kernels::NanoBatchRule>& rules = profile.steps.rules;
  HEDDLE_CHECK(speedups.size() == rules.size(), "a speedup for each rule");
  std::string names = base::StrCat("\"device\": ", Quoted(profile.steps.device_name));
  if (!profile.model.empty()) names += base::StrCat(", \"model\": ", Quoted(profile.model));
  std::string out;
  for (size_t i = 0; i < rules.size(); ++i) {
    const kernels::NanoBatchRule& rule = rules[i];
    out += absl::StrFormat(
        "{%s, \"min_rows\": %d, \"max_rows\": %d, \"min_context\": %d, "
        "\"split\": %d, \"attention_multiprocessors\": %d%s, \"speedup\": %.3f}\n",
        names, rule.min_rows, rule.max_rows, rule.min_context, rule.split ? 1 : 0,
        rule.attention_multiprocessors, KindText(rule), speedups[i]);
  }
  return out;
}

}  // namespace heddle::server
