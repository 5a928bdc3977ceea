// Values that a schema lists (enum, const), to be looked up in constant time. Internal to
// json_schema.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "engine/grammar/schema/schema_document.h"

namespace heddle::engine::grammar {

// JSON Schema's equality: 1 equals 1.0, and the order of an object's members does not count.
bool AreEqual(const Json& a, const Json& b);
// Equal values have equal hashes.
uint64_t HashOf(const Json& value);

// A set of values that outlive it. Thread-safety: none.
class ListedValues {
 public:
  // Nothing happens if the set has an equal value: false.
  bool Add(const Json& value) { return values_.insert(&value).second; }
  void Add(const std::vector<Json>& values) {
    for (const Json& value : values) Add(value);
  }
  bool Contains(const Json& value) const { return values_.contains(&value); }

 private:
  struct Hash {
    size_t operator()(const Json* value) const { return HashOf(*value); }
  };
  struct Equal {
    bool operator()(const Json* a, const Json* b) const { return AreEqual(*a, *b); }
  };

  absl::flat_hash_set<const Json*, Hash, Equal> values_;
};

}  // namespace heddle::engine::grammar
