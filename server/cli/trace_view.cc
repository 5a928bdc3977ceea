#include "server/cli/trace_view.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "base/message.h"
#include "nlohmann/json.hpp"
#include "server/cli/trace_tree.h"

namespace heddle::server {
namespace {

using base::StrCat;
using nlohmann::json;

// The value of a member, which another version of the server may lack.
double Number(const json& object, const char* name) {
  auto it = object.find(name);
  return it != object.end() && it->is_number() ? it->get<double>() : 0.0;
}

int64_t Count(const json& object, const char* name) {
  return static_cast<int64_t>(Number(object, name));
}

std::string Text(const json& object, const char* name) {
  auto it = object.find(name);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

template <typename... Args>
std::string Format(const char* format, Args... args) {
  char buffer[512];
  const int length = std::snprintf(buffer, sizeof(buffer), format, args...);
  return {buffer, static_cast<size_t>(std::clamp<int>(length, 0, sizeof(buffer) - 1))};
}

std::string Counted(int64_t count, std::string_view one) {
  return StrCat(count, " ", one, count == 1 ? "" : "s");
}

// 12.3 ms, 4.56 s
std::string Duration(double ms) {
  return ms < 1000 ? Format("%.1f ms", ms) : Format("%.2f s", ms / 1000);
}

// The text of an event beside its time.
std::string EventText(const json& event) {
  std::string name = Text(event, "event");
  const int64_t tokens = Count(event, "tokens");
  const int64_t steps = Count(event, "steps");
  if (name == "queued") return StrCat("queued with a prompt of ", Counted(tokens, "token"));
  if (name == "admitted") {
    return tokens == 0 ? std::string("admitted; nothing of it was in the prefix cache")
                       : StrCat("admitted; ", Counted(tokens, "token"), " from the prefix cache");
  }
  if (name == "prompt") {
    return StrCat("prompt: ", Counted(tokens, "token"), " in ", Counted(steps, "step"));
  }
  if (name == "decode") {
    if (tokens <= steps) return StrCat("decode: ", Counted(steps, "step"), ", a token each");
    return StrCat("decode: ", Counted(steps, "step"), " with ",
                  Counted(tokens - steps, "guessed token"));
  }
  if (name == "preempted") {
    return StrCat("preempted: gave up the pages of ", Counted(tokens, "token"));
  }
  if (name == "finished") return StrCat("finished after ", Counted(tokens, "token"));
  return name;
}

bool HasBranches(const json& events) {
  return std::any_of(events.begin(), events.end(), [](const json& event) {
    return event.is_object() && Count(event, "branch") > 0;
  });
}

void AppendHead(const json& request, std::string* out) {
  *out += StrCat("request    ", Text(request, "id"), " (number ", Count(request, "number"), ")\n");
  if (const std::string tree = Text(request, "tree"); !tree.empty()) {
    *out += StrCat("branch     ", Text(request, "branch"), " of ", tree, "\n");
  }
  *out += StrCat("state      ", Text(request, "state"), ", ", Duration(Number(request, "age_ms")),
                 " after it came\n");
  const auto queued = request.find("queued_ms");
  const bool started = queued != request.end() && queued->is_number();
  *out += StrCat(
      "queue      ",
      started ? Duration(queued->get<double>()) + " until its first step" : "waits still", "\n");
  *out += StrCat("prompt     ", Counted(Count(request, "prompt_tokens"), "token"), ", ",
                 Count(request, "cached_tokens"), " of them from the prefix cache\n");
  *out += StrCat("answer     ", Counted(Count(request, "generated_tokens"), "token"), "\n");
  if (const int64_t times = Count(request, "preemptions"); times > 0) {
    *out += StrCat("preempted  ", Counted(times, "time"), "\n");
  }
}

}  // namespace

absl::StatusOr<std::string> TimelineText(std::string_view body) {
  const json request = json::parse(body, nullptr, /*allow_exceptions=*/false);
  const auto events = request.is_object() ? request.find("events") : request.end();
  if (!request.is_object() || events == request.end() || !events->is_array()) {
    return absl::InvalidArgumentError("the answer is not the history of a request");
  }
  std::string out;
  AppendHead(request, &out);
  const bool branches = HasBranches(*events);
  out += StrCat("\n     at ms      for ms  ", branches ? "branch  " : "", "what\n");
  const int64_t forgotten = Count(request, "forgotten_events");
  for (size_t i = 0; i < events->size(); ++i) {
    const json& event = (*events)[i];
    if (!event.is_object()) continue;
    const double begin = Number(event, "begin_ms");
    const double lasted = Number(event, "end_ms") - begin;
    out += Format("%10.1f  ", begin);
    out += lasted > 0 ? Format("%10.1f  ", lasted) : std::string(12, ' ');
    if (branches) out += Format("%6" PRId64 "  ", Count(event, "branch"));
    out += StrCat(EventText(event), "\n");
    // The dropped entries were between the first and the others.
    if (i == 0 && forgotten > 0) {
      out += StrCat(std::string(24, ' '), "(", Counted(forgotten, "event"), " forgotten)\n");
    }
  }
  if (const auto runs = request.find("runs"); runs != request.end()) out += TreeText(*runs);
  return out;
}

absl::StatusOr<std::string> RequestListText(std::string_view body) {
  const json answer = json::parse(body, nullptr, /*allow_exceptions=*/false);
  const auto requests = answer.is_object() ? answer.find("requests") : answer.end();
  if (!answer.is_object() || requests == answer.end() || !requests->is_array()) {
    return absl::InvalidArgumentError("the answer is not a list of requests");
  }
  std::string out = Format("%-36s  %-20s %10s %10s %8s %8s %8s\n", "request", "state", "time",
                           "queued", "prompt", "cached", "answer");
  for (const json& request : *requests) {
    if (!request.is_object()) continue;
    const auto queued = request.find("queued_ms");
    const bool started = queued != request.end() && queued->is_number();
    out += Format("%-36s  %-20s %10s %10s %8" PRId64 " %8" PRId64 " %8" PRId64 "\n",
                  Text(request, "id").c_str(), Text(request, "state").c_str(),
                  Duration(Number(request, "age_ms")).c_str(),
                  started ? Duration(queued->get<double>()).c_str() : "-",
                  Count(request, "prompt_tokens"), Count(request, "cached_tokens"),
                  Count(request, "generated_tokens"));
  }
  return out;
}

std::string ErrorMessage(std::string_view body) {
  const json answer = json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (answer.is_object()) {
    const auto error = answer.find("error");
    if (error != answer.end() && error->is_object()) return Text(*error, "message");
  }
  constexpr size_t kMost = 200;
  return base::Quote(body.substr(0, kMost));
}

}  // namespace heddle::server
