#include "engine/model/common_tokens.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "engine/text/tokenizer.h"

namespace heddle::engine {
namespace {

// Bytes at the end of a token among which the draft model's longest is looked for.
constexpr size_t kLongestEnd = 64;

// The id of each sequence of bytes; of several tokens with the same bytes, the one that encoding a
// text would give.
class TokensByBytes {
 public:
  explicit TokensByBytes(const TokensOfModel& model) : tokenizer_(model.tokenizer) {
    const int32_t size = std::min(model.vocab, tokenizer_.vocab_size());
    ids_.reserve(static_cast<size_t>(std::max(0, size)));
    for (TokenId id = 0; id < size; ++id) Add(id);
  }

  std::optional<TokenId> Find(std::string_view bytes) const {
    const auto found = ids_.find(bytes);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  void Add(TokenId id) {
    const std::string_view bytes = tokenizer_.TokenBytes(id);
    if (bytes.empty() || tokenizer_.IsSpecial(id)) return;
    const auto [place, is_new] = ids_.try_emplace(bytes, id);
    if (!is_new && IsFallback(place->second) && !IsFallback(id)) place->second = id;
  }

  // SentencePiece encodes "A" by <0x41> only if it has no token "A".
  bool IsFallback(TokenId id) const {
    const std::string_view text = tokenizer_.TokenText(id);
    return text.size() == 6 && text.substr(0, 3) == "<0x";
  }

  const text::Tokenizer& tokenizer_;
  absl::flat_hash_map<std::string_view, TokenId> ids_;
};

class TokenMatcher {
 public:
  TokenMatcher(const TokensOfModel& draft, const TokensOfModel& target)
      : draft_(draft), target_(target), draft_ids_(draft), target_ids_(target) {
    const std::vector<TokenId>& ends = draft.tokenizer.eos_ids();
    if (!ends.empty()) eos_ = Within(ends.front());
    bos_ = Within(draft.tokenizer.bos_id());
    // A place without a meaning is read as what begins a text, or as its end.
    unknown_ = bos_.value_or(eos_.value_or(0));
  }

  CommonTokens Match() {
    const auto vocab = static_cast<size_t>(target_.vocab);
    all_.draft_ids.resize(vocab, unknown_);
    all_.guessable.resize((vocab + 31) / 32);
    is_taken_.resize(static_cast<size_t>(draft_.vocab));
    MatchEnds();
    const int32_t size = std::min(target_.vocab, target_.tokenizer.vocab_size());
    for (TokenId id = 0; id < size; ++id) MatchOne(id);
    return std::move(all_);
  }

 private:
  std::optional<TokenId> Within(std::optional<TokenId> id) const {
    return id && *id >= 0 && *id < draft_.vocab ? id : std::nullopt;
  }

  void MatchEnds() {
    const std::vector<TokenId>& ends = target_.tokenizer.eos_ids();
    if (!eos_ || ends.empty() || ends.front() < 0 || ends.front() >= target_.vocab) return;
    Take(ends.front(), *eos_);
  }

  void MatchOne(TokenId id) {
    const text::Tokenizer& tokenizer = target_.tokenizer;
    const std::vector<TokenId>& ends = tokenizer.eos_ids();
    const bool is_end = std::find(ends.begin(), ends.end(), id) != ends.end();
    if (is_end && id == ends.front() && eos_) return;
    if (is_end || id == tokenizer.bos_id() || tokenizer.IsSpecial(id)) {
      return MatchControl(id, is_end ? eos_ : id == tokenizer.bos_id() ? bos_ : std::nullopt);
    }
    const std::string_view bytes = tokenizer.TokenBytes(id);
    const std::optional<TokenId> same = draft_ids_.Find(bytes);
    // A second token of the same bytes is read, but never guessed.
    if (same && target_ids_.Find(bytes) == id) return Take(id, *same);
    Read(id, same ? *same : LongestEnd(bytes));
  }

  // `meaning`: the draft model's token of the same meaning, if there is one.
  void MatchControl(TokenId id, std::optional<TokenId> meaning) {
    const std::string_view text = target_.tokenizer.TokenText(id);
    const std::optional<TokenId> same = Within(draft_.tokenizer.Find(text));
    if (same && draft_.tokenizer.IsSpecial(*same)) return Take(id, *same);
    Read(id, meaning ? *meaning : LongestEnd(text));
  }

  TokenId LongestEnd(std::string_view bytes) const {
    bytes = bytes.substr(bytes.size() - std::min(bytes.size(), kLongestEnd));
    for (; !bytes.empty(); bytes.remove_prefix(1)) {
      if (const std::optional<TokenId> id = draft_ids_.Find(bytes)) return *id;
    }
    return unknown_;
  }

  void Read(TokenId id, TokenId draft_id) { all_.draft_ids[static_cast<size_t>(id)] = draft_id; }

  void Take(TokenId id, TokenId draft_id) {
    Read(id, draft_id);
    if (is_taken_[static_cast<size_t>(draft_id)]) return;
    is_taken_[static_cast<size_t>(draft_id)] = true;
    all_.guessable[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
    ++all_.num_guessable;
  }

  const TokensOfModel& draft_;
  const TokensOfModel& target_;
  const TokensByBytes draft_ids_;
  const TokensByBytes target_ids_;
  std::optional<TokenId> bos_;
  std::optional<TokenId> eos_;
  TokenId unknown_ = 0;
  std::vector<bool> is_taken_;  // [vocab of the draft model]
  CommonTokens all_;
};

}  // namespace

CommonTokens FindCommonTokens(const TokensOfModel& draft, const TokensOfModel& target) {
  return TokenMatcher(draft, target).Match();
}

}  // namespace heddle::engine
