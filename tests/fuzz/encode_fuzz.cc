// Texts of any bytes, through byte-level BPE and SentencePiece models: they encode, byte-level ids
// hold the bytes, streamed text equals whole-text decoding, and the words that a tokenizer
// remembers change nothing.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/check.h"
#include "engine/text/detokenizer.h"
#include "engine/text/tokenizer.h"

namespace {

namespace text = heddle::engine::text;

std::unique_ptr<text::Tokenizer> Load(const char* name) {
  const char* root = std::getenv("HEDDLE_SOURCE_DIR");
  auto tokenizer = text::LoadTokenizer(std::filesystem::path(root != nullptr ? root : ".") /
                                       "tests/golden/tokenizers" / name);
  HEDDLE_CHECK(tokenizer.ok(), "run in the checkout, or set HEDDLE_SOURCE_DIR");
  return *std::move(tokenizer);
}

void Check(const text::Tokenizer& tokenizer, std::string_view input, bool keeps_bytes) {
  std::vector<heddle::engine::TokenId> ids;
  const text::EncodeOptions options{.add_special = false, .parse_special = false};
  HEDDLE_CHECK(tokenizer.Encode(input, options, &ids).ok(), "encoding failed");
  std::vector<heddle::engine::TokenId> again;
  HEDDLE_CHECK(tokenizer.Encode(input, options, &again).ok(), "encoding failed");
  HEDDLE_CHECK(ids == again, "the second time gave other ids");
  std::string bytes;
  std::string streamed;
  text::IncrementalDetokenizer detokenizer(&tokenizer, false);
  for (const auto id : ids) {
    bytes.append(tokenizer.TokenBytes(id));
    streamed.append(detokenizer.Append(id));
  }
  streamed.append(detokenizer.Flush());
  HEDDLE_CHECK(!keeps_bytes || bytes == input, "bytes were lost");
  HEDDLE_CHECK(streamed == tokenizer.Decode(ids, false), "a stream differs from the whole");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto bytes = Load("o200k.json");
  static const auto pieces = Load("spm_bpe.model");
  static const auto unigram = Load("spm_unigram.model");
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  Check(*bytes, input, true);
  Check(*pieces, input, false);
  Check(*unigram, input, false);
  return 0;
}
