// Cuts normalised text into the words that the model encodes one by one. A stage hands each of its
// pieces to the next as soon as it has found it, so that a chain of stages allocates nothing unless
// a stage rewrites the text.
//
// Source: the pre-tokenizers of the Hugging Face `tokenizers` library. Pieces are never empty. The
// ByteLevel stage does not rewrite bytes in the byte alphabet: the models here work on bytes.
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

namespace heddle::engine::text {

inline constexpr std::string_view kMetaspace = "\xE2\x96\x81";  // U+2581

struct Piece {
  std::string_view text;  // well-formed UTF-8; valid during the call that it is passed to
  bool at_start;          // begins where the user's text begins
};
using PieceSink = absl::FunctionRef<absl::Status(Piece)>;

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Stops at the first error of the sink or of a regular expression, and returns it.
  virtual absl::Status Split(Piece piece, PieceSink sink) const = 0;
};

// What becomes of the matches of a splitting pattern.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

std::unique_ptr<PreTokenizer> NewSequence(std::vector<std::unique_ptr<PreTokenizer>> stages);

// `invert`: what the pattern does not match counts as the match.
std::unique_ptr<PreTokenizer> NewRegexSplit(Regex regex, SplitBehavior behavior, bool invert);
// Every match and (there are none) every gap is a piece.
std::unique_ptr<PreTokenizer> NewScannerSplit(const ScannerSpec& spec);

enum class CharKind { kDigit, kPunctuation, kWhiteSpace };
// Each code point of that kind is a match.
std::unique_ptr<PreTokenizer> NewCharSplit(CharKind kind, SplitBehavior behavior);

enum class Prepend { kAlways, kFirst, kNever };  // kFirst: only at the start of the user's text
// Writes spaces as `replacement`, puts one in front, and cuts before each if `split`.
std::unique_ptr<PreTokenizer> NewMetaspace(std::string replacement, Prepend prepend, bool split);
// Cuts before runs of U+2581. For models whose tokens never go on past such a place: it changes no
// result, and makes words short enough to be remembered.
std::unique_ptr<PreTokenizer> NewMetaspaceBoundaries();

// Puts a space in front of text that has none.
std::unique_ptr<PreTokenizer> NewPrefixSpace();
// Runs `inner` on the text written in the byte alphabet, and cuts the bytes where it cut that.
// `inner` must not rewrite text.
std::unique_ptr<PreTokenizer> NewOnByteAlphabet(std::unique_ptr<PreTokenizer> inner);

}  // namespace heddle::engine::text
