// From what a request brings (a schema, an expression, a grammar) to a CompiledGrammar of this
// model, remembering the last ones: clients send the same schema with every request.
//
// Thread-safety: all methods from any thread. Compiling takes the caller's time, not the engine's:
// mostly a few milliseconds, bounded by kMaxStates and the other limits of engine/grammar to a
// second or two. Who asks for what another thread is compiling waits for that thread's result.
// Masks that are not found meanwhile are computed by a thread of its own, at low priority.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/grammar/compiled_grammar.h"
#include "engine/grammar/json_schema.h"

namespace heddle::engine::grammar {

enum class ConstraintKind : uint8_t {
  kJsonSchema,  // `text` is the schema
  kRegex,       // `text`, matched by the whole
  kChoice,      // one of `choices`
  kGbnf,        // `text`
  // What answers consist of besides.
  kText,      // `text` as it is
  kUpTo,      // any text that ends with `text`, which stands nowhere else in it
  kWithout,   // any text that has none of `choices` in it
  kSequence,  // all `parts`
  kOneOf,     // one of `parts`
  kRepeat,    // parts[0], `min` to `max` times
};

// A tree of what an answer must be; plain data.
struct Constraint {
  ConstraintKind kind = ConstraintKind::kJsonSchema;
  std::string text;
  std::vector<std::string> choices;
  JsonOptions json;
  std::vector<Constraint> parts;
  int32_t min = 0;
  int32_t max = kUnbounded;

  static Constraint Text(std::string_view text) {
    return {.kind = ConstraintKind::kText, .text = std::string(text)};
  }
  static Constraint Sequence(std::vector<Constraint> parts) {
    return {.kind = ConstraintKind::kSequence, .parts = std::move(parts)};
  }
  static Constraint OneOf(std::vector<Constraint> parts) {
    return {.kind = ConstraintKind::kOneOf, .parts = std::move(parts)};
  }
  static Constraint Repeat(Constraint part, int32_t min, int32_t max) {
    Constraint repeat{.kind = ConstraintKind::kRepeat, .min = min, .max = max};
    repeat.parts.push_back(std::move(part));
    return repeat;
  }
};

class GrammarCompiler {
 public:
  // `make_vocabulary` is called once, when the first grammar is asked for.
  GrammarCompiler(std::function<Vocabulary()> make_vocabulary, std::vector<TokenId> end_tokens);
  // Waits for the mask under way.
  ~GrammarCompiler();

  // INVALID_ARGUMENT: what is wrong with the constraint. RESOURCE_EXHAUSTED: it is too large or too
  // ambiguous. FAILED_PRECONDITION: the model has no token that ends a text.
  absl::StatusOr<std::shared_ptr<CompiledGrammar>> Compile(const Constraint& constraint);

  // What Compile would return without compiling; nullptr: it would have to. Takes the time to look
  // at the constraint's text.
  std::shared_ptr<CompiledGrammar> Known(const Constraint& constraint);

 private:
  using Result = absl::StatusOr<std::shared_ptr<CompiledGrammar>>;
  struct Entry {
    std::string key;
    std::shared_ptr<CompiledGrammar> grammar;
  };
  // A constraint that some thread compiles.
  struct Pending {
    std::string key;
    std::optional<Result> result;  // GUARDED_BY(mutex_)
  };

  std::shared_ptr<CompiledGrammar> Recall(std::string_view key);
  Result CompileNew(const Constraint& constraint, bool* is_prepared);
  void PrepareLater(const std::shared_ptr<CompiledGrammar>& grammar);
  void RunPreparing();

  const std::function<Vocabulary()> make_vocabulary_;
  const std::vector<TokenId> end_tokens_;
  std::once_flag made_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  std::mutex mutex_;
  // GUARDED_BY(mutex_), all of the following.
  std::list<Entry> recent_;  // the last used first
  std::vector<std::shared_ptr<Pending>> pending_;
  std::condition_variable compiled_;  // a pending one has its result
  std::deque<std::weak_ptr<CompiledGrammar>> unprepared_;
  std::thread preparing_;  // from the first grammar that needs it
  std::condition_variable posted_;
  std::atomic<bool> stop_{false};
};

// The grammar of a constraint, for any vocabulary.
absl::StatusOr<Grammar> GrammarOf(const Constraint& constraint);

}  // namespace heddle::engine::grammar
