// A server with a fake engine behind the real HTTP front end, for client tests in other languages:
// prints "listening on PORT" and serves until SIGTERM. A prompt that contains "(say)" is answered
// with what follows it in the same message, so that a test can script what the model writes.
// Prompts that contain "(full)", "(broken)", "(breaks)" or "(waits)" meet a full queue, a failed
// engine, one that fails in the middle, and one that never answers; "(long)" gets an answer without
// end. `--no-chat`: the model has no chat template. For measurements: `--quiet` leaves out the log,
// `--step-us=N` is what a step takes. `--context=N`: tokens of the context, 4096 without it.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

#include "tests/server/server_under_test.h"

namespace heddle::test {
namespace {

constexpr std::string_view kReply =
    "Once upon a time a small loom learned to weave. It wove a red thread and a blue thread.";

// The model's answer, as described above.
std::string ReplyTo(const server::GenerationRequest& request) {
  constexpr std::string_view kSay = "(say)";
  std::string prompt = ByteCodec().Decode(request.prompt, /*skip_special=*/false);
  if (prompt.find("(long)") != std::string::npos) return std::string(size_t{1} << 16, 'a');
  size_t say = prompt.rfind(kSay);
  if (say == std::string::npos) return std::string(kReply);
  size_t begin = say + kSay.size();
  return prompt.substr(begin, prompt.find("<|turn|>", begin) - begin);
}

// Adds the failures to a FakeGeneration that plays kReply.
class UnluckyGeneration final : public server::GenerationService {
 public:
  server::RequestId NextId() override { return lucky_.NextId(); }
  absl::Status Submit(server::GenerationRequest request, server::EventSink sink) override {
    std::string prompt = ByteCodec().Decode(request.prompt, /*skip_special=*/true);
    auto asks = [&prompt](std::string_view word) { return prompt.find(word) != std::string::npos; };
    if (asks("(full)")) return absl::ResourceExhaustedError("too many requests wait");
    if (asks("(waits)")) {
      std::lock_guard lock(mutex_);
      waiting_[request.id] = {.id = request.id,
                              .label = request.label,
                              .age_seconds = 1.5,
                              .prompt_tokens = static_cast<int32_t>(request.prompt.size())};
      return absl::OkStatus();
    }
    server::GenerationEvent failure;
    failure.finished = true;
    failure.reason = server::FinishReason::kError;
    failure.error = absl::InternalError("the engine broke");
    if (asks("(breaks)")) {
      server::GenerationEvent text;
      for (TokenId id : Bytes("Once")) {
        text.tokens.push_back(engine::SampledToken{.token = id});
      }
      sink(std::move(text));
    }
    if (asks("(broken)") || asks("(breaks)")) {
      sink(std::move(failure));
      return absl::OkStatus();
    }
    return lucky_.Submit(std::move(request), std::move(sink));
  }
  void Pause(server::RequestId id) override { lucky_.Pause(id); }
  void Resume(server::RequestId id) override { lucky_.Resume(id); }
  void Cancel(server::RequestId id) override {
    {
      std::lock_guard lock(mutex_);
      waiting_.erase(id);
    }
    lucky_.Cancel(id);
  }
  void CancelBranch(server::RequestId id, int32_t branch) override {
    lucky_.CancelBranch(id, branch);
  }
  server::EngineStats Stats() const override { return lucky_.Stats(); }
  void SetStepTime(std::chrono::microseconds time) { lucky_.SetStepTime(time); }
  std::vector<server::RequestHistory> Histories() const override {
    std::lock_guard lock(mutex_);
    std::vector<server::RequestHistory> histories;
    for (const auto& entry : waiting_) histories.push_back(entry.second);
    return histories;
  }

 private:
  mutable std::mutex mutex_;
  std::map<server::RequestId, server::RequestHistory> waiting_;
  FakeGeneration lucky_{ReplyTo};
};

int Serve(bool quiet, bool has_chat, std::chrono::microseconds step_time, int max_context) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  UnluckyGeneration generation;
  generation.SetStepTime(step_time);
  ByteCodec codec;
  codec.has_template = has_chat;
  server::ServedModel model = TestModel();
  model.max_context = max_context;
  server::ServerMetrics metrics("test-model", "test");
  server::Logger log(server::LogFormat::kText,
                     quiet ? server::LogLevel::kOff : server::LogLevel::kInfo);
  server::HttpServerOptions options;
  options.port = 0;
  auto http = server::HttpServer::Start(options, {&generation, &codec, &model, &metrics, &log});
  if (!http.ok()) {
    std::fprintf(stderr, "%s\n", http.status().ToString().c_str());
    return 1;
  }
  (*http)->SetReady(true);
  std::printf("listening on %d\n", (*http)->port());
  std::fflush(stdout);
  int received = 0;
  sigwait(&signals, &received);
  (*http)->Drain(server::Clock::now() + std::chrono::seconds(5));
  (*http)->Stop();
  return 0;
}

}  // namespace
}  // namespace heddle::test

int main(int argc, char** argv) {
  bool quiet = false;
  bool has_chat = true;
  std::chrono::microseconds step_time{0};
  int max_context = 4096;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--quiet") quiet = true;
    if (argument == "--no-chat") has_chat = false;
    if (argument.starts_with("--context=")) {
      max_context = std::atoi(argv[i] + argument.find('=') + 1);
    }
    if (argument.starts_with("--step-us=")) {
      step_time = std::chrono::microseconds(std::atoi(argv[i] + argument.find('=') + 1));
    }
  }
  return heddle::test::Serve(quiet, has_chat, step_time, max_context);
}
