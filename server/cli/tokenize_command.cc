#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "engine/text/tokenizer.h"
#include "nlohmann/json.hpp"
#include "server/cli/command.h"
#include "server/cli/standard_io.h"

namespace heddle::server {
namespace {

using base::StrCat;
using engine::TokenId;
using engine::text::Tokenizer;
using nlohmann::json;

constexpr size_t kMaxLineBytes = size_t{256} << 20;

absl::Status AtLine(int64_t line, std::string_view message) {
  return absl::InvalidArgumentError(StrCat("line ", line, ": ", message));
}

// Reads a text: the line's own bytes, or a JSON string if `jsonl`.
absl::StatusOr<std::string> ReadText(const std::string& line, bool jsonl) {
  if (!jsonl) return line;
  json parsed = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_string()) return parsed.get<std::string>();
  return absl::InvalidArgumentError(
      StrCat("expected a JSON string such as \"one\\ntwo\", got ", base::Quote(line)));
}

absl::StatusOr<std::vector<TokenId>> ReadIds(const std::string& line, const Tokenizer& tokenizer) {
  json parsed = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_array()) {
    return absl::InvalidArgumentError(
        StrCat("expected a JSON array of token ids such as [1, 2], got ", base::Quote(line)));
  }
  std::vector<TokenId> ids;
  ids.reserve(parsed.size());
  for (const json& item : parsed) {
    int64_t id = item.is_number_integer() ? item.get<int64_t>() : -1;
    if (id < 0 || id >= tokenizer.vocab_size()) {
      return absl::InvalidArgumentError(StrCat("expected token ids from 0 to ",
                                               tokenizer.vocab_size() - 1, ", got ",
                                               base::Quote(item.dump())));
    }
    ids.push_back(static_cast<TokenId>(id));
  }
  return ids;
}

absl::StatusOr<std::string> Encoded(const Tokenizer& tokenizer, const config::Config& config,
                                    const std::string& line) {
  HEDDLE_ASSIGN_OR_RETURN(std::string text, ReadText(line, config.jsonl));
  std::vector<TokenId> ids;
  HEDDLE_RETURN_IF_ERROR(tokenizer.Encode(
      text, {.add_special = !config.no_bos, .parse_special = config.special}, &ids));
  return json(ids).dump();
}

absl::StatusOr<std::string> Decoded(const Tokenizer& tokenizer, const config::Config& config,
                                    const std::string& line) {
  HEDDLE_ASSIGN_OR_RETURN(std::vector<TokenId> ids, ReadIds(line, tokenizer));
  std::string text = tokenizer.Decode(ids, /*skip_special=*/!config.special);
  return config.jsonl ? json(text).dump() : text;
}

}  // namespace

absl::Status RunTokenize(const config::Config& config) {
  HEDDLE_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer,
                          engine::text::LoadTokenizer(config.model));
  std::string line;
  for (int64_t number = 1;; ++number) {
    HEDDLE_ASSIGN_OR_RETURN(bool more, ReadLine(kMaxLineBytes, &line));
    if (!more) break;
    absl::StatusOr<std::string> result =
        config.decode ? Decoded(*tokenizer, config, line) : Encoded(*tokenizer, config, line);
    if (!result.ok()) return AtLine(number, std::string(result.status().message()));
    HEDDLE_RETURN_IF_ERROR(WriteOut(*result));
    HEDDLE_RETURN_IF_ERROR(WriteOut("\n"));
  }
  return FlushOut();
}

}  // namespace heddle::server
