#include "engine/text/token_decoder.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/strings.h"
#include "base/utf8.h"
#include "engine/text/byte_level.h"

namespace heddle::engine::text {
namespace {

std::string Strip(std::string_view left, const DecodeStep& step) {
  for (int32_t i = 0; i < step.start && left.starts_with(step.from); ++i) {
    left.remove_prefix(step.from.size());
  }
  for (int32_t i = 0; i < step.stop && left.ends_with(step.from); ++i) {
    left.remove_suffix(step.from.size());
  }
  return std::string(left);
}

// The space before some tokens goes, as the `tokenizers` library cleans up.
std::string WordPieceText(std::string_view token, const DecodeStep& step) {
  if (token.starts_with(step.from)) return std::string(token.substr(step.from.size()));
  constexpr std::string_view kWithoutSpace[] = {".",  "?",  "!",   ",",  "n't",
                                                "'m", "'s", "'ve", "'re"};
  const bool joins =
      step.start == 1 && std::any_of(std::begin(kWithoutSpace), std::end(kWithoutSpace),
                                     [&](auto begin) { return token.starts_with(begin); });
  return joins ? std::string(token) : std::string(" ").append(token);
}

std::string ApplyStep(const DecodeStep& step, std::string text) {
  switch (step.kind) {
    case DecodeStep::Kind::kByteLevel:
      return FromByteLevel(text).value_or(text);
    case DecodeStep::Kind::kByteFallback: {
      const int byte = ByteFallbackByte(text);
      return byte < 0 ? text : std::string(1, static_cast<char>(byte));
    }
    case DecodeStep::Kind::kReplace:
      return base::ReplaceAll(text, step.from, step.to);
    case DecodeStep::Kind::kWordPiece:
      return WordPieceText(text, step);
    case DecodeStep::Kind::kStrip:
      return Strip(text, step);
  }
  return text;
}

}  // namespace

std::string TokenDecoder::Apply(std::string_view token, bool is_first) const {
  std::string text(token);
  if (is_first && !drop_in_first.empty()) text = base::ReplaceAll(text, drop_in_first, "");
  for (const DecodeStep& step : steps) text = ApplyStep(step, std::move(text));
  return text;
}

TokenDecoder SentencePieceDecoder(bool strip_space) {
  TokenDecoder decoder;
  decoder.steps.push_back({DecodeStep::Kind::kReplace, "\xE2\x96\x81", " "});
  decoder.steps.push_back({DecodeStep::Kind::kByteFallback, "", ""});
  if (strip_space) {
    decoder.strip_left.assign(1, ' ');
    decoder.strip_left_count = 1;
  }
  return decoder;
}

TokenDecoder ByteLevelDecoder() {
  TokenDecoder decoder;
  decoder.steps.push_back({DecodeStep::Kind::kByteLevel, "", ""});
  return decoder;
}

}  // namespace heddle::engine::text
