#include <random>
#include <string>

#include "catch2/catch.hpp"
#include "engine/grammar/regex.h"
#include "tests/grammar/testing.h"

namespace heddle {
namespace {

using engine::TokenId;
using engine::grammar::CompiledGrammar;
using engine::grammar::IsAllowed;
using engine::grammar::Matcher;
using test::CheckMask;
using test::CompileGbnf;
using test::MakeVocabulary;

// Follows random allowed tokens and compares every mask on the way with single tokens.
void WalkAndCheck(const std::shared_ptr<CompiledGrammar>& grammar, uint32_t seed, int max_tokens) {
  std::mt19937 random(seed);
  Matcher matcher(grammar);
  std::string text;
  for (int i = 0; i < max_tokens && !matcher.ended(); ++i) {
    INFO("seed " << seed << " after \"" << text << "\"");
    CheckMask(matcher);
    const auto mask = matcher.Mask();
    REQUIRE(mask.ok());
    std::vector<TokenId> allowed;
    for (TokenId id = 0; id < grammar->vocabulary().size(); ++id) {
      if (IsAllowed(**mask, id)) allowed.push_back(id);
    }
    REQUIRE_FALSE(allowed.empty());
    const TokenId token = allowed[random() % allowed.size()];
    REQUIRE(matcher.Accept(token));
    text += grammar->vocabulary().text(token);
  }
}

// Tokens of several bytes that end, begin and cross the parts of a small JSON.
std::shared_ptr<const engine::grammar::Vocabulary> JsonTokens() {
  return MakeVocabulary({"{\"",
                         "\"}",
                         "\":",
                         "\",\"",
                         "],[",
                         "]]",
                         "}}",
                         "ab",
                         "a\"",
                         "\"a\"",
                         ", ",
                         "},{\"",
                         "abc\":[",
                         "12",
                         "1,2",
                         "1]",
                         "\xC3\xA9t",
                         "\xA9",
                         "\xC3",
                         "ab",
                         std::string(40, 'a'),
                         std::string(40, 'a') + "\"",
                         "\\u00",
                         "\\n\\"});
}

constexpr std::string_view kJson = R"(
root ::= value
value ::= object | array | string | number
object ::= "{" (string ":" value ("," string ":" value)*)? "}"
array ::= "[" (value ("," value)*)? "]"
string ::= "\"" ([^"\\\x00-\x1f] | "\\" (["\\nt] | "u" [0-9a-f]{4}))* "\""
number ::= "-"? ("0" | [1-9] [0-9]*)
)";

TEST_CASE("Masks say what single tokens say, all through random JSON", "[grammar][unit]") {
  auto grammar = CompileGbnf(kJson, JsonTokens());
  for (uint32_t seed = 0; seed < 20; ++seed) WalkAndCheck(grammar, seed, 40);
}

TEST_CASE("Masks of counted repeats are right near and far from their bounds", "[grammar][unit]") {
  // States in the middle of the repeat share what they read; those near its ends do not.
  auto grammar =
      CompileGbnf(R"(root ::= "\"" [a-z]{3,200} "\"" ","? ("x"{50,70} | "y"))", JsonTokens());
  Matcher matcher(grammar);
  REQUIRE(matcher.AcceptText("\""));
  for (int i = 0; i <= 200; ++i) {
    INFO(i);
    CheckMask(matcher);
    if (i < 200) REQUIRE(matcher.AcceptText("a"));
  }
  REQUIRE(matcher.AcceptText("\",x"));
  for (int i = 1; i < 70; ++i) {
    CheckMask(matcher);
    REQUIRE(matcher.AcceptText("x"));
  }
  CheckMask(matcher);
}

TEST_CASE("Masks near the stack's bound are right", "[grammar][unit]") {
  auto grammar = CompileGbnf(kJson, MakeVocabulary({"[[", "[[[[[[", "[]", "[1", "]]]"}));
  Matcher matcher(grammar);
  for (int depth = 0; matcher.AcceptText("["); ++depth) {
    if (depth > 150) CheckMask(matcher);
  }
  CheckMask(matcher);
}

TEST_CASE("The end is allowed exactly where the text may end", "[grammar][unit]") {
  auto grammar = CompileGbnf(R"(root ::= "a" "b"*)");
  Matcher matcher(grammar);
  CHECK_FALSE(IsAllowed(**matcher.Mask(), test::kEndToken));
  CHECK_FALSE(matcher.Accept(test::kEndToken));
  REQUIRE(matcher.Accept(test::ByteToken('a')));
  CHECK(IsAllowed(**matcher.Mask(), test::kEndToken));
  REQUIRE(matcher.Accept(test::kEndToken));
  CHECK(matcher.ended());
  // Behind the end only the end may follow.
  CHECK_FALSE(matcher.Accept(test::ByteToken('b')));
  CheckMask(matcher);
  CHECK(IsAllowed(**matcher.Mask(), test::kEndToken));
}

TEST_CASE("A token that is refused changes nothing", "[grammar][unit]") {
  auto grammar = CompileGbnf(R"(root ::= "abc")", MakeVocabulary({"abd", "bc"}));
  Matcher matcher(grammar);
  CHECK_FALSE(matcher.Accept(257));  // "abd"
  REQUIRE(matcher.Accept(test::ByteToken('a')));
  REQUIRE(matcher.Accept(258));  // "bc"
  CHECK(matcher.CanEnd());
}

TEST_CASE("Copies of a matcher go their own ways", "[grammar][unit]") {
  auto grammar = CompileGbnf(R"(root ::= "a" ("b" "1" | "c" "2"))");
  Matcher one(grammar);
  REQUIRE(one.AcceptText("a"));
  Matcher two = one;
  REQUIRE(one.AcceptText("b"));
  REQUIRE(two.AcceptText("c"));
  CHECK(one.AcceptText("1"));
  CHECK_FALSE(two.AcceptText("1"));
  CHECK(two.AcceptText("2"));
}

TEST_CASE("Forced text is what has no alternative", "[grammar][unit]") {
  auto grammar =
      CompileGbnf(R"(root ::= "{\"name\":" ("1" | "2") ",\"age\":" [0-9] "}" | "{\"name\":x")");
  Matcher matcher(grammar);
  CHECK(matcher.ForcedText(100) == "{\"name\":");
  CHECK(matcher.ForcedText(3) == "{\"n");
  REQUIRE(matcher.AcceptText("{\"name\":1"));
  CHECK(matcher.ForcedText(100) == ",\"age\":");
  REQUIRE(matcher.AcceptText(",\"age\":7}"));
  CHECK(matcher.ForcedText(100).empty());
}

TEST_CASE("Where the vocabulary lacks what must follow, the mask says so", "[grammar][unit]") {
  // No token begins with b.
  const std::vector<std::string> texts = {"", "a"};
  auto vocabulary = std::make_shared<engine::grammar::Vocabulary>(
      2, [&](TokenId id) { return std::string_view(texts[static_cast<size_t>(id)]); });
  auto grammar = CompileGbnf(R"(root ::= "ab")", vocabulary);
  Matcher matcher(grammar);
  REQUIRE(matcher.Accept(1));
  CHECK(matcher.Mask().status().code() == absl::StatusCode::kInternal);
}

TEST_CASE("A matcher outlives the store that it began with", "[grammar][unit]") {
  // Each length of the first part is a context of its own, with a mask of its own: 48 MB of them.
  std::vector<std::string> many;
  for (int i = 0; i < 60'000; ++i) many.push_back(std::to_string(i) + "w");
  auto grammar = CompileGbnf(R"(root ::= [a-z]{0,9000} "!" [0-9])", MakeVocabulary(many));
  Matcher early(grammar);
  REQUIRE(early.AcceptText("abc"));
  Matcher late(grammar);
  for (int i = 0; i < 9000; ++i) {
    REQUIRE(late.AcceptText("z"));
    REQUIRE(late.Mask().ok());
  }
  CHECK_FALSE(late.AcceptText("z"));
  REQUIRE(early.AcceptText("d!"));
  CheckMask(early);
  CHECK(early.AcceptText("7"));
  CHECK(early.CanEnd());
}

}  // namespace
}  // namespace heddle
