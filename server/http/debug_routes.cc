#include "server/http/debug_routes.h"

#include <cmath>

#include "base/message.h"
#include "server/json_writer.h"

namespace heddle::server {
namespace {

std::string_view KindName(HistoryEntry::Kind kind) {
  switch (kind) {
    case HistoryEntry::Kind::kQueued:
      return "queued";
    case HistoryEntry::Kind::kAdmitted:
      return "admitted";
    case HistoryEntry::Kind::kPrompt:
      return "prompt";
    case HistoryEntry::Kind::kDecode:
      return "decode";
    case HistoryEntry::Kind::kPreempted:
      return "preempted";
    case HistoryEntry::Kind::kFinished:
      return "finished";
  }
  return "";
}

std::string_view EndName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stopped";
    case FinishReason::kLength:
      return "ended at its length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      break;
  }
  return "failed";
}

std::string_view StateName(const RequestHistory& history) {
  if (history.finished) return EndName(history.reason);
  return history.queued_seconds < 0 ? "waiting" : "running";
}

// Milliseconds, rounded to the microsecond.
double InMilliseconds(double seconds) { return std::round(seconds * 1e6) / 1e3; }

void WriteHead(const RequestHistory& history, JsonWriter* json) {
  json->Member("id", history.label).Member("number", static_cast<uint64_t>(history.id));
  if (!history.tree.empty()) json->Member("tree", history.tree).Member("branch", history.branch);
  json->Member("state", StateName(history));
  json->Key("age_ms").Number(InMilliseconds(history.age_seconds));
  json->Key("queued_ms");
  history.queued_seconds < 0 ? json->Null() : json->Number(InMilliseconds(history.queued_seconds));
  json->Member("prompt_tokens", history.prompt_tokens);
  json->Member("cached_tokens", history.cached_tokens);
  json->Member("generated_tokens", history.generated_tokens);
  json->Member("preemptions", history.preemptions);
}

void WriteEntry(const HistoryEntry& entry, JsonWriter* json) {
  json->BeginObject().Member("event", KindName(entry.kind)).Member("branch", entry.branch);
  json->Member("tokens", entry.tokens).Member("steps", entry.steps);
  json->Key("begin_ms").Number(InMilliseconds(entry.begin_seconds));
  json->Key("end_ms").Number(InMilliseconds(entry.end_seconds)).EndObject();
}

void WriteRun(const BranchRun& run, JsonWriter* json) {
  json->BeginObject().Member("branch", run.branch).Member("number", static_cast<uint64_t>(run.id));
  json->Member("state", run.finished ? EndName(run.reason) : "running");
  json->Member("cached_tokens", run.cached_tokens);
  json->Member("generated_tokens", run.generated_tokens);
  json->Member("preemptions", run.preemptions);
  json->Key("begin_ms").Number(InMilliseconds(run.begin_seconds));
  json->Key("end_ms").Number(InMilliseconds(run.end_seconds)).EndObject();
}

}  // namespace

std::string RequestsJson(const GenerationService& generation) {
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Key("requests").BeginArray();
  for (const RequestHistory& history : generation.Histories()) {
    json.BeginObject();
    WriteHead(history, &json);
    json.EndObject();
  }
  json.EndArray().EndObject();
  return out;
}

absl::StatusOr<std::string> RequestJson(const GenerationService& generation,
                                        std::string_view name) {
  const std::optional<RequestHistory> history = generation.History(name);
  if (!history.has_value()) {
    return absl::NotFoundError(base::StrCat(
        "no request ", base::Quote(name),
        " is remembered; /debug/requests lists those that are, by their X-Request-Id"));
  }
  std::string out;
  JsonWriter json(&out);
  json.BeginObject();
  WriteHead(*history, &json);
  json.Member("forgotten_events", history->forgotten_entries).Key("events").BeginArray();
  for (const HistoryEntry& entry : history->steps) WriteEntry(entry, &json);
  json.EndArray();
  if (!history->runs.empty()) {
    json.Key("runs").BeginArray();
    for (const BranchRun& run : history->runs) WriteRun(run, &json);
    json.EndArray();
  }
  json.EndObject();
  return out;
}

}  // namespace heddle::server
