// A context-free grammar, the output of the parsers (GBNF, regular expressions, JSON Schema): rules
// whose bodies are expressions over Unicode code points. engine/grammar/compile.cc compiles it.
//
// Expressions are in one arena and refer to each other by id; an expression may be used twice.
// Plain data, built by one thread and then only read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/grammar/code_points.h"
#include "engine/grammar/state_machine.h"

namespace heddle::engine::grammar {

enum class ExprId : int32_t {};
enum class RuleId : int32_t {};

inline size_t Index(ExprId id) { return static_cast<size_t>(id); }
inline size_t Index(RuleId id) { return static_cast<size_t>(id); }

enum class ExprKind : uint8_t {
  kText,      // `text`, possibly empty
  kChars,     // one code point of `chars`
  kSequence,  // all `parts` in order
  kChoice,    // one of `parts`
  kRepeat,    // parts[0], `min` to `max` times
  kRule,      // the texts of `rule`
  kMachine,   // the texts of machines[`machine`]
  kBegin,     // the start of the text (regular expressions only)
  kEnd,       // the end of the text (regular expressions only)
  kAhead,  // nothing, if the rest of the text is one of machines[`machine`]; only while a regular
           // expression is parsed
};

inline constexpr int32_t kUnbounded = -1;

struct Expr {
  ExprKind kind = ExprKind::kText;
  std::u32string text;
  CodePointSet chars;
  std::vector<ExprId> parts;
  int32_t min = 0;
  int32_t max = 0;  // or kUnbounded
  RuleId rule{};
  int32_t machine = 0;
};

struct Rule {
  std::string name;  // for messages
  ExprId body{};
  // JSON values in the rule's texts are objects with all keys different and arrays with all items
  // different, each text being one of them (distinct_values.h).
  bool is_distinct = false;
  std::string note = {};  // for messages: why the rule derives nothing, if it does not
};

struct Grammar {
  std::vector<Expr> exprs;
  std::vector<Rule> rules;
  std::vector<StateMachine> machines;
  RuleId root{};

  ExprId Text(std::u32string_view text);
  ExprId Text(std::string_view utf8);  // REQUIRES: well-formed
  ExprId Chars(CodePointSet chars);
  ExprId Sequence(std::vector<ExprId> parts);
  ExprId Choice(std::vector<ExprId> parts);  // REQUIRES: not empty
  ExprId Repeat(ExprId part, int32_t min, int32_t max);
  ExprId Call(RuleId rule);
  ExprId Machine(StateMachine machine);
  ExprId Anchor(ExprKind kind);

  // Declares a rule whose body is set later, so that others may refer to it.
  RuleId DeclareRule(std::string name);
  RuleId AddRule(std::string name, ExprId body);

  // Moves another grammar's rules into this one; returns its root.
  RuleId Append(Grammar other);

 private:
  ExprId Add(Expr expr);
};

// Bounds on untrusted grammars.
inline constexpr int32_t kMaxRepeat = 1 << 16;      // of one {m,n}
inline constexpr int32_t kMaxNesting = 128;         // of groups in a source text
inline constexpr size_t kMaxSourceBytes = 1 << 18;  // of a grammar, expression or schema
// States of one rule, and of the grammar of a short text (budget.h); each takes some 300 bytes
// during compilation.
inline constexpr int32_t kMaxStates = 1 << 17;

}  // namespace heddle::engine::grammar
