// Instructions that a whole warp executes together: ".sync.aligned".
#pragma once

#include "tests/gpu/ptx/machine.h"
#include "tests/gpu/ptx/program.h"

namespace heddle::ptx {

// ".sync" has threads wait until all threads of the warp are at the instruction: false is to be
// answered with kAgain, which it also is after Fail. Exited lanes and a guard that is not the same
// in all lanes are what ".aligned" forbids.
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
