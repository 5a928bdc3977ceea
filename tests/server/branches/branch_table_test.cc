// Trees of branches: who finds them, what limits hold, and that nothing outlives its root.
#include "server/branches/branch_table.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <set>

#include "catch2/catch.hpp"
#include "server/request/api_error.h"
#include "tests/server/fake_generation.h"

namespace heddle::server {
namespace {

constexpr uint64_t kAlice = 1, kBob = 2;

// Notes which contexts and requests the table has and ends.
class NotingService final : public GenerationService {
 public:
  RequestId NextId() override { return RequestId{++last_}; }
  absl::Status Submit(GenerationRequest, EventSink) override { return absl::OkStatus(); }
  void Cancel(RequestId id) override { cancelled.insert(id); }
  void CancelBranch(RequestId, int32_t) override {}
  void Pause(RequestId) override {}
  void Resume(RequestId) override {}
  EngineStats Stats() const override { return {}; }
  void ForkContext(ContextId, int32_t, ContextId to) override { contexts.insert(to); }
  void JoinContexts(scheduler::ContextJoin join) override {
    joined_children = static_cast<int32_t>(join.children.size());
    joined_at = join.at;
    contexts.insert(join.to);
  }
  void DropContext(ContextId id) override {
    contexts.erase(id);
    dropped.insert(id);
  }

  std::set<RequestId> cancelled;
  std::set<ContextId> contexts, dropped;
  int32_t joined_children = 0, joined_at = 0;

 private:
  uint64_t last_ = 0;
};

std::vector<engine::SampledToken> Drawn(std::initializer_list<TokenId> tokens) {
  std::vector<engine::SampledToken> drawn;
  for (const TokenId token : tokens) drawn.push_back({token, -0.5f, {}});
  return drawn;
}

int HttpOf(const absl::Status& status) { return ToApiError(status).http_status; }

struct Trees {
  explicit Trees(const BranchLimits& limits = {}) : table(limits, &service, /*seed=*/5) {}

  std::string Root(BranchBudget budget = {}, std::vector<TokenId> tokens = {1, 2, 3}) {
    auto root =
        table.AddRoot(kAlice, {.tokens = std::move(tokens), .common = "{}", .budget = budget}, now);
    REQUIRE(root.ok());
    return root->id;
  }
  std::vector<std::string> Fork(const std::string& from, int64_t n) {
    auto infos = table.Fork(kAlice, {.from = from, .n = n}, now);
    REQUIRE(infos.ok());
    std::vector<std::string> ids;
    for (const BranchInfo& info : *infos) ids.push_back(info.id);
    return ids;
  }
  BranchInfo Get(const std::string& id) {
    auto info = table.Get(kAlice, id, now);
    REQUIRE(info.ok());
    return *info;
  }
  // Lets a branch draw these tokens.
  void Run(const std::string& id, std::initializer_list<TokenId> tokens) {
    REQUIRE(table.Begin(kAlice, id, Get(id).num_tokens, {}, 100, now).ok());
    table.Grow(id, Drawn(tokens));
    table.End(id, "stop", /*drops_last=*/false);
  }

  NotingService service;
  BranchTable table;
  int64_t now = 1000;
};

TEST_CASE("Forks share tokens up to any of them, and go on by themselves", "[branches]") {
  Trees trees;
  const std::string root = trees.Root();
  trees.Run(root, {4, 5});
  auto early = trees.table.Fork(kAlice, {.from = root, .at = 2, .n = 1, .append = {9}}, trees.now);
  REQUIRE(early.ok());
  CHECK(trees.Get(early->front().id).tokens == std::vector<TokenId>{1, 2, 9});
  const std::vector<std::string> two = trees.Fork(root, 2);
  trees.Run(two[0], {6});
  trees.Run(two[1], {7, 8});
  CHECK(trees.Get(two[0]).tokens == std::vector<TokenId>{1, 2, 3, 4, 5, 6});
  CHECK(trees.Get(two[1]).sum_logprob == Approx(-1));
  CHECK(trees.Get(root).children.size() == 3);
  CHECK(trees.Get(root).tree_tokens == 6);  // five drawn and one appended
  CHECK(trees.table.CheckIntegrity().ok());
  for (const int64_t at : {int64_t{0}, int64_t{6}, int64_t{-1}}) {
    CHECK(HttpOf(trees.table.Fork(kAlice, {.from = root, .at = at}, trees.now).status()) == 400);
  }
}

TEST_CASE("Another client's branches do not exist, and expired ones are gone", "[branches]") {
  Trees trees;
  const std::string root = trees.Root({.seconds = 10});
  const std::string child = trees.Fork(root, 1)[0];
  CHECK(HttpOf(trees.table.Get(kBob, child, trees.now).status()) == 404);
  CHECK(HttpOf(trees.table.Drop(kBob, root, trees.now)) == 404);
  CHECK(HttpOf(trees.table.Begin(kBob, child, 3, {}, 1, trees.now).status()) == 404);
  trees.now += 10;
  CHECK(HttpOf(trees.table.Get(kAlice, child, trees.now).status()) == 410);
  CHECK(HttpOf(trees.table.Get(kAlice, root, trees.now).status()) == 410);
  CHECK(HttpOf(trees.table.Get(kBob, root, trees.now).status()) == 404);
  CHECK(HttpOf(trees.table.Get(kAlice, "br_none", trees.now).status()) == 404);
  CHECK(trees.table.figures(trees.now).expired == 2);
  CHECK(trees.table.figures(trees.now).branches == 0);
  CHECK(trees.service.contexts.empty());
}

TEST_CASE("A fork lives no longer than its parent, whatever it asks for", "[branches]") {
  Trees trees;
  const std::string root = trees.Root({.seconds = 100});
  auto child = trees.table.Fork(kAlice, {.from = root, .ttl = 20}, trees.now);
  auto grandchild = trees.table.Fork(kAlice, {.from = child->front().id, .ttl = 500}, trees.now);
  CHECK(child->front().expires == trees.now + 20);
  CHECK(grandchild->front().expires == trees.now + 20);
  trees.now += 20;
  CHECK(HttpOf(trees.table.Get(kAlice, grandchild->front().id, trees.now).status()) == 410);
  CHECK(trees.Get(root).children.empty());
}

TEST_CASE("What runs ends with its root, also before it was submitted", "[branches]") {
  Trees trees;
  const std::string root = trees.Root();
  const std::vector<std::string> two = trees.Fork(root, 2);
  REQUIRE(trees.table.Begin(kAlice, two[0], 3, {}, 10, trees.now).ok());
  REQUIRE(trees.table.Begin(kAlice, two[1], 3, {}, 10, trees.now).ok());
  trees.table.SetRequest(two[0], RequestId{7}, ContextId{77});
  REQUIRE(trees.table.Drop(kAlice, root, trees.now).ok());
  CHECK(trees.service.cancelled.contains(RequestId{7}));
  trees.table.SetRequest(two[1], RequestId{8}, ContextId{77});
  CHECK(trees.service.cancelled.contains(RequestId{8}));
  CHECK(trees.service.dropped.contains(ContextId{77}));
  trees.table.Grow(two[0], Drawn({1}));  // a late event
  trees.table.End(two[0], "cancelled", false);
  CHECK(trees.table.figures(trees.now).running == 0);
  CHECK(trees.table.CheckIntegrity().ok());
}

TEST_CASE("A branch is continued once at a time, and as it was read", "[branches]") {
  Trees trees;
  const std::string root = trees.Root();
  REQUIRE(trees.table.Begin(kAlice, root, 3, {}, 10, trees.now).ok());
  CHECK(HttpOf(trees.table.Begin(kAlice, root, 3, {}, 10, trees.now).status()) == 409);
  trees.table.Grow(root, Drawn({4}));
  trees.table.End(root, "stop", false);
  CHECK(HttpOf(trees.table.Begin(kAlice, root, 3, {}, 10, trees.now).status()) == 409);
  CHECK(trees.table.Begin(kAlice, root, 4, {}, 10, trees.now).ok());
}

TEST_CASE("Running branches reserve what they may draw, so that no budget is exceeded",
          "[branches]") {
  Trees trees;
  const std::string root = trees.Root({.tokens = 10, .branches = 3});
  const std::vector<std::string> two = trees.Fork(root, 2);
  CHECK(HttpOf(trees.table.Fork(kAlice, {.from = root}, trees.now).status()) == 400);
  CHECK(*trees.table.Begin(kAlice, two[0], 3, {}, 6, trees.now) == 6);
  CHECK(*trees.table.Begin(kAlice, two[1], 3, std::vector<TokenId>{9}, 6, trees.now) == 3);
  const absl::Status spent = trees.table.Begin(kAlice, root, 3, {}, 1, trees.now).status();
  CHECK(ToApiError(spent).code == "branch_budget_exceeded");
  trees.table.Grow(two[0], Drawn({1, 2}));
  trees.table.Grow(two[1], Drawn({1, 2, 3, 4, 5}));  // more than was granted
  trees.table.End(two[0], "stop", false);
  trees.table.End(two[1], "length", false);
  CHECK(trees.Get(two[1]).num_tokens == 7);
  CHECK(trees.table.CheckIntegrity().ok());
  CHECK(*trees.table.Begin(kAlice, root, 3, {}, 100, trees.now) == 4);
  trees.table.Abort(root);
  CHECK(HttpOf(trees.table.Charge(kAlice, root, 5, trees.now)) == 400);
  CHECK(trees.table.Charge(kAlice, root, 4, trees.now).ok());
  CHECK(HttpOf(trees.table.Begin(kAlice, root, 3, {}, 1, trees.now).status()) == 400);
}

TEST_CASE("Bytes of keys and values count once for what branches share", "[branches]") {
  BranchLimits limits;
  limits.bytes_per_token = 100;
  Trees trees(limits);
  const std::string root = trees.Root({.bytes = 800});
  const std::vector<std::string> two = trees.Fork(root, 2);
  CHECK(trees.Get(root).tree_bytes == 300);
  CHECK(*trees.table.Begin(kAlice, two[0], 3, {}, 3, trees.now) == 3);
  CHECK(*trees.table.Begin(kAlice, two[1], 3, {}, 3, trees.now) == 2);
  CHECK(HttpOf(trees.table.Begin(kAlice, root, 3, {}, 3, trees.now).status()) == 400);
  REQUIRE(trees.table.Drop(kAlice, two[0], trees.now).ok());
  CHECK(*trees.table.Begin(kAlice, root, 3, {}, 9, trees.now) == 3);
}

TEST_CASE("A server keeps so many branches, and a client with a key a quarter of them",
          "[branches]") {
  BranchLimits limits;
  limits.max_branches = 8;
  limits.max_tokens = 40;
  Trees trees(limits);
  const std::string root = trees.Root();
  trees.Fork(root, 1);
  CHECK(HttpOf(trees.table.Fork(kAlice, {.from = root}, trees.now).status()) == 429);
  CHECK(trees.table.AddRoot(kBob, {.tokens = {1}, .common = "{}"}, trees.now).ok());
  for (int i = 0; i < 5; ++i) {
    CHECK(trees.table.AddRoot(0, {.tokens = {1}, .common = "{}"}, trees.now).ok());
  }
  CHECK(HttpOf(trees.table.AddRoot(0, {.tokens = {1}, .common = "{}"}, trees.now).status()) == 429);
  CHECK(HttpOf(trees.table.Begin(kAlice, root, 3, {}, 30, trees.now).status()) == 429);
}

TEST_CASE("A text join is the first child and what the others add", "[branches]") {
  Trees trees;
  const std::string root = trees.Root();
  const std::vector<std::string> two = trees.Fork(root, 2);
  trees.Run(two[0], {4, 5});
  trees.Run(two[1], {6});
  auto joined = trees.table.Join(
      kAlice, {.parent = root, .children = two, .separator = {8}, .tail = {9}}, trees.now);
  REQUIRE(joined.ok());
  CHECK(trees.Get(joined->id).tokens == std::vector<TokenId>{1, 2, 3, 4, 5, 8, 6, 9});
  CHECK(joined->parent == root);
  CHECK(trees.table.CheckIntegrity().ok());
}

TEST_CASE("Strangers, cycles, twins and running branches are not joined", "[branches]") {
  Trees trees;
  const std::string root = trees.Root();
  const std::vector<std::string> two = trees.Fork(root, 2);
  const std::string stranger = trees.Fork(trees.Root(), 1)[0];
  const std::string grandchild = trees.Fork(two[0], 1)[0];
  const auto join = [&](std::vector<std::string> children, const std::string& parent) {
    return HttpOf(
        trees.table.Join(kAlice, {.parent = parent, .children = std::move(children)}, trees.now)
            .status());
  };
  CHECK(join({two[0], stranger}, root) == 400);
  CHECK(join({two[0], grandchild}, root) == 400);
  CHECK(join({root}, root) == 400);
  CHECK(join({root}, two[0]) == 400);  // its own parent
  CHECK(join({two[0], two[0]}, root) == 400);
  CHECK(join({two[0], "br_none"}, root) == 404);
  auto early = trees.table.Fork(kAlice, {.from = root, .at = 1}, trees.now);
  CHECK(join({two[0], early->front().id}, root) == 400);  // not forked at one place
  REQUIRE(trees.table.Begin(kAlice, two[1], 3, {}, 5, trees.now).ok());
  CHECK(join({two[0], two[1]}, root) == 409);
  CHECK(trees.table.CheckIntegrity().ok());
}

TEST_CASE("Who is picked goes on, and its siblings end with what they run", "[branches]") {
  Trees trees;
  const std::string root = trees.Root();
  const std::vector<std::string> three = trees.Fork(root, 3);
  REQUIRE(trees.table.Begin(kAlice, three[2], 3, {}, 5, trees.now).ok());
  trees.table.SetRequest(three[2], RequestId{3}, ContextId{77});
  auto picked =
      trees.table.Join(kAlice, {.parent = root, .children = {three[1]}, .pick = true}, trees.now);
  REQUIRE(picked.ok());
  CHECK(picked->id == three[1]);
  CHECK(trees.Get(root).children == std::vector<std::string>{three[1]});
  CHECK(trees.service.cancelled.contains(RequestId{3}));
  CHECK(trees.table.CheckIntegrity().ok());
}

TEST_CASE("The model's end of text does not stay, and an aborted run leaves no trace",
          "[branches]") {
  Trees trees;
  const std::string root = trees.Root();
  REQUIRE(trees.table.Begin(kAlice, root, 3, {}, 5, trees.now).ok());
  trees.table.Grow(root, Drawn({4, 99}));
  const std::string child = trees.Fork(root, 1)[0];  // while it runs
  trees.table.End(root, "stop", /*drops_last=*/true);
  CHECK(trees.Get(root).tokens == std::vector<TokenId>{1, 2, 3, 4});
  CHECK(trees.Get(child).num_tokens == 5);
  CHECK(trees.table.CheckIntegrity().ok());
  REQUIRE(trees.table.Begin(kAlice, root, 4, std::vector<TokenId>{7, 8}, 5, trees.now).ok());
  trees.table.Abort(root);
  CHECK(trees.Get(root).tokens == std::vector<TokenId>{1, 2, 3, 4});
  CHECK(trees.Get(root).tree_tokens == 2);
  CHECK(trees.table.CheckIntegrity().ok());
}

// Random orders of two clients, whatever they name. HEDDLE_PROPERTY_STEPS sets the number of steps.
TEST_CASE("Random forks, joins, runs and ends lose nothing and exceed nothing", "[branches]") {
  const char* given = std::getenv("HEDDLE_PROPERTY_STEPS");
  const int64_t steps = given == nullptr ? 100'000 : std::atoll(given);
  BranchLimits limits;
  limits.max_branches = 240;
  limits.max_tokens = 9000;
  limits.bytes_per_token = 10;
  Trees trees(limits);
  std::mt19937_64 random(3);
  const auto below = [&random](size_t n) { return static_cast<size_t>(random() % n); };
  std::vector<std::string> ids = {"br_none"};
  // One of the newest, mostly.
  const auto any = [&] {
    return below(20) == 0 ? ids[0] : ids[ids.size() - 1 - below(std::min<size_t>(ids.size(), 30))];
  };
  BranchTable& table = trees.table;
  int64_t done = 0;
  for (int64_t i = 0; i < steps; ++i) {
    const uint64_t owner = below(20) == 0 ? kBob : kAlice;
    const std::string id = any();
    bool ok = false;
    switch (below(10)) {
      case 0: {
        const BranchBudget budget{static_cast<int64_t>(below(200)) + 1,
                                  static_cast<int64_t>(below(20)) + 1, 5000,
                                  static_cast<int64_t>(below(300)) + 1};
        auto root = table.AddRoot(
            owner,
            {.tokens = std::vector<TokenId>(below(20) + 1, 5), .common = "{}", .budget = budget},
            trees.now);
        if ((ok = root.ok())) ids.push_back(root->id);
        break;
      }
      case 1:
      case 2: {
        auto forks =
            table.Fork(owner,
                       {.from = id,
                        .at = below(2) == 0 ? std::optional<int64_t>(below(12)) : std::nullopt,
                        .n = static_cast<int64_t>(below(4)) + 1,
                        .append = std::vector<TokenId>(below(4), 6),
                        .ttl = static_cast<int64_t>(below(100))},
                       trees.now);
        if ((ok = forks.ok())) {
          for (const BranchInfo& info : *forks) ids.push_back(info.id);
        }
        break;
      }
      case 3: {
        auto parent = table.Get(owner, id, trees.now);
        if (!parent.ok() || parent->children.empty()) break;
        BranchTable::JoinOrder order{.parent = id, .pick = below(3) == 0, .tail = {3}};
        order.children = parent->children;
        if (order.pick) order.children.resize(1);
        if (below(5) == 0) order.children.push_back(any());
        if (order.pick) order.children.resize(1);
        auto joined = table.Join(owner, order, trees.now);
        if ((ok = joined.ok())) ids.push_back(joined->id);
        break;
      }
      case 4:
        ok = below(6) == 0 && table.Drop(owner, id, trees.now).ok();
        break;
      case 5:
        trees.now += static_cast<int64_t>(below(3));
        ok = table.IsLive(id, trees.now);
        break;
      case 6:
        ok = table.Charge(owner, id, static_cast<int64_t>(below(5)), trees.now).ok();
        break;
      case 7: {
        auto branch = table.Get(owner, id, trees.now);
        if (!branch.ok()) break;
        ok = table
                 .Begin(owner, id, branch->num_tokens, std::vector<TokenId>(below(3), 4),
                        static_cast<int64_t>(below(20)), trees.now)
                 .ok();
        if (ok && below(4) > 0)
          table.SetRequest(id, RequestId{static_cast<uint64_t>(i) + 1}, ContextId{77});
        break;
      }
      case 8:
        table.Grow(id, Drawn({1, 2}));
        break;
      default:
        below(4) == 0 ? table.Abort(id) : table.End(id, "stop", below(2) == 0);
        break;
    }
    done += ok ? 1 : 0;
    if (ids.size() > 200) ids.erase(ids.begin() + 1, ids.begin() + 100);
    if (i % 50 == 0) {
      const absl::Status status = table.CheckIntegrity();
      if (!status.ok()) FAIL(status.ToString());
    }
  }
  CHECK(done > steps / 10);
  CHECK(table.figures(trees.now).joined > steps / 500);
  CHECK(table.figures(trees.now + 1'000'000).branches == 0);
  CHECK(table.figures(trees.now).tokens == 0);
  CHECK(trees.service.contexts.empty());
  CHECK(table.CheckIntegrity().ok());
}

TEST_CASE("A concurrent join keeps its children apart and charges its tail alone",
          "[server][unit]") {
  Trees trees;
  const std::string root = trees.Root();
  const auto made =
      trees.table.Fork(kAlice, {.from = root, .n = 3, .append = {9}, .apart = true}, trees.now);
  REQUIRE(made.ok());
  BranchTable::JoinOrder order{.parent = root, .concurrent = true, .tail = {20, 21}};
  for (const BranchInfo& info : *made) {
    CHECK(info.num_parts == 2);
    trees.Run(info.id, {10, 11});
    order.children.push_back(info.id);
  }
  const int64_t before = trees.Get(root).tree_tokens;
  const auto joined = trees.table.Join(kAlice, order, trees.now);
  REQUIRE(joined.ok());
  CHECK(joined->num_tokens == 3 + 3 * 3 + 2);
  CHECK(joined->num_parts == 5);
  CHECK(joined->tree_tokens - before == 2);
  CHECK(trees.service.joined_children == 3);
  CHECK(trees.service.joined_at == 3);
  const auto source = trees.table.Read(kAlice, joined->id, trees.now);
  REQUIRE(source.ok());
  CHECK(source->parts.back().position == 6);  // behind the longest child
  CHECK(source->parts[3].hidden == std::vector<scheduler::PartRange>{{1, 3}});
  CHECK(trees.table.CheckIntegrity().ok());
}

TEST_CASE("Concurrent joins and forks say what they lack", "[server][unit]") {
  Trees trees;
  const std::string root = trees.Root();
  CHECK(HttpOf(trees.table.Fork(kAlice, {.from = root, .apart = true}, trees.now).status()) == 400);
  const std::vector<std::string> children = trees.Fork(root, 2);
  BranchTable::JoinOrder order{
      .parent = root, .children = children, .concurrent = true, .tail = {20}};
  CHECK(HttpOf(trees.table.Join(kAlice, order, trees.now).status()) ==
        400);  // nothing of their own
  for (const std::string& child : children) trees.Run(child, {10, 11});
  order.tail.clear();
  CHECK(HttpOf(trees.table.Join(kAlice, order, trees.now).status()) == 400);
  order.tail = {20};
  order.separator = {3};
  CHECK(HttpOf(trees.table.Join(kAlice, order, trees.now).status()) == 400);
  order.separator.clear();
  CHECK(trees.table.Join(kAlice, order, trees.now).ok());
  Trees recurrent({.no_concurrent = "recurrent layers"});
  const std::string other = recurrent.Root();
  const auto refused =
      recurrent.table.Fork(kAlice, {.from = other, .append = {9}, .apart = true}, recurrent.now);
  CHECK(HttpOf(refused.status()) == 400);
  CHECK(refused.status().message() == "recurrent layers");
}

}  // namespace
}  // namespace heddle::server
