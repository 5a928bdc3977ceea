#include "engine/grammar/token_slices.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace heddle::engine::grammar {
namespace {

// Tokens of one length are added one by one if they are fewer than this: from here on applying all
// bits is as fast.
constexpr size_t kMinDense = 512;
// Limit on tokens that are only partly of the set: JSON's strings have 3 K of 150 K.
constexpr size_t kMaxMixed = size_t{1} << 15;

StateMachine OneOf(const CodePointSet& chars) {
  StateMachine machine;
  machine.states.resize(2);
  machine.states[CharacterBytes::kWhole].accepting = true;
  for (const CodePointRange& range : chars.ranges()) {
    machine.states[0].chars.push_back({range.first, range.last, CharacterBytes::kWhole});
  }
  return machine;
}

}  // namespace

CharacterBytes::CharacterBytes(const CodePointSet& chars) : states_(LowerToBytes(OneOf(chars))) {
  next_.assign(states_.size(), std::vector<int32_t>(256, kNone));
  for (size_t s = 0; s < states_.size(); ++s) {
    for (const ByteEdge& edge : states_[s].bytes) {
      for (int byte = edge.first; byte <= edge.last; ++byte) next_[s][byte] = edge.target;
    }
  }
  for (size_t byte = 0; byte < 256; ++byte) first_bytes_[byte] = next_[0][byte] != kNone;
}

int32_t CharacterBytes::Next(int32_t state, uint8_t byte) const {
  return next_[static_cast<size_t>(state)][byte];
}

// Sorts the tokens that may begin with a character of the set.
class TokenSlices::Sorter {
 public:
  Sorter(const CodePointSet& chars, const Vocabulary& vocabulary)
      : bytes_(chars),
        vocabulary_(vocabulary),
        path_(static_cast<size_t>(vocabulary.trie().max_depth()) + 1) {}

  // Returns false if too many tokens are partly of the set.
  bool Run() {
    const TokenTrie& trie = vocabulary_.trie();
    const std::span<const TokenTrie::Node> nodes = trie.nodes();
    for (uint32_t i = 0; i < nodes.size();) {
      const TokenTrie::Node& node = nodes[i];
      if (node.depth == 1 && !bytes_.first_bytes()[node.byte]) {
        i = node.end;
        continue;
      }
      Place place = path_[node.depth - 1u];
      place.state = bytes_.Next(place.state, node.byte);
      if (place.state == CharacterBytes::kNone) {
        // All tokens below continue with other text behind the same characters.
        AddMixed(place, trie.all_tokens(i));
        i = node.end;
        continue;
      }
      const bool is_whole = place.state == CharacterBytes::kWhole;
      if (is_whole) place = {0, place.length + 1, node.depth};
      path_[node.depth] = place;
      if (is_whole) {
        AddPure(place.length, trie.tokens(i));
      } else {
        AddMixed(place, trie.tokens(i));
      }
      if (mixed_.size() > kMaxMixed) return false;
      ++i;
    }
    return true;
  }

  std::vector<std::vector<TokenId>> TakePure() { return std::move(pure_); }
  const std::bitset<256>& first_bytes() const { return bytes_.first_bytes(); }

  void WriteMixed(TokenTrie* mixed, TokenTrie* rests, std::vector<TokenTrie::Range>* rest_of) {
    std::vector<TokenTrie::Entry> entries;
    entries.reserve(mixed_.size());
    for (const Mixed& token : mixed_) entries.push_back({vocabulary_.text(token.id), token.id});
    mixed->Append(entries);  // in the vocabulary trie's order
    std::vector<std::vector<TokenTrie::Entry>> by_length(pure_.size());
    for (const Mixed& token : mixed_) {
      const auto length = static_cast<size_t>(token.place.length);
      if (by_length.size() <= length) by_length.resize(length + 1);
      by_length[length].push_back({vocabulary_.text(token.id).substr(token.place.bytes), token.id});
    }
    if (by_length.empty()) by_length.resize(1);
    for (std::vector<TokenTrie::Entry>& tokens : by_length) {
      std::sort(tokens.begin(), tokens.end(), [](const auto& a, const auto& b) {
        return a.text != b.text ? a.text < b.text : a.id < b.id;
      });
      rest_of->push_back(rests->Append(tokens));
    }
  }

 private:
  struct Place {
    int32_t state = 0;   // within a character
    int32_t length = 0;  // whole characters before it
    uint32_t bytes = 0;  // bytes of those characters
  };
  struct Mixed {
    TokenId id;
    Place place;
  };

  void AddPure(int32_t length, std::span<const TokenId> tokens) {
    if (tokens.empty()) return;
    const auto index = static_cast<size_t>(length);
    if (pure_.size() <= index) pure_.resize(index + 1);
    pure_[index].insert(pure_[index].end(), tokens.begin(), tokens.end());
  }
  void AddMixed(const Place& place, std::span<const TokenId> tokens) {
    for (TokenId id : tokens) mixed_.push_back({id, place});
  }

  const CharacterBytes bytes_;
  const Vocabulary& vocabulary_;
  std::vector<Place> path_;  // from the root of the trie to a node
  std::vector<std::vector<TokenId>> pure_;
  std::vector<Mixed> mixed_;
};

std::shared_ptr<const TokenSlices> TokenSlices::Make(const CodePointSet& chars,
                                                     const Vocabulary& vocabulary) {
  Sorter sorter(chars, vocabulary);
  if (!sorter.Run()) return nullptr;
  std::shared_ptr<TokenSlices> slices(new TokenSlices());
  slices->chars_ = chars;
  slices->first_bytes_ = sorter.first_bytes();
  sorter.WriteMixed(&slices->mixed_, &slices->rests_, &slices->rest_of_);
  slices->SetPure(sorter.TakePure(), vocabulary);
  return slices;
}

void TokenSlices::SetPure(std::vector<std::vector<TokenId>> by_length,
                          const Vocabulary& vocabulary) {
  by_length.resize(rest_of_.size());
  TokenMask mask = vocabulary.EmptyMask();
  size_t since = 0;  // tokens since the last dense mask
  pure_begin_.push_back(0);
  for (size_t length = 0; length < by_length.size(); ++length) {
    const std::vector<TokenId>& tokens = by_length[length];
    pure_.insert(pure_.end(), tokens.begin(), tokens.end());
    pure_begin_.push_back(static_cast<uint32_t>(pure_.size()));
    Allow(tokens, &mask);
    since += tokens.size();
    if (since < kMinDense) continue;
    since = 0;
    dense_.push_back({static_cast<int32_t>(length), mask});
  }
}

void TokenSlices::AllowUpTo(int32_t length, TokenMask* mask) const {
  length = std::min(length, max_length());
  auto dense = std::partition_point(dense_.begin(), dense_.end(),
                                    [length](const Dense& d) { return d.length <= length; });
  size_t from = 0;
  if (dense != dense_.begin()) {
    --dense;
    Allow(dense->mask, mask);
    from = static_cast<size_t>(dense->length) + 1;
  }
  const uint32_t begin = pure_begin_[from];
  const uint32_t end = pure_begin_[static_cast<size_t>(length) + 1];
  if (begin < end) Allow(std::span(pure_).subspan(begin, end - begin), mask);
}

}  // namespace heddle::engine::grammar
