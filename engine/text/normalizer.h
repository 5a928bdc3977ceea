// Rewrites text before it is cut into words.
// Source: the normalizers of the Hugging Face `tokenizers` library and of SentencePiece.
// Thread-safety: immutable after construction.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/text/charsmap.h"
#include "engine/text/regex.h"
#include "engine/text/unicode.h"

namespace heddle::engine::text {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Rewrites well-formed UTF-8 in place. RESOURCE_EXHAUSTED if a regular expression runs away, or
  // the text grows beyond kMaxNormalizedGrowth times its size.
  virtual absl::Status Apply(std::string* text) const = 0;
};

// A code point becomes 18 (NFKD of U+FDFA) at most in Unicode's own mappings; replacement rules of
// a file may grow text further, within reason.
inline constexpr size_t kMaxNormalizedGrowth = 64;

std::unique_ptr<Normalizer> NewNormalizerSequence(std::vector<std::unique_ptr<Normalizer>> steps);
std::unique_ptr<Normalizer> NewUnicodeNormalizer(NormalForm form);
std::unique_ptr<Normalizer> NewLowercase();
std::unique_ptr<Normalizer> NewRemoveMarks();
std::unique_ptr<Normalizer> NewStrip(bool left, bool right);
// In front of text that is not empty.
std::unique_ptr<Normalizer> NewPrepend(std::string prefix);
std::unique_ptr<Normalizer> NewReplace(std::string from, std::string to);
std::unique_ptr<Normalizer> NewReplaceMatches(Regex from, std::string to);
// The `Precompiled` normalizer of tokenizer.json: by user-perceived characters.
std::unique_ptr<Normalizer> NewPrecompiled(Charsmap charsmap);

// What SentencePiece does to text, by its NormalizerSpec.
struct SentencePieceRules {
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  bool treat_whitespace_as_suffix = false;
  Charsmap charsmap;                      // may be empty
  std::vector<std::string> user_defined;  // kept as they are
};
std::unique_ptr<Normalizer> NewSentencePieceNormalizer(SentencePieceRules rules);

}  // namespace heddle::engine::text
