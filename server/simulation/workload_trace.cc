#include "server/simulation/workload_trace.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "absl/container/flat_hash_map.h"
#include "base/message.h"
#include "base/status.h"
#include "server/simulation/json_lines.h"

namespace heddle::server {
namespace {

using scheduler::SimulatedRequest;

constexpr std::string_view kFields[] = {
    "arrival_s", "prompt_tokens", "output_tokens", "prefix_group", "prefix_tokens", "n",
    "priority",  "deadline_ms",   "workflow",      "tenant",       "adapter",       "adapter_pages",
    "fork_at",   "forks",         "branch_tokens", "join"};

constexpr int64_t kMaxTokens = 1 << 24;    // the longest context that can be configured
constexpr double kMaxArrivalS = 1e8;       // three years
constexpr int64_t kMaxBranches = 1 << 16;  // --max-batch-seqs' own limit
constexpr int64_t kMaxForks = 64;          // as in requests
constexpr int64_t kMaxAdapterPages = 1 << 24;
constexpr int64_t kMaxDeadlineMs = 86'400'000;
constexpr size_t kMaxRequests = 10'000'000;

class TraceReader {
 public:
  absl::Status Take(const JsonLine& line) {
    if (requests_.size() == kMaxRequests) {
      return line.Error(base::StrCat("more than ", kMaxRequests, " requests; expected fewer"));
    }
    HEDDLE_RETURN_IF_ERROR(line.OnlyFields(kFields));
    SimulatedRequest request;
    HEDDLE_ASSIGN_OR_RETURN(const double arrival_s, line.Number("arrival_s", 0, kMaxArrivalS));
    request.arrival_us = std::llround(arrival_s * 1e6);
    HEDDLE_ASSIGN_OR_RETURN(const int64_t prompt, line.Integer("prompt_tokens", 1, kMaxTokens));
    request.prompt_tokens = static_cast<int32_t>(prompt);
    HEDDLE_ASSIGN_OR_RETURN(const int64_t output, line.Integer("output_tokens", 0, kMaxTokens));
    request.output_tokens = static_cast<int32_t>(output);
    if (line.Has("n")) {
      HEDDLE_ASSIGN_OR_RETURN(const int64_t branches, line.Integer("n", 1, kMaxBranches));
      request.branches = static_cast<int32_t>(branches);
    }
    HEDDLE_RETURN_IF_ERROR(TakeFork(line, &request));
    HEDDLE_RETURN_IF_ERROR(TakePrefix(line, &request));
    HEDDLE_RETURN_IF_ERROR(TakeAdapter(line, &request));
    HEDDLE_RETURN_IF_ERROR(TakeScheduling(line, &request));
    requests_.push_back(request);
    return absl::OkStatus();
  }

  std::vector<SimulatedRequest> requests() && { return std::move(requests_); }

 private:
  absl::Status TakePrefix(const JsonLine& line, SimulatedRequest* request) {
    if (line.Has("prefix_group") != line.Has("prefix_tokens")) {
      return line.Error(
          "has only one of \"prefix_group\" and \"prefix_tokens\"; expected both or "
          "neither");
    }
    if (!line.Has("prefix_group")) return absl::OkStatus();
    HEDDLE_ASSIGN_OR_RETURN(const std::string group, line.Name("prefix_group"));
    HEDDLE_ASSIGN_OR_RETURN(const int64_t tokens,
                            line.Integer("prefix_tokens", 0, request->prompt_tokens));
    request->prefix_group = NumberOf(group, &groups_);
    request->prefix_tokens = static_cast<int32_t>(tokens);
    return absl::OkStatus();
  }

  static absl::Status TakeFork(const JsonLine& line, SimulatedRequest* request) {
    constexpr std::string_view kAll[] = {"fork_at", "forks", "branch_tokens"};
    const auto given = std::count_if(std::begin(kAll), std::end(kAll),
                                     [&line](std::string_view name) { return line.Has(name); });
    if (given == 0 && !line.Has("join")) return absl::OkStatus();
    if (given < std::ssize(kAll)) {
      return line.Error(
          "has not all of \"fork_at\", \"forks\" and \"branch_tokens\"; expected all or none, and "
          "\"join\" only with them");
    }
    if (request->branches > 1 || request->output_tokens < 2) {
      return line.Error("forks, and \"n\" is not 1 or \"output_tokens\" is less than 2");
    }
    HEDDLE_ASSIGN_OR_RETURN(const int64_t at,
                            line.Integer("fork_at", 1, request->output_tokens - 1));
    HEDDLE_ASSIGN_OR_RETURN(const int64_t forks, line.Integer("forks", 1, kMaxForks));
    HEDDLE_ASSIGN_OR_RETURN(const int64_t tokens, line.Integer("branch_tokens", 1, kMaxTokens));
    request->fork_at = static_cast<int32_t>(at);
    request->forks = static_cast<int32_t>(forks);
    request->branch_tokens = static_cast<int32_t>(tokens);
    if (!line.Has("join")) return absl::OkStatus();
    HEDDLE_ASSIGN_OR_RETURN(const std::string join, line.Name("join"));
    if (join != "text" && join != "concurrent") {
      return line.Error(
          base::StrCat("\"join\" is ", base::Quote(join), "; expected \"text\" or \"concurrent\""));
    }
    request->joins_side_by_side = join == "concurrent";
    return absl::OkStatus();
  }

  // An adapter is always the same number of pages.
  absl::Status TakeAdapter(const JsonLine& line, SimulatedRequest* request) {
    if (line.Has("adapter") != line.Has("adapter_pages")) {
      return line.Error(
          "has only one of \"adapter\" and \"adapter_pages\"; expected both or neither");
    }
    if (!line.Has("adapter")) return absl::OkStatus();
    HEDDLE_ASSIGN_OR_RETURN(const std::string adapter, line.Name("adapter"));
    HEDDLE_ASSIGN_OR_RETURN(const int64_t pages,
                            line.Integer("adapter_pages", 1, kMaxAdapterPages));
    request->adapter = NumberOf(adapter, &adapters_);
    request->adapter_pages = static_cast<int32_t>(pages);
    if (adapter_pages_.size() < adapters_.size()) adapter_pages_.push_back(request->adapter_pages);
    const int32_t first = adapter_pages_[request->adapter - 1];
    if (first == request->adapter_pages) return absl::OkStatus();
    return line.Error(base::StrCat("has an adapter of ", pages, " pages that had ", first,
                                   " before; expected the same"));
  }

  absl::Status TakeScheduling(const JsonLine& line, SimulatedRequest* request) {
    if (line.Has("priority")) {
      HEDDLE_ASSIGN_OR_RETURN(const int64_t priority,
                              line.Integer("priority", INT32_MIN, INT32_MAX));
      request->priority = static_cast<int32_t>(priority);
    }
    if (line.Has("deadline_ms")) {
      HEDDLE_ASSIGN_OR_RETURN(const int64_t ms, line.Integer("deadline_ms", 1, kMaxDeadlineMs));
      request->deadline_us = 1000 * ms;
    }
    if (line.Has("workflow")) {
      HEDDLE_ASSIGN_OR_RETURN(const std::string workflow, line.Name("workflow"));
      request->workflow = NumberOf(workflow, &workflows_);
    }
    if (line.Has("tenant")) {
      HEDDLE_ASSIGN_OR_RETURN(const std::string tenant, line.Name("tenant"));
      request->tenant = NumberOf(tenant, &tenants_);
    }
    return absl::OkStatus();
  }

  using Numbers = absl::flat_hash_map<std::string, uint64_t>;  // from 1

  static uint64_t NumberOf(const std::string& name, Numbers* numbers) {
    return numbers->try_emplace(name, numbers->size() + 1).first->second;
  }

  std::vector<SimulatedRequest> requests_;
  Numbers groups_, workflows_, tenants_, adapters_;
  std::vector<int32_t> adapter_pages_;  // [adapters]
};

}  // namespace

absl::StatusOr<std::vector<SimulatedRequest>> ReadWorkloadTrace(std::string_view text,
                                                                std::string_view name) {
  TraceReader reader;
  HEDDLE_RETURN_IF_ERROR(
      ForEachLine(text, name, [&](const JsonLine& line) { return reader.Take(line); }));
  std::vector<SimulatedRequest> requests = std::move(reader).requests();
  if (requests.empty()) {
    return absl::InvalidArgumentError(
        base::StrCat(name, ": has no requests; expected one JSON object per line"));
  }
  return requests;
}

}  // namespace heddle::server
