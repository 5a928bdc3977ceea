#include "server/llamacpp/llama_request.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/llamacpp/llama_fields.h"
#include "server/openai/request_parts.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

using RenamedFields = RequestFields<fields::kLlamaRenamed>;
using InfillFields = RequestFields<fields::kLlamaInfill>;
using Tokens = std::vector<TokenId>;

constexpr RefusedField kRefusedLlamaFields[] = {
    {"mirostat", "0", "this sampler is not supported"},
    {"dynatemp_range", "0", "this sampler is not supported"},
    {"n_indent", "0", "give the form of the answer as 'grammar'"},
    {"min_keep", "0", "filters leave one token at least"},
    {"t_max_predict_ms", "0", "limit the answer by 'n_predict'"},
    {"post_sampling_probs", "false", "log-probabilities are those before sampling"},
    {"image_data", "[]", "this server's models read text only"},
    {"multimodal_data", "[]", "this server's models read text only"},
};

constexpr Renamed kLlamaNames[] = {
    {"max_tokens", "n_predict"},
    {"repetition_penalty", "repeat_penalty"},
    {"logprobs", "n_probs"},
};

Json CompletionBody(const RenamedFields& renamed, const GenerationFields& same) {
  Json body = Json::object();
  same.ForEach(
      [&body](std::string_view name, const Json& value) { body[std::string(name)] = value; });
  // A seed of -1, with a sign or without, means a random one.
  constexpr int64_t kUnsignedRandom = std::numeric_limits<uint32_t>::max();
  const int64_t seed = same.Int<"seed">(0);
  if (seed == -1 || seed == kUnsignedRandom) body.erase("seed");
  const int64_t length = renamed.Int<"n_predict">(-1);
  body["max_tokens"] = std::max<int64_t>(length, -1);
  if (const Json* penalty = renamed.Value<"repeat_penalty">())
    body["repetition_penalty"] = *penalty;
  if (const int64_t count = renamed.Int<"n_probs">(0); count > 0) body["logprobs"] = count;
  body["return_token_ids"] = true;  // answers say how many there were
  return body;
}

absl::StatusOr<LlamaRequest> Read(const Json& body, bool return_tokens, bool names_samplers,
                                  const RequestContext& context) {
  absl::StatusOr<ApiRequest> api = ReadRequest(Endpoint::kCompletion, body, context);
  if (!api.ok()) return RenameFields(api.status(), kLlamaNames);
  LlamaRequest request{*std::move(api), return_tokens};
  if (names_samplers) {
    request.api.Warn("samplers is not used: the order of samplers is fixed");
  }
  return request;
}

bool IsMixed(const Json& prompt) {
  if (!prompt.is_array()) return false;
  const auto is = [&prompt](auto kind) { return std::any_of(prompt.begin(), prompt.end(), kind); };
  return is([](const Json& part) { return part.is_string(); }) &&
         is([](const Json& part) { return part.is_number(); });
}

// The ids of a prompt that has both texts and ids. Only a text at the beginning gets the model's
// begin token.
absl::StatusOr<Json> JoinMixed(const Json& prompt, std::string_view path, const TextCodec& codec) {
  Json ids = Json::array();
  for (size_t i = 0; i < prompt.size(); ++i) {
    const std::string* text = TextOf(&prompt[i]);
    if (text == nullptr) {
      ids.push_back(prompt[i]);  // checked with the whole
      continue;
    }
    HEDDLE_ASSIGN_OR_RETURN(const Tokens tokens,
                            EncodeField(*text, path, /*add_special=*/i == 0, codec));
    for (TokenId token : tokens) ids.push_back(token);
  }
  return ids;
}

absl::StatusOr<Json> ReadPrompt(const Json& prompt, const TextCodec& codec) {
  if (IsMixed(prompt)) return JoinMixed(prompt, "prompt", codec);
  if (!prompt.is_array()) return prompt;
  Json prompts = Json::array();
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (!IsMixed(prompt[i])) {
      prompts.push_back(prompt[i]);
      continue;
    }
    HEDDLE_ASSIGN_OR_RETURN(Json joined,
                            JoinMixed(prompt[i], base::StrCat("prompt[", i, "]"), codec));
    prompts.push_back(std::move(joined));
  }
  return prompts;
}

// The further texts, each behind a line with its name.
absl::StatusOr<Tokens> ExtraTokens(const InfillFields& fields, const TextCodec& codec) {
  Tokens all;
  const Json* extra = fields.Value<"input_extra">();
  if (extra == nullptr) return all;
  for (size_t i = 0; i < extra->size(); ++i) {
    const std::string path = base::StrCat("input_extra[", i, "]");
    const std::string* text = TextOf(Find((*extra)[i], "text"));
    if (text == nullptr) {
      return FieldError(path, base::StrCat("'", path, "' must be an object with a 'text'"),
                        "invalid_type");
    }
    const std::string shown =
        base::StrCat("--- ", TextOr((*extra)[i], "filename", "text"), "\n", *text, "\n\n");
    HEDDLE_ASSIGN_OR_RETURN(const Tokens tokens,
                            EncodeField(shown, path, /*add_special=*/false, codec));
    all.insert(all.end(), tokens.begin(), tokens.end());
  }
  return all;
}

absl::StatusOr<Tokens> TokensOf(const std::string* text, std::string_view path,
                                const TextCodec& codec) {
  if (text == nullptr) return Tokens();
  return EncodeField(*text, path, /*add_special=*/false, codec);
}

// How many tokens of the prompt fit beside the answer.
int64_t RoomForPrompt(const InfillFields& fields, const RequestContext& context) {
  constexpr int64_t kMarks = 3;
  const int64_t all = context.model->max_context;
  const int64_t asked = fields.Int<"n_predict">(-1);
  const int64_t answer = asked < 0 ? all / 4 : std::min(asked, all / 2);
  return std::max<int64_t>(1, all - answer - kMarks - 1);
}

// The prompt: PREFIX texts before, SUFFIX the text after, MIDDLE the beginning of the answer.
absl::StatusOr<Json> InfillPrompt(const InfillFields& fields, const FillTokens& fill,
                                  const RequestContext& context) {
  const TextCodec& codec = *context.codec;
  HEDDLE_ASSIGN_OR_RETURN(Tokens extra, ExtraTokens(fields, codec));
  HEDDLE_ASSIGN_OR_RETURN(Tokens before,
                          TokensOf(fields.Text<"input_prefix">(), "input_prefix", codec));
  HEDDLE_ASSIGN_OR_RETURN(Tokens after,
                          TokensOf(fields.Text<"input_suffix">(), "input_suffix", codec));
  HEDDLE_ASSIGN_OR_RETURN(const Tokens begun, TokensOf(fields.Text<"prompt">(), "prompt", codec));
  const int64_t room =
      std::max<int64_t>(1, RoomForPrompt(fields, context) - static_cast<int64_t>(begun.size()));
  const auto size = [](const Tokens& tokens) { return static_cast<int64_t>(tokens.size()); };
  // A quarter of the room, or what the prefix leaves, is for the text after.
  const int64_t for_after = std::max(room / 4, room - size(before));
  if (size(after) > for_after) after.resize(static_cast<size_t>(for_after));
  KeepLast(std::max<int64_t>(1, room - size(after)), &before);
  const int64_t left = room - size(before) - size(after);
  if (left <= 0) extra.clear();
  if (left > 0) KeepLast(left, &extra);
  Json prompt = Json::array();
  const auto add = [&prompt](const Tokens& tokens) {
    for (TokenId token : tokens) prompt.push_back(token);
  };
  prompt.push_back(fill.prefix);
  add(extra);
  add(before);
  prompt.push_back(fill.suffix);
  add(after);
  prompt.push_back(fill.middle);
  add(begun);
  return prompt;
}

}  // namespace

absl::StatusOr<LlamaRequest> ParseLlamaCompletion(std::string_view text,
                                                  const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text));
  HEDDLE_ASSIGN_OR_RETURN(const RequestFields<fields::kLlamaCompletion> fields,
                          CheckBody<fields::kLlamaCompletion>(json, kRefusedLlamaFields, context));
  Json body = CompletionBody(fields, fields);
  HEDDLE_ASSIGN_OR_RETURN(body["prompt"], ReadPrompt(*fields.Value<"prompt">(), *context.codec));
  return Read(body, fields.Bool<"return_tokens">(false), fields.Has<"samplers">(), context);
}

absl::StatusOr<LlamaRequest> ParseLlamaInfill(std::string_view text,
                                              const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text));
  HEDDLE_ASSIGN_OR_RETURN(const InfillFields fields,
                          CheckBody<fields::kLlamaInfill>(json, kRefusedLlamaFields, context));
  const std::optional<FillTokens> fill = context.codec->fill_tokens();
  if (!fill.has_value()) {
    return FieldError("input_suffix", "the model has no tokens for filling in the middle",
                      "unsupported_parameter");
  }
  Json body = CompletionBody(fields, fields);
  HEDDLE_ASSIGN_OR_RETURN(body["prompt"], InfillPrompt(fields, *fill, context));
  return Read(body, fields.Bool<"return_tokens">(false), fields.Has<"samplers">(), context);
}

}  // namespace heddle::server
