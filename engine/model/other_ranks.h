// The ranks of a group beside the head, as its executor sees them: threads of this process
// (rank_threads.h), or other processes.
//
// A step has two halves: the layers, and the logits, in which only the ranks of stage 0 have a
// part. Each rank runs the halves in the order of Begin and BeginLogits, so that all ranks of a
// stage meet in the same order. Thread-safety: none; one thread at a time calls the functions.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "engine/adapter/adapter_image.h"
#include "engine/step.h"
#include "kernels/device.h"

namespace heddle::engine {

class OtherRanks {
 public:
  using Adapters = std::span<const std::shared_ptr<const AdapterImage>>;

  virtual ~OtherRanks() = default;

  // The other ranks begin a step; `plan` stays unchanged until Join. `adapters`:
  // StepLocals::adapters, which are kept until then.
  virtual void Begin(const StepPlan& plan, Adapters adapters) = 0;
  // They begin the second half of the oldest step that is not joined. Once, before its Join.
  virtual void BeginLogits() = 0;
  // Waits for the other ranks' work on the oldest step; `head` is how it went there. If a step
  // failed on any rank, no rank waits for another any more, and the error, the first one, stays; it
  // is returned when all ranks of this process have left all steps.
  virtual absl::Status Join(const absl::Status& head) = 0;
  // The same for a step that has failed on the head before its second half.
  virtual absl::Status Fail(const absl::Status& why) = 0;

  virtual int32_t world() const = 0;

  // The first reason for which ranks do not wait for each other any more; OK: none. What the head
  // has computed while it is OK has all parts of the others.
  virtual absl::Status status() const = 0;
  // Whether lost ranks can come back. Then Join may fail for a step whose head has gone well, and
  // Regroup tries to go on behind a failure, as Executor::Recover: `device` is the head's, which
  // joins new groups. REQUIRES for Regroup: may_regroup().
  virtual bool may_regroup() const { return false; }
  virtual absl::Status Regroup(kernels::Device& /*device*/) {
    return absl::FailedPreconditionError("these ranks do not come back");
  }
};

}  // namespace heddle::engine
