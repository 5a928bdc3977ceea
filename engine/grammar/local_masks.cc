#include "engine/grammar/local_masks.h"

#include <span>
#include <utility>

#include "base/status.h"

namespace heddle::engine::grammar {
namespace {

// A list of so many ids is as large as the bits of 32 K tokens, and quicker to go through.
constexpr size_t kMaxFew = 1024;
// Contexts of earlier states are of use to later ones; beyond this they are forgotten.
constexpr size_t kMaxPoolBytes = size_t{16} << 20;

}  // namespace

absl::Status TooAmbiguous() {
  return absl::ResourceExhaustedError(
      "the grammar is too ambiguous: the tokens that may come next cannot be found in time");
}

LocalMasks::LocalMasks(const Automaton* automaton, const Vocabulary* vocabulary)
    : automaton_(automaton),
      vocabulary_(vocabulary),
      pool_(std::make_unique<ContextPool>(automaton)),
      path_(static_cast<size_t>(vocabulary->trie().max_depth()) + 1) {}

absl::StatusOr<LocalMask> LocalMasks::Compute(int32_t state) {
  if (pool_->bytes() > kMaxPoolBytes) pool_ = std::make_unique<ContextPool>(automaton_);
  LocalMask local;
  TokenMask bits = vocabulary_->EmptyMask();
  size_t count = 0;
  HEDDLE_RETURN_IF_ERROR(Walk(state, &local, &bits, &count));
  if (count > kMaxFew) {
    local.bits = std::move(bits);
    return local;
  }
  for (TokenId id = 0; id < vocabulary_->size(); ++id) {
    if (bits[static_cast<size_t>(id) / 32] == 0) {
      id |= 31;
    } else if (IsAllowed(bits, id)) {
      local.few.push_back(id);
    }
  }
  return local;
}

absl::Status LocalMasks::Walk(int32_t state, LocalMask* local, TokenMask* bits, size_t* count) {
  ContextPool& pool = *pool_;
  const bool bounded = automaton_->is_bounded_twin(state);
  const int64_t max_work = pool.work() + kMaxMaskWork;
  path_[0] = pool.Alone(state);
  local->leaves_at_once = pool.CanLeave(path_[0]);
  const std::span<const TokenTrie::Node> nodes = vocabulary_->trie().nodes();
  for (uint32_t i = 0; i < nodes.size();) {
    const TokenTrie::Node& node = nodes[i];
    const ContextId next = pool.Step(path_[node.depth - 1u], automaton_->byte_class(node.byte));
    const bool too_far = bounded && node.depth > Automaton::kSightBytes;
    if (next == kDeadContext || too_far) {
      i = node.end;
      continue;
    }
    if (node.token >= 0) {
      vocabulary_->Allow(node.token, bits);
      ++*count;
    }
    const bool has_more = node.end > i + 1;
    if (has_more && pool.CanLeave(next)) local->leaves.push_back(i);
    path_[node.depth] = next;
    i = !has_more || pool.ReadsOn(next) ? i + 1 : node.end;
    if (pool.work() > max_work) return TooAmbiguous();
  }
  return absl::OkStatus();
}

}  // namespace heddle::engine::grammar
