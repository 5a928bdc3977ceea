// What /metrics shows: counters and histograms of requests, which are fed here, and the figures of
// the engine and the process, which are read when someone asks. Names, units and meanings:
// docs/metrics.md.
//
// Thread-safety: all members may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "server/generation.h"

namespace heddle::server {

struct ConnectionFigures {
  int open = 0;
  int64_t unsent_bytes = 0;  // of answers, that clients have not taken yet
};

class ServerMetrics {
 public:
  ServerMetrics(std::string_view model, std::string_view version);
  ~ServerMetrics();
  ServerMetrics(const ServerMetrics&) = delete;
  ServerMetrics& operator=(const ServerMetrics&) = delete;

  // One finished HTTP request. `route` is a pattern of the route table (or "other"), so that labels
  // stay few.
  void CountRequest(std::string_view route, std::string_view method, int status);

  // One finished generation request: "success", "client_error", "server_error", "rejected" or
  // "cancelled".
  void CountGeneration(std::string_view route, std::string_view outcome, double seconds);
  void CountTokens(int64_t prompt, int64_t cached, int64_t generated);

  // One request that was prepared: `waited` seconds for a thread that does it (negative: it needed
  // none), `spent` at work.
  void ObservePreparation(double waited, double spent);
  void ObserveQueueTime(double seconds);
  void ObserveFirstToken(double seconds);
  // `seconds` is the mean over `tokens` tokens that came together.
  void ObserveInterToken(double seconds, int64_t tokens);

  void CountHandshakeFailure();  // of TLS

  void CountSpans(int64_t exported, int64_t dropped);

  void StreamBegan();
  void StreamEnded();

  // The text exposition format (content type kContentType).
  // `names`: whether some figures come a second time, under the names of another server.
  enum class Names : uint8_t { kOwn, kAlsoVllm };
  std::string Render(const EngineStats& engine, const ConnectionFigures& connections,
                     Names names = Names::kOwn) const;

  // The same as one JSON object, for the web page and for scripts (docs/metrics.md).
  std::string RenderJson(const EngineStats& engine, const ConnectionFigures& connections) const;

  static constexpr std::string_view kContentType = "text/plain; version=0.0.4; charset=utf-8";

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

}  // namespace heddle::server
