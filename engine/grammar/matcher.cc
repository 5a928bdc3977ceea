#include <algorithm>
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
  }
  return store_->pool;
}

absl::StatusOr<std::shared_ptr<const TokenMask>> Matcher::Mask() {
  std::lock_guard lock(grammar_->mutex_);
  Pool();
  FindForced();
  const std::vector<TokenId>& ends = grammar_->end_tokens_;
  if (forced_taken_ < forced_.size() && forced_[forced_taken_] != ends.front()) {
    TokenMask only = grammar_->vocabulary_->EmptyMask();
    const TokenId token = forced_[forced_taken_];
    only[static_cast<size_t>(token) / 32] |= uint32_t{1} << (token % 32);
    return std::make_shared<const TokenMask>(std::move(only));
  }
  // After the end there is only the end.
  HEDDLE_ASSIGN_OR_RETURN(std::shared_ptr<const TokenMask> mask,
                          grammar_->MaskOf(store_.get(), ended_ ? kEndContext : context_));
  if (std::all_of(mask->begin(), mask->end(), [](uint32_t word) { return word == 0; })) {
    return absl::InternalError(
        "the grammar demands a text for which the model's vocabulary has no token");
  }
  return mask;
}

std::shared_ptr<const TokenMask> Matcher::KnownMask() {
  std::lock_guard lock(grammar_->mutex_);
  Pool();
  FindForced();
  if (forced_taken_ < forced_.size()) return nullptr;  // not worth keeping
  auto known = store_->masks.find(ended_ ? kEndContext : context_);
  return known == store_->masks.end() ? nullptr : known->second;
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
  if (text.empty()) return false;
  const bool as_forced = forced_taken_ < forced_.size() && forced_[forced_taken_] == token;
  const size_t taken = forced_taken_ + 1;
  if (!AcceptText(text)) return false;
  last_ = token;
  if (as_forced) {
    forced_taken_ = taken;
    forced_known_ = taken < forced_.size();
  }
  return true;
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
  last_ = -1;
  forced_taken_ = forced_.size();
  forced_known_ = false;
  return true;
}

bool Matcher::CanEnd() {
  std::lock_guard lock(grammar_->mutex_);
  return Pool().CanEnd(context_);
}

// REQUIRES: the mutex is held and Pool() was called.
void Matcher::FindForced() {
  if (forced_known_) return;
  forced_known_ = true;
  forced_taken_ = 0;
  forced_.clear();
  if (!forces_ || ended_) return;
  forced_ = grammar_->ForcedOf(store_.get(), context_, last_);
}

std::span<const TokenId> Matcher::Forced() {
  std::lock_guard lock(grammar_->mutex_);
  Pool();
  FindForced();
  return std::span(forced_).subspan(forced_taken_);
}

std::string Matcher::ForcedText(size_t max_bytes) {
  std::lock_guard lock(grammar_->mutex_);
  ContextPool& pool = Pool();
  ContextId context = context_;
  return grammar_->ForcedText(&pool, &context, max_bytes);
}

}  // namespace heddle::engine::grammar
