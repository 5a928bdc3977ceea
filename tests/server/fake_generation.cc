#include "tests/server/fake_generation.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "tests/server/byte_codec.h"

namespace heddle::test {
namespace {

using server::FinishReason;
using server::GenerationEvent;
using server::GenerationRequest;
using server::RequestId;

constexpr auto kPatience = std::chrono::seconds(10);

engine::SampledToken Sampled(TokenId token, int32_t num_logprobs) {
  engine::SampledToken sampled;
  sampled.token = token;
  sampled.logprob = -0.5f;
  for (int32_t i = 0; i < num_logprobs; ++i) {
    sampled.top.push_back({(token + i) % kByteVocab, -0.5f - static_cast<float>(i)});
  }
  return sampled;
}

}  // namespace

FakeGeneration::FakeGeneration() = default;

FakeGeneration::FakeGeneration(Reply reply)
    : reply_(std::move(reply)), thread_([this] { Loop(); }) {}

FakeGeneration::~FakeGeneration() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

RequestId FakeGeneration::NextId() {
  std::lock_guard lock(mutex_);
  return RequestId{next_id_++};
}

absl::Status FakeGeneration::Submit(GenerationRequest request, server::EventSink sink) {
  std::lock_guard lock(mutex_);
  if (!submit_status_.ok()) return submit_status_;
  Request& live = live_[request.id];
  live.request = request;
  live.sink = std::move(sink);
  live.sequences.resize(static_cast<size_t>(request.num_branches));
  order_.push_back(request.id);
  submitted_.push_back(std::move(request));
  changed_.notify_all();
  return absl::OkStatus();
}

void FakeGeneration::Cancel(RequestId id) {
  std::lock_guard lock(mutex_);
  cancelled_.insert(id);
  if (reply_) live_.erase(id);
  changed_.notify_all();
}

void FakeGeneration::CancelBranch(RequestId id, int32_t branch) {
  std::lock_guard lock(mutex_);
  cancelled_branches_.insert({id, branch});
  if (auto it = live_.find(id); it != live_.end()) {
    it->second.sequences[static_cast<size_t>(branch)].done = true;
  }
  changed_.notify_all();
}

void FakeGeneration::Pause(RequestId id) {
  std::lock_guard lock(mutex_);
  paused_.insert(id);
  ++num_pauses_;
}

void FakeGeneration::Resume(RequestId id) {
  std::lock_guard lock(mutex_);
  paused_.erase(id);
}

void FakeGeneration::DropContext(scheduler::ContextId id) {
  std::lock_guard lock(mutex_);
  dropped_contexts_.insert(id);
}

size_t FakeGeneration::num_dropped_contexts() const {
  std::lock_guard lock(mutex_);
  return dropped_contexts_.size();
}

server::EngineStats FakeGeneration::Stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void FakeGeneration::Loop() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    changed_.wait(lock, [this] { return stopping_ || !live_.empty(); });
    std::vector<std::pair<server::EventSink, GenerationEvent>> events;
    for (auto it = live_.begin(); it != live_.end();) {
      Request& request = it->second;
      for (size_t b = 0; b < request.sequences.size(); ++b) {
        if (request.sequences[b].done) continue;
        if (request.sequences[b].drawn == 0) request.sequences[b].reply = reply_(request.request);
        events.emplace_back(request.sink, NextEvent(request.request, static_cast<int32_t>(b),
                                                    &request.sequences[b]));
      }
      bool done = std::all_of(request.sequences.begin(), request.sequences.end(),
                              [](const Sequence& sequence) { return sequence.done; });
      it = done ? live_.erase(it) : std::next(it);
    }
    ++stats_.steps;
    const auto next_step = std::chrono::steady_clock::now() + step_time_;
    lock.unlock();
    for (auto& [sink, event] : events) sink(std::move(event));
    std::this_thread::sleep_until(next_step);
    lock.lock();
  }
}

GenerationEvent FakeGeneration::NextEvent(const GenerationRequest& request, int32_t branch,
                                          Sequence* sequence) {
  GenerationEvent event;
  event.branch = branch;
  if (sequence->drawn == 0 && request.prompt_logprobs >= 0 && branch == 0) {
    for (auto i = static_cast<size_t>(request.first_score) + 1; i < request.prompt.size(); ++i) {
      event.prompt_scores.push_back(Sampled(request.prompt[i], request.prompt_logprobs));
    }
  }
  auto finish = [&](FinishReason reason) {
    event.finished = sequence->done = true;
    event.reason = reason;
  };
  if (request.pooling != engine::Pooling::kNone) {
    // A direction in the plane that tells the prompt's last byte, and how long it is.
    auto last = static_cast<float>(request.prompt.back());
    event.embedding = {last, 100.0f, 0.0f, static_cast<float>(request.prompt.size())};
  }
  if (sequence->drawn >= request.max_tokens) {
    finish(FinishReason::kLength);
    return event;
  }
  bool at_end = sequence->next >= sequence->reply.size();
  TokenId token = at_end ? kEos : static_cast<unsigned char>(sequence->reply[sequence->next++]);
  event.tokens.push_back(Sampled(token, request.sampling.num_logprobs));
  ++sequence->drawn;
  const auto& stops = request.stop_tokens;
  if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
    finish(FinishReason::kStop);
  } else if (sequence->drawn >= request.max_tokens) {
    finish(FinishReason::kLength);
  }
  return event;
}

template <typename Predicate>
bool FakeGeneration::WaitFor(std::unique_lock<std::mutex>* lock, Predicate predicate) {
  return changed_.wait_for(*lock, kPatience, predicate);
}

GenerationRequest FakeGeneration::WaitForRequest(size_t i) {
  std::unique_lock lock(mutex_);
  bool there = WaitFor(&lock, [&] { return submitted_.size() > i; });
  HEDDLE_CHECK(there, "the request was not submitted within ten seconds");
  return submitted_[i];
}

void FakeGeneration::Emit(size_t i, GenerationEvent event) {
  server::EventSink sink;
  {
    std::lock_guard lock(mutex_);
    sink = live_.at(order_.at(i)).sink;
  }
  sink(std::move(event));
}

void FakeGeneration::EmitText(size_t i, std::string_view text, int32_t branch) {
  GenerationEvent event;
  event.branch = branch;
  int32_t num_logprobs = WaitForRequest(i).sampling.num_logprobs;
  for (TokenId token : Bytes(text)) event.tokens.push_back(Sampled(token, num_logprobs));
  Emit(i, std::move(event));
}

void FakeGeneration::EmitEnd(size_t i, FinishReason reason, int32_t branch) {
  GenerationEvent event;
  event.branch = branch;
  event.finished = true;
  event.reason = reason;
  if (reason == FinishReason::kStop) event.tokens.push_back(Sampled(kEos, 0));
  Emit(i, std::move(event));
}

bool FakeGeneration::WaitForCancel(size_t i) {
  std::unique_lock lock(mutex_);
  return WaitFor(&lock, [&] { return i < order_.size() && cancelled_.contains(order_[i]); });
}

bool FakeGeneration::WaitForCancelBranch(size_t i, int32_t branch) {
  std::unique_lock lock(mutex_);
  return WaitFor(&lock, [&] {
    return i < order_.size() && cancelled_branches_.contains({order_[i], branch});
  });
}

bool FakeGeneration::IsPaused(size_t i) const {
  std::lock_guard lock(mutex_);
  return i < order_.size() && paused_.contains(order_[i]);
}

size_t FakeGeneration::num_pauses() const {
  std::lock_guard lock(mutex_);
  return num_pauses_;
}

size_t FakeGeneration::num_submitted() const {
  std::lock_guard lock(mutex_);
  return submitted_.size();
}

void FakeGeneration::SetStepTime(std::chrono::microseconds time) {
  std::lock_guard lock(mutex_);
  step_time_ = time;
}

void FakeGeneration::FailSubmits(absl::Status status) {
  std::lock_guard lock(mutex_);
  submit_status_ = std::move(status);
}

void FakeGeneration::SetStats(const server::EngineStats& stats) {
  std::lock_guard lock(mutex_);
  stats_ = stats;
}

}  // namespace heddle::test
