#include "server/branches/branch_budget.h"

#include <algorithm>
#include <string>

#include "base/message.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

absl::Status Exceeded(std::string_view what, int64_t wanted, int64_t used, int64_t limit) {
  return FieldError("",
                    base::StrCat("the budget of this tree has ", limit, " ", what, ", of which ",
                                 used, " are used or reserved: there is no room for ", wanted,
                                 " more. Delete branches, or begin a tree with a larger budget"),
                    "branch_budget_exceeded");
}

}  // namespace

int64_t BranchAccount::TokensLeft() const {
  int64_t left = budget_.tokens - tokens_ - reserved_;
  if (bytes_per_token_ > 0) {
    left = std::min(left, budget_.bytes / bytes_per_token_ - positions_ - reserved_);
  }
  return std::max<int64_t>(0, left);
}

absl::Status BranchAccount::CheckTokens(int64_t tokens) const {
  if (tokens <= TokensLeft()) return absl::OkStatus();
  const int64_t of_tokens = budget_.tokens - tokens_ - reserved_;
  if (tokens > of_tokens) {
    return Exceeded("tokens", tokens, tokens_ + reserved_, budget_.tokens);
  }
  return Exceeded("bytes", tokens * bytes_per_token_, (positions_ + reserved_) * bytes_per_token_,
                  budget_.bytes);
}

absl::Status BranchAccount::CheckFork(int64_t branches, int64_t tokens) const {
  if (branches_ + branches > budget_.branches) {
    return Exceeded("branches", branches, branches_, budget_.branches);
  }
  return CheckTokens(branches * tokens);
}

}  // namespace heddle::server
