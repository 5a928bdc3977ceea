#include "base/bounded_write.h"

#include <poll.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

namespace heddle::base {
namespace {

// Bytes that a pipe that polls as writable takes at once (PIPE_BUF, pipe(7)); so do sockets.
constexpr size_t kMaxWrite = 4096;

int64_t NowMs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

// Whether `fd` becomes writable before `end_ms`; errors show at the write.
bool WaitUntilWritable(int fd, int64_t end_ms) {
  while (true) {
    pollfd entry{.fd = fd, .events = POLLOUT, .revents = 0};
    const int64_t left = std::max<int64_t>(0, end_ms - NowMs());
    const int ready = poll(&entry, 1, static_cast<int>(std::min<int64_t>(left, 1'000'000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
    if (NowMs() >= end_ms) return false;
  }
}

WriteResult Write(int fd, std::string_view* text, int64_t end_ms) {
  while (!text->empty()) {
    if (!WaitUntilWritable(fd, end_ms)) return WriteResult::kTimedOut;
    const ssize_t count = write(fd, text->data(), std::min(text->size(), kMaxWrite));
    if (count > 0) {
      text->remove_prefix(static_cast<size_t>(count));
    } else if (count == 0 || (errno != EINTR && errno != EAGAIN)) {
      return WriteResult::kFailed;
    }
  }
  return WriteResult::kWritten;
}

}  // namespace

WriteResult WriteWithin(int fd, std::string_view text, std::chrono::milliseconds limit) {
  return WriteSomeWithin(fd, &text, limit);
}

WriteResult WriteSomeWithin(int fd, std::string_view* text, std::chrono::milliseconds limit) {
  const int saved = errno;
  const WriteResult result = Write(fd, text, NowMs() + limit.count());
  errno = saved;
  return result;
}

}  // namespace heddle::base
