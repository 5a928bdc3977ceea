// Models whose branches begin behind the prompt, unasked (ParaThinker): what runs with which tokens
// and segments, and how branches and answer end.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "server/branches/parallel_tree.h"
#include "server/openai/openai_format.h"
#include "tests/server/byte_codec.h"

namespace heddle::test {
namespace {

using scheduler::ContextId;
using server::GenerationEvent;
using server::GenerationRequest;
using server::ParallelOrders;
using server::ParallelSyntax;

constexpr TokenId kFirstMark = 300;
const std::vector<std::string>& MarkNames() {
  static const std::vector<std::string> names = {"<think1>",  "</think1>",  "<think2>",
                                                 "</think2>", "<think3>",   "</think3>",
                                                 "<summary>", "</summary>", "</think>"};
  return names;
}

TokenId Mark(std::string_view name) {
  const std::vector<std::string>& names = MarkNames();
  const auto found = std::find(names.begin(), names.end(), name);
  REQUIRE(found != names.end());
  return kFirstMark + static_cast<TokenId>(found - names.begin());
}

class MarkStream final : public server::TokenStream {
 public:
  void Push(TokenId token, std::string* out) override {
    if (token >= kFirstMark) {
      out->append(MarkNames()[static_cast<size_t>(token - kFirstMark)]);
    } else if (token < 256) {
      out->push_back(static_cast<char>(token));
    }
  }
  void Finish(std::string*) override {}
};

// Bytes, and the marks of three thoughts.
class ThoughtCodec : public ByteCodec {
 public:
  absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text, bool) const override {
    std::vector<TokenId> tokens;
    while (!text.empty()) {
      const auto mark =
          std::find_if(MarkNames().begin(), MarkNames().end(),
                       [text](const std::string& name) { return text.starts_with(name); });
      const bool is_mark = mark != MarkNames().end();
      tokens.push_back(is_mark ? Mark(*mark) : static_cast<unsigned char>(text[0]));
      text.remove_prefix(is_mark ? mark->size() : 1);
    }
    return tokens;
  }
  std::unique_ptr<server::TokenStream> NewStream(bool, server::KeptTokens) const override {
    return std::make_unique<MarkStream>();
  }
  std::string TokenBytes(TokenId token) const override {
    if (token < kFirstMark) return ByteCodec::TokenBytes(token);
    return MarkNames()[static_cast<size_t>(token - kFirstMark)];
  }
};

std::string TextOf(std::span<const TokenId> tokens) {
  std::string text;
  MarkStream stream;
  for (const TokenId token : tokens) stream.Push(token, &text);
  return text;
}

class BodyFormat final : public server::AnswerFormat {
 public:
  void BeginChoice(size_t, std::string*) override {}
  void WritePiece(size_t, const server::OutputPiece&, std::span<const server::ChoiceToken>,
                  std::string*) override {}
  void EndChoice(size_t, const server::ChoiceResult&, std::string*) override {}
  void End(std::span<const server::ChoiceResult>, const server::Usage&, std::string*) override {}
  std::string Body(std::span<const server::ChoiceResult> choices,
                   const server::Usage&) const override {
    return choices[0].Text(server::OutputPiece::Kind::kContent);
  }
  std::string ErrorFrames(const server::ApiError&) override { return ""; }
};

// A tree of this format for the prompt "Q".
struct Thoughts {
  explicit Thoughts(int32_t max_depth = 2) {
    auto syntax = ParallelSyntax::Make(*server::FindParallelFormat("parathinker"), &codec);
    REQUIRE(syntax.ok());
    REQUIRE((*syntax)->max_number() == 3);
    request.parallel.syntax = *syntax;
    request.parallel.limits = {.max_branches = 3, .max_depth = max_depth, .max_total_tokens = 500};
    GenerationRequest& generation = request.generations.emplace_back();
    generation.prompt = Bytes("Q");
    generation.max_tokens = 300;
    generation.stop_tokens = {kEos};
    answer =
        std::make_unique<server::ParallelAnswer>(&request, &codec, std::make_unique<BodyFormat>());
    tree = std::make_unique<server::ParallelTree>(
        &request, &codec, /*page_tokens=*/16, /*max_context=*/2000,
        [this] { return ContextId{++last_context}; }, answer.get());
    tree->Begin(&orders);
  }

  // The run ends behind these tokens.
  void End(size_t run, std::string_view text, bool length = false) {
    GenerationEvent event;
    const std::vector<TokenId> tokens = codec.Encode(text, false).value();
    for (const TokenId token : tokens) event.tokens.push_back({.token = token});
    event.finished = true;
    if (length) event.reason = server::FinishReason::kLength;
    tree->Take(run, std::move(event), /*now=*/0, &orders);
  }
  std::vector<ParallelOrders::Run> TakeRuns() { return std::exchange(orders.runs, {}); }

  ThoughtCodec codec;
  server::ApiRequest request;
  std::unique_ptr<server::ParallelAnswer> answer;
  std::unique_ptr<server::ParallelTree> tree;
  ParallelOrders orders;
  uint64_t last_context = 0;
};

TEST_CASE("Thoughts run behind the prompt, each in its own segment, and a summary behind all",
          "[branches]") {
  Thoughts thoughts;
  std::vector<ParallelOrders::Run> runs = thoughts.TakeRuns();
  REQUIRE(runs.size() == 1);
  CHECK(runs[0].request.max_tokens == 0);
  const ContextId prompt = runs[0].request.keep;
  thoughts.End(runs[0].number, "", /*length=*/true);
  runs = thoughts.TakeRuns();
  REQUIRE(runs.size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    const GenerationRequest& request = runs[i].request;
    CHECK(TextOf(request.prompt) == "Q<think" + std::to_string(i + 1) + ">");
    CHECK(request.from == prompt);
    REQUIRE(request.parts.size() == 2);
    CHECK(request.parts[1].segment == static_cast<int32_t>(i) + 1);
    CHECK(request.parts[1].position == 1);
    for (const char* end : {"</think1>", "</think3>", "</think>", "</summary>"}) {
      CHECK(std::count(request.stop_tokens.begin(), request.stop_tokens.end(), Mark(end)) == 1);
    }
    for (const char* other : {"<think1>", "<think3>", "<summary>"}) {
      const std::vector<TokenId> word = {Mark(other)};
      const auto& banned = request.sampling.bad_words;
      CHECK(std::count(banned.begin(), banned.end(), word) == 1);
    }
  }
  // Whatever ends a thought, its own mark takes the place.
  thoughts.End(runs[0].number, "aa</think>");
  thoughts.End(runs[1].number, "b</think3>");
  thoughts.End(runs[2].number, "cccc", /*length=*/true);
  runs = thoughts.TakeRuns();
  REQUIRE(runs.size() == 1);
  const GenerationRequest& summary = runs[0].request;
  const std::string joined =
      "<think1>aa</think1><think2>b</think2><think3>cccc</think3><summary>By analyzing multiple "
      "reasoning processes above, I concluded that: The final answer is";
  CHECK(TextOf(summary.prompt) == "Q" + joined);
  REQUIRE(summary.parts.size() == 5);
  for (int32_t i = 0; i < 5; ++i) CHECK(summary.parts[i].segment == i % 4);
  CHECK(summary.parts[4].position == 1 + 6);
  REQUIRE(thoughts.orders.joins.size() == 1);
  CHECK(thoughts.orders.joins[0].parts == summary.parts);
  CHECK(summary.stop_tokens.back() == Mark("</summary>"));
  thoughts.End(runs[0].number, " 7</summary>");
  CHECK(thoughts.tree->done());
  CHECK_FALSE(thoughts.tree->length());
  thoughts.answer->Finish(false);
  CHECK(thoughts.answer->Body() == joined + " 7</summary>");
  CHECK(thoughts.tree->num_branches() == 3);
}

TEST_CASE("A prompt that may have no thoughts goes on in one piece", "[branches]") {
  Thoughts thoughts(/*max_depth=*/0);
  thoughts.End(thoughts.TakeRuns().at(0).number, "", /*length=*/true);
  const std::vector<ParallelOrders::Run> runs = thoughts.TakeRuns();
  REQUIRE(runs.size() == 1);
  CHECK(TextOf(runs[0].request.prompt) == "Q");
  CHECK(runs[0].request.parts.empty());
  CHECK(runs[0].request.max_tokens > 0);
  thoughts.End(runs[0].number, "</think>plain</think1>", /*length=*/true);
  CHECK(thoughts.tree->done());
  thoughts.answer->Finish(true);
  CHECK(thoughts.answer->Body() == "</think>plain</think1>");
}

TEST_CASE("The format is found by its marks where a model tells segments apart", "[branches]") {
  const ThoughtCodec codec;
  const server::ParallelFormat* found = server::DetectParallelFormat(codec, /*has_segments=*/true);
  REQUIRE(found != nullptr);
  CHECK(found->name == "parathinker");
  CHECK(server::DetectParallelFormat(codec, /*has_segments=*/false) == nullptr);
  const ByteCodec without;
  CHECK_FALSE(ParallelSyntax::Make(*found, &without).ok());
}

}  // namespace
}  // namespace heddle::test
