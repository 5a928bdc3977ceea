#include "engine/text/jinja/print.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/str_format.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/text/jinja/callable.h"
#include "engine/text/jinja/dict.h"
#include "engine/text/jinja/unicode.h"

namespace heddle::engine::text::jinja {
namespace {

absl::Status AppendReprAt(Heap& heap, const Value& value, int depth, std::string* out);

absl::Status CheckNesting(int depth) {
  if (depth <= kMaxValueNesting) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      base::StrCat("a value nests deeper than ", kMaxValueNesting, " levels"));
}

absl::Status AppendReprItems(Heap& heap, const Sequence& sequence, int depth, std::string* out) {
  for (uint32_t i = 0; i < sequence.size; ++i) {
    if (i > 0) out->append(", ");
    HEDDLE_RETURN_IF_ERROR(AppendReprAt(heap, sequence.items[i], depth + 1, out));
  }
  return absl::OkStatus();
}

void AppendReprOfRange(const Sequence& sequence, std::string* out) {
  if (sequence.size == 0) {
    out->append("range(0, 0)");
    return;
  }
  int64_t start = sequence.items[0].integer();
  int64_t step = sequence.size > 1 ? sequence.items[1].integer() - start : 1;
  out->append(base::StrCat("range(", start, ", ", start + step * sequence.size));
  if (step != 1) out->append(base::StrCat(", ", step));
  out->push_back(')');
}

absl::Status AppendReprOfSequence(Heap& heap, const Value& value, int depth, std::string* out) {
  const Sequence& sequence = value.sequence();
  switch (value.sequence_kind()) {
    case SequenceKind::kList:
      out->push_back('[');
      HEDDLE_RETURN_IF_ERROR(AppendReprItems(heap, sequence, depth, out));
      out->push_back(']');
      break;
    case SequenceKind::kTuple:
    case SequenceKind::kGroup:
      out->push_back('(');
      HEDDLE_RETURN_IF_ERROR(AppendReprItems(heap, sequence, depth, out));
      out->append(sequence.size == 1 ? ",)" : ")");
      break;
    case SequenceKind::kRange:
      AppendReprOfRange(sequence, out);
      break;
    case SequenceKind::kGenerator:
      out->append("<generator object>");
      break;
    default:
      out->append(base::StrCat(value.TypeName(), "(["));
      HEDDLE_RETURN_IF_ERROR(AppendReprItems(heap, sequence, depth, out));
      out->append("])");
  }
  return absl::OkStatus();
}

absl::Status AppendReprOfDict(Heap& heap, const Dict& dict, int depth, std::string* out) {
  out->push_back('{');
  bool first = true;
  for (const Entry& entry : dict.entries) {
    if (!first) out->append(", ");
    first = false;
    HEDDLE_RETURN_IF_ERROR(AppendReprAt(heap, entry.key, depth + 1, out));
    out->append(": ");
    HEDDLE_RETURN_IF_ERROR(AppendReprAt(heap, entry.value, depth + 1, out));
  }
  out->push_back('}');
  return absl::OkStatus();
}

void AppendReprOfMarkup(std::string_view text, std::string* out) {
  out->append("Markup(");
  AppendReprOfText(text, /*ascii_only=*/false, out);
  out->push_back(')');
}

absl::Status AppendReprAt(Heap& heap, const Value& value, int depth, std::string* out) {
  HEDDLE_RETURN_IF_ERROR(CheckNesting(depth));
  heap.Tick();
  HEDDLE_RETURN_IF_ERROR(heap.Check());
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
      out->append("Undefined");
      break;
    case Kind::kNone:
      out->append("None");
      break;
    case Kind::kBool:
      out->append(value.integer() != 0 ? "True" : "False");
      break;
    case Kind::kInt:
      out->append(base::StrCat(value.integer()));
      break;
    case Kind::kWideInt:
      out->append(base::StrCat(value.wide()));
      break;
    case Kind::kFloat:
      out->append(FormatFloat(value.real()));
      break;
    case Kind::kString:
      heap.Charge(value.text().size());
      if (value.is_markup()) {
        AppendReprOfMarkup(value.text(), out);
      } else {
        AppendReprOfText(value.text(), /*ascii_only=*/false, out);
      }
      break;
    case Kind::kSequence:
      return AppendReprOfSequence(heap, value, depth, out);
    case Kind::kDict:
      return AppendReprOfDict(heap, value.dict(), depth, out);
    case Kind::kNamespace:
      out->append("<Namespace ");
      HEDDLE_RETURN_IF_ERROR(AppendReprOfDict(heap, value.name_space().attributes, depth + 1, out));
      out->push_back('>');
      break;
    case Kind::kCallable:
      out->append(base::StrCat("<function ", value.callable().name, ">"));
      break;
    case Kind::kLoop:
      out->append("<LoopContext>");
      break;
  }
  return absl::OkStatus();
}

// Writes JSON; one object per call of AppendJson.
class JsonWriter {
 public:
  JsonWriter(Heap& heap, const JsonStyle& style, std::string* out)
      : heap_(heap), style_(style), out_(out) {}

  absl::Status Append(const Value& value, int depth);

 private:
  absl::Status AppendList(const Sequence& sequence, int depth);
  absl::Status AppendDict(const Dict& dict, int depth);
  absl::Status AppendKey(const Value& key);
  void AppendText(std::string_view text);
  void AppendScalar(const Value& value);
  void NewLine(int depth);

  Heap& heap_;
  const JsonStyle& style_;
  std::string* out_;
};

void JsonWriter::NewLine(int depth) {
  if (!style_.indent.has_value()) return;
  out_->push_back('\n');
  for (int i = 0; i < depth; ++i) out_->append(*style_.indent);
}

void AppendUtf16Escape(char32_t c, std::string* out) {
  if (c < 0x10000) {
    absl::StrAppendFormat(out, "\\u%04x", static_cast<uint32_t>(c));
    return;
  }
  uint32_t offset = static_cast<uint32_t>(c) - 0x10000;
  absl::StrAppendFormat(out, "\\u%04x\\u%04x", 0xD800 + (offset >> 10), 0xDC00 + (offset & 0x3FF));
}

void JsonWriter::AppendText(std::string_view text) {
  out_->push_back('"');
  for (size_t pos = 0; pos < text.size();) {
    char c = text[pos];
    if (c == '"' || c == '\\') {
      out_->push_back('\\');
      out_->push_back(c);
    } else if (static_cast<uint8_t>(c) < 0x20) {
      constexpr std::string_view kShort = "\b\f\n\r\t";
      size_t at = kShort.find(c);
      if (at != std::string_view::npos) {
        out_->push_back('\\');
        out_->push_back("bfnrt"[at]);
      } else {
        AppendUtf16Escape(static_cast<uint8_t>(c), out_);
      }
    } else if (style_.ensure_ascii && static_cast<uint8_t>(c) >= 0x7F) {
      char32_t code_point = NextCodePoint(text, &pos);
      if (code_point == 0x7F) {
        out_->push_back('\x7F');
      } else {
        AppendUtf16Escape(code_point, out_);
      }
      continue;
    } else {
      out_->push_back(c);
    }
    ++pos;
  }
  out_->push_back('"');
}

void JsonWriter::AppendScalar(const Value& value) {
  switch (value.kind()) {
    case Kind::kNone:
      out_->append("null");
      break;
    case Kind::kBool:
      out_->append(value.integer() != 0 ? "true" : "false");
      break;
    case Kind::kInt:
      out_->append(base::StrCat(value.integer()));
      break;
    case Kind::kWideInt:
      out_->append(base::StrCat(value.wide()));
      break;
    default: {
      double d = value.real();
      if (std::isnan(d)) {
        out_->append("NaN");
      } else if (std::isinf(d)) {
        out_->append(d > 0 ? "Infinity" : "-Infinity");
      } else {
        out_->append(FormatFloat(d));
      }
    }
  }
}

absl::Status JsonWriter::AppendKey(const Value& key) {
  if (key.is_string()) {
    AppendText(key.text());
  } else if (key.is_number() || key.is_none()) {
    out_->push_back('"');
    AppendScalar(key);
    out_->push_back('"');
  } else {
    return TemplateError(
        base::StrCat("keys must be str, int, float, bool or None, not ", key.TypeName()));
  }
  return absl::OkStatus();
}

absl::Status JsonWriter::AppendList(const Sequence& sequence, int depth) {
  out_->push_back('[');
  for (uint32_t i = 0; i < sequence.size; ++i) {
    if (i > 0) out_->append(style_.item_separator);
    NewLine(depth + 1);
    HEDDLE_RETURN_IF_ERROR(Append(sequence.items[i], depth + 1));
  }
  if (sequence.size > 0) NewLine(depth);
  out_->push_back(']');
  return absl::OkStatus();
}

absl::Status JsonWriter::AppendDict(const Dict& dict, int depth) {
  std::vector<const Entry*> entries;
  entries.reserve(dict.entries.size());
  for (const Entry& entry : dict.entries) entries.push_back(&entry);
  if (style_.sort_keys) {
    for (const Entry* entry : entries) {
      if (!entry->key.is_string()) {
        return TemplateError("sort_keys needs keys that are all texts");
      }
    }
    std::stable_sort(entries.begin(), entries.end(),
                     [](const Entry* a, const Entry* b) { return a->key.text() < b->key.text(); });
  }
  out_->push_back('{');
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i > 0) out_->append(style_.item_separator);
    NewLine(depth + 1);
    HEDDLE_RETURN_IF_ERROR(AppendKey(entries[i]->key));
    out_->append(style_.key_separator);
    HEDDLE_RETURN_IF_ERROR(Append(entries[i]->value, depth + 1));
  }
  if (!entries.empty()) NewLine(depth);
  out_->push_back('}');
  return absl::OkStatus();
}

absl::Status JsonWriter::Append(const Value& value, int depth) {
  HEDDLE_RETURN_IF_ERROR(CheckNesting(depth));
  heap_.Tick();
  if (style_.indent.has_value()) {
    heap_.Charge(style_.indent->size() * static_cast<size_t>(depth));
  }
  HEDDLE_RETURN_IF_ERROR(heap_.Check());
  if (value.is_string()) {
    heap_.Charge(value.text().size());
    AppendText(value.text());
    return absl::OkStatus();
  }
  if (value.is_number() || value.is_none()) {
    AppendScalar(value);
    return absl::OkStatus();
  }
  if (value.is_sequence(SequenceKind::kList) || value.is_sequence(SequenceKind::kTuple) ||
      value.is_sequence(SequenceKind::kGroup)) {
    return AppendList(value.sequence(), depth);
  }
  if (value.is_dict()) return AppendDict(value.dict(), depth);
  return TemplateError(
      base::StrCat("Object of type ", value.TypeName(), " is not JSON serializable"));
}

}  // namespace

std::string FormatFloat(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  auto [end, error] =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  std::string_view scientific(buffer, static_cast<size_t>(end - buffer));
  size_t e = scientific.find('e');
  int exponent = 0;
  size_t digits_at = scientific[e + 1] == '+' ? e + 2 : e + 1;
  std::from_chars(scientific.data() + digits_at, scientific.data() + scientific.size(), exponent);
  // repr() writes exponents below -4 and from 16 on in scientific notation.
  if (exponent < -4 || exponent >= 16) return std::string(scientific);
  auto [fixed_end, fixed_error] =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed);
  std::string fixed(buffer, fixed_end);
  if (fixed.find('.') == std::string::npos) fixed += ".0";
  return fixed;
}

void AppendReprOfText(std::string_view text, bool ascii_only, std::string* out) {
  bool double_quotes = text.find('\'') != text.npos && text.find('"') == text.npos;
  char quote = double_quotes ? '"' : '\'';
  out->push_back(quote);
  for (size_t pos = 0; pos < text.size();) {
    char32_t c = NextCodePoint(text, &pos);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out->push_back('\\');
      out->push_back(static_cast<char>(c));
    } else if (c == '\n') {
      out->append("\\n");
    } else if (c == '\r') {
      out->append("\\r");
    } else if (c == '\t') {
      out->append("\\t");
    } else if (IsPrintable(c) && !(ascii_only && c >= 0x80)) {
      AppendCodePoint(c, out);
    } else if (c < 0x100) {
      absl::StrAppendFormat(out, "\\x%02x", static_cast<uint32_t>(c));
    } else if (c < 0x10000) {
      absl::StrAppendFormat(out, "\\u%04x", static_cast<uint32_t>(c));
    } else {
      absl::StrAppendFormat(out, "\\U%08x", static_cast<uint32_t>(c));
    }
  }
  out->push_back(quote);
}

absl::Status AppendStr(Heap& heap, const Value& value, std::string* out) {
  if (value.is_string()) {
    out->append(value.text());
    return absl::OkStatus();
  }
  if (value.is_undefined() || value.is_missing()) return absl::OkStatus();
  return AppendReprAt(heap, value, 0, out);
}

absl::Status AppendRepr(Heap& heap, const Value& value, std::string* out) {
  return AppendReprAt(heap, value, 0, out);
}

absl::Status AppendJson(Heap& heap, const Value& value, const JsonStyle& style, std::string* out) {
  return JsonWriter(heap, style, out).Append(value, 0);
}

}  // namespace heddle::engine::text::jinja
