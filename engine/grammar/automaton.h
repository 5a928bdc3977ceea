// A grammar as a pushdown automaton over bytes: one finite automaton per rule, whose edges read a
// byte or call a rule. Masks and matchers run on it.
//
// Invariants: at most one edge of a state reads a given byte; no rule calls itself before it has
// read a byte; from every state the end of its rule can be reached. State ids are dense over all
// rules.
// Thread-safety: immutable.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/grammar/budget.h"
#include "engine/grammar/grammar.h"

namespace heddle::engine::grammar {

struct ByteEdge {
  uint8_t first;
  uint8_t last;
  int32_t target;
};

struct Call {
  int32_t start;   // first state of the rule that is called
  int32_t target;  // state after the called rule has ended
  bool may_be_empty;
  int32_t rank;  // greater than the rank of any rule that may call it before reading a byte
};

// Limit on the frames of the stack. Deeper texts are not derived: clients' validators and parsers
// give up at such depths too (a level of JSON takes two or three frames).
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
  // An object or array begins here whose keys or items must all be different.
  bool begins_distinct(int32_t state) const {
    return !begins_distinct_.empty() && begins_distinct_[state];
  }
  bool has_distinct() const { return !begins_distinct_.empty(); }
  // The fewest nested calls on a way to the end of the rule.
  int32_t height(int32_t state) const { return height_[state]; }
  // twin: a state whose next kSightBytes bytes are the same as those of `state`, whatever is on the
  // stack. is_bounded_twin: they are the same only for that many bytes.
  int32_t twin(int32_t state) const { return twin_[state]; }
  bool is_bounded_twin(int32_t state) const { return bounded_twin_[state]; }

  // The largest height of all states.
  int32_t max_height() const { return max_height_; }
  // Sets of characters that are read as running text, larger ones first.
  std::span<const CodePointSet> character_sets() const { return character_sets_; }

  size_t heap_bytes() const;

  // Bytes that no state distinguishes are one class.
  int32_t num_classes() const { return num_classes_; }
  uint8_t byte_class(uint8_t byte) const { return byte_class_[byte]; }
  uint8_t class_byte(int32_t byte_class) const { return class_byte_[byte_class]; }

  // The sight of twins. Longer tokens are rare (runs of blanks or dashes).
  static constexpr int32_t kSightBytes = 32;

 private:
  friend class Compiler;
  void ClassifyBytes();
  absl::Status FindTwins(Budget* budget);

  int32_t start_ = 0;
  std::vector<ByteEdge> bytes_;
  std::vector<Call> calls_;
  std::vector<int32_t> byte_begin_{0}, call_begin_{0};  // [num_states + 1]
  std::vector<bool> accepting_, bounded_twin_;          // [num_states]
  std::vector<bool> begins_distinct_;                   // [num_states]; empty if there is none
  std::vector<int32_t> height_, twin_;                  // [num_states]
  int32_t max_height_ = 0;
  std::vector<CodePointSet> character_sets_;
  std::array<uint8_t, 256> byte_class_{};
  std::array<uint8_t, 256> class_byte_{};
  int32_t num_classes_ = 0;
};

// INVALID_ARGUMENT: a rule is left-recursive other than directly, or the grammar derives no text.
// RESOURCE_EXHAUSTED: more than kMaxStates states, or the budget is spent. Direct left recursion is
// rewritten. Time is in proportion to the states and edges of the rules' machines.
absl::StatusOr<Automaton> Compile(const Grammar& grammar, Budget* budget = nullptr);

}  // namespace heddle::engine::grammar
