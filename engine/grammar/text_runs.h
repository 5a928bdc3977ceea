// Finds states of a grammar that read characters of one set as they come: how many, and which
// states they lead to. Masks then take such tokens from tables (token_slices.h).
//
// A run is a property of the automaton alone: whatever is on the stack, exactly the texts of up to
// `length` characters of the set can be read within the state's rule (what may follow where the
// rule ends is another matter).
// Thread-safety: none. Cost of Of: some 0.3 us per state of the run not met before.
#pragma once

#include <bitset>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/grammar/automaton.h"
#include "engine/grammar/token_slices.h"

namespace heddle::engine::grammar {

struct TextRun {
  int32_t state = -1;    // where it begins
  int32_t set = -1;      // into Automaton::character_sets(); -1: there is no run
  int32_t length = 0;    // in characters
  bool may_end = false;  // the rule may end behind one of them
  // The state after each number of characters, the last one for all more; empty if it depends on
  // the characters.
  std::vector<int32_t> states;

  int32_t StateAfter(int32_t num_chars) const {
    const auto i = static_cast<size_t>(num_chars);
    return i < states.size() ? states[i] : states.back();
  }
};

class TextRuns {
 public:
  // Limit on nested rule calls for one character; a "character" rule of a "string" is 1.
  static constexpr int kMaxCalls = 4;

  // `automaton` must outlive it. Runs are followed up to `max_length` characters.
  TextRuns(const Automaton* automaton, int32_t max_length);

  TextRun Of(int32_t state);
  // Whether Of would find a run.
  bool HasRun(int32_t state);
  size_t heap_bytes() const;

 private:
  enum class Reading : uint8_t { kNone, kSome, kAll };
  struct Step {
    Reading reading = Reading::kSome;
    std::vector<int32_t> targets;  // of kAll; sorted
  };
  struct Set {
    explicit Set(const CodePointSet& chars) : bytes(chars) {}
    CharacterBytes bytes;
    absl::flat_hash_map<int32_t, Step> steps;  // by state
  };

  TextRun RunOf(int32_t state, int32_t set);
  const Step& StepOf(int32_t state, Set* set);
  bool Read(int32_t state, const CharacterBytes& chars, int depth, std::bitset<256>* read,
            std::vector<int32_t>* targets) const;
  Reading ReadRest(int32_t state, int32_t at, const CharacterBytes& chars,
                   std::vector<int32_t>* targets) const;
  bool IsOver(int32_t state) const;

  const Automaton* automaton_;
  int32_t max_length_;
  mutable int32_t reads_left_ = 0;  // remaining for the current step
  std::vector<Set> sets_;
  std::vector<int8_t> set_of_;  // [states]; kUnknown, -1: none
};

}  // namespace heddle::engine::grammar
