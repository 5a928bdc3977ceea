#include <regex>
#include <string>

#include "catch2/catch.hpp"
#include "engine/grammar/regex.h"
#include "tests/grammar/testing.h"

namespace heddle::engine::grammar {
namespace {

using test::CompileOrDie;
using test::GrammarOf;
using test::Matches;

StateMachine ParseOrDie(std::string_view pattern, RegexMatch match) {
  absl::StatusOr<StateMachine> machine = ParseRegex(pattern, match);
  INFO(pattern);
  REQUIRE(machine.ok());
  return *std::move(machine);
}

std::u32string Widen(std::string_view ascii) { return {ascii.begin(), ascii.end()}; }

TEST_CASE("Long counted repeats of two alternatives become one", "[grammar][unit]") {
  // The start, and one state for each number of characters that is still to come.
  CHECK(ParseOrDie("a[a-z]{3000}|b[a-z]{3000}", RegexMatch::kWhole).states.size() == 3002);
  CHECK(ParseOrDie("a[a-z]{1,3000}|b[a-z]{1,3000}", RegexMatch::kWhole).states.size() == 3002);
}

TEST_CASE("Expressions match what the standard library's ECMAScript expressions match",
          "[grammar][unit]") {
  for (std::string pattern : {"a|bc|",
                              "(ab)*c?",
                              "[ab]{2,3}c*",
                              "a+?b*",
                              "(a|b|c){2}",
                              "^ab",
                              "c$",
                              "^a*$",
                              "^$|bb",
                              "(^a|b)c",
                              "a(b|$)",
                              "[^a]b",
                              ".a.",
                              "(?:a|(b))+",
                              "\\w\\W|\\d",
                              "(a*)*b",
                              "(a?){3}",
                              "[a-]b",
                              "^(a|ab)(c|bcd)?$",
                              "\\x61\\u0062",
                              "a{0}b",
                              "(|a)b"}) {
    const std::regex reference(pattern, std::regex::ECMAScript);
    const StateMachine whole = ParseOrDie(pattern, RegexMatch::kWhole);
    const StateMachine found = ParseOrDie(pattern, RegexMatch::kSearch);
    for (const std::string& text : test::AllTexts("abc-", 5)) {
      INFO(pattern << " on \"" << text << "\"");
      if (whole.Accepts(Widen(text)) != std::regex_match(text, reference)) {
        CHECK(whole.Accepts(Widen(text)) == std::regex_match(text, reference));
      }
      if (found.Accepts(Widen(text)) != std::regex_search(text, reference)) {
        CHECK(found.Accepts(Widen(text)) == std::regex_search(text, reference));
      }
    }
  }
}

TEST_CASE("Look-ahead within groups sees all that follows, as in the standard library",
          "[grammar][unit]") {
  for (const char* pattern :
       {"(a(?=b))[ab]*", "(a(?!b)|b(?=a))[ab]*", "(a(?=b))?b*", "((?=ab)[ab]{2}|b)a?",
        "(a|(?!ba)b)(a|b)?$", "^(a((?=b)|b(?!a)))[ab]*$", "((?=.*b)a|b){1,2}[ab]*",
        "(?=a)((?!aab)[ab])[ab]*", "(a(?=(b(?!b))))[ab]+",
        "(?:(aa)|(?!.*bb)(?=a|ba)(a)?(b(?=a)(a)?)?)"}) {
    const std::regex reference(pattern, std::regex::ECMAScript);
    const StateMachine whole = ParseOrDie(pattern, RegexMatch::kWhole);
    const StateMachine found = ParseOrDie(pattern, RegexMatch::kSearch);
    for (const std::string& text : test::AllTexts("ab", 6)) {
      INFO(pattern << " on " << text);
      CHECK(whole.Accepts(Widen(text)) == std::regex_match(text, reference));
      CHECK(found.Accepts(Widen(text)) == std::regex_search(text, reference));
    }
  }
}

TEST_CASE("Classes beyond ASCII match their code points", "[grammar][unit]") {
  auto matches = [](std::string_view pattern, std::string_view text) {
    return Matches(CompileOrDie(GrammarOf(ParseOrDie(pattern, RegexMatch::kWhole))), text);
  };
  CHECK(matches("\\p{L}+", "Gr\xC3\xBC\xC3\x9F\xE4\xBD\xA0"));
  CHECK_FALSE(matches("\\p{L}+", "a1"));
  CHECK(matches("\\P{N}", "x"));
  CHECK(matches("\\pL\\PL[\\pN]", "x-1"));
  CHECK(matches("[\\u4e00-\\u9fff]{2}", "\xE4\xBD\xA0\xE5\xA5\xBD"));
  CHECK(matches("\\uD83D\\uDE00", "\xF0\x9F\x98\x80"));
  CHECK(matches("\\u{1F600}", "\xF0\x9F\x98\x80"));
  CHECK(matches("(?i)straSSe", "STRASSE"));
  CHECK(matches("\\s", "\xE2\x80\xA8"));
  CHECK_FALSE(matches(".", "\n"));
}

// Members and others by Unicode's own files: emoji-data.txt, Scripts.txt, ScriptExtensions.txt,
// PropList.txt and DerivedCoreProperties.txt.
TEST_CASE("Properties have the names of ECMA-262 and the members of Unicode", "[grammar][unit]") {
  struct Row {
    const char* name;
    std::u32string in, out;
  };
  const Row kRows[] = {
      {"Extended_Pictographic", U"\u00A9\U0001F600\u2764", U"#1\U0001F1E9"},
      {"Emoji", U"#*0\u00A9\U0001F600", U"a\u200D"},
      {"Emoji_Component", U"#9\u200D\uFE0F\U0001F1E9\U0001F3FD", U"\U0001F600"},
      {"Emoji_Presentation", U"\u231A\U0001F600", U"\u00A9#"},
      {"Emoji_Modifier", U"\U0001F3FB\U0001F3FF", U"\U0001F600"},
      {"Script=Greek", U"\u03B1\u0391", U"a\u0301"},
      {"sc=Grek", U"\u03B1", U"a"},
      {"Greek", U"\u03B1", U"a"},
      {"Script_Extensions=Devanagari", U"\u0905\u0964", U"a"},
      {"sc=Devanagari", U"\u0905", U"\u0964"},
      {"scx=Egyptian_Hieroglyphs", U"\U00013000", U"a"},
      {"General_Category=Uppercase_Letter", U"A\u0391", U"a1"},
      {"gc=Lu", U"A", U"a"},
      {"Cased_Letter", U"aA\u01C5", U"1\u4E00"},
      {"LC", U"aA\u01C5", U"1\u4E00"},
      {"punct", U"!_", U"a+"},
      {"Math_Symbol", U"+", U"!"},
      {"Alphabetic", U"a\u4E00\u2160", U"1 "},
      {"White_Space", U" \u00A0\u0085", U"\u200B\uFEFF"},
      {"ID_Start", U"a\u4E00", U"1_"},
      {"ID_Continue", U"a1_", U"-"},
      {"XID_Continue", U"a1_", U"-"},
      {"Uppercase", U"A\u2160", U"a"},
      {"Lowercase", U"a\u00AA", U"A"},
      {"ASCII", U"a\u007F", U"\u0080"},
      {"ASCII_Hex_Digit", U"fF9", U"g"},
      {"Ideographic", U"\u4E00\u3007", U"a"},
      {"Any", U"a\u0378\U0010FFFF", U""},
      {"Assigned", U"a", U"\u0378"},
      {"Default_Ignorable_Code_Point", U"\u00AD\uFE0F", U"a"},
      {"Noncharacter_Code_Point", U"\uFFFE", U"a"},
      {"Quotation_Mark", U"\"\u00AB", U"a"},
      {"Regional_Indicator", U"\U0001F1E9", U"D"},
  };
  for (const Row& row : kRows) {
    INFO(row.name);
    const StateMachine members =
        ParseOrDie(std::string("\\p{") + row.name + "}", RegexMatch::kWhole);
    const StateMachine others =
        ParseOrDie(std::string("\\P{") + row.name + "}", RegexMatch::kWhole);
    for (const char32_t c : row.in) {
      CHECK(members.Accepts(std::u32string(1, c)));
      CHECK_FALSE(others.Accepts(std::u32string(1, c)));
    }
    for (const char32_t c : row.out) {
      CHECK_FALSE(members.Accepts(std::u32string(1, c)));
      CHECK(others.Accepts(std::u32string(1, c)));
    }
  }
  // The pattern that zod writes for z.emoji().
  const StateMachine emoji =
      ParseOrDie("^(\\p{Extended_Pictographic}|\\p{Emoji_Component})+$", RegexMatch::kSearch);
  CHECK(emoji.Accepts(U"\U0001F468\u200D\U0001F469\u2764\uFE0F"));
  CHECK_FALSE(emoji.Accepts(U"\U0001F468a"));
}

TEST_CASE("What is not regular or not known is refused by name", "[grammar][unit]") {
  using Catch::Contains;
  auto error = [](std::string_view pattern) {
    return std::string(ParseRegex(pattern, RegexMatch::kWhole).status().message());
  };
  CHECK_THAT(error("(x(?=a))*"), Contains("look-ahead"));
  CHECK_THAT(error("(x(?=a)){1,9}"), Contains("look-ahead"));
  CHECK_THAT(error("(x(?=^a))"), Contains("look-ahead"));
  CHECK_THAT(error("((?=a)|b)^c"), Contains("look-ahead"));
  CHECK_THAT(error("(x(?=a"), Contains("expected )"));
  CHECK_THAT(error("(x(?#a))"), Contains("flags"));
  CHECK_THAT(error("(?<!a)b"), Contains("look-behind"));
  CHECK_THAT(error("(a)\\1"), Contains("back references"));
  CHECK_THAT(error("\\bword\\b"), Contains("\\b"));
  CHECK_THAT(error("a)"), Contains("closes nothing"));
  CHECK_THAT(error("(a"), Contains("expected )"));
  CHECK_THAT(error("[z-a]"), Contains("in order"));
  CHECK_THAT(error("*a"), Contains("nothing to repeat"));
  CHECK_THAT(error("a**"), Contains("repeat of a repeat"));
  CHECK_THAT(error("\\p{Klingon}"), Contains("Klingon"));
  CHECK_THAT(error("\\p{Script=L}"), Contains("Script=L"));
  CHECK_THAT(error("\\p{gc=Greek}"), Contains("gc=Greek"));
  CHECK_THAT(error("\\p{sc:Greek}"), Contains("sc:Greek"));
  CHECK_THAT(error("\\p{RGI_Emoji}"), Contains("RGI_Emoji"));  // of texts, not of characters
  CHECK_THAT(error("\\p{L}\\p{^L}"), Contains("^L"));
  CHECK_THAT(error("\\p{}"), Contains("property"));
  CHECK_THAT(error(std::string("\\p{") + std::string(100'000, 'a') + "}"),
             Contains("does not end"));
  CHECK_THAT(error("(a|b)*a(a|b){30}"), Contains("states"));
}

TEST_CASE("Intersection and complement are those of the sets of texts", "[grammar][unit]") {
  const StateMachine a = ParseOrDie("a.*|.*b", RegexMatch::kWhole);
  const StateMachine b = ParseOrDie("(..)*", RegexMatch::kWhole);
  const StateMachine both = *Intersect(a, b, 1000);
  const StateMachine neither = Complement(a);
  const StateMachine two_or_three = AnyTextOfLength(2, 3);
  for (const std::string& text : test::AllTexts("abc", 5)) {
    const std::u32string wide = Widen(text);
    CHECK(both.Accepts(wide) == (a.Accepts(wide) && b.Accepts(wide)));
    CHECK(neither.Accepts(wide) == !a.Accepts(wide));
    CHECK(two_or_three.Accepts(wide) == (text.size() == 2 || text.size() == 3));
  }
  CHECK((*Intersect(a, neither, 1000)).IsEmpty());
}

}  // namespace
}  // namespace heddle::engine::grammar
