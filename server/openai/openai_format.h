// The answers of /v1/completions and /v1/chat/completions.
//
// Streamed, per choice: a chunk with only the role (chat), chunks with reasoning, text or tool
// calls, never two of these in one, then one with only the finish reason. Finally the usage, if
// asked for, with no choices, and "[DONE]".
// Source: OpenAI's API reference, and the rules that its clients rely on
// (tests/conformance/client_rules_test.py).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/answer/answer_format.h"
#include "server/openai/request_context.h"

namespace heddle::server {

class JsonWriter;

class OpenAiFormat final : public AnswerFormat {
 public:
  struct Identity {
    std::string id;       // "chatcmpl-..." or "cmpl-..."
    int64_t created = 0;  // seconds since 1970
  };

  // The pointers outlive the format.
  OpenAiFormat(const ApiRequest* request, const ServedModel* model, const TextCodec* codec,
               Identity identity);

  void SetBranch(std::string_view path) override { branch_ = path; }
  void BeginChoice(size_t index, std::string* frames) override;
  void WritePiece(size_t index, const OutputPiece& piece, std::span<const ChoiceToken> tokens,
                  std::string* frames) override;
  void TakeTokenIds(size_t index, std::span<const TokenId> ids) override;
  void EndChoice(size_t index, const ChoiceResult& result, std::string* frames) override;
  void End(std::span<const ChoiceResult> choices, const Usage& usage, std::string* frames) override;
  std::string Body(std::span<const ChoiceResult> choices, const Usage& usage) const override;
  std::string ErrorFrames(const ApiError& error) override;

 private:
  void WriteChunk(size_t index, std::string_view payload, std::span<const ChoiceToken> tokens,
                  const ChoiceResult* end, std::string* frames);
  void WriteTokenIds(size_t index, JsonWriter* json);
  void WritePromptIds(size_t index, JsonWriter* json) const;
  void WriteCall(size_t index, const ToolCall& call, std::string* frames);
  void WriteArguments(size_t index, std::string_view text, std::string* frames);
  void WriteMessage(size_t index, const ChoiceResult& result, JsonWriter* json) const;
  void WriteReasoning(std::string_view text, JsonWriter* json) const;
  void WriteHead(std::string_view object, JsonWriter* json) const;
  void WriteLogprobs(std::span<const ChoiceToken> tokens, JsonWriter* json) const;
  void WritePromptLogprobs(size_t prompt, const ChoiceResult& result, JsonWriter* json) const;
  std::string CallId(size_t index, size_t call) const;
  std::string_view ObjectName(bool chunk) const;
  bool chat() const { return request_->endpoint == Endpoint::kChat; }

  const ApiRequest* request_;
  const ServedModel* model_;
  const TextCodec* codec_;
  Identity identity_;
  std::string chunk_head_;       // the members with which all chunks begin
  std::string branch_;           // that chunks name; empty: none
  std::vector<size_t> n_calls_;  // calls sent so far, per choice
  // Per choice, if token ids were asked for: those that no chunk has brought yet, and whether a
  // chunk has brought the prompt's.
  std::vector<std::vector<TokenId>> unsent_ids_;
  std::vector<bool> sent_prompt_;
};

}  // namespace heddle::server
