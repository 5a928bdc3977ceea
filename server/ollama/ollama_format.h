// The answers of Ollama's /api/chat and /api/generate: one JSON object a line (NDJSON). Each has
// the model and the time; the last one says "done", why, and how long everything took. A tool call
// comes whole, because its arguments are an object. Source: Ollama's docs/api.md.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "server/answer/answer_format.h"
#include "server/answer/api_request.h"
#include "server/text/text_codec.h"

namespace heddle::server {

class JsonWriter;

enum class OllamaShape : uint8_t { kChat, kGenerate };

class OllamaFormat final : public AnswerFormat {
 public:
  // The pointers outlive the format. `created`: seconds since 1970. `unique`: no other answer has
  // it; for the ids of calls.
  OllamaFormat(const ApiRequest* request, const TextCodec* codec, OllamaShape shape,
               int64_t created, std::string unique)
      : request_(request),
        codec_(codec),
        shape_(shape),
        created_(created),
        unique_(std::move(unique)) {}

  void SetTimes(const AnswerTimes& times) override { times_ = times; }
  void BeginChoice(size_t, std::string*) override {}
  void WritePiece(size_t index, const OutputPiece& piece, std::span<const ChoiceToken> tokens,
                  std::string* frames) override;
  void EndChoice(size_t index, const ChoiceResult& result, std::string* frames) override;
  void End(std::span<const ChoiceResult> choices, const Usage& usage, std::string* frames) override;
  std::string Body(std::span<const ChoiceResult> choices, const Usage& usage) const override;
  std::string ErrorBody(const ApiError& error) const override;
  std::string ErrorFrames(const ApiError& error) override;
  std::string_view content_type() const override { return "application/x-ndjson"; }
  // Clients parse every line, so nothing may stand between two objects.
  std::string_view keep_alive() const override { return ""; }

 private:
  void WriteHead(JsonWriter* json) const;
  // The text of one object: all but the calls.
  void WriteText(std::string_view content, std::string_view thinking, JsonWriter* json) const;
  void WriteLogprobs(std::span<const ChoiceToken> tokens, JsonWriter* json) const;
  // Writes the calls among the pieces, if there are any, into the open message. `first`: the number
  // of the first.
  void WriteCalls(std::span<const OutputPiece> pieces, size_t first, JsonWriter* json) const;
  void WriteCall(size_t number, const ToolCall& call, JsonWriter* json) const;
  void WriteEnd(const ChoiceResult& result, const Usage& usage, JsonWriter* json) const;
  void SendCall(std::string* frames);

  const ApiRequest* request_;
  const TextCodec* codec_;
  const OllamaShape shape_;
  const int64_t created_;
  const std::string unique_;
  AnswerTimes times_;
  OutputPiece call_;  // the call that is being written
  bool in_call_ = false;
  size_t num_calls_ = 0;  // sent
};

// {"error": MESSAGE}
std::string OllamaErrorJson(const ApiError& error);

// The answer to a client that only asks that the model be loaded.
std::string OllamaLoadBody(std::string_view model, OllamaShape shape, int64_t created);

}  // namespace heddle::server
