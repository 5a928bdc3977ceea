#include <cmath>
#include <cstdlib>
#include <optional>

#include "base/message.h"
#include "base/status.h"
#include "engine/text/jinja/dict.h"
#include "engine/text/jinja/format.h"
#include "engine/text/jinja/format_field.h"
#include "engine/text/jinja/print.h"

namespace heddle::engine::text::jinja {
namespace {

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

absl::Status FormatPercentField(Heap& heap, const Spec& spec, const Value& value,
                                std::string* out) {
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

}  // namespace heddle::engine::text::jinja
