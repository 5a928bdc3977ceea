// From what a request brings (a schema, an expression, a grammar) to a CompiledGrammar of this
// model, remembering the last ones: clients send the same schema with every request.
//
// Thread-safety: all methods from any thread. Compiling takes the caller's time, not the engine's:
// mostly a few milliseconds, bounded by kMaxStates and the other limits of engine/grammar.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/grammar/compiled_grammar.h"
#include "engine/grammar/json_schema.h"

namespace heddle::engine::grammar {

enum class ConstraintKind : uint8_t {
  kJsonSchema,  // `text` is the schema
  kRegex,       // of the whole answer
  kChoice,      // one of `choices`
  kGbnf,
};

struct Constraint {
  ConstraintKind kind = ConstraintKind::kJsonSchema;
  std::string text;
  std::vector<std::string> choices;
  JsonOptions json;
  // What stands around the constrained part, as it is.
  std::string before;
  std::string after;
  // Reasoning comes first: any text up to and with this mark. Unless the prompt has opened it
  // already, only where it begins with `reasoning_open`. Empty: none.
  std::string reasoning_close;
  std::string reasoning_open;
};

class GrammarCompiler {
 public:
  // `make_vocabulary` is called once, when the first grammar is asked for.
  GrammarCompiler(std::function<Vocabulary()> make_vocabulary, std::vector<TokenId> end_tokens);

  // INVALID_ARGUMENT: what is wrong with the constraint. RESOURCE_EXHAUSTED: it is too large or too
  // ambiguous. FAILED_PRECONDITION: the model has no token that ends a text.
  absl::StatusOr<std::shared_ptr<CompiledGrammar>> Compile(const Constraint& constraint);

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<CompiledGrammar> grammar;
  };

  const std::function<Vocabulary()> make_vocabulary_;
  const std::vector<TokenId> end_tokens_;
  std::once_flag made_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  std::mutex mutex_;
  std::list<Entry> recent_;  // GUARDED_BY(mutex_); the last used first
};

// The grammar of a constraint, for any vocabulary.
absl::StatusOr<Grammar> GrammarOf(const Constraint& constraint);

}  // namespace heddle::engine::grammar
