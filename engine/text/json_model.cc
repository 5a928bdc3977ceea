// The "model" section of tokenizer.json: BPE, Unigram and WordPiece.
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/text/bpe_vocabulary.h"
#include "engine/text/loaders.h"
#include "engine/text/unigram.h"
#include "engine/text/wordpiece.h"

namespace heddle::engine::text {
namespace {

// Ids of a vocabulary of n entries are close together; gaps from padding are below this.
constexpr int64_t kMaxIdGap = 1 << 16;

int64_t IdLimit(size_t entries) { return static_cast<int64_t>(entries) * 2 + kMaxIdGap; }

absl::Status At(const JsonNode& node, const absl::Status& status) {
  return absl::InvalidArgumentError(base::StrCat(node.place(), ": ", status.message()));
}

absl::StatusOr<UnknownPolicy> ParseUnknown(const JsonNode& node, const TokenTable& tokens) {
  UnknownPolicy policy;
  HEDDLE_ASSIGN_OR_RETURN(policy.fuse_unk, node.BoolOr("fuse_unk", false));
  HEDDLE_ASSIGN_OR_RETURN(const bool byte_fallback, node.BoolOr("byte_fallback", false));
  if (byte_fallback) policy.byte_tokens = ByteTokens(tokens);
  HEDDLE_ASSIGN_OR_RETURN(const std::string unk, node.StringOr("unk_token", ""));
  if (unk.empty()) return policy;
  const auto id = tokens.Find(unk);
  if (!id) {
    return absl::InvalidArgumentError(
        base::StrCat(node.place(), ": unk_token '", unk, "' is not in the vocabulary"));
  }
  policy.unk_id = *id;
  return policy;
}

absl::Status ParseVocabulary(const JsonNode& node, TokenTable* tokens) {
  HEDDLE_ASSIGN_OR_RETURN(const JsonNode vocab, node.Get("vocab"));
  if (!vocab.value().is_object()) return vocab.Wrong("an object of tokens and their ids");
  if (vocab.value().empty()) return vocab.Wrong("at least one token");
  for (const auto& [text, id] : vocab.value().items()) {
    if (!id.is_number_integer()) {
      return JsonNode(&id, base::StrCat(vocab.place(), "['", text, "']")).Wrong("an id");
    }
    if (absl::Status added = tokens->Add(id.get<int64_t>(), text); !added.ok()) {
      return At(vocab, added);
    }
  }
  return absl::OkStatus();
}

// A merge is "left right", or [left, right] in newer files.
absl::StatusOr<std::pair<std::string_view, std::string_view>> MergeParts(const JsonNode& merge) {
  const nlohmann::json& value = merge.value();
  if (value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string()) {
    return std::pair<std::string_view, std::string_view>(value[0].get_ref<const std::string&>(),
                                                         value[1].get_ref<const std::string&>());
  }
  if (!value.is_string()) return merge.Wrong("\"left right\" or [left, right]");
  const std::string_view text = value.get_ref<const std::string&>();
  const size_t space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
    return merge.Wrong("two tokens with one space between them");
  }
  return std::pair(text.substr(0, space), text.substr(space + 1));
}

absl::StatusOr<MergeTable> ParseMerges(const JsonNode& node, const TokenTable& tokens) {
  HEDDLE_ASSIGN_OR_RETURN(const JsonNode merges, node.Get("merges"));
  if (!merges.value().is_array()) return merges.Wrong("an array of merges");
  MergeTable table(merges.value().size());
  uint32_t rank = 0;
  for (const nlohmann::json& value : merges.value()) {
    const auto place = [&] {
      return JsonNode(&value, base::StrCat(merges.place(), "[", rank, "]"));
    };
    const auto parts = MergeParts(JsonNode(&value, ""));
    if (!parts.ok()) return MergeParts(place()).status();
    const absl::Status added = AddMerge(tokens, parts->first, parts->second, rank, &table);
    if (!added.ok()) return At(place(), added);
    ++rank;
  }
  return table;
}

absl::Status RefuseAffixes(const JsonNode& node) {
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    HEDDLE_ASSIGN_OR_RETURN(const std::string affix, node.StringOr(key, ""));
    if (!affix.empty()) {
      return absl::InvalidArgumentError(
          base::StrCat(node.place(), ".", key, ": '", affix, "' is not supported, expected none"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ParsedModel> ParseBpe(const JsonNode& node, bool byte_level, size_t num_added) {
  HEDDLE_RETURN_IF_ERROR(RefuseAffixes(node));
  HEDDLE_ASSIGN_OR_RETURN(const JsonNode vocab, node.Get("vocab"));
  ParsedModel parsed;
  parsed.tokens = TokenTable(IdLimit(vocab.value().size() + num_added));
  HEDDLE_RETURN_IF_ERROR(ParseVocabulary(node, &parsed.tokens));
  HEDDLE_ASSIGN_OR_RETURN(MergeTable merges, ParseMerges(node, parsed.tokens));
  BpeVocabulary vocabulary;
  vocabulary.vocab_size = parsed.tokens.size();
  vocabulary.byte_level = byte_level;
  HEDDLE_ASSIGN_OR_RETURN(vocabulary.unknown, ParseUnknown(node, parsed.tokens));
  IndexSymbols(parsed.tokens, &vocabulary);
  HEDDLE_ASSIGN_OR_RETURN(const bool ignore_merges, node.BoolOr("ignore_merges", false));
  if (ignore_merges) IndexWholeWords(parsed.tokens, &vocabulary);
  parsed.has_metaspace_boundaries =
      !byte_level && !ignore_merges && HasMetaspaceBoundaries(parsed.tokens);
  parsed.model = std::make_unique<Bpe>(std::move(vocabulary), std::move(merges));
  return parsed;
}

absl::StatusOr<ParsedModel> ParseUnigram(const JsonNode& node, size_t num_added) {
  HEDDLE_ASSIGN_OR_RETURN(const JsonNode vocab, node.Get("vocab"));
  if (!vocab.value().is_array() || vocab.value().empty()) {
    return vocab.Wrong("an array of [token, score]");
  }
  ParsedModel parsed;
  parsed.tokens = TokenTable(IdLimit(vocab.value().size() + num_added));
  std::vector<UnigramPiece> pieces;
  for (const nlohmann::json& entry : vocab.value()) {
    const JsonNode place(&entry, base::StrCat(vocab.place(), "[", pieces.size(), "]"));
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
      return place.Wrong("[token, score]");
    }
    const auto& text = entry[0].get_ref<const std::string&>();
    const auto id = static_cast<TokenId>(pieces.size());
    if (absl::Status added = parsed.tokens.AddPossiblyTwice(id, text); !added.ok()) {
      return At(place, added);
    }
    if (text.size() > kMaxTriedBytes) {
      return place.Wrong(base::StrCat("a token of at most ", kMaxTriedBytes, " bytes"));
    }
    pieces.push_back({text, id, entry[1].get<double>()});
  }
  UnigramOptions options;
  options.unknown.fuse_unk = true;
  HEDDLE_ASSIGN_OR_RETURN(const bool byte_fallback, node.BoolOr("byte_fallback", false));
  if (byte_fallback) options.unknown.byte_tokens = ByteTokens(parsed.tokens);
  if (node.Find("unk_id")) {
    HEDDLE_ASSIGN_OR_RETURN(const int64_t unk_id, node.Int("unk_id"));
    if (unk_id < 0 || unk_id >= parsed.tokens.size()) {
      return absl::InvalidArgumentError(base::StrCat(node.place(), ".unk_id: ", unk_id,
                                                     " is not in [0, ", parsed.tokens.size(), ")"));
    }
    options.unknown.unk_id = static_cast<TokenId>(unk_id);
  }
  parsed.model = std::make_unique<Unigram>(pieces, std::move(options));
  return parsed;
}

absl::StatusOr<ParsedModel> ParseWordPiece(const JsonNode& node, size_t num_added) {
  HEDDLE_ASSIGN_OR_RETURN(const JsonNode vocab, node.Get("vocab"));
  ParsedModel parsed;
  parsed.tokens = TokenTable(IdLimit(vocab.value().size() + num_added));
  HEDDLE_RETURN_IF_ERROR(ParseVocabulary(node, &parsed.tokens));
  WordPieceOptions options;
  HEDDLE_ASSIGN_OR_RETURN(options.prefix, node.StringOr("continuing_subword_prefix", "##"));
  if (node.Find("max_input_chars_per_word")) {
    constexpr int64_t kMostChars = 1 << 20;
    HEDDLE_ASSIGN_OR_RETURN(const int64_t chars, node.Int("max_input_chars_per_word"));
    if (chars < 1 || chars > kMostChars) return node.Wrong("max_input_chars_per_word of 1 or more");
    options.max_word_chars = static_cast<int32_t>(chars);
  }
  HEDDLE_ASSIGN_OR_RETURN(const std::string unk, node.StringOr("unk_token", "[UNK]"));
  const auto unk_id = parsed.tokens.Find(unk);
  if (!unk_id) {
    return absl::InvalidArgumentError(
        base::StrCat(node.place(), ": unk_token '", unk, "' is not in the vocabulary"));
  }
  options.unk_id = *unk_id;
  std::vector<std::pair<std::string_view, TokenId>> tokens;
  for (const auto& [text, id] : vocab.value().items()) {
    tokens.emplace_back(parsed.tokens.Text(id.get<TokenId>()), id.get<TokenId>());
  }
  parsed.model = std::make_unique<WordPiece>(tokens, std::move(options));
  return parsed;
}

}  // namespace

absl::StatusOr<ParsedModel> ParseModel(const JsonNode& node, bool byte_level, size_t num_added) {
  // Old files have no type; only BPE has merges.
  HEDDLE_ASSIGN_OR_RETURN(const std::string type,
                          node.StringOr("type", node.Find("merges") ? "BPE" : ""));
  if (type == "BPE") return ParseBpe(node, byte_level, num_added);
  if (type == "Unigram") return ParseUnigram(node, num_added);
  if (type == "WordPiece") return ParseWordPiece(node, num_added);
  return absl::InvalidArgumentError(
      base::StrCat(node.place(), ".type: model '", type,
                   "' is not supported; known are BPE, Unigram, WordPiece"));
}

}  // namespace heddle::engine::text
