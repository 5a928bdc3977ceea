// Signals as values instead of handlers: they are blocked in every thread, and the owner of this
// object polls for them.
#pragma once

#include <chrono>
#include <optional>

namespace heddle::server {

// Blocks SIGINT and SIGTERM, and SIGHUP if it means to read files again, in this thread and those
// that it starts later; ignores SIGPIPE. Make one before any other thread exists.
class SignalWatch {
 public:
  explicit SignalWatch(bool takes_hangup);

  // The number of a signal that has arrived; waits for one up to `timeout`.
  std::optional<int> Wait(std::chrono::milliseconds timeout);

 private:
  const bool takes_hangup_;
};

}  // namespace heddle::server
