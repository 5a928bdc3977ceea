#include "engine/text/class_run.h"

#include <algorithm>
#include <string>

#include "base/status.h"

namespace heddle::engine::text {
namespace {

constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();
constexpr char32_t kLastCodePoint = 0x10FFFF;

bool IsAsciiAlnum(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

// The class bits of \p{..}; 0 for a property that has none.
uint8_t ClassOf(std::string_view property) {
  if (property == "L") return kLetter;
  if (property == "N") return kNumber;
  if (property == "P") return kPunctuation;
  if (property == "M") return kMark;
  if (property == "S") return kSymbol;
  return 0;
}

// One member of a set: a code point, or the code points of some classes.
struct Member {
  char32_t code_point = 0;
  uint8_t classes = 0;  // 0: it is the code point
};

}  // namespace

void CodePointSet::Finish(bool negated) {
  std::sort(ranges_.begin(), ranges_.end());
  negated_ = negated;
  for (char32_t c = 0; c < ascii_.size(); ++c) ascii_[c] = ContainsWide(c);
}

bool CodePointSet::ContainsWide(char32_t c) const {
  bool found = ((*classes_)[c] & bits_) != 0;
  for (auto range = ranges_.begin(); !found && range != ranges_.end() && range->first <= c;
       ++range) {
    found = c <= range->second;
  }
  return found != negated_;
}

void CodePointSet::MarkFirstBytes(std::array<bool, 256>* first) const {
  for (size_t c = 0; c < ascii_.size(); ++c) (*first)[c] |= ascii_[c];
  const auto mark = [first](char32_t from, char32_t to) {
    std::string bytes;
    base::AppendUtf8(from, &bytes);
    const size_t last = bytes.size();
    base::AppendUtf8(to, &bytes);
    for (auto b = static_cast<unsigned char>(bytes[0]);; ++b) {
      (*first)[b] = true;
      if (b == static_cast<unsigned char>(bytes[last])) break;
    }
  };
  if (negated_ || bits_ != 0) return mark(0x80, kLastCodePoint);
  for (const auto& [from, to] : ranges_) {
    if (to >= 0x80) mark(std::max<char32_t>(from, 0x80), to);
  }
}

// Parses one pattern from the left; every function returns false if the pattern has another form.
class ClassRunParser {
 public:
  explicit ClassRunParser(std::string_view pattern) : in_(pattern) {}

  std::optional<ClassRun> Run() {
    ClassRun run;
    if (!base::IsValidUtf8(in_) || !Set(&run.set_)) return std::nullopt;
    if (Take('?')) {
      run.before_ = std::move(run.set_);
      run.set_ = CodePointSet();
      if (!Set(&run.set_)) return std::nullopt;
    }
    if (!Quantifier(&run)) return std::nullopt;
    run.at_line_end_ = Take('$');
    const bool backtracks = run.at_line_end_ && (run.before_ || run.min_ > 1);
    if (at_ != in_.size() || backtracks) return std::nullopt;
    return run;
  }

 private:
  bool Ends() const { return at_ == in_.size(); }
  bool Take(char c) {
    if (Ends() || in_[at_] != c) return false;
    ++at_;
    return true;
  }

  bool Set(CodePointSet* set) {
    if (Ends()) return false;
    bool negated = false;
    if (Take('[')) {
      negated = Take('^');
      if (!Members(set)) return false;
    } else {
      if (std::string_view(".^$*+?()]{}|").find(in_[at_]) != std::string_view::npos) return false;
      Member member;
      if (!ReadMember(&member)) return false;
      Add(member, set);
    }
    set->Finish(negated);
    return true;
  }

  // Parses up to and including the closing bracket.
  bool Members(CodePointSet* set) {
    bool first = true;
    while (!Ends() && (first || in_[at_] != ']')) {
      if (in_[at_] == '[' || in_.substr(at_, 2) == "&&") return false;
      // A hyphen stands for itself only at the ends; a leading bracket has a special meaning, too.
      const bool hyphen = in_[at_] == '-' && !first && in_.substr(at_, 2) != "-]";
      if (hyphen || (first && in_[at_] == ']')) return false;
      first = false;
      if (!MemberOrRange(set)) return false;
    }
    return Take(']');
  }

  bool MemberOrRange(CodePointSet* set) {
    Member from;
    if (!ReadMember(&from)) return false;
    if (Ends() || in_[at_] != '-' || in_.substr(at_, 2) == "-]") {
      Add(from, set);
      return true;
    }
    ++at_;
    Member to;
    if (Ends() || !ReadMember(&to) || from.classes != 0 || to.classes != 0) return false;
    if (to.code_point < from.code_point) return false;
    set->AddRange(from.code_point, to.code_point);
    return true;
  }

  static void Add(const Member& member, CodePointSet* set) {
    if (member.classes != 0) {
      set->AddClasses(member.classes);
    } else {
      set->AddRange(member.code_point, member.code_point);
    }
  }

  bool ReadMember(Member* member) {
    if (Take('\\')) return Escape(member);
    member->code_point = base::DecodeUtf8(in_.data() + at_);
    at_ += base::Utf8Size(in_[at_]);
    return true;
  }

  bool Escape(Member* member) {
    if (Ends()) return false;
    const char c = in_[at_++];
    switch (c) {
      case 's':
        member->classes = kWhiteSpace;
        return true;
      case 'n':
        member->code_point = '\n';
        return true;
      case 'r':
        member->code_point = '\r';
        return true;
      case 't':
        member->code_point = '\t';
        return true;
      case 'p':
        member->classes = ClassOf(Braced());
        return member->classes != 0;
      case 'x':
        return Hexadecimal(Braced(), &member->code_point);
      default:
        member->code_point = static_cast<unsigned char>(c);
        return static_cast<unsigned char>(c) < 0x80 && !IsAsciiAlnum(c);
    }
  }

  // The text between braces; empty if there are none.
  std::string_view Braced() {
    const size_t close = in_.find('}', at_);
    if (!Take('{') || close == std::string_view::npos) return "";
    const std::string_view inside = in_.substr(at_, close - at_);
    at_ = close + 1;
    return inside;
  }

  static bool Hexadecimal(std::string_view digits, char32_t* value) {
    if (digits.empty() || digits.size() > 6) return false;
    *value = 0;
    for (const char c : digits) {
      const bool decimal = c >= '0' && c <= '9';
      const char lower = static_cast<char>(c | 0x20);
      if (!decimal && (lower < 'a' || lower > 'f')) return false;
      *value = *value * 16 + static_cast<char32_t>(decimal ? c - '0' : lower - 'a' + 10);
    }
    return *value <= kLastCodePoint;
  }

  // Parses no quantifier, `+`, {m}, {m,} or {m,n} with m > 0, neither lazy nor possessive.
  bool Quantifier(ClassRun* run) {
    if (Take('+')) {
      run->max_ = kUnlimited;
    } else if (!Ends() && in_[at_] == '{') {
      if (!Counts(Braced(), run)) return false;
    }
    return Ends() || in_[at_] == '$';
  }

  static bool Counts(std::string_view text, ClassRun* run) {
    const size_t comma = text.find(',');
    if (!Number(text.substr(0, comma), &run->min_)) return false;
    run->max_ = run->min_;
    if (comma == std::string_view::npos) return true;
    if (comma + 1 < text.size()) return Number(text.substr(comma + 1), &run->max_);
    run->max_ = kUnlimited;
    return true;
  }

  static bool Number(std::string_view digits, size_t* value) {
    if (digits.empty() || digits.size() > 4) return false;
    *value = 0;
    for (const char c : digits) {
      if (c < '0' || c > '9') return false;
      *value = *value * 10 + static_cast<size_t>(c - '0');
    }
    return *value > 0;
  }

  std::string_view in_;
  size_t at_ = 0;
};

std::optional<ClassRun> ClassRun::Parse(std::string_view pattern) {
  std::optional<ClassRun> run = ClassRunParser(pattern).Run();
  if (!run || run->max_ < run->min_) return std::nullopt;
  run->set_.MarkFirstBytes(&run->starts_);
  if (run->before_) run->before_->MarkFirstBytes(&run->starts_);
  return run;
}

size_t ClassRun::RunFrom(std::string_view text, size_t begin) const {
  size_t end = begin;
  size_t count = 0;
  while (count < max_ && end < text.size() && set_.Contains(text.data() + end)) {
    end += base::Utf8Size(text[end]);
    ++count;
  }
  return count < min_ ? begin : end;
}

// Applies `$`: the match ends before a line feed, or at the end of the text.
size_t ClassRun::CutAtLineEnd(std::string_view text, size_t begin, size_t end) const {
  while (end > begin && end < text.size() && text[end] != '\n') {
    --end;
    while (end > begin && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  }
  return end;
}

size_t ClassRun::MatchAt(std::string_view text, size_t at) const {
  if (before_ && before_->Contains(text.data() + at)) {
    const size_t begin = at + base::Utf8Size(text[at]);
    const size_t end = RunFrom(text, begin);
    if (end > begin) return end;
  }
  return RunFrom(text, at);
}

absl::Status ClassRun::ForEachMatch(
    std::string_view text, absl::FunctionRef<absl::Status(size_t, size_t)> on_match) const {
  for (size_t at = NextStart(text, 0); at < text.size(); at = NextStart(text, at)) {
    const size_t run_end = MatchAt(text, at);
    const size_t end = at_line_end_ ? CutAtLineEnd(text, at, run_end) : run_end;
    if (end > at) {
      HEDDLE_RETURN_IF_ERROR(on_match(at, end));
      at = end;
    } else {  // if no part of a run ends a line, none of its later parts does
      at = std::max(run_end, at + base::Utf8Size(text[at]));
    }
  }
  return absl::OkStatus();
}

}  // namespace heddle::engine::text
