// The vocabulary of Gemma 4 as a GGUF file keeps it, against the same tokenizer's tokenizer.json,
// which has goldens of the reference library (golden_test.cc).
#include <fstream>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/files/gguf.h"
#include "engine/text/tokenizer.h"
#include "nlohmann/json.hpp"
#include "tests/support/gguf_writer.h"
#include "tests/support/paths.h"
#include "tests/text/tokenizer/random_text.h"

namespace heddle::engine::text {
namespace {

using nlohmann::json;

// As llama.cpp's converter writes it.
std::string GgufBytes(const json& document) {
  constexpr int32_t kNormal = 1;
  constexpr int32_t kUnknown = 2;
  constexpr int32_t kControl = 3;
  constexpr int32_t kByte = 6;
  const json& vocab = document["model"]["vocab"];
  std::vector<std::string> tokens(vocab.size());
  std::vector<int32_t> types(vocab.size(), kNormal);
  for (const auto& [text, id] : vocab.items()) {
    tokens[id.get<size_t>()] = text;
    if (text.size() == 6 && text.starts_with("<0x")) types[id.get<size_t>()] = kByte;
  }
  for (const json& token : document["added_tokens"]) {
    types[token["id"].get<size_t>()] = token["content"] == "<unk>" ? kUnknown : kControl;
  }
  std::vector<std::string> merges;
  for (const json& merge : document["model"]["merges"]) {
    merges.push_back(merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>());
  }
  test::GgufWriter writer;
  writer.String("tokenizer.ggml.model", "gemma4");
  writer.Strings("tokenizer.ggml.tokens", tokens).Ints("tokenizer.ggml.token_type", types);
  writer.Strings("tokenizer.ggml.merges", merges);
  writer.U32("tokenizer.ggml.unknown_token_id", vocab["<unk>"]);
  writer.U32("tokenizer.ggml.bos_token_id", vocab["<s>"]);
  writer.U32("tokenizer.ggml.eos_token_id", vocab["</s>"]);
  return writer.Bytes();
}

TEST_CASE("Gemma 4's merges in a GGUF file encode random text as tokenizer.json does",
          "[text][golden]") {
  constexpr uint64_t kTexts = 3000;
  const auto path = test::SourceDir() / "tests/golden/tokenizers/metaspace_bpe.json";
  std::ifstream in(path);
  const std::string bytes = GgufBytes(json::parse(in));
  const auto file = GgufFile::Parse(std::as_bytes(std::span(bytes)), "model.gguf");
  REQUIRE(file.ok());
  const auto found = LoadGgufTokenizer(*file);
  const auto wanted = LoadTokenizer(path);
  INFO(std::string(found.status().message()));
  REQUIRE(found.ok());
  REQUIRE(wanted.ok());
  int different = 0;
  for (uint64_t i = 0; i < kTexts; ++i) {
    const std::string text = RandomText(i);
    std::vector<TokenId> ids;
    std::vector<TokenId> wanted_ids;
    REQUIRE((*found)->Encode(text, {.add_special = false}, &ids).ok());
    REQUIRE((*wanted)->Encode(text, {.add_special = false}, &wanted_ids).ok());
    const bool same =
        ids == wanted_ids && (*found)->Decode(ids, false) == (*wanted)->Decode(ids, false);
    different += same ? 0 : 1;
  }
  CHECK(different == 0);
  // The token that begins a text is put before it by default.
  std::vector<TokenId> ids;
  REQUIRE((*found)->Encode("tea", {.add_special = true}, &ids).ok());
  CHECK(ids.front() == 1);
}

}  // namespace
}  // namespace heddle::engine::text
