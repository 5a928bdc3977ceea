#include "engine/grammar/compiled_grammar.h"

#include <time.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "base/check.h"
#include "base/status.h"

namespace heddle::engine::grammar {
namespace {

// Bytes of contexts that a search may add to a grammar's, on top of twice what it keeps.
constexpr size_t kMaxSearchBytes = size_t{32} << 20;
// Work between two questions whether a client still waits.
constexpr int64_t kSliceWork = 100'000;
// Limit on the time for one grammar's masks ahead of texts that may never need them.
constexpr int64_t kMaxRestUs = 2'000'000;
// Overhead of a hash table per entry, and of a shared pointer.
constexpr size_t kEntryBytes = 64;
// Bytes of forced text that are tokenized at once; the rest comes with the next call.
constexpr size_t kMaxForcedBytes = 256;

int64_t ThreadCpuUs() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000;
}

}  // namespace

CompiledGrammar::CompiledGrammar(Automaton automaton, std::shared_ptr<const Vocabulary> vocabulary,
                                 std::vector<TokenId> end_tokens, std::shared_ptr<CacheBytes> cache)
    : automaton_(std::move(automaton)),
      vocabulary_(std::move(vocabulary)),
      end_tokens_(std::move(end_tokens)),
      cache_(cache != nullptr ? std::move(cache)
                              : std::make_shared<CacheBytes>(kDefaultCacheBytes)),
      store_(std::make_shared<Store>(&automaton_)),
      local_masks_(&automaton_, vocabulary_.get()),
      path_(static_cast<size_t>(vocabulary_->trie().max_depth()) + 1) {
  HEDDLE_CHECK(!end_tokens_.empty(), "a grammar needs a token that ends the text");
  cache_->AddGrammar();
  CountBytes();
}

CompiledGrammar::~CompiledGrammar() { cache_->RemoveGrammar(heap_bytes()); }

// REQUIRES: the mutex is held, or no other thread knows the grammar yet.
void CompiledGrammar::CountBytes() {
  const size_t mask_bytes = sizeof(uint32_t) * static_cast<size_t>(vocabulary_->mask_words());
  const size_t now = sizeof(*this) + automaton_.heap_bytes() + store_->bytes(mask_bytes) +
                     local_masks_.heap_bytes() + local_bytes_ + locals_.capacity() * kEntryBytes;
  cache_->Update(heap_bytes_.exchange(now, std::memory_order_relaxed), now);
}

void CompiledGrammar::LimitWork(Store* store, int64_t items) {
  store->pool.LimitWork(items, 2 * cache_->KeepLimit() + kMaxSearchBytes);
  local_masks_.LimitWork(items);
}

// Works in slices, so that the budget is asked in between; each slice continues where the last one
// ended.
absl::Status CompiledGrammar::PrepareFirst(Budget* budget) {
  Store& store = *store_;
  const int64_t max_work = WorkOf(store) + kMaxMaskWork;
  for (int64_t slice = kSliceWork; WorkOf(store) < max_work; slice *= 2) {
    HEDDLE_RETURN_IF_ERROR(Spend(budget, std::min(slice, kSliceWork)));
    LimitWork(&store, slice);
    absl::Status found = MaskOf(&store, store.pool.Start()).status();
    if (!IsOutOfWork(found)) return found;
    if (store.pool.too_large()) break;
  }
  return TooAmbiguous();
}

absl::StatusOr<bool> CompiledGrammar::Prepare(int64_t max_us, Budget* budget) {
  const int64_t deadline_us = ThreadCpuUs() + max_us;
  std::lock_guard lock(mutex_);
  absl::Status status = PrepareFirst(budget);
  int32_t state = 0;
  for (; state < automaton_.num_states() && status.ok(); ++state) {
    // The rest is done later, when no client waits for it.
    if (ThreadCpuUs() >= deadline_us || (budget != nullptr && !budget->MayGoOn())) break;
    const LocalMasks::Key key = local_masks_.KeyOf(state);
    if (!WantsLocal(key)) continue;
    local_masks_.LimitWork(kSliceWork);
    // A state that needs more work is skipped: a text that reaches it shows whether it is too
    // ambiguous.
    const absl::Status found = LocalOf(key).status();
    if (!IsOutOfWork(found)) status = found;
  }
  next_rest_ = state;
  const bool is_done = state == automaton_.num_states();
  if (is_done) local_masks_.Trim();
  CountBytes();
  HEDDLE_RETURN_IF_ERROR(status);
  return is_done;
}

// Leaves half of the room to states that texts ask for.
bool CompiledGrammar::WantsLocal(LocalMasks::Key key) const {
  return !locals_.contains(key) && local_bytes_ <= cache_->KeepLimit() / 2;
}

bool CompiledGrammar::PrepareRest(const std::atomic<bool>& stop, int64_t max_us) {
  const int64_t begin_us = ThreadCpuUs();
  LocalMasks masks(&automaton_, vocabulary_.get());
  while (next_rest_ < automaton_.num_states() && !stop && rest_us_ < kMaxRestUs) {
    if (ThreadCpuUs() - begin_us > max_us) break;
    const LocalMasks::Key key = masks.KeyOf(next_rest_);
    bool is_wanted = false;
    {
      std::lock_guard lock(mutex_);
      is_wanted = WantsLocal(key);
    }
    absl::StatusOr<LocalMask> local = OutOfWork();
    for (int64_t slice = kSliceWork; is_wanted && !stop && slice <= kMaxMaskWork; slice *= 2) {
      masks.LimitWork(slice);
      local = masks.Compute(key);
      if (!IsOutOfWork(local.status())) break;
    }
    ++next_rest_;
    if (!local.ok()) continue;  // an answer that reaches this state gets the error
    std::lock_guard lock(mutex_);
    if (!locals_.contains(key)) Keep(key, *std::move(local));
  }
  rest_us_ += ThreadCpuUs() - begin_us;
  std::lock_guard lock(mutex_);
  const bool is_done = next_rest_ == automaton_.num_states() || rest_us_ >= kMaxRestUs;
  if (is_done) local_masks_.Trim();
  CountBytes();
  return is_done;
}

std::shared_ptr<CompiledGrammar::Store> CompiledGrammar::CurrentStore() {
  const size_t mask_bytes = sizeof(uint32_t) * static_cast<size_t>(vocabulary_->mask_words());
  if (store_->bytes(mask_bytes) > cache_->KeepLimit()) {
    store_ = std::make_shared<Store>(&automaton_);
  }
  return store_;
}

absl::StatusOr<std::shared_ptr<const TokenMask>> CompiledGrammar::MaskOf(Store* store,
                                                                         ContextId context) {
  if (auto it = store->masks.find(context); it != store->masks.end()) return it->second;
  HEDDLE_ASSIGN_OR_RETURN(TokenMask mask, ComputeMask(&store->pool, context));
  auto shared = std::make_shared<const TokenMask>(std::move(mask));
  store->masks[context] = shared;
  return shared;
}

absl::StatusOr<TokenMask> CompiledGrammar::ComputeMask(ContextPool* pool, ContextId context) {
  TokenMask mask = vocabulary_->EmptyMask();
  HEDDLE_ASSIGN_OR_RETURN(const bool added, AddStates(pool, context, &mask));
  if (!added) {
    const TokenTrie& trie = vocabulary_->trie();
    HEDDLE_RETURN_IF_ERROR(Walk(pool, context, trie, trie.all(), &mask));
  }
  const bool can_end = pool->CanEnd(context);
  if (pool->exhausted()) return OutOfWork();
  for (TokenId end : end_tokens_) {
    const uint32_t bit = uint32_t{1} << (end % 32);
    uint32_t& word = mask[static_cast<size_t>(end) / 32];
    word = can_end ? word | bit : word & ~bit;
  }
  return mask;
}

// Allows the tokens that the context's states read by themselves, and those that the stack allows
// behind them. Returns false if the local masks do not hold because the stack is near its limit.
absl::StatusOr<bool> CompiledGrammar::AddStates(ContextPool* pool, ContextId context,
                                                TokenMask* mask) {
  std::vector<ContextPool::Item> items(pool->Kernel(context).begin(), pool->Kernel(context).end());
  for (size_t i = 0; i < items.size(); ++i) {
    const auto [state, parent] = items[i];
    if (state < 0) continue;
    const LocalMasks::Key key = local_masks_.KeyOf(state);
    HEDDLE_ASSIGN_OR_RETURN(const LocalMask* local, LocalOf(key));
    if (pool->depth(context) + local->reach > kMaxStackDepth) return false;
    if (!Holds(*local, pool, parent)) {
      const TokenTrie& trie = vocabulary_->trie();
      HEDDLE_RETURN_IF_ERROR(Walk(pool, pool->Of(state, parent), trie, trie.all(), mask));
      continue;
    }
    HEDDLE_RETURN_IF_ERROR(AddLocal(pool, parent, *local, mask));
    if (!key.has_run && automaton_.is_bounded_twin(state)) {
      const TokenTrie& longer = vocabulary_->long_tokens();
      HEDDLE_RETURN_IF_ERROR(Walk(pool, pool->Of(state, parent), longer, longer.all(), mask));
    }
    if (!local->leaves_at_once) continue;
    for (const ContextPool::Item& below : pool->Kernel(parent)) {
      if (std::find(items.begin(), items.end(), below) == items.end()) items.push_back(below);
    }
    if (items.size() > static_cast<size_t>(kMaxStackDepth)) return TooAmbiguous();
  }
  return true;
}

absl::Status CompiledGrammar::AddLocal(ContextPool* pool, ContextId parent, const LocalMask& local,
                                       TokenMask* mask) {
  if (local.slices != nullptr) local.slices->AllowUpTo(local.run, mask);
  HEDDLE_RETURN_IF_ERROR(AddPart(pool, parent, local.own, mask));
  for (const std::shared_ptr<const TokenPart>& part : local.shared) {
    HEDDLE_RETURN_IF_ERROR(AddPart(pool, parent, *part, mask));
  }
  return absl::OkStatus();
}

absl::Status CompiledGrammar::AddPart(ContextPool* pool, ContextId parent, const TokenPart& part,
                                      TokenMask* mask) {
  if (!part.bits.empty()) Allow(part.bits, mask);
  Allow(part.few, mask);
  if (!pool->ReadsOn(parent)) return absl::OkStatus();
  for (const TokenPart::Leaf& leaf : part.leaves) {
    HEDDLE_RETURN_IF_ERROR(Walk(pool, parent, *leaf.trie, leaf.rests, mask));
  }
  return absl::OkStatus();
}

bool CompiledGrammar::Holds(const LocalMask& local, ContextPool* pool, ContextId parent) const {
  if (!local.ends_in_run) return true;
  for (const ContextPool::Item& item : pool->Readers(parent)) {
    for (const ByteEdge& edge : automaton_.bytes(item.state)) {
      for (int byte = edge.first; byte <= edge.last; ++byte) {
        if (local.slices->MayBegin(static_cast<uint8_t>(byte))) return false;
      }
    }
  }
  return true;
}

// Allows the tokens of nodes in `range` that can be read from `from`, the context behind the text
// before these nodes.
absl::Status CompiledGrammar::Walk(ContextPool* pool, ContextId from, const TokenTrie& trie,
                                   TokenTrie::Range range, TokenMask* mask) {
  if (range.empty()) return absl::OkStatus();
  const std::span<const TokenTrie::Node> nodes = trie.nodes();
  int64_t num_nodes = 0;
  path_[nodes[range.begin].depth - 1u] = from;
  for (uint32_t i = range.begin; i < range.end;) {
    const TokenTrie::Node& node = nodes[i];
    const ContextId next = pool->Step(path_[node.depth - 1u], automaton_.byte_class(node.byte));
    ++num_nodes;
    if (next == kDeadContext) {
      if (pool->exhausted()) return OutOfWork();
      i = node.end;
      continue;
    }
    path_[node.depth] = next;
    Allow(trie.tokens(i), mask);
    ++i;
  }
  // A node whose step is known takes a quarter of an item's time.
  pool->Spend(num_nodes / 4);
  return pool->exhausted() ? OutOfWork() : absl::OkStatus();
}

absl::StatusOr<const LocalMask*> CompiledGrammar::LocalOf(LocalMasks::Key key) {
  if (auto it = locals_.find(key); it != locals_.end()) return &it->second;
  HEDDLE_ASSIGN_OR_RETURN(LocalMask local, local_masks_.Compute(key));
  Keep(key, std::move(local));
  return &locals_.find(key)->second;
}

void CompiledGrammar::Keep(LocalMasks::Key key, LocalMask local) {
  if (local_bytes_ > cache_->KeepLimit()) {
    locals_.clear();
    local_bytes_ = 0;
  }
  local_bytes_ += local.new_bytes;
  locals_[key] = std::move(local);
}

// The only byte that may follow, or -1 if there is a choice.
int CompiledGrammar::ForcedByte(ContextPool* pool, ContextId context) const {
  if (pool->CanEnd(context)) return -1;
  int forced = -1;
  for (const ContextPool::Item& item : pool->Readers(context)) {
    for (const ByteEdge& edge : automaton_.bytes(item.state)) {
      if (edge.first != edge.last || (forced >= 0 && forced != edge.first)) return -1;
      forced = edge.first;
    }
  }
  return forced;
}

// Returns the forced text and moves *context behind it.
std::string CompiledGrammar::ForcedText(ContextPool* pool, ContextId* context,
                                        size_t max_bytes) const {
  std::string text;
  while (text.size() < max_bytes) {
    const int byte = ForcedByte(pool, *context);
    if (byte < 0) break;
    const ContextId next = pool->Step(*context, automaton_.byte_class(static_cast<uint8_t>(byte)));
    if (next == kDeadContext) break;  // the stack is full
    text.push_back(static_cast<char>(byte));
    *context = next;
  }
  return text;
}

const std::vector<TokenId>& CompiledGrammar::ForcedOf(Store* store, ContextId context,
                                                      TokenId before) {
  static const std::vector<TokenId> none;
  const bool is_over = store->pool.CanEnd(context) && !store->pool.ReadsOn(context);
  if (!is_over && ForcedByte(&store->pool, context) < 0) return none;
  if (store->pool.exhausted()) return none;
  auto [it, is_new] = store->forced.try_emplace({context, before});
  if (is_new) {
    it->second = ComputeForced(&store->pool, context, before);
    if (store->pool.exhausted()) {
      store->forced.erase(it);
      return none;
    }
    store->forced_bytes += 64 + it->second.size() * sizeof(TokenId);
  }
  return it->second;
}

// The tokenizer encodes `before` and the forced text together. If the result does not begin with
// `before`, the text so far differs from what the tokenizer would have written, so its continuation
// is unknown. At the end of the text, tokens that later text could change are left out.
std::vector<TokenId> CompiledGrammar::ComputeForced(ContextPool* pool, ContextId context,
                                                    TokenId before) const {
  const size_t begin = before >= 0 ? vocabulary_->text(before).size() : 0;
  std::string text(before >= 0 ? vocabulary_->text(before) : "");
  text += ForcedText(pool, &context, kMaxForcedBytes);
  const bool is_over = pool->CanEnd(context) && !pool->ReadsOn(context);
  std::vector<TokenId> tokens;
  if (text.size() > begin) {
    tokens = vocabulary_->Encode(text);
    if (tokens.empty() || (begin > 0 && tokens.front() != before)) return {};
    if (begin > 0) tokens.erase(tokens.begin());
  }
  if (is_over) {
    tokens.push_back(end_tokens_.front());
    return tokens;
  }
  size_t stable = begin;
  const auto longest = static_cast<size_t>(vocabulary_->trie().max_depth());
  if (text.size() > longest) stable = std::max(stable, text.size() - longest);
  while (stable < text.size() &&
         !vocabulary_->trie().HasLonger(std::string_view(text).substr(stable))) {
    ++stable;
  }
  size_t end = begin;
  size_t kept = 0;
  for (; kept < tokens.size(); ++kept) {
    end += vocabulary_->text(tokens[kept]).size();
    if (end > stable) break;
  }
  tokens.resize(kept);
  return tokens;
}

}  // namespace heddle::engine::grammar
