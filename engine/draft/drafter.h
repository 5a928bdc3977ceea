// Drafters: they guess how a sequence goes on, and the model verifies the guesses as rows of one
// step (engine/step.h, SliceKind::kDraft). A drafter sees token ids only. A wrong guess costs time
// and changes no output; how many rows a guess may cost is decided by scheduler/draft_budget.h.
//
// Every implementation is bounded in bytes and in time per call, whatever the tokens are: they come
// from clients.
// Source: Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative
// Decoding", ICML 2023; Cai et al., "Medusa", 2024 (trees).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/ids.h"

namespace heddle::engine {

// Proposed continuations of one sequence: a tree in order of depth. All three arrays are [nodes].
struct DraftTree {
  std::vector<TokenId> tokens;
  // parents[i] < i is the node before node i, or -1 for the last token of the history. A chain has
  // parents[i] == i - 1.
  std::vector<int32_t> parents;
  // Estimated probability that the node and all nodes above it are accepted; in [0, 1], and never
  // more than the parent's.
  std::vector<float> survival;

  int32_t size() const { return static_cast<int32_t>(tokens.size()); }
  bool empty() const { return tokens.empty(); }

  void Clear() {
    tokens.clear();
    parents.clear();
    survival.clear();
  }

  void Add(TokenId token, int32_t parent, float node_survival) {
    tokens.push_back(token);
    parents.push_back(parent);
    survival.push_back(node_survival);
  }
};

// Where a guess comes from.
enum class DrafterKind : uint8_t { kPrediction, kSuffix, kNgram, kNetwork, kOther };

// Guessed tokens by their drafter: those that were verified, and of these those that were right.
struct DrafterCounts {
  static constexpr size_t kKinds = 5;
  std::array<int64_t, kKinds> drafted{};
  std::array<int64_t, kKinds> accepted{};
};

// Whose finished answers a sequence may be drafted from: nothing is shared between different
// scopes.
struct DraftScope {
  uint64_t tenant = 0;
  uint64_t adapters = 0;  // identity of the adapter set; 0: the base model

  bool operator==(const DraftScope&) const = default;
};

// The calls for one sequence are Begin, then any number of Append, Propose and Verified, then End.
// Calls with an id that has not begun, or has ended, do nothing (Propose empties the tree). After a
// preemption a sequence just goes on: its tokens are the same.
// Thread: the engine loop's; no locks.
class Drafter {
 public:
  virtual ~Drafter() = default;

  // `prediction`: what the client expects the answer to be (OpenAI's predicted output); may be
  // empty. Branches of one request begin with the same prompt and different ids.
  virtual void Begin(SequenceId id, const DraftScope& scope, std::span<const TokenId> prompt,
                     std::span<const TokenId> prediction) = 0;

  // Tokens that were generated and kept, in order; each exactly once.
  virtual void Append(SequenceId id, std::span<const TokenId> tokens) = 0;

  // Overwrites *tree with at most `max_tokens` nodes, which continue the tokens given so far;
  // empty: nothing to propose.
  virtual void Propose(SequenceId id, int32_t max_tokens, DraftTree* tree) = 0;

  // Reports the verification of the tree that was proposed last: the first `num_proposed` of its
  // nodes were verified, and `num_accepted` of them are tokens of the answer now. Append brings
  // these tokens.
  virtual void Verified(SequenceId id, int32_t num_proposed, int32_t num_accepted) = 0;

  // `finished`: the answer came to its end and may be learnt from.
  virtual void End(SequenceId id, bool finished) = 0;

  virtual DrafterKind kind() const { return DrafterKind::kOther; }
  // Counts of the drafters that this one asks, if it asks others.
  virtual DrafterCounts counts() const { return {}; }
};

}  // namespace heddle::engine
