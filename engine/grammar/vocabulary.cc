#include "engine/grammar/vocabulary.h"

#include <algorithm>
#include <utility>

#include "engine/grammar/automaton.h"

namespace heddle::engine::grammar {
namespace {

// What a node's depth holds; no published vocabulary has tokens of a tenth of that.
constexpr size_t kMaxTokenBytes = 4096;

}  // namespace

TokenTrie::TokenTrie(std::span<const Entry> tokens) {
  std::vector<uint32_t> path;  // nodes from the root to the last one
  auto leave = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back()) {
      nodes_[path.back()].end = static_cast<uint32_t>(nodes_.size());
    }
  };
  std::string_view last;
  for (const Entry& token : tokens) {
    const size_t shared = static_cast<size_t>(
        std::mismatch(last.begin(), last.end(), token.text.begin(), token.text.end()).first -
        last.begin());
    leave(shared);
    for (size_t i = shared; i < token.text.size(); ++i) {
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back({static_cast<uint8_t>(token.text[i]), static_cast<uint16_t>(i + 1), -1, 0});
    }
    nodes_[path.back()].token = token.id;
    max_depth_ = std::max(max_depth_, static_cast<int32_t>(token.text.size()));
    last = token.text;
  }
  leave(0);
}

bool TokenTrie::HasLonger(std::string_view text) const {
  size_t begin = 0;
  size_t end = nodes_.size();  // of the nodes below the text so far
  for (char byte : text) {
    size_t node = begin;
    while (node < end && nodes_[node].byte != static_cast<uint8_t>(byte)) node = nodes_[node].end;
    if (node >= end) return false;
    begin = node + 1;
    end = nodes_[node].end;
  }
  return begin < end;
}

Vocabulary::Vocabulary(int32_t size, const std::function<std::string_view(TokenId)>& text_of,
                       Encoder encode)
    : encode_(std::move(encode)) {
  texts_begin_.push_back(0);
  for (TokenId id = 0; id < size; ++id) {
    const std::string_view text = text_of(id);
    if (text.size() <= kMaxTokenBytes) texts_.append(text);
    texts_begin_.push_back(static_cast<uint32_t>(texts_.size()));
  }
  std::vector<TokenTrie::Entry> tokens;
  for (TokenId id = 0; id < size; ++id) {
    if (!text(id).empty()) tokens.push_back({text(id), id});
  }
  std::sort(tokens.begin(), tokens.end(), [](const auto& a, const auto& b) {
    return a.text != b.text ? a.text < b.text : a.id < b.id;
  });
  alike_.assign(static_cast<size_t>(size), -1);
  std::vector<TokenTrie::Entry> distinct;
  std::vector<TokenTrie::Entry> longer;
  for (const TokenTrie::Entry& token : tokens) {
    if (!distinct.empty() && distinct.back().text == token.text) {
      TokenId& first_alike = alike_[distinct.back().id];
      alike_[token.id] = first_alike;
      first_alike = token.id;
      continue;
    }
    distinct.push_back(token);
    if (token.text.size() > static_cast<size_t>(Automaton::kSightBytes)) longer.push_back(token);
  }
  trie_ = TokenTrie(distinct);
  long_ = TokenTrie(longer);
}

std::vector<TokenId> Vocabulary::Encode(std::string_view text) const {
  std::vector<TokenId> tokens;
  if (encode_ != nullptr) tokens = encode_(text);
  std::string_view rest = text;
  for (TokenId token : tokens) {
    if (token < 0 || token >= size()) return {};
    const std::string_view part = this->text(token);
    if (part.empty() || !rest.starts_with(part)) return {};
    rest.remove_prefix(part.size());
  }
  if (!rest.empty()) tokens.clear();
  return tokens;
}

}  // namespace heddle::engine::grammar
