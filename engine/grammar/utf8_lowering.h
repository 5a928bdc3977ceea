// From edges that read code points to edges that read the bytes of their UTF-8 encoding.
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

// The machine with the same states first and, behind them, those between the bytes of a code point.
// Deterministic again. Source: Thompson and Pike's UTF-8; ranges split as in R. Cox's utf8 notes.
std::vector<ByteState> LowerToBytes(const StateMachine& machine);

}  // namespace heddle::engine::grammar
