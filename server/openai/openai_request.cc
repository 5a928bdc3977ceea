#include "server/openai/openai_request.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "base/message.h"
#include "base/status.h"
#include "engine/grammar/compiled_grammar.h"
#include "nlohmann/json.hpp"
#include "server/openai/choice_fields.h"
#include "server/openai/constraint.h"
#include "server/openai/drafting.h"
#include "server/openai/parallel_fields.h"
#include "server/openai/refused_fields.h"
#include "server/openai/request_parts.h"
#include "server/openai/sampling_fields.h"
#include "server/openai/scheduling.h"
#include "server/openai/search_fields.h"
#include "server/request/api_error.h"
#include "server/request/show_json.h"

namespace heddle::server {
namespace {

constexpr int32_t kDefaultCompletionTokens = 16;  // OpenAI's

using CompletionFields = RequestFields<fields::kCompletion>;
using ChatFields = RequestFields<fields::kChat>;
using LengthFields = RequestFields<fields::kLengthPart>;

absl::StatusOr<std::vector<std::string>> ReadStop(const GenerationFields& body) {
  std::vector<std::string> stop;
  const Json* value = body.Value<"stop">();
  if (value == nullptr) return stop;
  const Json list = value->is_string() ? Json::array({*value}) : *value;
  if (list.size() > kMaxStopStrings) {
    return FieldError("stop", base::StrCat("'stop' must have at most ", kMaxStopStrings,
                                           " strings, found ", list.size()));
  }
  for (const Json& entry : list) {
    const std::string* text = TextOf(&entry);
    if (text == nullptr) {
      return FieldError("stop", base::StrCat("'stop' must hold strings, found ", JsonKind(entry)),
                        "invalid_type");
    }
    if (text->size() > kMaxStopBytes) {
      return FieldError("stop", base::StrCat("a stop string must have at most ", kMaxStopBytes,
                                             " bytes, found ", text->size()));
    }
    if (!text->empty()) stop.push_back(*text);
  }
  return stop;
}

// Clients set 'stream_options' once for all of their requests, so it may stand beside "stream":
// false, where it has no effect.
void ReadStream(const GenerationFields& body, ApiRequest* request) {
  request->stream = body.Bool<"stream">(false);
  const auto options = body.Object<"stream_options", fields::kStreamOptions>();
  request->include_usage = options.has_value() && options->Bool<"include_usage">(false);
}

void ReadLogprobs(const CompletionFields& body, ApiRequest* request) {
  request->logprobs = body.Has<"logprobs">();
  request->top_logprobs = static_cast<int32_t>(body.Int<"logprobs">(0));
}

absl::Status ReadLogprobs(const ChatFields& body, ApiRequest* request) {
  request->logprobs = body.Bool<"logprobs">(false);
  request->top_logprobs = static_cast<int32_t>(body.Int<"top_logprobs">(0));
  if (request->top_logprobs > 0 && !request->logprobs) {
    return FieldError("top_logprobs", "'top_logprobs' is only allowed where 'logprobs' is true");
  }
  return absl::OkStatus();
}

absl::Status ReadPromptLogprobs(const GenerationFields& body, ApiRequest* request) {
  request->prompt_logprobs = static_cast<int32_t>(body.Int<"prompt_logprobs">(-1));
  if (request->prompt_logprobs >= 0 && request->stream) {
    return FieldError("prompt_logprobs", "'prompt_logprobs' is not available in a stream");
  }
  return absl::OkStatus();
}

// Whether the answer stays for /v1/branches, and what later requests have in common with this one.
template <typename Fields>
absl::Status ReadKeep(const Fields& body, size_t num_prompts, const RequestContext& context,
                      ApiRequest* request) {
  request->keep = body.template Bool<"keep">(false);
  if (!request->keep) return absl::OkStatus();
  if (num_prompts > 1 || request->best_of > request->n) {
    return FieldError("keep", "'keep' is for one prompt, and not with 'best_of' beyond n");
  }
  const std::string* model = body.template Text<"model">();
  const Json* lora = body.template Value<"lora">();
  request->common = CommonMembers(!context.deployment.empty() ? &context.deployment : model, lora,
                                  body.template Text<"cache_salt">());
  return absl::OkStatus();
}

// How many answers are drawn, and how many of them returned.
absl::Status ReadCounts(const CompletionFields& body, ApiRequest* request) {
  request->n = static_cast<int32_t>(body.Int<"n">(1));
  request->best_of = static_cast<int32_t>(body.Int<"best_of">(request->n));
  if (request->best_of < request->n) {
    return FieldError("best_of", base::StrCat("'best_of' must be at least n, found ",
                                              request->best_of, " and n ", request->n));
  }
  if (request->best_of > request->n && request->stream) {
    return FieldError("best_of", "'best_of' beyond n is not available in a stream");
  }
  return absl::OkStatus();
}

// The length that the client names; `room` where it names none (-1), `fallback` where the field is
// missing. INVALID_ARGUMENT: a chat of no tokens.
absl::StatusOr<int64_t> AskedLength(const LengthFields& body, bool chat, int64_t room,
                                    int64_t fallback) {
  const bool wins = body.Has<"max_completion_tokens">();
  const int64_t asked =
      wins ? body.Int<"max_completion_tokens">(0) : body.Int<"max_tokens">(fallback);
  if (asked == 0 && chat) {
    const std::string_view name = wins ? "max_completion_tokens" : "max_tokens";
    return FieldError(name, base::StrCat("'", name, "' must be at least 1, or -1 for the rest of ",
                                         "the context, found 0"));
  }
  return asked < 0 ? room : asked;
}

// The client's limit, or the rest of the context; cut to what the context holds.
absl::Status SetMaxTokens(const LengthFields& body, const RequestContext& context,
                          GenerationRequest* request, ApiRequest* api) {
  const ServedModel& model = *context.model;
  auto prompt_tokens = static_cast<int64_t>(request->prompt.size());
  std::string_view param = api->endpoint == Endpoint::kChat ? "messages" : "prompt";
  if (prompt_tokens >= model.max_context) {
    return FieldError(param,
                      base::StrCat("the prompt has ", prompt_tokens,
                                   " tokens, and the context of this server holds ",
                                   model.max_context, " with at least one for the answer"),
                      "context_length_exceeded");
  }
  int64_t room = model.max_context - prompt_tokens;
  const bool chat = api->endpoint == Endpoint::kChat;
  HEDDLE_ASSIGN_OR_RETURN(int64_t asked,
                          AskedLength(body, chat, room, chat ? room : kDefaultCompletionTokens));
  if (asked > room && (body.Has<"max_tokens">() || body.Has<"max_completion_tokens">())) {
    if (!context.policy.clamp_max_tokens) {
      return FieldError(
          body.Has<"max_completion_tokens">() ? "max_completion_tokens" : "max_tokens",
          base::StrCat("the prompt has ", prompt_tokens, " tokens and the context holds ",
                       model.max_context, ": at most ", room, " can follow, found ", asked),
          "context_length_exceeded");
    }
    api->Warn(
        base::StrCat("max_tokens cut from ", asked, " to ", room, ", the rest of the context"));
  }
  request->max_tokens = static_cast<int32_t>(std::min(asked, room));
  request->sampling.min_tokens = std::min(request->sampling.min_tokens, request->max_tokens);
  return absl::OkStatus();
}

// Reads how the model marks tool calls and reasoning in the text of a chat's answer.
void ReadOutputSyntax(const ChatFields& body, const RequestContext& context,
                      std::span<const TokenId> prompt, ApiRequest* request) {
  constexpr size_t kTailTokens = 32;  // marks that open reasoning are shorter
  request->syntax = context.codec->syntax();
  if (!OffersTools(body)) request->syntax.tools = nullptr;
  request->tools = ReadToolSet(body);
  request->parallel_tool_calls = body.Bool<"parallel_tool_calls">(true);
  const Json* choice = body.Value<"tool_choice">();
  request->names_call = choice != nullptr && choice->is_object();
  request->reasoning_field = context.policy.reasoning_field;
  if (!body.Bool<"include_reasoning">(true)) request->reasoning_field = ReasoningField::kNone;
  if (request->syntax.reasoning == nullptr) return;
  std::span<const TokenId> tail = prompt.last(std::min(prompt.size(), kTailTokens));
  request->begins_in_reasoning =
      EndsInReasoning(context.codec->Decode(tail, /*skip_special=*/false), request->syntax);
}

// The fields of both routes that shape the answer.
struct AnswerFields {
  GenerationFields generation;
  LengthFields length;
  std::optional<ToolFields> tools;  // of a chat
};

// The part of the prompt that the client wants read ("truncate_prompt_tokens"): its last tokens.
absl::Status TruncatePrompt(const AnswerFields& body, const ApiRequest& api,
                            const RequestContext& context, ApiPrompt* prompt) {
  int64_t limit = body.generation.Int<"truncate_prompt_tokens">(0);
  if (limit == 0) {
    return body.generation.Has<"truncate_prompt_tokens">() ? ZeroTruncation() : absl::OkStatus();
  }
  if (limit < 0) {  // the answer needs one token at least
    const int64_t most = int64_t{context.model->max_context} - 1;
    HEDDLE_ASSIGN_OR_RETURN(const int64_t asked,
                            AskedLength(body.length, api.endpoint == Endpoint::kChat, 1, 1));
    limit = most + 1 - std::clamp<int64_t>(asked, 1, most);
  }
  if (!KeepLast(limit, &prompt->tokens)) return absl::OkStatus();
  if (api.echo) prompt->text = context.codec->Decode(prompt->tokens, /*skip_special=*/true);
  return absl::OkStatus();
}

// The stop tokens that a client is told of: without the model's own, which are its end.
std::vector<TokenId> ToldStopTokens(const GenerationRequest& request, bool ignores_end,
                                    const TextCodec& codec) {
  if (ignores_end) return request.stop_tokens;
  const std::span<const TokenId> ends = codec.end_tokens();
  std::vector<TokenId> told;
  std::copy_if(
      request.stop_tokens.begin(), request.stop_tokens.end(), std::back_inserter(told),
      [ends](TokenId id) { return std::find(ends.begin(), ends.end(), id) == ends.end(); });
  return told;
}

// A beam search: as many beams as the client says, or as it wants answers to choose from.
absl::Status ReadBeams(const GenerationFields& body, size_t num_prompts, ApiRequest* api) {
  if (!body.Bool<"use_beam_search">(false)) {
    if (!body.Has<"beam_width">()) return absl::OkStatus();
    return FieldError("beam_width", "'beam_width' needs 'use_beam_search'");
  }
  api->beam_width =
      static_cast<int32_t>(body.Int<"beam_width">(std::min(fields::kMaxBeams, api->best_of)));
  api->length_penalty = body.Number<"length_penalty">(1);
  if (api->n > api->beam_width) {
    return FieldError(
        "n", base::StrCat("'n' must be at most beam_width, ", api->beam_width, ", found ", api->n));
  }
  if (api->keep || num_prompts > 1 || api->prompt_logprobs >= 0 || (api->echo && api->logprobs)) {
    return FieldError("use_beam_search",
                      "'use_beam_search' is for one prompt, and not with 'keep' or "
                      "log-probabilities of the prompt");
  }
  api->best_of = api->n;  // the search has its own choice
  return absl::OkStatus();
}

// One GenerationRequest per prompt, alike but for the prompt.
absl::Status AddGenerations(const AnswerFields& body, const RequestContext& context,
                            std::vector<ApiPrompt> prompts, ApiRequest* api) {
  GenerationRequest pattern;
  HEDDLE_RETURN_IF_ERROR(ReadBeams(body.generation, prompts.size(), api));
  HEDDLE_RETURN_IF_ERROR(ReadSearch(body.generation, prompts.size(), context.policy, api));
  HEDDLE_RETURN_IF_ERROR(ReadSampling(body.generation, context, &pattern));
  HEDDLE_RETURN_IF_ERROR(ReadScheduling(body.generation, context, &pattern));
  HEDDLE_RETURN_IF_ERROR(ReadDrafting(
      body.generation, context, prompts.size() * static_cast<size_t>(api->best_of), &pattern));
  HEDDLE_ASSIGN_OR_RETURN(pattern.grammar,
                          ReadConstraint(body.generation, body.tools, context, *api));
  if (pattern.grammar != nullptr && api->beam_width > 0) {
    return FieldError("use_beam_search",
                      "'use_beam_search' does not go with what constrains the answer");
  }
  if (pattern.grammar != nullptr) {
    for (const std::string& dropped : pattern.grammar->dropped()) {
      api->Warn(base::StrCat("left out of a schema: ", dropped));
    }
  }
  pattern.num_branches = api->best_of;
  if (api->logprobs) pattern.sampling.num_logprobs = api->top_logprobs;
  if (api->best_of > api->n) {  // to be told which are best
    pattern.sampling.num_logprobs = std::max(0, pattern.sampling.num_logprobs);
  }
  if (api->logprobs && api->echo) pattern.prompt_logprobs = api->top_logprobs;
  pattern.prompt_logprobs = std::max(pattern.prompt_logprobs, api->prompt_logprobs);
  // No token has more alternatives than there are tokens.
  for (int32_t* count : {&pattern.sampling.num_logprobs, &pattern.prompt_logprobs}) {
    *count = std::min(*count, context.codec->vocab());
  }
  const bool random_seed = !body.generation.Has<"seed">();
  for (size_t i = 0; i < prompts.size(); ++i) {
    GenerationRequest request = pattern;
    // Random seeds of two prompts are far apart: branch b adds b to its own.
    if (random_seed) request.sampling.seed += (static_cast<uint64_t>(i) << 32);
    HEDDLE_RETURN_IF_ERROR(TruncatePrompt(body, *api, context, &prompts[i]));
    request.prompt = std::move(prompts[i].tokens);
    HEDDLE_RETURN_IF_ERROR(SetMaxTokens(body.length, context, &request, api));
    if (api->echo) api->prompt_texts.push_back(std::move(prompts[i].text));
    api->generations.push_back(std::move(request));
  }
  HEDDLE_RETURN_IF_ERROR(ReadParallel(body.generation, context, api));
  HEDDLE_RETURN_IF_ERROR(ReadChoices(body.generation, api));
  api->min_tokens = api->generations.front().sampling.min_tokens;
  api->stop_token_ids = ToldStopTokens(api->generations.front(),
                                       body.generation.Bool<"ignore_eos">(false), *context.codec);
  return absl::OkStatus();
}

// Reads the fields that both routes begin with.
absl::Status ReadCommon(const GenerationFields& body, ApiRequest* request) {
  ReadStream(body, request);
  HEDDLE_RETURN_IF_ERROR(ReadPromptLogprobs(body, request));
  HEDDLE_ASSIGN_OR_RETURN(request->stop, ReadStop(body));
  request->keep_stop = body.Bool<"include_stop_str_in_output">(false);
  request->keep_special = !body.Bool<"skip_special_tokens">(true);
  request->return_token_ids = body.Bool<"return_token_ids">(false);
  return absl::OkStatus();
}

absl::StatusOr<ApiRequest> ReadCompletion(const Json& json, const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(const CompletionFields body,
                          CheckBody<fields::kCompletion>(json, RefusedCompletionFields(), context));
  ApiRequest request;
  HEDDLE_ASSIGN_OR_RETURN(request.model,
                          ChooseModel(body.Text<"model">(), body.Value<"lora">(), context));
  request.endpoint = Endpoint::kCompletion;
  request.echo = body.Bool<"echo">(false);
  HEDDLE_RETURN_IF_ERROR(ReadCommon(body, &request));
  HEDDLE_RETURN_IF_ERROR(ReadCounts(body, &request));
  ReadLogprobs(body, &request);
  // The tokens of filling in come before any begin token.
  const std::string* suffix = body.Text<"suffix">();
  const bool fills = suffix != nullptr && !suffix->empty();
  const PromptOptions options{.max_prompts = kMaxChoices / static_cast<size_t>(request.best_of),
                              .echo = request.echo,
                              .add_special = !fills && body.Bool<"add_special_tokens">(true)};
  HEDDLE_ASSIGN_OR_RETURN(std::vector<ApiPrompt> prompts,
                          ReadPrompts(*body.Value<"prompt">(), "prompt", options, *context.codec));
  if (body.Has<"search">()) {
    request.search.question = context.codec->Decode(prompts.front().tokens, /*skip_special=*/true);
  }
  HEDDLE_RETURN_IF_ERROR(AddSuffix(body, *context.codec, &prompts));
  HEDDLE_RETURN_IF_ERROR(ReadKeep(body, prompts.size(), context, &request));
  HEDDLE_RETURN_IF_ERROR(
      AddGenerations({body, body, std::nullopt}, context, std::move(prompts), &request));
  return request;
}

absl::StatusOr<ApiRequest> ReadChat(const Json& json, const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(const ChatFields body,
                          CheckBody<fields::kChat>(json, RefusedChatFields(), context));
  HEDDLE_ASSIGN_OR_RETURN(const std::optional<Json> resolved, WithAllowedTools(body, json));
  if (resolved.has_value()) return ReadChat(*resolved, context);
  ApiRequest request;
  request.endpoint = Endpoint::kChat;
  HEDDLE_ASSIGN_OR_RETURN(request.model,
                          ChooseModel(body.Text<"model">(), body.Value<"lora">(), context));
  HEDDLE_RETURN_IF_ERROR(ReadCommon(body, &request));
  request.n = static_cast<int32_t>(body.Int<"n">(1));
  request.best_of = request.n;
  HEDDLE_RETURN_IF_ERROR(ReadLogprobs(body, &request));
  HEDDLE_RETURN_IF_ERROR(ReadKeep(body, 1, context, &request));
  HEDDLE_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, EncodeMessages(body, context));
  ReadOutputSyntax(body, context, tokens, &request);
  if (body.Has<"search">()) request.search.question = LastQuestion(*body.Value<"messages">());
  std::vector<ApiPrompt> prompts;
  prompts.push_back({std::move(tokens), ""});
  HEDDLE_RETURN_IF_ERROR(AddGenerations({body, body, body}, context, std::move(prompts), &request));
  return request;
}

}  // namespace

absl::StatusOr<ApiRequest> ParseRequest(Endpoint endpoint, std::string_view text,
                                        const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(Json body, ParseJsonObject(text));
  return ReadRequest(endpoint, body, context);
}

absl::StatusOr<ApiRequest> ReadRequest(Endpoint endpoint, const Json& body,
                                       const RequestContext& context) {
  if (context.model->head != nullptr) {
    return FieldError("model",
                      "this model writes no text: its folder is of one that gives "
                      "embeddings or scores of classes (/v1/embeddings, /v1/classify, "
                      "/v1/score, /v1/rerank)");
  }
  return endpoint == Endpoint::kChat ? ReadChat(body, context) : ReadCompletion(body, context);
}

}  // namespace heddle::server
