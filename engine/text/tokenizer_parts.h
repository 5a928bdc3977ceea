// What a loader puts together and a Tokenizer consists of. Internal to engine/text.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/text/added_tokens.h"
#include "engine/text/decoder.h"
#include "engine/text/model.h"
#include "engine/text/normalizer.h"
#include "engine/text/pre_tokenizer.h"
#include "engine/text/token_table.h"
#include "engine/text/tokenizer.h"
#include "engine/text/word_cache.h"

namespace heddle::engine::text {

struct TokenizerParts {
  TokenTable tokens{0};  // finished
  std::vector<AddedToken> added;
  AddedTokenFinder raw_added{{}};               // searched in the text as it came
  AddedTokenFinder normalized_added{{}};        // searched in what the normalizer made of it
  std::unique_ptr<Normalizer> normalizer;       // may be null
  std::unique_ptr<PreTokenizer> pre_tokenizer;  // null: a piece is one word
  std::unique_ptr<Model> model;
  bool byte_level = false;  // the model encodes any bytes
  Decoder decoder;
  std::vector<TokenId> prefix;  // around a text, with add_special
  std::vector<TokenId> suffix;
  std::optional<TokenId> bos;
  std::vector<TokenId> eos;
  std::string chat_template;

  // Files parts.added into the two finders and the table's special flags. The tokens' contents are
  // in the table already. Error: that of the normalizer.
  absl::Status IndexAdded();

  // Appends to parts.added, after IndexAdded, tokens that are searched in the text as it came,
  // whether or not the vocabulary has them. INVALID_ARGUMENT for an id that another text has.
  absl::Status AddRaw(std::vector<AddedToken> more);
};

// Working memory of one Encode call.
struct EncodeScratch {
  WordCache cache;
  ModelScratch model;
  std::vector<TokenId> word_ids;
};

// Lends working memory to callers, as many pieces as there are callers at a time.
// Thread-safety: Take and Return may be called from any thread.
class ScratchPool {
 public:
  std::unique_ptr<EncodeScratch> Take();
  void Return(std::unique_ptr<EncodeScratch> scratch);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<EncodeScratch>> idle_;  // guarded by mutex_
};

}  // namespace heddle::engine::text
