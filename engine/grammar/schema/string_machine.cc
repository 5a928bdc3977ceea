#include "engine/grammar/schema/string_machine.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/message.h"
#include "base/status.h"
#include "base/utf8.h"
#include "engine/grammar/machine_builder.h"
#include "engine/grammar/regex.h"
#include "engine/grammar/schema/string_formats.h"

namespace heddle::engine::grammar {
namespace {

constexpr int32_t kNoBound = std::numeric_limits<int32_t>::max();

// By state: the fewest characters to an accepting one; kNoBound if none is reached.
std::vector<int32_t> ShortestRests(const StateMachine& machine) {
  const size_t n = machine.states.size();
  std::vector<std::vector<int32_t>> sources(n);
  std::vector<int32_t> rests(n, kNoBound);
  std::vector<int32_t> work;
  for (size_t s = 0; s < n; ++s) {
    for (const CharEdge& edge : machine.states[s].chars) {
      sources[static_cast<size_t>(edge.target)].push_back(static_cast<int32_t>(s));
    }
    if (!machine.states[s].accepting) continue;
    rests[s] = 0;
    work.push_back(static_cast<int32_t>(s));
  }
  for (size_t i = 0; i < work.size(); ++i) {
    for (int32_t source : sources[static_cast<size_t>(work[i])]) {
      if (rests[static_cast<size_t>(source)] != kNoBound) continue;
      rests[static_cast<size_t>(source)] = rests[static_cast<size_t>(work[i])] + 1;
      work.push_back(source);
    }
  }
  return rests;
}

// The most characters of a text; kNoBound if there is no limit. REQUIRES: every state is reached
// and reaches an accepting one (Trim).
int32_t LongestText(const StateMachine& machine) {
  const size_t n = machine.states.size();
  std::vector<int32_t> num_sources(n, 0);
  for (const MachineState& state : machine.states) {
    for (const CharEdge& edge : state.chars) ++num_sources[static_cast<size_t>(edge.target)];
  }
  if (num_sources[0] > 0) return kNoBound;
  std::vector<int32_t> longest(n, 0);
  std::vector<int32_t> work = {0};
  int32_t result = 0;
  for (size_t i = 0; i < work.size(); ++i) {
    const auto at = static_cast<size_t>(work[i]);
    if (machine.states[at].accepting) result = std::max(result, longest[at]);
    for (const CharEdge& edge : machine.states[at].chars) {
      const auto target = static_cast<size_t>(edge.target);
      longest[target] = std::max(longest[target], longest[at] + 1);
      if (--num_sources[target] == 0) work.push_back(edge.target);
    }
  }
  return work.size() == n ? result : kNoBound;  // otherwise some state is on a cycle
}

// Copies the machine once for each number of characters that the bounds tell apart.
class LengthProduct {
 public:
  LengthProduct(const StateMachine& machine, const std::vector<int32_t>& rests, int32_t min,
                int32_t max)
      : machine_(machine), rests_(rests), min_(min), max_(max) {}

  absl::StatusOr<StateMachine> Run(Budget* budget) {
    StateMachine result;
    IdOf(0, 0);
    for (size_t i = 0; i < order_.size(); ++i) {
      const auto [state, length] = order_[i];
      const MachineState& from = machine_.states[static_cast<size_t>(state)];
      HEDDLE_RETURN_IF_ERROR(Spend(budget, 1 + static_cast<int64_t>(from.chars.size())));
      num_edges_ += from.chars.size();
      if (order_.size() > static_cast<size_t>(kMaxStates) || num_edges_ > kMaxEdges) {
        return absl::ResourceExhaustedError(
            base::StrCat("a string of so many characters with this pattern needs more than ",
                         kMaxStates, " states"));
      }
      MachineState to{.accepting = from.accepting && length >= min_};
      for (CharEdge edge : from.chars) {
        edge.target = IdOf(edge.target, length + 1);
        if (edge.target >= 0) to.chars.push_back(edge);
      }
      result.states.push_back(std::move(to));
    }
    return Trim(result);
  }

 private:
  // -1: no text of the allowed length goes that way.
  int32_t IdOf(int32_t state, int32_t length) {
    const int32_t rest = rests_[static_cast<size_t>(state)];
    if (rest == kNoBound || (max_ >= 0 && length + rest > max_)) return -1;
    if (max_ < 0) length = std::min(length, min_);
    const auto [it, is_new] =
        ids_.try_emplace(std::pair{state, length}, static_cast<int32_t>(order_.size()));
    if (is_new) order_.emplace_back(state, length);
    return it->second;
  }

  const StateMachine& machine_;
  const std::vector<int32_t>& rests_;
  const int32_t min_;
  const int32_t max_;
  size_t num_edges_ = 0;
  absl::flat_hash_map<std::pair<int32_t, int32_t>, int32_t> ids_;
  std::vector<std::pair<int32_t, int32_t>> order_;
};

}  // namespace

absl::StatusOr<StateMachine> BoundLength(const StateMachine& untrimmed, int32_t min, int32_t max,
                                         Budget* budget) {
  StateMachine machine = Trim(untrimmed);
  const std::vector<int32_t> rests = ShortestRests(machine);
  if (rests[0] == kNoBound) return machine;  // there is no text
  if (max >= 0 && (rests[0] > max || min > max)) return StateMachine{{MachineState{}}};
  if (min <= rests[0]) min = 0;
  if (max >= 0 && LongestText(machine) <= max) max = -1;
  if (min == 0 && max < 0) return machine;
  const auto size = static_cast<int64_t>(machine.states.size());
  if (max >= 0) {
    const int64_t counted = std::max<int64_t>(kMaxCountedStates / size, std::max(min, rests[0]));
    max = static_cast<int32_t>(std::min<int64_t>(max, counted));
  }
  return LengthProduct(machine, rests, min, max).Run(budget);
}

std::optional<std::vector<std::string>> FewTexts(const StateMachine& untrimmed, size_t max_texts) {
  const StateMachine machine = Trim(untrimmed);
  if (machine.IsEmpty()) return std::vector<std::string>();
  if (LongestText(machine) == kNoBound) return std::nullopt;
  // The texts up to states, longer ones behind; no state is on a cycle.
  struct Path {
    int32_t state;
    std::u32string text;
  };
  std::vector<std::string> texts;
  std::vector<Path> paths = {{0, {}}};
  const size_t max_paths = 64 * max_texts;
  for (size_t i = 0; i < paths.size(); ++i) {
    const Path path = paths[i];
    const MachineState& state = machine.states[static_cast<size_t>(path.state)];
    if (state.accepting) {
      std::string text;
      for (char32_t c : path.text) base::AppendUtf8(c, &text);
      texts.push_back(std::move(text));
    }
    for (const CharEdge& edge : state.chars) {
      if (edge.last - edge.first >= max_texts || paths.size() > max_paths) return std::nullopt;
      for (char32_t c = edge.first; c <= edge.last; ++c)
        paths.push_back({edge.target, path.text + c});
    }
    if (texts.size() > max_texts) return std::nullopt;
  }
  return texts;
}

absl::StatusOr<StateMachine> StringMachine(const StringConstraints& c, SchemaDocument* document) {
  Budget* const budget = document->budget();
  std::optional<StateMachine> machine;
  const auto restrict = [&](const StateMachine& other) -> absl::Status {
    if (!machine) {
      machine = other;
      return absl::OkStatus();
    }
    HEDDLE_ASSIGN_OR_RETURN(machine, Intersect(*machine, other, kMaxStates, budget));
    return absl::OkStatus();
  };
  for (const std::string& pattern : c.patterns) {
    const absl::StatusOr<StateMachine>& found = document->Pattern(pattern);
    HEDDLE_RETURN_IF_ERROR(found.status());
    HEDDLE_RETURN_IF_ERROR(restrict(*found));
  }
  for (const std::string& format : c.formats) {
    HEDDLE_ASSIGN_OR_RETURN(
        const StateMachine found,
        ParseRegex(FormatPattern(format, c.max_length), RegexMatch::kWhole, budget));
    HEDDLE_RETURN_IF_ERROR(restrict(found));
  }
  for (const std::string& pattern : c.without) {
    const absl::StatusOr<StateMachine>& found = document->Pattern(pattern);
    HEDDLE_RETURN_IF_ERROR(found.status());
    HEDDLE_RETURN_IF_ERROR(restrict(Complement(*found, budget)));
  }
  if (!c.excluded.empty()) {
    MachineBuilder words(budget);
    for (const std::string& word : c.excluded) {
      const int32_t end = words.NewState();
      word.empty() ? words.Epsilon(words.start(), end) : words.Text(words.start(), word, end);
      words.Accept(end);
    }
    HEDDLE_ASSIGN_OR_RETURN(const StateMachine built, words.Build());
    HEDDLE_RETURN_IF_ERROR(restrict(Complement(built, budget)));
  }
  HEDDLE_RETURN_IF_ERROR(StatusOf(budget));
  if (!machine) machine = AnyTextOfLength(0, -1);
  return BoundLength(*machine, c.min_length, c.max_length, budget);
}

}  // namespace heddle::engine::grammar
