// Masks against single tokens over random grammars, expressions, schemas and vocabularies: what the
// tables of masks say must be what reading each token byte by byte says.
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/message.h"
#include "catch2/catch.hpp"
#include "engine/grammar/gbnf.h"
#include "engine/grammar/regex.h"
#include "engine/grammar/schema/json_schema.h"
#include "engine/grammar/token_slices.h"
#include "engine/text/tokenizer.h"
#include "tests/grammar/testing.h"
#include "tests/support/paths.h"

namespace heddle {
namespace {

using engine::TokenId;
using engine::grammar::CodePointSet;
using engine::grammar::CompiledGrammar;
using engine::grammar::Grammar;
using engine::grammar::IsAllowed;
using engine::grammar::Matcher;
using engine::grammar::TokenSlices;
using engine::grammar::Vocabulary;

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  int Below(int n) { return static_cast<int>(engine_() % static_cast<uint32_t>(n)); }
  template <typename T, size_t n>
  const T& Of(const T (&list)[n]) {
    return list[Below(static_cast<int>(n))];
  }

 private:
  std::mt19937 engine_;
};

// Tokens of words, parts of JSON and of tags, code points whole and cut, long runs; some alike.
std::shared_ptr<const Vocabulary> RandomVocabulary(uint32_t seed) {
  static const std::string kPieces[] = {"a",
                                        "b",
                                        "z",
                                        "the",
                                        "Word",
                                        "id",
                                        "x9",
                                        "0",
                                        "42",
                                        "_",
                                        " ",
                                        "  ",
                                        "\n",
                                        "\t",
                                        "\"",
                                        "\\",
                                        "\\n",
                                        "\\u",
                                        ",",
                                        ":",
                                        "{",
                                        "}",
                                        "[",
                                        "]",
                                        "<",
                                        "</",
                                        ">",
                                        "-",
                                        ".",
                                        "@",
                                        "\xC3\xA9",
                                        "\xE4\xB8\xAD",
                                        "\xC3",
                                        "\xE4\xB8",
                                        "\xA9",
                                        "\xF0\x9F\x98\x80",
                                        "\xF0\x9F",
                                        std::string(33, 'a'),
                                        std::string(40, ' ')};
  Random random(seed);
  std::vector<std::string> more;
  for (int i = 0; i < 400; ++i) {
    std::string text;
    for (int pieces = 1 + random.Below(4); pieces > 0; --pieces) text += random.Of(kPieces);
    more.push_back(std::move(text));
  }
  return test::MakeVocabulary(std::move(more));
}

constexpr const char* kClasses[] = {"[a-z]",        R"([^"\\\x00-\x1f])",
                                    "[A-Za-z0-9_]", "[A-Za-z ]",
                                    "[^<]",         "[\xC3\x80-\xC3\xBF]",
                                    "[0-9]",        R"([^"\\<,\n])",
                                    "[^a-z]",       "[a-zA-Z0-9\xE4\xB8\x80-\xE9\xBF\xBF]"};

// Rules call later ones only, or themselves behind a bracket: no left recursion.
std::string RandomExpr(Random* random, int rule, int num_rules, int depth) {
  static const char* const kLiterals[] = {R"("\"")", R"("a")",  R"("the")",
                                          R"(" ")",  R"("</")", R"(", ")",
                                          R"("\n")", R"("{")",  "\"\xE4\xB8\xAD\""};
  const auto part = [&] { return RandomExpr(random, rule, num_rules, depth + 1); };
  const std::string chars = random->Of(kClasses);
  switch (random->Below(depth < 3 ? 12 : 6)) {
    case 0:
      return random->Of(kLiterals);
    case 1:
      return base::StrCat(chars, "*");
    case 2:
      return base::StrCat(chars, "+");
    case 3:
    case 4: {
      const int least = random->Below(6);
      return base::StrCat(chars, "{", least, ",", least + 1 + random->Below(45), "}");
    }
    case 5:
      return chars;
    case 6:
      return base::StrCat("(", part(), " | ", part(), ")");
    case 7:
      return base::StrCat("(", part(), ")?");
    case 8:
      return base::StrCat("(", part(), " \",\"){0,", 1 + random->Below(4), "}");
    case 9:
      if (rule + 1 < num_rules) return base::StrCat("r", rule + 1);
      return R"("\"")";
    case 10:
      return base::StrCat("(\"[\" r", rule, " \"]\" | ", chars, ")");
    default:
      return base::StrCat(part(), " ", part(), " ", std::string_view(random->Of(kLiterals)));
  }
}

std::string RandomGbnf(Random* random) {
  const int num_rules = 1 + random->Below(3);
  std::string text = "root ::= r0\n";
  for (int rule = 0; rule < num_rules; ++rule) {
    text += base::StrCat("r", rule, " ::= ", RandomExpr(random, rule, num_rules, 0), "\n");
  }
  return text;
}

std::shared_ptr<CompiledGrammar> CompileFor(const Grammar& grammar,
                                            std::shared_ptr<const Vocabulary> vocabulary,
                                            TokenId end) {
  auto automaton = engine::grammar::Compile(grammar);
  if (!automaton.ok()) return nullptr;
  return std::make_shared<CompiledGrammar>(*std::move(automaton), std::move(vocabulary),
                                           std::vector<TokenId>{end});
}

// Follows random allowed tokens, shorter ones rather, and compares every mask on the way.
void FollowAndCheck(const std::shared_ptr<CompiledGrammar>& grammar, Random* random, int tokens) {
  Matcher matcher(grammar);
  const Vocabulary& vocabulary = grammar->vocabulary();
  std::string text;
  for (int i = 0; i < tokens && !matcher.ended(); ++i) {
    INFO("after \"" << text << "\"");
    test::CheckMask(matcher);
    const auto mask = matcher.Mask();
    REQUIRE(mask.ok());
    TokenId token = -1;
    const int from = random->Below(vocabulary.size());
    for (int j = 0, seen = 0; j < vocabulary.size() && seen < 3; ++j) {
      const TokenId id = (from + j) % vocabulary.size();
      if (!IsAllowed(**mask, id)) continue;
      ++seen;
      if (token < 0 || vocabulary.text(id).size() < vocabulary.text(token).size()) token = id;
    }
    REQUIRE(matcher.Accept(token));
    text += vocabulary.text(token);
  }
}

TEST_CASE("Masks say what single tokens say, in random grammars", "[grammar]") {
  int compiled = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    const std::string text = RandomGbnf(&random);
    INFO("seed " << seed << "\n" << text);
    const auto grammar = engine::grammar::ParseGbnf(text);
    REQUIRE(grammar.ok());
    const auto ready = CompileFor(*grammar, RandomVocabulary(seed % 7), test::kEndToken);
    if (ready == nullptr) continue;
    ++compiled;
    // Some come upon what was prepared, some find it on their way.
    if (seed % 2 == 0) REQUIRE(ready->Prepare(1'000'000).ok());
    for (int i = 0; i < 3; ++i) FollowAndCheck(ready, &random, 8);
  }
  CHECK(compiled > 200);
}

TEST_CASE("A rule that may end within text gives way to what follows it", "[grammar]") {
  // Behind any number of letters, and before the first one; what follows begins with a letter too
  // in the last two.
  const char* const kGrammars[] = {
      "root ::= word (\",\" word)* \"!\"\nword ::= [a-z]+",
      "root ::= \"<\" word \">\" word \"!\"\nword ::= [a-z]*",
      "root ::= \"<\" word \"!\"\nword ::= [a-z]{0,3}", "root ::= word \"x1\"\nword ::= [a-z]{1,4}",
      "root ::= word other\nword ::= [a-z]*\nother ::= [A-Za-z]{2,40} \"!\""};
  std::vector<std::string> tokens;
  for (const char* head : {"", "a", "ab", "abc", "abcd", "abcde", "x", "ax"}) {
    for (const char* tail :
         {"", ",", ",a", ",ab!", "!", ">", ">a", ">ab!", "1", "x1", "A", "Ab!"}) {
      if (*head != 0 || *tail != 0) tokens.push_back(base::StrCat(head, tail));
    }
  }
  for (const char* text : kGrammars) {
    INFO(text);
    const auto ready = test::CompileGbnf(text, test::MakeVocabulary(tokens));
    Random random(1);
    for (int i = 0; i < 40; ++i) FollowAndCheck(ready, &random, 12);
  }
}

TEST_CASE("What is shared behind a first byte holds for tokens of any length", "[grammar]") {
  // So many tokens begin with a blank that what follows it is looked at once for all places. The
  // counts go on beyond the sight of twins; tokens do too.
  std::vector<std::string> tokens;
  Random random(5);
  for (int i = 0; i < 300; ++i) {
    std::string text = i % 3 == 0 ? "" : " ";
    for (int length = 1 + random.Below(70); length > 0; --length) {
      text += "0123456789abcdef "[random.Below(i % 5 == 0 ? 17 : 16)];
    }
    tokens.push_back(std::move(text));
  }
  const auto vocabulary = test::MakeVocabulary(tokens);
  for (const char* text : {R"(root ::= "x" (" " [0-9a-f]{3,200}){1,9} "!")",
                           R"(root ::= ("x" " " hex "!")+)"
                           "\nhex ::= [0-9a-f]{1,50} | [0-9]{0,60}",
                           R"(root ::= [a-z]{1,40} (" " [0-9a-f]{20,45}){1,30})",
                           R"(root ::= "(" " " [0-9a-f]{1,60} "!" | "z" " " [0-9a-f]{1,40} "!")",
                           R"(root ::= "x" hex [0-9]{1,30} "!")"
                           "\nhex ::= \"q \" ([a-f]{1,40})?"}) {
    INFO(text);
    const auto ready = test::CompileGbnf(text, vocabulary);
    for (int i = 0; i < 20; ++i) FollowAndCheck(ready, &random, 12);
  }
}

const char* const kRegexes[] = {R"(([A-Z][a-z]{2,12} ){10,40}\.)",
                                "[a-z]{0,40}",
                                R"([^"]*")",
                                "(foo|bar)?[a-zA-Z]{3,9}-[0-9]+",
                                R"([\x20-\x7e]{5,50})",
                                ".*the.*",
                                "[^<]*</",
                                R"(\w+@\w+\.[a-z]{2,12})",
                                "(a|[a-z]{2}x)*",
                                "[\xC3\xA0-\xC3\xBF]+|[\xE4\xB8\x80-\xE9\xBF\xBF]{1,9}"};

const char* const kSchemas[] = {
    R"({"type":"string"})",
    R"({"type":"string","minLength":3,"maxLength":45})",
    R"({"type":"string","pattern":"the"})",
    R"({"type":"string","pattern":"^[a-z]+( [a-z]+)*$","maxLength":30})",
    R"({"type":"string","format":"email"})",
    R"({"type":"array","items":{"type":"string","maxLength":5},"maxItems":4})",
    R"({"type":"object","additionalProperties":{"type":"string"}})",
    R"({"type":"object","properties":{"the":{"type":"string","maxLength":9},"thea":{"enum":["a b"]}},
        "additionalProperties":{"type":["string","integer"]}})",
    R"({"anyOf":[{"type":"string","maxLength":4},{"type":"array","items":{"$ref":"#"}}]})",
    R"({"enum":["the word","the_","a9",42]})"};

std::vector<Grammar> KnownGrammars() {
  std::vector<Grammar> grammars;
  for (const char* text : kRegexes) {
    INFO(text);
    auto machine = engine::grammar::ParseRegex(text, engine::grammar::RegexMatch::kWhole);
    REQUIRE(machine.ok());
    grammars.push_back(test::GrammarOf(*std::move(machine)));
  }
  for (const char* text : kSchemas) {
    INFO(text);
    auto grammar = engine::grammar::ParseJsonSchema(text, {});
    REQUIRE(grammar.ok());
    grammars.push_back(*std::move(grammar));
  }
  return grammars;
}

TEST_CASE("Masks say what single tokens say, in expressions and schemas", "[grammar]") {
  const std::vector<Grammar> grammars = KnownGrammars();
  for (size_t g = 0; g < grammars.size(); ++g) {
    for (uint32_t seed = 0; seed < 4; ++seed) {
      INFO("grammar " << g << ", seed " << seed);
      Random random(seed);
      const auto ready = CompileFor(grammars[g], RandomVocabulary(seed), test::kEndToken);
      REQUIRE(ready != nullptr);
      for (int i = 0; i < 3; ++i) FollowAndCheck(ready, &random, 20);
    }
  }
}

TEST_CASE("Masks say what single tokens say, with a real vocabulary", "[grammar][golden]") {
  const auto tokenizer =
      engine::text::LoadTokenizer(test::SharedDataOrSkip("tokenizers_hf/qwen2.5"));
  REQUIRE(tokenizer.ok());
  const engine::text::Tokenizer& t = **tokenizer;
  const auto vocabulary = std::make_shared<const Vocabulary>(t.vocab_size(), [&t](TokenId id) {
    return t.IsSpecial(id) ? std::string_view() : t.TokenBytes(id);
  });
  const std::vector<Grammar> grammars = KnownGrammars();
  for (size_t g = 0; g < grammars.size(); ++g) {
    INFO("grammar " << g);
    Random random(static_cast<uint32_t>(g));
    const auto ready = CompileFor(grammars[g], vocabulary, t.eos_ids()[0]);
    REQUIRE(ready != nullptr);
    FollowAndCheck(ready, &random, 6);
  }
}

// Whole characters of a set that a text begins with.
struct Beginning {
  int length = 0;
  size_t bytes = 0;
};
Beginning BeginningOf(std::string_view text, const CodePointSet& chars) {
  Beginning result;
  while (result.bytes < text.size()) {
    const auto lead = static_cast<unsigned char>(text[result.bytes]);
    const size_t size = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (lead >= 0x80 && lead < 0xC2) break;
    if (result.bytes + size > text.size()) break;
    char32_t c = size == 1 ? lead : lead & (0xFF >> (size + 1));
    bool is_whole = true;
    for (size_t i = 1; i < size; ++i) {
      const auto byte = static_cast<unsigned char>(text[result.bytes + i]);
      is_whole &= (byte & 0xC0) == 0x80;
      c = c << 6 | (byte & 0x3F);
    }
    if (!is_whole || !chars.Contains(c)) break;
    result.bytes += size;
    ++result.length;
  }
  return result;
}

TEST_CASE("Slices hold each token by the characters that it begins with", "[grammar]") {
  const CodePointSet sets[] = {
      {{'a', 'z'}}, {{0x20, '!'}, {'#', '['}, {']', 0x10FFFF}}, {{0xE0, 0xFF}, {0x4E00, 0x4FFF}}};
  for (const CodePointSet& chars : sets) {
    const auto vocabulary = RandomVocabulary(3);
    const auto slices = TokenSlices::Make(chars, *vocabulary);
    REQUIRE(slices != nullptr);
    int longest = 0;
    for (TokenId id = 0; id < vocabulary->size(); ++id) {
      longest = std::max(longest, BeginningOf(vocabulary->text(id), chars).length);
    }
    CHECK(slices->max_length() == longest);
    for (int length = 0; length <= longest + 2; ++length) {
      auto mask = vocabulary->EmptyMask();
      slices->AllowUpTo(length, &mask);
      for (TokenId id = 0; id < vocabulary->size(); ++id) {
        const std::string_view text = vocabulary->text(id);
        const Beginning beginning = BeginningOf(text, chars);
        INFO("token \"" << text << "\", " << length << " characters");
        const bool is_pure = !text.empty() && beginning.bytes == text.size();
        CHECK(IsAllowed(mask, id) == (is_pure && beginning.length <= length));
      }
    }
  }
}

}  // namespace
}  // namespace heddle
