#include "engine/text/jinja/builtins.h"

#include <charconv>
#include <cstdlib>

#include "base/message.h"
#include "base/status.h"
#include "engine/text/jinja/operators.h"
#include "engine/text/jinja/print.h"
#include "engine/text/jinja/unicode.h"

namespace heddle::engine::text::jinja {
namespace {

const Builtin* FindIn(std::span<const Builtin> table, std::string_view name) {
  for (const Builtin& builtin : table) {
    if (builtin.name == name) return &builtin;
  }
  return nullptr;
}

std::string WithoutUnderscores(std::string_view text) {
  std::string out(text);
  std::erase(out, '_');
  return out;
}

absl::Status MissingArguments(std::string_view function, std::span<const std::string_view> names) {
  std::string list;
  for (std::string_view name : names) list.append(list.empty() ? "" : "', '").append(name);
  return TemplateError(
      base::StrCat(function, "() missing ", names.size(), " required argument(s): '", list, "'"));
}

}  // namespace

absl::Status BindArgs(const Args& args, std::string_view function,
                      std::span<const std::string_view> names, size_t required,
                      std::span<Value> out) {
  if (args.positional.size() > names.size()) {
    return TemplateError(base::StrCat(function, "() takes at most ", names.size(),
                                      " argument(s) but ", args.positional.size(), " were given"));
  }
  for (size_t i = 0; i < args.positional.size(); ++i) out[i] = args.positional[i];
  for (const auto& [name, value] : args.named) {
    size_t i = 0;
    while (i < names.size() && names[i] != name) ++i;
    if (i == names.size()) {
      return TemplateError(
          base::StrCat(function, "() got an unexpected keyword argument '", name, "'"));
    }
    if (!out[i].is_missing()) {
      return TemplateError(
          base::StrCat(function, "() got multiple values for argument '", name, "'"));
    }
    out[i] = value;
  }
  std::vector<std::string_view> missing;
  for (size_t i = 0; i < required; ++i) {
    if (out[i].is_missing()) missing.push_back(names[i]);
  }
  if (!missing.empty()) return MissingArguments(function, missing);
  return absl::OkStatus();
}

const Builtin* FindFilter(std::string_view name) {
  for (auto table : {TextFilters(), SequenceFilters(), NumberFilters(), MarkupFilters()}) {
    if (const Builtin* found = FindIn(table, name)) return found;
  }
  return nullptr;
}

const Builtin* FindTest(std::string_view name) { return FindIn(Tests(), name); }

MethodSet FindMethods(std::string_view name) {
  return {FindIn(TextMethods(), name), FindIn(ListMethods(), name), FindIn(TupleMethods(), name),
          FindIn(DictMethods(), name)};
}

const Builtin* MethodSet::For(const Value& object) const {
  if (object.is_dict()) return of_dict;
  if (object.is_string()) return of_text;
  if (object.is_sequence(SequenceKind::kList)) return of_list;
  if (object.is_sequence(SequenceKind::kTuple) || object.is_sequence(SequenceKind::kRange) ||
      object.is_sequence(SequenceKind::kGroup)) {
    return of_tuple;
  }
  return nullptr;
}

absl::StatusOr<std::string_view> ToText(Heap& heap, const Value& value) {
  if (value.is_string()) return value.text();
  std::string text;
  HEDDLE_RETURN_IF_ERROR(AppendStr(heap, value, &text));
  return heap.String(text).text();
}

absl::StatusOr<int64_t> IntegerOr(const Value& value, std::string_view what, int64_t otherwise) {
  if (value.is_missing() || value.is_none()) return otherwise;
  if (value.is_integer()) return value.integer();
  if (value.is_undefined()) return UndefinedError(value);
  return TemplateError(base::StrCat(what, " must be an integer, not ", value.TypeName()));
}

absl::StatusOr<std::string_view> TextArgument(const Value& value, std::string_view what) {
  if (value.is_string()) return value.text();
  if (value.is_undefined()) return UndefinedError(value);
  return TemplateError(base::StrCat(what, " must be str, not ", value.TypeName()));
}

absl::StatusOr<Value> ReplaceText(Heap& heap, const Value& text, std::string_view from,
                                  std::string_view to, int64_t count) {
  std::string_view source = text.text();
  heap.Scan(source.size());
  std::string out;
  size_t pos = 0;
  for (; count != 0 && pos <= source.size(); --count) {
    size_t at = Find(source, from, pos);
    if (at == std::string_view::npos) break;
    out.append(source.substr(pos, at - pos));
    out.append(to);
    pos = at + from.size();
    if (from.empty()) {  // between all characters, and at both ends
      if (pos == source.size()) return heap.String(out, text.is_markup());
      NextCodePoint(source, &pos);
      out.append(source.substr(at, pos - at));
    }
    HEDDLE_RETURN_IF_ERROR(heap.Reserve(out.size()));
  }
  if (out.empty() && pos == 0) return text;
  out.append(source.substr(pos));
  return heap.String(out, text.is_markup());
}

absl::StatusOr<Value> JoinTexts(Heap& heap, std::string_view separator,
                                std::span<const Value> items, bool convert) {
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.append(separator);
    if (convert || items[i].is_string()) {
      HEDDLE_RETURN_IF_ERROR(AppendStr(heap, items[i], &out));
    } else {
      return TemplateError(base::StrCat("sequence item ", i, ": expected str instance, ",
                                        items[i].TypeName(), " found"));
    }
    heap.Tick();
    HEDDLE_RETURN_IF_ERROR(heap.Check());
    HEDDLE_RETURN_IF_ERROR(heap.Reserve(out.size()));
  }
  return heap.String(out);
}

std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    size_t end = pos;
    char32_t c = NextCodePoint(text, &pos);
    bool line_end = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                    c == 0x2028 || c == 0x2029;
    if (!line_end) continue;
    if (c == '\r' && pos < text.size() && text[pos] == '\n') ++pos;
    lines.push_back(text.substr(begin, (keep_ends ? pos : end) - begin));
    begin = pos;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::optional<int64_t> ParseInteger(std::string_view text, int base) {
  std::string digits = WithoutUnderscores(StripLeft(StripRight(text)));
  std::string_view rest = digits;
  bool negative = rest.starts_with('-');
  if (negative || rest.starts_with('+')) rest.remove_prefix(1);
  auto skip_prefix = [&rest](std::string_view lower, std::string_view upper) {
    if (!rest.starts_with(lower) && !rest.starts_with(upper)) return;
    rest.remove_prefix(2);
  };
  if (base == 16) skip_prefix("0x", "0X");
  if (base == 8) skip_prefix("0o", "0O");
  if (base == 2) skip_prefix("0b", "0B");
  uint64_t magnitude = 0;
  auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), magnitude, base);
  if (error != std::errc() || end != rest.data() + rest.size()) return std::nullopt;
  if (magnitude > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
  int64_t value = static_cast<int64_t>(magnitude);
  return negative ? -value : value;
}

std::optional<double> ParseReal(std::string_view text) {
  std::string stripped(StripLeft(StripRight(text)));
  // strtod also reads hexadecimal floats and "nan(...)", which Python does not.
  bool plain = !stripped.empty() && stripped.find_first_of("xXpP(") == std::string::npos;
  if (!plain) return std::nullopt;
  char* end = nullptr;
  double value = std::strtod(stripped.c_str(), &end);
  if (end != stripped.c_str() + stripped.size()) return std::nullopt;
  return value;
}

absl::StatusOr<double> PythonFloat(Heap& heap, const Value& value) {
  if (value.is_undefined()) return UndefinedError(value);
  if (value.is_number()) return value.AsDouble();
  if (!value.is_string()) {
    return TemplateError(base::StrCat("float() argument must be a string or a real number, not '",
                                      value.TypeName(), "'"));
  }
  if (const auto parsed = ParseReal(value.text())) return *parsed;
  std::string shown;
  HEDDLE_RETURN_IF_ERROR(AppendRepr(heap, value, &shown));
  return TemplateError(base::StrCat("could not convert string to float: ", shown));
}

absl::StatusOr<Value> GetPath(Heap& heap, Value object, const Value& path) {
  if (!path.is_string()) return GetItem(heap, object, path);
  std::string_view rest = path.text();
  while (true) {
    size_t dot = rest.find('.');
    std::string_view part = rest.substr(0, dot);
    bool digits = !part.empty() && part.find_first_not_of("0123456789") == part.npos;
    std::optional<int64_t> index = digits ? ParseInteger(part, 10) : std::nullopt;
    HEDDLE_ASSIGN_OR_RETURN(
        object,
        GetItem(heap, object, index.has_value() ? Value::Int(*index) : Value::String(part)));
    if (dot == rest.npos) return object;
    rest.remove_prefix(dot + 1);
  }
}

Value Escape(Heap& heap, const Value& text) {
  if (text.is_markup()) return text;
  std::string out;
  for (char c : text.text()) {
    constexpr std::string_view kSpecial = "&<>'\"";
    constexpr std::string_view kEntities[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    size_t at = kSpecial.find(c);
    if (at == kSpecial.npos) {
      out.push_back(c);
    } else {
      out.append(kEntities[at]);
    }
  }
  return heap.String(out, /*markup=*/true);
}

}  // namespace heddle::engine::text::jinja
