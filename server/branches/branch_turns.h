// The branches that one request runs, from its beginning to its end: it takes down the tokens that
// are drawn, and gives back what was reserved and not used.
//
// Thread-safety: none; belongs to the request's exchange. The table outlives it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/answer/api_request.h"
#include "server/branches/branch_table.h"

namespace heddle::server {

class BranchTurns {
 public:
  // The branch `id` goes on, with all of `request`'s one prompt as its tokens: it had the first
  // `num_tokens` of them. Limits the request to what the tree may still draw. Errors: those of
  // BranchTable::Begin.
  static absl::StatusOr<std::unique_ptr<BranchTurns>> Continue(BranchTable* table, uint64_t owner,
                                                               const std::string& id,
                                                               int64_t num_tokens, int64_t now,
                                                               ApiRequest* request);

  // New branches behind `id`, one for each of `request`'s workers, which run as its choices. They
  // stay as texts in plain order, which nobody has computed: no context has what they leave.
  static absl::StatusOr<std::unique_ptr<BranchTurns>> Work(BranchTable* table, uint64_t owner,
                                                           const std::string& id, int64_t now,
                                                           ApiRequest* request);

  // A completion whose answers stay as branches. Its tree's root is `id`: the one choice, or the
  // prompt of several, which are its children `id`.0 and so on.
  static absl::StatusOr<std::unique_ptr<BranchTurns>> Keep(BranchTable* table, uint64_t owner,
                                                           const std::string& id,
                                                           const std::string& common, int64_t now,
                                                           ApiRequest* request);

  BranchTurns(const BranchTurns&) = delete;
  BranchTurns& operator=(const BranchTurns&) = delete;
  ~BranchTurns();  // what has not ended is "cancelled", with the tokens that it has

  void Submitted(RequestId id);
  // Nothing was submitted: branches that were made for this request end.
  void Abort();

  // Tokens of choice `index` that belong to its answer.
  void Take(size_t index, std::span<const engine::SampledToken> tokens);
  // The choice ends with those that it has.
  void End(size_t index, bool length);
  // OK, or why all of this ends: somebody has deleted a branch, or its time is over.
  absl::Status CheckLive(int64_t now) const;

 private:
  BranchTurns(BranchTable* table, const ApiRequest& request);

  // Begins the next choice's turn in a branch of `num_tokens` tokens; lowers `granted` to what the
  // branch may draw.
  absl::Status Begin(uint64_t owner, const std::string& id, int64_t num_tokens, int64_t max_tokens,
                     int64_t now, int64_t* granted);
  void Add(const std::string& id);

  BranchTable& table_;
  std::vector<std::string> ids_;   // one per choice
  std::vector<std::string> made_;  // for this request: all below them is its own
  uint64_t owner_ = 0;             // of those that were made, and when that was
  int64_t made_at_ = 0;
  ContextId context_{};               // of the first; those of others follow; 0: they have none
  std::vector<bool> ended_;           // [choices]
  std::vector<TokenId> last_tokens_;  // [choices]
  std::vector<TokenId> ends_;         // tokens of which the last one does not stay
};

}  // namespace heddle::server
