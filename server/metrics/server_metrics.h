// The content of /metrics: counters and histograms of requests, which are updated here, and the
// figures of the engine and the process, which are read on demand. Names, units and meanings:
// docs/metrics.md.
//
// Thread-safety: all members may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/adapters/adapter_registry.h"
#include "server/batch/batch_figures.h"
#include "server/branches/branch_figures.h"
#include "server/generation.h"

namespace heddle::server {

struct ConnectionFigures {
  int open = 0;
  int64_t unsent_bytes = 0;        // of answers that clients have not taken yet
  int64_t pending_body_bytes = 0;  // of requests being received
  int64_t waiting_bodies = 0;      // bodies that wait until others are complete
};

// The threads that prepare requests, and their queue.
struct PreparationFigures {
  int64_t waiting = 0;
  int busy_threads = 0;
  int stuck_threads = 0;
  int num_grammars = 0;
  int64_t grammar_bytes = 0;
};

enum class AdapterOrigin : uint8_t {
  kDisk,
  kComposed,  // of others in memory (adapter_sets.h)
};

class ServerMetrics {
 public:
  ServerMetrics(std::string_view model, std::string_view version);
  ~ServerMetrics();
  ServerMetrics(const ServerMetrics&) = delete;
  ServerMetrics& operator=(const ServerMetrics&) = delete;

  // Counts one finished HTTP request. `route` is a pattern of the route table (or "other"), so that
  // there are few labels.
  void CountRequest(std::string_view route, std::string_view method, int status);

  // Counts one finished generation request: "success", "client_error", "server_error", "rejected"
  // or "cancelled". `seconds` are observed apart for each outcome.
  void CountGeneration(std::string_view route, std::string_view outcome, double seconds);
  void CountTokens(int64_t prompt, int64_t cached, int64_t generated);
  // Counts an answer whose model may think in branches, and one that a search has found.
  void CountBranches(int64_t branches, int64_t tokens, int64_t critical_path);
  void CountSearch(int64_t samples, int64_t pruned, int64_t saved_tokens);
  // Counts a finished generation request for its API key, if WatchKeys was called.
  void CountKey(std::string_view key, std::string_view outcome, int64_t prompt, int64_t generated);
  // Call it before requests come.
  void WatchKeys();

  // Records one prepared request: it waited `waited` seconds for a thread (negative: it needed
  // none) and took `spent`.
  void ObservePreparation(double waited, double spent);
  // Records how long a prepared request waited for its adapters, and how one came to the host's
  // memory.
  void ObserveAdapterWait(double seconds);
  void ObserveAdapterLoad(AdapterOrigin origin, double seconds, bool succeeded);
  void ObserveQueueTime(double seconds);
  void ObserveFirstToken(double seconds);
  // `seconds` is the mean over `tokens` tokens that came together.
  void ObserveInterToken(double seconds, int64_t tokens);

  void CountHandshakeFailure();  // of TLS

  void CountRequestException();  // an exception that ended a request

  // Counts what the transport refused to protect the server, by the name of a Refusal
  // (http/exchange.h). A count of 0 only makes the reason appear.
  void CountRefusal(std::string_view reason, int count = 1);

  // Counts a line of a batch that got a result: "succeeded", "failed" or "expired" (its batch
  // took too long), or one that was told to come later and will be tried again: "delayed".
  void CountBatchLine(std::string_view outcome);
  // Counts a batch that ended.
  void CountBatch(BatchStatus last);

  void CountSpans(int64_t exported, int64_t dropped);

  // Tells Render how to read the number of dropped log messages; call it before the first Render.
  void WatchLog(std::function<int64_t()> dropped);

  // Tells Render how to read the figures of adapters, and the names of their versions; call it
  // before the first Render.
  using AdapterNames =
      std::function<std::vector<std::string>(const std::vector<engine::AdapterId>&)>;
  void WatchAdapters(std::function<AdapterFigures()> figures, AdapterNames names);

  void StreamBegan();
  void StreamEnded();

  // The text exposition format (content type kContentType). `names`: whether some figures are
  // repeated under another server's names.
  enum class Names : uint8_t { kOwn, kAlsoVllm };
  std::string Render(const EngineStats& engine, const ConnectionFigures& connections,
                     Names names = Names::kOwn, const PreparationFigures& preparation = {},
                     const BatchFigures& batches = {}, const BranchFigures& branches = {}) const;

  // The same as one JSON object, for the web page and for scripts (docs/metrics.md).
  std::string RenderJson(const EngineStats& engine, const ConnectionFigures& connections) const;

  static constexpr std::string_view kContentType = "text/plain; version=0.0.4; charset=utf-8";

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

}  // namespace heddle::server
