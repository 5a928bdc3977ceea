#include "engine/model/guess_shares.h"

#include <algorithm>
#include <utility>

namespace heddle::engine {
namespace {

// Makes the seed of a sequence's guesses from that of its draws.
constexpr uint64_t kGuessSeed = 0xD1B54A32D192ED03u;

}  // namespace

void GuessShares::BeginGuess(int32_t vocab, Chain* chain, kernels::SampleRowParams* row) {
  row->seed ^= kGuessSeed;
  row->shares = chain->shares.emplace_back(static_cast<size_t>(vocab)).data();
}

bool GuessShares::Reserve(SequenceId id, int32_t num_guesses, int32_t vocab) {
  Forget(id);
  const int64_t bytes = int64_t{num_guesses} * vocab * int64_t{sizeof(float)};
  if (bytes_ + bytes > kMaxBytes) return false;
  bytes_ += bytes;
  guesses_[id].bytes = bytes;
  return true;
}

void GuessShares::Keep(Chain* chain) {
  Guesses& kept = guesses_[chain->next.id];
  kept.first = chain->next.position;
  kept.tokens = chain->guesses;
  kept.shares = std::move(chain->shares);
}

void GuessShares::AddProposal(const SampleRow& sample, std::span<const TokenId> drafted,
                              kernels::SampleRowParams* row) const {
  const auto found = guesses_.find(sample.id);
  if (found == guesses_.end() || found->second.first != sample.position) return;
  const Guesses& guesses = found->second;
  const bool is_behind_them = drafted.size() < guesses.tokens.size() &&
                              std::equal(drafted.begin(), drafted.end(), guesses.tokens.begin());
  if (!is_behind_them) return;
  row->proposed = guesses.tokens[drafted.size()];
  row->proposed_shares = guesses.shares[drafted.size()].data();
}

void GuessShares::Forget(SequenceId id) {
  const auto found = guesses_.find(id);
  if (found == guesses_.end()) return;
  bytes_ -= found->second.bytes;
  guesses_.erase(found);
}

}  // namespace heddle::engine
