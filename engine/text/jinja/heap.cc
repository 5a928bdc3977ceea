#include "engine/text/jinja/heap.h"

#include <cstring>

#include "base/message.h"

namespace heddle::engine::text::jinja {

Heap::Heap(const TemplateLimits& limits)
    : limits_(limits), arena_(first_block_.data(), first_block_.size()) {}

absl::Status Heap::Reserve(uint64_t bytes) const {
  if (bytes <= limits_.max_built_bytes && built_bytes_ + bytes <= limits_.max_built_bytes) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(base::StrCat("the template builds a value of ", bytes,
                                                   " bytes; at most ", limits_.max_built_bytes,
                                                   " bytes of values are allowed in all"));
}

absl::Status Heap::Exhausted() const {
  if (steps_ > limits_.max_steps) {
    return absl::ResourceExhaustedError(
        base::StrCat("the template takes more than ", limits_.max_steps, " steps"));
  }
  return absl::ResourceExhaustedError(base::StrCat("the template builds values of more than ",
                                                   limits_.max_built_bytes, " bytes in all"));
}

Value Heap::String(std::string_view text, bool markup) {
  if (text.empty()) return Value::String("", markup);
  built_bytes_ += text.size();
  char* copy = static_cast<char*>(arena_.allocate(text.size(), 1));
  std::memcpy(copy, text.data(), text.size());
  return Value::String({copy, text.size()}, markup);
}

Value Heap::Concat(std::string_view a, std::string_view b, bool markup) {
  size_t size = a.size() + b.size();
  if (size == 0) return Value::String("", markup);
  built_bytes_ += size;
  char* copy = static_cast<char*>(arena_.allocate(size, 1));
  if (!a.empty()) std::memcpy(copy, a.data(), a.size());
  if (!b.empty()) std::memcpy(copy + a.size(), b.data(), b.size());
  return Value::String({copy, size}, markup);
}

Value Heap::MakeSequence(SequenceKind kind, std::span<const Value> items) {
  Value* copy = nullptr;
  if (!items.empty()) {
    built_bytes_ += items.size_bytes();
    copy = static_cast<Value*>(arena_.allocate(items.size_bytes(), alignof(Value)));
    std::memcpy(static_cast<void*>(copy), items.data(), items.size_bytes());
  }
  return Value::Of(New<Sequence>(Sequence{copy, static_cast<uint32_t>(items.size()), false}), kind);
}

Dict* Heap::NewDict(size_t capacity) {
  Dict* dict = New<Dict>(&arena_);
  dict->entries.reserve(capacity);
  built_bytes_ += capacity * sizeof(Entry);
  return dict;
}

Value Heap::UndefinedHint(std::string_view message) {
  return Value::UndefinedHint(String(message).text());
}

}  // namespace heddle::engine::text::jinja
