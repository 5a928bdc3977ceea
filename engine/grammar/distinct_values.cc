#include "engine/grammar/distinct_values.h"

#include <algorithm>
#include <bitset>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/utf8.h"
#include "nlohmann/json.hpp"

namespace heddle::engine::grammar {
namespace {

constexpr int kMaxLookSteps = 2000;  // of the search for another text

bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
bool EndsScalar(char c) { return c == ',' || c == ']' || c == '}' || IsSpace(c); }

// Gives equal numbers one notation.
void Normalize(nlohmann::json* value) {
  if (value->is_number_float()) {
    const double number = value->get<double>();
    if (number == std::floor(number) && std::abs(number) < 9e15) {
      *value = static_cast<int64_t>(number);
    }
  }
  if (!value->is_structured()) return;
  for (nlohmann::json& part : *value) Normalize(&part);
}

// The code unit of `\uXXXX` at the beginning of `text`, or -1.
int32_t CodeUnit(std::string_view text) {
  if (text.size() < 6 || text[0] != '\\' || text[1] != 'u') return -1;
  int32_t unit = 0;
  const char* end = text.data() + 6;
  const auto [at, error] = std::from_chars(text.data() + 2, end, unit, 16);
  return error == std::errc() && at == end ? unit : -1;
}

// A code point in the one notation of strings.
void AppendPlain(int32_t code, std::string* plain) {
  static constexpr std::string_view kControls = "\b\t\n\f\r";
  static constexpr std::string_view kLetters = "btnfr";
  if (code == '"' || code == '\\') {
    plain->push_back('\\');
    plain->push_back(static_cast<char>(code));
  } else if (code < 0x20) {
    const size_t at = kControls.find(static_cast<char>(code));
    plain->push_back('\\');
    if (at != std::string_view::npos) {
      plain->push_back(kLetters[at]);
    } else {
      plain->append("u00").push_back(static_cast<char>('0' + code / 16));
      plain->push_back("0123456789abcdef"[code % 16]);
    }
  } else {
    base::AppendUtf8(static_cast<char32_t>(code), plain);
  }
}

// The beginning of a JSON string, or a whole one, in one notation: escapes only where JSON demands
// them. Null if it ends within an escape, or in one half of a character.
std::optional<std::string> InOneNotation(std::string_view text) {
  std::string plain;
  while (!text.empty()) {
    const size_t escape = text.find('\\');
    plain += text.substr(0, escape);
    if (escape == std::string_view::npos) break;
    text.remove_prefix(escape);
    if (text.size() < 2) return std::nullopt;
    if (text[1] != 'u') {
      static constexpr std::string_view kLetters = "btnfr\"\\/";
      const size_t at = kLetters.find(text[1]);
      if (at == std::string_view::npos) return std::nullopt;
      AppendPlain("\b\t\n\f\r\"\\/"[at], &plain);
      text.remove_prefix(2);
      continue;
    }
    int32_t code = CodeUnit(text);
    if (code < 0 || (code >= 0xDC00 && code < 0xE000)) return std::nullopt;
    text.remove_prefix(6);
    if (code >= 0xD800 && code < 0xDC00) {
      const int32_t low = CodeUnit(text);
      if (low < 0xDC00 || low >= 0xE000) return std::nullopt;
      text.remove_prefix(6);
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    AppendPlain(code, &plain);
  }
  return plain;
}

std::string ValueOf(std::string_view text) {
  if (text[0] == '"') return InOneNotation(text).value_or(std::string(text));
  nlohmann::json value = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return std::string(text);
  Normalize(&value);
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

// Not recursive: lists may be long.
DistinctValues::Element::~Element() {
  std::shared_ptr<const Element> next = std::move(before);
  while (next != nullptr && next.use_count() == 1) {
    std::shared_ptr<const Element> after = next->before;
    const_cast<Element&>(*next).before = nullptr;  // it has no other owner
    next = std::move(after);
  }
}

// A value begins with the next byte.
void DistinctValues::Begin() {
  Frame& frame = frames_.back();
  if (!frame.is_marked || !frame.is_due) return;
  frame.begin = static_cast<int64_t>(text_.size());
  ++num_elements_;
}

// The key or item of the frame is complete.
bool DistinctValues::EndElement(Frame* frame) {
  std::string text = text_.substr(static_cast<size_t>(frame->begin));
  frame->begin = -1;
  if (--num_elements_ == 0) text_.clear();
  std::string value = ValueOf(text);
  for (const Element* at = frame->elements.get(); at != nullptr; at = at->before.get()) {
    if (at->value == value) return false;
  }
  frame->elements = std::make_shared<const Element>(
      Element{std::move(text), std::move(value), std::move(frame->elements)});
  return true;
}

// A key or value is complete, and the innermost frame is the one that it is part of.
bool DistinctValues::EndValue() {
  if (frames_.empty()) return true;
  Frame& frame = frames_.back();
  const bool is_distinct = frame.begin < 0 || EndElement(&frame);
  frame.is_due = false;
  return is_distinct;
}

bool DistinctValues::Read(char byte, bool is_marked) {
  if (in_string_) {
    Append(byte);
    if (in_escape_) {
      in_escape_ = false;
    } else if (byte == '\\') {
      in_escape_ = true;
    } else if (byte == '"') {
      in_string_ = false;
      return EndValue();
    }
    return true;
  }
  if (in_scalar_ && EndsScalar(byte)) {
    in_scalar_ = false;
    if (!EndValue()) return false;
  }
  const bool opens = byte == '{' || byte == '[';
  if (frames_.empty()) {
    if (!opens || !is_marked) return true;
  } else if (byte == ',') {
    frames_.back().is_due = true;
  } else if ((opens || byte == '"' || (!in_scalar_ && !EndsScalar(byte) && byte != ':'))) {
    Begin();
  }
  Append(byte);
  if (opens) {
    frames_.push_back({.is_object = byte == '{', .is_marked = is_marked});
    num_marked_ += is_marked ? 1 : 0;
    return true;
  }
  if (byte == '}' || byte == ']') {
    num_marked_ -= frames_.back().is_marked ? 1 : 0;
    frames_.pop_back();
    if (num_marked_ == 0) frames_.clear();
    return EndValue();
  }
  if (byte == '"') in_string_ = true;
  if (byte != '"' && byte != ':' && !EndsScalar(byte)) in_scalar_ = true;
  return true;
}

bool DistinctValues::BeforeElement() const {
  if (frames_.empty() || in_string_ || in_scalar_) return false;
  const Frame& frame = frames_.back();
  return frame.is_marked && frame.begin < 0 && frame.is_due;
}

std::optional<std::vector<std::string>> DistinctValues::RestsOfStrings() const {
  if (!in_string_ || num_elements_ != 1 || frames_.back().begin < 0) return std::nullopt;
  const std::optional<std::string> begun = InOneNotation(text_);
  if (!begun.has_value()) return std::nullopt;
  std::vector<std::string> rests;
  for (const Element* at = frames_.back().elements.get(); at != nullptr; at = at->before.get()) {
    if (at->value.starts_with(*begun)) rests.push_back(at->value.substr(begun->size()));
  }
  return rests;
}

bool DistinctValues::HasElements() const {
  return std::any_of(frames_.begin(), frames_.end(),
                     [](const Frame& frame) { return frame.elements != nullptr; });
}

std::vector<std::string_view> DistinctValues::SameSoFar() const {
  std::vector<std::string_view> rests;
  for (const Frame& frame : frames_) {
    const bool is_next = &frame == &frames_.back() && BeforeElement();
    if (!frame.is_marked || (frame.begin < 0 && !is_next)) continue;
    std::string_view begun;
    if (frame.begin >= 0) begun = std::string_view(text_).substr(static_cast<size_t>(frame.begin));
    for (const Element* at = frame.elements.get(); at != nullptr; at = at->before.get()) {
      if (at->text.rfind(begun, 0) != 0) continue;
      rests.push_back(std::string_view(at->text).substr(begun.size()));
    }
  }
  return rests;
}

namespace {

class DifferenceSearch {
 public:
  DifferenceSearch(const Automaton& automaton, ContextPool* pool, const DistinctValues& values)
      : automaton_(automaton), pool_(*pool), may_be_scalar_(!values.in_string()) {}

  bool Run(ContextId context, const std::vector<std::string_view>& rests, bool before_element) {
    if (++steps_ > kMaxLookSteps || pool_.exhausted()) return true;
    const bool is_complete =
        std::any_of(rests.begin(), rests.end(), [](std::string_view rest) { return rest.empty(); });
    // A string, list or object is over with its last byte; a number may go on.
    if (is_complete && !may_be_scalar_) return false;
    std::bitset<256> bytes;
    for (const ContextPool::Item& item : pool_.Readers(context)) {
      for (const ByteEdge& edge : automaton_.bytes(item.state)) {
        for (int byte = edge.first; byte <= edge.last; ++byte) bytes.set(static_cast<size_t>(byte));
      }
    }
    for (int byte = 0; byte < 256; ++byte) {
      const auto c = static_cast<char>(byte);
      if (!bytes[static_cast<size_t>(byte)]) continue;
      if (before_element && IsSpace(c)) {
        const ContextId next = pool_.Step(context, automaton_.byte_class(static_cast<uint8_t>(c)));
        if (Run(next, rests, true)) return true;
        continue;
      }
      // Behind all of them, the array or object may end instead.
      if (before_element && (c == ']' || c == '}')) return true;
      if (is_complete && EndsScalar(c)) continue;
      std::vector<std::string_view> same;
      for (std::string_view rest : rests) {
        if (!rest.empty() && rest[0] == c) same.push_back(rest.substr(1));
      }
      if (same.empty()) return true;
      const bool is_over =
          std::any_of(same.begin(), same.end(), [](auto r) { return r.empty(); }) &&
          (c == '"' || c == ']' || c == '}');
      if (is_over) continue;
      const ContextId next = pool_.Step(context, automaton_.byte_class(static_cast<uint8_t>(c)));
      if (next == kDeadContext) continue;
      if (Run(next, same, false)) return true;
    }
    return false;
  }

 private:
  const Automaton& automaton_;
  ContextPool& pool_;
  const bool may_be_scalar_;
  int steps_ = 0;
};

}  // namespace

bool CanDiffer(const Automaton& automaton, ContextPool* pool, ContextId context,
               const DistinctValues& values) {
  const std::vector<std::string_view> rests = values.SameSoFar();
  if (rests.empty()) return true;
  return DifferenceSearch(automaton, pool, values).Run(context, rests, values.BeforeElement());
}

}  // namespace heddle::engine::grammar
