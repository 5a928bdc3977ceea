// Branches that are joined side by side: what a row sees, from which pages, and that no order of
// forks, joins, preemptions and evictions changes a token. The executor knows nothing of parts; the
// expected tokens follow from their definition.
#include <map>
#include <random>

#include "catch2/catch.hpp"
#include "scheduler/context_layout.h"
#include "tests/scheduler/rig.h"

namespace heddle::scheduler {
namespace {

SchedulerOptions JoinOptions(int32_t num_pages, bool prefix_cache, int32_t num_host_pages = 0) {
  SchedulerOptions options;
  options.num_pages = num_pages;
  options.page_tokens = 4;
  options.max_context = 400;
  options.max_step_tokens = 64;
  options.max_step_seqs = 8;
  options.prefix_cache = prefix_cache;
  options.num_host_pages = prefix_cache ? num_host_pages : 0;
  return options;
}

// A branch as the front end knows it.
struct Node {
  std::vector<TokenId> tokens;
  ContextParts parts;
  ContextId context{};
};

class Tree {
 public:
  explicit Tree(const SchedulerOptions& options) : rig(options) { rig.executor.set_sees_parts(); }

  std::vector<TokenId> Text(int32_t count) {
    std::vector<TokenId> text;
    for (int32_t i = 0; i < count; ++i) text.push_back(static_cast<TokenId>(random() % 900));
    return text;
  }

  ContextId NewContext() { return ContextId{++last_context_}; }

  Node Fork(const Node& from, int32_t at, int32_t header, bool apart) {
    Node child{.tokens = from.tokens, .context = NewContext()};
    child.tokens.resize(static_cast<size_t>(at));
    child.parts = apart ? PartsApart(from.parts, at) : FirstParts(from.parts, at);
    for (const TokenId token : Text(header)) child.tokens.push_back(token);
    rig.scheduler.ForkContext(from.context, at, child.context);
    return child;
  }

  Node Join(const std::vector<Node>& children, int32_t at, int32_t tail) {
    std::vector<const ContextParts*> parts;
    std::vector<int32_t> lengths;
    std::vector<ContextId> contexts;
    Node joined{.context = NewContext()};
    joined.tokens.assign(children[0].tokens.begin(), children[0].tokens.begin() + at);
    for (const Node& child : children) {
      parts.push_back(&child.parts);
      lengths.push_back(static_cast<int32_t>(child.tokens.size()));
      contexts.push_back(child.context);
      joined.tokens.insert(joined.tokens.end(), child.tokens.begin() + at, child.tokens.end());
    }
    joined.parts = JoinParts(parts, lengths, at);
    for (const TokenId token : Text(tail)) joined.tokens.push_back(token);
    rig.scheduler.JoinContexts(
        {contexts, lengths, at, joined.parts, joined.tokens, joined.context});
    return joined;
  }

  RequestId Begin(const Node& node, int32_t max_tokens) {
    GenerationRequest request;
    request.prompt = node.tokens;
    request.parts = node.parts;
    request.max_tokens = max_tokens;
    request.sampling.seed = 7;
    request.from = request.keep = node.context;
    const RequestId id = rig.Add(request);
    REQUIRE(Scheduler::Validate(request, JoinOptions(400, false)).ok());
    return id;
  }

  // The request has ended: what it drew is right, and belongs to the node.
  void End(RequestId id, int32_t max_tokens, Node* node) {
    const std::vector<TokenId>& drawn = rig.Of(id).tokens;
    REQUIRE(drawn ==
            test::FakeExecutor::AnswerParts(node->tokens, node->parts, 7, max_tokens, kVocab));
    node->tokens.insert(node->tokens.end(), drawn.begin(), drawn.end());
  }

  void Run(Node* node, int32_t max_tokens) {
    const RequestId id = Begin(*node, max_tokens);
    rig.RunAll();
    End(id, max_tokens, node);
  }

  Rig rig;
  std::mt19937 random{1};

 private:
  uint64_t last_context_ = 0;
};

TEST_CASE("The parts of a join begin at one position and do not see each other",
          "[scheduler][unit]") {
  const ContextParts apart = {{}, {.begin = 10, .position = 10}};
  const ContextParts plain;
  const std::vector<const ContextParts*> children = {&apart, &plain, &apart};
  const std::vector<int32_t> lengths = {13, 17, 12};
  const ContextParts joined = JoinParts(children, lengths, 10);
  const ContextParts expected = {{},
                                 {.begin = 10, .position = 10},
                                 {.begin = 13, .position = 10, .hidden = {{1, 2}}},
                                 {.begin = 20, .position = 10, .hidden = {{1, 3}}},
                                 {.begin = 22, .position = 17}};
  CHECK(joined == expected);
  // The join as a branch that was forked apart behind 4 tokens, beside another one.
  ContextParts outer = joined;
  outer.insert(outer.begin() + 1, {.begin = 4, .position = 4});
  for (size_t i = 2; i < outer.size(); ++i) {
    for (PartRange& range : outer[i].hidden) range = {range.begin + 1, range.end + 1};
  }
  const ContextParts beside = {{}, {.begin = 4, .position = 4}};
  const std::vector<const ContextParts*> both = {&beside, &outer};
  const ContextParts deep = JoinParts(both, std::vector<int32_t>{9, 25}, 4);
  const ContextParts deep_expected = {{},
                                      {.begin = 4, .position = 4},
                                      {.begin = 9, .position = 4, .hidden = {{1, 2}}},
                                      {.begin = 15, .position = 10, .hidden = {{1, 2}}},
                                      {.begin = 18, .position = 10, .hidden = {{1, 2}, {3, 4}}},
                                      {.begin = 25, .position = 10, .hidden = {{1, 2}, {3, 5}}},
                                      {.begin = 27, .position = 17, .hidden = {{1, 2}}},
                                      {.begin = 30, .position = 20}};
  CHECK(deep == deep_expected);
}

TEST_CASE("Places of a layout leave holes in front of parts", "[scheduler][unit]") {
  const ContextLayout layout({{}, {.begin = 5, .position = 5}, {.begin = 9, .position = 5}}, 4);
  std::vector<TokenId> tokens = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  layout.AddHoles(&tokens);
  CHECK(tokens == std::vector<TokenId>{0, 1, 2, 3, 4, -1, -1, -1, 5, 6, 7, 8, 9, 10});
  CHECK(layout.PlaceOf(5) == 5);
  CHECK(layout.PlaceOf(6) == 9);
  CHECK(layout.PlaceOf(11) == 14);
  CHECK(layout.LengthOf(7) == 5);
  CHECK(layout.LengthOf(14) == 11);
  CHECK(layout.HolesAt(5) == 3);
  CHECK(layout.HolesAt(4) == 0);
  CHECK(layout.HolesAt(12) == 0);
  CHECK(layout.RowsAt(8) == 4);
  CHECK(layout.PositionAt(13) == 6);
}

TEST_CASE("Rows see parts at their positions, and those that go on are one piece",
          "[scheduler][unit]") {
  const ContextLayout layout({{},
                              {.begin = 5, .position = 5},
                              {.begin = 9, .position = 5, .hidden = {{1, 2}}},
                              {.begin = 11, .position = 9}},
                             4);
  using Triple = std::vector<int32_t>;
  const auto pieces_at = [&layout](int32_t place, int32_t end) {
    std::vector<engine::ContextPiece> pieces;
    layout.AddPieces(place, end, &pieces);
    std::vector<Triple> all;
    for (const engine::ContextPiece& piece : pieces) {
      all.push_back({piece.num_tokens, piece.position, piece.turn});
    }
    return all;
  };
  CHECK(pieces_at(3, 5).empty());    // in plain order
  CHECK(pieces_at(8, 10).empty());   // the first branch goes on where the fork was
  CHECK(pieces_at(12, 14).empty());  // and so does the second, which does not see it
  CHECK(pieces_at(16, 18) == std::vector<Triple>{{9, 0, 0}, {2, 5, 0}, {2, 9, 0}});
}

TEST_CASE("Windows give pages of the first part back, and none of later ones",
          "[scheduler][unit]") {
  SchedulerOptions options = JoinOptions(400, /*prefix_cache=*/false);
  options.windows = {0, 6};
  options.window_grain = 4;
  options.reads_pieces = true;
  Tree tree(options);
  Node root{.tokens = tree.Text(100), .context = tree.NewContext()};
  tree.Run(&root, 1);
  std::vector<Node> children;
  for (int32_t i = 0; i < 3; ++i) {
    children.push_back(tree.Fork(root, 100, 20, /*apart=*/true));
    tree.Run(&children.back(), 9);
  }
  Node joined = tree.Join(children, 100, 2);
  const int64_t rows = tree.rig.executor.num_rows();
  const RequestId id = tree.Begin(joined, 6);
  int32_t most = 0;
  while (tree.rig.Step()) most = std::max(most, tree.rig.scheduler.stats().pages_used);
  tree.End(id, 6, &joined);
  CHECK(tree.rig.executor.num_rows() - rows == 3 + 2 + 5);
  // Group 0: 100 places, three branches of 29 in 32, and 7. Group 1 lacks most of the first 100.
  CHECK(most >= 25 + 3 * 8 + 2 + 3 * 8 + 2);
  CHECK(most <= 25 + 3 * 8 + 2 + 3 * 8 + 2 + 5);
}

TEST_CASE("A join side by side computes each branch's last token, and the tail",
          "[scheduler][unit]") {
  const bool prefix_cache = GENERATE(true, false);
  for (int32_t at = 9; at <= 13; ++at) {
    Tree tree(JoinOptions(400, prefix_cache));
    Node root{.tokens = tree.Text(at), .context = tree.NewContext()};
    tree.Run(&root, 3);
    std::vector<Node> children;
    for (int32_t i = 0; i < 4; ++i) {
      children.push_back(tree.Fork(root, at, 1 + i, /*apart=*/true));
      tree.Run(&children.back(), 2 + 3 * i);
    }
    Node joined = tree.Join(children, at, 2);
    const int64_t rows = tree.rig.executor.num_rows();
    tree.Run(&joined, 6);
    INFO("at " << at);
    // The last token of a branch was never run; of the six new ones, the last is not.
    CHECK(tree.rig.executor.num_rows() - rows == 4 + 2 + 5);
    CHECK(tree.rig.scheduler.CheckIntegrity().ok());
  }
}

TEST_CASE("A join of branches that were not forked for it is computed part by part",
          "[scheduler][unit]") {
  Tree tree(JoinOptions(400, /*prefix_cache=*/true));
  Node root{.tokens = tree.Text(10), .context = tree.NewContext()};
  tree.Run(&root, 3);
  std::vector<Node> children;
  for (int32_t i = 0; i < 3; ++i) {
    children.push_back(tree.Fork(root, 10, i, /*apart=*/false));
    tree.Run(&children.back(), 6);
  }
  Node joined = tree.Join(children, 10, 1);
  const int64_t rows = tree.rig.executor.num_rows();
  tree.Run(&joined, 4);
  const auto known = static_cast<int64_t>(joined.tokens.size()) - 1;
  CHECK(tree.rig.executor.num_rows() - rows == known - 10);
}

TEST_CASE("The same tokens in plain order take nothing from a join, nor a join from them",
          "[scheduler][unit]") {
  Tree tree(JoinOptions(400, /*prefix_cache=*/true));
  Node root{.tokens = tree.Text(8), .context = tree.NewContext()};
  tree.Run(&root, 1);
  std::vector<Node> children;
  for (int32_t i = 0; i < 2; ++i) {
    children.push_back(tree.Fork(root, 8, 4, /*apart=*/true));
    tree.Run(&children.back(), 4);
  }
  Node joined = tree.Join(children, 8, 4);
  Node plain{.tokens = joined.tokens, .context = joined.context};  // names the join's context
  tree.Run(&plain, 3);
  Node again = tree.Join(children, 8, 4);
  again.context = plain.context;
  tree.Run(&again, 3);
}

TEST_CASE("All tokens behind a branch that was forked apart are scored, wherever its pages end",
          "[scheduler][unit]") {
  Tree tree(JoinOptions(64, false));
  Node root{.tokens = tree.Text(9), .context = tree.NewContext()};
  tree.Run(&root, 4);
  for (int32_t own = 1; own <= 9; ++own) {
    INFO(own << " tokens of its own");
    Node child = tree.Fork(root, 8, own, /*apart=*/true);
    tree.Run(&child, 2);
    child.tokens.pop_back();  // an end of text, which branches do not keep: all others are computed
    GenerationRequest candidate;
    candidate.prompt = child.tokens;
    candidate.parts = child.parts;
    candidate.from = child.context;
    candidate.max_tokens = 0;
    candidate.prompt_logprobs = 0;
    candidate.first_score = static_cast<int32_t>(child.tokens.size()) - 1;
    for (const TokenId token : {5, 6, 7}) candidate.prompt.push_back(token);
    const RequestId scored = tree.rig.Add(candidate);
    tree.rig.RunAll();
    const auto& scores = tree.rig.Of(scored).scores;
    REQUIRE(scores.size() == 3);
    CHECK(scores[0].token == 5);
  }
}

TEST_CASE("Slices have the segments of their parts", "[scheduler][unit]") {
  SchedulerOptions options = JoinOptions(400, false);
  options.segments = 3;
  Tree tree(options);
  constexpr int32_t kFork = 4;
  ContextParts first = PartsApart({}, kFork), second = first;
  first.back().segment = 1;
  second.back().segment = 2;
  const std::vector<const ContextParts*> thoughts = {&first, &second};
  GenerationRequest request;
  request.prompt = tree.Text(kFork + 5 + 3 + 2);
  request.parts = JoinParts(thoughts, std::vector<int32_t>{kFork + 5, kFork + 3}, kFork);
  request.max_tokens = 3;
  tree.rig.Add(request);
  std::map<int32_t, int32_t> rows;
  while (tree.rig.Step()) {
    for (const engine::SequenceSlice& slice : tree.rig.plan.sequences) {
      rows[slice.segment] += slice.num_tokens;
    }
  }
  CHECK(rows == std::map<int32_t, int32_t>{{0, kFork + 2 + 2}, {1, 5}, {2, 3}});
  // A join is another context where a segment differs.
  const ContextLayout layout(request.parts, options.page_tokens);
  request.parts[2].segment = 1;
  const ContextLayout other(request.parts, options.page_tokens);
  CHECK(layout.SameAs(other, 100) == layout.PlaceOf(kFork + 5 + 1) - 1);
}

TEST_CASE("Models with states refuse parts by name, and so do devices that count no positions",
          "[scheduler][unit]") {
  SchedulerOptions options = JoinOptions(100, false);
  CHECK(Scheduler::CanJoin(options).ok());
  options.windows = {0, 8};
  CHECK(std::string(Scheduler::CanJoin(options).message()).find("window") != std::string::npos);
  options.reads_pieces = true;
  CHECK(Scheduler::CanJoin(options).ok());
  options.state_groups = 1;
  CHECK(std::string(Scheduler::CanJoin(options).message()).find("recurrent") != std::string::npos);
  GenerationRequest request;
  request.prompt = {1, 2, 3};
  request.parts = {{}, {.begin = 1, .position = 1}};
  CHECK_FALSE(Scheduler::Validate(request, options).ok());
  options = JoinOptions(100, false);
  CHECK(Scheduler::Validate(request, options).ok());
  request.parts[1].segment = 2;  // of a model that has none, or two
  CHECK_FALSE(Scheduler::Validate(request, options).ok());
  options.segments = 2;
  CHECK_FALSE(Scheduler::Validate(request, options).ok());
  options.segments = 3;
  CHECK(Scheduler::Validate(request, options).ok());
  request.parts[1].segment = -1;
  CHECK_FALSE(Scheduler::Validate(request, options).ok());
  request.parts[1].segment = 0;
  request.parts[1].begin = 3;
  CHECK_FALSE(Scheduler::Validate(request, options).ok());  // a part without tokens
}

// Forks, runs and joins of a tree in random order, several at a time, in so few pages that
// sequences are preempted, swapped and lose what they had.
int64_t RunRandomly(uint32_t seed) {
  INFO("seed " << seed);
  const bool prefix_cache = seed % 2 == 0;
  SchedulerOptions options =
      JoinOptions(44, prefix_cache, /*num_host_pages=*/seed % 3 == 0 ? 24 : 0);
  if (seed % 4 > 1) {
    options.windows = {seed % 8 < 4 ? 0 : 12, 7};
    options.window_grain = 4;
    options.reads_pieces = true;
    options.num_pages = 80;
  }
  Tree tree(options);
  tree.random.seed(seed);
  if (seed % 5 == 0) tree.rig.SendPlans();
  const auto any = [&tree](int32_t least, int32_t most) {
    return least + static_cast<int32_t>(tree.random() % static_cast<uint32_t>(most - least + 1));
  };
  Node node{.tokens = tree.Text(any(1, 14)), .context = tree.NewContext()};
  tree.Run(&node, 1);
  // Depth 3: a join within a branch of a join within a branch of a join.
  const std::function<Node(Node, int32_t)> grow = [&](Node from, int32_t depth) {
    const auto at = static_cast<int32_t>(from.tokens.size()) - any(0, 1);
    std::vector<Node> children;
    std::vector<std::pair<RequestId, int32_t>> running;
    const int32_t count = any(1, 3);
    for (int32_t i = 0; i < count; ++i) {
      children.push_back(tree.Fork(from, at, any(1, 5), any(0, 3) > 0));
    }
    for (Node& child : children) {
      const int32_t tokens = any(1, 6);
      running.emplace_back(tree.Begin(child, tokens), tokens);
    }
    // Other clients' requests, which take pages; one of them may be cancelled.
    RequestId other{};
    for (int32_t i = any(1, 4); i > 0; --i) {
      other = tree.rig.Add(MakeRequest(any(1, 40), any(1, 60), any(0, 9)));
    }
    for (int32_t steps = any(0, 12); steps > 0; --steps) tree.rig.Step();
    if (any(0, 1) == 0) tree.rig.Cancel(other);
    tree.rig.RunAll();
    for (int32_t i = 0; i < count; ++i) tree.End(running[i].first, running[i].second, &children[i]);
    if (depth > 1) children[0] = grow(children[0], depth - 1);
    Node joined = tree.Join(children, at, any(1, 4));
    for (const Node& child : children) {
      if (any(0, 2) == 0) tree.rig.scheduler.DropContext(child.context);
    }
    tree.Run(&joined, any(1, 5));
    REQUIRE(tree.rig.scheduler.CheckIntegrity().ok());
    return joined;
  };
  node = grow(node, 3);
  CHECK(tree.rig.scheduler.stats().pages_used == 0);
  CHECK(tree.rig.executor.num_live() <= 1);
  return tree.rig.scheduler.stats().preemptions;
}

TEST_CASE("No order of forks, joins, preemptions and evictions changes a token of a join",
          "[scheduler][unit]") {
  int64_t preemptions = 0;
  for (uint32_t seed = 1; seed <= 1500; ++seed) preemptions += RunRandomly(seed);
  CHECK(preemptions > 100);
}

}  // namespace
}  // namespace heddle::scheduler
