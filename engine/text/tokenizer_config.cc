// Reads the files beside the tokenizer in a model folder: names of special tokens, chat templates,
// and the ids that end an answer.
#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "base/message.h"
#include "base/status.h"
#include "base/utf8.h"
#include "engine/files/json_file.h"
#include "engine/files/mapped_file.h"
#include "engine/text/byte_level.h"
#include "engine/text/loaders.h"

namespace heddle::engine::text {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxTemplateBytes = 4 << 20;

// transformers' classes that build the template around the text from add_bos_token and
// add_eos_token, whatever tokenizer.json says.
constexpr std::array<std::string_view, 7> kFlagsDecide = {
    "LlamaTokenizer",     "LlamaTokenizerFast", "CodeLlamaTokenizer", "CodeLlamaTokenizerFast",
    "GemmaTokenizerFast", "GemmaTokenizer",     "CohereTokenizerFast"};

absl::StatusOr<std::optional<nlohmann::json>> ReadOptional(const fs::path& path) {
  absl::StatusOr<nlohmann::json> document = ReadJsonFile(path);
  if (absl::IsNotFound(document.status())) return std::nullopt;
  HEDDLE_RETURN_IF_ERROR(document.status());
  return *std::move(document);
}

// A special token is given as its text, or as an object with its text as "content".
absl::StatusOr<std::string> TextOf(const JsonNode& token) {
  const auto content = token.Find("content");
  return content ? content->AsString() : token.AsString();
}

// Byte-level vocabularies may have it as plain text, such as "\n\n", which ends RWKV's answers.
std::optional<TokenId> FindSpecial(std::string_view text, const TokenizerParts& parts) {
  std::optional<TokenId> id = parts.tokens.Find(text);
  if (!id && parts.byte_level) id = parts.tokens.Find(ToByteLevel(text));
  if (!id && !text.empty()) id = parts.end_of_text;
  return id;
}

// `must_be_known` is false for an older file that may have outdated names.
absl::StatusOr<std::optional<TokenId>> SpecialToken(const JsonNode& config, std::string_view key,
                                                    bool must_be_known,
                                                    const TokenizerParts& parts) {
  const auto node = config.Find(key);
  if (!node) return std::nullopt;
  HEDDLE_ASSIGN_OR_RETURN(const std::string text, TextOf(*node));
  const std::optional<TokenId> id = FindSpecial(text, parts);
  // An ignored begin token would be missing from every prompt; without an end token no answer would
  // end.
  if (!id && !text.empty() && must_be_known) {
    return absl::InvalidArgumentError(
        base::StrCat(node->place(), " is ", base::Quote(text), ", which is not in the vocabulary"));
  }
  return id;
}

void AddEos(TokenId id, std::vector<TokenId>* eos) {
  if (std::find(eos->begin(), eos->end(), id) == eos->end()) eos->push_back(id);
}

// Reads tokenizer_config.json of a tokenizer without tokenizer.json: {"added_tokens_decoder":
// {"32000": {"content": "<|im_end|>", "special": true, ...}}}.
absl::Status ReadAddedDecoder(const JsonNode& config, std::vector<AddedToken>* added) {
  const auto all = config.Find("added_tokens_decoder");
  if (!all) return absl::OkStatus();
  if (!all->is_object()) return all->Wrong("an object of tokens by id");
  for (const auto& [key, value] : all->value().items()) {
    const JsonNode node(&value, base::StrCat(all->place(), ".", key));
    AddedToken token;
    if (!absl::SimpleAtoi(key, &token.id)) return node.Wrong("a token id as its key");
    HEDDLE_ASSIGN_OR_RETURN(token.content, node.String("content"));
    HEDDLE_ASSIGN_OR_RETURN(token.special, node.BoolOr("special", false));
    HEDDLE_ASSIGN_OR_RETURN(token.lstrip, node.BoolOr("lstrip", false));
    HEDDLE_ASSIGN_OR_RETURN(token.rstrip, node.BoolOr("rstrip", false));
    HEDDLE_ASSIGN_OR_RETURN(token.single_word, node.BoolOr("single_word", false));
    added->push_back(std::move(token));
  }
  return absl::OkStatus();
}

// Reads the files of older folders: added_tokens.json with {"<|im_end|>": 32000}, and
// special_tokens_map.json with the names of special ones.
absl::Status ReadAddedJson(const JsonNode& tokens, const JsonNode* special_map,
                           std::vector<AddedToken>* added) {
  if (!tokens.is_object()) return tokens.Wrong("an object of ids by token");
  std::set<std::string, std::less<>> special;
  const auto list =
      special_map == nullptr ? std::nullopt : special_map->Find("additional_special_tokens");
  if (list && list->value().is_array()) {
    for (const nlohmann::json& entry : list->value()) {
      HEDDLE_ASSIGN_OR_RETURN(std::string text, TextOf(JsonNode(&entry, list->place())));
      special.insert(std::move(text));
    }
  }
  for (const char* key : {"bos_token", "eos_token", "pad_token", "unk_token"}) {
    const auto node = special_map == nullptr ? std::nullopt : special_map->Find(key);
    if (!node) continue;
    HEDDLE_ASSIGN_OR_RETURN(std::string text, TextOf(*node));
    special.insert(std::move(text));
  }
  for (const auto& [text, id] : tokens.value().items()) {
    if (!id.is_number_integer()) {
      return JsonNode(&id, base::StrCat(tokens.place(), ": ", base::Quote(text))).Wrong("an id");
    }
    added->push_back(
        {.id = static_cast<TokenId>(std::clamp<int64_t>(id.get<int64_t>(), -1, kMaxVocabSize)),
         .content = text,
         .special = special.contains(text)});
  }
  return absl::OkStatus();
}

// Not needed with tokenizer.json, which has the tokens itself.
absl::Status ReadAddedTokens(const fs::path& folder, TokenizerParts* parts) {
  std::vector<AddedToken> added;
  const fs::path config_path = folder / "tokenizer_config.json";
  HEDDLE_ASSIGN_OR_RETURN(const auto config, ReadOptional(config_path));
  if (config) {
    HEDDLE_RETURN_IF_ERROR(ReadAddedDecoder(JsonNode(&*config, config_path.string()), &added));
  }
  const fs::path list_path = folder / "added_tokens.json";
  HEDDLE_ASSIGN_OR_RETURN(const auto list, ReadOptional(list_path));
  if (added.empty() && list) {
    const fs::path map_path = folder / "special_tokens_map.json";
    HEDDLE_ASSIGN_OR_RETURN(const auto map, ReadOptional(map_path));
    const JsonNode map_node(map ? &*map : nullptr, map_path.string());
    HEDDLE_RETURN_IF_ERROR(
        ReadAddedJson(JsonNode(&*list, list_path.string()), map ? &map_node : nullptr, &added));
  }
  absl::Status status = parts->AddRaw(std::move(added));
  if (status.ok()) return status;
  return absl::InvalidArgumentError(
      base::StrCat(folder.string(), ": added tokens: ", status.message()));
}

absl::Status ReadTemplate(const JsonNode& config, std::string* chat_template) {
  const auto node = config.Find("chat_template");
  if (!node) return absl::OkStatus();
  if (node->is_string()) {
    HEDDLE_ASSIGN_OR_RETURN(*chat_template, node->AsString());
    return absl::OkStatus();
  }
  if (!node->value().is_array()) return node->Wrong("a template, or an array of named ones");
  // If there are several named templates, takes the one called "default", or the first.
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<JsonNode> named, config.Array("chat_template"));
  for (const JsonNode& entry : named) {
    HEDDLE_ASSIGN_OR_RETURN(const std::string name, entry.String("name"));
    if (!chat_template->empty() && name != "default") continue;
    HEDDLE_ASSIGN_OR_RETURN(*chat_template, entry.String("template"));
  }
  return absl::OkStatus();
}

absl::Status ApplyFlags(const JsonNode& config, TokenizerParts* parts) {
  HEDDLE_ASSIGN_OR_RETURN(const std::string name, config.StringOr("tokenizer_class", ""));
  if (std::find(kFlagsDecide.begin(), kFlagsDecide.end(), name) == kFlagsDecide.end()) {
    return absl::OkStatus();
  }
  HEDDLE_ASSIGN_OR_RETURN(const bool add_bos,
                          config.BoolOr("add_bos_token", parts->bos && !parts->prefix.empty()));
  HEDDLE_ASSIGN_OR_RETURN(const bool add_eos,
                          config.BoolOr("add_eos_token", !parts->suffix.empty()));
  if (config.Find("add_bos_token")) {
    parts->prefix.clear();
    if (add_bos && parts->bos) parts->prefix.push_back(*parts->bos);
  }
  if (config.Find("add_eos_token")) {
    parts->suffix.clear();
    if (add_eos && !parts->eos.empty()) parts->suffix.push_back(parts->eos.front());
  }
  return absl::OkStatus();
}

absl::Status ApplyNames(const JsonNode& config, bool must_be_known, TokenizerParts* parts) {
  HEDDLE_ASSIGN_OR_RETURN(const auto bos, SpecialToken(config, "bos_token", must_be_known, *parts));
  if (bos) parts->bos = bos;
  HEDDLE_ASSIGN_OR_RETURN(const auto eos, SpecialToken(config, "eos_token", must_be_known, *parts));
  if (eos) AddEos(*eos, &parts->eos);
  if (parts->end_of_text) AddEos(*parts->end_of_text, &parts->eos);
  return absl::OkStatus();
}

absl::Status ApplyGenerationConfig(const JsonNode& config, TokenizerParts* parts) {
  const auto node = config.Find("eos_token_id");
  if (!node) return absl::OkStatus();
  const nlohmann::json& value = node->value();
  const nlohmann::json ids = value.is_array() ? value : nlohmann::json::array({value});
  for (const nlohmann::json& id : ids) {
    if (!id.is_number_integer()) return node->Wrong("a token id, or an array of them");
    const auto number = id.get<int64_t>();
    // Vocabularies are padded; an id without a token ends nothing.
    if (number >= 0 && number < parts->tokens.size()) {
      AddEos(static_cast<TokenId>(number), &parts->eos);
    }
  }
  return absl::OkStatus();
}

absl::Status ReadTemplateFile(const fs::path& path, std::string* chat_template) {
  absl::StatusOr<MappedFile> file = MappedFile::Open(path);
  if (absl::IsNotFound(file.status())) return absl::OkStatus();
  HEDDLE_RETURN_IF_ERROR(file.status());
  if (file->bytes().size() > kMaxTemplateBytes) {
    return absl::InvalidArgumentError(base::StrCat(path.string(), ": template of ",
                                                   file->bytes().size(), " bytes, the limit is ",
                                                   kMaxTemplateBytes));
  }
  chat_template->assign(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
  return absl::OkStatus();
}

}  // namespace

absl::Status ApplySidecars(const fs::path& folder, bool has_added_tokens, TokenizerParts* parts) {
  if (!has_added_tokens) HEDDLE_RETURN_IF_ERROR(ReadAddedTokens(folder, parts));
  for (const std::string_view name : {"special_tokens_map.json", "tokenizer_config.json"}) {
    const fs::path path = folder / name;
    HEDDLE_ASSIGN_OR_RETURN(const auto document, ReadOptional(path));
    if (!document) continue;
    const JsonNode config(&*document, path.string());
    // tokenizer_config.json is newer, so it takes precedence.
    if (config.Find("eos_token")) parts->eos.clear();
    const bool overrides = name == "tokenizer_config.json";
    HEDDLE_RETURN_IF_ERROR(ApplyNames(config, /*must_be_known=*/overrides, parts));
    HEDDLE_RETURN_IF_ERROR(ApplyFlags(config, parts));
    HEDDLE_RETURN_IF_ERROR(ReadTemplate(config, &parts->chat_template));
  }
  const fs::path path = folder / "generation_config.json";
  HEDDLE_ASSIGN_OR_RETURN(const auto document, ReadOptional(path));
  if (document) {
    HEDDLE_RETURN_IF_ERROR(ApplyGenerationConfig(JsonNode(&*document, path.string()), parts));
  }
  return ReadTemplateFile(folder / "chat_template.jinja", &parts->chat_template);
}

}  // namespace heddle::engine::text
