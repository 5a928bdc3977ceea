// Invalid files: each gets one message that names the place, what was found and what was expected.
#include <filesystem>
#include <fstream>
#include <string>

#include "catch2/catch.hpp"
#include "engine/text/tokenizer.h"
#include "tests/support/paths.h"

namespace heddle::engine::text {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

class TempFolder {
 public:
  TempFolder() {
    std::string name = (fs::temp_directory_path() / "heddle_tokenizer_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TempFolder() { fs::remove_all(path_); }
  fs::path Write(const char* name, std::string_view content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
    return path_ / name;
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::string LoadError(const fs::path& path) {
  const auto tokenizer = LoadTokenizer(path);
  return tokenizer.ok() ? "no error" : std::string(tokenizer.status().message());
}

// The message for a tokenizer.json of that content.
std::string JsonError(std::string_view content) {
  const TempFolder folder;
  return LoadError(folder.Write("tokenizer.json", content));
}

std::string ModelError(std::string_view model, std::string_view rest = "") {
  return JsonError("{\"model\":" + std::string(model) + std::string(rest) + "}");
}

// A piece of a million a's would be walked to its end at each byte of a text of one less.
TEST_CASE("A piece that would be tried for a long time at each byte is refused", "[text][unit]") {
  const auto error = [](size_t size) {
    return ModelError(R"({"type":"Unigram","vocab":[["a",-1.0],[")" + std::string(size, 'a') +
                      R"(",-2.0]]})");
  };
  CHECK(error(4096) == "no error");
  CHECK_THAT(error(4097), Contains("vocab[1]") && Contains("at most 4096 bytes"));
}

TEST_CASE("A folder without a tokenizer says what was looked for", "[text][unit]") {
  const TempFolder folder;
  CHECK_THAT(LoadError(folder.path()), Contains("tokenizer.json") && Contains("tokenizer.model"));
  CHECK_THAT(LoadError(folder.path() / "absent"), Contains("absent") && Contains("no such"));
}

TEST_CASE("A damaged tokenizer.json names the place", "[text][unit]") {
  CHECK_THAT(JsonError("{\"model\": {"), Contains("tokenizer.json"));
  CHECK_THAT(JsonError(""), Contains("tokenizer.json"));
  CHECK_THAT(JsonError("[]"), Contains("expected an object"));
  CHECK_THAT(JsonError("{}"), Contains("'model' is missing"));
  CHECK_THAT(ModelError("{\"type\":\"WordLevel\"}"), Contains("'WordLevel'") && Contains("BPE"));
  CHECK_THAT(ModelError("{\"type\":\"BPE\",\"merges\":[]}"), Contains("'vocab' is missing"));
  CHECK_THAT(ModelError("{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}"), Contains("at least one"));
  CHECK_THAT(ModelError("{\"type\":\"BPE\",\"vocab\":{\"a\":\"x\"},\"merges\":[]}"),
             Contains("model.vocab['a']") && Contains("\"x\""));
  CHECK_THAT(ModelError("{\"type\":\"BPE\",\"vocab\":{\"a\":1999999999},\"merges\":[]}"),
             Contains("1999999999"));
  CHECK_THAT(ModelError("{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}"), Contains("-1"));
  CHECK_THAT(ModelError("{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}"),
             Contains("belongs to both"));
}

TEST_CASE("A damaged WordPiece model names the place", "[text][unit]") {
  const std::string vocab = "{\"type\":\"WordPiece\",\"vocab\":{\"[UNK]\":0,\"a\":1,\"##b\":2}";
  CHECK(ModelError(vocab + "}") == "no error");
  CHECK_THAT(ModelError("{\"type\":\"WordPiece\"}"), Contains("'vocab' is missing"));
  CHECK_THAT(ModelError("{\"type\":\"WordPiece\",\"vocab\":{\"a\":0}}"),
             Contains("'[UNK]' is not in the vocabulary"));
  CHECK_THAT(ModelError(vocab + ",\"unk_token\":\"?\"}"), Contains("'?'"));
  CHECK_THAT(ModelError(vocab + ",\"max_input_chars_per_word\":0}"),
             Contains("max_input_chars_per_word"));
  CHECK_THAT(
      ModelError(vocab + "}", ",\"normalizer\":{\"type\":\"BertNormalizer\",\"lowercase\":3}"),
      Contains("lowercase"));
  CHECK_THAT(ModelError(vocab + "}", ",\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"\"}"),
             Contains("a prefix like ##"));
}

TEST_CASE("Merges that refer to nothing name the token that is missing", "[text][unit]") {
  const std::string vocab = "{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":";
  CHECK(ModelError(vocab + "[\"a b\"]}") == "no error");
  CHECK(ModelError(vocab + "[[\"a\",\"b\"]]}") == "no error");
  CHECK_THAT(ModelError(vocab + "[\"a b\",\"b a\"]}"),
             Contains("model.merges[1]") && Contains("\"ba\""));
  CHECK_THAT(ModelError(vocab + "[\"a c\"]}"), Contains("\"c\""));
  CHECK_THAT(ModelError(vocab + "[\"ab\"]}"), Contains("model.merges[0]"));
  CHECK_THAT(ModelError(vocab + "[3]}"), Contains("model.merges[0]") && Contains("3"));
  CHECK_THAT(ModelError(vocab + "7}"), Contains("array of merges"));
}

TEST_CASE("Steps that are unknown or malformed are refused by name", "[text][unit]") {
  const std::string model = "{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}";
  CHECK_THAT(ModelError(model, ",\"normalizer\":{\"type\":\"Shout\"}"), Contains("'Shout'"));
  CHECK_THAT(ModelError(model, ",\"pre_tokenizer\":{\"type\":3}"), Contains("pre_tokenizer.type"));
  CHECK_THAT(ModelError(model,
                        ",\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\","
                        "\"pattern\":{\"Regex\":\"(a\"}}"),
             Contains("pre_tokenizer") && Contains("'(a'"));
  CHECK_THAT(ModelError(model, ",\"decoder\":{\"type\":\"CTC\"}"), Contains("'CTC'"));
  CHECK_THAT(ModelError(model, ",\"added_tokens\":[{\"id\":0}]"),
             Contains("added_tokens[0]") && Contains("'content' is missing"));
  CHECK_THAT(ModelError(model, ",\"added_tokens\":[{\"id\":99999999,\"content\":\"x\"}]"),
             Contains("99999999"));
  CHECK_THAT(ModelError(model,
                        ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["
                        "{\"SpecialToken\":{\"id\":\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}}],"
                        "\"special_tokens\":{\"<s>\":{\"ids\":[5]}}}"),
             Contains("[0, 1)") && Contains("5"));
}

TEST_CASE("Endless nesting is refused, not followed", "[text][unit]") {
  std::string open;
  std::string close;
  for (int i = 0; i < 20; ++i) {
    open += "{\"type\":\"Sequence\",\"normalizers\":[";
    close += "]}";
  }
  CHECK_THAT(ModelError("{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}",
                        ",\"normalizer\":" + open + "{\"type\":\"NFC\"}" + close),
             Contains("nest"));
}

TEST_CASE("Any truncation of a SentencePiece model is an error or a smaller model, never a crash",
          "[text][unit]") {
  const TempFolder folder;
  std::ifstream in(test::SourceDir() / "tests/golden/tokenizers/spm_bpe.model", std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  REQUIRE(whole.size() > 1000);
  int errors = 0;
  for (size_t size = 0; size < whole.size(); size += 97) {
    const auto tokenizer =
        LoadTokenizer(folder.Write("tokenizer.model", std::string_view(whole).substr(0, size)));
    if (!tokenizer.ok()) ++errors;
  }
  CHECK(errors > 10);
  // A length that lies: 2 GB of piece in a file of some bytes.
  CHECK_THAT(LoadError(folder.Write("tokenizer.model", "\n\xFF\xFF\xFF\xFF\x07\n\x01\x61")),
             Contains("claims 2147483647 bytes"));
}

TEST_CASE("A tiktoken file names the line that is wrong", "[text][unit]") {
  const TempFolder folder;
  CHECK(LoadError(folder.Write("a.tiktoken", "YQ== 0\nYg== 1\nYWI= 2\n")) == "no error");
  CHECK_THAT(LoadError(folder.Write("b.tiktoken", "YQ== 0\n!! 1\n")), Contains("line 2"));
  CHECK_THAT(LoadError(folder.Write("c.tiktoken", "YQ== 0\nYg== 9999999999\n")),
             Contains("9999999999"));
}

TEST_CASE("A file that is no tokenizer is refused with what would be one", "[text][unit]") {
  const TempFolder folder;
  CHECK_THAT(LoadError(folder.Write("README.md", "# Title")),
             Contains("is no tokenizer") && Contains("\"# Title\""));
  CHECK_THAT(LoadError(folder.Write("tokenizer.model", "")), Contains("an empty file"));
}

TEST_CASE("A begin or end token that the vocabulary lacks is refused by its name", "[text][unit]") {
  const TempFolder folder;
  const fs::path path = folder.Write(
      "tokenizer.json", "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}");
  // An older file beside tokenizer_config.json may know more.
  folder.Write("special_tokens_map.json", "{\"eos_token\": \"</s>\"}");
  CHECK(LoadError(path) == "no error");
  folder.Write("tokenizer_config.json", "{\"bos_token\": null, \"eos_token\": \"</s>\"}");
  CHECK_THAT(LoadError(path), Contains("tokenizer_config.json") && Contains("eos_token") &&
                                  Contains("\"</s>\", which is not in the vocabulary"));
}

// tokenizer.model and tiktoken's ranks do not have the tokens that were added to a model later.
TEST_CASE("Added tokens of a folder without tokenizer.json are read beside it", "[text][unit]") {
  const auto ids_of = [](const fs::path& path) {
    const auto tokenizer = LoadTokenizer(path);
    INFO(tokenizer.status());
    REQUIRE(tokenizer.ok());
    CHECK((*tokenizer)->eos_ids() == std::vector<TokenId>{4});
    CHECK((*tokenizer)->IsSpecial(4));
    CHECK((*tokenizer)->Decode(std::vector<TokenId>{2, 3, 4}, /*skip_special=*/true) == "ab<x>");
    std::vector<TokenId> ids;
    REQUIRE((*tokenizer)->Encode("ab<x>a<|end|>", {}, &ids).ok());
    return ids;
  };
  const std::vector<TokenId> expected = {2, 3, 0, 4};
  const std::string_view ranks = "YQ== 0\nYg== 1\nYWI= 2\n";  // a, b, ab
  const TempFolder newer;
  newer.Write("tokenizer_config.json",
              "{\"eos_token\": \"<|end|>\", \"added_tokens_decoder\": {"
              "\"3\": {\"content\": \"<x>\"},"
              "\"4\": {\"content\": \"<|end|>\", \"special\": true}}}");
  CHECK(ids_of(newer.Write("a.tiktoken", ranks)) == expected);
  const TempFolder older;
  older.Write("added_tokens.json", "{\"<x>\": 3, \"<|end|>\": 4}");
  older.Write("special_tokens_map.json", "{\"eos_token\": {\"content\": \"<|end|>\"}}");
  const fs::path path = older.Write("a.tiktoken", ranks);
  CHECK(ids_of(path) == expected);
  older.Write("added_tokens.json", "{\"<x>\": 1}");
  CHECK_THAT(LoadError(path), Contains("added tokens: id 1 belongs to both \"b\" and \"<x>\""));
  older.Write("added_tokens.json", "{\"<x>\": 9999999999}");
  CHECK_THAT(LoadError(path), Contains("\"<x>\" has id"));
  older.Write("added_tokens.json", "{\"<x>\": \"y\"}");
  CHECK_THAT(LoadError(path), Contains("added_tokens.json") && Contains("expected an id"));
}

TEST_CASE("Texts beside the tokenizer are checked as well", "[text][unit]") {
  const TempFolder folder;
  const fs::path path = folder.Write(
      "tokenizer.json", "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}");
  folder.Write("tokenizer_config.json", "{\"eos_token\": 5}");
  CHECK_THAT(LoadError(path), Contains("tokenizer_config.json") && Contains("eos_token"));
  folder.Write("tokenizer_config.json", "{\"eos_token\": {\"content\": \"a\"}}");
  folder.Write("generation_config.json", "{\"eos_token_id\": \"x\"}");
  CHECK_THAT(LoadError(path), Contains("generation_config.json"));
  folder.Write("generation_config.json", "{\"eos_token_id\": [0, 7]}");
  const auto tokenizer = LoadTokenizer(path);
  REQUIRE(tokenizer.ok());
  CHECK((*tokenizer)->eos_ids() == std::vector<TokenId>{0});
}

}  // namespace
}  // namespace heddle::engine::text
