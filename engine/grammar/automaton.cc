#include "engine/grammar/automaton.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "base/status.h"

namespace heddle::engine::grammar {
namespace {

// Two independent hashes of the same data, instead of the data: 128 bits do not collide.
using Signature = std::pair<uint64_t, uint64_t>;

void Mix(uint64_t value, Signature* signature) {
  signature->first = absl::HashOf(signature->first, value);
  signature->second = absl::HashOf(value, signature->second, signature->first);
}

}  // namespace

size_t Automaton::heap_bytes() const {
  size_t bytes = bytes_.capacity() * sizeof(ByteEdge) + calls_.capacity() * sizeof(Call);
  for (const auto* ids : {&byte_begin_, &call_begin_, &height_, &twin_}) {
    bytes += ids->capacity() * sizeof(int32_t);
  }
  for (const CodePointSet& set : character_sets_) {
    bytes += sizeof(set) + set.ranges().size() * sizeof(CodePointRange);
  }
  return bytes +
         (accepting_.capacity() + bounded_twin_.capacity() + begins_distinct_.capacity()) / 8;
}

void Automaton::ClassifyBytes() {
  std::array<bool, 257> begins{};
  begins[0] = true;
  for (const ByteEdge& edge : bytes_) {
    begins[edge.first] = true;
    begins[edge.last + 1] = true;
  }
  num_classes_ = 0;
  for (int byte = 0; byte < 256; ++byte) {
    if (begins[byte]) class_byte_[num_classes_++] = static_cast<uint8_t>(byte);
    byte_class_[byte] = static_cast<uint8_t>(num_classes_ - 1);
  }
}

// Moore's refinement, one round per byte of sight. If it reaches a fixed point earlier, the states
// of a class are equivalent for any number of bytes.
absl::Status Automaton::FindTwins(Budget* budget) {
  const auto n = static_cast<size_t>(num_states());
  std::vector<int32_t> class_of(n);
  std::vector<int32_t> refined(n);
  for (size_t s = 0; s < n; ++s) class_of[s] = accepting_[s] ? 1 : 0;
  size_t num_classes = 0;
  bool at_rest = false;
  for (int round = 0; round < kSightBytes && !at_rest; ++round) {
    HEDDLE_RETURN_IF_ERROR(Spend(budget, static_cast<int64_t>(n + bytes_.size() + calls_.size())));
    absl::flat_hash_map<Signature, int32_t> classes;
    for (size_t s = 0; s < n; ++s) {
      const auto state = static_cast<int32_t>(s);
      Signature signature{class_of[s], ~uint64_t{0}};
      for (const ByteEdge& edge : bytes(state)) {
        Mix(uint64_t{edge.first} << 48 | uint64_t{edge.last} << 40 |
                static_cast<uint32_t>(class_of[edge.target]),
            &signature);
      }
      for (const Call& call : calls(state)) {
        Mix(uint64_t{1} << 63 | static_cast<uint64_t>(call.start) << 32 |
                static_cast<uint32_t>(class_of[call.target]),
            &signature);
        // A call of a rule that may be empty takes a round without reading a byte.
        if (call.may_be_empty) Mix(~s, &signature);
      }
      refined[s] =
          classes.try_emplace(signature, static_cast<int32_t>(classes.size())).first->second;
    }
    class_of.swap(refined);
    at_rest = classes.size() == num_classes;
    num_classes = classes.size();
  }
  twin_.resize(n);
  std::vector<int32_t> first_of(num_classes, -1);
  std::vector<int32_t> size_of(num_classes, 0);
  for (size_t s = 0; s < n; ++s) {
    int32_t& first = first_of[class_of[s]];
    if (first < 0) first = static_cast<int32_t>(s);
    twin_[s] = first;
    ++size_of[class_of[s]];
  }
  bounded_twin_.resize(n);
  for (size_t s = 0; s < n; ++s) bounded_twin_[s] = !at_rest && size_of[class_of[s]] > 1;
  return absl::OkStatus();
}

}  // namespace heddle::engine::grammar
