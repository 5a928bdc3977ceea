// Compiles a request's constraint (a schema, an expression, a grammar) to a CompiledGrammar of this
// model, and remembers recent ones: clients send the same schema with every request.
//
// Thread-safety: all methods may be called from any thread. Compiling takes the caller's time, not
// the engine's: mostly a few milliseconds, bounded by a Budget to a second or two; the caller's Ask
// can end it earlier. A caller whose constraint is already being compiled waits for the other
// thread's result, and compiles it anew if that thread was told to stop. A refused constraint is
// refused again at once. Masks that are not found meanwhile are computed by a separate thread, at
// low priority, one time slice per grammar in turn.
// Memory: unused grammars are forgotten, least recently used first, while all together exceed their
// limit (cache_bytes.h).
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

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "engine/grammar/compiled_grammar.h"
#include "engine/grammar/schema/json_schema.h"

namespace heddle::engine::grammar {

enum class ConstraintKind : uint8_t {
  kJsonSchema,  // `text` is the schema
  kRegex,       // the whole answer matches `text`
  kChoice,      // one of `choices`
  kGbnf,        // `text`
  kLark,        // `text`
  // Further parts of answers.
  kText,      // `text` as it is
  kUpTo,      // any text that ends with `text`, which occurs nowhere else in it
  kWithout,   // any text that contains none of `choices`
  kSequence,  // all `parts`
  kOneOf,     // one of `parts`
  kRepeat,    // parts[0], `min` to `max` times
};

// The constraint on an answer, as a tree; plain data.
struct Constraint {
  ConstraintKind kind = ConstraintKind::kJsonSchema;
  std::string text;
  std::vector<std::string> choices;
  JsonOptions json;
  std::vector<Constraint> parts;
  int32_t min = 0;
  int32_t max = kUnbounded;
  std::string label = {};  // begins messages about this part

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
  // `make_vocabulary` is called once, for the first grammar.
  GrammarCompiler(std::function<Vocabulary()> make_vocabulary, std::vector<TokenId> end_tokens,
                  size_t max_bytes = kDefaultCacheBytes);
  // Waits for the mask that is being computed.
  ~GrammarCompiler();

  // INVALID_ARGUMENT: what is wrong with the constraint. RESOURCE_EXHAUSTED: it is too large or too
  // ambiguous. FAILED_PRECONDITION: the model has no token that ends a text. If `ask` has ended the
  // work (budget.h), its status is returned, and nothing is remembered.
  absl::StatusOr<std::shared_ptr<CompiledGrammar>> Compile(const Constraint& constraint,
                                                           const Budget::Ask& ask = nullptr);

  // Checks a part of a constraint by itself: returns the errors of Compile that do not depend on
  // the model.
  absl::Status Check(const Constraint& constraint, Budget::Ask ask = nullptr);

  // The result that Compile would return without compiling; nullptr if it would have to compile.
  // Takes the time to read the constraint's text.
  std::shared_ptr<CompiledGrammar> Known(const Constraint& constraint);
  // The error that Compile would return without compiling; OK if none is known.
  absl::Status Refusal(const Constraint& constraint) const;

  // Whether the vocabulary has been made; the first grammar waits some tenths of a second for it.
  bool is_warm() const { return is_warm_.load(std::memory_order_acquire); }
  const CacheBytes& cache() const { return *cache_; }

 private:
  using Result = absl::StatusOr<std::shared_ptr<CompiledGrammar>>;
  using Digest = std::pair<uint64_t, uint64_t>;  // hash of a key: 128 bits do not collide
  struct Entry {
    std::string key;
    std::shared_ptr<CompiledGrammar> grammar;
  };
  // A constraint that some thread is compiling. GUARDED_BY(mutex_), except the key.
  struct Pending {
    std::string key;
    bool is_over = false;
    std::optional<Result> result;  // empty if it was left unfinished
  };

  std::shared_ptr<CompiledGrammar> Recall(std::string_view key);
  absl::Status RecallRefusal(std::string_view key) const;
  void Refuse(std::string_view key, const absl::Status& status);
  static Digest DigestOf(std::string_view key);
  static bool IsRefusal(const absl::Status& status, const Budget& budget);
  std::optional<Result> Await(const Pending& pending, const Budget::Ask& ask,
                              std::unique_lock<std::mutex>* lock);
  Result CompileNew(const Constraint& constraint, Budget* budget, bool* is_prepared);
  std::vector<std::shared_ptr<CompiledGrammar>> DropUnused();
  void PrepareLater(const std::shared_ptr<CompiledGrammar>& grammar);
  void RunPreparing();

  const std::function<Vocabulary()> make_vocabulary_;
  const std::vector<TokenId> end_tokens_;
  const std::shared_ptr<CacheBytes> cache_;
  std::once_flag made_;
  std::atomic<bool> is_warm_{false};
  std::shared_ptr<const Vocabulary> vocabulary_;
  mutable std::mutex mutex_;
  // All of the following are GUARDED_BY(mutex_).
  std::list<Entry> recent_;                                                   // last used first
  absl::flat_hash_map<std::string_view, std::list<Entry>::iterator> by_key_;  // into recent_
  absl::flat_hash_map<Digest, absl::Status> refused_;
  std::deque<Digest> refused_in_order_;
  std::vector<std::shared_ptr<Pending>> pending_;
  std::condition_variable compiled_;  // signalled when a Pending has its result
  std::deque<std::weak_ptr<CompiledGrammar>> unprepared_;
  std::thread preparing_;  // started for the first grammar that needs it
  std::condition_variable posted_;
  std::atomic<bool> stop_{false};
};

// The grammar of a constraint, for any vocabulary. `dropped` gets the messages about what is left
// out of schemas.
absl::StatusOr<Grammar> GrammarOf(const Constraint& constraint, Budget* budget = nullptr,
                                  std::vector<std::string>* dropped = nullptr);

}  // namespace heddle::engine::grammar
