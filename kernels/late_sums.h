// Sums over ranks in two calls, between which the ranks compute: an interface that a device's ops
// have beside Ops if it can begin a sum.
//
// Not part of Ops, which every source of every backend includes. Thread-safety: as Ops.
// Source: Zhang et al. 2025 (Ladder-Residual), for models whose blocks do not read the last sum.
#pragma once

#include "kernels/ops.h"

namespace heddle::kernels {

class LateSums {
 public:
  virtual ~LateSums() = default;

  // Gives the other ranks this one's part of a sum; the parts travel while the ranks compute. Sums
  // end in the order in which they begin, with other ops across ranks in between, and two at most
  // have begun. `partial` stays as it is until two sums that began later have ended.
  virtual void BeginAllReduce(const AllReduceArgs& args) = 0;
  // Completes the oldest sum that has begun as Ops::AllReduce does; `args` have the same partial
  // and bias, and may have another target and norm of the same shape.
  virtual void EndAllReduce(const AllReduceArgs& args) = 0;
};

}  // namespace heddle::kernels
