// The commonest small expressions of pre-tokenizers without a regular expression engine: a run of
// code points of one set, perhaps behind one code point of another set, perhaps at the end of a
// line. The forms are `A?B+`, `B`, `B{1,3}`, `B+$`, where A and B are a character, an escape or a
// bracket. They are applied to every word that earlier stages have cut, where an engine's call
// costs more than its match.
//
// The matches are exactly those of the expression in Oniguruma's dialect, leftmost and greedy.
// Thread-safety: immutable after Parse.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/utf8.h"
#include "engine/text/unicode.h"

namespace heddle::engine::text {

class CodePointSet {
 public:
  void AddRange(char32_t first, char32_t last) { ranges_.emplace_back(first, last); }
  void AddClasses(uint8_t bits) { bits_ |= bits; }
  // Call once, after the last Add. `negated` takes all code points that were not added.
  void Finish(bool negated);

  // Marks the first bytes of code points in the set, and some others if that is hard to tell.
  void MarkFirstBytes(std::array<bool, 256>* first) const;

  // Whether the code point that begins at `at` is in the set.
  bool Contains(const char* at) const {
    const auto byte = static_cast<unsigned char>(*at);
    return byte < 0x80 ? ascii_[byte] : ContainsWide(base::DecodeUtf8(at));
  }

 private:
  bool ContainsWide(char32_t c) const;

  const CharClassTable* classes_ = &CharClassTable::Get();
  std::array<bool, 128> ascii_{};
  uint8_t bits_ = 0;
  std::vector<std::pair<char32_t, char32_t>> ranges_;
  bool negated_ = false;
};

class ClassRun {
 public:
  // nullopt if the pattern is of another form.
  static std::optional<ClassRun> Parse(std::string_view pattern);

  // The same as Regex::ForEachMatch.
  absl::Status ForEachMatch(std::string_view text,
                            absl::FunctionRef<absl::Status(size_t, size_t)> on_match) const;

 private:
  friend class ClassRunParser;

  // The end of the run of at most max_ code points that begins at `begin`; `begin` if it is too
  // short.
  size_t RunFrom(std::string_view text, size_t begin) const;
  // The end of the match at `at`; `at` if there is none.
  size_t MatchAt(std::string_view text, size_t at) const;
  size_t CutAtLineEnd(std::string_view text, size_t begin, size_t end) const;
  // The first position from `at` on where a match may begin; the text's end if there is none.
  size_t NextStart(std::string_view text, size_t at) const {
    while (at < text.size() && !starts_[static_cast<unsigned char>(text[at])]) ++at;
    return at;
  }

  std::optional<CodePointSet> before_;
  CodePointSet set_;
  size_t min_ = 1;
  size_t max_ = 1;
  bool at_line_end_ = false;
  std::array<bool, 256> starts_{};
};

}  // namespace heddle::engine::text
