// The readers of the tokenizer file formats. Internal to engine/text; see LoadTokenizer.
// They read untrusted bytes: INVALID_ARGUMENT gives the place and what was expected.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/text/json_node.h"
#include "engine/text/tokenizer_parts.h"

namespace heddle::engine::text {

// Reads tokenizer.json and its sections. `place` names the file in messages.
absl::StatusOr<TokenizerParts> ParseTokenizerJson(const nlohmann::json& document,
                                                  std::string place);
absl::StatusOr<std::unique_ptr<Normalizer>> ParseNormalizer(const JsonNode& node);
struct ParsedPreTokenizer {
  std::unique_ptr<PreTokenizer> pre_tokenizer;  // null if the section is only "byte-level"
  bool byte_level = false;
};
absl::StatusOr<ParsedPreTokenizer> ParsePreTokenizer(const JsonNode& node);
absl::StatusOr<TokenDecoder> ParseDecoder(const JsonNode& node);

struct ParsedModel {
  std::unique_ptr<Model> model;
  TokenTable tokens{0};                   // without added tokens; not finished
  bool has_metaspace_boundaries = false;  // see NewMetaspaceBoundaries
};
// `num_added` and the size of the vocabulary bound the ids.
absl::StatusOr<ParsedModel> ParseModel(const JsonNode& node, bool byte_level, size_t num_added);

// Reads SentencePiece's tokenizer.model.
absl::StatusOr<TokenizerParts> ParseSentencePiece(std::string_view bytes, const std::string& place);

// Reads tiktoken's ranks: one "<base64 of the token> <rank>" per line; `pattern` splits the text.
absl::StatusOr<TokenizerParts> ParseTiktoken(std::string_view text, std::string_view pattern,
                                             const std::string& place);

absl::StatusOr<TokenizerParts> ParseGgufVocabulary(const GgufFile& file);

// Reads what tokenizer_config.json, special_tokens_map.json, generation_config.json and the
// template files of `folder` say about the tokenizer, and added_tokens.json if the tokenizer's own
// file lacks the added tokens. Missing files are skipped.
absl::Status ApplySidecars(const std::filesystem::path& folder, bool has_added_tokens,
                           TokenizerParts* parts);

}  // namespace heddle::engine::text
