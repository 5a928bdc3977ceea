// What BPE and Unigram have in common: they turn one word into ids, and need working memory for it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/step.h"

namespace heddle::engine::text {

// Working memory of one encoding thread, kept between words so that encoding does not allocate.
struct ModelScratch {
  // BPE: a part of the word that has not been merged further. `prev`, `next` index the vector, -1
  // at the ends; used for long words only.
  struct Symbol {
    int32_t id;
    uint32_t begin;
    uint32_t size;
    int32_t prev;
    int32_t next;
  };
  struct Candidate {
    uint32_t rank;
    int32_t left;    // index of the left symbol
    int32_t result;  // id after the merge
    uint32_t size;   // bytes of both symbols when the candidate was found; stale if they differ now
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;

  // Unigram: the best way to reach a byte offset of the word.
  struct Arrival {
    double score;
    uint32_t from;
    TokenId token;
  };
  std::vector<Arrival> arrivals;
};

class Model {
 public:
  virtual ~Model() = default;

  // Appends the ids of one word. The result depends on the word alone.
  virtual void EncodeWord(std::string_view word, ModelScratch* scratch,
                          std::vector<TokenId>* out) const = 0;
};

// How a part of a word that the vocabulary does not have is written.
struct UnknownPolicy {
  std::vector<TokenId> byte_tokens;  // [256], or empty: byte fallback
  TokenId unk_id = -1;               // -1: nothing is written
  bool fuse_unk = false;             // one unk_id for a run of unknown code points

  // Appends the ids of `part`, one code point. `*after_unknown` says that the last part was unknown
  // and has been written as unk_id; updated.
  void Append(std::string_view part, bool* after_unknown, std::vector<TokenId>* out) const;
};

}  // namespace heddle::engine::text
