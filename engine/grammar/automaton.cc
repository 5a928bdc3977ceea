#include "engine/grammar/automaton.h"

#include "base/status.h"
#include "engine/grammar/twin_classes.h"

namespace heddle::engine::grammar {
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

absl::Status Automaton::FindTwins(Budget* budget) {
  TwinClasses classes(*this);
  HEDDLE_RETURN_IF_ERROR(classes.Refine(kSightBytes, budget));
  const auto n = static_cast<size_t>(num_states());
  twin_.resize(n);
  bounded_twin_.resize(n);
  std::vector<int32_t> first_of(static_cast<size_t>(classes.num_classes()), -1);
  for (size_t s = 0; s < n; ++s) {
    const int32_t class_of = classes.class_of(static_cast<int32_t>(s));
    int32_t& first = first_of[class_of];
    if (first < 0) first = static_cast<int32_t>(s);
    twin_[s] = first;
    bounded_twin_[s] = !classes.is_at_rest() && classes.size_of(class_of) > 1;
  }
  return absl::OkStatus();
}

}  // namespace heddle::engine::grammar
