// The requests and answers below /v1/branches as JSON.
// Pure but for the table. Any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/answer/api_request.h"
#include "server/branches/branch_table.h"
#include "server/openai/request_context.h"

namespace heddle::server {

// Who asks for which branch, and when.
struct BranchAccess {
  BranchTable* table = nullptr;
  uint64_t tenant = 0;
  int64_t now = 0;  // seconds since 1970
};

// These do what their routes say and return the body of the answer. Errors beside those of the
// body: those of BranchTable.
absl::StatusOr<std::string> CreateBranches(std::string_view body, const RequestContext& context,
                                           const BranchAccess& access);
absl::StatusOr<std::string> JoinBranches(std::string_view id, std::string_view body,
                                         const RequestContext& context, const BranchAccess& access);
absl::StatusOr<std::string> DescribeBranch(std::string_view id, const RequestContext& context,
                                           const BranchAccess& access);
absl::StatusOr<std::string> DeleteBranch(std::string_view id, const BranchAccess& access);

// A branch that goes on: a completion whose prompt are its tokens and what is appended.
struct BranchContinuation {
  ApiRequest api;
  int64_t num_tokens = 0;  // of the branch
};
absl::StatusOr<BranchContinuation> ParseContinuation(std::string_view id, std::string_view body,
                                                     const RequestContext& context,
                                                     const BranchAccess& access);

// Texts whose probability behind a branch is asked for.
struct BranchScoring {
  ModelChoice model;
  int64_t num_tokens = 0;                                 // of the branch
  int64_t scored_tokens = 0;                              // of all continuations
  std::vector<scheduler::GenerationRequest> generations;  // one per continuation
};
absl::StatusOr<BranchScoring> ParseScoring(std::string_view id, std::string_view body,
                                           const RequestContext& context,
                                           const BranchAccess& access);
// `scores`: of each continuation's tokens.
std::string ScoringBody(const BranchScoring& scoring,
                        std::span<const std::vector<engine::SampledToken>> scores);

}  // namespace heddle::server
