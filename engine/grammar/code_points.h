// Sets of Unicode code points for the character classes of grammars and regular expressions. Value
// type; thread-safety of a plain value.
#pragma once

#include <initializer_list>
#include <span>
#include <vector>

namespace heddle::engine::grammar {

inline constexpr char32_t kMaxCodePoint = 0x10FFFF;

// Includes both ends.
struct CodePointRange {
  char32_t first;
  char32_t last;
  bool operator==(const CodePointRange&) const = default;
};

// Invariant: `ranges()` are sorted, disjoint and not adjacent; surrogates (which no UTF-8 text
// has) are never in a set.
class CodePointSet {
 public:
  CodePointSet() = default;
  CodePointSet(std::initializer_list<CodePointRange> ranges);
  // Takes ranges in any order, overlapping or not. O(n log n).
  static CodePointSet OfRanges(std::vector<CodePointRange> ranges);

  static CodePointSet All();
  static CodePointSet Of(char32_t code_point) { return {{code_point, code_point}}; }

  void Add(char32_t first, char32_t last);  // O(size); O(1) at the end
  void Add(const CodePointSet& other);      // O(sum of sizes)
  CodePointSet Complement() const;
  // The set with the other case of each of its ASCII letters added.
  CodePointSet WithBothAsciiCases() const;

  bool Contains(char32_t code_point) const;
  bool empty() const { return ranges_.empty(); }
  std::span<const CodePointRange> ranges() const { return ranges_; }
  bool operator==(const CodePointSet&) const = default;

 private:
  std::vector<CodePointRange> ranges_;
};

}  // namespace heddle::engine::grammar
