// How long a connection that has written its last byte stays open: until the client's system has
// confirmed all bytes, and then for a moment in which the client may close first.
//
// Bytes that the kernel has taken are not delivered yet. If a socket is closed before they are, or
// with bytes of the client unread, the client's next bytes make the kernel reset the connection,
// and what was on its way is lost (RFC 1122, section 4.2.2.13). So the connection has told the
// client that no more comes, and reads on and drops what it reads.
// Thread-safety: none; time is an argument.
#pragma once

#include <chrono>
#include <cstddef>

#include "server/http/http_message.h"

namespace heddle::server {

class Linger {
 public:
  // After the last byte is confirmed. A client on the other side of the world closes in less.
  static constexpr Clock::duration kFarewell = std::chrono::seconds(2);
  // After an error answer the client may still be sending. This much is dropped, so that it reads
  // the answer (413 to an enormous body) before it sees a reset.
  static constexpr size_t kMaxDroppedBytes = size_t{64} << 20;

  // As many write timeouts after its beginning it ends, however much the client confirms: otherwise
  // one byte in each of them would keep the connection for days.
  static constexpr int kMostTimeouts = 4;

  // `write_timeout`: how long the client may confirm nothing while bytes are on their way.
  explicit Linger(Clock::duration write_timeout) : write_timeout_(write_timeout) {}

  // `undelivered_bytes`: Stream::undelivered_bytes(), here and below.
  void Begin(size_t undelivered_bytes, Clock::time_point now) {
    has_begun_ = true;
    began_ = last_progress_ = now;
    undelivered_bytes_ = undelivered_bytes;
  }
  bool has_begun() const { return has_begun_; }

  // Counts bytes of the client that are dropped. Returns false once they are too many: the
  // connection is to be closed.
  bool Drop(size_t bytes) {
    dropped_bytes_ += bytes;
    return dropped_bytes_ <= kMaxDroppedBytes;
  }

  // To be called every so often. Returns whether the connection is to be closed.
  bool Update(size_t undelivered_bytes, Clock::time_point now) {
    if (undelivered_bytes != undelivered_bytes_) {
      undelivered_bytes_ = undelivered_bytes;
      last_progress_ = now;
    }
    return now - began_ >= kMostTimeouts * write_timeout_ ||
           now - last_progress_ >= (undelivered_bytes > 0 ? write_timeout_ : kFarewell);
  }

 private:
  Clock::duration write_timeout_;
  size_t undelivered_bytes_ = 0;
  size_t dropped_bytes_ = 0;
  Clock::time_point began_;
  Clock::time_point last_progress_;
  bool has_begun_ = false;
};

}  // namespace heddle::server
