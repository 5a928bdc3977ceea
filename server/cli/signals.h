// Signals as values instead of handlers: they stay blocked in every thread, and the one that owns
// this object asks for them.
#pragma once

#include <chrono>
#include <optional>

namespace heddle::server {

// Blocks SIGINT and SIGTERM, and SIGHUP where it is to mean "read files again", for this thread and
// those it starts later; ignores SIGPIPE. Make one before any other thread exists.
class SignalWatch {
 public:
  explicit SignalWatch(bool takes_hangup);

  // The number of a signal that has arrived, waiting for one up to `timeout`.
  std::optional<int> Wait(std::chrono::milliseconds timeout);

 private:
  const bool takes_hangup_;
};

}  // namespace heddle::server
