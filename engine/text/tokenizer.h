// Text to token ids and back, for one model. A tokenizer is a pipeline of standard parts, whatever
// file it came from: added tokens are cut out of the text, the rest is normalised and cut into
// words, and the model (BPE or Unigram) encodes each word; a template adds BOS and EOS.
//
// Sources: tokenizer.json as the Hugging Face `tokenizers` library 0.23 reads it; SentencePiece's
// sentencepiece_model.proto; tiktoken's rank files; GGUF's `tokenizer.ggml.*` keys.
// Thread-safety: immutable after loading; every const method may run on any number of threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/ids.h"

namespace heddle::engine {
class GgufFile;
}

namespace heddle::engine::text {

struct EncodeOptions {
  bool add_special = true;    // add BOS, EOS or other tokens of the model's template
  bool parse_special = true;  // `<|im_end|>` in the text is the token; otherwise it is plain text
};

// A token that is cut out of the text before all else.
struct AddedToken {
  TokenId id = -1;
  std::string content;
  bool special = false;      // control token: not text, skipped when asked
  bool normalized = false;   // searched in the normalised text instead of the raw one
  bool lstrip = false;       // includes the white space before it
  bool rstrip = false;       // includes the white space behind it
  bool single_word = false;  // only where no word character touches it
};

// The tokens around two texts that are read as one.
struct PairTemplate {
  bool is_known = false;  // false: the files say nothing of pairs, or what is not read here
  std::vector<TokenId> before;
  std::vector<TokenId> between;
  std::vector<TokenId> behind;
  bool types_differ = false;  // tokens from the second text on have the type 1
  // One text with "{query}" and "{document}" in their places, and the model's own tokens around
  // them; where it is not empty, the lists of tokens are.
  std::string text = {};
};

struct TokenizerParts;
class ScratchPool;

class Tokenizer {
 public:
  explicit Tokenizer(TokenizerParts parts);  // the loaders below make the parts
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Appends the ids of `text` to `*out`. Any bytes are allowed: a byte-level tokenizer encodes
  // bytes that are not UTF-8 as they are, any other reads U+FFFD in their place. RESOURCE_EXHAUSTED
  // if a pattern of the tokenizer takes too much work on this text, INVALID_ARGUMENT for a text
  // above 1 GiB; `*out` may then have grown.
  absl::Status Encode(std::string_view text, const EncodeOptions& options,
                      std::vector<TokenId>* out) const;

  // The result is well-formed UTF-8: ill-formed parts become U+FFFD. Ids outside the vocabulary add
  // nothing. `skip_special` leaves special tokens out.
  std::string Decode(std::span<const TokenId> ids, bool skip_special) const;

  // The bytes that `id` contributes to a text (not at its start, where a space may be dropped);
  // possibly a part of a code point. Empty for an id outside the vocabulary.
  std::string_view TokenBytes(TokenId id) const;
  // The token as the vocabulary writes it.
  std::string_view TokenText(TokenId id) const;
  bool IsSpecial(TokenId id) const;
  std::optional<TokenId> Find(std::string_view token_text) const;
  // One more than the highest id; some ids below may be unused.
  int32_t vocab_size() const;

  std::optional<TokenId> bos_id() const;
  // Each of them ends an answer; the one that the files call EOS is first.
  const std::vector<TokenId>& eos_ids() const;
  // Whether Encode with add_special begins a text with BOS: chat templates that write BOS
  // themselves are encoded without add_special.
  bool add_bos() const;
  std::span<const AddedToken> added_tokens() const;
  // The tokens that Encode with add_special puts behind a text.
  std::span<const TokenId> suffix() const;
  const PairTemplate& pair() const;
  // The Jinja source that came with the tokenizer; empty if there is none.
  const std::string& chat_template() const;

 private:
  friend class IncrementalDetokenizer;

  std::unique_ptr<const TokenizerParts> parts_;
  std::unique_ptr<ScratchPool> scratch_;
};

// Loads from a model folder (tokenizer.json if there is one, else tokenizer.model, else a
// *.tiktoken file, else the only .gguf file; with tokenizer_config.json, generation_config.json and
// chat_template.jinja beside it), or from one such file. Any error names the file and says what was
// found and what was expected.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::filesystem::path& path);

// Loads from a GGUF file that is already open.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadGgufTokenizer(const GgufFile& file);

}  // namespace heddle::engine::text
