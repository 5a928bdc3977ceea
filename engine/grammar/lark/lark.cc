#include "engine/grammar/lark/lark.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "base/utf8.h"
#include "engine/grammar/lark/lark_document.h"
#include "engine/grammar/lark/lark_symbols.h"
#include "engine/grammar/schema/json_schema.h"
#include "engine/grammar/schema/json_text.h"

namespace heddle::engine::grammar {
namespace {

// Limit on parts of a sequence none of which has to be there: what follows each of them is written
// anew.
constexpr size_t kMaxOptionalParts = 128;

// Writes rules. Every expression that is written derives the texts of its part but the empty one:
// so a gap is written between two parts exactly where both have a text.
class LarkWriter {
 public:
  LarkWriter(const LarkSymbols* symbols, Budget* budget) : symbols_(*symbols), budget_(budget) {}

  absl::StatusOr<Grammar> Run() {
    if (!symbols_.ignored().states.empty()) {
      ignored_ = grammar_.Call(grammar_.AddRule("ignored", grammar_.Machine(symbols_.ignored())));
    }
    for (const LarkTerminal& terminal : symbols_.terminals()) WriteTerminal(terminal);
    for (const std::string& schema : symbols_.schemas()) {
      HEDDLE_ASSIGN_OR_RETURN(const RuleId rule,
                              AddJsonSchema(std::string_view(schema), {}, &grammar_, budget_));
      schemas_.push_back(grammar_.Call(rule));
    }
    for (const LarkRule& rule : symbols_.rules()) rules_.push_back(grammar_.DeclareRule(rule.name));
    for (size_t i = 0; i < rules_.size(); ++i) {
      HEDDLE_ASSIGN_OR_RETURN(const ExprId body, Write(symbols_.rules()[i].body));
      grammar_.rules[Index(rules_[i])].body = body;
    }
    WriteRoot();
    return std::move(grammar_);
  }

 private:
  void WriteTerminal(const LarkTerminal& terminal) {
    terminals_.push_back(
        terminal.text.empty()
            ? grammar_.Call(grammar_.AddRule(terminal.name, grammar_.Machine(terminal.machine)))
            : grammar_.Text(terminal.text));
  }

  // The texts of `start`; what is ignored may also stand around them.
  void WriteRoot() {
    std::vector<ExprId> parts = {grammar_.Call(rules_[0])};
    const bool is_nullable = symbols_.part(symbols_.rules()[0].body).is_nullable;
    if (is_nullable) parts[0] = Optional(parts[0]);
    if (HasGaps()) {
      parts.insert(parts.begin(), Optional(*ignored_));
      // Behind nothing, what is ignored has been written before it.
      parts.push_back(Optional(*ignored_));
    }
    grammar_.root = grammar_.AddRule("root", grammar_.Sequence(std::move(parts)));
  }

  bool HasGaps() const { return ignored_.has_value(); }
  ExprId Optional(ExprId expr) { return grammar_.Repeat(expr, 0, 1); }
  ExprId Nothing() { return grammar_.Chars({}); }

  // Appends what may or must stand between texts of which one ends as `before` says and the other
  // begins as `after` says.
  void AddGap(const CodePointSet& before, const CodePointSet& after, std::vector<ExprId>* out) {
    if (!HasGaps()) return;
    out->push_back(Overlap(before, after) ? *ignored_ : Optional(*ignored_));
  }

  static bool Overlap(const CodePointSet& a, const CodePointSet& b) {
    for (size_t i = 0, k = 0; i < a.ranges().size() && k < b.ranges().size();) {
      const CodePointRange& left = a.ranges()[i];
      const CodePointRange& right = b.ranges()[k];
      if (left.last < right.first) {
        ++i;
      } else if (right.last < left.first) {
        ++k;
      } else {
        return true;
      }
    }
    return false;
  }

  absl::StatusOr<ExprId> Write(LarkPartId id) {
    HEDDLE_RETURN_IF_ERROR(Spend(budget_, 1));
    const LarkPart& part = symbols_.part(id);
    switch (part.kind) {
      case LarkPartKind::kTerminal:
        return terminals_[static_cast<size_t>(part.index)];
      case LarkPartKind::kRule:
        return grammar_.Call(rules_[static_cast<size_t>(part.index)]);
      case LarkPartKind::kJson:
        return schemas_[static_cast<size_t>(part.index)];
      case LarkPartKind::kSequence:
        return WriteSequence(part);
      case LarkPartKind::kChoice:
        return WriteChoice(part);
      case LarkPartKind::kRepeat:
        return WriteRepeat(part);
    }
    return absl::InternalError("a part of no kind");
  }

  absl::StatusOr<ExprId> WriteChoice(const LarkPart& part) {
    std::vector<ExprId> choices;
    for (LarkPartId child : part.parts) {
      HEDDLE_ASSIGN_OR_RETURN(const ExprId written, Write(child));
      choices.push_back(written);
    }
    return grammar_.Choice(std::move(choices));
  }

  // A part that is written more than once: what is larger than a call becomes a rule.
  absl::StatusOr<ExprId> WriteOnce(LarkPartId id) {
    HEDDLE_ASSIGN_OR_RETURN(const ExprId written, Write(id));
    const LarkPartKind kind = symbols_.part(id).kind;
    const bool is_large = kind == LarkPartKind::kSequence || kind == LarkPartKind::kChoice ||
                          kind == LarkPartKind::kRepeat;
    return is_large ? grammar_.Call(grammar_.AddRule("group", written)) : written;
  }

  absl::StatusOr<ExprId> WriteRepeat(const LarkPart& part) {
    const LarkPart& child = symbols_.part(part.parts[0]);
    if (part.max == 0) return Nothing();
    const int32_t min = child.is_nullable ? 1 : std::max(part.min, 1);
    const int32_t max = part.max;
    if (max == 1) return Write(part.parts[0]);
    HEDDLE_ASSIGN_OR_RETURN(const ExprId one, WriteOnce(part.parts[0]));
    std::vector<ExprId> next;
    AddGap(child.goes_on, child.first, &next);
    next.push_back(one);
    const ExprId more = grammar_.Sequence(std::move(next));
    return grammar_.Sequence(
        {one, grammar_.Repeat(more, min - 1, max == kUnbounded ? kUnbounded : max - 1)});
  }

  absl::StatusOr<ExprId> WriteSequence(const LarkPart& part) {
    const std::vector<LarkPartId>& children = part.parts;
    std::vector<ExprId> written;
    size_t pivot = children.size();  // the first part that has no empty text
    for (size_t i = 0; i < children.size(); ++i) {
      HEDDLE_ASSIGN_OR_RETURN(const ExprId one,
                              part.is_nullable ? WriteOnce(children[i]) : Write(children[i]));
      written.push_back(one);
      if (pivot == children.size() && !symbols_.part(children[i]).is_nullable) pivot = i;
    }
    if (pivot < children.size()) return Around(children, written, pivot);
    // All parts may be empty: some part is the first that is not.
    if (children.size() > kMaxOptionalParts) {
      return absl::ResourceExhaustedError(
          base::StrCat("a sequence of the Lark grammar has more than ", kMaxOptionalParts,
                       " parts that may all be empty; put some of them into rules of their own"));
    }
    std::vector<ExprId> choices;
    for (size_t i = 0; i < children.size(); ++i) {
      HEDDLE_RETURN_IF_ERROR(Spend(budget_, static_cast<int64_t>(children.size() - i)));
      choices.push_back(Around({children.begin() + static_cast<ptrdiff_t>(i), children.end()},
                               {written.begin() + static_cast<ptrdiff_t>(i), written.end()}, 0));
    }
    return choices.empty() ? Nothing() : grammar_.Choice(std::move(choices));
  }

  // A sequence with a text of `children[pivot]`; what is before it may be empty.
  ExprId Around(const std::vector<LarkPartId>& children, const std::vector<ExprId>& written,
                size_t pivot) {
    std::vector<ExprId> out;
    for (size_t i = 0; i < pivot; ++i) {
      CodePointSet first;  // of what may follow
      for (size_t k = i + 1; k <= pivot; ++k) first.Add(symbols_.part(children[k]).first);
      std::vector<ExprId> before = {written[i]};
      AddGap(symbols_.part(children[i]).goes_on, first, &before);
      out.push_back(Optional(grammar_.Sequence(std::move(before))));
    }
    out.push_back(written[pivot]);
    CodePointSet goes_on = symbols_.part(children[pivot]).goes_on;  // of what may be before
    for (size_t i = pivot + 1; i < children.size(); ++i) {
      const LarkPart& child = symbols_.part(children[i]);
      std::vector<ExprId> behind;
      AddGap(goes_on, child.first, &behind);
      behind.push_back(written[i]);
      const ExprId both = grammar_.Sequence(std::move(behind));
      out.push_back(child.is_nullable ? Optional(both) : both);
      if (!child.is_nullable) goes_on = {};
      goes_on.Add(child.goes_on);
    }
    return grammar_.Sequence(std::move(out));
  }

  const LarkSymbols& symbols_;
  Budget* const budget_;
  Grammar grammar_;
  std::optional<ExprId> ignored_;  // one piece or more of what is ignored
  std::vector<ExprId> terminals_;
  std::vector<ExprId> schemas_;
  std::vector<RuleId> rules_;
};

// One character as it is within the quotes of a JSON string.
ExprId CharsWithinJson(const CodePointSet& chars, Grammar* grammar) {
  CodePointSet plain;
  std::vector<ExprId> choices;
  for (const CodePointRange& range : chars.ranges()) {
    char32_t first = range.first;  // of a run that needs no escape
    for (char32_t c = range.first; c <= range.last && c <= U'\\'; ++c) {
      const std::string written = JsonString(std::string(1, static_cast<char>(c)));
      if (written.size() == 3) continue;  // with its quotes
      if (c > first) plain.Add(first, c - 1);
      choices.push_back(grammar->Text(std::string_view(written).substr(1, written.size() - 2)));
      first = c + 1;
    }
    if (first <= range.last) plain.Add(first, range.last);
  }
  if (!plain.empty() || choices.empty()) choices.push_back(grammar->Chars(std::move(plain)));
  return grammar->Choice(std::move(choices));
}

}  // namespace

absl::StatusOr<Grammar> ParseLark(std::string_view text, Budget* budget) {
  HEDDLE_RETURN_IF_ERROR(Spend(budget, static_cast<int64_t>(text.size())));
  HEDDLE_ASSIGN_OR_RETURN(const LarkDocument document, ReadLark(text, budget));
  LarkSymbols symbols(&document, budget);
  HEDDLE_RETURN_IF_ERROR(symbols.Resolve());
  return LarkWriter(&symbols, budget).Run();
}

bool IsLark(std::string_view text) {
  const auto skip = [&text](std::string_view characters) {
    text.remove_prefix(std::min(text.find_first_not_of(characters), text.size()));
  };
  const auto is_comment = [&text] { return text.starts_with('#') || text.starts_with("//"); };
  for (skip(" \t\r\n"); is_comment(); skip(" \t\r\n")) {
    text.remove_prefix(std::min(text.find('\n'), text.size()));
  }
  if (text.starts_with('%') || text.starts_with('?') || text.starts_with('!')) return true;
  skip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
  skip(" \t");
  if (text.starts_with("::=")) return false;
  return text.starts_with(':') || text.starts_with('.') || text.starts_with('{') ||
         text.starts_with('[');
}

absl::StatusOr<Grammar> WithinJsonString(Grammar grammar, Budget* budget) {
  const size_t num_exprs = grammar.exprs.size();
  for (size_t i = 0; i < num_exprs; ++i) {
    HEDDLE_RETURN_IF_ERROR(Spend(budget, 1));
    ExprId written{static_cast<int32_t>(i)};
    if (grammar.exprs[i].kind == ExprKind::kText) {
      std::string text;
      for (char32_t c : grammar.exprs[i].text) base::AppendUtf8(c, &text);
      const std::string quoted = JsonString(text);
      written = grammar.Text(std::string_view(quoted).substr(1, quoted.size() - 2));
    } else if (grammar.exprs[i].kind == ExprKind::kChars) {
      const CodePointSet chars = grammar.exprs[i].chars;
      written = CharsWithinJson(chars, &grammar);
    }
    if (Index(written) != i) grammar.exprs[i] = Expr(grammar.exprs[Index(written)]);
  }
  for (StateMachine& machine : grammar.machines) {
    HEDDLE_ASSIGN_OR_RETURN(machine, InJsonString(machine, budget));
  }
  // Keys are kept different by following JSON's syntax, which is written in another way here.
  for (Rule& rule : grammar.rules) rule.is_distinct = false;
  return grammar;
}

}  // namespace heddle::engine::grammar
