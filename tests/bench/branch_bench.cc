// What branches bring one user: tokens per second of one stream behind a long prefix, and of
// several branches that were forked from its end, on a model of random weights on the CPU.
//
//   branch_bench SHAPE WEIGHTS PREFIX TOKENS BRANCHES     tinyllama-1.1b q4_0 1024 256 8
//
// One line of JSON. `pages`: the most that were in use, beside those of the prefix alone.
// Exit code 1 if a request failed, 2 for a wrong command line.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/load.h"
#include "engine/model/random_model.h"
#include "server/loop/engine_loop.h"

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;
using scheduler::ContextId;

constexpr ContextId kPrefix{1};

int Fail(const absl::Status& status, int code) {
  std::fprintf(stderr, "branch_bench: %s\n", std::string(status.message()).c_str());
  return code;
}

struct Measured {
  double seconds = 0;
  int64_t tokens = 0;
  int32_t pages = 0;  // the most that were in use
};

class Bench {
 public:
  Bench(std::unique_ptr<engine::Executor> executor, std::vector<engine::TokenId> prefix)
      : loop_(std::move(executor), Options()), prefix_(std::move(prefix)) {}

  // Computes the prefix, which stays as a context.
  void Begin() { Run(1, 0, {}, kPrefix); }

  // Continues the prefix `branches` times with `tokens` tokens, each from a fork of its own.
  Measured Branch(int branches, int32_t tokens) {
    for (int b = 0; b < branches; ++b) {
      loop_.ForkContext(kPrefix, static_cast<int32_t>(prefix_.size()), ContextId{2 + uint64_t(b)});
    }
    return Run(branches, tokens, ContextId{2}, {});
  }

 private:
  static server::EngineLoopOptions Options() {
    server::EngineLoopOptions options;
    options.target_inter_token_us = 0;
    return options;
  }

  Measured Run(int branches, int32_t tokens, ContextId from, ContextId keep) {
    Measured measured;
    open_ = branches;
    const auto begin = Clock::now();
    for (int b = 0; b < branches; ++b) {
      server::GenerationRequest request;
      request.id = loop_.NextId();
      request.prompt = prefix_;
      request.max_tokens = tokens;
      request.sampling.seed = static_cast<uint64_t>(b);
      if (from != ContextId{}) request.from = ContextId{uint64_t(from) + uint64_t(b)};
      request.keep = keep;
      const absl::Status submitted =
          loop_.Submit(std::move(request), [this, &measured](server::GenerationEvent&& event) {
            std::lock_guard lock(mutex_);
            measured.tokens += static_cast<int64_t>(event.tokens.size());
            if (event.finished && --open_ == 0) done_.notify_all();
          });
      if (!submitted.ok()) std::exit(Fail(submitted, 1));
    }
    std::unique_lock lock(mutex_);
    while (!done_.wait_for(lock, std::chrono::milliseconds(20), [this] { return open_ == 0; })) {
      measured.pages = std::max(measured.pages, loop_.Stats().pages_used);
    }
    measured.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    return measured;
  }

  std::mutex mutex_;
  std::condition_variable done_;
  int open_ = 0;
  server::EngineLoop loop_;
  const std::vector<engine::TokenId> prefix_;
};

int Main(int argc, char** argv) {
  if (argc != 1 && argc != 6) {
    std::fprintf(stderr, "usage: branch_bench SHAPE WEIGHTS PREFIX TOKENS BRANCHES\n");
    return 2;
  }
  const std::string shape = argc == 6 ? argv[1] : "tinyllama-1.1b";
  const std::string weights = argc == 6 ? argv[2] : "q4_0";
  const int prefix_tokens = argc == 6 ? std::max(1, std::atoi(argv[3])) : 1024;
  const int tokens = argc == 6 ? std::max(1, std::atoi(argv[4])) : 256;
  const int branches = argc == 6 ? std::max(1, std::atoi(argv[5])) : 8;
  engine::LoadOptions options;
  options.capacity.max_context = prefix_tokens + tokens + 1;
  options.capacity.kv_bytes = int64_t{1} << 30;
  const auto format = engine::RandomFormat(weights);
  if (!format.ok()) return Fail(format.status(), 2);
  auto model = engine::LoadRandomModel(shape, *format, options);
  if (!model.ok()) return Fail(model.status(), 1);
  const int32_t page_tokens = model->capacity.limits.page_tokens;
  std::vector<engine::TokenId> prefix;
  for (int i = 0; i < prefix_tokens; ++i) prefix.push_back(1 + i * 7 % 1000);
  Bench bench(std::move(model->executor), std::move(prefix));
  bench.Begin();
  const Measured one = bench.Branch(1, tokens);
  const Measured many = bench.Branch(branches, tokens);
  const Measured again = bench.Branch(1, tokens);
  const double alone = 2 * static_cast<double>(one.tokens) / (one.seconds + again.seconds);
  const double side = static_cast<double>(many.tokens) / many.seconds;
  std::printf(
      "{\"shape\":\"%s\",\"weights\":\"%s\",\"prefix\":%d,\"tokens\":%d,\"branches\":%d,"
      "\"one_tokens_per_s\":%.1f,\"branches_tokens_per_s\":%.1f,\"ratio\":%.2f,"
      "\"pages_one\":%d,\"pages_branches\":%d,\"prefix_pages\":%d}\n",
      shape.c_str(), weights.c_str(), prefix_tokens, tokens, branches, alone, side, side / alone,
      one.pages, many.pages, (prefix_tokens + page_tokens - 1) / page_tokens);
  return 0;
}

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) { return heddle::Main(argc, argv); }
