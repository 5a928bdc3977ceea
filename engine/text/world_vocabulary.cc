#include "engine/text/world_vocabulary.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "absl/strings/numbers.h"
#include "base/message.h"
#include "base/status.h"
#include "base/utf8.h"
#include "engine/text/byte_level.h"
#include "engine/text/vocabulary_lines.h"

namespace heddle::engine::text {
namespace {

constexpr TokenId kEndOfText = 0;

// Ids that a vocabulary may leave out; the published ones leave out none.
constexpr int64_t kMaxHoles = 1 << 10;

// The number of hexadecimal digits behind an escape's letter; 0: none are.
size_t DigitsOf(char letter, bool is_text) {
  if (letter == 'x') return 2;
  if (is_text && letter == 'u') return 4;
  return is_text && letter == 'U' ? 8 : 0;
}

bool AppendCodePoint(uint32_t code, std::string* out) {
  if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
  base::AppendUtf8(static_cast<char32_t>(code), out);
  return true;
}

struct Line {
  int64_t id = -1;
  std::string_view literal;
  int64_t size = 0;
};

bool SplitLine(std::string_view text, Line* line) {
  const size_t first = text.find(' ');
  const size_t last = text.rfind(' ');
  if (first == std::string_view::npos || first == last) return false;
  line->literal = text.substr(first + 1, last - first - 1);
  return absl::SimpleAtoi(base::AbslView(text.substr(0, first)), &line->id) &&
         absl::SimpleAtoi(base::AbslView(text.substr(last + 1)), &line->size);
}

// The bytes of 'text', "text", b'bytes' or b"bytes".
std::optional<std::string> ParseLiteral(std::string_view literal) {
  const bool is_text = !literal.starts_with('b');
  if (!is_text) literal.remove_prefix(1);
  if (literal.size() < 2 || literal.front() != literal.back() ||
      (literal.front() != '\'' && literal.front() != '"')) {
    return std::nullopt;
  }
  return Unescape(literal.substr(1, literal.size() - 2), is_text);
}

}  // namespace

void LongestMatch::EncodeWord(std::string_view word, ModelScratch* /*scratch*/,
                              std::vector<TokenId>* out) const {
  for (size_t at = 0; at < word.size();) {
    int32_t token = ByteTrie::kNoValue;
    size_t size = 1;
    uint32_t node = ByteTrie::kRoot;
    for (size_t i = at; i < word.size(); ++i) {
      node = trie_.Child(node, static_cast<unsigned char>(word[i]));
      if (node == ByteTrie::kNoNode) break;
      if (trie_.Value(node) == ByteTrie::kNoValue) continue;
      token = trie_.Value(node);
      size = i + 1 - at;
    }
    if (token != ByteTrie::kNoValue) out->push_back(token);
    at += size;
  }
}

std::optional<std::string> Unescape(std::string_view text, bool is_text) {
  std::string bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      bytes.push_back(text[i]);
      continue;
    }
    if (++i == text.size()) return std::nullopt;
    const char letter = text[i];
    if (const size_t digits = DigitsOf(letter, is_text); digits > 0) {
      uint32_t code = 0;
      if (i + digits >= text.size()) return std::nullopt;
      const char* const begin = text.data() + i + 1;
      const auto [end, error] = std::from_chars(begin, begin + digits, code, 16);
      if (error != std::errc() || end != begin + digits) return std::nullopt;
      i += digits;
      if (!is_text) {
        bytes.push_back(static_cast<char>(code));
      } else if (!AppendCodePoint(code, &bytes)) {
        return std::nullopt;
      }
      continue;
    }
    constexpr std::string_view kLetters = "tnr";
    constexpr std::string_view kMeanings = "\t\n\r";
    const size_t known = kLetters.find(letter);
    bytes.push_back(known == std::string_view::npos ? letter : kMeanings[known]);
  }
  return bytes;
}

absl::StatusOr<TokenizerParts> BuildWorld(const std::vector<WorldToken>& tokens, int64_t limit,
                                          const std::string& place) {
  TokenizerParts parts;
  parts.byte_level = true;
  parts.decoder = ByteLevelDecoder();
  parts.tokens = TokenTable(limit);
  std::vector<ByteTrie::Entry> entries;
  for (const WorldToken& token : tokens) {
    if (token.id == kEndOfText || token.bytes.empty()) {
      return absl::InvalidArgumentError(base::StrCat(
          place, ": token ", token.id, " is empty, or in the place of the end of a text"));
    }
    if (token.bytes.size() > kMaxTriedBytes) {
      return absl::InvalidArgumentError(base::StrCat(place, ": token ", token.id, " has ",
                                                     token.bytes.size(), " bytes, the limit is ",
                                                     kMaxTriedBytes));
    }
    if (absl::Status added = parts.tokens.Add(token.id, ToByteLevel(token.bytes)); !added.ok()) {
      return absl::InvalidArgumentError(base::StrCat(place, ": ", std::string(added.message())));
    }
    entries.push_back({token.bytes, token.id});
  }
  if (entries.empty()) return absl::InvalidArgumentError(base::StrCat(place, ": no tokens"));
  parts.model = std::make_unique<LongestMatch>(std::move(entries));
  parts.bos = kEndOfText;
  parts.eos = {kEndOfText};
  parts.end_of_text = kEndOfText;
  parts.tokens.Finish(parts.decoder);
  return parts;
}

absl::StatusOr<TokenizerParts> ParseWorldVocabulary(std::string_view text,
                                                    const std::string& place) {
  std::vector<WorldToken> tokens;
  HEDDLE_RETURN_IF_ERROR(ForEachLine(text, [&](size_t number, std::string_view one) {
    Line line;
    std::optional<std::string> bytes;
    if (SplitLine(one, &line)) bytes = ParseLiteral(line.literal);
    const bool fits = bytes.has_value() && static_cast<int64_t>(bytes->size()) == line.size &&
                      line.id > 0 && line.id < kMaxVocabSize;
    if (!fits) {
      return absl::InvalidArgumentError(base::StrCat(
          place, ", line ", number,
          ": expected an id above 0, a token in quotes and the number of its bytes, found ",
          base::Quote(one)));
    }
    tokens.push_back({static_cast<TokenId>(line.id), *std::move(bytes)});
    return absl::OkStatus();
  }));
  const int64_t limit = static_cast<int64_t>(tokens.size()) + 1 + kMaxHoles;
  HEDDLE_ASSIGN_OR_RETURN(TokenizerParts parts, BuildWorld(tokens, limit, place));
  const absl::Status added = parts.AddRaw(
      {{.id = kEndOfText, .content = "<|rwkv_tokenizer_end_of_text|>", .special = true}});
  if (!added.ok()) return absl::InvalidArgumentError(base::StrCat(place, ": ", added.message()));
  return parts;
}

}  // namespace heddle::engine::text
