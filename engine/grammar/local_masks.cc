#include "engine/grammar/local_masks.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/status.h"

namespace heddle::engine::grammar {
namespace {

// A list of so many ids is as large as the bits of 32 K tokens, and quicker to go through.
constexpr size_t kMaxFew = 1024;
// Contexts of earlier states are of use to later ones; beyond this they are forgotten.
constexpr size_t kMaxPoolBytes = size_t{16} << 20;
constexpr uint16_t kFar = std::numeric_limits<uint16_t>::max();

}  // namespace

absl::Status TooAmbiguous() {
  return absl::ResourceExhaustedError(
      "the grammar is too ambiguous: the tokens that may come next cannot be found in time");
}

LocalMasks::LocalMasks(const Automaton* automaton, const Vocabulary* vocabulary)
    : automaton_(automaton),
      vocabulary_(vocabulary),
      runs_(automaton, vocabulary->trie().max_depth()),
      slices_(automaton->character_sets().size()),
      asked_(automaton->character_sets().size(), false),
      pool_(std::make_unique<ContextPool>(automaton)),
      path_(static_cast<size_t>(vocabulary->trie().max_depth()) + 1) {}

std::shared_ptr<const TokenSlices> LocalMasks::SlicesOf(int32_t set) {
  const auto i = static_cast<size_t>(set);
  if (!asked_[i]) {
    asked_[i] = true;
    slices_[i] = vocabulary_->Slices(automaton_->character_sets()[i]);
  }
  return slices_[i];
}

LocalMasks::Key LocalMasks::KeyOf(int32_t state) {
  if (runs_.HasRun(state)) return {state, true};
  return {automaton_->twin(state), false};
}

absl::StatusOr<LocalMask> LocalMasks::Compute(Key key) {
  if (pool_->bytes() > kMaxPoolBytes) pool_ = std::make_unique<ContextPool>(automaton_);
  LocalMask local;
  const ContextId alone = pool_->Alone(key.state);
  local.leaves_at_once = pool_->CanLeave(alone);
  if (key.has_run) {
    const TextRun run = runs_.Of(key.state);
    local.slices = SlicesOf(run.set);
    if (local.slices != nullptr) HEDDLE_RETURN_IF_ERROR(AddRun(run, &local));
  }
  if (local.slices == nullptr) {
    const bool bounded = !key.has_run && automaton_->is_bounded_twin(key.state);
    const TokenTrie& trie = vocabulary_->trie();
    HEDDLE_RETURN_IF_ERROR(
        Walk(trie, trie.all(), alone, bounded ? Automaton::kSightBytes : kFar, &local));
  }
  local.reach = pool_->max_depth() + automaton_->max_height();
  return local;
}

absl::Status LocalMasks::AddRun(const TextRun& run, LocalMask* local) {
  const TokenSlices& slices = *local->slices;
  local->run = run.length;
  local->ends_in_run = run.may_end;
  const ContextId alone = pool_->Alone(run.state);
  // Tokens that begin with no character of the set.
  const TokenTrie& trie = vocabulary_->trie();
  for (uint32_t i = 0; i < trie.all().end; i = trie.nodes()[i].end) {
    if (slices.MayBegin(trie.nodes()[i].byte)) continue;
    HEDDLE_RETURN_IF_ERROR(Walk(trie, {i, trie.nodes()[i].end}, alone, kFar, local));
  }
  if (run.states.empty()) {
    return Walk(slices.mixed(), slices.mixed().all(), alone, kFar, local);
  }
  const int32_t longest = std::min(run.length, slices.max_length());
  for (int32_t length = 0; length <= longest; ++length) {
    const TokenTrie::Range rest = slices.rest(length);
    if (rest.empty()) continue;
    const ContextId after = length == 0 ? alone : pool_->Alone(run.StateAfter(length));
    if (length > 0 && pool_->CanLeave(after)) local->leaves.push_back({&slices.rests(), rest});
    if (!pool_->ReadsOn(after)) continue;
    HEDDLE_RETURN_IF_ERROR(Walk(slices.rests(), rest, after, kFar, local));
  }
  return absl::OkStatus();
}

// `from` is where the text before the nodes has led to; those deeper than `sight` are left out.
absl::Status LocalMasks::Walk(const TokenTrie& trie, TokenTrie::Range range, ContextId from,
                              uint16_t sight, LocalMask* local) {
  if (range.empty()) return absl::OkStatus();
  ContextPool& pool = *pool_;
  const int64_t max_work = pool.work() + kMaxMaskWork;
  const std::span<const TokenTrie::Node> nodes = trie.nodes();
  path_[nodes[range.begin].depth - 1u] = from;
  for (uint32_t i = range.begin; i < range.end;) {
    const TokenTrie::Node& node = nodes[i];
    const ContextId next = pool.Step(path_[node.depth - 1u], automaton_->byte_class(node.byte));
    if (next == kDeadContext || node.depth > sight) {
      i = node.end;
      continue;
    }
    Add(trie.tokens(i), local);
    const bool has_more = node.end > i + 1;
    if (has_more && pool.CanLeave(next)) local->leaves.push_back({&trie, trie.below(i)});
    path_[node.depth] = next;
    i = !has_more || pool.ReadsOn(next) ? i + 1 : node.end;
    if (pool.work() > max_work) return TooAmbiguous();
  }
  return absl::OkStatus();
}

void LocalMasks::Add(std::span<const TokenId> tokens, LocalMask* local) const {
  if (tokens.empty()) return;
  if (!local->bits.empty()) return Allow(tokens, &local->bits);
  local->few.insert(local->few.end(), tokens.begin(), tokens.end());
  if (local->few.size() <= kMaxFew) return;
  local->bits = vocabulary_->EmptyMask();
  Allow(local->few, &local->bits);
  local->few = {};
}

}  // namespace heddle::engine::grammar
