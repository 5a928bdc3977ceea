// What random tokens make under a schema's masks is valid by the schema: the schemas of
// corpus/schemas.jsonl, twenty texts each. HEDDLE_CORPUS_OUT names a file that gets
// [schema, text] per line, for a second opinion (corpus/check.py).
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <random>
#include <string>

#include "catch2/catch.hpp"
#include "engine/grammar/schema/json_schema.h"
#include "tests/grammar/schema_validator.h"
#include "tests/grammar/testing.h"
#include "tests/support/paths.h"

namespace heddle {
namespace {

using engine::TokenId;
using engine::grammar::CompiledGrammar;
using engine::grammar::IsAllowed;
using engine::grammar::Matcher;

constexpr int kTextsPerSchema = 20;
constexpr int kPatience = 120;     // tokens until the model wants to come to an end
constexpr int kMaxTokens = 20000;  // by then it has to have

std::shared_ptr<const engine::grammar::Vocabulary> Tokens() {
  return test::MakeVocabulary(
      {"{\"",   "\":",      "\": ",         "\", \"", "\"}",  "},",  "],",   "\":\"", ", ",  "\n  ",
       "name",  "id",       "true",         "false",  "null", "12",  "00",   "0.",    "-1",  "the ",
       "hello", "\xC3\xA9", "\xE2\x82\xAC", "2024",   "-0",   "@",   ".com", "http",  "://", "[{",
       "}]",    "]]",       "\"]",          "[]",     "{}",   "\\n", "\\u"});
}

// Generates as a model of random logits would: any allowed token, and towards the end preferably
// one that closes.
std::string Generate(const std::shared_ptr<CompiledGrammar>& grammar, std::mt19937* random) {
  static const std::string kClosers = "\"}]0123456789aesxz";  // and what patterns ask for
  Matcher matcher(grammar);
  std::string text;
  for (int i = 0; i < kMaxTokens; ++i) {
    const auto mask = matcher.Mask();
    INFO(text);
    REQUIRE(mask.ok());
    std::vector<TokenId> allowed;
    std::vector<TokenId> closers;
    for (TokenId id = 0; id < grammar->vocabulary().size(); ++id) {
      if (!IsAllowed(**mask, id)) continue;
      allowed.push_back(id);
      const std::string_view bytes = grammar->vocabulary().text(id);
      const bool closes = bytes.size() == 1 && kClosers.find(bytes[0]) != std::string::npos;
      if (id == test::kEndToken || closes) closers.push_back(id);
    }
    const bool hurry = i > kPatience && !closers.empty() && (*random)() % 8 != 0;
    const std::vector<TokenId>& from = hurry ? closers : allowed;
    // Among the tokens that close, the end comes first.
    const TokenId token =
        hurry && from[0] == test::kEndToken ? from[0] : from[(*random)() % from.size()];
    REQUIRE(matcher.Accept(token));
    if (matcher.ended()) return text;
    text += grammar->vocabulary().text(token);
  }
  FAIL("no end after " << kMaxTokens << " tokens: " << text.substr(0, 300));
  return text;
}

TEST_CASE("Random texts under the masks of a schema are valid by it", "[grammar]") {
  std::ifstream in(test::SourceDir() / "tests/grammar/corpus/schemas.jsonl");
  REQUIRE(in);
  const char* out_path = std::getenv("HEDDLE_CORPUS_OUT");
  std::ofstream out;
  if (out_path != nullptr) out.open(out_path);
  const auto vocabulary = Tokens();
  int schemas = 0;
  for (std::string line; std::getline(in, line); ++schemas) {
    INFO("schema " << schemas + 1 << ": " << line);
    const auto grammar = engine::grammar::ParseJsonSchema(line, {});
    INFO(grammar.status().message());
    REQUIRE(grammar.ok());
    const auto compiled = test::CompileOrDie(*grammar, vocabulary);
    const nlohmann::json schema = nlohmann::json::parse(line);
    std::mt19937 random(static_cast<uint32_t>(schemas));
    for (int i = 0; i < kTextsPerSchema; ++i) {
      const std::string text = Generate(compiled, &random);
      INFO(text);
      const nlohmann::json value = nlohmann::json::parse(text, nullptr, false);
      REQUIRE_FALSE(value.is_discarded());
      CHECK(test::SchemaFault(schema, schema, value) == "");
      if (out.is_open()) out << nlohmann::json::array({schemas, text}).dump() << "\n";
    }
  }
  CHECK(schemas >= 300);
}

}  // namespace
}  // namespace heddle
