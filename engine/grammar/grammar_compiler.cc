#include "engine/grammar/grammar_compiler.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

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
// Of the thread that computes the others: it runs beside steps and must not hold them up.
constexpr int kPrepareNice = 15;

void AppendKey(std::string_view part, std::string* key) {
  *key += base::StrCat(part.size(), ":", part);
}

void AppendKey(const Constraint& c, std::string* key) {
  *key += base::StrCat("(", static_cast<int>(c.kind), " ", static_cast<int>(c.json.whitespace), " ",
                       c.min, " ", c.max, " ", c.json.form.raw_strings ? 1 : 0);
  const MemberForm& form = c.json.form;
  for (std::string_view part :
       {std::string_view(c.text), std::string_view(c.json.whitespace_pattern),
        std::string_view(form.key_open), std::string_view(form.key_close),
        std::string_view(form.value_close), std::string_view(form.separator)}) {
    AppendKey(part, key);
  }
  *key += base::StrCat(c.choices.size());
  for (const std::string& choice : c.choices) AppendKey(choice, key);
  for (const Constraint& part : c.parts) AppendKey(part, key);
  *key += ")";
}

absl::Status CheckChoices(const Constraint& c) {
  if (c.choices.empty()) return absl::InvalidArgumentError("there must be one choice at least");
  size_t bytes = 0;
  for (const std::string& choice : c.choices) {
    bytes += choice.size();
    if (!text::IsValidUtf8(choice) || bytes > kMaxSourceBytes) {
      return absl::InvalidArgumentError(base::StrCat(
          "choices must be UTF-8 and together have at most ", kMaxSourceBytes, " bytes"));
    }
  }
  return absl::OkStatus();
}

// Any text with one of `marks` in it; behind the first, only if `goes_on`.
absl::StatusOr<StateMachine> TextWith(const std::vector<std::string>& marks, bool goes_on) {
  Grammar grammar;
  const ExprId any = grammar.Repeat(grammar.Chars(CodePointSet::All()), 0, kUnbounded);
  std::vector<ExprId> choices;
  choices.reserve(marks.size());
  for (const std::string& mark : marks) choices.push_back(grammar.Text(std::string_view(mark)));
  const ExprId mark = grammar.Choice(std::move(choices));
  const ExprId whole = goes_on ? grammar.Sequence({any, mark, any}) : grammar.Sequence({any, mark});
  HEDDLE_ASSIGN_OR_RETURN(StateMachine machine, MachineOf(grammar, whole));
  for (MachineState& state : machine.states) {
    if (state.accepting && !goes_on) state.chars.clear();
  }
  return machine;
}

absl::StatusOr<ExprId> Add(const Constraint& c, Grammar* grammar);

absl::StatusOr<std::vector<ExprId>> AddParts(const Constraint& c, Grammar* grammar) {
  std::vector<ExprId> parts;
  for (const Constraint& part : c.parts) {
    HEDDLE_ASSIGN_OR_RETURN(const ExprId added, Add(part, grammar));
    parts.push_back(added);
  }
  return parts;
}

// The part of the grammar that is a constraint without parts.
absl::StatusOr<ExprId> AddLeaf(const Constraint& c, Grammar* grammar) {
  if (c.kind == ConstraintKind::kJsonSchema) {
    HEDDLE_ASSIGN_OR_RETURN(const RuleId rule, AddJsonSchema(c.text, c.json, grammar));
    return grammar->Call(rule);
  }
  if (c.kind == ConstraintKind::kGbnf) {
    HEDDLE_ASSIGN_OR_RETURN(Grammar parsed, ParseGbnf(c.text));
    return grammar->Call(grammar->Append(std::move(parsed)));
  }
  if (c.kind == ConstraintKind::kRegex) {
    HEDDLE_ASSIGN_OR_RETURN(StateMachine machine, ParseRegex(c.text, RegexMatch::kWhole));
    return grammar->Machine(std::move(machine));
  }
  if (c.kind == ConstraintKind::kText) return grammar->Text(std::string_view(c.text));
  if (c.kind == ConstraintKind::kUpTo) {
    HEDDLE_ASSIGN_OR_RETURN(StateMachine machine, TextWith({c.text}, /*goes_on=*/false));
    return grammar->Machine(std::move(machine));
  }
  HEDDLE_RETURN_IF_ERROR(CheckChoices(c));
  if (c.kind == ConstraintKind::kWithout) {
    HEDDLE_ASSIGN_OR_RETURN(const StateMachine machine, TextWith(c.choices, /*goes_on=*/true));
    return grammar->Machine(Complement(machine));
  }
  std::vector<ExprId> choices;
  choices.reserve(c.choices.size());
  for (const std::string& choice : c.choices) {
    choices.push_back(grammar->Text(std::string_view(choice)));
  }
  return grammar->Choice(std::move(choices));
}

absl::StatusOr<ExprId> Add(const Constraint& c, Grammar* grammar) {
  HEDDLE_ASSIGN_OR_RETURN(std::vector<ExprId> parts, AddParts(c, grammar));
  switch (c.kind) {
    case ConstraintKind::kSequence:
      return parts.empty() ? grammar->Text(U"") : grammar->Sequence(std::move(parts));
    case ConstraintKind::kOneOf:
      if (parts.empty()) return absl::InvalidArgumentError("there must be one alternative");
      return grammar->Choice(std::move(parts));
    case ConstraintKind::kRepeat:
      return grammar->Repeat(parts.at(0), c.min, c.max);
    default:
      return AddLeaf(c, grammar);
  }
}

}  // namespace

absl::StatusOr<Grammar> GrammarOf(const Constraint& c) {
  if (c.kind == ConstraintKind::kGbnf) return ParseGbnf(c.text);
  Grammar grammar;
  HEDDLE_ASSIGN_OR_RETURN(const ExprId answer, Add(c, &grammar));
  grammar.root = grammar.AddRule("root", answer);
  return grammar;
}

GrammarCompiler::GrammarCompiler(std::function<Vocabulary()> make_vocabulary,
                                 std::vector<TokenId> end_tokens)
    : make_vocabulary_(std::move(make_vocabulary)), end_tokens_(std::move(end_tokens)) {}

GrammarCompiler::~GrammarCompiler() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  posted_.notify_all();
  if (preparing_.joinable()) preparing_.join();
}

// REQUIRES: mutex_ is held.
void GrammarCompiler::PrepareLater(const std::shared_ptr<CompiledGrammar>& grammar) {
  unprepared_.push_back(grammar);
  if (!preparing_.joinable()) preparing_ = std::thread([this] { RunPreparing(); });
  posted_.notify_one();
}

void GrammarCompiler::RunPreparing() {
  pthread_setname_np(pthread_self(), "grammars");
  // Linux has priorities of threads by this call; where it fails the thread runs like any other.
  static_cast<void>(setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kPrepareNice));
  std::unique_lock lock(mutex_);
  while (true) {
    posted_.wait(lock, [this] { return stop_ || !unprepared_.empty(); });
    if (stop_) return;
    const std::shared_ptr<CompiledGrammar> grammar = unprepared_.front().lock();
    unprepared_.pop_front();
    if (grammar == nullptr) continue;
    lock.unlock();
    grammar->PrepareRest(stop_);
    lock.lock();
  }
}

// REQUIRES: mutex_ is held.
std::shared_ptr<CompiledGrammar> GrammarCompiler::Recall(std::string_view key) {
  auto known = std::find_if(recent_.begin(), recent_.end(),
                            [key](const Entry& entry) { return entry.key == key; });
  if (known == recent_.end()) return nullptr;
  recent_.splice(recent_.begin(), recent_, known);
  return known->grammar;
}

std::shared_ptr<CompiledGrammar> GrammarCompiler::Known(const Constraint& constraint) {
  std::string key;
  AppendKey(constraint, &key);
  std::lock_guard lock(mutex_);
  return Recall(key);
}

absl::StatusOr<std::shared_ptr<CompiledGrammar>> GrammarCompiler::Compile(
    const Constraint& constraint) {
  if (end_tokens_.empty()) {
    return absl::FailedPreconditionError(
        "the model has no token that ends a text: its answers cannot be constrained");
  }
  auto pending = std::make_shared<Pending>();
  AppendKey(constraint, &pending->key);
  {
    std::unique_lock lock(mutex_);
    if (std::shared_ptr<CompiledGrammar> known = Recall(pending->key)) return known;
    const auto other = std::find_if(pending_.begin(), pending_.end(),
                                    [&pending](const auto& p) { return p->key == pending->key; });
    if (other != pending_.end()) {
      const std::shared_ptr<Pending> awaited = *other;
      compiled_.wait(lock, [&awaited] { return awaited->result.has_value(); });
      return *awaited->result;
    }
    pending_.push_back(pending);
  }
  bool is_prepared = true;
  Result result = CompileNew(constraint, &is_prepared);
  std::lock_guard lock(mutex_);
  std::erase(pending_, pending);
  pending->result = result;
  compiled_.notify_all();
  if (!result.ok()) return result;
  if (!is_prepared) PrepareLater(*result);
  recent_.push_front({pending->key, *result});
  if (recent_.size() > kMaxRecent) recent_.pop_back();
  return result;
}

// `*is_prepared`: whether all masks were found meanwhile.
GrammarCompiler::Result GrammarCompiler::CompileNew(const Constraint& constraint,
                                                    bool* is_prepared) {
  HEDDLE_ASSIGN_OR_RETURN(const Grammar grammar, GrammarOf(constraint));
  HEDDLE_ASSIGN_OR_RETURN(Automaton automaton, grammar::Compile(grammar));
  std::call_once(made_,
                 [this] { vocabulary_ = std::make_shared<const Vocabulary>(make_vocabulary_()); });
  auto compiled = std::make_shared<CompiledGrammar>(std::move(automaton), vocabulary_, end_tokens_);
  HEDDLE_ASSIGN_OR_RETURN(*is_prepared, compiled->Prepare(kPrepareUs));
  return compiled;
}

}  // namespace heddle::engine::grammar
