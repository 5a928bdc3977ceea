// RWKV's rwkv_vocab_*.txt of any bytes loads or is refused; what loads encodes the file itself,
// whose tokens are then pieces of it in their order, and decodes them.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/text/tokenizer.h"
#include "engine/text/world_vocabulary.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace text = heddle::engine::text;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  auto parts = text::ParseWorldVocabulary(bytes, "rwkv_vocab_fuzz.txt");
  if (!parts.ok()) return 0;
  const text::Tokenizer tokenizer(*std::move(parts));
  std::vector<heddle::engine::TokenId> ids;
  const text::EncodeOptions options{.add_special = false, .parse_special = false};
  if (!tokenizer.Encode(bytes, options, &ids).ok()) return 0;
  size_t at = 0;
  for (const auto id : ids) {
    const std::string_view token = tokenizer.TokenBytes(id);
    at = bytes.find(token, at);
    HEDDLE_CHECK(!token.empty() && at != std::string_view::npos, "a token is not in the text");
    at += token.size();
  }
  static_cast<void>(tokenizer.Decode(ids, /*skip_special=*/true));
  return 0;
}
