#include "engine/grammar/grammar_compiler.h"

#include <algorithm>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/grammar/gbnf.h"
#include "engine/grammar/regex.h"
#include "engine/grammar/thompson.h"
#include "engine/text/utf8.h"

namespace heddle::engine::grammar {
namespace {

// Grammars kept for the next request; each may hold up to 100 MB of masks, mostly far less.
constexpr size_t kMaxRecent = 32;
// Masks computed ahead of the first token: what a client waits for once per schema.
constexpr int64_t kPrepareUs = 20'000;

void AppendKey(std::string_view part, std::string* key) {
  *key += base::StrCat(part.size(), ":", part);
}

std::string KeyOf(const Constraint& c) {
  std::string key = base::StrCat(static_cast<int>(c.kind), static_cast<int>(c.json.whitespace));
  for (std::string_view part :
       {std::string_view(c.text), std::string_view(c.json.whitespace_pattern),
        std::string_view(c.before), std::string_view(c.after), std::string_view(c.reasoning_close),
        std::string_view(c.reasoning_open)}) {
    AppendKey(part, &key);
  }
  for (const std::string& choice : c.choices) AppendKey(choice, &key);
  return key;
}

absl::StatusOr<Grammar> Bare(const Constraint& c) {
  if (c.kind == ConstraintKind::kJsonSchema) return ParseJsonSchema(c.text, c.json);
  if (c.kind == ConstraintKind::kGbnf) return ParseGbnf(c.text);
  Grammar grammar;
  if (c.kind == ConstraintKind::kRegex) {
    HEDDLE_ASSIGN_OR_RETURN(StateMachine machine, ParseRegex(c.text, RegexMatch::kWhole));
    grammar.root = grammar.AddRule("root", grammar.Machine(std::move(machine)));
    return grammar;
  }
  if (c.choices.empty()) return absl::InvalidArgumentError("there must be one choice at least");
  std::vector<ExprId> parts;
  size_t bytes = 0;
  for (const std::string& choice : c.choices) {
    bytes += choice.size();
    if (!text::IsValidUtf8(choice) || bytes > kMaxSourceBytes) {
      return absl::InvalidArgumentError(base::StrCat(
          "choices must be UTF-8 and together have at most ", kMaxSourceBytes, " bytes"));
    }
    parts.push_back(grammar.Text(std::string_view(choice)));
  }
  grammar.root = grammar.AddRule("root", grammar.Choice(std::move(parts)));
  return grammar;
}

// Any text that ends with the first `mark` in it.
absl::StatusOr<StateMachine> UpTo(std::string_view mark) {
  Grammar grammar;
  const ExprId any = grammar.Repeat(grammar.Chars(CodePointSet::All()), 0, kUnbounded);
  HEDDLE_ASSIGN_OR_RETURN(StateMachine machine,
                          MachineOf(grammar, grammar.Sequence({any, grammar.Text(mark)})));
  for (MachineState& state : machine.states) {
    if (state.accepting) state.chars.clear();
  }
  return machine;
}

}  // namespace

absl::StatusOr<Grammar> GrammarOf(const Constraint& c) {
  HEDDLE_ASSIGN_OR_RETURN(Grammar grammar, Bare(c));
  std::vector<ExprId> parts;
  if (!c.reasoning_close.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(StateMachine thoughts, UpTo(c.reasoning_close));
    const ExprId blank = grammar.Repeat(grammar.Text(U"\n"), 0, 2);
    ExprId reasoning = grammar.Sequence({grammar.Machine(std::move(thoughts)), blank});
    if (!c.reasoning_open.empty()) {
      reasoning = grammar.Optional(
          grammar.Sequence({grammar.Text(std::string_view(c.reasoning_open)), reasoning}));
    }
    parts.push_back(reasoning);
  }
  parts.push_back(grammar.Text(std::string_view(c.before)));
  parts.push_back(grammar.Call(grammar.root));
  parts.push_back(grammar.Text(std::string_view(c.after)));
  if (parts.size() > 3 || !c.before.empty() || !c.after.empty()) {
    grammar.root = grammar.AddRule("answer", grammar.Sequence(std::move(parts)));
  }
  return grammar;
}

GrammarCompiler::GrammarCompiler(std::function<Vocabulary()> make_vocabulary,
                                 std::vector<TokenId> end_tokens)
    : make_vocabulary_(std::move(make_vocabulary)), end_tokens_(std::move(end_tokens)) {}

absl::StatusOr<std::shared_ptr<CompiledGrammar>> GrammarCompiler::Compile(
    const Constraint& constraint) {
  if (end_tokens_.empty()) {
    return absl::FailedPreconditionError(
        "the model has no token that ends a text: its answers cannot be constrained");
  }
  std::string key = KeyOf(constraint);
  {
    std::lock_guard lock(mutex_);
    auto known = std::find_if(recent_.begin(), recent_.end(),
                              [&key](const Entry& entry) { return entry.key == key; });
    if (known != recent_.end()) {
      recent_.splice(recent_.begin(), recent_, known);
      return known->grammar;
    }
  }
  HEDDLE_ASSIGN_OR_RETURN(const Grammar grammar, GrammarOf(constraint));
  HEDDLE_ASSIGN_OR_RETURN(Automaton automaton, grammar::Compile(grammar));
  std::call_once(made_,
                 [this] { vocabulary_ = std::make_shared<const Vocabulary>(make_vocabulary_()); });
  auto compiled = std::make_shared<CompiledGrammar>(std::move(automaton), vocabulary_, end_tokens_);
  HEDDLE_RETURN_IF_ERROR(compiled->Prepare(kPrepareUs));
  std::lock_guard lock(mutex_);
  recent_.push_front({std::move(key), compiled});
  if (recent_.size() > kMaxRecent) recent_.pop_back();
  return compiled;
}

}  // namespace heddle::engine::grammar
