// Writes to a descriptor whose reader may have stopped: standard error is often a pipe, and a write
// to a full pipe would wait for its reader without end.
#pragma once

#include <chrono>
#include <string_view>

namespace heddle::base {

enum class WriteResult {
  kWritten,
  kTimedOut,  // a part of it may be written
  kFailed,    // the same: the reader is gone, the disk is full, the descriptor is closed
};

// Writes `text` as soon as `fd` takes it, for `limit` at most; errno is left unchanged.
// Async-signal-safe. SIGPIPE must be ignored or blocked; otherwise a reader that is gone ends the
// process. It can only take longer if another process fills the same pipe at the same moment.
WriteResult WriteWithin(int fd, std::string_view text, std::chrono::milliseconds limit);

// The same; `*text` becomes the part that is not written.
WriteResult WriteSomeWithin(int fd, std::string_view* text, std::chrono::milliseconds limit);

}  // namespace heddle::base
