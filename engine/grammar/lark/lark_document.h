// A Lark grammar as a tree; no name is resolved yet. Internal to lark.
// Plain data. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/grammar/grammar.h"

namespace heddle::engine::grammar {

enum class LarkKind : uint8_t {
  kText,      // `text`; both cases if `flags` has an i
  kRegex,     // `text` is the expression
  kRange,     // one code point from text[0] to text[1]
  kName,      // a rule, terminal or parameter
  kTemplate,  // `name` with `parts` for its parameters
  kSequence,  // all `parts`; none: the empty text
  kChoice,    // one of `parts`
  kRepeat,    // parts[0], `min` to `max` times
  kJson,      // `name` is a JSON Schema
};

using LarkNodeId = int32_t;

struct LarkNode {
  LarkKind kind = LarkKind::kSequence;
  std::u32string text = {};
  std::string name = {};
  std::string flags = {};
  std::vector<LarkNodeId> parts = {};
  int32_t min = 0;
  int32_t max = 0;  // or kUnbounded
};

struct LarkDefinition {
  std::vector<std::string> parameters;  // of a template
  LarkNodeId body = 0;
  bool is_lazy = false;  // of a terminal: it ends where it first can
};

struct LarkDocument {
  std::vector<LarkNode> nodes;
  std::map<std::string, LarkDefinition, std::less<>> definitions;
  std::vector<LarkNodeId> ignored;  // terminals that may stand between any two others

  LarkNodeId Add(LarkNode node);
};

// Whether a name is that of a terminal: those of the library have a prefix that ends with a dot.
inline bool IsTerminalName(std::string_view name) {
  const size_t letter = name.find_first_not_of('_', name.find('.') + 1);
  return letter != std::string_view::npos && name[letter] >= 'A' && name[letter] <= 'Z';
}

absl::StatusOr<LarkDocument> ReadLark(std::string_view text, Budget* budget);

// The terminals that "%import common" knows, in Lark's notation. They refer to each other.
std::string_view LarkCommonText();

}  // namespace heddle::engine::grammar
