// The methods of texts, as of Python's str.
#include <algorithm>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/format.h"
#include "engine/text/jinja/operators.h"
#include "engine/text/jinja/unicode.h"

namespace heddle::engine::text::jinja {
namespace {

using Result = absl::StatusOr<Value>;
constexpr size_t kAbsent = std::string_view::npos;

Value Part(const Value& self, std::string_view text) {  // a view of self's own bytes
  return Value::String(text, self.is_markup());
}
Value Made(Heap& heap, const Value& self, const std::string& text) {
  return heap.String(text, self.is_markup());
}
absl::Status NoTextArguments(const Args& args, std::string_view name) {
  if (args.positional.empty() && args.named.empty()) return absl::OkStatus();
  return TemplateError(base::StrCat("str.", name, "() takes no arguments"));
}

template <std::string (*Map)(std::string_view)>
Result MapWhole(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_RETURN_IF_ERROR(NoTextArguments(args, "upper/lower"));
  return Made(heap, self, Map(self.text()));
}

enum Sides { kLeft = 1, kRight = 2, kBoth = 3 };

template <Sides sides>
Result Strip(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "strip", 0, {"chars"}));
  std::string_view text = self.text();
  heap.Scan(text.size());
  if (bound[0].is_missing() || bound[0].is_none()) {
    if ((sides & kLeft) != 0) text = StripLeft(text);
    if ((sides & kRight) != 0) text = StripRight(text);
    return Part(self, text);
  }
  HEDDLE_ASSIGN_OR_RETURN(std::string_view chars, TextArgument(bound[0], "strip arg"));
  heap.Scan(text.size() * std::min<size_t>(chars.size(), 4096));
  if ((sides & kLeft) != 0) text = StripLeft(text, chars);
  if ((sides & kRight) != 0) text = StripRight(text, chars);
  return Part(self, text);
}

// The pieces between whitespace; `limit` counts from the left.
std::vector<std::string_view> SplitAtSpace(std::string_view text, int64_t limit) {
  std::vector<std::string_view> parts;
  text = StripLeft(text);
  while (!text.empty()) {
    if (limit >= 0 && static_cast<int64_t>(parts.size()) == limit) {
      parts.push_back(text);
      break;
    }
    size_t end = 0;
    while (end < text.size()) {
      size_t next = end;
      if (IsSpace(NextCodePoint(text, &next))) break;
      end = next;
    }
    parts.push_back(text.substr(0, end));
    text = StripLeft(text.substr(end));
  }
  return parts;
}

std::vector<std::string_view> SplitAtSpaceFromRight(std::string_view text, int64_t limit) {
  std::vector<std::string_view> words = SplitAtSpace(text, -1);
  if (limit < 0 || static_cast<int64_t>(words.size()) <= limit + 1) return words;
  size_t kept = static_cast<size_t>(limit);
  const std::string_view& last = words[words.size() - kept - 1];
  const char* begin = text.data();  // white space at the far end is kept
  std::string_view head(begin, static_cast<size_t>(last.data() + last.size() - begin));
  std::vector<std::string_view> parts = {head};
  parts.insert(parts.end(), words.end() - static_cast<ptrdiff_t>(kept), words.end());
  return parts;
}

std::vector<std::string_view> SplitAt(std::string_view text, std::string_view separator,
                                      int64_t limit) {
  std::vector<std::string_view> parts;
  size_t pos = 0;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    size_t at = Find(text, separator, pos);
    if (at == kAbsent) break;
    parts.push_back(text.substr(pos, at - pos));
    pos = at + separator.size();
  }
  parts.push_back(text.substr(pos));
  return parts;
}

std::vector<std::string_view> SplitAtFromRight(std::string_view text, std::string_view separator,
                                               int64_t limit) {
  std::vector<std::string_view> parts;
  size_t end = text.size();
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    size_t at = end < separator.size() ? kAbsent : text.rfind(separator, end - separator.size());
    if (at == kAbsent) break;
    parts.push_back(text.substr(at + separator.size(), end - at - separator.size()));
    end = at;
  }
  parts.push_back(text.substr(0, end));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

Value ListOf(Heap& heap, const Value& self, const std::vector<std::string_view>& parts) {
  std::vector<Value> items;
  items.reserve(parts.size());
  for (std::string_view part : parts) items.push_back(Part(self, part));
  return heap.List(items);
}

// rfind compares at each position, so it is charged its worst case.
void ScanBackwards(Heap& heap, std::string_view text, std::string_view needle) {
  heap.Scan(text.size() * (1 + needle.size() / 16));
}

template <bool from_right>
Result Split(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "split", 0, {"sep", "maxsplit"}));
  HEDDLE_ASSIGN_OR_RETURN(int64_t limit, IntegerOr(bound[1], "maxsplit", -1));
  std::string_view text = self.text();
  heap.Scan(text.size());
  if (bound[0].is_missing() || bound[0].is_none()) {
    HEDDLE_RETURN_IF_ERROR(heap.Reserve(text.size() / 2 * sizeof(Value)));
    return ListOf(heap, self,
                  from_right ? SplitAtSpaceFromRight(text, limit) : SplitAtSpace(text, limit));
  }
  HEDDLE_ASSIGN_OR_RETURN(std::string_view separator, TextArgument(bound[0], "separator"));
  if (separator.empty()) return TemplateError("empty separator");
  HEDDLE_RETURN_IF_ERROR(heap.Reserve(text.size() / separator.size() * sizeof(Value)));
  if (!from_right) return ListOf(heap, self, SplitAt(text, separator, limit));
  ScanBackwards(heap, text, separator);
  HEDDLE_RETURN_IF_ERROR(heap.Check());
  return ListOf(heap, self, SplitAtFromRight(text, separator, limit));
}

Result Splitlines(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "splitlines", 0, {"keepends"}));
  heap.Scan(self.text().size());
  HEDDLE_RETURN_IF_ERROR(heap.Reserve(self.text().size() * sizeof(Value)));
  return ListOf(heap, self, SplitLines(self.text(), bound[0].Truthy()));
}

template <bool from_right>
Result Partition(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "partition", 1, {"sep"}));
  HEDDLE_ASSIGN_OR_RETURN(std::string_view separator, TextArgument(bound[0], "separator"));
  if (separator.empty()) return TemplateError("empty separator");
  std::string_view text = self.text();
  ScanBackwards(heap, text, separator);
  HEDDLE_RETURN_IF_ERROR(heap.Check());
  size_t at = from_right ? text.rfind(separator) : Find(text, separator);
  Value empty = Part(self, text.substr(0, 0));
  if (at == kAbsent) {
    return from_right ? heap.Tuple({{empty, empty, self}}) : heap.Tuple({{self, empty, empty}});
  }
  return heap.Tuple({{Part(self, text.substr(0, at)), Part(self, text.substr(at, separator.size())),
                      Part(self, text.substr(at + separator.size()))}});
}

// Selects the part of `text` from start to end (in code points); false if start is behind the end.
absl::StatusOr<bool> Window(const Value& start, const Value& end, std::string_view* text,
                            size_t* offset) {
  *offset = 0;
  if (start.is_missing() && end.is_missing()) return true;
  int64_t size = static_cast<int64_t>(CountCodePoints(*text));
  HEDDLE_ASSIGN_OR_RETURN(int64_t first, IntegerOr(start, "start", 0));
  HEDDLE_ASSIGN_OR_RETURN(int64_t last, IntegerOr(end, "end", size));
  if (first < 0) first = std::max<int64_t>(0, first < -size ? 0 : first + size);
  if (last < 0) last = std::max<int64_t>(0, last < -size ? 0 : last + size);
  last = std::min(last, size);
  if (first > last) return false;
  *offset = static_cast<size_t>(first);
  size_t from = ByteOffset(*text, static_cast<size_t>(first));
  *text = text->substr(from);
  *text = text->substr(0, ByteOffset(*text, static_cast<size_t>(last - first)));
  return true;
}

template <bool at_end>
absl::StatusOr<bool> HasAffix(std::string_view text, const Value& affix) {
  if (affix.is_sequence(SequenceKind::kTuple)) {
    const Sequence& choices = affix.sequence();
    for (uint32_t i = 0; i < choices.size; ++i) {
      if (choices.items[i].is_sequence()) return TemplateError("a nested tuple is no prefix");
      HEDDLE_ASSIGN_OR_RETURN(bool matches, HasAffix<at_end>(text, choices.items[i]));
      if (matches) return true;
    }
    return false;
  }
  if (affix.is_undefined()) return UndefinedError(affix);
  if (!affix.is_string()) {
    return TemplateError(base::StrCat(at_end ? "endswith" : "startswith",
                                      " first arg must be str or a tuple of str, not ",
                                      affix.TypeName()));
  }
  return at_end ? text.ends_with(affix.text()) : text.starts_with(affix.text());
}

template <bool at_end>
Result StartsOrEndsWith(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(
      auto bound, Bind(args, at_end ? "endswith" : "startswith", 1, {"prefix", "start", "end"}));
  heap.Tick();
  std::string_view text = self.text();
  size_t offset = 0;
  HEDDLE_ASSIGN_OR_RETURN(bool inside, Window(bound[1], bound[2], &text, &offset));
  HEDDLE_ASSIGN_OR_RETURN(bool matches, HasAffix<at_end>(text, bound[0]));
  return Value::Bool(inside && matches);
}

enum class Search { kFind, kIndex };

template <Search search, bool from_right>
Result FindText(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "find", 1, {"sub", "start", "end"}));
  HEDDLE_ASSIGN_OR_RETURN(std::string_view needle, TextArgument(bound[0], "the text to find"));
  std::string_view text = self.text();
  ScanBackwards(heap, text, from_right ? needle : "");
  HEDDLE_RETURN_IF_ERROR(heap.Check());
  size_t offset = 0;
  HEDDLE_ASSIGN_OR_RETURN(bool inside, Window(bound[1], bound[2], &text, &offset));
  size_t at = !inside ? kAbsent : from_right ? text.rfind(needle) : Find(text, needle);
  if (at != kAbsent) {
    return Value::Int(static_cast<int64_t>(offset + CountCodePoints(text.substr(0, at))));
  }
  if (search == Search::kIndex) return TemplateError("substring not found");
  return Value::Int(-1);
}

Result Count(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "count", 1, {"sub", "start", "end"}));
  HEDDLE_ASSIGN_OR_RETURN(std::string_view needle, TextArgument(bound[0], "the text to count"));
  std::string_view text = self.text();
  heap.Scan(text.size());
  size_t offset = 0;
  HEDDLE_ASSIGN_OR_RETURN(bool inside, Window(bound[1], bound[2], &text, &offset));
  if (!inside) return Value::Int(0);
  if (needle.empty()) return Value::Int(static_cast<int64_t>(CountCodePoints(text)) + 1);
  int64_t count = 0;
  for (size_t at = Find(text, needle); at != kAbsent; at = Find(text, needle, at + needle.size())) {
    ++count;
  }
  return Value::Int(count);
}

Result Replace(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "replace", 2, {"old", "new", "count"}));
  HEDDLE_ASSIGN_OR_RETURN(std::string_view from, TextArgument(bound[0], "replace() argument 1"));
  HEDDLE_ASSIGN_OR_RETURN(std::string_view to, TextArgument(bound[1], "replace() argument 2"));
  HEDDLE_ASSIGN_OR_RETURN(int64_t count, IntegerOr(bound[2], "count", -1));
  return ReplaceText(heap, self, from, to, count);
}

template <bool at_end>
Result RemoveAffix(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound,
                          Bind(args, at_end ? "removesuffix" : "removeprefix", 1, {"affix"}));
  HEDDLE_ASSIGN_OR_RETURN(std::string_view affix, TextArgument(bound[0], "argument"));
  std::string_view text = self.text();
  heap.Tick();
  if (at_end && text.ends_with(affix)) text.remove_suffix(affix.size());
  if (!at_end && text.starts_with(affix)) text.remove_prefix(affix.size());
  return Part(self, text);
}

Result Join(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "join", 1, {"iterable"}));
  if (!IsIterable(bound[0])) return TemplateError("can only join an iterable");
  HEDDLE_ASSIGN_OR_RETURN(auto items, Iterate(heap, bound[0]));
  return JoinTexts(heap, self.text(), items, /*convert=*/false);
}

Result Format(Heap& heap, const Value& self, const Args& args) {
  return FormatBraces(heap, self, args);
}

// Implements ljust, rjust, center and zfill: `left` of the missing columns go to the left.
absl::StatusOr<Value> Pad(Heap& heap, const Value& self, int64_t width, std::string_view fill,
                          Sides sides) {
  int64_t size = static_cast<int64_t>(CountCodePoints(self.text()));
  int64_t missing = width - size;
  if (missing <= 0) return self;
  HEDDLE_RETURN_IF_ERROR(heap.Reserve(static_cast<uint64_t>(missing) * fill.size()));
  int64_t left = sides == kLeft    ? missing
                 : sides == kRight ? 0
                                   : missing / 2 + (missing & width & 1);
  std::string out;
  for (int64_t i = 0; i < left; ++i) out.append(fill);
  out.append(self.text());
  for (int64_t i = left; i < missing; ++i) out.append(fill);
  return Made(heap, self, out);
}

template <Sides sides>
Result Justify(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "justify", 1, {"width", "fillchar"}));
  HEDDLE_ASSIGN_OR_RETURN(int64_t width, IntegerOr(bound[0], "width", 0));
  std::string_view fill = " ";
  if (!bound[1].is_missing()) {
    HEDDLE_ASSIGN_OR_RETURN(fill, TextArgument(bound[1], "The fill character"));
  }
  if (CountCodePoints(fill) != 1) {
    return TemplateError("The fill character must be exactly one character long");
  }
  return Pad(heap, self, width, fill, sides);
}

Result Zfill(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "zfill", 1, {"width"}));
  HEDDLE_ASSIGN_OR_RETURN(int64_t width, IntegerOr(bound[0], "width", 0));
  std::string_view text = self.text();
  bool sign = text.starts_with('-') || text.starts_with('+');
  if (!sign) return Pad(heap, self, width, "0", kLeft);
  HEDDLE_ASSIGN_OR_RETURN(
      Value digits, Pad(heap, Part(self, text.substr(1)), width > 0 ? width - 1 : 0, "0", kLeft));
  return heap.Concat(text.substr(0, 1), digits.text(), self.is_markup());
}

template <bool (*Test)(char32_t)>
Result AllAre(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_RETURN_IF_ERROR(NoTextArguments(args, "is..."));
  std::string_view text = self.text();
  heap.Scan(text.size());
  for (size_t pos = 0; pos < text.size();) {
    if (!Test(NextCodePoint(text, &pos))) return Value::Bool(false);
  }
  return Value::Bool(!text.empty());
}

bool IsAlnum(char32_t c) { return IsAlpha(c) || IsDigit(c); }

// Whether there is at least one cased character, and none of the other case.
template <bool (*Wanted)(char32_t), bool (*Other)(char32_t)>
Result CaseIs(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_RETURN_IF_ERROR(NoTextArguments(args, "is..."));
  std::string_view text = self.text();
  heap.Scan(text.size());
  bool found = false;
  for (size_t pos = 0; pos < text.size();) {
    char32_t c = NextCodePoint(text, &pos);
    if (Other(c)) return Value::Bool(false);
    found = found || Wanted(c);
  }
  return Value::Bool(found);
}

Result IsAsciiText(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_RETURN_IF_ERROR(NoTextArguments(args, "isascii"));
  heap.Scan(self.text().size());
  return Value::Bool(IsAscii(self.text()));
}

std::string SwapCase(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    size_t begin = pos;
    char32_t c = NextCodePoint(text, &pos);
    std::string_view one = text.substr(begin, pos - begin);
    out += IsUpper(c) ? ToLower(one) : IsLower(c) ? ToUpper(one) : std::string(one);
  }
  return out;
}

constexpr Builtin kMethods[] = {
    {"capitalize", MapWhole<Capitalize>},
    {"casefold", MapWhole<ToLower>},
    {"center", Justify<kBoth>},
    {"count", Count},
    {"endswith", StartsOrEndsWith<true>},
    {"find", FindText<Search::kFind, false>},
    {"format", Format},
    {"index", FindText<Search::kIndex, false>},
    {"isalnum", AllAre<IsAlnum>},
    {"isalpha", AllAre<IsAlpha>},
    {"isascii", IsAsciiText},
    {"isdecimal", AllAre<IsDigit>},
    {"isdigit", AllAre<IsDigit>},
    {"islower", CaseIs<IsLower, IsUpper>},
    {"isnumeric", AllAre<IsDigit>},
    {"isspace", AllAre<IsSpace>},
    {"isupper", CaseIs<IsUpper, IsLower>},
    {"join", Join},
    {"ljust", Justify<kRight>},
    {"lower", MapWhole<ToLower>},
    {"lstrip", Strip<kLeft>},
    {"partition", Partition<false>},
    {"removeprefix", RemoveAffix<false>},
    {"removesuffix", RemoveAffix<true>},
    {"replace", Replace},
    {"rfind", FindText<Search::kFind, true>},
    {"rindex", FindText<Search::kIndex, true>},
    {"rjust", Justify<kLeft>},
    {"rpartition", Partition<true>},
    {"rsplit", Split<true>},
    {"rstrip", Strip<kRight>},
    {"split", Split<false>},
    {"splitlines", Splitlines},
    {"startswith", StartsOrEndsWith<false>},
    {"strip", Strip<kBoth>},
    {"swapcase", MapWhole<SwapCase>},
    {"title", MapWhole<ToTitle>},
    {"upper", MapWhole<ToUpper>},
    {"zfill", Zfill},
};

}  // namespace

std::span<const Builtin> TextMethods() { return kMethods; }

}  // namespace heddle::engine::text::jinja
