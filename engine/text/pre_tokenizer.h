// Cuts normalised text into the words that the model encodes one by one. A stage hands each piece
// to the next as soon as it has found it, so a chain of stages allocates nothing unless a stage
// rewrites the text.
//
// Source: the pre-tokenizers of the Hugging Face `tokenizers` library. Pieces are never empty. The
// ByteLevel stage does not rewrite bytes in the byte alphabet, because the models here work on
// bytes.
// Thread-safety: immutable after construction.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "engine/text/regex.h"
#include "engine/text/regex_scanners.h"
#include "engine/text/work_budget.h"

namespace heddle::engine::text {

inline constexpr std::string_view kMetaspace = "\xE2\x96\x81";  // U+2581

struct Piece {
  std::string_view text;         // well-formed UTF-8; valid during the call that it is passed to
  bool at_start;                 // begins where the user's text begins
  WorkBudget* budget = nullptr;  // the whole text's budget; may be null
};
using PieceSink = absl::FunctionRef<absl::Status(Piece)>;

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Stops at, and returns, the first error of the sink or of a regular expression, also if the
  // piece's budget is used up.
  virtual absl::Status Split(Piece piece, PieceSink sink) const = 0;
};

// Treatment of the matches of a splitting pattern.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

std::unique_ptr<PreTokenizer> NewSequence(std::vector<std::unique_ptr<PreTokenizer>> stages);

// `invert`: the parts that the pattern does not match count as matches.
std::unique_ptr<PreTokenizer> NewRegexSplit(Regex regex, SplitBehavior behavior, bool invert);
// Every match is a piece, and so would be every gap, but there are none.
std::unique_ptr<PreTokenizer> NewScannerSplit(const ScannerSpec& spec);

enum class CharKind { kDigit, kPunctuation, kWhiteSpace };
// Each code point of that kind is a match.
std::unique_ptr<PreTokenizer> NewCharSplit(CharKind kind, SplitBehavior behavior);

enum class Prepend { kAlways, kFirst, kNever };  // kFirst: only at the start of the user's text
// Writes spaces as `replacement`, puts one in front, and cuts before each if `split`.
std::unique_ptr<PreTokenizer> NewMetaspace(std::string replacement, Prepend prepend, bool split);
// Cuts before runs of U+2581. It is for models whose tokens never extend beyond such a place:
// results do not change, and words become short enough to be cached.
std::unique_ptr<PreTokenizer> NewMetaspaceBoundaries();

// Puts a space in front of text that has none.
std::unique_ptr<PreTokenizer> NewPrefixSpace();
// Runs `inner`, which must not rewrite text, on the text written in the byte alphabet, and cuts the
// bytes at the same places.
std::unique_ptr<PreTokenizer> NewOnByteAlphabet(std::unique_ptr<PreTokenizer> inner);

}  // namespace heddle::engine::text
