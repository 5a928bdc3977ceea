#include "server/openai/scheduling.h"

#include <algorithm>
#include <functional>
#include <string>

#include "base/message.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

// A day: longer deadlines count as none.
constexpr int64_t kMaxDeadlineMs = 86'400'000;

absl::Status NeedsPolicy(std::string_view field, std::string_view policy) {
  return FieldError(field,
                    base::StrCat("'", field, "' has no effect on this server: it must be started ",
                                 "with --policy ", policy),
                    "unsupported_parameter");
}

// Different tenants' workflows with the same name are distinct.
uint64_t WorkflowId(const std::string& name, uint64_t tenant) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;  // the golden ratio's bits: spreads small numbers
  return std::max<uint64_t>(1, std::hash<std::string>()(name) ^ (tenant * kOdd));
}

}  // namespace

uint64_t CacheSpace(const std::string* salt) {
  return salt == nullptr ? 0 : std::max<uint64_t>(1, std::hash<std::string>()(*salt));
}

absl::Status ReadScheduling(const RequestFields<fields::kGeneration>& body,
                            const RequestContext& context, GenerationRequest* request) {
  const scheduler::PolicyTraits& policy = scheduler::TraitsOf(context.policy.scheduling);
  request->tenant = context.tenant;
  request->cache_space = CacheSpace(body.Text<"cache_salt">());
  request->priority = static_cast<int32_t>(body.Int<"priority">(0));
  if (request->priority != 0 && !policy.uses_priority) {
    return NeedsPolicy("priority", "priority");
  }
  const bool has_deadline = body.Has<"deadline_ms">();
  const std::string* workflow = body.Text<"workflow">();
  if (!policy.uses_deadline) {
    if (has_deadline) return NeedsPolicy("deadline_ms", "deadline");
    return workflow == nullptr ? absl::OkStatus() : NeedsPolicy("workflow", "deadline");
  }
  if (has_deadline) {
    request->deadline_us = 1000 * std::min(body.Int<"deadline_ms">(0), kMaxDeadlineMs);
  }
  if (workflow != nullptr) {
    request->workflow = WorkflowId(*workflow, context.tenant);
  }
  return absl::OkStatus();
}

}  // namespace heddle::server
