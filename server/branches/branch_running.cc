// The part of the table that is about branches that run.
#include <algorithm>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "server/branches/branch_table.h"
#include "server/request/api_error.h"

namespace heddle::server {

absl::StatusOr<int64_t> BranchTable::Begin(uint64_t owner, std::string_view id, int64_t num_tokens,
                                           std::span<const TokenId> append, int64_t max_tokens,
                                           int64_t now) {
  std::lock_guard lock(mutex_);
  HEDDLE_ASSIGN_OR_RETURN(const Branches::iterator found, Find(owner, id, now));
  Branch& branch = found->second;
  if (branch.is_running || static_cast<int64_t>(branch.tokens.size()) != num_tokens) {
    return Conflict(id, "is continued by another request: fork it to continue it twice");
  }
  BranchAccount& account = TreeOf(branch).account;
  const auto appended = static_cast<int64_t>(append.size());
  HEDDLE_RETURN_IF_ERROR(account.CheckTokens(appended + 1));
  const int64_t granted = std::min(max_tokens, account.TokensLeft() - appended);
  HEDDLE_RETURN_IF_ERROR(CheckRoom(owner, 0, appended + granted));
  branch.begun_at = num_tokens;
  branch.tokens.insert(branch.tokens.end(), append.begin(), append.end());
  account.Use(appended, appended);
  account.Reserve(granted);
  tokens_ += appended + granted;
  branch.reserved = granted;
  branch.is_running = true;
  branch.request = RequestId{};
  branch.finish_reason.clear();
  ++running_;
  return granted;
}

BranchTable::Branch* BranchTable::Running(std::string_view id) {
  const auto found = branches_.find(id);
  return found == branches_.end() || !found->second.is_running ? nullptr : &found->second;
}

void BranchTable::SetRequest(std::string_view id, RequestId request, ContextId context) {
  std::lock_guard lock(mutex_);
  Branch* branch = Running(id);
  if (branch != nullptr) {
    branch->request = request;
    return;
  }
  service_.Cancel(request);
  service_.DropContext(context);
}

// A request draws no more than was granted; what would be more is not remembered.
void BranchTable::Grow(std::string_view id, std::span<const engine::SampledToken> tokens) {
  std::lock_guard lock(mutex_);
  Branch* branch = Running(id);
  if (branch == nullptr) return;
  BranchAccount& account = TreeOf(*branch).account;
  for (const engine::SampledToken& token : tokens) {
    if (branch->reserved == 0) return;
    branch->tokens.push_back(token.token);
    branch->sum_logprob += token.logprob;
    ++branch->num_drawn;
    --branch->reserved;
    account.Reserve(-1);
    account.Use(1, 1);
  }
}

void BranchTable::Stop(Branch* branch) {
  TreeOf(*branch).account.Reserve(-branch->reserved);
  tokens_ -= std::exchange(branch->reserved, 0);
  branch->is_running = false;
  branch->request = RequestId{};
  --running_;
}

void BranchTable::Shorten(Branch* branch, int64_t length) {
  const auto excess = static_cast<int64_t>(branch->tokens.size()) - length;
  if (excess <= 0) return;
  branch->tokens.resize(static_cast<size_t>(length));
  TreeOf(*branch).account.Use(0, -excess);
  tokens_ -= excess;
  // Branches forked behind the new end had these tokens, too, and have them as their own now.
  for (const std::string& id : branch->children) {
    Branch& child = branches_.find(id)->second;
    const int64_t own = std::max<int64_t>(0, child.forked_at - length);
    child.forked_at -= own;
    TreeOf(*branch).account.Use(0, own);
  }
}

void BranchTable::End(std::string_view id, std::string_view reason, bool drops_last) {
  std::lock_guard lock(mutex_);
  Branch* branch = Running(id);
  if (branch == nullptr) return;
  Stop(branch);
  branch->finish_reason = std::string(reason);
  if (drops_last && static_cast<int64_t>(branch->tokens.size()) > branch->begun_at) {
    Shorten(branch, static_cast<int64_t>(branch->tokens.size()) - 1);
  }
}

void BranchTable::Abort(std::string_view id) {
  std::lock_guard lock(mutex_);
  Branch* branch = Running(id);
  if (branch == nullptr) return;
  Stop(branch);
  TreeOf(*branch).account.Use(branch->begun_at - static_cast<int64_t>(branch->tokens.size()), 0);
  Shorten(branch, branch->begun_at);
}

absl::Status BranchTable::CheckIntegrity() const {
  std::lock_guard lock(mutex_);
  int64_t tokens = 0, running = 0;
  std::map<std::string, std::pair<int64_t, int64_t>> of_trees;  // branches, reserved tokens
  std::map<std::string, int64_t> positions;
  for (const auto& [id, branch] : branches_) {
    tokens += static_cast<int64_t>(branch.tokens.size()) + branch.reserved;
    running += branch.is_running ? 1 : 0;
    auto& [count, reserved] = of_trees[branch.root];
    ++count;
    reserved += branch.reserved;
    positions[branch.root] += branch.positions();
    const bool is_root = id == branch.root;
    const auto parent = branches_.find(branch.parent);
    if (!trees_.contains(branch.root) || is_root != branch.parent.empty() ||
        (!is_root && parent == branches_.end())) {
      return absl::InternalError(base::StrCat("branch ", id, " has no root or no parent"));
    }
    if (!is_root && (branch.expires > parent->second.expires || branch.positions() < 0)) {
      return absl::InternalError(base::StrCat("branch ", id, " outlives its parent"));
    }
    if (!branch.is_running && branch.reserved != 0) {
      return absl::InternalError(base::StrCat("branch ", id, " rests and reserves tokens"));
    }
  }
  if (tokens != tokens_ || running != running_ || of_trees.size() != trees_.size()) {
    return absl::InternalError("branches count what they do not have");
  }
  for (const auto& [id, tree] : trees_) {
    const BranchAccount& account = tree.account;
    if (account.branches() != of_trees[id].first || account.reserved() != of_trees[id].second ||
        account.bytes() != positions[id] * limits_.bytes_per_token) {
      return absl::InternalError(base::StrCat("tree ", id, " counts what it does not have"));
    }
    const BranchBudget& budget = account.budget();
    if (account.branches() > budget.branches || account.tokens() > budget.tokens ||
        account.tokens() + account.reserved() > budget.tokens) {
      return absl::InternalError(base::StrCat("tree ", id, " is beyond its budget"));
    }
  }
  return absl::OkStatus();
}

}  // namespace heddle::server
