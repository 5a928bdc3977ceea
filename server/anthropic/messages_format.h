// The answers of /v1/messages: Anthropic's message object, its stream of named events, and its own
// envelope for errors.
//
// Streamed: message_start; per block content_block_start, content_block_delta...,
// content_block_stop; message_delta with the stop reason and the usage; message_stop; "ping" in
// between. Source: Anthropic's API reference, "Messages" and "Streaming Messages".
#pragma once

#include <string>
#include <string_view>

#include "server/answer/answer_format.h"
#include "server/openai/request_context.h"

namespace heddle::server {

class JsonWriter;

class MessagesFormat final : public AnswerFormat {
 public:
  // `unique` makes this answer's ids unique. `request` outlives the format.
  MessagesFormat(const ApiRequest* request, std::string unique)
      : request_(request), unique_(std::move(unique)) {}

  void Begin(const Usage& so_far, std::string* frames) override;
  void BeginChoice(size_t, std::string*) override {}
  void WritePiece(size_t index, const OutputPiece& piece, std::span<const ChoiceToken> tokens,
                  std::string* frames) override;
  void EndChoice(size_t index, const ChoiceResult& result, std::string* frames) override;
  void End(std::span<const ChoiceResult> choices, const Usage& usage, std::string* frames) override;
  std::string Body(std::span<const ChoiceResult> choices, const Usage& usage) const override;
  std::string ErrorBody(const ApiError& error) const override;
  std::string ErrorFrames(const ApiError& error) override;
  std::string_view keep_alive() const override;

 private:
  void OpenBlock(const OutputPiece& piece, std::string* frames);
  void CloseBlock(std::string* frames);
  void WriteArguments(const OutputPiece& piece, std::string* frames);
  void WriteDelta(std::string_view type, std::string_view name, std::string_view text,
                  std::string* frames) const;
  void WriteBlock(const OutputPiece& piece, bool begun_only, JsonWriter* json) const;
  void WriteMessage(const ChoiceResult* result, const Usage& usage, JsonWriter* json) const;

  const ApiRequest* request_;
  std::string unique_;
  mutable size_t n_calls_ = 0;  // calls named so far
  size_t n_blocks_ = 0;         // blocks begun so far
  bool open_ = false;           // whether the last of them is open
  OutputPiece::Kind kind_ = OutputPiece::Kind::kContent;
};

// {"type":"error","error":{"type","message"}}
std::string MessagesErrorJson(const ApiError& error);

}  // namespace heddle::server
