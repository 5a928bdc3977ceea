#include "engine/grammar/lark/lark.h"

#include <fstream>
#include <set>
#include <string>

#include "catch2/catch.hpp"
#include "engine/grammar/schema/json_schema.h"
#include "nlohmann/json.hpp"
#include "tests/grammar/testing.h"
#include "tests/support/paths.h"

namespace heddle::engine::grammar {
namespace {

using Catch::Contains;
using test::CompileOrDie;
using test::Matches;

std::shared_ptr<CompiledGrammar> CompileLark(std::string_view text) {
  const absl::StatusOr<Grammar> grammar = ParseLark(text);
  INFO(text << "\n" << grammar.status().message());
  REQUIRE(grammar.ok());
  return CompileOrDie(*grammar);
}

std::string LarkError(std::string_view text) {
  Budget budget;
  const absl::StatusOr<Grammar> grammar = ParseLark(text, &budget);
  if (!grammar.ok()) return std::string(grammar.status().message());
  const absl::StatusOr<Automaton> automaton = Compile(*grammar, &budget);
  return automaton.ok() ? "" : std::string(automaton.status().message());
}

TEST_CASE("Lark grammars take what the package lark takes", "[grammar][golden]") {
  std::ifstream in(test::SourceDir() / "tests/grammar/corpus/lark.jsonl");
  REQUIRE(in);
  int texts = 0;
  int taken = 0;
  int apart = 0;  // texts that need a blank here, and none there
  // Grammars in which words may meet without a blank where one of several parts stands: "[]or[]".
  const std::set<std::string> words_meet = {"python expressions", "sql", "flags"};
  for (std::string line; std::getline(in, line);) {
    const auto golden = nlohmann::json::parse(line);
    const auto grammar = CompileLark(golden.at("grammar").get<std::string>());
    for (const auto& row : golden.at("texts")) {
      const auto text = row.at(0).get<std::string>();
      const bool complete = row.at(1);
      const bool matched = Matches(grammar, text);
      INFO(golden.at("name") << ": " << row);
      ++texts;
      taken += matched ? 1 : 0;
      // A text that is left out could be cut into other terminals; one that is added is a fault.
      if (matched) CHECK(complete);
      if (!matched && complete) ++apart;
      if (!matched && row.at(2)) CHECK(words_meet.contains(golden.at("name")));
    }
  }
  CHECK(texts > 1000);
  CHECK(taken > 500);
  CHECK(apart < texts / 6);
}

TEST_CASE("Between words that would run together something has to stand", "[grammar][unit]") {
  const auto grammar = CompileLark(R"(
    start: "select" NAME "from" NAME ["limit" NUMBER]   // keywords and names
    NAME: /[a-z]+/
    NUMBER: /[0-9]+/
    %ignore " ")");
  CHECK(Matches(grammar, "select a from b"));
  CHECK(Matches(grammar, " select a  from b limit 3 "));
  CHECK(Matches(grammar, "select a from blimit limit3"));
  CHECK_FALSE(Matches(grammar, "select afrom b"));
  CHECK_FALSE(Matches(grammar, "select a from blimit 3"));
}

TEST_CASE("A Lark grammar's faults are told with their place", "[grammar][unit]") {
  CHECK_THAT(LarkError("begin: \"a\""), Contains("no rule \"start\""));
  CHECK_THAT(LarkError("start: name"), Contains("rule \"name\"") && Contains("not define"));
  CHECK_THAT(LarkError("start: NAME"), Contains("terminal \"NAME\"") && Contains("not define"));
  CHECK_THAT(LarkError("start: \"a\"\nstart: \"b\""), Contains("line 2") && Contains("twice"));
  CHECK_THAT(LarkError("start: (\"a\""), Contains("expected )"));
  CHECK_THAT(LarkError("start: \"a"), Contains("does not end"));
  CHECK_THAT(LarkError("start: /a"), Contains("does not end"));
  CHECK_THAT(LarkError("start: /a/l"), Contains("locale"));
  CHECK_THAT(LarkError("start: /(?<=a)b/"), Contains("look-behind"));
  CHECK_THAT(LarkError("start: /^a/"), Contains("anchors"));
  CHECK_THAT(LarkError("start: A\nA: B\nB: A"), Contains("uses itself"));
  CHECK_THAT(LarkError("start: A\nA: b\nb: \"x\""), Contains("uses rule \"b\""));
  CHECK_THAT(LarkError("start: x{\"a\"}\nx{a, b}: a b"), Contains("2 parameters"));
  CHECK_THAT(LarkError("start: x{\"a\"}\nx{a}: x{y{a}}\ny{a}: a"), Contains("rules when"));
  CHECK_THAT(LarkError("%import python.NAME\nstart: NAME"), Contains("\"python\""));
  CHECK_THAT(LarkError("%import common.NAME\nstart: NAME"), Contains("\"NAME\""));
  CHECK_THAT(LarkError("%declare A\nstart: A"), Contains("%declare"));
  CHECK_THAT(LarkError("start: <think>"), Contains("special tokens"));
  CHECK_THAT(LarkError("start[max_tokens]: \"a\""), Contains("max_tokens"));
  CHECK_THAT(LarkError("start: \"a\" ~ 3..2"), Contains("wrong way round"));
}

TEST_CASE("Templates, imports, overrides and repeats of Lark grammars", "[grammar][unit]") {
  const auto grammar = CompileLark(R"(
    %import common.INT
    %import common.ESCAPED_STRING -> TEXT
    start: pairs{key, INT}
         | "raw" TEXT       -> raw
    pairs{k, v}: k "=" v (";" k "=" v) ~ 0..2
    key: "a"
    %override key: "b"
    %extend key: "c"
    !?unused.3: "z")");
  CHECK(Matches(grammar, "b=12;c=3"));
  CHECK(Matches(grammar, "raw\"a\\\"\\\\\""));
  CHECK_FALSE(Matches(grammar, "a=1"));
  CHECK_FALSE(Matches(grammar, "b=1;b=2;b=3;b=4"));
  CHECK_FALSE(Matches(grammar, "raw\"a\"b\""));
}

TEST_CASE("A lazy terminal ends where it first can", "[grammar][unit]") {
  const auto grammar = CompileLark("start: C \"x\"\n%import common.C_COMMENT -> C");
  CHECK(Matches(grammar, "/* a * / \n*/x"));
  CHECK_FALSE(Matches(grammar, "/* a */ b */x"));
  CHECK(Matches(CompileLark("start: T \"!\"\nT[lazy]: /a+/"), "a!"));
  CHECK_FALSE(Matches(CompileLark("start: T \"!\"\nT[lazy]: /a+/"), "aa!"));
}

TEST_CASE("A Lark grammar may hold JSON by a schema", "[grammar][unit]") {
  const auto grammar = CompileLark(
      "start: \"call \" %json {\"type\": \"object\", \"properties\": {\"}\": {\"type\": "
      "\"integer\"}},"
      " \"required\": [\"}\"], \"additionalProperties\": false} \".\"");
  CHECK(Matches(grammar, "call {\"}\": 12}."));
  CHECK_FALSE(Matches(grammar, "call {}."));
}

TEST_CASE("A string of a JSON schema may have a Lark grammar", "[grammar][unit]") {
  const nlohmann::json schema = {
      {"type", "object"},
      {"properties",
       {{"input", {{"type", "string"}, {"x-lark", "start: \"say \\\"\" /[a\\n\\\\]+/ \"\\\"\""}}}}},
      {"required", {"input"}},
      {"additionalProperties", false}};
  const auto grammar = ParseJsonSchema(schema.dump(), {});
  INFO(grammar.status().message());
  REQUIRE(grammar.ok());
  const auto compiled = CompileOrDie(*grammar);
  CHECK(Matches(compiled, R"({"input": "say \"aa\n\\\""})"));
  CHECK_FALSE(Matches(compiled, R"({"input": "say aa"})"));
  CHECK_FALSE(Matches(compiled, R"({"input": "say \"b\""})"));
  CHECK_FALSE(ParseJsonSchema(R"({"type": "string", "x-lark": "start: a"})", {}).ok());
  CHECK_FALSE(ParseJsonSchema(R"({"x-lark": "start: \"a\"", "maxLength": 1})", {}).ok());
}

TEST_CASE("Lark is told from GBNF by the first definition", "[grammar][unit]") {
  for (const char* lark : {"start: \"a\"", "  // x\n\n# y\n?start : a", "%import common.INT",
                           "start.2: \"::=\"", "list{x}: x", "%llguidance {}\nstart: \"a\""}) {
    INFO(lark);
    CHECK(IsLark(lark));
  }
  for (const char* gbnf : {"root ::= \"a\"", "# x: y\nroot  ::= [a-z]", "root = a", ""}) {
    INFO(gbnf);
    CHECK_FALSE(IsLark(gbnf));
  }
}

// Each is a kilobyte or little more.
TEST_CASE("Hostile Lark grammars are compiled or refused within the budget", "[grammar][hostile]") {
  const auto repeated = [](std::string_view part, int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += part;
    return text;
  };
  std::string chain = "start: r0\n";
  for (int i = 0; i < 3000; ++i) {
    chain += "r" + std::to_string(i) + ": r" + std::to_string(i + 1) + "? \"a\"?\n";
  }
  chain += "r3000: start? \"b\"\n%ignore \" \"";
  std::string terminals = "start: T0\n";
  for (int i = 0; i < 60; ++i) {
    terminals += "T" + std::to_string(i) + ": T" + std::to_string(i + 1) + " T" +
                 std::to_string(i + 1) + "\n";
  }
  terminals += "T60: \"a\"";
  for (const std::string& text :
       {"start: " + repeated("(", 2000) + "\"a\"", "start: " + repeated("[\"a\"] ", 2000),
        "start: " + repeated("(", 100) + "\"a\"" + repeated("? \"b\"?)*", 100) + "\n%ignore \" \"",
        "start: a{" + repeated("a{", 500) + "\"x\"" + repeated("}", 501) + "\na{x}: x",
        std::string("start: a{\"x\"}\na{x}: b{x} \"y\"\nb{x}: a{c{x}}\nc{x}: x"), chain, terminals,
        std::string("start: (((\"a\" ~ 60000) ~ 60000) ~ 60000)"),
        std::string("start: /((a?){300}){300}/"), std::string("start: start? start? start? \"a\"?"),
        "start: " + repeated("start | ", 500) + "\"a\"",
        std::string("start: A+ A+ A+ A+ A+ A+ A+\nA: /[a-z]*/\n%ignore /[a-z]*/")}) {
    Budget budget;
    const absl::StatusOr<Grammar> grammar = ParseLark(text, &budget);
    const absl::Status status =
        grammar.ok() ? Compile(*grammar, &budget).status() : grammar.status();
    INFO(text.substr(0, 80) << ": " << budget.spent() << " " << status.message());
    CHECK(budget.spent() < Budget::kMaxUnits + 8'000'000);
    CHECK((status.ok() || absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status)));
  }
}

}  // namespace
}  // namespace heddle::engine::grammar
