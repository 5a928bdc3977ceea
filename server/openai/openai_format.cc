#include "server/openai/openai_format.h"

#include <utility>

#include "base/message.h"
#include "server/answer/logprobs.h"
#include "server/json_writer.h"

namespace heddle::server {
namespace {

using Kind = OutputPiece::Kind;

constexpr std::string_view kFramePrefix = "data: ";
constexpr std::string_view kFrameEnd = "\n\n";
constexpr std::string_view kDoneFrame = "data: [DONE]\n\n";

// If the client has named the call, OpenAI says "stop" instead of "tool_calls".
std::string_view ReasonName(EndReason reason, const ApiRequest& request) {
  switch (reason) {
    case EndReason::kLength:
      return "length";
    case EndReason::kToolCalls:
      return request.endpoint == Endpoint::kChat && !request.names_call ? "tool_calls" : "stop";
    case EndReason::kStop:
      break;
  }
  return "stop";
}

void WriteUsage(const Usage& usage, JsonWriter* json) {
  json->BeginObject().Member("prompt_tokens", usage.prompt_tokens);
  json->Member("completion_tokens", usage.completion_tokens);
  json->Member("total_tokens", usage.prompt_tokens + usage.completion_tokens);
  json->Key("prompt_tokens_details").BeginObject();
  json->Member("cached_tokens", usage.cached_tokens).EndObject();
  json->Key("completion_tokens_details").BeginObject();
  json->Member("reasoning_tokens", usage.reasoning_tokens);
  if (usage.has_prediction) {
    json->Member("accepted_prediction_tokens", usage.accepted_prediction_tokens);
    json->Member("rejected_prediction_tokens", usage.rejected_prediction_tokens);
  }
  if (usage.has_branches) {
    json->Member("critical_path_tokens", usage.critical_path_tokens);
    json->Member("branches", usage.branches);
  }
  if (usage.has_samples) {
    json->Member("samples", usage.samples).Member("finished_samples", usage.finished_samples);
    json->Member("pruned_samples", usage.pruned_samples).Member("votes", usage.votes);
    json->Member("saved_tokens", usage.saved_tokens);
    if (usage.reward.has_value()) json->Key("reward").Number(*usage.reward);
  }
  json->EndObject().EndObject();
}

// vLLM's member: the stop string or the id of the stop token that ended the choice; null: neither.
void WriteStopReason(const ChoiceResult& result, JsonWriter* json) {
  json->Key("stop_reason");
  if (!result.stop_string.empty()) {
    json->String(result.stop_string);
  } else if (result.stop_token.has_value()) {
    json->Int(*result.stop_token);
  } else {
    json->Null();
  }
  // SGLang's: also the id of the model's own token.
  json->Key("matched_stop");
  if (!result.stop_string.empty()) {
    json->String(result.stop_string);
  } else if (result.end_token.has_value()) {
    json->Int(*result.end_token);
  } else {
    json->Null();
  }
}

void WriteIds(std::span<const TokenId> ids, JsonWriter* json) {
  json->BeginArray();
  for (TokenId id : ids) json->Int(id);
  json->EndArray();
}

}  // namespace

OpenAiFormat::OpenAiFormat(const ApiRequest* request, const ServedModel* model,
                           const TextCodec* codec, Identity identity)
    : request_(request),
      model_(model),
      codec_(codec),
      identity_(std::move(identity)),
      n_calls_(request->num_branches(), 0),
      unsent_ids_(request->return_token_ids ? request->num_branches() : 0),
      sent_prompt_(unsent_ids_.size(), false) {
  JsonWriter json(&chunk_head_);
  json.BeginObject();
  WriteHead(ObjectName(/*chunk=*/true), &json);
}

void OpenAiFormat::BeginChoice(size_t index, std::string* frames) {
  if (chat()) WriteChunk(index, R"({"role":"assistant","content":""})", {}, nullptr, frames);
}

void OpenAiFormat::WritePiece(size_t index, const OutputPiece& piece,
                              std::span<const ChoiceToken> tokens, std::string* frames) {
  if (piece.kind == Kind::kCall) {
    WriteCall(index, piece.call, frames);
    return;
  }
  if (piece.kind == Kind::kArguments) {
    WriteArguments(index, piece.text, frames);
    return;
  }
  bool hidden = request_->reasoning_field == ReasoningField::kNone && tokens.empty();
  if (piece.kind == Kind::kReasoning && hidden) return;
  std::string payload;
  JsonWriter json(&payload);
  if (!chat()) {
    json.String(piece.text);
  } else if (piece.kind == Kind::kReasoning) {
    json.BeginObject();
    WriteReasoning(piece.text, &json);
    json.EndObject();
  } else {
    json.BeginObject().Member("content", piece.text).EndObject();
  }
  WriteChunk(index, payload, tokens, nullptr, frames);
}

// Id, type and name come once, in a separate chunk, followed by the arguments.
void OpenAiFormat::WriteCall(size_t index, const ToolCall& call, std::string* frames) {
  size_t number = n_calls_[index]++;
  std::string begin;
  JsonWriter json(&begin);
  json.BeginObject().Key("tool_calls").BeginArray().BeginObject().Member("index", number);
  json.Member("id", CallId(index, number)).Member("type", "function");
  json.Key("function").BeginObject();
  json.Member("name", call.name).Member("arguments", "").EndObject();
  json.EndObject().EndArray().EndObject();
  WriteChunk(index, begin, {}, nullptr, frames);
  WriteArguments(index, call.arguments, frames);
}

// Writes arguments of the last call.
void OpenAiFormat::WriteArguments(size_t index, std::string_view text, std::string* frames) {
  if (text.empty()) return;
  std::string payload;
  JsonWriter json(&payload);
  json.BeginObject().Key("tool_calls").BeginArray().BeginObject();
  json.Member("index", n_calls_[index] - 1);
  json.Key("function").BeginObject().Member("arguments", text).EndObject();
  json.EndObject().EndArray().EndObject();
  WriteChunk(index, payload, {}, nullptr, frames);
}

void OpenAiFormat::EndChoice(size_t index, const ChoiceResult& result, std::string* frames) {
  WriteChunk(index, chat() ? "{}" : "\"\"", {}, &result, frames);
}

void OpenAiFormat::TakeTokenIds(size_t index, std::span<const TokenId> ids) {
  unsent_ids_[index].insert(unsent_ids_[index].end(), ids.begin(), ids.end());
}

void OpenAiFormat::End(std::span<const ChoiceResult>, const Usage& usage, std::string* frames) {
  if (request_->include_usage) {
    frames->append(kFramePrefix);
    frames->append(chunk_head_);
    frames->append(",\"choices\":[],\"usage\":");
    JsonWriter json(frames);
    WriteUsage(usage, &json);
    frames->append("}");
    frames->append(kFrameEnd);
  }
  frames->append(kDoneFrame);
}

// `payload` is the JSON of "delta" (chat) or of "text"; `end`: the choice's result, in its last
// chunk.
void OpenAiFormat::WriteChunk(size_t index, std::string_view payload,
                              std::span<const ChoiceToken> tokens, const ChoiceResult* end,
                              std::string* frames) {
  frames->append(kFramePrefix);
  frames->append(chunk_head_);
  frames->append(",\"choices\":");
  JsonWriter json(frames);
  json.BeginArray().BeginObject().Member("index", index);
  if (!branch_.empty()) json.Member("branch", branch_);
  json.Key(chat() ? "delta" : "text").Raw(payload);
  json.Key("logprobs");
  tokens.empty() ? void(json.Null()) : WriteLogprobs(tokens, &json);
  json.Key("finish_reason");
  end == nullptr ? json.Null() : json.String(ReasonName(end->reason, *request_));
  if (end != nullptr) WriteStopReason(*end, &json);
  if (request_->return_token_ids) WriteTokenIds(index, &json);
  json.EndObject().EndArray();
  if (request_->return_token_ids && chat() && !sent_prompt_[index]) WritePromptIds(index, &json);
  if (request_->return_token_ids) sent_prompt_[index] = true;
  frames->append(request_->include_usage ? ",\"usage\":null}" : "}");
  frames->append(kFrameEnd);
}

// The ids of the tokens since the last chunk; the first chunk of a completion has the prompt's,
// too.
void OpenAiFormat::WriteTokenIds(size_t index, JsonWriter* json) {
  if (!chat() && !sent_prompt_[index]) WritePromptIds(index, json);
  json->Key("token_ids");
  WriteIds(unsent_ids_[index], json);
  unsent_ids_[index].clear();
}

void OpenAiFormat::WritePromptIds(size_t index, JsonWriter* json) const {
  json->Key("prompt_token_ids");
  WriteIds(request_->generations[index / static_cast<size_t>(request_->n)].prompt, json);
}

// The id is unique among all answers if the answers' ids are.
std::string OpenAiFormat::CallId(size_t index, size_t call) const {
  std::string_view id = identity_.id;
  return ToolCallId(request_->syntax, id.substr(id.find('-') + 1), index, call);
}

std::string OpenAiFormat::Body(std::span<const ChoiceResult> choices, const Usage& usage) const {
  std::string body;
  JsonWriter json(&body);
  json.BeginObject();
  WriteHead(ObjectName(/*chunk=*/false), &json);
  json.Key("choices").BeginArray();
  for (size_t i = 0; i < choices.size(); ++i) {
    const ChoiceResult& result = choices[i];
    json.BeginObject().Member("index", i);
    if (chat()) {
      WriteMessage(i, result, &json);
    } else {
      json.Member("text", result.Text(Kind::kContent));
    }
    json.Key("logprobs");
    request_->logprobs ? WriteLogprobs(result.tokens, &json) : void(json.Null());
    json.Member("finish_reason", ReasonName(result.reason, *request_));
    WriteStopReason(result, &json);
    if (request_->return_token_ids) {
      json.Key("token_ids");
      WriteIds(result.token_ids, &json);
      if (!chat()) WritePromptIds(i, &json);
    }
    size_t prompt = i / static_cast<size_t>(request_->n);
    if (!chat() && request_->prompt_logprobs >= 0) WritePromptLogprobs(prompt, result, &json);
    json.EndObject();
  }
  json.EndArray().Key("usage");
  WriteUsage(usage, &json);
  if (chat() && request_->prompt_logprobs >= 0) WritePromptLogprobs(0, choices.front(), &json);
  if (chat() && request_->return_token_ids) WritePromptIds(0, &json);
  json.EndObject();
  return body;
}

// Content is null if there are only calls; empty members are left out.
void OpenAiFormat::WriteMessage(size_t index, const ChoiceResult& result, JsonWriter* json) const {
  std::string content = result.Text(Kind::kContent);
  std::string reasoning = result.Text(Kind::kReasoning);
  bool has_calls = result.has_calls();
  json->Key("message").BeginObject().Member("role", "assistant").Key("content");
  content.empty() && has_calls ? json->Null() : json->String(content);
  json->NullMember("refusal");
  if (!reasoning.empty()) WriteReasoning(reasoning, json);
  if (has_calls) {
    json->Key("tool_calls").BeginArray();
    size_t number = 0;
    for (const OutputPiece& piece : result.pieces) {
      if (piece.kind != Kind::kCall) continue;
      json->BeginObject().Member("id", CallId(index, number++)).Member("type", "function");
      json->Key("function").BeginObject().Member("name", piece.call.name);
      json->Member("arguments", piece.call.arguments).EndObject().EndObject();
    }
    json->EndArray();
  }
  json->EndObject();
}

void OpenAiFormat::WriteReasoning(std::string_view text, JsonWriter* json) const {
  ReasoningField field = request_->reasoning_field;
  if (field == ReasoningField::kReasoningContent || field == ReasoningField::kBoth) {
    json->Member("reasoning_content", text);
  }
  if (field == ReasoningField::kReasoning || field == ReasoningField::kBoth) {
    json->Member("reasoning", text);
  }
}

void OpenAiFormat::WriteHead(std::string_view object, JsonWriter* json) const {
  json->Member("id", identity_.id).Member("object", object).Member("created", identity_.created);
  json->Member("model", request_->model.shown).Member("system_fingerprint", model_->fingerprint);
}

void OpenAiFormat::WriteLogprobs(std::span<const ChoiceToken> tokens, JsonWriter* json) const {
  chat() ? WriteChatLogprobs(tokens, request_->top_logprobs, *codec_, json)
         : WriteCompletionLogprobs(tokens, request_->top_logprobs, *codec_, json);
}

void OpenAiFormat::WritePromptLogprobs(size_t prompt, const ChoiceResult& result,
                                       JsonWriter* json) const {
  json->Key("prompt_logprobs");
  server::WritePromptLogprobs(request_->generations[prompt].prompt, result.prompt_scores,
                              request_->prompt_logprobs, *codec_, json);
}

std::string_view OpenAiFormat::ObjectName(bool chunk) const {
  if (!chat()) return "text_completion";
  return chunk ? "chat.completion.chunk" : "chat.completion";
}

std::string OpenAiFormat::ErrorFrames(const ApiError& error) {
  std::string frames(kFramePrefix);
  frames.append(ErrorJson(error)).append(kFrameEnd).append(kDoneFrame);
  return frames;
}

}  // namespace heddle::server
