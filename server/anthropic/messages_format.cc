#include "server/anthropic/messages_format.h"

#include "base/message.h"
#include "nlohmann/json.hpp"
#include "server/json_writer.h"
#include "server/request/json_input.h"

namespace heddle::server {
namespace {

using Kind = OutputPiece::Kind;

std::string_view StopReason(const ChoiceResult& result) {
  if (!result.stop_string.empty()) return "stop_sequence";
  switch (result.reason) {
    case EndReason::kLength:
      return "max_tokens";
    case EndReason::kToolCalls:
      return "tool_use";
    case EndReason::kStop:
      break;
  }
  return "end_turn";
}

std::string_view ErrorType(int http_status) {
  switch (http_status) {
    case 400:
      return "invalid_request_error";
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return http_status < 500 ? "invalid_request_error" : "api_error";
  }
}

void BeginEvent(std::string_view name, std::string* frames) {
  frames->append("event: ").append(name).append("\ndata: ");
}

void WriteStop(const ChoiceResult* result, JsonWriter* json) {
  json->Key("stop_reason");
  result == nullptr ? json->Null() : json->String(StopReason(*result));
  json->Key("stop_sequence");
  bool stopped = result != nullptr && !result->stop_string.empty();
  stopped ? json->String(result->stop_string) : json->Null();
}

// Writes an object in any case: text that is not an object is wrapped in one.
JsonWriter& WriteInput(const std::string& arguments, JsonWriter* json) {
  if (ParseJsonObject(arguments).ok()) return json->Raw(arguments);
  return json->BeginObject().Member("INVALID_JSON", arguments).EndObject();
}

// input_tokens do not include tokens from the prefix cache.
void WriteMessagesUsage(const Usage& usage, JsonWriter* json) {
  json->Key("usage").BeginObject();
  json->Member("input_tokens", usage.prompt_tokens - usage.cached_tokens);
  json->Member("cache_creation_input_tokens", 0);
  json->Member("cache_read_input_tokens", usage.cached_tokens);
  json->Member("output_tokens", usage.completion_tokens).EndObject();
}

}  // namespace

void MessagesFormat::Begin(const Usage& so_far, std::string* frames) {
  BeginEvent("message_start", frames);
  JsonWriter json(frames);
  json.BeginObject().Member("type", "message_start").Key("message");
  WriteMessage(nullptr, so_far, &json);
  json.EndObject();
  frames->append("\n\n");
}

void MessagesFormat::WritePiece(size_t, const OutputPiece& piece, std::span<const ChoiceToken>,
                                std::string* frames) {
  if (piece.kind == Kind::kArguments) {
    WriteArguments(piece, frames);
    return;
  }
  bool is_call = piece.kind == Kind::kCall;
  if (!is_call && piece.text.empty()) return;
  if (open_ && (is_call || kind_ != piece.kind)) CloseBlock(frames);
  if (!open_) OpenBlock(piece, frames);
  if (is_call) {
    WriteArguments({Kind::kArguments, piece.call.arguments, {}, piece.ends_call}, frames);
  } else if (piece.kind == Kind::kReasoning) {
    WriteDelta("thinking_delta", "thinking", piece.text, frames);
  } else {
    WriteDelta("text_delta", "text", piece.text, frames);
  }
}

// Writes arguments of the open call.
void MessagesFormat::WriteArguments(const OutputPiece& piece, std::string* frames) {
  if (!piece.text.empty()) WriteDelta("input_json_delta", "partial_json", piece.text, frames);
  if (piece.ends_call) CloseBlock(frames);
}

void MessagesFormat::OpenBlock(const OutputPiece& piece, std::string* frames) {
  open_ = true;
  kind_ = piece.kind;
  BeginEvent("content_block_start", frames);
  JsonWriter json(frames);
  json.BeginObject().Member("type", "content_block_start").Member("index", n_blocks_++);
  json.Key("content_block");
  WriteBlock(piece, /*begun_only=*/true, &json);
  json.EndObject();
  frames->append("\n\n");
}

void MessagesFormat::CloseBlock(std::string* frames) {
  open_ = false;
  BeginEvent("content_block_stop", frames);
  JsonWriter(frames)
      .BeginObject()
      .Member("type", "content_block_stop")
      .Member("index", n_blocks_ - 1)
      .EndObject();
  frames->append("\n\n");
}

void MessagesFormat::WriteDelta(std::string_view type, std::string_view name, std::string_view text,
                                std::string* frames) const {
  BeginEvent("content_block_delta", frames);
  JsonWriter json(frames);
  json.BeginObject().Member("type", "content_block_delta").Member("index", n_blocks_ - 1);
  json.Key("delta").BeginObject().Member("type", type).Member(name, text).EndObject().EndObject();
  frames->append("\n\n");
}

void MessagesFormat::EndChoice(size_t, const ChoiceResult&, std::string* frames) {
  if (open_) CloseBlock(frames);
}

void MessagesFormat::End(std::span<const ChoiceResult> choices, const Usage& usage,
                         std::string* frames) {
  BeginEvent("message_delta", frames);
  JsonWriter json(frames);
  json.BeginObject().Member("type", "message_delta").Key("delta").BeginObject();
  WriteStop(&choices.front(), &json);
  json.EndObject();
  WriteMessagesUsage(usage, &json);
  json.EndObject();
  frames->append("\n\n");
  BeginEvent("message_stop", frames);
  frames->append("{\"type\":\"message_stop\"}\n\n");
}

std::string MessagesFormat::Body(std::span<const ChoiceResult> choices, const Usage& usage) const {
  std::string body;
  JsonWriter json(&body);
  WriteMessage(&choices.front(), usage, &json);
  return body;
}

// `result` is null at the start of a stream.
void MessagesFormat::WriteMessage(const ChoiceResult* result, const Usage& usage,
                                  JsonWriter* json) const {
  json->BeginObject().Member("id", base::StrCat("msg_", unique_)).Member("type", "message");
  json->Member("role", "assistant")
      .Member("model", request_->model.shown)
      .Key("content")
      .BeginArray();
  if (result != nullptr) {
    for (const OutputPiece& piece : result->pieces) {
      // The input of a call that was cut off by the length limit is not an object.
      const bool is_cut = piece.kind == Kind::kCall && !piece.ends_call;
      if (!is_cut) WriteBlock(piece, /*begun_only=*/false, json);
    }
  }
  json->EndArray();
  WriteStop(result, json);
  WriteMessagesUsage(usage, json);
  json->EndObject();
}

void MessagesFormat::WriteBlock(const OutputPiece& piece, bool begun_only, JsonWriter* json) const {
  std::string_view text = begun_only ? std::string_view() : std::string_view(piece.text);
  json->BeginObject();
  switch (piece.kind) {
    case Kind::kContent:
      json->Member("type", "text").Member("text", text);
      break;
    case Kind::kReasoning:
      json->Member("type", "thinking").Member("thinking", text).Member("signature", "");
      break;
    case Kind::kArguments:
      break;  // these belong to the call's block
    case Kind::kCall:
      json->Member("type", "tool_use");
      json->Member("id", base::StrCat("toolu_", unique_, "_", n_calls_++));
      json->Member("name", piece.call.name).Key("input");
      begun_only ? json->Raw("{}") : WriteInput(piece.call.arguments, json);
      break;
  }
  json->EndObject();
}

std::string MessagesFormat::ErrorBody(const ApiError& error) const {
  return MessagesErrorJson(error);
}

std::string MessagesFormat::ErrorFrames(const ApiError& error) {
  std::string frames;
  if (open_) CloseBlock(&frames);
  BeginEvent("error", &frames);
  frames.append(MessagesErrorJson(error)).append("\n\n");
  return frames;
}

std::string_view MessagesFormat::keep_alive() const {
  return "event: ping\ndata: {\"type\":\"ping\"}\n\n";
}

std::string MessagesErrorJson(const ApiError& error) {
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Member("type", "error").Key("error").BeginObject();
  json.Member("type", ErrorType(error.http_status)).Member("message", error.message);
  json.EndObject().EndObject();
  return out;
}

}  // namespace heddle::server
