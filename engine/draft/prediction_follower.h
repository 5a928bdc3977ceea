// Follows an answer through a text that the client expects it to be (OpenAI's predicted output).
// Where the answer leaves the prediction, it is found again by the answer's last tokens.
//
// The result depends on the two texts alone, and not on what was drafted or verified: an answer's
// usage is the same whatever the load was.
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/draft/history_index.h"

namespace heddle::engine {

class PredictionFollower {
 public:
  // A longer prediction is followed for so many tokens.
  static constexpr size_t kMaxTokens = 65536;

  explicit PredictionFollower(std::span<const TokenId> prediction);

  void Append(std::span<const TokenId> tokens);

  // The tokens that come next if the answer goes on as predicted; may be empty.
  std::span<const TokenId> Rest() const;
  // How many tokens led to this place: how far Rest can be trusted.
  int32_t match_length() const { return match_length_; }

  // Tokens of the prediction that came as predicted, and the others.
  int64_t num_accepted() const;
  int64_t num_rejected() const { return num_tokens_ - num_accepted(); }

 private:
  void AppendOne(TokenId token);
  void FindAgain();

  int64_t num_tokens_;  // of the whole prediction
  HistoryIndex prediction_;
  std::vector<TokenId> tokens_;
  std::vector<TokenId> answer_;  // its end
  size_t next_ = 0;              // the token that is expected next
  int32_t match_length_;
  int64_t num_followed_ = 0;  // tokens of the answer that were expected
  TokenIndex::Occurrences found_;
};

}  // namespace heddle::engine
