#include "engine/grammar/compiled_grammar.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/status/status.h"
#include "base/check.h"
#include "base/status.h"

namespace heddle::engine::grammar {
namespace {

// Of one grammar: contexts with their masks, and what states read by themselves. JSON schemas take
// a few MB; beyond this both are computed anew.
constexpr size_t kMaxStoreBytes = size_t{48} << 20;
constexpr size_t kMaxLocalBytes = size_t{48} << 20;
// A list of so many ids is as large as the bits of 32 K tokens, and quicker to go through.
constexpr size_t kMaxFew = 1024;
// Items of contexts looked at for one mask: some 0.3 s. Grammars of people stay below 1 % of it.
constexpr int64_t kMaxMaskWork = 20'000'000;

absl::Status TooAmbiguous() {
  return absl::ResourceExhaustedError(
      "the grammar is too ambiguous: the tokens that may come next cannot be found in time");
}

}  // namespace

CompiledGrammar::CompiledGrammar(Automaton automaton, std::shared_ptr<const Vocabulary> vocabulary,
                                 std::vector<TokenId> end_tokens)
    : automaton_(std::move(automaton)),
      vocabulary_(std::move(vocabulary)),
      end_tokens_(std::move(end_tokens)),
      store_(std::make_shared<Store>(&automaton_)),
      local_pool_(&automaton_),
      path_(static_cast<size_t>(vocabulary_->trie().max_depth()) + 1) {
  HEDDLE_CHECK(!end_tokens_.empty(), "a grammar needs a token that ends the text");
}

absl::Status CompiledGrammar::Prepare(int64_t max_us) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::microseconds(max_us);
  std::lock_guard lock(mutex_);
  const ContextId start = store_->pool.Start();
  HEDDLE_RETURN_IF_ERROR(MaskOf(store_.get(), start).status());
  for (int32_t state = 0; state < automaton_.num_states() && Clock::now() < deadline; ++state) {
    if (local_bytes_ > kMaxLocalBytes / 2) break;
    HEDDLE_RETURN_IF_ERROR(LocalOf(state).status());
  }
  return absl::OkStatus();
}

std::shared_ptr<CompiledGrammar::Store> CompiledGrammar::CurrentStore() {
  const size_t mask_bytes = sizeof(uint32_t) * static_cast<size_t>(vocabulary_->mask_words());
  if (store_->pool.bytes() + store_->masks.size() * mask_bytes > kMaxStoreBytes) {
    store_ = std::make_shared<Store>(&automaton_);
  }
  return store_;
}

void CompiledGrammar::Allow(TokenId token, TokenMask* mask) const {
  for (; token >= 0; token = vocabulary_->next_alike(token)) {
    (*mask)[static_cast<size_t>(token) / 32] |= uint32_t{1} << (token % 32);
  }
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
  TokenMask mask(static_cast<size_t>(vocabulary_->mask_words()), 0);
  const TokenTrie& trie = vocabulary_->trie();
  const auto all = static_cast<uint32_t>(trie.nodes().size());
  if (pool->depth(context) > kMaxStackDepth / 2) {
    // What states read by themselves does not know of the bound of the stack.
    HEDDLE_RETURN_IF_ERROR(Walk(pool, context, trie, 0, all, &mask));
  } else {
    std::vector<ContextPool::Item> items(pool->Kernel(context).begin(),
                                         pool->Kernel(context).end());
    for (size_t i = 0; i < items.size(); ++i) {
      const auto [state, parent] = items[i];
      if (state < 0) continue;
      HEDDLE_ASSIGN_OR_RETURN(const LocalMask* local, LocalOf(automaton_.twin(state)));
      for (size_t w = 0; w < local->bits.size(); ++w) mask[w] |= local->bits[w];
      for (TokenId token : local->few) Allow(token, &mask);
      for (uint32_t node : local->leaves) {
        HEDDLE_RETURN_IF_ERROR(Walk(pool, parent, trie, node + 1, trie.nodes()[node].end, &mask));
      }
      if (automaton_.is_bounded_twin(state)) {
        const TokenTrie& longer = vocabulary_->long_tokens();
        HEDDLE_RETURN_IF_ERROR(Walk(pool, pool->Of(state, parent), longer, 0,
                                    static_cast<uint32_t>(longer.nodes().size()), &mask));
      }
      if (!local->leaves_at_once) continue;
      for (const ContextPool::Item& below : pool->Kernel(parent)) {
        if (std::find(items.begin(), items.end(), below) == items.end()) items.push_back(below);
      }
      if (items.size() > static_cast<size_t>(kMaxStackDepth)) return TooAmbiguous();
    }
  }
  const bool can_end = pool->CanEnd(context);
  for (TokenId end : end_tokens_) {
    const uint32_t bit = uint32_t{1} << (end % 32);
    uint32_t& word = mask[static_cast<size_t>(end) / 32];
    word = can_end ? word | bit : word & ~bit;
  }
  return mask;
}

// Allows the tokens of nodes [begin, end) that can be read from `from`, which is where the text
// before `begin` has led to.
absl::Status CompiledGrammar::Walk(ContextPool* pool, ContextId from, const TokenTrie& trie,
                                   uint32_t begin, uint32_t end, TokenMask* mask) {
  if (begin >= end) return absl::OkStatus();
  const std::span<const TokenTrie::Node> nodes = trie.nodes();
  const int64_t max_work = pool->work() + kMaxMaskWork;
  path_[nodes[begin].depth - 1u] = from;
  for (uint32_t i = begin; i < end;) {
    const TokenTrie::Node& node = nodes[i];
    const ContextId next = pool->Step(path_[node.depth - 1u], automaton_.byte_class(node.byte));
    if (next == kDeadContext) {
      i = node.end;
      continue;
    }
    path_[node.depth] = next;
    if (node.token >= 0) Allow(node.token, mask);
    ++i;
    if (pool->work() > max_work) return TooAmbiguous();
  }
  return absl::OkStatus();
}

absl::StatusOr<const CompiledGrammar::LocalMask*> CompiledGrammar::LocalOf(int32_t state) {
  if (auto it = locals_.find(state); it != locals_.end()) return &it->second;
  if (local_bytes_ > kMaxLocalBytes) {
    locals_.clear();
    local_bytes_ = 0;
  }
  HEDDLE_ASSIGN_OR_RETURN(LocalMask local, ComputeLocal(state));
  local_bytes_ += sizeof(LocalMask) + local.few.size() * sizeof(TokenId) +
                  local.bits.size() * sizeof(uint32_t) + local.leaves.size() * sizeof(uint32_t);
  return &(locals_[state] = std::move(local));
}

absl::StatusOr<CompiledGrammar::LocalMask> CompiledGrammar::ComputeLocal(int32_t state) {
  LocalMask local;
  ContextPool& pool = local_pool_;
  const bool bounded = automaton_.is_bounded_twin(state);
  const int64_t max_work = pool.work() + kMaxMaskWork;
  TokenMask bits(static_cast<size_t>(vocabulary_->mask_words()), 0);
  path_[0] = pool.Alone(state);
  local.leaves_at_once = pool.CanLeave(path_[0]);
  const std::span<const TokenTrie::Node> nodes = vocabulary_->trie().nodes();
  size_t count = 0;
  for (uint32_t i = 0; i < nodes.size();) {
    const TokenTrie::Node& node = nodes[i];
    const ContextId next = pool.Step(path_[node.depth - 1u], automaton_.byte_class(node.byte));
    const bool too_far = bounded && node.depth > Automaton::kSightBytes;
    if (next == kDeadContext || too_far) {
      i = node.end;
      continue;
    }
    if (node.token >= 0) {
      Allow(node.token, &bits);
      ++count;
    }
    const bool has_more = node.end > i + 1;
    if (has_more && pool.CanLeave(next)) local.leaves.push_back(i);
    path_[node.depth] = next;
    i = !has_more || pool.ReadsOn(next) ? i + 1 : node.end;
    if (pool.work() > max_work) return TooAmbiguous();
  }
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

Matcher::Matcher(std::shared_ptr<CompiledGrammar> grammar) : grammar_(std::move(grammar)) {
  std::lock_guard lock(grammar_->mutex_);
  store_ = grammar_->CurrentStore();
  context_ = store_->pool.Start();
}

ContextPool& Matcher::Pool() {
  std::shared_ptr<CompiledGrammar::Store> current = grammar_->CurrentStore();
  if (current != store_) {
    context_ = current->pool.Import(store_->pool, context_);
    store_ = std::move(current);
  }
  return store_->pool;
}

absl::StatusOr<std::shared_ptr<const TokenMask>> Matcher::Mask() {
  std::lock_guard lock(grammar_->mutex_);
  Pool();
  // After the end there is only the end.
  HEDDLE_ASSIGN_OR_RETURN(std::shared_ptr<const TokenMask> mask,
                          grammar_->MaskOf(store_.get(), ended_ ? kEndContext : context_));
  if (std::all_of(mask->begin(), mask->end(), [](uint32_t word) { return word == 0; })) {
    return absl::InternalError(
        "the grammar demands a text for which the model's vocabulary has no token");
  }
  return mask;
}

bool Matcher::Accept(TokenId token) {
  const std::vector<TokenId>& ends = grammar_->end_tokens_;
  if (std::find(ends.begin(), ends.end(), token) != ends.end()) {
    if (!ended_ && !CanEnd()) return false;
    ended_ = true;
    return true;
  }
  if (ended_ || token < 0 || token >= grammar_->vocabulary_->size()) return false;
  const std::string_view text = grammar_->vocabulary_->text(token);
  return !text.empty() && AcceptText(text);
}

bool Matcher::AcceptText(std::string_view bytes) {
  std::lock_guard lock(grammar_->mutex_);
  ContextPool& pool = Pool();
  ContextId context = context_;
  for (char byte : bytes) {
    context = pool.Step(context, grammar_->automaton_.byte_class(static_cast<uint8_t>(byte)));
    if (context == kDeadContext) return false;
  }
  context_ = context;
  return true;
}

bool Matcher::CanEnd() {
  std::lock_guard lock(grammar_->mutex_);
  return Pool().CanEnd(context_);
}

std::string Matcher::ForcedText(size_t max_bytes) {
  std::lock_guard lock(grammar_->mutex_);
  ContextPool& pool = Pool();
  const Automaton& automaton = grammar_->automaton_;
  std::string text;
  ContextId context = context_;
  while (text.size() < max_bytes && !pool.CanEnd(context)) {
    int forced = -1;
    for (const ContextPool::Item& item : pool.Readers(context)) {
      for (const ByteEdge& edge : automaton.bytes(item.state)) {
        if (edge.first != edge.last || (forced >= 0 && forced != edge.first)) return text;
        forced = edge.first;
      }
    }
    if (forced < 0) return text;
    text.push_back(static_cast<char>(forced));
    context = pool.Step(context, automaton.byte_class(static_cast<uint8_t>(forced)));
  }
  return text;
}

}  // namespace heddle::engine::grammar
