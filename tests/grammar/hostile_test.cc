// Grammars, expressions and schemas that somebody sends to keep the server busy: they compile, or
// are refused, within a budget of work, and so are the masks and tokens of those that compile. Work
// is counted in units and not in seconds: a family of inputs that grows by a factor may take a
// power of that factor more, and no more.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "base/message.h"
#include "catch2/catch.hpp"
#include "engine/grammar/budget.h"
#include "engine/grammar/context_pool.h"
#include "engine/grammar/gbnf.h"
#include "engine/grammar/grammar_compiler.h"
#include "engine/grammar/regex.h"
#include "engine/grammar/schema/json_schema.h"
#include "tests/grammar/testing.h"

namespace heddle::test {
namespace {

using base::StrCat;
using engine::grammar::Automaton;
using engine::grammar::Budget;
using engine::grammar::CompiledGrammar;
using engine::grammar::Constraint;
using engine::grammar::ConstraintKind;
using engine::grammar::ContextId;
using engine::grammar::ContextPool;
using engine::grammar::GrammarOf;
using engine::grammar::kDeadContext;
using engine::grammar::Matcher;

std::string Repeated(std::string_view text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

// A chain of rules, each of which `body` writes in terms of the next; the last one reads an a.
std::string Chain(int length, const std::function<std::string(const std::string&)>& body) {
  std::string text = "root ::= r0\n";
  for (int i = 0; i < length; ++i) {
    text += StrCat("r", i, " ::= ", body(StrCat("r", i + 1)), "\n");
  }
  return text + StrCat("r", length, " ::= \"a\"\n");
}

struct Family {
  const char* name;
  std::function<std::string(int)> gbnf;
};

const std::vector<Family>& Families() {
  static const std::vector<Family> kFamilies = {
      {"two of the next, or nothing",
       [](int n) { return Chain(n, [](const auto& r) { return StrCat(r, " ", r, " | \"\""); }); }},
      {"two of the next, each optional",
       [](int n) { return Chain(n, [](const auto& r) { return StrCat(r, "? ", r, "?"); }); }},
      {"optional repeats of the next",
       [](int n) { return Chain(n, [](const auto& r) { return StrCat("(", r, "?)*"); }); }},
      {"nested optional repeats of a group",
       [](int n) {
         return StrCat("root ::= ", Repeated("(", n), "\"a\"", Repeated("?)*", n), "\n");
       }},
      {"nested repeats of two optional rules",
       [](int n) {
         return Chain(n, [](const auto& r) { return StrCat("((", r, "? ", r, "?)* ", r, "?)*"); });
       }},
      {"unit rules one behind the other",
       [](int n) { return Chain(n, [](const auto& r) { return StrCat(r, " | ", r, " \"b\""); }); }},
      {"rules that call all that come after",
       [](int n) {
         std::string text = "root ::= r0\n";
         for (int i = 0; i < n; ++i) {
           text += StrCat("r", i, " ::= \"a\"");
           for (int k = i + 1; k < n; ++k) text += StrCat(" | r", k, " r", k);
           text += " | \"\"\n";
         }
         return text;
       }},
      {"a rule that reads, and comes back to itself in many ways",
       [](int n) {
         std::string text = "root ::= \"a\"";
         for (int i = 1; i <= n; ++i) text += StrCat(" | \"a\"", Repeated(" root", i));
         return text + "\n";
       }},
      {"the same behind something optional",
       [](int n) {
         std::string text = "root ::= r\nr ::= \"a\" | \"a\" (r r)?";
         for (int i = 1; i <= n; ++i) text += StrCat(" | \"a\" r", Repeated(" (r | \"\")", i));
         return text + "\n";
       }},
      {"palindromes of a single letter",
       [](int n) {
         return Chain(n, [](const auto& r) { return StrCat("\"a\" ", r, " \"a\" | ", r); });
       }},
      {"counted repeats of a rule that may be empty",
       [](int n) {
         return StrCat("root ::= (x{0,", n, "}){0,", n, "}\nx ::= \"a\"? y\ny ::= \"a\"*");
       }},
  };
  return kFamilies;
}

struct Cost {
  bool compiles = false;
  int64_t compiling = 0;
  int64_t reading = 0;  // of a text of a's
};

constexpr int kTextBytes = 24;
constexpr int64_t kMaxReading = 50'000'000;

Cost CostOf(const std::string& gbnf) {
  INFO(gbnf.substr(0, 300));
  Budget budget;
  Cost cost;
  const auto grammar = engine::grammar::ParseGbnf(gbnf, &budget);
  REQUIRE(grammar.ok());
  const auto automaton = Compile(*grammar, &budget);
  cost.compiles = automaton.ok();
  cost.compiling = budget.spent();
  if (!automaton.ok()) return cost;
  ContextPool pool(&*automaton);
  pool.LimitWork(kMaxReading, size_t{1} << 30);
  ContextId context = pool.Start();
  for (int i = 0; i < kTextBytes && context != kDeadContext; ++i) {
    static_cast<void>(pool.CanEnd(context));
    context = pool.Step(context, automaton->byte_class('a'));
  }
  cost.reading = pool.work();
  return cost;
}

TEST_CASE("Work for ambiguous grammars grows as a power of their size", "[grammar][hostile]") {
  for (const Family& family : Families()) {
    const Cost small = CostOf(family.gbnf(6));
    const Cost large = CostOf(family.gbnf(24));
    INFO(family.name << ": " << small.compiling << " and " << small.reading
                     << ", four times: " << large.compiling << " and " << large.reading);
    CHECK(small.compiles == large.compiles);
    // Four times the size: the fifth power of it, and no exponential of it.
    CHECK(large.compiling <= 1024 * (small.compiling + 100));
    CHECK(large.reading <= 1024 * (small.reading + 100));
    CHECK(large.compiling < 2'000'000);
    CHECK(large.reading < kMaxReading);
  }
}

// The issue's own case: 2^40 ways to read nothing.
TEST_CASE("Forty rules of two optional rules each compile, and read, in little work",
          "[grammar][hostile]") {
  for (const char* body : {"% % | \"\"", "%? %?", "(% | \"\") (\"\" | %)", "(%?)* %?"}) {
    const std::string text = Chain(40, [body](const std::string& next) {
      std::string out;
      for (const char* c = body; *c != 0; ++c) *c == '%' ? out += next : out += *c;
      return out;
    });
    const Cost cost = CostOf(text);
    INFO(body << ": " << cost.compiling << ", " << cost.reading);
    CHECK(cost.compiles);
    CHECK(cost.compiling < 100'000);
    CHECK(cost.reading < 5'000'000);
    const auto grammar = CompileGbnf(text);
    CHECK(Matches(grammar, ""));
    CHECK(Matches(grammar, std::string(20, 'a')));
    CHECK_FALSE(Matches(grammar, "ab"));
  }
}

TEST_CASE("Left recursion that is hidden by what may be empty is refused, however long the way",
          "[grammar][hostile]") {
  // Through optional rules, through each other, through units, and through all at once.
  const std::string chain = [] {
    std::string text = "root ::= r0\n";
    for (int i = 0; i < 3000; ++i) text += StrCat("r", i, " ::= x? y* r", i + 1, " | \"b\"\n");
    return text + "r3000 ::= r0 \"a\"\nx ::= \"x\"\ny ::= \"y\"?\n";
  }();
  for (const std::string& text :
       {std::string("root ::= e a\na ::= e b\nb ::= c | \"1\"\nc ::= a\ne ::= \"e\"?"),
        std::string("root ::= e root \"a\" | \"b\"\ne ::= \"\" | \"e\""), chain}) {
    Budget budget;
    const auto grammar = engine::grammar::ParseGbnf(text, &budget);
    REQUIRE(grammar.ok());
    const absl::Status status = Compile(*grammar, &budget).status();
    CHECK(absl::IsInvalidArgument(status));
    CHECK(std::string(status.message()).find("left recursion") != std::string::npos);
    CHECK(status.message().size() < 2000);
    CHECK(budget.spent() < 1'000'000);
  }
}

absl::Status TryCompile(const Constraint& constraint, Budget* budget) {
  const auto grammar = GrammarOf(constraint, budget);
  if (!grammar.ok()) return grammar.status();
  return Compile(*grammar, budget).status();
}

Constraint Regex(std::string text) {
  return {.kind = ConstraintKind::kRegex, .text = std::move(text)};
}
Constraint Schema(std::string text) {
  Constraint constraint;
  constraint.text = std::move(text);
  return constraint;
}

std::string Joined(int count, std::string_view separator,
                   const std::function<std::string(int)>& part) {
  std::string out;
  for (int i = 0; i < count; ++i) out += StrCat(i > 0 ? separator : "", part(i));
  return out;
}

std::string CodePoint(char32_t c) {
  std::string out;
  if (c < 0x80) return std::string(1, static_cast<char>(c));
  if (c < 0x800) {
    out.push_back(static_cast<char>(0xC0 | c >> 6));
  } else {
    out.push_back(static_cast<char>(0xE0 | c >> 12));
    out.push_back(static_cast<char>(0x80 | (c >> 6 & 63)));
  }
  out.push_back(static_cast<char>(0x80 | (c & 63)));
  return out;
}

TEST_CASE("Expressions that are cheap to write and dear to read end within the budget",
          "[grammar][hostile]") {
  const std::string sparse = Joined(30'000, "", [](int i) {
    return CodePoint(static_cast<char32_t>(0x100 + 2 * i < 0xD800 ? 0x100 + 2 * i : 'a'));
  });
  const std::vector<std::string> texts = {
      "(a*)*b",
      "(a|a)*",
      "((a?){30}){30}",
      "((a?){300}){300}",
      "(((((a*)*)*)*)*)*",
      "(a|b)*a(a|b){24}",
      "(x+x+)+y",
      "(.*a){40}",
      "(.*)(.*)(.*)(.*)(.*)(.*)(.*)(.*)z",
      Repeated("(a|", 100) + "b" + Repeated(")*", 100),
      StrCat("[", sparse, "]{1,60000}"),
      StrCat("([", sparse, "]|[^", sparse, "]){1,200}"),
      StrCat("[", Repeated("\\pL\\PN", 20'000), "]"),
      "(\\pL|\\pM|\\pN|\\pS|\\pP|.){1,5000}",
      "((\\pL{1,90}){1,90}){1,90}",
      Joined(20'000, "|", [&](int i) { return CodePoint(0x4E00 + i) + "x"; }),
      StrCat("(?i)", Repeated("(|a)", 30'000)),
      Repeated("((?=.*a)b|c){1,4}", 8) + "(a|b|c){1,90}",
      StrCat(Repeated("((?!.*(a|b)*a(a|b){9})", 8), "(a|b)*", Repeated("|b)", 8)),
      StrCat("(", Repeated("x", 60'000), "(?=y))", Repeated("y", 30'000)),
      Repeated("^", 50'000) + "a" + Repeated("$", 50'000)};
  for (const std::string& text : texts) {
    INFO(text.substr(0, 60));
    Budget budget;
    const absl::Status status = TryCompile(Regex(text), &budget);
    INFO(status.ToString() << ", " << budget.spent());
    CHECK((status.ok() || absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status)));
    // Work that ends for want of budget ends at once.
    CHECK(budget.spent() < Budget::kMaxUnits + 10'000'000);
  }
}

TEST_CASE("Schemas that are cheap to write and dear to read end within the budget",
          "[grammar][hostile]") {
  const std::string name(100'000, 'n');
  const auto quoted_refs = [](int count, const char* keyword, const char* target) {
    return Joined(count, ",", [&](int i) {
      return StrCat("\"p", i, "\":{\"", keyword, "\":[", target, ",", target, "]}");
    });
  };
  const std::vector<std::string> texts = {
      // The repro of the issue: products of a format and a length.
      StrCat(R"({"type":"object","properties":{)",
             Joined(8, ",",
                    [](int i) {
                      return StrCat("\"p", i, R"(":{"type":"string","format":"uri","maxLength":)",
                                    90 + i, "}");
                    }),
             "}}"),
      // Alternatives that multiply, and then hold for nothing.
      StrCat(R"({"allOf":[)", Joined(40, ",", [](int) { return R"({"anyOf":[{},{},{}]})"; }),
             ",false]}"),
      StrCat(R"({"allOf":[)", Joined(60, ",", [](int) { return R"({"anyOf":[true,true]})"; }),
             R"(,{"type":"string"}]})"),
      // References that lead to each other, in products.
      StrCat(R"({"$defs":{)",
             Joined(40, ",",
                    [](int i) {
                      const std::string next = StrCat("{\"$ref\":\"#/$defs/d", (i + 1) % 40, "\"}");
                      return StrCat("\"d", i, "\":{\"anyOf\":[", next, ",", next,
                                    ",{\"type\":\"array\",\"items\":", next, "}]}");
                    }),
             R"(},"$ref":"#/$defs/d0"})"),
      StrCat(R"({"properties":{)", quoted_refs(900, "allOf", R"({"$ref":"#"})"), "}}"),
      StrCat(R"({"$anchor":"z","properties":{)",
             quoted_refs(900, "anyOf", R"({"$ref":"#y"},{"$ref":"#z"})"), "}}"),
      // A name that is long and stands above many places.
      StrCat(R"({"properties":{")", name, R"(":{"properties":{)",
             Joined(1000, ",", [](int i) { return StrCat("\"p", i, "\":{\"items\":{}}"); }),
             "}}}}"),
      // Lists that are compared with each other.
      StrCat(R"({"allOf":[{"enum":[)", Joined(1000, ",", [](int i) { return StrCat(i); }),
             R"(]},{"enum":[)", Joined(1000, ",", [](int i) { return StrCat(-i); }), "]}]}"),
      StrCat(R"({"oneOf":[)",
             Joined(1000, ",", [](int i) { return StrCat("{\"const\":", i, "}"); }), "]}"),
      // Long texts times the sets of those written before.
      StrCat(R"({"type":"array","uniqueItems":true,"items":{"enum":[)",
             Joined(8, ",", [](int i) { return StrCat("\"", std::string(25'000, 'a' + i), "\""); }),
             "]}}"),
      // A pattern for each key, compiled for each name.
      StrCat(R"({"type":"object","properties":{)",
             Joined(1000, ",", [](int i) { return StrCat("\"p", i, "\":{}"); }),
             R"(},"patternProperties":{"(\\pL|.){1,400}x":{},"(.*a){9}":{},"b{1,900}":{}}})"),
      R"({"type":"object","propertyNames":{"pattern":"(a|b)*a(a|b){14}"},
          "patternProperties":{"(a|b)*b(a|b){14}":{},"(a|b)*c(a|b){14}":{}}})",
      R"({"type":"array","minItems":60000,"maxItems":65000,"items":{"type":"array","minItems":60000}})",
      R"({"type":"string","minLength":65000,"maxLength":65536,"pattern":"(a|b)*c"})",
      R"({"type":"number","multipleOf":0.99991,"minimum":0,"maximum":1e30})",
  };
  for (const std::string& text : texts) {
    INFO(text.substr(0, 80));
    Budget budget;
    const absl::Status status = TryCompile(Schema(text), &budget);
    INFO(std::string(status.message()).substr(0, 300) << ", " << budget.spent());
    CHECK((status.ok() || absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status)));
    CHECK(budget.spent() < Budget::kMaxUnits + 10'000'000);
    CHECK(status.message().size() < 4000);
  }
}

TEST_CASE("Long lists of values compile in proportion to their length", "[grammar][hostile]") {
  const auto spent = [](const std::string& text) {
    Budget budget;
    const absl::Status status = TryCompile(Schema(text), &budget);
    INFO(status.message());
    CHECK(status.ok());
    return budget.spent();
  };
  const auto list = [](int size) {
    return StrCat("{\"enum\":[", Joined(size, ",", [](int i) { return StrCat(i); }), "]}");
  };
  CHECK(spent(list(20'000)) < 15 * spent(list(2'000)));
  // The values of two lists that both hold.
  const auto both = [&list](int size) {
    return StrCat("{\"allOf\":[", list(size), ",", list(size), "]}");
  };
  CHECK(spent(both(10'000)) < 15 * spent(both(1'000)));
  // A value that stands twice in a list is written once.
  CHECK(spent(R"({"enum":[1,1.0,1,{"a":1,"b":2},{"b":2,"a":1.0}]})") < 20'000);
}

TEST_CASE("Grammars of many rules take work in proportion", "[grammar][hostile]") {
  // In the order in which each says nothing of the one before it; and each calls a thousand.
  const auto chain = [](int length) {
    std::string text = "root ::= r0\n";
    for (int i = 0; i < length; ++i)
      text += StrCat("r", i, " ::= r", i + 1, " | \"a\" r", i + 1, "\n");
    return text + StrCat("r", length, " ::= \"\"\n");
  };
  for (int length : {500, 4000}) {
    Budget budget;
    const auto grammar = engine::grammar::ParseGbnf(chain(length), &budget);
    REQUIRE(grammar.ok());
    static_cast<void>(Compile(*grammar, &budget));
    INFO(length << ": " << budget.spent());
    CHECK(budget.spent() < 1000 * length);
  }
}

TEST_CASE("What ends a compilation comes from whoever is asked", "[grammar][hostile]") {
  const std::vector<Constraint> slow = {
      Regex("(a|b)*a(a|b){24}"),
      Schema(R"({"type":"string","pattern":"(a|b)*a(a|b){11}","maxLength":400})"),
      {.kind = ConstraintKind::kGbnf, .text = Chain(3000, [](const std::string& next) {
                                        return StrCat("\"x\"{1,20} (", next, " | \"y\")*");
                                      })}};
  for (const Constraint& constraint : slow) {
    INFO(constraint.text.substr(0, 60));
    int asked = 0;
    Budget budget(Budget::kMaxUnits, [&asked]() -> absl::Status {
      if (++asked < 3) return absl::OkStatus();
      return absl::CancelledError("nobody waits");
    });
    CHECK_FALSE(TryCompile(constraint, &budget).ok());
    CHECK(budget.stopped());
    CHECK(absl::IsCancelled(budget.status()));
    CHECK(asked == 3);
    // Within one state or set of the third question.
    CHECK(budget.spent() < 3 * Budget::kAskUnits + 100'000);
  }
}

// Ambiguous in more ways than there are bytes: each letter is any of the classes.
std::string Ambiguous() {
  return "root ::= (s? s?)* \"!\"\ns ::= (a? b? c?)* | \"x\" s \"y\"\n"
         "a ::= [a-m] | [a-z] b? | \"x\" a? b?\nb ::= [f-z] | [a-z] c? a? | \"x\" b? c?\n"
         "c ::= [c-t] | a? [a-z] b? | \"x\" c? a? s?\n";
}

TEST_CASE("What a token and a mask may take is bounded, and past it the matcher has failed",
          "[grammar][hostile]") {
  std::vector<std::string> words;
  for (int i = 0; i < 2000; ++i) words.push_back(StrCat("x", i % 7 == 0 ? "xx" : "a", i, "xab"));
  const auto grammar = CompileGbnf(Ambiguous(), MakeVocabulary(words));
  Matcher matcher(grammar);
  for (int i = 0; i < 200 && matcher.failure().ok(); ++i) {
    const auto mask = matcher.Mask();
    if (!mask.ok()) break;
    if (!matcher.AcceptText("x")) break;
  }
  if (matcher.failure().ok()) return;  // it is not too ambiguous after all
  CHECK(absl::IsResourceExhausted(matcher.failure()));
  CHECK(matcher.Mask().status() == matcher.failure());
  CHECK_FALSE(matcher.AcceptText("x"));
  // Another text of the same grammar is none the worse for it.
  Matcher other(grammar);
  CHECK(other.Mask().ok());
  CHECK(other.AcceptText("a!"));
}

TEST_CASE("A search in parts finds what one search finds", "[grammar][hostile]") {
  const char* const kText =
      "root ::= (s? s?)* \"!\"\ns ::= a? b?\na ::= [a-m]+ | \"x\" b\n"
      "b ::= [f-z]+ a? | \"y\" s \"z\"\n";
  std::vector<std::string> words;
  for (int i = 0; i < 500; ++i)
    words.push_back(StrCat("x", std::string(1, "afyz"[i % 4]), i % 2 == 0 ? "m" : "z", i % 9, "!"));
  const auto whole = CompileGbnf(kText, MakeVocabulary(words));
  const auto parts = CompileGbnf(kText, MakeVocabulary(words));
  Matcher one(whole);
  Matcher two(parts);
  for (char c : std::string("axfmyfzx")) {
    int64_t slice = 16;
    auto found = two.Find(slice);
    int tries = 1;
    for (; found.ok() && *found == nullptr; ++tries) found = two.Find(slice *= 2);
    REQUIRE(found.ok());
    CHECK(**found == **one.Mask());
    REQUIRE(one.AcceptText(std::string(1, c)));
    REQUIRE(two.AcceptText(std::string(1, c)));
  }
}

}  // namespace
}  // namespace heddle::test
