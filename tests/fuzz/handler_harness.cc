#include "tests/fuzz/handler_harness.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/message.h"
#include "engine/grammar/compiled_grammar.h"
#include "engine/text/tokenizer.h"
#include "nlohmann/json.hpp"
#include "server/http/http_server.h"
#include "server/text/model_text_codec.h"
#include "tests/support/paths.h"

namespace heddle::test {
namespace {

using server::FinishReason;
using server::GenerationEvent;
using server::GenerationRequest;
using server::RequestId;

constexpr int32_t kPlayedTokens = 6;
constexpr auto kPatience = std::chrono::seconds(60);

std::unique_ptr<server::ModelTextCodec> DemoCodec() {
  auto tokenizer = engine::text::LoadTokenizer(SourceDir() / "share/demo-model");
  HEDDLE_CHECK(tokenizer.ok(), "run in the checkout, or set HEDDLE_SOURCE_DIR");
  server::ModelTextCodec::Options options;
  options.vocab = (*tokenizer)->vocab_size();
  auto codec = server::ModelTextCodec::Create(*std::move(tokenizer), options);
  HEDDLE_CHECK(codec.ok(), "the demo model's chat template parses");
  return *std::move(codec);
}

// Tasks of the one I/O thread, which is the fuzzer's own.
class TaskQueue {
 public:
  void Post(std::function<void()> task) {
    {
      std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    posted_.notify_one();
  }
  // Returns false if no task came.
  bool RunOne(std::chrono::milliseconds wait) {
    std::unique_lock lock(mutex_);
    if (!posted_.wait_for(lock, wait, [this] { return !tasks_.empty(); })) return false;
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<std::function<void()>> tasks_;
};

// Ids are those of an engine with `vocab` logits.
class PlayingEngine final : public server::GenerationService {
 public:
  explicit PlayingEngine(int32_t vocab) : vocab_(vocab) {}

  RequestId NextId() override { return RequestId{next_id_++}; }
  absl::Status Submit(GenerationRequest request, server::EventSink sink) override {
    CheckIds(request);
    live_.push_back({std::move(request), std::move(sink)});
    return absl::OkStatus();
  }
  void Cancel(RequestId id) override {
    std::erase_if(live_, [id](const Live& live) { return live.request.id == id; });
  }
  void CancelBranch(RequestId, int32_t) override {}
  void Pause(RequestId) override {}
  void Resume(RequestId) override {}
  server::EngineStats Stats() const override { return {}; }

  // Plays all of the oldest request; returns false if there is none.
  bool Play() {
    if (live_.empty()) return false;
    const Live live = std::move(live_.front());
    live_.pop_front();
    for (int32_t branch = 0; branch < live.request.num_branches; ++branch) {
      PlayBranch(live, branch);
    }
    return true;
  }

 private:
  struct Live {
    GenerationRequest request;
    server::EventSink sink;
  };

  void CheckIds(const GenerationRequest& request) const {
    const auto check = [this](const std::vector<engine::TokenId>& tokens) {
      for (engine::TokenId token : tokens) CheckId(token);
    };
    check(request.prompt);
    check(request.stop_tokens);
    check(request.sampling.min_tokens_banned);
    for (const auto& word : request.sampling.bad_words) check(word);
    for (const auto& [token, bias] : request.sampling.logit_bias) CheckId(token);
    HEDDLE_CHECK(!request.prompt.empty() && request.max_tokens >= 0 && request.num_branches > 0,
                 "a request has work");
    const auto& grammar = request.grammar;
    HEDDLE_CHECK(grammar == nullptr || grammar->vocabulary().size() <= vocab_,
                 "a grammar is for the model's tokens");
  }
  void CheckId(engine::TokenId token) const {
    HEDDLE_CHECK(token >= 0 && token < vocab_, "a token is one of the model's");
  }

  engine::SampledToken Sampled(engine::TokenId token, int32_t alternatives) const {
    engine::SampledToken sampled{token, -0.5f, {}};
    for (int32_t i = 0; i < alternatives; ++i) {
      sampled.top.push_back({(token + i) % vocab_, -0.5f - static_cast<float>(i)});
    }
    return sampled;
  }

  // The first token that the grammar allows, or one of a walk through the vocabulary.
  engine::TokenId NextToken(engine::grammar::Matcher* matcher, const GenerationRequest& request,
                            int32_t drawn) const {
    if (matcher == nullptr) {
      return static_cast<engine::TokenId>((request.sampling.seed + 97ULL * drawn) %
                                          static_cast<uint64_t>(vocab_));
    }
    const auto mask = matcher->Mask();
    if (!mask.ok()) return -1;
    for (engine::TokenId token = 0; token < vocab_; ++token) {
      const auto index = static_cast<size_t>(token);
      if (((**mask)[index / 32] >> (index % 32) & 1) == 0) continue;
      HEDDLE_CHECK(matcher->Accept(token), "a mask allows what the grammar takes");
      return token;
    }
    return -1;
  }

  void PlayBranch(const Live& live, int32_t branch) const {
    const GenerationRequest& request = live.request;
    std::unique_ptr<engine::grammar::Matcher> matcher;
    if (request.grammar != nullptr) {
      matcher = std::make_unique<engine::grammar::Matcher>(request.grammar);
    }
    GenerationEvent event;
    event.branch = branch;
    event.queued_seconds = 0;
    if (request.pooling != engine::Pooling::kNone) event.embedding = {1.0f, 2.0f, 2.0f, 0.0f};
    for (size_t i = 1; request.prompt_logprobs >= 0 && branch == 0 && i < request.prompt.size();
         ++i) {
      event.prompt_scores.push_back(Sampled(request.prompt[i], request.prompt_logprobs));
    }
    const int32_t limit = std::min(request.max_tokens, kPlayedTokens);
    for (int32_t drawn = 0; drawn < limit; ++drawn) {
      const engine::TokenId token = NextToken(matcher.get(), request, drawn);
      if (token < 0) break;
      event.tokens.push_back(Sampled(token, request.sampling.num_logprobs));
      if (std::find(request.stop_tokens.begin(), request.stop_tokens.end(), token) !=
          request.stop_tokens.end()) {
        break;
      }
      live.sink(std::exchange(event, GenerationEvent{.branch = branch}));
    }
    event.finished = true;
    event.reason = event.tokens.empty() ? FinishReason::kLength : FinishReason::kStop;
    live.sink(std::move(event));
  }

  const int32_t vocab_;
  uint64_t next_id_ = 1;
  std::deque<Live> live_;
};

// Takes the answer, and checks that it begins once and ends once.
class AnswerTaker final : public server::ResponseWriter {
 public:
  void Send(server::HttpResponse response) override {
    HEDDLE_CHECK(!done_ && !streaming_, "an answer is sent once");
    record_.status = response.status;
    if (response.content_type == "application/json" && !response.body.empty()) {
      HEDDLE_CHECK(nlohmann::json::accept(response.body), response.body);
    }
    done_ = true;
  }
  void StartStream(server::HttpResponse head, std::string_view) override {
    HEDDLE_CHECK(!done_ && !streaming_, "an answer begins once");
    record_.status = head.status;
    streaming_ = true;
    in_lines_ = head.content_type == "application/x-ndjson";
  }
  void Write(std::string_view data) override {
    HEDDLE_CHECK(streaming_ && !done_, "a piece belongs to a stream");
    in_lines_ ? CheckLines(data) : CheckEvents(data);
  }
  void EndStream() override {
    HEDDLE_CHECK(streaming_ && !done_, "a stream ends once");
    done_ = true;
  }
  size_t buffered_bytes() const override { return 0; }
  bool is_behind() const override { return false; }
  bool is_overfull() const override { return false; }
  void Abort() override { HEDDLE_CHECK(false, "a request was given up"); }
  server::RequestRecord& record() override { return record_; }
  bool done() const { return done_; }

 private:
  // Server-sent events.
  static void CheckEvents(std::string_view data) {
    HEDDLE_CHECK(data.ends_with("\n\n"), "frames are whole");
    constexpr std::string_view kData = "data: ";
    for (size_t at = data.find(kData); at != std::string_view::npos; at = data.find(kData, at)) {
      at += kData.size();
      const std::string_view json = data.substr(at, data.find('\n', at) - at);
      HEDDLE_CHECK(json == "[DONE]" || nlohmann::json::accept(json), std::string(json));
      at += json.size();
    }
  }

  // One JSON value a line.
  static void CheckLines(std::string_view data) {
    HEDDLE_CHECK(data.ends_with("\n"), "lines are whole");
    while (!data.empty()) {
      const std::string_view line = data.substr(0, data.find('\n'));
      HEDDLE_CHECK(nlohmann::json::accept(line), std::string(line));
      data.remove_prefix(line.size() + 1);
    }
  }

  server::RequestRecord record_;
  bool streaming_ = false;
  bool in_lines_ = false;
  bool done_ = false;
};

}  // namespace

struct HandlerHarness::State {
  State() : codec(DemoCodec()), engine(codec->vocab()) {
    model.id = "demo";
    model.max_context = 512;
    model.embedding_size = 4;
    server::HttpServerOptions options;
    options.port = 0;  // nobody connects to it
    options.prepare_threads = 1;
    auto started =
        server::HttpServer::Start(options, {&engine, codec.get(), &model, &metrics, &log});
    HEDDLE_CHECK(started.ok(), std::string(started.status().message()));
    http = *std::move(started);
    http->SetReady(true);
    handler = http->NewHandler([this](std::function<void()> task) { tasks.Post(std::move(task)); });
  }

  TaskQueue tasks;
  std::unique_ptr<server::ModelTextCodec> codec;
  PlayingEngine engine;
  server::ServedModel model;
  server::ServerMetrics metrics{"demo", "fuzz"};
  server::Logger log{server::LogFormat::kText, server::LogLevel::kError};
  std::unique_ptr<server::HttpServer> http;
  std::unique_ptr<server::Handler> handler;
};

HandlerHarness::HandlerHarness() : state_(std::make_unique<State>()) {}
HandlerHarness::~HandlerHarness() = default;

void HandlerHarness::Check(const FuzzedRequest& fuzzed) {
  server::HttpRequest request;
  request.method = fuzzed.method;
  request.path = fuzzed.path;
  request.query = fuzzed.query;
  request.body = fuzzed.body;
  request.request_id = "fuzz";
  request.received = server::Clock::now();
  AnswerTaker writer;
  writer.record().method = request.method;
  writer.record().path = request.path;
  const std::shared_ptr<server::Exchange> exchange =
      state_->handler->Handle(std::move(request), &writer);
  const auto deadline = server::Clock::now() + kPatience;
  while (!writer.done()) {
    if (!state_->tasks.RunOne(std::chrono::milliseconds(state_->engine.Play() ? 0 : 20))) {
      HEDDLE_CHECK(server::Clock::now() < deadline, "an answer comes");
    }
  }
  HEDDLE_CHECK(!writer.record().failed_midway, "an answer ends as it began");
  const int status = writer.record().status;
  HEDDLE_CHECK(status >= 200 && (status < 500 || status == 503),
               base::StrCat("status ", status, " for ", fuzzed.path, " ", fuzzed.body));
  writer.record().outcome = server::OutcomeOf(writer.record(), /*cancelled=*/false);
  state_->handler->OnFinished(writer.record());
}

}  // namespace heddle::test
