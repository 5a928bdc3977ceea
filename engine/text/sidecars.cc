// What stands beside the tokenizer in a model folder: names of special tokens, chat templates, and
// the ids that end an answer.
#include <algorithm>
#include <array>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/files/json_file.h"
#include "engine/files/mapped_file.h"
#include "engine/text/loaders.h"
#include "engine/text/utf8.h"

namespace heddle::engine::text {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxTemplateBytes = 4 << 20;

// The classes of transformers that build the template around the text from add_bos_token and
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

// A special token is its text, or an object with its text as "content".
absl::StatusOr<std::optional<TokenId>> SpecialToken(const JsonNode& config, std::string_view key,
                                                    const TokenTable& tokens) {
  const auto node = config.Find(key);
  if (!node) return std::nullopt;
  const auto content = node->Find("content");
  HEDDLE_ASSIGN_OR_RETURN(const std::string text, content ? content->AsString() : node->AsString());
  return tokens.Find(text);
}

void AddEos(TokenId id, std::vector<TokenId>* eos) {
  if (std::find(eos->begin(), eos->end(), id) == eos->end()) eos->push_back(id);
}

absl::Status ReadTemplate(const JsonNode& config, std::string* chat_template) {
  const auto node = config.Find("chat_template");
  if (!node) return absl::OkStatus();
  if (node->is_string()) {
    HEDDLE_ASSIGN_OR_RETURN(*chat_template, node->AsString());
    return absl::OkStatus();
  }
  // Several by name: the one called "default", or the first.
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

absl::Status ApplyNames(const JsonNode& config, TokenizerParts* parts) {
  HEDDLE_ASSIGN_OR_RETURN(const auto bos, SpecialToken(config, "bos_token", parts->tokens));
  if (bos) parts->bos = bos;
  HEDDLE_ASSIGN_OR_RETURN(const auto eos, SpecialToken(config, "eos_token", parts->tokens));
  if (eos) AddEos(*eos, &parts->eos);
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
    // Vocabularies of models are padded; an id that no token has ends nothing.
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

absl::Status ApplySidecars(const fs::path& folder, TokenizerParts* parts) {
  for (const std::string_view name : {"special_tokens_map.json", "tokenizer_config.json"}) {
    const fs::path path = folder / name;
    HEDDLE_ASSIGN_OR_RETURN(const auto document, ReadOptional(path));
    if (!document) continue;
    const JsonNode config(&*document, path.string());
    // tokenizer_config.json is the newer one, and overrides.
    if (config.Find("eos_token")) parts->eos.clear();
    HEDDLE_RETURN_IF_ERROR(ApplyNames(config, parts));
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
