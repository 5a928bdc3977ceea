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
#include "engine/text/work_budget.h"

namespace heddle::engine::text {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Rewrites well-formed UTF-8 in place. RESOURCE_EXHAUSTED if a regular expression takes too much
  // work, or if the budget is used up; the text is then lost.
  virtual absl::Status Rewrite(std::string* text, WorkBudget* budget) const = 0;
  // Rewrites within the budget for a text of its size.
  absl::Status Apply(std::string* text) const {
    WorkBudget budget = WorkBudget::For(text->size());
    return Rewrite(text, &budget);
  }
};

std::unique_ptr<Normalizer> NewNormalizerSequence(std::vector<std::unique_ptr<Normalizer>> steps);
std::unique_ptr<Normalizer> NewUnicodeNormalizer(NormalForm form);
std::unique_ptr<Normalizer> NewLowercase();
std::unique_ptr<Normalizer> NewRemoveMarks();
std::unique_ptr<Normalizer> NewStrip(bool left, bool right);
// Puts `prefix` in front of a text that is not empty.
std::unique_ptr<Normalizer> NewPrepend(std::string prefix);
std::unique_ptr<Normalizer> NewReplace(std::string from, std::string to);
std::unique_ptr<Normalizer> NewReplaceMatches(Regex from, std::string to);
// The `Precompiled` normalizer of tokenizer.json, which works on user-perceived characters.
std::unique_ptr<Normalizer> NewPrecompiled(Charsmap charsmap);

// Steps of BERT's normalizer, in this order.
struct BertRules {
  bool cleans = true;  // drops control characters and makes white space spaces
  bool separates_ideographs = true;
  bool removes_accents = true;
  bool lowercases = true;
};
std::unique_ptr<Normalizer> NewBertNormalizer(const BertRules& rules);

// SentencePiece's normalisation, by its NormalizerSpec.
struct SentencePieceRules {
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  bool treat_whitespace_as_suffix = false;
  Charsmap charsmap;                      // may be empty
  std::vector<std::string> user_defined;  // symbols that are kept as they are
};
std::unique_ptr<Normalizer> NewSentencePieceNormalizer(SentencePieceRules rules);

}  // namespace heddle::engine::text
