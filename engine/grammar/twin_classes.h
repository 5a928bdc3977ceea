// States of an automaton that read the same next bytes: Moore's refinement, one round per byte of
// sight. A round looks only at states with an edge to a state whose class was new in the round
// before, so that the work is in proportion to what changes and not to the rounds.
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/grammar/automaton.h"
#include "engine/grammar/budget.h"
#include "engine/grammar/signature.h"
#include "engine/grammar/source_index.h"

namespace heddle::engine::grammar {

class TwinClasses {
 public:
  explicit TwinClasses(const Automaton& automaton);

  absl::Status Refine(int32_t rounds, Budget* budget);

  int32_t class_of(int32_t state) const { return class_of_[state]; }
  int32_t size_of(int32_t class_id) const { return size_of_[class_id]; }
  int32_t num_classes() const { return static_cast<int32_t>(size_of_.size()); }
  // Further rounds would change nothing: states of a class are equivalent for any number of bytes.
  bool is_at_rest() const { return is_at_rest_; }

 private:
  // The states of one class that a round found to be alike.
  struct Part {
    int32_t class_id;
    int32_t size = 0;
    int32_t new_id = -1;  // -1: keeps the class's
  };

  // The state of one class in a round.
  struct Seen {
    int32_t states = 0;
    int32_t largest = -1;  // part that keeps the class's id; -1: none
  };

  Signature SignatureOf(int32_t state) const;
  int64_t FindParts();
  void NumberParts();
  void MoveStates();

  const Automaton& automaton_;
  const SourceIndex sources_;
  std::vector<int32_t> class_of_;   // [states]
  std::vector<int32_t> size_of_;    // [classes]
  std::vector<int32_t> looked_at_;  // states to look at in this round
  std::vector<int32_t> part_of_;    // [looked_at_]
  std::vector<Part> parts_;
  std::vector<Seen> seen_;       // [classes]; set for those of parts_
  std::vector<bool> is_listed_;  // [states] in looked_at_ of the next round
  bool is_at_rest_ = false;
};

}  // namespace heddle::engine::grammar
