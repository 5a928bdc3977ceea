#include "tests/grammar/random_texts.h"

#include <algorithm>
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

constexpr int kMaxTokens = 20000;        // by then a text has to have ended
constexpr size_t kMaxWayPlaces = 20000;  // of a search for a place where something may close

// Whether the text may end, or a quotation mark may come, or a bracket that closes and is not
// merely a character of a string.
bool MayClose(const engine::grammar::TokenMask& mask) {
  const auto allows = [&mask](char byte) { return IsAllowed(mask, ByteToken(byte)); };
  const bool in_string = allows('q') || allows('~');
  if (!in_string && (allows('u') || allows('\\') || allows('/'))) return false;  // in an escape
  return IsAllowed(mask, kEndToken) || allows('"') || (!in_string && (allows('}') || allows(']')));
}

// The fewest bytes behind which a string, object, array or the text may end, as tokens, the
// last one first; empty if it may end at once or no such place is found. Without it a text of "any
// characters, then ${{" would hardly ever come to the mark that lets it end.
std::vector<TokenId> WayToClose(const Matcher& matcher) {
  struct Place {
    Matcher matcher;
    size_t before;
    TokenId token;
  };
  std::vector<Place> places = {{matcher, 0, -1}};
  // A mask is shared by all places with one context, and the places keep them alive.
  std::vector<std::shared_ptr<const engine::grammar::TokenMask>> seen;
  for (size_t at = 0; at < places.size(); ++at) {
    const auto mask = places[at].matcher.Mask();
    if (!mask.ok() || std::find(seen.begin(), seen.end(), *mask) != seen.end()) continue;
    seen.push_back(*mask);
    if (MayClose(**mask)) {
      std::vector<TokenId> way;
      for (size_t i = at; i != 0; i = places[i].before) way.push_back(places[i].token);
      return way;
    }
    for (int byte = 0; byte < 256; ++byte) {
      const TokenId token = ByteToken(static_cast<char>(byte));
      if (places.size() > kMaxWayPlaces) break;
      if (!IsAllowed(**mask, token)) continue;
      Place next = {places[at].matcher, at, token};
      if (next.matcher.Accept(token)) places.push_back(std::move(next));
    }
  }
  return {};
}

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
  std::vector<TokenId> way;  // tokens to a place where something closes, the last one first
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
    TokenId token = hurry && from[0] == kEndToken ? from[0] : from[(*random)() % from.size()];
    // Not always: the nearest end of a listed string may be the one that does not help.
    if (i > patience && way.empty() && !MayClose(**mask) && (*random)() % 16 == 0) {
      way = WayToClose(matcher);
    }
    if (!way.empty()) {
      token = way.back();
      way.pop_back();
    }
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
