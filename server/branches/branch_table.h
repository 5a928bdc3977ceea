// The branches that clients fork, continue and join over /v1/branches: trees of token lists, each
// with a context in the scheduler (scheduler/kept_contexts.h) that spares computing them again.
//
// A branch belongs to the client that made its root: others do not find it. A tree ends with its
// root, a branch with its parent, and both at their time; what runs then is cancelled. After that
// the client learns that a branch is gone, as long as it is remembered.
// Limits hold at any time: each tree has a budget (branch_budget.h), a running branch reserves what
// it may draw before it begins, and all trees together have a limit.
//
// Pure but for the calls to the GenerationService; time is an argument (seconds since 1970).
// Thread-safety: all members may be called from any thread; the lock is held for as long as copying
// the tokens takes.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "server/branches/branch_budget.h"
#include "server/branches/branch_figures.h"
#include "server/generation.h"

namespace heddle::server {

using engine::TokenId;
using scheduler::ContextId;

struct BranchLimits {
  int64_t max_branches = 1024;            // of all clients; 0: there are no branches
  int64_t max_tokens = int64_t{1} << 24;  // that all branches remember, 4 bytes each
  std::string no_concurrent;              // why branches cannot be joined side by side, or empty
  std::string no_workers;                 // why workers cannot see each other, or empty
  int64_t bytes_per_token = 0;            // keys and values of one position; 0: not counted
  BranchBudget usual{int64_t{1} << 18, 64, int64_t{1} << 60, 600};
  BranchBudget largest{int64_t{1} << 24, 1024, int64_t{1} << 60, 86400};
};

// A branch as clients see it.
struct BranchInfo {
  std::string id;
  std::string root;
  std::string parent;  // empty: it is the root
  std::vector<std::string> children;
  int64_t created = 0;
  int64_t expires = 0;
  int64_t forked_at = 0;  // leading tokens that it shares with its parent
  bool is_running = false;
  std::string finish_reason;  // of what ran last: "stop", "length", "cancelled"; empty: nothing did
  int64_t num_tokens = 0;
  std::vector<TokenId> tokens;  // filled in by Get alone
  int64_t num_parts = 0;        // side by side; 0: its tokens are in plain order
  int64_t num_drawn = 0;        // that it has drawn itself
  double sum_logprob = 0;       // of those
  BranchBudget budget;          // of its tree, and what the tree uses
  int64_t tree_tokens = 0;
  int64_t tree_branches = 0;
  int64_t tree_bytes = 0;
};

class BranchTable {
 public:
  // `service` outlives the table.
  BranchTable(const BranchLimits& limits, GenerationService* service, uint64_t seed)
      : limits_(limits), service_(*service), random_(seed) {}

  struct NewRoot {
    std::string id;  // empty: one is made
    std::vector<TokenId> tokens;
    std::string common;     // JSON members of all requests of the tree: model, lora, cache_salt
    BranchBudget budget{};  // 0: the usual
    int64_t ttl = 0;        // 0: as long as the tree lives
  };
  // RESOURCE_EXHAUSTED: there are as many branches, or tokens, as there may be.
  absl::StatusOr<BranchInfo> AddRoot(uint64_t owner, NewRoot root, int64_t now);

  struct ForkOrder {
    std::string from;
    std::optional<int64_t> at;  // tokens of `from`; missing: all that it has now
    int64_t n = 1;
    std::vector<TokenId> append;        // behind them, for each
    bool apart = false;                 // on pages of their own, for a concurrent join
    bool works = false;                 // as workers, or one of them, that see each other
    std::vector<std::string> sampling;  // JSON objects: none, one for all, or n
    std::vector<std::string> ids;       // n of them; empty: they are made
    int64_t ttl = 0;
  };
  // All or nothing. INVALID_ARGUMENT: `at` is beyond the end, or the budget does not allow it.
  absl::StatusOr<std::vector<BranchInfo>> Fork(uint64_t owner, const ForkOrder& order, int64_t now);

  struct JoinOrder {
    std::string parent;
    std::vector<std::string> children;
    bool pick = false;        // the one child goes on and its siblings are dropped
    bool concurrent = false;  // side by side; needs a tail, which sees all of them
    std::vector<TokenId> separator, tail;
    int64_t ttl = 0;
  };
  // Kind text: a new child of `parent` with the first child's tokens, then those that each other
  // child has beyond the fork, with `separator` before them, then `tail`. Concurrent: the same
  // without separators, but no child sees another (scheduler/context_layout.h). INVALID_ARGUMENT:
  // they are not different children of the parent that were forked at one place. ABORTED: one runs.
  absl::StatusOr<BranchInfo> Join(uint64_t owner, const JoinOrder& order, int64_t now);

  // NOT_FOUND: unknown, or another client's; with status 410 if its time is over.
  absl::StatusOr<BranchInfo> Get(uint64_t owner, std::string_view id, int64_t now);
  // Ends a branch and all that was forked from it.
  absl::Status Drop(uint64_t owner, std::string_view id, int64_t now);

  // The branch as a request continues it.
  struct Source {
    std::vector<TokenId> tokens;
    scheduler::ContextParts parts;
    std::string common, sampling;
    ContextId context{};
  };
  absl::StatusOr<Source> Read(uint64_t owner, std::string_view id, int64_t now);
  // Books `tokens` that are read behind a branch and not kept.
  absl::Status Charge(uint64_t owner, std::string_view id, int64_t tokens, int64_t now);

  // Begins to run a branch that has `num_tokens` tokens, with `append` behind them. Returns how
  // many it may draw, at least one and at most `max_tokens`. ABORTED: it runs already, or has
  // changed.
  absl::StatusOr<int64_t> Begin(uint64_t owner, std::string_view id, int64_t num_tokens,
                                std::span<const TokenId> append, int64_t max_tokens, int64_t now);
  // The request runs the branch and leaves what it computes as `context`. It is cancelled with the
  // branch, at once if that has ended meanwhile.
  void SetRequest(std::string_view id, RequestId request, ContextId context);
  // The following are for a branch that runs, and ignored if it has ended.
  void Grow(std::string_view id, std::span<const engine::SampledToken> tokens);
  // `drops_last`: the last token is the model's end of text, which no branch goes on behind.
  void End(std::string_view id, std::string_view reason, bool drops_last);
  // Takes Begin back: nothing ran.
  void Abort(std::string_view id);
  // Ends what is over. Returns whether the branch lives.
  bool IsLive(std::string_view id, int64_t now);

  // Names for contexts that are no branches', of which the first is returned.
  uint64_t ReserveContexts(int32_t count);
  // For requests that keep what they compute.
  ContextId ContextOf(std::string_view id) const;
  // The branch's root and its way from there ("0.2"), which requests that run it are called by.
  struct Names {
    std::string tree, branch;
  };
  Names NamesOf(std::string_view id) const;

  BranchFigures figures(int64_t now);
  const BranchLimits& limits() const { return limits_; }
  // INTERNAL if what the trees count is not what they are. O(all tokens); tests.
  absl::Status CheckIntegrity() const;

 private:
  struct Tree {
    uint64_t owner;
    std::string common;
    BranchAccount account;
    int64_t expires;
  };
  struct Branch {
    std::string root, parent;
    std::vector<std::string> children;
    std::string path = "0";    // its way from the root, for those who watch
    int64_t num_children = 0;  // over its life
    int64_t created = 0, expires = 0, forked_at = 0;
    std::vector<TokenId> tokens;
    scheduler::ContextParts parts;  // of the tokens
    std::string sampling, finish_reason;
    ContextId context{};
    int64_t num_drawn = 0;
    double sum_logprob = 0;
    bool is_running = false;
    RequestId request{};   // 0: not submitted yet
    int64_t reserved = 0;  // tokens that it may still draw
    int64_t begun_at = 0;  // its tokens before it ran
    int64_t positions() const { return static_cast<int64_t>(tokens.size()) - forked_at; }
  };
  using Branches = std::map<std::string, Branch, std::less<>>;

  absl::StatusOr<Branches::iterator> Find(uint64_t owner, std::string_view id, int64_t now);
  absl::Status CheckConcurrent(std::string_view param) const;
  absl::StatusOr<Branch> JoinText(std::span<const Branches::iterator> children,
                                  const JoinOrder& order) const;
  absl::StatusOr<Branch> JoinConcurrent(std::span<const Branches::iterator> children,
                                        const JoinOrder& order) const;
  absl::Status CheckRoom(uint64_t owner, int64_t branches, int64_t tokens) const;
  Branches::iterator Insert(std::string id, Branch branch);
  Branches::iterator AddChild(Branches::iterator parent, std::string id, Branch branch);
  void Remove(std::string_view id, bool expired);
  Branch* Running(std::string_view id);
  void Stop(Branch* branch);
  void Shorten(Branch* branch, int64_t length);
  static absl::Status Conflict(std::string_view id, std::string_view what);
  void Sweep(int64_t now);
  void Remember(const std::string& id, uint64_t owner);
  std::string NewId();
  BranchInfo InfoOf(const std::string& id, const Branch& branch) const;
  Tree& TreeOf(const Branch& branch) { return trees_.find(branch.root)->second; }
  const Tree& TreeOf(const Branch& branch) const { return trees_.find(branch.root)->second; }

  const BranchLimits limits_;
  GenerationService& service_;
  mutable std::mutex mutex_;
  // All of the following are GUARDED_BY(mutex_).
  std::mt19937_64 random_;
  std::map<std::string, Tree, std::less<>> trees_;  // by the root's id
  Branches branches_;
  absl::flat_hash_map<uint64_t, int64_t> branches_of_;  // by owner
  int64_t tokens_ = 0;                                  // remembered or reserved, of all branches
  int64_t running_ = 0;
  int64_t next_expiry_ = INT64_MAX;
  uint64_t last_context_ = 0;
  std::deque<std::pair<std::string, uint64_t>> gone_;  // ids that expired last, with their owners
  BranchFigures totals_;                               // only its counters are used
};

}  // namespace heddle::server
