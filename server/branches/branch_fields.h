// The fields of the routes below /v1/branches.
#pragma once

#include "server/openai/chat_fields.h"
#include "server/request/fields.h"

namespace heddle::server::fields {

inline constexpr int64_t kMaxBranches = 128;  // that one request makes or names
inline constexpr int64_t kMaxWorkers = 16;

inline constexpr Field kBranchBudget[] = {
    {"tokens", kInteger, 1, kInfinity, "262144",
     "that its branches draw, are given or have scored, in all"},
    {"branches", kInteger, 1, kInfinity, "64", "at a time, the root included"},
    {"bytes", kInteger, 1, kInfinity, "(no limit)",
     "of keys and values at a time; positions that branches share count once"},
    {"seconds", kInteger, 1, kInfinity, "600", "until all of the tree ends"},
};

inline constexpr Field kBranchTtl = {
    "ttl", kInteger, 1, kInfinity, "(as long as its parent)", "seconds until it ends"};

inline constexpr Field kNewBranches[] = {
    {"from", kString, 1, 128, "",
     "id of a branch, or of a completion that was made with 'keep'; without it, 'prompt' begins a "
     "tree"},
    {"at", kInteger, 1, kMaxInt32, "(all)",
     "fork behind so many tokens, those of the prompt included"},
    {"n", kInteger, 1, kMaxBranches, "1", "branches"},
    {"append", kStringOrArray, 0, kInfinity, "", "text or token ids behind them, for each branch"},
    {"sampling", kArrayOrObject, 0, kMaxJsonMembers, "{}",
     "fields for /continue, where that does not bring them; an array has an object for each "
     "branch"},
    {"concurrent", kBoolean, 0, 0, "false",
     "the branches will be joined by kind 'concurrent': what they append and draw lies on pages of "
     "their own, and is not computed again"},
    kBranchTtl,
    {"prompt", kStringOrArray, 1, kInfinity, "", "text or token ids that a new tree begins with"},
    {"add_special_tokens", kBoolean, 0, 0, "true", "encode the prompt with the begin token"},
    {"budget", kObject, 0, kInfinity, "{}", "limits of a new tree", false, kBranchBudget},
    {"model", kString, 0, 512, "(the served model)", "of a new tree"},
    kLora,
    kCacheSalt,
};

inline constexpr Field kContinueOwn[] = {
    {"append", kStringOrArray, 0, kInfinity, "", "text or token ids that come first"},
    {"workers", kArray, 2, kMaxWorkers, "",
     "texts, or arrays of token ids: new branches that begin with them go on together, and each "
     "sees what the others have drawn"},
    {"max_tokens", kInteger, -1, kMaxInt32, "16",
     "tokens to generate at most, as far as the tree's budget goes; 0 computes what there is"},
    {"max_completion_tokens", kInteger, -1, kMaxInt32, "", "the same; wins over max_tokens"},
    {"logprobs", kInteger, 0, 20, "", "log-probabilities, with so many alternatives"},
};

inline constexpr auto kContinueBranch = Concat(kContinueOwn, kGeneration);

inline constexpr Field kJoinBranches[] = {
    {"children", kArray, 1, kMaxBranches, "", "ids of branches that were forked from this one",
     true},
    {"kind", kString, 0, 32, "text",
     "text: the tokens of all, one behind the other, as a new branch; concurrent: the same, but no "
     "child sees another, and the tail goes on behind the longest; pick: the one child goes on, "
     "and "
     "its siblings end"},
    {"separator", kStringOrArray, 0, kInfinity, "",
     "text or token ids before each child but the first"},
    {"tail", kStringOrArray, 0, kInfinity, "", "text or token ids behind them"},
    kBranchTtl,
};

inline constexpr Field kScoreBranch[] = {
    {"continuations", kArray, 1, kMaxBranches, "", "texts, or arrays of token ids", true},
};

}  // namespace heddle::server::fields
