// tiktoken's rank files. Source: github.com/openai/tiktoken, `tiktoken/load.py`: each line is the
// base64 of a token's bytes, a space, and its rank, which is also its id.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/text/bpe_vocabulary.h"
#include "engine/text/byte_level.h"
#include "engine/text/loaders.h"
#include "engine/text/vocabulary_lines.h"

namespace heddle::engine::text {
namespace {

struct Line {
  std::string bytes;
  int64_t rank = 0;
};

bool ParseLine(std::string_view text, Line* line) {
  const size_t space = text.find(' ');
  return space != std::string_view::npos &&
         absl::Base64Unescape(base::AbslView(text.substr(0, space)), &line->bytes) &&
         !line->bytes.empty() &&
         absl::SimpleAtoi(base::AbslView(text.substr(space + 1)), &line->rank);
}

absl::StatusOr<std::vector<Line>> ParseLines(std::string_view text, const std::string& place) {
  std::vector<Line> lines;
  HEDDLE_RETURN_IF_ERROR(ForEachLine(text, [&](size_t number, std::string_view one) {
    if (ParseLine(one, &lines.emplace_back())) return absl::OkStatus();
    return absl::InvalidArgumentError(base::StrCat(
        place, ", line ", number, ": expected base64 and a rank, found ", base::Quote(one)));
  }));
  if (lines.empty()) return absl::InvalidArgumentError(base::StrCat(place, ": no tokens"));
  return lines;
}

}  // namespace

absl::StatusOr<TokenizerParts> ParseTiktoken(std::string_view text, std::string_view pattern,
                                             const std::string& place) {
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<Line> lines, ParseLines(text, place));
  TokenizerParts parts;
  parts.byte_level = true;
  parts.decoder = ByteLevelDecoder();
  parts.tokens = TokenTable(static_cast<int64_t>(lines.size()) + (1 << 16));
  std::vector<RankedToken> ranked;
  for (const Line& line : lines) {
    // The table writes tokens in the byte alphabet, as tokenizer.json does.
    const absl::Status added = parts.tokens.Add(line.rank, ToByteLevel(line.bytes));
    if (!added.ok()) {
      return absl::InvalidArgumentError(base::StrCat(place, ": ", added.message()));
    }
    ranked.push_back(
        {line.bytes, static_cast<TokenId>(line.rank), static_cast<uint32_t>(line.rank), false});
  }
  BpeVocabulary vocabulary;
  vocabulary.vocab_size = parts.tokens.size();
  vocabulary.byte_level = true;
  // tiktoken looks up the whole word as a token before any merge.
  for (const RankedToken& token : ranked) {
    vocabulary.whole_words.emplace(std::string(token.text), token.id);
  }
  parts.model = std::make_unique<Bpe>(BuildRankedBpe(ranked, std::move(vocabulary)));
  if (const auto scanner = FindScanner(pattern)) {
    parts.pre_tokenizer = NewScannerSplit(*scanner);
  } else {
    HEDDLE_ASSIGN_OR_RETURN(Regex regex, Regex::Compile(pattern));
    parts.pre_tokenizer = NewRegexSplit(std::move(regex), SplitBehavior::kIsolated, false);
  }
  parts.tokens.Finish(parts.decoder);
  return parts;
}

}  // namespace heddle::engine::text
