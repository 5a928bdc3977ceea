#include "server/openai/scheduling.h"

#include <algorithm>
#include <functional>
#include <string>

#include "base/message.h"
#include "nlohmann/json.hpp"
#include "server/openai/api_error.h"
#include "server/openai/fields.h"

namespace heddle::server {
namespace {

using scheduler::PolicyKind;

// A day: whoever has more time has no deadline.
constexpr int64_t kMaxDeadlineMs = 86'400'000;

absl::Status NeedsPolicy(std::string_view field, std::string_view policy) {
  return FieldError(field,
                    base::StrCat("'", field, "' has no effect on this server: it must be started ",
                                 "with --policy ", policy),
                    "unsupported_parameter");
}

// Two tenants' workflows of one name are two.
uint64_t WorkflowId(const std::string& name, uint64_t tenant) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;  // of the golden ratio: spreads small numbers
  return std::max<uint64_t>(1, std::hash<std::string>()(name) ^ (tenant * kOdd));
}

// The space without a salt is 0.
uint64_t CacheSpace(const Json* salt) {
  return salt == nullptr
             ? 0
             : std::max<uint64_t>(1, std::hash<std::string>()(salt->get<std::string>()));
}

}  // namespace

absl::Status ReadScheduling(const Json& body, const RequestContext& context,
                            GenerationRequest* request) {
  const PolicyKind policy = context.policy.scheduling;
  request->tenant = context.tenant;
  request->cache_space = CacheSpace(Find(body, "cache_salt"));
  request->priority = static_cast<int32_t>(GetInt(body, "priority", 0));
  if (request->priority != 0 && policy != PolicyKind::kPriority) {
    return NeedsPolicy("priority", "priority");
  }
  const bool has_deadline = Find(body, "deadline_ms") != nullptr;
  const Json* workflow = Find(body, "workflow");
  if (policy != PolicyKind::kDeadline) {
    if (has_deadline) return NeedsPolicy("deadline_ms", "deadline");
    return workflow == nullptr ? absl::OkStatus() : NeedsPolicy("workflow", "deadline");
  }
  if (has_deadline) {
    request->deadline_us = 1000 * std::min(GetInt(body, "deadline_ms", 0), kMaxDeadlineMs);
  }
  if (workflow != nullptr) {
    request->workflow = WorkflowId(workflow->get<std::string>(), context.tenant);
  }
  return absl::OkStatus();
}

}  // namespace heddle::server
