#include "engine/grammar/twin_classes.h"

#include <numeric>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/status.h"

namespace heddle::engine::grammar {
namespace {

SourceIndex SourcesOf(const Automaton& automaton) {
  return SourceIndex(static_cast<size_t>(automaton.num_states()),
                     [&automaton](int32_t state, const auto& visit) {
                       for (const ByteEdge& edge : automaton.bytes(state)) visit(edge.target);
                       for (const Call& call : automaton.calls(state)) visit(call.target);
                     });
}

}  // namespace

TwinClasses::TwinClasses(const Automaton& automaton)
    : automaton_(automaton), sources_(SourcesOf(automaton)), size_of_(2, 0) {
  const int32_t n = automaton.num_states();
  class_of_.resize(static_cast<size_t>(n));
  for (int32_t s = 0; s < n; ++s) {
    class_of_[s] = automaton.accepting(s) ? 1 : 0;
    ++size_of_[class_of_[s]];
  }
  looked_at_.resize(static_cast<size_t>(n));
  std::iota(looked_at_.begin(), looked_at_.end(), 0);
  is_listed_.assign(static_cast<size_t>(n), false);
}

absl::Status TwinClasses::Refine(int32_t rounds, Budget* budget) {
  for (int32_t round = 0; round < rounds && !is_at_rest_; ++round) {
    HEDDLE_RETURN_IF_ERROR(Spend(budget, FindParts()));
    NumberParts();
    MoveStates();
  }
  return absl::OkStatus();
}

Signature TwinClasses::SignatureOf(int32_t state) const {
  Signature signature;
  signature.Add(static_cast<uint64_t>(class_of_[state]));
  for (const ByteEdge& edge : automaton_.bytes(state)) {
    signature.Add(uint64_t{edge.first} << 48 | uint64_t{edge.last} << 40 |
                  static_cast<uint32_t>(class_of_[edge.target]));
  }
  for (const Call& call : automaton_.calls(state)) {
    signature.Add(uint64_t{1} << 63 | static_cast<uint64_t>(call.start) << 32 |
                  static_cast<uint32_t>(class_of_[call.target]));
    // A call of a rule that may be empty takes a round without reading a byte.
    if (call.may_be_empty) signature.Add(~static_cast<uint64_t>(state));
  }
  return signature;
}

// Returns the number of states and edges looked at.
int64_t TwinClasses::FindParts() {
  absl::flat_hash_map<Signature, int32_t> part_ids;
  part_ids.reserve(looked_at_.size());
  parts_.clear();
  part_of_.clear();
  int64_t work = 0;
  for (const int32_t state : looked_at_) {
    work += 1 + static_cast<int64_t>(automaton_.bytes(state).size()) +
            static_cast<int64_t>(automaton_.calls(state).size());
    const auto [it, is_new] =
        part_ids.try_emplace(SignatureOf(state), static_cast<int32_t>(parts_.size()));
    if (is_new) parts_.push_back({.class_id = class_of_[state]});
    ++parts_[it->second].size;
    part_of_.push_back(it->second);
  }
  return work;
}

// A part gets a class of its own, unless it keeps its class's: the largest part does, if all states
// of the class were looked at. States that were not looked at lead to the classes that they led to
// before, and none of the others does, so they stay together.
void TwinClasses::NumberParts() {
  seen_.resize(size_of_.size());
  for (const Part& part : parts_) seen_[part.class_id] = {};
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    Seen& seen = seen_[part.class_id];
    seen.states += part.size;
    if (seen.largest < 0 || part.size > parts_[seen.largest].size) {
      seen.largest = static_cast<int32_t>(i);
    }
  }
  for (Part& part : parts_) {
    Seen& seen = seen_[part.class_id];
    if (seen.states < size_of_[part.class_id]) seen.largest = -1;
  }
  for (size_t i = 0; i < parts_.size(); ++i) {
    Part& part = parts_[i];
    if (seen_[part.class_id].largest == static_cast<int32_t>(i)) continue;
    size_of_[part.class_id] -= part.size;
    part.new_id = num_classes();
    size_of_.push_back(part.size);
  }
}

// Moves states to their new classes, and lists those that the next round looks at. A state that is
// alone in its class cannot be parted from another.
void TwinClasses::MoveStates() {
  std::vector<int32_t> moved;
  for (size_t i = 0; i < looked_at_.size(); ++i) {
    const Part& part = parts_[part_of_[i]];
    if (part.new_id < 0) continue;
    class_of_[looked_at_[i]] = part.new_id;
    moved.push_back(looked_at_[i]);
  }
  is_at_rest_ = moved.empty();
  std::vector<int32_t> next;
  for (const int32_t state : moved) {
    for (const int32_t source : sources_.of(state)) {
      if (is_listed_[source] || size_of_[class_of_[source]] == 1) continue;
      is_listed_[source] = true;
      next.push_back(source);
    }
  }
  for (const int32_t state : next) is_listed_[state] = false;
  looked_at_ = std::move(next);
}

}  // namespace heddle::engine::grammar
