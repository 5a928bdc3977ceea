// Redirects gRPC's and Protocol Buffers' own messages. By default they are written to standard
// error on the serving thread, which then waits for the reader, and any client can cause messages
// about malformed data.
#pragma once

#include "server/log.h"

namespace heddle::server {

// Sends them to `log` until it is destroyed. Both libraries have one receiver per process, so there
// may be one object at a time. A logging thread waits only for a lock.
class LibraryLogs {
 public:
  explicit LibraryLogs(const Logger* log);
  ~LibraryLogs();  // later messages are dropped
  LibraryLogs(const LibraryLogs&) = delete;
  LibraryLogs& operator=(const LibraryLogs&) = delete;
};

}  // namespace heddle::server
