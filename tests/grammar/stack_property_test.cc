// The merged stack of contexts against a recogniser that keeps every stack by itself: in random
// small grammars, full of rules that may be empty and of ways to read one text, both take the same
// beginnings and the same texts.
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/message.h"
#include "catch2/catch.hpp"
#include "engine/grammar/automaton.h"
#include "engine/grammar/context_pool.h"
#include "engine/grammar/gbnf.h"
#include "tests/grammar/testing.h"

namespace heddle::test {
namespace {

using base::StrCat;
using engine::grammar::Automaton;
using engine::grammar::ContextId;
using engine::grammar::ContextPool;
using engine::grammar::Expr;
using engine::grammar::ExprId;
using engine::grammar::ExprKind;
using engine::grammar::Grammar;
using engine::grammar::kDeadContext;

// By definition: the ends that an expression can come to from a place of the text, as the least
// fixed point over all rules and places. `text` is what is read; whether it may go on behind its
// end is told by `may_go_on`.
class Definition {
 public:
  Definition(const Grammar& grammar, std::string text) : grammar_(grammar), text_(std::move(text)) {
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t rule = 0; rule < grammar_.rules.size(); ++rule) {
        for (size_t at = 0; at <= text_.size(); ++at) {
          std::set<size_t>& known = ends_[{rule, at}];
          const std::set<size_t> now = EndsOf(grammar_.rules[rule].body, at);
          if (now == known) continue;
          known = now;
          changed = true;
        }
      }
    }
  }

  bool Derives() { return ends_[{Index(grammar_.root), 0}].contains(text_.size()); }

 private:
  std::set<size_t> EndsOf(ExprId id, size_t at) {
    const Expr& expr = grammar_.exprs[Index(id)];
    std::set<size_t> ends;
    switch (expr.kind) {
      case ExprKind::kText: {
        const std::string bytes(expr.text.begin(), expr.text.end());
        if (text_.compare(at, bytes.size(), bytes) == 0) ends.insert(at + bytes.size());
        return ends;
      }
      case ExprKind::kChars:
        if (at < text_.size() && expr.chars.Contains(static_cast<unsigned char>(text_[at]))) {
          ends.insert(at + 1);
        }
        return ends;
      case ExprKind::kSequence:
        ends.insert(at);
        for (ExprId part : expr.parts) ends = EndsFrom(part, ends);
        return ends;
      case ExprKind::kChoice:
        for (ExprId part : expr.parts) ends.merge(EndsOf(part, at));
        return ends;
      case ExprKind::kRepeat:
        return EndsOfRepeat(expr, at);
      case ExprKind::kRule:
        return ends_[{Index(expr.rule), at}];
      default:
        FAIL("an expression of another kind");
        return ends;
    }
  }

  std::set<size_t> EndsFrom(ExprId part, const std::set<size_t>& from) {
    std::set<size_t> ends;
    for (size_t at : from) ends.merge(EndsOf(part, at));
    return ends;
  }

  std::set<size_t> EndsOfRepeat(const Expr& expr, size_t at) {
    std::set<size_t> from = {at};
    for (int i = 0; i < expr.min; ++i) from = EndsFrom(expr.parts[0], from);
    std::set<size_t> ends = from;
    // More turns than bytes bring nothing new.
    const int most = expr.max < 0 ? static_cast<int>(text_.size()) + 1 : expr.max - expr.min;
    for (int i = 0; i < most && !from.empty(); ++i) {
      from = EndsFrom(expr.parts[0], from);
      ends.insert(from.begin(), from.end());
    }
    return ends;
  }

  const Grammar& grammar_;
  const std::string text_;
  std::map<std::pair<size_t, size_t>, std::set<size_t>> ends_;
};

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  int Below(int count) { return static_cast<int>(engine_() % static_cast<uint32_t>(count)); }

 private:
  std::mt19937 engine_;
};

constexpr int kRules = 4;

std::string RandomBody(Random* random, int depth) {
  std::string body;
  const int parts = 1 + random->Below(3);
  for (int i = 0; i < parts; ++i) {
    if (i > 0) body += random->Below(3) == 0 ? " | " : " ";
    const int kind = random->Below(depth > 2 ? 5 : 8);
    if (kind < 2) body += random->Below(2) == 0 ? "\"a\"" : "\"b\"";
    if (kind == 2) body += "\"\"";
    if (kind == 3 || kind == 4) body += StrCat("r", random->Below(kRules));
    if (kind >= 5) body += StrCat("(", RandomBody(random, depth + 1), ")");
    const char* const kRepeats[] = {"", "", "", "?", "*", "{0,2}", "{2}", "+"};
    body += kRepeats[random->Below(8)];
  }
  return body;
}

std::string RandomGrammar(uint32_t seed) {
  Random random(seed);
  std::string text = "root ::= r0\n";
  for (int i = 0; i < kRules; ++i) text += StrCat("r", i, " ::= ", RandomBody(&random, 0), "\n");
  return text;
}

TEST_CASE("A merged stack takes just the texts that the grammar derives", "[grammar][hostile]") {
  const std::vector<std::string> texts = AllTexts("ab", 4);
  int compiled = 0;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    const std::string gbnf = RandomGrammar(seed);
    const auto grammar = engine::grammar::ParseGbnf(gbnf);
    REQUIRE(grammar.ok());
    const auto automaton = Compile(*grammar);
    if (!automaton.ok()) continue;  // left-recursive, or derives nothing
    ++compiled;
    ContextPool pool(&*automaton);
    for (const std::string& text : texts) {
      ContextId context = pool.Start();
      for (char c : text) {
        context = pool.Step(context, automaton->byte_class(static_cast<uint8_t>(c)));
      }
      const bool taken = context != kDeadContext && pool.CanEnd(context);
      if (taken == Definition(*grammar, text).Derives()) continue;
      INFO("seed " << seed << "\n" << gbnf << "text \"" << text << "\"");
      CHECK(taken == Definition(*grammar, text).Derives());
      return;
    }
  }
  CHECK(compiled > 100);
}

TEST_CASE("A beginning is taken where some text goes on from it", "[grammar][hostile]") {
  for (uint32_t seed = 0; seed < 400; ++seed) {
    const auto grammar = engine::grammar::ParseGbnf(RandomGrammar(seed));
    REQUIRE(grammar.ok());
    const auto automaton = Compile(*grammar);
    if (!automaton.ok()) continue;
    ContextPool pool(&*automaton);
    // Every prefix of a derived text is accepted, and every accepted text reads on or ends.
    for (const std::string& text : AllTexts("ab", 5)) {
      ContextId context = pool.Start();
      for (char c : text) {
        context = pool.Step(context, automaton->byte_class(static_cast<uint8_t>(c)));
      }
      if (context == kDeadContext) continue;
      INFO("seed " << seed << " text \"" << text << "\"");
      REQUIRE((pool.CanEnd(context) || pool.ReadsOn(context)));
    }
  }
}

}  // namespace
}  // namespace heddle::test
