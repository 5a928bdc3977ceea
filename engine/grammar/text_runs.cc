#include "engine/grammar/text_runs.h"

#include <algorithm>
#include <utility>

namespace heddle::engine::grammar {
namespace {

constexpr int8_t kUnknown = -2;
// Limit on the different states that a set's characters lead to: patterns that are searched for
// have as many as letters.
constexpr size_t kMaxReached = 64;
// Limit on the steps remembered per set; beyond this they are recomputed.
constexpr size_t kMaxSteps = size_t{1} << 15;
// Limit on the edges looked at for one step: rules that call a thousand others, which call as many,
// are not text.
constexpr int32_t kMaxReads = 1 << 14;

}  // namespace

TextRuns::TextRuns(const Automaton* automaton, int32_t max_length)
    : automaton_(automaton),
      max_length_(max_length),
      set_of_(static_cast<size_t>(automaton->num_states()), kUnknown) {
  for (const CodePointSet& chars : automaton->character_sets()) sets_.emplace_back(chars);
}

bool TextRuns::HasRun(int32_t state) {
  int8_t& known = set_of_[static_cast<size_t>(state)];
  if (known == kUnknown) {
    known = -1;
    for (size_t set = 0; set < sets_.size() && known < 0; ++set) {
      if (RunOf(state, static_cast<int32_t>(set)).length > 0) known = static_cast<int8_t>(set);
    }
  }
  return known >= 0;
}

TextRun TextRuns::Of(int32_t state) {
  if (!HasRun(state)) return {};
  return RunOf(state, set_of_[static_cast<size_t>(state)]);
}

TextRun TextRuns::RunOf(int32_t state, int32_t set) {
  TextRun run{.state = state, .set = set, .states = {state}};
  std::vector<int32_t> reached = {state};
  std::vector<int32_t> next;
  for (; run.length < max_length_; ++run.length) {
    next.clear();
    size_t none = 0;
    for (int32_t from : reached) {
      const Step& step = StepOf(from, &sets_[static_cast<size_t>(set)]);
      if (step.reading == Reading::kSome) return {};
      if (step.reading == Reading::kNone) ++none;
      next.insert(next.end(), step.targets.begin(), step.targets.end());
    }
    if (none == reached.size()) return run;
    if (none > 0) return {};
    std::sort(next.begin(), next.end());
    next.erase(std::unique(next.begin(), next.end()), next.end());
    if (next.size() > kMaxReached) return {};
    for (int32_t to : next) run.may_end |= automaton_->accepting(to);
    if (next.size() > 1) run.states.clear();
    if (!run.states.empty()) run.states.push_back(next.front());
    if (next == reached) run.length = max_length_ - 1;  // the state repeats: no limit
    reached.swap(next);
  }
  return run;
}

const TextRuns::Step& TextRuns::StepOf(int32_t state, Set* set) {
  if (set->steps.size() > kMaxSteps) set->steps.clear();
  reads_left_ = kMaxReads;
  auto [it, is_new] = set->steps.try_emplace(state);
  if (!is_new) return it->second;
  Step& step = it->second;
  std::bitset<256> read;
  if (!Read(state, set->bytes, 0, &read, &step.targets)) return step;
  if (read.none()) step.reading = Reading::kNone;
  if (read == set->bytes.first_bytes()) step.reading = Reading::kAll;
  std::sort(step.targets.begin(), step.targets.end());
  step.targets.erase(std::unique(step.targets.begin(), step.targets.end()), step.targets.end());
  return step;
}

size_t TextRuns::heap_bytes() const {
  size_t bytes = set_of_.capacity();
  for (const Set& set : sets_) {
    // Nearly all steps have one target, which takes the smallest block of the heap.
    bytes +=
        set.bytes.heap_bytes() + set.steps.capacity() * (sizeof(Step) + 9) + set.steps.size() * 32;
  }
  return bytes;
}

bool TextRuns::IsOver(int32_t state) const {
  return automaton_->accepting(state) && automaton_->bytes(state).empty() &&
         automaton_->calls(state).empty();
}

// Adds the first bytes of characters that can be read, and the states behind them. Returns false if
// not all characters with the same first byte behave alike, if one can be read in two ways, or if a
// way does not lead back to the state's own rule.
bool TextRuns::Read(int32_t state, const CharacterBytes& chars, int depth, std::bitset<256>* read,
                    std::vector<int32_t>* targets) const {
  if (depth >= kMaxCalls || reads_left_ < 0) return false;
  for (const ByteEdge& edge : automaton_->bytes(state)) {
    for (const ByteEdge& lead : chars.edges(0)) {
      if (--reads_left_ < 0) return false;
      const uint8_t first = std::max(edge.first, lead.first);
      const uint8_t last = std::min(edge.last, lead.last);
      if (first > last) continue;
      const Reading reading = ReadRest(edge.target, lead.target, chars, targets);
      if (reading == Reading::kSome) return false;
      if (reading == Reading::kNone) continue;
      for (size_t byte = first; byte <= last; ++byte) {
        if (read->test(byte)) return false;
        read->set(byte);
      }
    }
  }
  for (const Call& call : automaton_->calls(state)) {
    if (call.may_be_empty || --reads_left_ < 0) return false;
    std::vector<int32_t> ends;
    std::bitset<256> called;
    if (!Read(call.start, chars, depth + 1, &called, &ends)) return false;
    if (called.none()) continue;
    if ((called & *read).any()) return false;
    *read |= called;
    if (!std::all_of(ends.begin(), ends.end(), [this](int32_t end) { return IsOver(end); })) {
      return false;
    }
    targets->push_back(call.target);
  }
  return true;
}

// Reads the rest of characters, from state `at` of `chars` on.
TextRuns::Reading TextRuns::ReadRest(int32_t state, int32_t at, const CharacterBytes& chars,
                                     std::vector<int32_t>* targets) const {
  if (at == CharacterBytes::kWhole) {
    targets->push_back(state);
    return Reading::kAll;
  }
  if (!automaton_->calls(state).empty()) return Reading::kSome;
  int num_bytes = 0;
  int num_read = 0;
  for (const ByteEdge& next : chars.edges(at)) {
    num_bytes += next.last - next.first + 1;
    for (const ByteEdge& edge : automaton_->bytes(state)) {
      if (--reads_left_ < 0) return Reading::kSome;
      const uint8_t first = std::max(edge.first, next.first);
      const uint8_t last = std::min(edge.last, next.last);
      if (first > last) continue;
      const Reading reading = ReadRest(edge.target, next.target, chars, targets);
      if (reading == Reading::kSome) return reading;
      if (reading == Reading::kAll) num_read += last - first + 1;
    }
  }
  if (num_read == 0) return Reading::kNone;
  return num_read == num_bytes ? Reading::kAll : Reading::kSome;
}

}  // namespace heddle::engine::grammar
