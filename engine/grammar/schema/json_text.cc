#include "engine/grammar/schema/json_text.h"

#include <utility>

#include "base/status.h"

namespace heddle::engine::grammar {
namespace {

struct ShortEscape {
  char32_t code_point;
  char32_t letter;
};
constexpr ShortEscape kShortEscapes[] = {{U'"', U'"'},  {U'\\', U'\\'}, {U'\b', U'b'},
                                         {U'\f', U'f'}, {U'\n', U'n'},  {U'\r', U'r'},
                                         {U'\t', U't'}};

char32_t EscapeLetter(char32_t c) {
  for (const ShortEscape& escape : kShortEscapes) {
    if (escape.code_point == c) return escape.letter;
  }
  return 0;
}

constexpr std::u32string_view kHex = U"0123456789abcdef";

std::u32string Escaped(char32_t c) {
  if (char32_t letter = EscapeLetter(c)) return {U'\\', letter};
  return {U'\\', U'u', U'0', U'0', kHex[c >> 4], kHex[c & 15]};
}

bool NeedsEscape(char32_t c) { return c < 0x20 || c == U'"' || c == U'\\'; }

}  // namespace

absl::StatusOr<StateMachine> InJsonString(const StateMachine& machine, Budget* budget) {
  Nfa nfa = ToNfa(machine);
  for (size_t s = 0; s < machine.states.size(); ++s) {
    // Each control character has states of its own; all machines of strings read them.
    HEDDLE_RETURN_IF_ERROR(Spend(budget, 1 + static_cast<int64_t>(machine.states[s].chars.size())));
    if (nfa.states.size() > kMaxEdges) {
      return absl::ResourceExhaustedError(
          "the conditions on a string need too many states where it is written as JSON");
    }
    nfa.states[s].chars.clear();
    for (const CharEdge& edge : machine.states[s].chars) {
      char32_t first = edge.first;  // of a run that needs no escape
      for (char32_t c = edge.first; c <= edge.last && c <= U'\\'; ++c) {
        if (!NeedsEscape(c)) continue;
        if (c > first) nfa.states[s].chars.push_back({first, c - 1, edge.target});
        first = c + 1;
        const std::u32string text = Escaped(c);
        auto from = static_cast<int32_t>(s);
        for (size_t i = 0; i < text.size(); ++i) {
          int32_t to = edge.target;
          if (i + 1 < text.size()) {
            to = static_cast<int32_t>(nfa.states.size());
            nfa.states.emplace_back();
          }
          nfa.states[static_cast<size_t>(from)].chars.push_back({text[i], text[i], to});
          from = to;
        }
      }
      if (first <= edge.last) nfa.states[s].chars.push_back({first, edge.last, edge.target});
    }
  }
  HEDDLE_ASSIGN_OR_RETURN(const StateMachine result, Determinize(nfa, kMaxStates, budget));
  StateMachine least = Minimize(result, budget);
  HEDDLE_RETURN_IF_ERROR(StatusOf(budget));
  return least;
}

std::string JsonString(std::string_view utf8) {
  std::string out = "\"";
  for (char c : utf8) {
    const auto byte = static_cast<unsigned char>(c);
    if (!NeedsEscape(byte)) {
      out.push_back(c);
      continue;
    }
    for (char32_t part : Escaped(byte)) out.push_back(static_cast<char>(part));
  }
  out.push_back('"');
  return out;
}

CodePointSet PlainStringCharacters() {
  CodePointSet set;
  for (char32_t c = 0x20; c < 0x80; ++c) {
    if (!NeedsEscape(c)) set.Add(c, c);
  }
  return set;
}

ExprId SpecialStringCharacter(Grammar* grammar) {
  Grammar& g = *grammar;
  const CodePointSet hex{{U'0', U'9'}, {U'A', U'F'}, {U'a', U'f'}};
  const ExprId any = g.Chars(hex);
  const ExprId any_two = g.Sequence({any, any});
  const ExprId any_three = g.Sequence({any, any, any});
  const ExprId d = g.Chars({{U'D', U'D'}, {U'd', U'd'}});
  const ExprId not_d =
      g.Chars({{U'0', U'9'}, {U'A', U'C'}, {U'E', U'F'}, {U'a', U'c'}, {U'e', U'f'}});
  const ExprId below_8 = g.Chars({{U'0', U'7'}});
  const ExprId high = g.Chars({{U'8', U'9'}, {U'A', U'B'}, {U'a', U'b'}});
  const ExprId low = g.Chars({{U'C', U'F'}, {U'c', U'f'}});
  const ExprId unit = g.Choice({g.Sequence({not_d, any_three}), g.Sequence({d, below_8, any_two}),
                                g.Sequence({d, high, any_two, g.Text(U"\\u"), d, low, any_two})});
  const ExprId letter = g.Chars({{U'"', U'"'},
                                 {U'\\', U'\\'},
                                 {U'/', U'/'},
                                 {U'b', U'b'},
                                 {U'f', U'f'},
                                 {U'n', U'n'},
                                 {U'r', U'r'},
                                 {U't', U't'}});
  const ExprId escape =
      g.Sequence({g.Text(U"\\"), g.Choice({letter, g.Sequence({g.Text(U"u"), unit})})});
  return g.Choice({g.Chars({{0x80, kMaxCodePoint}}), escape});
}

}  // namespace heddle::engine::grammar
