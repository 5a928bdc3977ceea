// Forced tokens against the tokenizers of real models: whatever text follows, they are the tokens
// that the tokenizer writes the whole text with.
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/grammar/gbnf.h"
#include "engine/grammar/grammar_compiler.h"
#include "engine/text/tokenizer.h"
#include "tests/grammar/testing.h"
#include "tests/support/paths.h"

namespace heddle {
namespace {

using engine::TokenId;
using engine::grammar::Constraint;
using engine::grammar::ConstraintKind;
using engine::grammar::Matcher;
using engine::grammar::Vocabulary;

constexpr std::string_view kSchema = R"({"type":"object","properties":{
  "first_name":{"type":"string"},"temperature_celsius":{"type":"integer"},
  "kind":{"enum":["weather-report","weather-forecast","other"]},
  "it's":{"const":"don't   stop\n\n  now"},"Größe":{"type":"boolean"},
  "list":{"type":"array","items":{"type":"object","properties":{"identifier":{"type":"integer"}},
  "required":["identifier"]}}},
  "required":["first_name","temperature_celsius","kind","it's","Größe","list"]})";

const std::string kTexts[] = {
    R"({"first_name":"Ada","temperature_celsius":-12,"kind":"weather-forecast",)"
    R"("it's":"don't   stop\n\n  now","Größe":true,"list":[]})",
    R"({"first_name":"","temperature_celsius":0,"kind":"other","it's":"don't   stop\n\n  now",)"
    R"("Größe":false,"list":[{"identifier":1},{"identifier":22}]})",
    R"({"first_name":" x:\"}","temperature_celsius":1000,"kind":"weather-report",)"
    R"("it's":"don't   stop\n\n  now","Größe":true,"list":[{"identifier":7}]})",
};

// In compact JSON, whose texts are forced the longest.
Constraint Compact() {
  Constraint constraint{.text = std::string(kSchema)};
  constraint.json.whitespace = engine::grammar::JsonWhitespace::kNone;
  return constraint;
}

std::vector<TokenId> Encode(const engine::text::Tokenizer& tokenizer, std::string_view text) {
  std::vector<TokenId> tokens;
  engine::text::EncodeOptions options;
  options.add_special = false;
  REQUIRE(tokenizer.Encode(text, options, &tokens).ok());
  return tokens;
}

TEST_CASE("Forced tokens are the tokenizer's own of every text that can follow",
          "[grammar][golden]") {
  for (const char* name : {"tokenizers_hf/qwen2.5", "tokenizers_hf/gpt2"}) {
    INFO(name);
    const auto tokenizer = engine::text::LoadTokenizer(test::SharedDataOrSkip(name));
    REQUIRE(tokenizer.ok());
    const engine::text::Tokenizer& t = **tokenizer;
    const TokenId end = t.eos_ids().empty() ? t.Find("<|endoftext|>").value() : t.eos_ids()[0];
    engine::grammar::GrammarCompiler compiler(
        [&t] {
          return Vocabulary(
              t.vocab_size(),
              [&t](TokenId id) { return t.IsSpecial(id) ? std::string_view() : t.TokenBytes(id); },
              [&t](std::string_view text) { return Encode(t, text); });
        },
        {end});
    const auto grammar = compiler.Compile(Compact());
    REQUIRE(grammar.ok());
    for (const std::string& text : kTexts) {
      INFO(text);
      const std::vector<TokenId> tokens = Encode(t, text);
      Matcher matcher(*grammar);
      size_t num_forced = 0;
      for (size_t i = 0; i < tokens.size(); ++i) {
        INFO("token " << i << " \"" << t.TokenBytes(tokens[i]) << "\"");
        const auto forced = matcher.Forced();
        if (!forced.empty()) {
          INFO("forced \"" << t.TokenBytes(forced.front()) << "\"");
          CHECK(forced.front() == tokens[i]);
          ++num_forced;
        }
        REQUIRE(matcher.Accept(tokens[i]));
      }
      const auto forced = matcher.Forced();
      REQUIRE(forced.size() == 1);
      CHECK(forced.front() == end);
      // Most of it is names.
      INFO(num_forced << " of " << tokens.size());
      CHECK(num_forced * 3 > tokens.size());
    }
  }
}

TEST_CASE("A forced text is one list of tokens, which holds while they are taken",
          "[grammar][golden]") {
  const auto tokenizer = engine::text::LoadTokenizer(test::SharedDataOrSkip("tokenizers_hf/gpt2"));
  REQUIRE(tokenizer.ok());
  const engine::text::Tokenizer& t = **tokenizer;
  const auto grammar = test::CompileGbnf(
      "root ::= \"The quick brown fox\" (\" jumps\" | \" sleeps\")",
      std::make_shared<const Vocabulary>(
          t.vocab_size(),
          [&t](TokenId id) { return t.IsSpecial(id) ? std::string_view() : t.TokenBytes(id); },
          [&t](std::string_view text) { return Encode(t, text); }));
  Matcher matcher(grammar);
  const auto forced = matcher.Forced();
  std::vector<TokenId> all(forced.begin(), forced.end());
  // " fox" could be " foxes", as far as the vocabulary goes; the blank behind it is forced.
  std::vector<TokenId> expected = Encode(t, "The quick brown fox jumps");
  expected.pop_back();
  REQUIRE(all.size() >= 3);
  expected.resize(all.size());
  CHECK(all == expected);
  REQUIRE(matcher.Accept(all[0]));
  const auto rest = matcher.Forced();
  CHECK(std::vector<TokenId>(rest.begin(), rest.end()) ==
        std::vector<TokenId>(all.begin() + 1, all.end()));
}

TEST_CASE("Without an encoder nothing but the end is forced", "[grammar][unit]") {
  const auto grammar = test::CompileGbnf("root ::= \"ab\"");
  Matcher matcher(grammar);
  CHECK(matcher.Forced().empty());
  REQUIRE(matcher.AcceptText("ab"));
  REQUIRE(matcher.Forced().size() == 1);
  CHECK(matcher.Forced().front() == test::kEndToken);
}

}  // namespace
}  // namespace heddle
