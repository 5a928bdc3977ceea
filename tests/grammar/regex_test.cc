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

TEST_CASE("Classes beyond ASCII match their code points", "[grammar][unit]") {
  auto matches = [](std::string_view pattern, std::string_view text) {
    return Matches(CompileOrDie(GrammarOf(ParseOrDie(pattern, RegexMatch::kWhole))), text);
  };
  CHECK(matches("\\p{L}+", "Gr\xC3\xBC\xC3\x9F\xE4\xBD\xA0"));
  CHECK_FALSE(matches("\\p{L}+", "a1"));
  CHECK(matches("\\P{N}", "x"));
  CHECK(matches("[\\u4e00-\\u9fff]{2}", "\xE4\xBD\xA0\xE5\xA5\xBD"));
  CHECK(matches("\\uD83D\\uDE00", "\xF0\x9F\x98\x80"));
  CHECK(matches("\\u{1F600}", "\xF0\x9F\x98\x80"));
  CHECK(matches("(?i)straSSe", "STRASSE"));
  CHECK(matches("\\s", "\xE2\x80\xA8"));
  CHECK_FALSE(matches(".", "\n"));
}

TEST_CASE("What is not regular or not known is refused by name", "[grammar][unit]") {
  using Catch::Contains;
  auto error = [](std::string_view pattern) {
    return std::string(ParseRegex(pattern, RegexMatch::kWhole).status().message());
  };
  CHECK_THAT(error("(x(?=a))"), Contains("look-ahead"));
  CHECK_THAT(error("(?<!a)b"), Contains("look-behind"));
  CHECK_THAT(error("(a)\\1"), Contains("back references"));
  CHECK_THAT(error("\\bword\\b"), Contains("\\b"));
  CHECK_THAT(error("a)"), Contains("closes nothing"));
  CHECK_THAT(error("(a"), Contains("expected )"));
  CHECK_THAT(error("[z-a]"), Contains("in order"));
  CHECK_THAT(error("*a"), Contains("nothing to repeat"));
  CHECK_THAT(error("a**"), Contains("repeat of a repeat"));
  CHECK_THAT(error("\\p{Greek}"), Contains("Greek"));
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
