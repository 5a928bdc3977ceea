// Unigram language model: a word is cut into the tokens whose scores sum to the most (Viterbi).
// Source: Kudo, "Subword Regularization", 2018; ties and the score of unknown code points as in the
// optimised encoders of SentencePiece and Hugging Face. Sums are in double, and over the word
// alone, as in `tokenizers`. SentencePiece rounds differently, which shows where two segmentations
// of a word differ in score only by rounding: in one of 10,000 strings of random Unicode
// (tests/golden/tokenizers/).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/ids.h"
#include "engine/text/byte_trie.h"
#include "engine/text/model.h"

namespace heddle::engine::text {

struct UnigramPiece {
  std::string text;
  TokenId id;
  double score;
};

struct UnigramOptions {
  UnknownPolicy unknown;
  double min_score = 0;  // minimum over the vocabulary, for unknown code points, if above the
                         // pieces' own
};

class Unigram : public Model {
 public:
  Unigram(const std::vector<UnigramPiece>& pieces, UnigramOptions options);

  void EncodeWord(std::string_view word, ModelScratch* scratch,
                  std::vector<TokenId>* out) const override;

 private:
  static constexpr TokenId kUnknown = -1;
  static constexpr TokenId kUnreached = -2;

  void Extend(std::string_view word, size_t at, std::vector<ModelScratch::Arrival>* arrivals) const;

  UnigramOptions options_;
  double unknown_score_;
  ByteTrie pieces_;             // to ids
  std::vector<double> scores_;  // by id
};

}  // namespace heddle::engine::text
