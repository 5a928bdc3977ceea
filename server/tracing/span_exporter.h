// Sends spans to a collector in batches, on its own thread: code that makes a span never waits.
// Spans that do not fit into the buffer, or that an unreachable or refusing collector does not
// take, are dropped and counted.
// Protocol: OTLP 1.x over HTTP/1.1 in JSON; after 429, 502, 503, 504 or no answer a batch is tried
// again with growing pauses, other answers are final.
// Thread-safety: Export may be called from any thread, Start and Stop by the owner.
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
#include "server/tracing/span.h"

namespace heddle::server {

struct OtlpEndpoint {
  std::string host;
  std::string port;
  std::string target;  // "/v1/traces"
};

// Parses "http://HOST[:PORT][/PATH]": as for OTEL_EXPORTER_OTLP_ENDPOINT, "/v1/traces" is appended
// to PATH unless it ends so; the port is 4318 by default. INVALID_ARGUMENT for anything else.
absl::StatusOr<OtlpEndpoint> ParseOtlpEndpoint(std::string_view url);

class SpanExporter {
 public:
  struct Options {
    OtlpEndpoint endpoint;
    std::vector<Attribute> resource;
    size_t max_buffered = 8192;  // of about half a kilobyte each
    size_t max_batch = 512;
    std::chrono::milliseconds interval{1000};     // between batches that are not full
    std::chrono::milliseconds timeout{5000};      // per batch, from connecting to the answer
    std::chrono::milliseconds first_pause{1000};  // after a failure; doubles each time
    int max_tries = 5;                            // per batch
  };
  // Counts further spans that the collector has taken, and dropped ones. Called on any thread.
  using Count = std::function<void(int64_t exported, int64_t dropped)>;

  // `log`, and what `count` uses, outlive the exporter.
  SpanExporter(Options options, const Logger* log, Count count);
  ~SpanExporter();  // Stop()

  void Export(std::vector<Span> spans);

  // Sends the remaining spans once and ends the thread; takes `timeout` at most. Idempotent.
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
  bool healthy_ = true;  // used by the thread only

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Span> buffer_;  // GUARDED_BY(mutex_)
  bool stopping_ = false;     // GUARDED_BY(mutex_)
  std::thread thread_;        // last: it uses everything above
};

}  // namespace heddle::server
