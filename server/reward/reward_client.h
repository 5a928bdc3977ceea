// Asks another server, which serves a reward model or a reranker, how good answers to a question
// are: one request to its /v1/score for all answers of a question. The operator names that server
// (--reward-url); nothing of its address comes from clients.
//
// Protocol: POST {"text_1": question, "text_2": [answers], ...} over HTTP/1.1, as Heddle, vLLM and
// others answer it: {"data": [{"index": i, "score": s}, ...]}. What it answers is not trusted:
// bytes and shape are checked. Threads: one of its own does all I/O. Score may be called on any
// thread and does not wait.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/log.h"

namespace heddle::server {

class RewardClient {
 public:
  struct Options {
    std::string host;
    std::string port;
    std::string target = "/v1/score";
    std::string key;                            // sent as a bearer token; empty: none
    std::chrono::milliseconds timeout{10'000};  // per question, from Score to its end
    int max_open = 64;                          // questions in progress
  };
  // One finite score per answer, in their order; UNAVAILABLE, with a reason for the operator:
  // there are none. Called once, on the client's thread, and not at all after the client's end.
  using Done = std::function<void(absl::StatusOr<std::vector<double>>)>;

  RewardClient(Options options, const Logger* log);  // `log` outlives it
  ~RewardClient();

  // REQUIRES: `answers` is not empty.
  void Score(std::string_view question, std::span<const std::string> answers, Done done);

 private:
  class Call;
  struct Loop;

  void End(const Done& done, absl::StatusOr<std::vector<double>> scores);
  void NoteHealth(const absl::Status& status);

  const Options options_;
  const Logger* const log_;
  std::atomic<int> open_ = 0;
  bool is_healthy_ = true;      // used by the thread only
  std::unique_ptr<Loop> loop_;  // last: its thread uses everything above
};

// The scores of an answer of /v1/score to `count` texts. INVALID_ARGUMENT: it has another form.
absl::StatusOr<std::vector<double>> ParseScores(std::string_view body, size_t count);

}  // namespace heddle::server
