// Insertion-ordered dictionaries and namespaces. Lookup walks the entries: message and tool
// objects have a handful of keys, where comparing lengths first beats hashing.
#pragma once

#include <memory_resource>
#include <string_view>
#include <vector>

#include "engine/text/jinja/value.h"

namespace heddle::engine::text::jinja {

struct Entry {
  Value key;
  Value value;
};

struct Dict {
  explicit Dict(std::pmr::memory_resource* memory) : entries(memory) {}

  // nullptr if there is no such key. O(size).
  const Value* Find(std::string_view key) const {
    for (const Entry& entry : entries) {
      if (entry.key.is_string() && entry.key.text() == key) return &entry.value;
    }
    return nullptr;
  }

  std::pmr::vector<Entry> entries;
};

// The only object that a template can change once it is made: {% set ns.count = 1 %}.
struct Namespace {
  explicit Namespace(std::pmr::memory_resource* memory) : attributes(memory) {}
  Dict attributes;  // keys are texts
};

}  // namespace heddle::engine::text::jinja
