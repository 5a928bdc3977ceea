// Reads the top level of tokenizer.json: added tokens and post-processors, and combines the
// sections.
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/text/loaders.h"

namespace heddle::engine::text {
namespace {

constexpr int kMaxNesting = 16;

absl::StatusOr<AddedToken> ParseAddedToken(const JsonNode& node) {
  AddedToken token;
  HEDDLE_ASSIGN_OR_RETURN(const int64_t id, node.Int("id"));
  if (id < 0 || id >= kMaxVocabSize) {
    return absl::InvalidArgumentError(
        base::StrCat(node.place(), ": id ", id, " is not in [0, ", kMaxVocabSize, ")"));
  }
  token.id = static_cast<TokenId>(id);
  HEDDLE_ASSIGN_OR_RETURN(token.content, node.String("content"));
  HEDDLE_ASSIGN_OR_RETURN(token.special, node.BoolOr("special", false));
  HEDDLE_ASSIGN_OR_RETURN(token.normalized, node.BoolOr("normalized", !token.special));
  HEDDLE_ASSIGN_OR_RETURN(token.lstrip, node.BoolOr("lstrip", false));
  HEDDLE_ASSIGN_OR_RETURN(token.rstrip, node.BoolOr("rstrip", false));
  HEDDLE_ASSIGN_OR_RETURN(token.single_word, node.BoolOr("single_word", false));
  return token;
}

// The tokens that a post-processor puts around the text.
struct Around {
  std::vector<TokenId> prefix;
  std::vector<TokenId> suffix;
  PairTemplate pair;
};

class PostProcessorParser {
 public:
  explicit PostProcessorParser(const TokenTable& tokens) : tokens_(tokens) {}

  absl::StatusOr<Around> Parse(const JsonNode& node, int depth = 0) const {
    if (depth > kMaxNesting) return node.Wrong("at most 16 nested sequences");
    HEDDLE_ASSIGN_OR_RETURN(const std::string type, node.Type());
    if (type == "ByteLevel") return Around{};  // concerns offsets only
    if (type == "TemplateProcessing") return Template(node);
    if (type == "BertProcessing") return Bert(node);
    if (type == "RobertaProcessing") return Roberta(node);
    if (type == "Sequence") return Sequence(node, depth);
    return absl::InvalidArgumentError(
        base::StrCat(node.place(), ": post-processor '", type,
                     "' is not supported; known are ByteLevel, TemplateProcessing, BertProcessing, "
                     "RobertaProcessing, Sequence"));
  }

 private:
  absl::StatusOr<Around> Sequence(const JsonNode& node, int depth) const {
    Around all;
    HEDDLE_ASSIGN_OR_RETURN(const std::vector<JsonNode> steps, node.Array("processors"));
    for (const JsonNode& step : steps) {
      HEDDLE_ASSIGN_OR_RETURN(const Around around, Parse(step, depth + 1));
      all.prefix.insert(all.prefix.begin(), around.prefix.begin(), around.prefix.end());
      all.suffix.insert(all.suffix.end(), around.suffix.begin(), around.suffix.end());
      if (around.pair.is_known) all.pair = around.pair;
    }
    return all;
  }

  // "cls": ["<s>", 0] goes before the text, "sep" behind it.
  absl::StatusOr<Around> Bert(const JsonNode& node) const {
    Around around;
    HEDDLE_RETURN_IF_ERROR(AppendPair(node, "cls", &around.prefix));
    HEDDLE_RETURN_IF_ERROR(AppendPair(node, "sep", &around.suffix));
    around.pair = {.is_known = true,
                   .before = around.prefix,
                   .between = around.suffix,
                   .behind = around.suffix,
                   .types_differ = true};
    return around;
  }

  // "sep" twice between two texts, which have one type.
  absl::StatusOr<Around> Roberta(const JsonNode& node) const {
    HEDDLE_ASSIGN_OR_RETURN(Around around, Bert(node));
    around.pair.between.insert(around.pair.between.end(), around.suffix.begin(),
                               around.suffix.end());
    around.pair.types_differ = false;
    return around;
  }

  absl::Status AppendPair(const JsonNode& node, std::string_view key,
                          std::vector<TokenId>* ids) const {
    HEDDLE_ASSIGN_OR_RETURN(const JsonNode pair, node.Get(key));
    const nlohmann::json& value = pair.value();
    if (!value.is_array() || value.size() != 2 || !value[1].is_number_integer()) {
      return pair.Wrong("[token, id]");
    }
    return AppendId(JsonNode(&value[1], pair.place()), ids);
  }

  absl::Status AppendId(const JsonNode& node, std::vector<TokenId>* ids) const {
    if (!node.value().is_number_integer()) return node.Wrong("a token id");
    const auto id = node.value().get<int64_t>();
    if (id < 0 || id >= tokens_.size()) {
      return node.Wrong(base::StrCat("an id in [0, ", tokens_.size(), ")"));
    }
    ids->push_back(static_cast<TokenId>(id));
    return absl::OkStatus();
  }

  absl::StatusOr<Around> Template(const JsonNode& node) const {
    Around around;
    bool after_text = false;
    HEDDLE_ASSIGN_OR_RETURN(const std::vector<JsonNode> pieces, node.Array("single"));
    for (const JsonNode& piece : pieces) {
      if (const auto special = piece.Find("SpecialToken")) {
        HEDDLE_ASSIGN_OR_RETURN(const std::string name, special->String("id"));
        HEDDLE_RETURN_IF_ERROR(
            AppendSpecial(node, name, after_text ? &around.suffix : &around.prefix));
      } else if (piece.Find("Sequence") && !after_text) {
        after_text = true;
      } else {
        return piece.Wrong("a SpecialToken, or the one Sequence");
      }
    }
    if (!after_text) return node.Wrong("a Sequence in 'single'");
    if (node.Find("pair")) {
      HEDDLE_ASSIGN_OR_RETURN(around.pair, Pair(node));
    }
    return around;
  }

  // Reads A and then B, with types that are 0 up to B or everywhere; others are left as unknown:
  // generating models never read pairs.
  absl::StatusOr<PairTemplate> Pair(const JsonNode& node) const {
    PairTemplate pair;
    HEDDLE_ASSIGN_OR_RETURN(const std::vector<JsonNode> pieces, node.Array("pair"));
    std::vector<TokenId>* ids = &pair.before;
    for (const JsonNode& piece : pieces) {
      const auto sequence = piece.Find("Sequence");
      const auto special = piece.Find("SpecialToken");
      if (!sequence && !special) return piece.Wrong("a SpecialToken or a Sequence");
      const JsonNode& entry = sequence ? *sequence : *special;
      HEDDLE_ASSIGN_OR_RETURN(const std::string name, entry.String("id"));
      int64_t type = 0;
      if (entry.Find("type_id")) {
        HEDDLE_ASSIGN_OR_RETURN(type, entry.Int("type_id"));
      }
      const bool is_second = sequence && name == "B";
      const bool is_behind = is_second || ids == &pair.behind;
      if (is_second) pair.types_differ = type == 1;
      if (type != (is_behind && pair.types_differ ? 1 : 0)) return PairTemplate{};
      if (special) {
        HEDDLE_RETURN_IF_ERROR(AppendSpecial(node, name, ids));
        continue;
      }
      if (ids != (is_second ? &pair.between : &pair.before)) return PairTemplate{};
      ids = is_second ? &pair.behind : &pair.between;
    }
    pair.is_known = ids == &pair.behind;
    return pair;
  }

  absl::Status AppendSpecial(const JsonNode& node, const std::string& name,
                             std::vector<TokenId>* ids) const {
    HEDDLE_ASSIGN_OR_RETURN(const JsonNode all, node.Get("special_tokens"));
    HEDDLE_ASSIGN_OR_RETURN(const JsonNode special, all.Get(name));
    HEDDLE_ASSIGN_OR_RETURN(const std::vector<JsonNode> elements, special.Array("ids"));
    for (const JsonNode& element : elements) HEDDLE_RETURN_IF_ERROR(AppendId(element, ids));
    return absl::OkStatus();
  }

  const TokenTable& tokens_;
};

absl::Status AddTokens(const std::vector<JsonNode>& nodes, TokenizerParts* parts) {
  for (const JsonNode& node : nodes) {
    HEDDLE_ASSIGN_OR_RETURN(AddedToken token, ParseAddedToken(node));
    if (token.content.empty()) continue;
    if (absl::Status added = parts->tokens.Add(token.id, token.content); !added.ok()) {
      return absl::InvalidArgumentError(base::StrCat(node.place(), ": ", added.message()));
    }
    parts->added.push_back(std::move(token));
  }
  return absl::OkStatus();
}

// Reads the steps between the text and the model.
absl::StatusOr<bool> ParseSteps(const JsonNode& root, TokenizerParts* parts) {
  if (const auto node = root.Find("normalizer")) {
    HEDDLE_ASSIGN_OR_RETURN(parts->normalizer, ParseNormalizer(*node));
  }
  if (const auto node = root.Find("pre_tokenizer")) {
    HEDDLE_ASSIGN_OR_RETURN(ParsedPreTokenizer parsed, ParsePreTokenizer(*node));
    parts->pre_tokenizer = std::move(parsed.pre_tokenizer);
    parts->byte_level = parsed.byte_level;
  }
  if (const auto node = root.Find("decoder")) {
    HEDDLE_ASSIGN_OR_RETURN(parts->decoder, ParseDecoder(*node));
  } else {
    parts->decoder.separator.assign(1, ' ');
  }
  return root.Find("pre_tokenizer").has_value();
}

}  // namespace

absl::StatusOr<TokenizerParts> ParseTokenizerJson(const nlohmann::json& document,
                                                  std::string place) {
  const JsonNode root(&document, std::move(place));
  TokenizerParts parts;
  HEDDLE_ASSIGN_OR_RETURN(const bool splits, ParseSteps(root, &parts));
  std::vector<JsonNode> added;
  if (root.Find("added_tokens")) {
    HEDDLE_ASSIGN_OR_RETURN(added, root.Array("added_tokens"));
  }
  HEDDLE_ASSIGN_OR_RETURN(const JsonNode model_node, root.Get("model"));
  HEDDLE_ASSIGN_OR_RETURN(ParsedModel model,
                          ParseModel(model_node, parts.byte_level, added.size()));
  parts.model = std::move(model.model);
  parts.tokens = std::move(model.tokens);
  if (!splits && model.has_metaspace_boundaries) parts.pre_tokenizer = NewMetaspaceBoundaries();
  HEDDLE_RETURN_IF_ERROR(AddTokens(added, &parts));
  parts.tokens.Finish(parts.decoder);
  HEDDLE_RETURN_IF_ERROR(parts.IndexAdded());
  if (const auto node = root.Find("post_processor")) {
    HEDDLE_ASSIGN_OR_RETURN(Around around, PostProcessorParser(parts.tokens).Parse(*node));
    parts.prefix = std::move(around.prefix);
    parts.suffix = std::move(around.suffix);
    parts.pair = std::move(around.pair);
  }
  // Without a configuration file, the token that the template puts in front is the best guess.
  if (!parts.prefix.empty()) parts.bos = parts.prefix.front();
  return parts;
}

}  // namespace heddle::engine::text
