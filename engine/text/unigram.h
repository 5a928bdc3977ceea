// Unigram language model: a word is cut into the tokens whose scores sum to the most (Viterbi).
// Source: Kudo, "Subword Regularization", 2018; ties and the score of unknown code points as in
// SentencePiece's and Hugging Face's optimised encoders.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/step.h"
#include "engine/text/model.h"

namespace heddle::engine::text {

struct UnigramPiece {
  std::string text;
  TokenId id;
  double score;
};

struct UnigramOptions {
  UnknownPolicy unknown;
  // Sums are rounded to float, as SentencePiece has them: that breaks near ties.
  bool float_scores = false;
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

  // Trie over bytes, children found by hashing (node, byte).
  struct Edge {
    uint64_t key;
    uint32_t child;
  };
  struct Node {
    TokenId token;
    double score;
  };
  uint32_t Child(uint32_t node, unsigned char byte) const;
  uint32_t AddChild(uint32_t node, unsigned char byte);
  void Insert(const UnigramPiece& piece);
  double Rounded(double sum) const {
    return options_.float_scores ? static_cast<double>(static_cast<float>(sum)) : sum;
  }
  void Extend(std::string_view word, size_t at, std::vector<ModelScratch::Arrival>* arrivals) const;

  UnigramOptions options_;
  double unknown_score_;
  size_t edge_mask_;
  std::vector<Edge> edges_;
  std::vector<Node> nodes_;
};

}  // namespace heddle::engine::text
