#include <algorithm>
#include <charconv>
#include <optional>

#include "base/message.h"
#include "base/status.h"
#include "engine/text/jinja/format.h"
#include "engine/text/jinja/format_field.h"
#include "engine/text/jinja/operators.h"
#include "engine/text/jinja/print.h"

namespace heddle::engine::text::jinja {
namespace {

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

absl::StatusOr<Value> FormatBraces(Heap& heap, const Value& pattern, const Args& args) {
  std::string out;
  HEDDLE_RETURN_IF_ERROR(BraceFormatter(heap, args).Format(pattern.text(), 0, &out));
  return heap.String(out, pattern.is_markup());
}

}  // namespace heddle::engine::text::jinja
