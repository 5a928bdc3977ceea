// Grammars against languages that are known otherwise, by enumeration of all short texts.
#include <algorithm>
#include <set>
#include <string>

#include "catch2/catch.hpp"
#include "tests/grammar/testing.h"

namespace heddle {
namespace {

using test::CheckLanguage;
using test::CompileGbnf;

// Whether brackets are balanced, by counting.
bool IsBalanced(std::string_view text) {
  int depth = 0;
  for (char c : text) {
    depth += c == '(' ? 1 : -1;
    if (depth < 0) return false;
  }
  return depth == 0;
}

TEST_CASE("A recursive rule derives the balanced brackets", "[grammar][unit]") {
  CheckLanguage(CompileGbnf(R"g(root ::= "" | "(" root ")" root)g"), "()", 10, 5, IsBalanced);
}

TEST_CASE("The same language by an ambiguous grammar is the same", "[grammar][unit]") {
  // Every concatenation can be cut in many ways.
  CheckLanguage(CompileGbnf(R"g(root ::= "" | some
                               some ::= "(" root ")" | some some)g"),
                "()", 10, 5, IsBalanced);
}

TEST_CASE("Palindromes need all ways to be followed at once", "[grammar][unit]") {
  CheckLanguage(
      CompileGbnf(R"g(root ::= "a" root "a" | "b" root "b" | "a" | "b" | "")g"), "ab", 9, 9,
      [](std::string_view text) { return std::equal(text.begin(), text.end(), text.rbegin()); });
}

TEST_CASE("As many b as a, and bound to nothing else", "[grammar][unit]") {
  CheckLanguage(CompileGbnf(R"g(root ::= "a" root "b" | "c"*)g"), "abc", 8, 4,
                [](std::string_view text) {
                  const size_t a = std::min(text.find_first_not_of('a'), text.size());
                  size_t b = 0;
                  while (b < text.size() - a && text[text.size() - 1 - b] == 'b') ++b;
                  const auto middle = text.substr(a, text.size() - a - b);
                  return a == b && middle.find_first_not_of('c') == std::string_view::npos;
                });
}

TEST_CASE("Direct left recursion is a loop", "[grammar][unit]") {
  // sum ::= sum "+" term | term, in the notation of compiler books.
  CheckLanguage(CompileGbnf(R"g(root ::= root "+" term | term
                               term ::= "x" | "(" root ")")g"),
                "x+()", 7, 4, [](std::string_view text) {
                  // A reference by reduction: term is x or (sum); x+x is x.
                  std::string s(text);
                  for (size_t at;
                       (at = std::min(s.find("(x)"), s.find("x+x"))) != std::string::npos;) {
                    s.replace(at, 3, 1, 'x');
                  }
                  return s == "x";
                });
}

TEST_CASE("Left recursion by way of other rules is a loop, too", "[grammar][unit]") {
  // A name, with calls and indices behind it.
  CheckLanguage(CompileGbnf(R"g(root ::= postfix
                               postfix ::= "x" | call | index
                               call ::= postfix "(" ")"
                               index ::= postfix "[" postfix "]")g"),
                "x()[]", 6, 4, [](std::string_view text) {
                  std::string s(text);
                  for (size_t at; (at = std::min(s.find("x()"), s.find("x[x]"))) != s.npos;) {
                    s.replace(at, s[at + 1] == '(' ? 3 : 4, 1, 'x');
                  }
                  return s == "x";
                });
  CheckLanguage(CompileGbnf("root ::= a\na ::= b\nb ::= c | \"1\"\nc ::= a | c \"2\""), "12", 6, 3,
                [](std::string_view text) {
                  return text.starts_with('1') && text.find('1', 1) == text.npos;
                });
  // A rule that may be empty is no way around the loop if it belongs to the loop.
  CheckLanguage(CompileGbnf(R"g(root ::= x y
                               x ::= y? "a" | ""
                               y ::= x y "b" | "c")g"),
                "abc", 4, 2, [](std::string_view text) {
                  // The least sets of texts that fit the two rules.
                  static const std::set<std::string> known = [] {
                    std::set<std::string> x = {"", "a"};
                    std::set<std::string> y = {"c"};
                    for (bool grows = true; grows;) {
                      const size_t before = x.size() + y.size();
                      for (const std::string& one : std::set(y)) x.insert(one + "a");
                      for (const std::string& one : std::set(x)) {
                        for (const std::string& two : std::set(y)) y.insert(one + two + "b");
                      }
                      std::erase_if(x, [](const std::string& s) { return s.size() > 4; });
                      std::erase_if(y, [](const std::string& s) { return s.size() > 4; });
                      grows = x.size() + y.size() > before;
                    }
                    std::set<std::string> all;
                    for (const std::string& one : x) {
                      for (const std::string& two : y) all.insert(one + two);
                    }
                    return all;
                  }();
                  return known.contains(std::string(text));
                });
}

TEST_CASE("Counted repeats count", "[grammar][unit]") {
  CheckLanguage(CompileGbnf(R"g(root ::= "a"{2,4} ("b" "a"?){1} "c"{2,} "d"{0,1})g"), "abcd", 9, 4,
                [](std::string_view text) {
                  auto run = [&text](char c) {
                    const size_t n = std::min(text.find_first_not_of(c), text.size());
                    text.remove_prefix(n);
                    return n;
                  };
                  const size_t a = run('a');
                  const size_t b = run('b');
                  const size_t a2 = run('a');
                  const size_t c = run('c');
                  const size_t d = run('d');
                  return a >= 2 && a <= 4 && b == 1 && a2 <= 1 && c >= 2 && d <= 1 && text.empty();
                });
}

TEST_CASE("Two bodies that begin alike with a shared rule stay apart behind it",
          "[grammar][unit]") {
  // The same nested rule is under way for two reasons: only one of them survives the last byte.
  CheckLanguage(CompileGbnf(R"g(root ::= one | two
                               one ::= "[" inner "]" "1"
                               two ::= "[" inner "]" "2"
                               inner ::= "" | one | two)g"),
                "[]12", 9, 6, [](std::string_view text) {
                  // By reduction: [..]1 and [..]2 are elements, which may nest once each.
                  if (text.empty()) return false;
                  while (text.size() >= 3 && text[0] == '[' && text[text.size() - 2] == ']' &&
                         (text.back() == '1' || text.back() == '2')) {
                    text = text.substr(1, text.size() - 3);
                  }
                  return text.empty();
                });
}

TEST_CASE("Deep nesting ends at the stack's bound and can always be closed", "[grammar][unit]") {
  auto grammar = CompileGbnf(R"g(root ::= "[" root "]" | "x")g");
  engine::grammar::Matcher matcher(grammar);
  int depth = 0;
  while (matcher.AcceptText("[")) ++depth;
  CHECK(depth > 400);
  CHECK(depth < 700);
  REQUIRE(matcher.AcceptText("x"));
  for (; depth > 0; --depth) REQUIRE(matcher.AcceptText("]"));
  CHECK(matcher.CanEnd());
}

TEST_CASE("Alternatives under recursion do not multiply", "[grammar][unit]") {
  // 2^60 stacks without sharing.
  auto grammar = CompileGbnf(R"g(root ::= "(" root ")" | "(" root "]" | "x")g");
  engine::grammar::Matcher matcher(grammar);
  REQUIRE(matcher.AcceptText(std::string(60, '(') + "x" + std::string(30, ')')));
  REQUIRE(matcher.AcceptText(std::string(30, ']')));
  CHECK(matcher.CanEnd());
}

}  // namespace
}  // namespace heddle
