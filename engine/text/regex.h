// Regular expressions of tokenizer.json, run by PCRE2 with its just-in-time compiler. The patterns
// are written for Oniguruma; where the same text means something else to PCRE2, it is translated.
// The simplest ones need no engine: see class_run.h.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/text/work_budget.h"

namespace heddle::engine::text {

// Immutable and thread-safe after Compile.
class Regex {
 public:
  // INVALID_ARGUMENT with the position if `pattern` is not a valid expression, or has another
  // meaning in PCRE2 and cannot be translated.
  static absl::StatusOr<Regex> Compile(std::string_view pattern);
  // An expression that matches exactly `text`.
  static absl::StatusOr<Regex> Literal(std::string_view text);

  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // Calls `on_match(begin, end)` for each match from left to right, like find_iter: matches do not
  // overlap, and after an empty one the search continues one code point later.
  // RESOURCE_EXHAUSTED if the expression exceeds the limit on backtracking, or the budget's time is
  // used up (nullptr: no budget).
  // REQUIRES: well-formed UTF-8.
  absl::Status ForEachMatch(std::string_view text,
                            absl::FunctionRef<absl::Status(size_t, size_t)> on_match,
                            WorkBudget* budget = nullptr) const;

  // The text of each match's first group, or the whole match of an expression without
  // groups; at most `limit` of them. The views are of `text`. Errors as of ForEachMatch.
  absl::StatusOr<std::vector<std::string_view>> FirstGroups(std::string_view text, size_t limit,
                                                            WorkBudget* budget = nullptr) const;

 private:
  struct Code;
  explicit Regex(std::unique_ptr<Code> code);

  std::unique_ptr<Code> code_;
};

// Exposed for tests: the PCRE2 text for an Oniguruma pattern.
absl::StatusOr<std::string> TranslateOniguruma(std::string_view pattern);

}  // namespace heddle::engine::text
