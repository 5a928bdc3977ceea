#include "engine/grammar/grammar_compiler.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/hash/hash.h"
#include "base/message.h"
#include "base/status.h"
#include "base/utf8.h"
#include "engine/grammar/gbnf.h"
#include "engine/grammar/lark/lark.h"
#include "engine/grammar/regex.h"
#include "engine/grammar/thompson.h"

namespace heddle::engine::grammar {
namespace {

// Limit on grammars kept for the next request, beside the limit on their bytes.
constexpr size_t kMaxRecent = 4096;
// Limit on remembered refusals, some 300 bytes each.
constexpr size_t kMaxRefused = 1024;
constexpr size_t kMaxRefusalBytes = 4096;
// Time for masks ahead of the first token, which a client waits for once per schema.
constexpr int64_t kPrepareUs = 20'000;
// Niceness of the thread that computes the other masks: it runs beside steps and must not delay
// them.
constexpr int kPrepareNice = 15;
// Time slice of a grammar before it is the next one's turn.
constexpr int64_t kRestSliceUs = 50'000;
// How often a thread that waits for another's result asks whether to continue.
constexpr std::chrono::milliseconds kAskEvery{5};

void AppendKey(std::string_view part, std::string* key) {
  *key += base::StrCat(part.size(), ":", part);
}

void AppendKey(const Constraint& c, std::string* key) {
  *key += base::StrCat("(", static_cast<int>(c.kind), " ", static_cast<int>(c.json.whitespace), " ",
                       c.min, " ", c.max, " ", c.json.form.raw_strings ? 1 : 0,
                       c.json.drops_unsupported ? 1 : 0);
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
    if (!base::IsValidUtf8(choice) || bytes > kMaxSourceBytes) {
      return absl::InvalidArgumentError(base::StrCat(
          "choices must be UTF-8 and together have at most ", kMaxSourceBytes, " bytes"));
    }
  }
  return absl::OkStatus();
}

// Any text that contains one of `marks`; text behind the first mark only if `goes_on`.
absl::StatusOr<StateMachine> TextWith(const std::vector<std::string>& marks, bool goes_on,
                                      Budget* budget) {
  Grammar grammar;
  const ExprId any = grammar.Repeat(grammar.Chars(CodePointSet::All()), 0, kUnbounded);
  std::vector<ExprId> choices;
  choices.reserve(marks.size());
  for (const std::string& mark : marks) choices.push_back(grammar.Text(std::string_view(mark)));
  const ExprId mark = grammar.Choice(std::move(choices));
  const ExprId whole = goes_on ? grammar.Sequence({any, mark, any}) : grammar.Sequence({any, mark});
  HEDDLE_ASSIGN_OR_RETURN(StateMachine machine, MachineOf(grammar, whole, budget));
  for (MachineState& state : machine.states) {
    if (state.accepting && !goes_on) state.chars.clear();
  }
  return machine;
}

// Where the parts of one grammar go.
struct Target {
  Grammar* grammar;
  Budget* budget;
  std::vector<std::string>* dropped;
};

absl::StatusOr<ExprId> Add(const Constraint& c, const Target& target);

absl::StatusOr<std::vector<ExprId>> AddParts(const Constraint& c, const Target& target) {
  std::vector<ExprId> parts;
  for (const Constraint& part : c.parts) {
    HEDDLE_ASSIGN_OR_RETURN(const ExprId added, Add(part, target));
    parts.push_back(added);
  }
  return parts;
}

absl::StatusOr<ExprId> AddSchema(const Constraint& c, const Target& target) {
  Grammar* grammar = target.grammar;
  const size_t first_rule = grammar->rules.size();
  std::vector<std::string> dropped;
  const absl::StatusOr<RuleId> rule =
      AddJsonSchema(std::string_view(c.text), c.json, grammar, target.budget, &dropped);
  const std::string label = c.label.empty() ? "" : base::StrCat(c.label, ": ");
  for (size_t i = first_rule; i < grammar->rules.size(); ++i) {
    std::string& note = grammar->rules[i].note;
    if (!note.empty()) note.insert(0, label);
  }
  for (const std::string& message : dropped) target.dropped->push_back(label + message);
  if (rule.ok()) return grammar->Call(*rule);
  if (!StatusOf(target.budget).ok()) return rule.status();
  return absl::Status(rule.status().code(), label + std::string(rule.status().message()));
}

// Adds a constraint without parts to the grammar.
absl::StatusOr<ExprId> AddLeaf(const Constraint& c, const Target& target) {
  Grammar* grammar = target.grammar;
  Budget* budget = target.budget;
  if (c.kind == ConstraintKind::kJsonSchema) return AddSchema(c, target);
  if (c.kind == ConstraintKind::kGbnf) {
    HEDDLE_ASSIGN_OR_RETURN(Grammar parsed, ParseGbnf(c.text, budget));
    return grammar->Call(grammar->Append(std::move(parsed)));
  }
  if (c.kind == ConstraintKind::kLark) {
    HEDDLE_ASSIGN_OR_RETURN(Grammar parsed, ParseLark(c.text, budget));
    return grammar->Call(grammar->Append(std::move(parsed)));
  }
  if (c.kind == ConstraintKind::kRegex) {
    HEDDLE_ASSIGN_OR_RETURN(StateMachine machine, ParseRegex(c.text, RegexMatch::kWhole, budget));
    return grammar->Machine(std::move(machine));
  }
  if (c.kind == ConstraintKind::kText) return grammar->Text(std::string_view(c.text));
  if (c.kind == ConstraintKind::kUpTo) {
    HEDDLE_ASSIGN_OR_RETURN(StateMachine machine, TextWith({c.text}, /*goes_on=*/false, budget));
    return grammar->Machine(std::move(machine));
  }
  HEDDLE_RETURN_IF_ERROR(CheckChoices(c));
  if (c.kind == ConstraintKind::kWithout) {
    HEDDLE_ASSIGN_OR_RETURN(const StateMachine machine,
                            TextWith(c.choices, /*goes_on=*/true, budget));
    StateMachine others = Complement(machine, budget);
    HEDDLE_RETURN_IF_ERROR(StatusOf(budget));
    return grammar->Machine(std::move(others));
  }
  std::vector<ExprId> choices;
  choices.reserve(c.choices.size());
  for (const std::string& choice : c.choices) {
    choices.push_back(grammar->Text(std::string_view(choice)));
  }
  return grammar->Choice(std::move(choices));
}

absl::StatusOr<ExprId> Add(const Constraint& c, const Target& target) {
  Grammar* grammar = target.grammar;
  HEDDLE_ASSIGN_OR_RETURN(std::vector<ExprId> parts, AddParts(c, target));
  switch (c.kind) {
    case ConstraintKind::kSequence:
      return parts.empty() ? grammar->Text(U"") : grammar->Sequence(std::move(parts));
    case ConstraintKind::kOneOf:
      if (parts.empty()) return absl::InvalidArgumentError("there must be one alternative");
      return grammar->Choice(std::move(parts));
    case ConstraintKind::kRepeat:
      return grammar->Repeat(parts.at(0), c.min, c.max);
    default:
      return AddLeaf(c, target);
  }
}

}  // namespace

absl::StatusOr<Grammar> GrammarOf(const Constraint& c, Budget* budget,
                                  std::vector<std::string>* dropped) {
  if (c.kind == ConstraintKind::kGbnf) return ParseGbnf(c.text, budget);
  if (c.kind == ConstraintKind::kLark) return ParseLark(c.text, budget);
  std::vector<std::string> ignored;
  Grammar grammar;
  HEDDLE_ASSIGN_OR_RETURN(const ExprId answer,
                          Add(c, {&grammar, budget, dropped == nullptr ? &ignored : dropped}));
  grammar.root = grammar.AddRule("root", answer);
  return grammar;
}

GrammarCompiler::GrammarCompiler(std::function<Vocabulary()> make_vocabulary,
                                 std::vector<TokenId> end_tokens, size_t max_bytes)
    : make_vocabulary_(std::move(make_vocabulary)),
      end_tokens_(std::move(end_tokens)),
      cache_(std::make_shared<CacheBytes>(max_bytes)) {}

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
  // On Linux this call sets the priority of one thread; if it fails, the thread runs like any
  // other.
  static_cast<void>(setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kPrepareNice));
  std::unique_lock lock(mutex_);
  while (true) {
    posted_.wait(lock, [this] { return stop_ || !unprepared_.empty(); });
    if (stop_) return;
    std::shared_ptr<CompiledGrammar> grammar = unprepared_.front().lock();
    unprepared_.pop_front();
    if (grammar == nullptr) continue;
    lock.unlock();
    const bool is_done = grammar->PrepareRest(stop_, kRestSliceUs);
    lock.lock();
    if (!is_done) unprepared_.push_back(grammar);
    std::vector<std::shared_ptr<CompiledGrammar>> dropped = DropUnused();
    lock.unlock();
    dropped.clear();  // frees what may be the last references, outside of the lock
    grammar = nullptr;
    lock.lock();
  }
}

// Removes grammars that exceed the limits and that only the cache holds. The caller frees them when
// it has released the lock. REQUIRES: mutex_ is held.
std::vector<std::shared_ptr<CompiledGrammar>> GrammarCompiler::DropUnused() {
  std::vector<std::shared_ptr<CompiledGrammar>> dropped;
  size_t freed = 0;
  for (auto it = recent_.end(); it != recent_.begin();) {
    const bool fits = cache_->held() - freed <= cache_->max_bytes();
    if (fits && recent_.size() <= kMaxRecent) break;
    --it;
    if (it->grammar.use_count() > 1) continue;
    freed += it->grammar->heap_bytes();
    by_key_.erase(it->key);
    dropped.push_back(std::move(it->grammar));
    it = recent_.erase(it);
  }
  return dropped;
}

// REQUIRES: mutex_ is held.
std::shared_ptr<CompiledGrammar> GrammarCompiler::Recall(std::string_view key) {
  auto known = by_key_.find(key);
  if (known == by_key_.end()) return nullptr;
  recent_.splice(recent_.begin(), recent_, known->second);
  return known->second->grammar;
}

GrammarCompiler::Digest GrammarCompiler::DigestOf(std::string_view key) {
  const uint64_t first = absl::HashOf(key);
  return {first, absl::HashOf(first, key, key.size())};
}

// REQUIRES: mutex_ is held.
absl::Status GrammarCompiler::RecallRefusal(std::string_view key) const {
  auto known = refused_.find(DigestOf(key));
  return known == refused_.end() ? absl::OkStatus() : known->second;
}

// REQUIRES: mutex_ is held.
void GrammarCompiler::Refuse(std::string_view key, const absl::Status& status) {
  const Digest digest = DigestOf(key);
  absl::Status kept(status.code(), status.message().substr(0, kMaxRefusalBytes));
  if (!refused_.emplace(digest, std::move(kept)).second) return;
  refused_in_order_.push_back(digest);
  if (refused_in_order_.size() <= kMaxRefused) return;
  refused_.erase(refused_in_order_.front());
  refused_in_order_.pop_front();
}

std::shared_ptr<CompiledGrammar> GrammarCompiler::Known(const Constraint& constraint) {
  std::string key;
  AppendKey(constraint, &key);
  std::lock_guard lock(mutex_);
  return Recall(key);
}

absl::Status GrammarCompiler::Refusal(const Constraint& constraint) const {
  std::string key;
  AppendKey(constraint, &key);
  std::lock_guard lock(mutex_);
  return RecallRefusal(key);
}

// Whether a compilation ended with an error that is due to the constraint itself.
bool GrammarCompiler::IsRefusal(const absl::Status& status, const Budget& budget) {
  return !status.ok() && !budget.stopped() &&
         (absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status));
}

absl::Status GrammarCompiler::Check(const Constraint& constraint, Budget::Ask ask) {
  std::string key;
  AppendKey(constraint, &key);
  {
    std::lock_guard lock(mutex_);
    HEDDLE_RETURN_IF_ERROR(RecallRefusal(key));
  }
  Budget budget = Budget::ForText(key.size(), std::move(ask));
  absl::Status status = GrammarOf(constraint, &budget).status();
  if (budget.stopped()) status = budget.status();
  if (!IsRefusal(status, budget)) return status;
  std::lock_guard lock(mutex_);
  Refuse(key, status);
  return status;
}

// Waits for a constraint that another thread compiles. Null if that thread did not finish it.
std::optional<GrammarCompiler::Result> GrammarCompiler::Await(const Pending& pending,
                                                              const Budget::Ask& ask,
                                                              std::unique_lock<std::mutex>* lock) {
  while (!compiled_.wait_for(*lock, kAskEvery, [&pending] { return pending.is_over; })) {
    if (ask == nullptr) continue;
    lock->unlock();
    absl::Status going_on = ask();
    lock->lock();
    if (!going_on.ok()) return going_on;
  }
  return pending.result;
}

absl::StatusOr<std::shared_ptr<CompiledGrammar>> GrammarCompiler::Compile(
    const Constraint& constraint, const Budget::Ask& ask) {
  if (end_tokens_.empty()) {
    return absl::FailedPreconditionError(
        "the model has no token that ends a text: its answers cannot be constrained");
  }
  auto pending = std::make_shared<Pending>();
  AppendKey(constraint, &pending->key);
  {
    std::unique_lock lock(mutex_);
    while (true) {
      if (std::shared_ptr<CompiledGrammar> known = Recall(pending->key)) return known;
      HEDDLE_RETURN_IF_ERROR(RecallRefusal(pending->key));
      const auto other = std::find_if(pending_.begin(), pending_.end(),
                                      [&pending](const auto& p) { return p->key == pending->key; });
      if (other == pending_.end()) break;
      const std::shared_ptr<Pending> awaited = *other;
      std::optional<Result> result = Await(*awaited, ask, &lock);
      if (result.has_value()) return *std::move(result);
    }
    pending_.push_back(pending);
  }
  Budget budget = Budget::ForText(pending->key.size(), ask);
  bool is_prepared = true;
  Result result = CompileNew(constraint, &budget, &is_prepared);
  if (budget.stopped()) result = budget.status();
  std::vector<std::shared_ptr<CompiledGrammar>> dropped;  // freed after the lock is released
  std::lock_guard lock(mutex_);
  std::erase(pending_, pending);
  pending->is_over = true;
  if (!budget.stopped()) pending->result = result;
  compiled_.notify_all();
  if (IsRefusal(result.status(), budget)) Refuse(pending->key, result.status());
  if (!result.ok()) return result;
  if (!is_prepared) PrepareLater(*result);
  recent_.push_front({pending->key, *result});
  by_key_[recent_.front().key] = recent_.begin();
  dropped = DropUnused();
  return result;
}

// `*is_prepared`: whether all masks were found in that time.
GrammarCompiler::Result GrammarCompiler::CompileNew(const Constraint& constraint, Budget* budget,
                                                    bool* is_prepared) {
  std::vector<std::string> dropped;
  HEDDLE_ASSIGN_OR_RETURN(const Grammar grammar, GrammarOf(constraint, budget, &dropped));
  HEDDLE_ASSIGN_OR_RETURN(Automaton automaton, grammar::Compile(grammar, budget));
  std::call_once(made_, [this] {
    vocabulary_ = std::make_shared<const Vocabulary>(make_vocabulary_());
    is_warm_.store(true, std::memory_order_release);
  });
  auto compiled =
      std::make_shared<CompiledGrammar>(std::move(automaton), vocabulary_, end_tokens_, cache_);
  compiled->set_dropped(std::move(dropped));
  HEDDLE_ASSIGN_OR_RETURN(*is_prepared, compiled->Prepare(kPrepareUs, budget));
  return compiled;
}

}  // namespace heddle::engine::grammar
