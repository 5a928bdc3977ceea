// The memory and the work limit of one rendering.
//
// All values of a rendering are placed in one arena that is dropped at its end; nothing is freed
// before. The bytes ever built so bound the memory held, and a template that builds without end
// reaches `max_built_bytes`. Work is counted in steps: one per node evaluated, and one per 256
// bytes that an operation reads. The evaluator checks both at each node; an operation whose result
// can be much larger than its operands calls Reserve first.
// Thread-safety: none; one per rendering.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "engine/text/jinja/dict.h"
#include "engine/text/jinja/limits.h"
#include "engine/text/jinja/value.h"

namespace heddle::engine::text::jinja {

class Heap {
 public:
  explicit Heap(const TemplateLimits& limits);

  // Counts work; Check reports the excess.
  void Tick(uint64_t steps = 1) { steps_ += steps; }
  void Scan(size_t bytes) { steps_ += bytes / kBytesPerStep; }

  // RESOURCE_EXHAUSTED once the rendering's steps or bytes are used up.
  absl::Status Check() const {
    if (steps_ <= limits_.max_steps && built_bytes_ <= limits_.max_built_bytes) [[likely]] {
      return absl::OkStatus();
    }
    return Exhausted();
  }
  // RESOURCE_EXHAUSTED if `bytes` more would exceed the limit; counts nothing.
  absl::Status Reserve(uint64_t bytes) const;

  Value String(std::string_view text, bool markup = false);  // copies
  Value Concat(std::string_view a, std::string_view b, bool markup = false);
  Value List(std::span<const Value> items) { return MakeSequence(SequenceKind::kList, items); }
  Value Tuple(std::span<const Value> items) { return MakeSequence(SequenceKind::kTuple, items); }
  Value MakeSequence(SequenceKind kind, std::span<const Value> items);  // copies the items
  Dict* NewDict(size_t capacity);
  Namespace* NewNamespace() { return New<Namespace>(&arena_); }
  // An undefined value whose use fails with `message` (which is copied).
  Value UndefinedHint(std::string_view message);

  // Makes plain structs, whose destructors are not run.
  template <typename T, typename... A>
  T* New(A&&... arguments) {
    built_bytes_ += sizeof(T);
    return new (arena_.allocate(sizeof(T), alignof(T))) T(std::forward<A>(arguments)...);
  }
  std::pmr::memory_resource* memory() { return &arena_; }
  // Counts bytes that one of our containers takes from memory() directly.
  void Charge(size_t bytes) { built_bytes_ += bytes; }

  const TemplateLimits& limits() const { return limits_; }

 private:
  static constexpr size_t kBytesPerStep = 256;  // ~10 ns at memory speed: about one node's time

  absl::Status Exhausted() const;

  TemplateLimits limits_;
  uint64_t steps_ = 0;
  uint64_t built_bytes_ = 0;
  std::array<std::byte, 16384> first_block_;  // most chats need no further block
  std::pmr::monotonic_buffer_resource arena_;
};

}  // namespace heddle::engine::text::jinja
