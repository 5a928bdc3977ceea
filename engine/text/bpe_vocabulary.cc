#include "engine/text/bpe_vocabulary.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/message.h"
#include "base/utf8.h"
#include "engine/text/byte_level.h"
#include "engine/text/pre_tokenizer.h"

namespace heddle::engine::text {

std::vector<TokenId> ByteTokens(const TokenTable& tokens) {
  std::vector<TokenId> ids;
  for (int byte = 0; byte < 256; ++byte) {
    const auto id = tokens.Find(ByteFallbackText(static_cast<uint8_t>(byte)));
    if (!id) return {};
    ids.push_back(*id);
  }
  return ids;
}

bool HasMetaspaceBoundaries(const TokenTable& tokens) {
  if (!tokens.Find(kMetaspace)) return false;
  for (TokenId id = 0; id < tokens.size(); ++id) {
    const std::string_view text = tokens.Text(id);
    bool after_other = false;
    for (size_t at = 0; at < text.size();) {
      const bool is_space = text.substr(at).starts_with(kMetaspace);
      if (is_space && after_other) return false;
      after_other = !is_space;
      at += is_space ? kMetaspace.size() : 1;
    }
  }
  return true;
}

void IndexSymbols(const TokenTable& tokens, BpeVocabulary* vocabulary) {
  vocabulary->single.fill(-1);
  for (TokenId id = 0; id < tokens.size(); ++id) {
    const std::string_view text = tokens.Text(id);
    if (text.empty() || text.size() != base::Utf8Size(text[0])) continue;
    const char32_t c = base::DecodeUtf8(text.data());
    if (vocabulary->byte_level) {
      const int byte = ByteLevelByte(c);
      if (byte >= 0) vocabulary->single[static_cast<size_t>(byte)] = id;
    } else if (c < 0x80) {
      vocabulary->single[c] = id;
    } else {
      vocabulary->symbols[c] = id;
    }
  }
}

void IndexWholeWords(const TokenTable& tokens, BpeVocabulary* vocabulary) {
  for (TokenId id = 0; id < tokens.size(); ++id) {
    std::string text(tokens.Text(id));
    if (vocabulary->byte_level) text = FromByteLevel(text).value_or("");
    if (!text.empty()) vocabulary->whole_words.emplace(std::move(text), id);
  }
}

absl::Status AddMerge(const TokenTable& tokens, std::string_view left, std::string_view right,
                      uint32_t rank, MergeTable* merges) {
  const std::string result = base::StrCat(left, right);
  for (const std::string_view token : {left, right, std::string_view(result)}) {
    if (!tokens.Find(token)) {
      return absl::InvalidArgumentError(base::StrCat(
          "the merge of ", base::Quote(left), " and ", base::Quote(right), " needs the token ",
          base::Quote(token), ", which is not in the vocabulary"));
    }
  }
  merges->Set(*tokens.Find(left), *tokens.Find(right), {rank, *tokens.Find(result)});
  return absl::OkStatus();
}

namespace {

class RankedBuilder {
 public:
  RankedBuilder(const std::vector<RankedToken>& tokens, BpeVocabulary vocabulary)
      : tokens_(tokens), vocabulary_(std::move(vocabulary)), next_symbol_(vocabulary_.vocab_size) {}

  Bpe Build() && {
    vocabulary_.single.fill(-1);
    for (const RankedToken& token : tokens_) id_of_.emplace(token.text, token.id);
    for (const RankedToken& token : tokens_) AddSymbols(token);
    for (const RankedToken& token : tokens_) AddMerges(token);
    MergeTable merges(merges_.size());
    for (const PairMerge& pair : merges_) merges.Set(pair.left, pair.right, pair.merge);
    return Bpe(std::move(vocabulary_), std::move(merges), std::move(unused_));
  }

 private:
  struct PairMerge {
    int32_t left;
    int32_t right;
    MergeTable::Merge merge;
  };

  size_t UnitSize(char first) const { return vocabulary_.byte_level ? 1 : base::Utf8Size(first); }

  // Makes every unit of a token a symbol, whether it is a token or not.
  void AddSymbols(const RankedToken& token) {
    for (size_t at = 0; at < token.text.size();) {
      const std::string_view unit = token.text.substr(at, UnitSize(token.text[at]));
      at += unit.size();
      const auto [entry, is_new] = id_of_.try_emplace(unit, next_symbol_);
      if (is_new) ++next_symbol_;
      if (unit.size() == 1) {
        vocabulary_.single[static_cast<unsigned char>(unit[0])] = entry->second;
      } else {
        vocabulary_.symbols[base::DecodeUtf8(unit.data())] = entry->second;
      }
    }
  }

  void AddMerges(const RankedToken& token) {
    std::vector<std::pair<int32_t, int32_t>> pairs;
    if (token.text.empty() || id_of_.at(token.text) != token.id) return;  // the text occurs twice
    for (size_t at = UnitSize(token.text[0]); at < token.text.size();) {
      const auto left = id_of_.find(token.text.substr(0, at));
      const auto right = id_of_.find(token.text.substr(at));
      at += UnitSize(token.text[at]);
      if (left == id_of_.end() || right == id_of_.end()) continue;
      merges_.push_back({left->second, right->second, {token.rank, token.id}});
      pairs.emplace_back(left->second, right->second);
    }
    if (token.unused) unused_.push_back({token.id, std::string(token.text), std::move(pairs)});
  }

  const std::vector<RankedToken>& tokens_;
  BpeVocabulary vocabulary_;
  int32_t next_symbol_;
  absl::flat_hash_map<std::string_view, int32_t> id_of_;
  std::vector<PairMerge> merges_;
  std::vector<UnusedToken> unused_;
};

}  // namespace

Bpe BuildRankedBpe(const std::vector<RankedToken>& tokens, BpeVocabulary vocabulary) {
  return RankedBuilder(tokens, std::move(vocabulary)).Build();
}

}  // namespace heddle::engine::text
