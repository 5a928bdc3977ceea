// Random loads of branches that fork, run, are joined side by side and are dropped, all at a time
// and beside plain requests, in few pages: whatever is preempted, swapped, paused, cancelled or
// lost at whatever moment, every branch gets the tokens that follow from the definition of a join
// (scheduler/context_layout.h), and no page and no context is lost.
// HEDDLE_PROPERTY_STEPS sets the number of steps (default 200,000), HEDDLE_PROPERTY_SEED the
// seed.
#include <cstdlib>
#include <random>
#include <set>

#include "catch2/catch.hpp"
#include "tests/scheduler/rig.h"

namespace heddle::scheduler {
namespace {

int64_t EnvOr(const char* name, int64_t fallback) {
  const char* value = std::getenv(name);
  return value ? std::atoll(value) : fallback;
}

// A branch as the front end knows it.
struct Branch {
  std::vector<TokenId> tokens;
  ContextParts parts;
  ContextId context{};
  uint64_t cache_space = 0;
  uint64_t fork = 0;     // siblings have the same; 0: it was not forked
  int32_t at = 0;        // tokens that they have in common
  uint64_t up_fork = 0;  // the same of the branch that it was forked from
  int32_t up_at = 0;
  bool runs = false;
};

struct Counts {
  int64_t steps = 0, joins = 0, finished = 0, preemptions = 0, swapped = 0, ahead = 0, losses = 0;
  int64_t cancelled = 0, deep = 0;
};

// One pool with random limits, loaded until it has run some steps, then emptied.
class JoinLoad {
 public:
  explicit JoinLoad(uint64_t seed)
      : random_(seed), options_(RandomOptions()), rig_(options_, Between(1, 4)) {
    rig_.executor.set_sees_parts();
    if (Between(0, 1) == 0) rig_.SendPlans();
    const int32_t ahead = std::clamp(Between(-100, 200), 0, 100);
    rig_.ahead = [this, ahead] { return Between(0, 99) < ahead; };
    const int32_t losses = Between(0, 1) * Between(1, 20);
    rig_.loses = [this, losses] {
      const bool loses = Between(0, 999) < losses;
      counts_.losses += loses ? 1 : 0;
      return loses;
    };
    orders_per_100_steps_ = Between(20, 150);
    rig_.between = [this] { MaybeDisturb(); };
  }

  void Run(int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) {
      if (Between(0, 99) < orders_per_100_steps_ && live_.size() < 24) Order();
      MaybeDisturb();
      while (!rig_.Step()) {
        if (!paused_.empty()) {
          Resume(*paused_.begin());
        } else {
          if (!rig_.scheduler.idle()) FAIL("requests wait and nothing is planned");
          Order();
        }
      }
      Check();
    }
    counts_.steps = steps;
    rig_.between = nullptr;
    rig_.loses = nullptr;
    while (!paused_.empty()) Resume(*paused_.begin());
    int64_t bound = 200 * 40 * options_.max_context;
    while (rig_.Step()) {
      REQUIRE(--bound > 0);
      Check();
    }
    REQUIRE(live_.empty());
    REQUIRE(rig_.scheduler.idle());
    REQUIRE(rig_.scheduler.stats().pages_used == 0);
    REQUIRE(rig_.executor.num_live() == 0);
    for (const Branch& branch : branches_) rig_.scheduler.DropContext(branch.context);
    REQUIRE(rig_.scheduler.stats().kept_contexts == 0);
    REQUIRE(rig_.scheduler.CheckIntegrity().ok());
    counts_.preemptions = rig_.scheduler.stats().preemptions;
    counts_.swapped = rig_.scheduler.stats().pages_swapped_in;
    counts_.ahead = rig_.executor.num_ahead();
  }

  const Counts& counts() const { return counts_; }

 private:
  static constexpr size_t kMaxBranches = 24;

  struct Live {
    GenerationRequest request;
    int32_t open_branches;
  };

  int32_t Between(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random_);
  }

  SchedulerOptions RandomOptions() {
    SchedulerOptions options;
    options.num_host_pages = Between(0, 1) * Between(1, 60);
    options.page_tokens = 1 << Between(0, 3);
    options.num_pages = Between(10, 60);
    options.max_context = Between(20, 100);
    options.max_step_tokens = Between(2, 48);
    options.max_step_seqs = Between(2, 12);
    options.prefix_cache = Between(0, 3) > 0;
    options.policy = static_cast<PolicyKind>(Between(0, 3));
    options.starvation_us = Between(0, 1) * Between(1, 300);
    options.max_lead_us = Between(0, 1) * Between(1, 60);
    if (Between(0, 2) == 0) options.pipeline_stages = Between(2, 4);
    options.reads_pieces = true;
    if (Between(0, 1) == 0) return options;
    // With a window of 1 the fake executor would see nothing of the history.
    const int32_t window = Between(2, 40);
    options.window_grain = options.page_tokens * Between(1, 3);
    options.windows = {Between(0, 2) == 0 ? window : 0, window};
    if (Between(0, 1) == 0) options.windows.push_back(Between(2, window));
    options.num_pages *= static_cast<int32_t>(options.windows.size());
    return options;
  }

  std::vector<TokenId> Text(int32_t count) {
    std::vector<TokenId> text;
    for (int32_t i = 0; i < count; ++i) text.push_back(Between(0, kVocab - 1));
    return text;
  }

  ContextId NewContext() { return ContextId{++last_context_}; }

  void Order() {
    MakeRoom();
    const int32_t kind = Between(0, 9);
    if (branches_.empty() || kind == 0) return Begin();
    if (kind == 1) return AddPlain();
    if (kind < 5) return Fork();
    if (kind < 8 && Join()) return;
    const size_t index = Any();
    if (!branches_[index].runs) Go(index);
  }

  size_t Any() {
    return static_cast<size_t>(Between(0, static_cast<int32_t>(branches_.size()) - 1));
  }

  // A branch that does not run is forgotten; now and then, so is what a branch will leave.
  void MakeRoom() {
    if (branches_.size() < kMaxBranches && Between(0, 15) > 0) return;
    if (branches_.empty()) return;
    const size_t index = Any();
    Branch& branch = branches_[index];
    rig_.scheduler.DropContext(branch.context);
    if (branch.runs) return;
    branches_[index] = branches_.back();
    branches_.pop_back();
  }

  void Begin() {
    Branch root{.tokens = Text(Between(1, 14)), .context = NewContext()};
    root.cache_space = static_cast<uint64_t>(Between(0, 7) / 7);
    Add(std::move(root));
  }

  void AddPlain() {
    GenerationRequest request = MakeRequest(Between(1, 30), Between(0, 20), Between(0, 5));
    request.num_branches = Between(1, 3);
    Submit(std::move(request));
  }

  void Add(Branch branch) {
    branches_.push_back(std::move(branch));
    Go(branches_.size() - 1);
  }

  // Some children of a branch, which may run.
  void Fork() {
    const Branch from = branches_[Any()];
    const auto length = static_cast<int32_t>(from.tokens.size());
    const int32_t at = Between(std::max(1, length - 3), length);
    const bool apart = Between(0, 3) > 0;
    const uint64_t fork = ++last_fork_;
    for (int32_t count = Between(1, 3); count > 0; --count) {
      Branch child{.tokens = from.tokens, .context = NewContext(), .fork = fork, .at = at};
      child.cache_space = from.cache_space;
      if (at > from.at) {
        child.up_fork = from.fork;
        child.up_at = from.at;
      }
      child.tokens.resize(static_cast<size_t>(at));
      child.parts = apart ? PartsApart(from.parts, at) : FirstParts(from.parts, at);
      for (const TokenId token : Text(Between(1, 4))) child.tokens.push_back(token);
      rig_.scheduler.ForkContext(from.context, at, child.context);
      Add(std::move(child));
    }
  }

  // Joins siblings that do not run. False: there are none.
  bool Join() {
    const uint64_t fork = branches_[Any()].fork;
    if (fork == 0) return false;
    std::vector<const Branch*> children;
    for (const Branch& branch : branches_) {
      const bool has_own = static_cast<int32_t>(branch.tokens.size()) > branch.at;
      if (branch.fork == fork && !branch.runs && has_own) children.push_back(&branch);
    }
    if (children.empty()) return false;
    const int32_t at = children.front()->at;
    std::vector<const ContextParts*> parts;
    ContextJoin join{.at = at, .to = NewContext()};
    join.tokens.assign(children[0]->tokens.begin(), children[0]->tokens.begin() + at);
    for (const Branch* child : children) {
      parts.push_back(&child->parts);
      join.children.push_back(child->context);
      join.lengths.push_back(static_cast<int32_t>(child->tokens.size()));
      join.tokens.insert(join.tokens.end(), child->tokens.begin() + at, child->tokens.end());
    }
    join.parts = JoinParts(parts, join.lengths, at);
    for (const TokenId token : Text(Between(1, 3))) join.tokens.push_back(token);
    counts_.deep += join.parts.size() > 5 ? 1 : 0;
    ++counts_.joins;
    Branch joined{.tokens = join.tokens, .parts = join.parts, .context = join.to};
    joined.cache_space = children[0]->cache_space;
    // It goes on in the place of the branch that its children were forked from.
    joined.fork = children[0]->up_fork;
    joined.at = children[0]->up_at;
    rig_.scheduler.JoinContexts(join);
    Add(std::move(joined));
    return true;
  }

  void Go(size_t index) {
    Branch& branch = branches_[index];
    GenerationRequest request;
    request.prompt = branch.tokens;
    request.parts = branch.parts;
    request.max_tokens = Between(0, 8);
    request.sampling.seed = 100 + static_cast<uint64_t>(Between(0, 5));
    request.from = request.keep = branch.context;
    request.cache_space = branch.cache_space;
    branch.runs = Submit(std::move(request));
  }

  bool Submit(GenerationRequest request) {
    request.priority = Between(0, 3);
    request.tenant = static_cast<uint64_t>(Between(0, 3));
    request.deadline_us = Between(0, 2) * Between(1, 200);
    if (!Scheduler::Validate(request, options_).ok()) return false;
    const RequestId id = rig_.Add(request);
    live_[id] = {std::move(request), 0};
    live_[id].open_branches = live_[id].request.num_branches;
    return true;
  }

  void MaybeDisturb() {
    if (live_.empty()) return;
    auto it = live_.begin();
    std::advance(it, Between(0, static_cast<int32_t>(live_.size()) - 1));
    const RequestId id = it->first;
    switch (Between(0, 60)) {
      case 0:
        rig_.Cancel(id);
        return TakeFinished();
      case 1:
        paused_.insert(id);
        return rig_.scheduler.Pause(id);
      case 2:
        return Resume(id);
      default:
        return;
    }
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
      if (!event.finished) continue;
      const auto live = live_.find(event.request);
      if (live == live_.end()) continue;
      End(live->second.request, event.branch, rig_.Of(event.request, event.branch));
      if (--live->second.open_branches > 0) continue;
      for (int32_t b = 0; b < live->second.request.num_branches; ++b) {
        rig_.outcome.erase({event.request, b});
      }
      paused_.erase(event.request);
      live_.erase(live);
    }
    rig_.events.clear();
  }

  void End(const GenerationRequest& request, int32_t branch, const BranchOutcome& got) {
    ++counts_.finished;
    const bool is_cancelled = got.reason == FinishReason::kCancelled;
    counts_.cancelled += is_cancelled ? 1 : 0;
    const auto count = static_cast<int32_t>(got.tokens.size());
    const std::vector<TokenId> want = test::FakeExecutor::AnswerParts(
        request.prompt, request.parts, request.sampling.seed + static_cast<uint64_t>(branch), count,
        kVocab);
    if (got.tokens != want) FAIL("tokens differ from those of the definition");
    const ContextLayout layout(request.parts, options_.page_tokens);
    const int32_t places = layout.PlaceOf(static_cast<int32_t>(request.prompt.size()));
    const int32_t room = SchedulerLimits::MaxContext(options_, 0, layout.first_end()) - places;
    if (!is_cancelled && count != std::min(request.max_tokens, room)) FAIL("a wrong length");
    if (request.keep == ContextId{}) return;
    for (Branch& one : branches_) {
      if (one.context != request.keep) continue;
      one.tokens.insert(one.tokens.end(), got.tokens.begin(), got.tokens.end());
      one.runs = false;
    }
  }

  std::mt19937_64 random_;
  SchedulerOptions options_;
  Rig rig_;
  int32_t orders_per_100_steps_ = 0;
  std::map<RequestId, Live> live_;
  std::set<RequestId> paused_;
  std::vector<Branch> branches_;
  uint64_t last_context_ = 0, last_fork_ = 0;
  Counts counts_;
};

TEST_CASE("Joins side by side get their tokens in any order of events, and no page is lost",
          "[scheduler][unit]") {
  const int64_t steps = EnvOr("HEDDLE_PROPERTY_STEPS", 200'000);
  auto seed = static_cast<uint64_t>(EnvOr("HEDDLE_PROPERTY_SEED", 1));
  constexpr int64_t kStepsPerLoad = 2000;
  Counts all;
  for (int64_t done = 0; done < steps; done += kStepsPerLoad, ++seed) {
    INFO("HEDDLE_PROPERTY_SEED=" << seed);
    JoinLoad load(seed);
    load.Run(kStepsPerLoad);
    const Counts& counts = load.counts();
    all.joins += counts.joins;
    all.deep += counts.deep;
    all.finished += counts.finished;
    all.cancelled += counts.cancelled;
    all.preemptions += counts.preemptions;
    all.swapped += counts.swapped;
    all.ahead += counts.ahead;
    all.losses += counts.losses;
  }
  // The load exercises what the test is about.
  CHECK(all.joins > steps / 50);
  CHECK(all.deep > steps / 500);
  CHECK(all.finished > steps / 20);
  CHECK(all.cancelled > steps / 200);
  CHECK(all.preemptions > steps / 200);
  CHECK(all.swapped > steps / 200);
  CHECK(all.ahead > steps / 10);
  CHECK(all.losses > steps / 1000);
}

}  // namespace
}  // namespace heddle::scheduler
