// The parts of a Tokenizer, which a loader puts together. Internal to engine/text.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/text/added_tokens.h"
#include "engine/text/model.h"
#include "engine/text/normalizer.h"
#include "engine/text/pre_tokenizer.h"
#include "engine/text/token_decoder.h"
#include "engine/text/token_table.h"
#include "engine/text/tokenizer.h"
#include "engine/text/word_cache.h"

namespace heddle::engine::text {

struct TokenizerParts {
  TokenTable tokens{0};  // finished
  std::vector<AddedToken> added;
  AddedTokenFinder raw_added{{}};               // searched in the original text
  AddedTokenFinder normalized_added{{}};        // searched in the normalised text
  std::unique_ptr<Normalizer> normalizer;       // may be null
  std::unique_ptr<PreTokenizer> pre_tokenizer;  // null: a piece is one word
  std::unique_ptr<Model> model;
  bool byte_level = false;  // the model encodes arbitrary bytes
  TokenDecoder decoder;
  std::vector<TokenId> prefix;  // put around the text with add_special
  std::vector<TokenId> suffix;
  PairTemplate pair;
  std::optional<TokenId> bos;
  std::vector<TokenId> eos;
  // The one special token of a World vocabulary, which always ends texts. Published folders give it
  // other names than the vocabulary: unknown names of begin and end tokens stand for it.
  std::optional<TokenId> end_of_text;
  std::string chat_template;

  // Distributes parts.added to the two finders and the table's special flags. The tokens' contents
  // are in the table already. An error is the normalizer's.
  absl::Status IndexAdded();

  // Appends to parts.added, after IndexAdded, tokens that are searched in the original text,
  // whether or not the vocabulary has them. INVALID_ARGUMENT for an id that another text has.
  absl::Status AddRaw(std::vector<AddedToken> more);
};

// Working memory of one Encode call.
struct EncodeScratch {
  WordCache cache;
  ModelScratch model;
  std::vector<TokenId> word_ids;
};

// Lends working memory to callers; it grows to as many pieces as there are concurrent callers.
// Thread-safety: Take and Return may be called from any thread.
class ScratchPool {
 public:
  std::unique_ptr<EncodeScratch> Take();
  void Return(std::unique_ptr<EncodeScratch> scratch);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<EncodeScratch>> idle_;  // GUARDED_BY(mutex_)
};

}  // namespace heddle::engine::text
