// Branches that go on from what others have computed: only what a context lacks is computed, and
// the tokens are those of a request that comes with the whole text.
#include "scheduler/kept_contexts.h"

#include <map>
#include <random>

#include "catch2/catch.hpp"
#include "tests/scheduler/rig.h"

namespace heddle::scheduler {
namespace {

constexpr ContextId kRoot{1}, kFork{2}, kOther{3};

SchedulerOptions KeptOptions(bool prefix_cache) {
  SchedulerOptions options;
  options.num_pages = 64;
  options.page_tokens = 4;
  options.max_context = 100;
  options.max_step_tokens = 64;
  options.max_step_seqs = 8;
  options.prefix_cache = prefix_cache;
  return options;
}

// A request with `tokens` as its prompt, which goes on from `from`.
GenerationRequest GoOn(std::vector<TokenId> tokens, ContextId from, int32_t max_tokens = 5,
                       uint64_t seed = 7) {
  GenerationRequest request;
  request.prompt = std::move(tokens);
  request.max_tokens = max_tokens;
  request.sampling.seed = seed;
  request.from = from;
  return request;
}

std::vector<TokenId> Whole(const GenerationRequest& request, const BranchOutcome& outcome) {
  std::vector<TokenId> tokens = request.prompt;
  tokens.insert(tokens.end(), outcome.tokens.begin(), outcome.tokens.end());
  return tokens;
}

TEST_CASE("A branch that goes on computes only the token that was drawn last",
          "[scheduler][unit]") {
  const bool prefix_cache = GENERATE(true, false);
  Rig rig(KeptOptions(prefix_cache));
  GenerationRequest root = MakeRequest(18, 7);
  root.keep = kRoot;
  const RequestId first = rig.Add(root);
  rig.RunAll();
  CHECK(rig.scheduler.stats().kept_contexts == 1);
  CHECK(rig.scheduler.stats().pages_used == 0);  // it takes no page from anybody
  const GenerationRequest next = GoOn(Whole(root, rig.Of(first)), kRoot);
  const int64_t before = rig.scheduler.stats().prompt_tokens;
  const RequestId second = rig.Add(next);
  rig.RunAll();
  CHECK(rig.Of(second).tokens == Alone(next, 0, 5));
  CHECK(rig.scheduler.stats().prompt_tokens - before == 1);
  rig.scheduler.DropContext(kRoot);
  CHECK(rig.scheduler.stats().kept_contexts == 0);
  CHECK(rig.scheduler.CheckIntegrity().ok());
}

TEST_CASE("A fork at every token, of a branch that runs or has ended, equals a fresh request",
          "[scheduler][unit]") {
  const bool prefix_cache = GENERATE(true, false);
  const bool runs = GENERATE(true, false);
  for (int32_t at = 1; at <= 20; ++at) {
    Rig rig(KeptOptions(prefix_cache));
    GenerationRequest root = MakeRequest(10, runs ? 40 : 10);
    root.keep = kRoot;
    const RequestId first = rig.Add(root);
    while (!rig.Of(first).finished && rig.Of(first).tokens.size() < 10) REQUIRE(rig.Step());
    std::vector<TokenId> tokens = Whole(root, rig.Of(first));
    tokens.resize(static_cast<size_t>(at));
    rig.scheduler.ForkContext(kRoot, at, kFork);
    const GenerationRequest branch = GoOn(tokens, kFork, 6);
    const int64_t rows = rig.scheduler.stats().prompt_tokens;
    const RequestId second = rig.Add(branch);
    rig.RunAll();
    INFO("at " << at);
    CHECK(rig.Of(second).tokens == Alone(branch, 0, 6));
    CHECK(rig.Of(first).tokens == Alone(root, 0, root.max_tokens));
    CHECK(rig.scheduler.stats().prompt_tokens - rows == 1);
    CHECK(rig.scheduler.CheckIntegrity().ok());
  }
}

TEST_CASE("A fork of a model whose pages have one state takes over whole pages, and goes on",
          "[scheduler][unit]") {
  const bool prefix_cache = GENERATE(true, false);
  for (int32_t at = 1; at <= 20; ++at) {
    SchedulerOptions options = KeptOptions(prefix_cache);
    options.windows = {0, 2};
    options.state_groups = 1;
    options.state_is_snapshot = true;
    options.num_pages *= 2;
    Rig rig(options);
    GenerationRequest root = MakeRequest(10, 10);
    root.keep = kRoot;
    const RequestId first = rig.Add(root);
    rig.RunAll();
    std::vector<TokenId> tokens = Whole(root, rig.Of(first));
    tokens.resize(static_cast<size_t>(at));
    rig.scheduler.ForkContext(kRoot, at, kFork);
    const int64_t rows = rig.scheduler.stats().prompt_tokens;
    const RequestId second = rig.Add(GoOn(tokens, kFork, 6));
    rig.RunAll();
    INFO("at " << at);
    CHECK(rig.Of(second).tokens == Alone(GoOn(tokens, kFork, 6), 0, 6));
    const int64_t computed = rig.scheduler.stats().prompt_tokens - rows;
    // Where it ended, its state is there; before, a page's that the cache still has.
    CHECK((at == 20 ? computed == 1 : computed >= 1 && computed <= at));
    if (prefix_cache && at < 20) CHECK(computed == (at - 1) % options.page_tokens + 1);
    CHECK(rig.scheduler.CheckIntegrity().ok());
  }
}

// Its pages fill several blocks of lists, and each fork leaves at a page's begin, middle or end.
TEST_CASE("A long branch is forked again and again while it runs", "[scheduler][unit]") {
  SchedulerOptions options = KeptOptions(GENERATE(true, false));
  options.num_pages = 2000;
  options.max_context = 1000;
  Rig rig(options);
  GenerationRequest root = MakeRequest(300, 600);
  root.keep = kRoot;
  const RequestId first = rig.Add(root);
  std::mt19937 rng(3);
  std::map<ContextId, std::vector<TokenId>> forks;
  for (uint64_t id = 100; !rig.Of(first).finished; ++id) {
    REQUIRE(rig.Step());
    std::vector<TokenId> tokens = Whole(root, rig.Of(first));
    if (tokens.size() < 320 || id % 3 == 0) continue;
    tokens.resize(std::uniform_int_distribution<size_t>(1, tokens.size())(rng));
    rig.scheduler.ForkContext(kRoot, static_cast<int32_t>(tokens.size()), ContextId{id});
    if (id % 5 == 0) rig.scheduler.ForkContext(ContextId{id}, 290, ContextId{id});
    if (id % 5 == 0) tokens.resize(std::min<size_t>(tokens.size(), 290));
    forks[ContextId{id}] = tokens;
    if (forks.size() > 6) {
      rig.scheduler.DropContext(forks.begin()->first);
      forks.erase(forks.begin());
    }
    REQUIRE(rig.scheduler.CheckIntegrity().ok());
  }
  CHECK(rig.Of(first).tokens == Alone(root, 0, root.max_tokens));
  CHECK(rig.scheduler.stats().kept_contexts == static_cast<int32_t>(forks.size()) + 1);
  for (const auto& [id, tokens] : forks) {
    const GenerationRequest branch = GoOn(tokens, id, 4);
    const int64_t rows = rig.scheduler.stats().prompt_tokens;
    const RequestId second = rig.Add(branch);
    rig.RunAll();
    INFO("from " << static_cast<uint64_t>(id) << " with " << tokens.size() << " tokens");
    CHECK(rig.Of(second).tokens == Alone(branch, 0, 4));
    CHECK(rig.scheduler.stats().prompt_tokens - rows == 1);
  }
  for (const auto& [id, tokens] : forks) rig.scheduler.DropContext(id);
  rig.scheduler.DropContext(kRoot);
  CHECK(rig.scheduler.CheckIntegrity().ok());
}

// They run long enough that their lists follow them, and begin with those of the root.
TEST_CASE("Forks of long branches that run behind a context of others equal fresh requests",
          "[scheduler][unit]") {
  SchedulerOptions options = KeptOptions(GENERATE(true, false));
  options.num_pages = 1000;
  options.max_context = 500;
  Rig rig(options);
  GenerationRequest root = MakeRequest(90, 60);
  root.keep = kRoot;
  const RequestId first = rig.Add(root);
  rig.RunAll();
  GenerationRequest branches = GoOn(Whole(root, rig.Of(first)), kRoot, 60);
  branches.prompt.resize(static_cast<size_t>(GENERATE(101, 150)));
  branches.num_branches = 3;
  branches.keep = ContextId{10};
  const RequestId second = rig.Add(branches);
  while (rig.Of(second).tokens.size() < 45) REQUIRE(rig.Step());
  std::vector<std::vector<TokenId>> forks;
  for (int32_t b = 0; b < 3; ++b) {
    std::vector<TokenId>& tokens = forks.emplace_back(Whole(branches, rig.Of(second, b)));
    tokens.resize(branches.prompt.size() + 17 + static_cast<size_t>(b));
    const auto id = static_cast<uint64_t>(b);
    rig.scheduler.ForkContext(ContextId{10 + id}, static_cast<int32_t>(tokens.size()),
                              ContextId{20 + id});
  }
  CHECK(rig.scheduler.CheckIntegrity().ok());
  rig.RunAll();
  for (uint64_t b = 0; b < 3; ++b) {
    CHECK(rig.Of(second, static_cast<int32_t>(b)).tokens ==
          Alone(branches, static_cast<int32_t>(b), 60));
    const GenerationRequest next = GoOn(forks[b], ContextId{20 + b}, 4);
    const int64_t rows = rig.scheduler.stats().prompt_tokens;
    const RequestId third = rig.Add(next);
    rig.RunAll();
    CHECK(rig.Of(third).tokens == Alone(next, 0, 4));
    CHECK(rig.scheduler.stats().prompt_tokens - rows == 1);
  }
  for (uint64_t id : {1, 10, 11, 12, 20, 21, 22}) rig.scheduler.DropContext(ContextId{id});
  CHECK(rig.scheduler.stats().kept_contexts == 0);
  CHECK(rig.scheduler.CheckIntegrity().ok());
}

TEST_CASE("Branches share full pages, and each copies one half-filled page", "[scheduler][unit]") {
  Rig rig(KeptOptions(true));
  GenerationRequest root = MakeRequest(18, 1);
  root.keep = kRoot;
  const RequestId first = rig.Add(root);
  rig.RunAll();
  std::vector<RequestId> ids;
  for (uint64_t b = 0; b < 8; ++b) {
    ids.push_back(rig.Add(GoOn(Whole(root, rig.Of(first)), kRoot, 6, b)));
  }
  REQUIRE(rig.Step());
  CHECK(rig.plan.sequences.size() == 8);
  CHECK(rig.plan.token_ids.size() == 8);
  CHECK(rig.plan.page_copies.size() == 8);
  // Four full pages of the prompt, and one page of each branch.
  CHECK(rig.scheduler.stats().pages_used == 4 + 8);
  rig.RunAll();
  for (uint64_t b = 0; b < 8; ++b) {
    CHECK(rig.Of(ids[b]).tokens == Alone(GoOn(Whole(root, rig.Of(first)), kRoot, 6, b), 0, 6));
  }
}

TEST_CASE("What others need of a context is theirs, and is computed again", "[scheduler][unit]") {
  SchedulerOptions options = KeptOptions(true);
  options.num_pages = 8;
  options.max_context = 32;
  Rig rig(options);
  GenerationRequest root = MakeRequest(18, 3);
  root.keep = kRoot;
  const RequestId first = rig.Add(root);
  rig.RunAll();
  const GenerationRequest large = MakeRequest(28, 4, 1);  // takes all pages
  const RequestId between = rig.Add(large);
  rig.RunAll();
  CHECK(rig.Of(between).tokens == Alone(large, 0, 4));
  const GenerationRequest next = GoOn(Whole(root, rig.Of(first)), kRoot);
  const int64_t before = rig.scheduler.stats().prompt_tokens;
  const RequestId second = rig.Add(next);
  rig.RunAll();
  CHECK(rig.Of(second).tokens == Alone(next, 0, 5));
  CHECK(rig.scheduler.stats().prompt_tokens - before > 1);
  CHECK(rig.scheduler.CheckIntegrity().ok());
}

TEST_CASE("A context is of use to nobody with other tokens, another adapter or another space",
          "[scheduler][unit]") {
  SchedulerOptions options = KeptOptions(false);
  options.adapter_slots = 8;
  Rig rig(options);
  GenerationRequest root = MakeRequest(18, 3);
  root.keep = kRoot;
  root.cache_space = 5;
  const RequestId first = rig.Add(root);
  rig.RunAll();
  const int kind = GENERATE(0, 1, 2);
  GenerationRequest next = GoOn(Whole(root, rig.Of(first)), kRoot);
  next.cache_space = 5;
  if (kind == 0) next.prompt[0] += 1;
  if (kind == 1) next.cache_space = 6;
  if (kind == 2) next.adapter = {.id = engine::AdapterId{9}, .num_pages = 1};
  const RequestId second = rig.Add(next);
  rig.RunAll();
  CHECK(rig.Of(second).tokens == Alone(next, 0, 5));
  CHECK(rig.Of(second).cached_tokens == 0);
}

TEST_CASE("A branch whose context is dropped while it runs leaves nothing", "[scheduler][unit]") {
  Rig rig(KeptOptions(true));
  GenerationRequest root = MakeRequest(6, 8);
  root.keep = kRoot;
  rig.Add(root);
  for (int i = 0; i < 3; ++i) REQUIRE(rig.Step());
  rig.scheduler.DropContext(kRoot);
  rig.RunAll();
  CHECK(rig.scheduler.stats().kept_contexts == 0);
  rig.scheduler.ForkContext(kRoot, 4, kOther);  // a stranger's id
  CHECK(rig.scheduler.stats().kept_contexts == 0);
}

TEST_CASE("Each branch of a request leaves a context of its own, also if it is cancelled",
          "[scheduler][unit]") {
  Rig rig(KeptOptions(false));
  GenerationRequest root = MakeRequest(9, 8);
  root.num_branches = 3;
  root.keep = ContextId{10};
  const RequestId first = rig.Add(root);
  for (int i = 0; i < 4; ++i) REQUIRE(rig.Step());
  rig.CancelBranch(first, 1);
  rig.RunAll();
  CHECK(rig.scheduler.stats().kept_contexts == 3);
  for (int32_t b = 0; b < 3; ++b) {
    const GenerationRequest next =
        GoOn(Whole(root, rig.Of(first, b)), ContextId{10 + static_cast<uint64_t>(b)});
    const int64_t before = rig.scheduler.stats().prompt_tokens;
    const RequestId second = rig.Add(next);
    rig.RunAll();
    CHECK(rig.Of(second).tokens == Alone(next, 0, 5));
    CHECK(rig.scheduler.stats().prompt_tokens - before == 1);
  }
}

TEST_CASE("Only the tokens behind a context are scored, in one step", "[scheduler][unit]") {
  Rig rig(KeptOptions(true));
  GenerationRequest root = MakeRequest(18, 3);
  root.keep = kRoot;
  const RequestId first = rig.Add(root);
  rig.RunAll();
  GenerationRequest candidate = GoOn(Whole(root, rig.Of(first)), kRoot, 0);
  candidate.first_score = static_cast<int32_t>(candidate.prompt.size()) - 1;
  for (const TokenId token : {5, 6, 7}) candidate.prompt.push_back(token);
  candidate.prompt_logprobs = 0;
  const RequestId scored = rig.Add(candidate);
  REQUIRE(rig.Step());
  CHECK(rig.plan.token_ids.size() == 4);
  CHECK(rig.Of(scored).scores.size() == 3);
  CHECK(rig.Of(scored).finished);
}

}  // namespace
}  // namespace heddle::scheduler
