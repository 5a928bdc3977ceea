// Errors by which the engine ends a request.
// Thread-safety: pure function.
#pragma once

#include "absl/status/status.h"
#include "server/generation.h"

namespace heddle::server {

// The error that a client is told for an event that ends its request without an answer: the
// engine's, or UNAVAILABLE if the server has cancelled it. OK for all other events.
inline absl::Status FailureOf(const GenerationEvent& event) {
  if (!event.finished) return absl::OkStatus();
  if (event.reason == FinishReason::kCancelled) {
    return absl::UnavailableError("the server ended this request before it was finished");
  }
  if (event.reason != FinishReason::kError) return absl::OkStatus();
  return event.error.ok() ? absl::InternalError("the engine failed") : event.error;
}

}  // namespace heddle::server
