#include "server/ollama/ollama_format.h"

#include <algorithm>
#include <cmath>

#include "nlohmann/json.hpp"
#include "server/answer/logprobs.h"
#include "server/answer/timestamp.h"
#include "server/json_writer.h"
#include "server/request/json_input.h"
#include "server/toolcalls/output_syntax.h"

namespace heddle::server {
namespace {

using Kind = OutputPiece::Kind;

// At least one: clients divide by it.
int64_t Nanoseconds(double seconds) {
  return std::max<int64_t>(1, std::llround(std::max(0.0, seconds) * 1e9));
}

}  // namespace

void OllamaFormat::WriteHead(JsonWriter* json) const {
  json->Member("model", request_->model.shown);
  json->Member("created_at", Rfc3339(created_, times_.now));
}

void OllamaFormat::WriteText(std::string_view content, std::string_view thinking,
                             JsonWriter* json) const {
  const bool chat = shape_ == OllamaShape::kChat;
  if (chat) json->Key("message").BeginObject().Member("role", "assistant");
  json->Member(chat ? "content" : "response", content);
  if (!thinking.empty()) json->Member("thinking", thinking);
}

void OllamaFormat::WriteLogprobs(std::span<const ChoiceToken> tokens, JsonWriter* json) const {
  if (!request_->logprobs || tokens.empty()) return;
  json->Key("logprobs");
  WriteTokenLogprobs(tokens, request_->top_logprobs, *codec_, json);
}

// Writes an object in any case: arguments that are not an object are wrapped in one.
void OllamaFormat::WriteCall(size_t number, const ToolCall& call, JsonWriter* json) const {
  json->BeginObject().Member("id", ToolCallId(request_->syntax, unique_, 0, number));
  json->Key("function").BeginObject().Member("index", number);
  json->Member("name", call.name).Key("arguments");
  if (call.arguments.empty()) {
    json->BeginObject().EndObject();
  } else if (ParseJsonObject(call.arguments).ok()) {
    json->Raw(call.arguments);
  } else {
    json->BeginObject().Member("INVALID_JSON", call.arguments).EndObject();
  }
  json->EndObject().EndObject();
}

void OllamaFormat::WriteCalls(std::span<const OutputPiece> pieces, size_t first,
                              JsonWriter* json) const {
  size_t count = 0;
  for (const OutputPiece& piece : pieces) {
    if (piece.kind != Kind::kCall) continue;
    if (count == 0) json->Key("tool_calls").BeginArray();
    WriteCall(first + count++, piece.call, json);
  }
  if (count > 0) json->EndArray();
}

void OllamaFormat::WritePiece(size_t, const OutputPiece& piece, std::span<const ChoiceToken> tokens,
                              std::string* frames) {
  if (piece.kind == Kind::kCall || piece.kind == Kind::kArguments) {
    if (piece.kind == Kind::kCall) {
      SendCall(frames);
      call_ = piece;
      in_call_ = true;
    } else {
      call_.call.arguments.append(piece.text);
    }
    if (piece.ends_call) SendCall(frames);
    return;
  }
  const bool thinks = piece.kind == Kind::kReasoning;
  JsonWriter json(frames);
  json.BeginObject();
  WriteHead(&json);
  WriteText(thinks ? "" : piece.text, thinks ? piece.text : "", &json);
  if (shape_ == OllamaShape::kChat) json.EndObject();
  WriteLogprobs(tokens, &json);
  json.Key("done").Bool(false).EndObject();
  frames->push_back('\n');
}

// Sends the call that is being written, if there is one.
void OllamaFormat::SendCall(std::string* frames) {
  if (!in_call_) return;
  in_call_ = false;
  JsonWriter json(frames);
  json.BeginObject();
  WriteHead(&json);
  WriteText("", "", &json);
  WriteCalls({&call_, 1}, num_calls_++, &json);
  if (shape_ == OllamaShape::kChat) json.EndObject();
  json.Key("done").Bool(false).EndObject();
  frames->push_back('\n');
}

void OllamaFormat::EndChoice(size_t, const ChoiceResult&, std::string* frames) { SendCall(frames); }

void OllamaFormat::End(std::span<const ChoiceResult> choices, const Usage& usage,
                       std::string* frames) {
  JsonWriter json(frames);
  json.BeginObject();
  WriteHead(&json);
  WriteText("", "", &json);
  if (shape_ == OllamaShape::kChat) json.EndObject();
  WriteEnd(choices.front(), usage, &json);
  json.EndObject();
  frames->push_back('\n');
}

void OllamaFormat::WriteEnd(const ChoiceResult& result, const Usage& usage,
                            JsonWriter* json) const {
  json->Key("done").Bool(true);
  json->Member("done_reason", result.reason == EndReason::kLength ? "length" : "stop");
  const double queued = std::max(0.0, times_.queued);
  const double first = std::max(queued, times_.first_token);
  json->Member("total_duration", Nanoseconds(times_.now));
  json->Member("load_duration", Nanoseconds(queued));
  json->Member("prompt_eval_count", usage.prompt_tokens);
  json->Member("prompt_eval_duration", Nanoseconds(first - queued));
  json->Member("eval_count", usage.completion_tokens);
  json->Member("eval_duration", Nanoseconds(times_.now - first));
}

std::string OllamaFormat::Body(std::span<const ChoiceResult> choices, const Usage& usage) const {
  const ChoiceResult& result = choices.front();
  std::string body;
  JsonWriter json(&body);
  json.BeginObject();
  WriteHead(&json);
  WriteText(result.Text(Kind::kContent), result.Text(Kind::kReasoning), &json);
  if (shape_ == OllamaShape::kChat) {
    WriteCalls(result.pieces, 0, &json);
    json.EndObject();
  }
  WriteLogprobs(result.tokens, &json);
  WriteEnd(result, usage, &json);
  json.EndObject();
  return body;
}

std::string OllamaFormat::ErrorBody(const ApiError& error) const { return OllamaErrorJson(error); }

std::string OllamaFormat::ErrorFrames(const ApiError& error) {
  return OllamaErrorJson(error) + "\n";
}

std::string OllamaErrorJson(const ApiError& error) {
  std::string out;
  JsonWriter(&out).BeginObject().Member("error", error.message).EndObject();
  return out;
}

std::string OllamaLoadBody(std::string_view model, OllamaShape shape, int64_t created) {
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Member("model", model).Member("created_at", Rfc3339(created));
  if (shape == OllamaShape::kChat) {
    json.Key("message").BeginObject().Member("role", "assistant").Member("content", "");
    json.EndObject();
  } else {
    json.Member("response", "");
  }
  json.Key("done").Bool(true).Member("done_reason", "load").EndObject();
  return out;
}

}  // namespace heddle::server
