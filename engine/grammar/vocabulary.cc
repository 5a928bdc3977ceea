#include "engine/grammar/vocabulary.h"

#include <algorithm>
#include <list>
#include <mutex>
#include <utility>

#include "engine/grammar/automaton.h"
#include "engine/grammar/token_slices.h"

namespace heddle::engine::grammar {
namespace {

// Limit of a node's depth field; no published vocabulary has tokens of a tenth of that.
constexpr size_t kMaxTokenBytes = 4096;
// Sets of characters whose slices are kept; each takes 0.5 MB at 150 K tokens.
constexpr size_t kMaxRecentSlices = 32;

uint8_t JsonPartsOf(std::string_view text) {
  const auto quotes = std::count(text.begin(), text.end(), '"');
  uint8_t parts = text.find(',') == std::string_view::npos ? 0 : Vocabulary::kComma;
  if (quotes >= 1) parts |= Vocabulary::kQuote;
  if (quotes >= 2) parts |= Vocabulary::kTwoQuotes;
  if (quotes >= 3) parts |= Vocabulary::kThreeQuotes;
  const size_t quote = text.find('"');
  if (quote != text.npos && text.find(',', quote) != text.npos) {
    parts |= Vocabulary::kCommaBehindQuote;
  }
  const size_t first = text.find_first_not_of(" \t\n\r");
  if (first != 0 && first != text.npos && text[first] == '"') parts |= Vocabulary::kBeginsKey;
  if (text.find_first_of("[{") != std::string_view::npos) parts |= Vocabulary::kOpens;
  return parts;
}

bool IsIn(uint8_t parts, Vocabulary::PartSet set) {
  const bool has_comma = (parts & Vocabulary::kComma) != 0;
  const bool has_two = (parts & Vocabulary::kTwoQuotes) != 0;
  switch (set) {
    case Vocabulary::PartSet::kQuote:
      return (parts & Vocabulary::kQuote) != 0;
    case Vocabulary::PartSet::kComma:
      return has_comma;
    case Vocabulary::PartSet::kCommaBehindQuote:
      return (parts & Vocabulary::kCommaBehindQuote) != 0;
    case Vocabulary::PartSet::kTwoQuotesOrComma:
      return has_comma || has_two;
    case Vocabulary::PartSet::kKeyOrTwoQuotesOrComma:
      return has_comma || has_two || (parts & Vocabulary::kBeginsKey) != 0;
  }
  return false;
}

// Whether a quotation mark that no backslash stands directly before follows some backslash.
bool MayEndBehindEscape(std::string_view text) {
  const size_t escape = text.find('\\');
  if (escape == text.npos) return false;
  for (size_t at = escape + 1; at < text.size(); ++at) {
    // Behind two backslashes it is one that ends the string.
    if (text[at] == '"' && (text[at - 1] != '\\' || (at >= 2 && text[at - 2] == '\\'))) return true;
  }
  return false;
}

}  // namespace

TokenTrie::Range TokenTrie::Append(std::span<const Entry> tokens) {
  nodes_.pop_back();
  const auto begin = static_cast<uint32_t>(nodes_.size());
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
    const auto first_token = static_cast<uint32_t>(tokens_.size());
    for (size_t i = shared; i < token.text.size(); ++i) {
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back(
          {static_cast<uint8_t>(token.text[i]), static_cast<uint16_t>(i + 1), first_token, 0});
    }
    tokens_.push_back(token.id);
    max_depth_ = std::max(max_depth_, static_cast<int32_t>(token.text.size()));
    last = token.text;
  }
  leave(0);
  const auto end = static_cast<uint32_t>(nodes_.size());
  nodes_.push_back({0, 0, static_cast<uint32_t>(tokens_.size()), 0});
  return {begin, end};
}

bool TokenTrie::HasLonger(std::string_view text) const {
  size_t begin = 0;
  size_t end = nodes().size();  // end of the nodes below the current text
  for (char byte : text) {
    size_t node = begin;
    while (node < end && nodes_[node].byte != static_cast<uint8_t>(byte)) node = nodes_[node].end;
    if (node >= end) return false;
    begin = node + 1;
    end = nodes_[node].end;
  }
  return begin < end;
}

std::vector<TokenId> TokenTrie::BeginningsOf(std::string_view text) const {
  std::vector<TokenId> found;
  size_t begin = 0;
  size_t end = nodes().size();
  for (char byte : text) {
    size_t node = begin;
    while (node < end && nodes_[node].byte != static_cast<uint8_t>(byte)) node = nodes_[node].end;
    if (node >= end) break;
    const std::span<const TokenId> here = tokens(static_cast<uint32_t>(node));
    found.insert(found.end(), here.begin(), here.end());
    begin = node + 1;
    end = nodes_[node].end;
  }
  return found;
}

std::span<const TokenId> TokenTrie::BeginningWith(std::string_view text) const {
  size_t begin = 0;
  size_t end = nodes().size();
  size_t node = end;
  for (char byte : text) {
    node = begin;
    while (node < end && nodes_[node].byte != static_cast<uint8_t>(byte)) node = nodes_[node].end;
    if (node >= end) return {};
    begin = node + 1;
    end = nodes_[node].end;
  }
  if (text.empty()) return tokens_;
  return all_tokens(static_cast<uint32_t>(node));
}

// The slices of the sets of grammars in use; JSON needs one or two.
struct Vocabulary::SliceCache {
  struct Entry {
    CodePointSet chars;
    std::shared_ptr<const TokenSlices> slices;
  };
  std::mutex mutex;
  std::list<Entry> recent;  // GUARDED_BY(mutex); most recently used first
};

Vocabulary::Vocabulary(int32_t size, const std::function<std::string_view(TokenId)>& text_of,
                       Encoder encode)
    : encode_(std::move(encode)), slices_(std::make_unique<SliceCache>()) {
  texts_begin_.push_back(0);
  part_masks_.fill(TokenMask((static_cast<size_t>(size) + 31) / 32, 0));
  for (TokenId id = 0; id < size; ++id) {
    const std::string_view text = text_of(id);
    if (text.size() <= kMaxTokenBytes) texts_.append(text);
    texts_begin_.push_back(static_cast<uint32_t>(texts_.size()));
    const uint8_t parts = JsonPartsOf(text.size() <= kMaxTokenBytes ? text : "");
    const bool is_list = (parts & kOpens) != 0 && (parts & kComma) != 0;
    if (is_list || (parts & kThreeQuotes) != 0) {
      many_part_tokens_.push_back(id);
      if ((parts & kQuote) != 0) many_part_ends_.push_back(id);
    }
    for (size_t set = 0; set < part_masks_.size(); ++set) {
      if (!IsIn(parts, static_cast<PartSet>(set))) continue;
      part_masks_[set][static_cast<size_t>(id) / 32] |= uint32_t{1} << (id % 32);
    }
    if (MayEndBehindEscape(text)) escaped_end_tokens_.push_back(id);
  }
  std::vector<TokenTrie::Entry> tokens;
  for (TokenId id = 0; id < size; ++id) {
    if (!text(id).empty()) tokens.push_back({text(id), id});
  }
  std::sort(tokens.begin(), tokens.end(), [](const auto& a, const auto& b) {
    return a.text != b.text ? a.text < b.text : a.id < b.id;
  });
  trie_.Append(tokens);
  std::erase_if(tokens, [](const TokenTrie::Entry& token) {
    return token.text.size() <= static_cast<size_t>(Automaton::kSightBytes);
  });
  long_.Append(tokens);
}

Vocabulary::~Vocabulary() = default;
Vocabulary::Vocabulary(Vocabulary&&) noexcept = default;

std::shared_ptr<const TokenSlices> Vocabulary::Slices(const CodePointSet& chars) const {
  std::lock_guard lock(slices_->mutex);
  std::list<SliceCache::Entry>& recent = slices_->recent;
  auto known = std::find_if(recent.begin(), recent.end(), [&chars](const SliceCache::Entry& entry) {
    return entry.chars == chars;
  });
  if (known != recent.end()) {
    recent.splice(recent.begin(), recent, known);
    return known->slices;
  }
  recent.push_front({chars, TokenSlices::Make(chars, *this)});
  if (recent.size() > kMaxRecentSlices) recent.pop_back();
  return recent.front().slices;
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
