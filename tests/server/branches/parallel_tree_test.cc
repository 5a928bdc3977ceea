// Models that think in branches and write whatever they like: the tree's limits, its contexts, and
// its text hold for any of it.
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "server/branches/parallel_tree.h"
#include "server/openai/openai_format.h"
#include "tests/server/byte_codec.h"

namespace heddle::test {
namespace {

using scheduler::ContextId;
using server::ApiRequest;
using server::GenerationEvent;
using server::GenerationRequest;
using server::ParallelOrders;

std::string TextOf(std::span<const TokenId> tokens) {
  std::string text;
  for (const TokenId token : tokens) {
    if (token < 256) text.push_back(static_cast<char>(token));
  }
  return text;
}

// Takes down the pieces of a whole answer.
class NotingFormat final : public server::AnswerFormat {
 public:
  void BeginChoice(size_t, std::string*) override {}
  void SetBranch(std::string_view path) override { branch_ = path; }
  void WritePiece(size_t, const server::OutputPiece& piece, std::span<const server::ChoiceToken>,
                  std::string* frames) override {
    frames->append(branch_).append("|").append(piece.text).append("\x1f");
  }
  void EndChoice(size_t, const server::ChoiceResult&, std::string*) override {}
  void End(std::span<const server::ChoiceResult>, const server::Usage&, std::string*) override {}
  std::string Body(std::span<const server::ChoiceResult> choices,
                   const server::Usage&) const override {
    return choices[0].Text(server::OutputPiece::Kind::kContent);
  }
  std::string ErrorFrames(const server::ApiError&) override { return ""; }

 private:
  std::string branch_;
};

// One answer of a model that writes fragments at random.
class Play {
 public:
  explicit Play(uint32_t seed) : random_(seed) {
    const auto* format =
        server::FindParallelFormat(random_() % 2 == 0 ? "multiverse" : "threadweaver");
    auto syntax = server::ParallelSyntax::Make(*format, &codec_);
    REQUIRE(syntax.ok());
    request_.parallel.syntax = *syntax;
    server::ParallelLimits& limits = request_.parallel.limits;
    limits.max_branches = Any(1, 4);
    limits.max_depth = Any(0, 3);
    limits.max_branch_tokens = Any(0, 2) == 0 ? 0 : Any(1, 200);
    limits.max_total_tokens = Any(1, 1500);
    limits.cut_after_seconds = Any(0, 2) == 0 ? Any(1, 200) : 0;
    limits.is_sequential = true;
    GenerationRequest& generation = request_.generations.emplace_back();
    generation.prompt = Bytes("Q");
    generation.max_tokens = Any(1, 800);
    generation.stop_tokens = {kEos};
    if (Any(0, 5) == 0) request_.stop = {"stop"};
    fragments_ = {format->fork_at,
                  format->items_from,
                  "<Outline>1:",
                  "<Outline>2.1 : x",
                  format->branch_end,
                  format->branch_end,
                  "text",
                  format->branch_begin,
                  "sto",
                  "p",
                  "\n",
                  "!",
                  format->items_from + "<Outline>1: a<Outline>2.1 : b" + format->fork_at};
  }

  void Run() {
    server::ParallelAnswer answer(&request_, &codec_, std::make_unique<NotingFormat>());
    const int32_t max_context = Any(200, 3000);
    server::ParallelTree tree(
        &request_, &codec_, /*page_tokens=*/16, max_context,
        [this] {
          named_.insert(ContextId{++last_context_});
          return ContextId{last_context_};
        },
        &answer);
    ParallelOrders orders;
    tree.Begin(&orders);
    double now = 0;
    while (true) {
      Follow(&tree, &orders, max_context);
      if (tree.done()) break;
      REQUIRE(!runs_.empty());
      now += 1;
      auto run = runs_.begin();
      std::advance(run, Any(0, static_cast<int32_t>(runs_.size()) - 1));
      const size_t number = run->first;
      GenerationEvent event = Next(&run->second);
      if (event.finished) runs_.erase(run);
      Any(0, 20) == 0 ? tree.CutSlow(now, &orders) : tree.Take(number, event, now, &orders);
      if (event.finished && tree.Awaits(number)) tree.Take(number, event, now, &orders);
    }
    CheckEnd(tree, &answer);
  }

 private:
  struct Running {
    GenerationRequest request;
    std::string next;
    int32_t drawn = 0;
  };

  int32_t Any(int32_t least, int32_t most) {
    return least + static_cast<int32_t>(random_() % static_cast<uint32_t>(most - least + 1));
  }

  void Follow(server::ParallelTree* tree, ParallelOrders* orders, int32_t max_context) {
    for (const size_t run : orders->stops) runs_.erase(run);
    for (const scheduler::ContextJoin& join : orders->joins) {
      CHECK(named_.contains(join.to));
      for (const ContextId child : join.children) CHECK(named_.contains(child));
      CHECK(join.lengths.size() == join.children.size());
    }
    for (const ParallelOrders::Run& run : orders->runs) {
      if (!tree->Awaits(run.number)) continue;
      const GenerationRequest& request = run.request;
      const auto length = static_cast<int32_t>(request.prompt.size());
      CHECK(TextOf(request.prompt).starts_with("Q"));
      CHECK(named_.contains(request.keep));
      CHECK((run.number == 0 || named_.contains(request.from)));
      const int32_t places = scheduler::ContextLayout(request.parts, 16).PlaceOf(length);
      CHECK(places + request.max_tokens <= max_context);
      runs_[run.number] = {request, "", 0};
    }
    for (const ContextId id : orders->drops) CHECK(named_.erase(id) == 1);
    *orders = ParallelOrders();
  }

  GenerationEvent Next(Running* run) {
    GenerationEvent event;
    for (int32_t left = Any(1, 3); left > 0 && !event.finished; --left) {
      if (run->drawn >= run->request.max_tokens) {
        event.finished = true;
        event.reason = server::FinishReason::kLength;
        break;
      }
      if (run->next.empty() && Any(0, 40) == 0) {
        event.tokens.push_back({.token = kEos});
        event.finished = true;
        break;
      }
      if (run->next.empty()) {
        run->next =
            fragments_[static_cast<size_t>(Any(0, static_cast<int32_t>(fragments_.size()) - 1))];
      }
      event.tokens.push_back({.token = static_cast<unsigned char>(run->next[0])});
      run->next.erase(0, 1);
      ++run->drawn;
    }
    return event;
  }

  void CheckEnd(const server::ParallelTree& tree, server::ParallelAnswer* answer) {
    const server::ParallelLimits& limits = request_.parallel.limits;
    CHECK(tree.total_tokens() <= limits.max_total_tokens);
    CHECK(tree.critical_path() <= tree.total_tokens());
    CHECK(tree.critical_path() <= request_.generations.front().max_tokens);
    CHECK(answer->usage().completion_tokens == tree.total_tokens());
    CHECK(std::set<ContextId>(tree.contexts().begin(), tree.contexts().end()) == named_);
    CHECK(tree.contexts().size() == named_.size());
    answer->Finish(tree.length());
    const std::string text = answer->Body();
    CHECK(static_cast<int64_t>(text.size()) <= tree.total_tokens());
    forks += tree.num_branches() > 0 ? 1 : 0;
  }

  ByteCodec codec_;
  std::mt19937 random_;
  ApiRequest request_;
  std::vector<std::string> fragments_;
  std::map<size_t, Running> runs_;
  std::set<ContextId> named_;
  uint64_t last_context_ = 0;

 public:
  int32_t forks = 0;
};

TEST_CASE("Whatever a model writes, limits hold and no context is lost", "[branches]") {
  int32_t forks = 0;
  for (uint32_t seed = 1; seed <= 2000; ++seed) {
    INFO("seed " << seed);
    Play play(seed);
    play.Run();
    forks += play.forks;
  }
  CHECK(forks > 300);
}

TEST_CASE("Items are read as the format says", "[branches]") {
  ByteCodec codec;
  const auto syntax =
      server::ParallelSyntax::Make(*server::FindParallelFormat("multiverse"), &codec);
  REQUIRE(syntax.ok());
  const auto items = [&](std::string_view text) { return (*syntax)->Items(text, 3).value(); };
  CHECK(items("<Outline>0: a <Goal><Outline> 1: a <Outline>\n2.1 :b</Goal>") ==
        std::vector<std::string>{"1", "2.1"});
  CHECK(items("<Outline>1: a</Goal>").empty());
  CHECK(items("<Goal><Outline>x: a</Goal>").empty());
  CHECK(items("<Goal><Outline>1:<Outline>2:<Outline>3:<Outline>4:</Goal>").size() == 3);
  CHECK(items("<Goal>" + std::string(9000, ' ') + "<Outline>1:</Goal>").empty());
  CHECK(TextOf((*syntax)->Header("2.1")) == "<Path>\n2.1:");
  CHECK((*syntax)->fork_token() == -1);  // many bytes
  CHECK(server::DetectParallelFormat(codec, /*has_segments=*/true) == nullptr);
}

}  // namespace
}  // namespace heddle::test
