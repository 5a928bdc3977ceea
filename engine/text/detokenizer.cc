#include "engine/text/detokenizer.h"

#include "base/utf8.h"
#include "engine/text/tokenizer.h"
#include "engine/text/tokenizer_parts.h"

namespace heddle::engine::text {

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer* tokenizer, bool skip_special)
    : tokenizer_(tokenizer),
      skip_special_(skip_special),
      strips_left_(tokenizer->parts_->decoder.strip_left_count) {}

std::string_view IncrementalDetokenizer::Append(TokenId token) {
  ready_.clear();
  const TokenizerParts& parts = *tokenizer_->parts_;
  if (!parts.tokens.Contains(token) || (skip_special_ && parts.tokens.IsSpecial(token))) return {};
  if (!at_start_) {
    if (!parts.decoder.separator.empty()) Feed(parts.decoder.separator);
    Feed(parts.tokens.Bytes(token));
  } else {
    at_start_ = false;
    if (parts.decoder.drop_in_first.empty())
      Feed(parts.tokens.Bytes(token));
    else
      Feed(parts.decoder.Apply(parts.tokens.Text(token), true));
  }
  return ready_;
}

std::string_view IncrementalDetokenizer::Flush() {
  ready_.clear();
  if (!pending_.empty()) ready_.append(base::kReplacementCharacter);
  pending_.clear();
  at_start_ = true;
  strips_left_ = tokenizer_->parts_->decoder.strip_left_count;
  return ready_;
}

void IncrementalDetokenizer::Feed(std::string_view bytes) {
  if (strips_left_ > 0) DropLeft(&bytes);
  if (pending_.empty()) {
    const size_t valid = base::ValidUtf8Prefix(bytes);
    ready_.append(bytes.substr(0, valid));
    bytes.remove_prefix(valid);
    if (bytes.empty()) return;
  }
  pending_.append(bytes);
  EmitComplete();
}

// Drops the prefix as long as nothing else has come.
void IncrementalDetokenizer::DropLeft(std::string_view* bytes) {
  const std::string& prefix = tokenizer_->parts_->decoder.strip_left;
  while (strips_left_ > 0 && bytes->starts_with(prefix)) {
    bytes->remove_prefix(prefix.size());
    --strips_left_;
  }
  if (!bytes->empty()) strips_left_ = 0;
}

void IncrementalDetokenizer::EmitComplete() {
  std::string_view rest(pending_);
  while (!rest.empty()) {
    const base::Utf8Unit unit = base::ClassifyUtf8(rest);
    if (unit.kind == base::Utf8Kind::kIncomplete) break;
    ready_.append(unit.kind == base::Utf8Kind::kComplete ? rest.substr(0, unit.size)
                                                         : base::kReplacementCharacter);
    rest.remove_prefix(unit.size);
  }
  pending_.erase(0, pending_.size() - rest.size());
}

}  // namespace heddle::engine::text
