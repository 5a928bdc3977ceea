#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "base/status.h"
#include "engine/grammar/compiled_grammar.h"

namespace heddle::engine::grammar {

Matcher::Matcher(std::shared_ptr<CompiledGrammar> grammar, bool forces)
    : grammar_(std::move(grammar)), forces_(forces) {
  std::lock_guard lock(grammar_->mutex_);
  store_ = grammar_->CurrentStore();
  context_ = store_->pool.Start();
}

ContextPool& Matcher::Pool() {
  std::shared_ptr<CompiledGrammar::Store> current = grammar_->CurrentStore();
  if (current != store_) {
    context_ = current->pool.Import(store_->pool, context_);
    store_ = std::move(current);
    if (store_->pool.too_large()) Fail();
  }
  return store_->pool;
}

// Puts the matcher into the failed state, in which it has no context and no forced tokens.
bool Matcher::Fail() {
  if (failure_.ok()) failure_ = TooAmbiguous();
  context_ = kDeadContext;
  forced_.clear();
  forced_taken_ = 0;
  forced_known_ = true;
  return false;
}

absl::StatusOr<std::shared_ptr<const TokenMask>> Matcher::Mask() {
  std::lock_guard lock(grammar_->mutex_);
  while (true) {
    absl::StatusOr<std::shared_ptr<const TokenMask>> mask = FindLocked(kMaxMaskWork);
    if (!mask.ok() || *mask != nullptr) return mask;
  }
}

absl::StatusOr<std::shared_ptr<const TokenMask>> Matcher::Find(int64_t max_items, IfBusy if_busy) {
  std::unique_lock lock(grammar_->mutex_, std::defer_lock);
  if (!Lock(if_busy, &lock)) return nullptr;
  return FindLocked(max_items);
}

bool Matcher::Lock(IfBusy if_busy, std::unique_lock<std::mutex>* lock) {
  if (if_busy == IfBusy::kLater) return lock->try_lock();
  lock->lock();
  return true;
}

absl::StatusOr<bool> Matcher::AcceptWithin(TokenId token, int64_t max_items, IfBusy if_busy) {
  constexpr int64_t kLeastCharge = 1000;
  std::unique_lock lock(grammar_->mutex_, std::defer_lock);
  if (!Lock(if_busy, &lock)) return false;
  ContextPool& pool = Pool();
  if (!failure_.ok()) return failure_;
  const int64_t before = pool.work();
  if (AcceptLocked(token, max_items)) return true;
  if (!pool.exhausted()) return absl::InternalError("a token was drawn that its mask forbids");
  searched_ += std::max(kLeastCharge, pool.work() - before);
  if (searched_ < kMaxTokenWork && !pool.too_large()) return false;
  Fail();
  return failure_;
}

absl::StatusOr<std::shared_ptr<const TokenMask>> Matcher::FindLocked(int64_t max_items) {
  constexpr int64_t kLeastCharge = 1000;  // lets the searches for one mask come to an end
  ContextPool& pool = Pool();
  if (!failure_.ok()) return failure_;
  grammar_->LimitWork(store_.get(), max_items);
  const int64_t before = grammar_->WorkOf(*store_);
  FindForced();
  const std::vector<TokenId>& ends = grammar_->end_tokens_;
  if (forced_taken_ < forced_.size() && forced_[forced_taken_] != ends.front()) {
    TokenMask only = grammar_->vocabulary_->EmptyMask();
    const TokenId token = forced_[forced_taken_];
    only[static_cast<size_t>(token) / 32] |= uint32_t{1} << (token % 32);
    return std::make_shared<const TokenMask>(std::move(only));
  }
  // After the end only the end may follow.
  absl::StatusOr<std::shared_ptr<const TokenMask>> mask = OutOfWork();
  if (forced_known_) mask = grammar_->MaskOf(store_.get(), ended_ ? kEndContext : context_);
  if (mask.ok() && grammar_->automaton_.has_distinct() && !ended_) {
    mask = WithoutRepeats(&pool, std::shared_ptr<const TokenMask>(*mask));
    if (pool.exhausted()) mask = OutOfWork();
  }
  const int64_t work = grammar_->WorkOf(*store_) - before;
  if (work > 0) grammar_->CountBytes();  // something new was found
  searched_ += std::max(kLeastCharge, work);
  if (IsOutOfWork(mask.status())) {
    if (searched_ < kMaxMaskWork && !pool.too_large()) return nullptr;
    Fail();
    return failure_;
  }
  if (!mask.ok()) {
    failure_ = mask.status();
    Fail();
    return failure_;
  }
  searched_ = 0;
  if (std::all_of((*mask)->begin(), (*mask)->end(), [](uint32_t word) { return word == 0; })) {
    return absl::InternalError(
        "the grammar demands a text for which the model's vocabulary has no token");
  }
  return mask;
}

std::shared_ptr<const TokenMask> Matcher::KnownMask() {
  std::unique_lock lock(grammar_->mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return nullptr;
  Pool();
  if (!failure_.ok()) return nullptr;
  grammar_->LimitWork(store_.get(), kQuickWork);
  FindForced();
  if (!forced_known_) return nullptr;
  if (forced_taken_ < forced_.size()) return nullptr;  // a forced token's mask is not worth keeping
  auto known = store_->masks.find(ended_ ? kEndContext : context_);
  if (known == store_->masks.end()) return nullptr;
  if (!grammar_->automaton_.has_distinct() || ended_) return known->second;
  // Elsewhere there is hardly ever anything to take out.
  if (values_.is_open() && !IsUntracked()) return nullptr;
  std::shared_ptr<const TokenMask> mask = WithoutRepeats(&store_->pool, known->second);
  return store_->pool.exhausted() ? nullptr : mask;
}

bool Matcher::Accept(TokenId token) {
  std::lock_guard lock(grammar_->mutex_);
  if (AcceptLocked(token, kMaxTokenWork)) return true;
  return store_->pool.exhausted() ? Fail() : false;
}

bool Matcher::TryAccept(TokenId token) {
  std::unique_lock lock(grammar_->mutex_, std::try_to_lock);
  return lock.owns_lock() && AcceptLocked(token, kQuickWork);
}

std::span<const TokenId> Matcher::TryForced() {
  std::unique_lock lock(grammar_->mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return {};
  Pool();
  grammar_->LimitWork(store_.get(), kQuickWork);
  FindForced();
  return std::span(forced_).subspan(forced_taken_);
}

bool Matcher::AcceptLocked(TokenId token, int64_t max_items) {
  const std::vector<TokenId>& ends = grammar_->end_tokens_;
  if (std::find(ends.begin(), ends.end(), token) != ends.end()) {
    ContextPool& pool = Pool();
    grammar_->LimitWork(store_.get(), max_items);
    if (!ended_ && !pool.CanEnd(context_)) return false;
    ended_ = true;
    return true;
  }
  if (ended_ || token < 0 || token >= grammar_->vocabulary_->size()) return false;
  const std::string_view text = grammar_->vocabulary_->text(token);
  if (text.empty()) return false;
  const bool as_forced = forced_taken_ < forced_.size() && forced_[forced_taken_] == token;
  const size_t taken = forced_taken_ + 1;
  if (!StepLocked(text, max_items)) return false;
  last_ = token;
  if (as_forced) {
    forced_taken_ = taken;
    forced_known_ = taken < forced_.size();
  }
  return true;
}

bool Matcher::AcceptText(std::string_view bytes) {
  std::lock_guard lock(grammar_->mutex_);
  if (StepLocked(bytes, kMaxTokenWork)) return true;
  return store_->pool.exhausted() ? Fail() : false;
}

// Returns false if the bytes are refused or the pool is exhausted.
bool Matcher::StepLocked(std::string_view bytes, int64_t max_items) {
  ContextPool& pool = Pool();
  if (!failure_.ok()) return false;
  grammar_->LimitWork(store_.get(), max_items);
  ContextId context = context_;
  if (grammar_->automaton_.has_distinct()) {
    DistinctValues values = values_;
    if (!Reads(&pool, bytes, &context, &values)) return false;
    values_ = std::move(values);
  } else {
    for (char byte : bytes) {
      context = pool.Step(context, grammar_->automaton_.byte_class(static_cast<uint8_t>(byte)));
      if (context == kDeadContext) return false;
    }
  }
  context_ = context;
  last_ = -1;
  searched_ = 0;
  forced_taken_ = forced_.size();
  forced_known_ = false;
  return true;
}

// Moves *context and *values behind the bytes. False if the grammar or an earlier value forbids
// them.
bool Matcher::Reads(ContextPool* pool, std::string_view bytes, ContextId* context,
                    DistinctValues* values) const {
  const Automaton& automaton = grammar_->automaton_;
  for (char byte : bytes) {
    bool is_marked = false;
    if ((byte == '{' || byte == '[') && !values->in_string()) {
      const auto readers = pool->Readers(*context);
      is_marked = std::any_of(readers.begin(), readers.end(), [&](const ContextPool::Item& item) {
        if (!automaton.begins_distinct(item.state)) return false;
        const auto edges = automaton.bytes(item.state);
        return std::any_of(edges.begin(), edges.end(), [byte](const ByteEdge& edge) {
          return edge.first == static_cast<uint8_t>(byte);
        });
      });
    }
    *context = pool->Step(*context, automaton.byte_class(static_cast<uint8_t>(byte)));
    if (*context == kDeadContext) return false;
    if ((is_marked || values->is_open()) && !values->Read(byte, is_marked)) return false;
  }
  return true;
}

// Whether only tokens of many parts can complete a key or item: outside of objects and arrays with
// distinct values, and in strings that are none of these.
bool Matcher::IsUntracked() const {
  return !values_.is_open() || (values_.in_string() && !values_.in_element());
}

// Tokens among which are all that can complete a key or item, or begin one that would have to be
// completed as an earlier one was; null: every token. `in_own_string`: WithoutRepeats looks at
// those that end the string that is being written. REQUIRES: !IsUntracked().
const TokenMask* Matcher::TokensThatMayRepeat(bool in_own_string) const {
  using Parts = Vocabulary::PartSet;
  const Vocabulary& vocabulary = *grammar_->vocabulary_;
  if (in_own_string) return &vocabulary.tokens_with(Parts::kCommaBehindQuote);
  if (!values_.HasElements()) {
    return &vocabulary.tokens_with(values_.in_string() ? Parts::kCommaBehindQuote : Parts::kComma);
  }
  if (values_.in_string()) return &vocabulary.tokens_with(Parts::kQuote);
  if (values_.in_element()) return nullptr;
  if (values_.BeforeElement()) {
    if (!values_.in_object()) return nullptr;
    return &vocabulary.tokens_with(Parts::kKeyOrTwoQuotesOrComma);
  }
  return &vocabulary.tokens_with(Parts::kTwoQuotesOrComma);
}

// Whether the token repeats a value, or leaves nothing else to write than an earlier one.
// `scratch` keeps its memory from one token to the next.
bool Matcher::Repeats(ContextPool* pool, TokenId token, DistinctValues* scratch) const {
  ContextId context = context_;
  *scratch = values_;
  if (!Reads(pool, grammar_->vocabulary_->text(token), &context, scratch)) return true;
  return !CanDiffer(grammar_->automaton_, pool, context, *scratch);
}

// REQUIRES: the mutex is held.
std::shared_ptr<const TokenMask> Matcher::WithoutRepeats(
    ContextPool* pool, std::shared_ptr<const TokenMask> mask) const {
  std::vector<TokenId> repeating;
  DistinctValues scratch;
  const auto look_at = [&](TokenId token) {
    if (IsAllowed(*mask, token) && Repeats(pool, token, &scratch)) repeating.push_back(token);
  };
  const Vocabulary& vocabulary = *grammar_->vocabulary_;
  const std::vector<TokenId>& ends = grammar_->end_tokens_;
  const std::optional<std::vector<std::string>> rests = values_.RestsOfStrings();
  if (rests.has_value() && !rests->empty()) {
    for (TokenId token : vocabulary.escaped_end_tokens()) look_at(token);
    for (const std::string& rest : *rests) {
      for (TokenId token : vocabulary.trie().BeginningWith(rest)) look_at(token);
    }
  }
  if (IsUntracked()) {
    for (TokenId token :
         values_.in_string() ? vocabulary.many_part_ends() : vocabulary.many_part_tokens()) {
      look_at(token);
    }
  } else {
    const TokenMask* parts = TokensThatMayRepeat(rests.has_value());
    for (size_t word = 0; word < mask->size(); ++word) {
      for (uint32_t bits = (*mask)[word] & (parts == nullptr ? ~uint32_t{0} : (*parts)[word]);
           bits != 0; bits &= bits - 1) {
        const auto token =
            static_cast<TokenId>(32 * word + static_cast<size_t>(__builtin_ctz(bits)));
        if (std::find(ends.begin(), ends.end(), token) == ends.end()) look_at(token);
      }
    }
  }
  // Beginnings of earlier values, which could leave no other way to go on.
  for (std::string_view rest : values_.SameSoFar()) {
    for (TokenId token : vocabulary.trie().BeginningsOf(rest)) look_at(token);
  }
  if (repeating.empty()) return mask;
  TokenMask without = *mask;
  for (TokenId token : repeating) {
    without[static_cast<size_t>(token) / 32] &= ~(uint32_t{1} << (token % 32));
  }
  return std::make_shared<const TokenMask>(std::move(without));
}

bool Matcher::CanEnd() {
  std::lock_guard lock(grammar_->mutex_);
  ContextPool& pool = Pool();
  grammar_->LimitWork(store_.get(), kMaxTokenWork);
  return pool.CanEnd(context_);
}

// Leaves the forced tokens unknown if the allowed work does not suffice. REQUIRES: the mutex is
// held, Pool() was called, and work is limited.
void Matcher::FindForced() {
  if (forced_known_) return;
  forced_taken_ = 0;
  forced_.clear();
  if (forces_ && !ended_) forced_ = grammar_->ForcedOf(store_.get(), context_, last_);
  forced_known_ = !store_->pool.exhausted();
}

std::span<const TokenId> Matcher::Forced() {
  std::lock_guard lock(grammar_->mutex_);
  Pool();
  grammar_->LimitWork(store_.get(), kMaxMaskWork);
  FindForced();
  return std::span(forced_).subspan(forced_taken_);
}

std::string Matcher::ForcedText(size_t max_bytes) {
  std::lock_guard lock(grammar_->mutex_);
  ContextPool& pool = Pool();
  grammar_->LimitWork(store_.get(), kMaxMaskWork);
  ContextId context = context_;
  return grammar_->ForcedText(&pool, &context, max_bytes);
}

}  // namespace heddle::engine::grammar
