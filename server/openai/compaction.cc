#include "server/openai/compaction.h"

#include "absl/strings/escaping.h"
#include "base/message.h"
#include "server/json_writer.h"
#include "server/openai/responses_format.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

constexpr std::string_view kMark = "heddle-summary-1:";

}  // namespace

std::string PackSummary(std::string_view summary) {
  return absl::Base64Escape(base::AbslView(base::StrCat(kMark, summary)));
}

absl::StatusOr<std::string> UnpackSummary(std::string_view content) {
  std::string text;
  if (absl::Base64Unescape(base::AbslView(content), &text) && text.starts_with(kMark)) {
    return text.substr(kMark.size());
  }
  return absl::InvalidArgumentError("it is no summary that this server made");
}

std::string_view SummaryInstruction() {
  return "Write a summary of our conversation until here, so that you could go on from the summary "
         "alone: what I asked for, what was decided and found out, names, numbers and code that "
         "still matter, and what is left to do. Write only the summary.";
}

std::string SummaryMessage(std::string_view summary) {
  return base::StrCat("This is a summary of our conversation until here:\n\n", summary);
}

std::string CompactionFormat::Body(std::span<const ChoiceResult> choices,
                                   const Usage& usage) const {
  const std::string summary = choices.front().Text(OutputPiece::Kind::kContent);
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Member("id", base::StrCat("resp_", unique_));
  json.Member("object", "response.compaction").Member("created_at", created_);
  json.Key("output").BeginArray();
  for (const ResponseItem& item : users_) json.Raw(item.json);
  json.BeginObject().Member("id", base::StrCat("cmp_", unique_, "_0"));
  json.Member("type", "compaction").Member("encrypted_content", PackSummary(summary));
  json.EndObject().EndArray().Key("usage");
  WriteResponsesUsage(usage, &json);
  json.EndObject();
  return out;
}

}  // namespace heddle::server
