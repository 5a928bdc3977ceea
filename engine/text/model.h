// The common interface of BPE and Unigram: they turn one word into ids, and need working memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/ids.h"

namespace heddle::engine::text {

// Working memory of one encoding thread, kept between words so that encoding allocates nothing.
struct ModelScratch {
  // BPE: a part of the word that has not been merged further. `prev` and `next` are indices, -1 at
  // the ends; used for long words only.
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

// The longest token of a model that tries at every place of a word every token that begins there,
// so that a vocabulary cannot make a text's time quadratic. SentencePiece's own limit is 16
// characters unless set; RWKV's tokens have at most 80 bytes.
inline constexpr size_t kMaxTriedBytes = 4096;

class Model {
 public:
  virtual ~Model() = default;

  // Appends the ids of one word. The result depends only on the word.
  virtual void EncodeWord(std::string_view word, ModelScratch* scratch,
                          std::vector<TokenId>* out) const = 0;
};

// How parts of a word that are not in the vocabulary are written.
struct UnknownPolicy {
  std::vector<TokenId> byte_tokens;  // [256], or empty: byte fallback
  TokenId unk_id = -1;               // -1: nothing is written
  bool fuse_unk = false;             // one unk_id for a run of unknown code points

  // Appends the ids of `part`, one code point. `*after_unknown`, which is updated, says that the
  // last part was unknown and was written as unk_id.
  void Append(std::string_view part, bool* after_unknown, std::vector<TokenId>* out) const;
};

}  // namespace heddle::engine::text
