#include "engine/sample/sampler_state.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/grammar/gbnf.h"

namespace heddle::engine {
namespace {

constexpr SequenceId kId{7};

std::map<TokenId, kernels::LogitEdit> Edits(SamplerState& state) {
  state.ResetEdits();
  std::map<TokenId, kernels::LogitEdit> by_token;
  for (const auto& edit : state.Row({kId, 0, 5}, 0).edits) {
    CHECK(by_token.emplace(edit.token, edit).second);  // one edit per token
  }
  return by_token;
}

TEST_CASE("A row carries the sequence's parameters, its position as counter", "[unit]") {
  SamplerState state;
  SamplingParams params;
  params.temperature = 0.7f;
  params.top_k = 40;
  params.typical_p = 0.9f;
  params.seed = 99;
  params.num_logprobs = 3;
  state.Begin({kId, params, {}});
  const auto row = state.Row({kId, /*row=*/4, /*position=*/12}, /*logit_row=*/2);
  CHECK(row.logit_row == 2);
  CHECK(row.temperature == 0.7f);
  CHECK(row.top_k == 40);
  CHECK(row.typical_p == 0.9f);
  CHECK(row.seed == 99);
  CHECK(row.counter == 12);
  CHECK(row.num_top == 3);
  CHECK(row.edits.empty());
}

// As vLLM's bad_words: only generated tokens count as what stands before.
TEST_CASE("The last token of a bad word is banned where the rest of it was just generated",
          "[unit]") {
  SamplerState state;
  std::vector<TokenId> forced;
  SamplingParams params;
  params.bad_words = {{5}, {6, 7}, {6, 6, 8}};
  state.Begin({kId, params, {6, 6}});
  auto banned = [&state] {
    std::vector<TokenId> tokens;
    for (const auto& [token, edit] : Edits(state)) {
      CHECK(edit.add == -INFINITY);
      tokens.push_back(token);
    }
    return tokens;
  };
  CHECK(banned() == std::vector<TokenId>{5});
  state.Accept(kId, 6, &forced);
  CHECK(banned() == std::vector<TokenId>{5, 7});
  state.Accept(kId, 6, &forced);
  CHECK(banned() == std::vector<TokenId>{5, 7, 8});
  state.Accept(kId, 9, &forced);
  CHECK(banned() == std::vector<TokenId>{5});
}

TEST_CASE("Frequency and presence count generated tokens, repetition the prompt as well",
          "[unit]") {
  SamplerState state;
  std::vector<TokenId> forced;
  SamplingParams params;
  params.repetition_penalty = 2.0f;
  params.presence_penalty = 0.5f;
  params.frequency_penalty = 0.25f;
  state.Begin({kId, params, {10, 11}});
  state.Accept(kId, 11, &forced);
  state.Accept(kId, 12, &forced);
  state.Accept(kId, 12, &forced);
  const auto edits = Edits(state);
  REQUIRE(edits.size() == 3);
  CHECK(edits.at(10).scale_div == 2.0f);
  CHECK(edits.at(10).add == 0.0f);  // in the prompt only
  CHECK(edits.at(11).add == -0.75f);
  CHECK(edits.at(12).add == -1.0f);  // 0.5 + 2 * 0.25
}

TEST_CASE("Bias, penalty and ban on one token become one edit", "[unit]") {
  SamplerState state;
  std::vector<TokenId> forced;
  SamplingParams params;
  params.frequency_penalty = 1.0f;
  params.logit_bias = {{5, 3.0f}, {6, -100.0f}};
  params.min_tokens = 2;
  params.min_tokens_banned = {2, 5};
  state.Begin({kId, params, {}});
  state.Accept(kId, 5, &forced);
  auto edits = Edits(state);
  REQUIRE(edits.size() == 3);
  CHECK(std::isinf(edits.at(5).add));
  CHECK(std::isinf(edits.at(2).add));
  CHECK(edits.at(6).bias == -100.0f);
  state.Accept(kId, 9, &forced);  // two tokens are out: the ban ends
  edits = Edits(state);
  CHECK(edits.at(5).bias == 3.0f);
  CHECK(edits.at(5).add == -1.0f);
  CHECK(edits.count(2) == 0);
}

// Tokens: 0 ends a text, 1 is "a", 2 is "b".
std::shared_ptr<grammar::CompiledGrammar> Compile(std::string_view gbnf) {
  static const std::string kTexts[] = {"", "a", "b"};
  auto vocabulary = std::make_shared<grammar::Vocabulary>(
      3, [](TokenId id) { return std::string_view(kTexts[id]); });
  return std::make_shared<grammar::CompiledGrammar>(*grammar::Compile(*grammar::ParseGbnf(gbnf)),
                                                    vocabulary, std::vector<TokenId>{0});
}

TEST_CASE("A grammar's mask follows the accepted tokens, each sequence on its own", "[unit]") {
  constexpr SequenceId kOther{8};
  SamplerState state;
  std::vector<TokenId> forced;
  SamplingParams params;
  params.grammar = Compile("root ::= \"a\" \"b\"? | \"b\" \"b\"");
  params.min_tokens = 5;  // does not keep a text from its end
  params.min_tokens_banned = {0};
  state.Begin({kId, params, {}});
  state.Begin({kOther, params, {}});
  auto allowed = [&state](SequenceId id) { return state.Allowed(id)[0]; };
  CHECK(allowed(kId) == 0b110u);
  state.Accept(kId, 1, &forced);
  state.Accept(kOther, 2, &forced);
  CHECK(allowed(kId) == 0b101u);
  CHECK(allowed(kOther) == 0b100u);
  CHECK(state.Row({kId, 0, 0}, 0).edits.empty());
  state.Accept(kId, 2, &forced);
  CHECK(allowed(kId) == 0b001u);
}

// Of "ab" the tokenizer makes one token.
std::shared_ptr<grammar::CompiledGrammar> CompileForced(std::string_view gbnf) {
  static const std::string kTexts[] = {"", "a", "b", "ab", "c", "x"};
  auto vocabulary = std::make_shared<grammar::Vocabulary>(
      6, [](TokenId id) { return std::string_view(kTexts[id]); },
      [](std::string_view text) {
        std::vector<TokenId> tokens;
        while (!text.empty()) {
          const std::string_view next = text.substr(0, text.starts_with("ab") ? 2 : 1);
          const auto found = std::find(std::begin(kTexts), std::end(kTexts), next);
          tokens.push_back(static_cast<TokenId>(found - std::begin(kTexts)));
          text.remove_prefix(next.size());
        }
        return tokens;
      });
  return std::make_shared<grammar::CompiledGrammar>(*grammar::Compile(*grammar::ParseGbnf(gbnf)),
                                                    vocabulary, std::vector<TokenId>{0});
}

TEST_CASE("What a grammar forces comes with the token before it, and counts for penalties",
          "[unit]") {
  SamplerState state;
  std::vector<TokenId> forced;
  SamplingParams params;
  params.grammar = CompileForced("root ::= [abx] \"cabc\" [xc] \"b\"");
  params.frequency_penalty = 1.0f;
  state.Begin({kId, params, {}});
  CHECK(state.Allowed(kId)[0] == 0b100110u);  // a choice
  state.Accept(kId, 5, &forced);
  CHECK(forced == std::vector<TokenId>{4, 3, 4});
  CHECK(state.Allowed(kId)[0] == 0b110000u);
  CHECK(Edits(state).at(4).add == -2.0f);
  state.Accept(kId, 4, &forced);
  CHECK(forced == std::vector<TokenId>{2, 0});  // and the end
}

TEST_CASE("With log-probabilities, forced tokens are the same and drawn one by one", "[unit]") {
  SamplerState state;
  std::vector<TokenId> forced;
  SamplingParams params;
  params.grammar = CompileForced("root ::= [abx] \"cabc\" [xc] \"b\"");
  params.num_logprobs = 0;
  state.Begin({kId, params, {}});
  for (TokenId token : {5, 4, 3, 4}) {
    CHECK((state.Allowed(kId)[0] >> token & 1) == 1);
    if (token != 5) CHECK(state.Allowed(kId)[0] == 1u << token);
    state.Accept(kId, token, &forced);
    state.FindMasks();
    CHECK(forced.empty());
  }
  CHECK(state.Allowed(kId)[0] == 0b110000u);
}

TEST_CASE("Bad words leave open how a forced text is written", "[unit]") {
  SamplerState state;
  std::vector<TokenId> forced;
  SamplingParams params;
  params.grammar = CompileForced("root ::= [x] \"ab\"");
  params.bad_words = {{3}};
  state.Begin({kId, params, {}});
  state.Accept(kId, 5, &forced);
  CHECK(forced.empty());
  CHECK(state.Allowed(kId)[0] == 0b001010u);  // "a" or "ab"
}

TEST_CASE("Where no token fits a grammar none is allowed", "[unit]") {
  SamplerState state;
  SamplingParams params;
  params.grammar = Compile("root ::= \"c\"");
  state.Begin({kId, params, {}});
  CHECK(state.Allowed(kId)[0] == 0u);
}

TEST_CASE("An ended sequence is forgotten", "[unit]") {
  SamplerState state;
  std::vector<TokenId> forced;
  state.Begin({kId, {}, {}});
  CHECK(state.num_live() == 1);
  state.End(kId);
  state.End(kId);  // harmless
  state.Accept(kId, 3, &forced);
  CHECK(state.num_live() == 0);
}

}  // namespace
}  // namespace heddle::engine
