// BERT's vocabulary as a GGUF file keeps it, against the same tokenizer's tokenizer.json.
#include <fstream>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/files/gguf.h"
#include "engine/text/tokenizer.h"
#include "nlohmann/json.hpp"
#include "tests/support/gguf_writer.h"
#include "tests/support/paths.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_dir.h"
#include "tests/text/tokenizer/random_text.h"

namespace heddle::engine::text {
namespace {

using nlohmann::json;

json TokenizerJson(const std::string& name) {
  std::ifstream in(test::SourceDir() / "tests/golden/tokenizers" / name);
  json document = json::parse(in);
  document["model"]["max_input_chars_per_word"] = 100;  // the format's own, which no key gives
  return document;
}

std::vector<std::string> Texts(const json& document) {
  std::vector<std::string> texts(document["model"]["vocab"].size());
  for (const auto& [text, id] : document["model"]["vocab"].items()) {
    texts[id.get<size_t>()] = text;
  }
  return texts;
}

// The vocabulary as the converter writes it: tokens in brackets are control tokens.
test::GgufWriter WriteVocabulary(const std::vector<std::string>& texts) {
  constexpr int32_t kNormal = 1;
  constexpr int32_t kControl = 3;
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  for (const std::string& text : texts) {
    const bool is_control = text.size() > 2 && text.front() == '[' && text.back() == ']';
    types.push_back(is_control ? kControl : kNormal);
    const bool is_inside = text.starts_with("##") && text.size() > 2;
    tokens.push_back(is_control ? text : is_inside ? text.substr(2) : "\xE2\x96\x81" + text);
  }
  test::GgufWriter writer;
  writer.String("tokenizer.ggml.model", "bert").String("tokenizer.ggml.pre", "default");
  writer.Strings("tokenizer.ggml.tokens", tokens).Ints("tokenizer.ggml.token_type", types);
  return writer;
}

std::unique_ptr<Tokenizer> Load(const test::GgufWriter& writer) {
  const std::string bytes = writer.Bytes();
  auto file = GgufFile::Parse(std::as_bytes(std::span(bytes)), "model.gguf");
  REQUIRE(file.ok());
  auto tokenizer = LoadGgufTokenizer(*file);
  INFO(std::string(tokenizer.status().message()));
  REQUIRE(tokenizer.ok());
  return *std::move(tokenizer);
}

std::vector<TokenId> Encode(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<TokenId> ids;
  REQUIRE(tokenizer.Encode(text, {.add_special = true}, &ids).ok());
  return ids;
}

TEST_CASE("WordPiece in a GGUF file encodes random text as tokenizer.json does", "[text][golden]") {
  constexpr uint64_t kTexts = 3000;
  for (const std::string name : {"wordpiece.json", "wordpiece_cased.json"}) {
    const json document = TokenizerJson(name);
    test::TempDir dir;
    test::WriteFile(dir / "tokenizer.json", document.dump());
    const auto wanted = LoadTokenizer(dir / "tokenizer.json");
    REQUIRE(wanted.ok());
    test::GgufWriter writer = WriteVocabulary(Texts(document));
    writer.U32("tokenizer.ggml.token_type_count", 2);
    const auto found = Load(writer);
    int different = 0;
    for (uint64_t i = 0; i < kTexts; ++i) {
      const std::string text = RandomText(i);
      different += Encode(*found, text) == Encode(**wanted, text) ? 0 : 1;
    }
    INFO(name);
    CHECK(different == 0);
    if (name != "wordpiece.json") continue;
    CHECK(found->pair().is_known);
    CHECK(found->pair().before == (*wanted)->pair().before);
    CHECK(found->pair().between == (*wanted)->pair().between);
    CHECK(found->pair().behind == (*wanted)->pair().behind);
    CHECK(found->pair().types_differ);
    const std::vector<TokenId> ids = Encode(*found, "unknown words, read.");
    CHECK(found->Decode(ids, true) == (*wanted)->Decode(ids, true));
  }
}

TEST_CASE("A reranker's template in a GGUF file is one text for two", "[text][unit]") {
  test::GgufWriter writer = WriteVocabulary({"[UNK]", "[CLS]", "[SEP]", "a", "##b"});
  writer.String("tokenizer.chat_template.rerank", "a {query} a {document}");
  CHECK(Load(writer)->pair().text == "a {query} a {document}");
}

TEST_CASE("A WordPiece vocabulary without its three tokens is refused", "[text][unit]") {
  const std::string bytes = WriteVocabulary({"[UNK]", "[CLS]", "a"}).Bytes();
  auto file = GgufFile::Parse(std::as_bytes(std::span(bytes)), "model.gguf");
  REQUIRE(file.ok());
  const auto tokenizer = LoadGgufTokenizer(*file);
  REQUIRE_FALSE(tokenizer.ok());
  CHECK_THAT(std::string(tokenizer.status().message()), Catch::Contains("no token [SEP]"));
}

}  // namespace
}  // namespace heddle::engine::text
