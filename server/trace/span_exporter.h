// Sends spans to a collector, some at a time, from a thread of its own: whoever makes a span never
// waits. What does not fit into the buffer, and what a collector that is away or refuses will not
// take, is dropped and counted.
//
// Protocol: OTLP 1.x over HTTP/1.1 in JSON; answers 429, 502, 503 and 504, and no answer at all,
// are tried again with growing pauses, others are final. Thread-safety: Export from any thread.
// Start and Stop by the one that owns the exporter.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "server/log.h"
#include "server/trace/span.h"

namespace heddle::server {

struct OtlpEndpoint {
  std::string host;
  std::string port;
  std::string target;  // "/v1/traces"
};

// "http://HOST[:PORT][/PATH]": as OTEL_EXPORTER_OTLP_ENDPOINT has it, "/v1/traces" is put behind
// PATH unless it ends so; the port is 4318 where none stands. INVALID_ARGUMENT for anything else.
absl::StatusOr<OtlpEndpoint> ParseOtlpEndpoint(std::string_view url);

class SpanExporter {
 public:
  struct Options {
    OtlpEndpoint endpoint;
    std::vector<Attribute> resource;
    size_t max_buffered = 8192;  // spans, of about half a kilobyte each
    size_t max_batch = 512;
    std::chrono::milliseconds interval{1000};     // between batches that are not full
    std::chrono::milliseconds timeout{5000};      // of one batch, from connecting to the answer
    std::chrono::milliseconds first_pause{1000};  // after a failure; then twice as long each time
    int max_tries = 5;                            // of one batch
  };
  // How many spans more have been taken by the collector, and how many dropped. Any thread.
  using Count = std::function<void(int64_t exported, int64_t dropped)>;

  // `log` and what `count` uses outlive the exporter.
  SpanExporter(Options options, const Logger* log, Count count);
  ~SpanExporter();  // Stop()

  void Export(std::vector<Span> spans);

  // Sends what is left, once, and ends the thread: takes `timeout` at most. Idempotent.
  void Stop();

 private:
  enum class Sent : uint8_t { kTaken, kTryAgain, kRefused };

  void Run();
  std::vector<Span> NextBatch();  // waits; empty: the end
  bool Deliver(const std::vector<Span>& batch);
  bool IsStopping();
  int64_t DropAll();
  Sent Post(const std::string& body, std::string* why) const;
  void NoteHealth(bool healthy, const std::string& why);
  bool Pause(std::chrono::milliseconds time);  // false: the end has come

  const Options options_;
  const Logger* const log_;
  const Count count_;
  bool healthy_ = true;  // the thread's own

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Span> buffer_;  // GUARDED_BY(mutex_)
  bool stopping_ = false;     // GUARDED_BY(mutex_)
  std::thread thread_;        // last: it uses everything above
};

}  // namespace heddle::server
