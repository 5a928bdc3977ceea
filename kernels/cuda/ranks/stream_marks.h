// Places in streams, for work that a library enqueues: what has been passed, and what waits for it.
// Runtime has marks and signals of its own for a step. Its two implementations are Runtime's, too.
//
// Thread-safety: Record and Await by the thread that enqueues; IsPassed by any.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/runtime/runtime.h"

namespace heddle::kernels::cuda {

class StreamMark {
 public:
  static absl::StatusOr<std::unique_ptr<StreamMark>> Create(const Runtime& runtime);
  virtual ~StreamMark() = default;

  // Marks the present end of `stream`, a cudaStream_t.
  virtual absl::Status Record(void* stream) = 0;
  // Further work of `stream` comes after the place that was marked last.
  virtual absl::Status Await(void* stream) = 0;
  virtual bool IsPassed() const = 0;  // also if the device has failed
};

// A stream of its own, beside those of the runtime.
class SideStream {
 public:
  static absl::StatusOr<std::unique_ptr<SideStream>> Create(const Runtime& runtime);
  virtual ~SideStream() = default;  // waits for its work

  virtual void* stream() const = 0;
};

}  // namespace heddle::kernels::cuda
