#include "server/log.h"

#include <chrono>

#include "server/json_writer.h"
#include "spdlog/logger.h"
#include "spdlog/sinks/stdout_sinks.h"

namespace heddle::server {
namespace {

std::string_view LevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
    case LogLevel::kOff:
      break;
  }
  return "off";
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      break;
  }
  return spdlog::level::off;
}

void WriteValue(const LogField& field, JsonWriter* json) {
  if (const auto* text = std::get_if<std::string_view>(&field.value)) {
    json->String(*text);
  } else if (const auto* integer = std::get_if<int64_t>(&field.value)) {
    json->Int(*integer);
  } else {
    json->Number(std::get<double>(field.value));
  }
}

// Values with spaces, quotes or control characters are quoted as in JSON; others stand bare.
bool IsBareWord(std::string_view text) {
  for (char c : text) {
    if (c <= ' ' || c == '"' || c == '\\' || c == '=' || c >= 0x7F) return false;
  }
  return !text.empty();
}

std::string FormatText(std::string_view message, Logger::Fields fields) {
  std::string line;
  // A message may quote what came from outside: it stays on one line.
  for (char c : message) line.push_back(static_cast<unsigned char>(c) < 0x20 ? ' ' : c);
  for (const LogField& field : fields) {
    line.push_back(' ');
    line.append(field.name);
    line.push_back('=');
    const auto* text = std::get_if<std::string_view>(&field.value);
    if (text != nullptr && IsBareWord(*text)) {
      line.append(*text);
    } else {
      JsonWriter json(&line);
      WriteValue(field, &json);
    }
  }
  return line;
}

std::string FormatJson(LogLevel level, std::string_view message, Logger::Fields fields) {
  std::string line;
  JsonWriter json(&line);
  json.BeginObject().Member("level", LevelName(level)).Member("message", message);
  for (const LogField& field : fields) {
    json.Key(field.name);
    WriteValue(field, &json);
  }
  json.EndObject();
  return line;
}

}  // namespace

std::string FormatLogLine(LogFormat format, LogLevel level, std::string_view message,
                          Logger::Fields fields) {
  return format == LogFormat::kJson ? FormatJson(level, message, fields)
                                    : FormatText(message, fields);
}

Logger::Logger(LogFormat format, LogLevel level)
    : format_(format),
      level_(level),
      sink_(std::make_unique<spdlog::logger>("heddle",
                                             std::make_shared<spdlog::sinks::stderr_sink_mt>())) {
  sink_->set_level(ToSpdlog(level));
  // In JSON the time is spliced in as the first member: the line is "{" + time + rest.
  sink_->set_pattern(format == LogFormat::kJson ? "{\"time\":\"%Y-%m-%dT%H:%M:%S.%eZ\",%v"
                                                : "%Y-%m-%dT%H:%M:%S.%eZ %l %v",
                     spdlog::pattern_time_type::utc);
}

Logger::~Logger() = default;

void Logger::Debug(std::string_view message, Fields fields) const {
  Write(LogLevel::kDebug, message, fields);
}
void Logger::Info(std::string_view message, Fields fields) const {
  Write(LogLevel::kInfo, message, fields);
}
void Logger::Warning(std::string_view message, Fields fields) const {
  Write(LogLevel::kWarning, message, fields);
}
void Logger::Error(std::string_view message, Fields fields) const {
  Write(LogLevel::kError, message, fields);
}

void Logger::Write(LogLevel level, std::string_view message, Fields fields) const {
  if (level < level_) return;
  std::string line = FormatLogLine(format_, level, message, fields);
  std::string_view text = line;
  if (format_ == LogFormat::kJson) text.remove_prefix(1);
  sink_->log(ToSpdlog(level), spdlog::string_view_t(text.data(), text.size()));
}

}  // namespace heddle::server
