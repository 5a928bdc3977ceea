#include "engine/grammar/gbnf.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "engine/grammar/source_reader.h"

namespace heddle::engine::grammar {
namespace {

constexpr std::string_view kRoot = "root";

bool IsNameCharacter(char32_t c) {
  return (c >= U'a' && c <= U'z') || (c >= U'A' && c <= U'Z') || (c >= U'0' && c <= U'9') ||
         c == U'-' || c == U'_';
}

class GbnfParser {
 public:
  GbnfParser(SourceReader reader, Budget* budget) : reader_(std::move(reader)), budget_(budget) {}

  absl::StatusOr<Grammar> Run() {
    for (SkipSpace(); !reader_.AtEnd(); SkipSpace()) HEDDLE_RETURN_IF_ERROR(ParseRule());
    for (const auto& [name, rule] : rules_) {
      if (static_cast<int32_t>(grammar_.rules[Index(rule)].body) < 0) {
        return absl::InvalidArgumentError(
            base::StrCat("the grammar uses rule ", base::Quote(name), " and does not define it"));
      }
    }
    auto root = rules_.find(kRoot);
    if (root == rules_.end()) {
      return absl::InvalidArgumentError("the grammar has no rule \"root\", where texts begin");
    }
    grammar_.root = root->second;
    return std::move(grammar_);
  }

 private:
  void SkipSpace() {
    while (!reader_.AtEnd()) {
      const char32_t c = reader_.Peek();
      if (c == U'#') {
        while (!reader_.AtEnd() && reader_.Peek() != U'\n') reader_.Take();
      } else if (c == U' ' || c == U'\t' || c == U'\n' || c == U'\r') {
        reader_.Take();
      } else {
        return;
      }
    }
  }

  std::string TakeName() {
    std::string name;
    while (IsNameCharacter(reader_.Peek())) name.push_back(static_cast<char>(reader_.Take()));
    return name;
  }

  RuleId RuleNamed(const std::string& name) {
    auto it = rules_.find(name);
    if (it == rules_.end()) it = rules_.emplace(name, grammar_.DeclareRule(name)).first;
    return it->second;
  }

  // Whether the next rule begins here.
  bool AtDefinition() {
    const size_t position = reader_.position();
    const bool named = !TakeName().empty();
    SkipSpace();
    const bool found = named && reader_.TakeIf(U"::=");
    reader_.ReturnTo(position);
    return found;
  }

  absl::Status ParseRule() {
    HEDDLE_RETURN_IF_ERROR(Spend(budget_, 1));
    const std::string name = TakeName();
    if (name.empty()) return reader_.Error("expected the name of a rule");
    SkipSpace();
    if (!reader_.TakeIf(U"::=")) return reader_.Error("expected ::= after the name of a rule");
    const RuleId rule = RuleNamed(name);
    if (static_cast<int32_t>(grammar_.rules[Index(rule)].body) >= 0) {
      return reader_.Error(base::StrCat("rule ", base::Quote(name), " is defined twice"));
    }
    HEDDLE_ASSIGN_OR_RETURN(const ExprId body, ParseChoice(0));
    grammar_.rules[Index(rule)].body = body;
    return absl::OkStatus();
  }

  absl::StatusOr<ExprId> ParseChoice(int depth) {
    if (depth > kMaxNesting) {
      return reader_.Error(base::StrCat("groups are nested more than ", kMaxNesting, " deep"));
    }
    std::vector<ExprId> parts;
    do {
      HEDDLE_ASSIGN_OR_RETURN(const ExprId part, ParseSequence(depth));
      parts.push_back(part);
    } while (reader_.TakeIf(U'|'));
    return grammar_.Choice(std::move(parts));
  }

  absl::StatusOr<ExprId> ParseSequence(int depth) {
    std::vector<ExprId> parts;
    while (true) {
      SkipSpace();
      const char32_t c = reader_.Peek();
      if (reader_.AtEnd() || c == U'|' || c == U')') break;
      HEDDLE_RETURN_IF_ERROR(Spend(budget_, 1));
      if (IsNameCharacter(c) && AtDefinition()) break;
      HEDDLE_ASSIGN_OR_RETURN(const ExprId atom, ParseAtom(depth));
      HEDDLE_ASSIGN_OR_RETURN(const ExprId part, ParseRepeats(atom));
      parts.push_back(part);
    }
    if (depth == 0 && reader_.Peek() == U')') return reader_.Error("a ) that closes nothing");
    return parts.empty() ? grammar_.Text(U"") : grammar_.Sequence(std::move(parts));
  }

  absl::StatusOr<ExprId> ParseAtom(int depth) {
    const char32_t c = reader_.Peek();
    if (c == U'"' || c == U'\'') return ParseLiteral();
    if (c == U'[') return ParseClass();
    if (IsNameCharacter(c)) return grammar_.Call(RuleNamed(TakeName()));
    if (reader_.TakeIf(U'.')) return grammar_.Chars(CodePointSet::All());
    if (!reader_.TakeIf(U'(')) {
      return reader_.Error("expected a literal, a class, a group or the name of a rule");
    }
    HEDDLE_ASSIGN_OR_RETURN(const ExprId group, ParseChoice(depth + 1));
    if (!reader_.TakeIf(U')')) return reader_.Error("expected )");
    return group;
  }

  absl::StatusOr<ExprId> ParseLiteral() {
    const char32_t quote = reader_.Take();
    std::u32string text;
    while (!reader_.TakeIf(quote)) {
      if (reader_.AtEnd()) return reader_.Error("a literal does not end");
      char32_t c = reader_.Take();
      if (c == U'\\') {
        HEDDLE_ASSIGN_OR_RETURN(c, reader_.TakeEscape());
      }
      text.push_back(c);
    }
    return grammar_.Text(text);
  }

  absl::StatusOr<char32_t> TakeClassCharacter() {
    if (reader_.AtEnd()) return reader_.Error("a character class does not end");
    const char32_t c = reader_.Take();
    if (c != U'\\') return c;
    return reader_.TakeEscape();
  }

  absl::StatusOr<ExprId> ParseClass() {
    reader_.Take();
    const bool negated = reader_.TakeIf(U'^');
    std::vector<CodePointRange> ranges;
    while (!reader_.TakeIf(U']')) {
      HEDDLE_RETURN_IF_ERROR(Spend(budget_, 1));
      HEDDLE_ASSIGN_OR_RETURN(const char32_t first, TakeClassCharacter());
      char32_t last = first;
      if (reader_.Peek() == U'-' && reader_.Peek(1) != U']') {
        reader_.Take();
        HEDDLE_ASSIGN_OR_RETURN(last, TakeClassCharacter());
        if (last < first) return reader_.Error("a range of characters is the wrong way round");
      }
      ranges.push_back({first, last});
    }
    CodePointSet set = CodePointSet::OfRanges(std::move(ranges));
    return grammar_.Chars(negated ? set.Complement() : std::move(set));
  }

  absl::StatusOr<ExprId> ParseRepeats(ExprId part) {
    for (int repeats = 0;; ++repeats) {
      if (repeats > kMaxNesting) return reader_.Error("too many repeats of repeats");
      SkipSpace();
      int32_t min = 0;
      int32_t max = kUnbounded;
      if (reader_.TakeIf(U'+')) {
        min = 1;
      } else if (reader_.TakeIf(U'?')) {
        max = 1;
      } else if (reader_.TakeIf(U'{')) {
        HEDDLE_RETURN_IF_ERROR(reader_.TakeBounds(&min, &max));
      } else if (!reader_.TakeIf(U'*')) {
        return part;
      }
      part = grammar_.Repeat(part, min, max);
    }
  }

  SourceReader reader_;
  Budget* const budget_;
  Grammar grammar_;
  std::map<std::string, RuleId, std::less<>> rules_;
};

}  // namespace

absl::StatusOr<Grammar> ParseGbnf(std::string_view text, Budget* budget) {
  HEDDLE_ASSIGN_OR_RETURN(SourceReader reader, SourceReader::Create(text, "grammar"));
  return GbnfParser(std::move(reader), budget).Run();
}

}  // namespace heddle::engine::grammar
