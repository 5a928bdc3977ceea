// Tells whether a client reads its stream more slowly than the stream grows, so that what is
// computed for it can wait.
//
// A client is behind when much has been unread for some time, and until little is left. What counts
// as unread comes behind the buffers of the kernel and of the network, so that a client that reads
// once in a while has those to live on, and a wait of some steps when it comes back.
// Thread-safety: none; time is an argument.
#pragma once

#include <chrono>
#include <cstddef>
#include <utility>

#include "server/http/http_message.h"

namespace heddle::server {

class ReadingPace {
 public:
  // 80 tokens of a plain stream. It is below the least of the limits that end a stream
  // (UnsentBytes::kLeast).
  static constexpr size_t kMuchBytes = size_t{16} << 10;
  // A quarter of it: while the client reads on, the next step has begun before it is through.
  static constexpr size_t kLittleBytes = size_t{4} << 10;
  // One step of 128 branches writes more than kMuchBytes, and is gone within a millisecond if the
  // client reads. A busy machine may need some more.
  static constexpr Clock::duration kPatience = std::chrono::milliseconds(20);

  static bool IsLittle(size_t unread_bytes) { return unread_bytes <= kLittleBytes; }

  // To be called whenever the number changes. Returns whether a client that was behind has caught
  // up.
  bool Count(size_t unread_bytes, Clock::time_point now) {
    if (IsLittle(unread_bytes)) {
      since_ = {};
      return std::exchange(is_behind_, false);
    }
    if (unread_bytes <= kMuchBytes) return false;
    if (since_ == Clock::time_point()) since_ = now;
    if (now - since_ >= kPatience) is_behind_ = true;
    return false;
  }

  bool is_behind() const { return is_behind_; }
  // Since when there has been much, if the client is behind.
  Clock::time_point since() const { return since_; }

 private:
  Clock::time_point since_;  // the epoch: little is unread
  bool is_behind_ = false;
};

}  // namespace heddle::server
