// Regular expressions of tokenizer.json, run by PCRE2 with its just-in-time compiler. The patterns
// are written for Oniguruma; where the same text means something else to PCRE2, it is translated.
// The simplest ones need no engine: see class_run.h.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace heddle::engine::text {

// Immutable and thread-safe after Compile.
class Regex {
 public:
  // INVALID_ARGUMENT with the position if `pattern` is not a valid expression, or is one that means
  // something else to PCRE2 and has no translation.
  static absl::StatusOr<Regex> Compile(std::string_view pattern);
  // Matches `text` itself.
  static absl::StatusOr<Regex> Literal(std::string_view text);

  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // Calls `on_match(begin, end)` for each match from left to right, as find_iter does: matches do
  // not overlap, and after an empty one the search goes on one code point later.
  // RESOURCE_EXHAUSTED if the expression needs more backtracking than the limit.
  // REQUIRES: well-formed UTF-8.
  absl::Status ForEachMatch(std::string_view text,
                            absl::FunctionRef<absl::Status(size_t, size_t)> on_match) const;

 private:
  struct Code;
  explicit Regex(std::unique_ptr<Code> code);

  std::unique_ptr<Code> code_;
};

// Exposed for tests: the PCRE2 text for an Oniguruma pattern.
absl::StatusOr<std::string> TranslateOniguruma(std::string_view pattern);

}  // namespace heddle::engine::text
