// The budget of one tree of branches: what it may use, and what it uses. A tree is a root and all
// that was forked from it, by one client. Plain data and arithmetic. Thread-safety: none; owned by
// the table.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace heddle::server {

struct BranchBudget {
  int64_t tokens = 0;    // that are drawn, appended or scored, over the life of the tree
  int64_t branches = 0;  // at a time, the root included
  int64_t bytes = 0;     // of keys and values at a time; shared positions count once
  int64_t seconds = 0;   // life of the tree
};

class BranchAccount {
 public:
  // `bytes_per_token`: keys and values of one position; 0: bytes are not counted.
  BranchAccount(const BranchBudget& budget, int64_t bytes_per_token)
      : budget_(budget), bytes_per_token_(bytes_per_token) {}

  // INVALID_ARGUMENT (branch_budget_exceeded) if `branches` more of them, each with `tokens` given
  // to it, are more than is left.
  absl::Status CheckFork(int64_t branches, int64_t tokens) const;
  // The most tokens that a branch may take on beside what others have reserved.
  int64_t TokensLeft() const;
  // The same as an error if these are fewer than `tokens`.
  absl::Status CheckTokens(int64_t tokens) const;

  // Books branches and positions that begin or end.
  void AddBranch(int64_t positions) {
    ++branches_;
    positions_ += positions;
  }
  void RemoveBranch(int64_t positions) {
    --branches_;
    positions_ -= positions;
  }
  // Tokens that were given to a branch or drawn for it.
  void Use(int64_t tokens, int64_t positions) {
    tokens_ += tokens;
    positions_ += positions;
  }
  // For a branch that runs: it may not get more. Negative numbers give back.
  void Reserve(int64_t tokens) { reserved_ += tokens; }

  const BranchBudget& budget() const { return budget_; }
  int64_t tokens() const { return tokens_; }
  int64_t reserved() const { return reserved_; }
  int64_t branches() const { return branches_; }
  int64_t bytes() const { return positions_ * bytes_per_token_; }

 private:
  const BranchBudget budget_;
  const int64_t bytes_per_token_;
  int64_t tokens_ = 0;
  int64_t reserved_ = 0;
  int64_t branches_ = 0;
  int64_t positions_ = 0;  // that branches have of their own
};

}  // namespace heddle::server
