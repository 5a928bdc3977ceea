#include "engine/text/detokenizer.h"

#include <string>
#include <vector>

#include "base/utf8.h"
#include "catch2/catch.hpp"
#include "engine/text/tokenizer.h"
#include "tests/text/tokenizer/golden_tokenizer.h"
#include "tests/text/tokenizer/random_text.h"

namespace heddle::engine::text {
namespace {

// Whether each piece is well-formed is checked on the way.
std::string DecodeInSteps(const Tokenizer& tokenizer, const std::vector<TokenId>& ids,
                          bool skip_special) {
  IncrementalDetokenizer detokenizer(&tokenizer, skip_special);
  std::string text;
  for (const TokenId id : ids) {
    const std::string_view piece = detokenizer.Append(id);
    REQUIRE(base::IsValidUtf8(piece));
    text.append(piece);
  }
  const std::string_view rest = detokenizer.Flush();
  REQUIRE(base::IsValidUtf8(rest));
  return text.append(rest);
}

TEST_CASE("Streamed text equals whole-text decoding for any ids", "[text][unit]") {
  const char* name = GENERATE("falcon_like.json", "unigram_bytes.json", "unigram.json",
                              "spm_bpe.model", "spm_unigram.model", "added_tokens.json");
  const auto tokenizer = GoldenTokenizer(name);
  SplitMix64 random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<TokenId> ids;
    const uint64_t count = random.Below(30);
    for (uint64_t i = 0; i < count; ++i) {
      // Some ids below and above the vocabulary: they say nothing.
      ids.push_back(
          static_cast<TokenId>(random.Below(static_cast<uint64_t>(tokenizer->vocab_size()) + 4)) -
          2);
    }
    const bool skip = round % 2 == 0;
    const std::string whole = tokenizer->Decode(ids, skip);
    CHECK(base::IsValidUtf8(whole));
    CHECK(DecodeInSteps(*tokenizer, ids, skip) == whole);
  }
}

TEST_CASE("Text comes back from its ids", "[text][unit]") {
  const char* name = GENERATE("falcon_like.json", "spm_bpe.model", "cl100k.json");
  const auto tokenizer = GoldenTokenizer(name);
  const bool is_lossy = std::string_view(name) == "spm_bpe.model";  // it normalises
  for (uint64_t i = 0; i < 500; ++i) {
    const std::string text = is_lossy ? "Hello world, it's 5 o'clock" : RandomText(i);
    std::vector<TokenId> ids;
    REQUIRE(tokenizer->Encode(text, {.add_special = false, .parse_special = false}, &ids).ok());
    CHECK(DecodeInSteps(*tokenizer, ids, false) == text);
    if (is_lossy) break;
  }
}

TEST_CASE("An unfinished code point waits, and becomes U+FFFD when nothing follows",
          "[text][unit]") {
  const auto tokenizer = GoldenTokenizer("falcon_like.json");
  std::vector<TokenId> ids;
  REQUIRE(tokenizer->Encode("\xF0\x9F\xA6\x99", {.add_special = false}, &ids).ok());
  REQUIRE(ids.size() > 1);
  IncrementalDetokenizer detokenizer(tokenizer.get(), true);
  for (size_t i = 0; i + 1 < ids.size(); ++i) CHECK(detokenizer.Append(ids[i]).empty());
  CHECK(detokenizer.Append(ids.back()) == "\xF0\x9F\xA6\x99");
  CHECK(detokenizer.Flush().empty());

  CHECK(detokenizer.Append(ids[0]).empty());
  CHECK(detokenizer.Flush() == base::kReplacementCharacter);
}

TEST_CASE("A proven ill-formed sequence becomes U+FFFD at once", "[text][unit]") {
  const auto tokenizer = GoldenTokenizer("falcon_like.json");
  std::vector<TokenId> llama;
  REQUIRE(tokenizer->Encode("\xF0\x9F\xA6\x99", {.add_special = false}, &llama).ok());
  const auto letter = tokenizer->Find("a");
  REQUIRE(letter.has_value());
  IncrementalDetokenizer detokenizer(tokenizer.get(), true);
  CHECK(detokenizer.Append(llama[0]).empty());
  CHECK(detokenizer.Append(*letter) ==
        "\xEF\xBF\xBD"
        "a");
}

TEST_CASE("SentencePiece's space in front is dropped once, wherever the text is split",
          "[text][unit]") {
  const auto tokenizer = GoldenTokenizer("spm_bpe.model");
  std::vector<TokenId> ids;
  REQUIRE(tokenizer->Encode("the  the", {.add_special = false}, &ids).ok());
  CHECK(DecodeInSteps(*tokenizer, ids, true) == "the the");
  // Special tokens that are skipped do not count as the start.
  ids.insert(ids.begin(), 1);
  CHECK(DecodeInSteps(*tokenizer, ids, true) == "the the");
  CHECK(DecodeInSteps(*tokenizer, ids, false) == "<s> the the");
}

}  // namespace
}  // namespace heddle::engine::text
