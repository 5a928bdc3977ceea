// Unigram language model: a word is cut into the tokens whose scores sum to the most (Viterbi).
// Source: Kudo, "Subword Regularization", 2018; ties and the score of unknown code points as in
// SentencePiece's and Hugging Face's optimised encoders. Sums are in double, and of a word alone,
// as in `tokenizers`. SentencePiece rounds otherwise, which shows where two readings of a word are
// as good but for rounding: in one of 10,000 strings of random Unicode (tests/golden/tokenizers/).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/step.h"
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
  double min_score = 0;  // of the vocabulary, for unknown code points; if above the pieces' own
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
