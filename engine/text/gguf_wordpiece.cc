#include "engine/text/gguf_wordpiece.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/text/wordpiece.h"

namespace heddle::engine::text {
namespace {

constexpr std::string_view kInside = "##";

// The token's usual text. Older converters keep the text of all tokens in brackets.
std::string UsualText(const WordPieceEntry& entry) {
  const std::string_view text = entry.text;
  if (entry.is_special) return std::string(text);
  if (text.starts_with(kMetaspace)) return std::string(text.substr(kMetaspace.size()));
  if (text.size() > 2 && text.front() == '[' && text.back() == ']') return std::string(text);
  return std::string(kInside).append(text);
}

bool HasUpperCase(std::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_isupper(static_cast<unsigned char>(c)); });
}

std::unique_ptr<PreTokenizer> BertWords() {
  std::vector<std::unique_ptr<PreTokenizer>> both;
  both.push_back(NewCharSplit(CharKind::kWhiteSpace, SplitBehavior::kRemoved));
  both.push_back(NewCharSplit(CharKind::kPunctuation, SplitBehavior::kIsolated));
  return NewSequence(std::move(both));
}

TokenDecoder BertDecoder() {
  TokenDecoder decoder;
  decoder.strip_left.assign(1, ' ');
  decoder.strip_left_count = 1;
  decoder.steps.push_back({DecodeStep::Kind::kWordPiece, std::string(kInside), "", /*start=*/1});
  return decoder;
}

}  // namespace

absl::StatusOr<TokenizerParts> BuildGgufWordPiece(std::span<const WordPieceEntry> entries,
                                                  WordPieceIds ids, const std::string& place) {
  const auto fail = [&place](std::string_view what) {
    return absl::InvalidArgumentError(base::StrCat(place, ": ", what));
  };
  TokenizerParts parts;
  parts.tokens = TokenTable(static_cast<int64_t>(entries.size()));
  bool is_cased = false;
  for (size_t i = 0; i < entries.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    const std::string text = UsualText(entries[i]);
    if (absl::Status added = parts.tokens.AddPossiblyTwice(id, text); !added.ok()) {
      return fail(std::string(added.message()));
    }
    if (entries[i].is_special) {
      parts.added.push_back({.id = id, .content = text, .special = true});
    } else if (!text.starts_with('[')) {
      is_cased = is_cased || HasUpperCase(text);
    }
  }
  const std::pair<TokenId*, std::string_view> needed[] = {
      {&ids.begin, "[CLS]"}, {&ids.end, "[SEP]"}, {&ids.unknown, "[UNK]"}};
  for (const auto& [id, text] : needed) {
    if (*id < 0) *id = parts.tokens.Find(text).value_or(-1);
    if (*id < 0) return fail(base::StrCat("the vocabulary has no token ", text));
  }
  parts.decoder = BertDecoder();
  parts.tokens.Finish(parts.decoder);
  BertRules rules;
  rules.lowercases = rules.removes_accents = !is_cased;
  parts.normalizer = NewBertNormalizer(rules);
  parts.pre_tokenizer = BertWords();
  HEDDLE_RETURN_IF_ERROR(parts.IndexAdded());
  std::vector<std::pair<std::string_view, TokenId>> tokens;
  tokens.reserve(static_cast<size_t>(parts.tokens.size()));
  for (TokenId id = 0; id < parts.tokens.size(); ++id) {
    tokens.emplace_back(parts.tokens.Text(id), id);
  }
  parts.model = std::make_unique<WordPiece>(tokens, WordPieceOptions{.unk_id = ids.unknown});
  parts.prefix = {ids.begin};
  parts.suffix = {ids.end};
  return parts;
}

}  // namespace heddle::engine::text
