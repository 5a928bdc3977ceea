// Replaces edges that read code points by edges that read the bytes of their UTF-8 encoding.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "engine/grammar/automaton.h"
#include "engine/grammar/state_machine.h"

namespace heddle::engine::grammar {

struct ByteState {
  std::vector<ByteEdge> bytes;
  std::vector<CallEdge> calls;
  bool accepting = false;
};

// The machine with the same states first, followed by those between the bytes of a code point. It
// is deterministic again. Source: Thompson and Pike's UTF-8; ranges are split as in R. Cox's utf8
// notes.
// If the budget is over, the result is arbitrary: check the budget's status. The same holds beyond
// kMaxStates states or kMaxEdges edges.
std::vector<ByteState> LowerToBytes(const StateMachine& machine, Budget* budget = nullptr);

}  // namespace heddle::engine::grammar
