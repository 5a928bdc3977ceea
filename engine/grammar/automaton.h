// A grammar as a pushdown automaton over bytes: for each rule a finite automaton whose edges read a
// byte or call a rule. What masks and matchers run on.
//
// Invariants: of one state, at most one edge reads a byte; no rule calls itself before it has read
// a byte; from every state the end of its rule can be reached. State ids are dense over all rules.
// Thread-safety: immutable.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/grammar/grammar.h"

namespace heddle::engine::grammar {

struct ByteEdge {
  uint8_t first;
  uint8_t last;
  int32_t target;
};

struct Call {
  int32_t start;   // first state of the rule that is called
  int32_t target;  // where to go on when it has ended
  bool may_be_empty;
};

// Frames of the stack. Deeper texts are not derived: validators and parsers of clients give up at
// such depths too (a level of JSON takes two or three frames).
inline constexpr int32_t kMaxStackDepth = 600;

class Automaton {
 public:
  int32_t start() const { return start_; }
  int32_t num_states() const { return static_cast<int32_t>(accepting_.size()); }
  std::span<const ByteEdge> bytes(int32_t state) const {
    return {bytes_.data() + byte_begin_[state], bytes_.data() + byte_begin_[state + 1]};
  }
  std::span<const Call> calls(int32_t state) const {
    return {calls_.data() + call_begin_[state], calls_.data() + call_begin_[state + 1]};
  }
  // The rule may end here.
  bool accepting(int32_t state) const { return accepting_[state]; }
  // Nested calls that the way to the end of the rule takes at least.
  int32_t height(int32_t state) const { return height_[state]; }
  // A state whose next kSightBytes bytes are the same as those of `state`, whatever is on the
  // stack, and whether they are the same only so far.
  int32_t twin(int32_t state) const { return twin_[state]; }
  bool is_bounded_twin(int32_t state) const { return bounded_twin_[state]; }

  // Of all states.
  int32_t max_height() const { return max_height_; }
  // Sets of characters that are read as running text, larger ones first.
  std::span<const CodePointSet> character_sets() const { return character_sets_; }

  // Bytes that no state tells apart are one class.
  int32_t num_classes() const { return num_classes_; }
  uint8_t byte_class(uint8_t byte) const { return byte_class_[byte]; }
  uint8_t class_byte(int32_t byte_class) const { return class_byte_[byte_class]; }

  // Longer tokens than that are rare (runs of blanks or dashes).
  static constexpr int32_t kSightBytes = 32;

 private:
  friend class Compiler;
  void ClassifyBytes();
  void FindTwins();

  int32_t start_ = 0;
  std::vector<ByteEdge> bytes_;
  std::vector<Call> calls_;
  std::vector<int32_t> byte_begin_{0}, call_begin_{0};  // [num_states + 1]
  std::vector<bool> accepting_, bounded_twin_;          // [num_states]
  std::vector<int32_t> height_, twin_;                  // [num_states]
  int32_t max_height_ = 0;
  std::vector<CodePointSet> character_sets_;
  std::array<uint8_t, 256> byte_class_{};
  std::array<uint8_t, 256> class_byte_{};
  int32_t num_classes_ = 0;
};

// INVALID_ARGUMENT: a rule is left-recursive other than directly, or the grammar derives no text.
// RESOURCE_EXHAUSTED: more than kMaxStates states. Direct left recursion is rewritten.
absl::StatusOr<Automaton> Compile(const Grammar& grammar);

}  // namespace heddle::engine::grammar
