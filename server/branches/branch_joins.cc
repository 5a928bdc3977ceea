// The part of the table that makes one branch of several.
#include <algorithm>

#include "base/message.h"
#include "base/status.h"
#include "server/branches/branch_table.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

void AddTokens(std::span<const TokenId> tokens, std::vector<TokenId>* all) {
  all->insert(all->end(), tokens.begin(), tokens.end());
}

}  // namespace

absl::Status BranchTable::CheckConcurrent(std::string_view param) const {
  if (limits_.no_concurrent.empty()) return absl::OkStatus();
  return WithParam(
      WithCode(absl::InvalidArgumentError(limits_.no_concurrent), "concurrent_join_unsupported"),
      std::string(param));
}

// The other children are read behind the first one, in plain order, whatever their parts are.
absl::StatusOr<BranchTable::Branch> BranchTable::JoinText(
    std::span<const Branches::iterator> children, const JoinOrder& order) const {
  const Branch& first = children.front()->second;
  Branch joined;
  joined.tokens = first.tokens;
  joined.parts = first.parts;
  for (const Branches::iterator child : children.subspan(1)) {
    AddTokens(order.separator, &joined.tokens);
    AddTokens(std::span(child->second.tokens).subspan(static_cast<size_t>(first.forked_at)),
              &joined.tokens);
  }
  AddTokens(order.tail, &joined.tokens);
  return joined;
}

absl::StatusOr<BranchTable::Branch> BranchTable::JoinConcurrent(
    std::span<const Branches::iterator> children, const JoinOrder& order) const {
  HEDDLE_RETURN_IF_ERROR(CheckConcurrent("kind"));
  if (order.tail.empty()) {
    return FieldError("tail",
                      "'tail' must have a token, the first one that sees all of the children");
  }
  if (!order.separator.empty()) {
    return FieldError("separator", "nothing stands between children that are side by side");
  }
  const auto at = static_cast<int32_t>(children.front()->second.forked_at);
  Branch joined;
  AddTokens(std::span(children.front()->second.tokens).first(static_cast<size_t>(at)),
            &joined.tokens);
  std::vector<const scheduler::ContextParts*> parts;
  std::vector<int32_t> lengths;
  for (const Branches::iterator child : children) {
    const std::vector<TokenId>& tokens = child->second.tokens;
    if (static_cast<int32_t>(tokens.size()) <= at) {
      return FieldError("children", base::StrCat("the branch ", base::Quote(child->first),
                                                 " has no token of its own to join"));
    }
    parts.push_back(&child->second.parts);
    lengths.push_back(static_cast<int32_t>(tokens.size()));
    AddTokens(std::span(tokens).subspan(static_cast<size_t>(at)), &joined.tokens);
  }
  joined.parts = scheduler::JoinParts(parts, lengths, at);
  AddTokens(order.tail, &joined.tokens);
  if (joined.parts.size() <= scheduler::kMaxContextParts) return joined;
  return FieldError("children", base::StrCat("the join has ", joined.parts.size(),
                                             " parts side by side; at most ",
                                             scheduler::kMaxContextParts, " are allowed"));
}

}  // namespace heddle::server
