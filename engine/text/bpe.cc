#include "engine/text/bpe.h"

#include <algorithm>
#include <bit>

#include "base/utf8.h"

namespace heddle::engine::text {
namespace {

constexpr uint64_t kEmptyKey = ~uint64_t{0};
constexpr int32_t kNoSymbol = -1;

// For words up to this length a scan over all pairs is faster than a heap: the ranks fit in four
// cache lines.
constexpr size_t kShortWord = 64;

using Symbol = ModelScratch::Symbol;
using Candidate = ModelScratch::Candidate;

// Order of the heap: lowest rank on top, then the leftmost.
bool IsLater(const Candidate& a, const Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
}

}  // namespace

void UnknownPolicy::Append(std::string_view part, bool* after_unknown,
                           std::vector<TokenId>* out) const {
  if (!byte_tokens.empty()) {
    for (const char byte : part) out->push_back(byte_tokens[static_cast<unsigned char>(byte)]);
    *after_unknown = false;
    return;
  }
  if (unk_id < 0) return;
  if (!(*after_unknown && fuse_unk)) out->push_back(unk_id);
  *after_unknown = true;
}

MergeTable::MergeTable(size_t max_merges) {
  const size_t num_slots = std::bit_ceil(std::max<size_t>(max_merges * 2, 16));
  shift_ = 64 - std::countr_zero(num_slots);
  mask_ = num_slots - 1;
  slots_.assign(num_slots, {kEmptyKey, {kNoRank, -1}});
}

void MergeTable::Set(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = Key(left, right);
  size_t at = Start(key);
  while (slots_[at].key != kEmptyKey && slots_[at].key != key) at = (at + 1) & mask_;
  slots_[at] = {key, merge};
}

MergeTable::Merge MergeTable::Find(int32_t left, int32_t right) const {
  if (left < 0 || right < 0) return {kNoRank, -1};
  const uint64_t key = Key(left, right);
  for (size_t at = Start(key);; at = (at + 1) & mask_) {
    const Slot& slot = slots_[at];
    if (slot.key == key) return slot.merge;
    if (slot.key == kEmptyKey) return {kNoRank, -1};
  }
}

Bpe::Bpe(BpeVocabulary vocabulary, MergeTable merges, std::vector<UnusedToken> unused)
    : vocabulary_(std::move(vocabulary)), merges_(std::move(merges)) {
  // Shorter tokens come first, because a longer one may consist of them.
  std::sort(unused.begin(), unused.end(), [](const UnusedToken& a, const UnusedToken& b) {
    return a.text.size() != b.text.size() ? a.text.size() < b.text.size() : a.id < b.id;
  });
  for (const UnusedToken& token : unused) LearnParts(token);
}

// Merging does not depend on what surrounds a token, so its parts are what remains of its own text
// when the last merge is forbidden.
void Bpe::LearnParts(const UnusedToken& unused) {
  std::vector<MergeTable::Merge> forbidden;
  for (const auto& [left, right] : unused.pairs) {
    forbidden.push_back(merges_.Find(left, right));
    merges_.Set(left, right, {MergeTable::kNoRank, -1});
  }
  ModelScratch scratch;
  std::vector<TokenId> parts;
  EncodeWord(unused.text, &scratch, &parts);
  for (size_t i = 0; i < forbidden.size(); ++i) {
    merges_.Set(unused.pairs[i].first, unused.pairs[i].second, forbidden[i]);
  }
  // A single code point has no parts, so it is written after all.
  if (!unused.pairs.empty()) parts_of_unused_[unused.id] = std::move(parts);
}

void Bpe::Split(std::string_view word, std::vector<Symbol>* symbols) const {
  symbols->clear();
  const bool drops_unknown =
      vocabulary_.unknown.unk_id < 0 && vocabulary_.unknown.byte_tokens.empty();
  for (size_t at = 0; at < word.size();) {
    const auto byte = static_cast<unsigned char>(word[at]);
    size_t size = 1;
    int32_t id;
    if (vocabulary_.byte_level || byte < 0x80) {
      id = vocabulary_.single[byte];
    } else {
      size = base::Utf8Size(word[at]);
      const auto found = vocabulary_.symbols.find(base::DecodeUtf8(word.data() + at));
      id = found == vocabulary_.symbols.end() ? kNoSymbol : found->second;
    }
    if (id != kNoSymbol || !drops_unknown) {
      const auto index = static_cast<int32_t>(symbols->size());
      symbols->push_back(
          {id, static_cast<uint32_t>(at), static_cast<uint32_t>(size), index - 1, index + 1});
    }
    at += size;
  }
  if (!symbols->empty()) symbols->back().next = -1;
}

void Bpe::MergeShort(std::vector<Symbol>* symbols) const {
  MergeTable::Merge merges[kShortWord];
  Symbol* s = symbols->data();
  size_t n = symbols->size();
  for (size_t i = 0; i + 1 < n; ++i) merges[i] = merges_.Find(s[i].id, s[i + 1].id);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == MergeTable::kNoRank) break;
    s[best].id = merges[best].result;
    s[best].size = s[best + 1].begin + s[best + 1].size - s[best].begin;
    std::copy(s + best + 2, s + n, s + best + 1);
    std::copy(merges + best + 1, merges + n - 1, merges + best);
    --n;
    if (best > 0) merges[best - 1] = merges_.Find(s[best - 1].id, s[best].id);
    if (best + 1 < n) merges[best] = merges_.Find(s[best].id, s[best + 1].id);
  }
  symbols->resize(n);
}

void Bpe::PushCandidate(ModelScratch* scratch, int32_t left) const {
  if (left < 0) return;
  const Symbol& a = scratch->symbols[static_cast<size_t>(left)];
  if (a.next < 0) return;
  const Symbol& b = scratch->symbols[static_cast<size_t>(a.next)];
  const MergeTable::Merge merge = merges_.Find(a.id, b.id);
  if (merge.rank == MergeTable::kNoRank) return;
  scratch->heap.push_back({merge.rank, left, merge.result, b.begin + b.size - a.begin});
  std::push_heap(scratch->heap.begin(), scratch->heap.end(), IsLater);
}

void Bpe::MergeLong(ModelScratch* scratch) const {
  std::vector<Symbol>& symbols = scratch->symbols;
  scratch->heap.clear();
  for (size_t i = 0; i < symbols.size(); ++i) PushCandidate(scratch, static_cast<int32_t>(i));
  while (!scratch->heap.empty()) {
    std::pop_heap(scratch->heap.begin(), scratch->heap.end(), IsLater);
    const Candidate top = scratch->heap.back();
    scratch->heap.pop_back();
    Symbol& left = symbols[static_cast<size_t>(top.left)];
    // A symbol that was merged away has size 0; a grown one spans more bytes with its neighbour
    // than before.
    if (left.size == 0 || left.next < 0) continue;
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    if (right.begin + right.size - left.begin != top.size) continue;
    left.id = top.result;
    left.size = top.size;
    right.size = 0;
    left.next = right.next;
    if (right.next >= 0) symbols[static_cast<size_t>(right.next)].prev = top.left;
    PushCandidate(scratch, left.prev);
    PushCandidate(scratch, top.left);
  }
  std::erase_if(symbols, [](const Symbol& symbol) { return symbol.size == 0; });
}

void Bpe::Merge(ModelScratch* scratch) const {
  if (scratch->symbols.size() <= kShortWord)
    MergeShort(&scratch->symbols);
  else
    MergeLong(scratch);
}

void Bpe::Write(int32_t id, std::string_view part, bool* after_unknown,
                std::vector<TokenId>* out) const {
  if (id < 0 || id >= vocabulary_.vocab_size) {
    vocabulary_.unknown.Append(part, after_unknown, out);
    return;
  }
  *after_unknown = false;
  if (!parts_of_unused_.empty()) {
    const auto unused = parts_of_unused_.find(id);
    if (unused != parts_of_unused_.end()) {
      out->insert(out->end(), unused->second.begin(), unused->second.end());
      return;
    }
  }
  out->push_back(id);
}

void Bpe::EncodeWord(std::string_view word, ModelScratch* scratch,
                     std::vector<TokenId>* out) const {
  if (!vocabulary_.whole_words.empty()) {
    const auto whole = vocabulary_.whole_words.find(word);
    if (whole != vocabulary_.whole_words.end()) {
      out->push_back(whole->second);
      return;
    }
  }
  Split(word, &scratch->symbols);
  Merge(scratch);
  bool after_unknown = false;
  for (const Symbol& symbol : scratch->symbols) {
    Write(symbol.id, word.substr(symbol.begin, symbol.size), &after_unknown, out);
  }
}

}  // namespace heddle::engine::text
