#include "engine/text/wordpiece.h"

#include "base/utf8.h"

namespace heddle::engine::text {
namespace {

struct Match {
  TokenId token = -1;
  size_t size = 0;
};

// The longest string of the trie that `text` begins with.
Match LongestOf(const ByteTrie& trie, std::string_view text) {
  Match best;
  uint32_t node = ByteTrie::kRoot;
  for (size_t i = 0; i < text.size(); ++i) {
    node = trie.Child(node, static_cast<unsigned char>(text[i]));
    if (node == ByteTrie::kNoNode) break;
    if (trie.Value(node) != ByteTrie::kNoValue) best = {trie.Value(node), i + 1};
  }
  return best;
}

}  // namespace

WordPiece::WordPiece(const std::vector<std::pair<std::string_view, TokenId>>& tokens,
                     WordPieceOptions options)
    : options_(std::move(options)) {
  std::vector<ByteTrie::Entry> first;
  std::vector<ByteTrie::Entry> others;
  for (const auto& [text, id] : tokens) {
    first.push_back({text, id});
    if (!text.starts_with(options_.prefix)) continue;
    others.push_back({text.substr(options_.prefix.size()), id});
  }
  first_ = ByteTrie::Build(std::move(first));
  others_ = ByteTrie::Build(std::move(others));
}

void WordPiece::EncodeWord(std::string_view word, ModelScratch* /*scratch*/,
                           std::vector<TokenId>* out) const {
  const size_t begin = out->size();
  const bool is_long = word.size() > static_cast<size_t>(options_.max_word_chars) &&
                       base::CountCodePoints(word) > static_cast<size_t>(options_.max_word_chars);
  bool is_known = !is_long;
  for (size_t at = 0; is_known && at < word.size();) {
    const Match match = LongestOf(at == 0 ? first_ : others_, word.substr(at));
    is_known = match.size > 0;
    if (is_known) out->push_back(match.token);
    at += match.size;
  }
  if (is_known) return;
  out->resize(begin);
  if (options_.unk_id >= 0) out->push_back(options_.unk_id);
}

}  // namespace heddle::engine::text
