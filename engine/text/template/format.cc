#include "engine/text/template/format.h"

#include <charconv>
#include <cmath>
#include <optional>

#include "absl/strings/str_format.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/text/template/dict.h"
#include "engine/text/template/operators.h"
#include "engine/text/template/print.h"
#include "engine/text/template/unicode.h"

namespace heddle::engine::text::jinja {
namespace {

constexpr int64_t kMaxWidth = 1 << 20;  // wider fields are attacks, not layouts

// [[fill]align][sign][#][0][width][grouping][.precision][type], of both formatting languages.
struct Spec {
  std::string fill = " ";
  char align = 0;  // < > ^ =, 0 for the type's own
  char sign = '-';
  bool alternate = false;
  char grouping = 0;
  int64_t width = 0;
  int64_t precision = -1;
  char type = 0;
};

absl::StatusOr<int64_t> ParseCount(std::string_view text, size_t* pos, int64_t otherwise) {
  size_t begin = *pos;
  int64_t value = 0;
  while (*pos < text.size() && text[*pos] >= '0' && text[*pos] <= '9') {
    value = value * 10 + (text[*pos] - '0');
    if (value > kMaxWidth) {
      return TemplateError(base::StrCat("a format's width and precision are at most ", kMaxWidth));
    }
    ++*pos;
  }
  return *pos == begin ? otherwise : value;
}

bool IsAlign(char c) { return c == '<' || c == '>' || c == '^' || c == '='; }

absl::StatusOr<Spec> ParseSpec(std::string_view text) {
  Spec spec;
  size_t pos = 0;
  if (!text.empty()) {
    size_t after_fill = 0;
    NextCodePoint(text, &after_fill);
    if (after_fill < text.size() && IsAlign(text[after_fill])) {
      spec.fill = text.substr(0, after_fill);
      spec.align = text[after_fill];
      pos = after_fill + 1;
    } else if (IsAlign(text[0])) {
      spec.align = text[0];
      pos = 1;
    }
  }
  auto at = [&] { return pos < text.size() ? text[pos] : '\0'; };
  if (at() == '+' || at() == '-' || at() == ' ') spec.sign = text[pos++];
  if (at() == '#') {
    spec.alternate = true;
    ++pos;
  }
  if (at() == '0') {
    if (spec.align == 0) {
      spec.fill.assign(1, '0');
      spec.align = '=';
    }
    ++pos;
  }
  HEDDLE_ASSIGN_OR_RETURN(spec.width, ParseCount(text, &pos, 0));
  if (at() == ',' || at() == '_') spec.grouping = text[pos++];
  if (at() == '.') {
    ++pos;
    HEDDLE_ASSIGN_OR_RETURN(spec.precision, ParseCount(text, &pos, -1));
    if (spec.precision < 0) return TemplateError("Format specifier missing precision");
  }
  if (pos < text.size()) spec.type = text[pos++];
  if (pos != text.size())
    return TemplateError(base::StrCat("Invalid format specifier '", text, "'"));
  return spec;
}

void Fill(const Spec& spec, int64_t count, std::string* out) {
  for (; count > 0; --count) out->append(spec.fill);
}

// Writes sign, prefix ("0x") and body in a field of the spec's width.
void Pad(const Spec& spec, char default_align, std::string_view prefix, std::string_view body,
         std::string* out) {
  int64_t missing = spec.width - static_cast<int64_t>(CountCodePoints(prefix)) -
                    static_cast<int64_t>(CountCodePoints(body));
  if (missing < 0) missing = 0;
  char align = spec.align != 0 ? spec.align : default_align;
  int64_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  if (align == '=') {
    out->append(prefix);
    Fill(spec, missing, out);
    out->append(body);
    return;
  }
  Fill(spec, left, out);
  out->append(prefix);
  out->append(body);
  Fill(spec, missing - left, out);
}

std::string Group(std::string_view digits, char separator, size_t every) {
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % every == 0) out.push_back(separator);
    out.push_back(digits[i]);
  }
  return out;
}

std::string SignOf(bool negative, char sign) {
  if (negative) return "-";
  return sign == '-' ? "" : std::string(1, sign);
}

void FormatInteger(const Spec& spec, const Value& value, std::string* out) {
  bool wide = value.kind() == Kind::kWideInt;
  bool negative = !wide && value.integer() < 0;
  uint64_t magnitude = wide       ? value.wide()
                       : negative ? 0 - static_cast<uint64_t>(value.integer())
                                  : static_cast<uint64_t>(value.integer());
  int base = 10;
  std::string prefix = SignOf(negative, spec.sign);
  char type = spec.type;
  if (type == 'x' || type == 'X') base = 16;
  if (type == 'o') base = 8;
  if (type == 'b') base = 2;
  if (spec.alternate && base != 10) prefix.append(base::StrCat("0", std::string(1, type)));
  char digits[65];
  auto [end, error] = std::to_chars(digits, digits + sizeof digits, magnitude, base);
  std::string body(digits, end);
  if (type == 'X') body = ToUpper(body);
  if (spec.grouping != 0) body = Group(body, spec.grouping, base == 10 ? 3 : 4);
  Pad(spec, '>', prefix, body, out);
}

std::string FloatBody(const Spec& spec, double magnitude) {
  int precision = static_cast<int>(spec.precision);
  switch (spec.type) {
    case 'e':
      return absl::StrFormat("%.*e", precision < 0 ? 6 : precision, magnitude);
    case 'E':
      return absl::StrFormat("%.*E", precision < 0 ? 6 : precision, magnitude);
    case 'f':
    case 'F':
      return absl::StrFormat("%.*f", precision < 0 ? 6 : precision, magnitude);
    case 'g':
      return absl::StrFormat("%.*g", precision < 0 ? 6 : precision, magnitude);
    case 'G':
      return absl::StrFormat("%.*G", precision < 0 ? 6 : precision, magnitude);
    case '%':
      return absl::StrFormat("%.*f%%", precision < 0 ? 6 : precision, magnitude * 100);
    default:
      if (precision < 0) return FormatFloat(magnitude);
      return absl::StrFormat("%.*g", precision, magnitude);
  }
}

void FormatReal(const Spec& spec, double value, std::string* out) {
  bool negative = std::signbit(value) && !std::isnan(value);
  std::string body = FloatBody(spec, std::fabs(value));
  if (spec.grouping != 0) {
    size_t end = body.find_first_not_of("0123456789");
    if (end == body.npos) end = body.size();
    body = Group(body.substr(0, end), spec.grouping, 3) + body.substr(end);
  }
  Pad(spec, '>', SignOf(negative, spec.sign), body, out);
}

void FormatText(const Spec& spec, std::string_view text, char default_align, std::string* out) {
  if (spec.precision >= 0)
    text = text.substr(0, ByteOffset(text, static_cast<size_t>(spec.precision)));
  Pad(spec, default_align, "", text, out);
}

absl::Status FormatValue(Heap& heap, const Value& value, std::string_view spec_text,
                         std::string* out) {
  if (spec_text.empty()) return AppendStr(heap, value, out);
  HEDDLE_ASSIGN_OR_RETURN(Spec spec, ParseSpec(spec_text));
  heap.Charge(static_cast<size_t>(spec.width));
  constexpr std::string_view kFloatTypes = "eEfFgG%";
  constexpr std::string_view kIntTypes = "bdoxXn";
  bool float_type = spec.type != 0 && kFloatTypes.find(spec.type) != std::string_view::npos;
  bool int_type = spec.type == 0 || kIntTypes.find(spec.type) != std::string_view::npos;
  bool integer = value.is_number() && value.kind() != Kind::kFloat;
  if (integer && spec.type == 0 && value.is_bool()) {
    FormatText(spec, value.integer() != 0 ? "True" : "False", '<', out);
  } else if (integer && int_type) {
    FormatInteger(spec, value, out);
  } else if (value.is_number() && (float_type || (spec.type == 0 && !integer))) {
    FormatReal(spec, value.AsDouble(), out);
  } else if (value.is_string() && (spec.type == 0 || spec.type == 's')) {
    FormatText(spec, value.text(), '<', out);
  } else {
    return TemplateError(base::StrCat("unsupported format '", spec_text, "' for a value of type ",
                                      value.TypeName()));
  }
  return absl::OkStatus();
}

// ---- "%" --------------------------------------------------------------------------------------

// Hands out the values that a %-pattern asks for.
class PercentArguments {
 public:
  explicit PercentArguments(const Value& arguments)
      : tuple_(arguments.is_sequence(SequenceKind::kTuple)), arguments_(arguments) {}

  absl::StatusOr<Value> Next() {
    if (!tuple_) {
      if (used_++ == 0) return arguments_;
    } else if (used_ < arguments_.sequence().size) {
      return arguments_.sequence().items[used_++];
    }
    return TemplateError("not enough arguments for format string");
  }
  absl::StatusOr<Value> Named(std::string_view name) {
    if (!arguments_.is_dict()) return TemplateError("format requires a mapping");
    named_ = true;
    if (const Value* found = arguments_.dict().Find(name)) return *found;
    return TemplateError(base::StrCat("'", name, "'"));
  }
  absl::Status CheckAllUsed() const {
    bool unused = tuple_ ? used_ < arguments_.sequence().size
                         : used_ == 0 && !arguments_.is_dict() && !arguments_.is_sequence();
    if (unused && !named_) {
      return TemplateError("not all arguments converted during string formatting");
    }
    return absl::OkStatus();
  }

 private:
  bool tuple_;
  bool named_ = false;
  uint32_t used_ = 0;
  Value arguments_;
};

absl::Status FormatPercentField(Heap& heap, Spec spec, const Value& value, std::string* out) {
  std::string text;
  switch (spec.type) {
    case 's':
      HEDDLE_RETURN_IF_ERROR(AppendStr(heap, value, &text));
      FormatText(spec, text, '>', out);
      return absl::OkStatus();
    case 'r':
    case 'a':
      HEDDLE_RETURN_IF_ERROR(AppendRepr(heap, value, &text));
      FormatText(spec, text, '>', out);
      return absl::OkStatus();
    case 'c':
      if (value.is_string()) {
        FormatText(spec, value.text(), '>', out);
        return absl::OkStatus();
      }
      break;
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
      if (value.kind() == Kind::kFloat && std::fabs(value.real()) < 9e18) {
        FormatInteger(spec, Value::Int(static_cast<int64_t>(value.real())), out);
        return absl::OkStatus();
      }
      if (!value.is_number() || value.kind() == Kind::kFloat) {
        return TemplateError(base::StrCat("%", std::string(1, spec.type),
                                          " format: a real number is required, not ",
                                          value.TypeName()));
      }
      FormatInteger(spec, value, out);
      return absl::OkStatus();
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
      if (!value.is_number()) {
        return TemplateError(base::StrCat("must be real number, not ", value.TypeName()));
      }
      FormatReal(spec, value.AsDouble(), out);
      return absl::OkStatus();
    default:
      break;
  }
  return TemplateError(
      base::StrCat("unsupported format character '", std::string(1, spec.type), "'"));
}

absl::StatusOr<int64_t> PercentCount(std::string_view pattern, size_t* pos, int64_t otherwise,
                                     PercentArguments* arguments) {
  if (*pos >= pattern.size() || pattern[*pos] != '*') return ParseCount(pattern, pos, otherwise);
  ++*pos;
  HEDDLE_ASSIGN_OR_RETURN(Value count, arguments->Next());
  if (!count.is_integer() || std::abs(count.integer()) > kMaxWidth) {
    return TemplateError("* wants int");
  }
  return count.integer();
}

// Reads "%(name)-05.2f" behind its percent sign and writes the field.
absl::Status FormatPercentAt(Heap& heap, std::string_view pattern, size_t* pos,
                             PercentArguments* arguments, std::string* out) {
  Spec spec;
  std::optional<Value> named;
  if (*pos < pattern.size() && pattern[*pos] == '(') {
    size_t close = pattern.find(')', *pos);
    if (close == pattern.npos) return TemplateError("incomplete format key");
    HEDDLE_ASSIGN_OR_RETURN(named, arguments->Named(pattern.substr(*pos + 1, close - *pos - 1)));
    *pos = close + 1;
  }
  for (; *pos < pattern.size(); ++*pos) {
    char c = pattern[*pos];
    if (c == '-') {
      spec.align = '<';
    } else if (c == '+' || (c == ' ' && spec.sign != '+')) {
      spec.sign = c;
    } else if (c == '#') {
      spec.alternate = true;
    } else if (c == '0') {
      if (spec.align == 0) spec.align = '=';
    } else if (c != ' ') {
      break;
    }
  }
  HEDDLE_ASSIGN_OR_RETURN(spec.width, PercentCount(pattern, pos, 0, arguments));
  if (spec.width < 0) {
    spec.align = '<';
    spec.width = -spec.width;
  }
  if (*pos < pattern.size() && pattern[*pos] == '.') {
    ++*pos;
    HEDDLE_ASSIGN_OR_RETURN(spec.precision, PercentCount(pattern, pos, 0, arguments));
  }
  while (*pos < pattern.size() && (pattern[*pos] == 'l' || pattern[*pos] == 'h')) ++*pos;
  if (*pos >= pattern.size()) return TemplateError("incomplete format");
  spec.type = pattern[(*pos)++];
  if (spec.type == '%') {
    out->push_back('%');
    return absl::OkStatus();
  }
  bool numeric = spec.type != 's' && spec.type != 'r' && spec.type != 'a' && spec.type != 'c';
  if (spec.align == '=') {
    spec.align = numeric ? '=' : '>';
    if (numeric) spec.fill.assign(1, '0');
  }
  heap.Charge(static_cast<size_t>(spec.width));
  Value value;
  if (named.has_value()) {
    value = *named;
  } else {
    HEDDLE_ASSIGN_OR_RETURN(value, arguments->Next());
  }
  return FormatPercentField(heap, spec, value, out);
}

// ---- str.format -------------------------------------------------------------------------------

class BraceFormatter {
 public:
  BraceFormatter(Heap& heap, const Args& args) : heap_(heap), args_(args) {}

  // `nesting`: a specification may contain fields, whose specifications may not.
  absl::Status Format(std::string_view pattern, int nesting, std::string* out);

 private:
  absl::Status FormatField(std::string_view field, int nesting, std::string* out);
  absl::StatusOr<Value> Lookup(std::string_view name);
  absl::StatusOr<Value> First(std::string_view name);

  Heap& heap_;
  const Args& args_;
  size_t automatic_ = 0;
  bool manual_used_ = false;
};

std::optional<size_t> ParseIndex(std::string_view text) {
  size_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

absl::StatusOr<Value> BraceFormatter::First(std::string_view name) {
  std::optional<size_t> index = ParseIndex(name);
  if (name.empty()) {
    if (manual_used_) {
      return TemplateError(
          "cannot switch from manual field specification to automatic field numbering");
    }
    index = automatic_++;
  } else if (index.has_value()) {
    if (automatic_ > 0) {
      return TemplateError(
          "cannot switch from automatic field numbering to manual field specification");
    }
    manual_used_ = true;
  }
  if (index.has_value()) {
    if (*index < args_.positional.size()) return args_.positional[*index];
    return TemplateError("tuple index out of range");
  }
  for (const auto& [key, value] : args_.named) {
    if (key == name) return value;
  }
  return TemplateError(base::StrCat("'", name, "'"));
}

absl::StatusOr<Value> BraceFormatter::Lookup(std::string_view name) {
  size_t end = std::min(name.find_first_of(".["), name.size());
  HEDDLE_ASSIGN_OR_RETURN(Value value, First(name.substr(0, end)));
  while (end < name.size()) {
    if (name[end] == '.') {
      size_t next = std::min(name.find_first_of(".[", end + 1), name.size());
      HEDDLE_ASSIGN_OR_RETURN(value,
                              GetAttribute(heap_, value, name.substr(end + 1, next - end - 1)));
      end = next;
    } else if (name[end] == '[') {
      size_t close = name.find(']', end);
      if (close == name.npos) return TemplateError("Missing ']' in format string");
      std::string_view key = name.substr(end + 1, close - end - 1);
      std::optional<size_t> index = ParseIndex(key);
      Value subscript =
          index.has_value() ? Value::Int(static_cast<int64_t>(*index)) : Value::String(key);
      HEDDLE_ASSIGN_OR_RETURN(value, GetItem(heap_, value, subscript));
      end = close + 1;
    } else {
      return TemplateError("Only '.' or '[' may follow ']' in format field specifier");
    }
  }
  return value;
}

absl::Status BraceFormatter::FormatField(std::string_view field, int nesting, std::string* out) {
  size_t end = std::min(field.find_first_of("!:"), field.size());
  HEDDLE_ASSIGN_OR_RETURN(Value value, Lookup(field.substr(0, end)));
  std::string_view rest = field.substr(end);
  if (rest.starts_with("!")) {
    char conversion = rest.size() > 1 ? rest[1] : '\0';
    std::string text;
    if (conversion == 's') {
      HEDDLE_RETURN_IF_ERROR(AppendStr(heap_, value, &text));
    } else if (conversion == 'r' || conversion == 'a') {
      HEDDLE_RETURN_IF_ERROR(AppendRepr(heap_, value, &text));
    } else {
      return TemplateError("Unknown conversion specifier in format string");
    }
    value = heap_.String(text);
    rest.remove_prefix(2);
  }
  std::string spec;
  if (rest.starts_with(":")) HEDDLE_RETURN_IF_ERROR(Format(rest.substr(1), nesting + 1, &spec));
  return FormatValue(heap_, value, spec, out);
}

absl::Status BraceFormatter::Format(std::string_view pattern, int nesting, std::string* out) {
  if (nesting > 1) return TemplateError("Max string recursion exceeded");
  for (size_t pos = 0; pos < pattern.size();) {
    char c = pattern[pos];
    if (c != '{' && c != '}') {
      out->push_back(c);
      ++pos;
      continue;
    }
    if (pos + 1 < pattern.size() && pattern[pos + 1] == c) {
      out->push_back(c);
      pos += 2;
      continue;
    }
    if (c == '}') return TemplateError("Single '}' encountered in format string");
    int open = 1;
    size_t end = pos + 1;
    for (; end < pattern.size() && open > 0; ++end) {
      if (pattern[end] == '{') ++open;
      if (pattern[end] == '}') --open;
    }
    if (open > 0) return TemplateError("expected '}' before end of string");
    HEDDLE_RETURN_IF_ERROR(FormatField(pattern.substr(pos + 1, end - pos - 2), nesting, out));
    heap_.Tick();
    HEDDLE_RETURN_IF_ERROR(heap_.Reserve(out->size()));
    HEDDLE_RETURN_IF_ERROR(heap_.Check());
    pos = end;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Value> FormatPercent(Heap& heap, const Value& pattern, const Value& arguments) {
  PercentArguments source(arguments);
  std::string out;
  std::string_view text = pattern.text();
  for (size_t pos = 0; pos < text.size();) {
    size_t percent = std::min(text.find('%', pos), text.size());
    out.append(text.substr(pos, percent - pos));
    pos = percent;
    if (pos == text.size()) break;
    ++pos;
    HEDDLE_RETURN_IF_ERROR(FormatPercentAt(heap, text, &pos, &source, &out));
    heap.Tick();
    HEDDLE_RETURN_IF_ERROR(heap.Reserve(out.size()));
    HEDDLE_RETURN_IF_ERROR(heap.Check());
  }
  HEDDLE_RETURN_IF_ERROR(source.CheckAllUsed());
  return heap.String(out, pattern.is_markup());
}

absl::StatusOr<Value> FormatBraces(Heap& heap, const Value& pattern, const Args& args) {
  std::string out;
  HEDDLE_RETURN_IF_ERROR(BraceFormatter(heap, args).Format(pattern.text(), 0, &out));
  return heap.String(out, pattern.is_markup());
}

}  // namespace heddle::engine::text::jinja
