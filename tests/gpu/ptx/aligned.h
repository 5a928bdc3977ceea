// Instructions that a whole warp executes together: ".sync.aligned".
#pragma once

#include "tests/gpu/ptx/machine.h"
#include "tests/gpu/ptx/program.h"

namespace heddle::ptx {

// ".sync" makes threads wait until all threads of the warp are at the instruction: for false, the
// caller returns kAgain, also after Fail. ".aligned" forbids exited lanes, and a guard that differs
// between lanes.
inline bool AllLanesHere(Warp& warp, const Instruction& instruction, Lanes lanes) {
  if (lanes == kAllLanes) return true;
  if (warp.alive() != kAllLanes) {
    warp.Fail("lanes of this warp have exited, and the instruction is .aligned");
  } else if (instruction.guard >= 0) {
    warp.Fail("the guard of an .aligned instruction is not the same in all lanes");
  }
  return false;
}

}  // namespace heddle::ptx
