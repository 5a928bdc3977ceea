// RWKV's "World" vocabularies, from their text file and from GGUF: the longest token is the next.
#include <fstream>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/files/gguf.h"
#include "engine/text/jinja/chat_template.h"
#include "engine/text/tokenizer.h"
#include "engine/text/world_vocabulary.h"
#include "nlohmann/json.hpp"
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

void CheckTokens(const Tokenizer& tokenizer) {
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
}

void CheckTexts(const Tokenizer& tokenizer) {
  CheckTokens(tokenizer);
  CHECK(tokenizer.eos_ids() == Ids{0});
}

TEST_CASE("World vocabularies take the longest token", "[text]") { CheckTexts(*LoadLines(kLines)); }

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadGguf(const std::vector<std::string>& tokens,
                                                    const std::vector<int32_t>& types,
                                                    test::GgufWriter writer) {
  writer.String("general.architecture", "rwkv7")
      .String("tokenizer.ggml.model", "rwkv")
      .Strings("tokenizer.ggml.tokens", tokens)
      .Ints("tokenizer.ggml.token_type", types);
  const test::TempDir dir;
  std::ofstream(dir / "model.gguf", std::ios::binary) << writer.Bytes();
  return LoadTokenizer(dir / "model.gguf");
}

TEST_CASE("World vocabularies in GGUF have the tokens of their text file", "[text]") {
  const std::vector<std::string> tokens = {
      "<s>",        "\\x00",      "a",          "b",       " ",
      "\\xe4",      "\\xbd\\xa0", "\\n",        "abab",    " '",
      "\\xc3\\xa9", "ba",         "\\xc3\\xa8", "\\'\\\\", "\\xe4\\xbd\\xa0\\xe5\\xa5\\xbd",
      "[PAD15]"};
  std::vector<int32_t> types(tokens.size(), 1);
  types.front() = 3;
  types.back() = 5;
  auto tokenizer = LoadGguf(tokens, types, {});
  INFO(tokenizer.status().ToString());
  REQUIRE(tokenizer.ok());
  CheckTexts(**tokenizer);
  CHECK((*tokenizer)->vocab_size() == 15);
  CHECK((*tokenizer)->IsSpecial(0));
  CHECK(IdsOf(**tokenizer, "a<s>b") == Ids{2, 0, 3});
}

// Files of llama.cpp's converter have the name of a template in its place, and "\n\n" as the end of
// a turn. The prompt is that of its built-in template.
TEST_CASE("World vocabularies in GGUF get the template that they name", "[text]") {
  test::GgufWriter writer;
  writer.String("tokenizer.chat_template", "rwkv-world").U32("tokenizer.ggml.eot_token_id", 2);
  auto tokenizer = LoadGguf({"<s>", "a", "\\n\\n"}, {3, 1, 1}, writer);
  INFO(tokenizer.status().ToString());
  REQUIRE(tokenizer.ok());
  CHECK((*tokenizer)->eos_ids() == Ids{0, 2});
  auto chat = ChatTemplate::Parse((*tokenizer)->chat_template());
  REQUIRE(chat.ok());
  nlohmann::ordered_json context;
  context["add_generation_prompt"] = true;
  context["messages"] = {{{"role", "system"}, {"content", "Be brief.\n"}},
                         {{"role", "user"}, {"content", " Hi "}},
                         {{"role", "assistant"}, {"content", "Hello!"}},
                         {{"role", "user"}, {"content", "Why?"}}};
  CHECK((*chat)->Render(context).value() ==
        "System: Be brief.\n\nUser: Hi\n\nAssistant: Hello!\n\nUser: Why?\n\nAssistant:");
  context["messages"].erase(3);
  context["add_generation_prompt"] = false;
  CHECK((*chat)->Render(context).value() ==
        "System: Be brief.\n\nUser: Hi\n\nAssistant: Hello!\n\n");
}

TEST_CASE("A bad escape in GGUF says which token has it", "[text]") {
  for (const char* token : {"\\x4", "a\\", "\\xzz b"}) {
    const auto tokenizer = LoadGguf({"<s>", "a", token}, {3, 1, 1}, {});
    CHECK_THAT(std::string(tokenizer.status().message()),
               Catch::Contains("token 2 has an escape that is not complete"));
  }
}

// A vocabulary as its lines, under a name that it has in folders, beside a tokenizer_config.json.
std::unique_ptr<Tokenizer> LoadFolder(const char* name, const char* config) {
  const test::TempDir dir;
  std::ofstream(dir / name) << kLines << "261 '\\n\\n' 2\n";
  std::ofstream(dir / "tokenizer_config.json") << config;
  auto loaded = LoadTokenizer(dir.path());
  INFO(loaded.status().ToString());
  REQUIRE(loaded.ok());
  return std::move(loaded).value();
}

// tokenizer_config.json as fla-hub publishes it beside RWKV-7 World models.
TEST_CASE("Folders of fla-hub end answers with an empty line and the end of a text", "[text]") {
  const auto tokenizer = LoadFolder("rwkv_vocab_v20230424.txt", R"({
    "added_tokens_decoder": {"0": {"content": "<|rwkv_tokenizer_end_of_text|>", "lstrip": false,
      "normalized": false, "rstrip": false, "single_word": false, "special": true}},
    "bos_token": "<|rwkv_tokenizer_end_of_text|>", "eos_token": "\n\n",
    "pad_token": "<|rwkv_tokenizer_end_of_text|>", "tokenizer_class": "RwkvTokenizer"})");
  CheckTokens(*tokenizer);
  CHECK(tokenizer->bos_id() == TokenId{0});
  CHECK(tokenizer->eos_ids() == Ids{261, 0});
  CHECK(tokenizer->IsSpecial(0));
  CHECK(IdsOf(*tokenizer, "<|rwkv_tokenizer_end_of_text|>a\n\n") == Ids{0, 2, 261});
  CHECK(tokenizer->Decode(Ids{0, 2}, /*skip_special=*/true) == "a");
}

// The fixtures of vllm-rwkv give token 0 another name; BlinkDL's later vocabularies have later
// dates.
TEST_CASE("Unknown names of special tokens are a World vocabulary's only one", "[text]") {
  const auto tokenizer = LoadFolder("rwkv_vocab_v20250609.txt", R"({
    "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"})");
  CheckTokens(*tokenizer);
  CHECK(tokenizer->bos_id() == TokenId{0});
  CHECK(tokenizer->eos_ids() == Ids{0});
}

TEST_CASE("A folder with two World vocabularies, or none, says which names are known", "[text]") {
  const test::TempDir dir;
  CHECK_THAT(std::string(LoadTokenizer(dir.path()).status().message()),
             Catch::Contains("one rwkv_vocab*.txt"));
  std::ofstream(dir / "rwkv_vocab_v20230424.txt") << kLines;
  std::ofstream(dir / "rwkv_vocab_v20250609.txt") << kLines;
  CHECK_THAT(std::string(LoadTokenizer(dir.path()).status().message()),
             Catch::Contains("one rwkv_vocab*.txt"));
}

// Twenty bytes would otherwise make a table of 16 million tokens.
TEST_CASE("A World vocabulary's ids are near the number of its tokens", "[text]") {
  CHECK_THAT(std::string(ParseWorldVocabulary("16777215 'a' 1\n", "v.txt").status().message()),
             Catch::Contains("v.txt") && Catch::Contains("[0, 1026)"));
  CHECK(ParseWorldVocabulary("1025 'a' 1\n", "v.txt").ok());
}

// With 'a' beside a million of them, each byte of a text of one less would be walked to its end.
TEST_CASE("Tokens that would be tried for a long time at each byte are refused", "[text]") {
  const auto parse = [](size_t size) {
    const std::string line = "2 '" + std::string(size, 'a') + "' " + std::to_string(size) + "\n";
    return ParseWorldVocabulary("1 'a' 1\n" + line, "v.txt").status();
  };
  CHECK(parse(4096).ok());
  for (const size_t size : {size_t{4097}, size_t{1'000'000}}) {
    CHECK_THAT(std::string(parse(size).message()),
               Catch::Contains("v.txt: token 2 has " + std::to_string(size)));
  }
}

TEST_CASE("Broken World vocabularies are refused with their line", "[text]") {
  for (const char* lines :
       {"1 'a'\n", "x 'a' 1\n", "1 'a' 2\n", "0 'a' 1\n", "1 'a 1\n", "1 '\\x4' 1\n",
        "1 b'\\u00e9' 2\n", "1 '\\ud800' 3\n", "1 '\\' 1\n", "1 a 1\n", "99999999999 'a' 1\n", "\n",
        "1 '' 0\n", "1 '<|rwkv_tokenizer_end_of_text|>' 30\n", "1 'a' 1\n1 'b' 1\n",
        "1 'a' 1\n2 'a' 1\n"}) {
    INFO(lines);
    CHECK(ParseWorldVocabulary(lines, "v.txt").status().code() ==
          absl::StatusCode::kInvalidArgument);
  }
  CHECK(ParseWorldVocabulary("1 'a' 1\r\n\r\n2 'b' 1", "v.txt").ok());
}

}  // namespace
}  // namespace heddle::engine::text
