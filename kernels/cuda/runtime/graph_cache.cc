#include "kernels/cuda/runtime/graph_cache.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace heddle::kernels::cuda {

GraphCache::~GraphCache() {
  for (const Entry& entry : entries_) runtime_.FreeGraph(entry.graph);
}

GraphCache::Entry* GraphCache::Find(const Tape& tape, int32_t rows) {
  for (Entry& entry : entries_) {
    if (entry.rows == rows && entry.tape.HasKernelsOf(tape)) return &entry;
  }
  return nullptr;
}

// Replaces the entry that was unused for longest, if there are many.
void GraphCache::Remember(const Tape& tape, int32_t rows) {
  if (entries_.size() == kMaxGraphs) {
    auto oldest =
        std::min_element(entries_.begin(), entries_.end(),
                         [](const Entry& a, const Entry& b) { return a.last_use < b.last_use; });
    runtime_.FreeGraph(oldest->graph);
    entries_.erase(oldest);
  }
  entries_.push_back({.rows = rows, .last_use = uses_, .tape = tape});
}

absl::Status GraphCache::Change(const Tape& tape, Entry* entry) {
  for (size_t i = 0; i < tape.launches().size(); ++i) {
    if (tape.HasLaunchOf(entry->tape, i)) continue;
    HEDDLE_RETURN_IF_ERROR(runtime_.ChangeGraph(entry->graph, tape, i));
    ++counts_.changed;
  }
  entry->tape = tape;
  return absl::OkStatus();
}

absl::Status GraphCache::Make(const Tape& tape, Entry* entry) {
  HEDDLE_ASSIGN_OR_RETURN(entry->graph, runtime_.MakeGraph(tape));
  entry->tape = tape;
  return absl::OkStatus();
}

// Makes the entry's graph, or changes it to match the tape.
absl::Status GraphCache::PlayGraph(const Tape& tape, Entry* entry) {
  if (entry->graph != nullptr && !Change(tape, entry).ok()) {  // it is then made anew
    runtime_.FreeGraph(std::exchange(entry->graph, nullptr));
    // Drivers may be unable to change early launches.
    if (++counts_.refused == kMaxRefused) runtime_.MakeGraphsInTurn();
  }
  const bool is_new = entry->graph == nullptr;
  if (is_new) HEDDLE_RETURN_IF_ERROR(Make(tape, entry));
  HEDDLE_RETURN_IF_ERROR(runtime_.LaunchGraph(entry->graph));
  ++(is_new ? counts_.made : counts_.replayed);
  return absl::OkStatus();
}

absl::Status GraphCache::Play(const Tape& tape, int32_t rows) {
  if (tape.launches().empty()) return absl::OkStatus();
  ++uses_;
  Entry* entry = Find(tape, rows);
  if (entry == nullptr) Remember(tape, rows);
  if (entry == nullptr || counts_.failed >= kMaxFailed) {
    ++counts_.direct;
    return runtime_.LaunchAll(tape);
  }
  entry->last_use = uses_;
  if (PlayGraph(tape, entry).ok()) return absl::OkStatus();
  runtime_.FreeGraph(std::exchange(entry->graph, nullptr));
  ++counts_.failed;
  return runtime_.LaunchAll(tape);  // also ends with a fault of the device
}

}  // namespace heddle::kernels::cuda
