// The filters of texts and numbers.
#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/format.h"
#include "engine/text/jinja/operators.h"
#include "engine/text/jinja/print.h"
#include "engine/text/jinja/unicode.h"

namespace heddle::engine::text::jinja {
namespace {

using Result = absl::StatusOr<Value>;

template <std::string (*Map)(std::string_view)>
Result MapText(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_RETURN_IF_ERROR(Bind(args, "filter", 0, {"none"}).status());
  HEDDLE_ASSIGN_OR_RETURN(std::string_view text, ToText(heap, self));
  return heap.String(Map(text), self.is_markup());
}

// Jinja2's title filter: words begin behind spaces, hyphens and opening brackets.
std::string TitleWords(std::string_view text) {
  std::string out;
  bool at_start = true;
  for (size_t pos = 0; pos < text.size();) {
    size_t begin = pos;
    char32_t c = NextCodePoint(text, &pos);
    std::string_view one = text.substr(begin, pos - begin);
    out += at_start ? ToUpper(one) : ToLower(one);
    at_start = IsSpace(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  }
  return out;
}

Result Trim(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "trim", 0, {"chars"}));
  HEDDLE_ASSIGN_OR_RETURN(std::string_view text, ToText(heap, self));
  heap.Scan(text.size());
  if (bound[0].is_missing() || bound[0].is_none()) {
    return Value::String(StripRight(StripLeft(text)), self.is_markup());
  }
  if (bound[0].is_undefined()) return UndefinedError(bound[0]);
  if (!bound[0].is_string()) return TemplateError("strip arg must be None or str");
  const std::string_view chars = bound[0].text();
  heap.Scan(text.size() * std::min<size_t>(chars.size(), 4096));
  return Value::String(StripRight(StripLeft(text, chars), chars), self.is_markup());
}

Result ToString(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_RETURN_IF_ERROR(Bind(args, "string", 0, {"none"}).status());
  if (self.is_string()) return self;
  HEDDLE_ASSIGN_OR_RETURN(std::string_view text, ToText(heap, self));
  return Value::String(text);
}

Result Replace(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "replace", 2, {"old", "new", "count"}));
  HEDDLE_ASSIGN_OR_RETURN(std::string_view text, ToText(heap, self));
  HEDDLE_ASSIGN_OR_RETURN(std::string_view from, ToText(heap, bound[0]));
  HEDDLE_ASSIGN_OR_RETURN(std::string_view to, ToText(heap, bound[1]));
  HEDDLE_ASSIGN_OR_RETURN(int64_t count, IntegerOr(bound[2], "count", -1));
  return ReplaceText(heap, Value::String(text), from, to, count);
}

Result Indent(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "indent", 0, {"width", "first", "blank"}));
  if (self.is_undefined()) return UndefinedError(self);
  if (!self.is_string()) {
    return TemplateError(self.is_sequence(SequenceKind::kList)
                             ? "'list' object has no attribute 'splitlines'"
                             : base::StrCat("unsupported operand type(s) for +=: '",
                                            self.TypeName(), "' and 'str'"));
  }
  const std::string_view text = self.text();
  std::string indention;
  if (bound[0].is_string()) {
    indention = bound[0].text();
  } else {
    HEDDLE_ASSIGN_OR_RETURN(int64_t width, IntegerOr(bound[0], "width", 4));
    width = std::max<int64_t>(width, 0);
    HEDDLE_RETURN_IF_ERROR(heap.Reserve(static_cast<uint64_t>(width)));
    indention.assign(static_cast<size_t>(width), ' ');
  }
  std::string terminated = base::StrCat(text, "\n");
  std::vector<std::string_view> lines = SplitLines(terminated, /*keep_ends=*/false);
  HEDDLE_RETURN_IF_ERROR(heap.Reserve(lines.size() * (indention.size() + 1) + text.size()));
  std::string out;
  for (size_t i = 0; i < lines.size(); ++i) {
    bool indents = i == 0 ? bound[1].Truthy() : bound[2].Truthy() || !lines[i].empty();
    out.append(base::StrCat(i == 0 ? "" : "\n", indents ? indention : "", lines[i]));
  }
  return heap.String(out, self.is_markup());
}

Result Truncate(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound,
                          Bind(args, "truncate", 0, {"length", "killwords", "end", "leeway"}));
  if (!bound[0].is_missing() && !bound[0].is_number()) {
    HEDDLE_RETURN_IF_ERROR(Order(heap, bound[0], Value::Int(0), ">=").status());
  }
  HEDDLE_ASSIGN_OR_RETURN(int64_t length, IntegerOr(bound[0], "length", 255));
  HEDDLE_ASSIGN_OR_RETURN(int64_t leeway, IntegerOr(bound[3], "leeway", 5));
  std::string_view end = "...";
  if (!bound[2].is_missing()) {
    HEDDLE_ASSIGN_OR_RETURN(end, TextArgument(bound[2], "end"));
  }
  int64_t end_size = static_cast<int64_t>(CountCodePoints(end));
  if (length < end_size) {
    return TemplateError(base::StrCat("expected length >= ", end_size, ", got ", length));
  }
  HEDDLE_ASSIGN_OR_RETURN(const int64_t size, Length(heap, self));
  if (size <= length + leeway) return self;
  HEDDLE_ASSIGN_OR_RETURN(std::string_view text, TextArgument(self, "truncate's input"));
  std::string_view kept = text.substr(0, ByteOffset(text, static_cast<size_t>(length - end_size)));
  if (!bound[1].Truthy()) kept = kept.substr(0, std::min(kept.rfind(' '), kept.size()));
  return heap.Concat(kept, end, self.is_markup());
}

Result Center(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "center", 0, {"width"}));
  if (bound[0].is_none() || bound[0].is_string()) {
    return TemplateError(
        base::StrCat("'", bound[0].TypeName(), "' object cannot be interpreted as an integer"));
  }
  HEDDLE_ASSIGN_OR_RETURN(int64_t width, IntegerOr(bound[0], "width", 80));
  HEDDLE_ASSIGN_OR_RETURN(std::string_view text, ToText(heap, self));
  Args inner;
  inner.positional.push_back(Value::Int(width));
  return FindMethods("center").of_text->function(heap, Value::String(text), inner);
}

Result Format(Heap& heap, const Value& self, const Args& args) {
  if (!args.positional.empty() && !args.named.empty()) {
    return TemplateError("can't handle positional and keyword arguments at the same time");
  }
  HEDDLE_ASSIGN_OR_RETURN(std::string_view text, ToText(heap, self));
  if (args.named.empty())
    return FormatPercent(heap, Value::String(text), heap.Tuple(args.positional));
  Dict* named = heap.NewDict(args.named.size());
  for (const auto& [name, value] : args.named) {
    HEDDLE_RETURN_IF_ERROR(SetKey(heap, named, Value::String(name), value));
  }
  return FormatPercent(heap, Value::String(text), Value::Of(named));
}

Result MarkSafe(Heap& heap, const Value& self, const Args&) {
  HEDDLE_ASSIGN_OR_RETURN(std::string_view text, ToText(heap, self));
  return Value::String(text, /*markup=*/true);
}

Result EscapeFilter(Heap& heap, const Value& self, const Args&) {
  if (self.is_markup()) return self;
  HEDDLE_ASSIGN_OR_RETURN(std::string_view text, ToText(heap, self));
  return Escape(heap, Value::String(text));
}

Result ForceEscape(Heap& heap, const Value& self, const Args&) {
  HEDDLE_ASSIGN_OR_RETURN(std::string_view text, ToText(heap, self));
  return Escape(heap, Value::String(text));
}

Result WordCount(Heap& heap, const Value& self, const Args&) {
  HEDDLE_ASSIGN_OR_RETURN(std::string_view text, ToText(heap, self));
  heap.Scan(text.size());
  int64_t count = 0;
  bool inside = false;
  for (size_t pos = 0; pos < text.size();) {
    char32_t c = NextCodePoint(text, &pos);
    bool word = IsAlpha(c) || IsDigit(c) || c == '_';
    if (word && !inside) ++count;
    inside = word;
  }
  return Value::Int(count);
}

absl::Status ReadSeparators(const Value& separators, JsonStyle* style) {
  bool pair = separators.is_sequence() && separators.sequence().size == 2 &&
              separators.sequence().items[0].is_string() &&
              separators.sequence().items[1].is_string();
  if (!pair) return TemplateError("separators must be a pair of texts");
  style->item_separator = separators.sequence().items[0].text();
  style->key_separator = separators.sequence().items[1].text();
  return absl::OkStatus();
}

Result ToJson(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(
      auto bound, Bind(args, "tojson", 0, {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style;
  style.ensure_ascii = bound[0].Truthy();
  style.sort_keys = bound[3].Truthy();
  if (bound[1].is_string()) {
    style.indent = std::string(bound[1].text());
  } else if (!bound[1].is_missing() && !bound[1].is_none()) {
    HEDDLE_ASSIGN_OR_RETURN(int64_t indent, IntegerOr(bound[1], "indent", 0));
    style.indent = std::string(static_cast<size_t>(std::clamp<int64_t>(indent, 0, 64)), ' ');
  }
  if (style.indent.has_value()) style.item_separator.assign(1, ',');
  if (!bound[2].is_missing() && !bound[2].is_none()) {
    HEDDLE_RETURN_IF_ERROR(ReadSeparators(bound[2], &style));
  }
  std::string out;
  HEDDLE_RETURN_IF_ERROR(AppendJson(heap, self, style, &out));
  return heap.String(out);
}

Result ToInt(Heap&, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "int", 0, {"default", "base"}));
  HEDDLE_ASSIGN_OR_RETURN(int64_t base, IntegerOr(bound[1], "base", 10));
  Value otherwise = bound[0].is_missing() ? Value::Int(0) : bound[0];
  if (self.is_undefined()) return UndefinedError(self);
  if (self.is_integer()) return Value::Int(self.integer());
  if (self.kind() == Kind::kWideInt) return self;
  double real = 0;
  if (self.is_string()) {
    if (base >= 2 && base <= 36) {
      if (auto parsed = ParseInteger(self.text(), static_cast<int>(base)))
        return Value::Int(*parsed);
    }
    auto parsed = ParseReal(self.text());
    if (!parsed.has_value()) return otherwise;
    real = *parsed;
  } else if (self.kind() == Kind::kFloat) {
    real = self.real();
  } else {
    return otherwise;
  }
  if (!(std::fabs(real) < 9.2e18)) return otherwise;
  return Value::Int(static_cast<int64_t>(real));
}

Result ToFloat(Heap&, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "float", 0, {"default"}));
  if (self.is_undefined()) return UndefinedError(self);
  if (self.is_number()) return Value::Float(self.AsDouble());
  if (self.is_string()) {
    if (auto parsed = ParseReal(self.text())) return Value::Float(*parsed);
  }
  return bound[0].is_missing() ? Value::Float(0.0) : bound[0];
}

Result Abs(Heap&, const Value& self, const Args&) {
  if (self.is_integer()) return self.integer() < 0 ? Negate(self) : Value::Int(self.integer());
  if (self.kind() == Kind::kFloat) return Value::Float(std::fabs(self.real()));
  if (self.is_number()) return self;
  return TemplateError(base::StrCat("bad operand type for abs(): '", self.TypeName(), "'"));
}

// Python rounds the decimal expansion of the double, halves to even: so does printf.
double RoundHalfEven(double value, int64_t precision) {
  if (precision >= 0) {
    int digits = static_cast<int>(std::min<int64_t>(precision, 340));
    return std::strtod(absl::StrFormat("%.*f", digits, value).c_str(), nullptr);
  }
  double scale = std::pow(10.0, static_cast<double>(std::max<int64_t>(precision, -310)));
  return std::nearbyint(value * scale) / scale;
}

Result Round(Heap&, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "round", 0, {"precision", "method"}));
  HEDDLE_ASSIGN_OR_RETURN(int64_t precision, IntegerOr(bound[0], "precision", 0));
  std::string_view method = "common";
  if (!bound[1].is_missing()) {
    HEDDLE_ASSIGN_OR_RETURN(method, TextArgument(bound[1], "method"));
  }
  if (!self.is_number()) {
    return TemplateError(
        base::StrCat("type ", self.TypeName(), " doesn't define __round__ method"));
  }
  if (method == "common") {
    if (self.is_integer() && precision >= 0) return Value::Int(self.integer());
    double rounded = RoundHalfEven(self.AsDouble(), precision);
    return self.is_integer() ? Value::Int(static_cast<int64_t>(rounded)) : Value::Float(rounded);
  }
  double scale = std::pow(10.0, static_cast<double>(precision));
  if (method == "ceil") return Value::Float(std::ceil(self.AsDouble() * scale) / scale);
  if (method == "floor") return Value::Float(std::floor(self.AsDouble() * scale) / scale);
  return TemplateError("method must be common, ceil or floor");
}

constexpr Builtin kTextFilters[] = {
    {"capitalize", MapText<Capitalize>},
    {"center", Center},
    {"e", EscapeFilter},
    {"escape", EscapeFilter},
    {"forceescape", ForceEscape},
    {"format", Format},
    {"indent", Indent},
    {"lower", MapText<ToLower>},
    {"replace", Replace},
    {"safe", MarkSafe},
    {"string", ToString},
    {"title", MapText<TitleWords>},
    {"tojson", ToJson},
    {"trim", Trim},
    {"truncate", Truncate},
    {"upper", MapText<ToUpper>},
    {"wordcount", WordCount},
};

constexpr Builtin kNumberFilters[] = {
    {"abs", Abs}, {"float", ToFloat}, {"int", ToInt}, {"round", Round}};

}  // namespace

std::span<const Builtin> TextFilters() { return kTextFilters; }
std::span<const Builtin> NumberFilters() { return kNumberFilters; }

}  // namespace heddle::engine::text::jinja
