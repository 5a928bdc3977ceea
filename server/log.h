// Log lines of the server: text for people, JSON for machines, on stderr. What a request says
// (prompts, messages, answers) is never passed to it.
//
// Thread-safety: any thread may log; a line is written as a whole.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

namespace spdlog {
class logger;
}

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

  Logger(LogFormat format, LogLevel level);
  ~Logger();
  Logger(const Logger&) = delete;
  Logger& operator=(const Logger&) = delete;

  void Debug(std::string_view message, Fields fields = {}) const;
  void Info(std::string_view message, Fields fields = {}) const;
  void Warning(std::string_view message, Fields fields = {}) const;
  void Error(std::string_view message, Fields fields = {}) const;

 private:
  void Write(LogLevel level, std::string_view message, Fields fields) const;

  LogFormat format_;
  LogLevel level_;
  std::unique_ptr<spdlog::logger> sink_;
};

// The line without time and level, as Logger writes it. Exposed for tests.
std::string FormatLogLine(LogFormat format, LogLevel level, std::string_view message,
                          Logger::Fields fields);

}  // namespace heddle::server
