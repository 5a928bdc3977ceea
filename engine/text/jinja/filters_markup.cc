// The filters for pages and terminals, which few chat templates use.
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/character_references.h"
#include "engine/text/jinja/operators.h"
#include "engine/text/jinja/print.h"
#include "engine/text/jinja/unicode.h"
#include "engine/text/jinja/word_wrap.h"

namespace heddle::engine::text::jinja {
namespace {

using Result = absl::StatusOr<Value>;

constexpr std::string_view kCommentBegin = "<!--";
constexpr std::string_view kCommentEnd = "-->";

// Takes "<!-- ... -->" out until none is left, those included that come to be when others are gone.
absl::StatusOr<std::string> WithoutComments(Heap& heap, std::string value) {
  std::string out;
  size_t pos = 0;
  while (true) {
    const size_t begin = value.find(kCommentBegin, pos);
    const size_t end = begin == value.npos ? value.npos : value.find(kCommentEnd, begin);
    if (end == value.npos) return out + value.substr(pos);
    out.append(value, pos, begin - pos);
    pos = end + kCommentEnd.size();
    // Text before the comment may, with text behind it, begin another.
    for (size_t kept = std::min(kCommentBegin.size() - 1, out.size()); kept > 0; --kept) {
      const bool begins =
          std::string_view(out).ends_with(kCommentBegin.substr(0, kept)) &&
          value.compare(pos, kCommentBegin.size() - kept, kCommentBegin.substr(kept)) == 0;
      if (!begins) continue;
      heap.Scan(value.size());
      HEDDLE_RETURN_IF_ERROR(heap.Check());
      value = out.substr(out.size() - kept) + value.substr(pos);
      out.resize(out.size() - kept);
      pos = 0;
      break;
    }
  }
}

std::string WithoutTags(std::string_view value) {
  std::string out;
  while (true) {
    const size_t begin = value.find('<');
    const size_t end = begin == value.npos ? value.npos : value.find('>', begin);
    if (end == value.npos) return out.append(value);
    out.append(value.substr(0, begin));
    value.remove_prefix(end + 1);
  }
}

// " ".join(text.split())
std::string WithSingleSpaces(std::string_view text) {
  std::string out;
  bool is_between = false;
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    if (IsSpace(NextCodePoint(text, &pos))) {
      is_between = true;
      continue;
    }
    if (is_between && !out.empty()) out.push_back(' ');
    is_between = false;
    out.append(text.substr(begin, pos - begin));
  }
  return out;
}

Result StripTags(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_RETURN_IF_ERROR(Bind(args, "striptags", 0, {"none"}).status());
  HEDDLE_ASSIGN_OR_RETURN(std::string_view text, ToText(heap, self));
  heap.Scan(8 * text.size());
  HEDDLE_ASSIGN_OR_RETURN(std::string out, WithoutComments(heap, std::string(text)));
  out = WithSingleSpaces(WithoutTags(out));
  HEDDLE_ASSIGN_OR_RETURN(out, ReplaceCharacterReferences(out));
  return heap.String(out);
}

absl::StatusOr<WrapOptions> ReadWrapOptions(Heap& heap, const Value& width, const Value& long_words,
                                            const Value& hyphens) {
  WrapOptions options;
  if (!width.is_missing()) {
    HEDDLE_ASSIGN_OR_RETURN(int order, Order(heap, width, Value::Int(0), "<="));
    HEDDLE_ASSIGN_OR_RETURN(options.width, IntegerOr(width, "width", 79));
    if (order <= 0) {
      return TemplateError(base::StrCat("invalid width ", options.width, " (must be > 0)"));
    }
  }
  if (!long_words.is_missing()) options.break_long_words = long_words.Truthy();
  if (!hyphens.is_missing()) options.break_on_hyphens = hyphens.Truthy();
  return options;
}

Result WordWrap(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(
      auto bound,
      Bind(args, "wordwrap", 0, {"width", "break_long_words", "wrapstring", "break_on_hyphens"}));
  if (self.is_undefined()) return UndefinedError(self);
  if (!self.is_string()) {
    return TemplateError(
        base::StrCat("'", self.TypeName(), "' object has no attribute 'splitlines'"));
  }
  std::string_view wrap = "\n";
  if (!bound[2].is_missing() && !bound[2].is_none()) {
    HEDDLE_ASSIGN_OR_RETURN(wrap, TextArgument(bound[2], "wrapstring"));
  }
  heap.Scan(32 * self.text().size());
  HEDDLE_RETURN_IF_ERROR(heap.Check());
  const std::vector<std::string_view> lines = SplitLines(self.text(), /*keep_ends=*/false);
  if (lines.empty()) return Value::String("");
  HEDDLE_ASSIGN_OR_RETURN(const WrapOptions options,
                          ReadWrapOptions(heap, bound[0], bound[1], bound[3]));
  // Every character may get a line.
  HEDDLE_RETURN_IF_ERROR(heap.Reserve(self.text().size() * (1 + wrap.size())));
  std::string out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.append(wrap);
    const std::vector<std::string> parts = WrapLine(lines[i], options);
    for (size_t j = 0; j < parts.size(); ++j) {
      if (j > 0) out.append(wrap);
      out.append(parts[j]);
    }
  }
  return heap.String(out);
}

Result FileSizeFormat(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "filesizeformat", 0, {"binary"}));
  HEDDLE_ASSIGN_OR_RETURN(const double bytes, PythonFloat(heap, self));
  const bool is_binary = bound[0].Truthy();
  const double base = is_binary ? 1024 : 1000;
  if (bytes == 1) return Value::String("1 Byte");
  if (std::isnan(bytes)) return TemplateError("cannot convert float NaN to integer");
  if (bytes < base) {
    if (std::isinf(bytes)) return TemplateError("cannot convert float infinity to integer");
    return heap.String(absl::StrFormat("%.0f Bytes", std::trunc(bytes) + 0.0));
  }
  constexpr std::string_view kPrefixes = "kMGTPEZY";
  double unit = base;
  size_t i = 0;
  while (i + 1 < kPrefixes.size() && bytes >= unit * base) {
    unit *= base;
    ++i;
  }
  const char prefix = is_binary && i == 0 ? 'K' : kPrefixes[i];
  return heap.String(absl::StrFormat("%.1f %c%sB", bytes / unit, prefix, is_binary ? "i" : ""));
}

Result XmlAttributes(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_ASSIGN_OR_RETURN(auto bound, Bind(args, "xmlattr", 0, {"autospace"}));
  if (self.is_undefined()) return UndefinedError(self);
  if (!self.is_dict()) {
    return TemplateError(base::StrCat("'", self.TypeName(), "' object has no attribute 'items'"));
  }
  const bool begins_with_space = bound[0].is_missing() || bound[0].Truthy();
  std::string out;
  for (const Entry& entry : self.dict().entries) {
    if (entry.value.is_none() || entry.value.is_undefined()) continue;
    if (!entry.key.is_string()) {
      return TemplateError(
          base::StrCat("expected string or bytes-like object, got '", entry.key.TypeName(), "'"));
    }
    if (entry.key.text().find_first_of(" \t\n\v\f\r/>=") != std::string_view::npos) {
      std::string shown;
      HEDDLE_RETURN_IF_ERROR(AppendRepr(heap, entry.key, &shown));
      return TemplateError(base::StrCat("Invalid character in attribute name: ", shown));
    }
    HEDDLE_ASSIGN_OR_RETURN(std::string_view value, ToText(heap, entry.value));
    if (begins_with_space || !out.empty()) out.push_back(' ');
    out.append(Escape(heap, Value::String(entry.key.text())).text());
    out.append("=\"");
    out.append(Escape(heap, Value::String(value, entry.value.is_markup())).text());
    out.push_back('"');
    HEDDLE_RETURN_IF_ERROR(heap.Reserve(out.size()));
  }
  return heap.String(out);
}

// urllib's quote; within a query "/" is not safe and a space is "+".
std::string Quoted(std::string_view text, bool for_query) {
  std::string out;
  for (char c : text) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-' || c == '~' ||
                          (c == '/' && !for_query);
    if (is_plain) {
      out.push_back(c);
    } else if (c == ' ' && for_query) {
      out.push_back('+');
    } else {
      absl::StrAppendFormat(&out, "%%%02X", static_cast<uint8_t>(c));
    }
  }
  return out;
}

absl::Status AppendQueryPair(Heap& heap, const Value& key, const Value& value, std::string* out) {
  HEDDLE_ASSIGN_OR_RETURN(std::string_view name, ToText(heap, key));
  HEDDLE_ASSIGN_OR_RETURN(std::string_view text, ToText(heap, value));
  if (!out->empty()) out->push_back('&');
  out->append(Quoted(name, /*for_query=*/true));
  out->push_back('=');
  out->append(Quoted(text, /*for_query=*/true));
  return heap.Reserve(out->size());
}

Result UrlEncode(Heap& heap, const Value& self, const Args& args) {
  HEDDLE_RETURN_IF_ERROR(Bind(args, "urlencode", 0, {"none"}).status());
  // An undefined value is iterable, and has no pairs.
  if (self.is_undefined()) return Value::String("");
  if (self.is_string() || !IsIterable(self)) {
    HEDDLE_ASSIGN_OR_RETURN(std::string_view text, ToText(heap, self));
    return heap.String(Quoted(text, /*for_query=*/false));
  }
  std::string out;
  if (self.is_dict()) {
    for (const Entry& entry : self.dict().entries) {
      HEDDLE_RETURN_IF_ERROR(AppendQueryPair(heap, entry.key, entry.value, &out));
    }
    return heap.String(out);
  }
  HEDDLE_ASSIGN_OR_RETURN(auto items, Iterate(heap, self));
  for (const Value& item : items) {
    if (!IsIterable(item)) {
      return TemplateError(base::StrCat("cannot unpack non-iterable ", item.TypeName(), " object"));
    }
    HEDDLE_ASSIGN_OR_RETURN(auto pair, Iterate(heap, item));
    if (pair.size() < 2) {
      return TemplateError(
          base::StrCat("not enough values to unpack (expected 2, got ", pair.size(), ")"));
    }
    if (pair.size() > 2) return TemplateError("too many values to unpack (expected 2)");
    HEDDLE_RETURN_IF_ERROR(AppendQueryPair(heap, pair[0], pair[1], &out));
  }
  return heap.String(out);
}

constexpr Builtin kMarkupFilters[] = {
    {"filesizeformat", FileSizeFormat}, {"striptags", StripTags},
    {"urlencode", UrlEncode},           {"wordwrap", WordWrap},
    {"xmlattr", XmlAttributes},
};

}  // namespace

std::span<const Builtin> MarkupFilters() { return kMarkupFilters; }

}  // namespace heddle::engine::text::jinja
