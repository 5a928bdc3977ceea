// Text of one choice: stop strings, code points and log-probabilities, however the tokens come.
#include "server/text/choice.h"

#include <random>
#include <string>

#include "base/utf8.h"
#include "catch2/catch.hpp"
#include "tests/server/byte_codec.h"

namespace heddle::test {
namespace {

using server::Choice;
using server::ChoiceDelta;
using server::StopScanner;

std::vector<engine::SampledToken> Tokens(std::string_view text) {
  std::vector<engine::SampledToken> tokens;
  for (TokenId id : Bytes(text)) {
    engine::SampledToken token{};
    token.token = id;
    tokens.push_back(token);
  }
  return tokens;
}

// The pieces that a scanner lets out, one entry per piece pushed.
std::vector<std::string> Scan(const std::vector<std::string>& stops,
                              const std::vector<std::string>& pieces, bool* found = nullptr) {
  StopScanner scanner(stops);
  std::vector<std::string> out;
  bool stopped = false;
  for (const std::string& piece : pieces) {
    stopped = scanner.Push(piece, &out.emplace_back());
    if (stopped) break;
  }
  if (!stopped) scanner.Flush(&out.emplace_back());
  if (found != nullptr) *found = stopped;
  return out;
}

TEST_CASE("Text that may begin a stop string waits, and comes out when it does not", "[openai]") {
  bool found = false;
  CHECK(Scan({"END"}, {"abE", "N", "x"}, &found) == std::vector<std::string>{"ab", "", "ENx", ""});
  CHECK_FALSE(found);
  CHECK(Scan({"END"}, {"abE", "ND rest"}, &found) == std::vector<std::string>{"ab", ""});
  CHECK(found);
  CHECK(Scan({"END"}, {"EN"}) == std::vector<std::string>{"", "EN"});
}

TEST_CASE("A stop string that overlaps its own beginning is found", "[openai]") {
  bool found = false;
  CHECK(Scan({"aab"}, {"a", "a", "a", "b"}, &found) == std::vector<std::string>{"", "", "a", ""});
  CHECK(found);
}

TEST_CASE("The stop string that is complete first wins, whatever the pieces", "[openai]") {
  // "bc" ends before "abcd" does; of "d" and "cd" both end at once and the longer counts.
  CHECK(Scan({"abcd", "bc"}, {"xabcd"}) == std::vector<std::string>{"xa"});
  CHECK(Scan({"d", "cd"}, {"abcd"}) == std::vector<std::string>{"ab"});
}

TEST_CASE("Text, logprobs and counts are the same however events cut the tokens", "[openai]") {
  const std::string text = "na\xC3\xAFve caf\xC3\xA9 \xF0\x9F\x8E\x89 <<stop now";
  const std::vector<std::string> stops = {"<<stop", "<<st0p"};
  ByteCodec codec;
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    Choice choice(codec.NewStream(true, {}), {stops, {}, 0, /*keep_tokens=*/true, 0});
    ChoiceDelta whole;
    for (size_t at = 0; at < text.size() && !choice.stopped();) {
      size_t length = 1 + random() % 5;
      ChoiceDelta delta;
      choice.Push(Tokens(text.substr(at, length)), &delta);
      CHECK(base::IsValidUtf8(delta.text));
      whole.text += delta.text;
      whole.tokens.insert(whole.tokens.end(), delta.tokens.begin(), delta.tokens.end());
      at += length;
    }
    REQUIRE(choice.stopped());
    CHECK(whole.text == "na\xC3\xAFve caf\xC3\xA9 \xF0\x9F\x8E\x89 ");
    CHECK(whole.tokens.size() == whole.text.size());  // a token per byte, none of the stop string
    CHECK(choice.generated_tokens() == 24);           // 18 bytes before it and 6 of it
  }
}

TEST_CASE("Tokens come out with the chunk that holds their text", "[openai]") {
  ByteCodec codec;
  const std::vector<std::string> stops = {"##"};
  Choice choice(codec.NewStream(true, {}), {stops, {}, 0, true, 0});
  ChoiceDelta held;
  choice.Push(Tokens("#"), &held);
  CHECK(held.empty());
  ChoiceDelta half;
  choice.Push(Tokens("\xC3"), &half);  // the first byte of two: no text yet, so '#' waits too
  CHECK(half.empty());
  ChoiceDelta rest;
  choice.Push(Tokens("\xA9"), &rest);
  CHECK(rest.text == "#\xC3\xA9");
  REQUIRE(rest.tokens.size() == 3);
  CHECK(rest.tokens[1].text_offset == 1);
}

TEST_CASE("A text that ends inside a code point ends in U+FFFD", "[openai]") {
  ByteCodec codec;
  Choice choice(codec.NewStream(true, {}), {{}, {}, 0, false, 0});
  ChoiceDelta delta;
  choice.Push(Tokens("a\xE2\x82"), &delta);
  CHECK(delta.text == "a");
  choice.Finish(&delta);
  CHECK(delta.text == "a\xEF\xBF\xBD");
}

TEST_CASE("A stop token gives no text and no logprob, and is counted", "[openai]") {
  ByteCodec codec;
  const std::vector<TokenId> stop_tokens = {'!'};
  Choice choice(codec.NewStream(true, {}), {{}, stop_tokens, 0, true, 0});
  ChoiceDelta delta;
  choice.Push(Tokens("hi!"), &delta);
  choice.Finish(&delta);
  CHECK(delta.text == "hi");
  CHECK(delta.tokens.size() == 2);
  CHECK(choice.generated_tokens() == 3);
}

TEST_CASE("Stop strings do not count before min_tokens", "[openai]") {
  ByteCodec codec;
  const std::vector<std::string> stops = {"."};
  Choice choice(codec.NewStream(true, {}), {stops, {}, /*min_tokens=*/4, false, 0});
  ChoiceDelta delta;
  CHECK(choice.Push(Tokens("a.b.c"), &delta));
  CHECK(delta.text == "a.b");  // the fourth token may end it
}

}  // namespace
}  // namespace heddle::test
