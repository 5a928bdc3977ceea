#include "engine/grammar/regex.h"

#include <string>
#include <utility>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "engine/grammar/character_properties.h"
#include "engine/grammar/look_ahead.h"
#include "engine/grammar/source_reader.h"

namespace heddle::engine::grammar {
namespace {

CodePointSet Digits() { return {{U'0', U'9'}}; }
CodePointSet WordCharacters() { return {{U'0', U'9'}, {U'A', U'Z'}, {U'_', U'_'}, {U'a', U'z'}}; }
// The characters of ECMAScript's WhiteSpace and LineTerminator.
CodePointSet WhiteSpace() {
  return {{0x9, 0xD},       {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
          {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
}
CodePointSet PythonWhiteSpace() {
  return {{0x9, 0xD},       {0x1C, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680},
          {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}};
}
CodePointSet NotLineBreaks() {
  return CodePointSet{{0xA, 0xA}, {0xD, 0xD}, {0x2028, 0x2029}}.Complement();
}

constexpr size_t kMaxPropertyName = 64;  // Script_Extensions=Egyptian_Hieroglyphs has 38
constexpr int64_t kPropertyUnits = Budget::kAskUnits;  // as much as a name at its first use
constexpr int32_t kMaxLookAheads = 8;                  // each is a machine, and an intersection

// The characters for which Python's str.isalnum is true, and the underscore.
const CodePointSet& PythonWordCharacters() {
  static const CodePointSet known = [] {
    CodePointSet set = *FindProperty("L");
    set.Add(*FindProperty("N"));
    set.Add(CodePointSet::Of(U'_'));
    return set;
  }();
  return known;
}

class RegexParser {
 public:
  RegexParser(SourceReader reader, const RegexOptions& options, Budget* budget)
      : reader_(std::move(reader)),
        is_python_(options.dialect == RegexDialect::kPython),
        has_anchors_(options.has_anchors),
        is_search_(options.match == RegexMatch::kSearch),
        budget_(budget),
        flags_{options.ignore_case, options.dot_all, options.extended} {}

  absl::StatusOr<ParsedRegex> Run() {
    any_ = grammar_.Repeat(grammar_.Chars(CodePointSet::All()), 0, kUnbounded);
    TakeFirstFlags();
    HEDDLE_ASSIGN_OR_RETURN(ExprId expr, ParseChoice(0));
    if (!reader_.AtEnd()) return reader_.Error("a ) that closes nothing");
    if (is_search_) expr = grammar_.Sequence({any_, expr});
    HEDDLE_ASSIGN_OR_RETURN(StateMachine machine, MachineOfWhole(&grammar_, expr, budget_));
    return ParsedRegex{std::move(machine), is_lazy_};
  }

 private:
  struct Flags {
    bool ignore_case = false;
    bool dot_all = false;
    bool extended = false;
  };

  // Flags at the start, as (?i).
  void TakeFirstFlags() {
    const size_t position = reader_.position();
    if (!reader_.TakeIf(U"(?")) return;
    Flags flags = flags_;
    if (TakeFlags(&flags) && reader_.TakeIf(U')')) {
      flags_ = flags;
    } else {
      reader_.ReturnTo(position);
    }
  }

  // Letters of flags, perhaps with a minus before those to turn off. False: there are none, or
  // others than i, m, s, u and x.
  bool TakeFlags(Flags* flags) {
    bool value = true;
    bool any = false;
    for (; !reader_.AtEnd(); any = true) {
      const char32_t c = reader_.Peek();
      if (c == U'-' && value) {
        value = false;
      } else if (c == U'i') {
        flags->ignore_case = value;
      } else if (c == U's') {
        flags->dot_all = value;
      } else if (c == U'x') {
        flags->extended = value;
      } else if (c != U'm' && c != U'u') {
        return any;
      }
      reader_.Take();
    }
    return false;
  }

  // Skips blanks and comments, which flag x makes no part of the expression.
  void SkipExtended() {
    while (flags_.extended && !reader_.AtEnd()) {
      const char32_t c = reader_.Peek();
      if (c == U'#') {
        while (!reader_.AtEnd() && reader_.Peek() != U'\n') reader_.Take();
      } else if (c == U' ' || (c >= U'\t' && c <= U'\r')) {
        reader_.Take();
      } else {
        return;
      }
    }
  }

  CodePointSet Dot() const {
    if (flags_.dot_all) return CodePointSet::All();
    return is_python_ ? CodePointSet::Of(U'\n').Complement() : NotLineBreaks();
  }

  absl::StatusOr<ExprId> Anchor(ExprKind kind) {
    if (!has_anchors_) return reader_.Error("anchors are not supported here");
    if (kind == ExprKind::kBegin) ++num_begins_;
    return grammar_.Anchor(kind);
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
    for (SkipExtended(); !reader_.AtEnd() && reader_.Peek() != U'|' && reader_.Peek() != U')';
         SkipExtended()) {
      // Outside of groups, what follows a look-ahead is all the rest of the text.
      const bool is_positive = depth == 0 && reader_.TakeIf(U"(?=");
      if (is_positive || (depth == 0 && reader_.TakeIf(U"(?!"))) {
        const bool is_at_begin =
            parts.size() == 1 && grammar_.exprs[Index(parts[0])].kind == ExprKind::kBegin;
        HEDDLE_ASSIGN_OR_RETURN(const ExprId rest, ParseLookAhead(is_positive, is_at_begin));
        parts.push_back(rest);
        return grammar_.Sequence(std::move(parts));
      }
      HEDDLE_ASSIGN_OR_RETURN(const ExprId atom, ParseAtom(depth));
      SkipExtended();
      HEDDLE_ASSIGN_OR_RETURN(const ExprId part, ParseRepeat(atom));
      parts.push_back(part);
    }
    if (depth == 0 && is_search_) parts.push_back(any_);
    return parts.empty() ? grammar_.Text(U"") : grammar_.Sequence(std::move(parts));
  }

  // The rest of an alternative behind "(?=" or "(?!": its texts that begin with what is looked for,
  // or do not. `is_at_begin`: it stands where the text begins.
  absl::StatusOr<ExprId> ParseLookAhead(bool is_positive, bool is_at_begin) {
    if (++num_look_aheads_ > kMaxLookAheads) {
      return reader_.Error(base::StrCat("more than ", kMaxLookAheads, " look-aheads"));
    }
    const int32_t begins = num_begins_;
    HEDDLE_ASSIGN_OR_RETURN(ExprId ahead, ParseChoice(1));
    if (!reader_.TakeIf(U')')) return reader_.Error("expected )");
    // A look-ahead that is taken to stand at the beginning finds more than it should.
    const bool finds_more = num_begins_ > begins && !is_at_begin && is_positive;
    ahead = grammar_.Sequence({ahead, any_});
    HEDDLE_ASSIGN_OR_RETURN(StateMachine machine, MachineOfWhole(&grammar_, ahead, budget_));
    if (!is_positive) machine = Complement(machine, budget_);
    const int32_t begins_ahead = num_begins_;
    HEDDLE_ASSIGN_OR_RETURN(const ExprId rest, ParseSequence(0));
    if (finds_more || (num_begins_ > begins_ahead && !is_at_begin)) {
      return reader_.Error("^ behind a look-ahead is not supported");
    }
    HEDDLE_ASSIGN_OR_RETURN(const StateMachine texts, MachineOfWhole(&grammar_, rest, budget_));
    HEDDLE_ASSIGN_OR_RETURN(machine, Intersect(machine, texts, kMaxStates, budget_));
    return grammar_.Machine(std::move(machine));
  }

  // A look-ahead within a group, behind "(?=" or "(?!". What follows it is not read yet.
  absl::StatusOr<ExprId> ParseInnerLookAhead(bool is_positive, int depth) {
    if (++num_look_aheads_ > kMaxLookAheads) {
      return reader_.Error(base::StrCat("more than ", kMaxLookAheads, " look-aheads"));
    }
    const int32_t begins = num_begins_;
    HEDDLE_ASSIGN_OR_RETURN(const ExprId ahead, ParseChoice(depth + 1));
    if (num_begins_ > begins) return reader_.Error("^ within a look-ahead is not supported");
    if (!reader_.TakeIf(U')')) return reader_.Error("expected )");
    HEDDLE_ASSIGN_OR_RETURN(StateMachine machine,
                            MachineOfWhole(&grammar_, grammar_.Sequence({ahead, any_}), budget_));
    if (!is_positive) machine = Complement(machine, budget_);
    const ExprId id = grammar_.Machine(std::move(machine));
    grammar_.exprs[Index(id)].kind = ExprKind::kAhead;
    return id;
  }

  ExprId Characters(CodePointSet set) {
    return grammar_.Chars(flags_.ignore_case ? set.WithBothAsciiCases() : std::move(set));
  }

  absl::StatusOr<ExprId> ParseAtom(int depth) {
    const char32_t c = reader_.Take();
    switch (c) {
      case U'(':
        return ParseGroup(depth);
      case U'[':
        return ParseClass();
      case U'.':
        return grammar_.Chars(Dot());
      case U'^':
        return Anchor(ExprKind::kBegin);
      case U'$':
        return Anchor(ExprKind::kEnd);
      case U'*':
      case U'+':
      case U'?':
        return reader_.Error("a repeat with nothing to repeat");
      case U'\\':
        return ParseEscape();
      default:
        return Characters(CodePointSet::Of(c));
    }
  }

  absl::StatusOr<ExprId> ParseGroup(int depth) {
    const Flags around = flags_;
    if (reader_.TakeIf(U'?')) {
      if (reader_.TakeIf(U'P') || reader_.Peek() == U'<') {
        if (!reader_.TakeIf(U'<') || reader_.Peek() == U'=' || reader_.Peek() == U'!') {
          return reader_.Error("look-behind is not supported: it is no regular language here");
        }
        while (!reader_.AtEnd() && reader_.Peek() != U'>') reader_.Take();
        if (!reader_.TakeIf(U'>')) return reader_.Error("the name of a group does not end");
      } else if (reader_.Peek() == U'=' || reader_.Peek() == U'!') {
        return ParseInnerLookAhead(reader_.Take() == U'=', depth);
      } else if (!reader_.TakeIf(U':') && !(TakeFlags(&flags_) && reader_.TakeIf(U':'))) {
        return reader_.Error("flags within an expression are not supported");
      }
    }
    HEDDLE_ASSIGN_OR_RETURN(const ExprId group, ParseChoice(depth + 1));
    flags_ = around;
    if (!reader_.TakeIf(U')')) return reader_.Error("expected )");
    return group;
  }

  // \d, \W, \p{L} and the like; false: no such class stands here, and nothing is taken.
  absl::StatusOr<bool> TakeClassEscape(CodePointSet* set) {
    switch (reader_.Peek()) {
      case U'd':
      case U'D':
        *set = is_python_ ? *FindProperty("Nd") : Digits();
        break;
      case U'w':
      case U'W':
        *set = is_python_ ? PythonWordCharacters() : WordCharacters();
        break;
      case U's':
      case U'S':
        *set = is_python_ ? PythonWhiteSpace() : WhiteSpace();
        break;
      case U'p':
      case U'P':
        HEDDLE_RETURN_IF_ERROR(TakeProperty(set));
        return true;
      default:
        return false;
    }
    HEDDLE_RETURN_IF_ERROR(Spend(budget_, static_cast<int64_t>(set->ranges().size())));
    const bool is_opposite = reader_.Take() < U'a';  // an upper case letter
    if (is_opposite) *set = set->Complement();
    return true;
  }

  // Reads the name in braces, or the one letter of \pL.
  absl::StatusOr<std::string> TakePropertyName() {
    const bool in_braces = reader_.TakeIf(U'{');
    const size_t max_size = in_braces ? kMaxPropertyName : 1;
    std::string name;
    while (!reader_.AtEnd() && reader_.Peek() != U'}' && name.size() < max_size) {
      const char32_t c = reader_.Take();
      name.push_back(c < 0x80 ? static_cast<char>(c) : '?');
    }
    if (in_braces && !reader_.TakeIf(U'}')) {
      return reader_.Error("the name of a property does not end");
    }
    return name;
  }

  absl::Status TakeProperty(CodePointSet* set) {
    const bool negated = reader_.Take() == U'P';
    HEDDLE_ASSIGN_OR_RETURN(const std::string name, TakePropertyName());
    HEDDLE_RETURN_IF_ERROR(Spend(budget_, kPropertyUnits));
    const CodePointSet* const known = FindProperty(name);
    if (known == nullptr) {
      return reader_.Error(base::StrCat("the property ", base::Quote(name),
                                        " is not supported; general categories, scripts (sc=, "
                                        "scx=) and Unicode's binary properties are"));
    }
    HEDDLE_RETURN_IF_ERROR(Spend(budget_, static_cast<int64_t>(known->ranges().size())));
    *set = negated ? known->Complement() : *known;
    return absl::OkStatus();
  }

  absl::StatusOr<ExprId> ParseEscape() {
    CodePointSet set;
    HEDDLE_ASSIGN_OR_RETURN(const bool is_class, TakeClassEscape(&set));
    if (is_class) return grammar_.Chars(std::move(set));
    const char32_t c = reader_.Peek();
    if (reader_.TakeIf(U'A')) return Anchor(ExprKind::kBegin);
    if (reader_.TakeIf(U'z') || reader_.TakeIf(U'Z')) return Anchor(ExprKind::kEnd);
    if (c == U'b' || c == U'B') return reader_.Error("\\b and \\B are not supported");
    if ((c >= U'1' && c <= U'9') || c == U'k') {
      return reader_.Error("back references are not supported: they are no regular language");
    }
    HEDDLE_ASSIGN_OR_RETURN(const char32_t literal, TakeCharacterEscape());
    return Characters(CodePointSet::Of(literal));
  }

  // Reads the rest of an escape behind its backslash.
  absl::StatusOr<char32_t> TakeCharacterEscape() {
    if (reader_.TakeIf(U'0')) return U'\0';
    if (reader_.Peek() == U'c') {
      reader_.Take();
      const char32_t letter = reader_.AtEnd() ? U'\0' : reader_.Take();
      const bool ok = (letter >= U'a' && letter <= U'z') || (letter >= U'A' && letter <= U'Z');
      if (!ok) return reader_.Error("expected a letter after \\c");
      return letter % 32;
    }
    if (reader_.Peek() == U'u' && reader_.Peek(1) == U'{') {
      reader_.Take();
      reader_.Take();
      int digits = 0;
      while (reader_.Peek(digits) != U'}' && digits < 7) ++digits;
      HEDDLE_ASSIGN_OR_RETURN(const char32_t c, reader_.TakeHex(digits));
      if (!reader_.TakeIf(U'}')) return reader_.Error("expected }");
      return c;
    }
    return reader_.TakeEscape();
  }

  absl::StatusOr<ExprId> ParseClass() {
    const bool negated = reader_.TakeIf(U'^');
    CodePointSet set;
    std::vector<CodePointRange> single;  // ranges; joined at the end, in the time of a sort
    while (!reader_.TakeIf(U']')) {
      HEDDLE_RETURN_IF_ERROR(Spend(budget_, 1));
      CodePointSet part;
      HEDDLE_ASSIGN_OR_RETURN(bool is_class, TakeClassPart(&part));
      if (!is_class && reader_.Peek() == U'-' && reader_.Peek(1) != U']') {
        reader_.Take();
        CodePointSet end;
        HEDDLE_ASSIGN_OR_RETURN(is_class, TakeClassPart(&end));
        const char32_t first = part.ranges().front().first;
        if (is_class || end.ranges().front().first < first) {
          return reader_.Error("a range of characters needs two ends in order");
        }
        part.Add(first, end.ranges().front().first);
      }
      if (part.ranges().size() == 1) {
        single.push_back(part.ranges()[0]);
        continue;
      }
      HEDDLE_RETURN_IF_ERROR(
          Spend(budget_, static_cast<int64_t>(set.ranges().size() + part.ranges().size())));
      set.Add(part);
    }
    set.Add(CodePointSet::OfRanges(std::move(single)));
    if (flags_.ignore_case) set = set.WithBothAsciiCases();
    return grammar_.Chars(negated ? set.Complement() : std::move(set));
  }

  // One character (false) or one class (true) between brackets.
  absl::StatusOr<bool> TakeClassPart(CodePointSet* part) {
    if (reader_.AtEnd()) return reader_.Error("a character class does not end");
    char32_t c = reader_.Take();
    if (c == U'\\') {
      HEDDLE_ASSIGN_OR_RETURN(const bool is_class, TakeClassEscape(part));
      if (is_class) return true;
      if (reader_.TakeIf(U'b')) {
        c = U'\b';
      } else {
        HEDDLE_ASSIGN_OR_RETURN(c, TakeCharacterEscape());
      }
    }
    *part = CodePointSet::Of(c);
    return false;
  }

  absl::StatusOr<ExprId> ParseRepeat(ExprId part) {
    int32_t min = 0;
    int32_t max = kUnbounded;
    if (reader_.TakeIf(U'+')) {
      min = 1;
    } else if (reader_.TakeIf(U'?')) {
      max = 1;
    } else if (reader_.Peek() == U'{') {
      // JavaScript without the u flag takes a brace that bounds nothing as itself; we do not.
      reader_.Take();
      HEDDLE_RETURN_IF_ERROR(reader_.TakeBounds(&min, &max));
    } else if (!reader_.TakeIf(U'*')) {
      return part;
    }
    is_lazy_ |= reader_.TakeIf(U'?');  // the same texts
    if (reader_.Peek() == U'*' || reader_.Peek() == U'+' || reader_.Peek() == U'?') {
      return reader_.Error("a repeat of a repeat; use a group");
    }
    return grammar_.Repeat(part, min, max);
  }

  SourceReader reader_;
  const bool is_python_;
  const bool has_anchors_;
  const bool is_search_;
  Grammar grammar_;
  bool is_lazy_ = false;
  ExprId any_{};            // any text
  int32_t num_begins_ = 0;  // anchors at the beginning so far
  int32_t num_look_aheads_ = 0;
  Budget* const budget_;
  Flags flags_;
};

}  // namespace

absl::StatusOr<ParsedRegex> ParseRegex(std::string_view pattern, const RegexOptions& options,
                                       Budget* budget) {
  HEDDLE_RETURN_IF_ERROR(Spend(budget, static_cast<int64_t>(pattern.size())));
  HEDDLE_ASSIGN_OR_RETURN(SourceReader reader, SourceReader::Create(pattern, "regular expression"));
  return RegexParser(std::move(reader), options, budget).Run();
}

absl::StatusOr<StateMachine> ParseRegex(std::string_view pattern, RegexMatch match,
                                        Budget* budget) {
  HEDDLE_ASSIGN_OR_RETURN(ParsedRegex parsed, ParseRegex(pattern, {.match = match}, budget));
  return std::move(parsed.machine);
}

}  // namespace heddle::engine::grammar
