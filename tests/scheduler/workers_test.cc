// Workers that see each other's tokens: what each row sees, that no order of preemptions, pauses,
// losses and other requests changes a token, and that nothing leaks when some of them end early.
// HEDDLE_PROPERTY_STEPS sets the number of random steps (default 200,000), HEDDLE_PROPERTY_SEED the
// seed.
#include <cstdlib>
#include <map>
#include <random>
#include <set>

#include "catch2/catch.hpp"
#include "tests/scheduler/rig.h"

namespace heddle::scheduler {
namespace {

SchedulerOptions Options(int32_t num_pages) {
  SchedulerOptions options;
  options.num_pages = num_pages;
  options.page_tokens = 4;
  options.max_context = 400;
  options.max_step_tokens = 64;
  options.max_step_seqs = 8;
  options.reads_pieces = options.turns_queries = true;
  return options;
}

// Workers with a common prompt of `num_prompt` tokens, whose blocks begin with so many.
GenerationRequest Workers(int32_t num_prompt, const std::vector<int32_t>& given, int32_t max_tokens,
                          int32_t salt = 0) {
  GenerationRequest request = MakeRequest(num_prompt, max_tokens, salt);
  request.num_branches = static_cast<int32_t>(given.size());
  for (const int32_t count : given) {
    std::vector<TokenId>& block = request.workers.emplace_back();
    for (int32_t i = 0; i < count; ++i) {
      block.push_back((static_cast<int32_t>(request.workers.size()) * 100 + i * 3) % kVocab);
    }
  }
  return request;
}

std::vector<std::vector<TokenId>> Expected(const GenerationRequest& request) {
  return test::FakeExecutor::AnswerWorkers(request.prompt, request.workers, request.sampling.seed,
                                           request.max_tokens, kVocab);
}

TEST_CASE("Workers draw from what all of them had before the step", "[scheduler][unit]") {
  for (int32_t prompt = 1; prompt <= 13; ++prompt) {
    for (const std::vector<int32_t>& given :
         {std::vector<int32_t>{1, 1}, {3, 1}, {1, 6, 2}, {5, 5, 5, 4}}) {
      SchedulerOptions options = Options(200);
      options.prefix_cache = prompt % 2 == 0;
      if (prompt % 3 == 0) {
        options.windows = {0, 6};
        options.window_grain = 4;
        options.num_pages = 400;
      }
      const int32_t depth = 1 + prompt / 2 % 3;
      Rig rig(options, depth);
      rig.ahead = [depth] { return depth > 1; };
      rig.executor.set_sees_parts();
      if (prompt % 4 == 0) rig.SendPlans();
      const GenerationRequest request = Workers(prompt, given, 20, prompt);
      REQUIRE(Scheduler::Validate(request, options).ok());
      const RequestId id = rig.Add(request);
      while (rig.Step()) REQUIRE(rig.scheduler.CheckIntegrity().ok());
      const std::vector<std::vector<TokenId>> expected = Expected(request);
      for (size_t w = 0; w < given.size(); ++w) {
        INFO("prompt " << prompt << " worker " << w);
        CHECK(rig.Of(id, static_cast<int32_t>(w)).tokens == expected[w]);
      }
      // The prompt, and of each block all but the last token.
      int64_t rows = prompt;
      for (const int32_t count : given) rows += count + 19;
      CHECK(rig.executor.num_rows() == rows);
      CHECK(rig.scheduler.stats().pages_used == 0);
      CHECK(rig.executor.num_live() <= static_cast<int64_t>(given.size()));
    }
  }
}

TEST_CASE("A step has a row of each worker, or of none", "[scheduler][unit]") {
  const SchedulerOptions options = Options(200);
  const int32_t depth = GENERATE(1, 2, 3);
  Rig rig(options, depth);
  rig.ahead = [depth] { return depth > 1; };
  rig.executor.set_sees_parts();
  rig.Add(Workers(9, {2, 2, 2}, 12));
  rig.Add(MakeRequest(30, 40, 3));
  int32_t first = 0, last = 0, rows = 0, steps = 0;
  while (rig.Step()) {
    ++steps;
    int32_t workers = 0;
    for (const engine::SequenceSlice& slice : rig.plan.sequences) {
      workers += slice.num_pieces > 1 ? 1 : 0;
    }
    CHECK((workers == 0 || workers == 3));
    if (workers == 0) continue;
    if (first == 0) first = steps;
    last = steps;
    ++rows;
  }
  // All rows of each block but the first, which sees no other one. With two steps in flight workers
  // have one in each, as others do; a third waits for the first one's tokens.
  CHECK(rows == 12);
  if (depth < 3) CHECK(last - first + 1 == rows);
}

// A worker's row sees all rows of others before it, so whoever is ahead has to wait.
TEST_CASE("Workers whose draws are left out run alone until they are level", "[scheduler][unit]") {
  const SchedulerOptions options = Options(200);
  Rig rig(options);
  rig.executor.set_sees_parts();
  int draws = 0, left_out = 0;
  rig.executor.set_leaves_out([&](engine::SequenceId) {
    const bool leaves_out = ++draws % 5 == 0;
    left_out += leaves_out ? 1 : 0;
    return leaves_out;
  });
  const GenerationRequest request = Workers(9, {2, 1, 4}, 20);
  const RequestId id = rig.Add(request);
  while (rig.Step()) REQUIRE(rig.scheduler.CheckIntegrity().ok());
  CHECK(left_out > 10);
  const std::vector<std::vector<TokenId>> expected = Expected(request);
  for (int32_t w = 0; w < 3; ++w) {
    INFO("worker " << w);
    CHECK(rig.Of(id, w).tokens == expected[static_cast<size_t>(w)]);
  }
}

TEST_CASE("Preempted workers compute the same rows again", "[scheduler][unit]") {
  SchedulerOptions options = Options(40);
  options.policy = PolicyKind::kPriority;
  options.prefix_cache = GENERATE(false, true);
  Rig rig(options);
  rig.executor.set_sees_parts();
  GenerationRequest request = Workers(10, {3, 2}, 40);
  request.priority = 5;
  const RequestId id = rig.Add(request);
  for (int32_t round = 0; round < 4; ++round) {
    for (int32_t steps = 0; steps < 30; ++steps) rig.Step();
    GenerationRequest urgent = MakeRequest(100, 20, round);
    urgent.priority = 1;
    rig.Add(urgent);
  }
  rig.RunAll();
  CHECK(rig.scheduler.stats().preemptions > 4);
  const std::vector<std::vector<TokenId>> expected = Expected(request);
  CHECK(rig.Of(id, 0).tokens == expected[0]);
  CHECK(rig.Of(id, 1).tokens == expected[1]);
  CHECK(rig.scheduler.stats().pages_used == 0);
}

// A client that is ahead, or has many places, gives one to a client that has none, but not its last
// one: all workers of a request are one.
TEST_CASE("Workers of clients that have no room beside each other run one after the other",
          "[scheduler][unit]") {
  SchedulerOptions options = Options(200);
  options.max_step_seqs = 4;
  options.policy = GENERATE(PolicyKind::kFcfs, PolicyKind::kFair);
  options.max_lead_us = options.policy == PolicyKind::kFcfs ? 2 : 0;
  Rig rig(options);
  rig.executor.set_sees_parts();
  std::vector<GenerationRequest> requests;
  std::vector<RequestId> ids;
  for (int32_t client = 1; client <= 3; ++client) {
    GenerationRequest& request = requests.emplace_back(Workers(9, {2, 1, 3}, 30, client));
    request.tenant = static_cast<uint64_t>(client);
    ids.push_back(rig.Add(request));
  }
  int32_t steps = 0;
  while (rig.Step()) REQUIRE(++steps < 1000);
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::vector<std::vector<TokenId>> expected = Expected(requests[i]);
    for (int32_t w = 0; w < 3; ++w) {
      CHECK(rig.Of(ids[i], w).tokens == expected[static_cast<size_t>(w)]);
    }
  }
  CHECK(rig.scheduler.stats().preemptions == 0);
}

TEST_CASE("Workers whose place is taken give up all of them, and their client keeps another",
          "[scheduler][unit]") {
  SchedulerOptions options = Options(200);
  options.max_step_seqs = 5;
  options.policy = PolicyKind::kFair;
  Rig rig(options);
  rig.executor.set_sees_parts();
  std::vector<RequestId> plain;
  plain.reserve(2);
  for (int32_t i = 0; i < 2; ++i) plain.push_back(rig.Add(MakeRequest(5, 40, i)));
  const GenerationRequest group = Workers(9, {2, 1, 3}, 12);
  const RequestId workers = rig.Add(group);
  for (int32_t i = 0; i < 8; ++i) REQUIRE(rig.Step());
  GenerationRequest other = MakeRequest(5, 4, 9);
  other.tenant = 7;
  const RequestId guest = rig.Add(other);
  int32_t steps = 0;
  while (rig.Step()) REQUIRE(++steps < 1000);
  CHECK(rig.scheduler.stats().preemptions == 3);
  CHECK(rig.Of(guest).tokens == Alone(other, 0, 4));
  for (int32_t w = 0; w < 3; ++w) {
    CHECK(rig.Of(workers, w).tokens == Expected(group)[static_cast<size_t>(w)]);
  }
  CHECK(rig.Of(plain[0]).finished);
  CHECK(rig.scheduler.stats().pages_used == 0);
}

TEST_CASE("A worker that ends stays for the others to see", "[scheduler][unit]") {
  const SchedulerOptions options = Options(200);
  const int32_t depth = GENERATE(1, 2, 3);
  Rig rig(options, depth);
  rig.ahead = [depth] { return depth > 1; };
  rig.executor.set_sees_parts();
  GenerationRequest request = Workers(7, {2, 1}, 30);
  constexpr int32_t kLength = 11;  // of the answer that ends
  const std::vector<std::vector<TokenId>> whole = Expected(request);
  const auto end = whole[0].begin() + kLength - 1;
  REQUIRE(std::count(whole[0].begin(), end, *end) == 0);
  REQUIRE(std::count(whole[1].begin(), whole[1].end(), *end) == 0);
  request.stop_tokens = {*end};
  const RequestId id = rig.Add(request);
  rig.RunAll();
  const std::vector<std::vector<TokenId>> expected = test::FakeExecutor::AnswerWorkers(
      request.prompt, request.workers, request.sampling.seed, {kLength, 30}, kVocab);
  CHECK(rig.Of(id, 0).reason == FinishReason::kStop);
  CHECK(rig.Of(id, 0).tokens == expected[0]);
  CHECK(rig.Of(id, 1).tokens == expected[1]);
  CHECK(rig.scheduler.stats().pages_used == 0);
}

TEST_CASE("The others see all that a worker had when nothing could be drawn for it",
          "[scheduler][unit]") {
  const int32_t depth = GENERATE(1, 2, 3);
  Rig rig(Options(200), depth);
  rig.ahead = [depth] { return depth > 1; };
  rig.executor.set_sees_parts();
  const GenerationRequest request = Workers(7, {2, 1, 4}, 30);
  const RequestId id = rig.Add(request);
  constexpr int32_t kLength = 5;
  bool has_failed = false;
  rig.between = [&] {
    if (has_failed || rig.Of(id, 0).tokens.size() < kLength) return;
    has_failed = true;
    engine::SequenceGain& gain = rig.result.gains.at(0);  // the first worker's
    gain.num_tokens = 0;
    gain.failure = engine::DrawFailure::kNothingToDraw;
  };
  while (rig.Step()) {
    for (const SequenceEvent& event : rig.events) {
      CHECK(event.num_drawn == (event.failure == engine::DrawFailure::kNone ? 0 : kLength));
    }
  }
  REQUIRE(has_failed);
  CHECK(rig.Of(id, 0).reason == FinishReason::kError);
  const std::vector<std::vector<TokenId>> expected = test::FakeExecutor::AnswerWorkers(
      request.prompt, request.workers, request.sampling.seed, {kLength + 1, 30, 30}, kVocab);
  CHECK(rig.Of(id, 0).tokens.size() == kLength);
  CHECK(rig.Of(id, 1).tokens == expected[1]);
  CHECK(rig.Of(id, 2).tokens == expected[2]);
  CHECK(rig.scheduler.stats().pages_used == 0);
}

TEST_CASE("Workers are cancelled one by one, or all at once, at any moment", "[scheduler][unit]") {
  for (int32_t steps = 0; steps < 12; ++steps) {
    for (const bool all : {false, true}) {
      Rig rig(Options(200));
      rig.executor.set_sees_parts();
      const RequestId id = rig.Add(Workers(9, {2, 3, 1}, 8));
      for (int32_t i = 0; i < steps; ++i) rig.Step();
      if (all) {
        rig.Cancel(id);
      } else {
        for (const int32_t worker : {1, 0}) {
          rig.CancelBranch(id, worker);
          REQUIRE(rig.scheduler.CheckIntegrity().ok());
          rig.Step();
        }
      }
      rig.RunAll();
      CHECK(rig.Of(id, 0).finished);
      CHECK(rig.Of(id, 1).finished);
      CHECK(rig.Of(id, 2).finished);
      CHECK((all || rig.Of(id, 2).tokens.size() == 8));
      CHECK(rig.scheduler.idle());
      CHECK(rig.scheduler.stats().pages_used == 0);
    }
  }
}

TEST_CASE("Workers are refused by name where they cannot run", "[scheduler][unit]") {
  const GenerationRequest good = Workers(9, {2, 3}, 8);
  const auto refusal = [](const GenerationRequest& request, const SchedulerOptions& options) {
    return std::string(Scheduler::Validate(request, options).message());
  };
  SchedulerOptions options = Options(200);
  CHECK(refusal(good, options).empty());
  options.turns_queries = false;
  CHECK(refusal(good, options).find("rotated") != std::string::npos);
  options = Options(200);
  options.pipeline_stages = 2;
  CHECK(refusal(good, options).find("pipeline") != std::string::npos);
  options = Options(200);
  options.windows = {0, 2};
  options.state_groups = 1;
  CHECK(refusal(good, options).find("recurrent") != std::string::npos);
  options = Options(8);  // 3 of the prompt, 3 of each block
  CHECK(refusal(good, options).find("pages") != std::string::npos);
  options = Options(200);
  options.max_context = 29;  // 9 + 10 + 11 positions
  CHECK(refusal(good, options).find("context") != std::string::npos);
  options = Options(200);
  GenerationRequest bad = good;
  bad.workers.pop_back();
  CHECK_FALSE(refusal(bad, options).empty());
  bad = good;
  bad.workers[1].clear();
  CHECK_FALSE(refusal(bad, options).empty());
  bad = good;
  bad.keep = ContextId{1};
  CHECK_FALSE(refusal(bad, options).empty());
  bad = good;
  bad.parts = PartsApart({}, 4);
  CHECK_FALSE(refusal(bad, options).empty());
  bad = good;
  bad.max_tokens = 0;
  CHECK_FALSE(refusal(bad, options).empty());
}

int64_t EnvOr(const char* name, int64_t fallback) {
  const char* value = std::getenv(name);
  return value ? std::atoll(value) : fallback;
}

struct Counts {
  int64_t groups = 0, whole = 0, cut = 0, preemptions = 0, losses = 0;
};

// One pool with random limits under workers and plain requests.
class WorkerLoad {
 public:
  explicit WorkerLoad(uint64_t seed)
      : random_(seed), options_(RandomOptions()), depth_(Between(1, 3)), rig_(options_, depth_) {
    rig_.executor.set_sees_parts();
    if (Between(0, 1) == 0) rig_.SendPlans();
    rig_.ahead = [this] { return Between(0, 1) == 0; };
    const int32_t losses = Between(0, 1) * Between(1, 10);
    rig_.loses = [this, losses] {
      const bool loses = Between(0, 999) < losses;
      counts.losses += loses ? 1 : 0;
      return loses;
    };
    rig_.between = [this] { Disturb(); };
  }

  void Run(int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) {
      if (Between(0, 9) == 0 && live_.size() < 12) Order();
      Disturb();
      while (!rig_.Step()) {
        if (paused_.empty()) {
          REQUIRE(rig_.scheduler.idle());
          Order();
        } else {
          Resume(*paused_.begin());
        }
      }
      Check();
    }
    rig_.between = nullptr;
    rig_.loses = nullptr;
    while (!paused_.empty()) Resume(*paused_.begin());
    int64_t bound = 100'000;
    while (rig_.Step()) {
      REQUIRE(--bound > 0);
      Check();
    }
    REQUIRE(live_.empty());
    REQUIRE(rig_.scheduler.stats().pages_used == 0);
    REQUIRE(rig_.executor.num_live() == 0);
    counts.preemptions = rig_.scheduler.stats().preemptions;
  }

  Counts counts;

 private:
  struct Live {
    GenerationRequest request;
    int32_t open = 0;
    bool is_cut = false;  // somebody cancelled a part of it
  };

  int32_t Between(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random_);
  }

  SchedulerOptions RandomOptions() {
    SchedulerOptions options = Options(Between(20, 60));
    options.num_host_pages = Between(0, 1) * Between(1, 40);
    options.page_tokens = 1 << Between(0, 3);
    options.max_context = Between(40, 120);
    options.max_step_tokens = Between(4, 48);
    options.max_step_seqs = Between(4, 12);
    options.prefix_cache = Between(0, 3) > 0;
    options.policy = static_cast<PolicyKind>(Between(0, 3));
    options.starvation_us = Between(0, 1) * Between(1, 300);
    options.max_lead_us = Between(0, 1) * Between(1, 60);
    if (Between(0, 1) == 0) return options;
    // With a window of 1 the fake executor would see nothing of the history.
    const int32_t window = Between(2, 30);
    options.window_grain = options.page_tokens * Between(1, 3);
    options.windows = {Between(0, 2) == 0 ? window : 0, window};
    options.num_pages *= 2;
    return options;
  }

  void Order() {
    GenerationRequest request;
    if (Between(0, 2) == 0) {
      request = MakeRequest(Between(1, 30), Between(1, 20), Between(0, 5));
      request.num_branches = Between(1, 2);
    } else {
      std::vector<int32_t> given;
      for (int32_t i = Between(2, 4); i > 0; --i) given.push_back(Between(1, 5));
      request = Workers(Between(1, 20), given, Between(1, 20), Between(0, 5));
    }
    request.priority = Between(0, 3);
    request.tenant = static_cast<uint64_t>(Between(0, 3));
    if (!Scheduler::Validate(request, options_).ok()) return;
    counts.groups += request.workers.empty() ? 0 : 1;
    const RequestId id = rig_.Add(request);
    live_[id] = {request, request.num_branches};
  }

  void Disturb() {
    if (live_.empty()) return;
    auto it = live_.begin();
    std::advance(it, Between(0, static_cast<int32_t>(live_.size()) - 1));
    const RequestId id = it->first;
    const int32_t kind = Between(0, 200);
    if (kind == 0) {
      it->second.is_cut = true;
      rig_.Cancel(id);
      return TakeFinished();
    }
    if (kind == 1) {
      it->second.is_cut = true;
      rig_.CancelBranch(id, Between(0, it->second.request.num_branches - 1));
      return TakeFinished();
    }
    if (kind == 2) {
      paused_.insert(id);
      rig_.scheduler.Pause(id);
    }
    if (kind > 2 && kind < 8) Resume(id);
  }

  void Resume(RequestId id) {
    paused_.erase(id);
    rig_.scheduler.Resume(id, rig_.now_us);
  }

  void Check() {
    const absl::Status status = rig_.scheduler.CheckIntegrity();
    if (!status.ok()) FAIL(status.ToString());
    TakeFinished();
  }

  void TakeFinished() {
    for (const SequenceEvent& event : rig_.events) {
      const auto live = live_.find(event.request);
      if (!event.finished || live == live_.end() || --live->second.open > 0) continue;
      End(event.request, live->second);
      paused_.erase(event.request);
      live_.erase(live);
    }
    rig_.events.clear();
  }

  void End(RequestId id, const Live& live) {
    const GenerationRequest& request = live.request;
    const bool is_group = !request.workers.empty();
    counts.whole += is_group && !live.is_cut ? 1 : 0;
    counts.cut += is_group && live.is_cut ? 1 : 0;
    if (is_group) {
      bool is_one = false;
      for (uint32_t seen = 0; seen < 1u << request.num_branches; ++seen) {
        is_one = is_one || IsAnswer(id, request, seen);
      }
      if (!is_one) FAIL("a worker's tokens");
      // Nobody sees another one's last token but of those that were cancelled behind a step ahead.
      if ((!live.is_cut || depth_ == 1) && !IsAnswer(id, request, 0)) FAIL("a last token is seen");
    }
    for (int32_t b = 0; b < request.num_branches; ++b) rig_.outcome.erase({id, b});
  }

  // Whether these are the workers' tokens if each that was cancelled is to the others one that has
  // ended there, or, with a bit in `seen`, behind the token after its last one.
  bool IsAnswer(RequestId id, const GenerationRequest& request, uint32_t seen) {
    std::vector<int32_t> lengths;
    for (int32_t w = 0; w < request.num_branches; ++w) {
      const bool is_cut = rig_.Of(id, w).reason == FinishReason::kCancelled;
      const auto length = static_cast<int32_t>(rig_.Of(id, w).tokens.size());
      if (!is_cut && length != request.max_tokens) return false;
      lengths.push_back(length + static_cast<int32_t>(is_cut ? seen >> w & 1 : 0));
    }
    const std::vector<std::vector<TokenId>> expected = test::FakeExecutor::AnswerWorkers(
        request.prompt, request.workers, request.sampling.seed, lengths, kVocab);
    for (int32_t w = 0; w < request.num_branches; ++w) {
      const std::vector<TokenId>& found = rig_.Of(id, w).tokens;
      if (!std::equal(found.begin(), found.end(), expected[static_cast<size_t>(w)].begin())) {
        return false;
      }
    }
    return true;
  }

  std::mt19937_64 random_;
  SchedulerOptions options_;
  const int32_t depth_;
  Rig rig_;
  std::map<RequestId, Live> live_;
  std::set<RequestId> paused_;
};

TEST_CASE("Workers get their tokens in any order of events, and no page is lost",
          "[scheduler][unit]") {
  const int64_t steps = EnvOr("HEDDLE_PROPERTY_STEPS", 200'000);
  auto seed = static_cast<uint64_t>(EnvOr("HEDDLE_PROPERTY_SEED", 1));
  constexpr int64_t kStepsPerLoad = 2000;
  Counts all;
  for (int64_t done = 0; done < steps; done += kStepsPerLoad, ++seed) {
    INFO("HEDDLE_PROPERTY_SEED=" << seed);
    WorkerLoad load(seed);
    load.Run(kStepsPerLoad);
    all.groups += load.counts.groups;
    all.whole += load.counts.whole;
    all.cut += load.counts.cut;
    all.preemptions += load.counts.preemptions;
    all.losses += load.counts.losses;
  }
  // The load exercises what the test is about.
  CHECK(all.groups > steps / 100);
  CHECK(all.whole > steps / 200);
  CHECK(all.cut > steps / 2000);
  CHECK(all.preemptions > steps / 200);
  CHECK(all.losses > steps / 1000);
}

}  // namespace
}  // namespace heddle::scheduler
