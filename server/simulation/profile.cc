#include "server/simulation/profile.h"

#include "base/message.h"
#include "base/status.h"
#include "server/simulation/json_lines.h"

namespace heddle::server {
namespace {

constexpr int64_t kMaxTokens = 1 << 24;
constexpr int64_t kMaxBatch = 1 << 16;
// Rates of real machines are within these; they keep times finite.
constexpr double kLeastRate = 1e-6;
constexpr double kMostRate = 1e15;

absl::StatusOr<ProfilePoint> ReadPoint(const JsonLine& line) {
  ProfilePoint point;
  HEDDLE_ASSIGN_OR_RETURN(point.batch, line.Integer("batch", 1, kMaxBatch));
  HEDDLE_ASSIGN_OR_RETURN(point.prompt_tokens, line.Integer("prompt_tokens", 1, kMaxTokens));
  HEDDLE_ASSIGN_OR_RETURN(point.output_tokens, line.Integer("output_tokens", 1, kMaxTokens));
  HEDDLE_ASSIGN_OR_RETURN(point.prefill_tok_s, line.Number("prefill_tok_s", kLeastRate, kMostRate));
  HEDDLE_ASSIGN_OR_RETURN(point.decode_tok_s, line.Number("decode_tok_s", kLeastRate, kMostRate));
  HEDDLE_ASSIGN_OR_RETURN(point.read_gb_s, line.Number("read_gb_s", kLeastRate, kMostRate));
  HEDDLE_ASSIGN_OR_RETURN(point.gops, line.Number("gops", kLeastRate, kMostRate));
  return point;
}

absl::Status TakeLine(const JsonLine& line, Profile* profile) {
  for (const auto& [name, value] :
       {std::pair("model", &profile->model), std::pair("weights", &profile->weights),
        std::pair("kv_type", &profile->kv_type), std::pair("device", &profile->device)}) {
    HEDDLE_ASSIGN_OR_RETURN(const std::string found, line.Name(name));
    if (profile->points.empty()) *value = found;
    if (*value != found) {
      return line.Error(base::StrCat("\"", std::string_view(name), "\" is ", base::Quote(found),
                                     "; expected ", base::Quote(*value),
                                     " as in the lines before: a profile is of one model on one "
                                     "machine"));
    }
  }
  HEDDLE_ASSIGN_OR_RETURN(const ProfilePoint point, ReadPoint(line));
  profile->points.push_back(point);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Profile> ReadProfile(std::string_view text, std::string_view name) {
  Profile profile;
  HEDDLE_RETURN_IF_ERROR(
      ForEachLine(text, name, [&](const JsonLine& line) { return TakeLine(line, &profile); }));
  if (profile.points.empty()) {
    return absl::InvalidArgumentError(
        base::StrCat(name,
                     ": has no measurements; expected the lines that `heddle bench --json` "
                     "prints"));
  }
  return profile;
}

}  // namespace heddle::server
