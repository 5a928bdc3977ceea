#include "engine/text/jinja/format_field.h"

#include <charconv>
#include <cmath>

#include "absl/strings/str_format.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/text/jinja/print.h"
#include "engine/text/jinja/unicode.h"

namespace heddle::engine::text::jinja {
namespace {

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

}  // namespace

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

void FormatText(const Spec& spec, std::string_view text, char default_align, std::string* out) {
  if (spec.precision >= 0)
    text = text.substr(0, ByteOffset(text, static_cast<size_t>(spec.precision)));
  Pad(spec, default_align, "", text, out);
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

}  // namespace heddle::engine::text::jinja
