// Ids from other programs: Hugging Face transformers, Google SentencePiece and llama.cpp's test
// vectors, for real tokenizers in every format that they come in.
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/text/tokenizer.h"
#include "nlohmann/json.hpp"
#include "tests/support/paths.h"

namespace heddle::engine::text {
namespace {

using Ids = std::vector<TokenId>;

std::unique_ptr<Tokenizer> Load(const std::filesystem::path& path) {
  auto tokenizer = LoadTokenizer(path);
  INFO(path.string());
  INFO(std::string(tokenizer.status().message()));
  REQUIRE(tokenizer.ok());
  return *std::move(tokenizer);
}

Ids Encode(const Tokenizer& tokenizer, const std::string& text, EncodeOptions options) {
  Ids ids;
  REQUIRE(tokenizer.Encode(text, options, &ids).ok());
  return ids;
}

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

TEST_CASE("GGUF vocabularies encode llama.cpp's test texts as its vectors say", "[text][golden]") {
  const auto folder = test::SharedDataOrSkip("tokenizers");
  const std::string name =
      GENERATE("phi-3", "gpt-2", "falcon", "starcoder", "deepseek-coder", "deepseek-llm");
  const auto tokenizer = Load(folder / (name + ".gguf"));
  const std::string input = ReadFile(folder / (name + ".inp"));
  std::ifstream expected(folder / (name + ".out"));
  const std::string separator = "\n__ggml_vocab_test__\n";
  int texts = 0;
  for (size_t at = 0; at <= input.size(); ++texts) {
    const size_t end = std::min(input.find(separator, at), input.size());
    const std::string text = input.substr(at, end - at);
    at = end + separator.size();
    std::string line;
    if (!std::getline(expected, line)) break;
    std::istringstream numbers(line);
    Ids ids;
    for (TokenId id; numbers >> id;) ids.push_back(id);
    INFO(name << ", text " << texts << ": " << text);
    CHECK(Encode(*tokenizer, text, {.add_special = false}) == ids);
    CHECK(tokenizer->Decode(ids, false) == text);
  }
  CHECK(texts > 40);
}

struct VectorCase {
  const char* tokenizer;
  const char* vectors;
};

TEST_CASE("Tokenizers give the ids of the reference implementations", "[text][golden]") {
  const auto root = test::SharedDataOrSkip("");
  const auto c = GENERATE(VectorCase{"tokenizers_hf/gpt2", "tokenizers_hf/gpt2"},
                          VectorCase{"tokenizers_hf/qwen2.5", "tokenizers_hf/qwen2.5"},
                          VectorCase{"stories260K", "stories260K"},
                          VectorCase{"stories260K/tokenizer.json", "stories260K"},
                          VectorCase{"stories260K/tokenizer.model", "stories260K"},
                          VectorCase{"stories260K/stories260K-f32.gguf", "stories260K"},
                          VectorCase{"babyllama361/tokenizer.json", "babyllama361"},
                          VectorCase{"babyllama361/tokenizer.model", "babyllama361"},
                          VectorCase{"babyllama361/babyllama-tok361-Q4_0.gguf", "babyllama361"});
  const auto tokenizer = Load(root / c.tokenizer);
  const auto document = nlohmann::json::parse(ReadFile(root / c.vectors / "tokenizer_tests.json"));
  for (const auto& test : document["tests"]) {
    const auto text = test["text"].get<std::string>();
    INFO(c.tokenizer << ": " << text);
    CHECK(Encode(*tokenizer, text, {.add_special = false}) == test["ids"].get<Ids>());
    if (test.contains("ids_with_bos")) {
      CHECK(Encode(*tokenizer, text, {}) == test["ids_with_bos"].get<Ids>());
      CHECK(tokenizer->add_bos());
    }
    if (test.contains("decoded")) {
      CHECK(tokenizer->Decode(test["ids"].get<Ids>(), true) == test["decoded"].get<std::string>());
    }
  }
}

TEST_CASE("A folder says which token ends an answer and how a chat is written", "[text][golden]") {
  const auto root = test::SharedDataOrSkip("");
  const auto qwen = Load(root / "tokenizers_hf/qwen2.5");
  CHECK(qwen->eos_ids() == std::vector<TokenId>{151645});
  CHECK_FALSE(qwen->add_bos());
  CHECK(qwen->chat_template().find("<|im_start|>") != std::string::npos);
  CHECK(qwen->vocab_size() == 151665);
  const auto stories = Load(root / "stories260K");
  CHECK(stories->bos_id() == TokenId{1});
  CHECK(stories->eos_ids() == std::vector<TokenId>{2});
  const auto phi = Load(root / "tokenizers/phi-3.gguf");
  CHECK(phi->eos_ids() == std::vector<TokenId>{32000, 32007});
  CHECK(phi->chat_template().starts_with("{{ bos_token }}"));
}

}  // namespace
}  // namespace heddle::engine::text
