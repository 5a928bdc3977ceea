#include <string>

#include "catch2/catch.hpp"
#include "engine/grammar/gbnf.h"
#include "tests/grammar/testing.h"

namespace heddle::engine::grammar {
namespace {

using test::CompileGbnf;
using test::Matches;

std::string GbnfError(std::string_view text) {
  const absl::StatusOr<Grammar> grammar = ParseGbnf(text);
  if (!grammar.ok()) return std::string(grammar.status().message());
  const absl::StatusOr<Automaton> automaton = Compile(*grammar);
  return automaton.ok() ? "" : std::string(automaton.status().message());
}

TEST_CASE("A grammar over several lines with comments, classes and escapes", "[grammar][unit]") {
  auto grammar = CompileGbnf(
      "# a greeting\n"
      "root ::= (\"Hi\" | 'Hello') \" \"\n"
      "         name   # who\n"
      "       | \"\\x41\\u00e9\\U0001F600\\n\"\n"
      "name ::= [A-Z] [a-z\\-_]{1,3} [^a-z]?\n");
  CHECK(Matches(grammar, "Hi Bob"));
  CHECK(Matches(grammar, "Hello A-_!"));
  CHECK(Matches(grammar, "Hello Zoe\xE2\x82\xAC"));
  CHECK(Matches(grammar, "A\xC3\xA9\xF0\x9F\x98\x80\n"));
  CHECK_FALSE(Matches(grammar, "Hi bob"));
  CHECK_FALSE(Matches(grammar, "Hi Boboo"));
  CHECK_FALSE(Matches(grammar, "Hello Zoe\xE2\x82"));
}

TEST_CASE("Any character is one code point of well-formed UTF-8", "[grammar][unit]") {
  auto grammar = CompileGbnf("root ::= .");
  for (std::string_view text : {"a", "\n", "\xC3\xA9", "\xED\x9F\xBF", "\xEF\xBF\xBF",
                                "\xF4\x8F\xBF\xBF", "\xF0\x90\x80\x80"}) {
    CHECK(Matches(grammar, text));
  }
  // Overlong, surrogate, beyond the last one, a lone continuation.
  for (std::string_view text :
       {"\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\x80", "ab", ""}) {
    CHECK_FALSE(Matches(grammar, text));
  }
}

TEST_CASE("A faulty grammar is refused with the place and the reason", "[grammar][unit]") {
  using Catch::Contains;
  CHECK_THAT(GbnfError("start ::= \"a\""), Contains("no rule \"root\""));
  CHECK_THAT(GbnfError("root ::= name"), Contains("\"name\"") && Contains("not define"));
  CHECK_THAT(GbnfError("root ::= \"a\nroot ::= \"b\""), Contains("line 2"));
  CHECK_THAT(GbnfError("root ::= [a"), Contains("does not end"));
  CHECK_THAT(GbnfError("root ::= (\"a\""), Contains("expected )"));
  CHECK_THAT(GbnfError("root ::= \"a\")"), Contains("closes nothing"));
  CHECK_THAT(GbnfError("root ::= \"a\"{3,2}"), Contains("wrong way round"));
  CHECK_THAT(GbnfError("root ::= \"a\"{99999999}"), Contains("at most"));
  CHECK_THAT(GbnfError("root ::= a\na ::= \"x\"\na ::= \"y\""), Contains("defined twice"));
  CHECK_THAT(GbnfError("root ::= \"\\q\""), Contains("unknown escape"));
  CHECK_THAT(GbnfError("root ::= a\na ::= e b \"x\"\nb ::= a \"y\" | \"z\"\ne ::= \"e\"?"),
             Contains("left recursion") && Contains("a -> b -> a"));
  CHECK_THAT(GbnfError("root ::= \"a\" root"), Contains("derives no text"));
  CHECK_THAT(GbnfError("root ::= " + std::string(200, '(')), Contains("nested"));
  CHECK_THAT(GbnfError("root ::= ((\"a\"{60000}){60000}){60000}"), Contains("states"));
  CHECK_THAT(GbnfError("root ::= [ab]* \"a\" [ab]{40}"), Contains("states"));
  CHECK_THAT(GbnfError("root ::= \"\xFF\""), Contains("UTF-8"));
}

TEST_CASE("Alternatives that never end are left out", "[grammar][unit]") {
  auto grammar = CompileGbnf("root ::= \"a\" | \"b\" loop\nloop ::= \"x\" loop");
  Matcher matcher(grammar);
  CHECK_FALSE(matcher.AcceptText("b"));
  CHECK(matcher.AcceptText("a"));
}

}  // namespace
}  // namespace heddle::engine::grammar
