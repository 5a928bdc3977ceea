#include "tests/grammar/random_texts.h"

#include <string_view>
#include <utility>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "tests/grammar/testing.h"

namespace heddle::test {

using engine::TokenId;
using engine::grammar::CompiledGrammar;
using engine::grammar::IsAllowed;
using engine::grammar::Matcher;

namespace {
constexpr int kMaxTokens = 20000;  // by then a text has to have ended
}  // namespace

std::shared_ptr<const engine::grammar::Vocabulary> MakeVocabulary(std::vector<std::string> more) {
  std::vector<std::string> texts = {""};
  for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  for (std::string& text : more) texts.push_back(std::move(text));
  return std::make_shared<engine::grammar::Vocabulary>(
      static_cast<int32_t>(texts.size()),
      [&](TokenId id) { return std::string_view(texts[static_cast<size_t>(id)]); });
}

std::shared_ptr<const engine::grammar::Vocabulary> JsonVocabulary() {
  return MakeVocabulary({"{\"",      "\":",          "\": ", "\", \"",     "\"}", "},",   "],",
                         "\":\"",    ", ",           "\n  ", "name",       "id",  "true", "false",
                         "null",     "12",           "00",   "0.",         "-1",  "the ", "hello",
                         "\xC3\xA9", "\xE2\x82\xAC", "2024", "-0",         "@",   ".com", "http",
                         "://",      "[{",           "}]",   "]]",         "\"]", "[]",   "{}",
                         "\\n",      "\\u",          ",1,",  "\",\"a\",\""});
}

absl::StatusOr<std::string> RandomText(const std::shared_ptr<CompiledGrammar>& grammar,
                                       std::mt19937* random, int patience) {
  static const std::string kClosers = "\"}]0123456789aesxz";  // and what patterns ask for
  Matcher matcher(grammar);
  std::string text;
  for (int i = 0; i < kMaxTokens; ++i) {
    const auto mask = matcher.Mask();
    if (!mask.ok()) {
      return absl::InternalError(
          base::StrCat(std::string(mask.status().message()), " behind ", text));
    }
    std::vector<TokenId> allowed;
    std::vector<TokenId> closers;
    for (TokenId id = 0; id < grammar->vocabulary().size(); ++id) {
      if (!IsAllowed(**mask, id)) continue;
      allowed.push_back(id);
      const std::string_view bytes = grammar->vocabulary().text(id);
      const bool closes = bytes.size() == 1 && kClosers.find(bytes[0]) != std::string::npos;
      if (id == kEndToken || closes) closers.push_back(id);
    }
    const bool hurry = i > patience && !closers.empty() && (*random)() % 8 != 0;
    const std::vector<TokenId>& from = hurry ? closers : allowed;
    // Among the tokens that close, the end comes first.
    const TokenId token = hurry && from[0] == kEndToken ? from[0] : from[(*random)() % from.size()];
    if (!matcher.Accept(token)) {
      return absl::InternalError(base::StrCat("an allowed token is not taken behind ", text));
    }
    if (matcher.ended()) return text;
    text += grammar->vocabulary().text(token);
  }
  return absl::InternalError(
      base::StrCat("no end after ", kMaxTokens, " tokens: ", text.substr(0, 300)));
}

}  // namespace heddle::test
