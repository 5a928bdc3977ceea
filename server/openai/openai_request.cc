#include "server/openai/openai_request.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/openai/api_error.h"
#include "server/openai/constraint.h"
#include "server/openai/fields.h"
#include "server/openai/request_parts.h"
#include "server/openai/scheduling.h"
#include "server/openai/show_json.h"

namespace heddle::server {
namespace {

constexpr int32_t kDefaultCompletionTokens = 16;  // OpenAI's

absl::StatusOr<std::vector<std::string>> ReadStop(const Json& body) {
  std::vector<std::string> stop;
  const Json* value = Find(body, "stop");
  if (value == nullptr) return stop;
  const Json list = value->is_string() ? Json::array({*value}) : *value;
  if (list.size() > kMaxStopStrings) {
    return FieldError("stop", base::StrCat("'stop' must have at most ", kMaxStopStrings,
                                           " strings, found ", list.size()));
  }
  for (const Json& entry : list) {
    if (!entry.is_string()) {
      return FieldError("stop", base::StrCat("'stop' must hold strings, found ", JsonKind(entry)),
                        "invalid_type");
    }
    std::string text = entry.get<std::string>();
    if (text.size() > kMaxStopBytes) {
      return FieldError("stop", base::StrCat("a stop string must have at most ", kMaxStopBytes,
                                             " bytes, found ", text.size()));
    }
    if (!text.empty()) stop.push_back(std::move(text));
  }
  return stop;
}

// Each word as it stands in the middle of a text, with a space before it and without (as vLLM).
absl::Status ReadBadWords(const Json& body, const TextCodec& codec,
                          engine::SamplingParams* sampling) {
  constexpr size_t kMaxBytes = 256;
  const Json* words = Find(body, "bad_words");
  if (words == nullptr) return absl::OkStatus();
  for (const Json& entry : *words) {
    std::string text = entry.is_string() ? entry.get<std::string>() : "";
    text.erase(0, text.find_first_not_of(' '));
    if (text.empty() || text.size() > kMaxBytes) {
      return FieldError("bad_words", base::StrCat("'bad_words' must hold strings of 1 to ",
                                                  kMaxBytes, " bytes, found ", ShowJson(entry)));
    }
    HEDDLE_ASSIGN_OR_RETURN(std::vector<TokenId> plain, codec.Encode(text, false));
    HEDDLE_ASSIGN_OR_RETURN(std::vector<TokenId> spaced, codec.Encode(" " + text, false));
    if (plain.empty() || spaced.empty()) continue;
    bool differs = spaced[0] != plain[0] && spaced.size() == plain.size();
    sampling->bad_words.push_back(std::move(plain));
    if (differs) sampling->bad_words.push_back(std::move(spaced));
  }
  return absl::OkStatus();
}

absl::Status ReadLogitBias(const Json& body, int32_t vocab, engine::SamplingParams* sampling) {
  const Json* map = Find(body, "logit_bias");
  if (map == nullptr) return absl::OkStatus();
  for (auto it = map->begin(); it != map->end(); ++it) {
    const std::string& key = it.key();
    std::string path = base::StrCat("logit_bias.", key.substr(0, 32));
    int32_t token = -1;
    auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc() || end != key.data() + key.size() || token < 0 || token >= vocab) {
      return FieldError(path, base::StrCat("keys of 'logit_bias' must be token ids from 0 to ",
                                           vocab - 1, ", found ", base::Quote(key)));
    }
    if (!it->is_number() || std::abs(it->get<double>()) > 100) {
      return FieldError(path, base::StrCat("'", path, "' must be a number from -100 to 100, found ",
                                           ShowJson(*it)));
    }
    sampling->logit_bias.emplace_back(token, it->get<float>());
  }
  return absl::OkStatus();
}

// Where the tokens that end an answer come from: the model's own, and the request's.
absl::Status ReadStopTokens(const Json& body, const TextCodec& codec, GenerationRequest* request) {
  std::span<const TokenId> end_tokens = codec.end_tokens();
  if (!GetBool(body, "ignore_eos", false)) {
    request->stop_tokens.assign(end_tokens.begin(), end_tokens.end());
  }
  if (const Json* ids = Find(body, "stop_token_ids")) {
    HEDDLE_ASSIGN_OR_RETURN(std::vector<TokenId> tokens,
                            ReadTokenIds(*ids, "stop_token_ids", codec.vocab()));
    request->stop_tokens.insert(request->stop_tokens.end(), tokens.begin(), tokens.end());
  }
  return absl::OkStatus();
}

// Temperature and what cuts the distribution; absent ones stay as they are.
absl::Status ReadFilters(const Json& body, engine::SamplingParams* out) {
  engine::SamplingParams& sampling = *out;
  sampling.temperature = static_cast<float>(GetNumber(body, "temperature", sampling.temperature));
  sampling.top_p = static_cast<float>(GetNumber(body, "top_p", sampling.top_p));
  sampling.top_k =
      std::max<int32_t>(0, static_cast<int32_t>(GetInt(body, "top_k", sampling.top_k)));
  if (sampling.top_p == 0.0f) {  // "the likeliest alone"; 0 is not a sum that tokens can reach
    sampling.top_p = 1.0f;
    sampling.top_k = 1;
  }
  sampling.min_p = static_cast<float>(GetNumber(body, "min_p", sampling.min_p));
  sampling.typical_p = static_cast<float>(GetNumber(body, "typical_p", sampling.typical_p));
  if (sampling.typical_p <= 0.0f) {
    return FieldError("typical_p", "'typical_p' must be above 0, found 0; 1 turns it off");
  }
  return absl::OkStatus();
}

absl::Status ReadSampling(const Json& body, const RequestContext& context,
                          GenerationRequest* request) {
  engine::SamplingParams& sampling = request->sampling;
  sampling = context.model->defaults;
  HEDDLE_RETURN_IF_ERROR(ReadFilters(body, &sampling));
  sampling.repetition_penalty =
      static_cast<float>(GetNumber(body, "repetition_penalty", sampling.repetition_penalty));
  sampling.presence_penalty = static_cast<float>(GetNumber(body, "presence_penalty", 0));
  sampling.frequency_penalty = static_cast<float>(GetNumber(body, "frequency_penalty", 0));
  sampling.seed = context.random_seed;
  if (const Json* seed = Find(body, "seed")) {
    sampling.seed = seed->is_number_unsigned() ? seed->get<uint64_t>()
                                               : static_cast<uint64_t>(GetInt(body, "seed", 0));
  }
  sampling.min_tokens = static_cast<int32_t>(GetInt(body, "min_tokens", 0));
  HEDDLE_RETURN_IF_ERROR(ReadStopTokens(body, *context.codec, request));
  if (sampling.min_tokens > 0) sampling.min_tokens_banned = request->stop_tokens;
  HEDDLE_RETURN_IF_ERROR(ReadBadWords(body, *context.codec, &sampling));
  return ReadLogitBias(body, context.codec->vocab(), &sampling);
}

absl::Status ReadStream(const Json& body, ApiRequest* request) {
  request->stream = GetBool(body, "stream", false);
  const Json* options = Find(body, "stream_options");
  if (options == nullptr) return absl::OkStatus();
  if (!request->stream) {
    return FieldError("stream_options", "'stream_options' is only allowed where 'stream' is true");
  }
  if (const Json* usage = Find(*options, "include_usage")) {
    if (!usage->is_boolean()) {
      return FieldError("stream_options.include_usage",
                        base::StrCat("'stream_options.include_usage' must be a boolean, found ",
                                     JsonKind(*usage)),
                        "invalid_type");
    }
    request->include_usage = usage->get<bool>();
  }
  return absl::OkStatus();
}

absl::Status ReadLogprobs(const Json& body, ApiRequest* request) {
  if (request->endpoint == Endpoint::kCompletion) {
    request->logprobs = Find(body, "logprobs") != nullptr;
    request->top_logprobs = static_cast<int32_t>(GetInt(body, "logprobs", 0));
    return absl::OkStatus();
  }
  request->logprobs = GetBool(body, "logprobs", false);
  request->top_logprobs = static_cast<int32_t>(GetInt(body, "top_logprobs", 0));
  if (request->top_logprobs > 0 && !request->logprobs) {
    return FieldError("top_logprobs", "'top_logprobs' is only allowed where 'logprobs' is true");
  }
  return absl::OkStatus();
}

absl::Status ReadPromptLogprobs(const Json& body, ApiRequest* request) {
  request->prompt_logprobs = static_cast<int32_t>(GetInt(body, "prompt_logprobs", -1));
  if (request->prompt_logprobs >= 0 && request->stream) {
    return FieldError("prompt_logprobs", "'prompt_logprobs' is not available in a stream");
  }
  return absl::OkStatus();
}

// How many answers are drawn, and how many of them returned.
absl::Status ReadCounts(const Json& body, ApiRequest* request) {
  request->n = static_cast<int32_t>(GetInt(body, "n", 1));
  request->best_of = request->n;
  if (request->endpoint == Endpoint::kChat) return absl::OkStatus();
  request->best_of = static_cast<int32_t>(GetInt(body, "best_of", request->n));
  if (request->best_of < request->n) {
    return FieldError("best_of", base::StrCat("'best_of' must be at least n, found ",
                                              request->best_of, " and n ", request->n));
  }
  if (request->best_of > request->n && request->stream) {
    return FieldError("best_of", "'best_of' beyond n is not available in a stream");
  }
  return absl::OkStatus();
}

// The client's limit, or the rest of the context; cut to what the context holds.
absl::Status SetMaxTokens(const Json& body, const ApiRequest& api, const RequestContext& context,
                          GenerationRequest* request, std::string* warning) {
  const ServedModel& model = *context.model;
  auto prompt_tokens = static_cast<int64_t>(request->prompt.size());
  std::string_view param = api.endpoint == Endpoint::kChat ? "messages" : "prompt";
  if (prompt_tokens >= model.max_context) {
    return FieldError(param,
                      base::StrCat("the prompt has ", prompt_tokens,
                                   " tokens, and the context of this server holds ",
                                   model.max_context, " with at least one for the answer"),
                      "context_length_exceeded");
  }
  int64_t room = model.max_context - prompt_tokens;
  int64_t fallback = api.endpoint == Endpoint::kChat ? room : kDefaultCompletionTokens;
  int64_t asked = GetInt(body, "max_completion_tokens", GetInt(body, "max_tokens", fallback));
  if (asked > room && (Find(body, "max_tokens") || Find(body, "max_completion_tokens"))) {
    if (!context.policy.clamp_max_tokens) {
      return FieldError(
          Find(body, "max_completion_tokens") ? "max_completion_tokens" : "max_tokens",
          base::StrCat("the prompt has ", prompt_tokens, " tokens and the context holds ",
                       model.max_context, ": at most ", room, " can follow, found ", asked),
          "context_length_exceeded");
    }
    *warning =
        base::StrCat("max_tokens cut from ", asked, " to ", room, ", the rest of the context");
  }
  request->max_tokens = static_cast<int32_t>(std::min(asked, room));
  request->sampling.min_tokens = std::min(request->sampling.min_tokens, request->max_tokens);
  return absl::OkStatus();
}

// What to look for in the text of a chat's answer.
void ReadOutputSyntax(const Json& body, const RequestContext& context,
                      std::span<const TokenId> prompt, ApiRequest* request) {
  constexpr size_t kTailTokens = 32;  // marks that open reasoning are shorter
  request->syntax = context.codec->syntax();
  if (!OffersTools(body)) request->syntax.tools = nullptr;
  request->tools = ReadToolSet(body);
  request->parallel_tool_calls = GetBool(body, "parallel_tool_calls", true);
  const Json* choice = Find(body, "tool_choice");
  request->names_call = choice != nullptr && choice->is_object();
  request->reasoning_field = context.policy.reasoning_field;
  if (!GetBool(body, "include_reasoning", true)) request->reasoning_field = ReasoningField::kNone;
  if (request->syntax.reasoning == nullptr) return;
  std::span<const TokenId> tail = prompt.last(std::min(prompt.size(), kTailTokens));
  request->begins_in_reasoning =
      EndsInReasoning(context.codec->Decode(tail, /*skip_special=*/false), request->syntax);
}

// One GenerationRequest per prompt, alike but for the prompt.
absl::Status AddGenerations(const Json& body, const RequestContext& context,
                            std::vector<ApiPrompt> prompts, ApiRequest* api) {
  GenerationRequest pattern;
  HEDDLE_RETURN_IF_ERROR(ReadSampling(body, context, &pattern));
  HEDDLE_RETURN_IF_ERROR(ReadScheduling(body, context, &pattern));
  HEDDLE_ASSIGN_OR_RETURN(pattern.sampling.grammar, ReadConstraint(body, context, *api));
  pattern.num_branches = api->best_of;
  if (api->logprobs) pattern.sampling.num_logprobs = api->top_logprobs;
  if (api->best_of > api->n) {  // to be told which are best
    pattern.sampling.num_logprobs = std::max(0, pattern.sampling.num_logprobs);
  }
  if (api->logprobs && api->echo) pattern.prompt_logprobs = api->top_logprobs;
  pattern.prompt_logprobs = std::max(pattern.prompt_logprobs, api->prompt_logprobs);
  bool random_seed = Find(body, "seed") == nullptr;
  for (size_t i = 0; i < prompts.size(); ++i) {
    GenerationRequest request = pattern;
    // Random seeds of two prompts are far apart: branch b adds b to its own.
    if (random_seed) request.sampling.seed += (static_cast<uint64_t>(i) << 32);
    request.prompt = std::move(prompts[i].tokens);
    HEDDLE_RETURN_IF_ERROR(SetMaxTokens(body, *api, context, &request, &api->warning));
    if (api->echo) api->prompt_texts.push_back(std::move(prompts[i].text));
    api->generations.push_back(std::move(request));
  }
  api->min_tokens = api->generations.front().sampling.min_tokens;
  return absl::OkStatus();
}

}  // namespace

absl::Status TakesLong() { return absl::AbortedError("this request takes long to read"); }

bool IsTakesLong(const absl::Status& status) { return absl::IsAborted(status); }

absl::StatusOr<ApiRequest> ParseRequest(Endpoint endpoint, std::string_view text,
                                        const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(Json body, ParseJsonObject(text));
  return ReadRequest(endpoint, body, context);
}

absl::StatusOr<ApiRequest> ReadRequest(Endpoint endpoint, const Json& body,
                                       const RequestContext& context) {
  bool chat = endpoint == Endpoint::kChat;
  HEDDLE_RETURN_IF_ERROR(
      CheckBody(body, chat ? ChatFields() : CompletionFields(), RefusedChatFields(), context));
  HEDDLE_RETURN_IF_ERROR(CheckModel(body, *context.model));
  if (chat) {
    HEDDLE_ASSIGN_OR_RETURN(const std::optional<Json> resolved, WithAllowedTools(body));
    if (resolved.has_value()) return ReadRequest(endpoint, *resolved, context);
  }
  ApiRequest request;
  request.endpoint = endpoint;
  request.echo = !chat && GetBool(body, "echo", false);
  HEDDLE_RETURN_IF_ERROR(ReadStream(body, &request));
  HEDDLE_RETURN_IF_ERROR(ReadCounts(body, &request));
  HEDDLE_RETURN_IF_ERROR(ReadPromptLogprobs(body, &request));
  HEDDLE_RETURN_IF_ERROR(ReadLogprobs(body, &request));
  HEDDLE_ASSIGN_OR_RETURN(request.stop, ReadStop(body));
  std::vector<ApiPrompt> prompts;
  if (chat) {
    HEDDLE_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, EncodeMessages(body, context));
    prompts.push_back({std::move(tokens), ""});
    ReadOutputSyntax(body, context, prompts.front().tokens, &request);
  } else {
    const size_t max_prompts = kMaxChoices / static_cast<size_t>(request.best_of);
    HEDDLE_ASSIGN_OR_RETURN(prompts,
                            ReadPrompts(body, "prompt", max_prompts, request.echo, *context.codec));
    HEDDLE_RETURN_IF_ERROR(AddSuffix(body, *context.codec, &prompts));
  }
  HEDDLE_RETURN_IF_ERROR(AddGenerations(body, context, std::move(prompts), &request));
  return request;
}

}  // namespace heddle::server
