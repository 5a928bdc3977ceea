#include "server/grpc/library_logs.h"

#include <grpc/support/log.h>

#include <mutex>
#include <string>

#include "google/protobuf/stubs/logging.h"

namespace heddle::server {
namespace {

// The libraries call plain functions, so their data must be static.
struct Receiver {
  std::mutex mutex;
  const Logger* log = nullptr;  // GUARDED_BY(mutex)
};

Receiver& TheReceiver() {
  static Receiver receiver;
  return receiver;
}

void Log(LogLevel level, std::string_view library, const char* file, int64_t line,
         std::string_view message) {
  Receiver& receiver = TheReceiver();
  std::lock_guard lock(receiver.mutex);
  if (receiver.log == nullptr) return;
  const Logger::Fields fields = {
      {"library", library}, {"file", file}, {"line", line}, {"what", message}};
  level == LogLevel::kError ? receiver.log->Error("a library reports", fields)
                            : receiver.log->Warning("a library reports", fields);
}

void OnGrpc(gpr_log_func_args* arguments) {
  const bool is_error = arguments->severity == GPR_LOG_SEVERITY_ERROR;
  Log(is_error ? LogLevel::kError : LogLevel::kWarning, "grpc", arguments->file, arguments->line,
      arguments->message);
}

void OnProtobuf(google::protobuf::LogLevel level, const char* file, int line,
                const std::string& message) {
  const bool is_error = level >= google::protobuf::LOGLEVEL_ERROR;
  Log(is_error ? LogLevel::kError : LogLevel::kWarning, "protobuf", file, line, message);
}

void Receive(const Logger* log) {
  Receiver& receiver = TheReceiver();
  std::lock_guard lock(receiver.mutex);
  receiver.log = log;
}

}  // namespace

LibraryLogs::LibraryLogs(const Logger* log) {
  Receive(log);
  gpr_set_log_function(OnGrpc);
  google::protobuf::SetLogHandler(OnProtobuf);
}

LibraryLogs::~LibraryLogs() { Receive(nullptr); }

}  // namespace heddle::server
