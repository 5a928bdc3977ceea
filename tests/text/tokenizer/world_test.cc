// RWKV's "World" vocabularies, from their text file and from GGUF: the longest token is the next.
#include <fstream>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/files/gguf.h"
#include "engine/text/tokenizer.h"
#include "engine/text/world_vocabulary.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/temp_dir.h"

namespace heddle::engine::text {
namespace {

// Bytes, text with escapes, a token in double quotes, and tokens within others.
constexpr const char* kLines =
    "1 '\\x00' 1\n"
    "2 'a' 1\n"
    "3 'b' 1\n"
    "4 ' ' 1\n"
    "5 b'\\xe4' 1\n"
    "6 b'\\xbd\\xa0' 2\n"
    "7 '\\n' 1\n"
    "8 'abab' 4\n"
    "9 \" '\" 2\n"
    "10 '\\u00e9' 2\n"
    "11 'ba' 2\n"
    "12 '\\xe8' 2\n"
    "13 '\\'\\\\' 2\n"
    "14 '你好' 6\n";

std::unique_ptr<Tokenizer> LoadLines(const std::string& lines) {
  test::TempDir dir;
  const auto path = dir.path() / "rwkv_vocab_v20230424.txt";
  std::ofstream(path) << lines;
  auto loaded = LoadTokenizer(dir.path());
  INFO(loaded.status().ToString());
  REQUIRE(loaded.ok());
  return std::move(loaded).value();
}

std::vector<TokenId> IdsOf(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<TokenId> ids;
  REQUIRE(tokenizer.Encode(text, {}, &ids).ok());
  return ids;
}

using Ids = std::vector<TokenId>;

void CheckTexts(const Tokenizer& tokenizer) {
  CHECK(IdsOf(tokenizer, "abab") == Ids{8});
  CHECK(IdsOf(tokenizer, "ababa") == Ids{8, 2});
  CHECK(IdsOf(tokenizer, "abaab") == Ids{2, 11, 2, 3});  // no look ahead
  CHECK(IdsOf(tokenizer, " 'b\n") == Ids{9, 3, 7});
  CHECK(IdsOf(tokenizer, "\xc3\xa9\xc3\xa8") == Ids{10, 12});
  CHECK(IdsOf(tokenizer, "'\\") == Ids{13});
  CHECK(IdsOf(tokenizer, "你") == Ids{5, 6});
  CHECK(IdsOf(tokenizer, "你好") == Ids{14});
  CHECK(IdsOf(tokenizer, std::string_view("\0", 1)) == Ids{1});
  CHECK(IdsOf(tokenizer, "").empty());
  CHECK(tokenizer.Decode(Ids{8, 9, 5, 6, 7, 10, 13}, /*skip_special=*/false) ==
        "abab '你\n\xc3\xa9'\\");
  CHECK(tokenizer.TokenBytes(6) == "\xbd\xa0");
  CHECK(tokenizer.eos_ids() == Ids{0});
}

TEST_CASE("World vocabularies take the longest token", "[text]") { CheckTexts(*LoadLines(kLines)); }

TEST_CASE("World vocabularies in GGUF have the tokens of their text file", "[text]") {
  const std::vector<std::string> tokens = {
      "<s>",        "\\x00",      "a",          "b",       " ",
      "\\xe4",      "\\xbd\\xa0", "\\n",        "abab",    " '",
      "\\xc3\\xa9", "ba",         "\\xc3\\xa8", "\\'\\\\", "\\xe4\\xbd\\xa0\\xe5\\xa5\\xbd",
      "[PAD15]"};
  std::vector<int32_t> types(tokens.size(), 1);
  types.front() = 3;
  types.back() = 5;
  test::GgufWriter writer;
  writer.String("general.architecture", "rwkv7")
      .String("tokenizer.ggml.model", "rwkv")
      .Strings("tokenizer.ggml.tokens", tokens)
      .Ints("tokenizer.ggml.token_type", types);
  test::TempDir dir;
  const auto path = dir.path() / "model.gguf";
  std::ofstream(path, std::ios::binary) << writer.Bytes();
  auto tokenizer = LoadTokenizer(path);
  INFO(tokenizer.status().ToString());
  REQUIRE(tokenizer.ok());
  CheckTexts(**tokenizer);
  CHECK((*tokenizer)->vocab_size() == 15);
  CHECK((*tokenizer)->IsSpecial(0));
  CHECK(IdsOf(**tokenizer, "a<s>b") == Ids{2, 0, 3});
}

TEST_CASE("Broken World vocabularies are refused with their line", "[text]") {
  for (const char* lines :
       {"1 'a'\n", "x 'a' 1\n", "1 'a' 2\n", "0 'a' 1\n", "1 'a 1\n", "1 '\\x4' 1\n",
        "1 b'\\u00e9' 2\n", "1 '\\ud800' 3\n", "1 '\\' 1\n", "1 a 1\n", "99999999999 'a' 1\n", "\n",
        "1 '' 0\n", "1 'a' 1\n1 'b' 1\n", "1 'a' 1\n2 'a' 1\n"}) {
    INFO(lines);
    CHECK(ParseWorldVocabulary(lines, "v.txt").status().code() ==
          absl::StatusCode::kInvalidArgument);
  }
  CHECK(ParseWorldVocabulary("1 'a' 1\r\n\r\n2 'b' 1", "v.txt").ok());
}

}  // namespace
}  // namespace heddle::engine::text
