#include "engine/grammar/local_masks.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/status.h"

namespace heddle::engine::grammar {
namespace {

// A list of this many ids is as large as the bits of 32 K tokens, and faster to apply.
constexpr size_t kMaxFew = 1024;
// Contexts of earlier states help later ones; beyond this size they are forgotten.
constexpr size_t kMaxPoolBytes = size_t{16} << 20;
// A part of the trie below a token's first byte is shared between states if it has at least this
// many nodes: all positions that read a blank and then a word share the words.
constexpr uint32_t kMinShared = 512;
constexpr size_t kMaxPartBytes = size_t{8} << 20;
constexpr uint16_t kFar = std::numeric_limits<uint16_t>::max();

}  // namespace

absl::Status TooAmbiguous() {
  return absl::ResourceExhaustedError(
      "the grammar is too ambiguous: the tokens that may come next cannot be "
      "found in time");
}

absl::Status OutOfWork() { return absl::AbortedError("the search goes on another time"); }

bool IsOutOfWork(const absl::Status& status) { return absl::IsAborted(status); }

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
  if (pool_->bytes() > kMaxPoolBytes) NewPool();
  LocalMask local;
  const ContextId alone = pool_->Alone(key.state);
  local.leaves_at_once = pool_->CanLeave(alone);
  if (pool_->exhausted()) return OutOfWork();
  if (key.has_run) {
    const TextRun run = runs_.Of(key.state);
    local.slices = SlicesOf(run.set);
    if (local.slices != nullptr) HEDDLE_RETURN_IF_ERROR(AddRun(run, &local));
  }
  if (local.slices == nullptr) {
    const bool bounded = !key.has_run && automaton_->is_bounded_twin(key.state);
    HEDDLE_RETURN_IF_ERROR(AddRoots(alone, bounded ? Automaton::kSightBytes : kFar, &local));
  }
  if (pool_->exhausted()) return OutOfWork();
  local.new_bytes += sizeof(LocalMask) + local.own.bytes();
  local.reach = pool_->max_depth() + TextRuns::kMaxCalls + automaton_->max_height();
  return local;
}

void LocalMasks::LimitWork(int64_t items) {
  max_work_ = work() + items;
  pool_->LimitWork(items, 4 * kMaxPoolBytes);
}

void LocalMasks::NewPool() {
  forgotten_work_ += pool_->work();
  pool_ = std::make_unique<ContextPool>(automaton_);
  pool_->LimitWork(max_work_ - work(), 4 * kMaxPoolBytes);
  ForgetParts();  // their depth was known only to the pool
}

void LocalMasks::Trim() {
  NewPool();
  runs_ = TextRuns(automaton_, vocabulary_->trie().max_depth());
}

size_t LocalMasks::heap_bytes() const {
  return pool_->bytes() + part_bytes_ + parts_.capacity() * (sizeof(PartKey) + 17) +
         runs_.heap_bytes();
}

absl::Status LocalMasks::AddRun(const TextRun& run, LocalMask* local) {
  const TokenSlices& slices = *local->slices;
  local->run = run.length;
  local->ends_in_run = run.may_end;
  const ContextId alone = pool_->Alone(run.state);
  HEDDLE_RETURN_IF_ERROR(AddRoots(alone, kFar, local));
  if (run.states.empty()) {
    return Walk(slices.mixed(), slices.mixed().all(), alone, kFar, &local->own);
  }
  const int32_t longest = std::min(run.length, slices.max_length());
  for (int32_t length = 0; length <= longest; ++length) {
    const TokenTrie::Range rest = slices.rest(length);
    if (rest.empty()) continue;
    const ContextId after = length == 0 ? alone : pool_->Alone(run.StateAfter(length));
    if (length > 0 && pool_->CanLeave(after)) local->own.leaves.push_back({&slices.rests(), rest});
    if (pool_->exhausted()) return OutOfWork();
    if (!pool_->ReadsOn(after)) continue;
    HEDDLE_RETURN_IF_ERROR(Walk(slices.rests(), rest, after, kFar, &local->own));
  }
  return absl::OkStatus();
}

// Adds tokens that do not begin with a character of the run, except those deeper than `sight`.
absl::Status LocalMasks::AddRoots(ContextId alone, uint16_t sight, LocalMask* local) {
  const TokenTrie& trie = vocabulary_->trie();
  bool some_left_out = false;
  for (uint32_t i = 0; i < trie.all().end; i = trie.nodes()[i].end) {
    const TokenTrie::Node& node = trie.nodes()[i];
    if (local->slices != nullptr && local->slices->MayBegin(node.byte)) continue;
    const ContextId next = pool_->Step(alone, automaton_->byte_class(node.byte));
    if (pool_->exhausted()) return OutOfWork();
    if (next == kDeadContext) continue;
    const std::span<const ContextPool::Item> items = pool_->Kernel(next);
    const bool is_state =
        items.size() == 1 && items[0].state >= 0 && items[0].parent == kOpenContext;
    if (!is_state || node.end - i < kMinShared) {
      HEDDLE_RETURN_IF_ERROR(Walk(trie, {i, node.end}, alone, sight, &local->own));
      continue;
    }
    const int32_t state = items[0].state;
    const uint16_t seen = automaton_->is_bounded_twin(state) ? Automaton::kSightBytes : kFar;
    some_left_out |= seen < sight;
    Add(trie.tokens(i), &local->own);
    if (pool_->CanLeave(next)) local->own.leaves.push_back({&trie, trie.below(i)});
    HEDDLE_RETURN_IF_ERROR(AddShared({i, automaton_->twin(state), std::min(seen, sight)}, local));
  }
  if (!some_left_out) return absl::OkStatus();
  const TokenTrie& longer = vocabulary_->long_tokens();
  return Walk(longer, longer.all(), alone, sight, &local->own);
}

void LocalMasks::ForgetParts() {
  parts_.clear();
  part_bytes_ = 0;
}

absl::Status LocalMasks::AddShared(PartKey key, LocalMask* local) {
  if (part_bytes_ > kMaxPartBytes) ForgetParts();
  std::shared_ptr<const TokenPart>& known = parts_[key];
  if (known == nullptr) {
    auto part = std::make_shared<TokenPart>();
    const TokenTrie& trie = vocabulary_->trie();
    absl::Status walked =
        Walk(trie, trie.below(key.node), pool_->Alone(key.state), key.sight, part.get());
    if (!walked.ok()) {
      parts_.erase(key);
      return walked;
    }
    part_bytes_ += part->bytes();
    local->new_bytes += part->bytes();
    known = std::move(part);
  }
  local->shared.push_back(known);
  return absl::OkStatus();
}

// `from` is the context behind the text before the nodes; nodes deeper than `sight` are left out.
absl::Status LocalMasks::Walk(const TokenTrie& trie, TokenTrie::Range range, ContextId from,
                              uint16_t sight, TokenPart* part) {
  if (range.empty()) return absl::OkStatus();
  ContextPool& pool = *pool_;
  const std::span<const TokenTrie::Node> nodes = trie.nodes();
  path_[nodes[range.begin].depth - 1u] = from;
  int64_t num_nodes = 0;
  for (uint32_t i = range.begin; i < range.end;) {
    const TokenTrie::Node& node = nodes[i];
    const ContextId next = pool.Step(path_[node.depth - 1u], automaton_->byte_class(node.byte));
    num_nodes += 1;
    if (next == kDeadContext || node.depth > sight) {
      if (pool.exhausted()) return OutOfWork();
      i = node.end;
      continue;
    }
    Add(trie.tokens(i), part);
    const bool has_more = node.end > i + 1;
    if (has_more && pool.CanLeave(next)) part->leaves.push_back({&trie, trie.below(i)});
    path_[node.depth] = next;
    i = !has_more || pool.ReadsOn(next) ? i + 1 : node.end;
  }
  // A node whose step is known takes a quarter of an item's time.
  pool.Spend(num_nodes / 4);
  return pool.exhausted() ? OutOfWork() : absl::OkStatus();
}

void LocalMasks::Add(std::span<const TokenId> tokens, TokenPart* part) const {
  if (tokens.empty()) return;
  if (!part->bits.empty()) return Allow(tokens, &part->bits);
  part->few.insert(part->few.end(), tokens.begin(), tokens.end());
  if (part->few.size() <= kMaxFew) return;
  part->bits = vocabulary_->EmptyMask();
  Allow(part->few, &part->bits);
  part->few = {};
}

}  // namespace heddle::engine::grammar
