#include "engine/sample/sampler_state.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/message.h"
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

// The position does not matter here, because no parameter depends on it.
std::vector<TokenId> Accept(SamplerState& state, SequenceId id, TokenId token,
                            Position position = 5) {
  const auto forced = state.Accept({id, 0, position}, token);
  return {forced.begin(), forced.end()};
}

TEST_CASE("A row carries the sequence's parameters, its position as counter", "[unit]") {
  SamplerState state;
  SamplingParams params;
  params.temperature = 0.7f;
  params.top_k = 40;
  params.typical_p = 0.9f;
  params.seed = 99;
  params.num_logprobs = 3;
  state.Begin({kId, params, {}}, nullptr);
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

// The same as vLLM's bad_words: only generated tokens count as preceding ones.
TEST_CASE("The last token of a bad word is banned where the rest of it was just generated",
          "[unit]") {
  SamplerState state;
  SamplingParams params;
  params.bad_words = {{5}, {6, 7}, {6, 6, 8}};
  state.Begin({kId, params, {6, 6}}, nullptr);
  auto banned = [&state] {
    std::vector<TokenId> tokens;
    for (const auto& [token, edit] : Edits(state)) {
      CHECK(edit.add == -INFINITY);
      tokens.push_back(token);
    }
    return tokens;
  };
  CHECK(banned() == std::vector<TokenId>{5});
  Accept(state, kId, 6);
  CHECK(banned() == std::vector<TokenId>{5, 7});
  Accept(state, kId, 6);
  CHECK(banned() == std::vector<TokenId>{5, 7, 8});
  Accept(state, kId, 9);
  CHECK(banned() == std::vector<TokenId>{5});
}

TEST_CASE("Frequency and presence count generated tokens, repetition the prompt as well",
          "[unit]") {
  SamplerState state;
  SamplingParams params;
  params.repetition_penalty = 2.0f;
  params.presence_penalty = 0.5f;
  params.frequency_penalty = 0.25f;
  state.Begin({kId, params, {10, 11}}, nullptr);
  Accept(state, kId, 11);
  Accept(state, kId, 12);
  Accept(state, kId, 12);
  const auto edits = Edits(state);
  REQUIRE(edits.size() == 3);
  CHECK(edits.at(10).scale_div == 2.0f);
  CHECK(edits.at(10).add == 0.0f);  // in the prompt only
  CHECK(edits.at(11).add == -0.75f);
  CHECK(edits.at(12).add == -1.0f);  // 0.5 + 2 * 0.25
}

TEST_CASE("Bias, penalty and ban on one token become one edit", "[unit]") {
  SamplerState state;
  SamplingParams params;
  params.frequency_penalty = 1.0f;
  params.logit_bias = {{5, 3.0f}, {6, -100.0f}};
  params.min_tokens = 2;
  params.min_tokens_banned = {2, 5};
  state.Begin({kId, params, {}}, nullptr);
  Accept(state, kId, 5);
  auto edits = Edits(state);
  REQUIRE(edits.size() == 3);
  CHECK(std::isinf(edits.at(5).add));
  CHECK(std::isinf(edits.at(2).add));
  CHECK(edits.at(6).bias == -100.0f);
  Accept(state, kId, 9);  // two tokens are out: the ban ends
  edits = Edits(state);
  CHECK(edits.at(5).bias == 3.0f);
  CHECK(edits.at(5).add == -1.0f);
  CHECK(edits.count(2) == 0);
}

std::chrono::steady_clock::time_point Late() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(60);
}

// Waits for the mask.
uint32_t Mask(SamplerState& state, SequenceId id) {
  const SamplerState::Allowance allowance = state.Allowed(id, Late());
  REQUIRE(allowance.mask != nullptr);
  return allowance.mask[0];
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
  SamplingParams params;
  const auto grammar = Compile("root ::= \"a\" \"b\"? | \"b\" \"b\"");
  params.min_tokens = 5;  // does not keep a text from its end
  params.min_tokens_banned = {0};
  state.Begin({kId, params, {}}, grammar);
  state.Begin({kOther, params, {}}, grammar);
  auto allowed = [&state](SequenceId id) { return Mask(state, id); };
  CHECK(allowed(kId) == 0b110u);
  Accept(state, kId, 1);
  Accept(state, kOther, 2);
  CHECK(allowed(kId) == 0b101u);
  CHECK(allowed(kOther) == 0b100u);
  CHECK(state.Row({kId, 0, 0}, 0).edits.empty());
  Accept(state, kId, 2);
  CHECK(allowed(kId) == 0b001u);
}

// The tokenizer makes one token of "ab".
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
  SamplingParams params;
  const auto grammar = CompileForced("root ::= [abx] \"cabc\" [xc] \"b\"");
  params.frequency_penalty = 1.0f;
  state.Begin({kId, params, {}}, grammar);
  CHECK(Mask(state, kId) == 0b100110u);  // a choice
  CHECK(Accept(state, kId, 5) == std::vector<TokenId>{4, 3, 4});
  CHECK(Mask(state, kId) == 0b110000u);
  CHECK(Edits(state).at(4).add == -2.0f);
  CHECK(Accept(state, kId, 4) == std::vector<TokenId>{2, 0});  // and the end
}

TEST_CASE("A sample behind forced tokens has been passed, and that behind the last of them has not",
          "[unit]") {
  SamplerState state;
  const auto grammar = CompileForced("root ::= [abx] \"cabc\" [xc] \"b\"");
  state.Begin({kId, {}, {}}, grammar);
  const auto has_passed = [&state](Position position) {
    return state.HasPassed({kId, 0, position});
  };
  CHECK_FALSE(has_passed(10));
  CHECK(Accept(state, kId, 5, /*position=*/10).size() == 3);  // at 11, 12 and 13
  CHECK(has_passed(11));
  CHECK(has_passed(13));
  CHECK_FALSE(has_passed(14));
}

TEST_CASE("With log-probabilities, forced tokens are the same and drawn one by one", "[unit]") {
  SamplerState state;
  SamplingParams params;
  const auto grammar = CompileForced("root ::= [abx] \"cabc\" [xc] \"b\"");
  params.num_logprobs = 0;
  state.Begin({kId, params, {}}, grammar);
  for (TokenId token : {5, 4, 3, 4}) {
    CHECK((Mask(state, kId) >> token & 1) == 1);
    if (token != 5) CHECK(Mask(state, kId) == 1u << token);
    CHECK(Accept(state, kId, token).empty());
    state.FindMasks();
  }
  CHECK(Mask(state, kId) == 0b110000u);
}

TEST_CASE("Bad words leave open how a forced text is written", "[unit]") {
  SamplerState state;
  SamplingParams params;
  const auto grammar = CompileForced("root ::= [x] \"ab\"");
  params.bad_words = {{3}};
  state.Begin({kId, params, {}}, grammar);
  CHECK(Accept(state, kId, 5).empty());
  CHECK(Mask(state, kId) == 0b001010u);  // "a" or "ab"
}

TEST_CASE("Where no token fits a grammar none is allowed", "[unit]") {
  SamplerState state;
  SamplingParams params;
  const auto grammar = Compile("root ::= \"c\"");
  state.Begin({kId, params, {}}, grammar);
  const SamplerState::Allowance allowance = state.Allowed(kId, Late());
  CHECK(allowance.is_known);
  CHECK(allowance.failure == DrawFailure::kNoTokenFits);
}

TEST_CASE("A mask that is not found yet makes nobody wait but its own sequence", "[unit]") {
  std::string gbnf = "root ::= r0\n";
  for (int i = 0; i < 9; ++i) {
    gbnf += base::StrCat("r", i, " ::= \"a\" r", i + 1, "? r", i + 1, "? | r", i + 1, " \"b\"?\n");
  }
  const auto slow = Compile(gbnf + "r9 ::= \"a\"");
  const auto quick = Compile("root ::= [ab]*");
  constexpr SequenceId kOther{8};
  SamplerState state;
  state.Begin({kId, {}, {}}, slow);
  state.Begin({kOther, {}, {}}, quick);
  const auto expired = std::chrono::steady_clock::time_point::min();
  const SamplerState::Allowance early = state.Allowed(kId, expired);
  if (!early.is_known) CHECK(early.mask == nullptr);
  CHECK(Mask(state, kOther) == 0b111u);
  CHECK(Mask(state, kId) != 0u);
  // A draw that was left out: what was planned behind it is ahead of its sequence.
  state.LeaveOut({kOther, 0, /*position=*/10});
  CHECK(state.IsAhead({kOther, 0, 11}));
  CHECK_FALSE(state.IsAhead({kOther, 0, 10}));
  CHECK_FALSE(state.HasPassed({kOther, 0, 10}));
}

TEST_CASE("An ended sequence is forgotten", "[unit]") {
  SamplerState state;
  state.Begin({kId, {}, {}}, nullptr);
  CHECK(state.num_live() == 1);
  state.End(kId);
  state.End(kId);  // harmless
  Accept(state, kId, 3);
  CHECK(state.num_live() == 0);
}

}  // namespace
}  // namespace heddle::engine
