// Byte pair encoding: a word starts as its code points (or bytes), and the neighbouring pair with
// the lowest rank is merged, leftmost first, until no pair has one.
//
// Sources: Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units", 2016;
// three ways to store the merges: an ordered list (tokenizer.json), the rank of the result
// (tiktoken), the score of the result (SentencePiece). All become one table of pairs here.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/ids.h"
#include "engine/text/model.h"
#include "engine/text/string_map.h"

namespace heddle::engine::text {

// Maps a pair of symbols to (rank, result) by open addressing: mostly one cache line per look-up.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank;
    int32_t result;
  };
  static constexpr uint32_t kNoRank = UINT32_MAX;

  explicit MergeTable(size_t max_merges);
  // Replaces the pair's entry.
  void Set(int32_t left, int32_t right, Merge merge);
  // rank == kNoRank if the pair does not merge; negative ids never merge.
  Merge Find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t key;
    Merge merge;
  };
  static uint64_t Key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t Start(uint64_t key) const { return (key * 0x9E3779B97F4A7C15u) >> shift_; }

  int shift_;
  size_t mask_;
  std::vector<Slot> slots_;
};

// The vocabulary as Bpe needs it. Ids at and above `vocab_size` are symbols without a token: code
// points that occur only inside longer tokens (SentencePiece merges them like the others).
struct BpeVocabulary {
  int32_t vocab_size = 0;
  bool byte_level = false;                         // words are bytes, not code points
  std::array<int32_t, 256> single{};               // id of a byte, or of an ASCII code point; or -1
  absl::flat_hash_map<char32_t, int32_t> symbols;  // id of a code point above ASCII
  // Words that are one token whatever the merges are (ignore_merges); by bytes. Often empty.
  StringMap<TokenId> whole_words;
  UnknownPolicy unknown;
};

// A token that merges like any other but is never written: the parts that it was merged from are
// written instead (SentencePiece's unused pieces).
struct UnusedToken {
  TokenId id;
  std::string text;
  std::vector<std::pair<int32_t, int32_t>> pairs;  // all pairs that merge into it
};

class Bpe : public Model {
 public:
  Bpe(BpeVocabulary vocabulary, MergeTable merges, std::vector<UnusedToken> unused = {});

  void EncodeWord(std::string_view word, ModelScratch* scratch,
                  std::vector<TokenId>* out) const override;

 private:
  void LearnParts(const UnusedToken& unused);
  void Split(std::string_view word, std::vector<ModelScratch::Symbol>* symbols) const;
  void Merge(ModelScratch* scratch) const;
  void MergeShort(std::vector<ModelScratch::Symbol>* symbols) const;
  void MergeLong(ModelScratch* scratch) const;
  void PushCandidate(ModelScratch* scratch, int32_t left) const;
  void Write(int32_t id, std::string_view part, bool* after_unknown,
             std::vector<TokenId>* out) const;

  BpeVocabulary vocabulary_;
  MergeTable merges_;
  absl::flat_hash_map<TokenId, std::vector<TokenId>> parts_of_unused_;
};

}  // namespace heddle::engine::text
