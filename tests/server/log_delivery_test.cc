// Log readers that are slow or gone, and full disks: no logging thread waits for them.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "base/bounded_write.h"
#include "catch2/catch.hpp"
#include "server/log.h"

namespace heddle::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kLong = seconds(30);

// Bytes written to it wait for Read; it takes few bytes at a time.
class Pipe {
 public:
  Pipe() {
    int ends[2];
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    read_ = ends[0];
    write_ = ends[1];
    fcntl(write_, F_SETPIPE_SZ, 4096);
    signal(SIGPIPE, SIG_IGN);
  }
  ~Pipe() {
    CloseReader();
    CloseWriter();
  }
  int writer() const { return write_; }
  void CloseWriter() { Close(&write_); }
  void CloseReader() { Close(&read_); }
  std::string ReadAll() const {
    std::string text;
    char block[4096];
    while (true) {
      const ssize_t count = read(read_, block, sizeof(block));
      if (count <= 0) return text;
      text.append(block, static_cast<size_t>(count));
    }
  }

 private:
  static void Close(int* fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
  }
  int read_ = -1;
  int write_ = -1;
};

size_t Count(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST_CASE("Lines come out whole and in order", "[unit]") {
  Pipe pipe;
  std::string text;
  std::thread reader([&] { text = pipe.ReadAll(); });
  {
    const Logger log(LogFormat::kText, LogLevel::kInfo, pipe.writer());
    for (int64_t i = 0; i < 300; ++i) log.Info("line", {{"number", i}});
    CHECK(log.Flush(kLong));
    CHECK(log.dropped() == 0);
  }
  pipe.CloseWriter();
  reader.join();
  CHECK(Count(text, "\n") == 300);
  size_t at = 0;
  for (int i = 0; i < 300; ++i) {
    at = text.find("number=" + std::to_string(i) + "\n", at);
    REQUIRE(at != std::string::npos);
  }
}

TEST_CASE("Whoever logs does not wait for a reader that has stopped", "[unit]") {
  Pipe pipe;
  std::string text;
  const int64_t kept = Logger::kMaxQueued;
  {
    const Logger log(LogFormat::kText, LogLevel::kInfo, pipe.writer());
    for (int64_t i = 0; i < 3 * kept; ++i) log.Info("line", {{"number", i}});  // ends at all
    CHECK_FALSE(log.Flush(milliseconds(1)));
    // These are neither in the queue nor in the pipe nor in the thread's hands.
    CHECK(log.dropped() >= kept);
    CHECK(log.dropped() <= 2 * kept + 1);  // Flush takes a place in the queue
    std::thread reader([&] { text = pipe.ReadAll(); });
    CHECK(log.Flush(kLong));
    log.Info("the last one");
    CHECK(log.Flush(kLong));
    pipe.CloseWriter();
    reader.join();
  }
  CHECK(Count(text, "number=" + std::to_string(3 * kept - 1) + "\n") == 1);  // the newest are kept
  CHECK(Count(text, "the last one") == 1);
  CHECK(Count(text, "log messages were dropped") == 1);
}

TEST_CASE("A reader that has stopped does not keep the log from ending", "[unit]") {
  Pipe pipe;
  const Clock::time_point begin = Clock::now();
  {
    const Logger log(LogFormat::kJson, LogLevel::kInfo, pipe.writer());
    for (int64_t i = 0; i < 1000; ++i) log.Info("line", {{"number", i}});
  }
  // Twice the farewell at most, plus what a busy machine needs; without bounds it is for ever.
  CHECK(Clock::now() - begin < seconds(20));
}

TEST_CASE("What cannot be written is counted, and ends nothing", "[unit]") {
  SECTION("the disk is full") {
    const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    REQUIRE(full >= 0);
    const Logger log(LogFormat::kText, LogLevel::kInfo, full);
    for (int i = 0; i < 10; ++i) log.Info("line");
    CHECK(log.Flush(kLong));
    CHECK(log.dropped() == 10);
    close(full);
  }
  SECTION("the reader is gone") {
    Pipe pipe;
    pipe.CloseReader();
    const Logger log(LogFormat::kText, LogLevel::kInfo, pipe.writer());
    for (int i = 0; i < 10; ++i) log.Info("line");
    CHECK(log.Flush(kLong));
    CHECK(log.dropped() == 10);
  }
  SECTION("the descriptor is closed") {
    const Logger log(LogFormat::kText, LogLevel::kInfo, 12345);
    log.Info("line");
    CHECK(log.Flush(kLong));
    CHECK(log.dropped() == 1);
  }
}

TEST_CASE("A long text from outside is cut", "[unit]") {
  const std::string long_text(100'000, 'x');
  for (const LogFormat format : {LogFormat::kText, LogFormat::kJson}) {
    const std::string line = FormatLogLine(format, LogLevel::kInfo, "m", {{"path", long_text}});
    CHECK(line.size() < Logger::kMaxFieldBytes + 200);
    CHECK(line.find("xxx...\"") != std::string::npos);
  }
}

TEST_CASE("A bounded write gives up on a full pipe, and keeps what is left", "[unit]") {
  Pipe pipe;
  const std::string text(10'000, 'x');
  std::string_view rest = text;
  CHECK(base::WriteSomeWithin(pipe.writer(), &rest, milliseconds(0)) ==
        base::WriteResult::kTimedOut);
  CHECK(rest.size() == 10'000 - 4096);
  pipe.CloseReader();
  CHECK(base::WriteWithin(pipe.writer(), rest, kLong) == base::WriteResult::kFailed);
}

}  // namespace
}  // namespace heddle::server
