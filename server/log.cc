#include "server/log.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "base/bounded_write.h"
#include "base/message.h"
#include "server/json_writer.h"
#include "spdlog/async_logger.h"
#include "spdlog/details/thread_pool.h"
#include "spdlog/pattern_formatter.h"
#include "spdlog/sinks/sink.h"

namespace heddle::server {
namespace {

constexpr size_t kMaxMessageBytes = 8192;  // messages are ours; they name files and errors

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

// A client can choose the content and the length of some fields.
void WriteText(std::string_view text, JsonWriter* json) {
  if (text.size() <= Logger::kMaxFieldBytes) {
    json->String(text);
  } else {
    json->String(base::StrCat(text.substr(0, Logger::kMaxFieldBytes), "..."));
  }
}

void WriteValue(const LogField& field, JsonWriter* json) {
  if (const auto* text = std::get_if<std::string_view>(&field.value)) {
    WriteText(*text, json);
  } else if (const auto* integer = std::get_if<int64_t>(&field.value)) {
    json->Int(*integer);
  } else {
    json->Number(std::get<double>(field.value));
  }
}

// Words without spaces, quotes or control characters stand bare; others are quoted as in JSON.
bool IsBareWord(std::string_view text) {
  for (char c : text) {
    if (c <= ' ' || c == '"' || c == '\\' || c == '=' || c >= 0x7F) return false;
  }
  return !text.empty();
}

std::string FormatText(std::string_view message, Logger::Fields fields) {
  std::string line;
  // A message may quote outside text, so control characters are replaced to keep it on one line.
  for (char c : message.substr(0, kMaxMessageBytes))
    line.push_back(static_cast<unsigned char>(c) < 0x20 ? ' ' : c);
  for (const LogField& field : fields) {
    line.push_back(' ');
    line.append(field.name);
    line.push_back('=');
    const auto* text = std::get_if<std::string_view>(&field.value);
    if (text != nullptr && text->size() <= Logger::kMaxFieldBytes && IsBareWord(*text)) {
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
  json.BeginObject()
      .Member("level", LevelName(level))
      .Member("message", message.substr(0, kMaxMessageBytes));
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

// Writes lines one by one on the queue's thread. It waits while nobody reads, until it is
// abandoned; the remaining lines are then dropped.
class Logger::Sink final : public spdlog::sinks::sink {
 public:
  Sink(LogFormat format, int descriptor) : format_(format), descriptor_(descriptor) {
    // In JSON the time is spliced in as the first member: the line is "{" + time + rest.
    set_pattern(format == LogFormat::kJson ? "{\"time\":\"%Y-%m-%dT%H:%M:%S.%eZ\",%v"
                                           : "%Y-%m-%dT%H:%M:%S.%eZ %l %v");
  }

  void log(const spdlog::details::log_msg& message) override {
    Write(message);
    if (queue_->queue_size() == 0) MentionDropped();
  }

  // A flush that is not the last item is an older one whose caller has stopped waiting.
  void flush() override {
    if (queue_->queue_size() > 0) return;
    MentionDropped();
    std::lock_guard lock(mutex_);
    ++flushes_;
    flushed_.notify_all();
  }

  void set_pattern(const std::string& pattern) override {
    set_formatter(
        std::make_unique<spdlog::pattern_formatter>(pattern, spdlog::pattern_time_type::utc));
  }
  void set_formatter(std::unique_ptr<spdlog::formatter> formatter) override {
    formatter_ = std::move(formatter);
  }

  // Call before the first line.
  void set_queue(spdlog::details::thread_pool* queue) { queue_ = queue; }

  void Abandon() { abandoned_ = true; }

  int64_t flushes() const {
    std::lock_guard lock(mutex_);
    return flushes_;
  }
  bool WaitForFlush(int64_t count, std::chrono::milliseconds limit) const {
    std::unique_lock lock(mutex_);
    return flushed_.wait_for(lock, limit, [&] { return flushes_ >= count; });
  }

  int64_t dropped() const { return lost_ + static_cast<int64_t>(queue_->overrun_counter()); }

 private:
  static constexpr std::chrono::milliseconds kPoll{100};  // delay of noticing that it is abandoned

  void Write(const spdlog::details::log_msg& message) {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    std::string_view text(line.data(), line.size());
    auto result = base::WriteResult::kTimedOut;
    while (result == base::WriteResult::kTimedOut && !abandoned_) {
      result = base::WriteSomeWithin(descriptor_, &text, kPoll);
    }
    if (result != base::WriteResult::kWritten) ++lost_;
  }

  // Reports the dropped lines once each time that the reader has caught up.
  void MentionDropped() {
    const int64_t dropped = this->dropped();
    if (dropped == mentioned_ || abandoned_) return;
    const int64_t lost_before = lost_;
    std::string line = FormatLogLine(
        format_, LogLevel::kWarning,
        "log messages were dropped: standard error was not read, or could not be written",
        {{"dropped", dropped - mentioned_}, {"dropped_since_start", dropped}});
    std::string_view text = line;
    if (format_ == LogFormat::kJson) text.remove_prefix(1);
    Write({"heddle", spdlog::level::warn, spdlog::string_view_t(text.data(), text.size())});
    if (lost_ == lost_before) {
      mentioned_ = dropped;
    } else {
      --lost_;  // this line is not counted: the next one reports the same
    }
  }

  const LogFormat format_;
  const int descriptor_;
  std::unique_ptr<spdlog::formatter> formatter_;  // used by the queue's thread only
  spdlog::details::thread_pool* queue_ = nullptr;
  int64_t mentioned_ = 0;  // used by the queue's thread only
  std::atomic<int64_t> lost_ = 0;
  std::atomic<bool> abandoned_ = false;
  mutable std::mutex mutex_;
  mutable std::condition_variable flushed_;
  int64_t flushes_ = 0;  // GUARDED_BY(mutex_)
};

struct Logger::Queue {
  std::shared_ptr<Sink> sink;
  std::shared_ptr<spdlog::details::thread_pool> pool;
  std::shared_ptr<spdlog::async_logger> logger;
};

Logger::Logger(LogFormat format, LogLevel level, int descriptor)
    : format_(format), level_(level), queue_(std::make_unique<Queue>()) {
  queue_->sink = std::make_shared<Sink>(format, descriptor);
  queue_->pool = std::make_shared<spdlog::details::thread_pool>(
      kMaxQueued, 1, [] { pthread_setname_np(pthread_self(), "log"); });
  queue_->sink->set_queue(queue_->pool.get());
  queue_->logger = std::make_shared<spdlog::async_logger>(
      "heddle", queue_->sink, queue_->pool, spdlog::async_overflow_policy::overrun_oldest);
  queue_->logger->set_level(ToSpdlog(level));
  // The default handler would write to standard error on the logging thread.
  queue_->logger->set_error_handler([](const std::string&) {});
}

Logger::~Logger() {
  if (Flush()) return;
  queue_->sink->Abandon();
  // The thread may be blocked in a write without end if another process fills the same pipe: its
  // state is then leaked, and it ends with the process.
  if (!Flush()) static_cast<void>(queue_.release());
}

bool Logger::Flush(std::chrono::milliseconds limit) const {
  const int64_t wanted = queue_->sink->flushes() + 1;
  queue_->logger->flush();
  return queue_->sink->WaitForFlush(wanted, limit);
}

int64_t Logger::dropped() const { return queue_->sink->dropped(); }

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
  queue_->logger->log(ToSpdlog(level), spdlog::string_view_t(text.data(), text.size()));
}

}  // namespace heddle::server
