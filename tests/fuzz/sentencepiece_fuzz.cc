// A tokenizer.model of any bytes loads or is refused; what loads encodes and decodes.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/text/loaders.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace text = heddle::engine::text;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  auto parts = text::ParseSentencePiece(bytes, "fuzz.model");
  if (!parts.ok()) return 0;
  const text::Tokenizer tokenizer(*std::move(parts));
  std::vector<heddle::engine::TokenId> ids;
  if (tokenizer.Encode("Hello  world 123 \xC3\xA9\xFF\xE2\x96\x81x", {}, &ids).ok()) {
    static_cast<void>(tokenizer.Decode(ids, true));
  }
  return 0;
}
