// The answers of llama.cpp's /completion and /infill: one object per prompt with its text, why it
// ended, and how long it took. Streamed: events with pieces of text, and a last one with the rest.
// Source: llama.cpp's tools/server/README.md.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/answer/answer_format.h"
#include "server/answer/api_request.h"
#include "server/text/text_codec.h"

namespace heddle::server {

class JsonWriter;

class LlamaFormat final : public AnswerFormat {
 public:
  // The pointers outlive the format. `return_tokens`: ids are written.
  LlamaFormat(const ApiRequest* request, const TextCodec* codec, bool return_tokens)
      : request_(request),
        codec_(codec),
        return_tokens_(return_tokens),
        unsent_ids_(request->num_branches()),
        num_tokens_(request->num_branches(), 0) {}

  void SetTimes(const AnswerTimes& times) override { times_ = times; }
  void BeginChoice(size_t, std::string*) override {}
  void TakeTokenIds(size_t index, std::span<const TokenId> ids) override;
  void WritePiece(size_t index, const OutputPiece& piece, std::span<const ChoiceToken> tokens,
                  std::string* frames) override;
  void EndChoice(size_t index, const ChoiceResult& result, std::string* frames) override;
  void End(std::span<const ChoiceResult>, const Usage& usage, std::string* frames) override;
  std::string Body(std::span<const ChoiceResult> choices, const Usage& usage) const override;
  std::string ErrorFrames(const ApiError& error) override;

 private:
  const GenerationRequest& RequestOf(size_t index) const;
  void WriteIds(std::span<const TokenId> ids, JsonWriter* json) const;
  void WriteProbabilities(std::span<const ChoiceToken> tokens, JsonWriter* json) const;
  void WriteSettings(size_t index, JsonWriter* json) const;
  void WriteTimings(size_t index, size_t num_tokens, JsonWriter* json) const;
  // The members of a choice's last object, behind its text.
  void WriteEnd(size_t index, const ChoiceResult& result, size_t num_tokens,
                JsonWriter* json) const;

  const ApiRequest* request_;
  const TextCodec* codec_;
  const bool return_tokens_;
  AnswerTimes times_;
  // Per choice of a stream: the ids that no event has brought, and how many tokens there were.
  std::vector<std::vector<TokenId>> unsent_ids_;
  std::vector<size_t> num_tokens_;
};

}  // namespace heddle::server
