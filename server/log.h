// Log lines of the server on stderr: text for people, JSON for machines. The content of a request
// (prompts, messages, answers) is never passed to it.
//
// Lines wait in a bounded queue for the one thread that writes them, so that a slow reader delays
// no other thread. If the reader is too slow or has stopped, the oldest lines are dropped, counted,
// and reported when it reads again; so are lines that a full disk refuses.
// Thread-safety: any thread may log; a line is written as a whole. SIGPIPE must be ignored.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

namespace heddle::server {

enum class LogFormat : uint8_t { kText, kJson };
enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError, kOff };

// One `name=value` of a line. Strings are only read during the call.
struct LogField {
  std::string_view name;
  std::variant<std::string_view, int64_t, double> value;
};

class Logger {
 public:
  using Fields = std::initializer_list<LogField>;

  // The caller keeps the ownership of `descriptor`.
  Logger(LogFormat format, LogLevel level, int descriptor = STDERR_FILENO);
  // Flushes, for kFarewell at most; lines that are not written by then are lost.
  ~Logger();
  Logger(const Logger&) = delete;
  Logger& operator=(const Logger&) = delete;

  void Debug(std::string_view message, Fields fields = {}) const;
  void Info(std::string_view message, Fields fields = {}) const;
  void Warning(std::string_view message, Fields fields = {}) const;
  void Error(std::string_view message, Fields fields = {}) const;

  // Waits until earlier lines are written, for `limit` at most; returns whether they are and no
  // later line came. Call it before a process leaves without destroying anything. One caller at a
  // time.
  bool Flush(std::chrono::milliseconds limit = kFarewell) const;

  // The number of dropped lines.
  int64_t dropped() const;

  static constexpr std::chrono::milliseconds kFarewell{500};  // a reader that reads needs moments
  static constexpr size_t kMaxQueued = 4096;                  // lines
  static constexpr size_t kMaxFieldBytes = 1024;              // longer texts are cut

 private:
  class Sink;
  struct Queue;

  void Write(LogLevel level, std::string_view message, Fields fields) const;

  LogFormat format_;
  LogLevel level_;
  std::unique_ptr<Queue> queue_;
};

// The line without time and level, as Logger writes it. Exposed for tests.
std::string FormatLogLine(LogFormat format, LogLevel level, std::string_view message,
                          Logger::Fields fields);

}  // namespace heddle::server
